"""Outputs in the memory of the inputs that they update: the past keys and values of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.plugin_device import plugin_context
from support.webgpu_device import gpu_context

import opweave as ow
from opweave import composites, memory
from opweave.context.graph import program_of, state_of
from opweave.memory import NOT_IN_PLACE, OVER_INPUT

HEADS, GROUPS, SIZE, ROOM = 4, 2, 8, 8
PAST = ("past_key", "past_value")

Runs = Callable[[ow.MLContext, bool, int, Sequence[int]], Iterator[list[np.ndarray]]]


CONTEXTS = [
    pytest.param(lambda: ow.ml.create_context(accelerated=False), id="cpu"),
    pytest.param(lambda: ow.ml.create_context(device="reference"), id="reference"),
    pytest.param(lambda: ow.ml.create_context(accelerated=False, deferred=True), id="deferred"),
    pytest.param(gpu_context, id="webgpu"),
    pytest.param(plugin_context, id="plug-in"),
]
CPU = ow.ml.create_context(accelerated=False)


@dataclass
class Counted:
    """Copies by reason, without those that tests make themselves."""

    by_reason: dict[str, int]

    def __enter__(self) -> Counted:
        memory.copies.reset()
        return self

    def __exit__(self, *_: object) -> None:
        own = ("write_tensor", "read_tensor")
        self.by_reason |= {
            reason: tally.count for reason, tally in memory.copies.by_reason.items() if reason not in own
        }


def attention(
    context: ow.MLContext, new: int = 1, batch: int = 1, more: Callable[..., Mapping[str, Any]] | None = None
) -> ow.MLGraph:
    """A step of attention; `more` makes further outputs of the past keys and the three results."""
    builder = ow.MLGraphBuilder(context)
    query = builder.input("query", "float32", [batch, new, HEADS * SIZE])
    key, value = (builder.input(name, "float32", [batch, new, GROUPS * SIZE]) for name in ("key", "value"))
    past = [builder.input(name, "float32", [batch, GROUPS, ROOM, SIZE]) for name in PAST]
    lengths = builder.input("lengths", "int32", [batch])
    results = composites.group_query_attention(query, key, value, *past, lengths, heads=HEADS, groups=GROUPS)
    made = {"y": results[0], "past_key": results[1], "past_value": results[2]}
    return builder.build(made | dict(more(builder, past[0], *results) if more else {}))


def chunk(graph: ow.MLGraph, start: int, seed: int) -> dict[str, np.ndarray]:
    """New queries, keys and values, and the lengths, all `start`."""
    random = np.random.default_rng(seed)
    given = {n: random.standard_normal(graph.inputs[n].shape, "float32") for n in ("query", "key", "value")}
    return given | {"lengths": np.full(graph.inputs["lengths"].shape, start, "int32")}


def by_compute(context: ow.MLContext, in_place: bool, batch: int, chunks: Sequence[int]) -> Iterator[list[np.ndarray]]:
    past = {name: np.full((batch, GROUPS, ROOM, SIZE), 7, "float32") for name in PAST}
    start = 0
    for new in chunks:
        graph = attention(context, new, batch)
        given = chunk(graph, start, start)
        made = context.compute(graph, given | past, past if in_place else None)
        start += new
        past = {name: made[name] for name in PAST}
        yield [made["y"], *(array[:, :, :start].copy() for array in past.values())]


def by_dispatch(context: ow.MLContext, in_place: bool, batch: int, chunks: Sequence[int]) -> Iterator[list[np.ndarray]]:
    def tensor(desc: ow.Desc) -> ow.MLTensor:
        return context.create_tensor(desc.data_type, desc.shape, readable=True, writable=True)

    past: dict[str, ow.MLTensor] = {}
    start = 0
    for new in chunks:
        graph = attention(context, new, batch)
        past = past or {name: tensor(graph.inputs[name]) for name in PAST}
        given = {name: tensor(graph.inputs[name]) for name in ("query", "key", "value", "lengths")}
        for name, array in chunk(graph, start, start).items():
            context.write_tensor(given[name], array)
        made = {"y": tensor(graph.outputs["y"])} | (past if in_place else {n: tensor(graph.inputs[n]) for n in PAST})
        context.dispatch(graph, given | past, made)
        start += new
        past = {name: made[name] for name in PAST}
        yield [context.read_tensor(made["y"]), *(context.read_tensor(t)[:, :, :start] for t in past.values())]


@pytest.mark.parametrize("make", CONTEXTS)
@pytest.mark.parametrize("runs", [by_compute, by_dispatch])
@pytest.mark.parametrize(("batch", "chunks"), [(1, (3, 2, 1, 1)), (2, (1, 1, 1)), (2, (3, 1))])
def test_attention_in_place_equals_copying(
    make: Callable[[], ow.MLContext], runs: Runs, batch: int, chunks: tuple[int, ...]
) -> None:
    context = make()
    for found, wanted in zip(runs(context, True, batch, chunks), runs(CPU, False, batch, chunks), strict=True):
        for mine, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("runs", [by_compute, by_dispatch])
def test_attention_in_place_copies_nothing(runs: Runs) -> None:
    with Counted({}) as counted:
        list(runs(CPU, True, 1, (3, 1)))
        list(runs(CPU, True, 2, (1, 1)))
    assert counted.by_reason == {}


@pytest.mark.parametrize("runs", [by_compute, by_dispatch])
def test_attention_counts_copied_past(runs: Runs) -> None:
    with Counted({}) as counted:
        list(runs(CPU, False, 2, (1, 1, 1)))
    assert counted.by_reason == {NOT_IN_PLACE: 6}
    assert memory.copies.by_reason[NOT_IN_PLACE].bytes == 6 * 2 * GROUPS * ROOM * SIZE * 4


def test_gpu_updates_past_of_two_sequences() -> None:
    with Counted({}) as counted:
        list(by_dispatch(gpu_context(), True, 2, (3, 1)))
    assert counted.by_reason == {}
    with Counted({}) as counted:
        list(by_dispatch(gpu_context(), False, 2, (3,)))
    assert counted.by_reason == {NOT_IN_PLACE: 2}


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("runs", [by_compute, by_dispatch])
def test_decomposed_attention_uses_other_memory(runs: Runs, device: str) -> None:
    """No engine of CPUs has a kernel for several new keys of two sequences."""
    context = ow.ml.create_context(device=device)
    with Counted({}) as counted:
        list(runs(context, True, 2, (3,)))
    assert counted.by_reason[OVER_INPUT] == 2


def test_attention_updates_keys_or_values_alone() -> None:
    """ONNX Runtime's kernel would lose the past keys, if only they were in the memory of its result."""
    graph = attention(CPU)
    given = chunk(graph, 2, 0) | {name: np.ones((1, GROUPS, ROOM, SIZE), "float32") for name in PAST}
    wanted = CPU.compute(graph, given)
    for names in (["past_key"], ["past_value"]):
        mine = {name: array.copy() for name, array in given.items()}
        with Counted({}) as counted:
            found = CPU.compute(graph, mine, {name: mine[name] for name in names})
        assert counted.by_reason == {NOT_IN_PLACE: 2, OVER_INPUT: 1}
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name][..., :3, :], array[..., :3, :])
        assert found[names[0]] is mine[names[0]]


