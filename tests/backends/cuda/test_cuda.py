"""The CUDA back end on a driver that runs on the processor (`cuda_driver`), and what it says where there is no GPU."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_models, wpt
from support.cuda_driver import INFO, CpuDriver, context_on
from support.cuda_on_cpu import compiler
from support.threads import SECONDS, together

import opweave as ow
from opweave import memory
from opweave.backends.cuda import compiler as compilers, cuda, devices, nvidia
from opweave.backends.cuda.backend import handle_of
from opweave.backends.cuda.driver import CudaFunction
from opweave.backends.cuda.staging import PIECE_BYTES
from opweave.backends.gpu.contraction import layout
from opweave.chat import GGUF, Decoder, Model
from opweave.compile.completion import compile_together, wait_at_first_use
from opweave.context.builder import NamedBuilder
from opweave.context.graph import state_of
from opweave.expr.gpu import GpuKernel


def network(context: ow.MLContext) -> ow.MLGraph:
    """A convolution with a bias, a pooling and a product: five operations, some of them fused."""
    rng = np.random.default_rng(0)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 3, 9, 9])
    filter = builder.constant(rng.standard_normal((4, 3, 3, 3)).astype(np.float32))
    hidden = builder.relu(
        builder.conv2d(x, filter, bias=builder.constant(np.float32([0, 1, 2, 3])), padding=[1, 1, 1, 1])
    )
    flat = builder.reshape(builder.average_pool2d(hidden, window_dimensions=[3, 3], strides=[3, 3]), [1, 36])
    weights = builder.constant(rng.standard_normal((36, 5)).astype(np.float32))
    return builder.build({"y": builder.softmax(builder.matmul(flat, weights), 1)})


IMAGE = np.random.default_rng(1).standard_normal((1, 3, 9, 9)).astype(np.float32)


def reference() -> np.ndarray:
    context = ow.ml.create_context(device="reference")
    return context.compute(network(context), {"x": IMAGE})["y"]


def test_graph_is_one_cuda_graph(driver: CpuDriver, context: ow.MLContext) -> None:
    graph = network(context)
    np.testing.assert_allclose(context.compute(graph, {"x": IMAGE})["y"], reference(), rtol=1e-5)
    x, y = (
        context.create_tensor("float32", [1, 3, 9, 9], writable=True),
        context.create_tensor("float32", [1, 5], readable=True),
    )
    context.write_tensor(x, IMAGE)
    driver.calls.clear()
    for _ in range(3):
        context.dispatch(graph, {"x": x}, {"y": y})
    assert driver.calls["launch"] == 3
    assert driver.calls["graph"] == 0  # made by the first run, whose memory this one has
    np.testing.assert_allclose(context.read_tensor(y), reference(), rtol=1e-5)
    assert "CUDA: kernel" in graph.explain()


@ow.op
def on_the_processor(self: Any, x: ow.MLOperand) -> Any:
    """Doubled, by a kernel for another device than this one."""
    return x.desc


@on_the_processor.kernel("cpu")
def _(x: np.ndarray, out: np.ndarray) -> None:
    np.multiply(x, 2, out=out)


class Noting(CpuDriver):
    """A driver that notes when kernels begin, and when they are waited for."""

    events: list[str]

    def begin(self, kernels: Sequence[GpuKernel]) -> list[Any]:
        self.events += ["begins"] if kernels else []
        return []

    def functions(self, kernels: Sequence[GpuKernel]) -> list[CudaFunction]:
        self.events.append("waits")
        return super().functions(kernels)


@pytest.fixture
def noting() -> Noting:
    compiler()
    made = Noting()
    made.events = []
    return made


def test_constants_are_put_in_order_while_kernels_are_compiled(noting: Noting, monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(target: np.ndarray, source: np.ndarray) -> None:
        noting.events.append("copies")
        np.copyto(target, source)

    monkeypatch.setattr(layout, "copy", copied)
    context = context_on(noting)
    graph = network(context)
    assert [event for event, _ in groupby(noting.events)] == ["begins", "copies", "waits"]
    np.testing.assert_allclose(context.compute(graph, {"x": IMAGE})["y"], reference(), rtol=1e-5)


@pytest.mark.long
def test_build_compiles_segments_concurrently(noting: Noting) -> None:
    context = context_on(noting)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.neg(on_the_processor(builder.abs(builder.input("x", "float32", [3]))))})
    assert noting.events == ["begins", "begins", "waits", "waits"]
    result = context.compute(graph, {"x": np.float32([1, -2, 3])})["y"]
    np.testing.assert_array_equal(result, np.float32([-2, -4, -6]))


def test_session_compiles_sections_concurrently(noting: Noting) -> None:
    parser = pytest.importorskip("onnx.parser", reason="onnx is not installed")
    # Dropout in training mode has no form on a device; with a ratio of 0, it keeps all values.
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y)
        <bool t = {1}, float p = {0.0}> { a = Abs(x) d = Dropout(a, p, t) y = Neg(d) }"""
    session = ow.InferenceSession(parser.parse_model(text), context=context_on(noting))
    assert "ONNX Runtime (fallback)" in session.explain()
    assert noting.events == ["begins", "begins", "waits", "waits"]
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], -np.abs(x), rtol=1e-5)


