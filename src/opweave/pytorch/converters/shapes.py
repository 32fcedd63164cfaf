"""Operators that change shapes: views, permutations, joins and splits, repetition."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ...core.sizes import Size
from ..registry import AtenCall, axes_of, axis_of, converts, refuse_if


def reshape(b: MLGraphBuilder, x: MLOperand, shape: Sequence[Any]) -> MLOperand:
    """Change the shape; a size of -1 is computed."""
    target = list(shape)
    unknown = [axis for axis, size in enumerate(target) if not isinstance(size, Size) and size == -1]
    if unknown:
        others = prod(size for axis, size in enumerate(target) if axis != unknown[0])
        target[unknown[0]] = prod(x.shape) // others if not isinstance(others, int) or others else 0
    return x if tuple(target) == x.shape else b.reshape(x, target)


@converts("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.view_copy.default")
def _(b: MLGraphBuilder, self: MLOperand, size: Sequence[Any]) -> MLOperand:
    return reshape(b, self, size)


@converts("aten.view_as.default", "aten.reshape_as.default")
def _(b: MLGraphBuilder, self: MLOperand, other: MLOperand) -> MLOperand:
    return reshape(b, self, other.shape)


@converts("aten.flatten.using_ints")
def _(b: MLGraphBuilder, self: MLOperand, start_dim: int = 0, end_dim: int = -1) -> MLOperand:
    if not self.rank:
        return b.reshape(self, [1])
    start, end = axis_of(start_dim, self.rank), axis_of(end_dim, self.rank)
    shape = self.shape
    return reshape(b, self, [*shape[:start], prod(shape[start : end + 1]), *shape[end + 1 :]])


@converts("aten.unflatten.int")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, sizes: Sequence[Any]) -> MLOperand:
    axis, parts = axis_of(dim, self.rank), list(sizes)
    if -1 in [size for size in parts if not isinstance(size, Size)]:
        place = next(k for k, size in enumerate(parts) if not isinstance(size, Size) and size == -1)
        parts[place] = self.shape[axis] // prod(size for k, size in enumerate(parts) if k != place)
    return reshape(b, self, [*self.shape[:axis], *parts, *self.shape[axis + 1 :]])


@converts("aten.unsqueeze.default", "aten.unsqueeze_copy.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int) -> MLOperand:
    axis = axis_of(dim, self.rank + 1)
    return b.reshape(self, [*self.shape[:axis], 1, *self.shape[axis:]])


@converts("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze_copy.dim")
def _(b: MLGraphBuilder, self: MLOperand, dim: int | Sequence[int] | None = None) -> MLOperand:
    axes = range(self.rank) if dim is None else axes_of(dim, self.rank) if dim != [] else []
    removed = {axis for axis in axes if self.rank and not isinstance(self.shape[axis], Size) and self.shape[axis] == 1}
    return reshape(b, self, [size for axis, size in enumerate(self.shape) if axis not in removed])


@converts("aten.permute.default", "aten.permute_copy.default")
def _(b: MLGraphBuilder, self: MLOperand, dims: Sequence[int]) -> MLOperand:
    return permute(b, self, axes_of(dims, self.rank) if dims else [])


def permute(b: MLGraphBuilder, x: MLOperand, axes: Sequence[int]) -> MLOperand:
    """Permute the axes; nothing for the same order."""
    return x if list(axes) == list(range(x.rank)) else b.transpose(x, permutation=list(axes))


@converts("aten.transpose.int", "aten.transpose_copy.int", "aten.swapaxes.default", "aten.swapdims.default")
def _(b: MLGraphBuilder, self: MLOperand, dim0: int, dim1: int) -> MLOperand:
    return swap(b, self, dim0, dim1)


def swap(b: MLGraphBuilder, x: MLOperand, first: int, second: int) -> MLOperand:
    """Exchange two axes."""
    order = list(range(x.rank))
    if x.rank:
        i, j = axis_of(first, x.rank), axis_of(second, x.rank)
        order[i], order[j] = order[j], order[i]
    return permute(b, x, order)


@converts("aten.t.default", "aten.t_copy.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return self if self.rank < 2 else swap(b, self, 0, 1)


@converts("aten.numpy_T.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return permute(b, self, range(self.rank)[::-1])


@converts("aten.mT.default", "aten.adjoint.default", "aten.mH.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return swap(b, self, -2, -1)


@converts("aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int", "aten.moveaxis.intlist")
def _(b: MLGraphBuilder, self: MLOperand, source: Any, destination: Any) -> MLOperand:
    sources = axes_of([source] if isinstance(source, int) else source, self.rank)
    targets = axes_of([destination] if isinstance(destination, int) else destination, self.rank)
    rest = iter(axis for axis in range(self.rank) if axis not in sources)
    moved = dict(zip(targets, sources, strict=True))
    return permute(b, self, [moved[axis] if axis in moved else next(rest) for axis in range(self.rank)])


@converts("aten.expand.default", "aten.expand_copy.default")
def _(b: MLGraphBuilder, self: MLOperand, size: Sequence[Any], implicit: bool = False) -> MLOperand:
    return expand(b, self, size)


def expand(b: MLGraphBuilder, x: MLOperand, size: Sequence[Any]) -> MLOperand:
    """Stretch dimensions of 1 and add leading ones; -1 keeps a dimension."""
    lead = len(size) - x.rank
    shape = [x.shape[axis - lead] if not isinstance(new, Size) and new == -1 else new for axis, new in enumerate(size)]
    return x if tuple(shape) == x.shape else b.expand(x, shape)


@converts("aten.expand_as.default")
def _(b: MLGraphBuilder, self: MLOperand, other: MLOperand) -> MLOperand:
    return expand(b, self, other.shape)


@converts("aten.broadcast_to.default")
def _(b: MLGraphBuilder, self: MLOperand, size: Sequence[Any]) -> MLOperand:
    return expand(b, self, size)


@converts("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def _(b: MLGraphBuilder, tensors: Sequence[MLOperand], dim: int = 0, *, call: AtenCall) -> MLOperand:
    # PyTorch ignores tensors of shape [0], whatever the rank of the others.
    parts = [x for x in call.promote(b, *tensors) if x.shape != (0,)]
    refuse_if(not parts, "all tensors are empty")
    return parts[0] if len(parts) == 1 else b.concat(parts, axis_of(dim, parts[0].rank))


@converts("aten.stack.default")
def _(b: MLGraphBuilder, tensors: Sequence[MLOperand], dim: int = 0, *, call: AtenCall) -> MLOperand:
    parts = call.promote(b, *tensors)
    axis = axis_of(dim, parts[0].rank + 1)
    rows = [b.reshape(x, [*x.shape[:axis], 1, *x.shape[axis:]]) for x in parts]
    return rows[0] if len(rows) == 1 else b.concat(rows, axis)


def window(b: MLGraphBuilder, x: MLOperand, axis: int, start: Any, size: Any, step: int = 1) -> MLOperand:
    """Elements `start` to `start + size` along an axis, every `step`-th."""
    if not isinstance(start, Size) and start == 0 and step == 1 and size == x.shape[axis]:
        return x
    starts = [start if k == axis else 0 for k in range(x.rank)]
    sizes = [size if k == axis else extent for k, extent in enumerate(x.shape)]
    strides = [step if k == axis else 1 for k in range(x.rank)] if step != 1 else None
    return b.slice(x, starts, sizes, strides=strides)


def parts(b: MLGraphBuilder, x: MLOperand, axis: int, sizes: Sequence[Any]) -> tuple[MLOperand, ...]:
    """Split along an axis into parts of `sizes`."""
    if len(sizes) == 1:
        return (x,)
    if any(isinstance(size, Size) or size == 0 for size in (*sizes, x.shape[axis])):
        results, start = [], 0
        for size in sizes:
            results.append(window(b, x, axis, start, size))
            start = start + size
        return tuple(results)
    return b.split(x, list(sizes), axis=axis)


@converts("aten.split.Tensor", "aten.split_copy.Tensor", "aten.unsafe_split.Tensor")
def _(b: MLGraphBuilder, self: MLOperand, split_size: Any, dim: int = 0, *, call: AtenCall) -> tuple[MLOperand, ...]:
    return _in_parts(b, self, axis_of(dim, self.rank), split_size, len(call.value))


def _in_parts(b: MLGraphBuilder, x: MLOperand, axis: int, size: Any, count: int) -> tuple[MLOperand, ...]:
    """Parts of one size, except for the last one."""
    rest = x.shape[axis] - size * (count - 1)
    return parts(b, x, axis, [size] * (count - 1) + [rest])


@converts("aten.split_with_sizes.default", "aten.split_with_sizes_copy.default", "aten.split.sizes")
def _(b: MLGraphBuilder, self: MLOperand, split_sizes: Sequence[Any], dim: int = 0) -> tuple[MLOperand, ...]:
    return parts(b, self, axis_of(dim, self.rank), split_sizes)


@converts("aten.chunk.default", "aten.unsafe_chunk.default")
def _(b: MLGraphBuilder, self: MLOperand, chunks: int, dim: int = 0, *, call: AtenCall) -> tuple[MLOperand, ...]:
    axis = axis_of(dim, self.rank)
    return _in_parts(b, self, axis, -(-self.shape[axis] // chunks), len(call.value))


@converts("aten.unbind.int")
def _(b: MLGraphBuilder, self: MLOperand, dim: int = 0, *, call: AtenCall) -> tuple[MLOperand, ...]:
    axis = axis_of(dim, self.rank)
    rest = [size for k, size in enumerate(self.shape) if k != axis]
    return tuple(b.reshape(row, rest) for row in parts(b, self, axis, [1] * len(call.value)))


@converts("aten.repeat.default", "aten.tile.default")
def _(b: MLGraphBuilder, self: MLOperand, repeats: Sequence[Any]) -> MLOperand:
    counts = [*[1] * (self.rank - len(repeats)), *repeats]
    x = reshape(b, self, [*[1] * (len(counts) - self.rank), *self.shape])
    return x if all(not isinstance(n, Size) and n == 1 for n in counts) else b.tile(x, counts)


@converts("aten.repeat_interleave.self_int")
def _(b: MLGraphBuilder, self: MLOperand, repeats: Any, dim: int | None = None, output_size: Any = None) -> MLOperand:
    x = reshape(b, self, [-1]) if dim is None else self
    axis = axis_of(dim or 0, x.rank)
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    rows = b.expand(b.reshape(x, [*before, size, 1, *after]), [*before, size, repeats, *after])
    return b.reshape(rows, [*before, size * repeats, *after])


@converts("aten.flip.default")
def _(b: MLGraphBuilder, self: MLOperand, dims: Sequence[int]) -> MLOperand:
    return b.reverse(self, axes=axes_of(dims, self.rank)) if dims and self.rank else self


@converts("aten.roll.default")
def _(b: MLGraphBuilder, self: MLOperand, shifts: Sequence[Any], dims: Sequence[int] = ()) -> MLOperand:
    x = self if dims else reshape(b, self, [-1])
    for shift, dim in zip(shifts, dims or [0], strict=True):
        axis = axis_of(dim, x.rank)
        size = x.shape[axis]
        start = (size - shift) % size if isinstance(size, Size) or size else 0
        if isinstance(start, Size) or start:
            x = b.concat([window(b, x, axis, start, size - start), window(b, x, axis, 0, start)], axis)
    return reshape(b, x, self.shape)


@converts("aten.pixel_shuffle.default")
def _(b: MLGraphBuilder, self: MLOperand, upscale_factor: int) -> MLOperand:
    *lead, channels, height, width = self.shape
    r, rank = upscale_factor, len(lead)
    x = b.reshape(self, [*lead, channels // (r * r), r, r, height, width])
    x = b.transpose(x, permutation=[*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2])
    return b.reshape(x, [*lead, channels // (r * r), height * r, width * r])


@converts("aten.pixel_unshuffle.default")
def _(b: MLGraphBuilder, self: MLOperand, downscale_factor: int) -> MLOperand:
    *lead, channels, height, width = self.shape
    r, rank = downscale_factor, len(lead)
    x = b.reshape(self, [*lead, channels, height // r, r, width // r, r])
    x = b.transpose(x, permutation=[*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3])
    return b.reshape(x, [*lead, channels * r * r, height // r, width // r])


@converts("aten.channel_shuffle.default")
def _(b: MLGraphBuilder, self: MLOperand, groups: Any) -> MLOperand:
    batch, channels, *rest = self.shape
    x = b.reshape(self, [batch, groups, channels // groups, *rest])
    x = b.transpose(x, permutation=[0, 2, 1, *range(3, x.rank)])
    return b.reshape(x, self.shape)
