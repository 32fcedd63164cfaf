"""Compositions beyond the specification: the engine's kernels against decompositions, and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.graphs import run

import opweave as ow
from opweave.composites import (
    integer_matmul,
    local_response_normalization,
    log_softmax,
    rms_normalization,
    thresholded_relu,
)

RNG = np.random.default_rng(5)


def _randn(*shape: int, dtype: str = "float32") -> np.ndarray:
    array: np.ndarray = RNG.standard_normal(shape).astype(dtype)
    return array


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("size", [1, 2, 5, 20, 4097, 2**31, 2**64 + 1])
def test_local_response_normalization(device: str, size: int) -> None:
    x = _randn(2, 6, 3, 4)
    squares = np.zeros_like(x)
    for channel in range(6):
        near = x[:, max(channel - (size - 1) // 2, 0) : channel + size // 2 + 1]
        squares[:, channel] = (near * near).sum(1)
    wanted = x / (2 + 0.3 / size * squares) ** 0.75
    got = run(
        ow.ml.create_context(device=device),
        lambda b, x: local_response_normalization(b, x, size, alpha=0.3, bias=2.0),
        x,
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rms_normalization(device: str, dtype: str, axis: int) -> None:
    x, scale = _randn(3, 4, 5, dtype=dtype) * 300, _randn(3, 4, 5, dtype=dtype)[(0,) * axis]
    wide = x.astype("float64")
    mean = (wide * wide).mean(tuple(range(axis, 3)), keepdims=True)
    wanted = (wide / np.sqrt(mean + 0.01) * scale).astype(dtype)
    got = run(
        ow.ml.create_context(device=device),
        lambda b, x: rms_normalization(b, x, b.constant(scale), axis, epsilon=0.01),
        x,
    )
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("zero_shape", [(), (4,), (4, 1)])
def test_integer_matmul(device: str, zero_shape: tuple[int, ...]) -> None:
    a = RNG.integers(0, 256, (2, 3, 600)).astype("uint8")
    b = RNG.integers(-128, 128, (600, 4)).astype("int8")
    a_zero, b_zero = np.array(255, "uint8"), np.full(zero_shape[:1], -128, "int8")
    if len(zero_shape) == 2:  # one for each row of a, which the engine has no kernel for
        a_zero = np.array([[1], [255], [0]], "uint8")
    wanted = (a.astype(int) - a_zero) @ (b.astype(int) - b_zero)
    got = run(
        ow.ml.create_context(device=device),
        lambda q, x: integer_matmul(q, x, *(q.constant(v) for v in (b, a_zero, b_zero))),
        a,
    )
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_log_softmax(device: str, dtype: str, axis: int) -> None:
    x = _randn(3, 4, 5, dtype=dtype) * 100  # the softmax of most of them is 0 in these types
    wide = x.astype("float64") - x.astype("float64").max(axis, keepdims=True)
    wanted = wide - np.log(np.exp(wide).sum(axis, keepdims=True))
    got = run(ow.ml.create_context(device=device), lambda b, x: log_softmax(b, x, axis), x)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-6 if dtype == "float32" else 2e-3, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_thresholded_relu(device: str, dtype: str) -> None:
    x = np.array([np.nan, -np.inf, -1, 0, 0.5, np.nextafter(np.array(0.5, dtype), np.array(1, dtype)), np.inf], dtype)
    got = run(ow.ml.create_context(device=device), lambda b, x: thresholded_relu(b, x, alpha=0.5), x)
    np.testing.assert_array_equal(got, np.where(x > 0.5, x, np.array(0, dtype)))
    assert got.dtype == dtype


def test_engine_has_kernels() -> None:
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    x, scale = builder.input("x", "float32", [1, 3, 4, 4]), builder.constant(np.ones(4, "float32"))
    y = rms_normalization(builder, local_response_normalization(builder, x, 3), scale, 3)
    y = thresholded_relu(builder, log_softmax(builder, y, 3))
    assert "decomposed" not in str(builder.build({"y": y}).explain())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b, x: local_response_normalization(b, x, 0), "size must be greater than 0, got 0"),
        (lambda b, x: log_softmax(b, x, 4), "axis must be in [0, 4), got 4"),
        (lambda b, x: rms_normalization(b, x, x, 4), "axis must be in [0, 4), got 4"),
        (lambda b, x: rms_normalization(b, x, x, 1), "scale must have shape [3, 4, 4], the sizes of the axes"),
    ],
)
def test_messages(make: Callable[[ow.MLGraphBuilder, Any], Any], message: str) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    with pytest.raises(ow.ValidationError) as raised:
        make(builder, builder.input("x", "float32", [1, 3, 4, 4]))
    assert message in str(raised.value)


def test_messages_of_integer_matmul() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    a, b = builder.input("a", "uint8", [2, 3]), builder.input("b", "int8", [3, 4])
    zero = builder.constant("int8", 0)
    with pytest.raises(ow.ValidationError, match="a_zero_point must have the data type of a"):
        integer_matmul(builder, a, b, zero, zero)
    with pytest.raises(ow.ValidationError, match="b_zero_point must broadcast"):
        integer_matmul(builder, a, b, builder.constant("uint8", 0), builder.constant(np.zeros(3, "int8")))
    with pytest.raises(ow.ValidationError, match="last dimension of a"):
        integer_matmul(builder, a, builder.input("c", "int8", [4, 4]), builder.constant("uint8", 0), zero)
