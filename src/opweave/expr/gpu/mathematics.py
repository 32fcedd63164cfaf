"""Library functions, included in the kernels that use them. The functions are written in WGSL; `DialectLibrary` prints them.

WGSL compilers may assume that there are no infinities and NaN, and built-in functions may be inaccurate or overflow: on
some devices `tanh(100)` is NaN. The functions here are accurate for all float32 except denormals, which devices may
flush to 0. NaN is detected by its bits, and non-finite numbers are built from variables, because constants must be
finite.

`BOUNDS` are maximum errors for normal arguments and results, measured by `tests/expr/test_expr_wgsl.py` on samples of
all exponents, with correctly rounded division and square root. WGSL allows errors of 2.5 ULP in both: on
devices with such errors, the errors of tan, tanh and sigmoid are greater by this much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

import numpy as np

from ...core.dtypes import INFO
from ..ir import INTEGERS
from .dialect import DialectFunction, DialectLibrary, Variable
from .types import computed_type, literal
from .wgsl import WGSL

BOUNDS = {
    "exp": 1.3, "log": 0.9, "sin": 2.9, "cos": 2.9, "tan": 3.3, "tanh": 2.4, "erf": 1.2, "sigmoid": 2.4, "pow": 1.0
}  # fmt: skip
"""Maximum error of each function in ULP."""

POWERS = {2: "square", 3: "cube"}
"""Functions in place of `pow` with a constant exponent, which takes about 100 instructions."""

_NATURAL_POWER = """
// a to the power of b, which is not negative.
fn natural_power_T(a: T, b: T) -> T {
    var result = 1S;
    var square = a;
    for (var rest = b; rest != 0S; rest = rest >> 1u) {
        result = select(result, result * square, (rest & 1S) == 1S);
        square = square * square;
    }
    return result;
}
"""

_UNSIGNED = """
fn div_T(a: T, b: T) -> T {
    return select(a / select(b, 1S, b == 0S), 0S, b == 0S);
}

fn mod_T(a: T, b: T) -> T {
    return select(a % select(b, 1S, b == 0S), 0S, b == 0S);
}

fn floor_div_T(a: T, b: T) -> T {
    return div_T(a, b);
}

fn shift_left_T(a: T, b: T) -> T {
    return select(0S, a << u32(b & MASKS), b <= MASKS);
}

fn shift_right_T(a: T, b: T) -> T {
    return select(0S, a >> u32(b & MASKS), b <= MASKS);
}

fn pow_T(a: T, b: T) -> T {
    return natural_power_T(a, b);
}
"""

_SIGNED = """
// Toward zero; the lowest number divided by -1 is itself.
fn div_T(a: T, b: T) -> T {
    let quotient = a / select(b, 1S, b == 0S || b == -1S);
    return select(select(quotient, 0S - a, b == -1S), 0S, b == 0S);
}

// The remainder that belongs to a quotient that is rounded down.
fn mod_T(a: T, b: T) -> T {
    let divisor = select(b, 1S, b == 0S || b == -1S);
    let remainder = a - a / divisor * divisor;
    return select(remainder, remainder + divisor, remainder != 0S && (remainder < 0S) != (divisor < 0S));
}

fn floor_div_T(a: T, b: T) -> T {
    let quotient = div_T(a, b);
    return select(quotient, quotient - 1S, mod_T(a, b) != 0S && (a < 0S) != (b < 0S));
}

fn shift_left_T(a: T, b: T) -> T {
    return select(0S, a << u32(b & MASKS), b >= 0S && b <= MASKS);
}

fn shift_right_T(a: T, b: T) -> T {
    return a >> u32(select(MASKS, b, b >= 0S && b <= MASKS));
}

fn pow_T(a: T, b: T) -> T {
    if (b < 0S) { // 1 / a^-b: only 1 and -1 have inverses
        return select(select(0S, select(1S, a, (b & 1S) == 1S), a == -1S), 1S, a == 1S);
    }
    return natural_power_T(a, b);
}

fn abs_T(a: T) -> T {
    return select(a, 0S - a, a < 0S);
}

