"""Trace the expression of an operation, or of several fused operations, into a program for given operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from ..core.dtypes import DataType
from ..core.graph import Desc, Node, Operand, iter_operands, map_operands
from ..core.guards import Guards, current_guards
from ..core.operation import Op, call_with
from ..core.sizes import Size, is_symbolic
from ..expr import ir
from ..expr.array import Traced, as_array, is_rounded, round_float16
from ..expr.ir import Formula
from ..expr.tracing import trace_named
from ..support.cache import Cache
from ..support.errors import NO_RESULT, SignatureError, user_code
from .base import Descs

MAX_TRACES = 512

traces: Cache[Any, Formula] = Cache(MAX_TRACES)
"""Traced programs without sizes, by operation, formula, operands and attributes."""

_guarded_traces: WeakKeyDictionary[Guards, Cache[Any, Formula]] = WeakKeyDictionary()
"""Traced programs with sizes, for each scope that records the answers to comparisons."""


def program_of(op: Op[..., Any], inputs: Mapping[str, Descs], attributes: Mapping[str, Any]) -> Formula:
    """The program of a formula, with an input for each present operand; errors end with the line of the user's code."""
    descs, cache = iter_operands(inputs), traces
    if any(is_symbolic(value) for value in (*(desc.shape for desc in descs), *attributes.values())):
        # A scope must get all questions about sizes. That of a run has their answers from then on.
        guards = current_guards()
        if guards is None:
            return _trace(op, inputs, attributes)
        cache = _guarded_traces.setdefault(guards, Cache(MAX_TRACES))
        inputs, attributes = map_operands(inputs, _positive), _positive(attributes)
    key = op, op.formula, tuple(inputs.items()), tuple(attributes.items())
    return cache.make(key, lambda: _trace(op, inputs, attributes))


def _positive(value: Any) -> Any:
    """Numbers in place of sizes that depend on a name of 0 in this scope: expressions assume that names are at least 1."""
    if isinstance(value, tuple):
        return tuple(map(_positive, value))
    if isinstance(value, Mapping):
        return {name: _positive(item) for name, item in value.items()}
    if isinstance(value, Desc):
        return Desc(value.data_type, _positive(value.shape)) if is_symbolic(value.shape) else value
    if isinstance(value, Size) and not all(Size(name) > 0 for name in value.names):
        return int(value)
    return value


def _trace(op: Op[..., Any], inputs: Mapping[str, Descs], attributes: Mapping[str, Any]) -> Formula:
    formula = op.formula
    assert formula is not None, op
    descs, names = list(iter_operands(inputs)), names_of(inputs)

    def call_formula(*arrays: Traced) -> Any:
        rest = iter(arrays)
        result = call_with(formula, {**map_operands(inputs, lambda _: next(rest)), **attributes})
        if result is None:
            raise SignatureError(NO_RESULT)
        return result

    with user_code(formula, f"while tracing {op.name} for {', '.join(map(str, descs))}"):
        return trace_named(call_formula, op.name, descs, names)


def program_of_nodes(
    nodes: Sequence[Node],
    reads: Sequence[Operand],
    outputs: Sequence[Operand],
    *,
    rounds: bool,
    formula_of: Callable[[Op[..., Any]], Callable[..., Any] | None] = attrgetter("formula"),
) -> tuple[Formula, list[Operand], set[Node]]:
    """Fuse the formulas of several nodes into one program; `outputs` are used outside.

    `reads` are operands that the nodes do not compute; scalar constants become constants of the program. If `rounds`, a
    float16 result is rounded before another node reads it, else only when it is stored. `formula_of` returns the formula of an
    operation. Return the program, the operands that are its inputs, and the nodes whose float16 results are read before
    rounding.
    """
    unrounded: set[Node] = set()
    read = {operand for node in nodes for operand in node.operands}
    numbers = {o: o.value.item() for o in reads if o.is_constant and not o.shape}
    inputs = [operand for operand in reads if operand not in numbers]

    def call_formula(*arrays: Traced) -> tuple[Traced, ...]:
        values: dict[Operand, Any] = dict(zip(inputs, arrays, strict=True))
        values.update((o, Traced((), ir.number(value, o.data_type))) for o, value in numbers.items())

        for node in nodes:
            formula = formula_of(node.op)
            assert formula is not None, node
            attributes = node.attributes if current_guards() is None else _positive(node.attributes)
            returned = call_with(formula, {**map_operands(node.inputs, values.__getitem__), **attributes})
            results = returned if isinstance(returned, (tuple, list)) else (returned,)
            for operand, result in zip(node.outputs, results, strict=True):
                values[operand] = array = in_data_type(result, operand.data_type)
                if rounds:
                    values[operand] = round_float16(array)
                elif operand in read and not is_rounded(array):
                    unrounded.add(node)
        return tuple(values[operand] for operand in outputs)

    name = "+".join(node.op.name for node in nodes[:4]) + ("+…" if len(nodes) > 4 else "")
    descs = [operand.desc for operand in inputs]
    if current_guards() is not None:
        descs = list(map(_positive, descs))
    program = trace_named(call_formula, name, descs, _names(nodes, inputs))
    return program, inputs, unrounded


def names_of(operands: Mapping[str, Any]) -> list[str]:
    """Return the names of operands in messages: the parameters of the operation, except absent ones."""
    names: list[str] = []
    for name, operand in operands.items():
        one = [] if operand is None else [name]
        names += [f"{name}[{i}]" for i in range(len(operand))] if isinstance(operand, tuple) else one
    return names


def _names(nodes: Sequence[Node], inputs: Sequence[Operand]) -> list[str]:
    """Name the inputs of fused nodes after the parameters of the first node that reads them; "" for ambiguous names."""
    by_operand: dict[Operand, str] = {}
    for node in nodes:
        for operand, name in zip(iter_operands(node.inputs), names_of(node.inputs), strict=True):
            by_operand.setdefault(operand, name)
    names = [by_operand.get(operand, "") for operand in inputs]
    return [name if names.count(name) == 1 else "" for name in names]


def descs_of(operands: Mapping[str, Any]) -> dict[str, Any]:
    """Return data type and shape of operands by parameter; tuples for sequences, None for absent operands."""
    return map_operands(operands, lambda operand: operand.desc)


def in_data_type(result: Any, data_type: DataType) -> Traced:
    """Cast a result to the data type in which it is stored: bool becomes uint8, an index int32."""
    array = as_array(result, data_type)
    return array if array.data_type == data_type else Traced(array.shape, ir.Cast(array.body, data_type))
