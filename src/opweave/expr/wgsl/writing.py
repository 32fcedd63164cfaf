"""Helpers for generating WGSL that all kernel forms share."""

from __future__ import annotations

from collections.abc import Sequence

from ...dtypes import DataType
from ..ir import Expr, Index, Input, Load, Source, Stored, walk
from ..printing import inline
from .elements import called, wrapped
from .kernel import Buffer, Features
from .module import Module


def pattern_of(text: str, data_type: DataType) -> str:
    """The bits of a packed element (int8, uint8, or float16 without `f16`) as u32 text."""
    return called("half_bits", (text,)) if data_type == "float16" else f"(u32({text}) & 255u)"


def converted(body: Expr, data_type: DataType, text: str) -> str:
    """Convert the text of an element to the type in which `data_type` is computed."""
    if body.type == "bool":
        return called("select", ("0u", "1u", text))
    return wrapped(text, data_type) if body.type == "index" else text


def guarded(name: str, number: str, count: int, invocations: int) -> list[str]:
    """Statements that define the number of the invocation or workgroup, and return if it is out of range."""
    lines = [f"let {name} = {number};"]
    return lines if invocations == count else [*lines, f"if ({name} >= {count}u) {{", "    return;", "}"]


def width_of(count: int, features: Features) -> int:
    """Workgroup size for `count` invocations in total."""
    width = 1 << (min(256, features.max_invocations).bit_length() - 1)
    while width > 32 and width // 2 >= count:
        width //= 2
    return width


def dispatch(groups: int, width: int, features: Features) -> tuple[tuple[int, int, int], str]:
    """The workgroups in each dimension, and the text of the invocation number (the workgroup number if `width` is 0)."""
    limit = features.max_workgroups
    if groups <= limit:
        return (groups, 1, 1), "global.x" if width else "group.x"
    rows = -(-groups // limit)
    z = -(-rows // limit)
    y = -(-rows // z)
    x = -(-groups // (y * z))
    number = f"(group.z * {y}u + group.y) * {x}u + group.x"
    return (x, y, z), f"({number}) * {width}u + lane" if width else number


def read(bodies: Sequence[Expr]) -> list[Source]:
    """The arrays that expressions load from."""
    return list(dict.fromkeys(node.source for node in walk(*bodies) if isinstance(node, Load)))


def comment_of(module: Module, buffer: Buffer, axes: tuple[Index, ...], body: Expr, at: str = "") -> str:
    """A comment that shows what an array holds; equal expressions give equal comments."""
    names = {source: name for source, name in module.names.items() if isinstance(source, (Input, Stored))}
    place = at or ", ".join(inline(axis, names, axes) for axis in axes)
    name = f"{module.names[buffer]}[{place}]" if place else module.names[buffer]
    return f"// {name} = {inline(body, names, axes)}"