def test_graphs_with_names_compile_together(noting: Noting) -> None:
    context, x = context_on(noting), np.float32([1, -2, 3])
    graphs = []
    for operation in (ow.MLGraphBuilder.neg, ow.MLGraphBuilder.abs):
        builder = NamedBuilder(context)
        graphs.append(builder.build({"y": operation(builder, builder.input("x", "float32", ["n"]))}))
    with compile_together():
        for graph in graphs:
            state_of(graph).version("compute", {"x": x})
        assert {*noting.events} == {"begins"}
    assert [event for event, _ in groupby(noting.events)] == ["begins", "waits"]
    assert noting.events.count("waits") == 2
    for graph, wanted in zip(graphs, (-x, np.abs(x)), strict=True):
        np.testing.assert_array_equal(context.compute(graph, {"x": x})["y"], wanted)


@pytest.mark.parametrize("size", [3, "n"])
def test_first_call_waits_for_kernels(noting: Noting, size: Any) -> None:
    context, x = context_on(noting), np.float32([1, -2, 3])
    builder = NamedBuilder(context)
    with wait_at_first_use():
        graph = builder.build({"y": builder.neg(builder.input("x", "float32", [size]))})
        state_of(graph).version("compute", {"x": x})
    assert {*noting.events} == {"begins"}
    np.testing.assert_array_equal(context.compute(graph, {"x": x})["y"], -x)
    assert [event for event, _ in groupby(noting.events)] == ["begins", "waits"]


