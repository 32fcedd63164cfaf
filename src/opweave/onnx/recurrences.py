"""Recurrences in saved models: loops, whose bodies are a step in WebNN's operations. ONNX's Scan repeats them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..compile.legalise import Decomposition
from ..composites.control import loop
from ..core.bodies import make_body
from ..core.graph import Node, Operand, iter_operands
from ..expr.decompose import decompose, refusal
from ..expr.recurrence import Recurrence
from ..kernels.recurrence import recurrence_of
from ..ops.movement import move_axis
from ..ops.recorder import Recorder


def decomposition_of(node: Node) -> Decomposition | None:
    """The function that replaces a node in a file: a loop for a recurrence whose step WebNN's operations express."""
    if node.op.recurrence is None:
        return node.op.decomposition
    recurrence = recurrence_of(node)
    if recurrence.step.has_sizes or refusal(recurrence.step) is not None:
        return node.op.decomposition
    return partial(_repeat, recurrence, tuple(node.op.operands))


def _repeat(recurrence: Recurrence, names: Sequence[str], b: Any, /, **arguments: Any) -> tuple[Operand, ...]:
    """Add a loop of the steps of a recurrence to a builder; its sequences have their axis of time first."""
    operands = list(iter_operands({name: arguments[name] for name in names}))
    count = recurrence.states
    states, others = operands[:count], operands[count:]
    pairs = list(zip(recurrence.inputs, others, strict=True))
    sequences = [(along, operand) for along, operand in pairs if along is not None]
    whole = [operand for along, operand in pairs if along is None]

    def step(builder: Any, *values: Operand) -> Sequence[Operand]:
        slices, arrays = iter(values[count : count + len(sequences)]), iter(values[count + len(sequences) :])
        inputs = [next(arrays if along is None else slices) for along in recurrence.inputs]
        return decompose(recurrence.step, builder, [*values[:count], *inputs])

    descs = [operand.desc for operand in states]
    descs += [along.slice_of(operand.desc) for along, operand in sequences]
    descs += [operand.desc for operand in whole]
    results = loop(
        b,
        states,
        [move_axis(b, operand, along.axis, 0) for along, operand in sequences],
        whole,
        body=make_body(Recorder(), descs, step),
        length=recurrence.length_for([operand.desc for operand in operands]),
        backward=[int(along.backward) for along, _ in sequences],
        stacked_backward=[int(along.backward) for along in recurrence.outputs],
    )
    stacked = zip(recurrence.outputs, results[count:], strict=True)
    return (*results[:count], *(move_axis(b, result, 0, along.axis) for along, result in stacked))
