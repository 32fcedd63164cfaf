"""Resizing of images, and sampling at the positions of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.dtypes import is_float
from ...core.graph import MLOperand
from ...core.sizes import is_unknown
from ..registry import converts, refuse_if

Mode = Literal["nearest", "linear", "cubic"]

_GRID_MODES: tuple[Literal["linear", "nearest", "cubic"], ...] = ("linear", "nearest", "cubic")
_GRID_PADDINGS: tuple[Literal["zeros", "border", "reflection"], ...] = ("zeros", "border", "reflection")


def _resize(
    b: MLGraphBuilder,
    input: MLOperand,
    output_size: Sequence[int] | None,
    scales: Sequence[float | None] | None,
    mode: Mode,
    **options: Any,
) -> MLOperand:
    """Resize the spatial axes to sizes, or by scales.

    Scales also map positions, except for `align_corners`; the quotient of the sizes can differ from the scales.
    """
    if mode != "nearest" and not is_float(input.data_type):
        y = _resize(b, b.cast(input, "float32"), output_size, scales, mode, **options)
        return b.cast(b.clamp(b.round_even(y), min_value=0, max_value=255), input.data_type)
    axes = list(range(2, input.rank))
    factors = (
        None if scales is None or any(scale is None for scale in scales) else [float(scale or 0) for scale in scales]
    )
    if options.get("coordinate_transformation_mode") == "align_corners" and factors is not None:
        if output_size is None:  # formulas of sizes, which the scales give
            output_size = composites.resize(b, input, axes=axes, scales=factors, mode=mode, **options).shape[2:]
            refuse_if(any(map(is_unknown, output_size)), "it aligns corners, and its sizes have no formula")
        factors = None
    if factors is not None:
        refuse_if(min(factors) <= 0, f"its scales are {factors}")
        for factor, size, new in zip(factors, input.shape[2:], output_size or (), strict=False):
            # If size * scale is nearly an integer, rounding it down in float32 and in float64 may differ by 1.
            is_far = type(size) is int and type(new) is int and not -1e-3 < size * factor - new < 1 + 1e-3
            refuse_if(is_far, f"its sizes {list(output_size or ())} are not those of its scales {factors}")
        y = composites.resize(b, input, axes=axes, scales=factors, mode=mode, **options)
        # The composite rounds size * scale down in float32, PyTorch in float64.
        if output_size is None or list(y.shape[2:]) == list(output_size):
            return y
    refuse_if(output_size is None, "it has neither sizes nor scales")
    result: MLOperand = composites.resize(b, input, axes=axes, sizes=list(output_size or ()), mode=mode, **options)
    return result


def _sizes_of(value: Any) -> list[int] | None:
    """The sizes that PyTorch inferred for the result, if they are numbers."""
    sizes = list(value.shape[2:])
    return sizes if all(type(size) is int for size in sizes) else None


def _nearest(name: str) -> dict[str, Any]:
    """Options of `composites.resize`; PyTorch's "nearest" rounds down, and "nearest-exact" takes the closest centre."""
    if "_exact" in name:
        return {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    return {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


@converts(
    "aten.upsample_nearest1d.vec", "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec",
    "aten._upsample_nearest_exact1d.vec", "aten._upsample_nearest_exact2d.vec", "aten._upsample_nearest_exact3d.vec",
)  # fmt: skip
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    output_size: Sequence[int] | None,
    scale_factors: Sequence[float] | None,
    *,
    call: Any,
) -> MLOperand:
    sizes = output_size if output_size is not None else _sizes_of(call.value)
    return _resize(b, input, sizes, scale_factors, "nearest", **_nearest(call.name))


@converts(
    "aten.upsample_nearest1d.default", "aten.upsample_nearest2d.default", "aten.upsample_nearest3d.default",
    "aten._upsample_nearest_exact1d.default", "aten._upsample_nearest_exact2d.default",
    "aten._upsample_nearest_exact3d.default",
)  # fmt: skip
def _(b: MLGraphBuilder, self: MLOperand, output_size: Sequence[int], *scales: float | None, call: Any) -> MLOperand:
    return _resize(b, self, output_size, scales or None, "nearest", **_nearest(call.name))


def _corners(align_corners: bool) -> dict[str, Any]:
    return {"coordinate_transformation_mode": "align_corners" if align_corners else "half_pixel"}


def _mode(name: str) -> Mode:
    return "cubic" if "cubic" in name else "linear"


@converts(
    "aten.upsample_linear1d.vec", "aten.upsample_bilinear2d.vec", "aten.upsample_trilinear3d.vec",
    "aten.upsample_bicubic2d.vec",
)  # fmt: skip
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    output_size: Sequence[int] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
    *,
    call: Any,
) -> MLOperand:
    sizes = output_size if output_size is not None else _sizes_of(call.value)
    return _resize(b, input, sizes, scale_factors, _mode(call.name), **_corners(align_corners))


@converts(
    "aten.upsample_linear1d.default", "aten.upsample_bilinear2d.default", "aten.upsample_trilinear3d.default",
    "aten.upsample_bicubic2d.default",
)  # fmt: skip
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    output_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
    call: Any,
) -> MLOperand:
    return _resize(b, self, output_size, scales or None, _mode(call.name), **_corners(align_corners))


@converts("aten._upsample_bilinear2d_aa.vec", "aten._upsample_bicubic2d_aa.vec")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    output_size: Sequence[int] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
    *,
    call: Any,
) -> MLOperand:
    sizes = output_size if output_size is not None else _sizes_of(call.value)
    return _antialias(b, call.name, input, sizes, scale_factors, align_corners)


@converts("aten._upsample_bilinear2d_aa.default", "aten._upsample_bicubic2d_aa.default")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    output_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
    call: Any,
) -> MLOperand:
    return _antialias(b, call.name, self, output_size, scales or None, align_corners)


def _antialias(
    b: MLGraphBuilder,
    name: str,
    x: MLOperand,
    output_size: Sequence[int] | None,
    scales: Sequence[float | None] | None,
    align_corners: bool,
) -> MLOperand:
    refuse_if(align_corners, "it aligns corners and widens the filter")
    # PyTorch's antialiased cubic filter is that of Pillow: coefficient -0.5, and no elements outside.
    mode = _mode(name)
    options = {"antialias": True, "exclude_outside": True, "cubic_coeff_a": -0.5 if mode == "cubic" else -0.75}
    return _resize(b, x, output_size, scales, mode, coordinate_transformation_mode="half_pixel", **options)


# Positions ------------------------------------------------------------------------------------------------------------


@converts("aten.grid_sampler.default", "aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    grid: MLOperand,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> MLOperand:
    mode, padding = _GRID_MODES[interpolation_mode], _GRID_PADDINGS[padding_mode]
    # The composite reads the border of cubic interpolation as ONNX does.
    refuse_if(mode == "cubic" and padding != "zeros", f"it is cubic with the padding {padding!r}")
    result: MLOperand = composites.grid_sample(
        b, input, grid, mode=mode, padding_mode=padding, align_corners=align_corners
    )
    return result


@converts("aten.affine_grid_generator.default")
def _(b: MLGraphBuilder, theta: MLOperand, size: Sequence[int], align_corners: bool) -> MLOperand:
    result: MLOperand = composites.affine_grid(b, theta, list(size), align_corners=align_corners)
    return result
