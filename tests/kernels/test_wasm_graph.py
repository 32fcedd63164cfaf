"""WebAssembly kernels between built-in operations: tensors in the module's memory, and nothing copied."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support import witness
from support.onnx import model, node
from support.wasm_tools import wat

import opweave as ow
from opweave import memory
from opweave.context.tensor import memory_of
from opweave.core.graph import Builder, Desc, Operand
from opweave.kernels import wasm
from opweave.kernels.wasm import library


@ow.op
def box3(self: Builder, x: Operand, *, label: str = "") -> Desc:
    """The mean of windows of 3 × 3."""
    *outer, h, w = x.shape
    return Desc(x.data_type, (*outer, h - 2, w - 2))


@ow.op
def best(self: Builder, x: Operand, k: int, *, label: str = "") -> tuple[Desc, Desc]:
    """The `k` greatest of each row, and where they stood."""
    shape = (*x.shape[:-1], k)
    return Desc(x.data_type, shape), Desc("int32", shape)


@pytest.fixture
def module() -> Iterator[wasm.Module]:
    module = library.load()
    box3.kernel("wasm", module, "box3", signature=library.SIGNATURES["box3"])
    best.kernel("wasm", module, "top_k", signature=library.SIGNATURES["top_k"])
    yield module
    for op in (box3, best):
        op.kernels.clear()


def windows(x: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(-2, -1)).mean((-1, -2))


def test_built_in_operations_work_in_the_memory_of_the_module(module: wasm.Module) -> None:
    context = ow.ml.create_context()
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 2, 12, 12])
    f = np.random.default_rng(0).standard_normal((2, 2, 3, 3), dtype="float32")
    middle = box3(builder, builder.conv2d(x, f), label="blur")
    graph = builder.build({"y": builder.conv2d(middle, f)})
    source = context.create_tensor("float32", [1, 2, 12, 12], writable=True, memory=module)
    target = context.create_tensor("float32", [1, 2, 6, 6], readable=True, memory=module)
    assert module.owns(memory_of(source))
    assert module.owns(memory_of(target))
    values = np.random.default_rng(1).standard_normal((1, 2, 12, 12), dtype="float32")
    context.write_tensor(source, values)
    memory.copies.reset()
    context.dispatch(graph, {"x": source}, {"y": target})
    assert memory.copies.count == 0
    expected = witness.conv2d(windows(witness.conv2d(values, f)), f)
    np.testing.assert_allclose(target.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert "wasm box3, kernels.wasm" in graph.explain()


def test_wasm_counts_copies_of_outside_memory(module: wasm.Module) -> None:
    context = ow.ml.create_context()
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": box3(builder, builder.input("x", "float32", [5, 6]))})
    x = np.arange(30, dtype="float32").reshape(5, 6)
    memory.copies.reset()
    np.testing.assert_allclose(context.compute(graph, {"x": x})["y"], windows(x), rtol=1e-6)
    assert memory.copies.count == 2


def test_several_results_and_calls_on_arrays(module: wasm.Module) -> None:
    x = np.float32([[3, 1, 2], [5, 5, 6]])
    values, places = best(x, 2)
    assert np.asarray(values).tolist() == [[3, 2], [6, 5]]
    assert np.asarray(places).tolist() == [[0, 2], [2, 0]]


def test_trap_in_graph_leaves_other_memory(module: wasm.Module) -> None:
    faulty = wat('(func (export "f") (param i32 i32) unreachable)')

    @ow.op
    def fails(self: Builder, x: Operand, *, label: str = "") -> Desc:
        """It does not work."""
        return x.desc

    fails.kernel("wasm", faulty, "f", signature="x*, out*")
    context = ow.ml.create_context()
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [4])
    graph = builder.build({"y": fails(builder, x.relu(), label="here").relu()})
    kept = context.create_tensor("float32", [4], readable=True, writable=True, memory=faulty)
    context.write_tensor(kept, np.arange(4, dtype="float32"))
    for _ in range(3):
        with pytest.raises(ow.OperationError, match=r"^fails 'here': f of .* trapped: unreachable"):
            context.compute(graph, {"x": np.ones(4, "float32")})
    assert kept.numpy().tolist() == [0, 1, 2, 3]


def test_build_rejects_wrong_signature(module: wasm.Module) -> None:
    @ow.op
    def odd(self: Builder, x: Operand, *, label: str = "") -> Desc:
        """It does not fit."""
        return x.desc

    odd.kernel("wasm", module, "relu", signature="x*:int32, out*, x.size")
    builder = ow.MLGraphBuilder(ow.ml.create_context())
    y = odd(builder, builder.input("x", "float32", [4]), label="mine")
    with pytest.raises(
        ow.ValidationError,
        match=r"odd 'mine': the signature .* does not fit relu\(i32, .* takes int32, got float32\[4\]",
    ):
        builder.build({"y": y})


def test_wasm_kernel_in_onnx_model() -> None:
    module = library.load()

    @ow.op
    def heap_relu(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
        return x.desc

    heap_relu.kernel("wasm", module, "relu", signature="x*:float32, out*, x.size")
    ow.register_onnx("com.example", "HeapRelu", heap_relu)
    nodes = [
        node("Neg", "x", "a"),
        node("HeapRelu", "a", "b", domain="com.example", name="heap"),
        node("Neg", "b", "y"),
    ]
    proto = model(nodes, {"x": "float32[2, 3]"}, {"y": "float32[2, 3]"}, opset=17, domains=["com.example"])
    session = ow.InferenceSession(proto, fallback="error")
    x = np.float32([[1, -2, 3], [-4, 5, -6]])
    ow.memory.copies.reset()
    assert session.run(None, {"x": x})[0].tolist() == np.minimum(x, 0).tolist()
    assert ow.memory.copies.count == 0
    assert "  custom: heap_relu 'heap', kernel, " in session.explain()
