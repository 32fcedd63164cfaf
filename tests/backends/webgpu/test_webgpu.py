"""WebGPU devices, contexts and tensors, on a software adapter where there is no other."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from support.webgpu_device import LEAST, adapter, gpu_context, need
from support.webgpu_kernels import generator

import opweave as ow
from opweave import backends
from opweave.backends import Device
from opweave.backends.selection import choose

wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed")


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
    monkeypatch.setattr(backends, "may_accelerate", lambda: True)
    assert choose("default", True) == choose("high-performance", True) == "gpu"
    assert choose("low-power", True) == "gpu:1"
    assert choose("low-power", False) == "cpu"


def test_create_context_on_user_device(device: Any) -> None:
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


def test_lost_device_loses_contexts() -> None:
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


def test_kernel_cache_is_bounded_and_freed_with_last_context(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not engine.staging


# ---------------------------------------------------------------------------------------------------------------------
# Tensors


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7)])
@pytest.mark.parametrize("data_type", ["float32", "float16", "int32", "uint32", "int8", "uint8"])
def test_write_tensor_then_read_tensor(context: ow.MLContext, data_type: Any, shape: tuple[int, ...]) -> None:
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
    with pytest.raises(ow.ValidationError, match=r"is on .*, where NumPy cannot access it; context.read_tensor"):
        tensor.numpy()
    with pytest.raises(ow.ValidationError, match="where NumPy cannot access it"):
        np.from_dlpack(tensor)
    with pytest.raises(ow.ValidationError, match="takes a GPUBuffer, data_type and shape on"):
        context.tensor_from(np.zeros(4, "float32"))
    with pytest.raises(ow.ValidationError, match="memory= is for contexts on the CPU"):
        context.create_tensor("float32", [4], memory=object())  # type: ignore[arg-type]
    tensor.destroy()
    with pytest.raises(ow.ValidationError, match="is destroyed"):
        tensor.gpu_buffer  # noqa: B018
    tensor = ow.ml.create_context(accelerated=False).create_tensor("float32", [4])
    with pytest.raises(ow.NotSupportedError, match=r"the tensor float32\[4\] is on cpu, not on a WebGPU device"):
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


def test_dispatch_with_destroyed_user_buffer(device: Any) -> None:
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


def test_exportable_tensor_requires_device_of_context() -> None:
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


def test_exportable_tensor_has_usage(device: Any) -> None:
    usages = wgpu.BufferUsage
    context = ow.ml.create_context(device, drafts=True)
    plain = context.create_exportable_tensor("float32", [4], device)
    assert plain.gpu_buffer.usage == usages.STORAGE | usages.COPY_SRC | usages.COPY_DST
    for usage, options, actual in (
        (usages.INDIRECT | usages.STORAGE, {}, usages.INDIRECT | usages.STORAGE),
        ("indirect | Vertex", {}, usages.INDIRECT | usages.VERTEX | usages.STORAGE),
        ("UNIFORM", {"readable": True}, usages.UNIFORM | usages.STORAGE | usages.COPY_SRC),
        (usages.INDEX, {"writable": True}, usages.INDEX | usages.STORAGE | usages.COPY_DST),
    ):
        tensor = context.create_exportable_tensor("float32", [4], device, usage=usage, **options)
        with context.export_to_gpu(tensor) as buffer:
            assert (buffer.usage, buffer.size) == (actual, 16)
    # A graph writes the arguments of a draw or dispatch, which no default buffer can hold.
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"counts": builder.input("x", "uint32", [3]) + 1})
    source = context.tensor_from(
        device.create_buffer_with_data(data=np.uint32([1, 0, 0]), usage="STORAGE"), "uint32", [3]
    )
    counts = context.create_exportable_tensor("uint32", [3], device, usage="INDIRECT")
    context.dispatch(graph, {"x": source}, {"counts": counts})
    module = device.create_shader_module(code=DOUBLE)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    data = context.create_tensor("float32", [64], readable=True, writable=True)
    context.write_tensor(data, np.ones(64, "float32"))
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0), entries=[{"binding": 0, "resource": {"buffer": data.gpu_buffer}}]
    )
    with context.export_to_gpu(counts) as buffer:
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups_indirect(buffer, 0)
        compute.end()
        device.queue.submit([encoder.finish()])
    assert context.read_tensor(data).tolist() == [2] * 32 + [1] * 32


@pytest.mark.parametrize(
    "usage", [0, -1, 1024, 2**31, 1.5, True, [128], "", "STORAGE|", "STORE", "STORAGE,INDEX", b"STORAGE"]
)
def test_exportable_tensor_rejects_usage(usage: Any, device: Any) -> None:
    context = ow.ml.create_context(device, drafts=True)
    with pytest.raises(ow.ValidationError, match=r"usage must be flags of wgpu.BufferUsage, or their names \(.*, got "):
        context.create_exportable_tensor("float32", [4], device, usage=usage)
    with pytest.raises(
        ow.ValidationError, match=r"usage is a draft, which .*create_context\(drafts=True\) switches on"
    ):
        ow.ml.create_context(device).create_exportable_tensor("float32", [4], device, usage=usage)


def test_mapped_tensors_are_not_used(device: Any) -> None:
    with pytest.raises(ow.NotSupportedError, match="usage must not have MAP_READ: kernels need STORAGE"):
        ow.ml.create_context(device, drafts=True).create_exportable_tensor("float32", [4], device, usage="MAP_READ")
    need("mappable-primary-buffers")
    mappable = adapter().request_device_sync(required_limits=LEAST, required_features=["mappable-primary-buffers"])
    context = ow.ml.create_context(mappable, drafts=True)
    tensor = context.create_exportable_tensor("float32", [4], mappable, usage="MAP_READ", writable=True)
    context.write_tensor(tensor, np.float32([1, 2, 3, 4]))
    with context.export_to_gpu(tensor) as buffer:
        buffer.map_sync("READ")
        assert np.frombuffer(buffer.read_mapped(), "float32").tolist() == [1, 2, 3, 4]
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.input("x", "float32", [4]).neg()})
    y = context.create_tensor("float32", [4], readable=True)
    with pytest.raises(
        ow.ValidationError, match=r"the buffer of the tensor float32\[4\] must not be mapped, it is mapped"
    ):
        context.dispatch(graph, {"x": tensor}, {"y": y})
    tensor.gpu_buffer.unmap()
    context.dispatch(graph, {"x": tensor}, {"y": y})
    assert context.read_tensor(y).tolist() == [-1, -2, -3, -4]
    mappable.destroy()


# ---------------------------------------------------------------------------------------------------------------------
# What is not installed


def in_process(code: str, **environment: str) -> str:
    environment = {**os.environ, "OPWEAVE_DEVICE": "", **environment}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def available_without_webgpu() -> str:
    """What errors about devices end with where WebGPU has none."""
    found = (device for device in ow.devices() if device.available and device.backend != "webgpu")
    return "; available: " + ", ".join(dict.fromkeys(repr(device.name) for device in found))


ASK = """
import opweave as ow
for arguments in ({"device": "gpu"}, {"device": "gpu-software"}, {"gpu_device": object()}):
    try:
        ow.ml.create_context(**arguments)
    except ow.MLError as error:
        print(type(error).__name__, error)
