"""Constants of the engine: their memory, and large ones that no node reads, for which the engine refuses the whole graph."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import opweave as ow
from opweave.backends.onnxruntime import options, ort, records
from opweave.composites import matmul_n_bits
from opweave.core.dtypes import numpy_type
from opweave.core.graph import Graph

Build = Callable[[ow.MLGraphBuilder], dict[str, ow.MLOperand]]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype("float32") / 4


def _gru(hidden: int, biases: bool) -> Build:
    w, r = normal(1, 3 * hidden, 8), normal(1, 3 * hidden, hidden)
    b, c = normal(1, 3 * hidden), normal(1, 3 * hidden)

    def build(builder: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
        x = builder.input("x", "float32", [2, 3, 8])
        weights = builder.constant(w), builder.constant(r)
        given = {"bias": builder.constant(b), "recurrent_bias": builder.constant(c)} if biases else {}
        last, sequence = builder.gru(x, weights[0], weights[1], 2, hidden, layout="rzn", return_sequence=True, **given)
        return {"last": last, "sequence": sequence}

    return build


def _lstm(hidden: int) -> Build:
    w, r = normal(1, 4 * hidden, 8), normal(1, 4 * hidden, hidden)
    b, c = normal(1, 4 * hidden), normal(1, 4 * hidden)

    def build(builder: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
        x = builder.input("x", "float32", [2, 3, 8])
        weights = builder.constant(w), builder.constant(r)
        biases = {"bias": builder.constant(b), "recurrent_bias": builder.constant(c)}
        hidden_state, cell = builder.lstm(x, weights[0], weights[1], 2, hidden, layout="ifgo", **biases)
        return {"hidden": hidden_state, "cell": cell}

    return build


UNSIGNED = np.arange(300, dtype="uint32")
OUT_OF_RANGE = np.arange(-300, 300, dtype="int32").reshape(60, 10) * 7


def _gather(builder: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
    return {"y": builder.gather(builder.input("x", "float32", [1000, 4]), UNSIGNED)}


def _gather_elements(builder: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
    return {"y": builder.gather_elements(builder.input("x", "float32", [60, 10]), OUT_OF_RANGE)}


def _gather_nd(builder: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
    return {"y": builder.gather_nd(builder.input("x", "float32", [20, 30]), OUT_OF_RANGE.reshape(300, 2))}


def _scatter_elements(builder: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
    places = np.arange(300, dtype="uint32").reshape(30, 10)
    return {"y": builder.scatter_elements(builder.input("x", "float32", [300, 10]), places, normal(30, 10))}


def _scatter_nd(builder: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
    places = np.arange(300, dtype="uint32").reshape(300, 1)
    return {"y": builder.scatter_nd(builder.input("x", "float32", [300, 2]), places, normal(300, 2))}


def _dequantize(builder: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
    x, scale = builder.input("x", "int32", [2, 300]), np.linspace(0.1, 2, 300, dtype="float32").reshape(1, 300)
    return {"y": builder.dequantize_linear(x, scale, np.zeros((1, 300), "int32"))}


def _attention(builder: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
    q, k, v = (builder.input(name, "float32", [1, 24, 8]) for name in "qkv")
    mask = np.tril(np.ones((24, 24), "uint8"))[None, None].repeat(2, 1)
    return {"y": ow.composites.multi_head_attention(builder, q, k, v, builder.constant(mask), heads=2)}


def _lookup_decides_nothing(builder: ow.MLGraphBuilder) -> dict[str, ow.MLOperand]:
    """A constant that is an output, beside one that is only read by a choice at build time."""
    x = builder.input("x", "int32", [4])
    return {"y": builder.identity(builder.constant(normal(20, 20))), "z": builder.div(x, 3)}


GRAPHS: dict[str, Build] = {
    "gru without biases": _gru(65, biases=False),
    "gru": _gru(65, biases=True),
    "lstm": _lstm(65),
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "dequantize_linear": _dequantize,
    "multi_head_attention": _attention,
    "an output": _lookup_decides_nothing,
}


def feed(graph: Any, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: (random.standard_normal(desc.shape) * 9).astype(desc.data_type) for name, desc in graph.inputs.items()
    }


@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_large_constant_parameters_equal_reference(build: Build) -> None:
    results = []
    for device in ("cpu", "reference"):
        context = ow.ml.create_context(device=device)
        builder = ow.MLGraphBuilder(context)
        graph = builder.build(build(builder))
        results.append(context.compute(graph, feed(graph)))
    for name, wanted in results[1].items():
        np.testing.assert_allclose(results[0][name], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_emitted_initializers_are_read(build: Build) -> None:
    ctx, outputs, _ = ort.emit_graph(Graph.reaching(build(ow.MLGraphBuilder(ow.ml.create_context()))))
    model, weights = ctx.finish(outputs)
    graph = onnx.ModelProto.FromString(model).graph
    read = {name for node in graph.node for name in node.input}
    declared = {initializer.name for initializer in graph.initializer}
    assert declared <= read
    assert weights.keys() <= declared


def test_emit_steps_are_linear_in_nodes() -> None:
    """Rules that ask about the whole graph ask once; what `finish` writes reads each node once."""
    steps = []
    for count in (100, 400):
        builder = ow.MLGraphBuilder(ow.ml.create_context())
        x = builder.input("x", "float32", [1, 1, 4, 4])
        for _ in range(count):
            x = builder.average_pool2d(builder.pad(x, [0, 0, 1, 1], [0, 0, 1, 1]), window_dimensions=[3, 3])
        graph = Graph.reaching({"y": x})
        executed = 0

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal executed
            executed += 1
            return trace

        sys.settrace(trace)
        try:
            ctx, outputs, _ = ort.emit_graph(graph)
            ctx.finish(outputs)
        finally:
            sys.settrace(None)
        steps.append(executed)
    assert steps[1] < 4.2 * steps[0], steps


@pytest.mark.parametrize("data_type", ["float32", "float16", "int64", "bool", "bfloat16", "float8_e4m3fn"])
def test_weights_that_are_handed_over_keep_their_memory(data_type: str) -> None:
    array = np.zeros(1000, numpy_type(data_type))
    reference = weakref.ref(array)
    values = options.hand_over(onnxruntime.SessionOptions(), {"w": array}, None)
    del array
    gc.collect()
    assert reference() is not None, "the engine would read memory that others have taken"
    del values
    gc.collect()
    assert reference() is None


def _quantized(x: ow.MLOperand, *, is_shared: bool) -> ow.MLOperand:
    """A product with a quantised matrix, whose scales another operation may read, too."""
    b: Any = x.builder
    weight = np.random.default_rng(5).integers(0, 256, (128, 4, 16), np.uint8)
    scale = b.constant(normal(128, 4))
    y = matmul_n_bits(x, weight, scale, accuracy="int8")
    return y + scale.reduce_sum(axes=[1]) if is_shared else y


@pytest.mark.skipif(os.name != "posix", reason="constants are hidden in a device of POSIX")
@pytest.mark.parametrize("is_shared", [False, True])
def test_engine_copies_no_constants_of_kernels(is_shared: bool) -> None:
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    y = _quantized(builder.input("x", "float32", [2, 128]), is_shared=is_shared)
    ctx, outputs, _ = ort.emit_graph(Graph.reaching({"y": y}))
    model, weights = ctx.finish(outputs, hides_constants=True)
    hidden = {
        tensor.name
        for tensor in onnx.ModelProto.FromString(model).graph.initializer
        if any(entry.value == records.EMPTY_FILE[1:] for entry in tensor.external_data)
    }
    assert hidden == ctx.kernel_constants
    assert [weights[name].dtype.name for name in sorted(hidden)] == ["uint8"] + ["float32"] * (not is_shared)
    graph, x = builder.build({"y": y}), normal(2, 128)
    other = ow.ml.create_context(device="reference")
    b = ow.MLGraphBuilder(other)
    exact = b.build({"y": _quantized(b.input("x", "float32", [2, 128]), is_shared=is_shared)})
    wanted = other.compute(exact, {"x": x})["y"]
    np.testing.assert_allclose(context.compute(graph, {"x": x})["y"], wanted, atol=0.02 * np.abs(wanted).max())
