"""Contexts: creation, tensors, running, the end."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.threads import together

import opweave as ow
from opweave import backends
from opweave.context.dispatch_binding import DispatchBinding
from opweave.context.graph_state import MAX_BINDINGS

DEVICES = ["cpu", "reference"]


@pytest.fixture(params=DEVICES)
def context(request: pytest.FixtureRequest) -> ow.MLContext:
    return ow.ml.create_context(device=request.param)


def plus_one(context: ow.MLContext, size: int = 4) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [size])
    return builder.build({"y": builder.add(x, x)})


def tensors(context: ow.MLContext, size: int = 4) -> tuple[ow.MLTensor, ow.MLTensor]:
    x = context.create_tensor("float32", [size], writable=True)
    y = context.create_tensor("float32", [size], readable=True)
    return x, y


def count_bindings() -> int:
    """How many bindings of graphs to tensors there are in this process."""
    gc.collect()
    return sum(type(found) is DispatchBinding for found in gc.get_objects())  # `isinstance` looks into dead proxies


def test_create_context_defaults_to_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPWEAVE_DEVICE")
    monkeypatch.setattr(backends, "default_devices", lambda: backends.find("onnxruntime").devices())
    context = ow.ml.create_context()
    assert context.device.name == "cpu"
    assert context.accelerated is False
    assert repr(context) == "<MLContext on cpu>"


def test_create_context_follows_opweave_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = backends.Device("gpu", "gpu", "webgpu", "a GPU that none of these contexts takes")
    monkeypatch.setattr(backends, "default_devices", lambda: [gpu])
    for name in ("cpu", "reference"):
        monkeypatch.setenv("OPWEAVE_DEVICE", name)
        assert ow.ml.create_context().device.name == name
        assert ow.ml.create_context(device="reference").device.name == "reference"
        assert ow.ml.create_context(backend="onnxruntime").device.name == "cpu"
    monkeypatch.setenv("OPWEAVE_DEVICE", "npu7")
    with pytest.raises(ow.NotSupportedError, match=r"^OPWEAVE_DEVICE: there is no device 'npu7'; available: 'cpu', "):
        ow.ml.create_context()


@pytest.mark.parametrize("name", DEVICES)
def test_create_context_accepts_backend(name: str) -> None:
    backend = {"cpu": "onnxruntime"}.get(name, name)
    for device in (None, name):
        context = ow.ml.create_context(device=device, backend=backend)
        assert (context.device.name, context.backend.name) == (name, backend)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"power_preference": "fast"}, ow.ValidationError, "power_preference must be one of 'default'"),
        ({"accelerated": 1}, ow.ValidationError, "accelerated must be True or False, got 1"),
        ({"drafts": 1}, ow.ValidationError, "drafts must be True or False, got 1"),
        ({"drafts": None}, ow.ValidationError, "drafts must be True or False, got None"),
        ({"device": 3}, ow.ValidationError, "device must be a name, got 3"),
        ({"device": "npu7"}, ow.NotSupportedError, "there is no device 'npu7'; available: 'cpu', "),
        (
            {"gpu_device": "cpu"},
            ow.ValidationError,
            "gpu_device must be a wgpu.GPUDevice, got 'cpu'; write device='cpu'",
        ),
        ({"gpu_device": object()}, ow.ValidationError, "gpu_device must be a wgpu.GPUDevice, got object"),
        ({"gpu_device": object(), "device": "cpu"}, ow.ValidationError, "device must not be given with gpu_device"),
        ({"gpu_device": object(), "backend": "a"}, ow.ValidationError, "backend must not be given with gpu_device"),
        ({"backend": 3}, ow.ValidationError, "backend must be a name, got 3"),
        ({"backend": "tpu"}, ow.NotSupportedError, "there is no back end 'tpu'; there are 'onnxruntime', "),
        (
            {"backend": "reference", "device": "cpu"},
            ow.NotSupportedError,
            "there is no device 'cpu' of back end 'reference'; available: 'reference'",
        ),
    ],
)
def test_bad_context_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ow.ml.create_context(**options)


def test_drafts_are_switched_by_context() -> None:
    contexts = [ow.ml.create_context(device="reference", drafts=drafts) for drafts in (False, True)]
    assert [context.drafts for context in (ow.ml.create_context(), *contexts)] == [False, False, True]
    assert [ow.MLGraphBuilder(context).context.drafts for context in contexts] == [False, True]
    assert ow.ml.create_context(deferred=True, drafts=True).drafts


@pytest.mark.parametrize("policy", ["default", "high-performance", "low-power", "fallback"])
def test_compute_policy_chooses_device(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ow.ml.create_context(compute_policy=policy, drafts=True, device="cpu")
    assert (context.compute_policy, context.power_preference) == (policy, "default" if policy == "fallback" else policy)
    # Accelerators of an imagined machine, which nothing can open.
    names = {"gpu": "gpu", "npu": "npu", "cpu": "cpu"}
    machine = [backends.Device(name, kind, "onnxruntime", "") for name, kind in names.items()]  # type: ignore[arg-type]
    monkeypatch.delenv("OPWEAVE_DEVICE")
    monkeypatch.setattr(backends, "default_devices", lambda: machine)
    monkeypatch.setattr(backends, "may_accelerate", lambda: True)

    def find_device(name: str, *_: Any) -> Any:
        raise LookupError(name)

    monkeypatch.setattr(backends, "find_device", find_device)
    chosen = {"low-power": "npu", "fallback": "cpu"}.get(policy, "gpu")
    with pytest.raises(LookupError, match=f"^{chosen}$"):
        ow.ml.create_context(compute_policy=policy, drafts=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"compute_policy": "fallback", "drafts": False},
            "compute_policy is a draft, which opweave.ml.create_context.drafts",
        ),
        ({"compute_policy": "no", "drafts": False}, "compute_policy is a draft"),
        (
            {"compute_policy": "fast"},
            "must be one of 'default', 'high-performance', 'low-power', 'fallback', got 'fast'",
        ),
        ({"compute_policy": 1}, "compute_policy must be one of .*, got 1"),
        (
            {"compute_policy": "fallback", "power_preference": "low-power"},
            "power_preference must not differ from compute_policy, got 'low-power' and 'fallback'",
        ),
        ({"compute_policy": "default", "power_preference": "low-power"}, "must not differ from compute_policy"),
        (
            {"compute_policy": "high-performance", "accelerated": False},
            "accelerated=False must not be given with compute_policy='high-performance'",
        ),
        (
            {"compute_policy": "fallback", "device": "fast"},
            "compute_policy='fallback' runs on a CPU, and the device 'fast' is of kind 'gpu'",
        ),
    ],
)
def test_bad_compute_policy(options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = backends.Device("fast", "gpu", "onnxruntime", "")
    monkeypatch.setattr(backends, "find_device", lambda *_: (backends.find("onnxruntime"), gpu))
    with pytest.raises(ow.ValidationError, match=message):
        ow.ml.create_context(**{"drafts": True, **options})


def test_fallback_is_not_supported_without_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = backends.Device("fast", "gpu", "onnxruntime", "")
    monkeypatch.setattr(backends, "find_device", lambda *_: (backends.find("onnxruntime"), gpu))
    with pytest.raises(ow.NotSupportedError, match="compute_policy='fallback' runs on a CPU, and the device 'fast'"):
        ow.ml.create_context(compute_policy="fallback", drafts=True)


def test_compute_policy_is_power_preference_by_default() -> None:
    context = ow.ml.create_context(device="cpu", power_preference="low-power", drafts=True)
    assert context.compute_policy == "low-power"
    assert ow.ml.create_context(accelerated=False, compute_policy="fallback", drafts=True).compute_policy == "fallback"
    with pytest.raises(ow.ValidationError, match="compute_policy is a draft"):
        _ = ow.ml.create_context().compute_policy


def test_write_dispatch_read(context: ow.MLContext) -> None:
    graph, (x, y) = plus_one(context), tensors(context)
    context.write_tensor(x, np.float32([1, 2, 3, 4]))
    context.dispatch(graph, {"x": x}, {"y": y})
    assert context.read_tensor(y).tolist() == [2, 4, 6, 8]


def test_read_tensor_into_out(context: ow.MLContext) -> None:
    graph, (x, y) = plus_one(context), tensors(context)
    context.write_tensor(x, np.float32([1, 2, 3, 4]))
    context.dispatch(graph, {"x": x}, {"y": y})
    array, raw = np.zeros(4, "float32"), bytearray(16)
    assert context.read_tensor(y, out=array) is not None
    context.read_tensor(y, out=raw)
    assert array.tolist() == np.frombuffer(raw, "float32").tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros(3, "float32"), r"out must have shape \[4\] \(or be flat\), got \[3\]"),
        (np.zeros(4, "float64"), "out must hold float32 in native byte order, got <f8"),
        (np.zeros(8, "float32")[::2], "out must be C-contiguous"),
        (np.zeros(4, ">f4"), "out must hold float32 in native byte order, got >f4"),
        (bytes(16), "out must be writable"),
        (bytearray(15), "out must have 16 bytes for float32.4., got 15"),
        ("text", "out must be an array or a buffer, got str"),
    ],
)
def test_bad_out(out: Any, message: str) -> None:
    context = ow.ml.create_context()
    y = context.create_tensor("float32", [4], readable=True)
    with pytest.raises(ow.ValidationError, match=message):
        context.read_tensor(y, out=out)


@pytest.mark.parametrize(
    ("data_type", "shape", "message"),
    [
        ("float64", [1], "data type must be one of float32"),
        (None, [1], "data type must be one of float32"),
        ("float32", [0], r"shape must have dimensions in \[1, 2147483647\], got \[0\]"),
        ("float32", [-1], r"shape must have dimensions in \[1, 2147483647\], got \[-1\]"),
        ("float32", [2**31], "shape must have dimensions in"),
        ("float32", [2**16, 2**16], "shape must have at most 2147483647 elements, got"),
        ("float32", [2**30], "shape must take at most 2147483647 bytes, got"),
        ("float32", [1] * 9, "shape must have at most 8 dimensions, got 9"),
        ("float32", [float("nan")], "shape must be a sequence of integers, got"),
        ("float32", [2.5], "shape must be a sequence of integers, got"),
        ("float32", [True], "shape must be a sequence of integers, got"),
        ("float32", "12", "shape must be a sequence of integers, got '12'"),
        ("float32", 4, "shape must be a sequence of integers, got 4"),
    ],
)
def test_bad_descriptors(data_type: Any, shape: Any, message: str) -> None:
    context = ow.ml.create_context()
    with pytest.raises(ow.ValidationError, match=f"^create_tensor: {message}"):
        context.create_tensor(data_type, shape)
    with pytest.raises(ow.ValidationError, match=message):
        ow.MLGraphBuilder(context).input("x", data_type, shape)


def test_write_tensor_takes_buffers_as_bytes() -> None:
    context = ow.ml.create_context()
    x = context.create_tensor("int32", [2], readable=True, writable=True)
    for data in (b"\1\0\0\0\2\0\0\0", memoryview(b"\1\0\0\0\2\0\0\0"), np.uint8([1, 0, 0, 0, 2, 0, 0, 0])):
        context.write_tensor(x, data)
        assert x.numpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros(2, "float32"), r"input_data must have shape \[4\]"),
        (np.zeros(4, "int32"), "input_data must hold float32 in native byte order, got <i4"),
        (np.zeros(4, ">f4"), "input_data must hold float32 in native byte order, got >f4"),
        (b"123", "input_data must have 16 bytes"),
        ([1.0, 2.0, 3.0, 4.0], "input_data must be an array or a buffer, got list"),
        (None, "input_data must be an array or a buffer, got NoneType"),
    ],
)
def test_bad_data(data: Any, message: str) -> None:
    context = ow.ml.create_context()
    x = context.create_tensor("float32", [4], readable=True, writable=True)
    context.write_tensor(x, np.float32([1, 2, 3, 4]))
    with pytest.raises(ow.ValidationError, match=f"^write_tensor: {message}"):
        context.write_tensor(x, data)
    assert x.numpy().tolist() == [1, 2, 3, 4], "a refused write must leave the tensor as it was"
    with pytest.raises(ow.ValidationError, match=f"^create_constant_tensor: {message}"):
        context.create_constant_tensor("float32", [4], data)


def test_strided_data_are_copied_once_and_counted() -> None:
    context = ow.ml.create_context()
    x = context.create_tensor("float32", [2, 3], readable=True, writable=True)
    data = np.arange(6, dtype="float32").reshape(3, 2).T
    ow.memory.copies.reset()
    context.write_tensor(x, data)
    assert (x.numpy() == data).all()
    context.create_constant_tensor("float32", [2, 3], data)
    assert {reason: tally.count for reason, tally in ow.memory.copies.by_reason.items()} == {
        "write_tensor": 1,
        "create_constant_tensor": 1,
    }


def test_access_flags_are_kept() -> None:
    context = ow.ml.create_context()
    plain = context.create_tensor("float32", [4])
    with pytest.raises(ow.ValidationError, match="was not created with writable=True"):
        context.write_tensor(plain, np.zeros(4, "float32"))
    with pytest.raises(ow.ValidationError, match="was not created with readable=True"):
        context.read_tensor(plain)
    with pytest.raises(ow.ValidationError, match="was not created with readable=True"):
        plain.numpy()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, x, y: ({}, {"y": y}), r"inputs must hold \['x'\]; got none"),
        (lambda c, x, y: ({"x": x, "z": c.create_tensor("float32", [4])}, {"y": y}), r"unknown: \['z'\]"),
        (lambda c, x, y: ({"x": x}, {}), r"outputs must hold \['y'\]; got none"),
        (lambda c, x, y: ({"x": x}, {"y": x}), "each input and output needs a tensor of its own"),
        (lambda c, x, y: ({"x": np.zeros(4)}, {"y": y}), "'x' must be an MLTensor, got ndarray"),
        (
            lambda c, x, y: ({"x": c.create_tensor("float32", [5])}, {"y": y}),
            r"'x' must be float32\[4\], got a tensor float32",
        ),
        (
            lambda c, x, y: ({"x": c.create_tensor("int32", [4])}, {"y": y}),
            r"'x' must be float32\[4\], got a tensor int32",
        ),
        (
            lambda c, x, y: ({"x": c.create_constant_tensor("float32", [4], bytes(16))}, {"y": y}),
            "'x' is a constant tensor",
        ),
        (
            lambda c, x, y: ({"x": ow.ml.create_context().create_tensor("float32", [4])}, {"y": y}),
            "tensor of another context",
        ),
        (lambda c, x, y: (None, {"y": y}), "inputs must map names to tensors, got None"),
        (lambda c, x, y: ({"x": None}, {"y": y}), "'x' must be an MLTensor, got NoneType"),
    ],
)
def test_bad_dispatch(change: Any, message: str) -> None:
    context = ow.ml.create_context()
    graph, (x, y) = plus_one(context), tensors(context)
    with pytest.raises(ow.ValidationError, match=message):
        context.dispatch(graph, *change(context, x, y))


def test_dispatch_refuses_a_graph_of_another_context() -> None:
    context, other = ow.ml.create_context(), ow.ml.create_context()
    graph, (x, y) = plus_one(context), tensors(context)
    context.dispatch(graph, {"x": x}, {"y": y})
    with pytest.raises(ow.ValidationError, match="the graph belongs to another context"):
        other.dispatch(graph, {"x": x}, {"y": y})
    with pytest.raises(ow.ValidationError, match="the graph belongs to another context"):
        other.compute(graph, {"x": np.zeros(4, "float32")})
    with pytest.raises(ow.ValidationError, match="graph must be an MLGraph, got str"):
        context.dispatch("graph", {"x": x}, {"y": y})


def test_outputs_may_not_overlap_other_memory() -> None:
    context = ow.ml.create_context()
    graph, memory = plus_one(context), np.zeros(12, "float32")
    x, y = context.tensor_from(memory[:4]), context.tensor_from(memory[2:6])
    with pytest.raises(ow.ValidationError, match="the memory of 'y' overlaps that of 'x'"):
        context.dispatch(graph, {"x": x}, {"y": y})
    context.dispatch(graph, {"x": x}, {"y": context.tensor_from(memory[4:8])})
    with pytest.raises(ow.ValidationError, match="the memory of 'y' overlaps that of 'x'"):
        context.compute(graph, {"x": memory[:4]}, {"y": memory[1:5]})


def test_inputs_may_share_memory() -> None:
    context = ow.ml.create_context()
    builder = ow.MLGraphBuilder(context)
    a, b = builder.input("a", "float32", [4]), builder.input("b", "float32", [2])
    graph = builder.build({"y": builder.add(a, a), "z": builder.add(b, b)})
    memory = np.arange(4, dtype="float32")
    result = context.compute(graph, {"a": memory, "b": memory[1:3]})
    assert result["y"].tolist() == [0, 2, 4, 6]
    assert result["z"].tolist() == [2, 4]
    # Three ranges: the outer input reaches beyond the inner one, and into the output.
    with pytest.raises(ow.ValidationError, match="overlaps"):
        context.compute(graph, {"a": memory, "b": memory[:2]}, {"z": memory[2:]})


def test_destroyed_tensors_are_refused(context: ow.MLContext) -> None:
    graph, (x, y) = plus_one(context), tensors(context)
    context.dispatch(graph, {"x": x}, {"y": y})
    view = y.numpy()
    y.destroy()
    y.destroy()
    assert y.destroyed
    for use in (
        lambda: context.dispatch(graph, {"x": x}, {"y": y}),
        lambda: context.read_tensor(y),
        lambda: y.numpy(),
    ):
        with pytest.raises(ow.ValidationError, match=r"the tensor float32\[4\] is destroyed"):
            use()
    assert view.tolist() == [0, 0, 0, 0], "views outlive the tensor"


def test_destroyed_graphs_are_refused(context: ow.MLContext) -> None:
    graph, (x, y) = plus_one(context), tensors(context)
    context.dispatch(graph, {"x": x}, {"y": y})
    graph.destroy()
    graph.destroy()
    assert graph.destroyed
    with pytest.raises(ow.InvalidStateError, match="the graph is destroyed"):
        context.dispatch(graph, {"x": x}, {"y": y})
    with pytest.raises(ow.InvalidStateError, match="the graph is destroyed"):
        context.compute(graph, {"x": np.zeros(4, "float32")})
    with pytest.raises(ow.InvalidStateError, match="the graph is destroyed"):
        graph.explain()


def test_lost_context_rejects_every_call(context: ow.MLContext) -> None:
    graph, (x, y) = plus_one(context), tensors(context)
    builder = ow.MLGraphBuilder(context)
    operand = builder.input("x", "float32", [1])
    assert not context.lost.done()
    context.destroy()
    context.destroy()
    assert context.lost.result().message == "destroy() was called"
    assert graph.destroyed
    assert x.destroyed
    for use in (
        lambda: context.create_tensor("float32", [1]),
        lambda: context.create_constant_tensor("float32", [1], bytes(4)),
        lambda: context.tensor_from(np.zeros(1, "float32")),
        lambda: context.dispatch(graph, {"x": x}, {"y": y}),
        lambda: ow.MLGraphBuilder(context),
        lambda: builder.input("z", "float32", [1]),
        lambda: builder.constant("float32", 1),
        lambda: builder.add(operand, operand),
        lambda: builder.build({"y": operand}),
    ):
        with pytest.raises((ow.InvalidStateError), match=r"context is lost|graph is destroyed"):
            use()


def test_lost_can_be_awaited() -> None:
    async def lose() -> str:
        context = await ow.ml.create_context_async()
        asyncio.get_running_loop().call_later(0.01, context.destroy)
        return (await context.lost).message

    assert asyncio.run(lose()) == "destroy() was called"


def test_async_twins() -> None:
    async def run() -> list[float]:
        context = await ow.ml.create_context_async(device="cpu")
        builder = ow.MLGraphBuilder(context)
        x = builder.input("x", "float32", [2])
        c = await context.create_constant_tensor_async("float32", [2], np.float32([10, 20]))
        graph = await builder.build_async({"y": builder.add(x, builder.constant(c))})
        source = await context.create_tensor_async("float32", [2], writable=True)
        target = await context.create_tensor_async("float32", [2], readable=True)
        context.write_tensor(source, np.float32([1, 2]))
        await context.dispatch_async(graph, {"x": source}, {"y": target})
        computed = await context.compute_async(graph, {"x": np.float32([1, 2])})
        read = await context.read_tensor_async(target)
        assert computed["y"].tolist() == read.tolist()
        values: list[float] = read.tolist()
        return values

    assert asyncio.run(run()) == [11, 22]


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({}, {}, r"compute: inputs must hold \['x'\]; got none"),
        ({"x": np.zeros(5, "float32")}, {}, r"input 'x' must have shape \[4\] \(or be flat\), got \[5\]"),
        ({"x": np.zeros(4)}, {}, "input 'x' must hold float32 in native byte order, got <f8"),
        ({"x": np.zeros(4, ">f4")}, {}, "input 'x' must hold float32 in native byte order, got >f4"),
        ({"x": 1.0}, {}, "input 'x' must be an array or a buffer, got float"),
        (
            {"x": np.zeros(4, "float32")},
            {"y": np.zeros(4)},
            r"output 'y' must be an array float32\[4\], got float64\[4\]",
        ),
        ({"x": np.zeros(4, "float32")}, {"y": np.zeros(8, "float32")[::2]}, "output 'y' must be C-contiguous"),
        ({"x": np.zeros(4, "float32")}, {"q": np.zeros(4, "float32")}, r"unknown: \['q'\]"),
        ({"x": np.zeros(4, "float32")}, {"y": np.zeros(4, ">f4")}, r"output 'y' must be an array float32\[4\]"),
    ],
)
def test_bad_compute(inputs: Any, outputs: Any, message: str) -> None:
    context = ow.ml.create_context()
    with pytest.raises(ow.ValidationError, match=message):
        context.compute(plus_one(context), inputs, outputs)


def test_compute_writes_into_given_arrays() -> None:
    context = ow.ml.create_context()
    out = np.zeros(4, "float32")
    result = context.compute(plus_one(context), {"x": np.float32([1, 2, 3, 4])}, {"y": out})
    assert result["y"] is out
    assert out.tolist() == [2, 4, 6, 8]


def test_compute_takes_non_contiguous_arrays_and_tensors() -> None:
    context = ow.ml.create_context()
    graph = plus_one(context)
    assert context.compute(graph, {"x": np.arange(8, dtype="float32")[::2]})["y"].tolist() == [0, 4, 8, 12]
    tensor = context.tensor_from(np.float32([1, 2, 3, 4]))
    assert context.compute(graph, {"x": tensor})["y"].tolist() == [2, 4, 6, 8]


def test_dispatch_copies_nothing_when_warm(context: ow.MLContext) -> None:
    graph, (x, y) = plus_one(context), tensors(context)
    context.dispatch(graph, {"x": x}, {"y": y})
    ow.memory.copies.reset()
    context.dispatch(graph, {"x": x}, {"y": y})
    context.compute(graph, {"x": np.zeros(4, "float32")})
    assert ow.memory.copies.count == 0


def test_dispatch_frees_bindings_with_their_tensors() -> None:
    """A graph must not keep the memory of tensors that nothing else holds."""
    context = ow.ml.create_context()
    graph = plus_one(context)
    before = count_bindings()
    for _ in range(50):
        x, y = tensors(context)
        context.dispatch(graph, {"x": x}, {"y": y})
        assert count_bindings() - before <= 2
    x.destroy()
    y.destroy()
    assert count_bindings() == before


def test_bindings_are_bounded() -> None:
    context = ow.ml.create_context()
    graph, before = plus_one(context), count_bindings()
    pairs = [tensors(context) for _ in range(100)]
    for _ in range(2):
        for x, y in pairs:
            context.write_tensor(x, np.float32([1, 2, 3, 4]))
            context.dispatch(graph, {"x": x}, {"y": y})
            assert context.read_tensor(y).tolist() == [2, 4, 6, 8]
    assert count_bindings() - before == MAX_BINDINGS


def test_threads_share_a_context_and_a_graph() -> None:
    context = ow.ml.create_context()
    graph = plus_one(context, 1000)

    def work(number: int) -> None:
        x, y = tensors(context, 1000)
        for turn in range(50):
            context.write_tensor(x, np.full(1000, number + turn, "float32"))
            context.dispatch(graph, {"x": x}, {"y": y})
            assert (context.read_tensor(y) == 2 * (number + turn)).all()

    together(*(partial(work, number) for number in range(4)))


def test_dispatches_on_the_same_tensors_are_ordered() -> None:
    """Two graphs that pass a value to and fro between the same two tensors, from two threads, never deadlock."""
    context = ow.ml.create_context()
    graph = plus_one(context, 4)
    x = context.create_tensor("float32", [4], readable=True, writable=True)
    y = context.create_tensor("float32", [4], readable=True, writable=True)

    def work(a: ow.MLTensor, b: ow.MLTensor) -> None:
        for _ in range(200):
            context.dispatch(graph, {"x": a}, {"y": b})

    together(partial(work, x, y), partial(work, y, x))


def test_memory_of_tensors_is_aligned() -> None:
    context = ow.ml.create_context()
    for size in (1, 3, 17, 1000):
        tensor = context.create_tensor("int8", [size], readable=True)
        assert tensor.numpy().ctypes.data % 64 == 0
        assert not tensor.numpy().any()


def test_reference_names_operation_without_memory() -> None:
    context = ow.ml.create_context(device="reference")
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 1, 3, 3])
    y = builder.average_pool2d(x, padding=[0, 2**20, 0, 2**20], strides=[2**20, 2**20], label="wide")
    graph = builder.build({"y": y})
    with pytest.raises(ow.OperationError, match=r"average_pool2d 'wide': there is not enough memory: .*TiB"):
        context.compute(graph, {"x": np.ones((1, 1, 3, 3), np.float32)})
