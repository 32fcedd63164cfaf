"""Pooling and resizing of regions of interest, each of which is a rectangle in an image."""

from __future__ import annotations

import math
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np

from .. import expr
from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits
from ..core.size_possibilities import may_equal
from ..core.sizes import Size, is_static
from ..expr.array import Traced, as_array
from ..support.errors import require
from .declare import declare

RoiMode: TypeAlias = Literal["avg", "max"]
RoiCoordinates: TypeAlias = Literal["half_pixel", "output_half_pixel"]
CropMode: TypeAlias = Literal["linear", "nearest"]

MAX_SAMPLES = 2**15
"""Maximum number of samples of a bin along an axis, so that loops end."""

MAX_STORED = 2**26
"""Maximum number of elements of the sums, or maxima, over columns that are stored: 256 MiB of float32. An estimate."""

FAR = 2.0**60
"""Regions with coordinates beyond this number of elements count as not finite."""


@declare(
    input=Limits(FLOATS, ranks=(4, 4)),
    rois=Limits("input", ranks=(2, 2)),
    batch_indices=Limits(("int32", "int64"), ranks=(1, 1)),
)
def roi_align(
    self: Builder,
    input: Operand,
    rois: Operand,
    batch_indices: Operand,
    *,
    mode: RoiMode = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: RoiCoordinates = "half_pixel",
    label: str = "",
) -> Desc:
    """Pool regions of images, at positions between elements.

    A region is divided into bins, and a bin into samples, which are interpolated linearly between 4 elements. Samples farther
    than one element outside are 0, as are all of a region that is not finite.

    Args:
        input: float32 or float16 [batches, channels, height, width].
        rois: regions [regions, 4] as x1, y1, x2, y2.
        batch_indices: the image of each region, int32 or int64; those out of range are clamped.
        mode: "avg" is the mean of the samples. "max" is their largest weighted element, as in ONNX's definition: elements are
            weighted, but not added.
        output_height: the number of bins along the height.
        output_width: the number of bins along the width.
        sampling_ratio: samples of a bin along each axis, at most 2**15; 0 is one for each element that the bin covers, rounded
            up.
        spatial_scale: the factor from the coordinates of regions to elements.
        coordinate_transformation_mode: "half_pixel" subtracts 0.5 from scaled coordinates; "output_half_pixel" does not, and
            regions are at least one element large.

    Returns: An operand of the data type of `input`, [regions, channels, output_height, output_width].
    Raises: `rois` or `batch_indices` do not fit, or attributes are out of range.

    ONNX's RoiAlign; He et al., Mask R-CNN (2017), arXiv:1703.06870.

    >>> image = np.float32([[[[1, 2], [3, 4]]]])
    >>> roi_align(image, np.float32([[0, 0, 2, 2]]), np.int64([0]), sampling_ratio=2).tolist()
    [[[[2.5]]]]
    """
    fits = may_equal(rois.shape[1], 4)
    require(fits, f"rois must have shape [regions, 4], got {rois.desc}")
    fits = may_equal(batch_indices.shape[0], rois.shape[0])
    require(fits, f"batch_indices must have shape [{rois.shape[0]}], one for each of rois, got {batch_indices.desc}")
    _check_sizes(input, output_height, output_width, spatial_scale)
    fits = 0 <= sampling_ratio <= MAX_SAMPLES
    require(fits, f"sampling_ratio must be in [0, {MAX_SAMPLES}], got {sampling_ratio}")
    return Desc(input.data_type, (rois.shape[0], input.shape[1], output_height, output_width))


def _check_sizes(input: Operand, height: int, width: int, spatial_scale: float) -> None:
    for name, size in {"height": height, "width": width}.items():
        is_size = isinstance(size, (int, np.integer, Size)) and not isinstance(size, bool)
        require(is_size, f"the {name} of the output must be an integer, got {size!r}")
        require(0 < size < 2**31, f"the {name} of the output must be in [1, 2**31), got {size}")
    require(math.isfinite(spatial_scale), f"spatial_scale must be finite, got {spatial_scale}")
    require(all(size >= 1 for size in input.shape), f"input must have elements to pool, got {input.desc}")


