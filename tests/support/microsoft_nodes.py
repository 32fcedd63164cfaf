"""Random nodes of ONNX Runtime's operators, with odd sizes, and what they give where ONNX Runtime's CPU has no kernel.

The formulas are those of ONNX Runtime's documentation (docs/ContribOperators.md), in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from support import witness
from support.onnx_nodes import node_model, run_engine
from support.quantized_nodes import Case, Draw, Maker

MAKERS: dict[str, Maker] = {}


def maker(function: Maker) -> Maker:
    MAKERS[function.__name__] = function
    return function


class Floats(Draw):
    """Arrays of floats."""

    def floats(self, *shape: int) -> np.ndarray:
        return self.random.uniform(-1, 1, shape).astype(np.float32)

    def shape(self, low: int, high: int) -> list[int]:
        return [self.size() for _ in range(self.integer(low, high))]

    def maybe(self, *shape: int) -> np.ndarray | None:
        return self.floats(*shape) if self.flag() else None


def reference(op_type: str, *inputs: Any, **attributes: Any) -> list[np.ndarray]:
    """What ONNX's own operator gives in ONNX Runtime."""
    model, feed = node_model(op_type, inputs, attributes)
    return run_engine(model, feed)


# Normalisations ------------------------------------------------------------------------------------------------------


def _groups(draw: Floats, with_skip: bool) -> Case:
    groups, last = draw.integer(1, 4), draw.flag()
    batches, channels = draw.integer(1, 3), groups * draw.integer(1, 4)
    sizes = draw.size(), draw.size()
    shape = (batches, *sizes, channels) if last else (batches, channels, *sizes)
    x, gamma, beta = draw.floats(*shape), draw.floats(channels), draw.floats(channels)
    attributes = {"activation": draw.flag(), "groups": groups, "channels_last": last, "epsilon": draw.pick(1e-5, 0.1)}
    inputs: list[Any] = [x, gamma, beta]
    total = x.astype(float)
    if with_skip:
        single = (batches, 1, 1, channels) if last else (batches, channels, 1, 1)
        skip = draw.floats(*draw.pick(shape, single, (batches, channels)))
        bias = draw.maybe(channels)
        inputs += [skip, bias]
        total = total + (skip.reshape(single) if skip.ndim == 2 else skip)
        if bias is not None:
            total = total + bias.reshape((1, *single[1:]))
    first = np.moveaxis(total, -1, 1) if last else total
    y = witness.layer_norm(first.reshape(batches, groups, -1), None, None, attributes["epsilon"]).reshape(first.shape)
    y = y * gamma.reshape(-1, 1, 1) + beta.reshape(-1, 1, 1)
    y = np.moveaxis(y, 1, -1) if last else y
    y = witness.silu(y) if attributes["activation"] else y
    name = "SkipGroupNorm" if with_skip else "GroupNorm"
    return Case(name, inputs, attributes, outputs=1 + with_skip, wanted=[y, total][: 1 + with_skip], rtol=3e-5)


@maker
def GroupNorm(random: np.random.Generator) -> Case:
    return _groups(Floats(random), False)


@maker
def SkipGroupNorm(random: np.random.Generator) -> Case:
    return _groups(Floats(random), True)


@maker
def GatedRMSNorm(random: np.random.Generator) -> Case:
    draw = Floats(random)
    size, times = draw.size(), draw.integer(1, 3)
    shape = [*draw.shape(1, 2), size * times]
    attributes = {"activation": draw.pick("silu", "swish", "sigmoid")}
    return Case("GatedRMSNorm", [draw.floats(*shape), draw.floats(size), draw.floats(*shape)], attributes, rtol=3e-5)


@maker
def BranchwiseRMSNorm(random: np.random.Generator) -> Case:
    draw = Floats(random)
    branches, size = draw.integer(1, 4), draw.size()
    flat = draw.flag()
    shape = [*draw.shape(1, 2), *((branches * size,) if flat else (branches, size))]
    scale = draw.pick(None, draw.floats(branches * size), draw.floats(branches, size), draw.floats(size))
    attributes = {"num_branches": branches} if flat else {}
    return Case("BranchwiseRMSNorm", [draw.floats(*shape), scale], attributes, rtol=3e-5)


# Activations, biases and gates ---------------------------------------------------------------------------------------


@maker
def BiasAdd(random: np.random.Generator) -> Case:
    draw = Floats(random)
    shape = [draw.size() for _ in range(3)]
    x, bias, skip = draw.floats(*shape), draw.floats(shape[2]), draw.floats(*shape)
    return Case("BiasAdd", [x, bias, skip], wanted=[x.astype(float) + bias + skip])


