"""`opweave.array_api` against NumPy, which implements the same standard."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.every_device import DEVICES, context_on

import opweave as ow
from opweave import array_api as xp

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4)).astype("float32")
Y = RNG.standard_normal((3, 4)).astype("float32")
SPECIAL = np.float32([0.0, -0.0, 1.0, -1.0, 1e-8, -1e-8, 3.5, -2.5, 80.0, np.inf, -np.inf, np.nan])
I = RNG.integers(-50, 50, (3, 4)).astype("int32")  # noqa: E741
J = RNG.integers(1, 9, (3, 4)).astype("int32")
U = RNG.integers(0, 200, (3, 4)).astype("uint8")
LINE = np.sort(np.round(np.concatenate([X.ravel(), Y.ravel()]), 1))  # some values come twice
M = X > 0
N = Y > 0


def same(ours: Any, theirs: Any, rtol: float = 2e-6) -> None:
    """Whether results agree: tuples and lists part by part, and truth values are of type bool."""
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b, rtol)
        return
    assert isinstance(ours, ow.Array)
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape
    assert ours.dtype.kind == theirs.dtype.kind
    read = ours.numpy()
    assert read.dtype == ours.dtype
    np.testing.assert_allclose(read, theirs, rtol=rtol, atol=1e-6 if ours.dtype.kind == "f" else 0)


ROWS: dict[str, Callable[..., Any]] = {
    # Each is called with a namespace and a function that makes its arrays.
    "arange": lambda p, a: p.arange(2, 9, 3),
    "arange of floats": lambda p, a: p.arange(0.0, 1.0, 0.25),
    "linspace": lambda p, a: p.linspace(0, 1, 5, endpoint=False),
    "eye": lambda p, a: p.eye(3, 4, k=1),
    "full of truth values": lambda p, a: p.full((2, 3), True),
    "full_like": lambda p, a: p.full_like(a(I), 7),
    "full of a number of NumPy": lambda p, a: p.full(np.int64(2), np.int64(7)),
    "zeros_like": lambda p, a: p.zeros_like(a(M)),
    "ones": lambda p, a: p.ones((2, 2), dtype=p.int8),
    "meshgrid": lambda p, a: p.meshgrid(a(X[0]), a(X[1, :3]), a(X[2, :2])),
    "meshgrid by rows and columns": lambda p, a: p.meshgrid(a(X[0]), a(X[1, :3]), indexing="ij"),
    "tril": lambda p, a: p.tril(a(X), k=1),
    "triu of truth values": lambda p, a: p.triu(a(M), k=-1),
    "asarray of lists": lambda p, a: p.asarray([[1.5, 2.0], [3.0, 4.0]]),
    "asarray of truth values": lambda p, a: p.asarray([True, False]),
    "astype": lambda p, a: p.astype(a(X * 9), p.int32),
    "astype to truth values": lambda p, a: p.astype(a(SPECIAL), p.bool),
    "astype of truth values": lambda p, a: p.astype(a(M), p.float32),
    "astype of truth values to bytes": lambda p, a: p.astype(a(M), p.uint8),
    # selection and shape
    "broadcast_arrays": lambda p, a: p.broadcast_arrays(a(X), a(X[:1, :1])),
    "broadcast_to": lambda p, a: p.broadcast_to(a(M[:, :1]), (2, 3, 4)),
    "concat": lambda p, a: p.concat([a(X), a(Y)], axis=-1),
    "concat of several types": lambda p, a: p.concat([a(I), a(U)]),
    "concat of all elements": lambda p, a: p.concat([a(X), a(Y[0])], axis=None),
    "expand_dims": lambda p, a: p.expand_dims(a(X), axis=-1),
    "flip": lambda p, a: p.flip(a(X)),
    "flip of truth values": lambda p, a: p.flip(a(M), axis=-1),
    "moveaxis": lambda p, a: p.moveaxis(p.reshape(a(X), (3, 2, 2)), (0, 1), (-1, 0)),
    "permute_dims": lambda p, a: p.permute_dims(p.reshape(a(I), (3, 2, 2)), (2, 0, 1)),
    "repeat": lambda p, a: p.repeat(a(X), 2, axis=1),
    "repeat of all elements": lambda p, a: p.repeat(a(M), 3),
    "reshape": lambda p, a: p.reshape(a(M), (2, -1)),
    "roll": lambda p, a: p.roll(a(X), (1, -2), axis=(0, 1)),
    "roll of all elements": lambda p, a: p.roll(a(M), 5),
    "integers of NumPy": lambda p, a: (
        p.reshape(p.repeat(p.roll(a(X), np.int64(1), axis=np.int64(0)), np.int32(2)), np.int64(24))
    ),
    "repeat by an array of NumPy": lambda p, a: p.repeat(a(X), np.array([2, 0, 1]), axis=0),
    "tensordot of no elements": lambda p, a: p.tensordot(a(X[:, :0]), a(X[:0]), axes=1),
    "squeeze": lambda p, a: p.squeeze(p.reshape(a(X), (1, 12, 1)), axis=(0, -1)),
    "stack": lambda p, a: p.stack([a(X), a(Y)], axis=-1),
    "take": lambda p, a: p.take(a(X), a(np.int32([2, 0, 2])), axis=1),
    "take of the last": lambda p, a: p.take(a(M[0]), a(np.int64([-1, 1]))),
    "take_along_axis": lambda p, a: p.take_along_axis(a(X), p.argsort(a(X), axis=0), axis=0),
    "tile": lambda p, a: p.tile(a(X), (2, 1, 3)),
    "unstack": lambda p, a: p.unstack(a(M), axis=1),
    "where": lambda p, a: p.where(a(M), a(X), a(Y)),
    "where of a number": lambda p, a: p.where(a(M), a(X), 0.0),
    "where of truth values": lambda p, a: p.where(a(M), a(N), a(M)),
    "index of integers": lambda p, a: a(X)[a(np.int32([2, 1]))],
    "index of integers and a slice": lambda p, a: a(X)[:, a(np.int32([2, 1]))],
    "index of integers for each axis": lambda p, a: a(X)[a(np.int32([[2], [1]])), a(np.int32([0, 3]))],
    "index of integers and a number": lambda p, a: a(M)[1, a(np.int32([0, 3]))],
    "part of truth values": lambda p, a: a(M)[1:, ::2],
    "sort": lambda p, a: p.sort(a(X), axis=0),
    "sort of equal elements, descending": lambda p, a: p.argsort(a(J % 3), axis=1, stable=True),
    # combination
    "sum": lambda p, a: p.sum(a(X), axis=(0, -1)),
    "sum of bytes": lambda p, a: p.sum(a(U), axis=1, keepdims=True),
    "sum of bytes as bytes": lambda p, a: p.sum(a(U), dtype=p.uint8),
    "sum of truth values": lambda p, a: p.sum(a(M), axis=0),
    "sum over no axis": lambda p, a: p.sum(a(X), axis=()),
    "prod": lambda p, a: p.prod(a(X), axis=1),
    "max": lambda p, a: p.max(a(X), axis=0),
    "min": lambda p, a: p.min(a(I)),
    "max with NaN": lambda p, a: p.max(a(SPECIAL)),
    "min with NaN": lambda p, a: p.min(p.reshape(a(SPECIAL), (3, 4)), axis=1),
    "mean": lambda p, a: p.mean(a(X), axis=-1, keepdims=True),
    "cumulative_prod": lambda p, a: p.cumulative_prod(a(X), axis=1),
    "cumulative_prod of integers": lambda p, a: p.cumulative_prod(a(J), axis=0, include_initial=True),
    "cumulative_prod of one": lambda p, a: p.cumulative_prod(a(X[0, :1])),
    "matmul of integers": lambda p, a: p.matmul(a(I), a(J.T)),
    "matmul of batches of bytes": lambda p, a: p.matmul(p.reshape(a(U), (3, 2, 2)), a(U[:2, :2])),
    "matmul of vectors of integers": lambda p, a: (a(I[0]) @ a(J[0]), a(I) @ a(J[0]), a(J[:, 0]) @ a(I)),
    "searchsorted": lambda p, a: p.searchsorted(a(LINE), a(np.concatenate([LINE, X.ravel()]))),
    "searchsorted, right": lambda p, a: p.searchsorted(a(LINE), a(LINE), side="right"),
    "searchsorted of integers": lambda p, a: p.searchsorted(a(np.int64([-3, 2, 2, 7])), a(I)),
    "searchsorted of what is not sorted": lambda p, a: p.searchsorted(a(X[0]), a(X), sorter=p.argsort(a(X[0]))),
    "var": lambda p, a: p.var(a(X), axis=1, correction=1),
    "std": lambda p, a: p.std(a(X)),
    "cumulative_sum": lambda p, a: p.cumulative_sum(a(I), axis=1),
    "cumulative_sum from zero": lambda p, a: p.cumulative_sum(a(X[0]), include_initial=True),
    "diff": lambda p, a: p.diff(a(X), axis=0, n=2),
    "diff with more in front": lambda p, a: p.diff(a(I), prepend=a(J)),
    "argmax": lambda p, a: p.argmax(a(X), axis=1),
    "argmin of all": lambda p, a: p.argmin(a(I), keepdims=True),
    "count_nonzero": lambda p, a: p.count_nonzero(a(I * M), axis=0),
    "all": lambda p, a: p.all(a(M), axis=1),
    "any of integers": lambda p, a: p.any(a(I * M), axis=0, keepdims=True),
    "matmul": lambda p, a: p.matmul(a(X), p.matrix_transpose(a(Y))),
    "matmul of vectors": lambda p, a: p.matmul(a(X[0]), a(Y[1])),
    "matmul of a matrix and a vector": lambda p, a: p.matmul(a(X), a(Y[1])),
    "matmul of a vector and matrices": lambda p, a: p.matmul(a(X[0]), p.reshape(a(Y), (1, 4, 3))),
    "vecdot": lambda p, a: p.vecdot(a(X), a(Y)),
    "vecdot of integers": lambda p, a: p.vecdot(a(I), a(J), axis=0),
    "tensordot": lambda p, a: p.tensordot(a(X), a(Y), axes=((0, 1), (0, 1))),
    "tensordot of one axis": lambda p, a: p.tensordot(a(X), a(Y.T), axes=1),
    "tensordot of integers": lambda p, a: p.tensordot(a(I), a(J.T), axes=1),
    "clip": lambda p, a: p.clip(a(X), -0.5, 0.5),
    "clip by arrays": lambda p, a: p.clip(a(X), a(Y[:1]), None),
    # operators
    "operators of bits": lambda p, a: (a(I) & 12, a(I) | a(J), 5 ^ a(I), ~a(I), a(J) << 2, a(I) >> 1, ~a(U)),
    "operators of truth values": lambda p, a: (a(M) & a(N), a(M) | a(N), a(M) ^ True, ~a(M), a(M) == a(N)),
    "comparisons": lambda p, a: (a(X) > 0, a(X) <= a(Y), a(I) > 1, a(I) == 3, a(I) != a(J), a(X) >= a(Y), a(X) < 1),
    "quotients": lambda p, a: (a(I) // a(J), a(I) % a(J), a(X) // 0.3, a(X) % a(Y), -7 % a(J), 9 // a(J)),
    "operators of several types": lambda p, a: (a(I) + a(I.astype("int64")), a(I) * a(U), a(U) - a(I)),
    "transposed": lambda p, a: (a(X).T, a(M).mT, +a(X), p.reshape(a(X), (3, 2, 2)).mT),
    # no elements
    "creation of nothing": lambda p, a: (
        p.arange(0), p.arange(5, 2, dtype=p.uint8), p.linspace(0, 1, 0), p.eye(0, 3), p.zeros((2, 0)), p.full((0,), True)
    ),
    "elements of nothing": lambda p, a: (
        a(X)[:0] + a(Y)[0], p.exp(a(X)[3:]), a(X)[:0] > 0, a(I)[:0] // 2, p.where(a(M)[:0], a(X)[:0], 1), a(I)[:, :0] & 3
    ),
    "reductions of nothing": lambda p, a: (
        p.sum(a(X)[:0], axis=0), p.prod(a(X)[:0]), p.mean(a(X)[:0], axis=1), p.any(a(M)[:0]), p.all(a(M)[:0], axis=0),
        p.argmax(a(X)[:0], axis=1), p.std(a(X)[:, :0]), p.count_nonzero(a(X)[:0], axis=0),
    ),
    "movement of nothing": lambda p, a: (
        p.concat([a(X)[:0], a(Y)]), p.stack([a(X)[:0], a(Y)[:0]]), p.reshape(a(X)[:0], (2, 0)), p.flip(a(X)[:0]),
        p.roll(a(X)[:0], 2, axis=0), p.roll(a(X)[:0], 2), p.tile(a(X), (0, 1)), p.repeat(a(X), 0, axis=1),
        p.take(a(X), a(I)[0, :0], axis=1), p.sort(a(X)[:0]), p.cumulative_sum(a(X)[0, :0]), p.diff(a(X)[:1], axis=0),
    ),
    "products of nothing": lambda p, a: (
        p.matmul(a(X)[:, :0], a(Y)[:0]), a(X)[:0] @ a(Y).T, p.vecdot(a(X)[:, :0], a(Y)[:, :0])
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_functions_equal_numpy(row: str) -> None:
    ours, theirs = ROWS[row](xp, xp.asarray), ROWS[row](np, np.asarray)
    with np.errstate(all="ignore"):
        same(ours, theirs)


UNARY = (
    *(
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "ceil",
        "conj",
        "cos",
        "cosh",
        "exp",
        "expm1",
        "floor",
        "isfinite",
        "isinf",
    ),
    *(
        "isnan",
        "log",
        "log10",
        "log1p",
        "log2",
        "negative",
        "positive",
        "reciprocal",
        "round",
        "sign",
        "signbit",
        "sin",
    ),
    *("sinh", "sqrt", "square", "tan", "tanh", "trunc"),
)
BINARY = (
    *(
        "add",
        "atan2",
        "copysign",
        "divide",
        "equal",
        "floor_divide",
        "greater",
        "greater_equal",
        "hypot",
        "less",
        "less_equal",
    ),
    *("logaddexp", "maximum", "minimum", "multiply", "not_equal", "pow", "remainder", "subtract"),
)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_element(name: str) -> None:
    """Also of zeros, infinities, NaN, and where formulas cancel or overflow."""
    values = np.concatenate([SPECIAL, X.ravel(), X.ravel() * 1e-4, X.ravel() * 30])
    with np.errstate(all="ignore"):
        wanted: Any = getattr(np, name)(values)
    found = getattr(xp, name)(xp.asarray(values)).numpy()
    if name in ("sin", "cos", "tan"):  # infinities have no angle
        values, wanted, found = (array[np.isfinite(values)] for array in (values, wanted, found))
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=5e-6, atol=3e-7 if name in ("sin", "cos", "tan") else 0)
    zeros = np.flatnonzero(wanted == 0)
    if name != "sign":  # that of zero is 0
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(wanted[zeros]))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_elements(name: str) -> None:
    a, b = (each.ravel() for each in np.meshgrid(SPECIAL, SPECIAL))
    if name in ("floor_divide", "remainder"):  # the standard leaves 0 and infinities as divisors to the rest of the row
        a, b = X.ravel() * 20, Y.ravel()
    with np.errstate(all="ignore"):
        wanted: Any = getattr(np, name)(a, b)
    found = getattr(xp, name)(xp.asarray(a), xp.asarray(b)).numpy()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5 if name == "remainder" else 1e-38)


@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_functions_at_domain_limits(data_type: str) -> None:
    """What the standard's own tests have found: the sign of a remainder that is zero, and acosh far below 1."""
    zeros, divisors = np.array([0.0, -0.0, 6.0, -6.0, 0.0, -0.0], data_type), np.array([-2, -2, -2, 2, 2, 2], data_type)
    found = xp.remainder(xp.asarray(zeros), xp.asarray(divisors)).numpy()
    assert np.signbit(found).tolist() == [True, True, True, False, False, False]
    assert not found.any()
    assert np.isnan(xp.acosh(xp.asarray(np.array([-6e4, -1.0, 0.5], data_type))).numpy()).all()
    if data_type == "float32":
        assert np.isnan(xp.acosh(xp.asarray(np.float32([-1.6e16, -1e30, -np.inf]))).numpy()).all()


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_sort_argsort_and_searchsorted_order_nan_beyond_infinity(data_type: str, device: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.choice(np.array([np.nan, np.inf, -np.inf, 0, -0.0, 2, -3], data_type), (4, 30))
    line, few = np.sort(x[0]), np.array([-np.inf, -4, 0, 2, 5, np.inf, np.nan], data_type)
    with context_on(device):
        for axis in (0, 1):
            np.testing.assert_array_equal(xp.sort(xp.asarray(x), axis=axis).numpy(), np.sort(x, axis))
            order = np.argsort(x, axis, kind="stable")
            np.testing.assert_array_equal(xp.argsort(xp.asarray(x), axis=axis).numpy(), order)
            down = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
            down = x.shape[axis] - 1 - down  # equal elements keep their order
            np.testing.assert_array_equal(xp.argsort(xp.asarray(x), axis=axis, descending=True).numpy(), down)
            falling = np.flip(np.sort(x, axis), axis)
            np.testing.assert_array_equal(xp.sort(xp.asarray(x), axis=axis, descending=True).numpy(), falling)
        for side in ("left", "right"):
            found = xp.searchsorted(xp.asarray(line), xp.asarray(few), side=side).numpy()
            np.testing.assert_array_equal(found, np.searchsorted(line, few, side=side))
            found = xp.searchsorted(xp.asarray(line[:1]), xp.asarray(few), side=side).numpy()
            np.testing.assert_array_equal(found, np.searchsorted(line[:1], few, side=side))


def test_arrays_answer_with_the_namespace() -> None:
    x = ow.array([1.0, 2.0])
    assert x.__array_namespace__() is xp
    assert x.__array_namespace__(api_version="2023.12") is xp
    with pytest.raises(ValueError, match=r"follows the array API standard of 2021.12, .*, not '2020.1'"):
        x.__array_namespace__(api_version="2020.1")
    missing = [name for name in xp.__all__ if not hasattr(xp, name)]
    assert missing == []


def test_calls_run_as_one_graph() -> None:
    before = ow.lazy.compile_now()
    try:
        x = xp.asarray(X)
        for _ in range(2):
            with ow.lazy.profile() as records:
                centred = x - xp.mean(x, axis=0, keepdims=True)
                y = xp.where(centred > 0, xp.log1p(abs(centred)), 0.0)
                assert y.pending
                del centred
                values = y.numpy()
        assert len(records) == 1
        assert [title for title, *_ in records[0].written] == ["where"]
    finally:
        ow.lazy.compile_now(before)
    off = X - X.mean(axis=0)
    np.testing.assert_allclose(values, np.where(off > 0, np.log1p(np.abs(off)), 0), rtol=1e-5, atol=1e-6)


def test_truth_values_are_bytes_of_webnn() -> None:
    mask = xp.asarray(X) > 0
    assert (mask.dtype, mask.data_type) == (np.bool_, "uint8")
    assert repr(mask) == "<Array bool[3, 4], pending: greater>"
    assert mask.tolist() == M.tolist()
    assert mask[0, 0].item() is bool(M[0, 0])
    assert np.from_dlpack(mask).dtype == np.bool_
    np.testing.assert_array_equal(xp.from_dlpack(M).numpy(), M)
    assert ow.ops.where(mask, 1.0, xp.asarray(X)).numpy()[M].tolist() == [1.0] * M.sum()
    assert repr(mask).startswith("<Array [[")
    assert repr(mask).endswith(", bool[3, 4]>")


def test_array_is_hashable_and_compares_elementwise() -> None:
    x = ow.array([1.0, 2.0])
    assert {x: "found"}[x] == "found"
    assert (x == x).tolist() == [True, True]
    assert (x == None) is False  # noqa: E711
    assert (np.float32([0, 5]) < x).tolist() == [True, False]


def test_pending_comparison_reads_tensor_before_write() -> None:
    context = ow.ml.create_context()
    tensor = context.create_tensor("float32", [2], readable=True, writable=True)
    context.write_tensor(tensor, np.float32([1, -1]))
    mask = ow.array(tensor, copy=False) > 0
    context.write_tensor(tensor, np.float32([-1, -1]))
    assert mask.tolist() == [True, False]


def test_devices_are_contexts() -> None:
    other = ow.ml.create_context(device="reference")
    x = xp.asarray(X)
    moved = x.to_device(other)
    assert (x.to_device(x.device) is x, moved.device is other) == (True, True)
    assert xp.asarray([1.0], device=other).device is other
    assert (moved > 0).to_device(x.device).dtype == np.bool_
    info = xp.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert set(info.dtypes(kind="real floating")) == {"float32", "float64"}
    assert info.capabilities()["data-dependent shapes"] is True


def test_data_types() -> None:
    numbers: list[np.dtype[Any]] = [xp.int8, xp.int32, xp.int64, xp.uint8, xp.uint32, xp.uint64, xp.float16]
    numbers += [xp.float32, xp.float64]
    for a in numbers:
        for b in numbers:
            common = np.result_type(a, b)
            is_defined = common.name in xp.__all__ and len({a.kind == "f", b.kind == "f", common.kind == "f"}) == 1
            assert xp.can_cast(a, b) == (is_defined and common == b)
            if is_defined:
                assert xp.result_type(a, b) == common
    assert xp.finfo(xp.float16).max == 65504.0
    assert xp.iinfo(xp.asarray(U)).max == 255
    assert xp.isdtype(xp.bool, ("bool", "numeric"))
    assert not xp.isdtype(xp.float32, "complex floating")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: xp.add(xp.asarray(X), xp.asarray(I)), "^add: float32 and int32 have no common data type; astype"),
        (lambda: xp.add(xp.asarray(I), 1.5), "^add: 1.5 cannot be combined with an array of int32"),
        (lambda: xp.divide(xp.asarray(I), 2), r"^divide: takes arrays of kind real floating, got int32\[3, 4\]"),
        (lambda: xp.add(1, 2), r"^add: takes at least one array, got \(1, 2\)"),
        (lambda: xp.exp([1.0]), r"^exp: takes arrays of opweave, got \[1.0\]; asarray makes them"),
        (lambda: xp.asarray(X) & 1.0, "^bitwise_and: takes arrays of kind integral or bool, got float32"),
        (lambda: xp.asarray(I) / xp.asarray(J), r"^/: takes arrays of floats, got int32\[3, 4\]; // rounds down"),
        (lambda: 1 / xp.asarray(I), r"^/: takes arrays of floats, got int32\[3, 4\]"),
        (lambda: xp.matmul(xp.asarray(I), xp.asarray(J)), r"^matmul: columns of int32\[3, 4\] must be as many as rows"),
        (lambda: xp.searchsorted(xp.asarray(X), xp.asarray(X)), "^searchsorted: x1 must have one dimension"),
        (lambda: xp.searchsorted(xp.asarray(X[0]), xp.asarray(X), side="up"), "^searchsorted: side must be 'left' or"),
        (lambda: xp.sum(xp.asarray(X), axis=2), r"^sum: axis must be an integer in \[-2, 2\), got 2"),
        (lambda: xp.sum(xp.asarray(X), axis=(0, -2)), r"^sum: axis must not name an axis twice, got \(0, -2\)"),
        (lambda: xp.zeros(3, dtype="int16"), "^full: WebNN has no int16; there are bool, float16, float32"),
        (lambda: xp.asarray(np.ones(2, "int16")), "^values: int16 is not a data type of WebNN"),
        (lambda: xp.full(3, 300, dtype=xp.uint8), "^full: 300 is not a value of uint8"),
        (lambda: xp.full(3, np.int64(300), dtype=xp.uint8), r"^full: np\.int64\(300\) is not a value of uint8"),
        (lambda: xp.full(3, math.nan, dtype=xp.int8), "^full: nan is not a value of int8"),
        (lambda: xp.clip(xp.asarray(U), xp.asarray(I)), "^clip: bounds must have a data type that uint8 of x holds, got int"),
        (lambda: xp.asarray(I) + True, "^add: True cannot be combined with an array of int32"),
        (lambda: np.float32(1.5) + xp.asarray(I), "^add: float32 and int32 have no common data type"),
        (lambda: xp.arange(0, 3, 0), "^arange: step must not be 0, got 0"),
        (lambda: xp.arange(300, dtype=xp.uint8), "^arange: uint8 does not hold numbers from 0 to 299"),
        (lambda: xp.repeat(xp.asarray(X), xp.asarray([1, 2])), "^repeat: repeats must have 1 or 12 elements for axis 0"),
        (lambda: xp.reshape(xp.asarray(X), (5, -1)), r"^reshape: float32\[3, 4\] with 12 elements does not fit"),
        (lambda: xp.isdtype(xp.int8, "floating"), "^isdtype: kind must be one of bool, .*, got 'floating'"),
        (lambda: xp.where(xp.asarray(I), 1.0, 2.0), "^where: takes arrays of kind bool, got int32"),
        (lambda: xp.asarray(X).to_device("cpu"), "^to_device: device must be a context, got 'cpu'"),
        (lambda: xp.asarray(X[0]).T, "^T: takes a matrix"),
        (lambda: xp.mean(xp.asarray(X), 0), r"^mean: the axis is given by name: mean\(x, axis=0\)$"),  # type: ignore[call-arg]
        (lambda: xp.argmax(xp.asarray(X), -1), r"^argmax: the axis is given by name: argmax\(x, axis=-1\)$"),  # type: ignore[call-arg]
    ],
)  # fmt: skip
def test_errors(function: Callable[[], Any], message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        function()


@pytest.mark.parametrize("sign", ["+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>", "<", "=="])
def test_operators_promote_arrays_and_numbers_of_numpy(sign: str) -> None:
    compute: Callable[[Any, Any], Any] = eval(f"lambda a, b: a {sign} b")
    short, wide = np.int8([5, 100, 7]), np.int64([3, 1, 2])
    for ours, expected in (
        (compute(wide, xp.asarray(short)), compute(wide, short)),
        (compute(xp.asarray(short), wide), compute(short, wide)),
        (compute(np.int64(6), xp.asarray(short)), compute(np.int64(6), short)),
        (compute(xp.asarray(short), np.int64(3)), compute(short, np.int64(3))),
    ):
        np.testing.assert_array_equal(ours.numpy(), expected, strict=True)
    mask = np.array([True, False, True])
    if sign in "&|^==":
        assert compute(mask, xp.asarray(mask)).tolist() == compute(mask, mask).tolist()
    if sign in "<==":
        assert compute(np.float64(5.5), xp.asarray(short)).tolist() == compute(5.5, short).tolist()
        tenth = xp.asarray([0.1], dtype=xp.float32)
        for left, right in ((tenth, np.array(0.1)), (np.array(0.1), tenth)):
            assert compute(left, right).tolist() == [compute(0.1, 0.1)]


def test_attribute_error_names_function_elsewhere() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute or operation 'std'; use opweave.array_api.std\(x\)$"):
        xp.asarray(X).std()  # type: ignore[attr-defined]
    with pytest.raises(
        AttributeError, match=r"no attribute 'softmax'; it is an operation of WebNN: opweave.ops.softmax$"
    ):
        xp.softmax  # noqa: B018
    hints = {
        "svd": "linalg.svd",
        "concatenate": "concat",
        "arccos": "acos",
        "invert": "bitwise_invert",
        "cumsum": "cumulative_sum",
    }
    for name, hint in (hints | {"linspce": "linspace", "cumulative_summ": "cumulative_sum"}).items():
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; did you mean {hint}\?$"):
            getattr(xp, name)
    # NumPy's functions, and data types of WebNN, are no misspellings of others.
    for name in ("argwhere", "int16", "median", "isin", "hstack", "bfloat16", "uint4"):
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}'$"):
            getattr(xp, name)


