"""WebGPU contexts, on a software adapter where there is no other: tensors, queues, fusion, fallback, loss."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from webgpu_device import adapter, gpu_context

import opweave as ow
from opweave import backends
from opweave.backends import Device
from opweave.context import _choose

wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed")

generator = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return generator.standard_normal(shape).astype("float32")


@pytest.fixture(scope="module")
def context() -> ow.MLContext:
    return gpu_context()


LEAST = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-storage-size": 16384,
}
"""What WebGPU guarantees on every device; wgpu gives more by default."""


@pytest.fixture
def device() -> Iterator[Any]:
    """A device with no features, and the least that there is."""
    made = adapter().request_device_sync(required_limits=LEAST)
    yield made
    made.destroy()


def kernels(graph: ow.MLGraph) -> list[str]:
    """The titles of a graph's kernels, in order."""
    runners: list[Any] = [step.part.runner for step in graph.check_alive().steps if step.part]
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
# Devices and contexts


def test_software_adapters_are_no_accelerators() -> None:
    adapter()
    found = [device for device in ow.devices() if device.backend == "webgpu" and device.available]
    assert found
    for device in found:
        assert (device.kind == "cpu") == ("software" in device.name)
    # A device that was not asked for by name must not be slow.
    assert ow.ml.create_context(accelerated=False).device.name == "cpu"


def test_preferences_choose_among_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(name: str, kind: Any, low_power: bool = False) -> Device:
        return Device(name, kind, "webgpu", "", low_power=low_power)

    here = [device("cpu", "cpu"), device("gpu", "gpu"), device("gpu:1", "gpu", low_power=True)]
    monkeypatch.setattr(backends, "default_devices", lambda: here)
    assert _choose("default", True) == _choose("high-performance", True) == "gpu"
    assert _choose("low-power", True) == "gpu:1"
    assert _choose("low-power", False) == "cpu"


def test_a_context_on_the_users_device(device: Any) -> None:
    context = ow.ml.create_context(device)
    assert context.backend.name == "webgpu"
    tensor = context.create_tensor("float32", [4], readable=True)
    assert tensor.gpu_buffer._device is device
    assert ow.ml.create_context(device).backend is context.backend  # pipelines are shared


def test_bad_devices() -> None:
    with pytest.raises(ow.ValidationError, match=r"gpu_device must be a wgpu.GPUDevice, got GPUAdapter"):
        ow.ml.create_context(adapter())
    with pytest.raises(ow.NotSupportedError, match="deferred=True is for contexts on the CPU"):
        ow.ml.create_context(adapter().request_device_sync(), deferred=True)


def test_a_lost_device_loses_its_contexts() -> None:
    device = adapter().request_device_sync()
    context = ow.ml.create_context(device)
    tensor = context.create_tensor("float32", [4], readable=True, writable=True)
    assert not context.lost.done()
    device.destroy()
    with pytest.raises(ow.InvalidStateError, match="the WebGPU device is lost"):
        context.read_tensor(tensor)
    assert "its WebGPU device is lost" in context.lost.result(0).message
    assert tensor.destroyed
    with pytest.raises(ow.InvalidStateError, match="the context is lost"):
        context.create_tensor("float32", [4])


def test_limits_are_those_of_the_device(device: Any) -> None:
    limits = ow.ml.create_context(device).op_support_limits()  # made without any feature
    assert "int64" not in limits["add"]["a"]["data_types"]
    assert {"float16", "uint8", "int8"} <= set(limits["add"]["a"]["data_types"])
    assert limits["max_tensor_byte_length"] <= device.limits["max-storage-buffer-binding-size"]
    full = gpu_context().op_support_limits()
    assert ("int64" in full["add"]["a"]["data_types"]) == ("shader-int64" in adapter().features)


# ---------------------------------------------------------------------------------------------------------------------
# Tensors


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7)])
@pytest.mark.parametrize("data_type", ["float32", "float16", "int32", "uint32", "int8", "uint8"])
def test_what_is_written_is_read(context: ow.MLContext, data_type: Any, shape: tuple[int, ...]) -> None:
    tensor = context.create_tensor(data_type, shape, readable=True, writable=True)
    assert not context.read_tensor(tensor).any()  # zeros
    values = np.asarray(generator.integers(0, 100, shape)).astype(data_type)
    context.write_tensor(tensor, values)
    np.testing.assert_array_equal(context.read_tensor(tensor), values)
    out = np.empty(shape, data_type)
    context.read_tensor(tensor, out=out)
    np.testing.assert_array_equal(out, values)
    np.testing.assert_array_equal(np.asarray(tensor), values)


