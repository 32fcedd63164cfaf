"""Numbers in environment variables, and files of the cache that hold something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.onnx import model, node

import opweave as ow
from opweave.cli import inputs
from opweave.compile import engines
from opweave.expr import limits
from opweave.support import disk_cache, processors

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
def test_settings_reject_invalid_numbers(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ow.ValidationError, match=rf"{variable} must be a (positive integer|number of bytes).*, got '"):
        SETTINGS[variable]()


@pytest.mark.parametrize(("value", "number"), [("7", 7), (" 12 ", 12), ("0012", 12), ("9" * 18, 10**18 - 1)])
@pytest.mark.parametrize("variable", SETTINGS)
def test_settings_are_numbers(variable: str, value: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    assert SETTINGS[variable]() == number


def test_halide_ignores_invalid_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_invalid_tuning_file_is_ignored(data: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    key = "a" * 64
    assert disk_cache.store(key, engines.KIND, data)
    assert engines.kept_measurements() == []
    assert engines.titles(key) == []


@pytest.mark.parametrize("size", ["9" * 5000, "9" * 19, "2147483648", "0", "-1", "1_0", "٣", "²", "nan", "1.5", ""])
def test_sizes_on_the_command_line_are_numbers(size: str) -> None:
    for text in (f"n={size}", f"x={size}x3", f"x=3x{size}"):
        with pytest.raises(ow.ValidationError, match="must be NAME=SIZE, as in batch=1, or INPUT=SIZExSIZE"):
            inputs.sizes([text])
    assert inputs.sizes(["n=2147483647", "x=1x2"]) == {"n": 2147483647, "x": [1, 2]}


@pytest.mark.parametrize("count", ["9" * 5000, "-1", "1_0", "²", "nan", ""])
def test_limits_on_the_command_line_are_numbers(count: str) -> None:
    with pytest.raises(ow.ValidationError, match="must be NAME=COUNT"):
        inputs.limits([f"nodes={count}"])


@pytest.mark.parametrize(
    "shape", [(2**31, 3), (2**64,), (10**5000,), (2**20, 2**20), (-1,)], ids=lambda shape: str(len(shape))
)
def test_random_values_of_large_shapes_are_refused(shape: tuple[int, ...]) -> None:
    proto = model([node("Relu", "x", "y")], {"x": "float32"}, {"y": "float32"}, opset=17)
    (argument,) = ow.InferenceSession(proto.SerializeToString())._parts.inputs
    with pytest.raises(ow.ValidationError, match="input 'x' must have at most 2147483647 elements, got the shape"):
        argument.random(shape, np.random.default_rng(0))
