"""Nodes as Halide expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...core.dtypes import FLOATS
from ...core.size_bounds import lower_bound
from ...core.sizes import Size
from ..ir import Bitcast, Call, Cast, Const, Expr, Index, Load, Reduce, walk
from ..ranges import bounds
from . import elements
from .mathematics import HalideExpr, hl
from .stages import StageLoop

if TYPE_CHECKING:
    from .nest import Nest


class LoopScope:
    """Translates nodes to Halide expressions, at positions of loops."""

    def __init__(self, nest: Nest, positions: Mapping[StageLoop, HalideExpr]) -> None:
        self._nest, self._positions = nest, positions
        self._known: dict[Expr, HalideExpr] = {}

    def value(self, root: Expr) -> HalideExpr:
        for node in walk(root, enter=self._operands_of):
            if node not in self._known:
                self._known[node] = self._one(node)
        return self._known[root]

    def _operands_of(self, node: Expr) -> Sequence[Expr]:
        return () if node in self._known or isinstance(node, Reduce) else self._nest.loops.operands_of(node)

    def _one(self, node: Expr) -> HalideExpr:
        match node:
            case Const() if isinstance(node.value, Size):
                return elements.cast(self._nest.sizes.i32(node.value), "index", node.type)
            case Const():
                return elements.constant(node.value, node.type)
            case Index():
                position = hl.i32(0) if node.extent == 1 else self._positions[self._nest.loops.of[node]]
                # A loop variable lacks methods of expressions.
                return position if isinstance(position, hl.Expr) else hl.Expr(position)
            case Load():
                return self._nest.load(node, self._offset(node), self._positions)
            case Reduce():
                return self._nest.reduction(node).at(self._positions)
            case Cast():
                (part,) = node.parts
                value = elements.cast(self._known[part], part.type, node.type)
                if node.type == "index" and part.type in ("uint32", "uint64"):
                    return self._unsigned_index(part, value)
                return elements.from_half_bits(elements.half_bits(value)) if node.type == "float16" else value
            case Bitcast():
                return hl.reinterpret(elements.arithmetic_type(node.type), self._known[node.parts[0]])
            case Call():
                arguments = [self._known[part] for part in node.parts]
                return self._call(node, arguments)
        raise AssertionError(node)

    def _unsigned_index(self, node: Expr, value: HalideExpr) -> HalideExpr:
        """Clamp an unsigned index as a signed integer: Halide infers no range for a minimum of unsigned ones."""
        span = bounds(node)
        if span is None:
            return value
        is_limited = isinstance(node, Call) and node.name == "min" and isinstance(node.parts[1], Const)
        raw = self._known[node.parts[0] if is_limited else node]
        signed = hl.reinterpret(hl.Int(raw.type().bits()), raw)
        high_end = span[1] if isinstance(span[1], Size) else min(span[1], 2**31 - 1)
        low, high = (hl.cast(signed.type(), self._nest.sizes.number(limit)) for limit in (span[0], high_end))
        return hl.cast(hl.Int(32), hl.clamp(hl.select(signed < 0, high, signed), low, high))

    def _call(self, node: Call, arguments: list[HalideExpr]) -> HalideExpr:
        divisor = node.parts[-1]
        is_division = node.type == "index" and node.name in ("floor_div", "mod")
        if isinstance(divisor, Const):
            value = divisor.value
            if is_division and lower_bound(value) >= 1:
                return elements.index_division(node.name, *arguments)
            if isinstance(value, Size):
                return elements.call(node.name, divisor.type, arguments)
            if node.name == "div" and node.type in FLOATS and value == 0:
                return arguments[0] * hl.f32(math.copysign(math.inf, value))  # Halide refuses to divide by 0
            if node.name == "pow" and node.type not in FLOATS and value >= 0:
                return elements.power(node.type, arguments[0], int(value))
        return elements.call(node.name, node.parts[-1].type, arguments)

    def _offset(self, node: Load) -> HalideExpr:
        loops, position = self._nest.loops, self._nest.loops.positions[node]
        i32 = self._nest.sizes.i32
        offset = i32(position.constant)
        for loop in loops.over(position.variables):
            offset = offset + self._positions[loop] * i32(loops.factor(node, loop))
        for index in loops.operands_of(node):
            offset = offset + self._known[index] * i32(position.terms[index])
        return offset
