"""Pair the operations of two graphs, and find differences between the graphs themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.graph import Graph, Node, Operand
from ...ops import Operations
from ...support.errors import NotSupportedError, ValidationError
from ...support.names import count_of, short_repr
from ..drawing.picture import named_operands
from .measure import Values, error

FLOATS = ("float32", "float16")


@dataclass(frozen=True, slots=True)
class ComparedPairs:
    """Corresponding operands and nodes of two graphs, in topological order of both.

    A conversion between float32 and float16 that only one graph has is paired with None.
    """

    operands: Mapping[Operand, Operand]
    steps: tuple[tuple[Node | None, Node | None], ...]


def match_graphs(a: Graph, b: Graph) -> ComparedPairs:
    """Pair the operands and nodes of two graphs.

    Both graphs must apply the same operations in the same order to corresponding operands. Constants and attributes may
    differ, as may float32 and float16, and conversions between these two types.
    """
    for own in (*a.nodes, *b.nodes):
        if own.op.is_of_host:  # a key of random numbers
            raise NotSupportedError(f"diff: {own.title} is random, so that no two runs are alike")
    counterparts: dict[Operand, Operand] = {}
    sources: dict[Operand, Operand] = {}  # in b: result of an unpaired conversion -> the value it converts
    steps: list[tuple[Node | None, Node | None]] = []
    by_name = a.inputs.keys() == b.inputs.keys()
    others = [b.inputs[name] for name in a.inputs] if by_name else list(b.inputs.values())
    if len(a.inputs) != len(others) or not all(map(_are_alike, a.inputs.values(), others)):
        first, second = (
            ", ".join(f"{name} {operand.desc}" for name, operand in graph.inputs.items()) or "none" for graph in (a, b)
        )
        raise ValidationError(f"diff: the models have different inputs: {first} in one, {second} in the other")
    counterparts |= zip(a.inputs.values(), others, strict=True)
    mine, theirs = list(a.nodes), list(b.nodes)
    while mine or theirs:
        node, other = mine[0] if mine else None, theirs[0] if theirs else None
        both = False
        if node is not None and other is not None and _converts(node) and _converts(other):
            both = _source(counterparts[node.operands[0]], sources) is _source(other.operands[0], sources)
        if node is not None and _converts(node) and not both:
            counterparts[node.outputs[0]] = counterparts[node.operands[0]]
            steps.append((mine.pop(0), None))
            continue
        if other is not None and _converts(other) and not both:
            sources[other.outputs[0]] = _source(other.operands[0], sources)
            steps.append((None, theirs.pop(0)))
            continue
        if node is None or other is None:
            counts = " and ".join(count_of(len(graph.nodes), "operation") for graph in (a, b))
            raise ValidationError(f"diff: the graphs have {counts}")
        where = f"operation {a.nodes.index(node)}"
        if node.op is not other.op:
            raise ValidationError(f"diff: the graphs differ at {where}: {node.title} and {other.title}")
        operands, others = list(node.operands), list(other.operands)
        if [*node.inputs] != [*other.inputs] or len(operands) != len(others):
            raise ValidationError(f"diff: the graphs differ at {where}, {node.title}: it has other operands")
        for operand, counterpart in zip(operands, others, strict=True):
            if operand.is_constant and counterpart.is_constant:
                _check_like(operand, counterpart, f"a constant of {where}, {node.title}")
            elif operand.is_constant or _source(counterparts[operand], sources) is not _source(counterpart, sources):
                raise ValidationError(f"diff: the graphs differ at {where}, {node.title}: it reads other results")
        for output, counterpart in zip(node.outputs, other.outputs, strict=True):
            _check_like(output, counterpart, f"the result of {where}, {node.title},")
            counterparts[output] = counterpart
        steps.append((mine.pop(0), theirs.pop(0)))
    if len(a.outputs) != len(b.outputs):
        raise ValidationError(f"diff: the graphs have different outputs: {list(a.outputs)} and {list(b.outputs)}")
    return ComparedPairs(counterparts, tuple(steps))


def _converts(node: Node) -> bool:
    """Whether a node converts a value that is not constant from float32 to float16 or back."""
    if node.op is not Operations.cast:
        return False
    operand = node.operands[0]
    return not operand.is_constant and {operand.data_type, node.outputs[0].data_type} == {*FLOATS}


def _source(operand: Operand, sources: Mapping[Operand, Operand]) -> Operand:
    return sources.get(operand, operand)


def _are_alike(a: Operand, b: Operand) -> bool:
    """Whether two operands have equal shapes and data types; float32 and float16 count as equal."""
    return a.shape == b.shape and (a.data_type == b.data_type or {a.data_type, b.data_type} <= {*FLOATS})


def _check_like(a: Operand, b: Operand, label: str) -> None:
    if not _are_alike(a, b):
        raise ValidationError(f"diff: {label} is {a.desc} in one graph, and {b.desc} in the other")


def changes(a: Node, b: Node) -> Iterator[str]:
    """Yield the attributes and constants that differ between two corresponding nodes, as text."""
    if a is b:
        return
    halves = [node.outputs[0].data_type == "float16" for node in (a, b)]
    for name, value in a.attributes.items():
        other = b.attributes[name]
        if any(halves) and not all(halves):  # float16 nodes round attributes to float16
            value, other = _as_half(value), _as_half(other)
        is_float = {*FLOATS}.issuperset((value, other)) if name == "data_type" else False
        if value != other and not is_float and not (value != value and other != other):
            yield f"{name} is {short_repr(value)}, expected {short_repr(other)}"
    for (name, operand), (_, other) in zip(named_operands(a.inputs), named_operands(b.inputs), strict=True):
        if operand.is_constant and (text := _describe_change(operand.value, other.value)):
            yield f"{name} {operand.desc} {text}"


def _as_half(value: Any) -> Any:
    with np.errstate(over="ignore"):
        return float(np.float16(value)) if isinstance(value, float) else value


def _describe_change(a: np.ndarray, b: np.ndarray) -> str:
    """Describe how two constants differ; empty if they are equal, or if one is the other rounded to a smaller type."""
    if a is b or (a.dtype == b.dtype and np.array_equal(a, b)):
        return ""
    change = error(a, b, Values.of(b))
    different = a.size - change.equal
    if not different or (a.dtype != b.dtype and change.ulp <= 1):
        return ""
    where = f" at {list(change.where)}" if change.where else ""
    got, expected = change.texts
    return f"differs in {different:,} of {a.size:,} elements, most{where}: {got}, expected {expected}"
