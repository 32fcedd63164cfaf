"""How many threads the engine takes, and one graph in several threads at the same time."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from weakref import ref

import numpy as np
import onnx
import pytest
import support.onnx
from support.onnx import node
from support.webgpu_device import gpu_context

import opweave as ow
from opweave.context.graph import program_of
from opweave.kernels.wasm import library
from opweave.support.processors import processors

COUNT = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
import numpy as np, opweave as ow
context = ow.ml.create_context(device="cpu")
builder = ow.MLGraphBuilder(context)
x = builder.input("x", "float32", [1, 8, 64, 64])
graph = builder.build({"y": builder.conv2d(x, builder.constant(np.ones((8, 8, 3, 3), "float32")))})
context.compute(graph, {"x": np.ones((1, 8, 64, 64), "float32")})
found = set()
for task in os.listdir("/proc/self/task"):
    try:
        found |= os.sched_getaffinity(int(task))
    except ProcessLookupError:  # a thread that has ended meanwhile
        pass
print(found)
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux says what a process may use")
@pytest.mark.skipif(os.cpu_count() == 1, reason="with one processor there is nothing to choose")
def test_threads_stay_on_the_processors_of_the_process() -> None:
    """The engine's own choice is a thread for each processor of the machine, tied to it."""
    allowed = min(os.sched_getaffinity(0))
    result = subprocess.run(
        [sys.executable, "-c", COUNT, str(allowed)], capture_output=True, text=True, check=True, timeout=600
    )
    assert result.stdout.strip() == f"{{{allowed}}}"


# ---------------------------------------------------------------------------------------------------------------------
# One graph in several threads

THREADS = 8
SIZE = 14
TIMEOUT = 300
FILTER = np.random.default_rng(0).standard_normal((2, 2, 3, 3)).astype("float32")


@ow.op
def box3(self: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
    """The mean of windows of 3 × 3."""
    *outer, h, w = x.shape
    return ow.Desc(x.data_type, (*outer, h - 2, w - 2))


@pytest.fixture(autouse=True, scope="module")
def module() -> Iterator[None]:
    box3.kernel("wasm", library.load(), "box3", signature=library.SIGNATURES["box3"])
    yield
    box3.kernels.clear()


@ow.expression
def swish(x: Any) -> Any:
    return x * ow.expr.sigmoid(x)


class Meeting:
    """A host kernel that waits until all threads are inside of it, and notes the memory that each reads."""

    def __init__(self) -> None:
        self.barrier: Barrier | None = None
        self.read: list[ref[Any]] = []

        @ow.op
        def meet(self: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
            return x.desc

        @meet.kernel("cpu")
        def _(x: np.ndarray, out: np.ndarray) -> None:
            if self.barrier is not None:
                self.barrier.wait(TIMEOUT)
            self.read.append(ref(x.base))  # what owns the memory
            np.negative(x, out=out)

        self.op = meet


def segments(context: ow.MLContext, meet: Any) -> ow.MLGraph:
    """A graph of an engine, a compiled expression, a host kernel, a WebAssembly kernel, and the engine again."""
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 2, SIZE, SIZE])
    middle = box3(meet(swish(builder.conv2d(x, FILTER))))
    graph = builder.build({"y": builder.conv2d(middle, FILTER), "z": meet(middle)})
    assert len(program_of(graph).steps) > 4
    return graph


def feeds() -> list[np.ndarray]:
    return [np.random.default_rng(n).standard_normal((1, 2, SIZE, SIZE)).astype("float32") for n in range(THREADS)]


def in_threads(work: Callable[[int], Any], turns: int = 1) -> list[Any]:
    """Do `work(number)` in a thread for each number, `turns` times; the last result of each."""
    start = Barrier(THREADS)

    def repeat(number: int) -> Any:
        start.wait(TIMEOUT)
        return [work(number) for _ in range(turns)][-1]

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(repeat, range(THREADS)))