@maker
def BiasSplitGelu(random: np.random.Generator) -> Case:
    draw = Floats(random)
    shape = [draw.size(), draw.size(), 2 * draw.size()]
    x, bias = draw.floats(*shape), draw.floats(shape[2])
    left, right = np.split(x.astype(float) + bias, 2, axis=2)
    return Case("BiasSplitGelu", [x, bias], wanted=[left * witness.gelu(right)])


@maker
def BiasSoftmax(random: np.random.Generator) -> Case:
    draw = Floats(random)
    shape = [draw.size() for _ in range(draw.integer(2, 4))]
    axis = draw.integer(1, len(shape) - 1)
    inner = draw.flag()
    part = [*shape[:1], *[1] * (axis - 1), *shape[axis:]] if inner else [*[1] * axis, *shape[axis:]]
    x, bias = draw.floats(*shape), draw.floats(*part)
    total = x.astype(float) + bias
    y = witness.softmax(total.reshape(int(np.prod(shape[:axis])), -1)).reshape(shape)
    return Case("BiasSoftmax", [x, bias], {"axis": axis, "is_inner_broadcast": inner}, wanted=[y])


@maker
def BiasDropout(random: np.random.Generator) -> Case:
    draw = Floats(random)
    shape = draw.shape(1, 3)
    x, bias, residual = draw.floats(*shape), draw.floats(shape[-1]), draw.maybe(*shape)
    total = x.astype(float) + bias + (0 if residual is None else residual)
    return Case("BiasDropout", [x, bias, residual, draw.pick(None, np.float32(0.5))], wanted=[total])


@maker
def ScaledSiLU(random: np.random.Generator) -> Case:
    draw = Floats(random)
    inputs = [draw.floats(*draw.shape(1, 3)), draw.pick(None, np.float32(1.7))]
    return Case("ScaledSiLU", inputs, {"alpha": draw.pick(1.0, 0.5, -2.0)})


@maker
def SwiGLU(random: np.random.Generator) -> Case:
    draw = Floats(random)
    shape = [*draw.shape(1, 2), draw.size()]
    gate, up = draw.floats(*shape) * 4, draw.floats(*shape) * 4
    alpha, beta, limit = draw.pick(1.0, 1.702), draw.pick(0.0, 1.0), draw.pick(0.0, 2.0)
    joined = draw.flag()
    inputs = [np.concatenate([gate, up], -1)] if joined else [gate, up]
    g, x = gate.astype(float), up.astype(float)
    if limit:
        g, x = np.minimum(g, limit), np.clip(x, -limit, limit)
    attributes = {"activation_alpha": alpha, "activation_beta": beta, "limit": limit}
    return Case("SwiGLU", inputs, attributes, wanted=[g * witness.sigmoid(alpha * g) * (x + beta)])


@maker
def GatedAdd(random: np.random.Generator) -> Case:
    draw = Floats(random)
    shape = draw.shape(1, 3)
    return Case("GatedAdd", [draw.floats(*shape), draw.floats(*shape), draw.floats(*shape[:-1], 1)])


@maker
def LinearAttentionGate(random: np.random.Generator) -> Case:
    draw = Floats(random)
    shape = [draw.size() for _ in range(3)]
    vectors = [draw.floats(shape[2]) for _ in range(2)]
    return Case("LinearAttentionGate", [draw.floats(*shape), *vectors, draw.floats(*shape)], outputs=2)


# Products ------------------------------------------------------------------------------------------------------------


@maker
def TransposeMatMul(random: np.random.Generator) -> Case:
    draw = Floats(random)
    rows, inner, columns, stack = draw.size(), draw.size(), draw.size(), draw.pick((), (2,), (2, 3))
    flags = {"transA": draw.flag(), "transB": draw.flag(), "alpha": draw.pick(1.0, 0.3)}
    a = draw.floats(*stack, *((inner, rows) if flags["transA"] else (rows, inner)))
    b = draw.floats(*stack, *((columns, inner) if flags["transB"] else (inner, columns)))
    return Case("TransposeMatMul", [a, b], flags)


@maker
def FusedMatMulActivation(random: np.random.Generator) -> Case:
    case = TransposeMatMul(random)
    draw = Floats(random)
    a, b = (array.astype(float) for array in case.inputs)
    y = (a.swapaxes(-1, -2) if case.attributes["transA"] else a) @ (
        b.swapaxes(-1, -2) if case.attributes["transB"] else b
    )
    y = y * case.attributes["alpha"]
    activation = draw.pick("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Softmax")
    functions: dict[str, Callable[..., Any]] = {
        "Relu": lambda x: np.maximum(x, 0),
        "Tanh": np.tanh,
        "Sigmoid": witness.sigmoid,
        "LeakyRelu": lambda x: np.where(x < 0, 0.2 * x, x),
        "Softmax": witness.softmax,
    }
    attributes = {**case.attributes, "activation": activation}
    if activation == "LeakyRelu":
        attributes["activation_alpha"] = 0.2
    return Case("FusedMatMulActivation", case.inputs, attributes, wanted=[functions[activation](y)])


