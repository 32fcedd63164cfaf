"""Which operations become one kernel: when the result of one is substituted into the expression of the next."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from ...core.graph import Desc, Node, Operand, flat
from ...expr import ir
from ...expr.array import Array
from ...expr.gpu import Features
from ...expr.gpu.forms import row_axes
from ...expr.gpu.types import layout
from ...expr.ir import Input, Program
from .contraction.kernels import Contraction

MAX_FUSED_CALLS = 200
"""Calls and casts of one element up to which operations are fused into one kernel: the time to compile grows with their
square (on Mesa's software adapter), so long chains compile sooner as several kernels. The number is an estimate."""

MAX_MOVED_LOADS = 4
"""Loads of an operand that only moves elements, for which it is still read through instead of stored."""

MAX_REPEATED_CALLS = 8
"""Calls of an element up to which it is computed again for each pass over a row, as in a normalisation, instead of stored."""

MAX_REPEATED_SOURCES = 2
"""Arrays of the size of the operand that may be read again for each pass. With two, as for a sum, three passes read twice what
they would read of the stored sum, from the cache; a kernel that writes it reads and writes as much, from memory."""

MAX_RESHAPED_CALLS = 8
"""Calls of an element that is read in another shape, up to which the reader computes it: at positions that it finds by integer
divisions, but without writing and reading the array. An estimate."""


@dataclass(eq=False)
class Pending:
    """The result of an operation that has no memory yet.

    Attributes:
        result: its elements.
        nodes: the operations that compute it.
        anchor: the contraction whose accumulators `result` is a function of, if it is one.
        alias: the shape in which it is read, if that is not its own.
    """

    result: Array
    nodes: tuple[Node, ...]
    anchor: Contraction | None = None
    alias: tuple[int, ...] | None = None

    @cached_property
    def sources(self) -> frozenset[Input]:
        """The arrays in memory that it is computed from."""
        return frozenset(s for s in ir.sources(self.result.body) if isinstance(s, Input))

    @cached_property
    def reduces(self) -> bool:
        """Whether an element is a reduction, which is expensive to compute twice."""
        return any(isinstance(node, ir.Reduce) for node in ir.walk(self.result.body))

    @cached_property
    def calls(self) -> int:
        """Operations an element."""
        return sum(isinstance(n, (ir.Call, ir.Cast)) and n.type != "index" for n in ir.walk(self.result.body))

    @property
    def only_moves(self) -> bool:
        """Whether elements are copies of those of other arrays, which cost nothing to compute twice."""
        return not self.calls and not self.reduces and self.anchor is None


@dataclass(frozen=True, eq=False)
class Reading:
    """How an operation reads one operand: how many loads there are, how often each element is read, and at which positions."""

    loads: int
    times: float
    aligned: bool


def readings(node: Node, program: Program) -> dict[Operand, Reading]:
    """How a node reads each of its operands."""
    numbers = list(flat(node.inputs))
    loads: dict[Operand, list[ir.Load]] = {operand: [] for operand in numbers}
    inside: Counter[Operand] = Counter()
    largest = max(output.desc.element_count for output in program.outputs)
    roots = [*(stored.body for stored in program.stored), *program.roots]
    owners = dict(zip(program.inputs, numbers, strict=True))
    for root in roots:
        for expression in ir.walk(root):
            if isinstance(expression, ir.Load) and isinstance(expression.source, Input):
                loads[owners[expression.source]].append(expression)
            if isinstance(expression, ir.Reduce):
                domain = math.prod(variable.extent for variable in expression.variables)
                for part in ir.walk(expression.body):
                    if isinstance(part, ir.Load) and isinstance(part.source, Input):
                        operand = owners[part.source]
                        inside[operand] = max(inside[operand], largest * domain)
    by_operand = {}
    for operand, operand_loads in loads.items():
        reads = inside[operand] or largest
        aligned = all(ir._aligned(load) for load in operand_loads) and len(operand_loads) <= MAX_MOVED_LOADS
        times = reads / max(1, operand.desc.element_count)
        by_operand[operand] = Reading(
            len(operand_loads) * (2 if operand in inside and len(operand_loads) > 1 else 1), times, aligned
        )
    return by_operand


def joins(
    value: Pending,
    desc: Desc,
    program: Program,
    reading: Reading,
    features: Features,
    *,
    is_shared: bool,
    beside: Contraction | None,
) -> bool:
    """Whether a pending value becomes a part of the operation that reads it.

    Args:
        value: of the operand.
        desc: of the operand.
        program: the operation that reads it.
        reading: how it does.
        features: features and limits of the device.
        is_shared: whether other operations read it, too.
        beside: the sums of products that are a part of the operation already.
    """
    if is_shared and not value.only_moves:
        return False
    if value.calls + program.operations > MAX_FUSED_CALLS:
        return False
    if value.anchor is not None or value.reduces:
        same = all(output.desc.shape == desc.shape for output in program.outputs)
        alone = value.anchor is None or (len(program.outputs) == 1 and combine(beside, value.anchor) is not None)
        once = not program.stored and not any(isinstance(n, ir.Reduce) for n in ir.walk(*program.roots))
        return reading.aligned and same and alone and value.alias is None and once
    if value.only_moves:
        return reading.loads <= MAX_MOVED_LOADS and value.alias is None
    if reading.loads <= 1 and reading.times <= 1:
        return value.alias is None or value.calls <= MAX_RESHAPED_CALLS
    return _is_repeated_in_rows(value, desc, program, features)


def combine(one: Contraction | None, other: Contraction | None) -> Contraction | None:
    """The sums of products of an operation that reads both; None if there are none, or one kernel cannot have both."""
    return one or other if one is None or other is None else one.beside(other)


def _is_repeated_in_rows(value: Pending, desc: Desc, program: Program, features: Features) -> bool:
    """Whether a value is cheap to compute again, by a workgroup that goes over each of its rows several times."""
    large = sum(source.desc.element_count >= desc.element_count for source in value.sources)
    if value.alias is not None or value.calls > MAX_REPEATED_CALLS or large > MAX_REPEATED_SOURCES:
        return False
    (first, *others), bodies = program.outputs, [output.body for output in program.outputs]
    lanes = layout(first.desc.data_type, features).lanes
    return not others and not program.stored and row_axes(first.axes, bodies, lanes) is not None


__all__ = ["MAX_FUSED_CALLS", "Pending", "Reading", "combine", "joins", "readings"]
