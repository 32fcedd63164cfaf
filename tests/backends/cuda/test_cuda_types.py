"""Data types of 16 bits that CUDA kernels load, store and compute in 32 bits, on a GPU (`make test-gpu`) or the processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave.context.tensors import state_of
from opweave.core.casts import cast_array, compute_form

REFERENCE = ow.ml.create_context(device="reference", drafts=True)


@pytest.fixture
def context(device_context: ow.MLContext) -> ow.MLContext:
    state_of(device_context).drafts = True
    return device_context


OPERATIONS: dict[str, Callable[..., Any]] = {
    "chain": lambda b, x: b.sub(b.mul(b.add(x, x), x), b.reverse(x)),
    "div": lambda b, x: b.div(x, b.reverse(x)),
    "greater": lambda b, x: b.greater(x, b.reverse(x)),
    "transpose": lambda b, x: b.transpose(x),
    "concat": lambda b, x: b.concat([x, b.reverse(x)], 1),
    "pad": lambda b, x: b.pad(x, [1, 1], [0, 2], value=1),
    "gather": lambda b, x: b.gather(x, b.constant(np.int32([2, 0])), axis=1),
    "reduce_max": lambda b, x: b.reduce_max(x, axes=[1]),
    "constant": lambda b, x: b.add(x, b.constant(cast_array(np.arange(7), x.data_type))),
    "to float32": lambda b, x: b.cast(x, "float32"),
    "matmul": lambda b, x: b.matmul(x, b.transpose(x)),
    "softmax": lambda b, x: b.softmax(x, 1),
}


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["bfloat16", "int16", "uint16"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_kernels_compute_types_of_16_bits(context: ow.MLContext, name: str, data_type: str) -> None:
    if name in ("matmul", "softmax") and data_type != "bfloat16":
        pytest.skip("the operation takes floats")
    x = cast_array(np.random.default_rng(1).integers(-(2**15), 2**16, (4, 7)), data_type)
    if data_type == "bfloat16":
        x = cast_array(np.random.default_rng(1).standard_normal((4, 7)), data_type)
    results = []
    for each in (context, REFERENCE):
        builder = ow.MLGraphBuilder(each)
        result = OPERATIONS[name](builder, builder.input("x", data_type, x.shape))  # type: ignore[arg-type]
        graph = builder.build({"y": result}, fallback="error")
        results.append(each.compute(graph, {"x": x})["y"])
    got, expected = (compute_form(result).astype(np.float64) for result in results)
    tolerance = 2.0**-7 if data_type == "bfloat16" else 0
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
