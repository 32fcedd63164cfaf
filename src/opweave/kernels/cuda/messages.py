"""Convert messages of NVRTC to the user's source."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..wgsl.messages import SourcePlace
from .source import Source

USER, OWN = "kernel", "opweave"
"""File names in messages: of the user's source, and of the text that Opweave adds."""

_ERROR = re.compile(r"^(.*?)(?:\((\d+)\))?: (?:catastrophic )?error: (.*)$", re.MULTILINE)
_NAME = re.compile(r'identifier "(\w+)" is undefined')
_PAIRS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class ExplainedCuda:
    """Converts the compiler's log to a message for the author of a kernel; `hint` explains why a name is not declared."""

    source: Source
    where: SourcePlace
    hint: Callable[[str], str]

    def __call__(self, log: str) -> str:
        match = _ERROR.search(log)
        if match is None:
            return f"{log.strip()}{self.where.suffix(self.source.source)}"
        file, number, said = match[1], int(match[2] or 0), match[3]
        if file != USER and (line := unclosed_line(self.source.plain)):
            number, said = line, "the bracket in this line is never closed"
        elif file != USER:
            return f"in what Opweave adds to the CUDA C++: {said}{self.where.suffix(self.source.source)}"
        name = _NAME.search(said)
        more = f" ({self.hint(name[1])})" if name else ""
        lines = self.source.source.split("\n")
        excerpt = [f"{number} | {lines[number - 1].rstrip()}"] if 0 < number <= len(lines) else []
        below = log[match.end() :].lstrip("\n").split("\n")[1:2]
        if excerpt and file == USER and below and below[0].strip() == "^":
            # The compiler indents its excerpt by two characters.
            excerpt.append(f"{' ' * len(str(number))} | {below[0][2:]}")
        head = f"line {number} of the CUDA C++{self.where.suffix(self.source.source, number)}: {said}{more}"
        return "\n".join([head, *excerpt])


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
