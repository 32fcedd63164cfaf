"""`InferenceSession.warmup`: later calls compile and load nothing, and the ways in which a session runs stay as they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.onnx import model, node

import opweave as ow
from opweave.onnx.session import symbolic
from opweave.onnx.session.compiled import CompiledModel
from opweave.onnx.session.shape_cache import ShapeCache


def product(rows: str | int = "n") -> Any:
    return model(
        [node("MatMul", "x w", "a"), node("Relu", "a", "y")],
        {"x": f"float32[{rows}, 3]"},
        {"y": f"float32[{rows}, 4]"},
        {"w": np.ones((3, 4), "float32")},
    )


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was compiled, or loaded for all shapes, since the test has begun."""
    work: list[str] = []
    init, load = CompiledModel.__init__, symbolic.open_program

    def noted_init(self: Any, *args: Any, **kwargs: Any) -> None:
        work.append("compiled")
        init(self, *args, **kwargs)

    def noted_load(*args: Any) -> Any:
        work.append("loaded")
        return load(*args)

    monkeypatch.setattr(CompiledModel, "__init__", noted_init)
    monkeypatch.setattr("opweave.onnx.session.shape_cache.open_program", noted_load)
    return work


UNCOMPILED = "ONNX Runtime, uncompiled"


@pytest.mark.parametrize(
    ("specialise", "device", "way"),
    [
        ("auto", "cpu", UNCOMPILED),
        ("never", "cpu", UNCOMPILED),
        ("recurring", "cpu", "compiled"),
        ("always", "cpu", "compiled"),
        ("auto", "reference", "compiled"),
    ],
)
def test_run_compiles_nothing_after_warmup(specialise: Any, device: str, way: str, compiled: list[str]) -> None:
    session = ow.InferenceSession(product(), context=ow.ml.create_context(device=device), specialise=specialise)
    assert session.warmup([{"x": [2, 3]}, {"x": [5, 3]}]) == {"x [2, 3]": way, "x [5, 3]": way}
    assert compiled
    compiled.clear()
    for _ in range(3):
        for rows in (2, 5):
            (y,) = session.run(None, {"x": np.ones((rows, 3), "float32")})
            assert y.tolist() == [[3] * 4] * rows
    assert session.warmup({"x": (np.int64(2), 3)}) == {"x [2, 3]": way}
    assert compiled == []


def test_warmup_without_shapes(compiled: list[str]) -> None:
    static = ow.InferenceSession(product(2), specialise="always")
    assert static.warmup() == {"x [2, 3]": "compiled"}
    session = ow.InferenceSession(product(), specialise="recurring")
    with pytest.raises(ow.ValidationError, match="warmup: no shapes are in use yet; run the model first, or pass"):
        session.warmup()
    session.run(None, {"x": np.ones((7, 3), "float32")})
    assert session.warmup() == {"x [7, 3]": "compiled"}
    assert session.shapes() == {"x [7, 3]": "compiled"}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": [2, 4]}, r"input 'x' must have shape \[n, 3\], got \[2, 4\]"),
        ({"x": [2]}, r"input 'x' must have shape \[n, 3\], got \[2\]"),
        ({}, r"input_shapes must hold \['x'\]; "),
        ({"z": [1]}, r"input_shapes must hold \['x'\]; missing: \['x'\], unknown: \['z'\]"),
        ([{"x": [2, 3]}, {"x": [2, -3]}], r"input 'x': a shape is a list of sizes, got \[2, -3\]"),
        ({"x": "ab"}, "input 'x': a shape is a list of sizes, got 'ab'"),
        ({"x": None}, "input 'x': a shape is a list of sizes, got None"),
        ({"x": [2.0, 3]}, r"input 'x': a shape is a list of sizes, got \[2.0, 3\]"),
        ({"x": [2**40, 3]}, "input 'x' must have at most 2147483647 elements"),
        ({"x": [2**70, 3]}, "input 'x': a shape is a list of sizes"),
        ([7], r"warmup: shapes must be a list with a shape by name for each input, got \[7\]"),
        (7, "warmup: shapes must be a list with a shape by name for each input, got 7"),
    ],
)
def test_warmup_says_which_input_is_wrong(shapes: Any, message: str, compiled: list[str]) -> None:
    session = ow.InferenceSession(product(), specialise="always")
    with pytest.raises(ow.ValidationError, match=message):
        session.warmup(shapes)
    assert compiled == []


def test_warmup_takes_shapes_or_inputs() -> None:
    session = ow.InferenceSession(product())
    with pytest.raises(ow.ValidationError, match="warmup: shapes and inputs must not be given both"):
        session.warmup({"x": [2, 3]}, inputs={"x": np.ones((2, 3), "float32")})
    with pytest.raises(ow.ValidationError, match="warmup: inputs must map names to arrays, got 7"):
        session.warmup(inputs=7)  # type: ignore[arg-type]


def test_warmup_for_values_that_decide(compiled: list[str]) -> None:
    reshaped = model(
        [node("Reshape", "x shape", "a"), node("Relu", "a", "y")],
        {"x": "float32[n, 6]", "shape": "int64[2]"},
        {"y": "float32[a, b]"},
    )
    session = ow.InferenceSession(reshaped, fallback="error")
    feed = {"x": np.ones((2, 6), "float32"), "shape": np.int64([4, 3])}
    assert list(session.warmup(inputs=feed).values()) == ["compiled"]
    compiled.clear()
    assert session.run(None, feed)[0].shape == (4, 3)
    assert compiled == []
    with pytest.raises(ow.MLError):
        session.warmup(inputs=feed | {"shape": np.int64([5, 3])})


def test_random_values_that_the_model_refuses_are_no_error(compiled: list[str]) -> None:
    """Random sizes do not fit; the session is loaded all the same."""
    reshaped = model(
        [node("Reshape", "x shape", "y")], {"x": "float32[n, 6]", "shape": "int64[2]"}, {"y": "float32[a, b]"}
    )
    session = ow.InferenceSession(reshaped)
    assert list(session.warmup({"x": [2, 6]}).values()) == [UNCOMPILED]
    compiled.clear()
    assert session.run(None, {"x": np.ones((2, 6), "float32"), "shape": np.int64([3, 4])})[0].shape == (3, 4)
    assert compiled == []


def test_warmup_says_what_has_no_room() -> None:
    session = ow.InferenceSession(product(), specialise="recurring", program_bytes=0)
    (way,) = session.warmup({"x": [2, 3]}).values()
    assert way == UNCOMPILED  # the session compiles no shapes, which shapes() says
    assert "program_bytes" in session.explain()
    always = ow.InferenceSession(product(), specialise="always", program_bytes=1)
    ways = always.warmup([{"x": [rows, 3]} for rows in (1, 2, 3)])
    dropped = "compiled, and dropped for other shapes: program_bytes has no room for all"
    assert sorted(ways.values()) == ["compiled", dropped, dropped]


def test_threads_warm_up_once(monkeypatch: pytest.MonkeyPatch, compiled: list[str]) -> None:
    session = ow.InferenceSession(product(), specialise="recurring")
    with ThreadPoolExecutor(4) as pool:
        ways = [*pool.map(lambda _: session.warmup({"x": [2, 3]}), range(4))]
    assert ways == [{"x [2, 3]": "compiled"}] * 4
    assert compiled.count("compiled") == 1
    monkeypatch.setattr(ShapeCache, "_compile", None)
    session.run(None, {"x": np.ones((2, 3), "float32")})
