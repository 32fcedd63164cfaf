"""Which of ONNX Runtime's forms the quantisation operations take, and what they give at the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import opweave as ow
from opweave.backends.onnxruntime import ort
from opweave.backends.onnxruntime.kernels import saturates
from opweave.core.graph import Graph

ORT = ow.ml.create_context(device="cpu", backend="onnxruntime")
REFERENCE = ow.ml.create_context(device="reference")
CONTEXTS = pytest.mark.parametrize("context", [ORT, REFERENCE], ids=["onnxruntime", "reference"])

KERNEL, COMPOSED = True, False
# With blocks along the last axes, all blocks in a row count as one axis; the kernel that quantises blocks is not used.
FORMS = [  # input, scale, dequantisation and quantisation by the kernel
    pytest.param((), (), KERNEL, KERNEL, id="scalar"),
    pytest.param((2, 3, 4), (1, 1, 1), KERNEL, KERNEL, id="tensor"),
    pytest.param((2, 3, 4), (1, 3, 1), KERNEL, KERNEL, id="axis"),
    pytest.param((2, 3, 4), (2, 3, 1), KERNEL, KERNEL, id="two-axes-as-blocks"),
    pytest.param((4, 6), (4, 2), KERNEL, KERNEL, id="blocks-along-the-last-axis"),
    pytest.param((4, 6), (2, 6), KERNEL, COMPOSED, id="blocks-along-the-first-axis"),
    pytest.param((4, 6), (4, 6), KERNEL, KERNEL, id="elements"),
    pytest.param((2, 3, 4, 5), (2, 3, 1, 1), KERNEL, KERNEL, id="two-axes-merged"),
    pytest.param((6, 4), (2, 1), KERNEL, KERNEL, id="blocks-of-rows"),
    pytest.param((4, 6), (2, 3), COMPOSED, COMPOSED, id="blocks-along-both-axes"),
]


def kernels(name: str, shape: tuple[int, ...], part: tuple[int, ...]) -> set[str]:
    builder = ow.MLGraphBuilder(ORT)
    input_type, integer_type = ("int8", "int8") if name == "dequantize_linear" else ("float32", "int8")
    x = builder.input("x", input_type, shape)
    scale, zero_point = builder.input("s", "float32", part), builder.input("z", integer_type, part)
    ctx, _, _ = ort.emit_graph(Graph.reaching({"y": getattr(builder, name)(x, scale, zero_point)}))
    return {node.op_type for node in ctx.nodes} - {"Reshape"}


@pytest.mark.parametrize(("shape", "part", "dequantized", "quantized"), FORMS)
def test_quantization_uses_kernels_where_supported(
    shape: tuple[int, ...], part: tuple[int, ...], dequantized: bool, quantized: bool
) -> None:
    converted = {"Cast", "BitwiseXor"} if saturates() else set()  # computed int8 becomes uint8
    assert (kernels("dequantize_linear", shape, part) == {"DequantizeLinear"} | converted) == dequantized
    assert (kernels("quantize_linear", shape, part) == {"QuantizeLinear"}) == quantized


@CONTEXTS
@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("part", [(1, 1), (2, 1), (1, 4), (2, 2)])
def test_constant_zero_points_of_int32(context: ow.MLContext, zero: int, part: tuple[int, ...]) -> None:
    """Zeros are not subtracted; other zero points are, in a type that does not overflow."""
    x = np.array([[-(2**31), 2**31 - 1, 5, 0]] * 2, "int32")
    builder = ow.MLGraphBuilder(context)
    scale = builder.constant(np.full(part, 0.5, "float32"))
    zero_point = builder.constant(np.full(part, zero, "int32"))
    y = builder.dequantize_linear(builder.input("x", "int32", x.shape), scale, zero_point)
    if context is ORT:
        ctx, _, _ = ort.emit_graph(Graph.reaching({"y": y}))
        assert ("Sub" in {node.op_type for node in ctx.nodes}) == (zero != 0)
    got = context.compute(builder.build({"y": y}), {"x": x})["y"]
    np.testing.assert_array_equal(got, ((x.astype("float64") - zero) * 0.5).astype("float32"))


@CONTEXTS
@pytest.mark.parametrize("part", [(1, 1), (1, 8), (2, 8), (4, 8), (2, 4)])
@pytest.mark.parametrize("float_type", ["float32", "float16"])
@pytest.mark.parametrize("data_type", ["int8", "uint8", "int32", "uint32"])
def test_quantize_linear_saturates(
    context: ow.MLContext, part: tuple[int, ...], float_type: str, data_type: str
) -> None:
    x = np.array([[np.inf, -np.inf, 6e4, -6e4, 0.25, -0.25, 0.75, 0]] * 4, float_type)
    scale = np.full(part, 0.5 if data_type.endswith("8") else 2**-20, float_type)
    zero_point = np.full(part, 100, data_type)
    builder = ow.MLGraphBuilder(context)
    arrays = {"x": x, "s": scale, "z": zero_point}
    operands = [builder.input(n, a.dtype.name, a.shape) for n, a in arrays.items()]
    got = context.compute(builder.build({"y": builder.quantize_linear(*operands)}), arrays)["y"]
    limits, step = np.iinfo(data_type), float(scale.flat[0])
    # A quarter by a half lies between two integers, and goes to the even one.
    wanted = [min(max(round(float(v) / step) + 100, limits.min), limits.max) for v in x[0, 2:]]
    np.testing.assert_array_equal(got, [[limits.max, limits.min, *wanted]] * 4)


@pytest.mark.parametrize("op", ["matmul", "gemm"])
@pytest.mark.parametrize("rows", [(1, 1), (16, 1), (16, 64)], ids=str)
@pytest.mark.parametrize("columns", [(1, 1), (1, 32), (64, 1), (4, 32), (4, 8), (64, 32)], ids=str)
def test_products_of_dequantised_matrices_with_any_scales(
    op: str, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    """ONNX Runtime's kernel for two of them refuses most scales when it runs."""
    rng = np.random.default_rng(0)
    matrix, scales = rng.integers(-100, 100, (64, 32)).astype("int8"), rng.uniform(0.01, 0.1, columns)
    x, row_scales = rng.integers(0, 200, (16, 64)).astype("uint8"), rng.uniform(0.01, 0.1, rows)
    results = []
    for context in (ORT, REFERENCE):
        b = ow.MLGraphBuilder(context)
        zeros = b.constant(np.full(rows, 3, "uint8")), b.constant(np.full(columns, 2, "int8"))
        left = b.dequantize_linear(b.input("x", "uint8", x.shape), b.constant(row_scales.astype("float32")), zeros[0])
        right = b.dequantize_linear(b.constant(matrix), b.constant(scales.astype("float32")), zeros[1])
        graph = b.build({"y": getattr(b, op)(left, right)})
        results.append(context.compute(graph, {"x": x})["y"])
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rows", [(1, 1), (32, 1), (1, 32), (2, 2)], ids=str)
@pytest.mark.parametrize("columns", [(1, 1), (1, 32), (32, 1), (2, 32), (2, 2)], ids=str)
@pytest.mark.parametrize("known", [False, True], ids=["input", "constant"])
@pytest.mark.parametrize("result", ["float32", "uint8"])
@pytest.mark.parametrize("form", ["matmul", "matmul turned", "gemm", "gemm turned", "gemm b_transpose"])
def test_square_products_take_scales_for_their_own_axes(
    form: str, result: str, known: bool, columns: tuple[int, int], rows: tuple[int, int]
) -> None:
    """ONNX Runtime's kernels for integers take scales along any axis of the right size for those of the columns."""
    rng = np.random.default_rng(0)
    x, numbers = (rng.integers(0, 200, (32, 32)).astype("uint8") for _ in range(2))
    scales = {shape: random_scales(rng, shape) for shape in (rows, columns)}

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        a = dequantised(b, b.input("x", "uint8", x.shape), scales[rows])
        w = dequantised(b, b.constant(numbers) if known else b.input("w", "uint8", numbers.shape), scales[columns])
        if form == "gemm b_transpose":
            y = b.gemm(a, w, b_transpose=True)
        else:
            y = getattr(b, form.split()[0])(a, b.transpose(w) if "turned" in form else w)
        return y if result == "float32" else b.quantize_linear(y, np.float32([[0.5]]), np.uint8([[128]]))

    assert_same(build, {"x": x} if known else {"x": x, "w": numbers}, 1 if result == "uint8" else ROUNDED)


