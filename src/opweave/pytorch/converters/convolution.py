"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ..registry import converts, refuse_if


@converts("aten.conv2d.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    bias: MLOperand | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> MLOperand:
    return convolve(b, input, weight, bias, stride, padding, dilation, groups)


@converts("aten.convolution.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    bias: MLOperand | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> MLOperand:
    refuse_if(transposed, "it is transposed")
    return convolve(b, input, weight, bias, stride, padding, dilation, groups)


def convolve(
    b: MLGraphBuilder,
    x: MLOperand,
    weight: MLOperand,
    bias: MLOperand | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> MLOperand:
    """Convolve images; `padding` is equal on both sides."""
    rank = weight.rank - 2
    strides, pads, dilations = (list(v) * rank if len(v) == 1 else list(v) for v in (stride, padding, dilation))
    refuse_if(rank != 2, f"it has {rank} dimensions")
    refuse_if(x.rank != weight.rank, "it has no batch")
    return b.conv2d(
        x,
        weight,
        bias=bias,
        strides=strides,
        padding=[pad for pad in pads for _ in range(2)],
        dilations=dilations,
        groups=groups,
    )