def test_tensors_have_no_view_on_the_host(context: ow.MLContext) -> None:
    tensor = context.create_tensor("float32", [4], readable=True)
    with pytest.raises(ow.ValidationError, match=r"lies on .*, where NumPy cannot reach it; context.read_tensor"):
        tensor.numpy()
    with pytest.raises(ow.ValidationError, match="where NumPy cannot reach it"):
        np.from_dlpack(tensor)
    with pytest.raises(ow.ValidationError, match="takes a GPUBuffer, data_type and shape on"):
        context.tensor_from(np.zeros(4, "float32"))
    with pytest.raises(ow.ValidationError, match="memory= is for contexts on the CPU"):
        context.create_tensor("float32", [4], memory=object())  # type: ignore[arg-type]
    tensor.destroy()
    with pytest.raises(ow.ValidationError, match="is destroyed"):
        tensor.gpu_buffer  # noqa: B018
    tensor = ow.ml.create_context(accelerated=False).create_tensor("float32", [4])
    with pytest.raises(ow.NotSupportedError, match=r"the tensor float32\[4\] lies on cpu, not on a WebGPU device"):
        tensor.gpu_buffer  # noqa: B018


def test_buffers_of_the_user(device: Any) -> None:
    context, usage = ow.ml.create_context(device), wgpu.BufferUsage
    buffer = device.create_buffer(size=64, usage=usage.STORAGE | usage.COPY_SRC)
    tensor = context.tensor_from(buffer, "float32", [16])
    assert tensor.gpu_buffer is buffer
    with pytest.raises(ow.ValidationError, match="made without the usage COPY_DST"):
        context.write_tensor(tensor, np.zeros(16, "float32"))
    for made, message in {
        device.create_buffer(size=32, usage=usage.STORAGE): "takes 64 bytes, the buffer has 32",
        device.create_buffer(size=64, usage=usage.COPY_SRC): "must have the usage STORAGE",
        gpu_context().backend.space.device.create_buffer(size=64, usage=usage.STORAGE): "another GPUDevice",  # type: ignore[union-attr]
        "no buffer": "got str",
    }.items():
        with pytest.raises(ow.ValidationError, match=message):
            context.tensor_from(made, "float32", [16])
    both = context.tensor_from(buffer, "float32", [16])
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.relu(builder.input("x", "float32", [16]))})
    with pytest.raises(ow.ValidationError, match="output 'y' overlaps the memory of 'x'"):
        context.dispatch(graph, {"x": tensor}, {"y": both})


def test_exported_tensors_are_the_users_alone(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.relu(builder.input("x", "float32", [4]))})
    x = context.create_tensor("float32", [4], writable=True)
    y = context.create_tensor("float32", [4], readable=True)
    context.write_tensor(x, np.float32([-1, 2, -3, 4]))
    context.dispatch(graph, {"x": x}, {"y": y})
    with context.export_to_gpu(y) as buffer:
        assert buffer is y.gpu_buffer
        for use in (
            lambda: context.dispatch(graph, {"x": x}, {"y": y}),
            lambda: context.read_tensor(y),
            lambda: context.export_to_gpu(y).__enter__(),
        ):
            with pytest.raises(ow.InvalidStateError, match=r"float32\[4\] is exported to the GPU"):
                use()
    assert context.read_tensor(y).tolist() == [0, 2, 0, 4]
    with (
        pytest.raises(ow.NotSupportedError, match="not on a WebGPU device"),
        ow.ml.create_context(accelerated=False).export_to_gpu(x),
    ):
        pass


DOUBLE = """
@group(0) @binding(0) var<storage, read_write> data: array<f32>;
@compute @workgroup_size(16) fn main(@builtin(global_invocation_id) at: vec3u) { data[at.x] = 2.0 * data[at.x]; }
"""


def test_shaders_of_the_user_between_graphs(device: Any) -> None:
    """One queue, the same buffers, no copies, and nothing that waits."""
    context = ow.ml.create_context(device)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.input("x", "float32", [16]) + 1.0})
    a, b, c = (context.create_tensor("float32", [16], readable=True, writable=True) for _ in range(3))
    context.write_tensor(a, np.arange(16, dtype="float32"))
    module = device.create_shader_module(code=DOUBLE)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0), entries=[{"binding": 0, "resource": {"buffer": b.gpu_buffer}}]
    )
    ow.memory.copies.reset()
    context.dispatch(graph, {"x": a}, {"y": b})
    with context.export_to_gpu(b):
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(1)
        compute.end()
        device.queue.submit([encoder.finish()])
    context.dispatch(graph, {"x": b}, {"y": c})
    assert ow.memory.copies.count == 0
    np.testing.assert_array_equal(context.read_tensor(c), (np.arange(16) + 1) * 2 + 1)
    assert ow.memory.copies.by_reason.keys() == {"read_tensor"}