@maker
def GemmFastGelu(random: np.random.Generator) -> Case:
    draw = Floats(random)
    rows, inner, columns = draw.size(), draw.size(), draw.size()
    x, w, bias = draw.floats(*draw.pick((), (2,)), rows, inner), draw.floats(inner, columns), draw.maybe(columns)
    total = x.astype(float) @ w + (0 if bias is None else bias)
    return Case("GemmFastGelu", [x, w, bias], wanted=[witness.gelu(total, approximate="tanh")], rtol=2e-5)


def _complex(name: str, random: np.random.Generator) -> Case:
    draw = Floats(random)
    shape = [*draw.shape(0, 2), draw.size(), 2]
    a, b = draw.floats(*shape), draw.floats(*draw.pick(shape, [1, 2]))
    x, y = (side.astype(float)[..., 0] + 1j * side[..., 1] for side in (a, b))
    product = x * (y.conj() if name == "ComplexMulConj" else y)
    return Case(name, [a, b], wanted=[np.stack([product.real, product.imag], -1)])


@maker
def ComplexMul(random: np.random.Generator) -> Case:
    return _complex("ComplexMul", random)


@maker
def ComplexMulConj(random: np.random.Generator) -> Case:
    return _complex("ComplexMulConj", random)


@maker
def CDist(random: np.random.Generator) -> Case:
    draw = Floats(random)
    inner = draw.size()
    inputs = [draw.floats(draw.size(), inner), draw.floats(draw.size(), inner)]
    return Case("CDist", inputs, {"metric": draw.pick("euclidean", "sqeuclidean")}, rtol=2e-5)


# Layouts and indices -------------------------------------------------------------------------------------------------


