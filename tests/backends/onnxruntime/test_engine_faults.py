"""Faults of ONNX Runtime that graphs must not show: what it computes wrongly or refuses, against the reference back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from support.arrays import normal

import opweave as ow
from opweave.composites import (
    group_query_attention,
    multi_head_attention,
    quantized_conv2d,
    resize,
    rotary_embedding,
)

kernels: Any = import_module("opweave.backends.onnxruntime.kernels")
sessions: Any = import_module("opweave.backends.onnxruntime.sessions")

Build = Callable[[ow.MLGraphBuilder], ow.MLOperand]


def assert_right(build: Build, feeds: Mapping[str, np.ndarray]) -> None:
    """Build a graph twice, on the engine and on the reference, and compare."""
    results = []
    for device in ("cpu", "reference"):
        context = ow.ml.create_context(device=device)
        builder = ow.MLGraphBuilder(context)
        results.append(context.compute(builder.build({"y": build(builder)}), dict(feeds))["y"])
    assert results[0].shape == results[1].shape
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [[1], [1, 1]])
@pytest.mark.parametrize("data_type", ["int64", "int32", "float32"])
def test_div_of_ones_keeps_shape(data_type: str, shape: list[int]) -> None:
    """The engine's optimiser writes 1 / x * y as y / x."""

    def quotient(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        return b.div(b.constant(np.ones(shape, data_type)), x)

    for value in (1, 3):
        feeds = {"x": np.array(value, data_type), "y": np.array(7, data_type)}
        assert_right(lambda b: quotient(b, b.input("x", data_type, [])), {"x": feeds["x"]})
        assert_right(lambda b: b.mul(quotient(b, b.input("x", data_type, [])), b.input("y", data_type, [])), feeds)


@pytest.mark.parametrize("data_type", ["int64", "int32", "float32"])
def test_div_of_folded_ones_keeps_shape(data_type: str) -> None:
    """The engine finds ones that it computes from constants."""

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        ones = b.max(b.cast(b.constant(np.array([1.5], "float32")), data_type), b.constant(np.ones(1, data_type)))
        y: ow.MLOperand = b.div(b.min(ones, b.constant(np.ones(1, data_type))), b.input("x", data_type, []))
        return b.mul(y, b.constant(np.array(3, data_type)))

    for value in (1, 2):
        assert_right(build, {"x": np.array(value, data_type)})


# ---------------------------------------------------------------------------------------------------------------------
# Transpositions that the optimiser moves through an operation transpose its constants in place


@pytest.mark.parametrize("data_type", ["int8", "uint8"])
def test_constant_image_of_a_quantised_convolution(data_type: str) -> None:
    """The kernel takes channels last, so the optimiser transposes the image: it must read the transposed one."""
    rng = np.random.default_rng(7)
    info = np.iinfo(data_type)
    image, taps = (rng.integers(info.min, info.max, shape, data_type) for shape in ((1, 70, 6, 7), (2, 70, 2, 3)))

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        scales = [b.input(name, "float32", []) for name in "xyz"]
        zero = b.constant(np.array(3, data_type))
        y: ow.MLOperand = quantized_conv2d(
            b, b.constant(image), scales[0], zero, b.constant(taps), scales[1], zero, scales[2], zero
        )
        return y

    assert_right(build, {"x": np.array(0.25, "float32"), "y": np.array(0.5, "float32"), "z": np.array(37.3, "float32")})


def _after_convolution(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
    taps = b.constant(normal(6, 1, 1, 3).astype(x.data_type))
    y: ow.MLOperand = b.conv2d(
        b.transpose(x, permutation=[0, 2, 3, 1]), taps, input_layout="nhwc", filter_layout="ohwi"
    )
    return b.transpose(b.relu(y), permutation=[0, 3, 1, 2])


BEFORE_RESIZING: dict[str, Callable[[ow.MLGraphBuilder, ow.MLOperand], ow.MLOperand]] = {
    "nothing": lambda b, x: x,
    "convolution": lambda b, x: b.conv2d(x, b.constant(normal(5, 3, 1, 1).astype(x.data_type)), filter_layout="oihw"),
    "convolution-nhwc": lambda b, x: b.conv2d(
        x, b.constant(normal(4, 1, 1, 5).astype(x.data_type)), input_layout="nhwc", filter_layout="ohwi"
    ),
    "convolution-between": _after_convolution,
    "transpose": lambda b, x: b.sigmoid(b.transpose(x, permutation=[0, 2, 3, 1])),
    "two": lambda b, x: b.transpose(b.exp(b.transpose(x, permutation=[1, 0, 2, 3])), permutation=[1, 2, 3, 0]),
    "sum": lambda b, x: b.add(b.abs(b.transpose(x)), b.transpose(b.abs(x), permutation=[3, 2, 1, 0])),
}


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("axes", [[2, 3], [1, 2], [1, 3], [0, 3], [3, 2], [0, 1]])
@pytest.mark.parametrize("name", BEFORE_RESIZING)
def test_resizing_behind_transpositions(name: str, axes: list[int], data_type: Any) -> None:
    """The engine moves transpositions behind a Resize, whose kernel then refuses the axes."""

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        y = BEFORE_RESIZING[name](b, b.input("x", data_type, [2, 3, 4, 5]))
        resized = b.resample2d(y, mode="linear", sizes=[6, 3], axes=axes)
        return b.cast(b.transpose(b.neg(resized), permutation=[0, 3, 1, 2]), "float32")

    x = normal(2, 3, 4, 5).astype(data_type)
    results = []
    for device in ("cpu", "reference"):
        context = ow.ml.create_context(device=device)
        builder = ow.MLGraphBuilder(context)
        results.append(context.compute(builder.build({"y": build(builder)}), {"x": x})["y"])
    tolerance = 1e-5 if data_type == "float32" else 1e-2
    np.testing.assert_allclose(results[0], results[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_of_an_image_behind_a_transposition(mode: str) -> None:
    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        y = b.sigmoid(b.transpose(b.input("x", "float32", [1, 8, 9, 5]), permutation=[0, 2, 3, 1]))
        resized = resize(b, y, sizes=[4, 5], axes=[2, 3], mode=mode, antialias=True)
        return b.transpose(b.neg(resized), permutation=[0, 3, 1, 2])

    assert_right(build, {"x": normal(1, 8, 9, 5)})


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min", "pow", "prelu"])
@pytest.mark.parametrize("size", [30, 40])
def test_transpositions_beside_large_constants(name: str, size: int) -> None:
    """Square constants gave wrong numbers, others an error."""
    constant = np.abs(normal(40, size)) + 0.5

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        turned = b.transpose(b.input("x", "float32", [size, 40]))
        made: ow.MLOperand = b.transpose(getattr(b, name)(turned, b.constant(constant)))
        return made

    assert_right(build, {"x": np.abs(normal(size, 40, seed=1))})


def test_constant_shared_by_transposed_operations() -> None:
    constant = normal(30, 30)

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        x, shared = b.input("x", "float32", [30, 30]), b.constant(constant)
        return b.matmul(b.transpose(b.add(b.transpose(x), shared)), shared)

    assert_right(build, {"x": normal(30, 30, seed=1)})


def test_transposed_dequantised_constants() -> None:
    """The optimiser looks through DequantizeLinear."""
    weights, scale = np.random.default_rng(0).integers(-128, 128, (40, 40)).astype("int8"), np.float32([[0.125]])

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        added = b.dequantize_linear(b.constant(weights), b.constant(scale), b.constant(np.int8([[3]])))
        return b.transpose(b.add(b.transpose(b.input("x", "float32", [40, 40])), added))

    assert_right(build, {"x": normal(40, 40)})


def test_transpose_beside_large_constant_in_fallback() -> None:
    """The same in nodes that ONNX Runtime runs as they are."""
    from onnx import TensorProto, helper

    from opweave.backends.onnxruntime.model import ModelSession

    constant, weights, x = normal(40, 40), normal(40, 40, seed=1), normal(40, 40, seed=2)
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        helper.make_node("Add", ["turned", "constant"], ["sum"]),
        helper.make_node("Transpose", ["sum"], ["back"], perm=[1, 0]),
        helper.make_node("MatMul", ["back", "weights"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [40, 40]) for name in ("x", "y")]
    model = helper.make_model(helper.make_graph(nodes, "part", infos[:1], infos[1:]), ir_version=10)
    model.opset_import[0].version = 21
    part = ModelSession(model, {"constant": constant, "weights": weights}, "default")
    y = np.empty((40, 40), np.float32)
    part.run([x], [y])
    np.testing.assert_allclose(y, (x + constant.T) @ weights, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# Graphs that the optimiser makes unacceptable to the engine itself


@pytest.mark.parametrize("data_type", ["int8", "int32", "int64"])
@pytest.mark.parametrize("bounds", [(-2, None), (-2, 3), (1, 2), (None, -1)])
def test_clamps_after_relu_of_integers(data_type: str, bounds: tuple[int | None, int | None]) -> None:
    low, high = bounds

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        return b.clamp(b.relu(b.input("x", data_type, [40])), min_value=low, max_value=high)

    assert_right(build, {"x": np.arange(-20, 20).astype(data_type)})


MOVES: dict[str, Callable[[Any], Any]] = {
    "transpose": lambda x: x.transpose(),
    "reshape": lambda x: x.reshape([4, 3]),
    "slice": lambda x: x.slice([1, 1], [2, 2]),
}


@pytest.mark.parametrize("data_type", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("follows", [False, True], ids=["at the end", "within"])
def test_movement_after_dequantize_linear(data_type: str, zero: int, move: Callable[[Any], Any], follows: bool) -> None:
    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        x = b.input("x", data_type, [3, 4])
        y = move(b.dequantize_linear(x, np.float32([[0.5]]), np.array([[zero]], data_type)))
        return b.relu(y) if follows else y

    assert_right(build, {"x": np.arange(12, dtype=data_type).reshape(3, 4)})


@pytest.mark.parametrize("data_type", ["int8", "uint8"])
def test_movement_before_quantize_linear(data_type: str) -> None:
    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        moved = b.reshape(b.transpose(b.relu(b.input("x", "float32", [3, 4]))), [12])
        return b.quantize_linear(moved, np.float32([0.5]), np.array([1], data_type))

    assert_right(build, {"x": normal(3, 4) * 20})


# ---------------------------------------------------------------------------------------------------------------------
# Kernels


@pytest.mark.parametrize("data_type", ["int64", "uint64", "int32", "uint32"])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1)])
def test_maximum_pooling_of_integers(data_type: str, padding: tuple[int, ...]) -> None:
    """Numbers that differ in bit 31, and not above it, are what the engine's maxima of int64 confuse."""
    lowest, highest = np.iinfo(data_type).min, np.iinfo(data_type).max
    far = [
        v for v in (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, -(2**31), -1, lowest, highest) if lowest <= v <= highest
    ]
    x = np.random.default_rng(0).choice(np.array(far, data_type), (1, 2, 12, 12))

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        return b.max_pool2d(b.input("x", data_type, x.shape), window_dimensions=[2, 3], padding=padding)

    assert_right(build, {"x": x})


@pytest.fixture(params=[False, True], ids=["as it is", "as if it saturated"])
def _processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(kernels, "saturates", lambda: True)


@pytest.mark.usefixtures("_processor")
@pytest.mark.parametrize("known", [False, True], ids=["input", "constant"])
@pytest.mark.parametrize("types", [("uint8", "int8"), ("int8", "uint8"), ("int8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("quantised", [False, True], ids=["integer_matmul", "dequantize_linear"])
def test_products_of_bytes(known: bool, types: tuple[str, str], quantised: bool) -> None:
    """The sum of two products of uint8 and int8 does not fit into 16 bits."""
    random = np.random.default_rng(0)
    highest = [int(np.iinfo(data_type).max) for data_type in types]
    a = random.integers(highest[0] - 9, highest[0], (5, 64), types[0], endpoint=True)
    b = random.integers(highest[1] - 9, highest[1], (64, 48), types[1], endpoint=True)
    zeros = [np.array([[3]], types[0]), np.array([[2]], types[1])]
    scale = np.float32([[1 / 64]])

    def build(builder: ow.MLGraphBuilder) -> ow.MLOperand:
        x = builder.input("a", types[0], a.shape)
        y = builder.constant(b) if known else builder.input("b", types[1], b.shape)
        if not quantised:
            made: ow.MLOperand = ow.composites.integer_matmul(builder, x, y, *zeros)
            return made
        left, right = builder.dequantize_linear(x, scale, zeros[0]), builder.dequantize_linear(y, scale, zeros[1])
        return builder.matmul(left, right)

    assert_right(build, {"a": a} if known else {"a": a, "b": b})


def test_saturation_probe_detects_vnni() -> None:
    features = import_module("numpy._core._multiarray_umath").__cpu_features__
    if not features.get("AVX512_ICL"):
        pytest.skip("NumPy does not say that this processor has VNNI instructions")
    assert not kernels.saturates()


@pytest.mark.usefixtures("_processor")
def test_int8_constants_are_converted_only_where_products_saturate() -> None:
    """The engine converts them on every processor, and some of its kernels take longer with uint8."""
    options, (key, value) = sessions.session_options("default"), sessions.PRECISE_PRODUCTS
    if kernels.saturates():
        assert options.get_session_config_entry(key) == value
    else:
        with pytest.raises(RuntimeError, match=key):
            options.get_session_config_entry(key)


@pytest.mark.parametrize("known", [False, True], ids=["input", "constant"])
def test_prelu_with_slopes_that_are_not_finite(known: bool) -> None:
    """The kernel multiplies zeros by the slope."""
    slopes = np.float32([np.nan, np.inf, -np.inf, 0.5])
    x = np.float32([[1, 1, 1, 1], [-1, -1, -1, -1], [0, 0, 0, 0], [np.inf, -np.inf, np.nan, np.inf]])

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        return b.prelu(b.input("x", "float32", [4, 4]), b.constant(slopes) if known else b.input("s", "float32", [4]))

    assert_right(build, {"x": x} if known else {"x": x, "s": slopes})


ATTENDED: dict[str, Callable[..., Any]] = {
    "multi_head_attention": lambda b, q: multi_head_attention(b, q, q, q, heads=2, scale=0.0),
    "group_query_attention": lambda b, q: group_query_attention(b, q, q, q, heads=2, groups=2, scale=0.0)[0],
    "window": lambda b, q: group_query_attention(b, q, q, q, heads=2, groups=2, scale=0.0, window=3)[0],
}


@pytest.mark.parametrize("name", ATTENDED)
def test_attention_with_a_scale_of_0_is_a_mean(name: str) -> None:
    """The kernels take 0 for the default."""
    x = normal(1, 3, 16)
    assert_right(lambda b: ATTENDED[name](b, b.input("x", "float32", x.shape)), {"x": x})


@pytest.mark.parametrize("shape", [(1, 2, 4), (1, 1, 2, 4)])
def test_rotary_embedding_with_more_tokens_than_rows(shape: tuple[int, ...]) -> None:
    def rotated(b: ow.MLGraphBuilder) -> ow.MLOperand:
        x, table = b.input("x", "float32", shape), b.input("table", "float32", [1, 2])
        options = {"heads": 1} if len(shape) == 3 else {}
        return rotary_embedding(b, x, table, table, b.constant(np.int64([[0, 0]])), **options)

    assert_right(rotated, {"x": normal(*shape), "table": normal(1, 2)})


def test_rotary_embedding_of_named_lengths() -> None:
    table = normal(3, 2)
    results = []
    for device in ("cpu", "reference"):
        context = ow.ml.create_context(device=device, drafts=True)
        b = ow.MLGraphBuilder(context)
        x, positions = b.input("x", "float32", [1, "n", 4]), b.input("positions", "int64", [1, "n"])
        y = rotary_embedding(b, x, b.constant(table), b.constant(table), positions, heads=1)
        graph = b.build({"y": y})
        inputs = [{"x": np.ones((1, n, 4), "float32"), "positions": np.zeros((1, n), "int64")} for n in (2, 5, 3)]
        results.append([context.compute(graph, feed)["y"] for feed in inputs])
    for mine, expected in zip(*results, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"output_padding": [1, 0]}, {"output_sizes": [2, 6]}])
def test_transposed_convolution_of_a_row_adds_rows(options: dict[str, Any]) -> None:
    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        x = b.reshape(b.input("x", "float32", [1, 1, 4]), [1, 1, 1, 4])
        return b.conv_transpose2d(x, b.constant(np.ones((1, 1, 1, 3), "float32")), strides=[2, 1], **options)

    assert_right(build, {"x": normal(1, 1, 4)})


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("zero_point", [0, 3])
def test_large_integers_with_scales_of_float16(zero_point: int, is_constant: bool) -> None:
    numbers, scale = np.int32([100_000, 2049, -70_000]), np.float16([0.01])

    def build(b: ow.MLGraphBuilder) -> ow.MLOperand:
        factor = b.constant(scale) if is_constant else b.input("scale", "float16", [1])
        y = b.dequantize_linear(b.input("x", "int32", [3]), factor, b.constant(np.int32([zero_point])))
        return b.cast(y, "float32")

    assert_right(build, {"x": numbers, **({} if is_constant else {"scale": scale})})


def test_gemm_with_a_beta_of_0_reads_c() -> None:
    """As the formula has it: 0 times NaN is NaN."""
    ones, c = np.ones((2, 2), "float32"), np.float32([np.nan, np.inf])
    assert_right(
        lambda b: b.gemm(b.input("a", "float32", [2, 2]), b.constant(ones), c=b.constant(c), beta=0.0), {"a": ones}
    )
