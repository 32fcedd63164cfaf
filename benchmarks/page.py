"""How all pages about measurements are written: tables in Markdown, and what they were measured on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from .measure import ROOT

DOCS = ROOT / "docs"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table in Markdown; the columns of these numbers are aligned on the right.

    >>> print(table(["a", "b"], [["x", "1"]], right=[1]))
    | a | b |
    | --- | ---: |
    | x | 1 |
    """
    aligned = set(right)
    rule = ["---:" if column in aligned else "---" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def machine() -> str:
    """What is measured on: processor, system, and versions."""
    from opweave.backends import find_device

    processor = find_device("cpu")[1].description.partition(", ONNX Runtime")[0]
    system = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    return f"{processor}, {system}; {versions('opweave', 'onnxruntime', 'numpy')}"


def versions(*packages: str) -> str:
    """The versions of Python and of those packages that are installed."""
    found = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def yes(holds: bool) -> str:
    """Whether a budget holds, for a table."""
    return "yes" if holds else "NO"


def replace_part(page: Path, text: str, name: str = "table") -> None:
    """Write a page anew between its lines "<!-- NAME -->" and "<!-- end -->"."""
    before, start, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    if not (start and end):
        raise ValueError(f"{page} has no lines <!-- {name} --> and <!-- end -->")
    page.write_text(f"{before}{start}{text}\n{end}{after}", encoding="utf-8")
