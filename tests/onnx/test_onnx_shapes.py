"""Shapes that change: ONNX Runtime, uncompiled, runs them, and recurring ones are compiled in the background."""

from __future__ import annotations

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnx import model

import opweave as ow
from opweave import memory
from opweave.backends.onnxruntime import model as engine_model, sessions
from opweave.onnx.session.compiled import CompiledModel
from opweave.onnx.session.shape_cache import MAX_THREADS, RECENT, _compiled_in_background
from opweave.support.background import background

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
CONTEXT = ow.ml.create_context(device="cpu")
OWN = "ONNX Runtime, uncompiled"
RNG = np.random.default_rng(7)
W = RNG.standard_normal((8, 600), np.float32)


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, Any], **weights: np.ndarray
) -> onnx.ModelProto:
    reads, writes = ([(name, *value) for name, value in values.items()] for values in (inputs, outputs))
    return model(nodes, reads, writes, weights, opset=17)


def product() -> onnx.ModelProto:
    """Y = softmax(x @ w), z = relu(x); the number of rows is dynamic."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Softmax", ["p"], ["y"]),
        helper.make_node("Relu", ["x"], ["z"]),
    ]
    return model_of(nodes, {"x": (FLOAT, ["n", 8])}, {"y": (FLOAT, ["n", 600]), "z": (FLOAT, ["n", 8])}, w=W)


def rows(count: int) -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((count, 8), np.float32)}


def expected(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    results: list[np.ndarray] = session.run(None, feed)
    return results


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[CompiledModel]:
    """The models that are compiled from now on."""
    found: list[CompiledModel] = []
    make = CompiledModel.__init__

    def noted(self: CompiledModel, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        found.append(self)

    monkeypatch.setattr(CompiledModel, "__init__", noted)
    return found


def test_recurring_shapes_are_compiled(compiled: list[CompiledModel]) -> None:
    proto = product()
    session = ow.InferenceSession(proto, CONTEXT, specialise="recurring")
    for count in (1, 2, 3, 5):
        feed = rows(count)
        for got, wanted in zip(session.run(None, feed), expected(proto, feed), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert compiled == []
    assert session.shapes() == {f"x [{count}, 8]": OWN for count in (1, 2, 3, 5)}
    feed = rows(3)
    first = session.run(None, feed)
    background.wait()
    assert len(compiled) == 1
    assert session.shapes()["x [3, 8]"] == "compiled"
    second = session.run(None, feed)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert "WebNN" in session.explain()
    assert f"x [5, 8]: {OWN}" in session.explain()


def test_specialise_recurring_ignores_ever_changing_shapes(compiled: list[CompiledModel]) -> None:
    """A decoder comes to the same lengths with every text."""
    session = ow.InferenceSession(product(), CONTEXT, specialise="recurring")
    for _ in range(2):
        for count in range(1, RECENT + 3):
            session.run(None, rows(count))
    background.wait()
    assert compiled == []


def test_specialise_options(compiled: list[CompiledModel]) -> None:
    never = ow.InferenceSession(product(), CONTEXT, specialise="never")
    for _ in range(4):
        never.run(None, rows(2))
    background.wait()
    assert compiled == []
    choice, first, *rest = never.explain().splitlines()
    assert "because specialise='never'" in choice
    assert first == f"x [2, 8]: {OWN}"
    assert all(line.endswith("not verified: specialise='never'") for line in rest)  # where another engine is installed
    always = ow.InferenceSession(product(), CONTEXT, specialise="always")
    always.run(None, rows(2))
    assert len(compiled) == 1
    assert always.shapes() == {"x [2, 8]": "compiled"}


def test_specialise_never_applies_to_fixed_shapes(
    compiled: list[CompiledModel],
) -> None:
    ow.InferenceSession(product(), CONTEXT, fix_shapes={"n": 2}, specialise="never").run(None, rows(2))
    assert compiled == []
    ow.InferenceSession(product(), CONTEXT, fix_shapes={"n": 2})
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"specialise": "often"}, "specialise must be 'auto', 'recurring', 'always' or 'never', got 'often'"),
        ({"program_bytes": -1}, "program_bytes must be a number of bytes or None, got -1"),
        ({"program_bytes": 1.5}, "program_bytes must be a number of bytes or None, got 1.5"),
    ],
)
def test_messages(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ow.ValidationError) as raised:
        ow.InferenceSession(product(), CONTEXT, **options)
    assert str(raised.value) == message


def test_shapes_beyond_program_bytes_stop_compiling(compiled: list[CompiledModel]) -> None:
    session = ow.InferenceSession(product(), CONTEXT, specialise="recurring", program_bytes=24 * 2**20)
    for _ in range(6):
        for count in range(1, 9):
            session.run(None, rows(count))
            background.wait()
    room = len(compiled)
    assert 1 <= room < 8
    ways = session.shapes()
    assert sum(way == "compiled" for way in ways.values()) == room
    assert sum("program_bytes (24.0 MiB) has no room for more" in way for way in ways.values()) == 8 - room


def test_ninth_shape_keeps_first() -> None:
    session = ow.InferenceSession(product(), CONTEXT, specialise="always")
    for _ in range(2):
        for count in range(1, 10):
            session.run(None, rows(count))
    assert list(session.shapes().values()) == ["compiled"] * 9


def test_fallback_error_keeps_most_shapes_compiled(compiled: list[CompiledModel]) -> None:
    """Dropping the one used longest ago would compile each shape at each turn, where each is compiled."""
    context = ow.ml.create_context(device="reference")
    session = ow.InferenceSession(product(), context, fallback="error", program_bytes=24 * 2**20)
    for count in range(1, 7):
        session.run(None, rows(count))
    compiled.clear()
    for count in range(1, 7):
        session.run(None, rows(count))
    assert 1 <= len(compiled) < 6


def test_program_bytes_0_compiles_nothing_optional(compiled: list[CompiledModel]) -> None:
    session = ow.InferenceSession(product(), CONTEXT, specialise="recurring", program_bytes=0)
    for _ in range(3):
        session.run(None, rows(2))
    background.wait()
    assert compiled == []
    assert "more than program_bytes (0 B)" in session.shapes()["x [2, 8]"]


@pytest.mark.long
def test_models_with_many_weights_run_uncompiled(compiled: list[CompiledModel]) -> None:
    """Compiled shapes of theirs are no faster, and each would hold the weights once more."""
    weights = np.ones((8, 2**19), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    proto = model_of(nodes, {"x": (FLOAT, ["n", 8])}, {"y": (FLOAT, ["n", 2**19])}, w=weights)
    session = ow.InferenceSession(proto, CONTEXT, specialise="recurring")
    for _ in range(3):
        session.run(None, rows(2))
        background.wait()
    assert compiled == []
    assert "more than program_bytes (24.0 MiB)" in session.shapes()["x [2, 8]"]
    roomy = ow.InferenceSession(proto, CONTEXT, specialise="recurring", program_bytes=2**26)
    for _ in range(2):
        roomy.run(None, rows(2))
    background.wait()
    assert len(compiled) == 1


def test_program_bytes_counts_weights_in_branches(compiled: list[CompiledModel]) -> None:
    """They are held by compiled shapes, too."""
    branches = {
        name: helper.make_graph(
            [helper.make_node("Gemm", ["x", f"w_{name}"], [f"y_{name}"], alpha=scale)],
            name,
            [],
            [helper.make_tensor_value_info(f"y_{name}", FLOAT, ["n", 2**18])],
            [numpy_helper.from_array(np.ones((8, 2**18), np.float32), f"w_{name}")],
        )
        for name, scale in (("then_branch", 1.0), ("else_branch", 2.0))
    }
    nodes = [helper.make_node("If", ["c"], ["y"], **branches)]
    proto = model_of(nodes, {"x": (FLOAT, ["n", 8]), "c": (BOOL, [])}, {"y": (FLOAT, ["n", 2**18])})
    session, feed = ow.InferenceSession(proto, CONTEXT, specialise="recurring"), {**rows(2), "c": np.array(True)}
    for _ in range(3):
        session.run(None, feed)
        background.wait()
    assert compiled == []
    assert any("more than program_bytes (24.0 MiB)" in way for way in session.shapes().values())


# What a session promises ---------------------------------------------------------------------------------------------


def own(proto: onnx.ModelProto, **options: Any) -> ow.InferenceSession:
    return ow.InferenceSession(proto, CONTEXT, specialise="never", **options)


def test_out_with_dynamic_shapes() -> None:
    proto = product()
    session, feed = own(proto), rows(3)
    y, z = expected(proto, feed)
    out = np.empty((3, 600), np.float32)
    found = session.run(None, feed, out={"y": out})
    assert found[0] is out
    np.testing.assert_allclose(out, y, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[1], z)
    (only,) = session.run(["z"], feed, out={"y": out})
    np.testing.assert_array_equal(only, z)
    with pytest.raises(ow.ValidationError, match=r"out\['y'\] must have shape \[3, 600\], got \[4, 600\]"):
        session.run(None, feed, out={"y": np.empty((4, 600), np.float32)})


def test_tensors_with_dynamic_shapes_are_not_copied() -> None:
    proto = product()
    session, feed = own(proto, preferred_output_location="ml-tensor"), rows(3)
    tensor = CONTEXT.tensor_from(feed["x"])
    target = CONTEXT.create_tensor("float32", (3, 600), readable=True)
    before = memory.copies.count
    y, z = session.run(None, {"x": tensor}, out={"y": target})
    assert y is target
    assert memory.copies.count == before
    for got, wanted in zip((y, z), expected(proto, feed), strict=True):
        np.testing.assert_allclose(CONTEXT.read_tensor(got), wanted, rtol=1e-5, atol=1e-6)


def test_uncompiled_run_results_have_memory_of_their_own() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("Identity", ["w"], ["b"]),
        helper.make_node("Reshape", ["x", "shape"], ["c"]),
    ]
    shapes = {"a": (FLOAT, None), "b": (FLOAT, None), "c": (FLOAT, None), "x": (FLOAT, ["n"]), "w": (FLOAT, None)}
    proto = model_of(nodes, {"x": (FLOAT, ["n"])}, shapes, w=W, shape=np.int64([-1, 1]))
    session, x = own(proto), np.arange(5, dtype=np.float32)
    for _ in range(2):
        found = session.run(["a", "b", "c", "x", "w", "b"], {"x": x})
        np.testing.assert_array_equal(found[1], W)
        np.testing.assert_array_equal(found[4], W)
        for number, array in enumerate(found):
            assert not np.shares_memory(array, x)
            assert not any(np.shares_memory(array, other) for other in found[:number])
            array[...] = 9
    assert x.tolist() == [0, 1, 2, 3, 4]


def test_uncompiled_run_raises_same_errors() -> None:
    session = own(product())
    session.run(None, rows(2))
    for feed, message in (
        ({}, "inputs must hold ['x']; got none"),
        ({"x": np.zeros((2, 7), np.float32)}, "input 'x' must have shape [n, 8], got [2, 7]"),
        ({"x": np.zeros((2, 8), "float64")}, "input 'x' must be tensor(float), got an array of float64"),
    ):
        with pytest.raises(ow.ValidationError) as raised:
            session.run(None, feed)
        assert message in str(raised.value)


def test_indices_out_of_range_rerun_compiled() -> None:
    """ONNX Runtime refuses indices out of range, WebNN clamps them."""
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"])]
    proto = model_of(nodes, {"x": (FLOAT, ["n"]), "i": (INT64, ["k"])}, {"y": (FLOAT, None)})
    session = own(proto)
    feed = {"x": np.arange(20, dtype=np.float32), "i": np.int64([1] * 19 + [99])}
    assert session.run(None, feed)[0].tolist() == [1] * 19 + [19]
    feed["i"][-1] = 5
    assert session.run(None, feed)[0].tolist() == [1] * 19 + [5]


def test_booleans_scalars_and_empty_arrays() -> None:
    nodes = [helper.make_node("Where", ["c", "x", "s"], ["y"]), helper.make_node("Not", ["c"], ["n"])]
    proto = model_of(
        nodes,
        {"c": (BOOL, ["k"]), "x": (FLOAT, ["k"]), "s": (FLOAT, [])},
        {"y": (FLOAT, ["k"]), "n": (BOOL, ["k"])},
    )
    session = own(proto)
    y, n = session.run(None, {"c": np.array([True, False]), "x": np.float32([1, 2]), "s": np.float32(7)})
    assert (y.tolist(), n.tolist(), n.dtype) == ([1, 7], [False, True], np.dtype(bool))
    empty = np.zeros(0, np.float32)
    y, _ = session.run(None, {"c": np.zeros(0, bool), "x": empty, "s": np.float32(7)})
    assert y.shape == (0,)


def test_recurring_shape_values_are_compiled(compiled: list[CompiledModel]) -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    proto = model_of(nodes, {"x": (FLOAT, ["n"]), "s": (INT64, [2])}, {"y": (FLOAT, None)})
    session, x = ow.InferenceSession(proto, CONTEXT, specialise="recurring"), np.arange(24, dtype=np.float32)
    for sizes in ((2, 12), (3, 8), (3, 8), (3, 8), (4, 6), (2, 12), (6, 4), (3, 8)):
        shape = np.int64(sizes)
        (y,) = session.run(None, {"x": x, "s": shape})
        background.wait()
        np.testing.assert_array_equal(y, x.reshape(sizes))
        shape[:] = 0  # the compiler must not read the caller's array
        assert "compiling" not in session.shapes().values()
    assert len(compiled) == list(session.shapes().values()).count("compiled") >= 1


def test_uncompiled_run_with_constant_node_and_unused_weight() -> None:
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(W))
    proto = model_of(
        [constant, helper.make_node("MatMul", ["x", "k"], ["y"])],
        {"x": (FLOAT, ["n", 8])},
        {"y": (FLOAT, ["n", 600])},
        unused=np.ones(5000, np.float32),
    )
    feed = rows(2)
    np.testing.assert_allclose(own(proto).run(None, feed)[0], feed["x"] @ W, rtol=1e-5, atol=1e-5)


def test_weights_in_files_are_found(tmp_path: Path) -> None:
    proto = product()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    feed = rows(2)
    found = own(onnx.load(path)).run(None, feed), own_of(path).run(None, feed)
    for results in found:
        np.testing.assert_allclose(results[0], expected(product(), feed)[0], rtol=1e-5, atol=1e-6)


def own_of(path: Path) -> ow.InferenceSession:
    return ow.InferenceSession(path, CONTEXT, specialise="never")


def test_models_with_custom_operations_are_compiled(compiled: list[CompiledModel]) -> None:
    @ow.expression
    def doubled(x: Any) -> Any:
        return x + x

    ow.onnx.register_onnx("test.shapes", "Doubled", doubled)
    proto = model_of(
        [helper.make_node("Doubled", ["x"], ["y"], domain="test.shapes")],
        {"x": (FLOAT, ["n"])},
        {"y": (FLOAT, ["n"])},
    )
    proto.opset_import.add(domain="test.shapes", version=1)
    session = ow.InferenceSession(proto, CONTEXT, specialise="recurring")
    assert session.run(None, {"x": np.float32([1, 2])})[0].tolist() == [2, 4]
    assert len(compiled) == 1


def test_background_compile_fault_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    session = ow.InferenceSession(product(), CONTEXT, specialise="recurring")

    def broken(*_: Any) -> Any:
        raise RuntimeError("the compiler is broken")

    monkeypatch.setattr(session._parts.shape_cache, "_trace", broken)
    with caplog.at_level(logging.WARNING, "opweave"):
        for _ in range(4):
            feed = rows(2)
            np.testing.assert_array_equal(session.run(["z"], feed)[0], np.maximum(feed["x"], 0))
            background.wait()
    assert [r.message for r in caplog.records] == [f"shapes x [2, 8] stay with {OWN}: the compiler is broken"]
    assert session.shapes() == {"x [2, 8]": f"{OWN}: it cannot be compiled: RuntimeError: the compiler is broken"}


def test_top_k_count_with_dynamic_dimension() -> None:
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", ""])]
    proto = model_of(nodes, {"x": (FLOAT, ["n", 4]), "k": (INT64, ["one"])}, {"y": (FLOAT, ["n", None])})
    session = ow.InferenceSession(proto, CONTEXT, specialise="recurring")
    assert session.run(None, {"x": np.float32([[1, 4, 2, 3]]), "k": np.array([2])})[0].tolist() == [[4, 3]]


def test_threads_run_several_shapes_at_once() -> None:
    proto = product()
    session = ow.InferenceSession(proto, CONTEXT, specialise="recurring")
    feeds = [rows(count) for count in (1, 2, 3, 4) for _ in range(20)]
    wanted = [feed["x"] @ W for feed in feeds]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda feed: session.run(None, feed), feeds))
    for (y, z), product_of_one, feed in zip(found, wanted, feeds, strict=True):
        shares = np.exp(product_of_one - product_of_one.max(1, keepdims=True))
        np.testing.assert_allclose(y, shares / shares.sum(1, keepdims=True), rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(z, np.maximum(feed["x"], 0))
    background.wait()


# The process ---------------------------------------------------------------------------------------------------------

PROCESS = """
import os
import sys
import time
import numpy as np
import onnx
import opweave as ow
from opweave.support.background import background

