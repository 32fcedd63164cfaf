"""How all pages about measurements are written: tables in Markdown, and what they were measured on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from .measure import ROOT

DOCS = ROOT / "docs"


NUMBER = r"\d+(?:\.\d+)?(?:e[+-]\d+)?"


@dataclass(frozen=True)
class Table:
    """A table of a page; as text it is Markdown.

    >>> print(Table(["a", "b"], [["x", "1"]], right=[1]))
    | a | b |
    | --- | ---: |
    | x | 1 |

    Attributes:
        header: the titles of its columns.
        rows: the cells of each row.
        right: indices of the columns that are aligned on the right.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[int] = ()

    def __str__(self) -> str:
        rule = ["---:" if column in self.right else "---" for column in range(len(self.header))]
        return "\n".join(f"| {' | '.join(row)} |" for row in (self.header, rule, *self.rows))

    def show(self, holds: Sequence[bool] = (), width: int | None = None) -> None:
        """Print the table on the terminal.

        Args:
            holds: whether each row is within its limits; the others are red. None for tables without limits.
            width: in characters; None for that of the terminal.
        """
        from rich.console import Console
        from rich.table import Table as Printed

        printed = Printed(*self.header, box=None)
        for number, row in enumerate(self.rows):
            printed.add_row(*row, style="red" if holds and not holds[number] else "")
        Console(width=width).print(printed)

    def where(self, column: str, pattern: str) -> Table:
        """The rows whose cell in a column contains a regular expression."""
        place = self.header.index(column)
        return replace(self, rows=[row for row in self.rows if re.search(pattern, row[place])])

    def cells(self, column: str) -> list[str]:
        """The cells of a column, without those that are empty."""
        place = self.header.index(column)
        return [row[place] for row in self.rows if row[place]]

    def numbers(self, column: str) -> list[float]:
        """The first number of each cell of a column; cells without a number are left out."""
        return [float(match[0]) for cell in self.cells(column) if (match := re.search(NUMBER, cell))]

    def held(self, column: str = "holds") -> str:
        """How many of the budgets hold, as text."""
        cells = [cell for cell in self.cells(column) if cell in ("yes", "NO")]
        return f"{cells.count('yes')} of {len(cells)}"


def tables(text: str) -> list[Table]:
    """Read all tables of a page in Markdown.

    >>> tables("| a | b |\\n| --- | --- |\\n| x | 1.5x |\\n")[0].numbers("b")
    [1.5]
    """
    result = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()
        ]
        result.append(Table(header, rows))
    return result


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