@pytest.mark.parametrize("result", ["float32", "uint8"])
@pytest.mark.parametrize("form", ["gemm", "gemm, alpha", "matmul, add", "add, matmul"])
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("scaled", ["other", "as product"])
@pytest.mark.parametrize("terms", [(1,), (32,), (32, 1), (32, 32)], ids=str)
def test_terms_of_products_keep_their_scales(
    terms: tuple[int, ...], scaled: str, zero: int, form: str, result: str
) -> None:
    """ONNX Runtime takes the scale of a dequantised third operand for that of the product, and fuses sums to such operands."""
    rng = np.random.default_rng(0)
    x, numbers = (rng.integers(0, 200, (32, 32)).astype("uint8") for _ in range(2))
    scales, term = random_scales(rng, (1, 32)), rng.integers(-1000, 1000, (32,)).astype("int32")
    of_term = random_scales(rng, terms)
    if scaled == "as product":
        of_term[...] = (scales * np.float32(0.01)).reshape(-1)[: terms[0]].reshape(-1, *[1] * (len(terms) - 1))
    term = np.tile(term, (32, 1)) if of_term.ndim == 2 else term

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        a = dequantised(b, b.input("x", "uint8", x.shape), np.float32([[0.01]]))
        zeros = b.constant(np.full(of_term.shape, zero, "int32"))
        c = b.dequantize_linear(b.constant(term), b.constant(of_term), zeros)
        w = dequantised(b, b.constant(numbers), scales)
        if form.startswith("gemm"):
            y = b.gemm(a, w, c=c, alpha=0.5 if form == "gemm, alpha" else 1)
        else:
            y = b.add(c, b.matmul(a, w)) if form == "add, matmul" else b.add(b.reshape(b.matmul(a, w), [32, 32]), c)
        return y if result == "float32" else b.quantize_linear(y, np.float32([[0.5]]), np.uint8([[128]]))

    assert_same(build, {"x": x}, 1 if result == "uint8" else ROUNDED)


