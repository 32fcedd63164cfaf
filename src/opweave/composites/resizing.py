"""Resizing of any axes by interpolation, with all coordinate transformations of ONNX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..core.dtypes import ANY, INFO, is_float
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..core.sizes import Size, is_same_size, is_static
from ..ops.constants import HostFunction, computed, constant
from ..support.errors import require
from .declare import check_axes, column, declare
from .resample import (
    MAX_LOADS,
    Coordinates,
    ResizedAxis,
    Rounding,
    Taps,
    antialiased_taps,
    cubic,
    cubic_taps,
    is_identity,
    linear_taps,
    nearest_taps,
    resample,
    resample_axes,
    triangle,
    trim,
)

if TYPE_CHECKING:
    from ..ops import Operations

ResizeMode: TypeAlias = Literal["nearest", "linear", "cubic"]
AspectRatio: TypeAlias = Literal["stretch", "not_larger", "not_smaller"]

NamedAxis: TypeAlias = tuple[Any, Any, "float | None", float, float]
"""Old and new size, scale (None for that of the sizes), start and end: the arguments of `_axis_of`, with sizes with names."""

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Elements along an axis that an element of the result is computed from, without antialiasing."""

_HALF = np.float32(0.5)
_MAX_SIZE = 2**31 - 1


@declare(input=Limits(ANY, ranks=(1, N)))
def resize(
    self: Builder,
    input: Operand,
    *,
    scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    mode: ResizeMode = "nearest",
    coordinate_transformation_mode: Coordinates = "half_pixel",
    nearest_mode: Rounding = "round_prefer_floor",
    antialias: bool = False,
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    extrapolation_value: float = 0.0,
    roi: Sequence[float] | None = None,
    keep_aspect_ratio_policy: AspectRatio = "stretch",
    label: str = "",
) -> Desc:
    """Resize any axes by interpolation; `resample2d` of the specification resizes two, with "half_pixel" coordinates only.

    An element whose coefficient is 0 may be left out or multiplied by 0, so that NaN and infinity may or may not spread to
    results at the positions of their neighbours.

    Args:
        input: any data type, rank 1 or more. Integers are interpolated in float32, and truncated.
        scales: a factor greater than 0 for each of `axes`: the new size is `floor(size * scale)`, computed in float32.
        sizes: the new size of each of `axes`, in place of `scales`.
        axes: different integers in [0, rank). Default: all.
        mode: "nearest" copies one element, "linear" interpolates between two along each axis, "cubic" between four.
        coordinate_transformation_mode: position in the input of element `i` of the result, where `width = size * scale`:
            "half_pixel" is `(i + 0.5) / scale - 0.5`; "half_pixel_symmetric" also moves the centre of the result to that of
            the input; "pytorch_half_pixel" is -0.5 for a width of 1; "align_corners" is `i * (size - 1) / (width - 1)`;
            "asymmetric" is `i / scale`; "tf_half_pixel_for_nn" is `(i + 0.5) / scale`; "tf_crop_and_resize" is `start * (size
            - 1) + i * (end - start) * (size - 1) / (width - 1)`, see `roi`. Computed in float32.
        nearest_mode: how "nearest" rounds positions: "round_prefer_floor", "round_prefer_ceil", "floor" or "ceil".
        antialias: whether "linear" and "cubic" widen the filter where an axis shrinks, so that all elements count.
        cubic_coeff_a: the coefficient of the cubic function.
        exclude_outside: whether elements outside the input have no weight; otherwise, the first and last are repeated.
        extrapolation_value: the result of "tf_crop_and_resize" at positions outside the input.
        roi: for "tf_crop_and_resize", the start of the part of each of `axes` that is resized, then the ends: 0 is the first
            element, 1 the last.
        keep_aspect_ratio_policy: with `sizes`, "stretch" resizes each axis to its size; "not_larger" and "not_smaller" use one
            scale, so that no size is larger or smaller than that in `sizes`.

    Returns: An operand of the data type and rank of `input`.
    Raises: options out of range or that do not fit each other, or a size that is not in [1, 2**31).

    ONNX's Resize. Where ONNX Runtime differs from ONNX's reference evaluator and tests (it takes the new size for the width),
    this is the evaluator. Keys, Cubic Convolution Interpolation for Digital Image Processing (1981).

    >>> image = np.float32([[1, 2], [3, 4]])
    >>> resize(image, sizes=[2, 3], mode="linear", coordinate_transformation_mode="align_corners").tolist()
    [[1.0, 1.5, 2.0], [3.0, 3.5, 4.0]]
    >>> resize(image, scales=[2.0], axes=[1]).tolist()
    [[1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0]]
    """
    along = check_axes(input.rank, axes)
    require((scales is None) != (sizes is None), "one of scales and sizes must be given")
    require(math.isfinite(cubic_coeff_a), f"cubic_coeff_a must be finite, got {cubic_coeff_a}")
    factors, start_and_end = _numbers("scales", scales), _numbers("roi", roi)
    if coordinate_transformation_mode == "tf_crop_and_resize":
        fits = len(start_and_end) == 2 * len(along) and all(map(math.isfinite, start_and_end))
        require(fits, f"roi must have a start and an end for each of {len(along)} axes, got {roi}")
    if sizes is None:
        fits = len(factors) == len(along) and all(0 < np.float32(scale) < math.inf for scale in factors)
        require(fits, f"scales must be {len(along)} positive finite numbers, one for each axis, got {scales}")
        _needs_no_sizes(keep_aspect_ratio_policy)
        targets: list[Any] = [_scale_size(input.shape[a], scale) for a, scale in zip(along, factors, strict=True)]
    else:
        is_list = isinstance(sizes, tuple) and all(isinstance(size, (int, np.integer, Size)) for size in sizes)
        fits = is_list and len(sizes) == len(along) and all(size >= 1 for size in sizes)
        require(fits, f"sizes must be {len(along)} positive integers, one for each axis, got {sizes}")
        targets = list(sizes)
        if keep_aspect_ratio_policy != "stretch":
            targets = [axis.new for axis in _with_one_scale(input.shape, along, targets, keep_aspect_ratio_policy)]
    shape: list[Any] = list(input.shape)
    for axis, size in zip(along, targets, strict=True):
        is_size = size >= 1 and (isinstance(size, Size) or size <= _MAX_SIZE)
        require(is_size, f"sizes must be in [1, 2**31), got {size} for axis {axis} of {input.desc}")
        require(input.shape[axis] >= 1, f"axes {list(along)} of {input.desc} must have elements to sample")
        shape[axis] = size
    return Desc(input.data_type, tuple(shape))


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if values is None:
        return ()
    is_list = isinstance(values, tuple) and all(isinstance(value, (int, float, np.number)) for value in values)
    require(is_list, f"{name} must be a list of numbers, got {values}")
    return tuple(float(value) for value in values)


