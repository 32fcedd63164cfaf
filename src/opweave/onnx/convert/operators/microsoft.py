"""ONNX Runtime's operators (com.microsoft) that its optimisers and exporters write: normalisations, activations, layouts.

`experts` has mixtures of experts, `packed` the operators of attention, and `quantized` those of quantised tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, prod

import numpy as np

from ....composites import (
    causal_conv_with_state,
    fast_gelu,
    group_normalization,
    quick_gelu,
    rms_normalization,
    swiglu,
)
from ....context.builder import MLGraphBuilder
from ....core.dtypes import DataType
from ....core.graph import MLOperand
from ...model.registry import (
    MICROSOFT,
    Tensor,
    Unsupported,
    as_type,
    check_count,
    constant_of,
    converts,
    integers,
    normalize_axis,
    operand,
    shape_of,
    unsupported_if,
)
from .activation import activate
from .convolution import convolution, transposed_convolution
from .matrix import fused_product
from .pooling import max_pool
from .windows import PLAIN, WindowAttributes, reshape


def channels_first(b: MLGraphBuilder, x: Tensor, channels_last: int = 1) -> MLOperand:
    """An image with the channels after the batches."""
    image = operand(b, x)
    if not channels_last:
        return image
    return b.transpose(image, permutation=[0, image.rank - 1, *range(1, image.rank - 1)])


def channels_as_before(b: MLGraphBuilder, y: MLOperand, channels_last: int = 1) -> MLOperand:
    """The inverse of `channels_first`."""
    return b.transpose(y, permutation=[0, *range(2, y.rank), 1]) if channels_last else y


def silu(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    y: MLOperand = quick_gelu(b, x, alpha=1.0)
    return y


def float_type(x: MLOperand) -> DataType:
    return "float16" if x.data_type == "float16" else "float32"


# Normalisations ------------------------------------------------------------------------------------------------------


def _normalise_groups(
    b: MLGraphBuilder,
    x: MLOperand,
    gamma: Tensor,
    beta: Tensor,
    *,
    activation: int,
    channels_last: int,
    epsilon: float,
    groups: int,
) -> MLOperand:
    """Group normalisation with float32 statistics, and an activation."""
    unsupported_if(activation not in (0, 1), f"its activation is {activation}")
    own = float_type(x)
    image = channels_first(b, b.cast(x, "float32"), channels_last)
    scale, bias = (operand(b, as_type(b, part, "float32")) for part in (gamma, beta))
    y: MLOperand = group_normalization(b, image, scale, bias, groups=groups, epsilon=epsilon)
    y = silu(b, y) if activation else y
    return b.cast(channels_as_before(b, y, channels_last), own)


@converts("GroupNorm", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    gamma: Tensor,
    beta: Tensor,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> MLOperand:
    options = {"activation": activation, "channels_last": channels_last, "groups": groups}
    return _normalise_groups(b, X, gamma, beta, epsilon=epsilon, **options)


@converts("SkipGroupNorm", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    gamma: Tensor,
    beta: Tensor,
    skip: Tensor,
    bias: Tensor | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> tuple[MLOperand, MLOperand]:
    batches, channels = X.shape[0], X.shape[-1 if channels_last else 1]
    per_channel = [1, 1, 1, channels] if channels_last else [1, channels, 1, 1]
    if len(shape_of(skip)) == 2:
        skip = reshape(b, skip, [batches, *per_channel[1:]])
    total = b.add(X, skip)
    if bias is not None:
        total = b.add(total, reshape(b, bias, per_channel))
    options = {"activation": activation, "channels_last": channels_last, "groups": groups}
    return _normalise_groups(b, total, gamma, beta, epsilon=epsilon, **options), total


@converts("GatedRMSNorm", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    scale: Tensor,
    gate: MLOperand,
    *,
    activation: str = "silu",
    epsilon: float = 1e-5,
) -> MLOperand:
    unsupported_if(activation not in ("silu", "swish", "sigmoid"), f"its activation is {activation!r}")
    size = shape_of(scale)[0]
    unsupported_if(X.shape[-1] % size, f"its scale of {size} elements does not divide an axis of {X.shape[-1]}")
    rows = b.reshape(b.cast(X, "float32"), [*X.shape[:-1], X.shape[-1] // size, size])
    y = rms_normalization(b, rows, operand(b, as_type(b, scale, "float32")), rows.rank - 1, epsilon=epsilon)
    wide = b.cast(gate, "float32")
    factor = b.sigmoid(wide) if activation == "sigmoid" else silu(b, wide)
    return b.cast(b.mul(b.reshape(y, X.shape), factor), float_type(X))


@converts("BranchwiseRMSNorm", domain=MICROSOFT)
def _(
    b: MLGraphBuilder, X: MLOperand, scale: Tensor | None = None, *, epsilon: float = 1e-5, num_branches: int = 0
) -> MLOperand:
    size = X.shape[-1]
    unsupported_if(num_branches and size % num_branches, f"{num_branches} branches do not divide an axis of {size}")
    shape = [*X.shape[:-1], num_branches, size // num_branches] if num_branches else list(X.shape)
    rows = b.reshape(b.cast(X, "float32"), shape)
    ones = b.constant(np.ones(shape[-1], np.float32))
    y: MLOperand = rms_normalization(b, rows, ones, rows.rank - 1, epsilon=epsilon)
    if scale is not None:
        factor = as_type(b, scale, "float32")
        if len(shape_of(factor)) == 1 and shape_of(factor)[0] != shape[-1]:
            factor = reshape(b, factor, shape[-2:])
        y = b.mul(y, factor)
    return b.cast(b.reshape(y, X.shape), float_type(X))


# Activations, biases and gates ---------------------------------------------------------------------------------------


@converts("BiasAdd", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: Tensor, bias: Tensor, skip: Tensor) -> MLOperand:
    return b.add(b.add(X, bias), skip)


@converts("BiasSplitGelu", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: MLOperand, bias: Tensor) -> MLOperand:
    total = b.add(X, bias)
    unsupported_if(total.shape[-1] % 2, f"it splits an axis of {total.shape[-1]} elements")
    left, right = b.split(total, 2, axis=total.rank - 1)
    return b.mul(left, b.gelu(right))


@converts("BiasSoftmax", domain=MICROSOFT)
def _(b: MLGraphBuilder, data: MLOperand, bias: MLOperand, *, axis: int = 1, is_inner_broadcast: int) -> MLOperand:
    first = normalize_axis(axis, data.rank)
    if is_inner_broadcast and bias.shape != data.shape:
        # The bias has the axes before some axis, then ones: [outer..., 1..., softmaxed...].
        own = [size for size in bias.shape if size != 1] or [1]
        unsupported_if(
            bias.rank != data.rank, f"its bias has the shape {list(bias.shape)}, and {own} do not say which axes"
        )
    total = b.add(data, bias)
    rows = b.reshape(total, [prod(data.shape[:first]), prod(data.shape[first:])])
    return b.reshape(b.softmax(rows, axis=1), data.shape)


@converts("BiasDropout", "BitmaskBiasDropout", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    data: MLOperand,
    bias: Tensor,
    residual: Tensor | None = None,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    outputs: int,
    seed: int = 0,  # for training
) -> MLOperand:
    training = training_mode is not None and constant_of(training_mode, "training_mode").any()
    unsupported_if(training or outputs > 1, "it is in training mode, or outputs its mask")
    total = b.add(data, bias)
    return total if residual is None else b.add(total, residual)


@converts("BitmaskDropout", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    data: MLOperand,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    outputs: int,
    seed: int = 0,  # for training
) -> MLOperand:
    training = training_mode is not None and constant_of(training_mode, "training_mode").any()
    unsupported_if(training or outputs > 1, "it is in training mode, or outputs its mask")
    return b.identity(data)


@converts("ScaledSiLU", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: MLOperand, scale: Tensor | None = None, *, alpha: float = 1.0) -> MLOperand:
    own = float_type(X)
    factor = np.float32(alpha) if scale is None else as_type(b, scale, "float32")
    scaled = b.cast(b.mul(b.cast(X, "float32"), factor), own)
    wide = b.cast(scaled, "float32")
    gate = b.cast(b.cast(b.sigmoid(wide), own), "float32")
    return b.cast(b.mul(wide, gate), own)


@converts("SwiGLU", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    gate: MLOperand,
    up: MLOperand | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    limit: float = 0.0,
    round_activation: int = 0,
) -> MLOperand:
    own = float_type(gate)
    if up is None:
        unsupported_if(gate.shape[-1] % 2, f"it splits an axis of {gate.shape[-1]} elements")
        gate, up = b.split(gate, 2, axis=gate.rank - 1)
    wide, linear = b.cast(gate, "float32"), b.cast(up, "float32")
    bound = limit if limit > 0 else inf
    y = apply_gate(b, wide, linear, activation_alpha, activation_beta, bound, own if round_activation else "float32")
    return b.cast(y, own)


def apply_gate(
    b: MLGraphBuilder,
    gate: MLOperand,
    linear: MLOperand,
    alpha: float,
    beta: float,
    limit: float,
    rounded: DataType = "float32",
) -> MLOperand:
    """`G * sigmoid(alpha * G) * (L + beta)` with both clamped to `limit`."""
    if limit < inf:
        gate, linear = b.clamp(gate, max_value=limit), b.clamp(linear, min_value=-limit, max_value=limit)
    if not beta and rounded == gate.data_type:
        y: MLOperand = swiglu(b, gate, linear, alpha=alpha)
        return y
    activated = quick_gelu(b, gate, alpha=alpha)
    activated = b.cast(b.cast(activated, rounded), gate.data_type)
    return b.mul(activated, b.add(linear, beta) if beta else linear)


@converts("GatedAdd", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: MLOperand, Y: Tensor, gate: Tensor, gate_weight: Tensor | None = None) -> MLOperand:
    unsupported_if(gate_weight is not None, "it projects its gate, in bfloat16")
    return b.add(X, b.mul(Y, gate))


@converts("LinearAttentionGate", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    a: MLOperand,
    dt_bias: Tensor,
    decay_scale: Tensor,
    update: MLOperand | None = None,
    *,
    outputs: int,
) -> tuple[MLOperand, ...]:
    own = float_type(a)
    decay = b.cast(b.mul(b.softplus(b.add(b.cast(a, "float32"), dt_bias)), decay_scale), own)
    if outputs < 2:
        return (decay,)
    if update is None:
        raise Unsupported("it outputs beta, and has no input b")
    return decay, b.cast(b.sigmoid(b.cast(update, "float32")), own)


# Products ------------------------------------------------------------------------------------------------------------


@converts("TransposeMatMul", domain=MICROSOFT)
def _(
    b: MLGraphBuilder, left: MLOperand, right: MLOperand, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> MLOperand:
    y: MLOperand = fused_product(b, left, right, alpha=alpha, transA=transA, transB=transB)
    return y


@converts("FusedMatMulActivation", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    left: MLOperand,
    right: MLOperand,
    *,
    activation: str,
    activation_alpha: float = 0.0,
    activation_axis: int = -1,
    activation_beta: float = 0.0,
    activation_gamma: float = 0.0,  # for Selu alone, which `activate` does not support
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> MLOperand:
    flags = {"transA": transA, "transB": transB, "transBatchA": transBatchA, "transBatchB": transBatchB}
    y: MLOperand = fused_product(b, left, right, alpha=alpha, **flags)
    if activation == "Softmax":
        return b.softmax(y, axis=normalize_axis(activation_axis, y.rank))
    return activate(b, y, activation, (activation_alpha, activation_beta))


@converts("GemmFastGelu", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: MLOperand, W: MLOperand, bias: Tensor | None = None) -> MLOperand:
    y: MLOperand = fast_gelu(b, b.matmul(X, W), None if bias is None else operand(b, bias))
    return y


def _complex_product(is_conjugated: bool) -> None:
    def convert(b: MLGraphBuilder, A: MLOperand, B: MLOperand) -> MLOperand:
        """Multiply complex numbers, whose real and imaginary parts are along the last axis."""
        unsupported_if(A.shape[-1] != 2 or B.shape[-1] != 2, "its last axis is not the two parts of complex numbers")
        (x, y), (u, v) = (b.split(side, 2, axis=side.rank - 1) for side in (A, B))
        v = b.neg(v) if is_conjugated else v
        real, imaginary = b.sub(b.mul(x, u), b.mul(y, v)), b.add(b.mul(x, v), b.mul(y, u))
        return b.concat([real, imaginary], real.rank - 1)

    converts("ComplexMulConj" if is_conjugated else "ComplexMul", domain=MICROSOFT)(convert)


for _flag in (False, True):
    _complex_product(_flag)


@converts("CDist", domain=MICROSOFT)
def _(b: MLGraphBuilder, A: MLOperand, B: MLOperand, *, metric: str = "sqeuclidean") -> MLOperand:
    unsupported_if(metric not in ("euclidean", "sqeuclidean"), f"its metric is {metric!r}")
    (rows, size), (columns, _) = A.shape, B.shape
    differences = b.sub(b.reshape(A, [rows, 1, size]), b.reshape(B, [1, columns, size]))
    squares = b.reduce_sum_square(differences, axes=[2])
    return b.sqrt(squares) if metric == "euclidean" else squares


# Layouts and indices -------------------------------------------------------------------------------------------------


@converts("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    Z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] | None = None,
    group: int = 1,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    y: MLOperand = convolution(b, channels_first(b, X), W, B, group=group, window=window)
    y = channels_as_before(b, y)
    y = y if Z is None else b.add(y, Z)
    parameters = activation_params or ()
    if activation == "Clip" and len(parameters) == 2:
        return b.clamp(y, min_value=float(parameters[0]), max_value=float(parameters[1]))
    return activate(b, y, activation, parameters)


@converts("NhwcMaxPool", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: Tensor, *, ceil_mode: int = 0, window: WindowAttributes = PLAIN) -> MLOperand:
    y: MLOperand = max_pool(b, channels_first(b, X), ceil_mode=ceil_mode, window=window, outputs=1)
    return channels_as_before(b, y)


@converts("ConvTransposeWithDynamicPads", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: Tensor,
    W: Tensor,
    Pads: Tensor | None = None,
    B: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> MLOperand:
    pads = None if Pads is None else integers(Pads, "the padding")
    window = WindowAttributes(auto_pad, dilations, kernel_shape, pads, strides)
    y: MLOperand = transposed_convolution(b, X, W, B, group=group, output_padding=output_padding, window=window)
    return y


@converts("ExpandDims", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: Tensor, axis: Tensor) -> Tensor:
    place = int(constant_of(axis, "its axis").reshape(-1)[0])
    shape = list(shape_of(X))
    shape.insert(normalize_axis(place, len(shape) + 1), 1)
    return reshape(b, X, shape)


@converts("Range", domain=MICROSOFT)
def _(b: MLGraphBuilder, start: Tensor, limit: Tensor, delta: Tensor | None = None) -> Tensor:
    first, end = (constant_of(value, "the range").reshape(()) for value in (start, limit))
    step = np.ones((), first.dtype) if delta is None else constant_of(delta, "the range").reshape(())
    unsupported_if(not step, "its step is 0")
    count = check_count(max(ceil((end.item() - first.item()) / step.item()), 0))
    # The engine adds step by step, and rounds each time.
    return np.cumsum(np.concatenate([first[None], np.repeat(step, count)])[:count], dtype=first.dtype)


@converts("TorchEmbedding", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    weight: MLOperand,
    indices: Tensor,
    padding_idx: Tensor | None = None,  # both for gradients
    scale_grad_by_freq: Tensor | None = None,
) -> MLOperand:
    return b.gather(weight, operand(b, indices), axis=0)


@converts("UnfoldTensor", domain=MICROSOFT)
def _(b: MLGraphBuilder, input: MLOperand, *, dim: int = -1, size: int, step: int = 1) -> MLOperand:
    axis = normalize_axis(dim, input.rank)
    unsupported_if(not 0 < size <= input.shape[axis] or step < 1, f"its size is {size}, and its step {step}")
    starts = np.arange((int(input.shape[axis]) - size) // step + 1) * step
    slices = b.gather(input, b.constant((starts[:, None] + np.arange(size)).astype(np.int64)), axis=axis)
    return b.transpose(slices, permutation=[a for a in range(slices.rank) if a != axis + 1] + [axis + 1])


@converts("CausalConvWithState")
@converts("CausalConvWithState", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    input_channel_offset: int = 0,
    input_channels: int = 0,
    ndim: int = 1,
    state_channels_last: int = -1,
    state_length: int = 0,
    state_update_capacity: int = 0,
    state_window: int = 0,
) -> tuple[MLOperand, MLOperand]:
    extended = input_channel_offset or input_channels or state_length or state_update_capacity or state_window
    unsupported_if(ndim != 1, f"it has {ndim} spatial axes")
    unsupported_if(
        extended or state_channels_last >= 0, "it has attributes for windows of states, or slices of channels"
    )
    unsupported_if(activation not in ("none", "silu", "swish"), f"its activation is {activation!r}")
    unsupported_if(dilation < 1, f"its dilation is {dilation}")
    shape = input.shape

    def to_rows(x: MLOperand) -> MLOperand:
        """[batches, channels, length]."""
        if not channels_last:
            return x
        return b.transpose(b.reshape(x, [*x.shape[:2], prod(x.shape[2:])]), permutation=[0, 2, 1])

    def back(x: MLOperand) -> MLOperand:
        if not channels_last:
            return x
        return b.reshape(b.transpose(x, permutation=[0, 2, 1]), [x.shape[0], x.shape[2], *shape[2:]])

    unsupported_if(weight.shape[-1] < 2, "its state is empty")
    past = None if past_state is None else to_rows(operand(b, past_state))
    kind = "none" if activation == "none" else "silu"
    options = {"activation": kind, "dilation": dilation}
    y, state = causal_conv_with_state(b, to_rows(input), weight, bias, past, **options)
    return back(y), back(state)
