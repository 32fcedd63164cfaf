"""Graphs on WebGPU devices: which kernels they have, what the device lacks, and results beside the reference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.webgpu_device import adapter, gpu_context
from support.webgpu_kernels import engine_of, generator, normal

import opweave as ow
from opweave.context.graph import program_of

wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed")


def kernels(graph: ow.MLGraph) -> list[str]:
    """The titles of a graph's kernels, in order."""
    runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
    return [step.kernel.title for runner in runners for step in runner.steps]


def agree(
    context: ow.MLContext, build: Callable[[Any, dict[str, Any]], dict[str, Any]], inputs: dict[str, np.ndarray]
) -> ow.MLGraph:
    """Build the same graph here and on the reference back end, and compare all outputs."""
    graphs, results = [], []
    for where in (context, ow.ml.create_context(device="reference")):
        builder = ow.MLGraphBuilder(where)
        operands = {name: builder.input(name, str(a.dtype), a.shape) for name, a in inputs.items()}  # type: ignore[call-overload]
        graphs.append(builder.build(build(builder, operands)))
        results.append(where.compute(graphs[-1], inputs))
    for name, expected in results[1].items():
        found = results[0][name]
        assert found.dtype == expected.dtype
        tolerance = 2e-3 if found.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=name)
    return graphs[0]


# ---------------------------------------------------------------------------------------------------------------------
# Graphs


def test_conv2d_epilogue_is_fused(context: ow.MLContext) -> None:
    weights, shift = normal(4, 3, 3, 3), normal(4)

    @ow.expression
    def swish(x: Any, beta: Any) -> Any:
        return x * ow.expr.sigmoid(beta * x)

    def build(b: Any, operands: dict[str, Any]) -> dict[str, Any]:
        y = b.conv2d(operands["x"], b.constant(weights), padding=(1, 1, 1, 1), bias=b.constant(shift), label="stem")
        return {"y": swish(b.relu(y + operands["z"]), b.constant("float32", 1.5))}

    inputs = {"x": normal(1, 3, 6, 7), "z": normal(1, 4, 6, 7)}
    graph = agree(context, build, inputs)
    assert len(kernels(graph)) == 1
    assert "conv2d 'stem' + add + relu + swish" in kernels(graph)[0]
    profile = graph.profile()
    assert len(profile.kernels) == (1 if "timestamp-query" in adapter().features else 0)
    assert "copies: none" in str(profile)


def test_profile_says_that_the_adapter_has_no_timestamps(
    context: ow.MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.relu(builder.input("x", "float32", [4]))})
    monkeypatch.setattr(engine_of(context), "has_timestamps", False)
    profile = graph.profile(repeat=1)
    assert profile.kernels == ()
    assert profile.remarks == ("kernels are not measured: the adapter lacks the feature timestamp-query",)
    assert str(profile).endswith(profile.remarks[0])


def test_element_wise_chains_and_movement_are_one_kernel(context: ow.MLContext) -> None:
    def build(b: Any, operands: dict[str, Any]) -> dict[str, Any]:
        x = b.transpose(operands["x"], permutation=[0, 2, 1])[:, 1:, ::2]
        return {"y": b.tanh(b.pad(x, [0, 1, 1], [0, 0, 1], value=3.0) * 2.0) + 1.0}

    graph = agree(context, build, {"x": normal(2, 5, 6)})
    assert len(kernels(graph)) == 1


def test_reshapes_take_nothing(context: ow.MLContext) -> None:
    weights = normal(4, 5)

    def build(b: Any, operands: dict[str, Any]) -> dict[str, Any]:
        y = b.matmul(b.reshape(operands["x"], [6, 4]), b.constant(weights))
        return {"y": b.softmax(b.reshape(y, [2, 15]), 1)}

    graph = agree(context, build, {"x": normal(2, 3, 4)})
    assert len(kernels(graph)) == 2


def test_intermediates_share_memory(context: ow.MLContext) -> None:
    def build(b: Any, operands: dict[str, Any]) -> dict[str, Any]:
        y = operands["x"]
        for _ in range(6):
            y = b.softmax(y, 1)
        return {"y": y}

    plan = agree(context, build, {"x": normal(8, 16)}).profile()
    assert plan.intermediates_alone == 5 * 8 * 16 * 4
    assert plan.intermediates == 2 * 8 * 16 * 4


