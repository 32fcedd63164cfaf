"""Constants of contractions, which several threads copy in another order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opweave.backends.gpu.constants import GpuConstant
from opweave.backends.gpu.contraction import layout
from opweave.core.dtypes import INFO, numpy_type


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "processors", lambda: request.param)
    monkeypatch.setattr(layout, "PIECE_BYTES", 1000)
    monkeypatch.setattr(layout, "READ_BYTES", 2000)
    monkeypatch.setattr(layout, "MIN_FAR_BYTES", 64)
    monkeypatch.setattr(layout, "BLOCK", (7, 20))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((0, 5), (0, 1)),
        ((3000,), (0,)),
        ((70, 50), (0, 1)),
        ((70, 50), (1, 0)),
        ((1, 50), (1, 0)),
        ((3, 70, 50), (0, 2, 1)),
        ((3, 40, 50), (2, 1, 0)),
        ((2, 3, 40, 50), (1, 3, 0, 2)),
        ((30, 50, 3, 3), (0, 2, 3, 1)),
        ((300, 40, 9), (2, 1, 0)),
    ],
)
def test_arrays_in_any_order(shape: tuple[int, ...], order: tuple[int, ...], data_type: str) -> None:
    source = np.random.default_rng(0).standard_normal(shape).astype(data_type).transpose(order)
    target = np.full((*source.shape[:-1], source.shape[-1] + 3), 7, data_type)
    inside = target[..., : source.shape[-1]]
    layout.copy(inside, source)
    np.testing.assert_array_equal(inside, source)
    assert (target[..., source.shape[-1] :] == 7).all()


@pytest.mark.usefixtures("threads")
def test_copy_transposes_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    transpose = layout._transpose

    def noted(target: np.ndarray, *rest: Any) -> None:
        shapes.append(target.shape)
        transpose(target, *rest)

    monkeypatch.setattr(layout, "_transpose", noted)
    source = np.arange(3 * 70 * 50, dtype=np.float32).reshape(3, 50, 70).transpose(0, 2, 1)
    target = np.zeros(source.shape, np.float32)
    layout.copy(target, source)
    np.testing.assert_array_equal(target, source)
    assert max(shapes) == (1, 7, 20)
    assert sum(map(np.prod, shapes)) == source.size


def test_small_constants_are_transposed_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "processors", lambda: 3)
    monkeypatch.setattr(layout, "ThreadPoolExecutor", None)
    source = np.arange(3 * 70 * 300, dtype=np.float32).reshape(3, 70, 300).transpose(0, 2, 1)
    target = np.zeros(source.shape, np.float32)
    layout.copy(target, source)
    np.testing.assert_array_equal(target, source)


@pytest.mark.usefixtures("threads")
def test_split_returns_remainder() -> None:
    array = np.random.default_rng(0).standard_normal((40, 50), np.float32)
    found = array.copy()
    rest = layout.split(found, np.floor)
    np.testing.assert_array_equal(found, np.floor(array))
    np.testing.assert_array_equal(rest, array - np.floor(array))


@pytest.mark.parametrize("names", ["kept, rest", "rest, kept", "kept, kept, rest"])
def test_in_parts_computes_parts_on_request(names: str) -> None:
    array = np.random.default_rng(0).standard_normal((4, 5), np.float32)
    wanted = {"kept": np.floor(array), "rest": array - np.floor(array)}
    calls = []

    def copied(array: np.ndarray) -> np.ndarray:
        calls.append(1)
        return array.copy()

    parts = dict(zip(("kept", "rest"), layout.in_parts(GpuConstant.of(array).then(copied), np.floor), strict=True))
    assert parts["kept"].key != parts["rest"].key
    assert calls == []
    for name in names.split(", "):
        np.testing.assert_array_equal(parts[name].make(), wanted[name])
    assert len(calls) == names.count("kept")


def test_keys_of_different_types_and_shapes_differ() -> None:
    raw = np.arange(6, dtype=np.uint8)
    narrow = [numpy_type(data_type) for data_type, info in INFO.items() if info.bits <= 8]
    sources = [raw.view(dtype).reshape(shape) for dtype in narrow for shape in ((2, 3), (3, 2))]
    assert len({GpuConstant.of(source).then(np.transpose).key for source in sources}) == len(sources)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("value", [np.nan, np.inf, -5, 5])
def test_bounds(value: float) -> None:
    array = np.random.default_rng(0).uniform(-1, 1, (40, 50)).astype(np.float32)
    assert layout.all_below(array, 2)
    array[33, 17] = value
    assert not layout.all_below(array, 5)
