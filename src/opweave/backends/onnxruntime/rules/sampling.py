"""ONNX Runtime rules: resizing, sampling at positions of a grid, pooling of regions.

ONNX's reference evaluator defines the results. The engine differs from it, and has no rule, in these cases:

- Resize with "align_corners", "pytorch_half_pixel" or "tf_crop_and_resize" takes the new size for `size * scale`, also where
  that is not whole; with "tf_crop_and_resize" it copies axes whose size stays.
- GridSample does not move positions to the border with "cubic" and "border", and has no cubic kernel for volumes. With
  "linear", positions beyond 2**24 elements, where float32 has no fractions, are 0 with all kinds of padding; this stays.
- Resize interpolates along the last two axes, or the last three, and "cubic" takes ten times as long as a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np

from ....composites import grid as grids, regions, resizing
from ....core.dtypes import FLOATS
from ....core.graph import Desc
from ....core.sizes import Dimension, is_same_size
from ..backend import ort
from ..barriers import keep_resized_axes
from ..emit import MICROSOFT, Emitter, Value

_EXACT = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
"""Coordinate transformations of which the engine computes the same positions to the last bit."""


def _has_kernel(
    input: Desc,
    mode: str,
    coordinate_transformation_mode: str,
    antialias: bool,
    exclude_outside: bool,
    scales: Any,
    sizes: Any,
    axes: Any,
    roi: Any,
    keep_aspect_ratio_policy: str,
) -> bool:
    """Whether the engine has a kernel that is right, and fast."""
    coordinates = coordinate_transformation_mode
    is_symmetric = coordinates == "half_pixel_symmetric" and mode == "linear"
    if input.data_type not in FLOATS or not (coordinates in _EXACT or is_symmetric):
        return False
    if resizing.has_names(input.shape, sizes, axes, antialias, keep_aspect_ratio_policy):
        named = resizing.named_axes(input.shape, scales, sizes, axes, coordinates, roi)
        is_exact = coordinates in (_EXACT if scales is None else ("half_pixel", "asymmetric"))
        return is_exact and bool(named) and mode != "cubic" and _fits_kernel(input, min(named)[0], mode == "linear")
    changed = resizing.resized_axes(input.shape, scales, sizes, axes, coordinates, roi, keep_aspect_ratio_policy)
    is_whole = all(axis.width == axis.new for axis in changed) or coordinates in ("half_pixel", "asymmetric")
    # A policy that keeps the ratio of sizes rounds them to nearest; the engine rounds sizes that it computes from scales down.
    is_size = all(axis.width == axis.new or int(axis.width) == axis.new for axis in changed)
    if not changed or not (is_whole or is_symmetric) or not is_size:
        return False
    shrinks = antialias and mode != "nearest" and any(axis.scale < 1 for axis in changed)
    if mode == "cubic" and not (shrinks and all(axis.scale <= 1 for axis in changed)):
        return False
    if shrinks and (exclude_outside or coordinates != "half_pixel"):
        return False
    return _fits_kernel(input, min(axis.axis for axis in changed), mode == "linear" and not shrinks)


def _fits_kernel(input: Desc, first: int, is_linear: bool) -> bool:
    """Whether a kernel takes the axes from the first one that changes."""
    return len(input.shape) - first <= (3 if is_linear else 2)


@ort.lower(resizing.resize, when=_has_kernel)
def _(
    ctx: Emitter,
    input: Value,
    mode: str,
    coordinate_transformation_mode: str,
    nearest_mode: str,
    antialias: bool,
    cubic_coeff_a: float,
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    axes: Sequence[int] | None,
    roi: Sequence[float] | None,
    keep_aspect_ratio_policy: str,
) -> Value:
    changed: list[tuple[int, int, float]]
    if resizing.has_names(input.dims, sizes, axes, antialias, keep_aspect_ratio_policy):
        named = resizing.named_axes(input.dims, scales, sizes, axes, coordinate_transformation_mode, roi)
        changed, by_sizes = [(axis, new, scale or 1.0) for axis, (_, new, scale, *_) in named], scales is None
    else:
        resized = resizing.resized_axes(
            input.dims, scales, sizes, axes, coordinate_transformation_mode, roi, keep_aspect_ratio_policy
        )
        changed = [(axis.axis, axis.new, float(axis.scale)) for axis in resized]
        by_sizes = all(axis.width == axis.new for axis in resized)
    spatial = 3 if min(changed)[0] < input.rank - 2 else 2
    x = input
    # A reshape next to an input or output of the graph copies, so shapes that the kernels take are not changed.
    if input.rank not in ((2, 3, 4) if mode == "nearest" else (spatial + 2,)):
        # [batches, channels, height, width], or with a depth: all other axes become channels.
        last = list(input.dims[-spatial:])
        last = [1] * (spatial - len(last)) + last
        x = ctx.reshape(input, [1, prod(input.dims[:-spatial]), *last])
    if mode != "nearest":
        keep_resized_axes(ctx, x)
    factors, shape = [1.0] * x.rank, list(x.dims)
    for axis, size, scale in changed:
        factors[axis - input.rank], shape[axis - input.rank] = scale, size
    y = ctx.emit(
        "Resize",
        x,
        None,
        None if by_sizes else ctx.constant(factors, "float32"),
        ctx.constant(shape) if by_sizes else None,
        mode=mode,
        coordinate_transformation_mode=coordinate_transformation_mode,
        nearest_mode=nearest_mode if mode == "nearest" else None,
        antialias=1 if antialias and mode != "nearest" else None,
        cubic_coeff_a=cubic_coeff_a if mode == "cubic" else None,
        shape=shape,
    )
    return ctx.reshape(y, ctx.output.shape)


def _has_grid_kernel(input: Desc, mode: str, padding_mode: str) -> bool:
    return mode != "cubic" or (len(input.shape) == 4 and padding_mode != "border")


@ort.lower(grids.grid_sample, when=_has_grid_kernel)
def _(ctx: Emitter, input: Value, grid: Value, mode: str, padding_mode: str, align_corners: bool) -> Value:
    x, positions = ctx.cast(input, "float32"), ctx.cast(grid, "float32")
    y: Value = ctx.emit(
        "GridSample", x, positions, mode=mode, padding_mode=padding_mode, align_corners=int(align_corners)
    )
    return ctx.cast(y, input.data_type)


def _has_scale(spatial_scale: float) -> bool:
    return abs(spatial_scale) > 2.0**-60


@ort.lower(regions.roi_align, when=_has_scale)
def _(
    ctx: Emitter,
    input: Value,
    rois: Value,
    batch_indices: Value,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
    coordinate_transformation_mode: str,
) -> Value:
    boxes = _finite(ctx, ctx.cast(rois, "float32"), 4, -(2.0**20) / spatial_scale)
    if sampling_ratio == 0 and coordinate_transformation_mode == "half_pixel":
        # The engine raises an error for regions of negative size. Those of size 0 have no samples, either.
        corners = ctx.emit("Slice", boxes, ctx.constant([0]), ctx.constant([2]), ctx.constant([1]))
        ends = ctx.emit("Slice", boxes, ctx.constant([2]), ctx.constant([4]), ctx.constant([1]))
        farther = ctx.emit("Max" if spatial_scale >= 0 else "Min", corners, ends)
        boxes = ctx.emit("Concat", corners, farther, axis=1)
    last = ctx.constant(input.dims[0] - 1)
    images = ctx.emit("Clip", ctx.cast(batch_indices, "int64"), ctx.constant(0), last)
    y: Value = ctx.emit(
        "RoiAlign",
        ctx.cast(input, "float32"),
        boxes,
        images,
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=float(spatial_scale),
        coordinate_transformation_mode=coordinate_transformation_mode,
    )
    return ctx.cast(y, input.data_type)


def _finite(ctx: Emitter, boxes: Value, columns: int, far: float) -> Value:
    """Replace regions with infinities or NaN, for which the engine raises an error, by some far outside."""
    # A row times zeros is NaN, or 0 if all are finite.
    zero = ctx.emit("MatMul", boxes, ctx.constant(np.zeros((columns, 1)), "float32"))
    is_wrong = ctx.emit("IsNaN", zero, data_type="bool")
    result: Value = ctx.emit("Where", is_wrong, ctx.scalar(far, boxes), boxes)
    return result


@ort.lower(regions.max_roi_pool, when=_has_scale)
def _(ctx: Emitter, input: Value, rois: Value, pooled_shape: Sequence[int], spatial_scale: float) -> Value:
    boxes = _finite(ctx, ctx.cast(rois, "float32"), 5, -(2.0**20) / spatial_scale)
    if is_same_size(input.dims[0], 1):
        boxes = ctx.emit("Mul", boxes, ctx.constant([0, 1, 1, 1, 1], "float32"))  # all regions are of image 0
    else:
        boxes = ctx.emit("Max", boxes, ctx.constant([0, *[-inf] * 4], "float32"))
        boxes = ctx.emit("Min", boxes, _last_image(ctx, input.dims[0]))
    y: Value = ctx.emit(
        "MaxRoiPool",
        ctx.cast(input, "float32"),
        boxes,
        pooled_shape=list(pooled_shape),
        spatial_scale=float(spatial_scale),
    )
    return ctx.cast(y, input.data_type)


def _last_image(ctx: Emitter, count: Dimension) -> Value:
    """The largest elements of a region [image, x1, y1, x2, y2]."""
    if isinstance(count, int):
        return ctx.constant([count - 1, *[inf] * 4], "float32")
    last = ctx.cast(ctx.constant([count - 1]), "float32")
    largest: Value = ctx.emit("Concat", last, ctx.constant([inf] * 4, "float32"), axis=0)
    return largest


_CROP_MODES = {"linear": "bilinear", "nearest": "nearest"}


@ort.lower_contrib(regions.crop_and_resize)
def _(
    ctx: Emitter,
    input: Value,
    boxes: Value,
    batch_indices: Value,
    crop_size: Sequence[int],
    mode: str,
    extrapolation_value: float,
) -> Value:
    corners = ctx.cast(boxes, "float32")
    # The kernel reads other memory at positions that are NaN, and for images out of range.
    is_near = ctx.emit("Less", ctx.emit("Abs", corners), ctx.scalar(regions.FAR, corners), data_type="bool")
    is_good = ctx.cast(ctx.emit("ReduceMin", ctx.cast(is_near, "int32"), ctx.constant([1]), keepdims=1), "bool")
    images = ctx.emit("Clip", ctx.cast(batch_indices, "int64"), ctx.constant(0), ctx.constant(input.dims[0] - 1))
    y: Value = ctx.emit(
        "CropAndResize",
        ctx.cast(input, "float32"),
        ctx.emit("Where", is_good, corners, ctx.scalar(0, corners)),
        ctx.cast(images, "int32"),
        ctx.constant(list(crop_size), "int32"),
        domain=MICROSOFT,
        mode=_CROP_MODES[mode],
        extrapolation_value=float(extrapolation_value),
        shape=ctx.output.shape,
    )
    columns = ctx.emit("Reshape", is_good, ctx.constant([-1, 1, 1, 1]), data_type="bool")
    y = ctx.emit("Where", columns, y, ctx.scalar(extrapolation_value, y), shape=ctx.output.shape)
    return ctx.cast(y, input.data_type)
