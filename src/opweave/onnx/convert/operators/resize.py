"""ONNX's Resize and Upsample.

WebNN's resample2d has one coordinate transformation. For others, nearest neighbours are gathered, and linear interpolation
falls back. Cubic interpolation always falls back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....context.builder import MLGraphBuilder
from ....core.shapes import nearest_positions
from ....core.sizes import is_same_size, is_static
from ...model.registry import (
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
from .elementwise import is_float
from .windows import reshape


@dataclass(frozen=True)
class _ResizedAxis:
    """An axis that is resized; `scale` is the factor for computing positions, which may differ a little from `new / old`."""

    axis: int
    old: int
    new: int
    scale: np.float32

    @property
    def is_ratio(self) -> bool:
        """Whether the factor is the ratio of the sizes, as in WebNN."""
        return bool(self.scale == np.float32(self.new) / np.float32(self.old))


_ONE, _HALF = np.float32(1), np.float32(0.5)


def _half_pixel(at: np.ndarray, axis: _ResizedAxis) -> np.ndarray:
    return (at + _HALF) / axis.scale - _HALF


def _symmetric(at: np.ndarray, axis: _ResizedAxis) -> np.ndarray:
    adjustment = np.float32(axis.new) / (axis.scale * np.float32(axis.old))
    return np.float32(axis.old) / np.float32(2) * (_ONE - adjustment) + _half_pixel(at, axis)


def _align_corners(at: np.ndarray, axis: _ResizedAxis) -> np.ndarray:
    if axis.new == 1:
        return np.zeros_like(at)
    return at * np.float32(axis.old - 1) / np.float32(axis.new - 1)


# Positions in the input, computed in float32 as the engine does, so that both round the same way.
_COORDINATES: dict[str, Callable[[np.ndarray, _ResizedAxis], np.ndarray]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda at, axis: _half_pixel(at, axis) if axis.new > 1 else np.zeros_like(at),
    "tf_half_pixel_for_nn": lambda at, axis: (at + _HALF) / axis.scale,
    "asymmetric": lambda at, axis: at / axis.scale,
    "align_corners": _align_corners,
}

_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - _HALF),
    "round_prefer_ceil": lambda x: np.floor(x + _HALF),
    "floor": np.floor,
    "ceil": np.ceil,
}


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
    along = range(rank) if axes is None else [normalize_axis(axis, rank) for axis in axes]
    if keep_aspect_ratio_policy == "stretch" and not antialias:
        named = _resize_names(b, X, along, scales, sizes, mode, coordinate_transformation_mode, nearest_mode)
        if named is not None:
            return named
    if scales is not None and shape_of(scales)[0]:
        resized = _by_scales(X, scales, along)
    else:
        resized = _by_sizes(X, integers(sizes, "the sizes"), along, keep_aspect_ratio_policy)
    unsupported_if(antialias and any(axis.scale < 1 for axis in resized), "WebNN has no filter against aliasing")
    return _resize(b, X, resized, mode, coordinate_transformation_mode, nearest_mode)


@converts("Upsample", moved=["scales"])
def _upsample(b: MLGraphBuilder, X: Tensor, scales: Tensor | None = None, *, mode: str = "nearest") -> Tensor:
    along = range(len(shape_of(X)))
    named = _resize_names(b, X, along, scales, None, mode, "asymmetric", "simple")
    return _resize(b, X, _by_scales(X, scales, along), mode, "asymmetric", "simple") if named is None else named


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
        rounding = {"asymmetric": ("floor", "simple"), "half_pixel": tuple(_ROUNDINGS)[:2]}.get(coordinates, ())
        return _resample(b, X, targets, "nearest-neighbor") if is_multiple and nearest_mode in rounding else None
    is_same = coordinates == "half_pixel" or (
        coordinates == "pytorch_half_pixel" and all(size > 1 for size in targets.values())
    )
    if mode != "linear" or not is_same or not is_float(X) or not all(size > 0 for size in targets.values()):
        return None
    return _resample(b, X, targets, "linear")


def _by_scales(X: Tensor, scales: Tensor | None, along: Sequence[int]) -> list[_ResizedAxis]:
    shape, factors = list(map(int, shape_of(X))), constant_of(scales, "the list of scales").reshape(-1)
    if len(along) != len(factors) or not np.isfinite(factors).all() or not (factors > 0).all():
        raise Unsupported(f"the scales {factors.tolist()} do not fit {list(shape)}")
    axes = zip(along, factors.astype(np.float32), strict=True)
    return [_ResizedAxis(axis, shape[axis], math.floor(np.float32(shape[axis]) * scale), scale) for axis, scale in axes]


def _by_sizes(X: Tensor, sizes: Sequence[int], along: Sequence[int], policy: str) -> list[_ResizedAxis]:
    shape, sizes = list(map(int, shape_of(X))), list(map(int, sizes))
    unsupported_if(len(along) != len(sizes), f"the sizes {list(sizes)} do not fit {list(shape)}")
    ratios = [np.float32(size) / np.float32(shape[axis]) for axis, size in zip(along, sizes, strict=True)]
    if policy == "stretch":
        return [_ResizedAxis(axis, shape[axis], *pair) for axis, *pair in zip(along, sizes, ratios, strict=True)]
    unsupported_if(policy not in ("not_larger", "not_smaller"), f"the policy {policy!r} is unknown")
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [_ResizedAxis(a, shape[a], math.floor(scale * np.float32(shape[a]) + _HALF), scale) for a in along]


def _resize(
    b: MLGraphBuilder, X: Tensor, axes: Sequence[_ResizedAxis], mode: str, coordinates: str, nearest_mode: str
) -> Tensor:
    unsupported_if(any(axis.new < 1 for axis in axes), "its output is empty")
    changed = [axis for axis in axes if axis.new != axis.old or axis.scale != 1]
    if not changed:
        return X
    unsupported_if(coordinates not in _COORDINATES, f"WebNN has no coordinate transformation {coordinates!r}")
    if mode != "nearest":
        return _linear(b, X, changed, mode, coordinates)
    places = {axis.axis: _nearest(axis, coordinates, nearest_mode) for axis in changed}
    places = {axis: chosen for axis, chosen in places.items() if chosen != list(range(shape_of(X)[axis]))}
    if all(chosen == nearest_positions(shape_of(X)[axis], len(chosen)) for axis, chosen in places.items()):
        resampled = _resample(b, X, {axis: len(chosen) for axis, chosen in places.items()}, "nearest-neighbor")
        if resampled is not None:
            return resampled
    result = X
    for axis, chosen in places.items():
        result = b.gather(result, np.array(chosen), axis=axis)
    return result


def _nearest(axis: _ResizedAxis, coordinates: str, nearest_mode: str) -> list[int]:
    """The position in the input of each element of the output."""
    if nearest_mode == "simple":
        nearest_mode = "ceil" if axis.scale < 1 else "floor"
    unsupported_if(nearest_mode not in _ROUNDINGS, f"the rounding {nearest_mode!r} is unknown")
    places = _COORDINATES[coordinates](np.arange(axis.new, dtype=np.float32), axis)
    rounding, last = _ROUNDINGS[nearest_mode], axis.old - 1
    nearest = np.clip(rounding(places), 0, last)
    if coordinates == "half_pixel_symmetric" and math.frexp(axis.scale)[0] != 0.5:
        # The engine is compiled with fused multiply-add, so that the last bits of this formula differ.
        margin = np.float32(4 * axis.old) * np.finfo(np.float32).eps
        for moved in (places - margin, places + margin):
            if not np.array_equal(np.clip(rounding(moved), 0, last), nearest):
                raise Unsupported("elements lie so close to the border between two that the engine's last bits decide")
    return [int(place) for place in nearest]


def _linear(b: MLGraphBuilder, X: Tensor, axes: Sequence[_ResizedAxis], mode: str, coordinates: str) -> Tensor:
    unsupported_if(mode != "linear", f"WebNN has no interpolation in mode {mode!r}")
    unsupported_if(not is_float(X), "WebNN rounds integers that are interpolated, ONNX cuts fractions off")
    same = coordinates in ("half_pixel", "half_pixel_symmetric") or (
        coordinates == "pytorch_half_pixel" and all(axis.new > 1 for axis in axes)
    )
    if not same or not all(axis.is_ratio for axis in axes):
        raise Unsupported(f"WebNN has no coordinate transformation {coordinates!r} for these sizes")
    resampled = _resample(b, X, {axis.axis: axis.new for axis in axes}, "linear")
    if resampled is None:
        raise Unsupported("WebNN interpolates along two axes at the most")
    return resampled


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
