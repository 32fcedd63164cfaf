"""Arguments that are wrong in unusual ways: messages stay short and are never errors themselves; what cannot be pickled."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave import ops
from opweave.support.errors import MAX_MESSAGE_CHARACTERS
from opweave.support.names import short_repr

HUGE = 10**5000  # more digits than Python writes


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class BrokenArray(np.ndarray[Any, Any]):
    def __repr__(self) -> str:
        raise ValueError("no")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


VALUES = {
    "huge integer": HUGE,
    "list of huge integers": [HUGE] * 3,
    "deep list": nested(100_000),
    "broken repr": Broken(),
    "broken array": np.zeros((2, 3)).view(BrokenArray),
    "long text": "x" * 10**6,
    "range": range(10**9),
    "endless": itertools.count(),
    "dictionary": {Broken(): HUGE},
    "bytes": bytes(10**6),
    "long list": [1] * 10**6,
}


@pytest.fixture
def builder() -> ow.MLGraphBuilder:
    return ow.MLGraphBuilder(ow.ml.create_context())


CALLS: dict[str, Callable[[ow.MLGraphBuilder, Any], object]] = {
    "shape": lambda b, v: b.input("x", "float32", v),
    "dimension": lambda b, v: b.input("x", "float32", [v, 2**40]),
    "name": lambda b, v: b.input(v if not isinstance(v, str) else 1, "float32", [1]),
    "data type": lambda b, v: b.input("x", v, [1]),
    "operand": lambda b, v: b.relu(v),
    "axes": lambda b, v: b.reduce_sum(b.input("x", "float32", [2, 2]), axes=v),
    "axis": lambda b, v: b.softmax(b.input("x", "float32", [2, 2]), v),
    "new shape": lambda b, v: b.reshape(b.input("x", "float32", [2, 2]), v),
    "alpha": lambda b, v: b.elu(b.input("x", "float32", [2, 2]), alpha=v),
    "flag": lambda b, v: b.reduce_sum(b.input("x", "float32", [2, 2]), keep_dimensions=v),
    "choice": lambda b, v: b.pad(b.input("x", "float32", [2]), [1], [1], mode=v),
    "outputs": lambda b, v: b.build(v),
    "output": lambda b, v: b.build({"y": v}),
    "label": lambda b, v: b.relu(b.input("x", "float32", [2, 2]), label=v if not isinstance(v, str) else 1),
    "tensor": lambda b, v: b.context.create_tensor("float32", v),
    "feeds": lambda b, v: b.context.compute(b.build({"y": b.relu(b.input("x", "float32", [2, 2]))}), v),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", VALUES)
def test_error_messages_of_any_value_are_short(builder: ow.MLGraphBuilder, value: str, call: str) -> None:
    with pytest.raises((ow.ValidationError, ow.NotSupportedError)) as caught:
        CALLS[call](builder, VALUES[value])
    assert len(str(caught.value)) <= MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize("value", VALUES)
def test_shown_is_bounded(value: str) -> None:
    assert 0 < len(short_repr(VALUES[value])) <= 500


def test_builder_stops_reading_long_sequences(builder: ow.MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [2, 2])
    taken = 0

    def endless() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield 0

    with pytest.raises(ow.ValidationError, match="reduce_sum: axes must have at most 1,048,576 values"):
        builder.reduce_sum(x, axes=endless())
    assert taken < 2 * 10**6
    with pytest.raises(
        ow.ValidationError, match=r"reduce_sum: axes must have at most 1,048,576 values, got range\(0, 10+\)"
    ):
        builder.reduce_sum(x, axes=range(10**9))


# ---------------------------------------------------------------------------------------------------------------------
# The order of checks, and rules of the specification


def test_builder_reports_wrong_types_after_build(builder: ow.MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [2, 2])
    y = builder.relu(x)
    builder.build({"y": y})
    wrong: list[Callable[[], object]] = [
        lambda: builder.relu("x"),  # type: ignore[arg-type]
        lambda: builder.softmax(x, "first"),  # type: ignore[arg-type]
        lambda: builder.softmax(x),  # type: ignore[call-arg]
        lambda: builder.input("y", "float64", [1]),  # type: ignore[arg-type]
        lambda: builder.input("y", "float32", ["a"]),  # type: ignore[list-item]
        lambda: builder.constant("float64", 1.0),  # type: ignore[call-overload]
        lambda: builder.build({"y": 1}),  # type: ignore[dict-item]
        lambda: builder.build(None),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(TypeError):
            call()
    right: list[Callable[[], object]] = [
        lambda: builder.relu(x),
        lambda: builder.softmax(x, 7),
        lambda: builder.input("", "float32", [1]),
        lambda: builder.input("y", "float32", [0]),
        lambda: builder.constant("float32", 1.0),
        lambda: builder.constant(np.float32([1])),
        lambda: builder.build({}),
        lambda: builder.build({"": y}),
    ]
    for call in right:
        with pytest.raises(ow.InvalidStateError, match="the builder has built its graph"):
            call()


def test_build_rejects_two_reachable_inputs_of_one_name() -> None:
    context = ow.ml.create_context()
    builder = ow.MLGraphBuilder(context)
    first, second = builder.input("x", "float32", [2]), builder.input("x", "float32", [3])
    both = builder.concat([first, second], 0)
    with pytest.raises(ow.ValidationError, match=r"build: two inputs are named 'x': float32\[.\] and float32\[.\]"):
        builder.build({"y": both})
    graph = builder.build({"y": builder.relu(first)})
    assert context.compute(graph, {"x": np.float32([-1, 1])})["y"].tolist() == [0, 1]


def test_limits_of_outputs_are_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ow.ml.create_context()
    backend = context.backend
    original = backend.limits

    def limits(op: Any) -> Any:
        found = dict(original(op))
        if op.name == "arg_min":
            found["output"] = ow.Limits(("int32",))
        return found

    monkeypatch.setattr(backend, "limits", limits)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2])
    assert builder.arg_min(x, 0).data_type == "int32"
    with pytest.raises(ow.ValidationError, match=r"arg_min 'where': the result must be int32, got int64\[\]"):
        builder.arg_min(x, 0, output_data_type="int64", label="where")


@pytest.mark.parametrize(
    ("size", "scale", "wanted"),
    [
        (10, 0.7, 6),
        (2**24 + 1, 1.0, 2**24 + 1),
        (3, 1 / 3, 1),
        (4, 0.25, 1),
        (7, 1.5, 10),
        (10, 0.69999, 6),
        (1, 65.0, 65),
    ],
)
def test_sizes_of_resample2d_are_exact_products(
    builder: ow.MLGraphBuilder, size: int, scale: float, wanted: int
) -> None:
    x = builder.input("x", "uint8", [1, 1, 1, size])
    assert builder.resample2d(x, scales=[1.0, scale]).shape == (1, 1, 1, wanted)


def test_scales_of_resample2d_are_floats(builder: ow.MLGraphBuilder) -> None:
    x = builder.input("x", "float32", [1, 1, 2, 2])
    for scale in (1e39, 1e-60):
        with pytest.raises(ow.ValidationError, match="resample2d: scales must be within the range of float32, got"):
            builder.resample2d(x, scales=[1.0, scale])


# ---------------------------------------------------------------------------------------------------------------------
# Composites, pickling


def test_composite_may_return_constants_and_operands() -> None:
    @ow.composite
    def mixed(b: Any, x: ow.MLOperand) -> Any:
        return x, b.constant(np.float32([1, 2])), x + 1

    for device in ("cpu", "reference"):
        context = ow.ml.create_context(device=device)
        builder = ow.MLGraphBuilder(context)
        results = mixed(builder, builder.input("x", "float32", [2]))
        graph = builder.build({"a": results[0], "b": results[1], "c": results[2]})
        found = context.compute(graph, {"x": np.float32([5, 6])})
        assert [found[name].tolist() for name in "abc"] == [[5, 6], [1, 2], [6, 7]]
    assert [part.tolist() for part in mixed(np.float32([5, 6]))] == [[5, 6], [1, 2], [6, 7]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b: b.context, r"a context .* cannot be copied or pickled; pickle the name of the device, 'cpu'"),
        (lambda b: b, "a builder .* cannot be copied or pickled; pickle the function that builds the graph"),
        (lambda b: b.build({"y": b.relu(b.input("x", "float32", [1]))}), r"a graph .* graph\.save\(path\) writes it"),
        (lambda b: b.input("x", "float32", [1]), "an operand .* cannot be copied or pickled"),
        (lambda b: b.context.create_tensor("float32", [1]), "a tensor .* cannot be copied or pickled"),
    ],
)
def test_pickle_of_context_objects_names_alternative(
    builder: ow.MLGraphBuilder, make: Callable[[ow.MLGraphBuilder], object], message: str
) -> None:
    made = make(builder)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=message):
            attempt(made)  # type: ignore[operator]


@ow.jit
def doubled(x: ow.Array) -> ow.Array:
    return x + x


def test_jitted_functions_are_pickled_by_name() -> None:
    doubled(np.ones(2, "float32"))
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.deepcopy({"f": doubled})["f"] is doubled


def test_builders_show_their_inputs() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    assert repr(builder) == "<MLGraphBuilder () on reference>"
    x = builder.input("x", "float32", [2, 3])
    assert repr(builder) == "<MLGraphBuilder (x: float32[2, 3]) on reference>"
    builder.build({"y": builder.relu(x)})
    assert repr(builder) == "<MLGraphBuilder (x: float32[2, 3]), built on reference>"


def test_operations_and_descriptors_can_be_pickled() -> None:
    for value in (ow.Desc("float32", (1, 2)), ow.Limits(("float32",)), ops.relu):
        copied = pickle.loads(pickle.dumps(value))
        assert copied is value or copied == value


def line_model() -> Any:
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "line", [x], [y])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("form", ["path", "bytes", "proto"])
def test_sessions_are_pickled_by_path_or_bytes(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = line_model()
    (tmp_path / "line.onnx").write_bytes(proto.SerializeToString())
    monkeypatch.chdir(tmp_path)
    model = {"path": "line.onnx", "bytes": proto.SerializeToString(), "proto": proto}[form]
    session = ow.InferenceSession(model, fix_shapes={"n": 3}, specialise="never")
    pickled = pickle.dumps(session)
    assert (b"line.onnx" in pickled) == (form == "path")
    monkeypatch.chdir("/")
    x = np.float32([1, 2, 3])
    for made in (pickle.loads(pickled), copy.copy(session), copy.deepcopy({"s": session})["s"]):
        assert made is not session
        assert made.get_inputs()[0].shape == [3]
        assert made.run(None, {"x": x})[0].tolist() == [2, 4, 6]


def test_pickle_of_session_names_obstacle() -> None:
    import onnxruntime as runtime

    model = line_model().SerializeToString()
    with pytest.raises(
        TypeError, match=r"in a context of the caller's cannot be copied or pickled; .* the device, 'cpu'"
    ):
        pickle.dumps(ow.InferenceSession(model, context=ow.ml.create_context()))
    with pytest.raises(TypeError, match="a session with SessionOptions cannot be copied or pickled"):
        pickle.dumps(ow.InferenceSession(model, runtime.SessionOptions()))
