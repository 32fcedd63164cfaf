"""Devices of ONNX Runtime's plug-in execution providers."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.onnx import model, node
from support.plugin_device import NAME, PROVIDER, cpu_as_plugin

import opweave as ow
from opweave.backends.onnxruntime import plugins
from opweave.backends.onnxruntime.native import NativeSession
from opweave.backends.onnxruntime.provider_faults import why_not
from opweave.backends.onnxruntime.provider_session import Assignment, ProviderSession
from opweave.context.graph import program_of


@pytest.fixture
def listed() -> Iterator[None]:
    with cpu_as_plugin():
        yield


def handle(kind: str, vendor: int, provider: str, **metadata: str) -> Any:
    """What the engine lists as a device."""
    device = SimpleNamespace(type=SimpleNamespace(name=kind), vendor_id=vendor, vendor="Some Vendor", metadata={})
    return SimpleNamespace(ep_name=provider, device=device, ep_metadata=metadata)


@pytest.fixture
def accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        handle("CPU", 0x8086, "CPUExecutionProvider"),
        handle("GPU", 0x8086, "OpenVINOExecutionProvider", Discrete="0"),
        handle("GPU", 0x8086, "OpenVINOExecutionProvider.AUTO", ov_meta_device="AUTO"),
        handle("GPU", 0x8086, "WebGpuExecutionProvider"),
        handle("GPU", 0x8086, "WebGpuExecutionProvider"),
        handle("GPU", 0x1234, "WebGpuExecutionProvider"),
        handle("NPU", 0x8086, "OpenVINOExecutionProvider", FULL_DEVICE_NAME="Intel(R) AI Boost"),
    ]
    monkeypatch.setattr("onnxruntime.get_ep_devices", lambda: found)


def graph_on(context: ow.MLContext, **options: Any) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [4, 600])
    weights = builder.constant(np.linspace(-1, 1, 360000, dtype="float32").reshape(600, 600))
    return builder.build({"y": builder.erf(builder.matmul(x, weights, label="product"))}, **options)


@pytest.mark.usefixtures("listed")
def test_graphs_run_on_the_device_of_a_plugin() -> None:
    context = ow.ml.create_context(device=NAME)
    assert context.device.provider == PROVIDER
    assert context.device.backend == "onnxruntime"
    graph = graph_on(context)
    (step,) = program_of(graph).steps
    assert step.part is not None
    assert isinstance(step.part.runner, ProviderSession)
    x = np.random.default_rng(0).standard_normal((4, 600)).astype("float32")
    plain = ow.ml.create_context(device="cpu", backend="onnxruntime")
    expected = plain.compute(graph_on(plain), {"x": x})["y"]
    ow.memory.copies.reset()
    np.testing.assert_array_equal(context.compute(graph, {"x": x})["y"], expected)
    target = context.tensor_from(np.empty((4, 600), "float32"))
    context.dispatch(graph, {"x": context.tensor_from(x)}, {"y": target})
    np.testing.assert_array_equal(target.numpy(), expected)
    assert ow.memory.copies.count == 0  # this device uses the processor's memory


@pytest.mark.usefixtures("listed")
def test_plugin_run_has_own_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bindings copy inputs to devices with memory of their own when they are made, and would not see later changes."""
    context = ow.ml.create_context(device=NAME)
    graph, x = graph_on(context), np.ones((4, 600), "float32")
    inputs, outputs = {"x": context.tensor_from(x)}, {"y": context.tensor_from(np.empty_like(x))}
    seen = []
    made = ProviderSession._new_binding

    def bound(self: Any, given: Any, results: Any) -> Any:
        seen.append(given[0][0, 0])
        return made(self, given, results)

    monkeypatch.setattr(ProviderSession, "_new_binding", bound)
    context.dispatch(graph, inputs, outputs)
    x[:] = 2
    context.dispatch(graph, inputs, outputs)
    assert seen == [1, 2]


@pytest.mark.usefixtures("listed")
def test_plugin_copies_to_device_memory_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opweave.backends.onnxruntime.provider_session._is_on_device", lambda place: True)
    context = ow.ml.create_context(device=NAME)
    graph, x = graph_on(context), np.ones((4, 600), "float32")
    inputs, outputs = {"x": context.tensor_from(x)}, {"y": context.tensor_from(np.empty_like(x))}
    for run in (lambda: context.compute(graph, {"x": x}), lambda: context.dispatch(graph, inputs, outputs)):
        for _ in range(2):
            ow.memory.copies.reset()
            run()
            assert [(t.count, t.bytes) for t in ow.memory.copies.by_reason.values()] == [(2, 2 * x.nbytes)]


