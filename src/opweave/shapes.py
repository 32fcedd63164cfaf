"""Shape arithmetic: the specification's algorithms on lists of dimensions, in plain integers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .errors import require

Shape = tuple[int, ...]


def broadcast(*shapes: Sequence[int], names: str = "a and b") -> Shape:
    """Broadcast shapes both ways (https://www.w3.org/TR/webnn/#bidirectionally-broadcasting).

    >>> broadcast((5, 1), (6,))
    (5, 6)
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = tuple(max(sizes) for sizes in zip(*padded, strict=True))
    fits = all(size in (1, wanted) for shape in padded for size, wanted in zip(shape, result, strict=True))
    require(fits, f"the shapes of {names} do not broadcast: {' and '.join(str(list(s)) for s in shapes)}")
    return result


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether `shape` can be stretched to `target` (https://www.w3.org/TR/webnn/#unidirectionally-broadcasting)."""
    if len(shape) > len(target):
        return False
    trailing = target[len(target) - len(shape) :]
    return all(size in (1, wanted) for size, wanted in zip(shape, trailing, strict=True))


def blockwise_broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether every dimension of `target` is a multiple of `shape`'s (https://www.w3.org/TR/webnn/#blockwise-broadcasting)."""
    return len(shape) == len(target) and all(whole % part == 0 for part, whole in zip(shape, target, strict=True))


def check_axes(axes: Iterable[int], rank: int) -> None:
    """Require axes that exist, each named once."""
    listed = list(axes)
    require(all(axis < rank for axis in listed), f"axes must be in [0, {rank}), got {listed}")
    require(len(set(listed)) == len(listed), f"axes must differ, got {listed}")


def reduced(shape: Sequence[int], axes: Sequence[int], keep_dimensions: bool) -> Shape:
    """The shape after a reduction over `axes` (https://www.w3.org/TR/webnn/#mlgraphbuilder-calculate-reduction-output-sizes)."""
    check_axes(axes, len(shape))
    if keep_dimensions:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def conv_size(input: int, filter: int, before: int, after: int, stride: int, dilation: int, ceil: bool = False) -> int:
    """The size of one axis after a convolution or a pooling window (https://www.w3.org/TR/webnn/#api-mlgraphbuilder-conv2d)."""
    effective = (filter - 1) * dilation + 1
    padded = input + before + after
    require(effective <= padded, f"a window of {filter} dilated by {dilation} does not fit into {padded} elements")
    room = padded - effective
    return (-(-room // stride) if ceil else room // stride) + 1


def conv_transpose_size(
    input: int, filter: int, before: int, after: int, stride: int, dilation: int, output_padding: int
) -> int:
    """The size of one axis after a transposed convolution (https://www.w3.org/TR/webnn/#api-mlgraphbuilder-convtranspose2d)."""
    effective = (filter - 1) * dilation + 1
    return (input - 1) * stride + effective - before - after + output_padding