print(ow.ml.create_context().device.name)
"""


def test_devices_without_wgpu() -> None:
    refuse = """
import sys
sys.modules["wgpu"] = None
"""
    others = available_without_webgpu()
    assert in_process(refuse + ASK).splitlines() == [
        f"NotSupportedError device 'gpu' is not available here: pip install 'opweave[webgpu]'{others}",
        f"NotSupportedError device 'gpu-software' is not available here: pip install 'opweave[webgpu]'{others}",
        "MissingExtraError running on WebGPU devices needs wgpu: pip install 'opweave[webgpu]'",
        "cpu",
    ]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the variable is that of Vulkan's loader on Linux")
def test_create_context_without_adapter() -> None:
    lines = in_process(ASK, VK_DRIVER_FILES="/nowhere.json", VK_ICD_FILENAMES="/nowhere.json").splitlines()
    others = available_without_webgpu()
    assert lines == [
        "NotSupportedError device 'gpu' is not available here: there is no adapter for a GPU; a driver for Vulkan, Metal "
        f"or DirectX 12 makes one{others}",
        "NotSupportedError device 'gpu-software' is not available here: there is no driver of that kind; on Debian and "
        f"Ubuntu, apt install mesa-vulkan-drivers libvulkan1{others}",
        "ValidationError gpu_device must be a wgpu.GPUDevice, got object",
        "cpu",
    ]
