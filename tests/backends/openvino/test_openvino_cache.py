"""Compiled models of OpenVINO in the cache on disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import run_python

import opweave as ow
from opweave.memory import identity
from opweave.support import disk_cache

openvino = pytest.importorskip("openvino", reason="needs the extra openvino")

from opweave.backends.openvino import cached  # noqa: E402  (the line above skips the file without the package)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in which small models are kept, too."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cached, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(identity, "SETTLED_SECONDS", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the engine that compile or import a model."""
    names: list[str] = []

    def note(name: str) -> None:
        method = getattr(openvino.Core, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            names.append(name)
            return method(*args, **kwargs)

        monkeypatch.setattr(openvino.Core, name, noted)

    note("compile_model")
    note("import_model")
    return names


X = np.random.default_rng(0).normal(size=(1, 3, 9, 9)).astype("float32")
FILTER = np.random.default_rng(1).normal(size=(8, 3, 3, 3)).astype("float32")


def convolve(filter: np.ndarray = FILTER, padding: int = 1, **options: Any) -> tuple[ow.MLGraph, np.ndarray]:
    """Build a graph, and compute it."""
    context = ow.ml.create_context(device="cpu", backend="openvino", **options)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", X.shape)
    y = builder.conv2d(x, builder.constant(filter), padding=[padding] * 4).relu()
    graph = builder.build({"y": builder.softmax(y, 1)})
    return graph, context.compute(graph, {"x": X})["y"]


def test_openvino_compiles_a_graph_once(calls: list[str], cache: Path) -> None:
    _, first = convolve()
    _, second = convolve()
    # The first import verifies what is kept.
    assert calls == ["compile_model", "import_model", "import_model"]
    np.testing.assert_array_equal(first, second)
    (entry,) = disk_cache.entries()
    assert entry.kind == "compiled model"
    disk_cache.clear()
    _, third = convolve()
    assert calls[3:4] == ["compile_model"]
    np.testing.assert_array_equal(first, third)


def changed_filter() -> np.ndarray:
    filter = FILTER.copy()
    filter[7, 2, 1, 0] = 0.25
    return filter


OTHERS: dict[str, Callable[[], Any]] = {
    "other weights": lambda: convolve(FILTER * 2),
    "a change of one weight": lambda: convolve(changed_filter()),
    "another attribute": lambda: convolve(padding=2),
    "another number of threads": lambda: convolve(threads=1),
    "another precision": lambda: convolve(precision="ieee"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_openvino_compiles_graphs_that_differ(name: str, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Small graphs have one thread.
    monkeypatch.setattr("opweave.backends.openvino.sessions.SERIAL_ELEMENTS", 0)
    convolve(threads=2)
    OTHERS[name]()
    assert calls == ["compile_model", "import_model"] * 2 or name == "another precision"


def test_openvino_compiles_for_another_version(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    convolve()
    monkeypatch.setattr("opweave.backends.openvino.devices.version", lambda: "1999.1")
    convolve()
    monkeypatch.setattr(cached, "_machine", lambda: "another processor")
    convolve()
    assert calls == ["compile_model", "import_model"] * 3


@pytest.mark.parametrize("damage", [b"", b"\x00" * 500, b"half"])
def test_openvino_compiles_where_the_cache_is_damaged(damage: bytes, calls: list[str], cache: Path) -> None:
    _, first = convolve()
    (path,) = cache.glob("*.blob")
    path.write_bytes(path.read_bytes()[:2000] if damage == b"half" else damage)
    _, second = convolve()
    np.testing.assert_array_equal(first, second)
    assert calls == ["compile_model", "import_model"] * 2


def test_openvino_compiles_where_the_engine_refuses_what_is_cached(calls: list[str], cache: Path) -> None:
    _, first = convolve()
    (entry,) = disk_cache.entries()
    assert disk_cache.store(entry.key, "blob", b"of another build")
    _, second = convolve()
    assert calls == ["compile_model", "import_model", "import_model", "compile_model", "import_model"]
    np.testing.assert_array_equal(first, second)


def test_openvino_keeps_nothing_beyond_the_limit(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE_BYTES", "1000")
    convolve()
    convolve()
    monkeypatch.setenv("OPWEAVE_CACHE_BYTES", "0")
    convolve()
    assert calls == ["compile_model"] * 3
    assert disk_cache.entries() == []


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_openvino_keeps_only_what_gives_the_same_results(name: str, calls: list[str]) -> None:
    """The engine orders the gates of constant weights again when it imports a model."""
    gates = 3 if name == "gru" else 4
    generator = np.random.default_rng(0)
    x, *weights = [
        generator.normal(size=s).astype("float32") for s in ([4, 3, 5], [1, gates * 6, 5], [1, gates * 6, 6])
    ]
    results = []
    for device in ("reference", "cpu", "cpu"):
        context = ow.ml.create_context(device=device, backend="openvino" if device == "cpu" else None)
        builder = ow.MLGraphBuilder(context)
        operands = [builder.input("x", "float32", x.shape), *map(builder.constant, weights)]
        outputs = getattr(builder, name)(*operands, 4, 6, return_sequence=True, layout="rzn" if gates == 3 else "ifgo")
        graph = builder.build({f"y{k}": output for k, output in enumerate(outputs)})
        results.append(context.compute(graph, {"x": x}))
    for other in results[1:]:
        for output, array in results[0].items():
            np.testing.assert_allclose(other[output], array, rtol=1e-4, atol=1e-5)


def test_openvino_does_not_keep_what_rules_of_users_make(calls: list[str]) -> None:
    @ow.composite
    def doubled(b: Any, x: Any) -> Any:
        return x + x

    from opweave.backends.openvino import openvino as backend

    @backend.lower(doubled)
    def _(ctx: Any, x: Any) -> Any:
        return ctx.emit("add", x, x)

    context = ow.ml.create_context(device="cpu", backend="openvino")
    for _count in range(2):
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": doubled(builder, builder.input("x", "float32", [3]))})
        assert context.compute(graph, {"x": np.float32([1, 2, 3])})["y"].tolist() == [2, 4, 6]
    assert calls == ["compile_model", "compile_model"]


COUNT = """
import openvino, numpy as np, opweave as ow
from opweave.backends.openvino import cached
cached.MIN_SECONDS = 0.0
compiled = []
compile_model = openvino.Core.compile_model
openvino.Core.compile_model = lambda *args: compiled.append(1) or compile_model(*args)
context = ow.ml.create_context(device="cpu", backend="openvino")
builder = ow.MLGraphBuilder(context)
x = builder.input("x", "float32", [4, 8])
graph = builder.build({"y": builder.softmax(x.matmul(np.ones((8, 8), "float32")), 1)})
print(context.compute(graph, {"x": np.arange(32, dtype="float32").reshape(4, 8)})["y"].tolist(), len(compiled))
"""


@pytest.mark.long(rows=0)
def test_openvino_second_process_compiles_nothing() -> None:
    first, second = (run_python(COUNT).rpartition(" ") for _ in range(2))
    assert (first[2].strip(), second[2].strip()) == ("1", "0")
    assert first[0] == second[0]


# ---------------------------------------------------------------------------------------------------------------------
# The identity of weights


def mapped(path: Path) -> np.ndarray:
    return np.memmap(path, np.float32, "r")


def write_in_place(path: Path, place: int, value: float) -> None:
    """Change a number in a file, and set its times back."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(4 * place)
        file.write(np.float32(value).tobytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def weights_file(folder: Path) -> Path:
    path = folder / "weights"
    np.random.default_rng(0).normal(size=2**19).astype("float32").tofile(path)
    return path


def test_digests_of_mapped_weights_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = weights_file(tmp_path)
    array = mapped(path)
    (first,) = identity.digests_of([array]).values()
    monkeypatch.setattr(identity, "_digest", lambda array: pytest.fail("it is read again"))
    (second,) = identity.digests_of([mapped(path)]).values()
    assert first == second
    (entry,) = disk_cache.entries()
    assert entry.kind == "digest of weights"


def test_digests_of_notices_weights_that_change_in_place(tmp_path: Path) -> None:
    path = weights_file(tmp_path)
    (first,) = identity.digests_of([mapped(path)]).values()
    time.sleep(0.05)  # clocks of file systems are coarse
    write_in_place(path, 99, 7)
    (second,) = identity.digests_of([mapped(path)]).values()
    assert second != first
    assert second == identity.digests_of([np.fromfile(path, np.float32)]).popitem()[1]  # type: ignore[attr-defined]


def test_digests_of_tells_parts_of_a_file_apart(tmp_path: Path) -> None:
    path = weights_file(tmp_path)
    whole = mapped(path)
    half = len(whole) // 2
    for _ in range(2):
        digests = identity.digests_of([whole, whole[:half], whole[half:]])
        assert len({*digests.values()}) == 3
    np.concatenate([whole[:half]] * 2).tofile(tmp_path / "twice")
    twice = mapped(tmp_path / "twice")
    assert len({*identity.digests_of([twice[:half], twice[half:], whole[:half]]).values()}) == 1


def test_digests_of_fresh_files_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "SETTLED_SECONDS", 1000.0)
    identity.digests_of([mapped(weights_file(tmp_path))])
    assert disk_cache.entries() == []