def test_augmented_assignment_makes_another_array() -> None:
    x = xp.asarray(X)
    with pytest.raises(ValueError, match=r"cannot become int32.* without a copy"):
        xp.asarray(x, dtype=xp.int32, copy=False)
    before = x
    x += 1
    assert before is not x


@pytest.mark.long
def test_functions_of_scipy_run_deferred() -> None:
    """SciPy reads its switch when it is imported, so it runs in a process of its own."""
    pytest.importorskip("scipy")
    code = """
import numpy as np, scipy.special, scipy.stats, opweave as ow
values = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")
for function in (lambda x: scipy.special.softmax(x, axis=1), lambda x: scipy.stats.kurtosis(x, axis=1),
                 lambda x: scipy.stats.entropy(abs(x), axis=0)):
    found = function(ow.array(values))
    assert type(found) is ow.Array and found.pending, found
    np.testing.assert_allclose(found.numpy(), function(values), rtol=1e-4, atol=1e-6)
print("done")
"""
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    made = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert made.stdout == "done\n", made.stderr


@pytest.mark.parametrize("name", ["acos", "asin", "atan", "atan2"])
def test_angles_to_the_last_places(name: str) -> None:
    """Within four places of float64's results, also near the ends of the intervals of their polynomials, and in float16."""
    rng = np.random.default_rng(1)
    near_one = 1 - 10.0 ** rng.uniform(-7, 0, 5000)
    if name in ("acos", "asin"):
        values = np.concatenate([rng.uniform(-1, 1, 20000), near_one, -near_one, 10.0 ** rng.uniform(-30, 0, 5000)])
    else:
        values = np.concatenate([rng.uniform(-5, 5, 20000), 10.0 ** rng.uniform(-30, 30, 5000)])
    columns = [values, rng.permutation(values) * rng.choice([-1, 1], values.size)][: 2 if name == "atan2" else 1]
    for data_type in ("float32", "float16"):
        if data_type == "float16" and name == "atan2":
            continue  # sizes beyond its range
        with np.errstate(over="ignore"):
            given = [column.astype(data_type) for column in columns]
        given = [np.where(np.isinf(column), np.float16(1), column).astype(data_type) for column in given]
        wanted = getattr(np, name)(*(column.astype("float64") for column in given))
        found = getattr(xp, name)(*map(xp.asarray, given)).numpy()
        assert found.dtype == data_type
        place = np.spacing(np.abs(wanted).astype(data_type)).astype("float64")
        assert np.max(np.abs(found - wanted) / place) < 4
