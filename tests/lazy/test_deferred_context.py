"""Contexts in which dispatches are recorded, and run when a result is read."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from row_sample import examples
from support.threads import together

import opweave as ow
from opweave import memory
from opweave.context.graph import program_of
from opweave.lazy import array as arrays, force
from opweave.lazy.background import compile_now, statistics, wait

SHAPE = [4]
START = np.array([1, -2, 3, -4], "float32")


@pytest.fixture(params=["background", "now", "reference"])
def context(request: pytest.FixtureRequest) -> Iterator[ow.MLContext]:
    """A deferred context, which compiles chains at the second time or at the first, on either back end."""
    wait()  # for what other tests have left to compile
    before = compile_now(request.param == "now")
    statistics.reset()
    device = "reference" if request.param == "reference" else None
    yield ow.ml.create_context(accelerated=False, device=device, deferred=True)
    compile_now(before)


def graph_of(context: ow.MLContext, function: Callable[..., Any], inputs: int = 1, label: str = "") -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    operands = [builder.input(f"in{k}", "float32", SHAPE) for k in range(inputs)]
    results = function(*operands) if inputs else function(builder)
    results = results if isinstance(results, tuple) else (results,)
    return builder.build({f"out{k}": operand for k, operand in enumerate(results)})


def tensor_of(context: ow.MLContext, values: Any = None, *, writable: bool = True) -> ow.MLTensor:
    tensor = context.create_tensor("float32", SHAPE, readable=True, writable=writable)
    if values is not None:
        context.write_tensor(tensor, np.float32(values))
    return tensor


def dispatch(graph: ow.MLGraph, inputs: Sequence[ow.MLTensor], outputs: Sequence[ow.MLTensor]) -> None:
    graph.context.dispatch(
        graph,
        {f"in{k}": tensor for k, tensor in enumerate(inputs)},
        {f"out{k}": tensor for k, tensor in enumerate(outputs)},
    )


def test_dispatch_waits_for_a_read(context: ow.MLContext) -> None:
    double, add = graph_of(context, lambda x: x * 2), graph_of(context, lambda x, y: x + y, 2)
    x, a, b, c = tensor_of(context, START), tensor_of(context), tensor_of(context), tensor_of(context)
    dispatch(double, [x], [a])
    dispatch(double, [a], [b])
    dispatch(add, [a, b], [c])
    assert (statistics.graphs, statistics.operations) == (0, 0)
    np.testing.assert_array_equal(context.read_tensor(c), 6 * START)
    assert statistics.graphs + statistics.operations > 0
    assert (statistics.values, statistics.dropped) == (3, 0)  # a and b can still be looked at
    before = statistics.graphs, statistics.operations
    np.testing.assert_array_equal(context.read_tensor(a), 2 * START)
    assert (statistics.graphs, statistics.operations) == before


LOOKS: dict[str, Callable[[ow.MLContext, ow.MLTensor], Any]] = {
    "read_tensor": lambda context, tensor: context.read_tensor(tensor),
    "read_tensor(out)": lambda context, tensor: context.read_tensor(tensor, out=np.empty(4, "float32")),
    "numpy": lambda context, tensor: tensor.numpy(),
    "asarray": lambda context, tensor: np.asarray(tensor),
    "DLPack": lambda context, tensor: np.from_dlpack(tensor),
    "compute": lambda context, tensor: context.compute(graph_of(context, lambda x: x.identity()), {"in0": tensor})[
        "out0"
    ],
    "an operation": lambda context, tensor: ow.ops.identity(tensor).numpy(),
    "array": lambda context, tensor: ow.array(tensor).numpy(),
    "jit": lambda context, tensor: ow.jit(lambda x: x.identity())(tensor).numpy(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_any_read_runs_pending_dispatch(context: ow.MLContext, look: str) -> None:
    negate = graph_of(context, lambda x: -x)
    x, y = tensor_of(context, START), tensor_of(context)
    dispatch(negate, [x], [y])
    np.testing.assert_array_equal(LOOKS[look](context, y), -START)


def test_overwritten_dispatches_do_not_run(context: ow.MLContext) -> None:
    double = graph_of(context, lambda x: x * 2)
    x, a, b = tensor_of(context, START), tensor_of(context), tensor_of(context)
    dispatch(double, [x], [a])
    dispatch(double, [x], [b])
    np.testing.assert_array_equal(a.numpy(), 2 * START)
    assert statistics.operations + statistics.graphs == 1


def test_unreachable_results_are_not_written(context: ow.MLContext) -> None:
    double, add = graph_of(context, lambda x: x * 2), graph_of(context, lambda x, y: x + y, 2)
    x, result = tensor_of(context, START), tensor_of(context)
    overwritten, destroyed, collected = (tensor_of(context) for _ in range(3))
    dispatch(double, [x], [overwritten])
    dispatch(double, [x], [overwritten])  # before anybody looked: the first one never runs
    assert statistics.dropped == 1
    dispatch(double, [overwritten], [destroyed])
    dispatch(add, [overwritten, destroyed], [collected])
    dispatch(add, [destroyed, collected], [result])
    destroyed.destroy()
    context.write_tensor(overwritten, START)
    del collected
    gc.collect()
    np.testing.assert_array_equal(result.numpy(), (4 + 6) * START)
    assert (statistics.values, statistics.dropped) == (1, 4)
    dispatch(double, [x], [result])
    result.destroy()
    assert statistics.dropped == 5
    assert statistics.operations + 4 * statistics.graphs == 4


def test_recurring_chain_becomes_one_graph(context: ow.MLContext) -> None:
    weight = np.float32([1, 2, 3, 4])
    scale = graph_of(context, lambda x: x * weight)
    split = graph_of(context, lambda x: (x + 1, x - 1))
    a, b, c = (tensor_of(context) for _ in range(3))
    x = tensor_of(context)
    for step in range(4):
        context.write_tensor(x, START + step)
        dispatch(scale, [x], [a])
        dispatch(split, [a], [b, c])
        np.testing.assert_array_equal(c.numpy(), (START + step) * weight - 1)
        np.testing.assert_array_equal(b.numpy(), (START + step) * weight + 1)
        wait()
    assert statistics.compiled == 1
    now = compile_now()
    compile_now(now)
    assert statistics.graphs == 4 if now else statistics.graphs in (2, 3)


def test_dispatch_copies_nothing(context: ow.MLContext) -> None:
    double = graph_of(context, lambda x: x * 2)
    x, a, b = tensor_of(context, START), tensor_of(context), tensor_of(context)
    before = memory.copies.count
    for _ in range(3):
        dispatch(double, [x], [a])
        dispatch(double, [a], [b])
        np.testing.assert_array_equal(b.numpy(), 4 * START)
    assert memory.copies.count == before


def test_dispatch_same_graph_alternately(context: ow.MLContext) -> None:
    step = graph_of(context, lambda x: x * 0.5 + 1)
    one, other = tensor_of(context, START), tensor_of(context)
    want = START
    for count in (1, 2, 7, arrays.LONGEST + 3):
        for _ in range(count):
            dispatch(step, [one], [other])
            one, other = other, one
            want = np.asarray(want * np.float32(0.5) + np.float32(1))
        np.testing.assert_allclose(one.numpy(), want, rtol=1e-6)


def test_dispatch_runs_pending_chain_at_longest_length(context: ow.MLContext) -> None:
    step = graph_of(context, lambda x: x + 1)
    one, other = tensor_of(context, START), tensor_of(context)
    for _ in range(arrays.LONGEST - 1):
        dispatch(step, [one], [other])
        one, other = other, one
    assert statistics.operations == 0
    dispatch(step, [one], [other])
    assert statistics.operations + statistics.graphs > 0


def test_write_tensor_keeps_values_for_earlier_dispatches(context: ow.MLContext) -> None:
    add = graph_of(context, lambda x, y: x + y, 2)
    x, y, z = tensor_of(context, START), tensor_of(context, START), tensor_of(context)
    dispatch(add, [x, y], [z])
    context.write_tensor(x, START * 10)
    dispatch(add, [x, z], [y])
    np.testing.assert_array_equal(context.read_tensor(y), 12 * START)
    np.testing.assert_array_equal(context.read_tensor(z), 2 * START)
    np.testing.assert_array_equal(context.read_tensor(x), 10 * START)


def test_view_shows_dispatch_results(context: ow.MLContext) -> None:
    double = graph_of(context, lambda x: x * 2)
    x, y = tensor_of(context, START), tensor_of(context)
    part = y.numpy()[1:]  # any view of a view counts
    dispatch(double, [x], [y])
    np.testing.assert_array_equal(part, 2 * START[1:])
    context.write_tensor(y, START)
    np.testing.assert_array_equal(part, START[1:])
    del part
    dispatch(double, [x], [y])
    assert statistics.values == 0  # recorded again


def test_view_writes_follow_earlier_dispatches(context: ow.MLContext) -> None:
    double = graph_of(context, lambda x: x * 2)
    x, y, z = tensor_of(context, START), tensor_of(context), tensor_of(context)
    dispatch(double, [x], [y])
    view = x.numpy()
    view[:] = 5
    dispatch(double, [x], [z])
    view[:] = 7
    np.testing.assert_array_equal(y.numpy(), 2 * START)
    np.testing.assert_array_equal(z.numpy(), [10] * 4)
    np.testing.assert_array_equal(x.numpy(), [7] * 4)


def test_pending_dispatch_reads_before_in_place_write(context: ow.MLContext) -> None:
    double = graph_of(context, lambda x: x * 2)
    x, y, z = tensor_of(context, START), tensor_of(context, writable=False), tensor_of(context)
    dispatch(double, [x], [y])
    view = y.numpy()  # it is read-only, so reading it can wait
    before = statistics.operations
    dispatch(double, [y], [z])
    assert statistics.operations == before
    dispatch(double, [tensor_of(context, 5 * START)], [y])  # but the view shows what is written
    np.testing.assert_array_equal(view, 10 * START)
    np.testing.assert_array_equal(z.numpy(), 4 * START)


def test_immediate_dispatch_after_tensor_moved(context: ow.MLContext) -> None:
    double, result = graph_of(context, lambda x: x * 2), np.zeros(4, "float32")
    x, y, mine = tensor_of(context, START), tensor_of(context), context.tensor_from(result)
    for factor in (2, 4, 8):
        dispatch(double, [x], [mine])
        np.testing.assert_array_equal(result, factor * START)
        dispatch(double, [x], [y])
        x, y = y, x
        dispatch(double, [y], [mine])
        np.testing.assert_array_equal(result, factor * START)
    for k in range(3):
        context.write_tensor(x, START + k)
        dispatch(double, [x], [mine])
        np.testing.assert_array_equal(result, 2 * (START + k))
        dispatch(double, [x], [y])  # keeps what is there: the next write goes elsewhere


def test_dispatch_on_user_memory_is_immediate(context: ow.MLContext) -> None:
    double = graph_of(context, lambda x: x * 2)
    mine, result = START.copy(), np.zeros(4, "float32")
    x, y = context.tensor_from(mine), context.tensor_from(result)
    between = tensor_of(context)
    dispatch(double, [x], [between])
    mine[:] = 0  # too late for the dispatch
    dispatch(double, [between], [y])
    np.testing.assert_array_equal(result, 4 * START)
    assert y.numpy().ctypes.data == result.ctypes.data
    frozen = np.frombuffer(START.tobytes(), "float32")  # read-only
    dispatch(double, [context.tensor_from(frozen)], [between])
    assert statistics.values == 0
    np.testing.assert_array_equal(between.numpy(), 2 * START)


def test_deferred_dispatch_with_both_kinds_of_constants(context: ow.MLContext) -> None:
    table = context.create_constant_tensor("float32", SHAPE, START)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("in0", "float32", SHAPE)
    graph = builder.build({"out0": x * builder.constant(table) + np.float32([1, 1, 1, 1])})
    alone = graph_of(context, lambda b: b.constant(START) * 2, 0)
    a, b = tensor_of(context), tensor_of(context)
    dispatch(alone, [], [a])
    dispatch(graph, [a], [b])
    dispatch(graph, [b], [a])
    np.testing.assert_array_equal(a.numpy(), (2 * START * START + 1) * START + 1)


def test_operations_and_dispatches_together(context: ow.MLContext) -> None:
    double = graph_of(context, lambda x: x * 2)
    x, y = tensor_of(context, START), tensor_of(context)
    dispatch(double, [x], [y])
    later = ow.ops.add(y, 1)
    dispatch(double, [y], [x])
    dispatch(double, [x], [y])  # what `later` reads is still there
    np.testing.assert_array_equal(later.numpy(), 2 * START + 1)
    np.testing.assert_array_equal(y.numpy(), 8 * START)


# ---------------------------------------------------------------------------------------------------------------------
# The same as one by one

POOL = 5
index = st.sampled_from([*range(POOL - 1)] * 3 + [POOL - 1])  # the last one is the user's memory
distinct = st.permutations([*range(POOL - 1)])
steps = st.one_of(
    distinct.map(lambda order: ("double", *order[:2])),
    distinct.map(lambda order: ("mix", *order[:3])),
    distinct.map(lambda order: ("split", *order[:3])),
    st.tuples(st.just("double"), index, index),
    st.tuples(st.just("mix"), index, index, index),
    st.tuples(st.just("split"), index, index, index),
    st.tuples(st.just("constant"), index),
    st.tuples(st.just("write"), index, st.integers(-9, 9)),
    st.tuples(st.just("read"), index),
    st.tuples(st.just("view"), index),
    st.tuples(st.just("look"), index),
    st.tuples(st.just("poke"), index, st.integers(-9, 9)),
    st.tuples(st.just("close"), index),
    st.tuples(st.just("renew"), index),
    st.tuples(st.just("operation"), index, index),
    st.tuples(st.just("compute"), index),
    st.tuples(st.just("mine"), st.integers(-9, 9)),
)


def graphs_of(context: ow.MLContext) -> dict[str, ow.MLGraph]:
    bounds = {"min_value": -1000, "max_value": 1000}
    return {
        "double": graph_of(context, lambda x: (x * 2).clamp(**bounds)),
        "mix": graph_of(context, lambda x, y: (x - y).clamp(**bounds), 2),
        "split": graph_of(context, lambda x: (x + 1, -x)),
        "constant": graph_of(context, lambda b: b.constant(START).relu(), 0),
    }


class Machine:
    """Runs a program of steps in a context, and records everything that can be seen meanwhile."""

    def __init__(self, graphs: dict[str, ow.MLGraph]) -> None:
        self.graphs, self.context = graphs, graphs["mix"].context
        self.seen: list[Any] = []
        self.mine = np.array([1, 2, 3, 4], "float32")
        self.tensors = [tensor_of(self.context, START + k) for k in range(POOL - 2)]
        self.tensors += [tensor_of(self.context, writable=False), self.context.tensor_from(self.mine)]
        self.views: dict[int, np.ndarray] = {}
        self.arrays: list[ow.Array] = []

    def step(self, name: str, *at: int) -> None:
        if name in self.graphs:
            graph = self.graphs[name]
            split = len(graph.inputs)
            if len(set(at)) == len(at):
                dispatch(graph, [self.tensors[k] for k in at[:split]], [self.tensors[k] for k in at[split:]])
        elif name == "operation":
            self.arrays.append(ow.ops.sub(self.tensors[at[0]], self.tensors[at[1]]))
        else:
            getattr(self, name)(*at)

    def write(self, k: int, value: int) -> None:
        if self.tensors[k].writable:
            self.context.write_tensor(self.tensors[k], START * value)

    def read(self, k: int) -> None:
        self.seen.append(self.context.read_tensor(self.tensors[k]).tolist())

    def view(self, k: int) -> None:
        self.views[k] = self.tensors[k].numpy()[::-1]

    def look(self, k: int) -> None:
        self.seen.append(self.views[k].tolist() if k in self.views else None)

    def poke(self, k: int, value: int) -> None:
        if self.tensors[k].writable:
            if k not in self.views:
                self.view(k)
            self.read_operations()  # of which NumPy cannot tell us, in any context
            self.views[k][1] = value

    def close(self, k: int) -> None:
        self.views.pop(k, None)

    def renew(self, k: int) -> None:
        if k < POOL - 1:
            self.views.pop(k, None)
            self.tensors[k].destroy()
            self.tensors[k] = tensor_of(self.context, START, writable=True)

    def compute(self, k: int) -> None:
        self.seen.append(self.context.compute(self.graphs["double"], {"in0": self.tensors[k]})["out0"].tolist())

    def mine_(self, value: int) -> None:
        self.read_operations()
        self.mine[2] = value
        self.seen.append(self.mine.tolist())

    def read_operations(self) -> None:
        self.seen += [array.tolist() for array in self.arrays]
        self.arrays.clear()

    def end(self) -> list[Any]:
        for k in range(POOL):
            self.look(k)
            self.read(k)
        self.read_operations()
        self.seen.append(self.mine.tolist())
        return self.seen


@pytest.mark.parametrize("at_first", [False, True])
def test_random_programs_equal_immediate_dispatch(at_first: bool) -> None:
    both = [graphs_of(ow.ml.create_context(accelerated=False, deferred=is_deferred)) for is_deferred in (False, True)]

    @settings(max_examples=examples(50, in_sample=15) if at_first else examples(150, in_sample=40))
    @given(st.lists(steps, min_size=5, max_size=40))
    def check(program: list[tuple[Any, ...]]) -> None:
        seen = []
        for graphs in both:
            machine = Machine(graphs)
            for name, *at in program:
                machine.step("mine_" if name == "mine" else name, *at)
            seen.append(machine.end())
        assert seen[1] == seen[0]

    before = compile_now(at_first)
    try:
        check()
    finally:
        compile_now(before)


def test_threads(context: ow.MLContext) -> None:
    step = graph_of(context, lambda x: x + 1)
    shared = tensor_of(context, START)

    def work() -> None:
        x, y = tensor_of(context, START), tensor_of(context)
        for k in range(60):
            dispatch(step, [x], [y])
            x, y = y, x
            dispatch(step, [shared], [y])
            if k % 7 == 0:
                np.testing.assert_array_equal(context.read_tensor(x), START + k + 1)
                np.testing.assert_array_equal(context.read_tensor(y), START + 1)

    together(*[work] * 4)


def test_threads_on_same_tensors_do_not_deadlock(context: ow.MLContext) -> None:
    mix, add = graph_of(context, lambda x, y: x - y, 2), ow.jit(lambda x, y: x + y)
    tensors = [*(tensor_of(context, START) for _ in range(4)), context.tensor_from(START.copy())]

    def work(seed: int) -> None:
        pick = random.Random(seed)
        held: list[Any] = []
        for _ in range(300):
            a, b, c = pick.sample(tensors, 3)
            action = pick.randrange(6)
            if action < 2:
                dispatch(mix, [a, b], [c])
            elif action == 2:
                held = [*held[-1:], a.numpy()]
            elif action == 3:
                context.write_tensor(a, START)
            elif action == 4:
                held = [*held[-1:], ow.ops.add(a, b)]
            else:
                add(a, b)

    together(*(partial(work, seed) for seed in range(4)))


# ---------------------------------------------------------------------------------------------------------------------
# Graphs with names


def named_graph() -> tuple[ow.MLContext, ow.MLGraph]:
    """Build y = 3 x, of which x has n rows, in a deferred context."""
    context = ow.ml.create_context(accelerated=False, deferred=True, drafts=True)
    builder = ow.MLGraphBuilder(context)
    return context, builder.build({"out0": builder.input("in0", "float32", ["n", 4]) * 3})


def rows(context: ow.MLContext, count: int) -> list[ow.MLTensor]:
    return [context.create_tensor("float32", [count, 4], readable=True, writable=True) for _ in range(3)]


def test_dispatch_with_names_waits_and_recurs() -> None:
    context, triple = named_graph()
    wait()
    statistics.reset()
    for step in range(4):
        for n in (1, 3):
            x, y, z = rows(context, n)
            context.write_tensor(x, np.full((n, 4), step, "float32"))
            dispatch(triple, [x], [y])
            dispatch(triple, [y], [z])
            np.testing.assert_array_equal(z.numpy(), np.full((n, 4), 9 * step))
            wait()
    assert statistics.compiled == 2  # the chain for each size
    for n in (1, 3):
        x, y, z = rows(context, n)
        with pytest.raises(ow.ValidationError, match=rf"must be float32\[{n}, 4\], got a tensor float32\[2, 4\]"):
            dispatch(triple, [x], [rows(context, 2)[0]])
    with pytest.raises(ow.ValidationError, match=r"must be float32\[n, 4\], got the shape \[4\]"):
        dispatch(triple, [tensor_of(context)], [tensor_of(context)])


def test_dispatch_with_names_in_threads() -> None:
    context, triple = named_graph()

    def work(seed: int) -> None:
        pick = random.Random(seed)
        for _ in range(40):
            n = pick.randrange(1, 6)
            x, y, z = rows(context, n)
            context.write_tensor(x, np.full((n, 4), seed, "float32"))
            dispatch(triple, [x], [y])
            dispatch(triple, [y], [z])
            np.testing.assert_array_equal(context.read_tensor(z), np.full((n, 4), 9 * seed))

    together(*(partial(work, seed) for seed in range(4)))


def test_destroyed_graph_with_names_runs_earlier_dispatches() -> None:
    context, triple = named_graph()
    x, y, z = rows(context, 2)
    context.write_tensor(x, np.ones((2, 4), "float32"))
    for _ in range(3):
        dispatch(triple, [x], [y])
        dispatch(triple, [y], [z])
        context.read_tensor(z)
        wait()
    gc.collect()
    kept, executable = force.graphs.statistics.entries, weakref.ref(program_of(triple))
    dispatch(triple, [x], [y])
    triple.destroy()
    wait()
    assert force.graphs.statistics.entries == kept - 1
    np.testing.assert_array_equal(y.numpy(), np.full((2, 4), 3))
    gc.collect()
    assert executable() is None
    with pytest.raises(ow.InvalidStateError, match="the graph is destroyed"):
        dispatch(triple, [x], [y])


# ---------------------------------------------------------------------------------------------------------------------
# Ends and errors


def test_destroyed_graph_runs_earlier_dispatches(context: ow.MLContext) -> None:
    double = graph_of(context, lambda x: x * 2)
    x, y, z = tensor_of(context, START), tensor_of(context), tensor_of(context)
    for _ in range(2):
        dispatch(double, [x], [y])
        dispatch(double, [y], [z])
        context.read_tensor(z)
    wait()
    assert statistics.compiled == 1
    dispatch(double, [x], [y])
    dispatch(double, [y], [z])
    executable, graph = weakref.ref(program_of(double)), weakref.ref(double)
    gc.collect()  # graphs of other tests, and what they were compiled into
    kept = force.graphs.statistics.entries
    double.destroy()
    assert force.graphs.statistics.entries == kept - 1  # what it was compiled into is gone
    np.testing.assert_array_equal(z.numpy(), 4 * START)
    assert force.graphs.statistics.entries == kept - 1
    with pytest.raises(ow.InvalidStateError, match="the graph is destroyed"):
        dispatch(double, [x], [y])
    del double
    gc.collect()
    assert graph() is None
    assert executable() is None


def test_collected_graph_leaves_no_cache_entry(context: ow.MLContext) -> None:
    double = graph_of(context, lambda x: x * 2)
    x, y, z = tensor_of(context, START), tensor_of(context), tensor_of(context)
    gc.collect()  # graphs of other tests, and what they were compiled into
    kept = force.graphs.statistics.entries
    for _ in range(2):
        dispatch(double, [x], [y])
        dispatch(double, [y], [z])
        context.read_tensor(z)
    wait()
    executable = weakref.ref(program_of(double))
    assert force.graphs.statistics.entries == kept + 1
    del double
    gc.collect()
    assert executable() is None
    assert force.graphs.statistics.entries == kept


def test_context_destroy_drops_pending_dispatches(context: ow.MLContext) -> None:
    double = graph_of(context, lambda x: x * 2)
    x, y = tensor_of(context, START), tensor_of(context)
    dispatch(double, [x], [y])
    context.destroy()
    with pytest.raises(ow.ValidationError, match=r"the tensor float32\[4\] is destroyed"):
        y.numpy()
    with pytest.raises(ow.InvalidStateError, match="the context is lost"):
        dispatch(double, [x], [y])
    assert statistics.operations == 0


@ow.op
def picky(self: Any, x: ow.MLOperand) -> Any:
    """A kernel that can fail."""
    return x.desc


@picky.kernel("cpu")
def _(x: Any, out: Any) -> None:
    if x[0] == 13:
        raise ValueError("thirteen")
    out[:] = x


def test_kernel_error_names_dispatch(context: ow.MLContext) -> None:
    check, double = graph_of(context, lambda x: picky(x, label="mine")), graph_of(context, lambda x: x * 2)
    x, y, z = tensor_of(context, START), tensor_of(context), tensor_of(context)
    for _ in range(2):  # so that it is compiled
        dispatch(check, [x], [y])
        dispatch(double, [y], [z])
        context.read_tensor(z)
        wait()
    context.write_tensor(x, np.full(4, 13, "float32"))
    dispatch(check, [x], [y])
    place = rf"called in test_deferred_context\.py, line {dispatch.__code__.co_firstlineno + 1}\)"
    dispatch(double, [y], [z])
    for _ in range(2):
        with pytest.raises(ow.OperationError, match=rf"^picky 'mine': .*thirteen.*{place}"):
            context.read_tensor(z)
    dispatch(double, [x], [z])  # others work
    np.testing.assert_array_equal(z.numpy(), [26] * 4)
    context.write_tensor(y, START)
    np.testing.assert_array_equal(y.numpy(), START)


def test_wrong_dispatches_are_errors_at_once(context: ow.MLContext) -> None:
    add = graph_of(context, lambda x, y: x + y, 2)
    x, y, z = tensor_of(context), tensor_of(context), tensor_of(context)
    wrong = context.create_tensor("float32", [5])
    constant = context.create_constant_tensor("float32", SHAPE, START)
    other = ow.ml.create_context(accelerated=False, deferred=True)
    gone = tensor_of(context)
    gone.destroy()
    for inputs, outputs, message in [
        ({"in0": x}, {"out0": z}, r"dispatch: inputs must hold \['in0', 'in1'\]; missing: \['in1'\]"),
        ({"in0": x, "in1": y, "in2": z}, {"out0": z}, "tensor of its own|unknown"),
        ({"in0": x, "in1": x}, {"out0": z}, "got one of them twice"),
        ({"in0": x, "in1": wrong}, {"out0": z}, r"'in1' must be float32\[4\], got a tensor float32\[5\]"),
        ({"in0": x, "in1": constant}, {"out0": z}, "'in1' is a constant tensor"),
        ({"in0": x, "in1": tensor_of(other)}, {"out0": z}, "'in1' is a tensor of another context"),
        ({"in0": x, "in1": gone}, {"out0": z}, r"'in1': the tensor float32\[4\] is destroyed"),
        ({"in0": x, "in1": START}, {"out0": z}, "'in1' must be an MLTensor, got ndarray"),
        ([x, y], {"out0": z}, "inputs must map names to tensors"),
    ]:
        with pytest.raises(ow.ValidationError, match=message):
            context.dispatch(add, inputs, outputs)
    with pytest.raises(ow.ValidationError, match="graph must be an MLGraph, got NoneType"):
        context.dispatch(None, {}, {})
    with pytest.raises(ow.ValidationError, match="the graph belongs to another context"):
        other.dispatch(add, {}, {})
    with pytest.raises(ow.ValidationError, match="deferred must be True or False, got 1"):
        ow.ml.create_context(deferred=1)


def test_tensor_readers_do_not_accumulate(context: ow.MLContext) -> None:
    """Tensors that are read again and again, and never looked at, keep nothing of what read them."""
    double = graph_of(context, lambda x: x * 2)
    x, y = tensor_of(context, START), tensor_of(context)
    for _ in range(1000):
        dispatch(double, [x], [y])
    assert len(x.current().readers) <= 64  # type: ignore[attr-defined]
    assert statistics.dropped == 999


def test_custom_operations_on_tensors_wait_with_the_dispatches(context: ow.MLContext) -> None:
    runs: list[float] = []

    @ow.op
    def shift(self: ow.MLGraphBuilder, x: ow.MLOperand, by: ow.MLOperand) -> ow.Desc:
        return x.desc

    @shift.kernel("cpu")
    def _(x: np.ndarray, by: np.ndarray, out: np.ndarray) -> None:
        runs.append(float(x[0]))
        out[...] = x + by

    double = graph_of(context, lambda x: x * 2)
    x, a = tensor_of(context, START), tensor_of(context)
    by = tensor_of(context, [1, 1, 1, 1])
    dispatch(double, [x], [a])
    b = shift(a, by)
    dispatch(double, [b], [a])  # does not change what the operation reads
    context.write_tensor(by, np.zeros(4, "float32"))  # nor does this
    shift(a, by)  # its result is not kept
    c = shift(b, 3)
    assert runs == []
    np.testing.assert_array_equal(context.read_tensor(c), 2 * START + 4)
    np.testing.assert_array_equal(b.numpy(), 2 * START + 1)
    np.testing.assert_array_equal(context.read_tensor(a), 4 * START + 2)
    assert runs == [2, 3]
    # What can be seen, and changed, without Opweave runs immediately: an array, and a tensor that has a view.
    np.testing.assert_array_equal(context.read_tensor(shift(a, np.ones(4, "float32"))), 4 * START + 3)
    view = b.numpy()
    view.setflags(write=True)
    before = len(runs)
    shift(b, by)
    assert len(runs) == before + 1


def test_deferred_custom_operation_error_names_it(context: ow.MLContext) -> None:
    @ow.op
    def broken(self: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    @broken.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        raise ValueError("no luck")

    result = broken(tensor_of(context, START), label="gate")
    with pytest.raises(ow.OperationError, match=r"broken 'gate': .*no luck.*called in test_deferred_context.py, line"):
        result.numpy()


@pytest.mark.parametrize("same", [1, 2])
def test_dropped_result_leaves_an_input_unused(context: ow.MLContext, same: int) -> None:
    pair = graph_of(context, lambda x, y: (x + y, -y), 2)
    minus = graph_of(context, lambda x, y: (x - y,) * same, 2)
    one, two, three = (tensor_of(context, START + k) for k in range(3))
    dropped, kept = tensor_of(context), tensor_of(context)
    results = [tensor_of(context) for _ in range(same)]
    for _ in range(4):
        dispatch(pair, [one, two], [dropped, kept])
        context.write_tensor(dropped, START)
        dispatch(minus, [kept, three], results)
        for result in results:
            np.testing.assert_array_equal(result.numpy(), -(START + 1) - (START + 2))
        wait()


def test_long_chains_of_custom_operations_run_without_a_read(context: ow.MLContext) -> None:
    @ow.expression
    def inc(x: Any) -> Any:
        return x + 1

    value = tensor_of(context, np.zeros(4))
    for _ in range(arrays.LONGEST + 4):
        value = inc(value)
    assert statistics.operations + statistics.graphs > 0
    assert context.read_tensor(value).tolist() == [arrays.LONGEST + 4] * 4
