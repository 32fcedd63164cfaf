"""Shape arithmetic: the specification's algorithms on lists of dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Self

from ..support.errors import ValidationError, require
from ..support.names import short_repr
from ..support.records import record
from .desc import MAX_DIMENSION as MAX_DIMENSION
from .size_functions import broadcast_size, choose, floored_remainder, is_equal
from .size_possibilities import may_equal, may_stretch
from .sizes import Dimension, Size, is_same_size, is_static

MAX_VALUES = 2**20
"""Maximum length of a list argument, far longer than any list of axes."""


def tuple_of(values: Any, name: str) -> tuple[Any, ...]:
    """The values of a sequence or iterator as a tuple; `ValidationError` for more than `MAX_VALUES`, as in `range(10**9)`."""
    items = tuple(islice(values, MAX_VALUES + 1))
    if len(items) > MAX_VALUES:
        raise ValidationError(f"{name} must have at most {MAX_VALUES:,} values, got {short_repr(values)}")
    return items


Shape = tuple[int, ...]


def broadcast(*shapes: Sequence[int], names: str = "a and b") -> Shape:
    """Broadcast shapes to each other (https://www.w3.org/TR/webnn/#bidirectionally-broadcasting).

    >>> broadcast((5, 1), (6,))
    (5, 6)
    """
    has_names = not all(map(is_static, shapes))
    if not has_names and shapes.count(shapes[0]) == len(shapes):
        return tuple(shapes[0])
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    join: Callable[..., int] = broadcast_size if has_names else _broadcast_number
    result = tuple(join(*sizes) for sizes in zip(*padded, strict=True))
    for shape in padded:
        if (has_names or shape != result) and not _stretches_to(shape, result):
            raise ValidationError(
                f"the shapes of {names} do not broadcast: {' and '.join(str(list(s)) for s in shapes)}"
            )
    return result


def _broadcast_number(*sizes: int) -> int:
    return 0 if 0 in sizes else max(sizes)


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether `shape` can be broadcast to `target` (https://www.w3.org/TR/webnn/#unidirectionally-broadcasting)."""
    if len(shape) > len(target):
        return False
    return _stretches_to(shape, target[len(target) - len(shape) :])


def _stretches_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether dimensions are 1 or those of `target`; where that depends on sizes, the graph checks it when it runs."""
    return all(map(may_stretch, shape, target))


def blockwise_broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether dimensions of `target` are multiples of dimensions of `shape` (https://www.w3.org/TR/webnn/#blockwise-broadcasting)"""
    return len(shape) == len(target) and all(map(_may_divide, shape, target))


def _may_divide(part: Dimension, whole: Dimension) -> bool:
    """Whether `whole` is a multiple of `part` for some sizes, as far as formulas tell; 0 divides only 0."""
    if isinstance(part, int) and part == 0:
        return may_equal(whole, 0)
    rest = whole % part
    if isinstance(part, int) or isinstance(rest, int):  # multiples for all sizes are 0 where the part is
        return may_equal(rest, 0)
    return may_equal(choose(is_equal(part, 0), whole, floored_remainder(whole, part)), 0)


def check_axes(axes: Iterable[int], rank: int) -> None:
    """Require axes in [0, rank), without duplicates."""
    listed = list(axes)
    require(all(axis < rank for axis in listed), f"axes must be in [0, {rank}), got {listed}")
    require(len(set(listed)) == len(listed), f"axes must differ, got {listed}")


def reduced_shape(shape: Sequence[int], axes: Sequence[int], keep_dimensions: bool) -> Shape:
    """The shape after a reduction (https://www.w3.org/TR/webnn/#mlgraphbuilder-calculate-reduction-output-sizes)."""
    check_axes(axes, len(shape))
    if keep_dimensions:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def check_window(padding: Sequence[int], strides: Sequence[int], dilations: Sequence[int], axes: int = 2) -> None:
    """Check the options of a sliding window: two paddings, a positive stride and a positive dilation for each axis."""
    if len(padding) != 2 * axes:
        raise ValidationError(f"padding must have {2 * axes} values, got {list(padding)}")
    check_positive(axes, strides=strides, dilations=dilations)


def check_positive(count: int, **lists: Sequence[int]) -> None:
    """Require lists of `count` positive integers."""
    for name, numbers in lists.items():
        if len(numbers) != count or any(number <= 0 for number in numbers):
            plural = "s" if count > 1 else ""
            raise ValidationError(f"{name} must be {count} positive integer{plural}, got {list(numbers)}")


def conv_size(
    input: int, filter: int, before: int, after: int, stride: int, dilation: int, *, ceil: bool = False
) -> int:
    """The size of one axis after a convolution or pooling (https://www.w3.org/TR/webnn/#api-mlgraphbuilder-conv2d).

    It is 0 or less if the window does not fit. A partial last window counts with `ceil` only.

    >>> conv_size(6, 3, 0, 0, 2, 1), conv_size(6, 3, 0, 0, 2, 1, ceil=True)
    (2, 3)
    """
    padded = input + before + after
    _check_padded(padded)
    room = padded - window_extent(filter, dilation)
    return (-(-room // stride) if ceil else room // stride) + 1


def _check_padded(size: int) -> None:
    if not size <= MAX_DIMENSION:  # not `require`: the text of a formula takes longer than its bounds
        raise ValidationError(f"padded dimensions must be at most {MAX_DIMENSION}, got {size}")


def window_extent(filter: int, dilation: int) -> int:
    """The number of elements that a dilated window spans."""
    return (filter - 1) * dilation + 1


@record
class Window:
    """The windows of a pooling along an axis of `size` elements, between `before` and `ending` elements of padding.

    `count` windows are `stride` elements apart, and have `taps` elements that are `dilation` apart.
    """

    size: int
    taps: int
    before: int
    stride: int
    dilation: int
    count: int
    ending: int = 0

    @classmethod
    def along(cls, image: Sequence[int], pool: Mapping[str, Any]) -> list[Self]:
        """The windows along the spatial axes of an image, given the attributes of a pooling operation."""
        names = ("window_dimensions", "strides", "dilations", "output_sizes")
        paddings = pool["padding"][::2], pool["padding"][1::2]
        columns = zip(image, *paddings, *(pool[name] for name in names), strict=True)
        # The dilation of a single tap is unused, and may be huge.
        return [
            cls(size, taps, before, stride, 1 if not isinstance(taps, Size) and taps == 1 else dilation, count, ending)
            for size, before, ending, taps, stride, dilation, count in columns
        ]

    @property
    def after(self) -> int:
        """Padding that the last window needs at the end."""
        reach = (self.count - 1) * self.stride + window_extent(self.taps, self.dilation)
        needed = reach - self.before - self.size
        if isinstance(needed, Size):
            room = self.size + self.before + self.ending - window_extent(self.taps, self.dilation)
            if is_same_size(self.count, room // self.stride + 1):
                return self.ending  # no window begins in the remainder
        return max(needed, 0)

    @property
    def covers_edges(self) -> bool:
        """Whether each window that crosses an edge contains the element at that edge, so that none is empty."""
        return (
            self.dilation == 1 and self.before < self.taps and (self.count - 1) * self.stride - self.before < self.size
        )


def conv_transpose_size(input: int, filter: int, before: int, after: int, stride: int, dilation: int) -> int:
    """The smallest size of one axis after a transposed convolution: a convolution of this axis has `input` elements.

    https://www.w3.org/TR/webnn/#mlgraphbuilder-calculate-convtranspose-output-size
    """
    size = smallest_size(input, filter, before, after, stride, dilation)
    _check_padded(size + before + after)
    return size


def smallest_size(input: int, filter: int, before: int, after: int, stride: int, dilation: int) -> int:
    """The result of `conv_transpose_size` for operands that are checked already."""
    return (input - 1) * stride + window_extent(filter, dilation) - before - after


def sample_positions(input: int, output: int) -> tuple[list[int], int]:
    """The positions of `output` elements in an axis of `input` elements: numerators, and their common denominator.

    Centres of elements are half a step from the borders, and positions beyond the outermost centres are clamped to them
    (https://www.w3.org/TR/webnn/#dom-mlresample2doptions-mode).

    >>> sample_positions(2, 4)  # 0, 1/4, 3/4, 1
    ([0, 2, 6, 8], 8)
    """
    denominator = 2 * output
    last = denominator * (input - 1)
    return [min(max((2 * i + 1) * input - output, 0), last) for i in range(output)], denominator


def nearest_positions(input: int, output: int) -> list[int]:
    """The nearest of `input` elements for each of `output` elements; the lower one at a tie.

    >>> nearest_positions(2, 4), nearest_positions(4, 2)
    ([0, 0, 1, 1], [0, 2])
    """
    numerators, denominator = sample_positions(input, output)
    return [-((denominator - 2 * numerator) // (2 * denominator)) for numerator in numerators]  # ceil(position - 1/2)