def test_graph_outputs_may_alias_inputs_and_each_other(context: ow.MLContext) -> None:
    def build(b: Any, operands: dict[str, Any]) -> dict[str, Any]:
        x = operands["x"]
        same, y = b.identity(x), b.relu(x)
        return {
            "same": same,
            "again": same,
            "flat": b.reshape(x, [12]),
            "y": y,
            "z": b.reshape(y, [4, 3]),
            "w": y + 1.0,
        }

    agree(context, build, {"x": normal(3, 4)})


def test_operands_exceed_kernel_bindings(device: Any) -> None:
    """The least that WebGPU promises is eight buffers."""
    context = ow.ml.create_context(device)
    inputs = {f"x{k}": normal(2, k + 1) for k in range(12)}

    def build(b: Any, operands: dict[str, Any]) -> dict[str, Any]:
        first = [b.relu(x) for x in operands.values()]
        total = first[0]
        for x in first[1:]:
            total = total + b.reduce_sum(x, axes=[1], keep_dimensions=True)
        return {"joined": b.concat(first, 1), "sum": total}

    agree(context, build, inputs)


def test_types_without_features_of_the_device(device: Any) -> None:
    """Two halves, or four bytes, in a word."""
    context = ow.ml.create_context(device)
    halves, small = normal(3, 5).astype("float16"), generator.integers(-100, 100, (3, 5)).astype("int8")

    def build(b: Any, operands: dict[str, Any]) -> dict[str, Any]:
        half, byte = operands["half"], operands["byte"]
        return {
            "half": b.softmax(b.transpose(half) * 2.0, 1),
            "byte": b.add(b.reverse(byte), byte),
            "cast": b.cast(half, "int8"),
            "is": b.greater(half, b.cast(byte, "float16")),
            "product": b.matmul(half, b.transpose(half)),
        }

    agree(context, build, {"half": halves, "byte": small})


def test_compute_takes_tensors_and_arrays(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    a, b = builder.input("a", "float32", [3]), builder.input("b", "float32", [3])
    graph = builder.build({"y": a - b})
    tensor = context.create_tensor("float32", [3], writable=True)
    context.write_tensor(tensor, np.float32([5, 6, 7]))
    out = np.empty(3, "float32")
    result = context.compute(graph, {"a": tensor, "b": np.float32([1, 2, 3])}, {"y": out})
    assert result["y"] is out
    assert out.tolist() == [4, 4, 4]
    assert asyncio.run(context.compute_async(graph, {"a": out, "b": tensor}))["y"].tolist() == [-1, -2, -3]


def test_several_threads(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [64])
    graph = builder.build({"y": builder.softmax(builder.reshape(x * 2.0, [1, 64]), 1)})

    def work(seed: int) -> bool:
        values = np.random.default_rng(seed).standard_normal(64).astype("float32")
        expected = np.exp(values * 2) / np.exp(values * 2).sum()
        source = context.create_tensor("float32", [64], writable=True)
        target = context.create_tensor("float32", [1, 64], readable=True)
        right = True
        for _ in range(5):
            context.write_tensor(source, values)
            context.dispatch(graph, {"x": source}, {"y": target})
            right &= np.allclose(context.read_tensor(target)[0], expected, atol=1e-6)
            right &= np.allclose(context.compute(graph, {"x": values})["y"][0], expected, atol=1e-6)
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


# ---------------------------------------------------------------------------------------------------------------------
# What the device lacks


@ow.op
def halved(self: ow.MLGraphBuilder, x: ow.MLOperand) -> Any:
    return x.desc


@halved.kernel("cpu")
def _(x: np.ndarray, out: np.ndarray) -> None:
    np.multiply(x, 0.5, out=out)


def test_operations_of_the_host_in_between(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 3])
    middle = halved(builder.relu(x))
    graph = builder.build({"y": builder.exp(middle), "middle": middle, "first": builder.neg(x)})
    values = normal(2, 3)
    ow.memory.copies.reset()
    found = context.compute(graph, {"x": values})
    np.testing.assert_allclose(found["y"], np.exp(np.maximum(values, 0) / 2), rtol=1e-6)
    np.testing.assert_allclose(found["middle"], np.maximum(values, 0) / 2)
    np.testing.assert_allclose(found["first"], -values)
    reasons = ow.memory.copies.by_reason
    assert reasons["from the device for halved"].count == 1
    assert reasons["to the device for exp"].count == 1
    text = graph.explain()
    assert "halved" in text
    assert set(graph.devices) == {"cpu", context.device.name}
    x1 = context.create_tensor("float32", [2, 3], writable=True)
    outputs = {name: context.create_tensor("float32", [2, 3], readable=True) for name in graph.outputs}
    context.write_tensor(x1, values)
    context.dispatch(graph, {"x": x1}, outputs)
    for name, tensor in outputs.items():
        np.testing.assert_allclose(context.read_tensor(tensor), found[name])
    profile = str(graph.profile())
    assert "copy float32[2, 3]: from the device for halved" in profile


