"""The types and functions of expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from ..core.dtypes import ANY, FLOATS, SIGNED, DataType
from ..support.records import record

Type: TypeAlias = DataType | Literal["bool", "index"]
"""The type of a node."""

INTEGERS: tuple[DataType, ...] = tuple(t for t in ANY if t not in FLOATS)


@record(eq=True)
class Function:
    """A function of elements.

    Attributes:
        types: allowed argument types; all arguments have the same type, except the condition of `where`.
        ufunc: NumPy's function that computes it; None if NumPy has none.
        symbol: infix operator when printed; empty for `name(arguments)`.
        result: type of the result; None for the type of the arguments.
        operator: the operator of the symbol, for Python's integers and for expressions of compilers.
    """

    arity: int
    types: tuple[Type, ...]
    ufunc: np.ufunc | None = None
    symbol: str = ""
    result: Type | None = None
    operator: Callable[[Any, Any], Any] | None = None


_NUMBERS: tuple[Type, ...] = (*ANY, "index")
_WHOLE: tuple[Type, ...] = (*INTEGERS, "index")
_ALL: tuple[Type, ...] = (*_NUMBERS, "bool")
_CONDITIONS: tuple[Type, ...] = ("bool",)

FUNCTIONS: dict[str, Function] = {
    "add": Function(2, _NUMBERS, np.add, "+", operator=operator.add),
    "sub": Function(2, _NUMBERS, np.subtract, "-", operator=operator.sub),
    "mul": Function(2, _NUMBERS, np.multiply, "*", operator=operator.mul),
    "div": Function(2, ANY, np.divide, "/"),
    "pow": Function(2, ANY, np.power, "**"),
    "max": Function(2, _NUMBERS, np.maximum),
    "min": Function(2, _NUMBERS, np.minimum),
    # Rounded down, with the matching remainder (Python's // and %); x // 0 and x % 0 are 0.
    "floor_div": Function(2, _WHOLE, np.floor_divide, "//", operator=operator.floordiv),
    "mod": Function(2, _WHOLE, np.remainder, "%", operator=operator.mod),
    # The exact remainder with the sign of the first number (C's fmod); NaN for infinite numbers and divisors of 0.
    "fmod": Function(2, FLOATS, np.fmod),
    "bit_and": Function(2, INTEGERS, np.bitwise_and, "&", operator=operator.and_),
    "bit_or": Function(2, INTEGERS, np.bitwise_or, "|", operator=operator.or_),
    "bit_xor": Function(2, INTEGERS, np.bitwise_xor, "^", operator=operator.xor),
    "shift_left": Function(2, INTEGERS, np.left_shift, "<<"),
    "shift_right": Function(2, INTEGERS, np.right_shift, ">>"),
    "equal": Function(2, _ALL, np.equal, "==", "bool", operator=operator.eq),
    "not_equal": Function(2, _ALL, np.not_equal, "!=", "bool", operator=operator.ne),
    "greater": Function(2, _ALL, np.greater, ">", "bool", operator=operator.gt),
    "greater_or_equal": Function(2, _ALL, np.greater_equal, ">=", "bool", operator=operator.ge),
    "lesser": Function(2, _ALL, np.less, "<", "bool", operator=operator.lt),
    "lesser_or_equal": Function(2, _ALL, np.less_equal, "<=", "bool", operator=operator.le),
    "logical_and": Function(2, _CONDITIONS, np.logical_and, "and", "bool", operator=operator.and_),
    "logical_or": Function(2, _CONDITIONS, np.logical_or, "or", "bool", operator=operator.or_),
    "logical_xor": Function(2, _CONDITIONS, np.logical_xor, "xor", "bool", operator=operator.ne),
    "logical_not": Function(1, _CONDITIONS, np.logical_not, result="bool"),
    "is_nan": Function(1, FLOATS, np.isnan, result="bool"),
    "is_infinite": Function(1, FLOATS, np.isinf, result="bool"),
    "abs": Function(1, (*SIGNED, "index"), np.absolute),
    "neg": Function(1, (*SIGNED, "index"), np.negative),
    "sign": Function(1, SIGNED),
    "ceil": Function(1, FLOATS, np.ceil),
    "floor": Function(1, FLOATS, np.floor),
    "round_even": Function(1, FLOATS, np.rint),
    "sqrt": Function(1, FLOATS, np.sqrt),
    "reciprocal": Function(1, FLOATS, np.reciprocal),
    "exp": Function(1, FLOATS, np.exp),
    "log": Function(1, FLOATS, np.log),
    "sin": Function(1, FLOATS, np.sin),
    "cos": Function(1, FLOATS, np.cos),
    "tan": Function(1, FLOATS, np.tan),
    "erf": Function(1, FLOATS),
    "sigmoid": Function(1, FLOATS),
    "tanh": Function(1, FLOATS, np.tanh),
    "where": Function(3, _ALL),  # the condition, "bool", comes first
}
"""All functions by name. A function that is named like a WebNN operation has the semantics of that operation."""

DEAR = frozenset({"exp", "log", "sin", "cos", "tan", "tanh", "erf", "sigmoid", "pow"})
"""Functions that are computed by polynomials."""

Reduction = Literal["sum", "product", "max", "min", "arg_max", "arg_min"]
"""`arg_max` and `arg_min` return the first position of the extreme value, as int32. NaN counts as the largest value for
`max` and `arg_max`, and as the smallest for `min` and `arg_min`.
"""
