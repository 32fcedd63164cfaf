"""ONNX operators that move elements: join, cut, repeat, pad, permute, choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np

from ....context.builder import MLGraphBuilder
from ....core.guards import current_guards
from ....core.size_functions import larger, smaller
from ....core.size_scope import answer_for_all
from ....core.sizes import is_static
from ....support.records import record
from ...model.registry import (
    MICROSOFT,
    Tensor,
    Unsupported,
    constant_of,
    converts,
    data_type_of,
    integers,
    normalize_axis,
    shape_of,
    unsupported_if,
)


@converts("Transpose")
def _(b: MLGraphBuilder, data: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    axes = list(range(len(shape_of(data))))
    order = axes[::-1] if perm is None else list(perm)
    return data if order == axes else b.transpose(data, permutation=order)


@converts("Concat")
def _(b: MLGraphBuilder, *inputs: Tensor, axis: int) -> Tensor:
    axis = normalize_axis(axis, len(shape_of(inputs[0])))
    parts = [part for part in inputs if shape_of(part)[axis]]  # empty parts, such as new KV caches, add nothing
    return parts[0] if len(parts) == 1 else b.concat(parts, axis)


@converts("Split", moved=["split"])
def _(
    b: MLGraphBuilder,
    input: Tensor,
    split: Tensor | None = None,
    *,
    axis: int = 0,
    num_outputs: int = 0,
    outputs: int,
) -> tuple[Tensor, ...]:
    axis = normalize_axis(axis, len(shape_of(input)))
    whole = shape_of(input)[axis]
    if split is not None:
        sizes = integers(split, "the list of sizes")
    else:
        # All parts are equal, but the last may be smaller.
        count = num_outputs or outputs
        size = -(-whole // count)
        sizes = [size] * (count - 1) + [whole - size * (count - 1)]
    unsupported_if(min(sizes) < 0 or sum(sizes) != whole, f"{whole} elements cannot be split into {sizes}")
    kept = [size for size in sizes if size]
    parts = iter(b.split(input, kept, axis=axis) if len(kept) > 1 else [input])
    return tuple(next(parts) if size else empty(input, {axis: 0}) for size in sizes)


@converts("Slice", moved=["starts", "ends", "axes"])
def _(
    b: MLGraphBuilder,
    data: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    first, last = integers(starts, "the list of starts"), integers(ends, "the list of ends")
    axis_list = range(len(first)) if axes is None else integers(axes, "the list of axes")
    along = [normalize_axis(axis, len(shape_of(data))) for axis in axis_list]
    by = [1] * len(first) if steps is None else integers(steps, "the list of steps")
    if not len(first) == len(last) == len(along) == len(by) or 0 in by:
        raise Unsupported(f"starts {first}, ends {last}, axes {along} and steps {by} do not fit")
    picked = {
        axis: slice_positions(shape_of(data)[axis], *cut) for axis, *cut in zip(along, first, last, by, strict=True)
    }
    return window(b, data, picked)


@record
class NamedRange:
    """Positions from `start` to `stop`, which are known only when the graph runs."""

    start: int
    stop: int

    def __bool__(self) -> bool:
        """Whether there are positions. In a graph for all sizes, the operations say so when it runs."""
        if answer_for_all("negative", self.start - self.stop) is None and current_guards() is None:
            return True
        return self.stop > self.start

    def __iter__(self) -> Iterator[int]:
        return iter(range(int(self.start), int(self.stop)))


def slice_positions(size: int, start: int, end: int, step: int) -> range:
    """The positions that ONNX's Slice picks from `size` elements; a start out of range is clamped.

    >>> slice_positions(5, -1, -(2**63), -2), slice_positions(5, 1, 2**63 - 1, 1), slice_positions(5, -9, -10, -1)
    (range(4, -1, -2), range(1, 5), range(0, -1, -1))
    """
    if step < 0 and end in (2**31 - 1, 2**63 - 1):
        # By the specification the result is empty; ONNX Runtime continues to the first element.
        raise Unsupported(f"it goes backward from {start} to {end}, which is read in different ways")
    start, end = (bound + size if bound < 0 else bound for bound in (start, end))
    if step == 1 and not is_static([size, start, end]):
        first, last = (smaller(larger(bound, 0), size) for bound in (start, end))
        return NamedRange(first, last)  # type: ignore[return-value]
    if step < 0:
        return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)
    return range(min(max(start, 0), size), min(max(end, 0), size), step)


def empty(like: Tensor, sizes: dict[int, int]) -> np.ndarray:
    """An array without elements, like `like` except for the given sizes of axes. WebNN has no empty operands."""
    return np.empty([sizes.get(axis, size) for axis, size in enumerate(shape_of(like))], data_type_of(like))


def window(b: MLGraphBuilder, data: Tensor, picked: dict[int, range]) -> Tensor:
    """Pick the elements at the given positions of some axes; arrays stay arrays."""
    if isinstance(data, np.ndarray):
        return reduce(lambda array, axis: np.take(array, picked[axis], axis), picked, data)
    shape = shape_of(data)
    starts, sizes, strides = [0] * len(shape), list(shape), [1] * len(shape)
    backwards = []
    if not all(picked.values()):
        return empty(data, {axis: len(list(chosen)) for axis, chosen in picked.items()})
    for axis, chosen in picked.items():
        if isinstance(chosen, NamedRange):
            starts[axis], sizes[axis] = chosen.start, chosen.stop - chosen.start
            continue
        if chosen.step < 0:
            backwards += [axis] if len(chosen) > 1 else []
            chosen = chosen[::-1]
        starts[axis], sizes[axis] = chosen[0], chosen[-1] - chosen[0] + 1
        strides[axis] = chosen.step if len(chosen) > 1 else 1
    if sizes != list(shape) or any(stride != 1 for stride in strides):
        data = b.slice(data, starts, sizes, strides=strides)
    return b.reverse(data, axes=backwards) if backwards else data


@converts("Pad", moved=["pads", "value"])
@converts("Pad", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    data: Tensor,
    pads: Tensor | None = None,
    value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    shape, padding = shape_of(data), integers(pads, "the padding")
    rank = len(shape)
    along = list(range(rank)) if axes is None else [normalize_axis(a, rank) for a in integers(axes, "the list of axes")]
    unsupported_if(len(padding) != 2 * len(along), f"the padding {padding} does not fit the axes {along}")
    fill = 0 if value is None else constant_of(value, "the padding value").item()
    begins, ends, kept = [0] * rank, [0] * rank, {}
    for axis, begin, end in zip(along, padding[: len(along)], padding[len(along) :], strict=True):
        begins[axis], ends[axis] = max(begin, 0), max(end, 0)
        if begin < 0 or end < 0:  # they remove elements
            positions = range if is_static([shape[axis], begin, end]) else NamedRange
            kept[axis] = positions(max(-begin, 0), shape[axis] - max(-end, 0))
    data = window(b, data, kept) if kept else data
    if not any(begins) and not any(ends):
        return data
    if mode == "wrap":
        for axis, (size, begin, end) in enumerate(zip(shape_of(data), begins, ends, strict=True)):
            unsupported_if(size == 0 and (begin or end), f"axis {axis} is empty, so there is nothing to wrap")
            if begin or end:
                data = b.gather(data, np.arange(-begin, size + end) % size, axis=axis)
        return data
    modes = {"constant": "constant", "edge": "edge", "reflect": "reflection"}
    unsupported_if(mode not in modes, f"the mode {mode!r} is unknown")
    return b.pad(data, begins, ends, mode=modes[mode], value=fill)


@converts("Tile")
def _(b: MLGraphBuilder, input: Tensor, repeats: Tensor) -> Tensor:
    times = integers(repeats, "the number of repetitions")
    return input if set(times) <= {1} and len(times) == len(shape_of(input)) else b.tile(input, times)


@converts("Trilu")
@converts("Trilu", domain=MICROSOFT)
def _(b: MLGraphBuilder, input: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(constant_of(k, "k").item())
    *_, rows, columns = (1, 1, *shape_of(input))
    # All diagonals outside of the matrix give the same result; WebNN's are 32-bit integers.
    return b.triangular(input, upper=bool(upper), diagonal=min(max(diagonal, -rows), columns))


@converts("ReverseSequence")
def _(b: MLGraphBuilder, input: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    shape = shape_of(input)
    if {batch_axis, time_axis} != {0, 1} or len(shape) < 2:
        raise Unsupported(f"its axes must be 0 and 1, got {batch_axis} and {time_axis}")
    steps, batches = shape[time_axis], shape[batch_axis]
    # [steps, 1] and [1, batches], or transposed
    time = np.expand_dims(np.arange(steps), batch_axis)
    batch = np.expand_dims(np.arange(batches), time_axis)
    lengths = b.reshape(sequence_lens, batch.shape)
    turned = b.where(b.lesser(time, lengths), b.sub(b.sub(lengths, np.int64(1)), time), time)
    # The places of the elements after the first two axes are joined.
    step, stride = (batches, 1) if time_axis == 0 else (1, steps)
    places = b.add(b.mul(turned, np.int64(step)), batch * stride)
    return b.reshape(b.gather(b.reshape(input, [steps * batches, *shape[2:]]), places), shape)
