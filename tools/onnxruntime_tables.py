"""Write the tables of ONNX Runtime's names into their page: `python tools/onnxruntime_tables.py docs/onnxruntime.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from opweave.onnx.ort_api.compatibility import State, tables

WORDS: dict[State, str] = {
    "works": "works",
    "ignored": "ignored",
    "refused": "refused",
    "unread": "not read",
    "own": "ONNX Runtime's own",
}

BEGIN, END = "<!-- made by `make docs` -->", "<!-- end -->"

TITLES = {"onnxruntime": "The module `onnxruntime` in `replacing_onnxruntime`"}
"""The headings of tables that are not just their names."""


def render() -> str:
    """The tables as Markdown."""
    parts = []
    for table, rows in tables().items():
        title = TITLES.get(table, f"`{table}`")
        lines = [f"### {title}", "", "| Name | Status | Notes |", "|---|---|---|"]
        for row in rows:
            shown = row.names if row.names == "all others" else ", ".join(f"`{name}`" for name in row.names.split())
            since = f" (from ONNX Runtime {row.since} on)" if row.since else ""
            lines.append(f"| {shown} | {WORDS[row.state]} | {row.text}{since} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def written_into(page: str) -> str:
    """A page with the tables between its two marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{after}"


path = Path(sys.argv[1])
path.write_text(written_into(path.read_text(encoding="utf-8")), encoding="utf-8")
