"""Helpers for generating code that all kernel forms share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ...core.dtypes import INFO, DataType
from ...core.sizes import Dimension, is_same_size
from ..ir import Expr, Index, Input, Load, Source, Stored, walk
from ..printing import inline
from .elements import call_of, wrap
from .kernel import Buffer, Features
from .module import GpuModule
from .types import HALVES

MAX_WORKGROUPS = 65535
"""Maximum number of workgroups in a dimension, on every device."""


def pattern_of(text: str, data_type: DataType) -> str:
    """The bits of a packed element, of 8 or 16 bits, as u32 text."""
    if data_type in HALVES:
        return call_of(f"{HALVES[data_type]}_bits", (text,))
    return f"(u32({text}) & {(1 << INFO[data_type].bits) - 1}u)"


def convert(body: Expr, data_type: DataType, text: str) -> str:
    """Generate the conversion of the element `text` to the type in which `data_type` is computed."""
    if body.type == "bool":
        return call_of("select", ("0u", "1u", text))
    return wrap(text, data_type) if body.type == "index" else text


Unsigned: TypeAlias = Callable[[Dimension], str]
"""Generates a number that is not negative, as a u32."""


def guard_lines(
    name: str, number: str, count: Dimension, invocations: Dimension, unsigned: Unsigned = "{}u".format
) -> list[str]:
    """Statements that define the number of the invocation or workgroup, and return if it is out of range."""
    lines = [f"let {name} = {number};"]
    is_whole = is_same_size(invocations, count)
    return lines if is_whole else [*lines, f"if ({name} >= {unsigned(count)}) {{", "    return;", "}"]


def width_of(count: int, features: Features, most: int = 256) -> int:
    """Workgroup size for `count` invocations in total, at most `most`."""
    width = 1 << (min(most, features.max_invocations).bit_length() - 1)
    while width > 32 and width // 2 >= count:
        width //= 2
    return width


def workgroup_number(
    groups: int, limit: int = MAX_WORKGROUPS, unsigned: Unsigned = "{}u".format
) -> tuple[str, tuple[int, int, int]]:
    """Return code for the index of a workgroup, a u32, and the dispatch size: `groups` workgroups, or a few more.

    There are less than 2**31 groups: two dimensions suffice.
    """
    down = -(-groups // limit)
    across = -(-groups // down)
    is_flat = is_same_size(down, 1)
    return "group.x" if is_flat else f"(group.y * {unsigned(across)} + group.x)", (across, down, 1)


def invocations(
    count: int, width: int, features: Features, unsigned: Unsigned = "{}u".format
) -> tuple[str, tuple[int, int, int]]:
    """Return code for the index of an invocation, a u32, and the dispatch size for `count` of them, `width` a workgroup."""
    number, groups = workgroup_number(-(-count // width), features.max_workgroups, unsigned)
    return "global.x" if number == "group.x" else f"{number} * {width}u + lane", groups


def sources_of(bodies: Sequence[Expr]) -> list[Source]:
    """Return the arrays from which expressions load."""
    return list(dict.fromkeys(node.source for node in walk(*bodies) if isinstance(node, Load)))


def comment_of(module: GpuModule, buffer: Buffer, axes: tuple[Index, ...], body: Expr, at: tuple[Expr, ...]) -> str:
    """A comment that shows the element of an array `at` a position; equal expressions give equal comments."""
    names = {source: name for source, name in module.names.items() if isinstance(source, (Input, Stored))}
    place = ", ".join(inline(index, names, axes, module.number) for index in at)
    name = f"{module.names[buffer]}[{place}]" if place else module.names[buffer]
    return f"// {name} = {inline(body, names, axes, module.number)}"
