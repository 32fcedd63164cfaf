"""ONNX's Resize and Upsample, and other operators that sample images.

WebNN's resample2d has one coordinate transformation, and resizes two axes. It is used where its results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .... import composites
from ....composites.resample import ResizedAxis, nearest_taps
from ....composites.resizing import TAPS, has_names, resized_axes
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ....core.shapes import nearest_positions
from ....core.sizes import is_same_size, is_static
from ...model.registry import (
    MICROSOFT,
    Tensor,
    Unsupported,
    constant_of,
    converts,
    data_type_of,
    integers,
    normalize_axis,
    operand,
    shape_of,
    unsupported_if,
)
from .elementwise import is_float
from .windows import reshape


@dataclass(frozen=True)
class _Resizing:
    """The arguments of `composites.resize`."""

    axes: tuple[int, ...]
    mode: str
    scales: tuple[float, ...] | None = None
    sizes: tuple[int, ...] | None = None
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    antialias: bool = False
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    extrapolation_value: float = 0.0
    roi: tuple[float, ...] | None = None
    keep_aspect_ratio_policy: str = "stretch"

    def changed_axes(self, X: Tensor) -> list[ResizedAxis]:
        return resized_axes(
            shape_of(X),
            self.scales,
            self.sizes,
            self.axes,
            self.coordinate_transformation_mode,
            self.roi,
            self.keep_aspect_ratio_policy,
        )

    def apply(self, X: MLOperand) -> MLOperand:
        arguments: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return composites.resize(X, **arguments)


@converts("Resize")
def _(
    b: MLGraphBuilder,
    X: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    axes: Sequence[int] | None = None,
    antialias: int = 0,
    keep_aspect_ratio_policy: str = "stretch",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    opset: int,
) -> Tensor:
    if opset < 11:  # like Upsample: the second input holds the scales
        result: Tensor = _upsample(b, X, roi, mode=mode)
        return result
    rank = len(shape_of(X))
    along = tuple(range(rank)) if axes is None else tuple(normalize_axis(axis, rank) for axis in axes)
    if keep_aspect_ratio_policy == "stretch" and not antialias:
        named = _resize_names(b, X, along, scales, sizes, mode, coordinate_transformation_mode, nearest_mode)
        if named is not None:
            return named
    resizing = _Resizing(
        along,
        mode,
        coordinate_transformation_mode=coordinate_transformation_mode,
        nearest_mode=nearest_mode,
        antialias=bool(antialias),
        cubic_coeff_a=cubic_coeff_a,
        exclude_outside=bool(exclude_outside),
        extrapolation_value=extrapolation_value,
    )
    if coordinate_transformation_mode == "tf_crop_and_resize":
        region = constant_of(roi, "the region").reshape(-1).astype(np.float32)
        unsupported_if(len(region) != 2 * len(along), f"the region {region.tolist()} does not fit {len(along)} axes")
        resizing = replace(resizing, roi=tuple(map(float, region)))
    if scales is not None and shape_of(scales)[0]:
        return _resize(b, X, replace(resizing, scales=_scales(X, scales, along)))
    targets = tuple(integers(sizes, "the sizes"))
    unsupported_if(len(along) != len(targets), f"the sizes {list(targets)} do not fit {list(shape_of(X))}")
    unsupported_if(any(size < 1 for size in targets), "its output is empty")
    policies = ("stretch", "not_larger", "not_smaller")
    unsupported_if(keep_aspect_ratio_policy not in policies, f"the policy {keep_aspect_ratio_policy!r} is unknown")
    return _resize(b, X, replace(resizing, sizes=targets, keep_aspect_ratio_policy=keep_aspect_ratio_policy))


@converts("Upsample", moved=["scales"])
def _upsample(b: MLGraphBuilder, X: Tensor, scales: Tensor | None = None, *, mode: str = "nearest") -> Tensor:
    along = tuple(range(len(shape_of(X))))
    named = _resize_names(b, X, along, scales, None, mode, "asymmetric", "simple")
    if named is not None:
        return named
    factors = _scales(X, scales, along)
    # Nearest positions are rounded up where the axis shrinks, else down.
    parts = {"floor": [k for k in along if factors[k] >= 1], "ceil": [k for k in along if factors[k] < 1]}
    result = X
    for rounding, chosen in parts.items():
        if chosen:
            part = tuple(factors[k] for k in chosen)
            resizing = _Resizing(
                tuple(chosen), mode, part, coordinate_transformation_mode="asymmetric", nearest_mode=rounding
            )
            result = _resize(b, result, resizing)
    return result


def _resize_names(
    b: MLGraphBuilder,
    X: Tensor,
    along: Sequence[int],
    scales: Tensor | None,
    sizes: Tensor | None,
    mode: str,
    coordinates: str,
    nearest_mode: str,
) -> Tensor | None:
    """The result for sizes with names, where WebNN's positions are ONNX's for all of them; None if numbers are needed."""
    shape: list[Any] = list(shape_of(X))
    if scales is not None and shape_of(scales)[0]:
        factors = constant_of(scales, "the list of scales").reshape(-1).tolist()
        if len(factors) != len(along) or not all(factor >= 1 and factor.is_integer() for factor in factors):
            return None
        targets = {axis: shape[axis] * int(factor) for axis, factor in zip(along, factors, strict=True)}
    else:
        wanted = integers(sizes, "the sizes")
        if len(wanted) != len(along):
            return None
        targets = dict(zip(along, wanted, strict=True))
    if is_static((*shape, *targets.values())):
        return None
    targets = {axis: size for axis, size in targets.items() if not is_same_size(size, shape[axis])}
    is_multiple = all(is_same_size(size % shape[axis], 0) for axis, size in targets.items())
    if mode == "nearest":
        # By whole factors, no position is at the border between two elements, where the engine's float32 might decide.
        rounding = {"asymmetric": ("floor", "simple"), "half_pixel": ("round_prefer_floor", "round_prefer_ceil")}.get(
            coordinates, ()
        )
        return _resample(b, X, targets, "nearest-neighbor") if is_multiple and nearest_mode in rounding else None
    is_same = coordinates == "half_pixel" or (
        coordinates == "pytorch_half_pixel" and all(size > 1 for size in targets.values())
    )
    if mode != "linear" or not is_same or not is_float(X) or not all(size > 0 for size in targets.values()):
        return None
    return _resample(b, X, targets, "linear")


def _scales(X: Tensor, scales: Tensor | None, along: Sequence[int]) -> tuple[float, ...]:
    factors = constant_of(scales, "the list of scales").reshape(-1).astype(np.float32)
    if len(along) != len(factors) or not np.isfinite(factors).all() or not (factors > 0).all():
        raise Unsupported(f"the scales {factors.tolist()} do not fit {list(shape_of(X))}")
    return tuple(map(float, factors))


def _resize(b: MLGraphBuilder, X: Tensor, resizing: _Resizing) -> Tensor:
    unsupported_if(0 in shape_of(X), "its input is empty")
    unsupported_if(resizing.mode not in TAPS, f"the mode {resizing.mode!r} is unknown")
    if has_names(shape_of(X), resizing.sizes, resizing.axes, resizing.antialias, resizing.keep_aspect_ratio_policy):
        return resizing.apply(operand(b, X))
    changed = resizing.changed_axes(X)
    unsupported_if(any(axis.new < 1 for axis in changed), "its output is empty")
    if not changed:
        return X
    resampled = _nearest(b, X, changed, resizing) if resizing.mode == "nearest" else _linear(b, X, changed, resizing)
    return resizing.apply(operand(b, X)) if resampled is None else resampled


def _nearest(b: MLGraphBuilder, X: Tensor, axes: Sequence[ResizedAxis], resizing: _Resizing) -> Tensor | None:
    """Resample the nearest elements; None if resample2d chooses others."""
    if resizing.coordinate_transformation_mode == "tf_crop_and_resize":
        return None
    coordinates: Any = resizing.coordinate_transformation_mode
    rounding: Any = resizing.nearest_mode
    sizes = {}
    for axis in axes:
        places = nearest_taps(axis, coordinates, rounding).positions[:, 0].tolist()
        if places == list(range(axis.old)):
            continue
        if places != nearest_positions(axis.old, axis.new):
            return None
        sizes[axis.axis] = axis.new
    return _resample(b, X, sizes, "nearest-neighbor")


def _linear(b: MLGraphBuilder, X: Tensor, axes: Sequence[ResizedAxis], resizing: _Resizing) -> Tensor | None:
    """Resample linearly; None if resample2d has other positions or weights."""
    coordinates = resizing.coordinate_transformation_mode
    same = coordinates in ("half_pixel", "half_pixel_symmetric") or (
        coordinates == "pytorch_half_pixel" and all(axis.new > 1 for axis in axes)
    )
    is_plain = resizing.mode == "linear" and not (resizing.antialias and any(axis.scale < 1 for axis in axes))
    # resample2d rounds integers to nearest, ONNX truncates them.
    if not same or not is_plain or not is_float(X):
        return None
    if any(axis.scale != np.float32(axis.new) / np.float32(axis.old) for axis in axes):
        return None
    return _resample(b, X, {axis.axis: axis.new for axis in axes}, "linear")


def _resample(b: MLGraphBuilder, X: Tensor, sizes: dict[int, int], mode: str) -> Tensor | None:
    """Resample some axes of `X` to `sizes`; None if resample2d cannot."""
    if not sizes:
        return X
    shape = list(shape_of(X))
    if data_type_of(X) not in ("float32", "float16", "uint8", "int8"):
        return None
    lead = 4 - len(shape)  # the number of axes of size 1 to add before the others
    if lead < 0 or len(sizes) > 2:
        return None
    targets: dict[int, Any] = {axis + lead: size for axis, size in sizes.items()}
    padded = [1] * lead + shape
    for axis in (3, 2):  # resample2d takes two axes; if only one is resized, the other keeps its size
        if len(targets) < 2:
            targets.setdefault(axis, padded[axis])
    chosen = sorted(targets)
    result = b.resample2d(reshape(b, X, padded), mode=mode, sizes=[targets[a] for a in chosen], axes=chosen)
    return reshape(b, result, list(result.shape)[lead:])


# Grids and regions ---------------------------------------------------------------------------------------------------

_OLD_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of modes before operator set 20."""


