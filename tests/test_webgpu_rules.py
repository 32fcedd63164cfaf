"""Index expressions of operations: what they say, evaluated with NumPy, agrees with the reference. No device is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from samples import SAMPLES, Call, Make, type_choices
from test_agreement import REFERENCE, assert_agree, outputs_of, record, run

from opweave.backends.webgpu.rules import RULES, Result, Scatter, lower
from opweave.expr import Array, compute, trace
from opweave.expr.evaluate import evaluate
from opweave.expr.ir import Program
from opweave.expr.simplify import simplified
from opweave.graph import Graph, Node
from opweave.kernels.expression import as_stored, flat
from opweave.operation import Op
from opweave.ops import Operations

OPS = Operations.listing()
RECURRENT = {OPS[name] for name in ("gru", "gru_cell", "lstm", "lstm_cell")}

few = settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def program_of(node: Node) -> Program:
    """What a node computes; of a scatter the array it starts from, the values, and their positions along each axis."""

    def whole(*arrays: Array) -> tuple[Array, ...]:
        rest = iter(arrays)

        def given(value: Any) -> Any:
            return tuple(map(given, value)) if isinstance(value, tuple) else None if value is None else next(rest)

        made = lower(node.op, {name: given(value) for name, value in node.inputs.items()}, node.attributes)
        if isinstance(made, Scatter):
            return scattered(made)
        results = made if isinstance(made, tuple) else (made,)
        return tuple(as_stored(r, o.data_type) for r, o in zip(results, node.outputs, strict=True))

    return trace(whole, node.op.name, [operand.desc for operand in flat(node.inputs)])


def scattered(made: Scatter) -> tuple[Array, ...]:
    def along(axis: int) -> Callable[..., Array]:
        return lambda *p: made.at(*p)[axis] + 0

    axes = [compute(made.shape, along(axis)) for axis in range(made.into.rank)]
    return made.into, compute(made.shape, made.value), *axes


def computed(program: Program, node: Node, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a node by NumPy."""
    outputs = [np.empty(output.desc.shape, output.desc.data_type) for output in program.outputs]
    evaluate(program, arrays, outputs)
    if len(outputs) == len(node.outputs):
        return outputs
    into, values, *positions = outputs
    for axis, (places, size) in enumerate(zip(positions, into.shape, strict=True)):
        assert places.min() >= 0, axis
        assert places.max() < size, axis
    into[tuple(positions)] = values
    return [into]


def check(op: Op[..., Any], call: Call, change: Callable[[Program], Program] = simplified) -> Program:
    """Compare the rule with the reference, as it is and changed; return the changed program."""
    _, result, arrays = record(REFERENCE, op, call)
    graph = Graph.reaching(outputs_of(result))
    (node,) = graph.nodes
    names = {operand: name for name, operand in graph.inputs.items()}
    given = [arrays[names[operand]] for operand in flat(node.inputs)]
    wanted = run(REFERENCE, op, call)
    program = program_of(node)
    for each in (program, changed := change(program)):
        got = dict(zip(wanted, computed(each, node, given), strict=True))
        assert_agree(SAMPLES[op], call, got, wanted)
    return changed


def rows() -> list[Any]:
    return [
        pytest.param(op, types, id=f"{name}-{'-'.join(dict.fromkeys(types.values()))}")
        for name, op in OPS.items()
        if op in RULES
        for types in type_choices(op, op.limits)
    ]


def test_every_operation_has_a_formula_or_a_rule_but_the_recurrent_ones() -> None:
    assert {op for op in OPS.values() if op.formula is None and op not in RULES} == RECURRENT
    assert [op.name for op in RULES if op.formula is not None] == []


@pytest.mark.parametrize(("op", "types"), rows())
def test_rule_agrees_with_reference(op: Op[..., Any], types: dict[str, str]) -> None:
    """For each data type that the operands may have."""

    @few
    @given(st.data())
    def agree(data: st.DataObject) -> None:
        check(op, SAMPLES[op].make(Make(data.draw, types)))

    agree()
