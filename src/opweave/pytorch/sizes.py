"""Sizes of PyTorch (`SymInt`), which are formulas of SymPy, as sizes here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from ..core.sizes import Dimension, Size, Symbol, call_of
from ..support.errors import NotSupportedError


class SizeNames:
    """Names of the sizes of a program.

    Attributes:
        values: symbol of PyTorch, "s77" -> the size here: a name, or a formula of names.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = dict(values or {})

    def size_of(self, size: Any, subject: str = "a size") -> Dimension:
        """An integer of PyTorch as an integer, or as a formula of names.

        Raises:
            NotSupportedError: the formula has a symbol that no input gives, or a function that sizes do not have.
        """
        if isinstance(size, int):
            return size
        return self._convert(size.node.expr if hasattr(size, "node") else size, subject)

    def _convert(self, expression: Any, subject: str) -> Any:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            if expression.name not in self.values:
                raise NotSupportedError(
                    f"{subject} is {expression.name}, which depends on values, not on shapes of inputs"
                )
            return self.values[expression.name]
        function = _FUNCTIONS.get(type(expression).__name__)
        if function is None:
            raise NotSupportedError(f"{subject} is {expression}, a formula that sizes do not have")
        return function(*[self._convert(argument, subject) for argument in expression.args])


def _sum(*terms: Any) -> Any:
    return reduce(lambda a, b: a + b, terms)


def _product(*factors: Any) -> Any:
    return reduce(lambda a, b: a * b, factors)


def maximum(*sizes: Any) -> Any:
    """The largest of sizes and integers."""
    return _extreme("max", max, sizes)


def minimum(*sizes: Any) -> Any:
    """The smallest of sizes and integers."""
    return _extreme("min", min, sizes)


def _extreme(kind: str, of_numbers: Callable[..., Any], sizes: Any) -> Any:
    if any(isinstance(size, Size) for size in sizes):
        return reduce(lambda a, b: call_of(kind, a, b), sizes)
    return of_numbers(sizes)


def _round_constant(function: Callable[[float], int], number: Any) -> int:
    """An integer of a constant, whose value PyTorch does not know while it exports."""
    if isinstance(number, Symbol):
        raise NotSupportedError(
            f"from_torch: a size is the real number {number}, rounded, and formulas of sizes cannot round real numbers"
        )
    return function(number)


def divide_up(a: Any, b: Any) -> Any:
    """The quotient of sizes, rounded up."""
    return -(-a // b)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": _sum,
    "Mul": _product,
    "Pow": lambda base, exponent: base**exponent,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": divide_up,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "Max": maximum,
    "Min": minimum,
    "TruncToInt": lambda number: _round_constant(math.trunc, number),
    "FloorToInt": lambda number: _round_constant(math.floor, number),
    "CeilToInt": lambda number: _round_constant(math.ceil, number),
}
"""Functions of SymPy, by the name of their class."""


def numbers_of(
    program: Any, leaves: Sequence[Any], names: Mapping[tuple[str, int], str] | None = None
) -> dict[str, int]:
    """The number of each symbol of a program for flattened arguments; with `names`, by input and axis, also of these."""
    numbers: dict[str, int] = {}
    metas = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    for name, leaf in zip(inputs, leaves, strict=True):
        meta = metas[name]
        for axis, (size, number) in enumerate(zip(getattr(meta, "shape", ()), getattr(leaf, "shape", ()), strict=True)):
            if not isinstance(size, int) and size.node.expr.is_Symbol:
                symbol = size.node.expr.name
                numbers[symbol] = numbers[(names or {}).get((name, axis), symbol)] = int(number)
    return numbers
