"""What models declare and users pass, as ONNX Runtime takes it: dimensions, lists, numbers; and time to load."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import support.onnx
from onnx import TensorProto, helper

import opweave as ow
from opweave.compile import partition as passes
from opweave.core.graph import Graph
from opweave.onnx.convert.trace import Trace, TracedNode
from opweave.onnx.model.values import Dynamic
from opweave.onnx.session.compiled import sections

CONTEXT = ow.ml.create_context(device="cpu")
FLOAT = TensorProto.FLOAT


def model(nodes: Sequence[onnx.NodeProto], inputs: dict[str, tuple[int, Any]], outputs: Sequence[str]) -> bytes:
    values = [(name, *declared) for name, declared in inputs.items()]
    untyped = dict.fromkeys(outputs, "")
    return support.onnx.model(nodes, values, untyped, opset=17, domains=["test.declared"]).SerializeToString()


def identity(element_type: int, shape: Any = None) -> bytes:
    return model([helper.make_node("Identity", ["x"], ["y"])], {"x": (element_type, shape)}, ["y"])


# Dimensions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dims", [[-1, 3], ["?", "?"], ["n", "n"], [None, None], [-5, -1], ["batch", 3]], ids=lambda dims: str(dims)
)
def test_session_varying_dimension_takes_any_size(dims: list[Any]) -> None:
    proto = identity(FLOAT, dims)
    session, engine = ow.InferenceSession(proto, CONTEXT), onnxruntime.InferenceSession(proto)
    assert [i.shape for i in session.get_inputs()] == [i.shape for i in engine.get_inputs()]
    for rows in (2, 1, 4):
        x = np.arange(3.0 * rows, dtype=np.float32).reshape(rows, 3)
        assert session.run(None, {"x": x})[0].tolist() == engine.run(None, {"x": x})[0].tolist() == x.tolist()


def test_session_equal_dimension_names_take_different_sizes() -> None:
    proto = model(
        [helper.make_node("Concat", ["x", "y"], ["z"], axis=0)], {"x": (FLOAT, ["n"]), "y": (FLOAT, ["n"])}, ["z"]
    )
    feed = {"x": np.ones(2, np.float32), "y": np.zeros(3, np.float32)}
    expected = onnxruntime.InferenceSession(proto).run(None, feed)
    assert ow.InferenceSession(proto, CONTEXT).run(None, feed)[0].tolist() == expected[0].tolist()


def test_fix_shapes_fixes_whole_input() -> None:
    proto = identity(FLOAT, [None, "time", 2])
    session = ow.InferenceSession(proto, CONTEXT, fix_shapes={"x": [1, 576, 2]})
    assert session.get_inputs()[0].shape == [1, 576, 2]
    assert session.run(None, {"x": np.ones((1, 576, 2), np.float32)})[0].shape == (1, 576, 2)
    with pytest.raises(ow.ValidationError, match=r"input 'x' must have shape \[1, 576, 2\], got \[1, 4, 2\]"):
        session.run(None, {"x": np.ones((1, 4, 2), np.float32)})
    two = model(
        [helper.make_node("Add", ["x", "y"], ["z"])], {"x": (FLOAT, None), "y": (FLOAT, [None])}, ["z"]
    )  # the rank of x is not declared, and y varies: no graph is compiled
    session = ow.InferenceSession(two, CONTEXT, fix_shapes={"x": [2, 3]})
    assert (
        session.run(None, {"x": np.ones((2, 3), np.float32), "y": np.ones(3, np.float32)})[0].tolist() == [[2] * 3] * 2
    )
    assert ow.InferenceSession(proto, CONTEXT, fix_shapes={"time": 4}).get_inputs()[0].shape == [None, 4, 2]
    assert ow.InferenceSession(identity(FLOAT, [None]), CONTEXT, fix_shapes={"x": 4}).get_inputs()[0].shape == [4]
    assert list(ow.onnx.load(proto, CONTEXT, fix_shapes={"x": (1, 576, 2)}).inputs["x"].shape) == [1, 576, 2]


# Feeds ---------------------------------------------------------------------------------------------------------------

LISTS = [
    (FLOAT, [1, 2]),
    (FLOAT, [[1, 2.5], [True, -4]]),
    (FLOAT, [np.float32(1), np.float64(2)]),
    (FLOAT, [np.ones(2), np.zeros(2)]),
    (FLOAT, [1e300]),
    (TensorProto.DOUBLE, [1, 2.5]),
    (TensorProto.FLOAT16, [1, 2.5]),
    (TensorProto.INT64, [1, 2]),
    (TensorProto.INT64, [1.5, -2.5]),
    (TensorProto.INT32, [[1], [2]]),
    (TensorProto.UINT8, [0, 255]),
    (TensorProto.BOOL, [1, 0, 7]),
    (TensorProto.STRING, ["a", "b"]),
    (TensorProto.STRING, [1, 2]),
]
REFUSED = [
    (FLOAT, ["a"]),
    (FLOAT, [[1], [2, 3]]),
    (FLOAT, [10**400]),
    (TensorProto.INT64, [2**63]),
    (TensorProto.INT32, [2**40]),
    (TensorProto.UINT8, [300]),
    (TensorProto.UINT8, [-1]),
    (FLOAT, {"a": 1}),
    (FLOAT, "1"),
    (FLOAT, np.ones(2)),
    (FLOAT, np.ones(2, np.int64)),
]


@pytest.mark.parametrize(("element_type", "value"), LISTS)
def test_lists_convert_like_onnxruntime(element_type: int, value: Any) -> None:
    proto = identity(element_type)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # 1e300 overflows
        (expected,) = onnxruntime.InferenceSession(proto).run(None, {"x": value})
        (found,) = ow.InferenceSession(proto, CONTEXT).run(None, {"x": value})
    assert found.dtype.kind == expected.dtype.kind or expected.dtype.kind == "O"
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(("element_type", "value"), REFUSED)
def test_run_rejects_inconvertible_values(element_type: int, value: Any) -> None:
    proto = identity(element_type)
    with pytest.raises(Exception):  # noqa: B017, PT011  (the engine's errors have no class of their own)
        onnxruntime.InferenceSession(proto).run(None, {"x": value})
    with pytest.raises(ow.ValidationError, match=r"^input 'x' must be tensor\("):
        ow.InferenceSession(proto, CONTEXT).run(None, {"x": value})


@pytest.mark.parametrize("value", [3, 3.0, True, np.float64(3), np.int64(3), (3,), [3]])
def test_run_converts_numbers(value: Any) -> None:
    """ONNX Runtime takes arrays and lists only; numbers mean one thing."""
    (found,) = ow.InferenceSession(identity(FLOAT), CONTEXT).run(None, {"x": value})
    assert found.dtype == np.float32
    assert found.tolist() == np.asarray(value).tolist()
    with pytest.raises(ow.ValidationError, match="must be tensor"):
        ow.InferenceSession(identity(TensorProto.UINT8), CONTEXT).run(None, {"x": np.int64(300)})


# Unknown operators --------------------------------------------------------------------------------------------------


def test_unknown_operator_error_names_register_onnx() -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], "own", domain="test.declared")
    text = (
        r"^Frobnicate 'own': neither Opweave nor ONNX Runtime has the operator Frobnicate of the domain 'test\.declared'; "
        r".* ow\.register_onnx\('test\.declared', 'Frobnicate', operation\) before the model is loaded"
    )
    with pytest.raises(ow.OperationError, match=text):
        ow.InferenceSession(model([node], {"x": (FLOAT, [2])}, ["y"]), CONTEXT)
    with pytest.raises(ow.OperationError, match=text):  # though no shape is compiled yet
        ow.InferenceSession(model([node], {"x": (FLOAT, ["n"])}, ["y"]), CONTEXT)


def test_register_onnx_mismatch_error() -> None:
    @ow.expression
    def shifted(x, *, offset: float = 1.0):  # type: ignore[no-untyped-def]
        return x + offset

    inputs = {"x": (FLOAT, [2]), "z": (FLOAT, [2])}
    ow.register_onnx("test.declared", "Shifted", shifted)
    other = helper.make_node("Shifted", ["x"], ["y"], "own", domain="test.declared", offsets=2.0)
    text = (
        r"Shifted 'own': shifted has no attribute 'offsets', only \['offset'\]; did you mean 'offset'\?; register_onnx"
    )
    with pytest.raises(ow.NotSupportedError, match=text):
        ow.InferenceSession(model([other], inputs, ["y"]), CONTEXT)
    ow.register_onnx("test.declared", "Shifted", shifted, attributes={"offsets": "offset"})
    (y,) = ow.InferenceSession(model([other], inputs, ["y"]), CONTEXT).run(
        None, dict.fromkeys("xz", np.float32([1, 2]))
    )
    assert y.tolist() == [3, 4]
    more = helper.make_node("Shifted", ["x", "z"], ["y"], "own", domain="test.declared")
    with pytest.raises(ow.NotSupportedError, match=r"Shifted 'own': it has 2 inputs, and shifted takes 1$"):
        ow.InferenceSession(model([more], inputs, ["y"]), CONTEXT)
    with pytest.raises(ow.ValidationError, match=r"Shifted needs an operation, got <function .*; @ow\.expression, "):
        ow.register_onnx("test.declared", "Shifted", lambda x: x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull"),
        (b"PK\x03\x04 archive/data.pkl", "ZIP archive"),
        (b"<!doctype html><html>", "HTML page"),
        (b"GGUF\x03\0\0\0", "opweave.chat"),
        (b"hello", "parsing"),
    ],
)
def test_session_names_format_of_other_files(start: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(start)
    with pytest.raises(ow.DataError, match=f"model.onnx: not an ONNX model .*{what}"):
        ow.InferenceSession(tmp_path / "model.onnx")


@pytest.mark.parametrize("name", ["b", "outputs", "types", "opset"])
def test_register_onnx_accepts_any_attribute_name(name: str) -> None:
    source = f"def scaled(x, *, {name}=2.0):\n    return x * {name}"
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    ow.register_onnx("test.declared", f"Scaled{name}", ow.expression(namespace["scaled"]))
    inputs = {"x": (FLOAT, [2])}
    x = np.float32([1, 2])
    for attributes, factor in (({name: 3.0}, 3), ({}, 2)):
        node = helper.make_node(f"Scaled{name}", ["x"], ["y"], domain="test.declared")
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        (y,) = ow.InferenceSession(model([node], inputs, ["y"]), CONTEXT).run(None, {"x": x})
        assert y.tolist() == (factor * x).tolist()


# Loading -------------------------------------------------------------------------------------------------------------


class Counted(str):
    """A name that counts how often a set or a dictionary asks for its hash."""

    __slots__ = ()
    asked = 0

    def __hash__(self) -> int:
        Counted.asked += 1
        return super().__hash__()


def hashes_of_partition(nodes: int) -> int:
    """How often names are looked up while a chain of nodes is divided into segments."""
    names = [Counted(f"v{k}") for k in range(nodes + 1)]
    trace = Trace(values=dict.fromkeys(names, Dynamic()))
    for k in range(nodes):
        node: Any = SimpleNamespace(input=[names[k]], output=[names[k + 1]], attribute=[])
        trace.steps.append(TracedNode(node, "webnn", None))
        trace.producer[names[k + 1]] = trace.steps[-1]
    Counted.asked = 0
    (segment,) = sections(trace, names[-1:])
    assert len(segment.nodes) == nodes
    return Counted.asked


def test_partition_of_model_is_linear_in_nodes() -> None:
    assert hashes_of_partition(400) < 2.2 * hashes_of_partition(200)


def test_partition_of_graph_is_linear_in_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def count(operand: ow.MLOperand) -> int:
        nonlocal asked
        asked += 1
        return id(operand)

    def hashes(nodes: int) -> int:
        nonlocal asked
        builder = ow.MLGraphBuilder(CONTEXT)
        value = builder.input("x", "float32", [2])
        for _ in range(nodes):
            value = builder.relu(value)
        graph = Graph.reaching({"y": value})
        with monkeypatch.context() as patch:
            patch.setattr(ow.MLOperand, "__hash__", count)
            asked = 0
            fusion: passes.LoopFusion[Any] = passes.LoopFusion("joined", lambda *_: True, lambda _: 0, most=0)
            (segment,) = passes.partition(graph, dict.fromkeys(graph.nodes, "joined"), fusion)
        assert len(segment.nodes) == nodes
        return asked

    assert hashes(400) < 2.2 * hashes(200)


def test_session_construction_trims_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(ow.memory, "trim", lambda: calls.append(1))
    session = ow.InferenceSession(identity(FLOAT, ["n"]), CONTEXT)
    session.run(None, {"x": np.ones(2, np.float32)})
    assert len(calls) == 1  # ONNX Runtime, uncompiled


def test_expansion_that_fails_leaves_no_inputs() -> None:
    """Its first nodes have names for the operands of inputs, too."""
    scale = np.ones((4, 1, 8, 2), np.float32)
    nodes = [helper.make_node("RMSNormalization", ["x", "scale"], ["y"])]
    proto = support.onnx.model(nodes, {"x": "float32[1, 1, 1, 3]"}, {"y": "float32"}, {"scale": scale}, opset=23)
    with pytest.raises(ow.OperationError, match="RMSNormalization"):
        ow.InferenceSession(proto, CONTEXT).run(None, {"x": np.ones((1, 1, 1, 3), np.float32)})
