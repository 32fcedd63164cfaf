"""A stage as Halide functions: elements, reductions, and their schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.dtypes import FLOATS, INFO, DataType
from ...core.size_bounds import lower_bound
from ...core.sizes import Dimension, Size
from ..ir import Call, Const, Expr, Index, Load, Reduce, Source, Type, storage, walk
from . import elements
from .mathematics import HalideExpr, hl
from .reduction import Reduction
from .schedule import LoopSchedule, operations, variable
from .scope import LoopScope
from .stages import Loops, Stage, StageLoop

MAX_HOISTED_OPERATIONS = 2**18
"""Compile time is proportional to hoisted operations; this many take about as long as an expression without any."""


def buffer_type(data_type: DataType) -> HalideExpr:
    """The Halide type in which a data type is stored; float16 is stored as its bits."""
    return hl.UInt(16) if data_type == "float16" else elements.arithmetic_type(data_type)


class SizeParameters:
    """The parameters of a function for sizes that are known only when it runs, in the order of their first use."""

    def __init__(self) -> None:
        self.of: dict[Size, Any] = {}

    def number(self, dimension: Dimension) -> Any:
        """A dimension in Halide's functions: a number, or the expression of a parameter."""
        if not isinstance(dimension, Size):
            return dimension
        parameter = self.of.get(dimension)
        if parameter is None:
            parameter = self.of[dimension] = hl.Param(hl.Int(32), f"n{len(self.of)}")
            if lower_bound(dimension) >= 1:
                parameter.set_min_value(1)
        return hl.Expr(parameter)

    def i32(self, dimension: Dimension) -> HalideExpr:
        """A dimension as an expression."""
        return self.number(dimension) if isinstance(dimension, Size) else hl.i32(dimension)


class Nest:
    """The Halide function that computes the targets of a stage.

    `shape` is the shape of the targets as the function sees it, with fused axes; `arrays` has the parameter of each array,
    and `sizes` those of sizes.
    """

    def __init__(
        self, stage: Stage, name: str, arrays: Mapping[Source, Any], sizes: SizeParameters, target: Any
    ) -> None:
        self.arrays, self.sizes, self._target, self._name = arrays, sizes, target, name
        self.loops = Loops(stage)
        self.shape = self.loops.shape
        self.variables = {loop: hl.Var(f"axis{k}") for k, loop in enumerate(self.loops.axes)}
        self.reductions: dict[Reduce, Reduction] = {}
        self.lanes = self._vector_size(stage)
        self.function = hl.Func(name)
        _refuse_endless(stage)
        scope = LoopScope(self, dict(self.variables))
        self.rows: dict[Source, tuple[Any, tuple[StageLoop, ...]]] = {}
        for number, row in enumerate(stage.rows):
            loops, kept = self.loops.over(row.axes), hl.Func(f"{name}_row{number}")
            kept[[self.variables[loop] for loop in reversed(loops)]] = scope.value(row.body)
            self.rows[row] = kept, loops
        values = [
            self._as_stored(scope.value(target.body), target.body.type, target.source.desc.data_type)
            for target in stage.targets
        ]
        arguments = [self.variables[loop] for loop in reversed(self.loops.axes)] or [variable()]
        self.function[arguments] = hl.Tuple(values) if len(values) > 1 else values[0]
        for number, buffer in enumerate(self.function.output_buffers()):
            stride = 1
            for axis, extent in enumerate(reversed(self.shape)):
                if number == 0:  # the others have the same bounds
                    buffer.dim(axis).set_bounds(0, sizes.number(extent))
                buffer.dim(axis).set_stride(sizes.number(stride))
                stride *= extent
        self.roots, self.operations = stage.roots, operations(*stage.roots)
        LoopSchedule(self)

    def _vector_size(self, stage: Stage) -> int:
        """The number of elements in a vector of the widest type used."""
        types = {node.type for node in walk(*stage.roots)} - {"bool", "index"}
        bits = max((32 if type in FLOATS else INFO[storage(type)].bits for type in types), default=8)
        return int(self._target.natural_vector_size(hl.UInt(bits)))

    def _as_stored(self, value: HalideExpr, type: Type, data_type: DataType) -> HalideExpr:
        return elements.half_bits(value) if data_type == "float16" else elements.cast(value, type, data_type)

    def is_reversed(self, loop: StageLoop) -> bool:
        """Whether a load reads backwards along a loop."""
        return any(self.loops.factor(load, loop) == -1 for load in self.loops.positions)

    def load(self, node: Load, offset: HalideExpr, positions: Mapping[StageLoop, HalideExpr]) -> HalideExpr:
        """An element, in the type of the computation."""
        if node.source in self.rows:
            kept, _ = self.rows[node.source]
            moved = self.loops.over(index for index in node.parts if isinstance(index, Index))
            return hl.Expr(kept[[positions[loop] for loop in reversed(moved)]])
        value = self.arrays[node.source][offset]
        return elements.from_half_bits(value) if node.type == "float16" else value

    def reduction(self, node: Reduce) -> Reduction:
        """The functions of a reduction, created on first use."""
        if node not in self.reductions:
            self.reductions[node] = Reduction(self, node, f"{self._name}_r{len(self.reductions)}")
        return self.reductions[node]


def _refuse_endless(stage: Stage) -> None:
    """Refuse large loop-invariant values: Halide hoists them, and compiles their parts once for each use."""
    sizes: dict[Expr, int] = {}
    for node in walk(*stage.roots):
        sizes[node] = 1
        if not isinstance(node, Call):
            continue
        is_power = node.name == "pow"
        # Halide hoists the squares of a base even if the exponent changes.
        free = node.parts[0].free if is_power else node.free
        if any(variable.extent != 1 for variable in free):
            continue
        sizes[node] += _repetitions(node) * sum(sizes[part] for part in node.parts)
        if sizes[node] > MAX_HOISTED_OPERATIONS:
            subject = "the base of a power of integers" if is_power else f"an operand of {node.name}"
            raise hl.HalideError(
                f"{subject} does not depend on an axis, and Halide would compile it {sizes[node]} times"
            )


def _repetitions(node: Call) -> int:
    """Estimate the number of copies of its operands in the Halide expression of a call."""
    if node.type in FLOATS or node.type not in INFO:
        return 1
    info = INFO[node.type]
    if node.name == "pow":
        exponent = node.parts[1]
        if not isinstance(exponent, Const) or isinstance(exponent.value, Size):
            return info.bits << info.bits
        return 1 << int(exponent.value).bit_length() if exponent.value >= 0 else 1
    return 32 if node.name in ("floor_div", "mod") and info.kind == "i" else 1