@ow.op
def totals(b: ow.MLGraphBuilder, x: ow.MLOperand, y: ow.MLOperand) -> ow.Desc:
    return ow.Desc("float32", (2,))


@totals.kernel("cpu")
def _(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    out[...] = x.sum(), y.sum()


READERS: dict[str, Callable[..., Mapping[str, Any]]] = {
    "in the same segment": lambda b, past, y, *_: {"z": b.add(b.reduce_sum(past), b.reduce_sum(y))},
    "in a later segment": lambda b, past, y, *_: {"z": totals(past, y)},
    "a second attention": lambda b, past, y, *_: {
        "z": composites.group_query_attention(
            y, *(b.slice(y, [0, 0, 0], [1, 1, GROUPS * SIZE]) for _ in "kv"), past, past, heads=HEADS, groups=GROUPS
        )[1]
    },
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_attention_updates_past_with_other_readers_last(reader: str, device: str) -> None:
    context = ow.ml.create_context(device=device)
    graph = attention(context, more=READERS[reader])
    past = {name: np.random.default_rng(3).random((1, GROUPS, ROOM, SIZE), "float32") for name in PAST}
    given = chunk(graph, 2, 0) | past
    wanted = context.compute(graph, given)
    with Counted({}) as counted:
        found = context.compute(graph, given, past)
    assert counted.by_reason[OVER_INPUT] == 2
    for name, array in wanted.items():
        rows = slice(3) if name in PAST else slice(None)
        np.testing.assert_allclose(found[name][..., rows, :] if array.ndim > 1 else found[name],
                                   array[..., rows, :] if array.ndim > 1 else array, rtol=1e-6)  # fmt: skip


def test_readers_of_the_new_keys_see_them() -> None:
    graph = attention(CPU, more=lambda b, past, y, keys, _: {"again": keys, "total": totals(keys, y)})
    past = {name: np.zeros((1, GROUPS, ROOM, SIZE), "float32") for name in PAST}
    given = chunk(graph, 0, 0)
    with Counted({}) as counted:
        found = CPU.compute(graph, given | past, past)
    assert counted.by_reason == {"an output under another name": 1}
    np.testing.assert_array_equal(found["again"], past["past_key"])
    np.testing.assert_allclose(found["total"], [given["key"].sum(), found["y"].sum()], rtol=1e-4)


def test_growing_cache_is_copied() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [1, 1, HEADS * SIZE])
    past = [builder.input(name, "float32", [1, HEADS, 5, SIZE]) for name in PAST]
    _, keys, _ = composites.group_query_attention(x, x, x, *past, heads=HEADS, groups=HEADS)
    graph = builder.build({"keys": keys})
    with Counted({}) as counted:
        CPU.compute(graph, {name: np.zeros(desc.shape, "float32") for name, desc in graph.inputs.items()})
    assert counted.by_reason == {NOT_IN_PLACE: 2}


def test_dispatch_rejects_partial_overlap() -> None:
    graph, size = attention(CPU), GROUPS * ROOM * SIZE
    whole = np.zeros(2 * size, "float32")
    shape = (1, GROUPS, ROOM, SIZE)
    given = chunk(graph, 0, 0) | {"past_key": whole[:size].reshape(shape), "past_value": np.zeros(shape, "float32")}
    with pytest.raises(ow.ValidationError, match="the memory of 'past_key' overlaps that of 'past_key'"):
        CPU.compute(graph, given, {"past_key": whole[4 : size + 4].reshape(shape)})
    with pytest.raises(ow.ValidationError, match="the memory of 'past_value' overlaps that of 'past_key'"):
        CPU.compute(graph, given, {"past_key": given["past_value"]})
    with pytest.raises(ow.ValidationError, match="overlaps"):
        CPU.compute(graph, given, dict.fromkeys(PAST, given["past_key"]))
    # Two inputs in the same memory, of which one is updated.
    with pytest.raises(ow.ValidationError, match="the memory of 'past_value' overlaps that of 'past_key'"):
        CPU.compute(graph, given | {"past_value": given["past_key"]}, {"past_key": given["past_key"]})


@pytest.mark.parametrize("make", CONTEXTS)
def test_dispatch_rejects_overlapping_tensors(make: Callable[[], ow.MLContext]) -> None:
    context = make()
    graph = attention(context)
    tensors = {
        n: context.create_tensor(d.data_type, d.shape) for n, d in (*graph.inputs.items(), *graph.outputs.items())
    }
    inputs = {name: tensors[name] for name in graph.inputs}
    outputs = {name: tensors[name] for name in graph.outputs}
    context.dispatch(graph, inputs, outputs)
    message = "each input and output needs a tensor of its own, got one of them twice"
    for wrong in (
        {"y": tensors["query"]},
        {"past_key": tensors["past_value"], "past_value": tensors["past_key"]},
        {"past_key": tensors["past_value"]},
    ):
        with pytest.raises(ow.ValidationError, match=message):
            context.dispatch(graph, inputs, outputs | wrong)
    with pytest.raises(ow.ValidationError, match=message):
        context.dispatch(graph, inputs | {"past_value": tensors["past_key"]}, outputs)


def test_dispatch_with_memory_of_the_user() -> None:
    """In a deferred context such a dispatch runs at once."""
    for deferred in (False, True):
        context = ow.ml.create_context(accelerated=False, deferred=deferred)
        graph = attention(context)
        arrays = {name: np.zeros(desc.shape, desc.data_type) for name, desc in graph.inputs.items()} | chunk(
            graph, 0, 0
        )
        tensors = {name: context.tensor_from(array) for name, array in arrays.items()}
        y = context.create_tensor("float32", graph.outputs["y"].shape, readable=True)
        for position in range(3):
            arrays["lengths"][:] = position
            with Counted({}) as counted:
                context.dispatch(graph, tensors, {"y": y, **{name: tensors[name] for name in PAST}})
            assert counted.by_reason == {}
            assert [int(arrays[name].any(axis=(0, 1, 3)).sum()) for name in PAST] == [position + 1] * 2


def test_profile_in_place() -> None:
    graph = attention(CPU)
    past = {name: np.zeros((1, GROUPS, ROOM, SIZE), "float32") for name in PAST}
    given = chunk(graph, 2, 0) | past
    assert graph.profile(given, outputs=past, repeat=2, detail=True).copies == ()
    (copied,) = graph.profile(given, repeat=2).copies
    assert (copied.reason, copied.count) == (NOT_IN_PLACE, 2)


def test_custom_operation_uses_other_memory() -> None:
    @ow.op
    def reverse(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    @reverse.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        out[...] = x[::-1]

    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": reverse(builder.input("x", "float32", [4]))})
    x = np.arange(4, dtype="float32")
    with pytest.raises(ow.ValidationError, match="overlaps"):
        CPU.compute(graph, {"x": x}, {"y": x})
    reverse.in_place(output="x")
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": reverse(builder.input("x", "float32", [4]))})
    with Counted({}) as counted:
        assert CPU.compute(graph, {"x": x}, {"y": x})["y"] is x
    assert x.tolist() == [3, 2, 1, 0]
    assert counted.by_reason == {OVER_INPUT: 1}
    with pytest.raises(ow.ValidationError, match=r"reverse: in_place takes the name of an operand .* got output='y'"):
        reverse.in_place(output="y")
    with pytest.raises(ow.ValidationError, match="got result='x'"):
        reverse.in_place(result="x")


def test_graph_of_one_segment_needs_no_layout() -> None:
    graph, past = attention(CPU), {name: np.ones((1, GROUPS, ROOM, SIZE), "float32") for name in PAST}
    given = chunk(graph, 3, 0) | past
    made = [{name: np.empty(desc.shape, "float32") for name, desc in graph.outputs.items()} for _ in range(2)]
    with Counted({}) as new:
        results = CPU.compute(graph, given)
    with Counted({}) as other:
        CPU.compute(graph, given, made[0])
    tensors = {name: CPU.tensor_from(array) for name, array in given.items()}
    with Counted({}) as dispatched:
        for _ in range(2):
            CPU.dispatch(graph, tensors, {name: CPU.tensor_from(array) for name, array in made[1].items()})
    assert new.by_reason == other.by_reason == {NOT_IN_PLACE: 2}
    assert dispatched.by_reason == {NOT_IN_PLACE: 4}
    with Counted({}) as in_place:
        CPU.compute(graph, given, past)
    assert in_place.by_reason == {}
    program = program_of(graph)
    assert program is not None
    assert not program._layouts
    for name, array in results.items():
        for outputs in (*made, past | {"y": array}):
            rows = np.s_[:] if name == "y" else np.s_[:, :, :4]
            np.testing.assert_allclose(outputs[name][rows], array[rows], rtol=1e-6)


def test_new_numbers_of_queries_run_in_place_with_one_program() -> None:
    """The operations are checked for the first number only; the range of the lengths is that of each number."""
    context = ow.ml.create_context(device="cpu", drafts=True)
    room, size = 8, 16
    builder = ow.MLGraphBuilder(context)
    query, key, value = (builder.input(name, "float32", [1, "new", size]) for name in ("query", "key", "value"))
    past = [builder.input(name, "float32", [1, 1, room, size]) for name in ("keys", "values")]
    lengths = builder.input("lengths", "int32", [1])
    y, *present = composites.group_query_attention(query, key, value, *past, lengths, heads=1, groups=1)
    graph = builder.build({"y": y, "new_keys": present[0], "new_values": present[1]})
    cache = [context.create_tensor("float32", [1, 1, room, size], readable=True, writable=True) for _ in range(2)]
    length = context.create_tensor("int32", [1], readable=True, writable=True)
    rows, start = np.random.default_rng(0).standard_normal((room, size)).astype("float32"), 0
    memory.copies.reset()

    def run(count: int) -> None:
        x = rows[None, start : start + count]
        length.numpy()[...] = start
        inputs = {"keys": cache[0], "values": cache[1], "lengths": length}
        inputs |= {name: context.tensor_from(x.copy()) for name in ("query", "key", "value")}
        result = context.create_tensor("float32", [1, count, size], readable=True)
        context.dispatch(graph, inputs, {"y": result, "new_keys": cache[0], "new_values": cache[1]})

    for count in (1, 3, 2):
        run(count)
        start += count
        np.testing.assert_allclose(cache[0].numpy()[0, 0, :start], rows[:start])
    assert memory.copies.count == 0
    state: Any = state_of(graph)
    assert len(state._open) == 1
    rows = np.concatenate([rows, rows])
    with pytest.raises(ow.ValidationError, match=r"lengths must be in \[0, 4\], .*got 6 in the input 'lengths'"):
        run(4)