@roi_align.expression
def _(
    input: Traced,
    rois: Traced,
    batch_indices: Traced,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
    coordinate_transformation_mode: str,
) -> Traced:
    _, channels, height, width = input.shape
    x, regions = (expr.cast(array, "float32") for array in (input, rois))
    bins = (output_height, output_width)
    is_half_pixel = coordinate_transformation_mode == "half_pixel"
    if mode == "avg" and sampling_ratio == 0:
        return _mean_of_all(input, regions, batch_indices, bins, spatial_scale, is_half_pixel)

    def element(r: Traced, c: Traced, *bin_position: Traced) -> Any:
        image = batch_indices[r]
        axes = [
            _BinAxis(regions, r, 1 - k, size, count, position, sampling_ratio, spatial_scale, is_half_pixel)
            for k, (size, count, position) in enumerate(zip((height, width), bins, bin_position, strict=True))
        ]
        y, z = axes

        def sample(i: Traced, j: Traced) -> Traced:
            rows, columns = y.at(i), z.at(j)
            weighted = [x.clamped[image, c, p, q] * (v * w) for p, v in rows.taps for q, w in columns.taps]
            is_inside = rows.is_inside & columns.is_inside
            if mode == "avg":
                return expr.where(is_inside, weighted[0] + weighted[1] + weighted[2] + weighted[3], 0.0)
            largest = expr.max(expr.max(weighted[0], weighted[1]), expr.max(weighted[2], weighted[3]))
            return expr.where(is_inside, largest, expr.where(rows.is_used & columns.is_used, 0.0, -math.inf))

        if mode == "avg":
            total = expr.sum_over(y.steps, lambda i: expr.sum_over(z.steps, lambda j: sample(i, j)))
            result = total / expr.max(y.samples * z.samples, 1.0)
        else:
            result = expr.max_over(y.steps, lambda i: expr.max_over(z.steps, lambda j: sample(i, j)))
            result = expr.where((y.samples < 1) | (z.samples < 1), 0.0, result)
        return expr.cast(result, "float16") if input.data_type == "float16" else result

    return expr.compute((rois.shape[0], channels, *bins), element)


def _mean_of_all(
    input: Traced,
    regions: Traced,
    batch_indices: Traced,
    bins: tuple[int, int],
    spatial_scale: float,
    is_half_pixel: bool,
) -> Traced:
    """Return the means of bins whose number of samples depends on the region.

    A mean is a sum over rows and columns, `sum of y[p, i] * z[q, j] * x[i, j]`: `y` and `z` are weights of all samples of a
    bin together, so no sample is interpolated for each channel.
    """
    _, channels, height, width = input.shape
    count, x = regions.shape[0], expr.cast(input, "float32")

    def weights_along(k: int, size: Any) -> Traced:
        def weight(r: Traced, position: Traced, i: Traced) -> Traced:
            axis = _BinAxis(regions, r, 1 - k, size, bins[k], position, 0, spatial_scale, is_half_pixel)
            place = cast_position(i)

            def part(step: Traced) -> Traced:
                sample = axis.at(step)
                near = expr.max(1.0 - expr.abs(sample.place - place), 0.0)
                return expr.where(sample.is_inside, near, 0.0)

            return expr.sum_over(axis.steps, part) / expr.max(axis.samples, 1.0)

        return expr.store(expr.compute((count, bins[k], size), weight))

    rows, columns = weights_along(0, height), weights_along(1, width)

    def product(weight: Traced, value: Traced) -> Traced:
        """An element without weight counts as 0, even if it is infinite."""
        return expr.where(weight == 0, 0.0, weight * value)

    def in_row(r: Traced, c: Traced, i: Traced, q: Traced) -> Traced:
        return expr.sum_over(width, lambda j: product(columns[r, q, j], x.clamped[batch_indices[r], c, i, j]))

    shape = (count, channels, height, bins[1])
    is_small = is_static(shape) and prod(shape) <= MAX_STORED
    sums = expr.store(expr.compute(shape, in_row)) if is_small else None

    def element(r: Traced, c: Traced, p: Traced, q: Traced) -> Traced:
        def of_row(i: Traced) -> Traced:
            return product(rows[r, p, i], in_row(r, c, i, q) if sums is None else sums[r, c, i, q])

        total = expr.sum_over(height, of_row)
        return expr.cast(total, "float16") if input.data_type == "float16" else total

    return expr.compute((count, channels, *bins), element)


