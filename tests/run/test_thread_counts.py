"""Threads of operations: as asked for, else as the environment says, else as the process and its container may.

The memory that a container may use is tested here, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import opweave as ow
from opweave.backends.isolation import available
from opweave.compile import fuse
from opweave.expr import kernels
from opweave.memory.host import physical
from opweave.support import control_groups
from opweave.support.control_groups import free_memory, memory_limit, processor_limit
from opweave.support.processors import processors

COUNT = """
import os, threading, time
import numpy as np, onnxruntime, opweave as ow  # the engine's library has a thread, too
context = ow.ml.create_context(device="cpu", threads={threads})
builder = ow.MLGraphBuilder(context)
x = builder.input("x", "float32", [256, 256])
before = set(os.listdir("/proc/self/task"))
graph = builder.build({{"y": builder.matmul(x, builder.constant(np.ones((256, 256), "float32")))}})
context.compute(graph, {{"x": np.ones((256, 256), "float32")}})
while any(thread.name == "opweave.support.progress" for thread in threading.enumerate()):  # ends a second after a compilation
    time.sleep(0.1)
deadline = time.monotonic() + 60
while (count := 1 + len(set(os.listdir("/proc/self/task")) - before)) > {expected} and time.monotonic() < deadline:
    time.sleep(0.01)  # threads that were joined may still be listed
print(count)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(("threads", "variable", "expected"), [(3, "", 3), (None, "3", 3), (1, "3", 1), (None, "1", 1)])
def test_operations_use_so_many_threads(threads: int | None, variable: str, expected: int) -> None:
    environment = {**os.environ, "OPWEAVE_THREADS": variable}
    code = COUNT.format(threads=threads, expected=expected)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == expected


def test_contexts_with_the_same_number_share_compiled_programs() -> None:
    one, other, two = (ow.ml.create_context(device="cpu", threads=count) for count in (1, 1, 2))
    assert one.backend is other.backend
    assert one._place == other._place != two._place
    assert [context.backend.threads for context in (one, two)] == [1, 2]


@pytest.mark.parametrize("threads", [0, -1, 1.0, True, "2", [1]])
def test_threads_must_be_a_positive_integer(threads: object) -> None:
    with pytest.raises(ow.ValidationError, match="threads must be a positive integer or None, got"):
        ow.ml.create_context(threads=threads)


