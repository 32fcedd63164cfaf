"""Write the table of what falls back into the page of ONNX models: `python tools/onnx_fallback_table.py docs/onnx.md`.

It is made from `tests/expect/onnx_fallback.toml`: a test requires that each of ONNX's backend cases that falls back is listed
there, and that each listed one falls back.
"""

from __future__ import annotations

import sys
import tomllib
from collections import defaultdict
from pathlib import Path

EXPECTED = Path(__file__).parents[1] / "tests" / "expect" / "onnx_fallback.toml"

BEGIN, END = "<!-- what falls back, made by `make docs` -->", "<!-- end -->"

SHAPES = "has a shape that is known only when the graph runs"
KINDS = {
    "its input 'opt_in' " + SHAPES: "its values are optionals or sequences",
    "its input 'x' " + SHAPES: "its values are optionals or sequences",
    "its input 'x' is string": "its values are strings",
}
"""Reasons that name an operand of a case, in the words of the table."""


def reasons() -> dict[str, list[str]]:
    """The operators that fall back, by the reason."""
    found: dict[str, set[str]] = defaultdict(set)

    def add(tables: dict[str, object]) -> None:
        for value in tables.values():
            if isinstance(value, dict):  # the cases of some versions of ONNX Runtime
                add(value)
                continue
            for line in str(value).split("; "):
                operator, _, reason = line.partition(": ")
                found[KINDS.get(reason, reason)].add(operator)

    add(tomllib.loads(EXPECTED.read_text(encoding="utf-8")))
    return {reason: sorted(found[reason]) for reason in sorted(found, key=lambda reason: (-len(found[reason]), reason))}


def render() -> str:
    rows = [f"| {reason} | {', '.join(f'`{name}`' for name in names)} |" for reason, names in reasons().items()]
    return "\n".join(["| Reason | Operators |", "| --- | --- |", *rows])


def written_into(page: str) -> str:
    """A page with the table between its two marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written_into(path.read_text(encoding="utf-8")), encoding="utf-8")