class _Sample:
    """A sample along an axis.

    Attributes:
        place: its position, moved into the image.
        taps: two elements and their weights.
        is_inside: whether it is near the image.
        is_used: whether it belongs to the bin.
    """

    def __init__(self, place: Traced, is_inside: Traced, is_used: Traced) -> None:
        self.place, self.is_inside, self.is_used = place, is_inside, is_used
        low = expr.floor(place)
        part, position = place - low, expr.cast(low, "int32")
        self.taps = [(position, 1 - part), (position + 1, part)]


class _BinAxis:
    """Formulas of a bin along one axis.

    Attributes:
        samples: the number of samples, as float32.
        steps: the number of iterations for them: samples far outside the image need none.
    """

    def __init__(
        self,
        regions: Traced,
        region: Traced,
        column: int,
        size: Any,
        count: int,
        position: Traced,
        sampling_ratio: int,
        scale: float,
        is_half_pixel: bool,
    ) -> None:
        offset = 0.5 if is_half_pixel else 0.0
        start = regions[region, column] * scale - offset
        extent = (regions[region, column + 2] * scale - offset) - start
        if not is_half_pixel:
            extent = expr.max(extent, 1.0)
        # Infinities and NaN would make positions of NaN: such a region has no samples.
        is_finite = (expr.abs(start) < FAR) & (expr.abs(extent) < FAR)
        is_finite = is_finite & expr.logical_not(expr.is_nan(start) | expr.is_nan(extent))
        start, extent = expr.where(is_finite, start, 0.0), expr.where(is_finite, extent, 0.0)
        self.size = as_array(size, "float32")
        bin_size = extent / float(count)
        self.start, self.bin_size = start + cast_position(position) * bin_size, bin_size
        if sampling_ratio:
            self.samples: Traced = expr.where(is_finite, float(sampling_ratio), 0.0)
            self.steps: Any = sampling_ratio
            self.first: Traced = as_array(0.0, "float32")
            return
        self.samples = expr.max(expr.ceil(bin_size), 0.0)
        # Samples are at least half an element apart if the bin has several of them, so this is enough for those near the
        # image; earlier ones are skipped.
        self.steps = 2 * size + 6
        spacing = bin_size / expr.max(self.samples, 1.0)
        before = (-1.0 - self.start) / expr.max(spacing, 1e-30)
        self.first = expr.max(expr.min(expr.floor(before), self.samples) - 1.0, 0.0)

    def at(self, step: Traced) -> _Sample:
        number = self.first + cast_position(step)
        place = self.start + (number + 0.5) * self.bin_size / expr.max(self.samples, 1.0)
        is_used = number < self.samples
        is_inside = is_used & (place >= -1.0) & (place <= self.size)
        return _Sample(expr.max(expr.min(place, self.size - 1), 0.0), is_inside, is_used)


def cast_position(position: Traced) -> Traced:
    """Convert a position to float32."""
    return expr.cast(position, "float32")


@declare(input=Limits(FLOATS, ranks=(4, 4)), rois=Limits("input", ranks=(2, 2)))
def max_roi_pool(
    self: Builder,
    input: Operand,
    rois: Operand,
    *,
    pooled_shape: tuple[int, int],
    spatial_scale: float = 1.0,
    label: str = "",
) -> Desc:
    """Take the largest element of each bin of regions of images.

    Coordinates are scaled and rounded to whole elements. A region is at least one element large. A bin without elements is 0,
    as are all of a region that is not finite.

    Args:
        input: float32 or float16 [batches, channels, height, width].
        rois: regions [regions, 5] as image, x1, y1, x2, y2; images out of range are clamped.
        pooled_shape: the number of bins along height and width.
        spatial_scale: the factor from the coordinates of regions to elements.

    Returns: An operand of the data type of `input`, [regions, channels, *pooled_shape].
    Raises: `rois` do not fit, or attributes are out of range.

    ONNX's MaxRoiPool; Girshick, Fast R-CNN (2015), arXiv:1504.08083.

    >>> image = np.float32([[[[1, 2], [3, 4]]]])
    >>> max_roi_pool(image, np.float32([[0, 0, 0, 1, 1]]), pooled_shape=[1, 2]).tolist()
    [[[[3.0, 4.0]]]]
    """
    fits = may_equal(rois.shape[1], 5)
    require(fits, f"rois must have shape [regions, 5], got {rois.desc}")
    is_pair = isinstance(pooled_shape, tuple) and len(pooled_shape) == 2
    require(is_pair, f"pooled_shape must be 2 integers, got {pooled_shape}")
    _check_sizes(input, *pooled_shape, spatial_scale)
    return Desc(input.data_type, (rois.shape[0], input.shape[1], *pooled_shape))


