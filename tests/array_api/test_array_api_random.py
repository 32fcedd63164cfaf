"""Random numbers of the array API: distributions by the test of Kolmogorov and Smirnov, reproducibility, and errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave import array_api as xp

COUNT = 20_000


def distance(values: np.ndarray, distribution: Any) -> float:
    """The largest difference of distribution functions (Kolmogorov and Smirnov)."""
    ordered = np.sort(values.reshape(-1).astype("float64"))
    steps = np.arange(1, ordered.size + 1) / ordered.size
    return float(np.abs(distribution(ordered) - steps).max())


@pytest.mark.parametrize("data_type", ["float32", "float16", "float64"])
def test_uniform_numbers(data_type: str) -> None:
    rng = xp.random.default_rng(1)
    x = rng.random(COUNT, dtype=data_type)
    assert x.pending
    values = x.numpy()
    assert values.dtype == data_type
    assert values.min() >= 0
    assert values.max() < 1
    # The critical value for a probability of 1e-4 is 2.23 / sqrt(n).
    assert distance(values, lambda v: v) < 2.23 / COUNT**0.5
    assert distance(rng.uniform(-3, 5, COUNT, data_type).numpy(), lambda v: (v + 3) / 8) < 2.23 / COUNT**0.5 + 5e-4
    assert len(np.unique(values)) > (1000 if data_type == "float16" else 0.99 * COUNT)


@pytest.mark.parametrize("data_type", ["float32", "float16", "float64"])
def test_normal_numbers(data_type: str) -> None:
    special = pytest.importorskip("scipy.special")
    rng = xp.random.default_rng(2)
    for values, mean, scale in (
        (rng.standard_normal((COUNT // 2, 2), dtype=data_type), 0, 1),
        (rng.normal(3, 0.5, COUNT, data_type), 3, 0.5),
    ):
        numbers = values.numpy()
        assert numbers.dtype == data_type
        assert np.isfinite(numbers).all()
        assert distance(numbers, lambda v, m=mean, s=scale: special.ndtr((v - m) / s)) < 2.23 / COUNT**0.5 + 1e-3


@pytest.mark.parametrize("data_type", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_integers_have_equal_probabilities(data_type: str) -> None:
    rng = xp.random.default_rng(3)
    low, high = (0, 10) if data_type.startswith("u") else (-5, 5)
    values = rng.integers(low, high, COUNT, dtype=data_type).numpy()
    assert values.dtype == data_type
    numbers, counts = np.unique(values, return_counts=True)
    assert numbers.tolist() == list(range(low, high))
    # Chi-squared of 9 degrees: 33.7 for a probability of 1e-4.
    assert ((counts - COUNT / 10) ** 2 / (COUNT / 10)).sum() < 33.7
    assert set(rng.integers(2, size=100, endpoint=True).tolist()) == {0, 1, 2}


def test_integers_of_the_largest_range() -> None:
    values = xp.random.default_rng(4).integers(0, 2**32, COUNT, dtype="uint32").numpy()
    assert distance(values, lambda v: v / 2.0**32) < 2.23 / COUNT**0.5


def test_permutations() -> None:
    rng = xp.random.default_rng(5)
    x = rng.permutation(1000)
    assert sorted(x.tolist()) == list(range(1000))
    assert x.tolist() != list(range(1000))
    firsts = np.array([rng.permutation(3).tolist() for _ in range(300)])
    assert {tuple(row) for row in firsts.tolist()} == {(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)}
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    columns = rng.permutation(xp.asarray(values), axis=1).numpy()
    assert sorted(columns.T.tolist()) == values.T.tolist()
    assert (rng.permutation(0).tolist(), rng.permutation(1).tolist()) == ([], [0])


def test_choice() -> None:
    rng = xp.random.default_rng(6)
    values = rng.choice(xp.asarray([10.0, 20.0, 30.0, 40.0]), COUNT, p=[0.1, 0, 0.6, 0.3]).numpy()
    shares = [(values == number).mean() for number in (10, 20, 30, 40)]
    assert shares[1] == 0
    np.testing.assert_allclose(shares, [0.1, 0, 0.6, 0.3], atol=0.02)
    assert sorted(rng.choice(5, 5, replace=False).tolist()) == [0, 1, 2, 3, 4]
    assert sorted(rng.choice(5, 3, replace=False, p=[0.2, 0, 0.3, 0, 0.5]).tolist()) == [0, 2, 4]
    rows = rng.choice(xp.asarray([[1, 2], [3, 4]]), (2, 3), axis=1)
    assert rows.shape == (2, 2, 3)
    assert rng.choice(7).shape == ()
    assert rng.choice(3, (0,)).tolist() == []
    draws = np.array([rng.choice(3, 1, replace=False, p=[0.7, 0.2, 0.1]).item() for _ in range(500)])
    np.testing.assert_allclose([(draws == k).mean() for k in range(3)], [0.7, 0.2, 0.1], atol=0.08)


def test_equal_seeds_give_equal_numbers_on_all_contexts() -> None:
    reference = ow.ml.create_context(device="reference")
    for draw in (
        lambda rng: rng.random(9),
        lambda rng: rng.integers(0, 100, 9),
        lambda rng: rng.permutation(9),
        lambda rng: rng.choice(9, 5, p=[*[0.1] * 8, 0.2]),
    ):
        first, second, third = (
            xp.random.default_rng(7),
            xp.random.default_rng(7),
            xp.random.default_rng(7, device=reference),
        )
        assert draw(first).tolist() == draw(second).tolist() == draw(third).tolist()
        assert draw(first).tolist() != draw(xp.random.default_rng(8)).tolist()
    assert xp.random.default_rng().seed != xp.random.default_rng().seed


def test_draws_of_a_generator_are_independent() -> None:
    rng = xp.random.default_rng(9)
    a, b = (rng.standard_normal(COUNT).numpy() for _ in range(2))
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / COUNT**0.5


def test_parameters_broadcast() -> None:
    rng = xp.random.default_rng(10)
    low = xp.asarray([[0.0], [10.0]])
    values = rng.uniform(low, low + xp.asarray([1.0, 2.0, 3.0])).numpy()
    assert values.shape == (2, 3)
    assert (values[1] >= 10).all()
    assert rng.normal(low, 1.0, (4, 2, 1)).shape == (4, 2, 1)


ERRORS: list[tuple[Any, str]] = [
    (lambda rng: xp.random.default_rng(-1), "default_rng: seed must be an integer in [0, 2**64), got -1"),
    (lambda rng: xp.random.default_rng(True), "default_rng: seed must be an integer in [0, 2**64), got True"),
    (lambda rng: rng.random(-1), "random: size must be an integer or integers that are not negative, got -1"),
    (lambda rng: rng.random(2.5), "random: size must be an integer or integers that are not negative, got 2.5"),
    (lambda rng: rng.random(2, dtype="int32"), "random: dtype must be a type of floats, got int32"),
    (lambda rng: rng.uniform(0, float("inf")), "uniform: takes finite numbers of float32, got inf"),
    (lambda rng: rng.normal(0, -1), "normal: scale must not be negative, got -1"),
    (lambda rng: rng.normal(0, np.float32(-1)), "normal: scale must not be negative, got -1"),
    (lambda rng: rng.integers(0), "integers: there must be 1 to 2**32 integers, got 0 from 0"),
    (lambda rng: rng.integers(0, 2**33), "integers: there must be 1 to 2**32 integers"),
    (lambda rng: rng.integers(0, 300, dtype="int8"), "integers: int8 does not hold integers from 0 to 299"),
    (lambda rng: rng.integers(1.5), "integers: low and high must be integers, got 1.5"),
    (lambda rng: rng.permutation(xp.asarray(1)), "permutation: takes an integer, or an array of one dimension or more"),
    (lambda rng: rng.choice(0), "choice: there must be something to draw"),
    (lambda rng: rng.choice(3, 4, replace=False), "choice: 4 different parts cannot be drawn of 3 without replacement"),
    (lambda rng: rng.choice(3, 3, replace=False, p=[0.5, 0.5, 0]), "choice: 3 different parts cannot be drawn of 2"),
    (lambda rng: rng.choice(3, p=[0.5, 0.5]), "choice: p must have 3 elements, got the shape [2]"),
    (lambda rng: rng.choice(2, p=[0.5, 0.1]), "choice: p must be probabilities whose sum is 1, got [0.5, 0.1]"),
    (lambda rng: rng.choice(2, p=[1.5, -0.5]), "choice: p must be probabilities whose sum is 1"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ow.ValidationError, match=f"^{re.escape(message)}"):
        call(xp.random.default_rng(0))
