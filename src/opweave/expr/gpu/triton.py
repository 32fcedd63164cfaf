"""Expressions as Triton statements. Each statement computes a value for all elements of a tile.

Values have the shape of the tile, or of a part that broadcasts to it: a column, a row or a number. float16 is computed in
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core.dtypes import DataType
from ...core.graph import Desc
from ...core.size_bounds import lower_bound
from ...core.sizes import Dimension, Size
from ..elements import to_float32
from ..ir import Bitcast, Call, Cast, Const, Expr, Index, Load, Source, Type, walk
from ..ranges import bounds, is_inside
from .mathematics import POWERS
from .triton_library import NAN, functions

TYPES: dict[str, str] = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "int32": "i32",
    "int8": "i8",
    "uint8": "u8",
}
"""Names of types in signatures, of elements that a kernel reads or writes. Expressions read no bfloat16."""

SIZE = "=i32"
"""The type of a parameter for a size, which is no pointer. `=i32:4` is the type of sizes that are multiples of 4."""

SIZE_MULTIPLES = (16, 8, 4)
"""Divisors that the type of a size may declare, largest first: Triton vectorises loads and stores if it knows divisors of
strides. A vector has at most 8 elements of float16, or 4 of float32. Triton itself specialises kernels for arguments that are
multiples of 16."""

_COMPUTED: dict[Type, str] = {
    **dict.fromkeys(("float32", "float16"), "float32"),
    **dict.fromkeys(("int32", "index", "int8", "uint8"), "int32"),
    "bool": "int1",
}
"""Types that elements are computed in. Integers of 8 bits are only compared and cast."""
_BYTES = ("int8", "uint8")


_FLOATS = {
    "div": "tl.div_rn({0}, {1})",
    "reciprocal": "tl.div_rn(1.0, {0})",
    "max": f"tl.maximum({{0}}, {{1}}, {NAN})",
    "min": f"tl.minimum({{0}}, {{1}}, {NAN})",
    "neg": "{0} * -1.0",  # Triton computes -x as 0 - x, which is not -0 for 0
    "abs": "tl.abs({0})",
    "ceil": "tl.ceil({0})",
    "floor": "tl.floor({0})",
    "sqrt": "tl.sqrt_rn({0})",
    "is_nan": "{0} != {0}",
    "is_infinite": 'tl.abs({0}) == float("inf")',
}
_INTEGERS = {"max": "tl.maximum({0}, {1})", "min": "tl.minimum({0}, {1})", "neg": "0 - {0}"}
_ANY = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
    "greater": "{0} > {1}",
    "greater_or_equal": "{0} >= {1}",
    "lesser": "{0} < {1}",
    "lesser_or_equal": "{0} <= {1}",
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "logical_xor": "{0} != {1}",
    "logical_not": "{0} == 0",
    "where": "tl.where({0}, {1}, {2})",
}
MAX_DIVISOR = 2.0**40
"""Products replace divisions by constants from 1 / MAX_DIVISOR to MAX_DIVISOR; other quotients may be too small for that."""

_LIBRARY = ("round_even", "exp", "log", "pow", "erf", "sigmoid", "tanh", "sign")


def source_of(comment: str, types: Mapping[str, str], library: Iterable[str], lines: Iterable[str]) -> str:
    """The source of a kernel; `comment` contains no names of the graph, so that equal sources are compiled once."""
    imports = ("import triton", "import triton.language as tl", "from triton.language.extra import cuda")
    constants = (f"TYPES = {dict(types)}", "STARTS_EARLY = tl.constexpr(False)  # set where it is compiled")
    start = ("if STARTS_EARLY:", "    cuda.gdc_wait()", "    cuda.gdc_launch_dependents()")
    kernel = ["@triton.jit", f"def opweave_kernel({', '.join(types)}):", *(f"    {line}" for line in (*start, *lines))]
    return "\n".join([f"# {comment}", *imports, "", *constants, "", *library, "", *kernel, ""])


class UnsupportedError(Exception):
    """An expression that is not printed for Triton; the message says why."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position along an axis of the result, which changes along these directions of the tile: "row", "column"."""

    text: str
    along: frozenset[str]


