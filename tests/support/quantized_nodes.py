"""Random nodes of quantised operators, with odd sizes, and how closely results must agree with ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import opweave as ow
from opweave.onnx.session.session import InferenceSession
from support.onnx import run_again
from support.onnx_nodes import MICROSOFT, node_model, run_engine


@dataclass
class Case:
    """A node.

    Attributes:
        inputs: arrays by position, None for an absent one.
        domain: the operator's.
        steps: by how much integers may differ, where a quotient is close to a tie.
        rtol: by how much floats may differ, relative to the largest, which counts as at least `least`.
        dynamic: positions of inputs that are fed; the others are constants.
        wanted: the results, where ONNX Runtime's CPU has no kernel.
    """

    op_type: str
    inputs: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = MICROSOFT
    outputs: int = 1
    steps: int = 0
    rtol: float = 1e-5
    least: float = 1e-6
    dynamic: tuple[int, ...] = (0,)
    wanted: list[Any] | None = None


def check(case: Case, context: ow.MLContext, message: str) -> None:
    """Require that WebNN computes the node on a device, and agrees with its witness."""
    model, feed = node_model(
        case.op_type,
        case.inputs,
        case.attributes,
        outputs=case.outputs,
        dynamic=case.dynamic,
        domain=case.domain,
    )
    session = InferenceSession(model, context, fallback="error", specialise="always")
    results, expected = run_again(session, feed), case.wanted or run_engine(model, feed)
    for ours, theirs in zip(results, expected, strict=True):
        assert case.wanted or ours.dtype == theirs.dtype, message
        assert ours.shape == theirs.shape, message
        if theirs.dtype.kind == "f":
            largest = float(np.abs(theirs).max(initial=case.least))
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=case.rtol * largest, err_msg=message)
            continue
        apart = np.abs(ours.astype(np.int64) - theirs)
        assert apart.max(initial=0) <= case.steps, message
        # Only quotients close to a tie may differ.
        assert (apart > 0).sum() <= max(1, apart.size // 50), message


Maker = Callable[[np.random.Generator], Case]
MAKERS: dict[str, Maker] = {}


def maker(function: Maker) -> Maker:
    MAKERS[function.__name__] = function
    return function


class Draw:
    """Parts of nodes, drawn from a generator."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random

    def integer(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def flag(self) -> int:
        return self.integer(0, 1)

    def pick(self, *options: Any) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def size(self) -> int:
        return int(self.pick(1, 2, 3, 5, 7, 9, 13, 17))

    def bytes(self, data_type: str, *shape: int) -> np.ndarray:
        info = np.iinfo(data_type)
        return self.random.integers(info.min, info.max + 1, shape).astype(data_type)

    def scale(self, *shape: int) -> np.ndarray:
        return np.asarray(self.random.uniform(0.005, 0.05, shape), np.float32)

    def zero(self, data_type: str, *shape: int) -> np.ndarray:
        """A zero point: often 0, or one in the middle of the range."""
        if self.flag():
            return np.zeros(shape, data_type)
        return np.asarray(self.bytes(data_type, *shape), data_type)

    def pair(self) -> tuple[str, str]:
        """Data types of a product: ONNX Runtime has no kernels of int8 by uint8 for quantised results."""
        return self.pick(("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8"))  # type: ignore[no-any-return]

    def fed(self, *positions: int) -> tuple[int, ...]:
        """The first position, and some of the others."""
        return (positions[0], *(place for place in positions[1:] if self.flag()))


def _weights(draw: Draw, data_type: str, *shape: int) -> np.ndarray:
    """Weights that do not make ONNX Runtime's sums of 16 bits saturate where a processor has no instructions for bytes."""
    low, high = (-64, 64) if data_type == "int8" else (0, 128)
    return draw.random.integers(low, high, shape).astype(data_type)


@maker
def MatMulInteger(random: np.random.Generator) -> Case:
    draw = Draw(random)
    left, right = draw.pair()
    rows, inner, columns = draw.size(), draw.pick(1, 3, 5, 31, 64, 129, 300, 515), draw.size()
    stack = draw.pick((), (), (2,), (1, 3))
    a = draw.bytes(left, *stack, rows, inner)
    b = _weights(draw, right, *draw.pick((), stack), inner, columns)
    # ONNX Runtime takes a zero point for each column of a single matrix only.
    zeros = draw.zero(left), draw.zero(right, *draw.pick((), (1,), (columns,) if b.ndim == 2 else ()))
    return Case("MatMulInteger", [a, b, *zeros], domain="", dynamic=draw.fed(0, 1, 2))


@maker
def QLinearMatMul(random: np.random.Generator) -> Case:
    draw = Draw(random)
    left, right = draw.pair()
    rows, inner, columns = draw.size(), draw.pick(1, 3, 5, 31, 64, 129, 300, 515), draw.size()
    stack = draw.pick((), (), (2,))
    a = draw.bytes(left, *stack, rows, inner)
    many = draw.pick((), () if stack else (columns,))
    b = _weights(draw, right, inner, columns)
    result = draw.scale() * np.float32(np.sqrt(inner) * 60)
    inputs = [a, draw.scale(), draw.zero(left), b, draw.scale(*many), np.zeros(many, right), result, draw.zero(left)]
    return Case("QLinearMatMul", inputs, domain="", steps=1, dynamic=draw.fed(0, 1))


def _window(draw: Draw, taps: tuple[int, int]) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "strides": [draw.integer(1, 3), draw.integer(1, 3)],
        "dilations": [draw.integer(1, 2), draw.integer(1, 2)],
    }
    if draw.flag():
        attributes["pads"] = [draw.integer(0, size) for size in (*taps, *taps)]
    elif draw.flag():
        attributes |= {"auto_pad": draw.pick("SAME_UPPER", "SAME_LOWER", "VALID"), "dilations": [1, 1]}
    return attributes


