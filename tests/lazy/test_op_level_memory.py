"""Memory of operations one at a time: memory that nothing refers to is used again, and the total does not grow."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.threads import together

import opweave as ow
from opweave.lazy import force, weights
from opweave.memory import host, pool

SIZE = 4096
BYTES = 4 * SIZE


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pool, "LARGE", BYTES)
    gc.collect()  # what other tests have left would come to the pool at any time
    pool._spare.clear()
    pool._wanted.clear()
    before = ow.lazy.compile_now()
    yield
    ow.lazy.compile_now(before)
    pool._spare.clear()


def address(array: ow.Array) -> int:
    """Where the values of an array lie; computes them."""
    place: int = array.numpy().ctypes.data
    return place


def test_results_reuse_memory_of_freed_results() -> None:
    y = ow.array(np.ones(SIZE, "float32"))
    places = []
    for k in range(12):
        y = y * 0.5 + float(k)
        places.append(address(y))
    assert len(set(places[2:])) == 2
    assert pool.kept_bytes() == BYTES
    expected = 1.0
    for k in range(12):
        expected = expected * 0.5 + k
    assert y.tolist() == [np.float32(expected)] * SIZE


def test_pool_does_not_reuse_viewed_memory() -> None:
    x = ow.array(np.arange(SIZE, dtype="float32"))
    seen = []
    for k in range(6):
        y = x + float(k)
        seen += [y.numpy(), np.from_dlpack(y), y.numpy()[5:][::2], y.numpy().reshape(64, 64).T][k % 4 : k % 4 + 1]
        del y
    for k, view in enumerate(seen):
        expected = np.arange(SIZE, dtype="float32") + k
        np.testing.assert_array_equal(view, [expected, expected, expected[5:][::2], expected.reshape(64, 64).T][k % 4])
    assert pool.kept_bytes() == 0


def test_pool_keeps_nothing_used_once() -> None:
    ow.array(np.ones(SIZE, "float32"))
    ow.array(np.ones(SIZE + 1, "float32"))
    assert pool.kept_bytes() == 0


def test_pool_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ow.array(np.ones(SIZE, "float32"))

    def several() -> None:
        held = [x + float(k) for k in range(5)]
        ow.read(*held)

    several()
    several()
    assert pool.kept_bytes() == 5 * BYTES
    monkeypatch.setattr(pool, "MOST", 2 * BYTES)
    several()
    assert pool.kept_bytes() == 2 * BYTES
    for k in range(2 * pool.AGE):  # others, each once
        ow.array(np.ones(SIZE + 1 + k, "float32"))
    assert pool.kept_bytes() == 0


def test_pool_reuses_intermediates_of_single_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def empty(desc: ow.Desc) -> np.ndarray:
        made.append(desc.byte_length)
        return np.empty(desc.shape, desc.data_type)

    monkeypatch.setattr(host, "empty", empty)
    ow.lazy.compile_now(False)
    y = ow.array(np.ones(SIZE, "float32"))
    for k in range(20):
        y = y * 0.5 + float(k)
    y.numpy()
    assert made.count(BYTES) <= 4


def test_pool_is_shared_by_threads() -> None:
    def work(seed: int) -> None:
        for k in range(150):
            x = ow.array(np.full(SIZE, seed + k, "float32"))
            values = ((x + 1.0) * 2.0).numpy()
            other = (x * 3.0).numpy()
            np.testing.assert_array_equal(values, np.float32((seed + k + 1) * 2))
            np.testing.assert_array_equal(other, np.float32((seed + k) * 3))

    together(*(partial(work, 1000 * k) for k in range(4)))


SOAK = """
import gc, os, sys
import numpy as np
import opweave as ow

count = int(sys.argv[1])
rng = np.random.default_rng(0)
images = [rng.standard_normal((16, 64), dtype="float32") for _ in range(8)]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def work(reads):
    w, b = [ow.array(rng.standard_normal(shape, dtype="float32") * 0.1) for shape in ((64, 64), (64,))]
    done = 0
    while done < reads:
        if done % 400 == 399:
            w = ow.array(rng.standard_normal((64, 64), dtype="float32") * 0.1)
        image = images[done % 8]
        image[0, 0] = done % 5
        y = (ow.ops.matmul(image, w) + b).relu()
        if done % 3 == 0:
            y = y[..., 1:] * float(done % 7)
        a, c = ow.ops.split(y[:, :32], 2)
        held = a if done % 2 else None
        first = y[0, 0].item()
        assert first == (y.numpy()[0, 0]), (first, done)
        done += 1
    return y.numpy().sum()

work(count // 4)
ow.lazy.wait()
gc.collect()
before = resident()
work(count)
ow.lazy.wait()
gc.collect()
print(resident() - before, ow.lazy.statistics.specialised, ow.lazy.statistics.operations + 8 * ow.lazy.statistics.graphs)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says how much memory a process has")
def test_process_memory_stays_flat() -> None:
    ran = subprocess.run([sys.executable, "-c", SOAK, "4000"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    grown, specialised, _ = map(int, ran.stdout.split())
    assert specialised > 0
    assert grown < 8 * 2**20


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says how much memory a process has")
def test_specialised_programs_release_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "VARIANTS", 1000)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def turn() -> int:
        w = ow.array(np.ones((512, 512), "float32"))  # packed, it is another megabyte
        for _ in range(weights.RECURRENCES):
            ow.ops.matmul(np.ones((4, 512), "float32"), w).relu().numpy()
        ((_, entry),) = force.graphs.items()
        assert len(entry.variants) == 1
        entry._needed = weights.RECURRENCES  # as if it were the first time
        gc.collect()  # nodes and their results refer to each other; each version of Python collects them at other times
        return resident()

    def least() -> int:
        """The least memory after one of several turns; other threads and the C library hold more for a while."""
        return min(turn() for _ in range(20))

    force.graphs.clear()
    weights.specialised.clear()
    first = least()
    for _ in range(160):
        turn()
    assert (
        least() - first < 60 * 2**20
    )  # with all that was packed, a megabyte in each turn, it would be at least 160 MB
    assert weights.specialised.statistics.entries == 0
