"""What must not break WebGPU contexts: devices that go away, misuse, memory that stays, compilers of drivers."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pytest
from support.webgpu_device import adapter, gpu_context, need

import opweave as ow
from opweave.backends.webgpu import executable
from opweave.context.graph import program_of

wgpu = pytest.importorskip("wgpu", reason="wgpu is not installed")


def softmax_of(context: ow.MLContext, count: int = 8) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [count])
    return builder.build({"y": builder.softmax(x, 0)})


# ---------------------------------------------------------------------------------------------------------------------
# Devices that go away


@pytest.mark.long
def test_device_released_with_context() -> None:
    names = {id(found): name for name, found in _adapters().items()}

    def use() -> list[ref[Any]]:
        context = ow.ml.create_context(device=names[id(adapter())])
        context.compute(softmax_of(context), {"x": np.zeros(8, "float32")})
        space = context.backend.space
        return [ref(context), ref(space), ref(space.device)]

    kept = use()
    for _ in range(2):  # wgpu's device and queue refer to each other, and the first time only ends the device
        gc.collect()
    assert [found() for found in kept] == [None, None, None]


def is_lost(device: Any) -> bool:
    """Whether a device refuses work since it is lost."""
    try:
        device.create_command_encoder().finish()
    except wgpu.GPUError as error:
        return "is lost" in str(error)
    return False


def test_device_released_without_garbage_collection() -> None:
    names = {id(found): name for name, found in _adapters().items()}
    gc.disable()
    try:
        context = ow.ml.create_context(device=names[id(adapter())])
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": builder.softmax(builder.input("x", "float32", [8]), 0)})
        source, target = context.create_tensor("float32", [8]), context.create_tensor("float32", [8])
        context.dispatch(graph, {"x": source}, {"y": target})
        context.compute(graph, {"x": np.zeros(8, "float32")})
        device = context.backend.space.device
        assert builder.context is context
        del context, source, target, graph
        assert is_lost(device)
    finally:
        gc.enable()
    with pytest.raises(
        ow.InvalidStateError, match=r"the context on .* that this builder was made for no longer exists"
    ):
        _ = builder.context


@pytest.mark.parametrize("how", ["destroyed", "forgotten"])
def test_own_device_destroyed_with_last_context(how: str) -> None:
    """Also while the device itself is still referred to; at once where the context is destroyed."""
    names = {id(found): name for name, found in _adapters().items()}
    context = ow.ml.create_context(device=names[id(adapter())])
    graph = softmax_of(context)
    context.compute(graph, {"x": np.zeros(8, "float32")})
    device = context.backend.space.device
    assert not is_lost(device)
    if how == "destroyed":
        context.destroy()
    else:
        del context, graph
        gc.collect()
    assert is_lost(device)


class _Pipeline:
    """In place of the device's own, which take 225 KiB each."""


def test_kernel_cache_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ow.ml.create_context(adapter().request_device_sync())
    engine: Any = context.backend.space
    made: list[ref[_Pipeline]] = []

    def pipeline(**_: Any) -> _Pipeline:
        new = _Pipeline()
        made.append(ref(new))
        return new

    monkeypatch.setattr(engine.device, "create_shader_module", lambda **_: None)
    monkeypatch.setattr(engine.device, "create_compute_pipeline", pipeline)
    for number in range(500):
        source = f"fn main() {{}}  // {number}"
        kernel = SimpleNamespace(source=source, writes=(True,), title="k", explain=None, entry_point="main", sizes=())
        engine.pipelines([kernel])
    alive = [each() is not None for each in made]
    assert 250 <= sum(alive) <= 2**26 // (225 * 1024)
    assert all(alive[-250:])
    context.destroy()
    assert all(each() is None for each in made)


def test_caller_device_outlives_contexts() -> None:
    device = adapter().request_device_sync()
    first, second = ow.ml.create_context(device), ow.ml.create_context(device)
    first.destroy()
    assert second.compute(softmax_of(second, 1), {"x": np.zeros(1, "float32")})["y"].tolist() == [1]
    second.destroy()
    assert not is_lost(device)
    device.destroy()


def _adapters() -> dict[str, Any]:
    from opweave.backends.webgpu.adapters import adapters

    return adapters()


class _Destroying:
    """Stands for `map_async`: another thread destroys the device before, or just after wgpu has begun to poll for it."""

    def __init__(self, device: Any, map_async: Any, *, polled: bool) -> None:
        self.device, self.map_async, self.polled = device, map_async, polled

    def __call__(self, *args: Any) -> Any:
        if not self.polled:
            self.device.destroy()
            return self.map_async(*args)
        poller = self.device._poller
        token = poller.get_token

        def get_token() -> Any:
            made = token()
            poller.stop()
            return made

        poller.get_token = get_token
        promise = self.map_async(*args)
        self.device.destroy()
        return promise