fn sign_T(a: T) -> T {
    return select(select(0S, -1S, a < 0S), 1S, a > 0S);
}
"""

_SATURATED = """
// Cut off, clamped; NaN is 0. BELOW is the greatest float below ABOVE.
fn to_N(x: f32) -> T {
    return select(select(T(clamp(x, LOWEST, BELOW)), GREATEST, x >= ABOVE), ZERO, is_nan(x));
}
"""

_NAME = re.compile(r"^(?:fn|var<private>) (\w+)", re.MULTILINE)
_CONSTANT = re.compile(r"((?://.*\n)*)var<private> (\w+): (.*?) = ([^;]*);")
_FUNCTION = re.compile(r"((?://.*\n)*)fn (\w+)\((.*)\)(?: -> (.*))? \{\n((?:.*\n)*)\}")
_COMMENT = re.compile(r"//[^\n]*")
_WORD = re.compile(r"[A-Za-z_]\w*")


@cache
def declarations(dialect: DialectLibrary) -> Mapping[str, str]:
    """The library in a dialect: name -> text of a function or constant. Each precedes the functions that use it."""
    floats = files(__package__).joinpath("functions.wgsl").read_text("utf-8")
    texts = [floats.partition("\n\n")[2]]
    for type, width in (("i32", 32), ("u32", 32), ("i64", 64), ("u64", 64)):
        suffix = dialect.suffixes[type]
        text = _NATURAL_POWER + (_SIGNED if type[0] == "i" else _UNSIGNED)
        texts.append(_fill(text, {"T": type, "MASKS": f"{width - 1}{suffix}"}, suffix))
    for name in INTEGERS:
        info = INFO[name]
        above = 2.0 ** (info.bits - (info.kind == "i"))
        values = {
            "N": name,
            "T": computed_type(name),
            "LOWEST": literal(info.lowest, "float32", dialect),
            "BELOW": literal(float(np.nextafter(np.float32(above), np.float32(0))), "float32", dialect),
            "ABOVE": literal(above, "float32", dialect),
            "GREATEST": literal(info.highest, name, dialect),
            "ZERO": literal(0, name, dialect),
        }
        texts.append(_fill(_SATURATED, values, ""))
    parts = [part.strip() for text in texts for part in text.split("\n\n")]
    return {**{_NAME.findall(part)[0]: _print(part, dialect) for part in parts}, **dialect.overrides}


def _print(text: str, dialect: DialectLibrary) -> str:
    constant = _CONSTANT.fullmatch(text)
    if constant is not None:
        return dialect.library_constant(text, Variable(*constant.groups()[1:]))
    match = _FUNCTION.fullmatch(text)
    assert match is not None, text
    comments, name, parameters, result, body = match.groups()
    variables = tuple(Variable(*parameter.split(": ")) for parameter in filter(None, parameters.split(", ")))
    lines = tuple(line.removeprefix("    ") for line in body.splitlines())
    return dialect.library_function(comments.splitlines(), DialectFunction(name, variables, result or "", lines))


def _fill(text: str, values: dict[str, str], suffix: str) -> str:
    text = re.sub(r"\b(\d+)S\b", rf"\g<1>{suffix}", text)
    return re.sub(r"(?<![A-Za-z])(" + "|".join(values) + r")(?![A-Za-z])", lambda match: values[match[1]], text)


DECLARATIONS = declarations(WGSL)
"""The library in WGSL. All dialects declare the same names."""


def words(text: str) -> set[str]:
    """The identifiers in a text, without comments."""
    return set(_WORD.findall(_COMMENT.sub("", text)))


def declarations_of(texts: Iterable[str], dialect: DialectLibrary = WGSL) -> list[str]:
    """Return the declarations of library functions and constants that `texts` use, in the order of the library."""
    library = declarations(dialect)
    used: set[str] = set()
    pending = [word for text in texts for word in words(text) if word in library]
    while pending:
        name = pending.pop()
        if name not in used:
            used.add(name)
            pending += [word for word in words(library[name]) if word in library]
    return [text for name, text in library.items() if name in used]
