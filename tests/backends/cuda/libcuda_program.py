"""Graphs, tensors and streams through NVIDIA's bindings, on the driver of libcuda.cpp; `test_cuda_driver.py` runs it."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import pytest
from support import cuda_on_cpu

import opweave as ow
from opweave.backends.cuda import compiler
from opweave.backends.cuda.devices import call
from opweave.context.graph import program_of
from opweave.expr.gpu import CompiledText, GpuKernel
from opweave.memory import dlpack

LIBRARY = ctypes.CDLL("libcuda.so.1")
KINDS = ("memory", "streams", "events", "modules", "graphs", "executables", "pinned", "contexts", "current")


def left() -> dict[str, int]:
    """What the driver still has, of everything that is not 0."""
    counts = (ctypes.c_int * len(KINDS))()
    LIBRARY.opweave_left(counts)
    return {kind: count for kind, count in zip(KINDS, counts, strict=True) if count}


def compile_each(kernels: Sequence[GpuKernel], architecture: str) -> Iterator[tuple[Hashable, CompiledText]]:
    """Addresses of functions of the processor."""
    assert architecture == "sm_90", architecture
    cuda_on_cpu.functions.prepare(kernel.source for kernel in kernels)
    for kernel in kernels:
        address = ctypes.cast(cuda_on_cpu.functions[kernel.source], ctypes.c_void_p).value
        given = kernel.arguments or range(len(kernel.bindings))
        kinds = "".join("p" if isinstance(argument, int) else "v" for argument in given)
        yield kernel.key, CompiledText(f"{address} {kinds}\0".encode(), "kernel", kernel.block)


compiler.compile_each = compile_each
compiler.begin = lambda kernels, architecture: []


def graph_of(context: ow.MLContext, shape: Sequence[int] = (2, 5000)) -> ow.MLGraph:
    """Kernels with a constant, a reduction in between, and one of a user with a number."""
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", shape)
    weights = builder.constant(np.arange(shape[1], dtype=np.float32))
    sums = builder.reduce_sum(builder.mul(x, weights), axes=[1], keep_dimensions=True)
    # Two readers keep the sums in memory of their own.
    return builder.build({"y": scaled(builder.sub(builder.sub(x, sums), sums), k=0.5)}, fallback="error")


@ow.op
def scaled(self: Any, x: ow.MLOperand, *, k: float) -> Any:
    return x.desc


scaled.kernel(
    "cuda",
    """
    __global__ void scale(const float* x, float k, float* out) {
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < x_size) out[i] = x[i] * k;
    }
    """,
    grid=40,
)


def wanted(x: np.ndarray) -> np.ndarray:
    sums = (x.astype(np.float64) * np.arange(x.shape[1])).sum(1, keepdims=True)
    return ((x - 2 * sums) * 0.5).astype(np.float32)


def checked(x: np.ndarray, found: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted(x), 1e-4, 1e-2)


def dispatches(context: ow.MLContext) -> None:
    """A graph on several tensors, whose arguments change while earlier launches have not run."""
    graph, rng = graph_of(context), np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 5000)).astype(np.float32) for _ in range(4)]
    inputs = [context.create_tensor("float32", [2, 5000], writable=True) for _ in arrays]
    outputs = [context.create_tensor("float32", [2, 5000], readable=True) for _ in arrays]
    for array, x, y in zip(arrays, inputs, outputs, strict=True):
        given = array.copy()
        context.write_tensor(x, given)
        given[...] = np.nan  # the copy has been made already
        context.dispatch(graph, {"x": x}, {"y": y})
    for array, y in zip(arrays, outputs, strict=True):
        checked(array, context.read_tensor(y))
    for x in inputs:
        x.destroy()
    with ThreadPoolExecutor(4) as pool:
        for array, found in zip(arrays, pool.map(lambda a: context.compute(graph, {"x": a})["y"], arrays), strict=True):
            checked(array, found)
    # Two kernels of the product and its sum, one of the user: that one waits until those before it are done.
    kernels = [step.kernel for step in program_of(graph).steps[0].part.runner.steps]  # type: ignore[union-attr]
    early = sum(kernel.starts_early for kernel in kernels[1:])
    assert [kernel.starts_early for kernel in kernels].count(False) == 1
    assert LIBRARY.opweave_early_edges() % early == 0
    assert LIBRARY.opweave_early_edges() > 0
    profile = graph.profile(repeat=2, detail=True)
    assert [round(kernel.median * 1e6) for kernel in profile.kernels] == [250] * len(profile.kernels), profile


def large_arrays(context: ow.MLContext) -> None:
    """Copies in several pieces, more of them than the blocks that are kept."""
    array = np.random.default_rng(1).integers(0, 255, 90_000_001, np.uint8)
    tensor = context.create_tensor("uint8", array.shape, readable=True, writable=True)
    assert not context.read_tensor(tensor).any()
    context.write_tensor(tensor, array)
    np.testing.assert_array_equal(context.read_tensor(tensor), array)


def sharing(context: ow.MLContext, other: ow.MLContext) -> None:
    """Tensors between contexts with streams of their own, without a wait of the host."""
    array = np.random.default_rng(2).standard_normal((2, 5000)).astype(np.float32)
    first, second = graph_of(context), graph_of(other)
    x = context.create_tensor("float32", [2, 5000], writable=True)
    y = context.create_tensor("float32", [2, 5000], readable=True, writable=True)
    z = other.create_tensor("float32", [2, 5000], readable=True)
    context.write_tensor(x, array)
    context.dispatch(first, {"x": x}, {"y": y})
    lent = other.tensor_from(y)  # the other stream waits for the dispatch
    other.dispatch(second, {"x": lent}, {"y": z})
    del lent  # before the dispatch has run
    gc.collect()
    y.destroy()
    del y
    gc.collect()
    np.testing.assert_allclose(other.read_tensor(z), wanted(wanted(array)), 1e-3, 1e3)


def unloading(context: ow.MLContext) -> None:
    """Kernels that neither a graph nor the cache has are unloaded, after the work that was submitted with them."""
    engine = context._backend.engine  # type: ignore[attr-defined]
    engine._functions.clear()
    engine._functions.max_bytes = 0
    gc.collect()
    engine.driver.wait()
    engine.driver.retire(None)
    assert "modules" not in left(), left()
    array = np.random.default_rng(3).standard_normal((2, 4000)).astype(np.float32)
    graph = graph_of(context, array.shape)
    x = context.create_tensor("float32", array.shape, writable=True)
    y = context.create_tensor("float32", array.shape, readable=True)
    context.write_tensor(x, array)
    for _ in range(2):
        context.dispatch(graph, {"x": x}, {"y": y})
    count = left()["modules"]
    graph.destroy()
    del graph
    gc.collect()
    assert left()["modules"] == count > 1  # the dispatches have not run yet
    checked(array, context.read_tensor(y))
    engine.driver.retire(None)
    assert "modules" not in left(), left()


def run() -> None:
    context = ow.ml.create_context(device="cuda")
    dispatches(context)
    unloading(context)
    large_arrays(context)
    call("cuCtxPushCurrent", call("cuDevicePrimaryCtxRetain", 1))
    stream = int(call("cuStreamCreate", 0))
    mine = ow.ml.create_context(cuda_stream=stream)
    assert mine.device.name == "cuda:1", mine
    dispatches(mine)
    default = ow.ml.create_context(cuda_stream=0)
    assert default.device.name == "cuda:1", default  # that of the current context
    sharing(mine, default)
    foreign = context.create_tensor("float32", [4], readable=True, writable=True)
    for how in (foreign, type("Array", (), {"__cuda_array_interface__": foreign.__cuda_array_interface__})()):  # type: ignore[attr-defined]
        with pytest.raises(ow.ValidationError, match="the array is on device 0, the context on 1"):
            mine.tensor_from(how)
    assert dlpack.take(foreign, -1).device == (dlpack.CUDA, 0)
    with pytest.raises(ow.ValidationError, match="the driver does not know the stream"):
        ow.ml.create_context(cuda_stream=stream + 8)
    for each in (context, mine, default):
        each.destroy()
    call("cuStreamDestroy", stream)
    call("cuCtxPopCurrent")
    call("cuDevicePrimaryCtxRelease", 1)


run()
gc.collect()
print(left())