@pytest.mark.parametrize("polled", [False, True])
def test_device_destroyed_during_read_tensor(polled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = adapter().request_device_sync()
    context = ow.ml.create_context(device)
    tensor = context.create_tensor("float32", [4], readable=True)
    engine: Any = context.backend.space
    take = engine._take_staging

    def staging(count: int) -> Any:
        made = take(count)
        made.map_async = _Destroying(device, made.map_async, polled=polled)
        return made

    monkeypatch.setattr(engine, "_take_staging", staging)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            context.read_tensor(tensor)
        except ow.MLError as error:
            errors.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(300)
    assert not reader.is_alive()
    assert [str(error) for error in errors] == ["reading a tensor: the WebGPU device is lost"]
    assert "its WebGPU device is lost" in context.lost.result(0).message
    assert tensor.destroyed


# ---------------------------------------------------------------------------------------------------------------------
# Compilers of drivers


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("equal", np.equal),
        ("not_equal", np.not_equal),
        ("greater", np.greater),
        ("greater_or_equal", np.greater_equal),
        ("lesser", np.less),
        ("lesser_or_equal", np.less_equal),
    ],
)
@pytest.mark.parametrize("data_type", ["int32", "uint32", "int8"])
@pytest.mark.parametrize("number", [2, -1, 2**31, -(2**31) - 1])
def test_compare_int64_cast_with_constant(name: str, expected: Any, data_type: Any, number: int) -> None:
    """Mesa's compiler finds all of them greater."""
    need("shader-int64")
    context = gpu_context()
    builder = ow.MLGraphBuilder(context)
    x, limit = builder.input("x", data_type, [5]), builder.constant("int64", number)
    cast = builder.cast(x, "int64")
    graph = builder.build({"y": getattr(builder, name)(cast, limit), "z": getattr(builder, name)(limit, cast)})
    values = np.arange(5).astype(data_type) if data_type == "uint32" else np.arange(-1, 4).astype(data_type)
    found = context.compute(graph, {"x": values})
    np.testing.assert_array_equal(found["y"], expected(values.astype("int64"), number))
    np.testing.assert_array_equal(found["z"], expected(number, values.astype("int64")))


def test_sign_of_int64_cast() -> None:
    need("shader-int64")
    context = gpu_context()
    builder = ow.MLGraphBuilder(context)
    wide = builder.cast(builder.input("x", "int32", [5]), "int64")
    table = builder.constant(np.arange(4, dtype="float32"))
    graph = builder.build(
        {
            "abs": builder.abs(wide),
            "sign": builder.sign(wide),
            "div": builder.div(wide, builder.constant("int64", 2)),
            "gather": builder.gather(table, wide),
            "clamp": builder.clamp(wide, min_value=-1, max_value=1),
        }
    )
    found = context.compute(graph, {"x": np.array([-4, -1, 0, 1, 3], "int32")})
    assert {name: array.tolist() for name, array in found.items()} == {
        "abs": [4, 1, 0, 1, 3],
        "sign": [-1, -1, 0, 1, 1],
        "div": [-2, 0, 0, 0, 1],
        "gather": [0, 3, 0, 1, 3],
        "clamp": [-1, -1, 0, 1, 1],
    }


# ---------------------------------------------------------------------------------------------------------------------
# Misuse


def test_mapped_buffers_are_refused() -> None:
    """A command that uses one ends the process."""
    device = adapter().request_device_sync()
    usage = wgpu.BufferUsage
    buffer = device.create_buffer(size=16, usage=usage.STORAGE | usage.COPY_SRC, mapped_at_creation=True)
    context = ow.ml.create_context(device)
    with pytest.raises(ow.ValidationError, match="the buffer must not be mapped, it is mapped"):
        context.tensor_from(buffer, "float32", [4])
    buffer.unmap()
    assert context.read_tensor(context.tensor_from(buffer, "float32", [4])).tolist() == [0, 0, 0, 0]
    device.destroy()


def test_outputs_of_sessions_need_tensors_of_their_own() -> None:
    """An output that is an input, and parts on the host, go other ways than a model that is one graph."""
    import onnx

    context = gpu_context()
    for tail in ("c = Identity(x)", "c = Neg(a)", "c = NonZero(a)"):
        type = "int64[1, k]" if "NonZero" in tail else "float[3]"
        text = f"""<ir_version: 8, opset_import: ["" : 17]>
            three (float[3] x) => (float[3] a, float[3] b, {type} c) {{ a = Relu(x) b = Neg(x) {tail} }}"""
        session = ow.InferenceSession(bytes(onnx.parser.parse_model(text).SerializeToString()), context)
        tensor = context.create_tensor("float32", [3], writable=True)
        with pytest.raises(ow.ValidationError, match="output 'a' overlaps the memory of 'x'"):
            session.run(None, {"x": tensor}, out={"a": tensor})
        with pytest.raises(ow.ValidationError, match="output 'b' overlaps the memory of 'a'"):
            session.run(None, {"x": np.zeros(3, "float32")}, out={"a": tensor, "b": tensor})


