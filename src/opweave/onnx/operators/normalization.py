"""ONNX normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...builder import MLGraphBuilder
from ...composites import local_response_normalization, rms_normalization
from ...graph import MLOperand
from ...shapes import broadcasts_to
from ..messages import TensorProto
from ..registry import MICROSOFT, Tensor, Unsupported, as_type, converts, normalized, operand, shape_of
from .windows import reshaped


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
    if training_mode or outputs > 1:
        raise Unsupported("it is in training mode")
    if not spatial:
        raise Unsupported("it does not share statistics between positions (spatial=0)")
    parts = [as_type(b, value, x.data_type) for value in (input_mean, input_var, scale, B)]
    return b.batch_normalization(x, parts[0], parts[1], scale=parts[2], bias=parts[3], axis=1, epsilon=epsilon)


@converts("InstanceNormalization")
def _(b: MLGraphBuilder, input: Tensor, scale: Tensor, B: Tensor, *, epsilon: float = 1e-5) -> MLOperand:
    x = operand(b, input)
    y = b.instance_normalization(_with_two_axes(b, x), scale=scale, bias=B, epsilon=epsilon)
    return operand(b, reshaped(b, y, x.shape))


def _with_two_axes(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """An image of any rank with its spatial axes joined into the first of two; one of rank 4 as it is."""
    if x.rank < 3:
        raise Unsupported(f"it has no spatial axes, for its input has rank {x.rank}")
    return x if x.rank == 4 else b.reshape(x, [*x.shape[:2], prod(x.shape[2:]), 1])


@converts("GroupNormalization")
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    scale: Tensor,
    bias: Tensor,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = TensorProto.FLOAT,
    opset: int,
) -> MLOperand:
    _check_stash(stash_type)
    batches, channels = x.shape[:2]
    if num_groups < 1 or channels % num_groups:
        raise Unsupported(f"{num_groups} groups do not divide {channels} channels")
    grouped = b.reshape(x, [batches, num_groups, prod(x.shape) // batches // num_groups, 1])
    if opset < 21:  # one scale and bias for each group
        return b.reshape(b.instance_normalization(grouped, scale=scale, bias=bias, epsilon=epsilon), x.shape)
    y = b.reshape(b.instance_normalization(grouped, epsilon=epsilon), x.shape)
    column = (channels, *[1] * (x.rank - 2))
    k, c = (reshaped(b, value, column) for value in (scale, bias))
    return b.add(b.mul(y, k), c)


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
) -> MLOperand | tuple[MLOperand, ...]:
    _check_stash(stash_type)
    return _layer_normalization(b, X, Scale, B, axis, epsilon, statistics=outputs > 1)


def _check_stash(stash_type: int) -> None:
    if stash_type != TensorProto.FLOAT:
        raise Unsupported("its statistics are not float32")


def _layer_normalization(
    b: MLGraphBuilder,
    x: MLOperand,
    scale: Tensor,
    bias: Tensor | None,
    axis: int,
    epsilon: float,
    *,
    statistics: bool,
) -> MLOperand | tuple[MLOperand, ...]:
    """The normalised input; with `statistics` also the mean and the inverse standard deviation, both float32."""
    axes = list(range(normalized(axis, x.rank), x.rank))
    k = _stretched(b, scale, [x.shape[a] for a in axes])
    c = None if bias is None else _stretched(b, bias, [x.shape[a] for a in axes])
    y = b.layer_normalization(x, scale=k, bias=c, axes=axes, epsilon=epsilon)
    if not statistics:
        return y
    wide = x if x.data_type == "float32" else b.cast(x, "float32")
    mean = b.reduce_mean(wide, axes=axes, keep_dimensions=True)
    centred = b.sub(wide, mean)
    return y, mean, _inverse_root(b, centred, axes, epsilon)


def _inverse_root(b: MLGraphBuilder, x: MLOperand, axes: list[int], epsilon: float) -> MLOperand:
    """The inverse of the root mean square."""
    mean = b.reduce_mean(b.mul(x, x), axes=axes, keep_dimensions=True)
    return b.reciprocal(b.sqrt(b.add(mean, epsilon)))


def _stretched(b: MLGraphBuilder, value: Tensor, shape: Sequence[int]) -> Tensor:
    """A scale or bias, which may be broadcast, in its full shape."""
    given = shape_of(value)
    if given == tuple(shape):
        return value
    short = given[len(given) - len(shape) :] if prod(given[: max(len(given) - len(shape), 0)]) == 1 else given
    if not broadcasts_to(short, shape):
        raise Unsupported(f"its scale or bias has the shape {list(given)}, which varies beyond the normalised axes")
    value = reshaped(b, value, short)
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(np.broadcast_to(value, shape))
    return value if value.shape == tuple(shape) else b.expand(value, shape)


@converts("RMSNormalization")
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = TensorProto.FLOAT,
) -> MLOperand:
    _check_stash(stash_type)
    return _rms_normalization(b, X, scale, axis, epsilon)


@converts("SimplifiedLayerNormalization")
@converts("SimplifiedLayerNormalization", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = TensorProto.FLOAT,
    outputs: int,
) -> MLOperand | tuple[MLOperand, MLOperand]:
    _check_stash(stash_type)
    y = _rms_normalization(b, x, scale, axis, epsilon)
    return y if outputs == 1 else (y, _inverse_rms(b, x, axis, epsilon))


def _rms_normalization(b: MLGraphBuilder, x: MLOperand, scale: Tensor, axis: int, epsilon: float) -> MLOperand:
    first = normalized(axis, x.rank)
    k = _stretched(b, scale, x.shape[first:])
    return rms_normalization(b, x, operand(b, k), first, epsilon=epsilon)


def _inverse_rms(b: MLGraphBuilder, x: MLOperand, axis: int, epsilon: float) -> MLOperand:
    axes = list(range(normalized(axis, x.rank), x.rank))
    wide = x if x.data_type == "float32" else b.cast(x, "float32")
    return _inverse_root(b, wide, axes, epsilon)


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
) -> MLOperand | tuple[MLOperand, ...]:
    total = _sum(b, input, skip, bias)
    made = _layer_normalization(b, total, gamma, beta, -1, epsilon, statistics=outputs > 1)
    return (*made, total) if isinstance(made, tuple) else made


@converts("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input: Tensor,
    skip: Tensor,
    gamma: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    outputs: int,
) -> MLOperand | tuple[MLOperand | None, ...]:
    total = _sum(b, input, skip, bias)
    y = _rms_normalization(b, total, gamma, -1, epsilon)
    # The second output, the mean, is never used.
    return y if outputs == 1 else (y, None, _inverse_rms(b, total, -1, epsilon), total)


def _sum(b: MLGraphBuilder, input: Tensor, skip: Tensor, bias: Tensor | None) -> MLOperand:
    total = b.add(input, skip)
    return total if bias is None else b.add(total, bias)


@converts("LRN")
def _(
    b: MLGraphBuilder, x: MLOperand, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int
) -> MLOperand:
    y = local_response_normalization(b, _with_two_axes(b, x), size, alpha=alpha, beta=beta, bias=bias)
    return operand(b, reshaped(b, y, x.shape))


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
    mask_index_type: int = 1,
) -> tuple[Tensor, ...]:
    if mask is not None and mask_index_type:
        raise Unsupported("the number of words that a mask leaves")
    total = b.gather(word_embedding, ids, axis=0)
    if position_ids is None:
        positions = b.slice(table, [0, 0], [ids.shape[1], table.shape[1]])
    else:
        positions = b.gather(table, operand(b, position_ids), axis=0)
    total = b.add(total, positions)
    if segment_ids is not None and segment_embedding is not None:
        total = b.add(total, b.gather(operand(b, segment_embedding), operand(b, segment_ids), axis=0))
    y = b.layer_normalization(total, scale=gamma, bias=beta, axes=[2], epsilon=epsilon)
    # Without a mask the engine's second output is zeros: no word ends early.
    return y, np.zeros(ids.shape[0], np.int32), total
