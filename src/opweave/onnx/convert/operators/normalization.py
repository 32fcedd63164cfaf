"""ONNX normalisations."""

from __future__ import annotations

from math import prod

import numpy as np

from ....composites import group_normalization, local_response_normalization, rms_normalization
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ...model.protobuf import TensorProto
from ...model.registry import MICROSOFT, Tensor, as_type, converts, normalize_axis, operand, unsupported_if
from .windows import reshape


@converts("BatchNormalization")
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    scale: Tensor,
    B: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,  # for training
    spatial: int = 1,
    training_mode: int = 0,
    outputs: int,
) -> MLOperand:
    unsupported_if(training_mode or outputs > 1, "it is in training mode")
    unsupported_if(not spatial, "it does not share statistics between positions (spatial=0)")
    parts = [as_type(b, value, x.data_type) for value in (input_mean, input_var, scale, B)]
    return b.batch_normalization(x, parts[0], parts[1], scale=parts[2], bias=parts[3], axis=1, epsilon=epsilon)


@converts("InstanceNormalization")
def _(b: MLGraphBuilder, input: Tensor, scale: Tensor, B: Tensor, *, epsilon: float = 1e-5) -> MLOperand:
    x = operand(b, input)
    y = b.instance_normalization(_with_two_axes(b, x), scale=scale, bias=B, epsilon=epsilon)
    return operand(b, reshape(b, y, x.shape))


def _with_two_axes(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Join the spatial axes of an image into the first of two; an image of rank 4 stays as it is."""
    unsupported_if(x.rank < 3, f"it has no spatial axes, for its input has rank {x.rank}")
    return x if x.rank == 4 else b.reshape(x, [*x.shape[:2], prod(x.shape[2:]), 1])


def _check_stash(stash_type: int) -> None:
    unsupported_if(stash_type != TensorProto.FLOAT, "its statistics are not float32")


@converts("GroupNormalization")
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    scale: MLOperand,
    bias: MLOperand,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = TensorProto.FLOAT,
    opset: int,
) -> MLOperand:
    _check_stash(stash_type)
    unsupported_if(opset < 21, "it has one scale and bias for each group")
    return group_normalization(b, x, scale, bias, groups=num_groups, epsilon=epsilon)


@converts("LayerNormalization")
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    Scale: Tensor,
    B: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = TensorProto.FLOAT,
    outputs: int,
) -> MLOperand:
    _check_stash(stash_type)
    unsupported_if(outputs > 1, "it returns the mean, too")
    axes = list(range(normalize_axis(axis, X.rank), X.rank))
    return b.layer_normalization(X, scale=Scale, bias=B, axes=axes, epsilon=epsilon)


@converts("RMSNormalization")
@converts("SimplifiedLayerNormalization")
@converts("SimplifiedLayerNormalization", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    scale: MLOperand,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = TensorProto.FLOAT,
) -> MLOperand:
    _check_stash(stash_type)
    first = normalize_axis(axis, x.rank)
    return rms_normalization(b, x, scale, first, epsilon=epsilon)


@converts("SkipLayerNormalization", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: int,
) -> tuple[MLOperand | None, ...]:
    total = _sum(b, input, skip, bias)
    y = b.layer_normalization(total, scale=gamma, bias=beta, axes=[total.rank - 1], epsilon=epsilon)
    return (y, None, None, total)[:outputs]  # the mean and the deviation are for training


@converts("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input: Tensor,
    skip: Tensor,
    gamma: MLOperand,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: int,
) -> tuple[MLOperand | None, ...]:
    total = _sum(b, input, skip, bias)
    y = rms_normalization(b, total, gamma, epsilon=epsilon)
    return (y, None, None, total)[:outputs]


def _sum(b: MLGraphBuilder, input: Tensor, skip: Tensor, bias: Tensor | None) -> MLOperand:
    total = b.add(input, skip)
    return total if bias is None else b.add(total, bias)


@converts("LRN")
def _(
    b: MLGraphBuilder, x: MLOperand, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int
) -> MLOperand:
    y = local_response_normalization(b, _with_two_axes(b, x), size, alpha=alpha, beta=beta, bias=bias)
    return operand(b, reshape(b, y, x.shape))


@converts("EmbedLayerNormalization", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    ids: MLOperand,
    segment_ids: Tensor | None,
    word_embedding: MLOperand,
    table: MLOperand,
    segment_embedding: Tensor | None,
    gamma: MLOperand,
    beta: MLOperand,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 1,  # for shape inference
) -> tuple[Tensor, ...]:
    total = b.gather(word_embedding, ids, axis=0)
    if position_ids is None:
        positions = b.slice(table, [0, 0], [ids.shape[1], table.shape[1]])
    else:
        positions = b.gather(table, operand(b, position_ids), axis=0)
    total = b.add(total, positions)
    if segment_ids is not None and segment_embedding is not None:
        total = b.add(total, b.gather(operand(b, segment_embedding), operand(b, segment_ids), axis=0))
    y = b.layer_normalization(total, scale=gamma, bias=beta, axes=[2], epsilon=epsilon)
    return y, mask_index(b, mask, ids), total


def mask_index(b: MLGraphBuilder, mask: Tensor | None, ids: MLOperand) -> Tensor:
    """The number of words of each sequence whose mask is 1; without a mask, the engine's output is zeros."""
    if mask is None:
        return np.zeros(ids.shape[0], np.int32)
    return b.reduce_sum(b.cast(b.equal(mask, np.int32(1)), "int32"), axes=[1])
