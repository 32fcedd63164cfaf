"""Pooling over one, two or three spatial axes, which computes one number for each window of an image; and unpooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..core.dtypes import ANY, FLOATS, INFO, DataType
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits
from ..core.shapes import Window, check_positive, check_window, conv_size
from ..core.size_possibilities import may_be_one_of
from ..core.value_ranges import ValueRange
from ..expr import Traced, arg_max_over, cast, clamp, compute, max as maximum, min as minimum, store, where
from ..expr.ir import storage
from ..ops.constants import constant
from ..ops.pooling import RoundingType
from ..support.errors import ValidationError, require
from .convolve import IMAGES, no_padding, ones, spatial
from .declare import declare

if TYPE_CHECKING:
    from ..custom import CustomOp
    from ..ops import Operations

WINDOW = ("window_dimensions", "padding", "strides", "dilations", "output_sizes")

_WINDOW_ARGUMENTS = {
    "window_dimensions": "the size of the window along each axis. Default: that of the input (global pooling).",
    "padding": "elements around the input that windows may cover: [before, after, before, after, …]. Default: none.",
    "strides": "for each axis, at least 1. Default: 1.",
    "dilations": "for each axis, at least 1. Default: 1.",
    "output_shape_rounding": 'whether a partial last window is left out ("floor") or included ("ceil").',
    "output_sizes": "the sizes of the spatial axes of the result, rounded in either way; overrides `output_shape_rounding`.",
}
"""Descriptions of the options of all poolings."""


def _pooled_shape(
    input: Operand,
    window_dimensions: Sequence[int] | None,
    padding: Sequence[int] | None,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    output_sizes: Sequence[int] | None,
) -> tuple[int, ...]:
    """Check the options of a pooling, and return the shape of its result. No option is None: `_declare_defaults` set them."""
    assert window_dimensions is not None
    assert padding is not None
    assert strides is not None
    assert dilations is not None
    assert output_sizes is not None
    axes = input.rank - 2
    check_window(padding, strides, dilations, axes)
    check_positive(axes, window_dimensions=window_dimensions)
    require(len(output_sizes) == axes, f"output_sizes must have {axes} values, got {list(output_sizes)}")
    windows = list(zip(spatial(input), window_dimensions, padding[::2], padding[1::2], strides, dilations, strict=True))
    whole, partial = ([conv_size(*window, ceil=ceil) for window in windows] for ceil in (False, True))
    if not all(map(may_be_one_of, output_sizes, whole, partial)):
        allowed = [whole] if whole == partial else [whole, partial]
        listed = " or ".join(map(str, allowed))
        raise ValidationError(f"output_sizes must be {listed} along each axis, got {list(output_sizes)}")
    return (*input.shape[:2], *output_sizes)


def _declare_defaults(op: CustomOp[Any]) -> None:
    """Declare the defaults of the options of a pooling."""
    op.default("window_dimensions")(spatial)
    op.default("padding")(no_padding)
    op.default("strides")(ones)
    op.default("dilations")(ones)

    @op.default("output_sizes")
    def _(
        input: Operand,
        window_dimensions: Sequence[int],
        padding: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        output_shape_rounding: str,
    ) -> tuple[int, ...]:
        axes = input.rank - 2
        check_window(padding, strides, dilations, axes)
        check_positive(axes, window_dimensions=window_dimensions)
        columns = (spatial(input), window_dimensions, padding[::2], padding[1::2], strides, dilations)
        ceil = output_shape_rounding == "ceil"
        sizes = [conv_size(*window, ceil=ceil) for window in zip(*columns, strict=True)]
        fits = all(size > 0 for size in sizes)
        require(fits, f"a window of {list(window_dimensions)} must fit into the padded input, got {input.desc}")
        return tuple(sizes)


@declare(_WINDOW_ARGUMENTS, input=Limits(FLOATS, ranks=IMAGES))
def average_pool(
    self: Builder,
    input: Operand,
    *,
    window_dimensions: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_shape_rounding: RoundingType = "floor",
    output_sizes: Sequence[int] | None = None,
    include_padding: bool = False,
    label: str = "",
) -> Desc:
    """Average each window of each channel, over one, two or three spatial axes.

    Positions of a partial last window beyond the padding are ignored.

    Args:
        input: float32 or float16 [batches, channels, width], [batches, channels, height, width], or
            [batches, channels, depth, height, width].
        include_padding: whether elements of the padding count as zeros; otherwise, they are ignored.

    Returns: An operand of the data type of `input` [batches, channels, *axes], where a size is
        1 + (size + paddings - (window size - 1) * dilation - 1) / stride, rounded. Windows without elements give NaN.
    Raises: options out of range, or a window larger than the padded input.

    ONNX's AveragePool. `average_pool2d` has layouts, too.

    >>> average_pool(np.float32([[[1, 3, 8]]]), window_dimensions=[2]).tolist()
    [[[2.0, 5.5]]]
    >>> average_pool(np.float32([[[1, 5]]]), window_dimensions=[3], padding=[1, 0], include_padding=True).tolist()
    [[[2.0]]]
    """
    return Desc(input.data_type, _pooled_shape(input, window_dimensions, padding, strides, dilations, output_sizes))


_declare_defaults(average_pool)


def _pool_with_2d(b: Operations, op: str, input: Operand, options: Mapping[str, Any]) -> Operand:
    """Pool with an operation over two axes. An image of one axis becomes one row; of three, the depth is pooled last."""
    pool, axes = getattr(b, op), input.rank - 2
    # The padding makes all windows whole: WebNN's operation has one rounding for all axes, but here the last window may be
    # partial along one axis, and left out along another.
    pads = [pad for window in Window.along(spatial(input), options) for pad in (window.before, window.after)]
    lists = {name: tuple(options[name]) for name in ("window_dimensions", "strides", "dilations")}
    sizes = tuple(options["output_sizes"])

    def along_rows(x: Operand) -> Operand:
        """Pool the last axis of [batches, channels, rows, size] with the options of the first spatial axis."""
        first = {name: (1, values[0]) for name, values in lists.items()}
        result: Operand = pool(x, padding=(0, 0, *pads[:2]), output_sizes=(x.shape[2], sizes[0]), **first)
        return result

    if axes == 2:
        whole: Operand = pool(input, padding=pads, output_sizes=sizes, **lists)
        return whole
    batches, channels = input.shape[:2]
    if axes == 1:
        return b.reshape(
            along_rows(b.reshape(input, [batches, channels, 1, input.shape[2]])), [batches, channels, *sizes]
        )
    _, _, depth, *image = input.shape
    last = {name: values[1:] for name, values in lists.items()}
    planes = b.reshape(input, [batches, channels * depth, *image])
    planes = pool(planes, padding=pads[2:], output_sizes=sizes[1:], **last)
    count = sizes[1] * sizes[2]
    columns = b.transpose(b.reshape(planes, [batches, channels, depth, count]), permutation=[0, 1, 3, 2])
    return b.reshape(b.transpose(along_rows(columns), permutation=[0, 1, 3, 2]), [batches, channels, *sizes])


@average_pool.decompose
def _(b: Operations, input: Operand, include_padding: bool, **options: Any) -> Operand:
    if include_padding:
        windows = Window.along(spatial(input), options)
        before, after = [window.before for window in windows], [window.ending for window in windows]
        if any(before + after):
            input = b.pad(input, [0, 0, *before], [0, 0, *after])
        options["padding"] = no_padding(input)
    # Over three axes, the mean of the means of planes is the mean of all elements: the planes have equal numbers of them.
    return _pool_with_2d(b, "average_pool2d", input, options)


@declare(_WINDOW_ARGUMENTS, input=Limits(ANY, ranks=IMAGES))
def max_pool(
    self: Builder,
    input: Operand,
    *,
    window_dimensions: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_shape_rounding: RoundingType = "floor",
    output_sizes: Sequence[int] | None = None,
    label: str = "",
) -> Desc:
    """Take the maximum of each window of each channel, over one, two or three spatial axes.

    Padding, and positions of a partial last window beyond it, are ignored.

    Args:
        input: any data type [batches, channels, width], [batches, channels, height, width], or
            [batches, channels, depth, height, width].

    Returns: An operand of the data type of `input` [batches, channels, *axes], where a size is
        1 + (size + paddings - (window size - 1) * dilation - 1) / stride, rounded. Windows without elements give the
        lowest value of the data type. The results of windows with NaN are not specified.
    Raises: options out of range, or a window larger than the padded input.

    ONNX's MaxPool. `max_pool2d` has layouts, too; `max_pool_with_indices` also returns the positions of the maxima.

    >>> max_pool(np.float32([[[1, 3, 2]]]), window_dimensions=[2]).tolist()
    [[[3.0, 3.0]]]
    """
    return Desc(input.data_type, _pooled_shape(input, window_dimensions, padding, strides, dilations, output_sizes))


_declare_defaults(max_pool)


@max_pool.decompose
def _(b: Operations, input: Operand, **options: Any) -> Operand:
    return _pool_with_2d(b, "max_pool2d", input, options)


@declare(_WINDOW_ARGUMENTS, input=Limits(ANY, ranks=IMAGES))
def max_pool_with_indices(
    self: Builder,
    input: Operand,
    *,
    window_dimensions: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_shape_rounding: RoundingType = "floor",
    output_sizes: Sequence[int] | None = None,
    order: Literal["row-major", "column-major"] = "row-major",
    index_type: Literal["int32", "int64"] = "int64",
    label: str = "",
) -> tuple[Desc, Desc]:
    """Take the maximum of each window of each channel, and return its position, too.

    Args:
        input: any data type [batches, channels, width], [batches, channels, height, width], or
            [batches, channels, depth, height, width].
        order: the order in which positions count the elements of an image: in "row-major", the last axis varies fastest, in
            "column-major" the first spatial axis. Batches and channels always vary slowest.
        index_type: "int32" or "int64", the data type of the positions.

    Returns: The maxima, in the data type of `input`, and their positions, both of the shape of `max_pool`. A position is
        the index of an element in the flat `input`, counted in `order`; of several equal maxima, the first one counts. A
        window without elements has the lowest value of the data type, and the position -1. The results of windows with NaN are
        not specified.
    Raises: options out of range, or a window larger than the padded input.

    ONNX's MaxPool with two outputs, PyTorch's `max_pool2d_with_indices`.

    >>> maxima, positions = max_pool_with_indices(np.float32([[[1, 3, 2], [5, 4, 6]]]), window_dimensions=[2])
    >>> maxima.tolist(), positions.tolist()
    ([[[3.0, 3.0], [5.0, 6.0]]], [[[1, 1], [3, 5]]])
    """
    has_elements = all(size > 0 for size in spatial(input))
    require(has_elements, f"the input must have spatial axes of at least 1, got {input.desc}")
    shape = _pooled_shape(input, window_dimensions, padding, strides, dilations, output_sizes)
    return Desc(input.data_type, shape), Desc(index_type, shape)


_declare_defaults(max_pool_with_indices)


@max_pool_with_indices.expression
def _(input: Traced, order: str, index_type: DataType, **options: Any) -> tuple[Traced, Traced]:
    windows = _WindowPositions.along(spatial(input), options)
    taps = [window.taps for window in windows]
    sizes = [window.size for window in windows]
    shape = (*input.shape[:2], *options["output_sizes"])

    def places(position: Sequence[Traced], tap: Traced) -> list[Traced]:
        at = []
        for axis in reversed(range(len(windows))):
            at.append(windows[axis].element(position[2 + axis], tap % taps[axis] if axis else tap))
            tap = tap // taps[axis]
        return at[::-1]

    def best(*p: Traced) -> Traced:
        return arg_max_over(math.prod(taps), lambda tap: input.clamped[(*p[:2], *places(p, tap))])

    taps_of_maxima = store(compute(shape, best))
    lowest = -math.inf if input.data_type in FLOATS else INFO[storage(input.data_type)].lowest

    def where_filled(p: Sequence[Traced], value: Traced, otherwise: float) -> Traced:
        for axis, window in enumerate(windows):
            if not window.covers_edges:
                value = where(window.has_elements(p[2 + axis]), value, otherwise)
        return value

    def value(*p: Traced) -> Traced:
        return where_filled(p, input.clamped[(*p[:2], *places(p, taps_of_maxima[p]))], lowest)

    def position(*p: Traced) -> Traced:
        place = places(p, taps_of_maxima[p])
        if order == "column-major":
            place = place[::-1]
        flat = p[0] * input.shape[1] + p[1]
        for at, size in zip(place, sizes[::-1] if order == "column-major" else sizes, strict=True):
            flat = flat * size + at
        return where_filled(p, cast(flat, index_type), -1)

    return compute(shape, value), compute(shape, position)


class _WindowPositions(Window):
    """Windows along one axis, with positions as expressions."""

    def _start(self, window: Traced) -> Traced:
        # The stride of a single window is unused, and may overflow int32.
        return window * (self.stride if self.count > 1 else 1) - self.before

    def _span(self, window: Traced) -> tuple[Traced, Traced]:
        """Return the first and the last tap inside the image."""
        start = self._start(window)
        return (self.dilation - 1 - start) // self.dilation, (self.size - 1 - start) // self.dilation

    def has_elements(self, window: Traced) -> Traced:
        first, last = self._span(window)
        return maximum(first, 0) <= minimum(last, self.taps - 1)

    def element(self, window: Traced, tap: Traced) -> Traced:
        """Return the position of a tap. A tap outside of the image is replaced by the nearest one inside.

        This changes neither the maximum of the window, nor the position of its first maximum.
        """
        if self.before or self.after:
            first, last = self._span(window)
            tap = minimum(maximum(tap, first), last)
            return clamp(self._start(window) + tap * self.dilation, 0, self.size - 1)
        return self._start(window) + tap * self.dilation


@declare(_WINDOW_ARGUMENTS, input=Limits(FLOATS, ranks=IMAGES))
def lp_pool(
    self: Builder,
    input: Operand,
    p: int = 2,
    *,
    window_dimensions: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_shape_rounding: RoundingType = "floor",
    output_sizes: Sequence[int] | None = None,
    label: str = "",
) -> Desc:
    """Take the p-norm of each window of each channel, over one, two or three spatial axes.

    Args:
        input: float32 or float16 [batches, channels, width], [batches, channels, height, width], or
            [batches, channels, depth, height, width].
        p: at least 1.
        padding: zeros around the input that windows may cover: [before, after, before, after, …]. Default: none.

    Returns: `sum(abs(x) ** p) ** (1 / p)` of each window, in the data type of `input` [batches, channels, *axes], where a size
        is 1 + (size + paddings - (window size - 1) * dilation - 1) / stride, rounded.
    Raises: options out of range, or a window larger than the padded input.

    ONNX's LpPool. `l2_pool2d` has layouts, too.

    >>> lp_pool(np.float32([[[3, -4, 3]]]), window_dimensions=[2]).tolist()
    [[[5.0, 5.0]]]
    >>> lp_pool(np.float32([[[3, -4, 12]]]), 1, window_dimensions=[2]).tolist()
    [[[7.0, 16.0]]]
    """
    require(p >= 1, f"p must be at least 1, got {p}")
    return Desc(input.data_type, _pooled_shape(input, window_dimensions, padding, strides, dilations, output_sizes))


_declare_defaults(lp_pool)


@lp_pool.decompose
def _(b: Operations, input: Operand, p: int, **options: Any) -> Operand:
    # With `include_padding`, a mean is the sum divided by the number of all elements of a window.
    windows = Window.along(spatial(input), options)
    options["padding"] = [pad for window in windows for pad in (window.before, max(window.after, window.ending))]
    x = b.cast(input, "float32")
    powers = x * x if p == 2 else b.abs(x) if p == 1 else b.pow(b.abs(x), float(p))
    mean: Operand = average_pool(powers, include_padding=True, **options)
    total = mean * math.prod(options["window_dimensions"])
    return b.cast(total if p == 1 else b.sqrt(total) if p == 2 else b.pow(total, 1 / p), input.data_type)


@declare(input=Limits(ANY, ranks=IMAGES), indices=Limits(("int32", "int64"), ranks="input"))
def max_unpool(
    self: Builder, input: Operand, indices: Operand, output_sizes: Sequence[int], *, label: str = ""
) -> Desc:
    """Put maxima back at their positions, and zeros everywhere else: the inverse of `max_pool_with_indices`.

    Args:
        input: any data type [batches, channels, width], [batches, channels, height, width], or
            [batches, channels, depth, height, width].
        indices: int32 or int64, the shape of `input`: indices into the flat result.
        output_sizes: the sizes of the spatial axes of the result.

    Returns: An operand of the data type of `input` [batches, channels, *output_sizes]. If several elements have the same
        index, the result has one of them.
    Raises: `output_sizes` out of range, or indices of another shape.

    ONNX's MaxUnpool, PyTorch's `max_unpool2d`.

    >>> max_unpool(np.float32([[[5, 6]]]), np.int64([[[1, 2]]]), [4]).tolist()
    [[[0.0, 5.0, 6.0, 0.0]]]
    """
    check_positive(input.rank - 2, output_sizes=output_sizes)
    check_shape(input.shape, "that of input", indices=indices)
    return Desc(input.data_type, (*input.shape[:2], *output_sizes))


@max_unpool.value_range("indices")
def _(input: Operand, output_sizes: Sequence[int]) -> ValueRange:
    return ValueRange(0, math.prod((*input.shape[:2], *output_sizes)) - 1, "the elements of the result")


@max_unpool.decompose
def _(b: Operations, input: Operand, indices: Operand, output_sizes: Sequence[int]) -> Operand:
    shape, count = [*input.shape[:2], *output_sizes], math.prod(input.shape)
    zeros = b.expand(constant(b, 0, input.data_type), [math.prod(shape)])
    result = b.scatter_elements(zeros, b.reshape(indices, [count]), b.reshape(input, [count]), axis=0)
    return b.reshape(result, shape)
