"""Sessions whose shapes differ at each call, as those of language models do, and bindings that are used again."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from test_onnx_in_place import PAST, ROOM, caches, chunk, model, wanted

import opweave as ow
from opweave import memory

CONTEXT = ow.ml.create_context(device="cpu", accelerated=False)
OWN: list[dict[str, Any]] = [{"specialise": "never"}, {"program_bytes": 0}]
CHUNKS = (3, 2, 1, 1, 4)


def close(found: Any, expected: list[np.ndarray], length: int) -> None:
    y, *presents = found
    np.testing.assert_allclose(y, expected[0], rtol=1e-4, atol=1e-5)
    for present, theirs in zip(presents, expected[1:], strict=True):
        np.testing.assert_allclose(present[:, :, :length], theirs[:, :, :length], rtol=1e-5)


# Calls ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OWN)
@pytest.mark.parametrize("in_place", [True, False])
def test_run_of_new_shapes_repeats_no_checks(
    options: dict[str, Any], in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, past, start = ow.InferenceSession(model(), CONTEXT, **options), caches(), 0
    for new, expected in zip(CHUNKS, wanted(model(), 1, CHUNKS), strict=True):
        out = {name: past[source] for name, source in PAST.items()} if in_place else None
        found = session.run(["y", *PAST], chunk(1, start, new) | past, out=out)
        start += new
        close(found, expected, start)
        past = dict(zip(PAST.values(), found[1:], strict=True))
        monkeypatch.setattr("opweave.onnx.session.session.run_call", None)  # what checks all that a call has


def test_run_of_growing_cache_repeats_no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ow.InferenceSession(model(room="past"), CONTEXT, specialise="never")
    past = {name: np.ones((1, 2, 3, 16), np.float32) for name in PAST.values()}
    theirs = onnxruntime.InferenceSession(model(room="past").SerializeToString(), providers=["CPUExecutionProvider"])
    for start in range(3, 7):
        given = chunk(1, start, 1) | past
        found, expected = (each.run(["y", *PAST], given) for each in (session, theirs))
        close(found, expected, start + 1)
        past = dict(zip(PAST.values(), found[1:], strict=True))
        monkeypatch.setattr("opweave.onnx.session.session.run_call", None)


def test_run_rejects_wrong_shapes_after_recurring_calls() -> None:
    session, past = ow.InferenceSession(model(), CONTEXT, specialise="never"), caches()
    for _ in range(2):
        session.run(["y"], chunk(1, 0, 2) | past)
    with pytest.raises(ow.ValidationError, match=r"'query' must have shape \[1, new, 64\], got \[1, 2, 65\]"):
        session.run(["y"], chunk(1, 0, 2) | past | {"query": np.zeros((1, 2, 65), np.float32)})
    y = np.empty((1, 2, 64), np.float32)
    session.run(["y"], chunk(1, 0, 2) | past, out={"y": y})
    with pytest.raises(ow.ValidationError, match=r"out\['y'\] must have shape \[1, 3, 64\], got \[1, 2, 64\]"):
        session.run(["y"], chunk(1, 0, 3) | past, out={"y": y})


def test_run_rejects_overlapping_caches() -> None:
    """Those of one call are compared, and those of later calls only where they are other arrays."""
    layers = 8
    one = model(new=1).graph
    nodes: list[Any] = []
    inputs, outputs = list(one.input[:1]), list(one.output[:0])
    for layer in range(layers):
        names = {name: f"{name}{layer}" for name in ("key", "value", *PAST, *PAST.values(), "y")}
        for node in one.node:
            made = type(node).FromString(node.SerializeToString())
            for listed in (made.input, made.output):
                listed[:] = [names.get(name, name) for name in listed]
            nodes.append(made)
        for listed, infos in ((inputs, one.input[1:5]), (outputs, one.output)):
            for info in infos:
                listed.append(type(info).FromString(info.SerializeToString()))
                listed[-1].name = names[info.name]
    graph = helper.make_graph(nodes, "g", [*inputs, *one.input[5:]], outputs)
    proto = helper.make_model(graph, opset_imports=model().opset_import, ir_version=10)
    session = ow.InferenceSession(proto, CONTEXT, specialise="never")
    start, given = 3, {}
    for name, array in (chunk(1, start, 1) | caches()).items():
        for suffix in range(layers) if name in ("key", "value", *PAST.values()) else ("",):
            given[f"{name}{suffix}"] = array.copy()
    out = {f"{name}{layer}": given[f"{source}{layer}"] for name, source in PAST.items() for layer in range(layers)}
    asked = [f"y{layer}" for layer in range(layers)]
    first = session.run(asked, given, out=out)
    for _ in range(3):
        for array, other in zip(session.run(asked, given, out=out), first, strict=True):
            np.testing.assert_array_equal(array, other)
    query = given["query"]
    given["query"] = given["past_key3"].reshape(-1)[:64].reshape(1, 1, 64)
    with pytest.raises(ow.ValidationError, match="overlaps"):
        session.run(asked, given, out=out)
    given["query"] = query
    session.run(asked, given, out=out)
    out["present_key5"] = given["past_key5"] = given["past_key4"]
    with pytest.raises(ow.ValidationError, match="overlaps"):
        session.run(asked, given, out=out)


# Bindings -------------------------------------------------------------------------------------------------------------


class Bound:
    """A binding whose past and present are the same memory."""

    def __init__(self, **options: Any) -> None:
        self.session = ow.InferenceSession(model(), CONTEXT, **(options or {"specialise": "never"}))
        self.binding, self.length = self.session.io_binding(), 0
        self.values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(array) for n, array in caches().items()}
        self.binding.bind_output("y")
        for name, source in PAST.items():
            self.binding.bind_ortvalue_input(source, self.values[source])
            self.binding.bind_ortvalue_output(name, self.values[source])

    def step(self, new: int, expected: list[np.ndarray] | None = None) -> np.ndarray:
        """Read some tokens; compare with what should come."""
        for name, array in chunk(1, self.length, new).items():
            self.binding.bind_cpu_input(name, array)
        self.session.run_with_iobinding(self.binding)
        self.length += new
        found = [value.numpy() for value in self.binding.get_outputs()]
        if expected is not None:
            close(found, expected, self.length)
        y: np.ndarray = found[0]
        return y


@pytest.mark.parametrize("options", OWN)
def test_io_binding_checks_only_rebound_values(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    bound, kept = Bound(**options), []
    memory.copies.reset()
    for step, (new, expected) in enumerate(zip(CHUNKS, wanted(model(), 1, CHUNKS), strict=True)):
        kept.append((bound.step(new, expected), expected[0]))
        if step == 1:
            monkeypatch.setattr(bound.session, "run", None)
    assert memory.copies.count == 0
    for found, y in kept:  # in memory of their own
        np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-5)


def test_io_binding_reads_current_arrays() -> None:
    bound = Bound()
    given = chunk(1, 0, 1)
    for name, array in given.items():
        bound.binding.bind_cpu_input(name, array)
    for start, expected in enumerate(wanted(model(), 1, (1, 1, 1))):
        for name, array in chunk(1, start, 1).items():
            given[name][...] = array
        bound.session.run_with_iobinding(bound.binding)
        close([value.numpy() for value in bound.binding.get_outputs()], expected, start + 1)


def test_io_binding_checks_rebound_input() -> None:
    bound, steps = Bound(), wanted(model(), 1, CHUNKS)
    bound.step(CHUNKS[0], next(steps))
    bound.step(CHUNKS[1], next(steps))
    bound.binding.bind_cpu_input("query", np.zeros((1, 2, 64)))
    with pytest.raises(ow.ValidationError, match=r"input 'query' must be tensor\(float\), got an array of float64"):
        bound.session.run_with_iobinding(bound.binding)
    bound.step(CHUNKS[2], next(steps))
    bound.step(CHUNKS[3], next(steps))
    bound.binding.bind_cpu_input("query", np.zeros((1, 2, 65), np.float32))
    with pytest.raises(ow.ValidationError, match=r"input 'query' must have shape \[1, new, 64\], got \[1, 2, 65\]"):
        bound.session.run_with_iobinding(bound.binding)
    bound.binding.bind_cpu_input("query", np.zeros((1, 3, 64), np.float32))  # of more tokens than key and value
    with pytest.raises(ow.MLError):
        bound.session.run_with_iobinding(bound.binding)
    bound.step(CHUNKS[4], next(steps))


def test_io_binding_keeps_shape_of_bound_array() -> None:
    bound, steps = Bound(), wanted(model(), 1, (1, 1, 1))
    for _ in range(2):
        bound.step(1, next(steps))
    given = chunk(1, 2, 1)
    for name, array in given.items():
        bound.binding.bind_cpu_input(name, array)
    given["query"].shape = (64,)
    bound.session.run_with_iobinding(bound.binding)
    close([value.numpy() for value in bound.binding.get_outputs()], next(steps), 3)


def test_io_binding_follows_rebound_memory() -> None:
    bound, steps = Bound(), wanted(model(), 1, (1, 1, *CHUNKS[1:], 1))
    for _ in range(2):
        bound.step(1, next(steps))
    moved = onnxruntime.OrtValue.ortvalue_from_numpy(bound.values["past_key"].numpy().copy())
    bound.binding.bind_ortvalue_input("past_key", moved)
    bound.binding.bind_ortvalue_output("present_key", moved)
    bound.step(CHUNKS[1], next(steps))
    assert bound.binding.get_outputs()[1] is moved
    y = np.empty((1, 1, 64), np.float32)
    bound.binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    for _ in range(2):
        expected = next(steps)
        bound.step(1, expected)
        np.testing.assert_allclose(y, expected[0], rtol=1e-4, atol=1e-5)
    bound.binding.bind_output("y")
    bound.step(CHUNKS[4], next(steps))


def test_io_binding_input_overlapping_output_is_read_first() -> None:
    nodes = [helper.make_node("Mul", ["x", "two"], ["a"]), helper.make_node("Add", ["a", "x"], ["y"])]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "a", "y")]
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2])
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], [two])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ow.InferenceSession(proto, CONTEXT, specialise="never")
    binding, block = session.io_binding(), np.zeros(8, np.float32)
    binding.bind_output("a", "cpu", 0, np.float32, (4,), block.ctypes.data)
    binding.bind_output("y")
    for place in (None, 0, 2, 4, None):
        x = np.empty(4, np.float32) if place is None else block[place : place + 4]
        binding.bind_cpu_input("x", x)
        for _ in range(3):
            x[...] = [0, 1, 2, 3]
            session.run_with_iobinding(binding)
            assert binding.copy_outputs_to_cpu()[1].tolist() == [0, 3, 6, 9]
            assert block[:4].tolist() == [0, 2, 4, 6]


def test_set_providers_keeps_io_bindings() -> None:
    bound, steps = Bound(), wanted(model(), 1, (1, 1, 1))
    for expected in steps:
        bound.step(1, expected)
    bound.session.set_providers(["CPUExecutionProvider"])
    bound.step(1)
    bound.session.context.destroy()
    with pytest.raises(ow.InvalidStateError):
        bound.step(1)


def test_io_binding_works_after_full_cache_error() -> None:
    bound = Bound()
    bound.step(ROOM - 1)
    bound.step(1)
    with pytest.raises(ow.MLError):
        bound.step(1)
    bound.length = ROOM - 1
    assert np.isfinite(bound.step(1)).all()
