"""What all kernels are written with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...dtypes import DataType
from ..ir import Expr, Index, Input, Load, Source, Stored, walk
from ..printing import inline
from .elements import called, wrapped
from .module import Module

if TYPE_CHECKING:
    from . import Buffer, Features


def within(head: str, lines: Sequence[str]) -> list[str]:
    """Statements in the block that `head` begins, if it is not empty."""
    return [head, *(f"    {line}" for line in lines), "}"] if head and lines else list(lines)


def pattern_of(text: str, data_type: DataType) -> str:
    """The bits of an element of a type of which several share a word, text of type u32."""
    return called("half_bits", (text,)) if data_type == "float16" else f"(u32({text}) & 255u)"


def converted(body: Expr, data_type: DataType, text: str) -> str:
    """An element as text of the type that its data type is computed in."""
    if body.type == "bool":
        return called("select", ("0u", "1u", text))
    return wrapped(text, data_type) if body.type == "index" else text


def guarded(name: str, number: str, count: int, invocations: int) -> list[str]:
    """The number of an invocation, or of a workgroup; those that are too many end."""
    lines = [f"let {name} = {number};"]
    return lines if invocations == count else [*lines, f"if ({name} >= {count}u) {{", "    return;", "}"]


def width_of(count: int, features: Features) -> int:
    """Invocations of a workgroup, for so many of them in all."""
    width = 1 << (min(256, features.max_invocations).bit_length() - 1)
    while width > 32 and width // 2 >= count:
        width //= 2
    return width


def dispatch(groups: int, width: int, features: Features) -> tuple[tuple[int, int, int], str]:
    """Workgroups in three dimensions, and the number of an invocation (of a workgroup, if `width` is 0) as text."""
    most = features.max_workgroups
    if groups <= most:
        return (groups, 1, 1), "global.x" if width else "group.x"
    planes = -(-groups // most)
    if planes <= most:
        x, y, z = -(-groups // planes), planes, 1
        number = f"group.y * {x}u + group.x"
    else:
        z = -(-planes // most)
        x, y = most, -(-planes // z)
        number = f"(group.z * {y}u + group.y) * {x}u + group.x"
    return (x, y, z), f"({number}) * {width}u + lane" if width else number


def read(bodies: Sequence[Expr]) -> list[Source]:
    """What expressions load from."""
    return list(dict.fromkeys(node.source for node in walk(*bodies) if isinstance(node, Load)))


def comment_of(module: Module, buffer: Buffer, axes: tuple[Index, ...], body: Expr, at: str = "") -> str:
    """What an array is, as a line of a module; that of the same expressions is always the same."""
    names = {source: name for source, name in module.names.items() if isinstance(source, (Input, Stored))}
    place = at or ", ".join(inline(axis, names, axes) for axis in axes)
    name = f"{module.names[buffer]}[{place}]" if place else module.names[buffer]
    return f"// {name} = {inline(body, names, axes)}"
