"""Expressions as operations: in graphs, on arrays, fused with their neighbours, inside of ONNX models."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import opweave as ow
from opweave.compile.fuse import MIN_ELEMENTS
from opweave.expr import kernels

CPU = ow.ml.create_context(device="cpu")
REFERENCE = ow.ml.create_context(device="reference")
BOTH = pytest.mark.parametrize("context", [CPU, REFERENCE], ids=["cpu", "reference"])
compiled = pytest.mark.skipif(not kernels.is_compiled(), reason="the extra halide is not installed")
rng = np.random.default_rng(0)


@ow.expression
def swiglu(x: Any, gate: Any) -> Any:
    """Multiply `x` with the SiLU of a gate."""
    return x * gate * ow.expr.sigmoid(gate)


@ow.expression
def box3(x: Any) -> Any:
    n, c, h, w = x.shape
    return ow.expr.compute(
        (n, c, h - 2, w - 2),
        lambda i, j, y, k: sum(x[i, j, y + dy, k + dx] for dy in range(3) for dx in range(3)) / 9,
    )


@ow.expression
def lookup(table: Any, indices: Any) -> Any:
    return ow.expr.compute(indices.shape, lambda i: table.checked[indices[i]])


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype("float32")


def numpy_swiglu(x: np.ndarray, gate: np.ndarray) -> np.ndarray:
    return x * gate / (1 + np.exp(-gate))


def numpy_box3(x: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    result: np.ndarray = windows.mean((-1, -2))
    return result


@BOTH
def test_expressions_in_a_graph(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 2, 8, 9])
    gate = builder.input("gate", "float32", [9])
    graph = builder.build({"y": box3(swiglu(x, gate, label="glu").relu())})
    data = {"x": normal(1, 2, 8, 9), "gate": normal(9)}
    ow.memory.copies.reset()
    y = context.compute(graph, data)["y"]
    assert ow.memory.copies.count == 0
    assert y.shape == (1, 2, 6, 7)
    np.testing.assert_allclose(y, numpy_box3(np.maximum(numpy_swiglu(**data), 0)), rtol=1e-4, atol=1e-6)


def test_shapes_and_types_follow_from_the_function() -> None:
    @ow.expression
    def pair(a: Any, b: Any, *, scale: float = 2.0) -> Any:
        return a * scale > b, ow.expr.arg_max(a + b, -1)

    greater, position = pair(normal(3, 1), normal(4), scale=-1)
    assert (greater.dtype, greater.shape) == (np.uint8, (3, 4))
    assert (position.dtype, position.shape) == (np.int32, (3,))


def test_expression_on_tensors_and_arrays() -> None:
    x, gate = normal(5, 7), normal(5, 7)
    np.testing.assert_allclose(swiglu(x, gate), numpy_swiglu(x, gate), rtol=1e-5)
    tensor = CPU.tensor_from(x)
    result = swiglu(tensor, gate)
    assert isinstance(result, ow.MLTensor)
    np.testing.assert_allclose(result.numpy(), numpy_swiglu(x, gate), rtol=1e-5)
    turned = np.asfortranarray(x)
    np.testing.assert_allclose(swiglu(turned, gate), numpy_swiglu(x, gate), rtol=1e-5)


@pytest.mark.parametrize("data_type", ["float16", "int32", "uint32", "int64", "uint64", "int8", "uint8"])
def test_expression_data_types(data_type: str) -> None:
    @ow.expression
    def squares(x: Any) -> Any:
        return x * x + 1

    x = np.arange(12).reshape(3, 4).astype(data_type)
    y = squares(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, (x * x + 1).astype(data_type))


def test_checked_indices() -> None:
    table = normal(5)
    assert lookup(table, np.int64([4, 0])).tolist() == [table[4], table[0]]
    for wrong in ([5], [-1]):
        with pytest.raises(ow.OperationError, match=r"lookup 'l': the index .* of axis 0 must be in \[0, 5\)"):
            lookup(table, np.int64(wrong), label="l")
    builder = ow.MLGraphBuilder(CPU)
    y = lookup(builder.input("t", "float32", [5]), builder.input("i", "int32", [2]), label="l") + 1
    graph = builder.build({"y": y})
    target = np.full(2, 7, "float32")
    with pytest.raises(ow.OperationError, match=r"lookup 'l'(, add)?: the index"):
        CPU.compute(graph, {"t": table, "i": np.int32([0, 9])}, {"y": target})
    assert target.tolist() == [7, 7]
    assert CPU.compute(graph, {"t": table, "i": np.int32([0, 1])})["y"].tolist() == (table[:2] + 1).tolist()


# ---------------------------------------------------------------------------------------------------------------------
# Fusion


def hows(graph: ow.MLGraph) -> list[tuple[str, str, int]]:
    return [(p.node, p.how, p.segment) for p in graph.placements()]


@compiled
def test_neighbours_are_one_loop() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [1, 4, 8, 8])
    weight = builder.constant(normal(4, 4, 3, 3))
    y = builder.conv2d(x, weight, padding=[1, 1, 1, 1]).relu()  # the engine fuses this
    z = swiglu(y * 0.5, box3(builder.pad(y, [0, 0, 1, 1], [0, 0, 1, 1])), label="glu").tanh()
    graph = builder.build({"z": builder.conv2d(z, weight)})
    assert (
        hows(graph)
        == [
            ("conv2d", "native", 0),
            ("relu", "native", 0),
            ("mul", "expression", 2),
            ("pad", "native", 0),
            ("box3", "expression", 1),
            ("swiglu 'glu'", "expression", 2),
            ("tanh", "expression", 2),
            ("conv2d", "native", 3),
        ]
        or hows(graph)[-1][2] < 3
    )
    data = {"x": normal(1, 4, 8, 8)}
    other = ow.MLGraphBuilder(REFERENCE)
    again = other.input("x", "float32", [1, 4, 8, 8])
    w = other.constant(weight.value)
    y = other.conv2d(again, w, padding=[1, 1, 1, 1]).relu()
    z = swiglu(y * 0.5, box3(other.pad(y, [0, 0, 1, 1], [0, 0, 1, 1]))).tanh()
    wanted = REFERENCE.compute(other.build({"z": other.conv2d(z, w)}), data)["z"]
    np.testing.assert_allclose(CPU.compute(graph, data)["z"], wanted, rtol=1e-4, atol=1e-5)


def chain(builder: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
    y = x * 1.5 - x.tanh()
    return builder.where(builder.greater(y, builder.constant("float32", 0.25)), y.exp(), y * y + 1)


@compiled
def test_chains_of_built_in_operations_become_one_loop() -> None:
    data = {"x": normal(1, MIN_ELEMENTS)}
    results = []
    for fuse, context in ((True, CPU), (False, CPU), (True, REFERENCE)):
        builder = ow.MLGraphBuilder(context)
        y = chain(builder, builder.input("x", "float32", [1, MIN_ELEMENTS]))
        graph = builder.build({"y": y}, fuse=fuse)
        kinds = {how for _, how, _ in hows(graph)}
        assert (kinds == {"expression"}) is (fuse and context is CPU)
        assert ("expression" in kinds) is (fuse and context is CPU)
        results.append(context.compute(graph, data)["y"])
    np.testing.assert_allclose(results[0], results[2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[1], results[2], rtol=1e-5, atol=1e-6)


@compiled
def test_small_chains_stay_with_the_engine() -> None:
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": chain(builder, builder.input("x", "float32", [16]))})
    assert "expression" not in {how for _, how, _ in hows(graph)}


# ---------------------------------------------------------------------------------------------------------------------
# Errors


def test_expressions_hold_expressions() -> None:
    @ow.expression
    def scaled(x: Any, *, by: float = 2.0) -> Any:
        return x * by

    @ow.expression
    def outer(x: Any) -> Any:
        return swiglu(scaled(x), x) + scaled(x, by=3)

    x = np.float32([1, -2])
    np.testing.assert_allclose(outer(x), 2 * x * x / (1 + np.exp(-x)) + 3 * x, rtol=1e-6)
    kernel = ow.op(lambda self, x: x.desc)
    for inner, rule in (
        (lambda x: scaled(x, by="3"), "scaled: by must be of type float, got '3'"),
        (lambda x: scaled(x, 3), "scaled: too many positional arguments"),
        (kernel, "<lambda>: has no expression that another one could hold"),
    ):
        with pytest.raises(ow.ValidationError, match=rule):
            _holding(inner)(x)


def _holding(inner: Any) -> Any:
    @ow.expression
    def holding(x: Any) -> Any:
        return inner(x)

    return holding


def test_arrays_and_positions_that_do_not_belong() -> None:
    kept: list[Any] = []

    @ow.expression
    def keeping(x: Any) -> Any:
        kept.append(x)
        return x + 1

    keeping(np.float32([1]))
    with pytest.raises(ow.ValidationError, match=r"depends on an array of another expression, float32\[1\]"):
        _holding(lambda x: x + kept[0])(np.float32([1]))
    far = _holding(lambda x: ow.expr.compute((4,), lambda i: ow.expr.cast(i * 10**9, "float32") + x[0]))
    with pytest.raises(ow.ValidationError, match=r"the position .* goes from 0 to 3000000000, beyond int32"):
        far(np.float32([1]))


def test_errors_show_the_line_and_the_label() -> None:
    @ow.expression
    def branches(x: Any) -> Any:
        return x if x > 0 else -x

    with pytest.raises(ow.ValidationError) as caught:
        branches(normal(3), label="b")
    text = re.sub(r"line \d+", "line N", str(caught.value))
    assert text.startswith("branches 'b': an expression has no value while it is traced: use where(condition, a, b)")
    assert text.endswith("(test_custom_expressions.py, line N: return x if x > 0 else -x)")

    @ow.expression
    def broken(x: Any) -> Any:
        return {}["x"]

    with pytest.raises(KeyError) as found:
        broken(normal(3))
    note = re.sub(r"line \d+", "line N", found.value.__notes__[0])
    assert note == 'while tracing broken for float32[3] (test_custom_expressions.py, line N: return {}["x"])'

    with pytest.raises(
        ow.ValidationError, match=r"box3 'b': the shapes|box3 'b': compute: sizes must be positive integers"
    ):
        box3(normal(1, 1, 2, 2), label="b")


# ---------------------------------------------------------------------------------------------------------------------
# ONNX


def test_expression_in_onnx_model_and_saved() -> None:
    ow.register_onnx("com.example", "SwiGLU", swiglu)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("SwiGLU", ["x", "gate"], ["a"], domain="com.example", name="glu"),
            helper.make_node("Softmax", ["a"], ["y"], axis=-1),
        ],
        "g",
        [info("x", TensorProto.FLOAT, [2, 4]), info("gate", TensorProto.FLOAT, [4])],
        [info("y", TensorProto.FLOAT, [2, 4])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    session = ow.InferenceSession(helper.make_model(graph, opset_imports=imports), fallback="error")
    x, gate = normal(2, 4), normal(4)
    (y,) = session.run(None, {"x": x, "gate": gate})
    made = np.exp(numpy_swiglu(x, gate))
    np.testing.assert_allclose(y, made / made.sum(-1, keepdims=True), rtol=1e-5)
    if kernels.is_compiled():
        assert "  custom: swiglu 'glu', expression, Halide" in session.explain()


def test_expressions_of_whole_arrays_are_exported_as_what_they_are_made_of(tmp_path: Any) -> None:
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": swiglu(builder.input("x", "float32", [2, 4]), builder.input("gate", "float32", [4]))})
    path = tmp_path / "glu.onnx"
    ow.onnx.save(graph, path)
    x, gate = normal(2, 4), normal(4)
    (y,) = ow.InferenceSession(path).run(None, {"x": x, "gate": gate})
    np.testing.assert_allclose(y, numpy_swiglu(x, gate), rtol=1e-5)


def test_save_rejects_expression_without_operations(tmp_path: Any) -> None:
    builder = ow.MLGraphBuilder(CPU)
    found = lookup(builder.input("t", "float32", [4]), builder.input("i", "int32", [2]), label="search")
    with pytest.raises(ow.NotSupportedError, match=r"lookup 'search': .*checks of indices have no operation"):
        ow.onnx.save(builder.build({"y": found}), tmp_path / "lookup.onnx")
    assert list(tmp_path.iterdir()) == []
