"""Convert messages of NVRTC to the user's source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...support.names import count_of
from ..excerpts import column_of, excerpt
from ..wgsl.messages import SourcePlace
from .source import OWN, STRUCTURE, USER, Source

MAX_ERRORS = 10
"""Errors of a source in a message."""

_HEADLINE = re.compile(r"(.*?)(?:\((\d+)\))?: (?:catastrophic )?(error|warning)(?: #[\w-]+)?: (.*)")
_NAME = re.compile(r'identifier "(\w+)" is undefined')
_PAIRS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """An error or a warning in a log; `shown` is the line as the compiler shows it, with a mark at the byte `offset`."""

    file: str
    number: int
    kind: str
    said: str
    shown: str = ""
    offset: int = -1


def diagnostics(log: str) -> Iterator[Diagnostic]:
    """Parse a log of NVRTC, in which a blank line follows each message."""
    for block in re.split(r"\n\s*\n", log.replace("\r", "")):
        lines = block.split("\n")
        start = next((k for k, line in enumerate(lines) if _HEADLINE.fullmatch(line)), None)
        if start is None:
            continue
        match = _HEADLINE.fullmatch(lines[start])
        assert match is not None
        file, number, kind, said = match[1], int(match[2] or 0), match[3], match[4]
        mark = next((k for k in range(start + 2, len(lines)) if lines[k].strip() == "^"), None)
        if mark is None:
            yield Diagnostic(file, number, kind, said)
            continue
        whole = " ".join([said, *(line.strip() for line in lines[start + 1 : mark - 1])])
        # The compiler indents its excerpt by two characters.
        yield Diagnostic(file, number, kind, whole, lines[mark - 1][2:], lines[mark].index("^") - 2)


@dataclass(frozen=True, slots=True)
class ExplainedCuda:
    """Converts the compiler's log to a message for the author of a kernel; `hint` explains why a name is not declared."""

    source: Source
    where: SourcePlace
    hint: Callable[[str], str]

    def __call__(self, log: str) -> str:
        errors = [item for item in diagnostics(log) if item.kind == "error"]
        if not errors:
            return f"{log.strip()}{self.where.suffix(self.source.source)}"
        outside = [item for item in errors if item.file != OWN]
        bracket = unclosed_line(self.source.plain) if len(outside) < len(errors) else 0
        if bracket:
            said = "the bracket in this line is never closed"
            before = [item for item in outside if item.file == USER and item.number < bracket]
            return self._texts([*before, Diagnostic(USER, bracket, "error", said)])
        # Errors in the call of `main` follow from those in the source, or from the parameters of `main`.
        return self._texts(outside or errors)

    def warnings(self, log: str) -> list[str]:
        """Return the warnings about the user's source."""
        return [self._text(item) for item in diagnostics(log) if item.kind == "warning" and item.file == USER]

    def _texts(self, items: Sequence[Diagnostic]) -> str:
        texts = list(dict.fromkeys(map(self._text, items)))
        rest = [f"and {count_of(len(texts) - MAX_ERRORS, 'more error')}"] if len(texts) > MAX_ERRORS else []
        return "\n".join([*texts[:MAX_ERRORS], *rest])

    def _text(self, item: Diagnostic) -> str:
        source = self.source.source
        number = self.source.main_line if item.file == OWN else item.number
        lines = source.split("\n")
        if item.file not in (USER, OWN) or not 0 < number <= len(lines):
            place = f"{item.file}, line {item.number}" if item.number else "in what Opweave adds to the CUDA C++"
            return f"{place}: {item.said}{self.where.suffix(source)}"
        line = lines[number - 1].rstrip()
        rest = item.shown.rstrip().encode()[max(item.offset, 0) :]
        is_same = item.file == USER and item.offset >= 0 and rest == line.encode()[item.offset :]
        column = column_of(line, item.offset) if is_same else len(line) - len(line.lstrip())
        said = item.said.replace(f"{STRUCTURE}::", "")
        name = _NAME.search(said)
        more = f" ({self.hint(name[1])})" if name else ""
        head = f"line {number} of the CUDA C++{self.where.suffix(source, number)}: {said}{more}"
        return f"{head}\n{excerpt('CUDA C++', number, column, line)}"


def unclosed_line(plain: str) -> int:
    """Return the line of the innermost bracket that is never closed; 0 if there is none.

    >>> unclosed_line("void main(unsigned i) {\\n  if (i) {\\n}")
    1
    """
    opened: list[tuple[str, int]] = []
    for number, line in enumerate(plain.split("\n"), 1):
        for token in re.findall(r"[(){}\[\]]", line):
            if token not in _PAIRS:
                opened.append((token, number))
            elif opened and opened[-1][0] == _PAIRS[token]:
                opened.pop()
    return opened[-1][1] if opened else 0