def contexts() -> Iterator[Any]:
    yield pytest.param(lambda: ow.ml.create_context(device="cpu"), id="cpu")
    yield pytest.param(gpu_context, id="gpu")


@pytest.fixture(params=contexts())
def context(request: pytest.FixtureRequest) -> ow.MLContext:
    made: ow.MLContext = request.param()
    return made


def compute(context: ow.MLContext, graph: ow.MLGraph) -> Callable[[int], dict[str, np.ndarray]]:
    given = feeds()
    return lambda number: context.compute(graph, {"x": given[number]})


def dispatch(context: ow.MLContext, graph: ow.MLGraph) -> Callable[[int], dict[str, np.ndarray]]:
    inputs, outputs = [], []
    for array in feeds():
        tensor = context.create_tensor("float32", array.shape, writable=True)
        context.write_tensor(tensor, array)
        inputs.append({"x": tensor})
        outputs.append(
            {name: context.create_tensor(d.data_type, d.shape, readable=True) for name, d in graph.outputs.items()}
        )

    def run(number: int) -> dict[str, np.ndarray]:
        context.dispatch(graph, inputs[number], outputs[number])
        return {name: context.read_tensor(tensor) for name, tensor in outputs[number].items()}

    return run


@pytest.mark.parametrize("way", [compute, dispatch])
def test_runs_of_one_graph_are_inside_at_the_same_time(context: ow.MLContext, way: Any) -> None:
    meeting = Meeting()
    work = way(context, segments(context, meeting.op))
    expected = [work(number) for number in range(THREADS)]
    meeting.barrier = Barrier(THREADS)
    for found, wanted in zip(in_threads(work, turns=3), expected, strict=True):
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("way", [compute, dispatch])
def test_threads_get_their_own_results(context: ow.MLContext, way: Any) -> None:
    work = way(context, segments(context, Meeting().op))
    expected = [work(number) for number in range(THREADS)]
    for found, wanted in zip(in_threads(work, turns=20), expected, strict=True):
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)


@pytest.mark.long
@pytest.mark.parametrize("way", [compute, dispatch])
def test_intermediates_of_many_threads_are_freed(way: Any) -> None:
    context, meeting = ow.ml.create_context(device="cpu"), Meeting()
    graph = segments(context, meeting.op)
    work = way(context, graph)
    meeting.barrier = Barrier(THREADS)
    in_threads(work, turns=2)
    gc.collect()
    owners = {id(owner): owner for known in meeting.read if (owner := known()) is not None}
    assert 1 <= len(owners) <= 2 * processors()  # the kernel has two nodes, which may read from different memory
    del owners
    meeting.barrier = None
    meeting.read.clear()
    work(0)
    assert all(known() is not None for known in meeting.read), "intermediates are kept for the next run"


def model(meet: Any) -> onnx.ModelProto:
    """A model of several segments."""
    ow.onnx.register_onnx("test.threads", "Meet", meet)
    nodes = [
        node("Conv", "x f", "a", pads=[1, 1, 1, 1]),
        node("Meet", "a", "b", domain="test.threads"),
        node("Conv", "b f", "y", pads=[1, 1, 1, 1]),
    ]
    image = f"float32[1, 2, {SIZE}, {SIZE}]"
    return support.onnx.model(nodes, {"x": image}, {"y": image}, {"f": FILTER}, domains=["test.threads"])


def test_session_run_in_threads() -> None:
    session = ow.InferenceSession(model(Meeting().op), ow.ml.create_context(device="cpu"))
    given = feeds()
    expected = [session.run(None, {"x": array})[0] for array in given]
    outs = [np.empty_like(expected[0]) for _ in given]

    def run(number: int) -> list[np.ndarray]:
        feed = {"x": given[number]}
        return [session.run(None, feed)[0], session.run(None, feed, out={"y": outs[number]})[0]]

    for found, wanted, out in zip(in_threads(run, turns=20), expected, outs, strict=True):
        np.testing.assert_array_equal(found[0], wanted)
        assert found[1] is out
        np.testing.assert_array_equal(out, wanted)