def _convolution(draw: Draw, left: str, right: str) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    groups = draw.pick(1, 1, 2, 3)
    channels, outputs = draw.pick(1, 2, 3, 5, 34), draw.pick(1, 2, 3, 5)
    taps = draw.integer(1, 4), draw.integer(1, 4)
    sizes = draw.integer(7, 13), draw.integer(7, 13)
    x = draw.bytes(left, draw.integer(1, 2), channels * groups, *sizes)
    w = _weights(draw, right, outputs * groups, channels, *taps)
    return x, w, {"group": groups, **_window(draw, taps)}


@maker
def ConvInteger(random: np.random.Generator) -> Case:
    draw = Draw(random)
    left, right = draw.pair()
    x, w, attributes = _convolution(draw, left, right)
    return Case(
        "ConvInteger", [x, w, draw.zero(left), draw.zero(right)], attributes, domain="", dynamic=draw.fed(0, 1, 2)
    )


@maker
def QLinearConv(random: np.random.Generator) -> Case:
    draw = Draw(random)
    left, right = draw.pair()
    x, w, attributes = _convolution(draw, left, right)
    many = draw.pick((), (w.shape[0],))
    scales = draw.scale(), draw.scale(*many), draw.scale() * np.float32(np.sqrt(w[0].size) * 60)
    zero = np.full(many, draw.zero(right), right)
    inputs = [x, scales[0], draw.zero(left), w, scales[1], zero, scales[2], draw.zero(left)]
    if draw.flag():
        inputs.append(random.integers(-(2**14), 2**14, w.shape[:1]).astype(np.int32))
    domain = draw.pick("", MICROSOFT)
    return Case("QLinearConv", inputs, attributes, domain=domain, steps=1, dynamic=draw.fed(0, 3))


@maker
def QGemm(random: np.random.Generator) -> Case:
    draw = Draw(random)
    left, right = draw.pair()
    rows, inner, columns = draw.size(), draw.pick(1, 3, 5, 31, 64, 129, 300), draw.size()
    attributes = {"transA": draw.flag(), "transB": draw.flag(), "alpha": draw.pick(1.0, 0.5, 1.7)}
    a, b = draw.bytes(left, rows, inner), _weights(draw, right, inner, columns)
    a = np.ascontiguousarray(a.T) if attributes["transA"] else a
    b = np.ascontiguousarray(b.T) if attributes["transB"] else b
    many = draw.pick((), (columns,))
    inputs: list[Any] = [a, draw.scale(), draw.zero(left), b, draw.scale(*many), draw.zero(right, *many)]
    bias = random.integers(-1000, 1000, draw.pick((columns,), (rows, columns), (1, columns))).astype(np.int32)
    inputs.append(draw.pick(None, bias))
    if draw.flag():
        inputs += [draw.scale() * np.float32(np.sqrt(inner) * 60), draw.zero(left)]
    return Case("QGemm", inputs, attributes, steps=1)


