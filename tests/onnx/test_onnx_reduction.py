"""ONNX's reductions: versions, options and types."""

from __future__ import annotations

import numpy as np
import pytest
from support.every_device import DEVICES, context_on
from support.onnx_nodes import check_node, integers, node_model, randn, run_engine

import opweave as ow

X = randn(2, 3, 4)


REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, [1], [0, -1], [2, 0]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(name: str, axes: list[int] | None, keepdims: int) -> None:
    x = np.abs(X) + 0.1
    check_node(f"Reduce{name}", x, opset=11, keepdims=keepdims, **({} if axes is None else {"axes": axes}))
    inputs = (x,) if axes is None else (x, np.array(axes))
    check_node(f"Reduce{name}", *inputs, opset=18, constants=() if axes is None else (1,), keepdims=keepdims)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_no_axes(name: str) -> None:
    # The engine hands its input on; ONNX reduces each element by itself.
    x = np.float32([[1, 2], [3, 4]])
    by_element = {"LogSum": np.log(x), "SumSquare": x * x}.get(name, x)
    check_node(f"Reduce{name}", x, opset=18, noop_with_empty_axes=1, wanted=by_element)
    check_node(f"Reduce{name}", x, np.zeros(0, "int64"), opset=18, constants=(1,), noop_with_empty_axes=0)


@pytest.mark.parametrize("op_type", [*(f"Reduce{name}" for name in REDUCTIONS), "ArgMax", "ArgMin"])
@pytest.mark.parametrize("opset", [8, 11, 13, 18])
def test_keepdims_other_than_0_and_1_drops_axes(op_type: str, opset: int) -> None:
    x = np.abs(X) + 0.1
    for keepdims in (-1, 2, 2**40):
        if op_type.startswith("Arg"):
            check_node(op_type, x, opset=opset, axis=1, keepdims=keepdims)
        elif opset == 18 or (opset == 13 and op_type == "ReduceSum"):
            check_node(op_type, x, np.array([1]), opset=opset, constants=(1,), keepdims=keepdims)
        else:
            check_node(op_type, x, opset=opset, axes=[1], keepdims=keepdims)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("noop", [-1, 0, 2])
def test_noop_with_empty_axes_other_than_1_reduces_all_axes(name: str, noop: int) -> None:
    x = np.abs(X) + 0.1
    check_node(f"Reduce{name}", x, opset=18, noop_with_empty_axes=noop)
    check_node(f"Reduce{name}", x, np.zeros(0, "int64"), opset=18, constants=(1,), noop_with_empty_axes=noop)


