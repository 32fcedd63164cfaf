"""Functions and casts of single elements, as text.

8-bit integers are computed in 32 bits, and wrapped after each function that may leave their range.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ...core.dtypes import FLOATS
from ...core.size_bounds import lower_bound
from ...core.sizes import Size
from ..ir import FUNCTIONS, Call, Const, Expr, Type, storage
from ..ranges import bounds
from .dialect import Dialect
from .mathematics import DECLARATIONS, POWERS
from .types import computed_type, literal

_WRAPPED = frozenset({"add", "sub", "mul", "div", "pow", "neg", "abs", "floor_div", "shift_left"})
"""Functions whose results may leave the range of 8-bit integers."""

_NARROW: dict[str, int] = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}
"""Integers of fewer bits than they are computed in."""

_SYMBOLS = {name: function.symbol for name, function in FUNCTIONS.items()} | {
    "logical_and": "&&",
    "logical_or": "||",
    "logical_xor": "!=",
}

_ARITHMETIC = frozenset({"add", "sub", "mul"})
"""Functions whose results may leave the range of signed integers."""

_REARRANGED = {
    **dict.fromkeys(("add", "sub"), (frozenset({"add", "sub"}), frozenset({"add", "sub", "neg", "mul"}))),
    "mul": (frozenset({"mul"}), frozenset({"mul", "sqrt"})),
}
"""Functions of floats that compilers rearrange -> the functions of an operand for which they do: first if the other operand is
a number, then if it occurs in this operand."""

_REARRANGED_TERMS = frozenset[str]().union(*(names for _, names in _REARRANGED.values()))
_REARRANGED_DEPTH = 3
"""Levels of sums and products that compilers rearrange together: patterns of Mesa have at most this many."""

_BUILT_IN = {
    **{name: name for name in ("max", "min", "abs", "ceil", "floor", "sqrt", "is_nan", "is_infinite")},
    "round_even": "round",
}
"""Functions that are not operators, and that the library (`mathematics`) does not define for a type."""

_WIDER = {("i32", "i64"): ("widened", "i64"), ("i32", "u64"): ("widened", "i64"), ("u32", "i64"): ("u64", "u64")}
"""Conversions of 32 to 64 bits that extend the sign of the source: the function, and the type it returns."""


def is_simple(text: str) -> bool:
    """Whether a text is a name or a literal."""
    return all(character.isalnum() or character in "_.-" for character in text)


def operand(text: str) -> str:
    """Parenthesise a text if it contains operators."""
    depth = 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == " " and depth == 0:
            return f"({text})"
    return f"({text})" if text[0] in "-!" else text


def argument(text: str) -> str:
    """Parenthesise an argument with `<` or `>`, which WGSL would parse as a template list."""
    return operand(text) if "<" in text or ">" in text else text


def call_of(name: str, arguments: Sequence[str]) -> str:
    return f"{name}({', '.join(argument(a) for a in arguments)})"


def wrap(text: str, type: Type) -> str:
    """Wrap a 32-bit integer to a type of 8 or 16 bits; other types are unchanged."""
    bits = _NARROW.get(type, 0)
    if bits and type.startswith("u"):
        return f"{operand(text)} & {(1 << bits) - 1}u"
    return f"extractBits({argument(text)}, 0u, {bits}u)" if bits else text


def call(name: str, type: Type, arguments: Sequence[str], dialect: Dialect) -> str:
    """Apply a function of `ir.FUNCTIONS` to elements of a type."""
    text = _call(name, type, arguments, dialect)
    return wrap(text, type) if name in _WRAPPED else text


def _is_usual(text: str) -> bool:
    """Whether a divisor is a constant in the range for which WGSL guarantees accurate division."""
    try:
        return 2.0**-126 <= abs(float(text.removesuffix("f"))) <= 2.0**126
    except ValueError:
        return False


def _call(name: str, type: Type, arguments: Sequence[str], dialect: Dialect) -> str:
    first, *others = map(operand, arguments)
    if name == "where":
        return call_of("select", arguments[::-1])
    if name == "logical_not":
        return f"!{first}"
    if name == "not_equal" and type in FLOATS:
        return f"!({first} == {others[0]})"  # true for NaN, unlike != on some devices
    if type == "bool" and name in ("greater", "greater_or_equal", "lesser", "lesser_or_equal"):
        first, *others = (call_of("select", ("0u", "1u", argument)) for argument in arguments)
    if name == "neg":
        if type in FLOATS or type == "index":
            return f"-{first}"
        return _call("sub", type, (literal(0, type, dialect), arguments[0]), dialect)
    if name in _ARITHMETIC and type in ("int32", "int64") and not dialect.wraps:
        return call_of(f"wrapped_{name}", arguments)
    if name == "pow" and type in FLOATS:
        products = {literal(exponent, type, dialect): product for exponent, product in POWERS.items()}
        if arguments[1] in products:
            name, arguments = products[arguments[1]], arguments[:1]
    library = f"{name}_{computed_type(type)}"
    if library in DECLARATIONS and not (library == "div_f32" and _is_usual(arguments[1])):
        return call_of(library, arguments)
    if name in _BUILT_IN:
        return call_of(_BUILT_IN[name], arguments)
    return f"{first} {_SYMBOLS[name]} {others[0]}"


def is_bfloat16(source: str, target: str) -> bool:
    """Whether a cast is from or to bfloat16, which is only cast from and to float32."""
    return "bfloat16" in (source, target)


def cast(text: str, source: Type, target: Type, dialect: Dialect) -> str:
    """Convert an element to another type, with the semantics of `ir.Cast`."""
    to = computed_type(target)
    if target == "bool":
        value = operand(text)
        same = f"{value} == {literal(0, source, dialect)}"
        return text if source == "bool" else f"!({same})" if source in FLOATS else same.replace("==", "!=")
    if source == "bool":
        return call_of("select", (literal(0, target, dialect), literal(1, target, dialect), text))
    if is_bfloat16(source, target):
        return text if source == "bfloat16" else call_of("rounded_to_bfloat", (text,))  # type: ignore[comparison-overlap]
    if source in FLOATS:
        if target in FLOATS:
            return call_of("rounded_to_half", (text,)) if (source, target) == ("float32", "float16") else text
        return call_of(f"to_{storage(target)}", (text,))
    if target == "float16":
        return f"rounded_to_half(f32({text}))"
    wider, current = _WIDER.get((computed_type(source), to), ("", computed_type(source)))
    text = call_of(wider, (text,)) if wider else text
    converted = text if current == to else f"{to}({text})"
    return converted if source == target else wrap(converted, target)


def function(node: Call, parts: Sequence[str], dialect: Dialect) -> str:
    """A function applied to nodes, with special cases for constant arguments."""
    if node.name == "reciprocal":
        node, parts = Call("div", (Const(1.0, node.type), *node.parts)), ("1.0f", *parts)
    if node.type in FLOATS and len(parts) == 2:
        parts = _kept_parts(node, parts)
        for k, part in enumerate(node.parts):
            special = _with_constant(node.name, part, k, parts) if isinstance(part, Const) else ""
            if special:
                return special
        if node.parts[0] is node.parts[1]:  # compilers fold x - x to 0, and x / x to 1, whatever the value is
            if node.name == "sub":
                return call_of("times_zero", (call_of("abs", parts[:1]),))
            if node.name == "div":
                return call_of("over_itself", parts[:1])
    divisor = node.parts[-1]
    if node.type == "index" and node.name in ("floor_div", "mod"):
        span = bounds(node.parts[0])
        if isinstance(divisor, Const) and lower_bound(divisor.value) >= 1 and span and lower_bound(span[0]) >= 0:
            unsigned = dialect.divisor(parts[1]) if isinstance(divisor.value, Size) else f"{divisor.value}u"
            return f"i32(u32({parts[0]}) {'/' if node.name == 'floor_div' else '%'} {unsigned})"
    return call(node.name, node.parts[-1].type, parts, dialect)


def _kept_parts(node: Call, parts: Sequence[str]) -> Sequence[str]:
    """The operands of a function of two floats; one is kept apart from the other if a compiler may rearrange them.

    WGSL lets compilers rearrange sums and products, as Mesa does: (x + y) - y becomes x, x + (-x) becomes 0 even for NaN,
    x * y * 1e-20 becomes x * 1e-20 * y, and sqrt(x) * sqrt(x) becomes abs(x).
    """
    if node.name not in _REARRANGED:
        return parts
    beside_number, beside_term = _REARRANGED[node.name]
    # The operand that contains the other one: a part of this one may be kept apart, too, and then cancel the other one.
    for k in (0, 1) if node.parts[1] in _terms(node.parts[0]) else (1, 0):
        part, other = node.parts[k], node.parts[1 - k]
        if isinstance(other, Const):
            is_rearranged = _is_call(_without_sign(part), beside_number)
        else:
            is_rearranged = _is_call(part, beside_term) and not _terms(part).isdisjoint(_terms(other))
        if is_rearranged:
            return [call_of("kept", (text,)) if place == k else text for place, text in enumerate(parts)]
    return parts


def _terms(node: Expr, depth: int = _REARRANGED_DEPTH) -> set[Expr | str]:
    """The values that a sum or product consists of; all numbers are one, because compilers combine them."""
    if isinstance(node, Const):
        return {"number"}
    inner = node.parts if depth and _is_call(node, _REARRANGED_TERMS) else ()
    return {node, *(term for part in inner for term in _terms(part, depth - 1))}


def _without_sign(node: Expr) -> Expr:
    while _is_call(node, ("neg",)):
        node = node.parts[0]
    return node


def _is_call(node: Expr, names: Collection[str]) -> bool:
    return isinstance(node, Call) and node.name in names


def _with_constant(name: str, constant: Const, k: int, parts: Sequence[str]) -> str:
    """A call of two floats, if operand `k` is a constant that needs a special function; else empty."""
    value, other = constant.value, parts[1 - k]
    if isinstance(value, Size):
        if name == "div" and k == 1 and lower_bound(value) >= 1:
            return f"{operand(other)} / {operand(parts[k])}"  # in the range of accurate division, as constants are
        return call_of("at_least" if name == "max" else "at_most", (other, parts[k])) if name in ("max", "min") else ""
    signed = f"-{operand(other)}" if math.copysign(1, value) < 0 else other
    if value == 0 and name == "div" and k == 1:
        return call_of("over_zero", (signed,))  # llvmpipe folds a division by a constant 0 to an arbitrary number
    if value == 0 and name == "div":
        return call_of("zero_over", (signed,))
    if value == 0 and name == "mul":
        return call_of("times_zero", (signed,))  # compilers fold this to 0, even for infinities and NaN
    if name in ("max", "min") and value == value:  # one NaN test is enough
        return call_of("at_least" if name == "max" else "at_most", (other, parts[k]))
    return ""
