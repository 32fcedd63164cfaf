"""Which operations of two graphs correspond to each other, and where the graphs themselves differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import ValidationError
from ...graph import Graph, Node, Operand
from ...names import counted, shown
from .measure import Values, error

FLOATS = ("float32", "float16")


def corresponding(a: Graph, b: Graph) -> dict[Operand, Operand]:
    """For each input and result in `a`, its counterpart in `b`.

    Both must apply the same operations to each other's results in the same order. Constants and attributes may differ, as may
    float32 and float16.

    Raises:
        ValidationError: they do not; the message names the first difference.
    """
    found: dict[Operand, Operand] = {}
    if len(a.inputs) != len(b.inputs):
        raise ValidationError(f"diff: the graphs have different inputs: {list(a.inputs)} and {list(b.inputs)}")
    by_name = a.inputs.keys() == b.inputs.keys()
    for (name, operand), by_order in zip(a.inputs.items(), b.inputs.values(), strict=True):
        counterpart = b.inputs[name] if by_name else by_order
        _check_like(operand, counterpart, f"input {name!r}")
        found[operand] = counterpart
    for number, (node, other) in enumerate(zip(a.nodes, b.nodes, strict=False)):
        where = f"operation {number}"
        if node.op is not other.op:
            raise ValidationError(f"diff: the graphs differ at {where}: {node.title} and {other.title}")
        operands, others = list(node.operands), list(other.operands)
        if [*node.inputs] != [*other.inputs] or len(operands) != len(others):
            raise ValidationError(f"diff: the graphs differ at {where}, {node.title}: it has other operands")
        for operand, counterpart in zip(operands, others, strict=True):
            if operand.is_constant and counterpart.is_constant:
                _check_like(operand, counterpart, f"a constant of {where}, {node.title}")
            elif found.get(operand) is not counterpart:
                raise ValidationError(f"diff: the graphs differ at {where}, {node.title}: it reads other results")
        for output, counterpart in zip(node.outputs, other.outputs, strict=True):
            _check_like(output, counterpart, f"the result of {where}, {node.title},")
            found[output] = counterpart
    if len(a.nodes) != len(b.nodes):
        counts = " and ".join(counted(len(graph.nodes), "operation") for graph in (a, b))
        raise ValidationError(f"diff: the graphs have {counts}")
    if len(a.outputs) != len(b.outputs):
        raise ValidationError(f"diff: the graphs have different outputs: {list(a.outputs)} and {list(b.outputs)}")
    return found


def _check_like(a: Operand, b: Operand, what: str) -> None:
    like = a.data_type == b.data_type or {a.data_type, b.data_type} <= {*FLOATS}
    if a.shape != b.shape or not like:
        raise ValidationError(f"diff: {what} is {a.desc} in one graph, and {b.desc} in the other")


def changes(a: Node, b: Node) -> Iterator[str]:
    """What differs between two nodes that correspond to each other: attributes and constants, as text."""
    if a is b:
        return
    halves = [node.outputs[0].data_type == "float16" for node in (a, b)]
    for name, value in a.attributes.items():
        other = b.attributes[name]
        if any(halves) and not all(halves):  # attributes are rounded to the data type of an operand
            value, other = _as_half(value), _as_half(other)
        if value != other and not (value != value and other != other):
            yield f"{name} is {shown(value)}, expected {shown(other)}"
    for (name, operand), (_, other) in zip(named(a), named(b), strict=True):
        if operand.is_constant and (text := _changed(operand.value, other.value)):
            yield f"{name} {operand.desc} {text}"


def _as_half(value: Any) -> Any:
    with np.errstate(over="ignore"):
        return float(np.float16(value)) if isinstance(value, float) else value


def _changed(a: np.ndarray, b: np.ndarray) -> str:
    """How a constant differs; empty if it does not, beyond being rounded to a smaller type."""
    if a is b or (a.dtype == b.dtype and np.array_equal(a, b)):
        return ""
    found = error(a, b, Values.of(b))
    different = a.size - found.equal
    if not different or (a.dtype != b.dtype and found.ulp <= 1):
        return ""
    where = f" at {list(found.where)}" if found.where else ""
    return (
        f"differs in {different:,} of {a.size:,} elements, most{where}: {found.got:.6g}, expected {found.expected:.6g}"
    )


def named(node: Node) -> Iterator[tuple[str, Operand]]:
    """The operands of a node by parameter; those of sequences with their number."""
    for name, value in node.inputs.items():
        if isinstance(value, tuple):
            yield from ((f"{name}[{number}]", operand) for number, operand in enumerate(value))
        elif value is not None:
            yield name, value