# ---------------------------------------------------------------------------------------------------------------------
# Graphs


def test_what_follows_a_convolution_is_a_part_of_it(context: ow.MLContext) -> None:
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


def test_outputs_that_are_inputs_or_each_other(context: ow.MLContext) -> None:
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


def test_more_operands_than_a_kernel_can_bind(device: Any) -> None:
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


@settings(max_examples=25)
@given(steps=programs(), outputs=st.integers(1, 3), seed=st.integers(0, 99))
def test_graphs_agree_with_the_reference(steps: list[tuple[Any, ...]], outputs: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((4, 6)).astype("float32")
    agree(gpu_context(), lambda b, operands: follow(b, operands["x"], steps, outputs), {"x": values})


# ---------------------------------------------------------------------------------------------------------------------
# ONNX models


def small_network(tail: str = "") -> bytes:
    """A convolution, pooling, a softmax; or what a parser makes of another end."""
    import onnx

    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        network (float[n, 3, 6, 6] x) => (float[n, 4] y, float[n, 4, 1, 1] pooled)
        <float[4, 3, 3, 3] w = {{{", ".join(str((k * 7 % 11 - 5) / 10) for k in range(108))}}}> {{
            c = Conv<pads = [1, 1, 1, 1]>(x, w)
            r = Relu(c)
            pooled = GlobalAveragePool(r)
            f = Flatten(pooled)
            {tail or "y = Softmax<axis = 1>(f)"}
        }}"""
    return bytes(onnx.parser.parse_model(text).SerializeToString())


def test_sessions_keep_tensors_on_the_device(context: ow.MLContext) -> None:
    model, x = small_network(), normal(2, 3, 6, 6)
    expected = ow.InferenceSession(model, ow.ml.create_context(accelerated=False)).run(None, {"x": x})
    session = ow.InferenceSession(model, context, preferred_output_location={"y": "ml-tensor"})
    source = context.create_tensor("float32", x.shape, writable=True)
    context.write_tensor(source, x)
    y, pooled = session.run(None, {"x": source})
    assert isinstance(y, ow.MLTensor)
    np.testing.assert_allclose(context.read_tensor(y), expected[0], rtol=1e-5)
    np.testing.assert_allclose(pooled, expected[1], rtol=1e-5)
    # Tensors in, tensors out: nothing comes to the host.
    target = context.create_tensor("float32", [2, 4], readable=True)
    ow.memory.copies.reset()
    (again,) = session.run(["y"], {"x": source}, out={"y": target})
    assert again is target
    assert ow.memory.copies.count == 0
    np.testing.assert_allclose(context.read_tensor(target), expected[0], rtol=1e-5)
    for wanted in (x, x.copy()):  # and arrays, twice
        np.testing.assert_allclose(
            ow.InferenceSession(model, context).run(None, {"x": wanted})[0], expected[0], rtol=1e-5
        )
    wrong = context.create_tensor("float32", [2, 3, 6, 7])
    with pytest.raises(ow.ValidationError, match=r"input 'x' must have shape \['n', 3, 6, 6\], got \[2, 3, 6, 7\]"):
        session.run(None, {"x": wrong})
    with pytest.raises(ow.ValidationError, match=r"out\['y'\] must have shape \[2, 4\], got \[3, 4\]"):
        session.run(["y"], {"x": source}, out={"y": context.create_tensor("float32", [3, 4])})


def test_sessions_that_fall_back_copy_and_count(context: ow.MLContext) -> None:
    model, x = small_network("y = RandomUniformLike<low = 2.0, high = 3.0>(f)"), normal(1, 3, 6, 6)
    session = ow.InferenceSession(model, context, preferred_output_location="ml-tensor")
    source = context.create_tensor("float32", x.shape, writable=True)
    context.write_tensor(source, x)
    ow.memory.copies.reset()
    y, pooled = session.run(None, {"x": source})
    assert isinstance(y, ow.MLTensor)
    assert isinstance(pooled, ow.MLTensor)
    assert (context.read_tensor(y) >= 2).all()
    assert "fallback" in session.explain()
    reasons = ow.memory.copies.by_reason
    assert reasons["from the device for RandomUniformLike"].count == 1
    assert reasons["an output to the device"].count == 1
    assert not any("input" in reason or reason == "an output from the device" for reason in reasons)


@pytest.mark.parametrize("text", ["y = Identity(x)", "y = Erf(x)", "n = NonZero(x) y = Cast<to = 1>(n)"])
def test_sessions_without_a_segment_on_the_device(context: ow.MLContext, text: str) -> None:
    """Tensors of the device are inputs and outputs, also where the shape of an output depends on data."""
    import onnx

    kind = "float[1, k]" if "NonZero" in text else "float[4]"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => ({kind} y) {{ {text} }}'
    model, x = onnx.parser.parse_model(text).SerializeToString(), np.float32([0, 1, 2, 3])
    (wanted,) = ow.InferenceSession(model, ow.ml.create_context(accelerated=False)).run(None, {"x": x})
    source = context.create_tensor("float32", [4], writable=True)
    target = context.create_tensor("float32", wanted.shape, readable=True)
    context.write_tensor(source, x)
    session = ow.InferenceSession(model, context, preferred_output_location="ml-tensor")
    (found,) = session.run(None, {"x": source})
    (given,) = session.run(None, {"x": source}, out={"y": target})
    assert given is target
    for tensor in (found, given):
        np.testing.assert_allclose(context.read_tensor(tensor), wanted, rtol=1e-6)


def test_graphs_that_run_on_the_host_as_a_whole(context: ow.MLContext) -> None:
    @ow.op
    def shifted(self: Any, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    def kernel(x: np.ndarray, out: np.ndarray) -> None:
        np.add(x, 1, out=out)

    shifted.kernel("cpu", kernel)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": shifted(builder.input("x", "float32", [3]))})
    x, y = context.create_tensor("float32", [3], writable=True), context.create_tensor("float32", [3], readable=True)
    context.write_tensor(x, np.float32([1, 2, 3]))
    context.dispatch(graph, {"x": x}, {"y": y})
    assert context.read_tensor(y).tolist() == [2, 3, 4]


def test_buffers_that_their_owner_destroys(device: Any) -> None:
    context, usage = ow.ml.create_context(device), wgpu.BufferUsage
    buffer = device.create_buffer(size=64, usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST)
    lent = context.tensor_from(buffer, "float32", [16])
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.relu(builder.input("x", "float32", [16]))})
    target = context.create_tensor("float32", [16], readable=True)
    context.dispatch(graph, {"x": lent}, {"y": target})
    buffer.destroy()
    for use in (
        lambda: context.dispatch(graph, {"x": lent}, {"y": target}),
        lambda: context.read_tensor(lent),
        lambda: context.write_tensor(lent, np.zeros(16, "float32")),
    ):
        with pytest.raises(ow.ValidationError, match=r"the buffer of the tensor float32\[16\] cannot be used any more"):
            use()
    assert not context.read_tensor(target).any()


# ---------------------------------------------------------------------------------------------------------------------
# What is not installed


def in_process(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


ASK = """
import opweave as ow
for arguments in ({"device": "gpu"}, {"device": "gpu-software"}, {"gpu_device": object()}):
    try:
        ow.ml.create_context(**arguments)
    except ow.MLError as error:
        print(type(error).__name__, error)
print(ow.ml.create_context().device.name)
"""


def test_without_wgpu() -> None:
    refuse = """
import sys
sys.modules["wgpu"] = None
"""
    assert in_process(refuse + ASK).splitlines() == [
        "NotSupportedError device 'gpu' is not available here: pip install 'opweave[webgpu]'",
        "NotSupportedError device 'gpu-software' is not available here: pip install 'opweave[webgpu]'",
        "MissingExtraError running on WebGPU devices needs wgpu: pip install 'opweave[webgpu]'",
        "cpu",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="the variable is that of Vulkan's loader on Linux")
def test_without_an_adapter() -> None:
    lines = in_process(ASK, VK_DRIVER_FILES="/nowhere.json", VK_ICD_FILENAMES="/nowhere.json").splitlines()
    assert lines == [
        "NotSupportedError device 'gpu' is not available here: there is no adapter for a GPU; a driver for Vulkan, Metal "
        "or DirectX 12 makes one",
        "NotSupportedError device 'gpu-software' is not available here: there is no driver of that kind; on Debian and "
        "Ubuntu, apt install mesa-vulkan-drivers libvulkan1",
        "ValidationError gpu_device must be a wgpu.GPUDevice, got object",
        "cpu",
    ]


def test_compiled_kernels_are_kept_by_bytes_and_go_with_the_last_context(monkeypatch: pytest.MonkeyPatch) -> None:
    from opweave.backends.webgpu.engine import BYTES_PER_PIPELINE

    adapter()
    context = ow.ml.create_context(device=gpu_context().device.name)
    engine: Any = context.backend.space
    x = np.float32([1, 2])

    def run(power: int) -> None:
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": builder.mul(builder.input("x", "float32", (2,)), float(power))})
        np.testing.assert_array_equal(context.compute(graph, {"x": x})["y"], x * power)

    monkeypatch.setattr(engine.compiled, "max_bytes", 3 * BYTES_PER_PIPELINE + 2**16)
    for power in range(5):
        run(power)
    kept = engine.compiled.statistics
    assert kept.entries == 3
    assert 3 * BYTES_PER_PIPELINE < kept.bytes <= engine.compiled.max_bytes
    run(0)  # was evicted
    assert engine.compiled.statistics.entries == 3
    context.destroy()
    assert engine.compiled.statistics[:2] == (0, 0)
    assert not engine._staging


def test_exportable_tensors_are_for_the_device_of_their_context() -> None:
    adapter()
    context = gpu_context()
    device = context.backend.space.device  # type: ignore[union-attr]
    tensor = context.create_exportable_tensor("float32", [2], device, readable=True)
    with context.export_to_gpu(tensor) as buffer:
        assert isinstance(buffer, wgpu.GPUBuffer)
    assert context.read_tensor(tensor).tolist() == [0, 0]
    twin = asyncio.run(context.create_exportable_tensor_async("float32", [3], device, writable=True))
    assert (twin.shape, twin.readable, twin.writable) == ((3,), False, True)
    with pytest.raises(ow.ValidationError, match=r"gpu_device must be a wgpu.GPUDevice, got str"):
        context.create_exportable_tensor("float32", [2], "gpu")
    with pytest.raises(ow.NotSupportedError, match="the context is on cpu, and its tensors cannot be exported"):
        ow.ml.create_context(device="cpu").create_exportable_tensor("float32", [2], device)
    other = ow.ml.create_context(device=context.device.name)
    with pytest.raises(ow.NotSupportedError, match="cannot be exported to another device"):
        other.create_exportable_tensor("float32", [2], device)
    other.destroy()


def test_operations_on_arrays_run_on_the_device_of_their_context() -> None:
    """Contexts of the same name have a device each: what was compiled for one that has ended is not used for another."""
    for value in (1.0, 2.0):
        other = ow.ml.create_context(device=gpu_context().device.name)
        with other:
            assert ow.ops.neg(ow.array([value])).tolist() == [-value]
        other.destroy()


def test_custom_operations_take_tensors_and_arrays_together(context: ow.MLContext) -> None:
    @ow.expression
    def weighted(x: Any, y: Any, *, scale: float = 1.0) -> Any:
        return x * scale + y

    tensor = context.create_tensor("float32", [2], writable=True)
    context.write_tensor(tensor, np.float32([1, 2]))
    before = ow.memory.copies.count
    made = weighted(tensor, tensor, scale=2.0)
    assert ow.memory.copies.count == before  # it stays on the device
    assert context.read_tensor(made).tolist() == [3, 6]
    made = weighted(tensor, np.float32([10, 20]))
    assert made.context is context
    assert context.read_tensor(made).tolist() == [11, 22]


def test_arrays_stay_on_the_device_between_operations(context: ow.MLContext) -> None:
    @ow.jit
    def layer(x: Any) -> Any:
        return x.relu() + x

    with context:
        x = ow.array(np.float32([[-1, 2]]))
        before = ow.memory.copies.count
        y = ow.ops.neg(x)
        ow.ops.abs(y)  # never computed
        for _ in range(3):  # one by one at first, then as one graph
            z = ow.ops.abs(ow.ops.exp(y)) * y
            z._values()
        w = layer(z)
        assert ow.memory.copies.count == before
        assert np.allclose(w.numpy(), [[2 * np.exp(1), -2 * np.exp(-2)]])
        assert ow.memory.copies.count == before + 1
        assert w.tolist() == w.numpy().tolist()
        assert np.from_dlpack(y).tolist() == [[1, -2]]
        assert ow.ops.add(y, 1).tolist() == [[2, -1]]
        assert layer(np.float32([[1, 2]])).tolist() == [[2, 4]]
