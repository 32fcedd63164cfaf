"""The result of a comparison: a row for each operation, as a table, as plain data, and as a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...core.graph import Graph
from ...support.errors import require
from ...support.files import atomic_writer, check_writable
from ...support.formatting import json_value, shorten, table
from ...support.names import count_of, printable, visible
from .measure import Error, Values

Verdict = Literal["ok", "differs", "overflow", "changed"]
"""Verdict on an operation: "differs" beyond its tolerance, an "overflow" of float16, or only a constant or an attribute
that was "changed"."""

MAX_TITLE = 60
MAX_ROWS = 16
"""Maximum rows of the table that is printed; `rows` and the report have all of them."""


@dataclass(frozen=True, slots=True)
class Read:
    """An operand of an operation, in the comparison on equal inputs.

    Attributes:
        name: the parameter.
        desc: data type and shape, as text.
        values: statistics of the elements.
        is_constant: whether it is a constant of the graph.
    """

    name: str
    desc: str
    values: Values
    is_constant: bool


@dataclass(frozen=True, slots=True)
class OperationDifference:
    """One operation in a comparison; of several results, the one with the largest error relative to its tolerance.

    Attributes:
        number: its position in the graph.
        title: operation and label.
        result: data type and shape of the result, as text.
        reads: its operands.
        tolerance: the allowed difference, as text.
        own: its own error, on the inputs of the other side.
        total: the difference end to end, each side on its own intermediates.
        values: statistics of the expected result.
        changes: attributes and constants that are not the same in the two graphs, as text.
        overflow: the number of elements that are too large for float16 on finite inputs, as text; empty if there are none.
        runs: what runs the operation on the examined side.
    """

    number: int
    title: str
    result: str
    reads: tuple[Read, ...]
    tolerance: str
    own: Error
    total: Error
    values: Values
    changes: tuple[str, ...]
    overflow: str
    runs: str

    @property
    def verdict(self) -> Verdict:
        """The gravest finding."""
        if self.overflow:
            return "overflow"
        return "differs" if self.own.beyond else "changed" if self.changes else "ok"

    def lines(self) -> list[str]:
        """Describe the operation in lines of text, for people."""
        own, lines = self.own, [f"operation {self.number}, {self.title}: {_MEANING[self.verdict]}"]
        if own.beyond or own.equal * 2 < own.equal + own.beyond or own.largest:
            where = f" at {list(own.where)}" if own.where else ""
            got, expected = own.texts
            lines.append(
                f"  result     {self.result}: {got}{where}, expected {expected}"
                + (f"; {own.beyond:,} elements beyond the tolerance" if own.beyond else "")
            )
        else:
            lines.append(f"  result     {self.result} in {self.values}")
        lines.append(f"  allowed    {self.tolerance}; found {own.ulp:.4g} ULP, {number(own.largest)} absolute")
        for read in self.reads:
            kind = "constant" if read.is_constant else "input"
            lines.append(f"  {kind:<9}  {read.name}: {read.desc} in {read.values}")
        lines += [f"  changed    {text}" for text in self.changes]
        lines += [f"  overflow   {self.overflow}"] if self.overflow else []
        lines += [f"  runs as    {self.runs}"] if self.runs else []
        return lines


_MEANING: dict[Verdict, str] = {
    "ok": "within its tolerance",
    "differs": "differs by more than its tolerance, on the same inputs",
    "overflow": "results that float16 cannot hold, from finite inputs",
    "changed": "not the same in the two graphs",
}


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """An output of the graph.

    Attributes:
        name: its name.
        total: the difference end to end, with the graph compiled as a whole, as users run it.
        steps: the difference from the same engine with one operation at a time, all intermediates kept: the effect of the
            engine's optimisations across operations.
    """

    name: str
    total: Error
    steps: Error


@dataclass(frozen=True, slots=True, repr=False)
class Difference:
    """The result of `opweave.diff`; a prompt and `print` show a table, `save` writes a report.

    Attributes:
        on: the place of the examined graph, as text.
        against: the place or graph to compare with, as text.
        rows: the operations, in order.
        outputs: the outputs; empty if the comparison was interrupted.
        count: the number of operations of the graph; more than rows if it was interrupted.
        title: what was compared.
    """

    on: str
    against: str
    rows: tuple[OperationDifference, ...]
    outputs: tuple[OutputDifference, ...]
    count: int
    title: str = "graph"
    _graph: Graph | None = field(default=None, compare=False)

    @property
    def first(self) -> OperationDifference | None:
        """The first operation whose verdict is not "ok"; None if there is none."""
        return next((row for row in self.rows if row.verdict != "ok"), None)

    @property
    def found(self) -> tuple[OperationDifference, ...]:
        """All operations whose verdict is not "ok"."""
        return tuple(row for row in self.rows if row.verdict != "ok")

    @property
    def is_complete(self) -> bool:
        """Whether all operations were compared."""
        return len(self.rows) == self.count

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for tools: plain lists, dictionaries, strings and numbers. Infinite numbers and NaN are strings."""
        rows = [asdict(row) for row in self.rows]
        first = self.first
        data = {
            "title": self.title,
            "on": self.on,
            "against": self.against,
            "complete": self.is_complete,
            "first": None if first is None else first.number,
            "operations": rows,
            "outputs": [asdict(output) for output in self.outputs],
        }
        plain: dict[str, Any] = json_value(data)
        return plain

    def save(self, path: str | Path) -> None:
        """Write a report: one HTML file without scripts from elsewhere, with a table, the graph, and histograms of errors.

        Args:
            path: the file, whose name ends with .html.

        Raises:
            ValidationError: the name ends otherwise.
            DataError: the file cannot be written.
        """
        from .report import html

        check_report(path)
        text = html(self, self._graph)
        with atomic_writer(path) as file:
            file.write(text.encode())

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self.text()

    def text(self, rows: int = MAX_ROWS) -> str:
        """The table.

        Args:
            rows: the maximum number of operations: first those with findings, then those closest to their tolerance.
        """
        order = sorted(self.rows, key=lambda row: (row.verdict == "ok", -row.own.ratio, row.number))
        shown = sorted(order[:rows], key=lambda row: row.number)
        lines = [f"{self.title}: {self.on} against {self.against}", ""]
        lines += table([_HEAD, *map(_cells, shown)], words=3)
        if len(self.rows) > len(shown):
            lines.append(f"… {count_of(len(self.rows) - len(shown), 'more operation')}, closer to what is expected")
        if self.outputs:
            lines += ["", *table([_OUTPUT_HEAD, *map(_output_cells, self.outputs)], words=1)]
        return visible("\n".join([*lines, "", *self.conclusion()]))

    def conclusion(self) -> list[str]:
        """Summarise the findings in a few lines."""
        lines = []
        if not self.is_complete:
            lines.append(f"interrupted after {len(self.rows)} of {count_of(self.count, 'operation')}")
        first = self.first
        if first is None:
            lines.append(f"{count_of(len(self.rows), 'operation')}: all within their tolerances")
        else:
            lines += [f"first difference: {first.lines()[0]}", *first.lines()[1:]]
            if len(self.found) > 1:
                lines.append(
                    f"{count_of(len(self.found) - 1, 'more operation')} of {len(self.rows)} not within tolerance"
                )
        for output in self.outputs:
            if output.steps.relative > max(OPTIMISED, 10 * _last(self.rows)):
                lines.append(
                    f"output {output.name!r}: compiled as a whole, the graph differs by {number(output.steps.relative)} from "
                    "its operations one by one: an optimisation across operations changes the result"
                )
        return lines


