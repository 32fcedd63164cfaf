"""Normalisations by the statistics of batches, channels and groups."""

from __future__ import annotations

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ..registry import BFLOAT16, as_type, converts, refuse_if


def _normalise(
    b: MLGraphBuilder,
    x: MLOperand,
    weight: MLOperand | None,
    bias: MLOperand | None,
    mean: MLOperand,
    variance: MLOperand,
    epsilon: float,
) -> MLOperand:
    """Normalise channels by statistics of the caller, which PyTorch keeps in float32 for images of half precision, too."""
    mean, variance = as_type(b, mean, x.data_type), as_type(b, variance, x.data_type)
    weight = None if weight is None else as_type(b, weight, x.data_type)
    bias = None if bias is None else as_type(b, bias, x.data_type)
    return b.batch_normalization(x, mean, variance, scale=weight, bias=bias, axis=1, epsilon=epsilon)


def _by_statistics(
    b: MLGraphBuilder,
    x: MLOperand,
    weight: MLOperand | None,
    bias: MLOperand | None,
    axes: list[int],
    epsilon: float,
) -> MLOperand:
    """Normalise by the mean and variance of the input along axes; weight and bias belong to the channels."""
    if x.data_type == BFLOAT16:
        # PyTorch computes the statistics and the result in float32, too.
        wide = [None if value is None else as_type(b, value, "float32") for value in (x, weight, bias)]
        assert wide[0] is not None
        return as_type(b, _by_statistics(b, wide[0], wide[1], wide[2], axes, epsilon), BFLOAT16)
    refuse_if(x.data_type not in ("float32", "float16"), f"its input is {x.data_type}")
    if x.rank == 4 and axes == [2, 3]:
        return b.instance_normalization(x, scale=weight, bias=bias, epsilon=epsilon)
    y = b.layer_normalization(x, axes=axes, epsilon=epsilon)
    shape = [1, x.shape[1], *[1] * (x.rank - 2)]
    y = y if weight is None else b.mul(y, b.reshape(weight, shape))
    return y if bias is None else b.add(y, b.reshape(bias, shape))


@converts("aten.batch_norm.default", "aten.cudnn_batch_norm.default", "aten.miopen_batch_norm.default")
def batch_norm(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand | None,
    bias: MLOperand | None,
    running_mean: MLOperand | None,
    running_var: MLOperand | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> MLOperand:
    """Normalise channels by running statistics, or without them by those of the batch."""
    if not training and running_mean is not None and running_var is not None:
        return _normalise(b, input, weight, bias, running_mean, running_var, eps)
    return _by_statistics(b, input, weight, bias, [0, *range(2, input.rank)], eps)


@converts("aten._native_batch_norm_legit_no_training.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand | None,
    bias: MLOperand | None,
    running_mean: MLOperand,
    running_var: MLOperand,
    momentum: float,
    eps: float,
) -> tuple[MLOperand | None, ...]:
    return _normalise(b, input, weight, bias, running_mean, running_var, eps), None, None


@converts("aten._native_batch_norm_legit.no_stats")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand | None,
    bias: MLOperand | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[MLOperand | None, ...]:
    return _by_statistics(b, input, weight, bias, [0, *range(2, input.rank)], eps), None, None


@converts("aten.native_batch_norm.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand | None,
    bias: MLOperand | None,
    running_mean: MLOperand | None,
    running_var: MLOperand | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[MLOperand | None, ...]:
    return batch_norm(b, input, weight, bias, running_mean, running_var, training, momentum, eps), None, None


@converts("aten.instance_norm.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand | None,
    bias: MLOperand | None,
    running_mean: MLOperand | None,
    running_var: MLOperand | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> MLOperand:
    if not use_input_stats:
        assert running_mean is not None
        assert running_var is not None
        return _normalise(b, input, weight, bias, running_mean, running_var, eps)
    return _by_statistics(b, input, weight, bias, list(range(2, input.rank)), eps)


@converts("aten.group_norm.default")
def group_norm(
    b: MLGraphBuilder,
    input: MLOperand,
    num_groups: int,
    weight: MLOperand | None = None,
    bias: MLOperand | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> MLOperand:
    """Normalise groups of channels by their own statistics."""
    result: MLOperand = composites.group_normalization(b, input, weight, bias, groups=num_groups, epsilon=eps)
    return result


@converts("aten.native_group_norm.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand | None,
    bias: MLOperand | None,
    N: int,  # noqa: N803  (the schema's name)
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    eps: float,
) -> tuple[MLOperand | None, ...]:
    return group_norm(b, input, group, weight, bias, eps), None, None


@converts("aten.native_dropout.default")
def _(b: MLGraphBuilder, input: MLOperand, p: float, train: bool | None) -> tuple[MLOperand | None, ...]:
    refuse_if(train is not False and p > 0, "it is in training mode; call eval() before")
    return input, None