def test_number_of_threads_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that starts 100,000 threads takes minutes, and 13 GiB."""
    with pytest.raises(ow.ValidationError, match="threads must be at most 1024, got 1025"):
        ow.ml.create_context(threads=1025)
    monkeypatch.setenv("OPWEAVE_THREADS", "100000")
    with pytest.raises(ow.ValidationError, match="threads must be at most 1024, got 100000"):
        ow.ml.create_context()


@pytest.mark.parametrize("text", ["0", "-2", "two", "1.5"])
def test_opweave_threads_rejects_invalid_value(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_THREADS", text)
    with pytest.raises(ow.ValidationError, match=f"OPWEAVE_THREADS must be a positive integer, got '{text}'"):
        ow.ml.create_context()


def test_threads_are_accepted_by_devices_without_threads() -> None:
    context = ow.ml.create_context(device="reference", threads=2)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.input("x", "float32", [2]).relu()})
    assert context.compute(graph, {"x": np.float32([-1, 1])})["y"].tolist() == [0, 1]


# ---------------------------------------------------------------------------------------------------------------------
# Containers


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


QUOTAS = {
    "version 2, inside": ("0::/", {"cpu.max": "150000 100000"}, 1.5),
    "version 2, a service": ("0::/a/b", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, 4.0),
    "version 2, the smallest counts": ("0::/a/b", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "300000 100000"}, 1.0),
    "version 2, the path of the host": ("0::/kubepods/pod", {"cpu.max": "50000 100000"}, 0.5),
    "version 2, no limit": ("0::/a", {"a/cpu.max": "max 100000"}, float("inf")),
    "version 1": (
        "4:memory:/x\n1:cpu,cpuacct:/x\n0::/",
        {"cpu/x/cpu.cfs_quota_us": "200000", "cpu/x/cpu.cfs_period_us": "100000"},
        2.0,
    ),
    "version 1, inside": (
        "1:cpu:/docker/1",
        {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"},
        0.5,
    ),
    "version 1, no limit": (
        "1:cpu:/",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        float("inf"),
    ),
    "nonsense": ("0::/", {"cpu.max": "many"}, float("inf")),
}


@pytest.mark.parametrize(("membership", "files", "expected"), QUOTAS.values(), ids=QUOTAS)
def test_limits_of_containers_are_read(membership: str, files: dict[str, str], expected: float, tmp_path: Path) -> None:
    write(tmp_path, {"membership": membership})
    write(tmp_path / "root", files)
    assert processor_limit(tmp_path / "root", tmp_path / "membership") == expected


MEMORY = {
    "version 2, inside": (
        "0::/",
        {"memory.max": "900", "memory.current": "700", "memory.stat": "file 60\ninactive_file 50\n"},
        (900, 250),
    ),
    "version 2, a service": (
        "0::/a/b",
        {"a/b/memory.max": "max", "a/memory.max": "900", "a/memory.current": "950", "a/memory.stat": ""},
        (900, 0),
    ),
    "version 1": (
        "4:memory:/x\n1:cpu:/x\n0::/",
        {
            "memory/x/memory.limit_in_bytes": "500",
            "memory/x/memory.usage_in_bytes": "100",
            "memory/x/memory.stat": "inactive_file 9\ntotal_inactive_file 20\n",
            "memory/memory.limit_in_bytes": "9223372036854771712",
        },
        (500, 420),
    ),
    "no limit": ("0::/a", {"a/memory.max": "max", "a/memory.current": "7"}, (float("inf"), float("inf"))),
}


@pytest.mark.parametrize(("membership", "files", "expected"), MEMORY.values(), ids=MEMORY)
def test_memory_of_containers_is_read(
    membership: str, files: dict[str, str], expected: tuple[float, float], tmp_path: Path
) -> None:
    write(tmp_path, {"membership": membership})
    write(tmp_path / "root", files)
    places = tmp_path / "root", tmp_path / "membership"
    assert (memory_limit(*places), free_memory(*places)) == expected


def test_physical_memory_is_that_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches of freed results and of weights take shares of it."""
    whole = physical()
    monkeypatch.setattr(control_groups, "memory_limit", lambda: 2.0**30)
    monkeypatch.setattr(control_groups, "free_memory", lambda: 2.0**20)
    assert (physical(), available()) == (min(whole, 2**30), 2**20)


def test_container_limit_without_control_groups(tmp_path: Path) -> None:
    for limit in (processor_limit, memory_limit, free_memory):
        assert limit(tmp_path, tmp_path / "missing") == float("inf")


@pytest.mark.parametrize(
    ("limit", "expected"), [(0.2, 1), (1.0, 1), (1.5, 2), (3.0, 3), (1000.0, 4), (float("inf"), 4)]
)
def test_processors_are_within_the_limit(limit: float, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(control_groups, "processor_limit", lambda: limit)
    assert processors() == expected


@pytest.mark.skipif(not kernels.has_halide(), reason="the extra halide is not installed")
def test_fusion_between_convolutions_depends_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_compiled", lambda: True)
    monkeypatch.setattr(fuse, "MIN_ELEMENTS", 100)
    monkeypatch.setattr(fuse, "MIN_SAVED_BY_THREAD", 4 * 512 // 2)  # a chain of 5 operations saves 4 times its elements

    def has_loop(threads: int) -> bool:
        builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", backend="onnxruntime", threads=threads))
        weights = builder.constant(np.ones((2, 2, 1, 1), "float32"))
        y = builder.conv2d(builder.input("x", "float32", [1, 2, 16, 16]), weights)
        y = builder.max_pool2d(y, window_dimensions=[1, 1])  # convolutions take what follows them
        graph = builder.build({"z": builder.conv2d(((y * 1.5 + 2) * y - 3) * 0.5, weights)})
        return any(placement.how == "expression" for placement in graph.placements())

    assert [has_loop(threads) for threads in (1, 2, 3, 16)] == [True, True, False, False]
