"""Error messages for WGSL in terms of the user's source, from the compiler or from checks before it."""

from __future__ import annotations

import inspect
import linecache
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...support.names import file_name
from ..excerpts import excerpt
from .shader import Shader
from .syntax import Fault, line_at

_HEADLINE = re.compile(r"^\s*Shader (?:'.*' parsing|validation) error: (.*)$", re.MULTILINE)
_PLACE = re.compile(r"^(\s*)┌─ (.*):(\d+):(\d+)$")
_GUTTER = re.compile(r"^(\s*)(\d+)( │.*)$")
_NAME = re.compile(r"identifier: `(\w+)`")
_NUMBERED = re.compile(r"\w+ \[\d+\] is invalid")
_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The place in a user's file of WGSL, or of the function that returns it; line 0 is unknown."""

    file: str = ""
    line: int = 0

    @staticmethod
    def of(function: Callable[..., Any]) -> SourcePlace:
        code = getattr(inspect.unwrap(function), "__code__", None)
        return SourcePlace() if code is None else SourcePlace(code.co_filename, code.co_firstlineno)

    @staticmethod
    def here() -> SourcePlace:
        """Return the place of the innermost caller outside of Opweave."""
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back
        return SourcePlace() if frame is None else SourcePlace(frame.f_code.co_filename, frame.f_lineno)

    def suffix(self, source: str = "", line: int = 0, form: str = " ({})") -> str:
        """Return file and line to append to a message: of a line of the source if the file has it, else of the whole source.

        `form` is the format around the place; the suffix is empty if the place is unknown.
        """
        if not self.file:
            return ""
        return form.format(f"{file_name(self.file)}, line {self._find(source, line) or self.line}")

    def _find(self, source: str, line: int) -> int:
        lines = linecache.getlines(self.file)
        whole = "".join(lines)
        if source and whole.count(source) == 1:
            return whole.count("\n", 0, whole.index(source)) + line
        source_line = source.split("\n")[line - 1].strip() if line else ""
        same = [number for number, text in enumerate(lines, 1) if source_line and text.strip() == source_line]
        return same[0] if len(same) == 1 else 0


@dataclass(frozen=True, slots=True)
class ExplainedWgsl:
    """Converts compiler messages to messages for the author of a shader, at line `before` of the module.

    `where` is the place of the shader in the user's file; `hint` explains why a name is not declared.
    """

    shader: Shader
    before: int
    where: SourcePlace
    hint: Callable[[str], str]

    def __call__(self, text: str) -> str:
        headline = _HEADLINE.search(text)
        if headline is None:  # an error of the pipeline, which has no line
            lines = [line.strip() for line in text.splitlines()]
            kept = [line for line in lines if line and line not in ("Validation Error", "Caused by:")]
            return " ".join(kept) + self.where.suffix(self.shader.source)
        rest = text[headline.end() :].lstrip("\n").split("\n")
        shown = rest[: rest.index("")] if "" in rest else rest
        message = headline[1].strip()
        if message.startswith(("Entry point", "Function")):  # the reason follows in the notes
            notes = [line.split("= ", 1)[1] for line in shown if line.lstrip().startswith("= ")]
            message = next((note for note in notes if not _NUMBERED.fullmatch(note)), message)
        name = _NAME.search(message)
        more = f" ({self.hint(name[1])})" if name else ""
        number = self._line(shown)
        if number == 0 and not any(map(_GUTTER.match, shown)):
            return f"{message}{self.where.suffix(self.shader.source)}"
        where = "in what Opweave adds to the WGSL"
        if number:
            where = f"line {number} of the WGSL{self.where.suffix(self.shader.source, number)}"
            shown = [self._renumber(line) for line in shown]
        return "\n".join([f"{where}: {message}{more}", *shown])

    def _line(self, shown: list[str]) -> int:
        """Return the first line of the user's source in the excerpt, counted from 1; 0 if there is none."""
        numbers = [int(match[3]) for line in shown if (match := _PLACE.match(line))]
        numbers += [int(match[2]) for line in shown if (match := _GUTTER.match(line))]
        count = self.shader.source.count("\n") + 1
        return next((number - self.before for number in numbers if 0 < number - self.before <= count), 0)

    def _renumber(self, line: str) -> str:
        count = self.shader.source.count("\n") + 1
        if match := _PLACE.match(line):
            return f"{match[1]}┌─ WGSL:{int(match[3]) - self.before}:{match[4]}"
        if match := _GUTTER.match(line):
            number = int(match[2]) - self.before
            text = str(number) if 0 < number <= count else ""
            return f"{match[1]}{text.rjust(len(match[2]))}{match[3]}"
        return line


def point_at(source: str, where: SourcePlace, fault: Fault, language: str) -> str:
    """Return the message for a `Fault`, with an excerpt and a caret like the compiler's."""
    number = line_at(source, fault.start)
    column = fault.start - (source.rfind("\n", 0, fault.start) + 1)
    line = source.split("\n")[number - 1]
    head = f"line {number} of the {language}{where.suffix(source, number)}: {fault.message}"
    return f"{head}\n{excerpt(language, number, column, line, fault.length, fault.label)}"
