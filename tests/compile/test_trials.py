"""Engines are tried in a process of their own: one that ends it, hangs, fills memory or is wrong is refused."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx import model, node
from support.rival_engine import FAULTS, Rival, add_rival, faster

import opweave as ow
from opweave import memory
from opweave.backends import find
from opweave.backends.isolation import EngineFailureError, EngineProcess, ProcessLimits, process as process_module
from opweave.cli import engines as bench
from opweave.compile import engines, tuning
from opweave.compile.driver import compile
from opweave.context.graph import recorded_graph

X = np.float32([-1, 0, 2, 3])

VERDICTS = {
    "signal": r"ended its process by a signal, SIGSEGV, during {work}",
    "exit": r"ended its process with status 3 during {work}",
    "wait": r"hung: {work} was not done after 3\.00 s",
    "spin": r"hung: {work} was not done after 3\.00 s",
    "memory": r"is too large: it took .* of memory during {work}, and the limit is 400\.0 MiB",
}


@pytest.fixture
def rival(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rival:
    monkeypatch.setattr(process_module, "memory_of", lambda graph: 400 * 2**20)
    return add_rival(monkeypatch, tmp_path, has_trials=True)


def built(context: ow.MLContext) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [4])
    return builder.build({"y": builder.relu(builder.neg(x)), "z": builder.abs(x)})


def session_of(path: Path) -> ow.InferenceSession:
    nodes = [node("Neg", "x", "n"), node("Relu", "n", "y"), node("Abs", "x", "z")]
    proto = model(nodes, {"x": "float32[4]"}, {"y": "float32[4]", "z": "float32[4]"}, opset=17)
    path.write_bytes(proto.SerializeToString())
    return ow.InferenceSession(path, providers=["CPUExecutionProvider"])


def check_results(results: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(results["y"], np.maximum(-X, 0))
    np.testing.assert_array_equal(results["z"], np.abs(X))


@pytest.mark.long
@pytest.mark.parametrize("faulty_run", [False, True], ids=["compile", "run"])
@pytest.mark.parametrize("fault", FAULTS)
def test_tune_refuses_an_engine_that_fails(
    rival: Rival, fault: str, faulty_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival.fault, rival.faulty_run = fault, faulty_run
    if fault in ("wait", "spin"):
        monkeypatch.setattr(tuning, "TRIAL_SECONDS", 3.0)
        monkeypatch.setattr(tuning, "TRIAL_FACTOR", 0)
    verdict = re.compile(VERDICTS[fault].format(work="a run" if faulty_run else "compilation"))
    context = ow.ml.create_context(device="cpu")
    graph = built(context)
    (found,) = graph.tune(seconds=0).measurements
    assert (found.chosen, found.is_kept) == ("onnxruntime", True)
    assert verdict.fullmatch(found.refused["rival"])
    check_results(context.compute(graph, {"x": X}))
    later = built(context)
    check_results(context.compute(later, {"x": X}))
    assert verdict.search(later.explain())
    session = session_of(tmp_path / "model.onnx")
    (found,) = session.tune(seconds=0).measurements
    assert found.chosen != "rival"
    assert verdict.fullmatch(found.refused["rival"])
    check_results(dict(zip("yz", session.run(["y", "z"], {"x": X}), strict=True)))


@pytest.mark.long
@pytest.mark.parametrize("output", ["y", "z"])
def test_tune_refuses_engine_with_one_wrong_output(rival: Rival, output: str, tmp_path: Path) -> None:
    rival.error, rival.wrong_output = 0.01, "yz".index(output)
    context = ow.ml.create_context(device="cpu")
    graph = built(context)
    (found,) = graph.tune({"x": X}, seconds=0).measurements
    wrong = f"output '{output}' differs by 1e-2 of the largest number"
    assert (found.chosen, found.refused) == ("onnxruntime", {"rival": wrong})
    check_results(context.compute(graph, {"x": X}))
    session = session_of(tmp_path / "model.onnx")
    (found,) = session.tune(inputs={"x": X}, seconds=0).measurements
    assert (found.chosen != "rival", found.refused) == (True, {"rival": wrong})
    check_results(dict(zip("yz", session.run(["y", "z"], {"x": X}), strict=True)))
    assert [each.refused for each in engines.kept_measurements()] == [{"rival": wrong}] * 2


@pytest.mark.long
def test_tune_uses_an_engine_that_passes_its_trial(
    rival: Rival, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.joinpath("sitecustomize.py").write_text("print('a startup file that prints', flush=True)")
    monkeypatch.syspath_prepend(tmp_path)  # children get this path
    faster(monkeypatch, (2.0, 1.0))
    graph = built(ow.ml.create_context(device="cpu"))
    (found,) = graph.tune(seconds=0).measurements
    assert (found.chosen, found.refused) == ("rival", {})
    assert {placement.detail for placement in graph.placements()} == {"Rival"}
    check_results(graph.context.compute(graph, {"x": X}))


@pytest.fixture
def process() -> Iterator[EngineProcess]:
    with EngineProcess(ProcessLimits(60)) as process:
        yield process


def test_engine_process_runs_segments_and_leaves_the_rest_to_the_parent(process: EngineProcess) -> None:
    calls: list[int] = []

    @ow.op
    def twice(self: Any, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    @twice.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        calls.append(1)
        np.multiply(x, 2, out=out)

    context = ow.ml.create_context(device="cpu", backend="onnxruntime")
    builder = ow.MLGraphBuilder(context)
    x, scale = builder.input("x", "float32", [2, 4]), builder.constant(np.float32([[1], [3]]))
    parts = builder.split(builder.mul(x, scale), 2, axis=1)
    y = builder.concat([twice(parts[1]), parts[0]], 1, label="joined")
    outputs = {"y": builder.relu(y), "z": builder.cast(y, "int64"), "t": builder.greater(y, x)}
    graph = builder.build(outputs)
    array = np.random.default_rng(0).standard_normal((2, 4), np.float32)
    expected = context.compute(graph, {"x": array})
    calls.clear()
    backend = process.backend(find("onnxruntime"))
    program = compile(recorded_graph(graph), backend, device="cpu", power_preference="default")
    targets = [memory.empty(desc) for desc in graph.outputs.values()]
    for _turn in range(2):
        program.bind([array], targets)()
    for target, array in zip(targets, expected.values(), strict=True):
        np.testing.assert_array_equal(target, array)
    assert calls == [1, 1]
    process.close()


@pytest.mark.long
def test_engine_process_starts_again_after_it_ended(process: EngineProcess) -> None:
    rival = Rival()
    backend = process.backend(rival)
    context = ow.ml.create_context(device="cpu", backend="onnxruntime")
    graph = recorded_graph(built(context))
    for fault in ("signal", "", "exit", ""):
        rival.fault = fault
        if fault:
            with pytest.raises(EngineFailureError, match="ended its process"):
                compile(graph, backend, device="cpu", power_preference="default")
            continue
        program = compile(graph, backend, device="cpu", power_preference="default")
        targets = [memory.empty(output.desc) for output in graph.outputs.values()]
        program.bind([X], targets)()
        check_results(dict(zip(graph.outputs, targets, strict=True)))


@pytest.mark.long
def test_engine_process_frees_graphs_that_are_dropped(process: EngineProcess) -> None:
    graph = recorded_graph(built(ow.ml.create_context(device="cpu", backend="onnxruntime")))
    backend = process.backend(find("onnxruntime"))
    program = compile(graph, backend, device="cpu", power_preference="default")
    targets = [memory.empty(output.desc) for output in graph.outputs.values()]
    program.bind([X], targets)()
    del program
    gc.collect()
    assert process._unused == [0]
    compile(graph, backend, device="cpu", power_preference="default")
    assert 0 not in process._unused
    with pytest.raises(ow.OperationError, match="KeyError: 0"):
        process.run(0, [X])


@pytest.mark.long
def test_engine_process_ends_with_owner() -> None:
    process = EngineProcess()
    graph = recorded_graph(built(ow.ml.create_context(device="cpu", backend="onnxruntime")))
    compile(graph, process.backend(find("onnxruntime")), device="cpu", power_preference="default")
    child = process._process
    assert child is not None
    assert child.poll() is None
    del process
    gc.collect()
    assert child.wait(30) != 0


def test_engine_process_error_for_unsendable_graph(process: EngineProcess) -> None:
    rival = Rival()
    rival.secret = lambda: None  # type: ignore[attr-defined]
    graph = recorded_graph(built(ow.ml.create_context(device="cpu", backend="onnxruntime")))
    with pytest.raises(EngineFailureError, match=r"cannot be tried in a separate process: .*lambda"):
        compile(graph, process.backend(rival), device="cpu", power_preference="default")


@pytest.mark.long
def test_diff_survives_an_engine_that_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    rival = Rival()
    rival.needs_trial, rival.fault = True, "signal"
    context = ow.ml.create_context(device="cpu", backend="onnxruntime")
    graph = built(context)
    monkeypatch.setattr(type(context), "backend", property(lambda self: rival))
    with pytest.raises(ow.OperationError, match="SIGSEGV, during compilation"):
        ow.diff(graph, against="reference")
    rival.fault = ""
    assert "Rival" not in str(ow.diff(graph, against="reference"))


@pytest.mark.long
def test_bench_reports_how_engine_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session_of(tmp_path / "model.onnx")
    job = bench.Job(str(tmp_path / "model.onnx"), [{"x": X}], {}, "float32", "faulty_operations")
    (tmp_path / "faulty_operations.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = [bench.EngineRow(bench.BASE_LINE), bench.EngineRow("onnxruntime", "cpu", "onnxruntime")]
    first, second = bench.measure(found, job, 0.01, lambda share: None)
    assert first.times
    assert second.reason == "ended its process by a signal, SIGSEGV, during the first run"
    (tmp_path / "faulty_operations.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(bench, "BUILD_SECONDS", 5.0)
    monkeypatch.setattr(bench, "BUILD_FACTOR", 0)
    first, second = bench.measure(found, job, 0.01, lambda share: None)
    assert first.times
    assert second.reason == "hung: the first run was not done after 5.00 s"


@pytest.mark.long
@pytest.mark.skipif(find("openvino").device_named("cpu") is None, reason="needs openvino")
def test_diff_compiles_for_openvino_in_another_process() -> None:
    import subprocess
    import sys

    code = """
import sys, numpy as np, opweave as ow
context = ow.ml.create_context(device="cpu", backend="onnxruntime")
builder = ow.MLGraphBuilder(context)
graph = builder.build({"y": builder.softmax(builder.input("x", "float32", [3, 4]), 1)})
print(ow.diff(graph, on="cpu:openvino", against="cpu:onnxruntime").first, "opweave.backends.openvino.sessions" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "False"]
