"""What ONNX Runtime gets for convolutions, pooling and resampling, and results that can be told by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import opweave as ow
from opweave.backends.onnxruntime import OnnxRuntime
from opweave.backends.onnxruntime.rules.convolution import engine_agrees
from opweave.core.graph import Graph, MLOperand

CPU = ow.ml.create_context(device="cpu")
CONTEXTS = [CPU, ow.ml.create_context(device="reference")]
each_context = pytest.mark.parametrize("context", CONTEXTS, ids=["cpu", "reference"])


def nodes(result: MLOperand) -> list[str]:
    """The ONNX operators that a graph becomes, before the engine optimises it."""
    assert isinstance(CPU.backend, OnnxRuntime)
    ctx, outputs, _ = CPU.backend.emit_graph(Graph.reaching({"y": result}))
    return [node.op_type for node in onnx.load_from_string(ctx.finish(outputs)[0]).graph.node]


def image(builder: ow.MLGraphBuilder, data_type: str = "float32", shape: tuple[int, ...] = (1, 4, 9, 9)) -> MLOperand:
    return builder.input("x", data_type, shape)


def test_convolution_with_bias_is_one_node() -> None:
    builder = ow.MLGraphBuilder(CPU)
    w, bias = builder.constant(np.ones([8, 4, 3, 3], np.float32)), builder.constant(np.ones([8], np.float32))
    y = builder.conv2d(image(builder), w, bias=bias, padding=(1, 1, 1, 1), strides=(2, 2))
    assert nodes(y) == ["Conv"]
    assert nodes(builder.relu(y)) == ["Conv", "Relu"]


@pytest.mark.parametrize(
    ("name", "wanted"), [("average_pool2d", ["AveragePool"]), ("max_pool2d", ["MaxPool"])], ids=["average", "max"]
)
def test_pooling_is_one_node(name: str, wanted: list[str]) -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = image(builder)
    pool = getattr(builder, name)
    assert nodes(pool(x)) == [f"Global{wanted[0]}"], "one window over the whole input"
    assert nodes(pool(x, window_dimensions=(3, 3), padding=(1, 1, 1, 1), strides=(2, 2), dilations=(2, 2))) == wanted
    assert nodes(pool(x, window_dimensions=(2, 2), strides=(2, 2), output_shape_rounding="ceil")) == wanted


def row(builder: ow.MLGraphBuilder, x: MLOperand) -> MLOperand:
    """[n, c, w] as [n, c, 1, w]."""
    return builder.reshape(x, [*x.shape[:2], 1, x.shape[2]])


def audio(builder: ow.MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Windows over one axis, as a model of audio has them: each is one over two axes between reshapes."""
    rng = np.random.default_rng(0)
    w, v = (builder.constant(rng.standard_normal(shape, "float32")) for shape in ([8, 2, 1, 5], [8, 2, 1, 3]))
    y = builder.conv2d(row(builder, x), w, groups=2, padding=(0, 0, 2, 1), strides=(3, 2), dilations=(7, 1))
    y = builder.relu(builder.reshape(y, [y.shape[0], y.shape[1], y.shape[3]]))
    y = builder.max_pool2d(row(builder, y), window_dimensions=(1, 3), padding=(0, 0, 1, 1), strides=(1, 2))
    y = builder.tanh(builder.reshape(y, [y.shape[0], y.shape[1], y.shape[3]]))
    y = builder.conv_transpose2d(row(builder, y), v, groups=4, strides=(1, 2), output_sizes=(1, 2 * y.shape[2] + 2))
    return builder.reshape(y, [y.shape[0], y.shape[1], y.shape[3]])


