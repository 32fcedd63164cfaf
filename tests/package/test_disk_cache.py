"""The cache on disk: what is kept when it is full, and the commands that list and clear it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import opweave as ow
from opweave.cli import app
from opweave.compile import keys
from opweave.compile.engines import Measurement
from opweave.support import disk_cache
from opweave.support.digests import prefix_of
from opweave.support.tuned import has_tuning

KEYS = [f"{number:064x}" for number in range(9)]
FILE_BYTES = 132  # with the digest of 32


@pytest.fixture
def folder(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OPWEAVE_CACHE_BYTES", raising=False)
    return cache_folder


def store(number: int, age: float) -> None:
    assert disk_cache.store(KEYS[number], "o", bytes(100))
    path = disk_cache.directory()
    assert path is not None
    os.utime(path / f"{KEYS[number]}.o", times=(time.time() - age,) * 2)


def kept() -> set[int]:
    return {KEYS.index(entry.key) for entry in disk_cache.entries()}


def test_store_evicts_least_recently_used_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        store(number, age=1000 - number)
    assert kept() == {0, 1, 2, 3}
    assert disk_cache.load(KEYS[0], "o") == bytes(100)  # now it was used last
    monkeypatch.setenv("OPWEAVE_CACHE_BYTES", str(3 * FILE_BYTES + FILE_BYTES // 2))
    store(4, age=0)
    assert kept() == {0, 3, 4}


def test_store_rejects_oversized_entry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(0, age=10)
    monkeypatch.setenv("OPWEAVE_CACHE_BYTES", "99")
    assert not disk_cache.store(KEYS[1], "o", bytes(100))
    assert kept() == {0}
    monkeypatch.setenv("OPWEAVE_CACHE_BYTES", "0")
    assert disk_cache.load_or_make(KEYS[2], lambda: b"made") == b"made"
    assert disk_cache.load(KEYS[2], "o") is None


@pytest.mark.parametrize("value", ["1 GiB", "-1", "many"])
def test_opweave_cache_bytes_rejects_invalid_value(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE_BYTES", value)
    with pytest.raises(ow.ValidationError, match=f"OPWEAVE_CACHE_BYTES must be a number of bytes, got '{value}'"):
        disk_cache.limit()


def test_has_tuning_knows_the_tuned_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = keys.key_of("a model", "a processor", "versions")
    disk_cache.store(KEYS[0], "o", b"")
    assert not has_tuning()
    monkeypatch.setenv("OPWEAVE_CACHE_BYTES", "0")
    assert not disk_cache.store(key, "tuning", b"{}")
    assert not has_tuning()
    monkeypatch.delenv("OPWEAVE_CACHE_BYTES")
    assert disk_cache.store(key, "tuning", b"")
    assert has_tuning()
    assert has_tuning(prefix_of("a model"))
    assert not has_tuning(prefix_of("another model"))
    assert keys.key_of("a model", "a processor", "other versions") != key
    disk_cache.clear()
    assert not has_tuning()
    assert list(folder.iterdir()) == []


def test_disk_cache_leaves_foreign_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(0, age=10)
    names = ["mine.o", "notes.tuning", "0" * 64, f".{KEYS[1]}.o.young"]
    for name in names:
        (folder / name).write_bytes(bytes(1000))
    monkeypatch.setenv("OPWEAVE_CACHE_BYTES", "0")
    disk_cache._evict(folder)
    assert kept() == set()
    disk_cache.clear()
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_disk_cache_deletes_stale_temporary_files(folder: Path) -> None:
    store(0, age=10)
    left = folder / f".{KEYS[1]}.o.abc_123"
    left.write_bytes(b"half")
    os.utime(left, times=(0, 0))
    disk_cache._room.clear()  # as in another process
    store(2, age=0)
    assert not left.exists()


def test_eviction_scans_only_after_many_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    evict = disk_cache._evict

    def noted(new: Path) -> int:
        looked.append(len(list(folder.iterdir())))
        return evict(new)

    monkeypatch.setattr(disk_cache, "_evict", noted)
    monkeypatch.setattr(disk_cache, "SHARE", 2)
    monkeypatch.setattr(disk_cache, "SPARE", 2)
    monkeypatch.setenv("OPWEAVE_CACHE_BYTES", str(6 * FILE_BYTES))
    for number in range(9):
        store(number, age=1000 - number)
    # The first file, after three more, when the limit is reached, and beyond it: then there is room for more.
    assert looked == [1, 4, 6, 7]
    assert kept() == {4, 5, 6, 7, 8}


def test_disk_cache_concurrent_store_and_evict(folder: Path) -> None:
    code = """
import sys
from opweave.support import disk_cache
for turn in range(60):
    key = f"{turn * 7 % 20:064x}"
    assert disk_cache.load_or_make(key, lambda: key.encode() * 2) == key.encode() * 2, turn
    if turn % 20 == 19:
        disk_cache.clear()
"""
    environment = {**os.environ, "OPWEAVE_CACHE_BYTES": "1000"}
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]


def test_cache_commands_list_and_clear(folder: Path) -> None:
    runner = CliRunner()
    (empty,) = runner.invoke(app, ["cache", "list"]).output.splitlines()
    assert empty.startswith(f"0 files, 0 B of 256.0 MiB in {folder}")
    store(0, age=3 * 3600 + 5)
    disk_cache.store(KEYS[1], "tuning", bytes(2000))
    lines = runner.invoke(app, ["cache", "list"]).output.splitlines()
    assert [line.split()[1:] for line in lines[1:3]] == [
        ["tuning", "2.0", "KiB", "0", "minutes", "ago"],
        ["compiled", "expression", "132", "B", "3", "hours", "ago"],
    ]
    assert lines[3:5] == ["compiled expression: 1 file, 132 B", "tuning: 1 file, 2.0 KiB"]
    assert lines[5].startswith("2 files, 2.1 KiB of 256.0 MiB in ")
    found = Measurement("m.onnx", "x [2]", "onnxruntime", {}, {}, 3, "a processor", "opweave 0")
    data = json.dumps({"format": 1, "measured": [asdict(found), asdict(replace(found, subject="x [3]"))]}).encode()
    disk_cache.store(KEYS[1], "tuning", data)
    path = next(entry.path for entry in disk_cache.entries() if entry.key == KEYS[1])
    os.utime(path, (time.time() - 4 * 3600 - 5,) * 2)
    for _ in range(2):  # that they are listed is no use of them
        line = runner.invoke(app, ["cache", "list"], env={"COLUMNS": "100"}).output.splitlines()[2]
        assert line.split()[1:4] == ["tuning", "of", "m.onnx"]
        assert line.split()[-3:] == ["4", "hours", "ago"]
    for options, count in (([], 1), (["--all"], 2)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("opweave.cli.cache.MAX_LISTED", 1)
            lines = runner.invoke(app, ["cache", "list", *options], env={"COLUMNS": "200"}).output.splitlines()
        assert [line.rstrip().endswith(" ago") for line in lines].count(True) == count
        assert ("... and 1 more (--all)" in lines) == (count == 1)
    disk_cache.store(KEYS[1], "tuning", bytes(2000))
    assert runner.invoke(app, ["cache", "clear"]).output == "deleted 2 files, 2.1 KiB\n"
    assert disk_cache.entries() == []
