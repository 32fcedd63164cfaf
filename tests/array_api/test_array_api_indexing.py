"""Indices, assignment to elements and functions whose shapes depend on values, against NumPy."""

from __future__ import annotations

import copy
import gc
import operator
from typing import Any

import numpy as np
import pytest
import row_sample
from support.every_device import context_on

import opweave as ow
from opweave import array_api as xp

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
M = X % 5 < 2

KEYS: dict[str, Any] = {
    "mask": M,
    "mask of first axes": M[:, :, 0],
    "mask and slice": (slice(None), np.array([True, False, True])),
    "mask, integer": (np.array([True, False]), 1),
    "no true value": np.zeros_like(M),
    "positions": np.array([1, 0, 1]),
    "negative positions": np.array([-1, -2]),
    "matrix of positions": np.array([[0, 1], [1, 1]]),
    "positions of a middle axis": (slice(None), np.array([2, 0])),
    "positions apart": (np.array([0, 1]), slice(None), np.array([3, 1])),
    "positions side by side": (slice(None), np.array([0, 2]), np.array([1, 3])),
    "positions, ellipsis": (..., np.array([3, 0])),
    "positions, new axis": (None, np.array([1, 0])),
    "positions that broadcast": (np.array([[0], [1]]), np.array([0, 2])),
    "list": [1, 0],
    "integer": 1,
    "integers": (1, -1, 2),
    "slices": (slice(None, None, -1), slice(1, None), slice(None, 3, 2)),
    "ellipsis": (..., 0),
    "everything": ...,
    "nothing": slice(0, 0),
}


def on_arrays(key: Any) -> Any:
    items = key if isinstance(key, tuple) else (key,)
    items = tuple(xp.asarray(item) if isinstance(item, np.ndarray) else item for item in items)
    return items if isinstance(key, tuple) else items[0]


@pytest.mark.parametrize("data_type", ["float32", "int8", "bool", "float64"])
@pytest.mark.parametrize("key", KEYS)
def test_index_equals_numpy(key: str, data_type: str) -> None:
    values = (X - 3).astype(data_type)
    for index in (KEYS[key], on_arrays(KEYS[key])):
        result = xp.asarray(values)[index].numpy()
        assert result.dtype == values.dtype
        np.testing.assert_array_equal(result, values[KEYS[key]], strict=True)


@pytest.mark.parametrize("data_type", ["float32", "int8", "bool", "float64"])
@pytest.mark.parametrize("key", KEYS)
def test_assignment_equals_numpy(key: str, data_type: str) -> None:
    values = (X - 3).astype(data_type)
    shape = values[KEYS[key]].shape
    rng = np.random.default_rng(3)
    for value in (1, 2.5, rng.integers(0, 9, shape), rng.normal(size=shape[-1:]) * 5, np.ones((1, *shape), np.float32)):
        wanted, x = values.copy(), xp.asarray(values)
        before, pending = x.numpy(), xp.astype(x, xp.float32) + 1
        if "positions" in key and np.ndim(
            value
        ):  # which value counts for an element that is selected twice is not defined
            value = np.full(np.shape(value), 3.0)
        if "true" in key or key == "mask":  # NumPy refuses further axes for masks
            value = value[0] if np.ndim(value) > 1 else value
        if key == "integers" and np.ndim(value) == 1:
            value = value[0]
        wanted[KEYS[key]] = value
        x[on_arrays(KEYS[key])] = xp.asarray(value) if isinstance(value, np.ndarray) else value
        np.testing.assert_array_equal(x.numpy(), wanted, strict=True)
        np.testing.assert_array_equal(before, values)
        np.testing.assert_array_equal(pending.numpy(), values.astype("float32") + 1)


def test_last_of_several_values_counts() -> None:
    x = xp.zeros(3)
    x[xp.asarray([0, 1, 0, 0])] = xp.asarray([1.0, 2.0, 3.0, 4.0])
    assert x.tolist() == [4.0, 2.0, 0.0]


@pytest.mark.parametrize("is_computed", [False, True])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_calls_keep_what_they_have_read(device: str, is_computed: bool) -> None:
    with ow.ml.create_context(device=device):
        x = xp.asarray([1.0, 2.0, 3.0]) * 1.0
        if is_computed:
            x.numpy()
        parts, copies, doubled = x[1:], [copy.copy(x), +x, x[...], xp.asarray(x, copy=True)], x * 2
        alias = x
        history = []
        for number in range(4):
            history.append(x + 0)
            x[number % 3] = 10.0 * x[0] + number
        assert alias is x

        plain = np.float32([1, 2, 3])
        for number, old in enumerate(history):
            np.testing.assert_array_equal(old.numpy(), plain)
            plain[number % 3] = 10 * plain[0] + number
        np.testing.assert_array_equal(x.numpy(), plain)
        assert parts.tolist() == [2.0, 3.0]
        assert doubled.tolist() == [2.0, 4.0, 6.0]
        assert [each.tolist() for each in copies] == [[1.0, 2.0, 3.0]] * 4


