"""Compiled parts of saved graphs: native code that runs if the file is trusted, and is compiled again otherwise."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_operations as own
from support.processes import run_python

import opweave as ow
from opweave.expr import kernels
from opweave.saved.container import Container, ContainerWriter
from opweave.saved.parts import AUTHENTICATION, DIGEST, PART, seal
from opweave.support import disk_cache
from opweave.support.digests import LARGE_BYTES

pytestmark = pytest.mark.skipif(not kernels.has_halide(), reason="needs the extra halide")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A cache on disk with Halide's runtime alone, which a process loads once; no compiled expressions in this process."""
    from opweave.expr.halide import runtime

    key, folder = runtime.runtime_key(), tmp_path / "cache"
    code = disk_cache.load_or_make(key, runtime._compile)
    monkeypatch.setenv("OPWEAVE_CACHE", str(folder))
    if not request.node.name.startswith("test_secret"):
        disk_cache.store(key, "o", code)
    kernels.compiled.clear()
    return folder


def saved(path: Path) -> np.ndarray:
    """Save a graph with a compiled expression, and return its result."""
    context = ow.ml.create_context(device="cpu", backend="onnxruntime")
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": own.scaled_square(builder, builder.input("x", "float32", [40]), scale=1.5)})
    graph.save(path)
    return context.compute(graph, {"x": np.arange(40, dtype="float32")})["y"]


LOAD = """
import json, sys, numpy as np, opweave as ow
import saved_operations
context = ow.ml.create_context(device="cpu", backend="onnxruntime")
graph = context.load(sys.argv[1], trusted=sys.argv[2] == "True")
y = context.compute(graph, {"x": np.arange(40, dtype="float32")})["y"]
print(json.dumps([y.tolist(), graph.explain().splitlines()[4], "halide" in sys.modules, "llvmlite" in sys.modules]))
"""


def load(path: Path, trusted: bool = False, **environment: str) -> tuple[np.ndarray, str, bool]:
    """The result of a saved graph in a fresh process, the line of `explain`, and whether a compiler was imported."""
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(own.__file__).parent), *sys.path])
    y, line, *compilers = json.loads(run_python(LOAD, str(path), str(trusted), **environment))
    return np.asarray(y, np.float32), line, any(compilers)


def parts_of(path: Path) -> list[str]:
    return [name for name in Container.open(path).names if name.startswith(PART)]


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("way", ["own", "trusted", "untrusted"])
def test_load_uses_compiled_parts_of_trusted_files(way: str, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "graph.opweave"
    y = saved(path)
    assert len(parts_of(path)) == 2  # the expression and the runtime
    environment = {"OPWEAVE_CACHE": str(tmp_path / "other")}  # has another key
    if way == "own":
        for file in cache.glob("*.o"):
            file.unlink()
        environment = {"OPWEAVE_CACHE": str(cache)}
    result, line, is_compiled = load(path, way == "trusted", **environment)
    np.testing.assert_array_equal(result, y)
    assert line.startswith(f"loaded from {path}")
    assert is_compiled == (way == "untrusted")
    reason = (
        "compiled again: this user has not written the file" if way == "untrusted" else "with 2 of 2 compiled parts"
    )
    assert reason in line


NEEDLESS = {
    *("difflib", "email", "halide", "importlib.metadata", "llvmlite", "onnx", "socket", "tempfile"),
    *("opweave.inspect", "opweave.onnx", "opweave.compile.bodies", "opweave.expr.halide.compiler"),
    *(f"opweave.composites.{name}" for name in ("attention", "elementary", "grid", "packing", "quantization")),
    *(f"opweave.backends.onnxruntime.{name}" for name in ("narrow", "rules.convolution", "rules.recurrent")),
}
"""Modules that element-wise operations, compiled in the file, and a product do not need."""

DATACLASSES = {"Desc", "Input", "KernelCall", "Placement"}
"""Classes of Opweave that `@dataclass` may make while a graph is loaded and run: it takes ten times as long as `record`."""


@pytest.mark.long(rows=2)
@pytest.mark.parametrize("rows", [512, "n"])
def test_load_compiles_and_imports_nothing_that_the_graph_does_not_need(rows: int | str, tmp_path: Path) -> None:
    path = tmp_path / "graph.opweave"
    context = ow.ml.create_context(device="cpu", backend="onnxruntime", drafts=True)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [rows, 512])
    weights = np.eye(512, 2, dtype="float32")
    graph = builder.build({"y": ((x * x.sigmoid()).tanh() + (x - 2.0).exp()).matmul(builder.constant(weights))})
    y = context.compute(graph, {"x": np.linspace(-4, 4, 512 * 512, dtype="float32").reshape(512, 512)})["y"]
    graph.save(path)
    code = """
import dataclasses, sys, numpy as np, opweave as ow
context = ow.ml.create_context(device="cpu", backend="onnxruntime", drafts=True)
make, classes = dataclasses._process_class, []
dataclasses._process_class = lambda cls, *options: classes.append(cls) or make(cls, *options)
graph = context.load(sys.argv[1])
x = np.linspace(-4, 4, 512 * 512, dtype="float32").reshape(512, 512)
sys.stdout.buffer.write(context.compute(graph, {"x": x})["y"].tobytes())
print(*sys.modules, file=sys.stderr)
print(*(cls.__name__ for cls in classes if cls.__module__.startswith("opweave.")), file=sys.stderr)
print(ow.lazy.statistics.code_compiled, graph.explain(), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=True)
    assert done.stdout == y.tobytes()
    modules, classes, statistics, *_ = done.stderr.decode().splitlines()
    assert statistics.startswith("0 ")
    assert not NEEDLESS & {*modules.split()}
    assert {*classes.split()} <= DATACLASSES
    assert "Halide" in done.stderr.decode(), "the graph has no compiled loop"


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_load_imports_no_composites_for_operations_of_the_specification(engine: str, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    path = tmp_path / "graph.opweave"
    builder = ow.MLGraphBuilder(ow.ml.create_context(backend=engine, accelerated=False))
    x = builder.input("x", "float32", [1, 4, 8, 8])
    y = builder.max_pool2d(
        builder.conv2d(x, builder.constant(np.ones((4, 4, 3, 3), "float32"))).relu(), window_dimensions=[6, 1]
    )
    rows = builder.gather(builder.transpose(y).reshape([4, 6]), builder.constant(np.int32([0, 2])))
    builder.build({"y": builder.softmax(builder.layer_normalization(rows), axis=1)}).save(path)
    code = f"""