def check_report(path: str | Path) -> None:
    """Require that the name of a file ends like a report's, and that it can be written."""
    is_html = Path(path).suffix.lower() in (".html", ".htm")
    require(is_html, f"diff: the name of the report must end with .html, got {str(path)!r}")
    check_writable(path)


OPTIMISED = 1e-3
"""Relative difference above which the effect of optimisations is mentioned; sums in a different order change less."""

_HEAD = ("", "operation", "result", "own error", "of allowed", "ULP", "end to end", "")
_OUTPUT_HEAD = ("output", "end to end", "largest", "by optimisation")


def _last(rows: Sequence[OperationDifference]) -> float:
    return rows[-1].total.relative if rows and math.isfinite(rows[-1].total.relative) else 0.0


def _cells(row: OperationDifference) -> tuple[str, ...]:
    own = row.own
    return (
        str(row.number),
        shorten(row.title, MAX_TITLE),
        row.result,
        number(own.largest),
        number(own.ratio),
        number(own.ulp),
        number(row.total.relative),
        "" if row.verdict == "ok" else row.verdict,
    )


def _output_cells(output: OutputDifference) -> tuple[str, ...]:
    total = output.total
    return (printable(output.name), number(total.relative), number(total.largest), number(output.steps.relative))


def number(value: float) -> str:
    """Format a number of an error briefly.

    >>> number(0), number(0.00012345), number(12345.6), number(float("inf"))
    ('0', '0.00012', '1.2e+04', 'inf')
    """
    return f"{value:.2g}"