@pytest.mark.parametrize("size", [41, "n"])
def test_windows_over_one_axis_need_no_reshape(size: Any) -> None:
    results = []
    array = np.random.default_rng(1).standard_normal((3, 4, 41), "float32")
    for context in (ow.ml.create_context(device=name, drafts=True) for name in ("cpu", "reference")):
        builder = ow.MLGraphBuilder(context)
        y = audio(builder, builder.input("x", "float32", [3, 4, size]))
        results.append(context.compute(builder.build({"y": y}), {"x": array})["y"])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-5)
    if size == 41:
        builder = ow.MLGraphBuilder(CPU)
        wanted = ["Conv", "Relu", "MaxPool", "Tanh", "ConvTranspose"]
        assert nodes(audio(builder, image(builder, shape=array.shape))) == wanted


@pytest.mark.parametrize("padding", [(1, 0, 0, 0), (0, 2, 0, 0)])
def test_windows_in_padding_of_the_added_axis(padding: Any) -> None:
    array, got = np.float32([[[1, 2, 3]]]), []
    for context in CONTEXTS:
        builder = ow.MLGraphBuilder(context)
        x = row(builder, builder.input("x", "float32", [1, 1, 3]))
        results = {
            "conv": builder.conv2d(x, builder.constant(np.ones([1, 1, 1, 2], "float32")), padding=padding),
            "pool": builder.max_pool2d(x, window_dimensions=(2, 2), padding=(1, 0, 0, 0)),
            "taps": builder.conv2d(x, builder.constant(np.ones([1, 1, 2, 2], "float32")), padding=(1, 0, 0, 0)),
        }
        got.append(context.compute(builder.build(results), {"x": array}))
    for name, witness in got[1].items():
        np.testing.assert_array_equal(got[0][name], witness, err_msg=name)


def test_resample2d_nearest_uses_engine_where_it_agrees() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = image(builder, shape=(1, 4, 12, 12))
    assert nodes(builder.resample2d(x, scales=(2.0, 3.0))) == ["Resize"]
    assert nodes(builder.resample2d(x, sizes=(6, 3))) == ["Resize"]
    assert nodes(builder.resample2d(x, sizes=(2, 12))) == ["Resize"], "at ties, which are exact in float32"
    y = builder.input("y", "float32", [1, 4, 20, 20])
    assert nodes(builder.resample2d(y, sizes=(26, 20))) == ["Gather"]


def test_engine_agrees_holds_for_resample2d_nearest() -> None:
    builder = ow.MLGraphBuilder(CPU)
    pairs = [(size, output) for size in range(1, 40) for output in range(1, 40) if engine_agrees(size, output)]
    inputs = {size: builder.input(f"{size}", "float32", [1, 1, size, 1]) for size in range(1, 40)}
    graph = builder.build({f"{s} {o}": builder.resample2d(inputs[s], sizes=(o, 1)) for s, o in pairs})
    arrays = {
        name: np.arange(desc.shape[2], dtype=np.float32).reshape(desc.shape) for name, desc in graph.inputs.items()
    }
    results = CPU.compute(graph, arrays)
    for size, output in pairs:
        position = (np.arange(output) * 2 + 1) * size / (2 * output) - 0.5
        nearest = np.ceil(np.clip(np.round(position, 9), 0, size - 1) - 0.5)
        np.testing.assert_array_equal(results[f"{size} {output}"].ravel(), nearest, f"{size} to {output}")


def test_scales_are_single_precision() -> None:
    """0.7 and 0.29 are less in single precision, so that 10 times the one is 6; a third is more, and 3 times it is 1."""
    builder = ow.MLGraphBuilder(CPU)
    x = image(builder, shape=(3, 1, 10, 100))
    assert builder.resample2d(x, scales=(0.7, 0.29)).shape == (3, 1, 6, 28)
    assert builder.resample2d(x, scales=(1 / 3, 1.0), axes=(0, 1)).shape == (1, 1, 10, 100)


