"""Detect missing parts of WGSL before the compiler sees it.

If the user's source lacks a `}`, the compiler would report the first declaration that Opweave appends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

_LINE_BREAKS = r"\n\v\f\r\x85\u2028\u2029"
_COMMENT = re.compile(rf"//[^{_LINE_BREAKS}]*|/\*")
_BLOCK = re.compile(r"/\*|\*/")
_TOKEN = re.compile(r"[(){}\[\]]|\b(?:fn|struct)\b")
_FUNCTION = re.compile(r"\bfn\s+(\w+)")
_OPENERS = {")": "(", "]": "[", "}": "{"}
_CLOSERS = {opener: closer for closer, opener in _OPENERS.items()}
ENTRY = re.compile(r"@\s*compute\b[^{;]*?\bfn\s+(\w+)")
"""Matches an entry point in WGSL without comments, and its name."""
MAIN = re.compile(r"\bfn\s+main\b\s*(?:\(([^)]*)\))?")
"""Matches the function `main` in WGSL without comments, and its parameters."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A missing part of the source: the `message`, and the `label` below `length` characters from `start`."""

    start: int
    length: int
    message: str
    label: str


def _comments(source: str) -> Iterator[tuple[int, int | None]]:
    """Yield the start and end of each comment; the end is None for an unclosed comment. Block comments nest in WGSL."""
    position: int | None = 0
    while position is not None and (match := _COMMENT.search(source, position)):
        position = _end_of_block(source, match.start()) if match[0] == "/*" else match.end()
        yield match.start(), position


def without_comments(source: str) -> str:
    """Replace comments by spaces, which keeps all positions."""
    parts, position = [], 0
    for start, end in _comments(source):
        parts += [source[position:start], re.sub(r"\S", " ", source[start:end])]
        position = len(source) if end is None else end
    return "".join([*parts, source[position:]])


def fault_of(source: str, plain: str) -> Fault | None:
    """Return the first missing part: the end of a comment, bracket or declaration, or the entry point; None if none."""
    return _open_comment(source) or _open_bracket(source, plain) or _open_declaration(plain) or _no_entry(plain)


def line_at(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1


def _end_of_block(source: str, start: int) -> int | None:
    depth = 0
    for match in _BLOCK.finditer(source, start):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return None


def _open_comment(source: str) -> Fault | None:
    start = next((start for start, end in _comments(source) if end is None), None)
    return None if start is None else Fault(start, 2, "the comment is never closed", "no */ closes it")


def _open_bracket(source: str, plain: str) -> Fault | None:
    """Find the innermost unclosed bracket. The compiler reports surplus closing brackets well, so these are ignored."""
    opened: list[int] = []
    # Positions of {, its }, and the enclosing {, where the } is indented like the line of the enclosing {.
    misaligned: list[tuple[int, int, int]] = []
    for match in _TOKEN.finditer(plain):
        token, at = match[0], match.start()
        if token in _CLOSERS:
            opened.append(at)
        elif token not in _OPENERS:
            if opened:  # functions and structures cannot be inside of brackets
                break
        elif opened and plain[opened[-1]] == _OPENERS[token]:
            start = opened.pop()
            if opened and token == "}" and _is_aligned(source, at, opened[-1]) and not _is_aligned(source, at, start):
                misaligned.append((start, at, opened[-1]))
        elif any(plain[start] == _OPENERS[token] for start in opened):
            break
        else:
            return None
    if not opened:
        return None
    start, reason = opened[-1], ""
    inside = next((pair for pair in misaligned if pair[0] > start), None)
    if inside is not None and plain[start] == "{":
        start, end, other = inside
        reason = f" (by its indentation, the }} in line {line_at(source, end)} closes the {{ in line {line_at(source, other)})"
    opener = plain[start]
    return Fault(start, 1, f"the {opener} is never closed{reason}", f"no {_CLOSERS[opener]} closes it")


def _is_aligned(source: str, closer: int, opener: int) -> bool:
    """Whether a closing brace starts its line, with the indentation of the line of an opening one."""
    before = source[source.rfind("\n", 0, closer) + 1 : closer]
    line = source[source.rfind("\n", 0, opener) + 1 :]
    return not before.strip() and line[: len(line) - len(line.lstrip())] == before


def _open_declaration(plain: str) -> Fault | None:
    text = plain.rstrip()
    if text.endswith(("}", ";")) or not text:
        return None
    length = len(re.split(r"\W", text)[-1]) or 1
    return Fault(len(text) - length, length, "the last declaration has no end", "a ; or a { … } is missing after it")


def _no_entry(plain: str) -> Fault | None:
    if ENTRY.search(plain) or MAIN.search(plain):
        return None
    message = "no entry point: fn main(i: u32), or a function with @compute"
    functions = {match[1]: match for match in _FUNCTION.finditer(plain)}
    if not functions:
        return Fault(len(plain) - len(plain.lstrip()), 1, message, "there is no function")
    (close,) = get_close_matches("main", functions, 1) or ("",)
    match = functions[close or next(iter(functions))]
    label = "did you mean main?" if close else "nothing calls it"
    return Fault(match.start(1), len(match[1]), message, label)
