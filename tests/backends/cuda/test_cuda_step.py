"""One token of a language model, on a GPU (`make test-gpu`) or the processor: its results are those of the reference, in few
kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opweave as ow
from benchmarks.decode_step import Sizes, random_weight, step
from opweave.backends.gpu import prefetch
from opweave.context.graph import program_of
from opweave.core.dtypes import DataType

LENGTH = 200


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(("data_type", "heads", "groups"), [("float16", 4, 2), ("float32", 4, 2), ("float32", 33, 1)])
def test_decoder_step_equals_reference(
    device_context: ow.MLContext, data_type: DataType, heads: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "PREFETCHED_BYTES", (0, prefetch.PREFETCHED_BYTES[1]))
    sizes = Sizes(layers=2, hidden=64, heads=heads, groups=groups, size=16, inner=136, past=255, data_type=data_type)
    reference = ow.ml.create_context(device="reference")
    (graph, found), (_, wanted) = (_computed(each, sizes) for each in (device_context, reference))
    in_place = _computed_in_place(device_context, graph)
    for name, value in wanted.items():
        tolerance = 2e-2 if data_type == "float16" else 1e-4
        np.testing.assert_allclose(found[name].astype("float32"), value, rtol=tolerance, atol=tolerance, err_msg=name)
        np.testing.assert_array_equal(in_place[name], found[name], err_msg=name)
    # The two copies of the past do not run if it is in place.
    assert [step.kernel.title.partition(": y")[0] for step in _steps(graph)][:8] == [
        "rms_normalization + matmul",
        "group_query_attention: the past keys",
        "group_query_attention: the past values",
        "group_query_attention: parts of the keys",
        "group_query_attention: all keys",
        "matmul + add",
        "rms_normalization + matmul + sigmoid + mul + matmul + mul",
        "matmul + add",
    ]
    assert len(_steps(graph)) == 2 * 8


def _steps(graph: ow.MLGraph) -> list[Any]:
    runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
    return [step for runner in runners for step in runner.steps]


def _computed(context: ow.MLContext, sizes: Sizes) -> tuple[ow.MLGraph, dict[str, np.ndarray]]:
    """The graph of a step, and its results for random inputs."""
    builder = ow.MLGraphBuilder(context)
    graph = builder.build(step(builder, sizes, random_weight(builder, sizes)))
    return graph, dict(context.compute(graph, _random_inputs(graph)))


def _computed_in_place(context: ow.MLContext, graph: ow.MLGraph) -> dict[str, np.ndarray]:
    """The results for the same inputs, if the tensors of the past become those of the results."""
    tensors = {
        name: context.create_tensor(desc.data_type, desc.shape, readable=True, writable=True)
        for name, desc in {**graph.inputs, **graph.outputs}.items()
    }
    for name, array in _random_inputs(graph).items():
        context.write_tensor(tensors[name], array)
    inputs, outputs = ({name: tensors[name] for name in names} for names in (graph.inputs, graph.outputs))
    ow.memory.copies.reset()
    context.dispatch(graph, inputs, outputs)
    assert ow.memory.copies.count == 0
    return {name: context.read_tensor(tensor) for name, tensor in outputs.items()}


def _random_inputs(graph: ow.MLGraph) -> dict[str, Any]:
    random = np.random.default_rng(1)
    inputs: dict[str, Any] = {
        name: random.standard_normal(operand.shape).astype(operand.data_type)
        for name, operand in graph.inputs.items()
        if name != "lengths"
    }
    return {**inputs, "lengths": np.int32([LENGTH])}
