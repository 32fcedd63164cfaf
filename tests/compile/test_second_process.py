"""A second process compiles no code for what another one has compiled: `opweave.lazy.statistics` counts it."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import run_python

import opweave as ow
from opweave.expr import kernels
from opweave.saved.container import ContainerWriter
from opweave.support import disk_cache

SAVED = Path(__file__).parents[1] / "saved"

PROGRAM = f"""
import json, sys
sys.path.append({str(SAVED)!r})
import numpy as np, opweave as ow
import saved_operations as own

x = np.random.default_rng(0).normal(size=(8, 64)).astype("float32")
results = []


def graph_on(drafts, shape):
    context = ow.ml.create_context(device="cpu", backend="onnxruntime", drafts=drafts)
    builder = ow.MLGraphBuilder(context)
    y = own.scaled_square(builder, builder.input("x", "float32", shape), scale=1.5)
    return builder.build({{"y": y}})


for graph in (graph_on(False, [8, 64]), graph_on(True, ["n", 64])):
    results.append(graph.context.compute(graph, {{"x": x}})["y"])
ow.lazy.compile_now()
for _ in range(3):
    results.append(own.scaled_square(ow.array(x), scale=2.5).numpy())
results.append(ow.jit(lambda x: own.scaled_square(x, scale=3.5) + x)(ow.array(x)).numpy())
counts = ow.lazy.statistics
print(json.dumps([counts.code_compiled, counts.code_loaded, "halide" in sys.modules, [r.tolist() for r in results]]))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(**environment: str) -> Any:
    return json.loads(run_python(PROGRAM, **environment))


@pytest.mark.long
@pytest.mark.skipif(not kernels.has_halide(), reason="needs the extra halide")
def test_second_process_compiles_nothing(cache: Path) -> None:
    compiled, loaded, has_halide, results = run()
    assert compiled > 3
    assert has_halide
    again, loaded_again, has_halide, same = run()
    assert (again, has_halide) == (0, False)
    assert loaded_again == compiled + loaded
    assert same == results
    without = run(OPWEAVE_CACHE=str(cache / "none"), OPWEAVE_CACHE_BYTES="0")
    assert without[:2] == [compiled + loaded, 0]
    assert without[3] == results


@pytest.mark.long
@pytest.mark.skipif(not kernels.has_halide(), reason="needs the extra halide")
def test_processes_at_once_have_one_result(cache: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [json.loads(process.communicate(timeout=600)[0]) for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert all(output[3] == outputs[0][3] for output in outputs)
    assert run()[0] == 0


def expression(scale: float) -> Any:
    sys.path.append(str(SAVED))
    try:
        import saved_operations as own
    finally:
        sys.path.remove(str(SAVED))
    context = ow.ml.create_context(device="cpu", backend="onnxruntime", drafts=True)
    builder = ow.MLGraphBuilder(context)
    return builder.build({"y": own.scaled_square(builder, builder.input("x", "float32", [40]), scale=scale)})


@pytest.mark.skipif(not kernels.has_halide(), reason="needs the extra halide")
def test_full_disk_leaves_right_results(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, key: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_cache, "_write", write)
    kernels.compiled.clear()
    ow.lazy.statistics.reset()
    graph = expression(7.5)
    y = graph.context.compute(graph, {"x": np.ones(40, "float32")})["y"]
    assert y.tolist() == [7.5] * 40
    assert ow.lazy.statistics.code_compiled >= 1
    assert disk_cache.entries() == []


def test_save_on_a_full_disk_is_an_error_and_keeps_the_old_file(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ow.ml.create_context(device="reference", drafts=True)

    def scaled(factor: float) -> ow.MLGraph:
        builder = ow.MLGraphBuilder(context)
        return builder.build({"y": builder.input("x", "float32", [2]) * factor})

    path = tmp_path / "graph.opweave"
    scaled(2).save(path)
    context.save_graph("a", scaled(2))
    whole = ContainerWriter._write

    def write(self: ContainerWriter, file: Any) -> None:
        whole(self, file)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ContainerWriter, "_write", write)
    with pytest.raises(ow.DataError, match=r"graph\.opweave: No space left on device"):
        scaled(3).save(path)
    with pytest.raises(ow.DataError, match="No space left on device"):
        context.save_graph("a", scaled(3))
    with pytest.raises(ow.DataError, match="No space left on device"):
        context.save_graph("b", scaled(3))
    monkeypatch.undo()
    monkeypatch.setenv("OPWEAVE_CACHE", str(cache))
    assert context.list_graphs() == ["a"]
    for graph in (context.load(path), context.load_graph("a")):
        assert context.compute(graph, {"x": np.ones(2, "float32")})["y"].tolist() == [2, 2]
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
    assert [file.name for file in (cache / "graphs").iterdir() if file.name.startswith(".")] == []
