"""Arrays that stay the same become constants of the compiled graph, which changes nothing but its speed."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.arrays import normal
from support.threads import together

import opweave as ow
from opweave.lazy import deferred_free, force, graphs, weights as learned
from opweave.support.background import background

STATISTICS = ow.lazy.statistics
CONTEXT = ow.ml.create_context(device="cpu")
OFTEN = learned.RECURRENCES + 2


@pytest.fixture(autouse=True)
def _at_once() -> Iterator[None]:
    ow.lazy.wait()
    before = ow.lazy.compile_now()
    force.graphs.clear()
    learned.specialised.clear()
    STATISTICS.reset()
    yield
    ow.lazy.compile_now(before)


def weights(*shape: int, seed: int = 0) -> ow.Array:
    return ow.array(normal(*shape, seed=seed))


def layer(x: Any, w: Any, b: Any) -> ow.Array:
    result: ow.Array = (ow.ops.matmul(x, w) + b).relu()
    return result


def check_layer(x: Any, w: Any, b: Any) -> int:
    """Compute a layer, compare it with NumPy; how many inputs were constants."""
    with ow.lazy.profile() as records:
        values = layer(x, w, b).numpy()
    expected = np.maximum(np.asarray(x) @ np.asarray(w) + np.asarray(b), 0)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    return records[0].constants


def variants() -> list[learned.Specialised]:
    return [variant for _, entry in force.graphs.items() for variant in entry.variants]


# ---------------------------------------------------------------------------------------------------------------------
# What becomes a constant


def test_recurring_weights_become_constants() -> None:
    w, b = weights(4, 3), weights(3, seed=1)
    found = [check_layer(normal(2, 4, seed=k), w, b) for k in range(OFTEN)]
    assert found == [0] * (learned.RECURRENCES - 1) + [2] * 3
    assert (STATISTICS.compiled, STATISTICS.specialised, STATISTICS.graphs) == (1, 1, OFTEN)


@ow.op
def doubled(self: Any, x: ow.MLOperand, by: ow.MLOperand) -> ow.Desc:
    return x.desc


@doubled.kernel("cpu")
def _(x: np.ndarray, by: np.ndarray, out: np.ndarray) -> None:
    np.multiply(x, by, out=out)


W, SQUARE, Q = weights(3, 3), weights(3, 3, seed=5), ow.array(np.ones((3, 3), "int8"))
SCALE, ZERO = ow.array(np.full((1, 1), 0.5, "float32")), ow.array(np.zeros((1, 1), "int8"))
IMAGE, FILTER = weights(1, 3, 5, 5), weights(2, 3, 3, 3)
PROGRAMS: dict[str, tuple[Callable[[Any], Any], Any, list[Any]]] = {
    "what the data are multiplied with": (lambda x: (x @ W).relu(), (3, 3), [W]),
    "a number, along with weights": (lambda x: (x * 2.5) @ W, (3, 3), [W, 2.5]),
    "a number alone is not worth it": (lambda x: (x * 2.5).relu(), (3, 3), []),
    "weights that something is done to first": (lambda x: x @ W.transpose().neg(), (3, 3), [W]),
    "weights that are scaled": (lambda x: x @ (W * 0.5), (3, 3), [W, 0.5]),
    "weights in eight bits would give other results": (
        lambda x: x @ ow.ops.dequantize_linear(Q, SCALE, ZERO) @ W,
        (3, 3),
        [W],
    ),
    "what is worked on is none": (lambda x: (W @ x).relu(), (3, 3), []),
    "data that happen to be the same": (lambda _: ow.ops.conv2d(IMAGE, FILTER).relu(), (), [FILTER]),
    "by name, in another order": (lambda _: ow.ops.conv2d(filter=FILTER, input=IMAGE).relu(), (), [FILTER]),
    "a chain that depends on nothing else": (lambda x: ow.read(W.relu().neg(), x @ SQUARE)[1], (3, 3), [SQUARE]),
    "the same on both sides": (lambda _: (W @ W).relu(), (), []),
    "a residual": (lambda _: W + (W @ SQUARE).relu(), (), [SQUARE]),
    "what is joined": (lambda x: ow.ops.concat([x, W], 0).relu(), (3, 3), []),
    "the operand of a user kernel": (lambda x: doubled(x.relu(), W), (3, 3), []),
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_learned_constants(name: str) -> None:
    program, shape, expected = PROGRAMS[name]
    # What has been a weight elsewhere is one sooner.
    for leaf in (W, SQUARE, Q, SCALE, ZERO, IMAGE, FILTER):
        leaf.reads = 0
    results = []
    for k in range(learned.RECURRENCES * learned.PATIENCE + 2):
        x = normal(*shape, seed=k)
        read = program(ow.array(x) if shape else None)
        results.append((k, np.asarray(read).copy()))
    found = [value for variant in variants() for value in variant.values]
    known = [value if isinstance(value, float) else value.memory for value in expected]
    assert {id(value) for value in found if value.ndim} == {
        id(value) for value in known if isinstance(value, np.ndarray)
    }
    assert [float(value) for value in found if not value.ndim] == [value for value in known if isinstance(value, float)]
    learned.RECURRENCES, before = 2**30, learned.RECURRENCES
    force.graphs.clear()
    try:  # and the values are those of a program without constants
        for k, values in results:
            read = program(ow.array(normal(*shape, seed=k)) if shape else None)
            np.testing.assert_allclose(values, np.asarray(read), rtol=1e-4, atol=1e-6)
    finally:
        learned.RECURRENCES = before


def test_constant_tensors_are_constants_until_they_are_destroyed() -> None:
    with CONTEXT:
        w = CONTEXT.create_constant_tensor("float32", [4, 3], normal(4, 3))
        b = normal(3, seed=1)
        found = []
        for k in range(OFTEN):
            values = layer(normal(2, 4, seed=k), w, b).numpy()
            np.testing.assert_allclose(values, np.maximum(normal(2, 4, seed=k) @ normal(4, 3) + b, 0), atol=1e-5)
            found.append(len(variants()))
        assert found[-1] == 1
        for k in range(100):
            with ow.lazy.profile() as records:
                layer(normal(2, 4, seed=k), w, b).numpy()
            assert records[0].constants == 1
        assert STATISTICS.specialised == 1
        w.destroy()
        assert variants() == []
        with pytest.raises(ow.ValidationError, match="destroyed"):
            layer(normal(2, 4), w, b)


def test_recurring_results_become_constants() -> None:
    w, b = weights(4, 3) * 2, weights(3).neg()
    ow.read(w, b)
    assert [check_layer(normal(2, 4, seed=k), w, b) for k in range(OFTEN)][-1] == 2


# ---------------------------------------------------------------------------------------------------------------------
# Memory that may be written


def test_numpy_arrays_can_be_written_between_reads() -> None:
    w, b = normal(4, 3), normal(3, seed=1)
    held = ow.array(b, copy=False)
    for k in range(3 * OFTEN):
        assert check_layer(normal(2, 4, seed=k), w, held) == 0
        w[...] += 1
        base = b.view()
        assert not b.flags.writeable  # as long as `held` is there
        assert not base.flags.writeable
    assert STATISTICS.specialised == 0


def test_tensors_can_be_written_between_reads() -> None:
    with CONTEXT:
        w = CONTEXT.create_tensor("float32", [4, 3], readable=True, writable=True)
        held = ow.array(w, copy=False)
        for k in range(3 * OFTEN):
            CONTEXT.write_tensor(w, normal(4, 3, seed=k))
            assert check_layer(normal(2, 4, seed=k), held, normal(3, seed=k)) == 0
    assert STATISTICS.specialised == 0


class Unversioned:
    """A consumer of DLPack that does not know read-only memory."""

    def __init__(self, array: ow.Array) -> None:
        self.array = array

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("when", [0, OFTEN])
def test_shared_array_stops_being_constant(when: int) -> None:
    w, b = weights(4, 3), weights(3, seed=1)
    for k in range(when):
        check_layer(normal(2, 4, seed=k), w, b)
    given = np.from_dlpack(Unversioned(w))
    for k in range(3 * OFTEN):
        other = np.full((4, 3), k, "float32")
        ctypes.memmove(given.ctypes.data, other.ctypes.data, other.nbytes)  # what NumPy would not do
        assert np.asarray(w)[0, 0] == k
        assert check_layer(normal(2, 4, seed=k), w, b) in (0, 1)  # `b` alone can be one


# ---------------------------------------------------------------------------------------------------------------------
# Other weights


def test_changed_weights_run_general_program() -> None:
    w, b = weights(4, 3), weights(3, seed=1)
    for k in range(OFTEN):
        check_layer(normal(2, 4, seed=k), w, b)
    assert check_layer(normal(2, 4), weights(4, 3, seed=7), b) == 0
    assert check_layer(normal(2, 4), w, weights(3, seed=8)) == 0
    assert check_layer(normal(2, 4), normal(4, 3, seed=9), b) == 0
    assert check_layer(normal(2, 4), w, b) == 2
    assert STATISTICS.compiled == 1


def test_layers_of_one_structure_have_a_program_each() -> None:
    layers = [(weights(4, 3, seed=k), weights(3, seed=k + 9)) for k in (1, 2, 3)]
    for k in range(40):
        for w, b in layers:
            last = check_layer(normal(2, 4, seed=k), w, b)
    assert last == 2
    assert (STATISTICS.compiled, STATISTICS.specialised) == (1, 3)


def test_changing_number_stays_an_input() -> None:
    w = weights(4, 3)
    for k in range(60):
        factor = 1 + k // 10  # the same for some time, then another one
        x = normal(2, 4, seed=k)
        values = ((ow.ops.matmul(x, w) * float(factor)) + 0.5).numpy()
        np.testing.assert_allclose(values, x @ w.numpy() * factor + 0.5, rtol=1e-4, atol=1e-5)
    assert STATISTICS.specialised <= 3
    assert {float(value) for value in variants()[0].values if not value.ndim} == {0.5}


def test_changing_weights_are_compiled_less_often() -> None:
    reads = 300
    for k in range(reads):
        if k % OFTEN == 0:
            w, b = weights(4, 3, seed=k), weights(3, seed=k)
        check_layer(normal(2, 4, seed=k), w, b)
    assert 1 <= STATISTICS.specialised <= np.log2(reads / learned.RECURRENCES)
    assert len(variants()) <= 1  # those of the others are gone


def test_programs_are_bounded_in_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "VARIANTS", 2)
    layers = [(weights(4, 3, seed=k), weights(3, seed=k + 9)) for k in range(4)]
    for _ in range(6):
        for w, b in layers:
            for k in range(3 * OFTEN):
                check_layer(normal(2, 4, seed=k), w, b)
    assert STATISTICS.specialised > 2
    assert len(variants()) == learned.specialised.statistics.entries == 2
    size = 15 * 4
    monkeypatch.setattr(learned.specialised, "max_bytes", size)
    for rows in (5, 6, 7):
        for k in range(OFTEN):
            check_layer(normal(rows, 4, seed=k), *layers[0])
        assert sum(variant.size for variant in variants()) == size
    monkeypatch.setattr(learned.specialised, "max_bytes", size - 1)
    before = STATISTICS.specialised
    for k in range(OFTEN):
        check_layer(normal(8, 4, seed=k), *layers[0])
    assert STATISTICS.specialised == before


def test_specialised_program_freed_with_weights() -> None:
    w, b = weights(4, 3), weights(3, seed=1)
    for k in range(OFTEN):
        check_layer(normal(2, 4, seed=k), w, b)
    gone = weakref.ref(w.numpy().base)
    assert len(variants()) == learned.specialised.statistics.entries == 1
    del w
    gc.collect()
    assert gone() is None
    assert len(variants()) == learned.specialised.statistics.entries == 0
    assert check_layer(normal(2, 4), weights(4, 3), b) == 0


def test_specialised_program_freed_with_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(force.graphs, "max_entries", 2)
    w, b = weights(4, 3), weights(3, seed=1)
    for rows in (1, 2, 3):
        for k in range(OFTEN):
            check_layer(normal(rows, 4, seed=k), w, b)
    assert STATISTICS.specialised == 3
    assert learned.specialised.statistics.entries == 2


# ---------------------------------------------------------------------------------------------------------------------
# Compiling


def test_specialised_program_compiles_in_background() -> None:
    ow.lazy.compile_now(False)
    w, b = weights(4, 3), weights(3, seed=1)
    for k in range(OFTEN):
        check_layer(normal(2, 4, seed=k), w, b)
        ow.lazy.wait()
    assert STATISTICS.specialised == 1
    assert check_layer(normal(2, 4), w, b) == 2


def test_specialisation_in_queue_does_not_keep_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: list[Any] = []
    ow.lazy.compile_now(False)
    monkeypatch.setattr(background, "put", lambda task, **_: queue.append(task))
    w, b = weights(4, 3), weights(3, seed=1)
    check_layer(normal(2, 4), w, b)
    check_layer(normal(2, 4), w, b)
    queue.pop()()
    for k in range(OFTEN):
        assert check_layer(normal(2, 4, seed=k), w, b) == 0
    variant = queue.pop()
    del w
    variant()
    assert variant.func.__self__.program is None
    assert STATISTICS.specialised == 0
    assert variants() == []


def test_refused_specialisation_keeps_general_program(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = graphs.CallGraph.compile

    def refuse(plan: Any, constants: Any = None) -> Any:
        if constants:
            raise ow.OperationError("no constants, please")
        return compiled(plan)

    monkeypatch.setattr(graphs.CallGraph, "compile", refuse)
    w, b = weights(4, 3), weights(3, seed=1)
    for k in range(3 * OFTEN):
        assert check_layer(normal(2, 4, seed=k), w, b) == 0
    (variant,) = variants()
    assert "no constants" in str(variant.refusal)
    assert STATISTICS.graphs == 3 * OFTEN


def test_replaced_weights_in_threads() -> None:
    def work(seed: int) -> None:
        for k in range(40):
            w, b = weights(4, 3, seed=seed + k), weights(3, seed=seed)
            for turn in range(OFTEN):
                x = normal(2, 4, seed=turn)
                values = layer(x, w, b).numpy()
                expected = np.maximum(x @ w.numpy() + b.numpy(), 0)
                np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)

    together(*(partial(work, 1000 * k) for k in range(4)))
    ow.lazy.wait()
    gc.collect()
    deferred_free.drop_waiting()
    assert variants() == []