@max_roi_pool.expression
def _(input: Traced, rois: Traced, pooled_shape: tuple[int, int], spatial_scale: float) -> Traced:
    _, channels, height, width = input.shape
    x, regions = (expr.cast(array, "float32") for array in (input, rois))

    def bounds(r: Traced, axis: int, position: Traced) -> tuple[Traced, Traced]:
        """The first element of a bin along an axis, and the end of the bin."""
        size, count = (height, width)[axis], pooled_shape[axis]
        first, last = (_round_away(_finite(regions[r, column] * spatial_scale)) for column in (2 - axis, 4 - axis))
        bin_size = expr.max(last - first + 1, 1.0) / float(count)
        low = expr.floor(cast_position(position) * bin_size) + first
        high = expr.ceil((cast_position(position) + 1) * bin_size) + first
        return _clamp_to_int32(low, 0.0, size), _clamp_to_int32(high, 0.0, size)

    def in_row(r: Traced, c: Traced, i: Traced, q: Traced) -> Traced:
        image = _clamp_to_int32(regions[r, 0], 0.0, 2.0**30)
        left, right = bounds(r, 1, q)

        def one(j: Traced) -> Traced:
            return expr.where((j >= left) & (j < right), x.clamped[image, c, i, j], -math.inf)

        return expr.max_over(width, one)

    shape = (rois.shape[0], channels, height, pooled_shape[1])
    is_small = is_static(shape) and prod(shape) <= MAX_STORED
    rows = expr.store(expr.compute(shape, in_row)) if is_small else None

    def element(r: Traced, c: Traced, p: Traced, q: Traced) -> Any:
        number = regions[r, 0]
        has_image = (expr.abs(number) < 2.0**30) & expr.logical_not(expr.is_nan(number))
        (top, bottom), (left, right) = bounds(r, 0, p), bounds(r, 1, q)

        def row(i: Traced) -> Traced:
            largest = in_row(r, c, i, q) if rows is None else rows[r, c, i, q]
            return expr.where((i >= top) & (i < bottom), largest, -math.inf)

        is_empty = (bottom <= top) | (right <= left) | expr.logical_not(has_image)
        result = expr.where(is_empty, 0.0, expr.max_over(height, row))
        return expr.cast(result, "float16") if input.data_type == "float16" else result

    return expr.compute((rois.shape[0], channels, *pooled_shape), element)


def _finite(x: Traced) -> Traced:
    """Replace NaN and infinities by a position far outside."""
    is_finite = (expr.abs(x) < 2.0**30) & expr.logical_not(expr.is_nan(x))
    return expr.where(is_finite, x, 2.0**30)


def _round_away(x: Traced) -> Traced:
    """Round to the nearest whole number, halves away from 0, as C's `round`."""
    return expr.where(x < 0, expr.ceil(x - 0.5), expr.floor(x + 0.5))


def _clamp_to_int32(x: Traced, low: float, high: Any) -> Traced:
    """Convert to int32 in [low, high]."""
    return expr.cast(expr.max(expr.min(x, as_array(high, "float32")), low), "int32")