@pytest.mark.parametrize("form", ["Gemm", "MatMul", "Sum"])
@pytest.mark.parametrize("scale", [0.05, 0.0002], ids=["other scale", "scale of the product"])
@pytest.mark.parametrize("specialise", ["auto", "always", "never"])
def test_terms_of_products_in_models_keep_their_scales(
    specialise: Literal["auto", "always", "never"], scale: float, form: str
) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 200, (8, 16)).astype("uint8"), rng.integers(0, 255, (16, 32)).astype("uint8")
    c = rng.integers(-1000, 1000, 32).astype("int32")
    arrays = {"w": w, "c": c, "sx": np.float32(0.01), "sw": np.float32(0.02), "sc": np.float32(scale), "z": np.uint8(3)}
    nodes = [
        helper.make_node("DequantizeLinear", [name, f"s{name}", "z"][: 2 if name == "c" else 3], [f"{name}f"])
        for name in "xwc"
    ]
    if form == "Gemm":
        nodes += [helper.make_node("Identity", ["cf"], ["ci"]), helper.make_node("Gemm", ["xf", "wf", "ci"], ["y"])]
    else:
        term = [helper.make_node("Add" if form == "MatMul" else "Sum", ["p", "cf"], ["y"])]
        nodes += [helper.make_node("MatMul", ["xf", "wf"], ["p"]), *term]
    # The engine fuses products of matrices whose sizes it knows.
    ends = [
        helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (y,) = ow.InferenceSession(model, specialise=specialise).run(None, {"x": x})
    wanted = (x - 3.0) @ (w - 3.0) * 0.0002 + c * scale
    assert np.abs(y - wanted).max() <= ROUNDED * np.abs(wanted).max()


@pytest.mark.parametrize("image", [(1, 1, 1, 1), (1, 8, 1, 1), (1, 1, 5, 1)], ids=str)
@pytest.mark.parametrize("filters", [(1, 1, 1, 1), (8, 1, 1, 1), (1, 8, 1, 1)], ids=str)
@pytest.mark.parametrize("layout", ["oihw", "ihwo"])
def test_convolutions_take_scales_for_their_own_axes(
    layout: Literal["oihw", "ihwo"], filters: tuple[int, ...], image: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    x, numbers = rng.integers(0, 200, (1, 8, 5, 5)).astype("uint8"), rng.integers(0, 200, (8, 8, 3, 3)).astype("uint8")
    order = ["oihw".index(letter) for letter in layout]
    scales = random_scales(rng, image), random_scales(rng, filters).transpose(order)

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        weights = np.ascontiguousarray(numbers.transpose(order))
        w = dequantised(b, b.constant(weights), np.ascontiguousarray(scales[1]))
        y = b.conv2d(dequantised(b, b.input("x", "uint8", x.shape), scales[0]), w, filter_layout=layout)
        return b.quantize_linear(y, np.full((1, 1, 1, 1), 0.5, "float32"), np.full((1, 1, 1, 1), 128, "uint8"))

    assert_same(build, {"x": x}, 1)


ROUNDED = 0.01
"""Of the largest result: where only one operand reaches the engine as dequantised, it rounds the other one to 8 bits."""


def random_scales(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.002, 0.02, shape).astype("float32")


def dequantised(b: ow.MLGraphBuilder, x: ow.MLOperand, scale: np.ndarray) -> ow.MLOperand:
    return b.dequantize_linear(x, b.constant(scale), b.constant(np.full(scale.shape, 100, "uint8")))


def assert_same(
    build: Callable[[ow.MLGraphBuilder], ow.MLOperand], feed: dict[str, np.ndarray], tolerance: float
) -> None:
    """Compare with the reference: integers by steps, floats by the largest of them."""
    found = []
    for context in (ORT, REFERENCE):
        b = ow.MLGraphBuilder(context)
        found.append(context.compute(b.build({"y": build(b)}), feed)["y"].astype("float64"))
    limit = tolerance if tolerance >= 1 else tolerance * np.abs(found[1]).max()
    assert np.abs(found[0] - found[1]).max() <= limit