def test_dispatch_rejects_output_buffer_without_copy_usage() -> None:
    device = adapter().request_device_sync()
    context, usage = ow.ml.create_context(device), wgpu.BufferUsage
    builder = ow.MLGraphBuilder(context)
    y = builder.relu(builder.input("x", "float32", [4]))
    graph = builder.build({"y": y, "again": y})
    source, target = context.create_tensor("float32", [4]), context.create_tensor("float32", [4])
    lent = context.tensor_from(device.create_buffer(size=16, usage=usage.STORAGE), "float32", [4])
    for outputs, missing in (({"y": target, "again": lent}, "COPY_DST"), ({"y": lent, "again": target}, "COPY_SRC")):
        message = rf"an output under another name: .* float32\[4\] was made without the usage {missing}"
        with pytest.raises(ow.ValidationError, match=message):
            context.dispatch(graph, {"x": source}, outputs)
    device.destroy()


@pytest.mark.long
def test_constants_of_freed_graphs_are_forgotten() -> None:
    context = gpu_context()
    engine: Any = context.backend.space
    kept = [np.full((1, 3), k, "float32") for k in range(600)]
    for value in kept:
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": builder.input("x", "float32", [1, 3]) + builder.constant(value)})
        assert context.compute(graph, {"x": np.zeros((1, 3), "float32")})["y"].tolist() == value.tolist()
    assert len(engine.uploaded) < 600


def test_run_begins_during_submission_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has intermediates of its own; those of one run are used again by the next."""
    context = gpu_context()
    builder = ow.MLGraphBuilder(context)
    y = x = builder.input("x", "float32", [1, 4])
    for _ in range(executable.FIRST_PART + 4):
        y = builder.matmul(y, builder.constant(np.eye(4, k=1, dtype="float32") + np.eye(4, k=-3, dtype="float32")))
    graph = builder.build({"y": builder.concat([y, x], 1)})
    first, second = (np.float32([[k, 2, 3, 4]]) for k in (1, 5))
    wanted = [context.compute(graph, {"x": value})["y"].tolist() for value in (first, second)]
    assert [row[0] for row in wanted] == [[1, 2, 3, 4, 1, 2, 3, 4], [5, 2, 3, 4, 5, 2, 3, 4]]
    (step,) = program_of(graph).steps
    assert step.part is not None
    runner: Any = step.part.runner
    assert len(runner.arenas.idle) == 1
    paused, resumed, encode = threading.Event(), threading.Event(), executable.encode

    def slowly(encoder: Any, runs: Any, timestamps: Any = None) -> None:
        encode(encoder, runs, timestamps)
        if threading.current_thread() is slow and not paused.is_set():
            paused.set()
            assert resumed.wait(300)

    monkeypatch.setattr(executable, "encode", slowly)
    got: list[Any] = []
    slow = threading.Thread(target=lambda: got.append(context.compute(graph, {"x": first})["y"].tolist()), daemon=True)
    slow.start()
    assert paused.wait(300)
    assert context.compute(graph, {"x": second})["y"].tolist() == wanted[1]
    resumed.set()
    slow.join(300)
    assert got == [wanted[0]]
    assert len(runner.arenas.idle) == 2


FORKED = """
import os
import numpy as np
import opweave as ow

context = ow.ml.create_context(device={device!r})
builder = ow.MLGraphBuilder(context)
graph = builder.build({{"y": builder.relu(builder.input("x", "float32", [4]))}})
child = os.fork()
if child == 0:
    for use in (
        lambda: context.compute(graph, {{"x": np.ones(4, "float32")}}),
        lambda: ow.ml.create_context(device={device!r}),
    ):
        try:
            use()
        except ow.MLError as error:
            print(type(error).__name__, error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(context.compute(graph, {{"x": np.ones(4, "float32")}})["y"])
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_fork_does_not_hang() -> None:
    names = {id(found): name for name, found in _adapters().items()}
    script = FORKED.format(device=names[id(adapter())])
    first, second, third = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True
    ).stdout.splitlines()
    assert first.startswith("InvalidStateError intermediates of 16 bytes: the WebGPU device belongs to another process")
    assert second.startswith(
        f"NotSupportedError {names[id(adapter())]}: this process was forked from one that uses WebGPU"
    )
    assert third == "[1. 1. 1. 1.]"


@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_sub_and_div_of_non_finite_by_itself(data_type: Any) -> None:
    """Compilers make 0 of `x - x`, and 1 of `x / x`; both are in a softmax along an axis of one element, too."""
    context = gpu_context()
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", data_type, [1, 5])
    graph = builder.build({"none": x - x, "whole": x / x, "one": builder.softmax(x, 0)})
    found = context.compute(graph, {"x": np.array([[np.nan, np.inf, -np.inf, 0, 2]], data_type)})
    np.testing.assert_array_equal(found["none"], np.array([[np.nan, np.nan, np.nan, 0, 0]], data_type))
    np.testing.assert_array_equal(found["whole"], np.array([[np.nan, np.nan, np.nan, np.nan, 1]], data_type))
    np.testing.assert_array_equal(found["one"], np.array([[np.nan, np.nan, np.nan, 1, 1]], data_type))