@pytest.mark.usefixtures("listed")
def test_plugin_contexts_share_programs() -> None:
    one, other = (ow.ml.create_context(device=NAME) for _ in range(2))
    assert one.backend is other.backend
    assert one.backend is not ow.ml.create_context(device="cpu", backend="onnxruntime").backend
    fewer = ow.ml.create_context(device=NAME, threads=1)
    assert fewer.backend.plugin == one.backend.plugin  # type: ignore[attr-defined]
    assert fewer.backend.threads == 1
    assert ow.ml.create_context(device="cpu", backend="onnxruntime", threads=1).backend.plugin is None  # type: ignore[attr-defined]


@pytest.mark.usefixtures("listed")
def test_explain_names_the_provider() -> None:
    text = graph_on(ow.ml.create_context(device=NAME)).explain()
    assert f"matmul 'product'  {NAME}  native  {PROVIDER}" in text


@pytest.mark.usefixtures("listed")
def test_explain_names_nodes_left_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of the CPU provider leave nothing, so the nodes of one operation are said to be another provider's."""
    made = Assignment.__init__

    def with_rest(self: Assignment, provider: str, session: Any, written: Any) -> None:
        made(self, provider, session, written)
        self._homes = {n: "Rest" if n.startswith("erf") else home for n, home in self._homes.items()}

    monkeypatch.setattr(Assignment, "__init__", with_rest)
    context = ow.ml.create_context(device=NAME)
    lines = graph_on(context).explain().splitlines()
    assert lines[-1].split() == f"erf cpu native ONNX Runtime on the CPU: {PROVIDER} leaves Erf".split()
    with pytest.raises(ow.NotSupportedError, match=f"{NAME} cannot run erf, which would run on the CPU"):
        graph_on(context, fallback="error")


@pytest.mark.usefixtures("listed")
def test_integers_stay_on_the_cpu() -> None:
    """Providers carry them as narrower ones, or as floats, and say nothing."""
    context = ow.ml.create_context(device=NAME)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "int64", [2])
    scaled = builder.cast(builder.input("w", "float32", [2]), "int32")
    outputs = {"y": builder.reduce_sum(x, label="sum"), "z": scaled, "f": builder.cast(x, "float32", label="convert")}
    graph = builder.build(outputs)
    where = {line.split()[1]: line for line in graph.explain().splitlines() if "ONNX Runtime" in line}
    assert "cpu" in where["reduce_sum"].split()
    assert "providers compute integers in narrower types" in where["reduce_sum"]
    found = context.compute(graph, {"x": np.int64([2**40, 1]), "w": np.float32([1.5, -3])})
    assert found["y"] == 2**40 + 1
    assert found["z"].tolist() == [1, -3]
    builder = ow.MLGraphBuilder(context)
    total = builder.reduce_sum(builder.input("x", "int64", [2]))
    with pytest.raises(ow.NotSupportedError, match=r"reduce_sum: .* cannot run it \(providers compute integers"):
        builder.build({"y": total}, fallback="error")


@pytest.mark.parametrize(
    ("provider", "made", "reason"),
    [
        ("OpenVINOExecutionProvider", lambda b, x: b.reduce_log_sum(x, axes=[]), "reductions of no axis"),
        ("OpenVINOExecutionProvider", lambda b, x: b.reduce_log_sum(x, axes=[1]), ""),
        ("QNNExecutionProvider", lambda b, x: b.max_pool2d(x, padding=[1, 0, 0, 1]), "padded maxima"),
        ("QNNExecutionProvider", lambda b, x: b.max_pool2d(x, window_dimensions=[2, 2]), ""),
        (
            "QNNExecutionProvider",
            lambda b, x: b.matmul(b.reshape(x, [1, 1, 2, 4, 4]), np.ones((4, 2), "f4")),
            "four dim",
        ),
        ("QNNExecutionProvider", lambda b, x: b.matmul(x, np.ones((4, 2), "f4")), ""),
        (
            "QNNExecutionProvider",
            lambda b, x: b.conv_transpose2d(x, np.ones((2, 1, 3, 3), "f4"), strides=[2, 2], output_padding=[1, 1]),
            "padded outputs",
        ),
        ("CPUExecutionProvider", lambda b, x: b.max_pool2d(x, padding=[1, 0, 0, 1]), ""),
    ],
)
def test_faults_of_providers(provider: str, made: Any, reason: str) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", backend="onnxruntime"))
    x = builder.input("x", "float32", [1, 2, 4, 4])
    node = made(builder, x).node
    assert reason in why_not(provider, node)
    assert bool(reason) == bool(why_not(provider, node))


