"""The types and functions of expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..dtypes import ANY, FLOATS, SIGNED, DataType

Type: TypeAlias = DataType | Literal["bool", "index"]
"""The type of a node."""

INTEGERS: tuple[Type, ...] = tuple(t for t in ANY if t not in FLOATS)


@dataclass(frozen=True, slots=True)
class Function:
    """The signature of a function in `FUNCTIONS`.

    Attributes:
        arity: number of arguments.
        types: allowed argument types; all arguments have the same type, except the condition of `where`.
        result: type of the result; None for the type of the arguments.
        symbol: infix operator when printed; empty for `name(arguments)`.
    """

    arity: int
    types: tuple[Type, ...]
    result: Type | None = None
    symbol: str = ""


_NUMBERS: tuple[Type, ...] = (*ANY, "index")
_WHOLE: tuple[Type, ...] = (*INTEGERS, "index")

FUNCTIONS: dict[str, Function] = {
    **{name: Function(2, _NUMBERS, symbol=s) for name, s in {"add": "+", "sub": "-", "mul": "*"}.items()},
    "div": Function(2, ANY, symbol="/"),
    "pow": Function(2, ANY),
    "max": Function(2, _NUMBERS),
    "min": Function(2, _NUMBERS),
    # Rounded down, with the matching remainder (Python's // and %); x // 0 and x % 0 are 0.
    "floor_div": Function(2, _WHOLE, symbol="//"),
    "mod": Function(2, _WHOLE, symbol="%"),
    **{
        name: Function(2, INTEGERS, symbol=s)
        for name, s in {"bit_and": "&", "bit_or": "|", "bit_xor": "^", "shift_left": "<<", "shift_right": ">>"}.items()
    },
    **{
        name: Function(2, (*_NUMBERS, "bool"), "bool", s)
        for name, s in {
            "equal": "==",
            "not_equal": "!=",
            "greater": ">",
            "greater_or_equal": ">=",
            "lesser": "<",
            "lesser_or_equal": "<=",
        }.items()
    },
    "logical_and": Function(2, ("bool",), "bool", "and"),
    "logical_or": Function(2, ("bool",), "bool", "or"),
    "logical_xor": Function(2, ("bool",), "bool", "xor"),
    "logical_not": Function(1, ("bool",), "bool"),
    "is_nan": Function(1, FLOATS, "bool"),
    "is_infinite": Function(1, FLOATS, "bool"),
    **{name: Function(1, (*SIGNED, "index")) for name in ("abs", "neg")},
    "sign": Function(1, SIGNED),
    **{
        name: Function(1, FLOATS)
        for name in (
            *("ceil", "floor", "round_even", "sqrt", "reciprocal"),
            *("exp", "log", "sin", "cos", "tan", "erf", "sigmoid", "tanh"),
        )
    },
    "where": Function(3, (*_NUMBERS, "bool")),  # the condition, "bool", comes first
}
"""All functions by name. Those named like WebNN operations have the same semantics."""

Reduction = Literal["sum", "product", "max", "min", "arg_max", "arg_min"]
"""`arg_max` and `arg_min` return the first position of the extreme value, as int32. NaN counts as the largest value for
`max` and `arg_max`, and as the smallest for `min` and `arg_min`.
"""