@declare(
    input=Limits(FLOATS, ranks=(4, 4)),
    boxes=Limits("input", ranks=(2, 2)),
    batch_indices=Limits(("int32", "int64"), ranks=(1, 1)),
)
def crop_and_resize(
    self: Builder,
    input: Operand,
    boxes: Operand,
    batch_indices: Operand,
    crop_size: tuple[int, int],
    *,
    mode: CropMode = "linear",
    extrapolation_value: float = 0.0,
    label: str = "",
) -> Desc:
    """Cut boxes out of images, and resize each to the same size.

    The corners of a box are the centres of the first and the last element of the result. Elements at positions outside of the
    image are `extrapolation_value`, as are all of a box that is not finite, or with a coordinate of at least 2**60.

    Args:
        input: float32 or float16 [batches, channels, height, width].
        boxes: [boxes, 4] as y1, x1, y2, x2, where 0 is the centre of the first element of the image, and 1 that of the last.
            A box with y1 > y2 is flipped.
        batch_indices: the image of each box, int32 or int64; those out of range are clamped.
        crop_size: height and width of the results; a size of 1 takes the centre of the box.
        mode: "linear" interpolates between 4 elements; "nearest" takes the nearest one, halves away from 0.
        extrapolation_value: a float.

    Returns: An operand of the data type of `input`, [boxes, channels, *crop_size], computed in float32.
    Raises: `boxes` or `batch_indices` do not fit, or `crop_size` is out of range.

    ONNX Runtime's CropAndResize; TensorFlow's tf.image.crop_and_resize.

    >>> image = np.float32([[[[1, 2], [3, 4]]]])
    >>> crop_and_resize(image, np.float32([[0, 0, 1, 1]]), np.int32([0]), [3, 2]).tolist()
    [[[[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]]]
    """
    fits = may_equal(boxes.shape[1], 4)
    require(fits, f"boxes must have shape [boxes, 4], got {boxes.desc}")
    fits = may_equal(batch_indices.shape[0], boxes.shape[0])
    require(fits, f"batch_indices must have shape [{boxes.shape[0]}], one for each of boxes, got {batch_indices.desc}")
    is_pair = isinstance(crop_size, tuple) and len(crop_size) == 2
    require(is_pair, f"crop_size must be 2 integers, got {crop_size}")
    _check_sizes(input, *crop_size, 1.0)
    return Desc(input.data_type, (boxes.shape[0], input.shape[1], *crop_size))


@crop_and_resize.expression
def _(
    input: Traced,
    boxes: Traced,
    batch_indices: Traced,
    crop_size: tuple[int, int],
    mode: str,
    extrapolation_value: float,
) -> Traced:
    _, channels, *spatial = input.shape
    x, corners = (expr.cast(array, "float32") for array in (input, boxes))

    def element(r: Traced, c: Traced, *position: Traced) -> Any:
        taps: list[list[tuple[Traced, Traced]]] = []
        is_inside: Any = True
        for k, (size, count, step) in enumerate(zip(spatial, crop_size, position, strict=True)):
            first, last = corners[r, k], corners[r, k + 2]
            edge = as_array(size, "float32") - 1
            if count > 1:
                scale = (last - first) * edge / float(count - 1)
                place = first * edge + cast_position(step) * scale
            else:
                place = 0.5 * (first + last) * edge
            inside = (place >= 0) & (place <= edge) & (expr.abs(first) < FAR) & (expr.abs(last) < FAR)
            inside = inside & expr.logical_not(expr.is_nan(first) | expr.is_nan(last))
            is_inside = inside & is_inside if k else inside
            place = expr.where(inside, place, 0.0)
            if mode == "nearest":
                taps.append([(expr.cast(expr.floor(place + 0.5), "int32"), as_array(1.0, "float32"))])
                continue
            low, high = expr.floor(place), expr.ceil(place)
            part = place - low
            taps.append([(expr.cast(low, "int32"), 1 - part), (expr.cast(high, "int32"), part)])
        rows, columns = taps
        image = batch_indices[r]
        if mode == "nearest":
            (p, _), (q, _) = rows[0], columns[0]
            result = x.clamped[image, c, p, q]
        else:
            (left, _), (right, part) = columns
            lines = []
            for p, _ in rows:
                start, end = x.clamped[image, c, p, left], x.clamped[image, c, p, right]
                lines.append(_between(start, end, part))
            result = _between(lines[0], lines[1], rows[1][1])
        result = expr.where(is_inside, result, float(extrapolation_value))
        return expr.cast(result, "float16") if input.data_type == "float16" else result

    return expr.compute((boxes.shape[0], channels, *crop_size), element)


def _between(start: Traced, end: Traced, part: Traced) -> Traced:
    """Interpolate between two elements; at the first one, the other does not count, even if it is infinite."""
    return expr.where(part == 0, start, start + (end - start) * part)
