"""Decide fusion: whether the result of an operation is inlined into the expression of its reader."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ...core.graph import Desc, Node, Operand, iter_operands
from ...core.guards import estimate
from ...core.sizes import is_same_shape
from ...expr import ir
from ...expr.array import Traced, axes_of
from ...expr.gpu import Features
from ...expr.gpu.forms import MAX_ROW_ELEMENTS, row_axes
from ...expr.gpu.types import layout
from ...expr.ir import Formula, Input
from ...ops.formulas import only_splits
from .contraction.kernels import Contraction

MAX_FUSED_CALLS = 200
"""The largest number of calls and casts per element of a fused kernel. Compile time is quadratic in this number on Mesa's
software adapter. An estimate."""

MAX_MOVED_LOADS = 4
"""The largest number of loads of an operand that only moves elements, for which the operand is inlined instead of stored."""

MAX_REPEATED_CALLS = 8
"""The largest number of calls per element of a value that each pass over a row recomputes, as in a normalisation, instead of
storing it."""

MAX_REPEATED_SOURCES = 2
"""The largest number of arrays of the operand's size to read again in each pass. With two (x + y), three passes read twice as
many bytes from the cache as they would of the stored sum, but a kernel that stores the sum moves as many bytes through
memory."""

MAX_TWICE_CALLS = 2
"""The largest number of calls per element of a value to compute twice, as the negative half of a rotary embedding, which a
concatenation reads for all its elements, instead of storing it."""

MAX_RESHAPED_CALLS = 8
"""The largest number of calls per element of a value to inline through a reshape: integer divisions compute its positions, but
the array is neither written nor read. An estimate."""


@dataclass(eq=False)
class Pending:
    """A result that has no memory yet: an epilogue of the contraction `anchor`, if any.

    Readers see the shape `alias` if a reshape has changed it.
    """

    result: Traced
    nodes: tuple[Node, ...]
    anchor: Contraction | None = None
    alias: tuple[int, ...] | None = None

    @cached_property
    def sources(self) -> frozenset[Input]:
        return frozenset(s for s in ir.sources(self.result.body) if isinstance(s, Input))

    @cached_property
    def reduces(self) -> bool:
        """Whether an element contains a reduction, which is expensive to recompute."""
        return any(isinstance(node, ir.Reduce) for node in ir.walk(self.result.body))

    @cached_property
    def calls(self) -> int:
        return sum(
            isinstance(n, (ir.Call, ir.Cast, ir.Bitcast)) and n.type != "index" for n in ir.walk(self.result.body)
        )

    @property
    def only_moves(self) -> bool:
        """Whether each element is a copy of another array's element, which is free to recompute."""
        return not self.calls and not self.reduces and self.anchor is None


@dataclass(frozen=True, eq=False)
class ReadPattern:
    """The loads of one operand in a program.

    Attributes:
        loads: number of loads; doubled if there are several and one is in a reduction.
        times: average number of reads of an element.
        aligned: whether all loads are at the position that is computed.
    """

    loads: int
    times: float
    aligned: bool


def read_patterns(node: Node, program: Formula) -> dict[Operand, ReadPattern]:
    numbers = list(iter_operands(node.inputs))
    loads: dict[Operand, list[ir.Load]] = {operand: [] for operand in numbers}
    inside: Counter[Operand] = Counter()
    largest = max(estimate(output.desc.element_count) for output in program.outputs)
    roots = [*(stored.body for stored in program.stored), *program.roots]
    owners = dict(zip(program.inputs, numbers, strict=True))
    for root in roots:
        for expression in ir.walk(root):
            if isinstance(expression, ir.Load) and isinstance(expression.source, Input):
                loads[owners[expression.source]].append(expression)
            if isinstance(expression, ir.Reduce):
                domain = estimate(ir.size_of(expression.variables))
                for part in ir.walk(expression.body):
                    if isinstance(part, ir.Load) and isinstance(part.source, Input):
                        operand = owners[part.source]
                        inside[operand] = max(inside[operand], largest * domain)
    by_operand = {}
    for operand, operand_loads in loads.items():
        reads = inside[operand] or largest
        aligned = all(ir.is_aligned(load) for load in operand_loads) and len(operand_loads) <= MAX_MOVED_LOADS
        times = reads / max(1, estimate(operand.desc.element_count))
        by_operand[operand] = ReadPattern(
            len(operand_loads) * (2 if operand in inside and len(operand_loads) > 1 else 1), times, aligned
        )
    return by_operand


def joins(
    value: Pending,
    desc: Desc,
    program: Formula,
    reading: ReadPattern,
    features: Features,
    *,
    is_shared: bool,
    beside: Contraction | None,
) -> bool:
    """Whether a pending value is inlined into its reader `program`.

    The operand may have other readers (`is_shared`); the contraction `beside` is inlined into the reader already.
    """
    if is_shared and not value.only_moves:
        return False
    if value.calls + program.operations > MAX_FUSED_CALLS:
        return False
    if value.anchor is not None or value.reduces:
        same = all(is_same_shape(output.desc.shape, desc.shape) for output in program.outputs)
        alone = value.anchor is None or (len(program.outputs) == 1 and combine(beside, value.anchor) is not None)
        once = not program.stored and not any(isinstance(n, ir.Reduce) for n in ir.walk(*program.roots))
        return reading.aligned and same and alone and value.alias is None and once
    if value.only_moves:
        is_free = value.alias is None or only_splits(value.result.shape, value.alias)
        return reading.loads <= MAX_MOVED_LOADS and is_free
    if reading.loads <= 1 and reading.times <= (2 if value.calls <= MAX_TWICE_CALLS else 1):
        return value.alias is None or value.calls <= MAX_RESHAPED_CALLS
    return _is_repeated_in_rows(value, desc, program, features)


def is_of_rows(value: Pending, fused: Traced, program: Formula, features: Features) -> bool:
    """Whether a kernel with one workgroup for each row of `fused` computes a pending reduction once per row.

    The value has one element for each row, as the mean in a normalisation has. `fused` is the result of the reader `program`
    with the value inlined.
    """
    if not value.reduces or len(program.outputs) > 1:
        return False
    if program.stored or any(isinstance(node, ir.Reduce) for node in ir.walk(*program.roots)):
        return False
    if value.calls + program.operations > MAX_FUSED_CALLS:
        return False
    (output,) = program.outputs
    rows = row_axes(axes_of(fused.shape), [fused.body], layout(output.desc.data_type, features).lanes)
    if rows is None or len(rows) == fused.rank:
        return False
    return estimate(prod(fused.shape[len(rows) :])) <= MAX_ROW_ELEMENTS


def combine(one: Contraction | None, other: Contraction | None) -> Contraction | None:
    """Merge two contractions for one epilogue; None if there is none, or if one kernel cannot compute both."""
    return one or other if one is None or other is None else one.beside(other)


def _is_repeated_in_rows(value: Pending, desc: Desc, program: Formula, features: Features) -> bool:
    """Whether a value is cheap to recompute in a workgroup that reads each row several times."""
    count = estimate(desc.element_count)
    large = sum(estimate(source.desc.element_count) >= count for source in value.sources)
    if value.alias is not None or value.calls > MAX_REPEATED_CALLS or large > MAX_REPEATED_SOURCES:
        return False
    (first, *others), bodies = program.outputs, [output.body for output in program.outputs]
    lanes = layout(first.desc.data_type, features).lanes
    return not others and not program.stored and row_axes(first.axes, bodies, lanes) is not None