def test_random_programs_of_assignments_equal_numpy() -> None:
    rng = np.random.default_rng(11)
    with ow.ml.create_context(device="reference"):
        for _ in range(row_sample.examples(20, in_sample=3)):
            check_program(rng)


def check_program(rng: np.random.Generator) -> None:
    arrays = [xp.asarray(rng.integers(0, 9, 6).astype(np.float32)) for _ in range(3)]
    plain = [a.numpy().copy() for a in arrays]
    for _ in range(25):
        a, b = rng.integers(0, len(arrays), 2)
        kind, at = rng.integers(0, 6), int(rng.integers(0, 6))
        if kind == 0:
            arrays[a][at], plain[a][at] = arrays[b][5 - at], plain[b][5 - at]
        elif kind == 1:
            limit = float(rng.integers(0, 9))
            arrays[a][arrays[b] > limit] = -1
            plain[a][plain[b] > limit] = -1
        elif kind == 2 and len(arrays) < 8:
            arrays.append(arrays[a] + arrays[b])
            plain.append(plain[a] + plain[b])
        elif kind == 3:
            arrays[a][at:] = arrays[b][: 6 - at]
            plain[a][at:] = plain[b][: 6 - at].copy()
        elif kind == 4:
            np.testing.assert_array_equal(arrays[a].numpy(), plain[a])
        elif len(arrays) < 8:
            arrays.append(arrays[a][::-1])
            plain.append(plain[a][::-1].copy())
    for ours, theirs in zip(arrays, plain, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_frozen_objects_are_found() -> None:
    x = xp.asarray([1.0, 2.0])
    y = x + 1
    gc.freeze()
    try:
        x[0] = 5.0
    finally:
        gc.unfreeze()
    assert (x.tolist(), y.tolist()) == ([5.0, 2.0], [2.0, 3.0])


def test_assigned_arrays_are_no_constants_of_programs() -> None:
    """Graphs that have read an array often hold it as a constant."""
    before = ow.lazy.compile_now()
    try:
        x, w = xp.asarray(np.ones((2, 2), np.float32)), xp.asarray(np.eye(2, dtype=np.float32))
        for number in range(12):
            assert (xp.matmul(x, w) + 1).tolist() == [[2.0 + number // 6] * 2] * 2
            if number == 5:
                w[...] = xp.asarray([[1.0, 1.0], [1.0, 1.0]])
    finally:
        ow.lazy.compile_now(before)


def test_failed_assignment_changes_nothing() -> None:
    x = xp.asarray(X)
    y = x + 1
    for key, value, message in (
        (0, np.ones(3), r"a value of shape \[3\] does not broadcast to the selected elements \[3, 4\] of an array"),
        (5, 0, r"an array of shape \[2, 3, 4\]: index 5 is out of bounds"),
        ((0, 0, 0, 0), 0, "too many indices"),
        (xp.asarray(M[0]), 0, "boolean index did not match"),
        (True, 0, "takes positions, slices and arrays, got True"),
        (0, "one", "takes numbers for an array of float32, got 'one'"),
        (0, 1j, "takes numbers for an array of float32, got 1j"),
    ):
        with pytest.raises(ow.ValidationError, match=rf"^x\[key\] = value: .*{message}"):
            x[key] = value
    with pytest.raises(ow.ValidationError, match="int8 does not hold 300"):
        xp.zeros(3, dtype=xp.int8)[0] = 300
    np.testing.assert_array_equal(x.numpy(), X)
    np.testing.assert_array_equal(y.numpy(), X + 1)
    with pytest.raises(
        ow.ValidationError, match=r"^an index: an array of shape \[2, 3, 4\]: boolean index did not match"
    ):
        x[xp.asarray(M[0])]


def test_shared_memory_cannot_be_assigned_to() -> None:
    own = np.ones(2, np.float32)
    shared = xp.asarray(own, copy=False)
    with pytest.raises(
        TypeError, match=r"^x\[key\] = value: the array float32\[2\] shares the memory of a NumPy array"
    ):
        shared[0] = 1
    x = xp.asarray(shared, copy=True)
    x[0] = 5
    assert (x.tolist(), own.tolist()) == ([5.0, 1.0], [1.0, 1.0])


def test_constants_of_functions_cannot_be_assigned_to() -> None:
    weight = xp.asarray([1.0, 2.0])

    @ow.jit
    def scaled(x: Any) -> Any:
        return x * weight

    weight[0] = 3.0
    assert np.asarray(scaled(np.float32([1, 1]))).tolist() == [3.0, 2.0]
    with pytest.raises(
        TypeError, match=r"^x\[key\] = value: the array float32\[2\] is a constant of a function of jit"
    ):
        weight[0] = 5.0
    other = xp.asarray(weight, copy=True)
    other[0] = 5.0
    assert (weight.tolist(), other.tolist()) == ([3.0, 2.0], [5.0, 2.0])


def test_results_of_tensors_are_settled_before_writes() -> None:
    context = ow.ml.create_context()
    tensor = context.create_tensor("float32", [2], readable=True, writable=True)
    context.write_tensor(tensor, np.float32([1, 2]))
    x = ow.array(tensor, copy=False) * 2
    y = x + 1
    x[0] = 7
    context.write_tensor(tensor, np.float32([5, 5]))
    assert (x.tolist(), y.tolist()) == ([7.0, 4.0], [3.0, 5.0])


@pytest.mark.long
@pytest.mark.parametrize("device", ["gpu-software (webgpu)"])
def test_assignment_on_devices(device: str) -> None:
    with context_on(device):
        x = xp.asarray(X)
        y = x + 1
        x[xp.asarray(M)] = 0
        x[0, 1:] = xp.asarray([1.0, 2.0, 3.0, 4.0])
        wanted = np.where(M, 0, X)
        wanted[0, 1:] = [1, 2, 3, 4]
        np.testing.assert_array_equal(x.numpy(), wanted)
        np.testing.assert_array_equal(x[x > 5].numpy(), wanted[wanted > 5])
        np.testing.assert_array_equal(y.numpy(), X + 1)


@pytest.mark.parametrize("data_type", ["float32", "int32", "bool", "float64"])
def test_functions_that_depend_on_values(data_type: str) -> None:
    values = np.array([[3, 0, 1], [0, 3, 3]], data_type)
    for ours, theirs in zip(xp.nonzero(xp.asarray(values)), np.nonzero(values), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    for name in ("unique_all", "unique_counts", "unique_inverse"):
        ours, theirs = getattr(xp, name)(xp.asarray(values)), getattr(np, name)(values)
        assert ours._fields == theirs._fields
        assert ours[0].dtype == values.dtype
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one.numpy(), other)
    np.testing.assert_array_equal(xp.unique_values(xp.asarray(values)).numpy(), np.unique(values))
    with pytest.raises(ow.ValidationError, match=r"^nonzero: takes arrays of one dimension or more, got"):
        xp.nonzero(xp.asarray(values)[0, 0])


def test_repeat_by_an_array_and_next_numbers() -> None:
    for repeats, axis in ((np.array([2, 0, 1]), 1), (np.array([3]), 0), (np.arange(24) % 3, None), (np.array(2), 2)):
        ours = xp.repeat(xp.asarray(X), xp.asarray(repeats), axis=axis)
        np.testing.assert_array_equal(ours.numpy(), np.repeat(X, repeats, axis=axis), strict=True)
    for wrong, message in (([1, 2], "must have 1 or 3 elements for axis 1"), ([1, -1, 0], "must not be negative, got")):
        with pytest.raises(ow.ValidationError, match=f"^repeat: repeats {message}"):
            xp.repeat(xp.asarray(X), xp.asarray(wrong), axis=1)
    for data_type in ("float16", "float32", "float64"):
        a = np.array([0.0, 1.0, -2.5, np.inf, np.nan], data_type)
        b = np.array([1.0, 0.5, -2.5, 0.0, 1.0], data_type)
        np.testing.assert_array_equal(
            xp.nextafter(xp.asarray(a), xp.asarray(b)).numpy(), np.nextafter(a, b), strict=True
        )


NUMBERS = (0, 1, -1, 300, 2.5, -0.5, float("nan"), float("inf"), -float("inf"), True, 10**30, -(10**30), 127.0, 2**63)


@pytest.mark.parametrize("data_type", ["int8", "uint8", "int64", "uint64", "bool", "float32", "float64"])
def test_comparisons_with_numbers_are_those_of_python(data_type: str) -> None:
    values = np.array([0, 1, 2, 100, 127], data_type)
    x = xp.asarray(values)
    for number in NUMBERS:
        orders = () if data_type == "bool" else (operator.lt, operator.le, operator.gt, operator.ge)
        for compare in (operator.eq, operator.ne, *orders):
            results = compare(x, number), compare(number, x)
            assert [result.dtype for result in results] == [xp.bool, xp.bool]
            assert results[0].tolist() == [compare(value, number) for value in values.tolist()], (number, compare)
            assert results[1].tolist() == [compare(number, value) for value in values.tolist()], (number, compare)
    assert (x == None, x != None, x == "x") == (False, True, False)  # noqa: E711


def test_arrays_are_assigned_to_themselves() -> None:
    for key in (slice(None), slice(None, None, -1), np.array([True, False, True])):
        values = np.float32([1, 2, 3])
        x = xp.asarray(values)
        mine = xp.asarray(key) if isinstance(key, np.ndarray) else key
        if isinstance(key, np.ndarray):
            x[mine], values[key] = x[mine], values[key]
        else:
            x[mine], values[key] = x, values.copy()
        np.testing.assert_array_equal(np.asarray(x), values)


UNCHANGED: dict[str, Any] = {
    "broadcast_to": lambda x: xp.broadcast_to(x, x.shape),
    "broadcast_arrays": lambda x: xp.broadcast_arrays(x, x)[0],
    "reshape": lambda x: xp.reshape(x, x.shape, copy=True),
    "flip": lambda x: xp.flip(x, axis=()),
    "roll": lambda x: xp.roll(x, 0, axis=0),
    "roll without axes": lambda x: xp.roll(x, (), axis=()),
    "tile": lambda x: xp.tile(x, ()),
    "tile of a scalar": lambda x: xp.tile(x, ()),
    "sum": lambda x: xp.sum(x, axis=(), dtype=x.dtype),
    "prod": lambda x: xp.prod(x, axis=(), dtype=x.dtype),
    "max": lambda x: xp.max(x, axis=()),
    "mean": lambda x: xp.mean(x, axis=()),
    "cumulative_prod": lambda x: xp.cumulative_prod(x, axis=0),
    "diff": lambda x: xp.diff(x, n=0),
    "all": lambda x: xp.all(x, axis=()),
    "clip": lambda x: xp.clip(x),
    "positive": lambda x: xp.positive(x),
    "squeeze": lambda x: xp.squeeze(x, ()),
    "moveaxis": lambda x: xp.moveaxis(x, (), ()),
    "matrix_power": lambda x: xp.linalg.matrix_power(x, 1),
    "astype": lambda x: xp.astype(x, x.dtype),
    "asarray": lambda x: xp.asarray(x, copy=True),
    "array": lambda x: ow.array(x),
}

OPERANDS: dict[str, Any] = {
    "tile of a scalar": lambda x: x[0, 0],
    "cumulative_prod": lambda x: x[:1, :1],
    "all": lambda x: x > 0,
    "matrix_power": lambda x: x[:2, :2],
}
"""Operands that a function does not change, of those that are no whole array of floats."""


@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.parametrize("name", UNCHANGED)
def test_functions_that_change_nothing_return_another_array(name: str, is_pending: bool) -> None:
    select = OPERANDS.get(name, lambda x: x)
    expected, x = select(X[0]), xp.asarray(X[0])
    x = select(x * 1 if is_pending else x)
    if not is_pending:
        x.numpy()
    y = UNCHANGED[name](x)
    values = y.numpy().copy()
    y[...] = 7
    np.testing.assert_array_equal(x.numpy(), expected)
    y = UNCHANGED[name](x)
    x[...] = 5
    np.testing.assert_array_equal(y.numpy(), values)


def test_functions_that_change_nothing_share_values() -> None:
    x = xp.asarray(np.zeros(1000, np.float32))
    ow.memory.copies.reset()
    y = xp.broadcast_to(x, x.shape)
    assert y is not x
    assert y.memory is x.memory
    assert ow.memory.copies.count == 0


def test_functions_copy_arrays_of_numpy_that_they_return() -> None:
    values = np.zeros(4, np.float32)
    y = xp.broadcast_to(values, (4,))  # type: ignore[arg-type]
    y[0] = 1
    assert y.tolist() == [1, 0, 0, 0]
    assert values.tolist() == [0] * 4


@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal"])
@pytest.mark.parametrize("number", [True, 1, 2.5])
def test_truth_values_have_no_order(name: str, number: float) -> None:
    mask = xp.asarray([True, False])
    for operands in ((mask, number), (number, mask), (mask, mask)):
        with pytest.raises(ow.ValidationError, match=f"^{name}: takes arrays of kind numeric, got bool"):
            getattr(xp, name)(*operands)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow", "lt", "ge", "floordiv", "mod"])
def test_arithmetic_and_order_refuse_truth_values(name: str) -> None:
    mask = xp.asarray([True, False])
    for operands in ((mask, 1), (2.5, mask), (mask, xp.asarray([1, 2])), (xp.asarray([1.0, 2.0]), mask)):
        with pytest.raises(ow.ValidationError, match="bool"):
            getattr(operator, name)(*operands)
