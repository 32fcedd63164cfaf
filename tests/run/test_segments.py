"""Graphs of several segments: what lies between them, what is copied, and what happens when one of them fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import opweave as ow
from opweave.compile import fuse
from opweave.compile.partition import partition
from opweave.context.graph import program_of
from opweave.core.graph import Graph
from opweave.expr import kernels
from opweave.kernels import KernelCall
from opweave.run.program import Program
from opweave.support.cache import Cache
from opweave.support.errors import InvalidStateError, OperationError

CPU = ow.ml.create_context(accelerated=False)
SHAPE = (1, 4, 12, 12)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape or SHAPE).astype("float32")


class Region:
    """Memory of its own that kernels see, as that of a WebAssembly module."""

    is_host = True

    def __init__(self) -> None:
        self.memory = np.zeros(1 << 20, np.uint8)
        self.used = -self.memory.ctypes.data % 64

    def allocate(self, desc: ow.Desc) -> np.ndarray:
        start, self.used = self.used, self.used + -(-desc.byte_length // 64) * 64
        return self.memory[start : start + desc.byte_length].view(desc.data_type).reshape(desc.shape)

    def owns(self, array: np.ndarray) -> bool:
        return bool(np.shares_memory(array, self.memory))

    def wait(self) -> None:
        """Nothing runs on its own here."""


class RegionKernel:
    """Computes twice the operand plus the weight, if there is one; refuses memory from outside of its region."""

    detail = "a kernel with memory of its own"

    def __init__(self, region: Region) -> None:
        self.space = region

    def prepare(self, call: KernelCall) -> RegionKernel:
        return self

    def bind(self, inputs: Mapping[str, Any], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        (result,) = outputs
        given = [array for array in inputs.values() if array is not None]
        for array in (result, *given):
            assert self.space.owns(array)

        def run() -> None:
            np.add(given[0], given[-1], out=result)

        return run


def spying(seen: list[tuple[int, int]]) -> Any:
    """An operation that negates, and tells the addresses of what it reads and writes."""

    @ow.op
    def spy(self: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    @spy.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        seen.append((x.ctypes.data, out.ctypes.data))
        np.negative(x, out=out)

    return spy


def segmented(graph: ow.MLGraph) -> Program:
    program = program_of(graph)
    assert len(program.steps) > 1
    return program


def test_segments_share_memory() -> None:
    seen: list[tuple[int, int]] = []
    spy = spying(seen)
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", SHAPE)
    weight = random(4, 4, 3, 3)
    first = builder.conv2d(x, weight, padding=[1, 1, 1, 1])
    second = builder.conv2d(spy(spy(first)), weight, padding=[1, 1, 1, 1])
    graph = builder.build({"y": second})
    program = segmented(graph)
    ow.memory.copies.reset()
    y = CPU.compute(graph, {"x": random()})["y"]
    assert ow.memory.copies.count == 0
    (read, written), (read_again, last) = seen
    assert written == read_again
    assert read == last, "memory that is no longer needed is used again"
    assert (program.plan.total, program.plan.peak) == (3 * random().nbytes, 2 * random().nbytes)
    plain = ow.MLGraphBuilder(CPU)
    x = plain.input("x", "float32", SHAPE)
    middle = plain.conv2d(x, weight, padding=[1, 1, 1, 1])
    same = plain.build({"y": plain.conv2d(middle, weight, padding=[1, 1, 1, 1])})
    np.testing.assert_array_equal(y, CPU.compute(same, {"x": random()})["y"])


def test_segments_keep_memory_of_long_lived_branch() -> None:
    spy = spying([])
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [100])
    kept = builder.exp(x)
    value = kept
    for _ in range(3):
        value = builder.abs(spy(value))
    graph = builder.build({"y": builder.add(spy(value), kept)})
    data = random(100)
    got = CPU.compute(graph, {"x": data})["y"]
    np.testing.assert_allclose(got, np.zeros(100), atol=1e-6)  # -e**x + e**x


def test_segments_are_sorted() -> None:
    builder = ow.MLGraphBuilder(CPU)
    chain = [builder.input("x", "float32", [4])]
    for step in range(1200):
        chain.append(chain[-1].relu() if step % 2 else -chain[-1])
    # The last nodes of segments come in the opposite order of what they depend on.
    outputs = {f"y{step}": chain[step].relu() if step % 2 else -chain[step] for step in reversed(range(1200))}
    graph = Graph.reaching(outputs)
    parts = partition(graph, {node: node.op.name for node in graph.nodes})
    place = {node: number for number, part in enumerate(parts) for node in part.nodes}
    assert len(place) == sum(len(part.nodes) for part in parts) == 1200 + 1199
    for node, number in place.items():
        assert all(place[o.node] <= number for o in node.operands if o.node is not None)


def test_inputs_and_constants_go_straight_into_kernels() -> None:
    given: dict[str, int] = {}

    @ow.op
    def mixed(self: ow.MLGraphBuilder, x: ow.MLOperand, weight: ow.MLOperand) -> ow.Desc:
        return x.desc

    @mixed.kernel("cpu")
    def _(x: np.ndarray, weight: np.ndarray, out: np.ndarray) -> None:
        given.update(x=x.ctypes.data, weight=weight.ctypes.data, out=out.ctypes.data)
        assert not weight.flags.writeable
        np.multiply(x, weight, out=out)

    weight = random(100, seed=1)
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": mixed(builder.input("x", "float32", [100]), builder.constant(weight))})
    x = CPU.tensor_from(random(100))
    y = CPU.create_tensor("float32", [100], readable=True)
    ow.memory.copies.reset()
    CPU.dispatch(graph, {"x": x}, {"y": y})
    assert ow.memory.copies.count == 0
    assert given == {"x": x.numpy().ctypes.data, "weight": weight.ctypes.data, "out": y.numpy().ctypes.data}
    np.testing.assert_array_equal(y.numpy(), random(100) * weight)


def test_output_under_two_names_is_copied_once() -> None:
    spy = spying([])
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [64])
    y = builder.abs(spy(x))
    graph = builder.build({"one": y, "two": y, "three": spy(y)})
    ow.memory.copies.reset()
    got = CPU.compute(graph, {"x": random(64)})
    assert {reason: tally.count for reason, tally in ow.memory.copies.by_reason.items()} == {
        "an output under another name": 1
    }
    np.testing.assert_array_equal(got["one"], np.abs(random(64)))
    np.testing.assert_array_equal(got["two"], got["one"])
    assert not np.shares_memory(got["one"], got["two"])


def test_kernel_result_may_be_unused() -> None:
    @ow.op
    def both(self: ow.MLGraphBuilder, x: ow.MLOperand) -> tuple[ow.Desc, ow.Desc]:
        return x.desc, ow.Desc("int32", (1000,))

    @both.kernel("cpu")
    def _(x: np.ndarray, out: tuple[np.ndarray, np.ndarray]) -> None:
        np.add(x, 1, out=out[0])
        out[1][...] = 7

    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [8])
    first = both(x)[0]
    graph = builder.build({"y": builder.abs(first)})
    np.testing.assert_array_equal(CPU.compute(graph, {"x": random(8)})["y"], np.abs(random(8) + 1))


def test_nested_composites_hold_kernels() -> None:
    spy = spying([])

    @ow.composite
    def inner(b: Any, x: ow.MLOperand) -> Any:
        return b.add(spy(b.abs(x)), 1)

    @ow.composite
    def outer(b: Any, x: ow.MLOperand) -> Any:
        return b.mul(inner(b, inner(b, x)), 2)

    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": outer(builder.input("x", "float32", [50]))})
    data = random(50)
    want = 2 * (1 - np.abs(1 - np.abs(data)))
    np.testing.assert_allclose(CPU.compute(graph, {"x": data})["y"], want, rtol=1e-6)
    assert len(segmented(graph).steps) == 5


def test_threads_take_turns() -> None:
    """Intermediates are the same memory for all runs."""
    spy = spying([])
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [20000])
    graph = builder.build({"y": builder.add(spy(builder.mul(x, 2)), 1)})

    def job(number: int) -> float:
        data = np.full(20000, number, "float32")
        return float(np.abs(CPU.compute(graph, {"x": data})["y"] - (1 - 2 * number)).max())

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(job, range(200))) == {0.0}


def test_kernel_may_not_run_its_own_graph() -> None:
    @ow.op
    def again(self: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    graphs: list[ow.MLGraph] = []

    @again.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        with pytest.raises(InvalidStateError, match="dispatched by one of its own kernels"):
            CPU.compute(graphs[0], {"x": x})
        out[...] = x

    builder = ow.MLGraphBuilder(CPU)
    graphs.append(builder.build({"y": again(builder.abs(builder.input("x", "float32", [4])))}))
    for _turn in range(2):  # and it goes on working
        np.testing.assert_array_equal(CPU.compute(graphs[0], {"x": np.float32([-1, 2, -3, 4])})["y"], [1, 2, 3, 4])


def test_graph_works_after_kernel_fails_once() -> None:
    @ow.op
    def moody(self: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    @moody.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        if x[0] > 1:
            raise ValueError("too large")
        out[...] = x

    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [4])
    graph = builder.build({"y": builder.add(moody(builder.abs(x), label="gate"), 1)})
    tensors = {"x": CPU.create_tensor("float32", [4], writable=True)}
    results = {"y": CPU.create_tensor("float32", [4], readable=True)}
    for value in (0.5, 2.0, -0.25):
        CPU.write_tensor(tensors["x"], np.full(4, value, "float32"))
        if value > 1:
            with pytest.raises(OperationError, match="moody 'gate': the kernel raised ValueError: too large"):
                CPU.dispatch(graph, tensors, results)
        else:
            CPU.dispatch(graph, tensors, results)
            assert results["y"].numpy().tolist() == [abs(value) + 1] * 4


class Unbindable(RegionKernel):
    """A kernel that cannot be bound to memory: its own is full."""

    def bind(self, inputs: Mapping[str, Any], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        raise OperationError("the memory would exceed its limit")


@pytest.mark.parametrize("runs", ["compute", "dispatch"])
def test_bind_error_names_operation(runs: str) -> None:
    op = regional(Region())
    op.kernels["cpu"] = Unbindable(Region())
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [64])
    graph = builder.build(
        {"y": builder.add(op(builder.softmax(x.reshape([8, 8]), 0, label="first"), label="second"), 1)}
    )
    inputs = {"x": CPU.create_tensor("float32", [64], writable=True)}
    outputs = {"y": CPU.create_tensor("float32", [8, 8], readable=True)}
    call = partial(CPU.dispatch, graph, inputs, outputs) if runs == "dispatch" else partial(CPU.compute, graph, inputs)
    with pytest.raises(OperationError, match=r"^regional 'second': the memory would exceed its limit"):
        call()


def regional(region: Region) -> Any:
    @ow.op
    def regional(self: ow.MLGraphBuilder, x: ow.MLOperand, weight: ow.MLOperand | None = None) -> ow.Desc:
        return x.desc

    regional.kernels["cpu"] = RegionKernel(region)
    return regional


def test_unreachable_memory_is_copied_and_counted() -> None:
    op = regional(Region())
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [64])
    between = op(x, builder.constant(random(64, seed=1)), label="in")
    graph = builder.build({"y": op(builder.abs(between), label="out")})
    ow.memory.copies.reset()
    got = CPU.compute(graph, {"x": random(64)})["y"]
    np.testing.assert_allclose(got, 2 * np.abs(random(64) + random(64, seed=1)))
    assert {reason: (tally.count, tally.bytes) for reason, tally in ow.memory.copies.by_reason.items()} == {
        "a constant into the memory of a kernel": (1, 256),
        "into the memory of regional 'in'": (1, 256),
        "out of the memory of regional 'out'": (1, 256),
    }
    ow.memory.copies.reset()
    CPU.compute(graph, {"x": random(64)})
    assert ow.memory.copies.count == 2, "constants are copied once"
    assert [(number, operand.name) for number, operand in segmented(graph).crossings()] == [(0, "x"), (2, "")]


def test_tensors_in_the_memory_of_a_kernel_are_not_copied() -> None:
    region = Region()
    op = regional(region)
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [64])
    graph = builder.build({"y": op(builder.abs(op(x)))})
    tensors = [CPU.tensor_from(region.allocate(ow.Desc("float32", (64,)))) for _ in range(2)]
    tensors[0].numpy()[...] = random(64)
    ow.memory.copies.reset()
    CPU.dispatch(graph, {"x": tensors[0]}, {"y": tensors[1]})
    assert ow.memory.copies.count == 0
    np.testing.assert_array_equal(tensors[1].numpy(), 4 * np.abs(random(64)))


def test_explain_lists_segments_with_memory() -> None:
    spy = spying([])
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [64])
    text = builder.build({"y": builder.abs(spy(builder.abs(x), label="here"))}).explain()
    *_, last = text.split("\n\n")
    _, table = text.split("what runs where:\n")
    rows = [line.split() for line in table.partition("\n\n")[0].splitlines()]
    assert [row[:2] for row in rows] == [["0", "abs"], ["1", "spy"], ["2", "abs"]]
    assert last == "intermediates: 512 B in 2 pieces, none used again"
    builder = ow.MLGraphBuilder(CPU)
    text = builder.build({"y": builder.abs(builder.input("x", "float32", [64]))}).explain()
    assert "intermediates" not in text
    assert text.splitlines()[-1].split() == ["abs", "cpu", "native", "ONNX", "Runtime"]


# ---------------------------------------------------------------------------------------------------------------------
# Random graphs


@ow.op
def halved(self: Any, x: ow.MLOperand) -> tuple[ow.Desc, ow.Desc]:
    return x.desc, ow.Desc(x.data_type, (1,) * x.rank)


@halved.kernel("cpu")
def _(x: np.ndarray, out: tuple[np.ndarray, np.ndarray]) -> None:
    out[0][...] = x / 2
    out[1][...] = x.mean()


@ow.expression
def product(x: Any, y: Any) -> Any:
    return x * y * 0.5


@ow.expression
def centred(x: Any) -> Any:
    mean = ow.expr.reduce_mean(x, keep_dimensions=True)
    return x - mean, mean


@ow.expression
def mean(x: Any) -> Any:
    return ow.expr.reduce_mean(x, keep_dimensions=True)


@ow.expression
def shifted(x: Any) -> Any:
    return ow.expr.compute(x.shape, lambda *i: x.clamped[(*i[:-1], i[-1] + 1)])


@ow.composite
def squashed(b: Any, x: Any) -> Any:
    return product(x / (b.abs(x) + 1), halved(x)[0])


STEPS: list[Callable[[Any, Any, Any], Any]] = [
    lambda b, x, y: b.tanh(x),
    lambda b, x, y: b.add(x, y),
    lambda b, x, y: b.where(b.greater(x, 0.0), x, y),
    lambda b, x, y: b.clamp(x, min_value=-1, max_value=1),
    lambda b, x, y: b.max(x, b.constant(np.float32([0.25]))),
    lambda b, x, y: b.softmax(x, axis=x.rank - 1),
    lambda b, x, y: b.reduce_mean(x, keep_dimensions=True),
    lambda b, x, y: b.matmul(x, b.transpose(x)) if x.rank == 2 else b.neg(x),
    lambda b, x, y: halved(x),
    lambda b, x, y: product(x, y),
    lambda b, x, y: centred(x),
    lambda b, x, y: product(x, mean(x)),
    lambda b, x, y: shifted(x),
    lambda b, x, y: squashed(x),
]


def grown(context: ow.MLContext, steps: list[tuple[int, int, int]], shapes: list[tuple[int, ...]]) -> ow.MLGraph:
    """A graph of `STEPS`, each with the values made before it that it names; a third of all values are outputs."""
    builder = ow.MLGraphBuilder(context)
    values = [builder.input(f"x{k}", "float32", shape) for k, shape in enumerate(shapes)]
    for step, first, second in steps:
        x, y = (values[k % len(values)] for k in (first, second))
        try:
            made = STEPS[step](builder, x, y)
        except ow.ValidationError:  # shapes that do not broadcast
            made = builder.abs(x)
        values += made if isinstance(made, tuple) else (made,)
    results = values[len(shapes) :]
    return builder.build({f"y{k}": value for k, value in enumerate(results) if k % 3 == 0 or k == len(results) - 1})


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=20
    ),
    st.lists(st.sampled_from([(2, 3), (1, 3), (2, 1), (3,), (1,), (2, 2, 3)]), min_size=1, max_size=3),
)
def test_random_graphs_agree_with_the_reference(
    steps: list[tuple[int, int, int]], shapes: list[tuple[int, ...]]
) -> None:
    feeds = {f"x{k}": random(*shape, seed=k) for k, shape in enumerate(shapes)}
    reference = ow.ml.create_context(device="reference")
    with pytest.MonkeyPatch.context() as patch:
        # Fuse whatever can be, and let NumPy evaluate it: compilers have tests of their own, and take longer.
        for limit in ("MIN_ELEMENTS", "MIN_NODES", "MIN_SAVED_BY_THREAD"):
            patch.setattr(fuse, limit, 1)
        patch.setattr(kernels, "is_compiled", lambda: True)
        patch.setattr(kernels, "_compile", lambda program, *_, **__: kernels._NumpyKernel(program))
        patch.setattr(kernels, "compiled", Cache())
        graph = grown(CPU, steps, shapes)
        expected = grown(reference, steps, shapes)
    given_feeds = {name: feeds[name] for name in graph.inputs}
    results, wanted = CPU.compute(graph, given_feeds), reference.compute(expected, given_feeds)
    for name, array in wanted.items():
        np.testing.assert_allclose(results[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    program = program_of(graph)
    done: set[Any] = set()
    for step in program.steps:
        read = [program.operands[number] for number in step.reads]
        assert all(operand.node is None or operand.node in done for operand in read)
        assert step.part is not None
        assert done.isdisjoint(step.part.nodes)
        done.update(step.part.nodes)
    assert done == set(program.graph.nodes)