def test_fallback_can_be_an_error(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    y = halved(builder.input("x", "float32", [2]), label="mine")
    with pytest.raises(ow.NotSupportedError, match=r"halved 'mine': .* cannot run it .*, and fallback is 'error'"):
        builder.build({"y": y}, fallback="error")
    builder = ow.MLGraphBuilder(context)
    with pytest.raises(ow.ValidationError, match="fallback must be 'auto' or 'error', got 'no'"):
        builder.build({"y": builder.input("x", "float32", [2]).relu()}, fallback="no")  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------
# Graphs made up by Hypothesis

UNARY = ["relu", "neg", "abs", "tanh", "sigmoid", "exp", "hard_swish", "gelu"]
BINARY = ["add", "sub", "mul", "max", "min"]


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Steps on a growing list of operands of shape [4, 6]: an operation, and the numbers of its operands."""
    steps: list[tuple[Any, ...]] = []
    for count in range(1, draw(st.integers(2, 9))):
        which = st.integers(0, count - 1)
        kind = draw(
            st.sampled_from(["unary", "binary", "transpose", "softmax", "matmul", "mean", "slice", "concat", "pad"])
        )
        name = draw(st.sampled_from(UNARY if kind == "unary" else BINARY))
        steps.append((kind, name, draw(which), draw(which)))
    return steps


def follow(b: Any, x: Any, steps: list[tuple[Any, ...]], outputs: int) -> dict[str, Any]:
    values, square = [x], b.constant((np.arange(36, dtype="float32").reshape(6, 6) % 5 - 2) / 6)
    for kind, name, first, second in steps:
        p, q = values[first], values[second]
        if kind == "unary":
            made = getattr(b, name)(b.clamp(p, min_value=-3.0, max_value=3.0))
        elif kind == "binary":
            made = b.clamp(getattr(b, name)(p, q), min_value=-10.0, max_value=10.0)
        elif kind == "transpose":
            made = b.reshape(b.transpose(p), [4, 6])
        elif kind == "softmax":
            made = b.softmax(p, 1) + q
        elif kind == "matmul":
            made = b.relu(b.matmul(p, square) + q)
        elif kind == "mean":
            made = p - b.reduce_mean(q, axes=[0], keep_dimensions=True)
        elif kind == "slice":
            made = b.concat([p[:, 3:], q[:, :3]], 1)
        elif kind == "concat":
            made = b.concat([b.relu(p)[2:], q[:2]], 0)
        else:
            made = b.pad(p[1:], [1, 0], [0, 0]) * q
        values.append(b.clamp(made, min_value=-100.0, max_value=100.0))
    return {f"y{k}": b.identity(value) for k, value in enumerate(values[-outputs:])}


@pytest.mark.long
@settings(max_examples=25)
@given(steps=programs(), outputs=st.integers(1, 3), seed=st.integers(0, 99))
def test_graphs_agree_with_the_reference(steps: list[tuple[Any, ...]], outputs: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((4, 6)).astype("float32")
    agree(gpu_context(), lambda b, operands: follow(b, operands["x"], steps, outputs), {"x": values})