def _needs_no_sizes(policy: str) -> None:
    require(policy == "stretch", f"keep_aspect_ratio_policy {policy!r} needs sizes, got scales")


def _scale_size(size: Any, scale: float) -> Any:
    """Return floor(size * scale), computed in float32 as ONNX Runtime does."""
    above, below = np.float32(scale).as_integer_ratio()
    if isinstance(size, Size) and above < 256:  # exact in float32, for sizes below 2**16
        return size * above // below
    product = float(np.float32(int(size)) * np.float32(scale))
    return math.floor(min(product, 2.0**32))


def _with_one_scale(shape: Sequence[Any], along: Sequence[int], sizes: Sequence[Any], policy: str) -> list[ResizedAxis]:
    ratios = [np.float32(int(size)) / np.float32(int(shape[axis])) for axis, size in zip(along, sizes, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    old = [int(shape[axis]) for axis in along]
    return [
        ResizedAxis(axis, size, math.floor(scale * np.float32(size) + _HALF), scale, float(scale) * size)
        for axis, size in zip(along, old, strict=True)
    ]


def resized_axes(
    input_shape: Sequence[int],
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    axes: Sequence[int] | None,
    coordinate_transformation_mode: str,
    roi: Sequence[float] | None,
    keep_aspect_ratio_policy: str,
) -> list[ResizedAxis]:
    """Return the axes of a valid call that are resized; others keep their elements."""
    along = check_axes(len(input_shape), axes)
    parts = [(np.float32(0), np.float32(1))] * len(along)
    if coordinate_transformation_mode == "tf_crop_and_resize":
        assert roi is not None
        parts = [(np.float32(roi[k]), np.float32(roi[k + len(along)])) for k in range(len(along))]
    if sizes is None:
        assert scales is not None
        factors = [np.float32(scale) for scale in scales]
        olds = [int(input_shape[axis]) for axis in along]
        rows = [(a, o, _scale_size(o, float(f)), f, float(f) * o) for a, o, f in zip(along, olds, factors, strict=True)]
    elif keep_aspect_ratio_policy == "stretch":
        pairs = [(axis, int(input_shape[axis]), int(size)) for axis, size in zip(along, sizes, strict=True)]
        rows = [(axis, old, new, np.float32(new) / np.float32(old), float(new)) for axis, old, new in pairs]
    else:
        kept = _with_one_scale(input_shape, along, sizes, keep_aspect_ratio_policy)
        rows = [(axis.axis, axis.old, axis.new, axis.scale, axis.width) for axis in kept]
    resized = [ResizedAxis(*row, *part) for row, part in zip(rows, parts, strict=True)]
    return [axis for axis in resized if axis.is_changed]


def has_names(
    input_shape: Sequence[Any],
    sizes: Sequence[Any] | None,
    axes: Sequence[int] | None,
    antialias: bool,
    keep_aspect_ratio_policy: str,
) -> bool:
    """Whether old or new sizes are known only when the graph runs, and one program may serve all of them.

    The number of taps of an antialiased filter, and the scale that keeps the ratio of sizes, depend on numbers.
    """
    if antialias or keep_aspect_ratio_policy != "stretch":
        return False
    return not is_static([*(input_shape[axis] for axis in check_axes(len(input_shape), axes)), *(sizes or ())])


def named_axes(
    input_shape: Sequence[Any],
    scales: Sequence[float] | None,
    sizes: Sequence[Any] | None,
    axes: Sequence[int] | None,
    coordinate_transformation_mode: str,
    roi: Sequence[float] | None,
) -> list[tuple[int, NamedAxis]]:
    """Return the axes of a valid call with names that may be resized, with the arguments of `_axis_of`."""
    along = check_axes(len(input_shape), axes)
    result = []
    for k, axis in enumerate(along):
        old, start, end = input_shape[axis], 0.0, 1.0
        if coordinate_transformation_mode == "tf_crop_and_resize":
            assert roi is not None
            start, end = roi[k], roi[k + len(along)]
        if sizes is not None:
            new, scale = sizes[k], None
        else:
            assert scales is not None
            new, scale = _scale_size(old, scales[k]), float(np.float32(scales[k]))
        if scale not in (None, 1.0) or (start, end) != (0, 1) or not is_same_size(old, new):
            result.append((axis, (old, new, scale, start, end)))
    return result


def taps_of(
    axis: ResizedAxis,
    mode: str,
    coordinate_transformation_mode: Coordinates,
    nearest_mode: Rounding,
    antialias: bool,
    cubic_coeff_a: float,
    exclude_outside: bool,
) -> Taps:
    """Return the elements and weights of an axis."""
    if mode == "nearest":
        return nearest_taps(axis, coordinate_transformation_mode, nearest_mode)
    if antialias and axis.scale < 1:
        kernel = triangle if mode == "linear" else partial(cubic, coefficient=cubic_coeff_a)
        reach = 1 if mode == "linear" else 2
        taps = antialiased_taps(axis, coordinate_transformation_mode, kernel, reach, exclude_outside)
        return trim(taps)
    if mode == "linear":
        return linear_taps(axis, coordinate_transformation_mode)
    return trim(cubic_taps(axis, coordinate_transformation_mode, cubic_coeff_a, exclude_outside))


# Axes whose sizes are known only when the graph runs: tables that Python computes for each combination of sizes.


def _axis_of(old: int, new: int, scale: float | None, start: float, end: float) -> ResizedAxis:
    factor = np.float32(new) / np.float32(old) if scale is None else np.float32(scale)
    width = float(new) if scale is None else float(factor) * old
    return ResizedAxis(0, old, new, factor, width, np.float32(start), np.float32(end))


def _taps_at(
    axis: NamedAxis,
    mode: str,
    coordinates: Coordinates,
    rounding: Rounding,
    cubic_coeff_a: float,
    exclude_outside: bool,
) -> Taps:
    """Return the elements and weights of an axis, with the same number of taps for all sizes."""
    resized = _axis_of(*axis)
    if not resized.is_changed:
        # Equal weights, since 0 * inf is NaN.
        places = np.repeat(np.arange(resized.old)[:, None], TAPS[mode], axis=1)
        return Taps(0, places, np.full(places.shape, 1 / TAPS[mode]))
    if mode == "cubic":
        return cubic_taps(resized, coordinates, cubic_coeff_a, exclude_outside)
    return taps_of(resized, mode, coordinates, rounding, False, cubic_coeff_a, exclude_outside)


@HostFunction
def tap_positions(*arguments: Any) -> Any:
    """The positions of the taps of an axis."""
    return _taps_at(*arguments).positions


@HostFunction
def tap_weights(*arguments: Any) -> Any:
    """The weights of the taps of an axis."""
    return _taps_at(*arguments).weights


@HostFunction
def outside_mask(axis: NamedAxis, coordinates: Coordinates) -> Any:
    """Whether each element of an axis is outside the input."""
    resized = _axis_of(*axis)
    outside = resized.outside(coordinates) if resized.is_changed else None
    return np.zeros(resized.new, bool) if outside is None else outside


def _resample_names(
    b: Operations, x: Operand, axes: Sequence[int], arguments: Sequence[tuple[Any, ...]], mode: str
) -> Operand:
    """Resample axes with the taps that Python computes for the sizes of a run."""
    taps = TAPS[mode]
    groups = [range(len(axes))] if taps ** len(axes) <= MAX_LOADS else [[k] for k in range(len(axes))]
    for group in groups:
        tables = [arguments[k] for k in group]
        shapes = [[axis[1], taps] for axis, *_ in tables]
        pairs = list(zip(tables, shapes, strict=True))
        positions = [computed(b, tap_positions, table, "int32", shape) for table, shape in pairs]
        weights = [computed(b, tap_weights, table, "float32", shape) for table, shape in pairs if mode != "nearest"]
        x = resample_axes(b, x, positions, weights, axes=tuple(axes[k] for k in group))
    return x


@resize.decompose
def _(
    b: Operations,
    input: Operand,
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    axes: Sequence[int] | None,
    mode: str,
    coordinate_transformation_mode: Coordinates,
    nearest_mode: Rounding,
    antialias: bool,
    cubic_coeff_a: float,
    exclude_outside: bool,
    extrapolation_value: float,
    roi: Sequence[float] | None,
    keep_aspect_ratio_policy: str,
) -> Operand:
    coordinates = coordinate_transformation_mode
    is_rounded = mode != "nearest" and not is_float(input.data_type)
    x = b.cast(input, "float32") if is_rounded else input
    if has_names(input.shape, sizes, axes, antialias, keep_aspect_ratio_policy):
        named = named_axes(input.shape, scales, sizes, axes, coordinates, roi)
        options = (mode, coordinates, nearest_mode, cubic_coeff_a, bool(exclude_outside))
        x = _resample_names(b, x, [axis for axis, _ in named], [(row, *options) for _, row in named], mode)
        masks = [
            computed(b, outside_mask, (row, coordinates), "uint8", column(axis, row[1], input.rank))
            for axis, row in named
            if coordinates == "tf_crop_and_resize"
        ]
    else:
        resized = resized_axes(input.shape, scales, sizes, axes, coordinates, roi, keep_aspect_ratio_policy)
        filters = (mode, coordinates, nearest_mode, bool(antialias), cubic_coeff_a, bool(exclude_outside))
        all_taps = [taps_of(axis, *filters) for axis in resized]
        x = resample(b, x, [taps for taps in all_taps if not is_identity(taps, int(input.shape[taps.axis]))])
        masks = [
            constant(b, outside.reshape(column(axis.axis, axis.new, input.rank)), "uint8")
            for axis in resized
            if (outside := axis.outside(coordinates)) is not None
        ]
    if is_rounded:
        # Cubic interpolation exceeds the range of the elements.
        info = INFO[input.data_type]
        x = b.cast(b.clamp(x, min_value=float(info.lowest), max_value=float(info.highest)), input.data_type)
    for mask in masks:
        x = b.where(mask, constant(b, _in_type(extrapolation_value, input.data_type), input.data_type), x)
    return x if x is not input else b.identity(x)


def _in_type(value: float, data_type: Any) -> float:
    """Convert a number to an integer type: NaN is 0, and numbers out of range are the nearest in range."""
    if is_float(data_type):
        return value
    info = INFO[data_type]
    return 0 if math.isnan(value) else int(max(min(value, float(info.highest)), float(info.lowest)))
