"""Composites of mathematics and random numbers with CUDA against the reference, on a GPU or the processor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave import composites

pytestmark = pytest.mark.long

REFERENCE = ow.ml.create_context(device="reference")
RNG = np.random.default_rng(0)


def results(build: Callable[[], Any], context: ow.MLContext) -> np.ndarray:
    with context:
        return np.asarray(build())


def agree(device_context: ow.MLContext, build: Callable[[], Any], tolerance: float = 0.0) -> None:
    """Compare the results of a call on both contexts; relative to the largest, if there is a tolerance."""
    ours, theirs = results(build, device_context), results(build, REFERENCE)
    finite = np.abs(theirs[np.isfinite(theirs)]).max(initial=0) if theirs.dtype.kind == "f" else 0
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * float(finite))


WIDE = np.concatenate([np.exp(RNG.uniform(-80, 88, 500)), RNG.uniform(-5, 5, 500), [0, -0.0, np.inf, -np.inf, np.nan]])
FUNCTIONS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf_inv", "expm1", "log1p", "sinh")


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_one_number(device_context: ow.MLContext, name: str, data_type: str) -> None:
    with np.errstate(over="ignore"):
        x = WIDE.astype(data_type)
    ours, theirs = (results(lambda: getattr(composites, name)(x), c) for c in (device_context, REFERENCE))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6 if data_type == "float32" else 1e-3, atol=1e-37)
    is_number = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.signbit(ours)[is_number], np.signbit(theirs)[is_number])


@pytest.mark.parametrize("data_type", ["int32", "uint32", "int64", "uint64", "int8", "uint8"])
def test_bits(device_context: ow.MLContext, data_type: Any) -> None:
    info = np.iinfo(data_type)
    a, b = (RNG.integers(info.min, info.max, (7, 5), data_type, endpoint=True) for _ in range(2))
    distance = RNG.integers(0 if info.min == 0 else -3, info.bits + 4, (7, 1)).astype(data_type)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        agree(device_context, partial(getattr(composites, name), a, b))
    agree(device_context, lambda: composites.bitwise_not(a))
    for name in ("shift_left", "shift_right"):
        agree(device_context, partial(getattr(composites, name), a, distance))


def test_bits_of_floats(device_context: ow.MLContext) -> None:
    x = WIDE[:-1].astype("float32")
    for target in ("int32", "uint32"):
        agree(device_context, partial(composites.bit_cast, x, target))
        agree(device_context, partial(composites.bit_cast, x.view(target), "float32"))


def test_remainders_of_floats_are_exact(device_context: ow.MLContext) -> None:
    a, b = (RNG.integers(0, 2**32, 2000, np.uint32).view(np.float32) for _ in range(2))
    remainder = ow.expression(lambda a, b: ow.expr.apply("fmod", a, b))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(results(lambda: remainder(a, b), device_context), np.fmod(a, b))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reversed", [False, True])
def test_cumulative_products(device_context: ow.MLContext, exclusive: bool, reversed: bool) -> None:
    x = RNG.uniform(-2, 2, (3, 17, 2)).astype("float32")
    for axis in range(3):
        call: dict[str, Any] = {"axis": axis, "exclusive": exclusive, "reversed": reversed}
        agree(device_context, partial(composites.cumulative_product, x, **call), 1e-6)


def test_matrices(device_context: ow.MLContext) -> None:
    x = RNG.uniform(-1, 1, (2, 3, 5, 5)).astype("float32") + np.roll(np.eye(5, dtype="float32") * 4, 2, 0)
    agree(device_context, lambda: composites.det(x), 1e-5)
    agree(device_context, lambda: composites.inverse(x), 1e-5)


@pytest.mark.parametrize("length", [5, 60, 521, 625, 1030])
def test_fourier_transforms(device_context: ow.MLContext, length: int) -> None:
    x = RNG.uniform(-1, 1, (2, length, 2)).astype("float32")
    agree(device_context, lambda: composites.dft(x), 2e-6)
    agree(device_context, lambda: composites.dft(x, inverse=True), 2e-6)
    agree(device_context, lambda: composites.dft(x[..., :1], onesided=True), 2e-6)
    agree(device_context, lambda: composites.stft(x[..., :1], step=7, frame_length=min(length, 48)), 2e-6)


def test_random_numbers_have_the_same_bits(device_context: ow.MLContext) -> None:
    key = np.uint32([123456789, 4000000000, 7, 3])
    agree(device_context, lambda: composites.random_uniform(key, [7, 43]))
    agree(device_context, lambda: composites.bernoulli(np.full(99, 0.3, "float32"), key))
    agree(device_context, lambda: composites.random_normal(key, [301]), 1e-6)
    agree(device_context, lambda: composites.multinomial(np.zeros((2, 9), "float32"), key, 50))
