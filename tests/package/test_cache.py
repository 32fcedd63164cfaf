"""The cache: what its keys tell apart, what it drops, and that threads may share it."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import ml_dtypes
import numpy as np
import pytest

import opweave as ow
from opweave.support.cache import Cache, exact

NAN = float("nan")


class Pair(NamedTuple):
    """A tuple with a name."""

    scale: Any
    shift: Any = 0


@dataclass(frozen=True)
class Options:
    """Attributes of an operation in one object."""

    scale: Any


class Thing:
    """An object that is equal to nothing but itself."""


DIFFERENT: dict[str, tuple[Any, ...]] = {
    "one": (1, True, 1.0, complex(1), np.float32(1), np.float64(1), np.int64(1), np.bool_(True), "1", b"1"),
    "zero": (
        0,
        False,
        0.0,
        -0.0,
        np.float32(0),
        np.float32(-0.0),
        0j,
        complex(-0.0, 0.0),
        complex(0.0, -0.0),
        None,
        "",
    ),
    "precision": (0.1, np.float32(0.1), np.float64(0.1), np.float16(0.1)),
    "nan": (NAN, np.float32(NAN), "nan"),
    "tuple": ((1, 2), (True, 2), (1.0, 2), [1, 2], (1, (2,)), (1,), ((), ()), ((),), ()),
    "sign": ((0.0,), (-0.0,), [0.0], [-0.0], ((0.0,),), ((-0.0,),)),
    "named": (Pair(1), Pair(True), Pair(1.0), Pair(0.0), Pair(-0.0), (1, 0)),
    "dataclass": (Options(1), Options(True), Options(0.0), Options(-0.0), Options((1,)), Options((True,))),
    "frozen set": (frozenset({1}), frozenset({True}), frozenset({0.0}), frozenset({-0.0})),
    "array": (np.float32([0]), np.float32([-0.0]), np.int32([0]), np.float32([[0]]), np.zeros(2, np.float32)),
    "narrow array": (np.zeros(2, ml_dtypes.int4), np.zeros(2, ml_dtypes.uint4), np.zeros(2, np.uint8)),
}
"""Values that are not the same, although many of them are equal."""


@pytest.mark.parametrize("name", DIFFERENT)
def test_cache_distinguishes_equal_values_of_different_types(name: str) -> None:
    values = DIFFERENT[name]
    cache: Cache[Any, int] = Cache()
    for number, value in enumerate(values):
        cache.put(value, number)
    assert [cache.get(value) for value in values] == list(range(len(values)))
    assert cache.statistics == (len(values), 0, len(values), 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: float("nan"),
        lambda: np.float32("nan"),
        lambda: (1, [2.5, "x"]),
        lambda: Pair(0.5),
        lambda: np.float32([1]),
    ],
)
def test_keys_of_the_same_values_are_equal(make: Callable[[], Any]) -> None:
    cache: Cache[Any, str] = Cache()
    cache.put(make(), "known")
    assert cache.get(make()) == "known"
    assert make() in cache


def test_cache_evicts_least_recently_used() -> None:
    cache: Cache[str, str] = Cache(max_entries=3)
    for name in "abc":
        cache.put(name, name)
    assert cache.get("a") == "a"
    assert cache.peek(exact("b")) == "b"  # no use
    cache.put("d", "d")
    assert [value for _, value in cache.items()] == ["c", "a", "d"]
    cache.max_entries = 1
    cache.put("e", "e")
    assert [value for _, value in cache.items()] == ["e"]


def test_bytes_are_bounded() -> None:
    dropped: list[str] = []
    cache: Cache[str, str] = Cache(max_bytes=10, on_drop=dropped.append)
    for name, size in {"a": 4, "b": 4, "c": 2}.items():
        cache.put(name, name, size)
    assert cache.statistics.bytes == 10
    cache.get("a")
    cache.put("d", "d", 3)
    assert dropped == ["b"]
    assert cache.statistics == (3, 9, 1, 0)
    cache.put("d", "D", 1)  # in place of the one before
    assert dropped == ["b", "d"]
    assert cache.statistics.bytes == 7
    assert cache.pop("a") == "a"
    assert cache.statistics.bytes == 3
    cache.clear()
    assert dropped == ["b", "d", "c", "D"]
    assert cache.statistics == (0, 0, 0, 0)


def test_cache_does_not_keep_oversized_entry() -> None:
    dropped: list[str] = []
    cache: Cache[str, str] = Cache(max_bytes=10, on_drop=dropped.append)
    cache.put("small", "small", 10)
    assert cache.put("large", "large", 11) == "large"
    assert dropped == ["large"]
    assert cache.get("large") is None
    assert cache.get("small") == "small"
    assert cache.put("small", "grown", 11) == "grown"  # what was there before is wrong now
    assert cache.statistics[:2] == (0, 0)


def test_cache_makes_unhashable_key_each_time() -> None:
    cache: Cache[Any, object] = Cache()
    made = [cache.make(({"a": 1},), object) for _ in range(2)]
    assert made[0] is not made[1]
    assert cache.statistics == (0, 0, 0, 0)
    with pytest.raises(TypeError, match="unhashable"):
        cache.get({"a": 1})


def test_errors_are_not_kept() -> None:
    cache: Cache[str, int] = Cache()
    with pytest.raises(ZeroDivisionError):
        cache.make("x", lambda: 1 // 0)
    assert cache.make("x", lambda: 1, size=lambda value: value + 6) == 1
    assert cache.make("x", lambda: 2) == 1
    assert cache.statistics == (1, 7, 1, 2)


def test_keys_hold_objects_weakly() -> None:
    cache: Cache[Any, str] = Cache()
    thing, other = Thing(), Thing()
    cache.put(("a", thing), "its")
    cache.put(("a", other), "the other's")
    assert cache.get(("a", thing)) == "its"
    gone = ref(thing)
    del thing
    gc.collect()
    assert gone() is None
    cache.put("more", "more")
    assert [value for _, value in cache.items()] == ["the other's", "more"]


def test_cache_waiting_threads_share_the_result() -> None:
    cache: Cache[str, int] = Cache()
    made: list[int] = []
    barrier = threading.Barrier(8)

    def work(number: int) -> int:
        barrier.wait()
        with cache.turn("x"):
            known = cache.get("x")
            if known is None:
                made.append(number)
                known = cache.put("x", number)
        return known

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(work, range(8)))
    assert found == set(made)
    assert len(made) == 1


def test_threads_share_a_cache() -> None:
    cache: Cache[int, tuple[int, int]] = Cache(max_entries=20, max_bytes=100)

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for key in map(int, generator.integers(0, 60, 2000)):
            value = key, key % 13
            assert cache.make(key, partial(tuple, value), lambda made: made[1]) == value
            if key % 7 == seed:
                cache.pop(key)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    entries, bytes, hits, misses = cache.statistics
    assert entries <= 20
    assert bytes == sum(value[1] for _, value in cache.items()) <= 100
    assert hits + misses == 8000


# ---------------------------------------------------------------------------------------------------------------------
# Values that compare equal but give other results

ALIKE = {
    "complex": (0j, complex(0.0, -0.0)),
    "named tuple, zeros": (Pair(0.0), Pair(-0.0)),
    "named tuple, true": (Pair(1), Pair(True)),
    "frozen set": (frozenset({1}), frozenset({True})),
    "dataclass, zeros": (Options(0.0), Options(-0.0)),
    "dataclass, true": (Options(1), Options(True)),
    "tuple": ((1, 0.0), (True, -0.0)),
    "numpy": (np.float32(0.0), np.float32(-0.0)),
    "float": (0.0, -0.0),
    "true": (1, True),
}
"""Pairs of values that are equal, and not the same."""

X = np.float32([1, 2])


def number_of(value: Any) -> float:
    """A number that tells the values of `ALIKE` apart."""
    if isinstance(value, frozenset):
        value = next(iter(value))
    if isinstance(value, tuple):
        return sum(3**k * number_of(item) for k, item in enumerate(value))
    if isinstance(value, Options):
        value = value.scale
    if isinstance(value, bool):
        return 5
    return math.copysign(2, value.imag if isinstance(value, complex) else value)


@pytest.mark.parametrize("name", ALIKE)
def test_expressions_on_arrays_know_their_attributes(name: str) -> None:
    @ow.expression
    def scaled(x: Any, *, by: Any = None) -> Any:
        return x * number_of(by)

    for value in (*ALIKE[name], *ALIKE[name]):
        np.testing.assert_array_equal(scaled(X, by=value), X * number_of(value))


@pytest.mark.parametrize("name", ALIKE)
def test_deferred_operations_know_their_attributes(name: str) -> None:
    @ow.expression
    def scaled(x: Any, *, by: Any = None) -> Any:
        return x * number_of(by)

    for value in (*ALIKE[name], *ALIKE[name]):
        np.testing.assert_array_equal(scaled(ow.array(X), by=value), X * number_of(value))


@pytest.mark.parametrize("name", ALIKE)
def test_graphs_know_the_attributes_of_operations(name: str) -> None:
    @ow.expression
    def scaled(x: Any, *, by: Any = None) -> Any:
        return x * number_of(by)

    context = ow.ml.create_context()
    for value in ALIKE[name]:
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": scaled(builder.input("x", "float32", X.shape), by=value)})
        np.testing.assert_array_equal(context.compute(graph, {"x": X})["y"], X * number_of(value))


@pytest.mark.parametrize("name", ALIKE)
def test_functions_know_their_static_arguments(name: str) -> None:
    @ow.jit(static=("by",))
    def scaled(x: Any, by: Any) -> Any:
        return x * number_of(by)

    for value in (*ALIKE[name], *ALIKE[name]):
        np.testing.assert_array_equal(scaled(X, value), X * number_of(value))
    assert scaled.cache_info()[:2] == (2, 2)


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_numbers_beside_arrays_keep_their_sign(value: float) -> None:
    for zero in (0.0, value, -value):
        assert math.copysign(1, (ow.array([-0.0]) + zero).numpy()[0]) == math.copysign(1, -0.0 + zero)


def test_indices_tell_one_from_true() -> None:
    x = ow.array(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert x[1].tolist() == [3, 4, 5]
    with pytest.raises(ow.ValidationError, match="True"):
        x[True]
