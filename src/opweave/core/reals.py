"""Real numbers that are computed from sizes, such as `1 / n`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from ..support import lazy_imports
from ..support.errors import ValidationError
from ..support.names import short_repr
from .formula_limits import check_characters, check_count, check_depth, check_integers
from .size_scope import Question, current_scope, decide_without_scope
from .size_terms import characters_of, count_of, depth_of
from .size_values import sizes_in, values_at, values_in_scope
from .sizes import Size, Symbol

Formula: TypeAlias = "tuple[Any, ...] | float | Size"
"""A number, a size, or the name of a function and its arguments, which are formulas."""

MAX_POWER_BITS = 63
"""Maximum number of bits of a power of integers, as in int64: that of a size could have billions, and take minutes."""


def power(base: Any, exponent: Any) -> Any:
    """The power of two numbers, as Python computes it.

    Raises:
        OverflowError: both numbers are integers, and the power has too many bits.
    """
    are_integers = isinstance(base, int) and isinstance(exponent, int)
    # An integer of b bits is at least 2**(b - 1).
    is_huge = are_integers and exponent * (base.bit_length() - 1) >= MAX_POWER_BITS
    if is_huge or (isinstance(result := base**exponent, int) and result.bit_length() > MAX_POWER_BITS):
        raise OverflowError(f"a power of integers must be less than 2**{MAX_POWER_BITS}")
    return result


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": power,
    "abs": abs,
    "sqrt": math.sqrt,
    "log": math.log,
}
"""Functions of Python by their names in formulas."""


def evaluate(formula: Any) -> Any:
    """Compute a formula of numbers, as Python does.

    >>> evaluate(("/", 1, ("sqrt", 4)))
    0.5

    Raises:
        ValidationError: the result is no real number, as that of a division by 0.
    """
    if not isinstance(formula, tuple):
        return formula
    name, *arguments = formula
    try:
        result = FUNCTIONS[name](*map(evaluate, arguments))
    except (ArithmeticError, ValueError) as error:
        raise ValidationError(f"{text_of(formula)}: {error.args[-1]}") from None
    if isinstance(result, complex):
        raise ValidationError(f"{text_of(formula)} is no real number")
    return result


def formulas_in(value: Any) -> Iterator[tuple[Any, ...]]:
    """The formulas of real numbers in an attribute, or in nested tuples."""
    if isinstance(value, tuple):
        if value and isinstance(value[0], str) and value[0] in FUNCTIONS:
            yield value
        else:
            for item in value:
                yield from formulas_in(item)


def formula_without_value(value: Any, sizes: Mapping[str, int]) -> str:
    """The text of the first formula in nested tuples that has no value for sizes by name; empty if all have one.

    >>> n = Size("n")
    >>> formula_without_value((n, 6 // n, (("/", 1, ("-", n, 2)),)), {"n": 2}), formula_without_value(6 // n, {"n": 0})
    ('1 / (n - 2)', '6 // n')
    """
    for formula in (*formulas_in(value), *sizes_in(value)):
        try:
            evaluate(values_at(formula, sizes))
        except (ArithmeticError, ValidationError):
            return short_repr(formula) if isinstance(formula, Size) else text_of(formula)
    return ""


def text_of(formula: Any) -> str:
    """Write a formula as in Python.

    >>> text_of(("/", 1, ("sqrt", Size("n")))), text_of(("*", ("+", Size("n"), 0.5), 2))
    ('1 / sqrt(n)', '(n + 0.5) * 2')
    """
    if not isinstance(formula, tuple):
        return str(formula)
    name, *arguments = formula
    if name.isalpha():
        return f"{name}({', '.join(map(text_of, arguments))})"
    left, right = arguments
    return f"{_operand_text(left)} {name} {right if isinstance(right, (int, float)) else _operand_text(right)}"


def _operand_text(formula: Any) -> str:
    text = text_of(formula)
    is_whole = text.isalnum() or (text.endswith(")") and isinstance(formula, tuple) and formula[0].isalpha())
    return text if is_whole or (isinstance(formula, (int, float)) and formula >= 0) else f"({text})"


def _extent_of(formula: Any) -> tuple[int, int, int]:
    """The number of nested calls in a formula, the number of all names and calls, and the length of the names."""
    if isinstance(formula, RealSize):
        return formula._extent
    if isinstance(formula, Size):
        return depth_of(formula), count_of(formula), characters_of(formula)
    if isinstance(formula, int):
        check_integers([formula])
    if not isinstance(formula, tuple):
        return 0, 0, 0
    depths, counts, characters = zip(*map(_extent_of, formula), strict=True)
    return 1 + max(depths), 1 + sum(counts), sum(characters)


class RealSize(Symbol):
    """A real number that is known only when a graph runs: a formula of sizes.

    Arithmetic with `+ - * / // % **`, `abs`, `sqrt()` and `log()` gives formulas. Where Python asks for a number, as
    `float(r)`, `math.sqrt(r)` and `int(r)` do, the scope must know the sizes; it decides comparisons.

    >>> n = Size("n")
    >>> r = 2 / n + n ** 0.5
    >>> r, r.sqrt(), r.at({"n": 4})
    ((2 / n) + (n ** 0.5), sqrt((2 / n) + (n ** 0.5)), 2.5)
    """

    __slots__ = ("_extent", "formula")

    def __init__(self, *formula: Any) -> None:
        self._extent = depth, count, characters = _extent_of(formula)
        check_depth(depth)
        check_count(count)
        check_characters(characters)
        self.formula: tuple[Any, ...] = tuple(item.formula if isinstance(item, RealSize) else item for item in formula)

    def at(self, sizes: Mapping[str, int]) -> float:
        """The number for sizes by name."""
        return float(evaluate(values_at(self.formula, sizes)))

    def number(self) -> float:
        return float(evaluate(values_in_scope(self.formula)))

    def sqrt(self) -> RealSize:
        """The square root; `numpy.sqrt` calls it, too."""
        return RealSize("sqrt", self)

    def log(self) -> RealSize:
        """The natural logarithm; `numpy.log` calls it, too."""
        return RealSize("log", self)

    def __str__(self) -> str:
        return text_of(self.formula)

    __repr__ = __str__

    def __hash__(self) -> int:
        return hash(self.formula)

    def __eq__(self, other: object) -> bool:
        if not _is_number(other):
            return NotImplemented
        return (isinstance(other, RealSize) and self.formula == other.formula) or _decide("zero", self, other)

    def __abs__(self) -> RealSize:
        return RealSize("abs", self)

    def __neg__(self) -> RealSize:
        return RealSize("*", -1, self)

    def __pos__(self) -> RealSize:
        return self

    def __float__(self) -> float:
        return self.number()

    def __int__(self) -> int:
        return int(self.number())

    __trunc__ = __int__

    def __floor__(self) -> int:
        return math.floor(self.number())

    def __ceil__(self) -> int:
        return math.ceil(self.number())

    def __round__(self, digits: SupportsIndex | None = None) -> Any:
        return round(self.number(), digits)

    def __bool__(self) -> bool:
        return not _decide("zero", self, 0)

    def __format__(self, spec: str) -> str:
        return format(self.number(), spec) if spec else str(self)

    if TYPE_CHECKING:  # `_add_operators` adds them

        def __add__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __truediv__(self, other: Any) -> Any: ...
        def __lt__(self, other: Any) -> bool: ...


def _decide(question: Question, left: Any, right: Any) -> bool:
    """Whether a difference is zero, or negative; the scope decides."""
    left, right = _item(left), _item(right)
    scope = current_scope.get()
    condition = question, RealSize("-", left, right)
    return decide_without_scope(condition) if scope is None else scope.decide(condition)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Symbol)) or _is_numpy(value)


def _is_numpy(value: object) -> bool:
    return type(value).__module__ == "numpy"


def _item(value: Any) -> Any:
    """A number of Python in place of a scalar of NumPy."""
    return value.item() if _is_numpy(value) and value.ndim == 0 else value


@lazy_imports.compute_real.provide
def compute_real(name: str, *operands: Any) -> Any:
    """Apply a function of `FUNCTIONS` to sizes, real numbers computed from sizes, and other values.

    The result is a formula for numbers, and a NumPy array for an array, which asks for the number. For other values it is
    `NotImplemented`: operands of graphs have reflected operators that take formulas.
    """
    if not all(map(_is_number, operands)):
        return NotImplemented
    items = [*map(_item, operands)]
    if any(map(_is_numpy, items)):
        return FUNCTIONS[name](*(item.number() if isinstance(item, Symbol) else item for item in items))
    return RealSize(name, *items)


def _add_operators() -> None:
    names = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
    for method, name in names.items():
        setattr(RealSize, f"__{method}__", lambda self, other, name=name: compute_real(name, self, other))
        setattr(RealSize, f"__r{method}__", lambda self, other, name=name: compute_real(name, other, self))
    comparisons: dict[str, Callable[[Any, Any], bool]] = {
        "__lt__": lambda left, right: _decide("negative", left, right),
        "__gt__": lambda left, right: _decide("negative", right, left),
        "__le__": lambda left, right: not _decide("negative", right, left),
        "__ge__": lambda left, right: not _decide("negative", left, right),
    }
    for method, compare in comparisons.items():

        def method_of(self: RealSize, other: Any, compare: Any = compare) -> Any:
            return compare(self, other) if _is_number(other) else NotImplemented

        setattr(RealSize, method, method_of)


_add_operators()
