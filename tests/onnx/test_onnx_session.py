"""What `InferenceSession` promises: names, types and shapes, compiled models, threads, fallback, and messages."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from session_models import CONTEXT, X, Y, message, mixed_model, session, sum_model
from support.onnx import BOOL, DOUBLE, FLOAT, STRING, model, node
from support.onnx_nodes import compiled_models

import opweave as ow
from opweave.backends.onnxruntime.model import ModelSession
from opweave.backends.onnxruntime.sessions import SPIN_MICROSECONDS

# Inputs and outputs --------------------------------------------------------------------------------------------------


def test_get_inputs_and_outputs_equal_onnxruntime() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    optional = helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2])))
    nodes = [node("SequenceAt", "s i", "z"), node("Identity", "t", "u"), node("Identity", "d", "e")]
    nodes += [node("OptionalHasElement", "o", "h")]
    inputs = [sequence, ("i", TensorProto.INT64, []), ("t", STRING, ["n", None]), ("d", DOUBLE, [2]), optional]
    proto = model(nodes, inputs, [("z", FLOAT, None), ("u", STRING, ["n", None]), ("e", DOUBLE, [2]), ("h", BOOL, [])])
    ours, theirs = session(proto), onnxruntime.InferenceSession(proto.SerializeToString())
    for got, wanted in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(a.name, a.type, a.shape) for a in got] == [(a.name, a.type, a.shape) for a in wanted]
    assert [a.type for a in ours.get_inputs()][:2] == ["seq(tensor(float))", "tensor(int64)"]


def test_get_inputs_omits_initializers() -> None:
    proto = model([node("Add", "x w", "z")], [("x", FLOAT, [3]), ("w", FLOAT, [3])], [("z", FLOAT, [3])], {"w": X[0]})
    s = session(proto)
    assert [a.name for a in s.get_inputs()] == ["x"]
    assert s.run(None, {"x": Y[0]})[0].tolist() == (X[0] + Y[0]).tolist()


def test_run_returns_outputs_in_requested_order() -> None:
    nodes = [node("Relu", "x", "a"), node("Neg", "x", "b"), node("Abs", "x", "c")]
    proto = model(nodes, [("x", FLOAT, [2, 3])], [(name, FLOAT, [2, 3]) for name in "abc"])
    s = session(proto)
    everything = s.run(None, {"x": X})
    assert [array.tolist() for array in everything] == [np.maximum(X, 0).tolist(), (-X).tolist(), np.abs(X).tolist()]
    assert [array.tolist() for array in s.run([], {"x": X})] == [array.tolist() for array in everything]
    c, a, again = s.run(["c", "a", "c"], {"x": X})
    assert (c.tolist(), a.tolist(), again.tolist()) == (np.abs(X).tolist(), np.maximum(X, 0).tolist(), c.tolist())
    assert not np.shares_memory(c, again)


@pytest.mark.parametrize(
    ("names", "feed", "text"),
    [
        (["q"], {"x": X, "y": Y}, "output_names must be among ['z']; unknown: ['q']"),
        ("z", {"x": X, "y": Y}, "output_names must be a list of names, got 'z'"),
        (None, {"x": X}, "inputs must hold ['x', 'y']; missing: ['y']"),
        (None, {"x": X, "y": Y, "w": X}, "inputs must hold ['x', 'y']; unknown: ['w']"),
        (None, [X, Y], "inputs must map names to arrays, got list"),
        (None, {"x": X, "y": Y.astype("float64")}, "input 'y' must be tensor(float), got an array of float64"),
        (None, {"x": X, "y": Y.astype(">f4")}, "input 'y' must be tensor(float), got an array of >f4"),
        (None, {"x": X, "y": [1, 2]}, "input 'y' must have shape [batch, 3], got [2]"),
        (None, {"x": X, "y": [[1], [2, 3]]}, "input 'y' must be tensor(float) or convert to it, got list"),
        (None, {"x": X, "y": ["a"]}, "input 'y' must be tensor(float) or convert to it, got list"),
        (None, {"x": X, "y": None}, "input 'y' must be tensor(float), got an array of object"),
        (None, {"x": X, "y": "text"}, "input 'y' must be tensor(float), got an array of <U4"),
        (None, {"x": X, "y": Y[:, :2]}, "input 'y' must have shape [batch, 3], got [2, 2]"),
        (None, {"x": X, "y": Y[0]}, "input 'y' must have shape [batch, 3], got [3]"),
        (None, {"x": X, "y": np.ma.masked_array(Y, Y > 0)}, "input 'y' must not be masked"),
    ],
)
def test_run_rejects_wrong_arguments(names: Any, feed: Any, text: str) -> None:
    s = session(sum_model())
    assert message(lambda: s.run(names, feed)).startswith(text)
    s.run(None, {"x": X, "y": Y})  # the call after one that went well is checked in another way
    assert message(lambda: s.run(names, feed)).startswith(text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fallback": "never"}, "fallback must be 'auto' or 'error', got 'never'"),
        ({"fix_shapes": {"batch": 0}}, "fix_shapes: 'batch' must be a positive integer, got 0"),
        ({"fix_shapes": {"batch": "2"}}, "fix_shapes: 'batch' must be a positive integer, got '2'"),
        (
            {"fix_shapes": {"time": 2}},
            "fix_shapes: no input or dimension is called 'time'; inputs: ['x', 'y'], dimensions: ['batch']",
        ),
        ({"fix_shapes": {"batch": [2]}}, "fix_shapes: 'batch' must be a positive integer, got [2]"),
        ({"fix_shapes": {"x": [2, 4]}}, "fix_shapes: input 'x' has the shape [batch, 3], which [2, 4] does not fit"),
        ({"fix_shapes": {"x": 2}}, "fix_shapes: input 'x' has the shape [batch, 3], which [2] does not fit"),
        ({"fix_shapes": {"x": [2, 0]}}, "fix_shapes: each size of 'x' must be a positive integer, got 0"),
        (
            {"preferred_output_location": "gpu"},
            "preferred_output_location of 'z' must be 'cpu' or 'ml-tensor', got 'gpu'",
        ),
        (
            {"preferred_output_location": {"q": "cpu"}},
            "preferred_output_location: outputs must be among ['z']; unknown: ['q']",
        ),
    ],
)
def test_session_names_invalid_option(options: Any, text: str) -> None:
    assert message(lambda: session(sum_model(), **options)) == text


def test_fix_shapes_rejects_sequences() -> None:
    inputs = [helper.make_tensor_sequence_value_info("s", FLOAT, None), ("i", TensorProto.INT64, [])]
    proto = model([node("SequenceAt", "s i", "z")], inputs, [("z", FLOAT, None)])
    text = "fix_shapes: input 's' is seq(tensor(float)); only shapes of tensors can be fixed"
    assert message(lambda: session(proto, fix_shapes={"s": [2]})) == text


def test_session_checks_context() -> None:
    assert message(lambda: ow.InferenceSession(sum_model(), context="cpu")) == "context must be an MLContext, got str"
    text = "sess_options must be onnxruntime.SessionOptions, or an MLContext for context, got str"
    assert message(lambda: ow.InferenceSession(sum_model(), "cpu")) == text
    context = ow.ml.create_context(device="cpu")
    s = ow.InferenceSession(sum_model(), context)
    assert s.context is context
    context.destroy()
    assert "the context is lost" in message(lambda: s.run(None, {"x": X, "y": Y}), ow.InvalidStateError)


def test_session_accepts_path_bytes_or_proto(tmp_path: Path) -> None:
    proto = sum_model()
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    wanted = np.maximum(X + Y, 0).tolist()
    for source in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), proto):
        assert ow.InferenceSession(source, CONTEXT).run(None, {"x": X, "y": Y})[0].tolist() == wanted
    assert ow.InferenceSession(path).run(None, {"x": X, "y": Y})[0].tolist() == wanted


# Shapes ----------------------------------------------------------------------------------------------------


def test_specialise_always_compiles_each_shape_once() -> None:
    s = session(sum_model(), specialise="always")
    assert s.shapes() == {}
    for size in range(1, 10):
        x = np.full((size, 3), 2, np.float32)
        assert s.run(None, {"x": x, "y": x})[0].tolist() == [[4, 4, 4]] * size
    assert s.shapes() == {f"x [{size}, 3], y [{size}, 3]": "compiled" for size in range(1, 10)}
    s.run(None, {"x": X[:1], "y": Y[:1]})
    assert list(s.shapes()) == [f"x [{size}, 3], y [{size}, 3]" for size in (*range(2, 10), 1)]


def test_fix_shapes_compiles_at_construction_and_rejects_others() -> None:
    s = session(sum_model(), fix_shapes={"batch": np.int64(2)})
    assert s.shapes() == {"x [2, 3], y [2, 3]": "compiled"}
    assert s.get_inputs()[0].shape == [2, 3]
    assert s.run(None, {"x": X, "y": Y})[0].tolist() == np.maximum(X + Y, 0).tolist()
    assert message(lambda: s.run(None, {"x": X[:1], "y": Y[:1]})) == "input 'x' must have shape [2, 3], got [1, 3]"
    assert len(s.shapes()) == 1


def test_run_takes_any_rank_where_none_is_declared() -> None:
    s = session(model([node("Abs", "x", "z")], [("x", FLOAT, None)], [("z", FLOAT, None)]))
    for shape in ((), (2,), (1, 2, 3)):
        x = np.full(shape, -1, np.float32)
        got = s.run(None, {"x": x})[0]
        assert (got.shape, got.min()) == (shape, 1)


def test_scalars() -> None:
    s = session(model([node("Add", "x y", "z")], [("x", FLOAT, []), ("y", FLOAT, [])], [("z", FLOAT, [])]))
    got = s.run(None, {"x": np.float32(1), "y": np.array(2, np.float32)})[0]
    assert got.shape == ()
    assert got == 3
    text = message(lambda: s.run(None, {"x": np.float32([1]), "y": np.float32(2)}))
    assert text == "input 'x' must have shape [], got [1]"


def test_empty_tensors_run_through_the_fallback() -> None:
    s = session(sum_model())
    empty = np.zeros((0, 3), np.float32)
    assert s.run(None, {"x": empty, "y": empty})[0].shape == (0, 3)
    assert s.run(None, {"x": X, "y": Y})[0].shape == (2, 3)


def test_repeated_run_takes_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    s = session(sum_model(), specialise="always")
    s.run(None, {"x": X, "y": Y})
    monkeypatch.setattr(s._parts.shape_cache, "select", lambda *_: pytest.fail("the long way"))
    first = s.run(None, {"x": X, "y": Y})[0]
    kept, out = first.copy(), np.empty((2, 3), np.float32)
    x = X.copy()
    x.flags.writeable = False
    second = s.run(None, {"y": X, "x": x})[0]
    assert (first.tolist(), second.tolist()) == (kept.tolist(), np.maximum(X + X, 0).tolist())
    assert not np.shares_memory(first, second)
    assert s.run(None, {"x": Y, "y": Y}, out={"z": out})[0] is out
    assert out.tolist() == np.maximum(Y + Y, 0).tolist()


def test_run_with_changed_arguments_takes_long_way() -> None:
    nodes = [node("Relu", "x", "a"), node("Neg", "x", "b"), node("Identity", "x", "c")]
    proto = model(nodes, [("x", FLOAT, ["n", 3])], [(name, FLOAT, ["n", 3]) for name in "abc"])
    s = session(proto)
    for _ in range(2):
        assert [array.tolist() for array in s.run(None, {"x": X})] == [
            np.maximum(X, 0).tolist(),
            (-X).tolist(),
            X.tolist(),
        ]
        assert [array.tolist() for array in s.run(["b", "a"], {"x": X})] == [(-X).tolist(), np.maximum(X, 0).tolist()]
        assert s.run(("b",), {"x": X[:1]})[0].tolist() == (-X[:1]).tolist()
        assert s.run(["b"], {"x": X.T.copy().T})[0].tolist() == (-X).tolist()
        c = s.run(["c"], {"x": X})[0]
        assert c.tolist() == X.tolist()
        assert not np.shares_memory(c, X)


@pytest.mark.parametrize("shape", [[2, 3], ["n", 3]], ids=["numbers", "names"])
def test_threads_of_a_compiled_model_spin_like_those_of_the_engine(shape: list[Any]) -> None:
    proto = model([node("Relu", "x", "a")], [("x", FLOAT, shape)], [("a", FLOAT, shape)])
    s = ow.InferenceSession(proto, fallback="error")
    s.run(None, {"x": X})
    (compiled,) = compiled_models(s)
    runners: list[Any] = [step.part.runner for step in compiled.program.steps if step.part]
    (options,) = (runner._session._sess.session_options for runner in runners)
    with pytest.raises(RuntimeError, match="spin_duration_us"):  # it is not set
        options.get_session_config_entry("session.intra_op.spin_duration_us")


@pytest.mark.parametrize(
    ("preference", "entries"),
    [
        ("default", {"session.intra_op.spin_duration_us": str(SPIN_MICROSECONDS["least"])}),
        ("low-power", {"session.intra_op.allow_spinning": "0"}),
    ],
)
def test_fallback_threads_spin_like_those_of_parts(preference: Any, entries: dict[str, str]) -> None:
    context = ow.ml.create_context(device="cpu", power_preference=preference)
    s = ow.InferenceSession(mixed_model(), context)
    (compiled,) = compiled_models(s)
    runners: list[Any] = [step.part.runner for step in compiled.program.steps if step.part]
    engines = [each.session if isinstance(each, ModelSession) else each._session._sess for each in runners]
    assert len(engines) > 2
    for engine in engines:
        options = engine.session_options
        assert {key: options.get_session_config_entry(key) for key in entries} == entries


@pytest.mark.parametrize(("opset", "written"), [(7, "Sum"), (8, "Add")])
def test_sum_of_two_is_fused_into_convolution(opset: int, written: str) -> None:
    """From operator set 8 on, Sum broadcasts as Add does."""
    x, w = np.ones((1, 8, 6, 6), np.float32), np.full((8, 8, 1, 1), 0.5, np.float32)
    nodes = [node("Conv", "x w", "c"), node("Sum", "c x", "s"), node("Relu", "s", "r"), node("Sum", "r c x", "y")]
    proto = model(nodes, [("x", FLOAT, x.shape)], [("y", FLOAT, x.shape)], {"w": w})
    proto.opset_import[0].version = opset
    run = ModelSession(proto, {}, "default").returning([0])
    np.testing.assert_array_equal(run([x])[0], x * 10)
    assert [each.op_type for each in proto.graph.node] == ["Conv", written, "Relu", "Sum"]


def test_repeated_run_rejects_lost_context() -> None:
    context = ow.ml.create_context(device="cpu")
    s = ow.InferenceSession(sum_model(), context)
    s.run(None, {"x": X, "y": Y})
    context.destroy()
    assert "the context is lost" in message(lambda: s.run(None, {"x": X, "y": Y}), ow.InvalidStateError)


def test_compiling_new_shape_does_not_block_other_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    s = session(sum_model(), specialise="always")
    s.run(None, {"x": X, "y": Y})
    started, go = Event(), Event()
    trace, compiled = s._parts.shape_cache._trace, []

    def slow(shapes: Any, *others: Any) -> Any:
        compiled.append(shapes)
        started.set()
        assert go.wait(300)
        return trace(shapes, *others)

    monkeypatch.setattr(s._parts.shape_cache, "_trace", slow)
    one = {"x": X[:1], "y": Y[:1]}
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(s.run, None, one) for _ in range(2)]
        try:
            assert started.wait(300)
            s._repeats.last = None  # the long way, which looks for the compiled model
            got = pool.submit(s.run, None, {"x": X, "y": Y}).result(300)
            assert not any(future.done() for future in waiting)
        finally:
            go.set()
        results = [future.result(300)[0].tolist() for future in waiting]
    assert got[0].tolist() == np.maximum(X + Y, 0).tolist()
    assert results == [np.maximum(X[:1] + Y[:1], 0).tolist()] * 2
    assert (len(compiled), list(s.shapes().values())) == (1, ["compiled"] * 2)


# Running -------------------------------------------------------------------------------------------------------------


def test_run_async() -> None:
    s = session(sum_model())

    async def both() -> list[list[Any]]:
        return await asyncio.gather(*(s.run_async(None, {"x": X, "y": k * Y}) for k in range(4)))

    for k, (z,) in enumerate(asyncio.run(both())):
        assert z.tolist() == np.maximum(X + k * Y, 0).tolist()


@pytest.mark.parametrize("proto", [sum_model(), mixed_model(["n", 64])], ids=["webnn", "mixed"])
def test_run_in_threads_with_different_shapes(proto: onnx.ModelProto) -> None:
    s = session(proto)
    names = [argument.name for argument in s.get_inputs()]
    width = s.get_inputs()[0].shape[1]
    reference = onnxruntime.InferenceSession(proto.SerializeToString())
    rng = np.random.default_rng(0)
    feeds = [{name: rng.standard_normal((1 + k % 3, width)).astype(np.float32) for name in names} for k in range(60)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda feed: s.run(None, feed)[0], feeds))
    for feed, got in zip(feeds, results, strict=True):
        np.testing.assert_allclose(got, reference.run(None, feed)[0], rtol=1e-6)


# Fallback and explanations -------------------------------------------------------------------------------------------


def test_fallback_can_be_refused() -> None:
    nodes = [node("Relu", "x", "a"), helper.make_node("NonZero", ["a"], ["z"], name="where")]
    proto = model(nodes, [("x", FLOAT, [2, 3])], [("z", TensorProto.INT64, None)])
    text = message(lambda: session(proto, fallback="error"), ow.NotSupportedError)
    assert text.startswith("NonZero 'where' cannot run on WebNN: ")
    dynamic = model(nodes, [("x", FLOAT, ["n", 3])], [("z", TensorProto.INT64, None)])
    s = session(dynamic, fallback="error")
    assert "NonZero 'where'" in message(lambda: s.run(None, {"x": X}), ow.NotSupportedError)
    assert session(sum_model(), fallback="error").run(None, {"x": X, "y": Y})[0].shape == (2, 3)


def test_explain_lists_placement_with_reasons() -> None:
    text = session(mixed_model()).explain()
    assert re.search(r"section 0: 1 node, WebNN on cpu \(ONNX Runtime\)\n  Relu\n", text)
    assert re.search(r"ONNX Runtime \(fallback\)\n  Cast: .+\n  Cast: .+\n", text)
    assert text.endswith("0 nodes computed when the model was compiled")


def test_explain_of_dynamic_model() -> None:
    s = session(sum_model())
    assert s.explain().startswith("your program runs this on ONNX Runtime, uncompiled, because no other way")
    assert "section 0: 2 nodes" in s.explain({"y": [2, 3], "x": (2, 3)})
    assert message(lambda: s.explain({"x": [2, 3]})) == "input_shapes must hold ['x', 'y']; missing: ['y']"
    assert message(lambda: s.explain({"x": [2, 3], "y": [2]})) == "input 'y' must have shape [batch, 3], got [2]"
    s.run(None, {"x": X, "y": Y})
    assert "section 0: 2 nodes" in s.explain()


def test_custom_and_unknown_operators_are_named() -> None:
    proto = model([helper.make_node("Frob", ["x"], ["z"], domain="my.ops")], [("x", FLOAT, [2])], [("z", FLOAT, [2])])
    proto.opset_import.append(helper.make_opsetid("my.ops", 1))
    start = "Frob: neither Opweave nor ONNX Runtime has the operator Frob of the domain 'my.ops'; "
    assert message(lambda: session(proto), ow.OperationError).startswith(start)
    assert message(lambda: session(proto, fallback="error"), ow.OperationError).startswith(start)


def test_model_function_is_inlined() -> None:
    nodes = [node("Mul", "a a", "b"), helper.make_node("Add", ["b", "a"], ["c"])]
    function = helper.make_function("my.ops", "Twice", ["a"], ["c"], nodes, [helper.make_opsetid("", 21)])
    proto = model([helper.make_node("Twice", ["x"], ["z"], domain="my.ops")], [("x", FLOAT, [2])], [("z", FLOAT, [2])])
    proto.opset_import.append(helper.make_opsetid("my.ops", 1))
    proto.functions.append(function)
    got = session(proto, fallback="error").run(None, {"x": np.float32([2, 3])})[0]
    assert got.tolist() == [6, 12]


def test_fallback_runs_operator_set_newer_than_engine() -> None:
    graph = model([node("NonZero", "x", "z")], [("x", FLOAT, [3])], [("z", TensorProto.INT64, None)]).graph
    newest = onnx.defs.onnx_opset_version()
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", newest)], ir_version=onnx.IR_VERSION)
    assert session(proto).run(None, {"x": X[0]})[0].tolist() == [[0, 1, 2]]


def test_expansion_names_do_not_collide_with_names_of_the_model() -> None:
    branch = model([node("Neg", "x", "q"), node("Neg", "q", "q2"), node("Add", "q2 x", "t")], {}, {"t": "float32[3]"})
    nodes = [
        node("Abs", "x", "y/1/q"),  # what PyTorch's exporters call things
        node("If", "c", "y", then_branch=branch.graph, else_branch=branch.graph),
        node("Add", "y y/1/q", "z"),
    ]
    proto = model(nodes, {"x": "float32[3]"}, {"y": "float32[3]", "z": "float32[3]"}, {"c": True})
    y, z = ow.InferenceSession(proto, fallback="error").run(None, {"x": np.float32([1, -2, 3])})
    assert y.tolist() == [2, -4, 6]
    assert z.tolist() == [3, -2, 9]


@pytest.mark.parametrize("fallback", ["auto", "error"])
def test_reshape_with_many_shape_values(fallback: Any) -> None:
    inputs = {"x": "float32[64]", "shape": "int64[2]"}
    proto = model([node("Reshape", "x shape", "y")], inputs, {"y": "float32[a, b]"})
    session = ow.InferenceSession(proto, fallback=fallback, specialise="always")
    x = np.arange(64, dtype="float32")
    for shape in [[8, 8], [4, 16], [2, 32], [1, 64], [64, 1], [32, 2], [16, 4], [8, 8]]:
        (y,) = session.run(None, {"x": x, "shape": np.array(shape)})
        assert y.shape == tuple(shape)
    assert "WebNN" in session.explain(), "the first values keep their compiled model"
