"""Operators of torchvision whose results have a shape that follows from those of their inputs."""

from __future__ import annotations

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ..registry import as_type, converts, refuse_if
from .windows import both_sides


@converts("torchvision.roi_align.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    rois: MLOperand,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> MLOperand:
    count = rois.shape[0]
    batches = b.reshape(b.cast(b.slice(rois, [0, 0], [count, 1]), "int64"), [count])
    result: MLOperand = composites.roi_align(
        b, input, b.slice(rois, [0, 1], [count, 4]), batches, mode="avg", output_height=pooled_height,
        output_width=pooled_width, sampling_ratio=max(sampling_ratio, 0), spatial_scale=spatial_scale,
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )  # fmt: skip
    return result


@converts("torchvision.deform_conv2d.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    offset: MLOperand,
    mask: MLOperand,
    bias: MLOperand,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> MLOperand:
    refuse_if(offset_groups < 1, f"it has {offset_groups} groups of offsets")
    result: MLOperand = composites.deform_conv(
        b, input, weight, as_type(b, offset, input.data_type), mask if use_mask else None, bias,
        padding=both_sides([pad_h, pad_w]), strides=[stride_h, stride_w], dilations=[dilation_h, dilation_w],
        groups=groups, offset_groups=offset_groups,
    )  # fmt: skip
    return result
