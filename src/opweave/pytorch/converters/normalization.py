"""Normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ..registry import converts


def normalise_last(
    b: MLGraphBuilder, x: MLOperand, count: int, weight: MLOperand | None, bias: MLOperand | None, epsilon: float
) -> MLOperand:
    """Normalise over the last `count` axes."""
    axes = list(range(x.rank - count, x.rank))
    return b.layer_normalization(x, scale=weight, bias=bias, axes=axes, epsilon=epsilon)


@converts("aten.layer_norm.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    normalized_shape: Sequence[Any],
    weight: MLOperand | None = None,
    bias: MLOperand | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> MLOperand:
    return normalise_last(b, input, len(normalized_shape), weight, bias, eps)


@converts("aten.native_layer_norm.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    normalized_shape: Sequence[Any],
    weight: MLOperand | None,
    bias: MLOperand | None,
    eps: float,
) -> tuple[MLOperand | None, ...]:
    return normalise_last(b, input, len(normalized_shape), weight, bias, eps), None, None


@converts("aten._fused_rms_norm.default")
def _(
    b: MLGraphBuilder, input: MLOperand, normalized_shape: Sequence[Any], weight: MLOperand | None, eps: float | None
) -> tuple[MLOperand | None, ...]:
    return normalise_rms(b, input, normalized_shape, weight, eps), None


@converts("aten.rms_norm.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    normalized_shape: Sequence[Any],
    weight: MLOperand | None = None,
    eps: float | None = None,
) -> MLOperand:
    return normalise_rms(b, input, normalized_shape, weight, eps)


def normalise_rms(
    b: MLGraphBuilder,
    input: MLOperand,
    normalized_shape: Sequence[Any],
    weight: MLOperand | None,
    eps: float | None,
) -> MLOperand:
    """Divide by the root mean square over the last axes; the default of `eps` is that of the data type."""
    types = {"float16": 0.0009765625, "bfloat16": 0.0078125, "float64": float(np.finfo(np.float64).eps)}
    epsilon = types.get(input.data_type, float(np.finfo(np.float32).eps)) if eps is None else eps
    count = len(normalized_shape)
    if weight is None:
        weight = b.constant(np.ones(tuple(input.shape[input.rank - count :]), input.data_type))
    return composites.rms_normalization(b, input, weight, axis=input.rank - count, epsilon=epsilon)