@pytest.mark.parametrize("name", ["Max", "Mean", "Min", "Sum", "Prod", "L1", "SumSquare"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_reductions_of_integers(name: str, dtype: str) -> None:
    check_node(f"Reduce{name}", integers(-5, 6, 3, 4, dtype=dtype), opset=13)


def test_sum_with_axes_as_input_since_13() -> None:
    check_node("ReduceSum", X, np.array([1]), opset=13, constants=(1,), keepdims=0)
    check_node("ReduceSum", X, opset=12, axes=[1], keepdims=0)


def test_extremes_of_bools() -> None:
    x = np.array([[True, False], [True, True]])
    check_node("ReduceMax", x, np.array([1]), opset=20, constants=(1,), keepdims=0, wanted=x.any(1))
    check_node("ReduceMin", x, np.array([1]), opset=20, constants=(1,), keepdims=0, wanted=x.all(1))


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_arg_max_and_arg_min(op_type: str, last: int, keepdims: int, axis: int) -> None:
    x = integers(0, 3, 4, 5, 6, dtype="float32")
    check_node(op_type, x, opset=12, axis=axis, keepdims=keepdims, select_last_index=last)
    check_node(op_type, x.astype("int32"), opset=13, axis=axis, keepdims=keepdims, select_last_index=last)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_lp_normalization(p: int, axis: int) -> None:
    x = randn(3, 4)
    x[1] = 0
    x[:, 2] = 0
    norm = np.linalg.norm(x.astype("float64"), p, axis, keepdims=True)
    wanted = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
    check_node("LpNormalization", x, opset=22, p=p, axis=axis, wanted=wanted)


@pytest.mark.parametrize(("opset", "axes"), [(9, None), (13, [1]), (13, [0, 1, 2, 3]), (13, [2, -1])])
def test_mean_variance_normalization(opset: int, axes: list[int] | None) -> None:
    x = 3 + 2 * randn(2, 3, 4, 5)
    over = tuple(axes or (0, 2, 3))
    wanted = (x - x.mean(over, keepdims=True)) / x.std(over, keepdims=True)
    check_node("MeanVarianceNormalization", x, opset=opset, wanted=wanted, **({} if axes is None else {"axes": axes}))


def test_mean_variance_normalization_of_constant_row() -> None:
    x = np.full((1, 1, 2, 2), 5, "float32")
    check_node("MeanVarianceNormalization", x, wanted=np.zeros_like(x))


def test_normalization_of_float16_with_overflowing_norm() -> None:
    x = np.full((1, 1, 1000, 2), 60000, "float16")
    x[..., 0] = -60000
    check_node("MeanVarianceNormalization", x, wanted=np.sign(x))
    wanted = (np.sign(x) / np.sqrt(2000)).astype("float16")
    check_node("LpNormalization", x.reshape(1, 2000), opset=22, wanted=wanted.reshape(1, 2000), rtol=1e-3)


def mean_of_integers(x: np.ndarray, axes: tuple[int, ...], keepdims: int) -> np.ndarray:
    """Rounded towards zero, in Python's integers."""
    total = x.astype(object).sum(axes, keepdims=bool(keepdims))
    count = x.size // np.size(total)
    quotient = abs(np.asarray(total, object)) // count * np.where(np.asarray(total) < 0, -1, 1)
    return np.asarray(quotient, object).astype(x.dtype)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_reduce_mean_of_integers_does_not_overflow(dtype: str, device: str) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    rows = [[high, high - 2, high - 4], [low, low + 1, low + 3], [low, high, high], [5, 8, 9], [1, 0, 0]]
    if low:
        rows += [[-5, -8, -3], [-1, 0, 0], [high, low, 7], [low, low, high], [-7, 2, 1], [high, -high, -1]]
    x = np.array([rows, rows[::-1]], dtype)
    for axes, keepdims, opset in (
        ([2], 0, 11),
        ([-1], 1, 13),
        ([2], 1, 18),
        ([0, 2], 0, 18),
        ([0], 0, 18),
        (None, 1, 18),
    ):
        inputs = (x, np.array(axes)) if axes is not None and opset == 18 else (x,)
        attributes = {"keepdims": keepdims, **({"axes": axes} if axes is not None and opset < 18 else {})}
        model, feed = node_model("ReduceMean", inputs, attributes, opset=opset)
        session = ow.InferenceSession(model, context_on(device), specialise="always")
        expected = mean_of_integers(x, tuple(axes or range(3)), keepdims)
        np.testing.assert_array_equal(session.run(None, feed)[0], expected)
        if dtype == "int32":  # the engine adds up others in float64, or has no kernel
            np.testing.assert_array_equal(run_engine(model, feed)[0], expected)


@pytest.mark.parametrize("device", DEVICES)
def test_reduce_mean_of_many_integers_does_not_overflow(device: str) -> None:
    """The sum of their remainders exceeds int32, too."""
    x = np.full(2**17, 2**31 - 2, "int32")
    x[0] = 2**31 - 1
    model, feed = node_model("ReduceMean", [x], {"keepdims": 0}, opset=13)
    assert ow.InferenceSession(model, context_on(device)).run(None, feed)[0] == 2**31 - 2
