"""Reductions where ONNX Runtime's own kernels go astray, and that those for floats are used as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import graphs

import opweave as ow
from opweave.backends.onnxruntime import ort
from opweave.backends.onnxruntime.rules.reduction import MAX_EXACT_COUNT
from opweave.core.graph import Graph

ORT = ow.ml.create_context(device="cpu")
REFERENCE = ow.ml.create_context(device="reference")


def reduce(context: ow.MLContext, name: str, x: np.ndarray, *args: Any, **options: Any) -> np.ndarray:
    return graphs.run(context, lambda b, x: getattr(b, name)(x, *args, **options), x)


@pytest.mark.parametrize("name", ["reduce_l1", "reduce_sum", "reduce_sum_square"])
@pytest.mark.parametrize("count", [MAX_EXACT_COUNT, MAX_EXACT_COUNT + 1])
@pytest.mark.parametrize("data_type", ["int32", "uint32"])
def test_sums_of_many_integers_wrap_around(name: str, count: int, data_type: str) -> None:
    """Both with and without the kernel that sums in float64."""
    x = np.full(count, np.iinfo(data_type).max, data_type)
    x[0] -= 1 + count % 2  # the sum is odd, and float64 holds no odd numbers beyond 2**53
    np.testing.assert_array_equal(reduce(ORT, name, x), reduce(REFERENCE, name, x))


@pytest.mark.parametrize("device", [ORT, REFERENCE], ids=["onnxruntime", "reference"])
@pytest.mark.parametrize("data_type", ["int64", "uint64"])
def test_sums_of_long_integers_keep_every_bit(device: ow.MLContext, data_type: str) -> None:
    x = np.array([2**60 + 1, 2, 3, 5, 7], data_type)
    assert reduce(device, "reduce_sum", x) == 2**60 + 18
    assert reduce(device, "reduce_product", x) == (2**60 + 1) * 210 % 2**64  # below 2**63, so the same for both types


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min"])
@pytest.mark.parametrize("data_type", ["int64", "uint32", "uint64"])
def test_reduce_extremes_that_differ_in_bit_31(name: str, data_type: str) -> None:
    # Not alternating: the kernel compares numbers that are an even number of places apart.
    x = np.array([[2**31 + 1, 2**31 + 2, 1, 2]] * 2, data_type)
    np.testing.assert_array_equal(reduce(ORT, name, x, axes=[1]), reduce(REFERENCE, name, x, axes=[1]))


@pytest.mark.parametrize("device", [ORT, REFERENCE], ids=["onnxruntime", "reference"])
@pytest.mark.parametrize("data_type", ["float32", "float16", "int32", "int8", "uint8", "uint32", "int64", "uint64"])
def test_arg_max_returns_first_of_equal_values(device: ow.MLContext, data_type: str) -> None:
    x = np.array([[3, 1, 7, 7, 1]] * 2, data_type)
    np.testing.assert_array_equal(reduce(device, "arg_max", x, 1), [2, 2])
    np.testing.assert_array_equal(reduce(device, "arg_min", x, 1), [1, 1])


@pytest.mark.parametrize("device", [ORT, REFERENCE], ids=["onnxruntime", "reference"])
@pytest.mark.parametrize("values", [[np.inf, np.nan], [-np.inf, np.nan], [np.inf, 1, np.nan, 2]])
def test_log_sum_exp_keeps_nan(device: ow.MLContext, values: list[float]) -> None:
    assert np.isnan(reduce(device, "reduce_log_sum_exp", np.array(values, "float32")))


@pytest.mark.parametrize("device", [ORT, REFERENCE], ids=["onnxruntime", "reference"])
def test_log_sum_exp_does_not_overflow(device: ow.MLContext) -> None:
    x = np.array([1000, 1000], "float32")
    np.testing.assert_allclose(reduce(device, "reduce_log_sum_exp", x), 1000 + np.log(2), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "op_type"),
    [
        ("reduce_l1", "ReduceL1"),
        ("reduce_l2", "ReduceL2"),
        ("reduce_log_sum", "ReduceLogSum"),
        ("reduce_log_sum_exp", "ReduceLogSumExp"),
        ("reduce_max", "ReduceMax"),
        ("reduce_mean", "ReduceMean"),
        ("reduce_min", "ReduceMin"),
        ("reduce_product", "ReduceProd"),
        ("reduce_sum", "ReduceSum"),
        ("reduce_sum_square", "ReduceSumSquare"),
    ],
)
def test_floats_take_one_kernel(name: str, op_type: str) -> None:
    builder = ow.MLGraphBuilder(ORT)
    y = getattr(builder, name)(builder.input("x", "float32", (2, 3, 4)), axes=[0, 2])
    ctx, _, _ = ort.emit_graph(Graph.reaching({"y": y}))
    assert [node.op_type for node in ctx.nodes] == [op_type]
