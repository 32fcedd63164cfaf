"""Graphs that differ only in sizes use one session of the engine, which packs the weights once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest

import opweave as ow
from opweave import composites
from opweave.backends.onnxruntime import sessions
from opweave.context.graph import program_of

CPU = ow.ml.create_context(device="cpu")
RANDOM = np.random.default_rng(3)
WIDTH, ROOM, SIZE, PAST = 32, 8, 16, 2
COSINES = RANDOM.random((ROOM, SIZE // 2), np.float32)
SINES = RANDOM.random((ROOM, SIZE // 2), np.float32)


class Weights:
    """Quantized matrices [WIDTH, WIDTH] for queries, keys and values."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.packed = [random.integers(0, 256, (WIDTH, 2, 8), np.uint8) for _ in range(3)]
        self.scale = random.random((WIDTH, 2), np.float32)
        self.minimum = random.random((WIDTH, 2), np.float32)

    def product(self, x: ow.MLOperand, which: int) -> ow.MLOperand:
        given = (x, self.packed[which], self.scale, None, None, self.minimum)
        made: ow.MLOperand = composites.matmul_n_bits(*given, block_size=16)
        return made


def step(weights: Weights, new: int, context: ow.MLContext = CPU) -> ow.MLGraph:
    """A layer of attention that reads `new` tokens, of which it returns the one at `last`."""
    b = ow.MLGraphBuilder(context)
    x, length, last = (
        b.input("x", "float32", [1, new, WIDTH]),
        b.input("length", "int32", [1]),
        b.input("last", "int32", [1]),
    )
    past = [b.input(name, "float32", [1, 2, ROOM, SIZE]) for name in ("key", "value")]
    q, k, v = (weights.product(x, which) for which in range(3))
    y, keys, values = composites.group_query_attention(q, k, v, *past, length, COSINES, SINES, heads=2, groups=2)
    return b.build({"y": b.gather(x + y, last, axis=1), "key": keys, "value": values})


def feed(new: int, last: int) -> dict[str, Any]:
    random = np.random.default_rng(7)
    past = {name: random.random((1, 2, ROOM, SIZE), np.float32) for name in ("key", "value")}
    x = random.random((1, ROOM, WIDTH), np.float32)[:, :new].copy()
    return {"x": x, "length": np.int32([PAST]), "last": np.int32([last]), **past}


def runner(graph: ow.MLGraph) -> Any:
    """What runs a graph that has one step."""
    (only,) = program_of(graph).steps
    assert only.part is not None
    return only.part.runner


def engine_session(graph: ow.MLGraph) -> Any:
    """The engine's session of a graph."""
    return runner(graph)._session


def test_session_is_shared_by_graphs_of_different_sizes() -> None:
    weights = Weights(1)
    graphs = {new: step(weights, new) for new in (1, 3, 5)}
    assert engine_session(graphs[1]) is engine_session(graphs[3]) is engine_session(graphs[5])
    reference = ow.ml.create_context(device="reference")
    for new, graph in graphs.items():
        given = feed(new, new - 1)
        wanted = reference.compute(step(weights, new, reference), given)
        for name, found in CPU.compute(graph, given).items():
            valid = np.s_[..., : PAST + new, :]  # of keys and values
            np.testing.assert_allclose(found[valid], wanted[name][valid], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("last", "taken"), [(9, 2), (-9, 0), (-1, 2)])
def test_indices_are_clamped_to_the_sizes_of_the_graph(last: int, taken: int) -> None:
    weights = Weights(1)
    graphs = [step(weights, new) for new in (1, 3)]
    found, wanted = (CPU.compute(graphs[1], feed(3, index))["y"] for index in (last, taken))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("shared", "move"), [(True, lambda y: y.reshape(y.shape[1:])), (False, lambda y: y.transpose())]
)
def test_session_is_not_shared_by_graphs_of_different_nodes(
    shared: bool, move: Callable[[ow.MLOperand], ow.MLOperand]
) -> None:
    """A transposition that moves only axes of size 1 is a reshape."""
    weights, x = Weights(1), np.random.default_rng(0).random((1, 4, WIDTH), np.float32)
    graphs = []
    for new in (1, 4):
        b = ow.MLGraphBuilder(CPU)
        y = weights.product(b.input("x", "float32", [1, new, WIDTH]), 0)
        graphs.append(b.build({"y": y, "moved": move(y)}))
        found = CPU.compute(graphs[-1], {"x": x[:, :new].copy()})
        wanted = found["y"][0] if shared else found["y"].transpose()
        np.testing.assert_array_equal(found["moved"], wanted)
    assert (engine_session(graphs[0]) is engine_session(graphs[1])) == shared


def test_shared_session_with_size_inputs() -> None:
    graph = step(Weights(1), 3)
    given = feed(3, 2)
    wanted = CPU.compute(graph, given)
    outputs = {name: np.empty_like(array) for name, array in wanted.items()}
    CPU.compute(graph, given, outputs)
    inputs = {}
    for name, operand in graph.inputs.items():
        inputs[name] = CPU.create_tensor(operand.data_type, operand.shape, writable=True)
        CPU.write_tensor(inputs[name], given[name])
    tensors = {name: CPU.create_tensor("float32", array.shape, readable=True) for name, array in wanted.items()}
    CPU.dispatch(graph, inputs, tensors)
    for name, array in wanted.items():
        np.testing.assert_array_equal(outputs[name], array)
        np.testing.assert_array_equal(CPU.read_tensor(tensors[name]), array)
    assert "GroupQueryAttention" in str(graph.profile(detail=True))


def test_equal_weights_in_other_memory_are_the_same() -> None:
    first, second, other = (step(Weights(seed), new) for seed, new in ((1, 1), (1, 3), (2, 3)))
    assert engine_session(first) is engine_session(second)
    assert engine_session(first) is not engine_session(other)
    given = feed(3, 2)
    assert not np.allclose(CPU.compute(second, given)["y"], CPU.compute(other, given)["y"])


def test_contexts_with_other_settings_do_not_share_sessions() -> None:
    weights = Weights(1)
    other = ow.ml.create_context(device="cpu", power_preference="low-power")
    assert engine_session(step(weights, 1)) is not engine_session(step(weights, 1, other))


def test_shared_session_freed_with_last_graph() -> None:
    first, second = step(Weights(9), 1), step(Weights(9), 3)
    freed = ref(runner(first)._loaded)
    assert freed() is runner(second)._loaded
    del first
    gc.collect()
    assert freed() is not None
    CPU.compute(second, feed(3, 0))
    del second
    gc.collect()
    assert freed() is None


@pytest.mark.parametrize(("limit", "times"), [(-1, 1), (2**20, 0)])
def test_memory_is_released_after_packing_large_weights(
    limit: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed: list[None] = []
    monkeypatch.setattr(sessions, "TRIMMED_BYTES", limit)
    monkeypatch.setattr(sessions, "trim", lambda: trimmed.append(None))
    step(Weights(11), 1)
    assert len(trimmed) == times
