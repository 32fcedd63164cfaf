"""Sizes that a model computes itself: `Shape` of a value that has the dimension, or the arithmetic of a formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import Any, Protocol

from ...core.sizes import Dimension, Size, is_unknown
from ...ops.constants import integers_from, real_numbers
from ...support.errors import ValidationError


class _Emits(Protocol):
    """An `Emitter`: its values are those of nodes and constants."""

    def emit(self, op_type: str, *inputs: Any, **attributes: Any) -> Any: ...
    def constant(self, value: Any, data_type: str = "int64") -> Any: ...
    def cast(self, value: Any, data_type: str) -> Any: ...


_REAL_OPERATORS = {
    "+": "Add",
    "-": "Sub",
    "*": "Mul",
    "/": "Div",
    "**": "Pow",
    "abs": "Abs",
    "sqrt": "Sqrt",
    "log": "Log",
}
"""Functions in formulas of real numbers -> operators."""


class SizeValues:
    """Values of ONNX nodes for sizes, as vectors of int64 with one element. Equal sizes are computed once."""

    def __init__(self, ctx: _Emits) -> None:
        self._ctx = ctx
        self._places: dict[Size, tuple[Any, int]] = {}
        self._values: dict[Dimension, Any] = {}

    def note(self, value: Any, shape: Iterable[Dimension]) -> None:
        """Note that a value has these dimensions. A size is later read from the first value that has it."""
        for axis, size in enumerate(shape):
            if isinstance(size, Size):
                self._places.setdefault(size, (value, axis))

    def tensor(self, sizes: Dimension | Sequence[Dimension]) -> Any:
        """A scalar for a size, a vector for a sequence."""
        ctx = self._ctx
        if isinstance(sizes, (int, Size)):
            return ctx.emit("Squeeze", self._vector(sizes), shape=())
        parts: list[Any] = []
        numbers: list[Dimension] = []
        for size in [*sizes, None]:
            if isinstance(size, int):
                numbers.append(size)
                continue
            if numbers:
                parts.append(ctx.constant(numbers))
                numbers = []
            if size is not None:
                parts.append(self._vector(size))
        if len(parts) == 1:
            return parts[0]
        return ctx.emit("Concat", *parts, axis=0, shape=(len(sizes),))

    def computed(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """A vector of the numbers that a function gives: of float64 by `real_numbers`, of int64 by `integers_from`."""
        if function is integers_from:
            first, count = arguments
            bounds = [self.tensor(bound) for bound in (first, first + count, 1)]
            return self._ctx.emit("Range", *bounds, shape=(count,))
        if function is not real_numbers:
            raise ValidationError(f"{function!r} is computed by Python for each size, not by a model")
        parts = list(map(self._real, arguments))
        return parts[0] if len(parts) == 1 else self._emit_real("Concat", *parts, axis=0, shape=(len(parts),))

    def _real(self, formula: Any) -> Any:
        """A vector of float64 with one element."""
        if not isinstance(formula, tuple):
            vector = self._vector(formula) if isinstance(formula, (int, Size)) else formula
            return (
                self._ctx.cast(vector, "float64") if vector is not formula else self._ctx.constant([formula], "float64")
            )
        name, *arguments = formula
        values = list(map(self._real, arguments))
        if name in ("//", "%"):
            quotient = self._emit_real("Floor", self._emit_real("Div", *values))
            return (
                quotient
                if name == "//"
                else self._emit_real("Sub", values[0], self._emit_real("Mul", quotient, values[1]))
            )
        return self._emit_real(_REAL_OPERATORS[name], *values)

    def _emit_real(self, op_type: str, *inputs: Any, shape: Sequence[int] = (1,), **attributes: Any) -> Any:
        return self._ctx.emit(op_type, *inputs, data_type="float64", shape=shape, **attributes)

    def _vector(self, size: Dimension) -> Any:
        if isinstance(size, int):
            if not -(2**63) <= size < 2**63:
                raise ValidationError(f"models compute sizes in int64, which cannot hold {size}")
            return self._ctx.constant([size])
        if size not in self._values:
            place = self._places.get(size)
            self._values[size] = self._formula(size) if place is None else self._dimension(*place)
        return self._values[size]

    def _dimension(self, value: Any, axis: int) -> Any:
        return self._emit("Shape", value, start=axis, end=axis + 1)

    def _formula(self, size: Size) -> Any:
        terms = []
        for atoms, factor in size.terms:
            factors = [*map(self._atom, atoms), *([self._ctx.constant([factor])] if factor != 1 or not atoms else [])]
            terms.append(reduce(partial(self._emit, "Mul"), factors))
        return reduce(partial(self._emit, "Add"), terms)

    def _atom(self, atom: Any) -> Any:
        size = Size("", (((atom,), 1),))
        if size in self._places or size in self._values:
            return self._vector(size)
        if not atom.arguments or is_unknown(size):
            raise ValidationError(f"the size {size} has no formula")
        value = self._call(atom.kind, *map(self._vector, atom.arguments))
        self._values[size] = value
        return value

    def _call(self, kind: str, *arguments: Any) -> Any:
        if kind in ("max", "min", "broadcast"):
            return reduce(partial(self._select, kind), arguments)
        if kind == "where":
            condition, a, b = arguments
            return self._emit("Where", self._test("Equal", condition, self._ctx.constant([0])), b, a)
        a, b = arguments
        if kind in ("<", "=="):
            return self._ctx.cast(self._test("Less" if kind == "<" else "Equal", a, b), "int64")
        if kind == "&":
            return self._emit("BitwiseAnd", a, b)
        if kind == "//":  # Div rounds towards zero
            return self._emit("Div", self._emit("Sub", a, self._emit("Mod", a, b)), b)
        zero = self._ctx.constant([0])
        is_zero = self._test("Equal", b, zero)
        divisor = self._emit("Where", is_zero, self._ctx.constant([1]), b)
        options: dict[str, Any] = {} if kind == "/" else {"fmod": int(kind == "fmod")}
        return self._emit("Where", is_zero, zero, self._emit("Div" if kind == "/" else "Mod", a, divisor, **options))

    def _select(self, kind: str, a: Any, b: Any) -> Any:
        """The maximum, the minimum, or the one of two sizes that is not 1."""
        if kind == "broadcast":
            return self._emit("Where", self._test("Equal", a, self._ctx.constant([1])), b, a)
        return self._emit("Where", self._test("Greater" if kind == "max" else "Less", a, b), a, b)

    def _test(self, op_type: str, a: Any, b: Any) -> Any:
        return self._emit(op_type, a, b, data_type="bool")

    def _emit(self, op_type: str, *inputs: Any, data_type: str = "int64", **attributes: Any) -> Any:
        return self._ctx.emit(op_type, *inputs, data_type=data_type, shape=(1,), **attributes)
