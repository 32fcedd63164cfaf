"""Where memory comes from, and weights that lie in files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import opweave as ow
from opweave import memory

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which memory shows a file")


def stored(path: Path, mode: Literal["r", "r+", "c"] = "r") -> np.ndarray:
    np.save(path, np.arange(10000, dtype="float32"))
    array: np.ndarray = np.load(path, mmap_mode=mode)
    return array


@linux
def test_arrays_are_found_in_their_files(tmp_path: Path) -> None:
    path = tmp_path / "with space.npy"
    part = stored(path)[1000:3000].reshape(20, 100)
    found = memory.find_in_files(part, memory.mapped_files([part]))
    assert found is not None
    assert found[0] == str(path)
    assert np.fromfile(path, "float32", 2000, offset=found[1]).tolist() == part.ravel().tolist()


@linux
def test_find_in_files_rejects_changed_or_replaced_files(tmp_path: Path) -> None:
    own = np.zeros(10000, "float32")
    changed = stored(tmp_path / "changed.npy", "c")
    changed[:] = 1
    deleted = stored(tmp_path / "deleted.npy")
    (tmp_path / "deleted.npy").unlink()
    replaced = stored(tmp_path / "replaced.npy")
    (tmp_path / "new.npy").write_bytes(bytes(100000))
    (tmp_path / "new.npy").rename(tmp_path / "replaced.npy")
    arrays = own, changed, deleted, replaced
    regions = memory.mapped_files(arrays)
    for array in arrays:
        assert memory.find_in_files(array, regions) is None


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_graphs_use_weights_in_files(tmp_path: Path, mode: Literal["r", "r+", "c"]) -> None:
    weights = stored(tmp_path / "weights.npy", mode)
    if mode == "c":
        weights += 1
    context = ow.ml.create_context()
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [100])
    w = builder.constant(weights.reshape(100, 100))
    graph = builder.build({"y": builder.add(builder.transpose(w), x)})
    got = context.compute(graph, {"x": np.zeros(100, "float32")})["y"]
    assert (got == weights.reshape(100, 100).T).all()
