"""How often an invocation of a kernel repeats loops, read from its text in WGSL: a witness beside what generators reckon."""

from __future__ import annotations

import re

FOR = re.compile(r"for \(var (\w+) = (.+); \1 [<>] (.+); \1 ?(?:(\+\+)|\+= (\d+)u?|= \1 >> 1u)\) \{")
LEAST = re.compile(r"min\((\w+) \+ (\d+)u?, .*\)")
NUMBER = re.compile(r"(\d+)u?")
HALVED = 10
"""Repetitions of a loop that halves the distance in a workgroup, at most."""


def iterations(source: str) -> int:
    """The repetitions of the loops of the entry point, all taken together, at most.

    Each end of a loop counts once more, since the test is repeated, too. Loops around atomic operations do not count.

    Raises:
        ValueError: the text has a loop that is not understood.
    """
    open_braces: list[int] = []  # the repetitions of each block that is open
    total = 0
    part = re.search(r"let end = min\(begin \+ (\d+)u", source)
    for line in source[source.index("fn main") :].splitlines():
        text = line.strip()
        if part:  # the share of a workgroup in the steps of a product
            text = text.replace("step = begin; step < end;", f"step = 0u; step < {part[1]}u;")
        if text.startswith("for "):
            factor = _count(text)
            around = open_braces[-1] if open_braces else 1
            total += around * (factor + 1)
            open_braces.append(around * factor)
        elif text.endswith("{") and not text.startswith("}"):
            open_braces.append(open_braces[-1] if open_braces else 1)
        elif text.startswith("}") and not text.endswith("{"):
            open_braces.pop()
    return total


def _count(head: str) -> int:
    found = FOR.fullmatch(head)
    if found is None:
        raise ValueError(f"a loop that is not understood: {head}")
    _, first, end, one, step = found.groups()
    if step is None and one is None:
        return HALVED
    size = 1 if one else int(step)
    if part := LEAST.fullmatch(end):
        return -(-int(part[2]) // size)
    if not (last := NUMBER.fullmatch(end)):
        raise ValueError(f"a loop that is not understood: {head}")
    begin = NUMBER.match(first)
    return -(-(int(last[1]) - (int(begin[1]) if begin else 0)) // size)