@each_context
def test_integers_are_interpolated_to_the_nearest_even(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "int8", [1, 1, 1, 4])
    graph = builder.build({"y": builder.resample2d(x, mode="linear", sizes=(1, 2))})
    pairs = [([0, 1, 1, 2], [0, 2]), ([-1, 0, -2, -1], [0, -2]), ([127, 127, -128, -127], [127, -128])]
    for values, wanted in pairs:
        result = context.compute(graph, {"x": np.array(values, np.int8).reshape(1, 1, 1, 4)})["y"]
        assert result.ravel().tolist() == wanted


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resample2d", {"scales": (2.0, 3.0)}),
        ("resample2d", {"sizes": (6, 5)}),
        ("resample2d", {"scales": (2.0, 2.0), "mode": "linear"}),
        ("max_pool2d", {"window_dimensions": (3, 3), "padding": (1, 1, 1, 1), "strides": (2, 2)}),
        ("average_pool2d", {"window_dimensions": (3, 2), "padding": (2, 1, 0, 1), "output_shape_rounding": "ceil"}),
        ("l2_pool2d", {"window_dimensions": (2, 2), "strides": (2, 2)}),
        ("average_pool2d", {}),
    ],
    ids=["repeated", "nearest", "linear", "maximum", "average", "l2", "global"],
)
def test_resample_and_pooling_between_convolutions(name: str, options: dict[str, Any]) -> None:
    """There ONNX Runtime's optimiser takes other kernels, for images in a blocked layout."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal([16, 16, 3, 3]).astype(np.float32) for _ in range(2)]
    x = random.standard_normal([1, 16, 9, 9]).astype(np.float32)
    results = []
    for context in CONTEXTS:
        builder = ow.MLGraphBuilder(context)
        y: Any = builder.input("x", "float32", x.shape)
        y = builder.conv2d(y, builder.constant(weights[0]), padding=(1, 1, 1, 1))
        y = getattr(builder, name)(builder.relu(y), **options)
        y = builder.conv2d(y, builder.constant(weights[1]), padding=(1, 1, 1, 1))
        results.append(context.compute(builder.build({"y": y}), {"x": x})["y"])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-3)


@each_context
def test_windows_without_elements(context: ow.MLContext) -> None:
    """The mean of nothing is NaN, the sum of its squares 0, its maximum the lowest value there is."""
    builder = ow.MLGraphBuilder(context)
    x, k = builder.input("x", "float32", [1, 1, 1, 1]), builder.input("k", "uint64", [1, 1, 1, 1])
    options: dict[str, Any] = {"window_dimensions": (1, 1), "padding": (0, 0, 1, 0)}
    pools = {name: getattr(builder, name)(x, **options) for name in ("average_pool2d", "l2_pool2d", "max_pool2d")}
    graph = builder.build({**pools, "integers": builder.max_pool2d(k, **options)})
    results = context.compute(graph, {"x": np.full([1] * 4, 3, np.float32), "k": np.full([1] * 4, 2**63, np.uint64)})
    np.testing.assert_array_equal(results["average_pool2d"].ravel(), [np.nan, 3])
    np.testing.assert_array_equal(results["l2_pool2d"].ravel(), [0, 3])
    np.testing.assert_array_equal(results["max_pool2d"].ravel(), [-np.inf, 3])
    np.testing.assert_array_equal(results["integers"].ravel(), np.array([0, 2**63], np.uint64))


@each_context
def test_average_pool2d_window_exceeds_input_after_ceil(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 1, 1, 2])
    y = builder.average_pool2d(x, window_dimensions=(1, 3), strides=(1, 2), output_shape_rounding="ceil")
    result = context.compute(builder.build({"y": y}), {"x": np.array([[[[1, 2]]]], np.float32)})["y"]
    assert result.tolist() == [[[[1.5]]]]


def test_factors_of_gemm_are_rounded_to_the_data_type() -> None:
    builder = ow.MLGraphBuilder(CPU)
    a = builder.input("a", "float16", [2, 2])
    y = builder.gemm(a, a, alpha=0.1, beta=1e9)
    assert y.node is not None
    assert y.node.attributes["alpha"] == float(np.float16(0.1))
    assert y.node.attributes["beta"] == np.inf
