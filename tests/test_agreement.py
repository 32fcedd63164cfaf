"""Every operation on Hypothesis-made calls: ONNX Runtime's rule, WebGPU's kernels, the NumPy reference, the decomposition."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from samples import SAMPLES, Call, Make, Sample, type_choices
from webgpu_device import gpu_context

import opweave as ow
from opweave.compile.driver import compile
from opweave.compile.legalise import legalise
from opweave.expr.evaluate import evaluate
from opweave.graph import Graph, MLOperand, Node
from opweave.kernels.expression import program_of_nodes
from opweave.operation import Op
from opweave.ops import Operations

for file in sorted(Path(__file__).parent.joinpath("samples").glob("[a-z]*.py")):
    import_module(f"samples.{file.stem}")

ORT = ow.ml.create_context(device="cpu")
REFERENCE = ow.ml.create_context(device="reference")
OPS = Operations.listing()

# Cases are few an op and data type, because there are many of both; the seeds are fixed so that a run can be repeated.
few = settings(max_examples=15)


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
    graph = builder.build(outputs_of(result))
    return context.compute(graph, {name: arrays[name] for name in graph.inputs})


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


CONVERSIONS = ("cast", "dequantize_linear", "quantize_linear")
"""Operations that are about data types: their rows are never sampled."""


def row_of(op: Op[..., Any], types: dict[str, str]) -> Any:
    """A row of a test: an operation and the data types of its operands."""
    mark = pytest.mark.data_types(op.__module__, op.name, [*types.values()])
    name = f"{op.name}-{'-'.join(dict.fromkeys(types.values()))}"
    return pytest.param(op, types, id=name, marks=() if op.name in CONVERSIONS else mark)


def rows(decomposable: bool = False) -> list[Any]:
    return [
        row_of(op, types)
        for op in OPS.values()
        if op.decomposition is not None or not decomposable
        for types in type_choices(op, ORT.backend.limits(op))
    ]


def test_every_operation_has_a_sample() -> None:
    assert [op for op in OPS.values() if op not in SAMPLES] == []


@pytest.mark.parametrize(("op", "types"), rows())
def test_rule_agrees_with_reference(op: Op[..., Any], types: dict[str, str]) -> None:
    """Also shows that each operation runs for each data type that `op_support_limits` claims."""
    sample = SAMPLES[op]

    @few
    @given(st.data())
    def check(data: st.DataObject) -> None:
        call = sample.make(Make(data.draw, types))
        assert_agree(sample, call, run(ORT, op, call), run(REFERENCE, op, call))

    check()


@pytest.mark.parametrize(("op", "types"), rows())
def test_webgpu_agrees_with_reference(op: Op[..., Any], types: dict[str, str]) -> None:
    """On an adapter of software, where every shader takes its time to compile."""
    context, sample = gpu_context(), SAMPLES[op]

    @settings(few, max_examples=4)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        call = sample.make(Make(data.draw, types))
        assert_agree(sample, call, run(context, op, call), run(REFERENCE, op, call))

    check()


@pytest.mark.parametrize(("op", "types"), rows(decomposable=True))
def test_decomposition_agrees_with_reference(op: Op[..., Any], types: dict[str, str]) -> None:
    sample = SAMPLES[op]

    @few
    @given(st.data())
    def check(data: st.DataObject) -> None:
        call = sample.make(Make(data.draw, types))
        assert_agree(sample, call, run_decomposed(op, call), run(REFERENCE, op, call))

    check()


@pytest.mark.parametrize(("op", "types"), rows(decomposable=True))
def test_webgpu_agrees_on_decompositions(op: Op[..., Any], types: dict[str, str]) -> None:
    context, sample = gpu_context(), SAMPLES[op]

    @settings(few, max_examples=2)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        call = sample.make(Make(data.draw, types))
        assert_agree(sample, call, run_decomposed(op, call, context), run(REFERENCE, op, call))

    check()


def formula_rows() -> list[Any]:
    return [row for row in rows() if row.values[0].formula is not None]


@pytest.mark.parametrize(("op", "types"), formula_rows())
def test_expression_agrees_with_reference(op: Op[..., Any], types: dict[str, str]) -> None:
    sample = SAMPLES[op]

    @few
    @given(st.data())
    def check(data: st.DataObject) -> None:
        call = sample.make(Make(data.draw, types))
        _, result, arrays = record(REFERENCE, op, call)
        graph = Graph.reaching(outputs_of(result))
        program, inputs = program_of_nodes(graph.nodes, list(graph.inputs.values()), list(graph.outputs.values()))
        outputs = {name: np.empty(o.shape, o.data_type) for name, o in graph.outputs.items()}
        names = {operand: name for name, operand in graph.inputs.items()}
        evaluate(program, [arrays[names[operand]] for operand in inputs], list(outputs.values()))
        assert_agree(sample, call, outputs, run(REFERENCE, op, call))

    check()
