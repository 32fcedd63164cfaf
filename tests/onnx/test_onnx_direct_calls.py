"""Calls that ONNX Runtime, uncompiled, runs at once: arrays of any shapes, which the engine checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model
from support.threads import together

import opweave as ow
from opweave.onnx.session import calls
from opweave.onnx.session.parts import SessionParts

TEXT = """
<ir_version: 8, opset_import: ["": 17]>
g (float[n, 3] x, float[3] w) => (float[n, 3] y, float[n] s) {
  y = Mul(x, w)
  s = ReduceSum <keepdims = 0> (y, axes)
}
"""

Feed = dict[str, Any]


def model() -> bytes:
    proto = parse_model(TEXT)
    proto.graph.initializer.add(name="axes", data_type=7, dims=[1], int64_data=[1])
    data: bytes = proto.SerializeToString()
    return data


def as_bytes(text: str) -> bytes:
    data: bytes = parse_model(text).SerializeToString()
    return data


def feed(rows: int = 2) -> Feed:
    return {"x": np.arange(3 * rows, dtype=np.float32).reshape(rows, 3), "w": np.float32([1, -2, 3])}


@pytest.fixture
def full_calls(monkeypatch: pytest.MonkeyPatch) -> list[Feed]:
    """The feeds of calls that took the full path."""
    found: list[Feed] = []

    def run_call(parts: SessionParts, names: Any, feed: Any, out: Any) -> list[Any]:
        found.append(feed)
        return calls.run_call(parts, names, feed, out)

    monkeypatch.setattr("opweave.onnx.session.session.run_call", run_call)
    return found


@pytest.mark.parametrize("names", [None, [], ["y", "s"], ["s"], ("s", "y")])
def test_run_takes_any_shapes_without_the_full_path(names: Any, full_calls: list[Feed]) -> None:
    session, witness = ow.InferenceSession(model()), onnxruntime.InferenceSession(model())
    for rows in (2, 2, 5, 1, 0, 7, 2):
        results = session.run(names, feed(rows))
        for result, expected in zip(results, witness.run(names, feed(rows)), strict=True):
            np.testing.assert_array_equal(result, expected, strict=True)
    assert len(full_calls) == 1


def test_run_keeps_calls_for_several_outputs(full_calls: list[Feed]) -> None:
    session = ow.InferenceSession(model())
    for turn in range(3):
        assert len(session.run(None, feed(turn + 1))) == 2
        assert len(session.run(["s"], feed(turn + 1))) == 1
    assert len(full_calls) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given.pop("w"), r"inputs must hold .*missing: .'w'."),
        (lambda given: given.update(v=given["w"]), r"unknown: .'v'."),
        (lambda given: given.update(x=np.zeros((2, 4), np.float32)), r"'x'.* must have shape \[n, 3\], got \[2, 4\]"),
        (lambda given: given.update(x=np.zeros(3, np.float32)), r"'x'.* must have shape \[n, 3\], got \[3\]"),
        (lambda given: given.update(w=np.zeros((1, 3), np.float32)), r"'w'.* must have shape \[3\], got \[1, 3\]"),
        (lambda given: given.update(w=np.zeros(3)), "got an array of float64"),
        (lambda given: given.update(w=None), "got an array of object"),
    ],
)
def test_run_rejects_invalid_arguments(change: Callable[[Feed], Any], message: str) -> None:
    session = ow.InferenceSession(model())
    for rows in (2, 3):
        session.run(None, feed(rows))
    given = feed(4)
    change(given)
    with pytest.raises(ow.ValidationError, match=message):
        session.run(None, given)
    assert session.run(["s"], feed())[0].tolist() == [4, 10]


def test_run_takes_names_that_can_be_read_once() -> None:
    session = ow.InferenceSession(model())
    for _ in range(3):
        assert len(session.run((name for name in ["s"]), feed())) == 1
        assert len(session.run([], feed())) == 2


CASTS = """
<ir_version: 8, opset_import: ["": 17]>
g (bool[n] b, string[m] t) => (float[n] y, string[m] u, bool[n] c) {
  y = Cast <to = 1> (b)
  u = Identity (t)
  c = Not (b)
}
"""


def test_run_takes_bools_and_texts(full_calls: list[Feed]) -> None:
    session, witness = ow.InferenceSession(parse_model(CASTS)), onnxruntime.InferenceSession(as_bytes(CASTS))
    for texts in (["a", "bc"], [], ["ä", "", "x\ny"]):
        for dtype in (object, None):
            given = {"b": np.array([True, False, bool(texts)]), "t": np.array(texts, dtype or "U")}
            results = session.run(None, given)
            for result, expected in zip(results, witness.run(None, given), strict=True):
                np.testing.assert_array_equal(result, expected, strict=True)
    assert len(full_calls) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": np.array([2, 0], np.uint8).view(bool)}, "'b'"),
        ({"b": np.zeros(2, np.uint8)}, "'b'.* must be tensor.bool., got an array of uint8"),
        ({"t": np.array(["a", 1], object)}, "'t' must hold strings"),
        ({"t": np.array([1.0])}, "'t' must hold strings"),
        ({"t": np.array(["a", "\ud800"], object)}, "surrogates not allowed"),
    ],
)
def test_run_rejects_invalid_bool_and_text(change: Feed, message: str) -> None:
    session = ow.InferenceSession(parse_model(CASTS))
    given = {"b": np.array([True]), "t": np.array(["a"])}
    for _ in range(2):
        session.run(None, given)
    with pytest.raises(ow.MLError, match=message):
        session.run(None, given | change)
    assert session.run(None, given)[1].tolist() == ["a"]


@pytest.mark.parametrize("names", ["y", ["none"], [["y"]], 3, [None], {"y": 1}.keys() | {"z"}])
def test_run_rejects_unknown_output(names: Any) -> None:
    session = ow.InferenceSession(model())
    session.run(None, feed())
    with pytest.raises(ow.ValidationError, match="output_names must be"):
        session.run(names, feed())


@pytest.mark.parametrize("kind", ["strided", "turned", "misaligned", "list", "tensor"])
def test_run_takes_other_memory(kind: str) -> None:
    session = ow.InferenceSession(model())
    session.run(None, feed(3))
    given = feed(3)
    match kind:
        case "strided":
            given["x"] = np.repeat(given["x"], 2, axis=1)[:, ::2]
        case "turned":
            given["x"] = np.asfortranarray(given["x"])
        case "misaligned":
            data = b"\0" + given["x"].tobytes()
            given["x"] = np.frombuffer(data, np.float32, offset=1).reshape(3, 3)
        case "list":
            given["w"] = np.asarray(given["w"]).tolist()
        case "tensor":
            given["w"] = session.context.tensor_from(given["w"])
    for _ in range(2):
        assert session.run(["s"], given)[0].tolist() == [4, 10, 16]


def test_run_counts_copies_of_strided_arrays() -> None:
    session = ow.InferenceSession(model())
    session.run(None, feed(3))
    given = feed(3) | {"x": np.repeat(feed(3)["x"], 2, axis=1)[:, ::2]}
    for _ in range(2):
        before = ow.memory.copies.count
        session.run(None, given)
        assert ow.memory.copies.count == before + 1


def test_run_of_a_lost_context() -> None:
    session = ow.InferenceSession(model())
    for _ in range(2):
        session.run(None, feed())
    session.context.destroy()
    with pytest.raises(ow.InvalidStateError, match="context is lost"):
        session.run(None, feed())


def test_run_notes_each_call_of_a_traced_session(tmp_path: Any) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    session = ow.InferenceSession(model(), options)
    for rows in (1, 2, 3, 2):
        session.run(None, feed(rows))
    with open(session.end_profiling(), encoding="utf-8") as file:
        assert file.read().count('"model_run"') == 4


def test_run_checks_indices_in_each_call() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (int64[n] ids) => (float[n] y) { y = Gather(t, ids) }'
    proto = parse_model(text)
    proto.graph.initializer.add(name="t", data_type=1, dims=[4], float_data=[0, 1, 2, 3])
    session = ow.InferenceSession(proto)
    for count in (2, 3):
        session.run(None, {"ids": np.arange(count)})
    with pytest.raises(ow.ValidationError, match="indices must be in"):
        session.run(None, {"ids": np.int64([0, 4, 1])})
    assert session.run(None, {"ids": np.int64([3, -1])})[0].tolist() == [3, 3]


def test_run_from_several_threads() -> None:
    session = ow.InferenceSession(model())
    session.run(None, feed())

    def work(number: int) -> None:
        for rows in range(1, 100):
            given = feed(rows)
            y, s = session.run(None, given)
            np.testing.assert_array_equal(y, given["x"] * given["w"])
            assert len(s) == rows

    together(*[lambda number=number: work(number) for number in range(4)])


@pytest.mark.parametrize("specialise", ["auto", "never"])
def test_session_loads_program_at_construction(specialise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from opweave.onnx.session import shape_cache

    session = ow.InferenceSession(model(), specialise=specialise)
    monkeypatch.setattr(shape_cache, "open_program", lambda *_: pytest.fail("the first call loads the model"))
    assert session.run(["s"], feed())[0].tolist() == [4, 10]