session = ow.InferenceSession(sys.argv[1], specialise="recurring")
for _ in range(3):
    for count in range(100, 100 * 8, 100):
        session.run(None, {"x": np.ones((count, 8), "float32")})
    background.wait()
compiled = list(session.shapes().values()).count("compiled")
processors = len(os.sched_getaffinity(0))
# NumPy's library for linear algebra starts a thread for each processor, too, when it is imported.
most, deadline = processors + 8 + max(processors - 2, 0), time.monotonic() + 60
while (threads := len(os.listdir("/proc/self/task"))) > most and time.monotonic() < deadline:
    time.sleep(0.01)  # threads that were joined may still be listed
print(threads, most, compiled)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists the threads of a process there")
def test_process_thread_count(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(product(), path)
    command = [sys.executable, "-c", PROCESS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    threads, most, plans = map(int, done.stdout.split())
    assert threads <= most
    assert plans >= 1


def test_exit_during_shape_compilation(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(product(), path)
    code = PROCESS.replace("    background.wait()\n", "").partition("compiled = ")[0] + "print('ends')"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


def test_compiled_models_stay_within_max_threads() -> None:
    sessions = [ow.InferenceSession(product(), CONTEXT, specialise="recurring", program_bytes=2**30) for _ in range(3)]
    for session in sessions:
        for _ in range(2):
            for count in range(100, 600, 100):
                session.run(["z"], rows(count))
            background.wait()
    assert sum(compiled.threads for compiled in _compiled_in_background) <= MAX_THREADS
    assert any(OWN in how for session in sessions for how in session.shapes().values())


def dropouts(count: int, size: int) -> onnx.ModelProto:
    """Negations, each followed by an operation that WebNN lacks: Dropout in training mode, which with 0 keeps all values."""
    nodes = []
    for k in range(count):
        nodes.append(helper.make_node("Neg", ["x" if k == 0 else f"r{k - 1}"], [f"n{k}"]))
        nodes.append(helper.make_node("Dropout", [f"n{k}", "ratio", "training"], [f"r{k}"]))
    last = f"r{count - 1}"
    return model_of(
        nodes, {"x": (FLOAT, [size])}, {last: (FLOAT, [size])}, ratio=np.float32(0), training=np.bool_(True)
    )


def test_static_models_in_many_large_pieces_run_uncompiled(compiled: list[CompiledModel]) -> None:
    proto = dropouts(4, 10000)
    session = ow.InferenceSession(proto, CONTEXT, specialise="recurring")
    feed = {"x": np.linspace(-30, 30, 10000, dtype=np.float32)}
    way = {"x [10000]": f"{OWN}: it would run in 8 sections, each with threads of its own"}
    assert session.shapes() == way
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, feed)[0], expected(proto, feed)[0])
        background.wait()
    assert session.shapes() == way
    assert not compiled
    shown = [f"{shapes}: {how}" for shapes, how in way.items()]
    assert session.explain().splitlines()[1 : 1 + len(shown)] == shown
    whole = ow.InferenceSession(proto, CONTEXT, specialise="always")
    assert whole.shapes() == {"x [10000]": "compiled"}
    np.testing.assert_array_equal(whole.run(None, feed)[0], expected(proto, feed)[0])


@pytest.mark.parametrize("size", [100, 10000])
def test_small_fallback_operations_get_no_threads(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int | None] = []
    make = sessions.session_options

    def noted(*given: Any, **options: Any) -> Any:
        taken.append(given[2])
        return make(*given, **options)

    monkeypatch.setattr(engine_model, "session_options", noted)
    count = 2 if size > 1000 else 4
    session = ow.InferenceSession(dropouts(count, size), CONTEXT, specialise="recurring")
    assert session.shapes() == {f"x [{size}]": "compiled"}
    assert taken == [None if size > 1000 else 1] * count


def test_failed_shape_is_not_cached(compiled: list[CompiledModel]) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], keepdims=0),
        helper.make_node("SequenceAt", ["s", "i"], ["y"]),
    ]
    proto = model_of(nodes, {"x": (FLOAT, ["n", 8]), "i": (INT64, [])}, {"y": (FLOAT, None)})
    session = ow.InferenceSession(proto, CONTEXT, specialise="recurring", program_bytes=0)
    for _ in range(2):
        assert session.run(None, rows(3) | {"i": np.array(2)})[0].shape == (8,)
        with pytest.raises(ow.OperationError):
            session.run(None, rows(3) | {"i": np.array(3)})
    assert compiled
    assert "compiled" not in session.shapes().values()