import sys, opweave as ow
ow.ml.create_context(backend={engine!r}, accelerated=False).load({str(path)!r})
print(*(name for name in sys.modules if name.startswith(("opweave.composites.", "opweave.custom"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("large_bytes", [LARGE_BYTES, 0])
def test_load_does_not_run_parts_that_were_changed(
    large_bytes: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opweave.support.digests.LARGE_BYTES", large_bytes)
    path = tmp_path / "graph.opweave"
    saved(path)
    container, writer = Container.open(path), ContainerWriter()
    for name in container.names:
        data = container.section(name).tobytes()
        if name.startswith(PART):
            data = b"\xcc" * len(data)
        if name not in (DIGEST, AUTHENTICATION):
            writer.add(name, "uint8", (len(data),), data)
    key = (cache / "opweave.key").read_bytes()
    (cache / "opweave.key").write_bytes(bytes(32))  # a stranger has another one
    seal(writer)
    (cache / "opweave.key").write_bytes(key)
    writer.write(path)
    for file in cache.glob("*.o"):
        file.unlink()
    kernels.compiled.clear()
    context = ow.ml.create_context(device="cpu", backend="onnxruntime")
    graph = context.load(path)
    assert context.compute(graph, {"x": np.float32([2] * 40)})["y"].tolist() == [6.0] * 40
    assert "compiled again: this user has not written the file on this machine" in graph.explain()


def test_load_compiles_parts_for_another_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opweave.expr.halide import runtime

    path = tmp_path / "graph.opweave"
    y = saved(path)
    monkeypatch.setattr(runtime, "machine", lambda: "another processor")
    kernels.compiled.clear()
    context = ow.ml.create_context(device="cpu", backend="onnxruntime")
    graph = context.load(path)
    np.testing.assert_array_equal(context.compute(graph, {"x": np.arange(40, dtype="float32")})["y"], y)
    line = next(line for line in graph.explain().splitlines() if line.startswith("loaded from"))
    assert "with 0 of 2 compiled parts; the file has others, if any, for another processor, device or version" in line


def test_save_without_a_cache_has_no_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_cache.clear()
    monkeypatch.setenv("OPWEAVE_CACHE_BYTES", "0")
    path = tmp_path / "graph.opweave"
    saved(path)
    assert parts_of(path) == []
    assert Container.open(path).section(AUTHENTICATION).tobytes() == bytes(32)
    graph = ow.ml.create_context(device="cpu", backend="onnxruntime").load(path)
    assert "which has no compiled parts" in graph.explain()


def test_layer_goes_with_its_graph(tmp_path: Path) -> None:
    path = tmp_path / "graph.opweave"
    saved(path)
    (key, kind), *_ = [name.removeprefix(PART).rsplit(".", 1) for name in parts_of(path)]
    disk_cache.clear()
    context = ow.ml.create_context(device="cpu", backend="onnxruntime")
    kernels.compiled.clear()
    graph = context.load(path)
    assert disk_cache.load(key, kind) is not None
    del graph, context
    import gc

    gc.collect()
    assert disk_cache.load(key, kind) is None


# ---------------------------------------------------------------------------------------------------------------------
# The key of the user


def test_secret_is_one_key_for_all_threads(cache: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        keys = {*pool.map(lambda _: disk_cache.secret(), range(64))}
    assert len(keys) == 1
    (key,) = keys
    assert key is not None
    assert len(key) == 32
    assert [path.name for path in cache.iterdir()] == ["opweave.key"]
    disk_cache.clear()
    assert disk_cache.secret() == key


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no modes")
def test_secret_is_not_used_if_others_can_read_it(cache: Path) -> None:
    assert disk_cache.secret() is not None
    assert stat.S_IMODE((cache / "opweave.key").stat().st_mode) == 0o600
    (cache / "opweave.key").chmod(0o640)
    assert disk_cache.secret() is None
    (cache / "opweave.key").chmod(0o600)
    cache.chmod(0o777)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert disk_cache.secret() is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows needs rights for links")
def test_secret_follows_no_link(cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(32))
    other.chmod(0o600)
    cache.mkdir(0o700)
    (cache / "opweave.key").symlink_to(other)
    assert disk_cache.secret() is None


def test_secret_that_a_full_disk_has_cut_is_made_again(cache: Path) -> None:
    cache.mkdir(0o700)
    (cache / "opweave.key").write_bytes(b"abc")
    (cache / "opweave.key").chmod(0o600)
    key: Any = disk_cache.secret()
    assert len(key) == 32
    assert disk_cache.secret() == key
