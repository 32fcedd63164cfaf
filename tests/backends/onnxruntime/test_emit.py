"""The ONNX writer, read back with the `onnx` package, and rewriting of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import opweave as ow
from opweave.backends.onnxruntime import ort
from opweave.backends.onnxruntime.emit import Emitter
from opweave.backends.onnxruntime.records import attribute, field
from opweave.compile.legalise import legalise
from opweave.core.graph import Desc, Graph, Node
from opweave.ops import Operations
from opweave.support.varint import varint


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)])
def test_varints(number: int) -> None:
    proto = onnx.AttributeProto.FromString(attribute("a", number))
    assert proto.i == number
    assert len(varint(number)) <= 10


@pytest.mark.parametrize(
    "value",
    [1, -5, 0.25, "linear", b"\0\1", [1, -2, 3], [], [0.5, 1.5], ["a", "b"], True],
    ids=repr,
)
def test_attributes(value: Any) -> None:
    proto = onnx.AttributeProto.FromString(attribute("name", value))
    assert proto.name == "name"
    got = onnx.helper.get_attribute_value(proto)
    if isinstance(value, list):
        got = [item.decode() if isinstance(item, bytes) else item for item in got]
    assert got == (value.encode() if isinstance(value, str) else value)


def test_long_fields() -> None:
    assert onnx.StringStringEntryProto.FromString(field(1, "x" * 1000) + field(2, "é")).value == "é"


def model_of(build: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    builder = ow.MLGraphBuilder(ow.ml.create_context())
    graph = Graph.reaching(build(builder))
    ctx, outputs, _ = ort.emit_graph(graph)
    model, weights = ctx.finish(outputs)
    return onnx.ModelProto.FromString(model), weights


def test_models_are_valid_onnx() -> None:
    small, large = np.float32([[1, 2], [3, 4]]), np.ones((64, 64), "float32")

    def build(b: ow.MLGraphBuilder) -> Any:
        x = b.input("x", "float32", [64, 64])
        y = b.matmul(x, b.constant(large), label="big")
        return {"y": b.add(y, 0.5), "z": b.identity(b.constant(small))}

    model, weights = model_of(build)
    assert [value.name for value in model.graph.input] == ["i0"]
    assert [value.name for value in model.graph.output] == ["o0", "o1"]
    assert [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim] == [64, 64]
    assert any(np.shares_memory(array, large) for array in weights.values()), "large weights go by reference"
    external = [i for i in model.graph.initializer if i.data_location == onnx.TensorProto.EXTERNAL]
    assert [tuple(i.dims) for i in external] == [(64, 64)]
    for initializer in external:  # the checker wants the file; give it the data instead
        initializer.CopyFrom(onnx.numpy_helper.from_array(weights[initializer.name], initializer.name))
    onnx.checker.check_model(model, full_check=True)
    assert model.ByteSize() < 64 * 64 * 4 + 1000


def test_equal_constants_of_rules_are_stored_once() -> None:
    ctx = Emitter()
    assert ctx.constant([1, 2]) is ctx.constant([1, 2])
    assert ctx.constant([1, 2]) is not ctx.constant([1, 2], "int32")
    assert ctx.constant(1).shape == ()


def kernels_of(build: Callable[[ow.MLGraphBuilder, ow.MLOperand], Any], *shape: int) -> list[str]:
    """The operators that a graph of one input is written with, in order."""
    model, _ = model_of(lambda b: {"y": build(b, b.input("x", "float32", shape))})
    return [node.op_type for node in model.graph.node]


def test_reshape_chain_keeps_last() -> None:
    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> Any:
        return b.relu(b.reshape(b.reshape(b.reshape(x, [6]), [3, 2]), [1, 6]))

    assert kernels_of(build, 2, 3) == ["Reshape", "Relu"]
    assert kernels_of(lambda b, x: b.relu(b.reshape(b.reshape(x, [6]), [2, 3])), 2, 3) == ["Relu"]


def test_transpose_of_unit_axes_is_a_reshape() -> None:
    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> Any:
        return b.relu(b.reshape(b.transpose(x, permutation=[2, 0, 1, 3]), [4, 5]))

    assert kernels_of(build, 1, 4, 1, 5) == ["Reshape", "Relu"]
    assert kernels_of(build, 4, 1, 1, 5) == ["Reshape", "Relu"]
    assert kernels_of(build, 1, 5, 4, 1) == ["Transpose", "Reshape", "Relu"]
    x = np.arange(20, dtype=np.float32).reshape(1, 5, 4, 1)
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    graph = builder.build({"y": build(builder, builder.input("x", "float32", x.shape))})
    np.testing.assert_array_equal(builder.context.compute(graph, {"x": x})["y"], x[0, :, :, 0].T)


SIGMOID, EXACT = {"Sigmoid"}, {"Clip", "Exp", "Softsign"}


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda b, s, w: s, EXACT),
        (lambda b, s, w: b.log(s), EXACT),
        (lambda b, s, w: b.mul(s, s), EXACT),
        (lambda b, s, w: b.log(b.add(b.reshape(s, [16]), 1e-7)), EXACT),
        (lambda b, s, w: b.conv2d(b.div(1.0, s), w), EXACT),
        (lambda b, s, w: b.add(s, b.conv2d(s, w)), EXACT),
        (lambda b, s, w: b.conv2d(s, w), SIGMOID),
        (lambda b, s, w: b.log(b.conv2d(s, w)), SIGMOID),
        (lambda b, s, w: b.matmul(b.mul(s, s), b.max_pool2d(b.concat([s, s], 2), window_dimensions=[5, 1])), SIGMOID),
    ],
)
def test_sigmoid_before_sums_uses_engine_kernel(build: Any, wanted: set[str]) -> None:
    def network(b: ow.MLGraphBuilder, x: ow.MLOperand) -> Any:
        return build(b, b.sigmoid(x), b.constant(np.ones((1, 1, 1, 1), "float32")))

    assert set(kernels_of(network, 1, 1, 4, 4)) & (SIGMOID | EXACT) == wanted


def test_graph_without_inputs() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context())
    graph = builder.build({"y": builder.exp(builder.constant("float32", 0))})
    assert builder.context.compute(graph, {})["y"] == 1


def test_names_of_users_never_reach_the_engine() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context())
    x = builder.input("t1 \N{SNOWMAN} c0", "float32", [1])
    graph = builder.build({"i0": builder.exp(x, label="\0"), "o0": builder.neg(x, label="\0")})
    got = builder.context.compute(graph, {"t1 \N{SNOWMAN} c0": np.zeros(1, "float32")})
    assert got["i0"] == 1
    assert got["o0"] == 0


def decompose(build: Any, core: Any) -> Graph:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    graph = Graph.reaching(build(builder))
    return legalise(graph, core)[0]


def test_decompositions_are_recursive_and_labelled() -> None:
    def build(b: ow.MLGraphBuilder) -> Any:
        x = b.input("x", "float32", [2, 3])
        return {"y": b.softmax(x, 1, label="head")}

    def core(node: Node) -> bool:
        return node.op.decomposition is None

    graph = decompose(build, core)
    assert all(core(node) for node in graph.nodes)
    assert {node.label.split("/")[0] for node in graph.nodes} == {"head"}
    assert graph.outputs["y"].shape == (2, 3)


def test_decompose_rejects_unsupported_core_operation() -> None:
    def build(b: ow.MLGraphBuilder) -> Any:
        return {"y": b.exp(b.input("x", "float32", [2]), label="e")}

    with pytest.raises(ow.NotSupportedError, match=r"exp 'e': the back end given has no rule for float32\[2\]"):
        decompose(build, lambda node: False)


def test_decompositions_end_in_core_operations() -> None:
    """Each decomposition ends in operations that have none."""
    from opweave.inspect.support import main_operand, smallest_call

    for op in Operations.listing().values():
        data_types = op.limits[main_operand(op)].data_types
        operand = smallest_call(op, data_types[0])
        graph, _ = legalise(Graph.reaching({"y": operand}), lambda node: node.op.decomposition is None)
        assert graph.outputs["y"].desc == operand.desc


def test_graphs_print_readably() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context())
    x = builder.input("x", "float32", [1, 3, 8, 8])
    w = builder.constant(np.zeros((4, 3, 3, 3), "float32"))
    y = builder.conv2d(x, w, padding=[1, 1, 1, 1], label="stem").relu()
    a, b = builder.split(y, 2, axis=1)
    text = str(Graph.reaching({"y": builder.concat([a, b], 1)}))
    assert text.splitlines() == [
        "graph(x: float32[1, 3, 8, 8]) -> (y: float32[1, 4, 8, 8]):",
        "  %0 = conv2d(x, const float32[4, 3, 3, 3], padding=[1, 1, 1, 1])  # 'stem'",
        "  %1 = relu(%0)",
        "  %2, %3 = split(%1, 2, axis=1)",
        "  %4 = concat([%2, %3], 1)",
        "  y = %4",
    ]


# Numbers that the engine's own int64 kernels confuse differ in bit 31, and not above it.
FAR = np.array([0, 1, -1, 5, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**31), -(2**31) - 1, -(2**32), -(2**63)])
A, B = (np.ascontiguousarray(side.ravel()) for side in np.meshgrid(FAR, FAR))


@pytest.mark.parametrize(
    ("op_type", "operands", "wanted"),
    [
        ("Max", (A, B), np.maximum(A, B)),
        ("Min", (A, B), np.minimum(A, B)),
        ("Min", (A, B, A[::-1]), np.minimum(np.minimum(A, B), A[::-1])),
        ("Clip", (A, np.array(-5), np.array(7)), np.clip(A, -5, 7)),
        ("Clip", (A, None, np.array(2**31)), np.minimum(A, 2**31)),
        ("Clip", (A, np.array(-1)), np.maximum(A, -1)),
    ],
)
def test_int64_is_compared_rightly(op_type: str, operands: tuple[Any, ...], wanted: np.ndarray) -> None:
    import onnxruntime

    ctx = Emitter()
    ctx.node = Node(Operations.listing()["add"], {}, {}, "", 0)
    # Inputs, because the engine folds constants with the same kernels.
    descs = [None if a is None else Desc("int64", a.shape) for a in operands]
    values = [None if d is None else ctx.add_input(f"x{i}", d) for i, d in enumerate(descs)]
    model, _ = ctx.finish({"y": (ctx.emit(op_type, *values), Desc("int64", wanted.shape))})
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = {f"x{i}": np.ascontiguousarray(a) if a.ndim else a for i, a in enumerate(operands) if a is not None}
    np.testing.assert_array_equal(session.run(None, feeds)[0], wanted)


def test_signs_of_int64_are_right() -> None:
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.sign(builder.input("x", "int64", FAR.shape))})
    np.testing.assert_array_equal(context.compute(graph, {"x": FAR})["y"], np.sign(FAR))