@converts("GridSample")
@converts("GridSample", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    grid: MLOperand,
    *,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: int = 0,
) -> MLOperand:
    options: dict[str, Any] = {"mode": _OLD_MODES.get(mode, mode), "padding_mode": padding_mode}
    return composites.grid_sample(b, X, grid, align_corners=bool(align_corners), **options)


@converts("AffineGrid")
def _(b: MLGraphBuilder, theta: MLOperand, size: Tensor, *, align_corners: int = 0) -> MLOperand:
    sizes = integers(size, "the size of the result")
    return composites.affine_grid(b, theta, sizes[2:], align_corners=bool(align_corners))


@converts("RoiAlign")
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    rois: MLOperand,
    batch_indices: MLOperand,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: str | None = None,
    opset: int,
) -> MLOperand:
    coordinates = coordinate_transformation_mode or ("half_pixel" if opset >= 16 else "output_half_pixel")
    return composites.roi_align(
        b,
        X,
        rois,
        batch_indices,
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=max(sampling_ratio, 0),
        spatial_scale=spatial_scale,
        coordinate_transformation_mode=coordinates,
    )


@converts("CropAndResize", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    rois: MLOperand,
    batch_indices: MLOperand,
    crop_size: Tensor,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> MLOperand:
    unsupported_if(mode not in ("bilinear", "nearest"), f"its mode is {mode!r}")
    size = integers(crop_size, "the size of crops")
    options: dict[str, Any] = {"mode": _OLD_MODES.get(mode, mode), "extrapolation_value": extrapolation_value}
    return composites.crop_and_resize(b, X, rois, batch_indices, size, **options)


@converts("MaxRoiPool")
def _(
    b: MLGraphBuilder, X: MLOperand, rois: MLOperand, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> MLOperand:
    return composites.max_roi_pool(b, X, rois, pooled_shape=list(pooled_shape), spatial_scale=spatial_scale)


@converts("CenterCropPad")
def _(b: MLGraphBuilder, input_data: MLOperand, shape: Tensor, *, axes: Sequence[int] | None = None) -> MLOperand:
    rank = input_data.rank
    along = None if axes is None else [normalize_axis(axis, rank) for axis in axes]
    return composites.center_crop_pad(b, input_data, integers(shape, "the shape"), axes=along)