class Statements:
    """Statements that compute expressions.

    Args:
        names: names of the pointers to arrays.
        axes: positions along the axes of the result.
        inside: for each direction, the condition that an element is inside of the result; empty if all are.
        value_names: names of expressions that are already computed.
        prefix: prefix of the names of values.
        number: returns the text of a dimension.
    """

    def __init__(
        self,
        names: Mapping[Source, str],
        axes: Mapping[Index, Position],
        inside: Mapping[str, str],
        value_names: Mapping[Expr, str],
        prefix: str = "t",
        number: Callable[[Dimension], str] = str,
    ) -> None:
        self.names, self.axes, self.inside, self.value_names = names, axes, inside, dict(value_names)
        self.prefix, self.number = prefix, number
        self.lines: list[str] = []
        self._called: set[str] = set()

    @property
    def library(self) -> list[str]:
        """The library functions that the statements call, directly or indirectly."""
        texts = functions(self._called)
        assert texts is not None, self._called
        return texts

    def value(self, root: Expr) -> str:
        """The name of a value, in the type that it is computed in; `UnsupportedError` if it is not printed for Triton."""
        for node in walk(root, enter=lambda node: () if node in self.value_names else node.parts):
            if node not in self.value_names:
                text = self._one(node, [self.value_names[part] for part in node.parts])
                if not isinstance(node, (Const, Index)):
                    name = f"{self.prefix}{len(self.lines)}"
                    self.lines.append(f"{name} = {text}")
                    text = name
                self.value_names[node] = text
        return self.value_names[root]

    def element_of(self, root: Expr, data_type: DataType) -> str:
        """A value as an element of an array."""
        text = self.value(root)
        if root.type == "bool":
            return f"tl.cast(tl.where({text}, 1, 0), tl.uint8)"
        return f"tl.cast({text}, tl.float16)" if data_type == "float16" else text

    def _one(self, node: Expr, parts: Sequence[str]) -> str:
        if node.type not in _COMPUTED:
            raise UnsupportedError(f"elements of {node.type}")
        if isinstance(node, Const):
            return self._size(node, node.value) if isinstance(node.value, Size) else _literal(node)
        if isinstance(node, Index):
            if node not in self.axes:
                raise UnsupportedError("loops")
            return self.axes[node].text
        if isinstance(node, Load):
            return self._load(node, parts)
        if isinstance(node, Cast):
            return _cast(parts[0], node.parts[0].type, node.type)
        if isinstance(node, Bitcast):
            raise UnsupportedError("bits of numbers")
        if isinstance(node, Call):
            return self._call(node, parts)
        raise UnsupportedError("reductions")

    def _size(self, node: Const, size: Size) -> str:
        """A size as a number of a constant's type."""
        if node.type == "bool":
            raise UnsupportedError("sizes as conditions")
        text = self.number(size)
        return f"tl.cast({text}, tl.float32)" if _COMPUTED[node.type] == "float32" else text

    def _load(self, node: Load, indices: Sequence[str]) -> str:
        shape, along = node.source.desc.shape, frozenset[str]()
        flat = "0"
        for index, text, size in zip(node.parts, indices, shape, strict=True):
            span = bounds(index)
            if span is None or not is_inside(span, size):
                raise UnsupportedError("positions that may be outside of an array")
            flat = text if flat == "0" else f"({flat}) * {self.number(size)} + {text}"
            along = along.union(*(self.axes[axis].along for axis in index.free if axis in self.axes))
        conditions = [self.inside[way] for way in sorted(along) if self.inside[way]]
        mask = f", mask={' & '.join(f'({c})' for c in conditions)}, other=0" if conditions else ""
        loaded = f"tl.load({self.names[node.source]} + ({flat}){mask})"
        return f"tl.cast({loaded}, tl.{_COMPUTED[node.type]})" if node.type in ("float16", *_BYTES) else loaded

    def _call(self, node: Call, parts: Sequence[str]) -> str:
        kind = _COMPUTED.get(node.parts[-1].type, "")
        if node.name in _LIBRARY and kind == "float32":
            pairs, name = list(zip(node.parts, parts, strict=True)), node.name
            exponent = node.parts[-1].value if isinstance(node.parts[-1], Const) else None
            if name == "pow" and exponent in POWERS:
                pairs, name = pairs[:1], POWERS[exponent]
            name = f"{name}_f32"
            self._called.add(name)
            # Functions may ask for the bits of an argument.
            arguments = [
                f"tl.full((1, 1), {text}, tl.float32)" if isinstance(part, Const) else text for part, text in pairs
            ]
            return f"{name}({', '.join(arguments)})"
        if (
            node.name == "div"
            and kind == "float32"
            and isinstance(node.parts[1], Const)
            and not isinstance(node.parts[1].value, Size)
        ):
            return self._divide(parts[0], parts[1], float(to_float32(node.parts[1].value)))
        if node.name in ("floor_div", "mod") and _is_natural(node):
            return f"{parts[0]} {'//' if node.name == 'floor_div' else '%'} {parts[1]}"
        table = {**_ANY, **(_FLOATS if kind == "float32" else _INTEGERS if kind == "int32" else {})}
        if node.name not in table or node.type in _BYTES:
            raise UnsupportedError(f"{node.name} of {node.parts[-1].type}")
        return table[node.name].format(*parts)

    def _divide(self, number: str, literal: str, by: float) -> str:
        """A quotient by a constant, rounded correctly; a division would be a call for each element.

        The remainder corrects a first quotient (Markstein, Computation of elementary functions on the IBM RISC System/6000
        processor (1990)). Quotients of numbers below 2^-86 may be off by one unit, because their remainders are inexact.
        """
        size = abs(by)
        if not 1 / MAX_DIVISOR <= size <= MAX_DIVISOR:
            return f"tl.div_rn({number}, {literal})"
        inverse = float(np.float32(1) / np.float32(by))
        if math.frexp(size)[0] == 0.5:
            return f"{number} * {inverse!r}"
        if size < 1:  # the first quotient may be infinite where the right one is not
            return f"tl.div_rn({number}, {literal})"
        name = f"{self.prefix}{len(self.lines)}"
        self.lines.append(f"{name} = {number} * {inverse!r}")
        exact = f"tl.fma(tl.fma({name}, {-by!r}, {number}), {inverse!r}, {name})"
        # Infinity has no remainder, and the remainder of -0 is 0.
        return f'tl.where((tl.abs({name}) < float("inf")) & ({name} != 0), {exact}, {name})'


