"""Functions of `opweave.array_api` at the ends of the ranges of float16 and float32, against NumPy's float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.every_device import DEVICES, context_on

from opweave import array_api as xp

HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)
HALVES = HALVES[~np.isnan(HALVES)]

UNARY = (
    *(
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cosh",
        "exp",
        "expm1",
        "log",
        "log10",
        "log1p",
        "log2",
        "sinh",
    ),
    *("sqrt", "tanh"),
)


def places(ours: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Differences in units of the last place; infinite where one is NaN or infinite, and the other is something else."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(ours.dtype)
        place = np.spacing(np.maximum(np.abs(nearest), np.finfo(ours.dtype).smallest_normal)).astype("float64")
        apart = np.abs(ours.astype("float64") - exact) / place
    agrees = (np.isnan(ours) & np.isnan(nearest)) | (ours == nearest)
    is_special = ~np.isfinite(ours) | ~np.isfinite(nearest)
    return np.where(agrees, 0, np.where(is_special, np.inf, apart))


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_all_halves_are_correctly_rounded(name: str, device: str) -> None:
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(HALVES.astype("float64"))
    with context_on(device):
        ours = getattr(xp, name)(xp.asarray(HALVES)).numpy()
    assert ours.dtype == np.float16
    assert places(ours, exact).max() < 0.51
    is_number = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(ours)[is_number], np.signbit(exact)[is_number])


@pytest.mark.parametrize("name", ["atan2", "hypot", "logaddexp"])
def test_functions_of_two_halves_are_correctly_rounded(name: str) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.choice(HALVES, 40000), rng.choice(HALVES, 40000)
    with np.errstate(all="ignore"):
        exact = getattr(np, {"atan2": "arctan2"}.get(name, name))(a.astype("float64"), b.astype("float64"))
    ours = getattr(xp, name)(xp.asarray(a), xp.asarray(b)).numpy()
    assert places(ours, exact).max() < 0.51


@pytest.mark.parametrize("name", ["cosh", "expm1", "log1p", "sinh"])
def test_float32_functions_at_range_limits(name: str) -> None:
    ends = [np.inf, 89.5, 89.4, 89.3, 88.8, 88.7, 88.0, 31, 30.1, 29.9, 20.1, 19.9, 17.4, 1e-3, 1e-10, 1e-37, 0, 3e38]
    values = np.float32([*ends, *(-np.array(ends)), -0.9999999, -1, -1.5])
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(values.astype("float64"))
    assert places(getattr(xp, name)(xp.asarray(values)).numpy(), exact).max() < 4


def divided(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Dividends and divisors of all sizes, and of all combinations of special ones."""
    rng = np.random.default_rng(3)
    if dtype == "float16":
        a, b = rng.choice(HALVES, 60000), rng.choice(HALVES, 60000)
    else:
        a, b = (rng.standard_normal(60000) * 2.0 ** rng.integers(-100, 100, 60000) for _ in range(2))
        b[:30000] = a[:30000] * 2.0 ** rng.uniform(-30, 2, 30000)
    special: list[Any] = [
        0.0,
        -0.0,
        1,
        -1,
        3,
        -7,
        0.1,
        -0.3,
        np.inf,
        -np.inf,
        np.nan,
        np.finfo(dtype).max,
        np.finfo(dtype).smallest_normal,
    ]
    c, d = np.repeat(special, len(special)), np.tile(special, len(special))
    return np.concatenate([a, c]).astype(dtype), np.concatenate([b, d]).astype(dtype)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_remainder_and_floor_divide_agree_with_numpy(dtype: Any, device: str) -> None:
    a, b = divided(dtype)
    x, y = a.astype("float64"), b.astype("float64")
    with np.errstate(all="ignore"):
        exact, whole = np.remainder(x, y).astype(dtype), np.floor_divide(x, y)
        ratio = np.abs(x / y)
    with context_on(device):
        rest, quotient = (f(xp.asarray(a), xp.asarray(b)).numpy() for f in (xp.remainder, xp.floor_divide))
    np.testing.assert_array_equal(np.isnan(rest), np.isnan(exact))
    is_number = ~np.isnan(exact)
    assert (np.abs(rest) <= np.abs(b))[is_number].all()
    assert (np.signbit(rest) == np.signbit(b))[is_number].all()
    # The standard's results for infinities differ from NumPy's.
    rows = is_number & ~np.isinf(b) & (ratio < 2.0**24 if dtype == "float32" else True)
    if dtype == "float16":
        np.testing.assert_array_equal(rest[is_number], exact[is_number])
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(quotient[rows], whole[rows].astype(dtype))
        return
    difference = np.abs(rest[rows].astype("float64") - exact[rows])
    around = np.minimum(difference, np.abs(y[rows]) - difference)
    assert (around <= np.abs(x[rows]) * 2.0**-23).all()
    np.testing.assert_allclose(quotient[rows], whole[rows], rtol=2.0**-22, atol=1)
    small = rows & (ratio < 2.0**10) & (around_integer(ratio) > 2.0**-12)
    np.testing.assert_array_equal(quotient[small], whole[small])


def around_integer(ratio: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.abs(ratio - np.round(ratio))


@pytest.mark.parametrize("device", DEVICES)
def test_var_and_std_of_halves_do_not_overflow(device: str) -> None:
    x = np.tile(np.float16([250, -250, 100, -100]), 64).reshape(4, 64)
    with context_on(device):
        assert xp.var(xp.asarray(x)).item() == np.float16(np.var(x.astype("float64")))
        assert xp.var(xp.asarray(x), axis=1, keepdims=True).shape == (4, 1)
        assert xp.std(xp.asarray(x * np.float16(16)), axis=0).dtype == np.float16
        np.testing.assert_array_equal(
            xp.std(xp.asarray(x * np.float16(16)), axis=1), np.std(x.astype("float64") * 16, axis=1).astype("float16")
        )