@maker
def DynamicQuantizeLinear(random: np.random.Generator) -> Case:
    draw = Draw(random)
    shape = [draw.size() for _ in range(draw.integer(0, 3))]
    x = np.asarray(random.standard_normal(shape) * draw.pick(0.0, 1.0, 1000.0) + draw.pick(0, 3, -3), np.float32)
    return Case("DynamicQuantizeLinear", [x], domain="", outputs=3, steps=1)


@maker
def DynamicQuantizeMatMul(random: np.random.Generator) -> Case:
    draw = Draw(random)
    rows, inner, columns = draw.size(), draw.pick(1, 3, 31, 64, 129, 300), draw.size()
    right, many = draw.pick("int8", "uint8"), draw.pick((), (columns,))
    a = random.standard_normal((*draw.pick((), (2,)), rows, inner)).astype(np.float32)
    inputs: list[Any] = [a, _weights(draw, right, inner, columns), draw.scale(*many), draw.zero(right, *many)]
    if draw.flag():
        inputs.append(random.standard_normal(columns).astype(np.float32))
    return Case("DynamicQuantizeMatMul", inputs, rtol=2e-5)


@maker
def MatMulIntegerToFloat(random: np.random.Generator) -> Case:
    draw = Draw(random)
    left, right = draw.pair()
    rows, inner, columns = draw.size(), draw.pick(1, 3, 31, 64, 129, 300), draw.size()
    many = draw.pick((), (columns,))
    a, b = draw.bytes(left, *draw.pick((), (2,)), rows, inner), _weights(draw, right, inner, columns)
    inputs: list[Any] = [a, b, draw.scale(), draw.scale(*many), draw.zero(left), draw.zero(right, *many)]
    if draw.flag():
        inputs.append(random.standard_normal(columns).astype(np.float32))
    return Case("MatMulIntegerToFloat", inputs)


def _two(op_type: str, random: np.random.Generator) -> Case:
    draw = Draw(random)
    data_type = draw.pick("int8", "uint8")
    shape = [draw.size() for _ in range(draw.integer(1, 4))]
    other = [draw.pick(size, size, 1) for size in shape[draw.integer(0, len(shape) - 1) :]]
    sides = [(draw.bytes(data_type, *part), draw.scale(), draw.zero(data_type)) for part in (shape, other)]
    if draw.flag():
        sides.reverse()
    scale = draw.scale() * np.float32(4 if op_type == "QLinearMul" else 2)
    inputs = [*sides[0], *sides[1], scale, draw.zero(data_type)]
    return Case(op_type, inputs, steps=1, dynamic=draw.fed(0, 3))


@maker
def QLinearAdd(random: np.random.Generator) -> Case:
    return _two("QLinearAdd", random)


@maker
def QLinearMul(random: np.random.Generator) -> Case:
    return _two("QLinearMul", random)


def _one(draw: Draw, *shape: int, data_type: str | None = None) -> list[Any]:
    data_type = data_type or draw.pick("int8", "uint8")
    return [draw.bytes(data_type, *shape), draw.scale(), draw.zero(data_type), draw.scale(), draw.zero(data_type)]


@maker
def QLinearSigmoid(random: np.random.Generator) -> Case:
    draw = Draw(random)
    return Case("QLinearSigmoid", _one(draw, *[draw.size() for _ in range(draw.integer(1, 4))]), steps=1)


@maker
def QLinearLeakyRelu(random: np.random.Generator) -> Case:
    draw = Draw(random)
    inputs = _one(draw, *[draw.size() for _ in range(draw.integer(1, 4))])
    return Case("QLinearLeakyRelu", inputs, {"alpha": draw.pick(0.01, 0.2, 1.5, -0.5)}, steps=1)


@maker
def QLinearSoftmax(random: np.random.Generator) -> Case:
    draw = Draw(random)
    rank = draw.integer(1, 4)
    x, scale, zero, _, other = _one(draw, *[draw.size() for _ in range(rank)])
    result = np.float32(draw.pick(1 / 256, 1 / 128))
    attributes = {"axis": draw.pick(-1, rank - 1, 0), "opset": draw.pick(11, 12, 13)}
    return Case("QLinearSoftmax", [x, scale, zero, result, other], attributes, steps=1)


@maker
def QLinearWhere(random: np.random.Generator) -> Case:
    draw = Draw(random)
    data_type = draw.pick("int8", "uint8")
    shape = [draw.size() for _ in range(draw.integer(1, 3))]
    sides = [(draw.bytes(data_type, *shape), draw.scale(), draw.zero(data_type)) for _ in range(2)]
    inputs = [random.random(shape) < 0.5, *sides[0], *sides[1], draw.scale(), draw.zero(data_type)]
    return Case("QLinearWhere", inputs, steps=1, dynamic=(0, 1, 4))


