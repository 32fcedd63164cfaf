"""Operators that sample images with CUDA, on a GPU (`make test-gpu`) or the processor, against their witnesses."""

from __future__ import annotations

import numpy as np
import pytest
from support.sampling_cases import COUNT, MAKERS, case

import opweave as ow

ROWS = [
    pytest.param(op_type, seed, id=f"{op_type}-{seed}", marks=pytest.mark.covers(*([op_type] if seed == 0 else [])))
    for op_type in MAKERS
    for seed in range(0, COUNT, 10)
]


@pytest.mark.long
@pytest.mark.parametrize(("op_type", "seed"), ROWS)
def test_random_node_equals_witness(device_context: ow.MLContext, op_type: str, seed: int) -> None:
    node = case(op_type, seed)
    model, feed = node.model()
    (result,) = ow.InferenceSession(model, device_context, fallback="error").run(None, feed)
    np.testing.assert_allclose(result, node.expected(), rtol=node.tolerance, atol=node.tolerance)
