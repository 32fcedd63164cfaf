"""Quantised ONNX operators and networks on WebNN graphs, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from support.onnx_nodes import (
    CONTEXT,
    MICROSOFT,
    RNG,
    check_agreement,
    integers,
    model_of,
    node_model,
    randn,
    run_engine,
)

import opweave as ow
import opweave.backends.onnxruntime.sessions as sessions
from opweave.backends.onnxruntime.kernels import saturates
from opweave.composites import integer_matmul
from opweave.onnx.session.session import InferenceSession

compares_products = pytest.mark.skipif(
    saturates(), reason="products of uint8 by int8 saturate in ONNX Runtime itself: this processor has no VNNI"
)


def check_quantized(
    op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any] | None = None, **options: Any
) -> None:
    """Require that WebNN computes a node, and finds exactly what the engine finds."""
    model, feed = node_model(op_type, inputs, attributes, **options)
    check_agreement(model, feed)


def _scale(*shape: int) -> np.ndarray:
    scale: np.ndarray = np.abs(randn(*shape)) * np.float32(0.02) + np.float32(0.01)
    return scale


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [((), {}), ((1,), {}), ((6,), {"axis": 1}), ((4,), {"axis": -1}), ((3, 3, 4), {"axis": 1, "block_size": 2})],
)
def test_quantize_and_dequantize(dtype: str, shape: tuple[int, ...], attributes: dict[str, int]) -> None:
    x, scale, low = randn(3, 6, 4), _scale(*shape), 100 if dtype == "uint8" else -20
    zero_point = np.array(integers(low, low + 40, *shape), dtype)
    check_quantized("QuantizeLinear", [x, scale, zero_point], attributes)
    check_quantized("DequantizeLinear", [integers(-128, 127, 3, 6, 4).astype(dtype), scale, zero_point], attributes)


def test_zero_points_left_out() -> None:
    x, scale = randn(3, 6), _scale(6)
    check_quantized("QuantizeLinear", [x, scale])
    check_quantized("QuantizeLinear", [x, scale], {"output_dtype": onnx.TensorProto.INT8})
    check_quantized("DequantizeLinear", [integers(-128, 127, 3, 6, dtype="int8"), scale])
    check_quantized("DequantizeLinear", [integers(-(2**20), 2**20, 3, 6), scale])


def test_type_of_the_result() -> None:
    """The engine wants the type of the scale."""
    x = integers(-128, 127, 3, 6, dtype="int8")
    model, feed = node_model("DequantizeLinear", [x, _scale()], {"output_dtype": onnx.TensorProto.FLOAT16}, opset=23)
    (got,) = InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    (scale,) = (onnx.numpy_helper.to_array(i) for i in model.graph.initializer)
    np.testing.assert_array_equal(got, (x * scale).astype("float16"))


def test_quantize_linear_to_16_bits() -> None:
    x, scale = randn(3, 6), _scale()
    for zero_point in (np.array(3, "int16"), np.array(3, "uint16")):
        check_agreement(*node_model("QuantizeLinear", [x, scale, zero_point]))


@compares_products
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_qlinear_conv(dtype: str, per_channel: bool) -> None:
    shape = (8,) if per_channel else ()
    x = integers(-128, 127, 1, 4, 9, 9).astype(dtype)
    w, b = integers(-127, 128, 8, 4, 3, 3, dtype="int8"), integers(-1000, 1000, 8)
    zero = np.array(0 if dtype == "int8" else 128, dtype)
    scales = np.float32(0.02), _scale(*shape), np.float32(0.3)
    inputs = [x, scales[0], zero, w, scales[1], np.zeros(shape, "int8"), scales[2], zero]
    check_quantized("QLinearConv", [*inputs, b], {"pads": [1] * 4, "strides": [2, 2]})
    check_quantized("QLinearConv", inputs, {"auto_pad": "SAME_UPPER"})


@compares_products
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_qlinear_matmul(dtype: str) -> None:
    a, zero = integers(-128, 127, 2, 5, 300).astype(dtype), np.array(0 if dtype == "int8" else 120, dtype)
    b = integers(-127, 128, 300, 7, dtype="int8")
    check_quantized(
        "QLinearMatMul", [a, np.float32(0.02), zero, b, _scale(7), np.zeros(7, "int8"), np.float32(1.5), zero]
    )


@compares_products
@pytest.mark.parametrize("inner", [7, 1000])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_matmul_integer(dtype: str, inner: int) -> None:
    a, b = integers(-128, 127, 2, 4, inner).astype("uint8"), integers(-128, 127, inner, 5).astype(dtype)
    check_quantized("MatMulInteger", [a, b])
    check_quantized("MatMulInteger", [a, b, np.array(7, "uint8"), np.array(5, dtype)], dynamic=(0, 1))
    check_quantized("MatMulInteger", [a, b, np.array([200], "uint8"), np.arange(5).astype(dtype)])


@pytest.mark.parametrize("inner", [7, 1000])
def test_decomposed_integer_matmul_is_exact(inner: int) -> None:
    """Large sums of extreme products, such as float32 does not hold, on a back end without a kernel for them."""
    context = ow.ml.create_context(device="reference")
    builder = ow.MLGraphBuilder(context)
    a = np.full((3, inner), 255, "uint8")
    a[0] -= np.arange(inner).astype("uint8") % 2
    b = np.full((inner, 2), -128, "int8")
    zeros = builder.constant(np.array([[1], [0], [255]], "uint8")), builder.constant(np.array([127, -3], "int8"))
    product = integer_matmul(builder, builder.input("a", "uint8", a.shape), builder.constant(b), *zeros)
    graph = builder.build({"y": product})
    wanted = (a.astype(int) - zeros[0].value) @ (b.astype(int) - zeros[1].value)
    np.testing.assert_array_equal(context.compute(graph, {"a": a})["y"], wanted)


def test_conv_integer() -> None:
    x, w = integers(0, 256, 1, 3, 7, 7).astype("uint8"), integers(0, 256, 5, 3, 3, 3).astype("uint8")
    check_quantized("ConvInteger", [x, w, np.array(9, "uint8")], {"pads": [1, 1, 1, 1]})
    check_quantized("ConvInteger", [x, w, np.array(9, "uint8"), np.array(11, "uint8")])
    many = integers(0, 256, 1, 40, 7, 7).astype("uint8"), integers(0, 256, 2, 40, 3, 3).astype("uint8")
    check_quantized("ConvInteger", many)


@pytest.mark.parametrize("x", [randn(4, 9) * 3, abs(randn(7)) + 1, -abs(randn(7)) - 1, np.zeros((2, 2), "float32")])
def test_dynamic_quantize(x: np.ndarray) -> None:
    check_quantized("DynamicQuantizeLinear", [x], outputs=3, opset=11)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("inner", [64, 40])
def test_matmul_of_few_bits(bits: int, zero_points: bool, inner: int) -> None:
    columns, block = 6, 16
    blocks = -(-inner // block)
    inputs: list[Any] = [
        randn(2, 3, inner),
        integers(0, 256, columns, blocks, block * bits // 8, dtype="uint8"),
        _scale(columns * blocks),
    ]
    if zero_points:
        inputs.append(integers(0, 256, columns * -(-blocks * bits // 8), dtype="uint8"))
    attributes = {"K": inner, "N": columns, "bits": bits, "block_size": block}
    model, feed = node_model("MatMulNBits", inputs, attributes, domain=MICROSOFT)
    (got,) = InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    (wanted,) = run_engine(model, feed)
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dynamic", [(0,), (0, 2, 3)])
def test_matmul_of_few_bits_with_floats_as_zero_points(dynamic: tuple[int, ...]) -> None:
    """ONNX Runtime takes them with 4 bits."""
    inputs = [randn(2, 3, 40), integers(0, 256, 6, 3, 8, dtype="uint8"), _scale(18), randn(18) + np.float32(7)]
    attributes = {"K": 40, "N": 6, "bits": 4, "block_size": 16}
    model, feed = node_model("MatMulNBits", inputs, attributes, domain=MICROSOFT, dynamic=dynamic)
    (got,) = InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    (wanted,) = run_engine(model, feed)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero_points", [False, True])
def test_matmul_of_few_bits_in_another_order(bits: int, zero_points: bool) -> None:
    """The order of GPTQ's groups."""
    rng = np.random.default_rng(bits)
    inner, columns, block = 40, 6, 16
    groups = rng.permutation(np.arange(inner) // block).astype("int32")
    numbers = rng.integers(0, 2**bits, (columns, 48))
    zeros = rng.integers(0, 2**bits, (columns, 3)) if zero_points else np.full((columns, 3), 2 ** (bits - 1))
    scale, x = _scale(columns * 3).reshape(columns, 3), randn(2, 3, inner)
    real = (numbers[:, :inner] - zeros[:, groups]) * scale[:, groups]
    inputs: list[Any] = [x, packed(numbers, bits).reshape(columns, 3, -1), scale, None, groups]
    if zero_points:
        inputs[3] = packed(zeros, bits)
    attributes = {"K": inner, "N": columns, "bits": bits, "block_size": block}
    model, feed = node_model("MatMulNBits", inputs, attributes, domain=MICROSOFT)
    (got,) = InferenceSession(model, CONTEXT, fallback="error", specialise="always").run(None, feed)
    np.testing.assert_allclose(got, x @ real.T, rtol=1e-4, atol=1e-4)


def packed(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of a few bits along the last axis as bytes, the lowest bits first."""
    digits = (numbers[..., None] >> np.arange(bits) & 1).reshape(*numbers.shape[:-1], -1)
    return np.packbits(digits.astype("uint8"), axis=-1, bitorder="little")


def _network(dtype: str, per_channel: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Three quantised convolutions, global pooling and a product, each between QuantizeLinear and DequantizeLinear."""
    # The same numbers whichever tests came before: of some, all results are 0.
    RNG.bit_generator.state = np.random.default_rng(3).bit_generator.state
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Any] = {"zero": np.array(0 if dtype == "uint8" else -128, dtype)}

    def quantised(x: str, name: str, scale: float) -> str:
        constants[f"{name}_scale"] = np.float32(scale)
        parameters = [f"{name}_scale", "zero"]
        nodes.append(helper.make_node("QuantizeLinear", [x, *parameters], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_x"]))
        return f"{name}_x"

    def weight(name: str, value: np.ndarray, scale: np.ndarray, axis: int) -> str:
        constants.update({name: value, f"{name}_scale": scale, f"{name}_zero": np.zeros(scale.shape, value.dtype)})
        operands = [name, f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("DequantizeLinear", operands, [f"{name}_x"], axis=axis))
        return f"{name}_x"

    scale, channels, x = 0.02, 3, quantised("x", "x", 0.02)
    for k, (filters, stride) in enumerate([(16, 2), (16, 1), (32, 2)]):
        scales = _scale(filters) / 4 if per_channel else np.array(0.004, "float32")
        w = weight(f"w{k}", integers(-127, 128, filters, channels, 3, 3, dtype="int8"), scales, 0)
        b = weight(f"b{k}", integers(-1000, 1000, filters), np.asarray(scales * np.float32(scale)), 0)
        options: dict[str, Any] = {"pads": [1] * 4, "strides": [stride] * 2}
        nodes.append(helper.make_node("Conv", [x, w, b], [f"conv{k}"], **options))
        nodes.append(helper.make_node("Relu", [f"conv{k}"], [f"relu{k}"]))
        scale, channels, x = 0.05, filters, quantised(f"relu{k}", f"y{k}", 0.05)
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["pool"]))
    nodes.append(helper.make_node("Flatten", [quantised("pool", "pool", scale)], ["flat"]))
    w = weight("last", integers(-127, 128, channels, 10, dtype="int8"), np.array(0.01, "float32"), 1)
    nodes.append(helper.make_node("MatMul", [quantised("flat", "flat", scale), w], ["product"]))
    nodes.append(helper.make_node("Identity", [quantised("product", "product", 0.5)], ["y"]))
    feed = {"x": randn(1, 3, 32, 32)}
    return model_of(nodes, feed, constants, ["y"]), feed


@compares_products
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_network(dtype: str, per_channel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives what the engine gives, by the engine's kernels for 8-bit integers."""
    model, feed = _network(dtype, per_channel)
    optimised, make = tmp_path / "optimised.onnx", sessions.session_options

    def options(*arguments: Any, **settings: Any) -> onnxruntime.SessionOptions:
        made = make(*arguments, **settings)
        made.optimized_model_filepath = str(optimised)
        return made

    monkeypatch.setattr(sessions, "session_options", options)
    session = InferenceSession(model, CONTEXT, fallback="error")
    (got,) = session.run(None, feed)
    (wanted,) = run_engine(model, feed)
    assert len(np.unique(wanted)) > 2
    np.testing.assert_array_equal(got, wanted)
    kernels = [node.op_type for node in onnx.load(optimised).graph.node]
    assert kernels.count("QLinearConv") == 3
    assert kernels.count("QLinearMatMul") == 1
    assert not {"Conv", "FusedConv", "MatMul"} & set(kernels)
