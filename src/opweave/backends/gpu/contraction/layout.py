"""Constants in the order in which kernels read them. Several threads copy large ones.

They are put in order (`Constant.make`) after all kernels have begun to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ....support.processors import processors
from ..constants import Constant
from .problem import strided_view

T = TypeVar("T")

PIECE_BYTES = 2**20
"""About what a thread copies at a time: it fits into the cache of a processor."""

READ_BYTES = 2**24
"""About what a thread looks at, if it writes nothing: as long as it takes to start some threads. An estimate."""

MIN_FAR_BYTES = 2**10
"""Distance in memory between neighbours of the last axis, from which on a matrix is turned in blocks. An estimate."""

BLOCK = (128, 1024)
"""Elements of a block that is turned, along the last axis of the result, and along that which is contiguous in the source.
Measured for matrices of 2048 x 8192 and 768 x 3072."""

PADDING_BYTES = 64
"""Bytes between the lines of a block: lines whose distance is a power of two would compete for few places in the cache."""


def lay_out(
    constant: Constant, sizes: tuple[int, ...], steps: tuple[int, ...], shape: tuple[int, ...], is_fresh: bool = False
) -> Constant:
    """A constant in another order.

    Args:
        constant: the constant.
        sizes: of its axes, in the new order.
        steps: distances in memory between neighbours along these axes, in elements.
        shape: of what is made. Its last axis has the elements of all axes that are left, and then zeros.
        is_fresh: whether it is copied even if it is in this order.
    """
    view = None if constant.how or is_fresh else _in_order(constant.source, sizes, steps, shape)
    return constant.then(_lay_out, sizes, steps, shape, is_fresh) if view is None else Constant.of(view)


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
    """A view of an array in the order of `laid`; None if that takes a copy."""
    view = strided_view(array, sizes, steps)
    return view.reshape(shape) if view.flags.c_contiguous and view.size == prod(shape) else None


def copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copy an array into another one of its shape and data type, of which the last axis is contiguous."""
    far = _far_axis(source)
    if far is None:
        _each(lambda piece: np.copyto(target[piece], source[piece]), _pieces(source, PIECE_BYTES))
    else:
        _each(lambda block: _turn(target[block], source[block], far), _blocks(source.shape, far))


def all_below(array: np.ndarray, bound: float) -> bool:
    """Whether the magnitudes of all elements of a contiguous array are below a bound; NaN is not."""
    flat = array.reshape(-1)
    return all(
        _each(lambda piece: bool(-bound < flat[piece].min() <= flat[piece].max() < bound), _pieces(flat, READ_BYTES))
    )


def split(array: np.ndarray, kept: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Replace the elements of a contiguous array by what `kept` keeps of them, and return the rest."""
    rest = np.empty_like(array)
    flat, rests = array.reshape(-1), rest.reshape(-1)

    def divide(piece: Any) -> None:
        part = kept(flat[piece])
        np.subtract(flat[piece], part, out=rests[piece])
        flat[piece] = part

    _each(divide, _pieces(flat, PIECE_BYTES))
    return rest


def convert(array: np.ndarray, dtype: DTypeLike, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """An array of the elements that `function` makes of those of an array, in its order."""
    result = np.empty(array.shape, dtype)
    flat, elements = np.ascontiguousarray(array).reshape(-1), result.reshape(-1)

    def convert_piece(piece: Any) -> None:
        elements[piece] = function(flat[piece])

    _each(convert_piece, _pieces(flat, PIECE_BYTES))
    return result


def in_parts(constant: Constant, kept: Callable[[np.ndarray], np.ndarray]) -> tuple[Constant, Constant]:
    """What `kept` keeps of the elements of a constant, and the rest: both are made when the first one is asked for.

    Args:
        constant: the constant, which makes a new array each time.
        kept: a function of arrays.
    """
    parts: dict[str, np.ndarray] = {}

    def part(name: str) -> np.ndarray:
        if name not in parts:
            parts["kept"] = whole = constant.make()
            parts["rest"] = split(whole, kept)
        return parts.pop(name)

    one, other = (
        replace(constant, make=partial(part, name), how=(*constant.how, in_parts, kept, name))
        for name in ("kept", "rest")
    )
    return one, other


def _far_axis(source: np.ndarray) -> int | None:
    """The axis along which a source is contiguous, if neighbours of its last axis are far from each other."""
    if source.ndim < 2 or source.strides[-1] < MIN_FAR_BYTES:
        return None
    axes = [
        axis for axis in range(source.ndim - 1) if source.strides[axis] == source.itemsize and source.shape[axis] > 1
    ]
    return axes[0] if axes else None


def _turn(target: np.ndarray, source: np.ndarray, far: int) -> None:
    """Copy a block in two steps: its lines as they are, then turned, within the cache."""
    lines = np.moveaxis(source, far, -1)
    *outer, count = lines.shape
    kept = np.empty((*outer, count + PADDING_BYTES // source.itemsize), source.dtype)[..., :count]
    np.copyto(kept, lines)
    np.copyto(target, np.moveaxis(kept, -1, far))


def _blocks(shape: Sequence[int], far: int) -> list[tuple[slice, ...]]:
    cuts = [[slice(None)] for _ in shape]
    for axis, size in zip((-1, far), BLOCK, strict=True):
        cuts[axis] = [slice(start, start + size) for start in range(0, shape[axis], size)]
    # Other axes are those of stacks and taps: one by one, so that a block has two dimensions.
    for axis, count in enumerate(shape[:-1]):
        if axis != far:
            cuts[axis] = [slice(k, k + 1) for k in range(count)]
    return list(product(*cuts))


def _pieces(array: np.ndarray, size: int) -> list[slice]:
    """Pieces along the first axis, of about `size` bytes."""
    if not array.size:
        return []
    count = max(1, min(len(array), array.nbytes // size))
    step = -(-len(array) // count)
    return [slice(start, start + step) for start in range(0, len(array), step)]


def _each(function: Callable[[Any], T], pieces: Sequence[Any]) -> list[T]:
    """Call a function for each piece, by several threads if there is more than one."""
    count = min(processors(), len(pieces))
    if count < 2:
        return [function(piece) for piece in pieces]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, pieces))


__all__ = ["all_below", "convert", "copy", "in_parts", "lay_out", "split"]
