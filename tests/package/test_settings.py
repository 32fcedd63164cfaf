"""Numbers in environment variables, and files of the cache that hold something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import opweave as ow
from opweave import disk_cache, processors
from opweave.compile import engines
from opweave.expr import limits

SETTINGS: dict[str, Callable[[], object]] = {
    "OPWEAVE_CACHE_BYTES": disk_cache.limit,
    "OPWEAVE_THREADS": processors.chosen_threads,
    limits.NODES_VARIABLE: lambda: limits.limit(limits.NODES_VARIABLE, 1),
    limits.WORK_VARIABLE: lambda: limits.limit(limits.WORK_VARIABLE, 1),
}


@pytest.mark.parametrize(
    "value", ["9" * 5000, "9" * 19, "1_0", "٣", "²", "nan", "inf", "-1", "1.0", "1e3", "0x10", "+1"]
)
@pytest.mark.parametrize("variable", SETTINGS)
def test_settings_reject_what_is_no_number(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ow.ValidationError, match=rf"{variable} must be a (positive integer|number of bytes).*, got '"):
        SETTINGS[variable]()


@pytest.mark.parametrize(("value", "number"), [("7", 7), (" 12 ", 12), ("0012", 12), ("9" * 18, 10**18 - 1)])
@pytest.mark.parametrize("variable", SETTINGS)
def test_settings_are_numbers(variable: str, value: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    assert SETTINGS[variable]() == number


def test_halide_ignores_numbers_of_threads_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("halide")
    from opweave.expr.halide import runtime

    monkeypatch.setenv("OPWEAVE_THREADS", "3")
    for value in ("9" * 5000, "²", "many", "0"):
        monkeypatch.setenv("HL_NUM_THREADS", value)
        assert runtime.default_threads() == 3
    monkeypatch.setenv("HL_NUM_THREADS", "2")
    assert runtime.default_threads() == 2


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"measured":' * 100_000,
        b'{"measured": ' + b"[" * 100_000,
        b"",
        b"\xff",
        b"null",
        b"1" * 5000,
        b'{"measured": 7}',
        b'{"measured": [7]}',
        b'{"measured": [{}]}',
        json.dumps({"measured": "text"}).encode(),
    ],
)
def test_files_of_tuning_that_hold_something_else_count_as_none(
    data: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    key = "a" * 64
    assert disk_cache.store(key, engines.KIND, data)
    assert engines.kept() == []
    assert engines.titles(key) == []
