"""Every operation on Hypothesis-made calls: the rules of back ends, the NumPy reference, the decomposition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from row_sample import examples, typed
from samples import SAMPLES, Make, type_choices
from support.agreement import REFERENCE, assert_agree, outputs_of, record, run, run_decomposed
from support.cuda_driver import HARDWARE, cuda_context
from support.openvino_device import openvino_context
from support.webgpu_device import gpu_context

import opweave as ow
from opweave.backends import discover
from opweave.core.graph import Graph
from opweave.core.operation import Op
from opweave.expr.evaluate import evaluate
from opweave.inspect.support import main_operand, smallest_call
from opweave.kernels.expression import program_of_nodes
from opweave.ops import Operations

ORT = ow.ml.create_context(device="cpu")
OPS = Operations.listing()

# Cases are few an op and data type, because there are many of both; the seeds are fixed so that a run can be repeated.
few = settings(max_examples=examples(10, in_sample=4))


def row_of(op: Op[..., Any], types: dict[str, str], by_types: bool = True) -> Any:
    """A row of a test: an operation and the data types of its operands, which samples vary or not."""
    name = f"{op.name}-{'-'.join(dict.fromkeys(types.values()))}"
    mark = typed(op.name, [*types.values()], family=op.__module__) if by_types else pytest.mark.covers(op.name)
    return pytest.param(op, types, id=name, marks=mark)


def rows(decomposable: bool = False, by_types: bool = True) -> list[Any]:
    return [
        row_of(op, types, by_types)
        for op in OPS.values()
        if op.decomposition is not None or not decomposable
        for types in type_choices(op, ORT.backend.limits(op))
    ]


def test_samples_have_every_operation() -> None:
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


def openvino_rows() -> list[Any]:
    """Those that OpenVINO has a rule for; others run as expressions, decomposed or on ONNX Runtime."""
    backend = discover()["openvino"]

    def has_rule(op: Op[..., Any], types: dict[str, Any]) -> bool:
        node = smallest_call(op, types[main_operand(op)]).node
        return node is not None and backend.supports(node)

    return [row for row in rows(by_types=False) if has_rule(*row.values)]


@pytest.mark.long
@pytest.mark.parametrize(("op", "types"), openvino_rows())
def test_openvino_agrees_with_reference(op: Op[..., Any], types: dict[str, str]) -> None:
    """Every call is compiled, which takes longer than on ONNX Runtime."""
    context, sample = openvino_context(), SAMPLES[op]

    @settings(few, max_examples=4)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        call = sample.make(Make(data.draw, types))
        if op.name == "softmax":  # with NaN it differs, as the page of deviations says
            call.args = (np.nan_to_num(call.args[0], nan=1.0, posinf=np.inf, neginf=-np.inf), *call.args[1:])
        assert_agree(sample, call, run(context, op, call), run(REFERENCE, op, call))

    check()


@pytest.mark.parametrize(("op", "types"), rows(by_types=False))
def test_webgpu_agrees_with_reference(op: Op[..., Any], types: dict[str, str]) -> None:
    """On an adapter of software, where every shader takes its time to compile."""
    context, sample = gpu_context(), SAMPLES[op]

    @settings(few, max_examples=examples(4, in_sample=2))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        call = sample.make(Make(data.draw, types))
        assert_agree(sample, call, run(context, op, call), run(REFERENCE, op, call))

    check()


def cuda_rows() -> list[Any]:
    """Without a GPU each kernel is compiled as C++, which takes seconds: the conformance cases are sampled instead."""
    return rows() if HARDWARE else [pytest.param(*row.values, id=row.id, marks=pytest.mark.covers()) for row in rows()]


@pytest.mark.long
@pytest.mark.parametrize(("op", "types"), cuda_rows())
def test_cuda_agrees_with_reference(op: Op[..., Any], types: dict[str, str]) -> None:
    context, sample = cuda_context(), SAMPLES[op]

    @settings(few, max_examples=15 if HARDWARE else 2)
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


@pytest.mark.long
@pytest.mark.parametrize(("op", "types"), rows(decomposable=True, by_types=False))
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
        program, inputs, _ = program_of_nodes(
            graph.nodes, list(graph.inputs.values()), list(graph.outputs.values()), rounds=False
        )
        outputs = {name: np.empty(o.shape, o.data_type) for name, o in graph.outputs.items()}
        names = {operand: name for name, operand in graph.inputs.items()}
        evaluate(program, [arrays[names[operand]] for operand in inputs], list(outputs.values()))
        assert_agree(sample, call, outputs, run(REFERENCE, op, call))

    check()