def test_assignment_tells_parts_from_wholes() -> None:
    def part(provider: str, *names: str) -> Any:
        return SimpleNamespace(ep_name=provider, get_nodes=lambda: [SimpleNamespace(name=name) for name in names])

    session = SimpleNamespace(get_provider_graph_assignment_info=lambda: [part("A", "n0", "n1"), part("B", "n2", "n3")])
    written: Any = {"x": [("n0", "Mul"), ("n2", "Erf")], "y": [("n2", "Erf"), ("n3", "Erf")], "z": [("gone", "Add")]}
    assignment = Assignment("A", session, written)
    nodes: list[Any] = ["x", "y", "z"]
    assert [assignment.text([node]) for node in nodes] == [
        "A, and ONNX Runtime on the CPU: Erf",
        "ONNX Runtime on the CPU: A leaves Erf",
        "ONNX Runtime, merged into another operation or computed in advance",
    ]
    assert [assignment.is_left([node]) for node in nodes] == [False, True, False]


@pytest.mark.usefixtures("accelerators")
def test_plugin_device_names() -> None:
    found = {device.name: device for device in ow.devices() if device.provider}
    assert list(found) == [
        "gpu:intel:openvino",
        "gpu:intel:webgpu",
        "gpu:intel:webgpu:1",
        "gpu:some:webgpu",
        "npu:openvino",
    ]
    npu = found["npu:openvino"]
    assert npu.kind == "npu"
    assert npu.low_power
    assert npu.description == "Intel(R) AI Boost, OpenVINOExecutionProvider of ONNX Runtime"


@pytest.mark.usefixtures("accelerators")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("npu", "npu:openvino"),
        ("npu:intel", "npu:openvino"),
        ("gpu:webgpu", "gpu:intel:webgpu"),
        ("gpu:some", "gpu:some:webgpu"),
        ("gpu:intel:webgpu:1", "gpu:intel:webgpu:1"),
        ("cpu", "cpu"),
    ],
)
def test_shorter_names_mean_the_first_device(name: str, expected: str) -> None:
    precision: Any = "float16" if expected.startswith("npu") else "float32"
    context = ow.ml.create_context(device=name, backend="onnxruntime", precision=precision)
    assert context.device.name == expected


@pytest.mark.usefixtures("accelerators")
def test_low_power_selects_npu() -> None:
    context = ow.ml.create_context(power_preference="low-power", backend="onnxruntime", precision="float16")
    assert context.device.kind == "npu"
    assert context.accelerated
    with pytest.raises(ow.NotSupportedError, match="device 'npu' of back end 'onnxruntime' cannot compute so, only as"):
        ow.ml.create_context(device="npu", backend="onnxruntime")