@dataclass(frozen=True, slots=True)
class Bfloat16(Desc):
    """An array of bfloat16, which is no data type of WebNN: only Triton kernels read and write it.

    For all other code, it is an array of float16, which has the same element size.
    """

    data_type: DataType = field(default="float16", init=False)

    def __str__(self) -> str:
        return f"bfloat16{list(self.shape)}"


def type_of(desc: Desc) -> str:
    """The type of the elements of an array in signatures; `UnsupportedError` if Triton's kernels do not read it."""
    if isinstance(desc, Bfloat16):
        return "bf16"
    if desc.data_type not in TYPES:
        raise UnsupportedError(f"elements of {desc.data_type}")
    return TYPES[desc.data_type]


def _is_natural(node: Call) -> bool:
    """Whether a division has a dividend >= 0 and a divisor > 0: Triton rounds toward 0."""
    ranges = [bounds(part) if part.type == "index" else None for part in node.parts]
    (low, other) = ranges
    return low is not None and other is not None and lower_bound(low[0]) >= 0 and lower_bound(other[0]) > 0


def _literal(node: Const) -> str:
    if node.type == "bool":
        return f"tl.full((), {bool(node.value)}, tl.int1)"
    if _COMPUTED[node.type] == "int32":
        return str(int(node.value)) if node.value >= 0 else f"({int(node.value)})"
    value = float(to_float32(node.value))
    if not math.isfinite(value):
        return f'float("{value}")'
    if 0 < abs(value) < 2.0**-126:  # Python's numbers that are no normal float32 are float64 to Triton
        raise UnsupportedError("denormal constants")
    return repr(value) if math.copysign(1, value) > 0 else f"({value!r})"


def _cast(text: str, source: Type, target: Type) -> str:
    source_type, target_type = _COMPUTED.get(source), _COMPUTED[target]
    if source_type is None:
        raise UnsupportedError(f"elements of {source}")
    if target == "bool":
        return text if source == "bool" else f"{text} != 0"
    if source == "bool":
        return f"tl.where({text}, {'1.0, 0.0' if target_type == 'float32' else '1, 0'})"
    if (source_type == "float32" and target_type == "int32") or target in _BYTES:
        raise UnsupportedError(f"casts from {source} to {target}")
    if source_type == "int32" and target_type == "float32":
        text = f"tl.cast({text}, tl.float32)"
    if target == "float16" and source != "float16":
        return f"tl.cast(tl.cast({text}, tl.float16), tl.float32)"
    return text
