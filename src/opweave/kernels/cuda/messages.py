"""Convert messages of NVRTC to the user's source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...support.names import count_of
from ..excerpts import column_of, excerpt
from ..wgsl.messages import SourcePlace
from .source import NAMESPACE, OWN, STRUCTURE, USER, Source

MAX_ERRORS = 10
"""Maximum number of errors that a message lists."""

_HEADLINE = re.compile(r"(.*?)(?:\((\d+)\))?: (?:catastrophic )?(error|warning)(?: #[\w-]+)?: (.*)")
_NAME = re.compile(r'identifier "(\w+)" is undefined')
_PAIRS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """An error or a warning in a log.

    Attributes:
        file: name of the file.
        line: number of the line; 0 if the log has none.
        kind: "error" or "warning".
        message: the text.
        shown: the line as the compiler shows it, after macros; empty if the log has none.
        offset: index into the bytes of `shown` of the compiler's mark; -1 without one.
    """

    file: str
    line: int
    kind: str
    message: str
    shown: str = ""
    offset: int = -1


def parse_diagnostics(log: str) -> Iterator[Diagnostic]:
    """Parse a log of NVRTC, in which a blank line follows each message."""
    for block in re.split(r"\n\s*\n", log.replace("\r", "")):
        lines = block.split("\n")
        start = next((k for k, line in enumerate(lines) if _HEADLINE.fullmatch(line)), None)
        if start is None:
            continue
        match = _HEADLINE.fullmatch(lines[start])
        assert match is not None
        file, number, kind, message = match[1], int(match[2] or 0), match[3], match[4]
        mark = next((k for k in range(start + 2, len(lines)) if lines[k].strip() == "^"), None)
        if mark is None:
            yield Diagnostic(file, number, kind, message)
            continue
        whole = " ".join([message, *(line.strip() for line in lines[start + 1 : mark - 1])])
        # The compiler indents its excerpt by two characters.
        yield Diagnostic(file, number, kind, whole, lines[mark - 1][2:], lines[mark].index("^") - 2)


@dataclass(frozen=True, slots=True)
class ExplainedCuda:
    """Converts the compiler's log to a message for the author of a kernel; `hint` explains why a name is not declared."""

    source: Source
    where: SourcePlace
    hint: Callable[[str], str]

    def __call__(self, log: str) -> str:
        errors = [item for item in parse_diagnostics(log) if item.kind == "error"]
        if not errors:
            return f"{log.strip()}{self.where.suffix(self.source.source)}"
        outside = [item for item in errors if item.file != OWN]
        bracket = unclosed_line(self.source.plain) if len(outside) < len(errors) else 0
        if bracket:
            message = "the bracket in this line is never closed"
            before = [item for item in outside if item.file == USER and item.line < bracket]
            return self._join([*before, Diagnostic(USER, bracket, "error", message)])
        # Errors in the call of `main` follow from errors in the source, or from the parameters of `main`.
        return self._join(outside or errors)

    def warnings(self, log: str) -> list[str]:
        """Return the warnings about the user's source."""
        return [self._explain(item) for item in parse_diagnostics(log) if item.kind == "warning" and item.file == USER]

    def _join(self, items: Sequence[Diagnostic]) -> str:
        texts = list(dict.fromkeys(map(self._explain, items)))
        more = [f"and {count_of(len(texts) - MAX_ERRORS, 'more error')}"] if len(texts) > MAX_ERRORS else []
        return "\n".join([*texts[:MAX_ERRORS], *more])

    def _explain(self, item: Diagnostic) -> str:
        source = self.source.source
        number = self.source.main_line if item.file == OWN else item.line
        lines = source.split("\n")
        if item.file not in (USER, OWN) or not 0 < number <= len(lines):
            place = f"{item.file}, line {item.line}" if item.line else "in what Opweave adds to the CUDA C++"
            return f"{place}: {item.message}{self.where.suffix(source)}"
        line = lines[number - 1].rstrip()
        # The mark applies to the user's line only if no macro changed the line behind the mark; else, mark its first word.
        marked = item.shown.rstrip().encode()[max(item.offset, 0) :]
        is_as_written = item.file == USER and item.offset >= 0 and marked == line.encode()[item.offset :]
        column = column_of(line, item.offset) if is_as_written else len(line) - len(line.lstrip())
        message = item.message.replace(f"{NAMESPACE}::", "").replace(f"{STRUCTURE}::", "")
        name = _NAME.search(message)
        more = f" ({self.hint(name[1])})" if name else ""
        head = f"line {number} of the CUDA C++{self.where.suffix(source, number)}: {message}{more}"
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
