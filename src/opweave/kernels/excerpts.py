"""Excerpts of sources in messages, and the places that compilers of Python report."""

from __future__ import annotations

import builtins
import dis
import os
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from linecache import getline
from pathlib import Path
from types import CodeType
from typing import Any

from ..support.errors import definition_line
from ..support.names import file_name


def excerpt(name: str, number: int, column: int, line: str, length: int = 1, label: str = "") -> str:
    """Return a line of a source with a mark below it, in the form of WGSL's compiler.

    Args:
        name: the name of the source.
        number: the number of the line, counted from 1.
        column: the column of the first marked character, counted from 0.
        line: its text.
        length: number of marked characters.
        label: text behind the mark.

    >>> print(excerpt("WGSL", 4, 9, "out[i] = wrong;", 5, "unknown identifier"))
      ┌─ WGSL:4:10
      │
    4 │ out[i] = wrong;
      │          ^^^^^ unknown identifier
    """
    gutter = " " * len(str(number))
    below = "".join(character if character == "\t" else " " for character in line[:column]) + "^" * length
    return "\n".join(
        [
            f"{gutter} ┌─ {name}:{number}:{column + 1}",
            f"{gutter} │",
            f"{number} │ {line.rstrip()}",
            f"{gutter} │ {below} {label}".rstrip(),
        ]
    )


def column_of(line: str, offset: int) -> int:
    """Convert an offset in UTF-8 to a number of characters.

    >>> column_of("é = 1", 3)
    2
    """
    return len(line.encode()[:offset].decode(errors="ignore"))


def python_place(file: str, number: int, message: str, offset: int | None = None) -> str:
    """Return an error in a Python file, as the end of a message that begins with its subject.

    `offset` is that of the error in the line, in bytes of UTF-8; None marks the whole statement.
    """
    line = getline(file, number).rstrip()
    head = f" ({file_name(file)}, line {number}): {message}"
    if not line:
        return head
    column = len(line) - len(line.lstrip()) if offset is None else column_of(line, offset)
    length = len(line) - column if offset is None else 1
    return f"{head}\n{excerpt(file_name(file), number, column, line, length)}"


# ---------------------------------------------------------------------------------------------------------------------
# Triton


def explain_triton(kernel: Any, error: BaseException) -> str:
    """Return an error of Triton's compiler, with the line in the user's file, as the end of a message."""
    # The error in a function that the kernel calls is the cause of the error at its call.
    while getattr(error.__cause__, "node", None) is not None:
        error = error.__cause__  # type: ignore[assignment]
    node, source = getattr(error, "node", None), getattr(error, "src", None)
    functions = [kernel, *kernel.fn.__globals__.values()]
    function = next((item for item in functions if source and getattr(item, "src", None) == source), None)
    if node is None or function is None:
        return f": {type(error).__name__}: {error}"
    code = function.fn.__code__
    first = definition_line(code)
    definition = getline(code.co_filename, first)
    # The compiler sees the function without its indentation.
    offset = node.col_offset + len(definition) - len(definition.lstrip())
    return python_place(code.co_filename, first + node.lineno - 1, _said_by(error), offset)


def _said_by(error: BaseException) -> str:
    text = str(getattr(error, "error_message", None) or error.__cause__ or error)
    inner = re.fullmatch(r"\w+\((['\"])(.*)\1\)", text)  # the representation of another error
    return inner[2] if inner else text


# ---------------------------------------------------------------------------------------------------------------------
# Numba

_NUMBA_PLACE = re.compile(r"\bat (\S.*) \((\d+)\)$", re.MULTILINE)
_NUMBA_REASON = re.compile(r"^\s*(?:Numba)?\w*(?:Error|Exception): (.*)", re.MULTILINE)
_NUMBA_HEADLINE = re.compile(r"^Failed in .*|^\s*$")


def explain_numba(function: Callable[..., Any], error: BaseException) -> str:
    """Return an error of Numba's compiler, with the line in the user's file, as the end of a message; empty for others.

    An error without a line gets that of the `function`.
    """
    if not any(kind.__module__.startswith("numba.") for kind in type(error).__mro__):
        return ""
    text = str(error)
    reason = _NUMBA_REASON.search(text)
    lines = [line.strip() for line in text.splitlines() if not _NUMBA_HEADLINE.match(line)]
    message = reason[1] if reason else " ".join(lines[: 2 if lines[1:2] and lines[1].startswith(">>>") else 1])
    spec = find_spec("numba")
    package = "" if spec is None or spec.origin is None else f"{Path(spec.origin).parent}{os.sep}"
    places = [(file, int(line)) for file, line in _NUMBA_PLACE.findall(text) if not file.startswith(package)]
    location = getattr(error, "loc", None)
    if not places and location is not None:
        places = [(location.filename, location.line)]
    code = function.__code__
    return python_place(
        *(places or [(code.co_filename, definition_line(code))])[0], message.removesuffix(". Raised from None")
    )


# ---------------------------------------------------------------------------------------------------------------------
# Python


def undefined_names(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the errors for global names that a function reads and its module does not have, as ends of messages."""
    code, scope = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    seen: set[str] = set()
    for inner in () if code is None else _codes_of(code):
        for instruction in dis.get_instructions(inner):
            name, positions = instruction.argval, instruction.positions
            if instruction.opname not in ("LOAD_GLOBAL", "LOAD_NAME") or name in scope or hasattr(builtins, name):
                continue
            if name not in seen and positions is not None and positions.lineno is not None:
                seen.add(name)
                message = f"name {name!r} is not defined"
                yield python_place(inner.co_filename, positions.lineno, message, positions.col_offset)


def _codes_of(code: CodeType) -> Iterator[CodeType]:
    """Iterate over the code of a function, and of the functions inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_of(constant)
