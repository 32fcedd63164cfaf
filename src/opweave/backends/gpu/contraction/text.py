"""Pieces of code for contraction kernels: terms, entry points, and the taps of windows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ....core.sizes import is_same_size, may_exceed
from ....expr.gpu.dialect import DialectFunction, KernelEntry, Variable
from .parameters import LITERALS, KernelNumbers
from .problem import Matrix, ProblemWindow, ravel, strides_of


def part(text: str) -> str:
    """Parenthesise a text unless it is a name or a number."""
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def plus(text: str, constant: int) -> str:
    return f"{text} + {constant}u" if constant else text


def times(text: str, factor: int, numbers: KernelNumbers = LITERALS) -> str:
    return text if is_same_size(factor, 1) else f"{text} * {numbers.unsigned(factor)}"


def quarter(text: str, width: int) -> str:
    """The index of the vector of four elements that begins at `text`; `text` itself for single elements."""
    return f"({text}) / 4u" if width == 4 else text


def python(text: str) -> str:
    """Translate an unsigned WGSL position to Python."""
    return re.sub(r"\b(\d+)u\b", r"\1", text).replace("/", "//")


def statement(header: str, lines: Iterable[str]) -> list[str]:
    """A loop, an `if`, or a block without a header, with a body."""
    return [f"{header} {{".lstrip(), *(f"    {line}" for line in lines), "}"]


def return_if(condition: str) -> list[str]:
    """End the invocation if a condition holds."""
    return statement(f"if ({condition})", ["return;"])


def function(name: str, parameters: Sequence[str], lines: Iterable[str], result: str = "") -> DialectFunction:
    """A function with the statements `lines`; parameters are texts like "at: u32"."""
    variables = tuple(Variable(*parameter.split(": ")) for parameter in parameters)
    return DialectFunction(name, variables, result, tuple(lines))


def entry(invocations: int, lines: Iterable[str]) -> KernelEntry:
    """The entry point of workgroups of `invocations`, with the variables `group` and `lane`."""
    return KernelEntry((invocations,), ("group", "lane"), tuple(lines))


def stack_offset(matrix: Matrix | ProblemWindow, stack: str, stacks: int, numbers: KernelNumbers = LITERALS) -> str:
    """The offset of a stack's matrix."""
    parts = []
    for (size, stride), below in zip(matrix.stack, strides_of(tuple(size for size, _ in matrix.stack)), strict=True):
        if not is_same_size(stride, 0) and may_exceed(size, 1):
            position = stack if is_same_size(below, 1) else f"{stack} / {numbers.divisor(below)}"
            is_first = is_same_size(below * size, stacks)
            position = position if is_first else f"{position} % {numbers.divisor(size)}"
            parts.append(times(position, stride, numbers) if is_first else f"{position} * {numbers.unsigned(stride)}")
    return " + ".join(parts) or "0u"


def window_axes(window: ProblemWindow) -> str:
    """The letters of a window's axes in names of variables, such as "yx" or "zyx"."""
    return "zyx"[-len(window.size) :]


def window_start(
    window: ProblemWindow, name: str, positions: Sequence[str], numbers: KernelNumbers = LITERALS
) -> list[str]:
    """Define `{name}_y`, `{name}_x`, …, the origin of the window for the result at `positions`."""
    lines = []
    for axis, text, stride, before in zip(window_axes(window), positions, window.strides, window.before, strict=True):
        start = f"i32({text})" if window.transposed or stride == 1 else f"i32({text}) * {stride}"
        is_moved = not is_same_size(before, 0)
        moved = f" {'+' if window.transposed else '-'} {numbers.number(before)}" if is_moved else ""
        lines.append(f"let {name}_{axis} = {start}{moved};")
    return lines


def window_tap(
    window: ProblemWindow, start: str, name: str, distances: Sequence[str], numbers: KernelNumbers = LITERALS
) -> tuple[list[str], list[str], str]:
    """The pixel at a tap of a window: statements, the conditions that the pixel exists, and its offset in the image.

    `start` is the `name` passed to `window_start`. `distances` are those of the tap from the first one, as i32 text.
    """
    lines, conditions = [], []
    axes = window_axes(window)
    for axis, moved, size, stride in zip(axes, distances, window.size, window.strides, strict=True):
        at = f"{start}_{axis}" if moved == "0" else f"{start}_{axis} {'-' if window.transposed else '+'} {moved}"
        if window.transposed and stride > 1:
            lines.append(f"let {name}_{axis}_spread = {at};")
            # Avoid %: for negative numbers, its result is undefined on Vulkan (OpSRem), and wrong on NVIDIA GPUs.
            conditions.append(f"{name}_{axis}_at * {stride} == {name}_{axis}_spread")
            at = f"{name}_{axis}_spread / {stride}"
        lines.append(f"let {name}_{axis}_at = {at};")
        conditions.append(f"u32({name}_{axis}_at) < {numbers.unsigned(size)}")
    pixel = f"({ravel([f'{name}_{axis}_at' for axis in axes], list(map(numbers.number, window.size)))})"
    offset = f"{pixel} * {numbers.number(window.pixel)}" if may_exceed(window.pixel, 1) else pixel
    return lines, [] if window.inside else conditions, offset