def test_decoder_compiles_prompts_and_tokens_together(
    noting: Noting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(driver: Noting, kernels: Sequence[GpuKernel]) -> list[CudaFunction]:
        driver.events.append("waits")
        return [CudaFunction(kernel, kernel.block) for kernel in kernels]

    monkeypatch.setattr(Noting, "functions", load)
    monkeypatch.setattr(Decoder, "_pass", lambda *_: None)  # nothing runs
    tiny_models.write(tmp_path / "x.gguf")
    Decoder(Model(GGUF(tmp_path / "x.gguf"), for_cpu=False), context_on(noting), 100).build()
    assert [event for event, _ in groupby(noting.events)] == ["begins", "waits"]
    assert noting.events.count("waits") >= 2


def test_dispatch_other_tensors_updates_kernel_arguments(driver: CpuDriver, context: ow.MLContext) -> None:
    graph = network(context)
    count = len(graph.profile(repeat=1, detail=True).kernels)
    tensors = [context.create_tensor("float32", [1, 3, 9, 9], writable=True) for _ in range(2)]
    result = context.create_tensor("float32", [1, 5], readable=True)
    for scale, x in enumerate(tensors):
        context.write_tensor(x, IMAGE * scale)
    context.dispatch(graph, {"x": tensors[0]}, {"y": result})
    driver.calls.clear()
    for x in (*tensors, *tensors):
        context.dispatch(graph, {"x": x}, {"y": result})
    assert (driver.calls["graph"], driver.calls["launch"]) == (0, 4)
    assert driver.calls["update"] == 3 < count * 3  # of the one kernel that reads the input, when it changes
    np.testing.assert_allclose(context.read_tensor(result), reference(), rtol=1e-5)


def test_destroy_frees_all_memory(driver: CpuDriver) -> None:
    context = context_on(driver)
    graph = network(context)
    context.compute(graph, {"x": IMAGE})
    assert driver.memory
    graph.destroy()
    context.destroy()
    del graph, context
    gc.collect()
    assert driver.memory == {}
    assert driver.calls["graph"] == driver.calls["release"] > 0
    assert driver.calls["allocate"] == driver.calls["free"]


@pytest.mark.long
def test_interrupted_argument_update(context: ow.MLContext, driver: CpuDriver) -> None:
    """Each dispatch has all of its own arguments, or ends with the error."""
    builder = ow.MLGraphBuilder(context)
    x, w = builder.input("x", "float32", [40, 44]), builder.input("w", "float32", [44, 45])
    graph = builder.build({"y": builder.softmax(builder.matmul(x, w), 1), "z": builder.softmax(x, 0)})
    sets = []
    for value in (1, 2):
        tensors = {
            name: context.create_tensor("float32", desc.shape, writable=True) for name, desc in graph.inputs.items()
        }
        for tensor in tensors.values():
            context.write_tensor(tensor, np.random.default_rng(value).random(tensor.shape, np.float32))
        results = {n: context.create_tensor("float32", desc.shape, readable=True) for n, desc in graph.outputs.items()}
        context.dispatch(graph, tensors, results)
        sets.append((tensors, results, {name: context.read_tensor(tensor) for name, tensor in results.items()}))
    update, count = driver.update, driver.calls["update"]
    assert count > 1

    def interrupted(graph: Any, number: int, launch: Any) -> None:
        if driver.calls["update"] == count + 1:
            raise KeyboardInterrupt
        update(graph, number, launch)

    driver.update = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        context.dispatch(graph, *sets[0][:2])
    driver.update = update  # type: ignore[method-assign]
    for k in (1, 0, 1):
        context.dispatch(graph, *sets[k][:2])
        for _, results, wanted in sets:
            for name, tensor in results.items():
                np.testing.assert_array_equal(context.read_tensor(tensor), wanted[name])


def test_threads_have_intermediates_of_their_own(driver: CpuDriver, context: ow.MLContext) -> None:
    graph, wanted = network(context), reference()

    def work() -> None:
        for _ in range(5):
            np.testing.assert_allclose(context.compute(graph, {"x": IMAGE})["y"], wanted, rtol=1e-5)

    original, lock = driver._run, threading.Lock()

    def one_at_a_time(launches: Any) -> None:  # as a stream does
        with lock:
            original(launches)

    driver._run = one_at_a_time  # type: ignore[method-assign]
    together(*[work] * 4)


class Reading(CpuDriver):
    """Copies to the host wait until somebody else lets them end."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def download(self, targets: Sequence[np.ndarray], addresses: Sequence[int]) -> None:
        self.has_begun.set()
        assert self.may_end.wait(SECONDS)
        super().download(targets, addresses)


@pytest.mark.parametrize("size", [3, PIECE_BYTES // 4 + 1])
def test_dispatch_waits_for_reads_in_several_pieces(size: int) -> None:
    compiler()
    driver = Reading()
    context = context_on(driver)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.neg(builder.input("x", "float32", [size]))})
    x = context.create_tensor("float32", [size], readable=True, writable=True)
    context.write_tensor(x, np.ones(size, np.float32))
    y = context.create_tensor("float32", [size], readable=True)
    context.dispatch(graph, {"x": x}, {"y": y})
    reader = threading.Thread(target=context.read_tensor, args=(x,), daemon=True)
    reader.start()
    assert driver.has_begun.wait(SECONDS)
    other = threading.Thread(target=context.dispatch, args=(graph, {"x": x}, {"y": y}), daemon=True)
    other.start()
    other.join(0.2 if size > 3 else SECONDS)
    assert other.is_alive() == (size > 3)
    assert driver.calls["launch"] == (1 if size > 3 else 2)
    driver.may_end.set()
    for thread in (reader, other):
        thread.join(SECONDS)
    assert driver.calls["launch"] == 2
    np.testing.assert_array_equal(context.read_tensor(y), -1)


@pytest.mark.parametrize("way", ["dispatch", "compute"])
def test_graph_steps_read_same_values(way: str) -> None:
    """Others that write the tensor wait for its end, also if they were bound before."""
    compiler()
    driver = Reading()
    context = context_on(driver)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [3])
    steps = builder.build({"y": builder.add(x, on_the_processor(x))})
    builder = ow.MLGraphBuilder(context)
    negative = builder.build({"x": builder.neg(builder.input("z", "float32", [3]))})
    read, written, other = (context.create_tensor("float32", [3], readable=True, writable=True) for _ in range(3))
    context.write_tensor(other, np.float32([1, 2, 3]))
    context.dispatch(negative, {"z": other}, {"x": read})
    found: list[np.ndarray] = []

    def run() -> None:
        if way == "compute":
            found.append(context.compute(steps, {"x": read})["y"])
        else:
            context.dispatch(steps, {"x": read}, {"y": written})

    context.write_tensor(other, np.float32([-1, -1, -1]))
    first = threading.Thread(target=run, daemon=True)
    first.start()
    assert driver.has_begun.wait(SECONDS)
    second = threading.Thread(target=context.dispatch, args=(negative, {"z": other}, {"x": read}), daemon=True)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    driver.may_end.set()
    for thread in (first, second):
        thread.join(SECONDS)
    np.testing.assert_array_equal(found[0] if found else context.read_tensor(written), np.float32([-3, -6, -9]))
    np.testing.assert_array_equal(context.read_tensor(read), 1)


def test_profile(context: ow.MLContext) -> None:
    profile = network(context).profile(repeat=3, detail=True)
    assert [round(kernel.median * 1e9) for kernel in profile.kernels] == [*range(1, len(profile.kernels) + 1)]
    assert "conv2d" in profile.kernels[0].node


class Foreign:
    """An array of another library."""

    def __init__(self, driver: CpuDriver, array: np.ndarray, **changes: Any) -> None:
        self.address = driver.lend(array)
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
            **changes,
        }


def relu(context: ow.MLContext) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    return builder.build({"y": builder.relu(builder.input("x", "float32", [2, 3]))})


def test_arrays_of_other_libraries_are_used_without_a_copy(driver: CpuDriver, context: ow.MLContext) -> None:
    graph = relu(context)
    array = np.float32([[1, -2, 3], [-4, 5, -6]])
    before = memory.copies.count
    x, y = Foreign(driver, array), Foreign(driver, np.zeros_like(array))
    context.dispatch(graph, {"x": context.tensor_from(x)}, {"y": (out := context.tensor_from(y))})
    assert memory.copies.count == before
    np.testing.assert_array_equal(driver.memory[y.address].array.view(np.float32).reshape(2, 3), np.maximum(array, 0))
    given = out.__cuda_array_interface__  # type: ignore[attr-defined]
    assert (given["data"], given["stream"], given["shape"]) == ((y.address, False), driver.stream, (2, 3))
    assert driver.waits == []  # the arrays named no stream
    context.tensor_from(Foreign(driver, array, stream=0xBEEF))
    assert driver.waits == ["0x5eed for 0xbeef"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"strides": (4, 8)}, "needs an array in C order, got shape [2, 3] with strides [1.0, 2.0] (in elements)"),
        ({"data": (0x1008, False)}, "the driver does not know the array's memory or stream: invalid argument"),
        ({"typestr": "<f8"}, "WebNN has no data type float64"),
        ({"stream": 0}, "the stream of a __cuda_array_interface__ must not be 0"),
        ({"mask": object()}, "the array has a mask"),
    ],
)
def test_tensor_from_rejects_invalid_arrays(driver: CpuDriver, context: ow.MLContext, changes: Any, text: str) -> None:
    with pytest.raises(ow.ValidationError) as caught:
        context.tensor_from(Foreign(driver, np.zeros((2, 3), np.float32), **changes))
    assert text in str(caught.value)


def test_errors_of_the_driver(driver: CpuDriver, context: ow.MLContext) -> None:
    graph = relu(context)
    driver.failing = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    with pytest.raises(ow.OperationError, match=r"running a graph: an error \(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES\)"):
        context.compute(graph, {"x": np.zeros((2, 3), np.float32)})
    driver.failing = ""
    context.compute(graph, {"x": np.zeros((2, 3), np.float32)})
    with pytest.raises(ow.OperationError, match="out of memory"):
        context.create_tensor("float32", [2**28 + 1])
    driver.failing = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(ow.InvalidStateError, match="the CUDA device is lost"):
        context.compute(graph, {"x": np.zeros((2, 3), np.float32)})
    with pytest.raises(ow.InvalidStateError, match="its CUDA device is lost"):
        context.create_tensor("float32", [1])


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_lost_device_frees_nothing(driver: CpuDriver) -> None:
    context = context_on(driver)
    graph = relu(context)
    context.compute(graph, {"x": np.zeros((2, 3), np.float32)})
    driver.failing = "CUDA_ERROR_LAUNCH_FAILED"
    before = driver.calls["free"]
    graph.destroy()
    context.destroy()
    del graph, context
    gc.collect()
    assert driver.calls["free"] > before


@pytest.mark.parametrize("data_type", ["float32", "float16", "int64", "uint8"])
def test_tensors(driver: CpuDriver, context: ow.MLContext, data_type: Any) -> None:
    array = np.arange(15).reshape(5, 3).astype(data_type)
    tensor = context.create_tensor(data_type, [5, 3], readable=True, writable=True)
    np.testing.assert_array_equal(context.read_tensor(tensor), np.zeros_like(array))
    context.write_tensor(tensor, array)
    np.testing.assert_array_equal(context.read_tensor(tensor), array)
    with pytest.raises(ow.ValidationError, match="is on cuda, where NumPy cannot access it"):
        tensor.numpy()


@pytest.mark.long
def test_wpt_case_of_each_operation(context: ow.MLContext) -> None:
    """The engine with graphs of several kernels and constants; all cases run as kernels in test_cuda_kernels.py."""
    for name in ("gru", "scatter_nd", "concat"):
        case = next(
            case for case in wpt.cases("conformance") if case["op"] == name or case["op"] == name.replace("_nd", "ND")
        )
        wpt.check_conformance(case, wpt.run_conformance(context, case))


def test_streams() -> None:
    class Stream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 17

    assert handle_of(Stream()) == handle_of(17) == 17
    with pytest.raises(ow.ValidationError, match="2 stands for a stream of each thread"):
        handle_of(2)
    for wrong in ("x", True, -1, None):
        with pytest.raises(ow.ValidationError, match="cuda_stream must have __cuda_stream__"):
            handle_of(wrong)


needs_none = pytest.mark.skipif(not devices.trouble(), reason="there is an NVIDIA GPU here")


@needs_none
def test_devices_without_gpu() -> None:
    (device,) = cuda.devices()
    assert (device.name, device.available) == ("cuda", False)
    assert device.hint in (
        "pip install 'opweave[cuda]'",
        "there is no driver of NVIDIA here",
        "there is no NVIDIA GPU that this process may use",
    )
    with pytest.raises(ow.NotSupportedError) as caught:
        ow.ml.create_context(device="cuda")
    names = ", ".join(dict.fromkeys(repr(each.name) for each in ow.devices() if each.available))
    assert str(caught.value) == f"device 'cuda' is not available here: {device.hint}; available: {names}"


def test_context_on_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler()
    made: list[tuple[int, int | None]] = []

    def device(number: int, stream: int | None = None, owner: Any = None) -> CpuDriver:
        made.append((number, stream))
        return CpuDriver(stream=stream or 1)

    monkeypatch.setattr(compilers, "triton_version", lambda: "")
    monkeypatch.setattr(devices, "trouble", lambda: "")
    monkeypatch.setattr(devices, "infos", lambda: (INFO, INFO))
    monkeypatch.setattr(devices, "number_of", lambda stream: int(stream == 18))
    monkeypatch.setattr(nvidia, "NvidiaDriver", device)
    assert [(d.name, d.description) for d in cuda.devices()] == [
        ("cuda", "a processor, sm_90"),
        ("cuda:1", "a processor, sm_90"),
    ]
    context = ow.ml.create_context(cuda_stream=17)
    assert repr(context) == "<MLContext on cuda>"
    assert context.compute(relu(context), {"x": -np.ones((2, 3), np.float32)})["y"].sum() == 0
    ow.ml.create_context(cuda_stream=18, device="cuda:1", backend="cuda", precision="ieee")
    ow.ml.create_context(device="cuda:1")
    assert repr(ow.ml.create_context(cuda_stream=18)) == "<MLContext on cuda:1>"  # the stream knows its device
    assert made == [(0, 17), (1, 18), (1, None), (1, 18)]
    with pytest.raises(ow.ValidationError, match="the stream is of device 'cuda:1', not of 'cuda'"):
        ow.ml.create_context(cuda_stream=18, device="cuda")
    with pytest.raises(ow.ValidationError, match="cuda_stream must have __cuda_stream__, or be the handle"):
        ow.ml.create_context(cuda_stream="x")
    with pytest.raises(ow.ValidationError, match="backend must not be given with cuda_stream, got 'webgpu'"):
        ow.ml.create_context(cuda_stream=17, backend="webgpu")
    with pytest.raises(ow.ValidationError, match="gpu_device and cuda_stream must not be given together"):
        ow.ml.create_context(object(), cuda_stream=17)
    with pytest.raises(ow.NotSupportedError, match=r"cannot compute so, only as 'float32' or 'ieee'"):
        ow.ml.create_context(cuda_stream=17, precision="tf32")  # which takes Triton


def test_devices_without_extra() -> None:
    code = (
        "import sys; sys.modules['cuda'] = None\n"
        "from opweave.backends.cuda import cuda\n"
        "print([(d.name, d.available, d.hint) for d in cuda.devices()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout == "[('cuda', False, \"pip install 'opweave[cuda]'\")]\n"