def _last(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


@maker
def NhwcConv(random: np.random.Generator) -> Case:
    draw = Floats(random)
    groups = draw.pick(1, 1, 2, 3)
    x = draw.floats(draw.integer(1, 2), groups * draw.integer(1, 3), draw.integer(5, 9), draw.integer(5, 9))
    taps = draw.integer(1, 3), draw.integer(1, 3)
    w = draw.floats(groups * draw.integer(1, 3), x.shape[1] // groups, *taps)
    bias = draw.maybe(w.shape[0])
    attributes = {"group": groups, "strides": [draw.integer(1, 2)] * 2, "pads": [draw.integer(0, 2) for _ in range(4)]}
    (y,) = reference("Conv", x, w, bias, **attributes)
    return Case("NhwcConv", [_last(x), w, bias], attributes, wanted=[_last(y)], rtol=2e-5)


@maker
def NhwcFusedConv(random: np.random.Generator) -> Case:
    case = NhwcConv(random)
    draw = Floats(random)
    assert case.wanted is not None
    y = case.wanted[0]
    z = draw.maybe(*y.shape)
    y = y if z is None else y + z
    y = np.maximum(y, 0) if draw.flag() else y
    attributes = {**case.attributes, "activation": "Relu"}
    return Case("NhwcFusedConv", [*case.inputs, z], attributes, wanted=[np.maximum(y, 0)], rtol=2e-5)


@maker
def NhwcMaxPool(random: np.random.Generator) -> Case:
    draw = Floats(random)
    taps = draw.integer(1, 3), draw.integer(1, 3)
    x = draw.bytes(draw.pick("int8", "uint8"), draw.integer(1, 2), draw.integer(5, 9), draw.integer(5, 9), draw.size())
    attributes = {
        "kernel_shape": list(taps),
        "strides": [draw.integer(1, 3), draw.integer(1, 3)],
        "pads": [draw.integer(0, size - 1) for size in (*taps, *taps)],
    }
    return Case("NhwcMaxPool", [x], attributes)


@maker
def Trilu(random: np.random.Generator) -> Case:
    draw = Floats(random)
    k = draw.pick(None, np.int64(draw.integer(-3, 3)))
    return Case("Trilu", [draw.floats(*draw.shape(2, 3)), k], {"upper": draw.flag()})


@maker
def ExpandDims(random: np.random.Generator) -> Case:
    draw = Floats(random)
    shape = draw.shape(1, 3)
    return Case("ExpandDims", [draw.floats(*shape), np.int32(draw.integer(-len(shape), len(shape)))])


@maker
def UnfoldTensor(random: np.random.Generator) -> Case:
    draw = Floats(random)
    shape = draw.shape(1, 3)
    dim = draw.integer(-len(shape), len(shape) - 1)
    attributes = {"dim": dim, "size": draw.integer(1, shape[dim]), "step": draw.integer(1, 3)}
    return Case("UnfoldTensor", [draw.floats(*shape)], attributes)


@maker
def TorchEmbedding(random: np.random.Generator) -> Case:
    draw = Floats(random)
    weight = draw.floats(draw.size(), draw.size())
    indices = random.integers(0, weight.shape[0], draw.shape(1, 2))
    return Case("TorchEmbedding", [weight, indices], wanted=[weight[indices]], dynamic=(1,))


@maker
def CausalConvWithState(random: np.random.Generator) -> Case:
    draw = Floats(random)
    batches, channels, length, taps = draw.integer(1, 3), draw.size(), draw.size(), draw.integer(2, 4)
    dilation, last = draw.integer(1, 3), draw.flag()
    before = (taps - 1) * dilation
    x, past = draw.floats(batches, channels, length), draw.maybe(batches, channels, before)
    if last:
        x, past = _last(x), None if past is None else _last(past)
    inputs = [x, draw.floats(channels, 1, taps), draw.maybe(channels), past]
    attributes = {"activation": draw.pick("none", "silu", "swish"), "dilation": dilation, "channels_last": last}
    return Case("CausalConvWithState", inputs, attributes, outputs=2)


@maker
def Range(random: np.random.Generator) -> Case:
    draw = Floats(random)
    data_type = draw.pick("float32", "float64", "int16", "int32", "int64")
    numbers = [draw.integer(-9, 9), draw.integer(-9, 9), draw.pick(-3, -1, 1, 2)]
    start, limit, delta = (
        np.array(number * (0.75 if data_type.startswith("f") else 1), data_type) for number in numbers
    )
    if (limit - start) * delta <= 0:
        limit = np.array(start + 4 * delta, data_type)
    return Case("Range", [start, limit, delta])


@maker
def CropAndResize(random: np.random.Generator) -> Case:
    draw = Floats(random)
    batches, channels, boxes = draw.integer(1, 3), draw.integer(1, 4), draw.integer(1, 6)
    x = draw.floats(batches, channels, draw.integer(1, 9), draw.integer(1, 9))
    corners = random.uniform(*draw.pick((0, 1), (-0.3, 1.3)), (boxes, 4)).astype(np.float32)
    if draw.flag():  # on elements, or in the middle between two of them
        corners = np.round(corners * 4) / np.float32(4)
    images, size = (
        random.integers(0, batches, boxes).astype(np.int32),
        np.int32([draw.integer(1, 7), draw.integer(1, 7)]),
    )
    attributes = {"mode": draw.pick("bilinear", "nearest"), "extrapolation_value": draw.pick(0.0, -3.5)}
    if attributes["mode"] == "nearest" and _is_near_tie(corners, x.shape[2:], size):
        return CropAndResize(random)
    return Case("CropAndResize", [x, corners, images, size], attributes, dynamic=(0, 1, 2))


def _is_near_tie(corners: np.ndarray, sizes: Sequence[int], counts: np.ndarray) -> bool:
    """Whether rounding decides about the nearest element, or whether a position is outside of the image."""
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        first, last = (corners[:, k].astype(float)[:, None] * (size - 1) for k in (axis, axis + 2))
        steps = np.arange(count) / (count - 1) if count > 1 else np.array([0.5])
        places = 2 * (first + (last - first) * steps)
        if (np.abs(places - np.round(places)) < 1e-4).any():
            return True
    return False


def _spectrum(random: np.random.Generator, is_inverse: bool) -> Case:
    draw = Floats(random)
    count = draw.integer(1, 3)
    shape = [*draw.shape(0, 2), *(draw.integer(2, 9) for _ in range(count))]
    axes = tuple(range(-count, 0))
    attributes = {"signal_ndim": count, "onesided": 1, "normalized": 0}
    if not is_inverse:
        x = draw.floats(*shape)
        y = np.fft.rfftn(x.astype(float), axes=axes)
        return Case("Rfft", [x], attributes, wanted=[np.stack([y.real, y.imag], -1)])
    x = draw.floats(*shape, 2)
    sizes = [*shape[len(shape) - count : -1], 2 * (shape[-1] - 1)]
    signal = np.fft.irfftn(x[..., 0].astype(float) + 1j * x[..., 1], s=sizes, axes=axes)
    return Case("Irfft", [x], attributes, wanted=[signal])


@maker
def Rfft(random: np.random.Generator) -> Case:
    return _spectrum(random, False)


@maker
def Irfft(random: np.random.Generator) -> Case:
    return _spectrum(random, True)


# Attention -----------------------------------------------------------------------------------------------------------


def _mask(draw: Floats, batches: int, queries: int, keys: int) -> np.ndarray | None:
    lengths = draw.random.integers(1, keys + 1, batches).astype(np.int32)
    starts = np.minimum(draw.random.integers(0, keys, batches), lengths - 1).astype(np.int32)
    return draw.pick(  # type: ignore[no-any-return]
        None,
        lengths,
        np.concatenate([lengths, starts]),
        (draw.random.random((batches, keys)) < 0.7).astype(np.int32),
        (draw.random.random((batches, queries, keys)) < 0.7).astype(np.int32),
    )


@maker
def Attention(random: np.random.Generator) -> Case:
    draw = Floats(random)
    batches, length, hidden, heads = draw.integer(1, 3), draw.size(), draw.size(), draw.integer(1, 3)
    size = draw.pick(1, 3, 4, 8)
    widths = [heads * size, heads * size, heads * draw.pick(size, 5)]
    past_length = draw.pick(0, 0, 3) if widths[0] == widths[2] else 0
    past = draw.floats(2, batches, heads, past_length, size) if past_length else None
    mask = _mask(draw, batches, length, length + past_length)
    # ONNX Runtime's kernel takes one of both.
    bias = None if past_length else draw.maybe(draw.pick(1, batches), draw.pick(1, heads), length, length)
    inputs = [
        draw.floats(batches, length, hidden),
        draw.floats(hidden, sum(widths)),
        draw.floats(sum(widths)),
        mask,
        past,
    ]
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": draw.flag(), "qkv_hidden_sizes": widths}
    if draw.flag():
        attributes["scale"] = 0.3
    outputs = 1 + int(widths[0] == widths[2])
    # Where all keys of a query are masked, scores of about -10000 have few digits.
    rtol = 3e-5 if mask is None else 5e-3
    return Case("Attention", [*inputs, bias], attributes, outputs=outputs, rtol=rtol)


@maker
def QAttention(random: np.random.Generator) -> Case:
    draw = Floats(random)
    batches, length, inner, heads = draw.integer(1, 3), draw.size(), draw.size(), draw.integer(1, 3)
    width = heads * draw.pick(1, 3, 4, 8)
    x = draw.bytes("uint8", batches, length, inner)
    right = draw.pick("int8", "uint8")
    w = random.integers(*((-64, 64) if right == "int8" else (0, 128)), (inner, 3 * width)).astype(right)
    inputs = [x, w, draw.floats(3 * width), draw.scale(), draw.scale() / 4]
    mask = draw.pick(None, random.integers(1, length + 1, batches).astype(np.int32))
    inputs += [mask, draw.zero("uint8"), np.zeros((), right)]
    return Case("QAttention", inputs, {"num_heads": heads, "unidirectional": draw.flag()}, rtol=1e-4)


@maker
def MultiHeadAttention(random: np.random.Generator) -> Case:
    draw = Floats(random)
    batches, length, heads, size = draw.integer(1, 3), draw.size(), draw.integer(1, 3), draw.pick(1, 3, 8)
    mask = draw.pick(None, random.integers(1, length + 1, batches).astype(np.int32))
    # ONNX Runtime's CPU has no kernel for packed inputs.
    packed, joined = draw.floats(batches, length, heads, 3, size), draw.flag()
    query = packed[:, :, :, 0] if joined else draw.floats(batches, draw.size(), heads, size)
    q, k, v = (part.swapaxes(1, 2) for part in (query, packed[:, :, :, 1], packed[:, :, :, 2]))
    added = None if mask is None else np.where(np.arange(length) < mask[:, None], 0, -1e4)[:, None, None]
    shape = (*query.shape[:2], heads * size)
    y = witness.attention(q, k, v, added).swapaxes(1, 2).reshape(shape)
    inputs: list[Any] = [packed, None, None, None, mask]
    if not joined:
        inputs[:2] = [query.reshape(shape), np.ascontiguousarray(packed[:, :, :, 1:])]
    dynamic = (0,) if joined else (0, 1)
    return Case("MultiHeadAttention", inputs, {"num_heads": heads}, rtol=3e-5, dynamic=dynamic, wanted=[y])


@maker
def DecoderMaskedMultiHeadAttention(random: np.random.Generator) -> Case:
    draw = Floats(random)
    batches, heads, size, past = draw.integer(1, 3), draw.integer(1, 3), draw.pick(1, 3, 8), draw.integer(1, 7)
    q, k, v = (draw.floats(batches, 1, heads * size) for _ in range(3))
    if draw.flag():  # of another sequence
        keys, values = (draw.floats(batches, heads, past, size) for _ in range(2))
        mask = draw.pick(None, (random.random((batches, past)) < 0.7).astype(np.int32))
        return Case("DecoderMaskedMultiHeadAttention", [q, keys, values, mask], {"num_heads": heads}, rtol=3e-5)
    room = past + draw.integer(1, 3)
    pasts = [draw.floats(batches, heads, room, size) for _ in range(2)]
    inputs = [q, k, v, None, None, *pasts, np.int32([past]), np.int32([1]), None, draw.maybe(3 * heads * size)]
    inputs = inputs if inputs[-1] is not None else inputs[:-2]
    attributes = {"num_heads": heads, "past_present_share_buffer": 1}
    a, b, c = (
        (x + (0 if len(inputs) < 11 else inputs[10][k * heads * size : (k + 1) * heads * size]))
        .reshape(batches, 1, heads, size)
        .swapaxes(1, 2)
        for k, x in enumerate((q, k, v))
    )
    memories = [memory.copy() for memory in pasts]
    for memory, new in zip(memories, (b, c), strict=True):
        memory[:, :, past : past + 1] = new
    y = witness.attention(a, *(memory[:, :, : past + 1] for memory in memories))
    joined = y.swapaxes(1, 2).reshape(batches, 1, -1)
    name = "DecoderMaskedMultiHeadAttention"
    return Case(name, inputs, attributes, outputs=3, rtol=3e-5, wanted=[joined, *memories], dynamic=(0, 1, 2, 5, 6, 7))


def _packed(draw: Floats) -> tuple[np.ndarray, np.ndarray, list[slice]]:
    """Offsets of tokens [batch, length], cumulated lengths, and the tokens of each sequence."""
    batches, length = draw.integer(1, 3), draw.size()
    lengths = draw.random.integers(1, length + 1, batches)
    places = np.arange(batches * length).reshape(batches, length)
    real = np.arange(length) < lengths[:, None]
    offsets = np.concatenate([places[real], places[~real]]).reshape(batches, length).astype(np.int32)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return offsets, ends, [slice(*pair) for pair in pairwise(ends)]


def _attend(parts: list[np.ndarray], heads: int, of_sequences: list[slice]) -> np.ndarray:
    results = []
    for tokens in of_sequences:
        q, k, v = (part[tokens].reshape(1, -1, heads, part.shape[1] // heads).swapaxes(1, 2) for part in parts)
        results.append(witness.attention(q, k, v)[0].swapaxes(0, 1).reshape(q.shape[2], -1))
    return np.concatenate(results)


@maker
def PackedAttention(random: np.random.Generator) -> Case:
    draw = Floats(random)
    offsets, ends, of_sequences = _packed(draw)
    heads, inner, size = draw.integer(1, 3), draw.size(), draw.pick(1, 3, 8)
    x, w, bias = draw.floats(ends[-1], inner), draw.floats(inner, 3 * heads * size), draw.floats(3 * heads * size)
    parts = np.split(x.astype(float) @ w + bias, 3, axis=1)
    y = _attend(parts, heads, of_sequences)
    inputs = [x, w, bias, offsets, ends]
    return Case("PackedAttention", inputs, {"num_heads": heads}, wanted=[y], rtol=3e-5, dynamic=draw.fed(0, 3, 4))


@maker
def PackedMultiHeadAttention(random: np.random.Generator) -> Case:
    draw = Floats(random)
    offsets, ends, of_sequences = _packed(draw)
    heads, size = draw.integer(1, 3), draw.pick(1, 3, 8)
    parts = [draw.floats(ends[-1], heads * size) for _ in range(3)]
    bias = draw.maybe(3 * heads * size)
    inputs: list[Any] = [*parts, bias, offsets, ends]
    if draw.flag():
        packed = np.stack([part.reshape(-1, heads, size) for part in parts], axis=2)
        inputs[:3] = [packed, None, None]
    added = [0, 0, 0] if bias is None else np.split(bias.astype(float), 3)
    y = _attend([part + more for part, more in zip(parts, added, strict=True)], heads, of_sequences)
    return Case(
        "PackedMultiHeadAttention", inputs, {"num_heads": heads}, wanted=[y], rtol=3e-5, dynamic=draw.fed(0, 4, 5)
    )


@maker
def RestorePadding(random: np.random.Generator) -> Case:
    draw = Floats(random)
    offsets, ends, _ = _packed(draw)
    x = draw.floats(ends[-1], draw.size())
    y = np.zeros((offsets.size, x.shape[1]), np.float32)
    y[offsets.reshape(-1)[: ends[-1]]] = x
    return Case("RestorePadding", [x, offsets], wanted=[y.reshape(*offsets.shape, -1)], dynamic=draw.fed(0, 1))


@maker
def RelativePositionBias(random: np.random.Generator) -> Case:
    draw = Floats(random)
    count, most, length, both = draw.pick(8, 16, 32), draw.pick(32, 128), draw.size() * 3, draw.flag()
    table = draw.floats(count, draw.size())
    wanted = np.zeros((1, table.shape[1], length, length))
    for query in range(length):
        for key in range(length):
            far, buckets, start = query - key, count, 0
            if both:
                buckets //= 2
                start, far = (buckets if far < 0 else 0), abs(far)
            far = max(far, 0)
            exact = buckets // 2
            bucket = far
            if far >= exact:
                ratio = np.float32(np.log(np.float32(far) / np.float32(exact)) / np.log(np.float32(most / exact)))
                bucket = min(exact + int(ratio * (buckets - exact)), buckets - 1)
            wanted[0, :, query, key] = table[start + bucket]
    lengths = [np.int64([length])] * 2
    attributes = {"max_distance": most, "is_bidirectional": both}
    return Case("RelativePositionBias", [table, *lengths], attributes, wanted=[wanted])


@maker
def GatedRelativePositionBias(random: np.random.Generator) -> Case:
    draw = Floats(random)
    batches, length, heads, size, width = (
        draw.integer(1, 3),
        draw.size(),
        draw.integer(1, 3),
        draw.size(),
        2 * draw.size(),
    )
    query, bias = draw.floats(batches, length, heads * size), draw.floats(heads * size)
    positions, weight = draw.floats(1, heads, length, length), draw.floats(size, width)
    added, eco = draw.floats(width), draw.floats(1, heads, 1, 1)
    q = (query.astype(float) + bias).reshape(batches, length, heads, size).swapaxes(1, 2)
    gates = witness.sigmoid((q @ weight + added).reshape(batches, heads, length, 2, width // 2).sum(-1))
    gate = gates[..., :1] * (gates[..., 1:] * eco - 1) + 2
    inputs = [query, bias, positions, weight, added, eco]
    return Case("GatedRelativePositionBias", inputs, {"num_heads": heads}, wanted=[gate * positions], rtol=2e-5)


@maker
def MRotaryEmbedding(random: np.random.Generator) -> Case:
    draw = Floats(random)
    sections = [draw.integer(1, 3) for _ in range(3)]
    interleaved_sections = draw.flag()
    if interleaved_sections:
        sections = [sections[0]] * 3
    pairs, batches, length, heads = sum(sections), draw.integer(1, 3), draw.size(), draw.integer(1, 3)
    angles = random.random((20, pairs)) * 6
    positions = random.integers(0, 20, (3, batches, length))
    joined = draw.flag()
    x = draw.floats(*((batches, length, heads * 2 * pairs) if joined else (batches, heads, length, 2 * pairs)))
    tables = [function(angles).astype(np.float32) for function in (np.cos, np.sin)]
    attributes = {"mrope_section": sections, "mrope_layout": interleaved_sections, "interleaved": draw.flag()}
    attributes |= {"num_heads": heads} if joined else {}
    return Case("MRotaryEmbedding", [x, positions, *tables], attributes, dynamic=draw.fed(0, 1))


@maker
def MoE(random: np.random.Generator) -> Case:
    draw = Floats(random)
    tokens, hidden, inner, experts = draw.size(), draw.size(), draw.size(), draw.integer(1, 5)
    activation = draw.pick("relu", "gelu", "silu", "identity", "swiglu")
    fused = 2 if activation == "swiglu" else 1
    inputs: list[Any] = [draw.floats(tokens, hidden), draw.floats(tokens, experts) * 3]
    inputs += [draw.floats(experts, fused * inner, hidden), draw.maybe(experts, fused * inner)]
    inputs += [draw.floats(experts, hidden, inner), draw.maybe(experts, hidden)]
    attributes: dict[str, Any] = {
        "activation_type": activation,
        "k": draw.integer(1, experts),
        "normalize_routing_weights": draw.flag(),
    }
    if activation == "swiglu":
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7}
    return Case("MoE", inputs, attributes, rtol=5e-5, dynamic=(0, 1))


@maker
def QMoE(random: np.random.Generator) -> Case:
    draw = Floats(random)
    bits, experts, tokens = draw.pick(2, 4, 8), draw.integer(1, 5), draw.size()
    block = draw.pick(0, 16, 32)
    unit = block or 8
    hidden, inner = unit * draw.integer(1, 3), unit * draw.integer(1, 3)
    activation = draw.pick("relu", "gelu", "silu", "identity", "swiglu")
    fused = 2 if activation == "swiglu" else 1
    has_zeros = draw.flag()  # with those of one layer alone, the engine is wrong: `complete_zero_points`

    def layer(columns: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        blocks = width // block if block else 1
        packed = random.integers(0, 256, (experts, columns, width * bits // 8)).astype(np.uint8)
        scale = random.uniform(0.5, 1, (experts, columns, blocks) if block else (experts, columns)) / 2**bits
        points = (experts, columns, -(-blocks * bits // 8)) if block else (experts, -(-columns * bits // 8))
        zeros = random.integers(0, 256, points).astype(np.uint8) if has_zeros else None
        return packed, scale.astype(np.float32), zeros

    first, last = layer(fused * inner, hidden), layer(hidden, inner)
    inputs: list[Any] = [draw.floats(tokens, hidden), draw.floats(tokens, experts) * 3]
    inputs += [*first[:2], draw.maybe(experts, fused * inner), *last[:2], draw.maybe(experts, hidden)]
    inputs += [None, None, None, first[2], last[2], None]
    inputs += [random.uniform(0.1, 1, (tokens, experts)).astype(np.float32)] if draw.flag() else []
    attributes: dict[str, Any] = {
        "activation_type": activation,
        "expert_weight_bits": bits,
        "k": draw.integer(1, experts),
        "normalize_routing_weights": draw.flag(),
    }
    if block:
        attributes["block_size"] = block
    if activation == "swiglu":
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7}
    # The engine rounds the other operand of blocks of 8 bits to 8 bits; also that of 2 bits, if blocks have at least 32
    # numbers and 128 divides the columns. There, Opweave agrees with NumPy to 1e-6, and the engine is off by 0.5%.
    rounds = block and (bits == 8 or (bits == 2 and block == 32 and 0 in (fused * inner % 128, hidden % 128)))
    return Case("QMoE", inputs, attributes, rtol=3e-2 if rounds else 5e-5, dynamic=(0, 1))


@maker
def MatMulNBits(random: np.random.Generator) -> Case:
    draw = Floats(random)
    bits, block = draw.pick(2, 4, 8), draw.pick(16, 32, 64)
    inner, columns = draw.integer(1, 130), draw.size()
    blocks = -(-inner // block)
    packed = random.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    scale = (random.uniform(0.5, 1, (columns, blocks)) / 2**bits).astype(np.float32)
    points = random.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8)
    floats = random.uniform(0, 2**bits, (columns, blocks)).astype(np.float32)
    zeros = draw.pick(None, points, *([floats] if bits == 4 else []))
    x = draw.floats(*draw.shape(1, 2), inner)
    attributes = {"K": inner, "N": columns, "bits": bits, "block_size": block, "accuracy_level": 1}
    return Case("MatMulNBits", [x, packed, scale, zeros, None, draw.maybe(columns)], attributes)


@maker
def GatherBlockQuantized(random: np.random.Generator) -> Case:
    draw = Floats(random)
    kind, block = draw.pick("uint8", "uint4", "int4", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"), 16
    shape = [draw.size() for _ in range(draw.integer(1, 2))]
    quantised = draw.integer(0, len(shape)) if kind != "uint8" else len(shape)
    shape.insert(quantised, block * draw.integer(1, 3))
    picked = 0 if kind == "uint8" else draw.integer(0, len(shape) - 1)
    part = [size // block if axis == quantised else size for axis, size in enumerate(shape)]
    attributes = {"block_size": block, "gather_axis": picked, "quantize_axis": quantised}
    zeros = None
    if kind == "uint8":
        bits = attributes["bits"] = draw.pick(2, 4, 8)
        data = random.integers(0, 256, (*shape[:-1], shape[-1] * bits // 8)).astype(np.uint8)
        if draw.flag():
            zeros = random.integers(0, 256, (*part[:-1], -(-part[-1] * bits // 8))).astype(np.uint8)
    elif kind.startswith("float"):
        data = random.uniform(-4, 4, shape).astype(getattr(ml_dtypes, kind))
        if draw.flag():
            attributes["block_size"] = 0
            part[quantised] = 1
    else:
        low, dtype = (-8 if kind == "int4" else 0), getattr(ml_dtypes, kind)
        data = random.integers(low, low + 16, shape).astype(dtype)
        zeros = random.integers(low, low + 16, part).astype(dtype) if draw.flag() else None
    scale = random.uniform(0.1, 1, part).astype(np.float32)
    indices = random.integers(-shape[picked], shape[picked], draw.shape(0, 2)).astype(np.int64)
    return Case("GatherBlockQuantized", [data, indices, scale, zeros], attributes, dynamic=(1,))
