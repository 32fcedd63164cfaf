"""Operations run on calls of the samples: on a back end, decomposed, and compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from samples import Call, Sample

import opweave as ow
from opweave.compile.driver import compile
from opweave.compile.legalise import legalise
from opweave.context.graph import recorded_graph
from opweave.core.graph import Graph, MLOperand, Node
from opweave.core.operation import Op
from opweave.js import webnn_only
from support.graphs import compute_again

REFERENCE = ow.ml.create_context(device="reference")


def record(context: ow.MLContext, op: Op[..., Any], call: Call) -> tuple[ow.MLGraphBuilder, Any, dict[str, np.ndarray]]:
    """Build a call with its arrays as graph inputs."""
    builder = ow.MLGraphBuilder(context)
    arrays: dict[str, np.ndarray] = {}

    def operand(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            return [operand(item) for item in value]
        if not isinstance(value, np.ndarray):
            return value
        name = f"x{len(arrays)}"
        arrays[name] = value
        return builder.input(name, value.dtype.name, value.shape)

    args = [operand(value) for value in call.args]
    kwargs = {name: operand(value) for name, value in call.kwargs.items()}
    return builder, op(builder, *args, **kwargs), arrays


def outputs_of(result: Any) -> dict[str, MLOperand]:
    return {f"y{i}": r for i, r in enumerate(result if isinstance(result, tuple) else [result])}


def run(context: ow.MLContext, op: Op[..., Any], call: Call) -> dict[str, np.ndarray]:
    builder, result, arrays = record(context, op, call)
    return compute_again(context, builder.build(outputs_of(result)), arrays)


def run_decomposed(op: Op[..., Any], call: Call, context: ow.MLContext = REFERENCE) -> dict[str, np.ndarray]:
    """Run the call with the op replaced by its decomposition, on the reference back end if on no other."""
    _, result, arrays = record(context, op, call)
    graph = Graph.reaching(outputs_of(result))

    def supports(node: Node) -> bool:
        return node.op is not op

    decomposed, _ = legalise(graph, supports)
    program = compile(decomposed, context.backend, device=context.device.name, power_preference="default", fuse=False)
    outputs = {name: np.empty(o.shape, o.data_type) for name, o in decomposed.outputs.items()}
    program.run([arrays[name] for name in decomposed.inputs], list(outputs.values()))
    return outputs


def assert_agree(sample: Sample, call: Call, got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, expected in wanted.items():
        actual = got[name]
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(actual, expected, err_msg=repr(call))
            continue
        factor = sample.half if expected.dtype == np.float16 else 1
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(
            a, e, rtol=sample.rtol * factor, atol=sample.atol * factor, equal_nan=True, err_msg=repr(call)
        )


def run_without_composites(
    graph: ow.MLGraph, arrays: Mapping[str, np.ndarray], context: ow.MLContext = REFERENCE
) -> dict[str, np.ndarray]:
    """Run a graph whose composites are decomposed into operations of the specification, as in JavaScript."""
    recorded = recorded_graph(graph)
    assert recorded is not None
    plain = webnn_only(recorded)
    program = compile(plain, context.backend, device=context.device.name, power_preference="low-power")
    outputs = {name: np.empty(o.shape, o.data_type) for name, o in plain.outputs.items()}
    program.run([np.ascontiguousarray(arrays[name]) for name in plain.inputs], list(outputs.values()))
    return outputs
