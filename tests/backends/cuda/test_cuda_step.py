"""One token of a language model, on a GPU (`make test-gpu`) or the processor: its results are those of the reference, in few
kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opweave as ow
from benchmarks.decode_step import Sizes, random_weight, step
from opweave.context.graph import program_of
from opweave.core.dtypes import DataType

LENGTH = 200


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["float16", "float32"])
def test_decoder_step_equals_reference(device_context: ow.MLContext, data_type: DataType) -> None:
    sizes = Sizes(layers=2, hidden=64, heads=4, groups=2, size=16, inner=136, past=255, data_type=data_type)
    reference = ow.ml.create_context(device="reference")
    (graph, found), (_, wanted) = (_computed(each, sizes) for each in (device_context, reference))
    for name, value in wanted.items():
        tolerance = 2e-2 if data_type == "float16" else 1e-4
        np.testing.assert_allclose(found[name].astype("float32"), value, rtol=tolerance, atol=tolerance, err_msg=name)
    # The two copies of the past do not run if it is in place.
    assert [step.kernel.title.partition(": y")[0] for step in _steps(graph)][:9] == [
        "rms_normalization + matmul",
        "group_query_attention: the past keys",
        "group_query_attention: the past values",
        "group_query_attention: the new keys and values",
        "group_query_attention: parts of the keys",
        "group_query_attention: all keys",
        "matmul + add",
        "rms_normalization + matmul + sigmoid + mul + matmul + mul",
        "matmul + add",
    ]
    assert len(_steps(graph)) == 2 * 9


def _steps(graph: ow.MLGraph) -> list[Any]:
    runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
    return [step for runner in runners for step in runner.steps]


def _computed(context: ow.MLContext, sizes: Sizes) -> tuple[ow.MLGraph, dict[str, np.ndarray]]:
    """The graph of a step, and its results for random inputs."""
    builder = ow.MLGraphBuilder(context)
    graph = builder.build(step(builder, sizes, random_weight(builder, sizes)))
    random = np.random.default_rng(1)
    inputs: dict[str, Any] = {
        name: random.standard_normal(operand.shape).astype(operand.data_type)
        for name, operand in graph.inputs.items()
        if name != "lengths"
    }
    return graph, dict(context.compute(graph, {**inputs, "lengths": np.int32([LENGTH])}))
