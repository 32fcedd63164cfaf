"""Which rows of a family of tests to run, where the others differ by data types only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def sample(rows: Sequence[tuple[str, Sequence[str]]]) -> list[bool]:
    """Which rows of a family to run: of each subject one with floats and one without, and each data type of each operand.

    Args:
        rows: for each the subject and the data types of its operands.

    >>> types = ("float32", "float16", "int32", "uint8")
    >>> rows = [(subject, [t]) for subject in ("abs", "neg", "sign") for t in types]
    >>> [f"{subject} {t}" for (subject, [t]), kept in zip(rows, sample(rows), strict=True) if kept]
    ['abs float32', 'abs float16', 'abs int32', 'neg float32', 'neg uint8', 'sign float32', 'sign int32']
    """
    used: Counter[tuple[int, str]] = Counter()
    kept = [False] * len(rows)

    def uses(index: int) -> list[int]:
        return [used[place] for place in enumerate(rows[index][1])]

    def keep(index: int) -> None:
        kept[index] = True
        used.update(enumerate(rows[index][1]))

    for subject in dict.fromkeys(subject for subject, _ in rows):
        own = [index for index, row in enumerate(rows) if row[0] == subject]
        floats = [index for index in own if any(t.startswith("float") for t in rows[index][1])]
        integers = [index for index in own if index not in floats]
        if floats:
            keep(floats[0])
        if integers:
            keep(min(integers, key=lambda index: sum(uses(index))))
    for index in range(len(rows)):
        if 0 in uses(index):
            keep(index)
    return kept