@pytest.mark.parametrize(
    ("kind", "precisions"),
    [
        ("CPU", ("float32", "bfloat16")),
        ("GPU", ("float32", "bfloat16", "float16")),
        ("NPU", ("float32", "bfloat16", "float16")),
    ],
)
def test_cpus_of_openvino_offer_no_float16(
    kind: str, precisions: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = handle(kind, 0x8086, "OpenVINOExecutionProvider", OPTIMIZATION_CAPABILITIES="FP32 FP16 INT8 BF16")
    monkeypatch.setattr("onnxruntime.get_ep_devices", lambda: [handle("CPU", 0x8086, "CPUExecutionProvider"), stated])
    (device,) = (device for device in ow.devices() if device.provider == "OpenVINOExecutionProvider")
    assert device.precisions == precisions
    if kind == "CPU":
        with pytest.raises(ow.NotSupportedError, match=r"cannot compute so, only as 'float32' or 'bfloat16'"):
            ow.ml.create_context(device=device.name, backend="onnxruntime", precision="float16")


@pytest.mark.usefixtures("accelerators")
def test_unknown_devices_are_refused_with_a_list() -> None:
    with pytest.raises(ow.NotSupportedError, match=r"there is no device 'npu:qnn'.*'npu:openvino'"):
        ow.ml.create_context(device="npu:qnn", backend="onnxruntime")


@pytest.mark.usefixtures("listed")
def test_plugin_failure_does_not_fall_back_to_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's own class would print the error, and make a session on the CPU."""
    calls = []

    def fails(self: Any, *given: Any) -> None:
        calls.append(given)
        raise RuntimeError("no such adapter")

    monkeypatch.setattr(NativeSession, "_create_inference_session", fails)
    context = ow.ml.create_context(device=NAME)
    with pytest.raises(
        ow.OperationError, match=f"ONNX Runtime with {PROVIDER} does not take the graph: no such adapter"
    ):
        graph_on(context)
    assert len(calls) == 1


def test_listing_the_cpu_registers_nothing() -> None:
    code = (
        "import opweave as ow\n"
        "from opweave.backends.onnxruntime import plugins\n"
        "plugins.register = lambda: 1 / 0\n"
        "ow.ml.create_context(device='cpu')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_broken_plugin_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "onnxruntime_ep_bad": "raise OSError('libbad.so is missing')",
        "onnxruntime_ep_none": "def get_ep_names(): return ['None']\ndef get_library_path(): return '/nowhere/none.so'",
        "onnxruntime_ep_odd": "",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_states", {})
    monkeypatch.setattr(plugins, "_providers", {})
    states = plugins.register()
    assert states["onnxruntime_ep_bad"] == "OSError: libbad.so is missing"
    assert "/nowhere/none.so" in states["onnxruntime_ep_none"]
    assert "get_ep_names" in states["onnxruntime_ep_odd"]
    assert ow.devices()[0].name == "cpu"
    from typer.testing import CliRunner

    from opweave.cli import app

    text = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"}).output
    assert "onnxruntime_ep_bad" in text
    assert "unusable: OSError: libbad.so is missing" in text


def relu_model() -> bytes:
    return model([node("Relu", "x", "y")], {"x": "float32[2, 3]"}, {"y": "float32[2, 3]"}).SerializeToString()


@pytest.mark.usefixtures("accelerators")
@pytest.mark.parametrize(
    ("providers", "expected"),
    [
        (["WebGpuExecutionProvider", "CPUExecutionProvider"], "gpu:intel:webgpu"),
        (["CPUExecutionProvider", "WebGpuExecutionProvider"], "cpu"),
        (["NoSuchExecutionProvider", "OpenVINOExecutionProvider"], "npu:openvino"),
        ([("OpenVINOExecutionProvider", {"device_type": "GPU"})], "gpu:intel:openvino"),
    ],
)
def test_sessions_take_the_names_of_plugin_providers(
    providers: list[Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No back end of Opweave's own has these devices."""
    from opweave.onnx.ort_api.options import Settings

    own = ow.backends.discover()
    few = {name: own[name] for name in ("onnxruntime", "reference")}
    monkeypatch.setattr("opweave.backends.discover", lambda: few)
    monkeypatch.setattr("opweave.backends.discovery.discover", lambda: few)
    settings = Settings.of(None, providers, None, None)
    assert settings.context.device.name == expected
    names = [entry if isinstance(entry, str) else entry[0] for entry in providers]
    assert settings.providers()[0] in names


@pytest.mark.usefixtures("accelerators")
def test_options_of_a_provider_reach_it() -> None:
    from opweave.onnx.ort_api.options import Settings

    settings = Settings.of(None, [("WebGpuExecutionProvider", {"validationMode": "full"})], None, None)
    if settings.context.device.provider:  # else there is a GPU here for Opweave's own back end
        assert settings.context.backend.plugin.options == {"validationMode": "full"}  # type: ignore[attr-defined]


@pytest.mark.usefixtures("listed")
def test_plugin_session_compiles_each_shape(caplog: pytest.LogCaptureFixture) -> None:
    context = ow.ml.create_context(device=NAME)
    session = ow.InferenceSession(relu_model(), context)
    x = np.float32([[-1, 0, 1], [2, -2, 3]])
    with caplog.at_level(logging.ERROR):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0))
    assert not caplog.records
    assert f"  relu 'y' on {NAME}: {PROVIDER}" in session.explain().splitlines()
