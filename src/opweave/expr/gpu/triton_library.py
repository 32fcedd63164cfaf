"""Library functions in Triton's language, which is Python on whole tiles.

Straight-line functions are translated, statement by statement. Others are not: Triton has no early returns and no arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from types import MappingProxyType

from . import mathematics
from .dialect import DialectFunction, DialectLibrary, Variable

_TOKEN = re.compile(
    r"\s*((?:bitcast|vec2)<\w+>|0x[0-9a-f]+|\d+(?:\.\d*)?(?:e[+-]?\d+)?|[A-Za-z_]\w*"
    r"|&&|\|\||<<|>>|[<>=!]=|[-+*/%&|^~!<>()\[\],.])"
)
_SUFFIX = re.compile(r"\b(0x[0-9a-f]+|\d+)u\b|\b(\d+(?:\.\d*)?(?:e[+-]?\d+)?)f\b")
_STATEMENT = re.compile(r"(?:(?:let|var) )?(\w+) = (.*)|return (.*)")
_COMMENT = re.compile(r"\s*//.*")

_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"))
"""Operators of WGSL that bind less than products do, from the weakest."""

_LOGICAL = {"&&": "&", "||": "|"}

TYPES = {"f32": "tl.float32", "i32": "tl.int32", "u32": "tl.uint32"}

NAN = "propagate_nan=tl.PropagateNan.ALL"
"""The argument with which `tl.maximum` and `tl.minimum` return NaN if an operand is NaN."""

CALLS: dict[str, str] = {
    "select": "tl.where({2}, {1}, {0})",
    "max": f"tl.maximum({{0}}, {{1}}, {NAN})",
    "min": f"tl.minimum({{0}}, {{1}}, {NAN})",
    "clamp": f"tl.minimum(tl.maximum({{0}}, {{1}}, {NAN}), {{2}}, {NAN})",
    "abs": "tl.abs({0})",
    "floor": "tl.floor({0})",
    "round": "round_even_f32({0})",
    "vec2<f32>": "({0}, {1})",
    **{name: f"tl.cast({{0}}, {type})" for name, type in TYPES.items()},
    **{f"bitcast<{name}>": f"tl.cast({{0}}, {type}, bitcast=True)" for name, type in TYPES.items()},
}
"""Functions of Triton, by their names in WGSL."""


def _jit(text: str) -> str:
    return f"@triton.jit\n{text}"


class Triton(DialectLibrary):
    """Functions of whole tiles."""

    suffixes = MappingProxyType(dict.fromkeys(("f32", "i32", "u32", "i64", "u64"), ""))
    overrides = MappingProxyType(
        {
            # Triton compares the constants that a function returns, and NaN is not equal to itself.
            "infinity": _jit('def infinity():\n    return tl.full((), float("inf"), tl.float32)'),
            "not_a_number": _jit('def not_a_number():\n    return tl.full((), float("nan"), tl.float32)'),
            "kept": _jit("def kept(x):\n    return x"),
            "div_f32": _jit("def div_f32(a, b):\n    return tl.div_rn(a, b)"),
            # Within 1 ULP of the quotient; "/" of Triton is within 2 ULP. `tl.div_rn` has a branch for each element, and the
            # compiler moves no instructions across it.
            "ratio": _jit(
                "def ratio(a, b):\n"
                "    inverse = 1.0 / b\n"
                "    near = a * inverse\n"
                "    return tl.fma(tl.fma(near, -b, a), inverse, near)"
            ),
            # The algorithm of the library, with half as many instructions. Adding 1.5 * 2^23 rounds x / ln 2 to an integer
            # `whole` in the last bits of the sum. `power_of_whole` makes 2 ** (whole + more) of these bits.
            "exponential_parts": _jit(
                "def exponential_parts(x):\n"
                "    whole = tl.fma(x, 1.44269504, 12582912.0) - 12582912.0\n"
                "    rest = tl.fma(whole, 2.12194440e-4, tl.fma(whole, -0.693359375, x))\n"
                "    p = tl.fma(rest, 1.9875691500e-4, 1.3981999507e-3)\n"
                "    p = tl.fma(p, rest, 8.3334519073e-3)\n"
                "    p = tl.fma(p, rest, 4.1665795894e-2)\n"
                "    p = tl.fma(p, rest, 1.6666665459e-1)\n"
                "    p = tl.fma(p, rest, 5.0000001201e-1)\n"
                "    return (tl.fma(p, rest * rest, rest), whole)\n"
                "@triton.jit\n"
                "def power_of_whole(whole, more):\n"
                "    exponent = tl.cast(whole + 12582912.0, tl.int32, bitcast=True) + (more + 127)\n"
                "    return tl.cast(exponent << 23, tl.float32, bitcast=True)"
            ),
            "exponential_of_negative": _jit(
                "def exponential_of_negative(x):\n"
                "    parts = exponential_parts(x)\n"
                "    power = power_of_whole(parts[1], 24)\n"
                "    return tl.fma(parts[0], power, power) * 5.9604645e-8"
            ),
            # `sigmoid_f32` and `tanh_f32` of NaN are NaN: no step replaces NaN.
            "sigmoid_f32": _jit(
                "def sigmoid_f32(x):\n"
                f"    e = exponential_of_negative(tl.minimum(tl.abs(x), 104.5, {NAN}) * -1.0)\n"
                "    return ratio(tl.where(x < 0.0, e, 1.0), 1.0 + e)"
            ),
            "tanh_f32": _jit(
                "def tanh_f32(x):\n"
                f"    limited = tl.minimum(tl.abs(x), 10.0, {NAN})\n"
                "    parts = exponential_parts(limited + limited)\n"
                "    power = power_of_whole(parts[1], 0)\n"
                "    e = tl.fma(parts[0], power, power - 1.0)\n"
                "    return with_sign(ratio(e, e + 2.0), x)"
            ),
            # CUDA's function has half as many instructions, and an error of at most 2 ULP. Instructions count here: a kernel
            # repeats them for each element that a thread computes, and long kernels wait for their instructions.
            "erf_f32": _jit("def erf_f32(x):\n    return tl.erf(x)"),
            # Numbers from 2^23 are whole; adding 2^23 to smaller ones rounds them.
            "round_even_f32": _jit(
                "def round_even_f32(x):\n"
                "    size = tl.abs(x)\n"
                "    whole = with_sign((size + 8388608.0) - 8388608.0, x)\n"
                "    return tl.where(size < 8388608.0, whole, x)"
            ),
        }
    )

    def library_function(self, comments: Sequence[str], function: DialectFunction) -> str:
        """A function of floats, without branches, loops and arrays; empty for others."""
        lines = [_COMMENT.sub("", line).strip() for line in function.lines]
        types = {parameter.type for parameter in function.parameters}
        if any("[" in line for line in lines) or not types <= TYPES.keys() or "f32" not in {*types, function.result}:
            return ""  # without floats: "/" of integers would need another function
        translated = []
        for line in filter(None, lines):
            match = _STATEMENT.fullmatch(line.removesuffix(";"))
            if match is None or not line.endswith(";"):
                return ""
            name, value, returned = match.groups()
            translated.append(f"return {_translate(returned)}" if returned else f"{name} = {_translate(value)}")
        head = f"def {function.name}({', '.join(parameter.name for parameter in function.parameters)}):"
        return _jit("\n    ".join([head, *translated]))

    def library_constant(self, text: str, constant: Variable) -> str:
        """Triton has no arrays."""
        return ""


TRITON = Triton()


def functions(names: Collection[str]) -> list[str] | None:
    """Library functions, and those that they use, in order; None if Triton cannot express one."""
    library = mathematics.declarations(TRITON)
    if any(name not in library for name in names):
        return None
    texts = mathematics.declarations_of(names, TRITON)
    return None if "" in texts else texts


def _translate(text: str) -> str:
    return _Parser(text).whole()


class _Parser:
    """Translates an expression of WGSL, by recursive descent."""

    def __init__(self, text: str) -> None:
        plain = _SUFFIX.sub(lambda match: match[1] or match[2], text)
        self.tokens: list[str] = _TOKEN.findall(plain)
        self.at = 0

    def whole(self) -> str:
        text = self._binary(0)
        assert self.at == len(self.tokens), self.tokens
        return text

    @property
    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._next
        assert not wanted or token == wanted, self.tokens
        self.at += 1
        return token

    def _binary(self, level: int) -> str:
        inner: Callable[[], str] = self._product if level + 1 == len(_LEVELS) else lambda: self._binary(level + 1)
        left = inner()
        while self._next in _LEVELS[level]:
            symbol = self._take()
            left = f"({left} {_LOGICAL.get(symbol, symbol)} {inner()})"
        return left

    def _product(self) -> str:
        left = self._unary()
        while self._next in ("*", "/", "%"):
            symbol, right = self._take(), self._unary()
            left = f"tl.div_rn({left}, {right})" if symbol == "/" else f"({left} {symbol} {right})"
        return left

    def _unary(self) -> str:
        if self._next == "!":
            self._take()
            return f"({self._unary()} == 0)"
        if self._next == "-":
            self._take()
            value = self._unary()
            # Triton computes -x as 0 - x, which is not -0 for 0.
            return f"-{value}" if value[0].isdigit() else f"({value} * -1.0)"
        return self._add_suffixes(self._primary())

    def _add_suffixes(self, text: str) -> str:
        while self._next == ".":
            self._take()
            text = f"{text}[{'xy'.index(self._take())}]"
        return text

    def _primary(self) -> str:
        token = self._take()
        if token == "(":
            text = self._binary(0)
            self._take(")")
            return text
        if self._next != "(":
            return token
        arguments = list(self._arguments())
        return CALLS.get(token, f"{token}({', '.join(f'{{{k}}}' for k in range(len(arguments)))})").format(*arguments)

    def _arguments(self) -> Iterator[str]:
        self._take("(")
        while self._next != ")":
            yield self._binary(0)
            if self._next == ",":
                self._take()
        self._take(")")
