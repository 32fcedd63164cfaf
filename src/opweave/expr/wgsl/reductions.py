"""The variables of reductions, and the statements that elements are taken in with."""

from __future__ import annotations

from collections.abc import Sequence

from ...dtypes import FLOATS, INFO
from ..ir import Reduce, storage
from .elements import called
from .module import Module
from .types import computed

PART = 64
"""Sums of floats are made of sums of so many elements, which keeps more of their digits."""


class State:
    """What a reduction has found so far: a value, and its position for `arg_max` and `arg_min`.

    Attributes:
        node: the reduction.
        name: the variable that holds the result.
        positions: whether the result is a position.
    """

    def __init__(self, module: Module, node: Reduce, name: str) -> None:
        self.module, self.node, self.name = module, node, name
        self.type = node.body.type
        self.positions = node.reduction.startswith("arg_")
        self.value = f"{name}_value" if self.positions else name

    @property
    def names(self) -> list[str]:
        """The variables."""
        return [self.value, self.name] if self.positions else [self.value]

    @property
    def types(self) -> list[str]:
        """The WGSL types of the variables."""
        return [computed(self.type), "i32"] if self.positions else [computed(self.type)]

    def declarations(self) -> list[str]:
        """The variables, as they are before the first element."""
        lines = [f"var {self.value} = {self.neutral};"]
        return [*lines, f"var {self.name} = 2147483647;"] if self.positions else lines

    @property
    def neutral(self) -> str:
        """The value before the first element."""
        kind, type = self.node.reduction, self.type
        if kind in ("sum", "product"):
            return self.module.constant(int(kind == "product"), type)
        least = kind.endswith("max")
        if type in FLOATS:
            return "-infinity()" if least else "infinity()"
        info = INFO[storage(type)]
        return self.module.constant(info.lowest if least else info.highest, type)

    def step(self, value: str, position: str) -> list[str]:
        """Statements that take in an element."""
        if self.positions:
            return self._choice(value, position)
        kind = self.node.reduction
        if kind in ("sum", "product"):
            return [f"{self.value} {'+' if kind == 'sum' else '*'}= {value};"]
        name = {"max": "maximum", "min": "minimum"}[kind] if self.type in FLOATS else kind
        return [f"{self.value} = {called(name, (self.value, value))};"]

    def combine(self, other: Sequence[str]) -> list[str]:
        """Statements that take in what others have found."""
        if not self.positions:
            return self.step(other[0], "")
        lines = [f"let other_value = {other[0]};", f"let other = {other[1]};"]
        return [*lines, *self._choice("other_value", "other")]

    def _choice(self, value: str, position: str) -> list[str]:
        """The first position of the best element; NaN is the best."""
        sign = ">" if self.node.reduction == "arg_max" else "<"
        better, same = f"{value} {sign} {self.value}", f"{value} == {self.value}"
        if self.type in FLOATS:
            better = f"!is_nan({self.value}) && ({better} || is_nan({value}))"
            same = f"{same} || (is_nan({self.value}) && is_nan({value}))"
        return [
            f"if (({better}) || (({same}) && {position} < {self.name})) {{",
            f"    {self.value} = {value};",
            f"    {self.name} = {position};",
            "}",
        ]

    def is_long(self, count: int) -> bool:
        """Whether the sum of so many elements is made in parts."""
        return self.node.reduction == "sum" and self.type in FLOATS and count > 2 * PART

    def part(self) -> State:
        """The sum of a part."""
        return State(self.module, self.node, f"{self.name}_part")

    def begin_part(self) -> list[str]:
        """Statements before a part."""
        return self.part().declarations()

    def end_part(self) -> list[str]:
        """Statements that take in a part."""
        return [f"{self.value} += {self.part().value};"]
