"""Rearrange constants in the order in which kernels read them, with several threads for large constants.

The work is part of `GpuConstant.make`, which runs while kernels compile in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ....support.processors import processors
from ..constants import GpuConstant, is_pool_thread
from .problem import strided_view

T = TypeVar("T")

PIECE_BYTES = 2**20
"""Approximate bytes that a thread copies at a time: a piece fits a CPU cache."""

READ_BYTES = 2**24
"""Approximate bytes that a thread scans at a time, which takes as long as starting some threads. An estimate."""

MIN_FAR_BYTES = 2**10
"""Smallest stride of the last axis, in bytes, for which a matrix is transposed in blocks. An estimate."""

BLOCK = (128, 1024)
"""Elements of a transposed block, along the last axis of the result and along the contiguous axis of the source. Measured with
matrices of 2048 x 8192 and 768 x 3072. A block that is shorter along these axes is longer along others."""

PADDING_BYTES = 64
"""Padding between the lines of a block: lines at a power-of-two stride would compete for the same cache sets."""


def lay_out(
    constant: GpuConstant,
    sizes: tuple[int, ...],
    steps: tuple[int, ...],
    shape: tuple[int, ...],
    is_fresh: bool = False,
) -> GpuConstant:
    """A constant in a different order. `sizes` and `steps` are the sizes and strides of its axes, listed in the new order.

    Strides count elements. The last axis of `shape` flattens all remaining axes, padded with zeros. `is_fresh` makes a copy
    even if the constant is in this order already.
    """
    view = None if constant.how or is_fresh else _in_order(constant.source, sizes, steps, shape)
    return constant.then(_lay_out, sizes, steps, shape, is_fresh) if view is None else GpuConstant.of(view)


def _lay_out(
    array: np.ndarray, sizes: tuple[int, ...], steps: tuple[int, ...], shape: tuple[int, ...], is_fresh: bool
) -> np.ndarray:
    view = None if is_fresh else _in_order(array, sizes, steps, shape)
    if view is not None:
        return view
    result = np.zeros(shape, array.dtype)
    copy(result[..., : prod(sizes[len(shape) - 1 :])].reshape(sizes), strided_view(array, sizes, steps))
    return result


def _in_order(
    array: np.ndarray, sizes: tuple[int, ...], steps: tuple[int, ...], shape: tuple[int, ...]
) -> np.ndarray | None:
    """A view of an array in the order of `lay_out`; None if that takes a copy."""
    view = strided_view(array, sizes, steps)
    return view.reshape(shape) if view.flags.c_contiguous and view.size == prod(shape) else None


def copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copy an array to a target of the same shape and data type, whose last axis is contiguous."""
    far = _far_axis(source)
    if far is None:
        _map_pieces(lambda piece: np.copyto(target[piece], source[piece]), _pieces(source, PIECE_BYTES))
    else:
        blocks = _blocks(source.shape, far)
        count = max(1, len(blocks) * PIECE_BYTES // max(1, source.nbytes))
        # Once for all blocks: moving an axis takes as long as transposing a small block.
        lines, columns = np.moveaxis(source, far, -1), np.moveaxis(target, far, -1)

        def transpose(first: int) -> None:
            for block in blocks[first : first + count]:
                _transpose(columns[block], lines[block])

        _map_pieces(transpose, range(0, len(blocks), count))


def all_below(array: np.ndarray, bound: float) -> bool:
    """Whether all magnitudes in a contiguous array are below a bound; False if one is NaN."""
    flat = array.reshape(-1)
    return all(
        _map_pieces(
            lambda piece: bool(-bound < flat[piece].min() <= flat[piece].max() < bound), _pieces(flat, READ_BYTES)
        )
    )


def split(array: np.ndarray, kept: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Replace each element x of a contiguous array by kept(x), and return the remainders x - kept(x)."""
    rest = np.empty_like(array)
    flat, rests = array.reshape(-1), rest.reshape(-1)

    def divide(piece: Any) -> None:
        part = kept(flat[piece])
        np.subtract(flat[piece], part, out=rests[piece])
        flat[piece] = part

    _map_pieces(divide, _pieces(flat, PIECE_BYTES))
    return rest


def convert(array: np.ndarray, dtype: DTypeLike, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply a function to all elements, in pieces."""
    result = np.empty(array.shape, dtype)
    flat, elements = np.ascontiguousarray(array).reshape(-1), result.reshape(-1)

    def convert_piece(piece: Any) -> None:
        elements[piece] = function(flat[piece])

    _map_pieces(convert_piece, _pieces(flat, PIECE_BYTES))
    return result


def in_parts(constant: GpuConstant, kept: Callable[[np.ndarray], np.ndarray]) -> tuple[GpuConstant, GpuConstant]:
    """Split a constant x into kept(x) and the remainder x - kept(x). Making one part computes both.

    The constant's `compute` must return a new array each time.
    """
    # Entries hold their source, so that no other array gets its id.
    entries: dict[int, tuple[np.ndarray, Lock, dict[str, np.ndarray]]] = {}

    def part(name: str, source: np.ndarray) -> np.ndarray:
        _, lock, parts = entries.setdefault(id(source), (source, Lock(), {}))
        # Another thread may make the other part.
        with lock:
            if name not in parts:
                parts["kept"] = constant.compute(source)
                parts["rest"] = split(parts["kept"], kept)
            array = parts.pop(name)
            if not parts:
                entries.pop(id(source), None)
        return array

    one, other = (
        replace(constant, compute=partial(part, name), how=(*constant.how, in_parts, (kept, name)))
        for name in ("kept", "rest")
    )
    return one, other


def _far_axis(source: np.ndarray) -> int | None:
    """The contiguous axis of a source whose last axis has a large stride; None for other sources."""
    if source.ndim < 2 or source.strides[-1] < MIN_FAR_BYTES:
        return None
    axes = [
        axis for axis in range(source.ndim - 1) if source.strides[axis] == source.itemsize and source.shape[axis] > 1
    ]
    return axes[0] if axes else None


def _transpose(target: np.ndarray, lines: np.ndarray) -> None:
    """Copy a block in two steps: copy its lines, then transpose within the cache."""
    *outer, count = lines.shape
    block = np.empty((*outer, count + PADDING_BYTES // lines.itemsize), lines.dtype)[..., :count]
    np.copyto(block, lines)
    np.copyto(target, block)


def _blocks(shape: Sequence[int], far: int) -> list[tuple[slice, ...]]:
    """Slices that divide an array of this shape into blocks, for a view with axis `far` at the end."""
    cuts = [[slice(None)] for _ in shape]
    for axis, size in zip((-1, far), BLOCK, strict=True):
        cuts[axis] = [slice(start, start + size) for start in range(0, shape[axis], size)]
    room = max(1, prod(BLOCK) // (min(shape[-1], BLOCK[0]) * min(shape[far], BLOCK[1])))
    for axis in reversed(range(len(shape) - 1)):
        if axis != far:
            cuts[axis] = [slice(start, start + room) for start in range(0, shape[axis], room)]
            room = max(1, room // max(1, shape[axis]))
    cuts.append(cuts.pop(far))
    return list(product(*cuts))


def _pieces(array: np.ndarray, size: int) -> list[slice]:
    if not array.size:
        return []
    count = max(1, min(len(array), array.nbytes // size))
    step = -(-len(array) // count)
    return [slice(start, start + step) for start in range(0, len(array), step)]


def _map_pieces(function: Callable[[Any], T], pieces: Sequence[Any]) -> list[T]:
    """Call a function for each piece: in threads if there are several pieces, and this thread is none of several."""
    count = 1 if is_pool_thread() else min(processors(), len(pieces))
    if count < 2:
        return [function(piece) for piece in pieces]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, pieces))