@maker
def QLinearConcat(random: np.random.Generator) -> Case:
    draw = Draw(random)
    data_type = draw.pick("int8", "uint8")
    shape = [draw.size() for _ in range(draw.integer(1, 4))]
    axis = draw.integer(0, len(shape) - 1)
    result = [draw.scale(), draw.zero(data_type)]
    inputs, fed = list[Any](result), []
    for _ in range(draw.integer(1, 4)):
        fed.append(len(inputs))
        part = [draw.size() if k == axis else size for k, size in enumerate(shape)]
        quantised = draw.pick(result, [draw.scale(), draw.zero(data_type)])
        inputs += [draw.bytes(data_type, *part), *quantised]
    return Case("QLinearConcat", inputs, {"axis": axis}, steps=1, dynamic=tuple(fed))


@maker
def QLinearAveragePool(random: np.random.Generator) -> Case:
    draw = Draw(random)
    taps = draw.integer(1, 4), draw.integer(1, 4)
    last = draw.flag()
    sizes, channels = (draw.integer(7, 13), draw.integer(7, 13)), draw.size()
    shape = (*sizes, channels) if last else (channels, *sizes)
    attributes = {
        "kernel_shape": list(taps),
        "strides": [draw.integer(1, 3), draw.integer(1, 3)],
        "count_include_pad": draw.flag(),
        "channels_last": last,
    }
    if draw.flag():
        attributes["pads"] = [draw.integer(0, size - 1) for size in (*taps, *taps)]
    return Case("QLinearAveragePool", _one(draw, draw.integer(1, 2), *shape), attributes, steps=1)


@maker
def QLinearGlobalAveragePool(random: np.random.Generator) -> Case:
    draw = Draw(random)
    inputs = _one(draw, *(draw.size() for _ in range(4)))
    return Case("QLinearGlobalAveragePool", inputs, {"channels_last": draw.flag()}, steps=1)


@maker
def DynamicQuantizeLSTM(random: np.random.Generator) -> Case:
    draw = Draw(random)
    steps, batches, size, hidden = draw.integer(1, 5), draw.integer(1, 3), draw.integer(1, 9), draw.integer(1, 7)
    direction = draw.pick("forward", "reverse", "bidirectional")
    count = 2 if direction == "bidirectional" else 1
    right = draw.pick("int8", "uint8")
    x = random.uniform(-1, 1, (steps, batches, size)).astype(np.float32)
    w, r = (_weights(draw, right, count, rows, 4 * hidden) for rows in (size, hidden))
    middle = np.full(count, 0 if right == "int8" else 64, right)
    many = draw.pick((count,), (count, 4 * hidden))
    zero = np.broadcast_to(middle.reshape([count, *[1] * (len(many) - 1)]), many).copy()
    bias = draw.pick(None, random.uniform(-0.5, 0.5, (count, 8 * hidden)).astype(np.float32))
    scales = [np.asarray(random.uniform(0.002, 0.006, many), np.float32) for _ in range(2)]
    inputs = [x, w, r, bias, None, None, None, None, scales[0], zero, scales[1], zero]
    attributes = {"direction": direction, "hidden_size": hidden}
    return Case("DynamicQuantizeLSTM", inputs, attributes, outputs=3, rtol=1e-2, least=0.5)


@maker
def QEmbedLayerNormalization(random: np.random.Generator) -> Case:
    draw = Draw(random)
    batches, length, hidden = draw.integer(1, 3), draw.integer(1, 9), draw.pick(2, 5, 8, 13)
    data_type = draw.pick("int8", "uint8")
    ids, segments = (random.integers(0, most, (batches, length)).astype(np.int32) for most in (11, 2))
    tables = [draw.bytes(data_type, rows, hidden) for rows in (11, length + 2, 2)]
    vectors = [draw.bytes(data_type, hidden) for _ in range(2)]
    has_segments = draw.flag()
    scales, zeros = ([part() for _ in range(5)] for part in (draw.scale, lambda: draw.zero(data_type)))
    inputs: list[Any] = [ids, segments, *tables, *vectors, None, *scales, *zeros]
    if draw.flag():
        inputs[7] = (np.arange(length) < draw.integer(1, length)).astype(np.int32)[None].repeat(batches, 0)
    if not has_segments:
        inputs[1] = inputs[4] = inputs[10] = inputs[15] = None
    return Case("QEmbedLayerNormalization", inputs, outputs=2, rtol=2e-5)
