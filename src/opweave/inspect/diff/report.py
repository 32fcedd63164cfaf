"""The report of a comparison: one HTML file with a table, the graph and histograms, which loads nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from ... import __version__
from ...core.graph import Graph
from ...support.formatting import markup, shorten
from ...support.names import count_of
from .charts import error_charts, histogram, sparkline
from .drawing import drawings
from .result import Difference, OperationDifference, number

MAX_NAME = 36


HEAD = ("", "operation", "result", "own error", "of allowed", "ULP", "end to end", "own errors", "")


def html(difference: Difference, graph: Graph | None) -> str:
    """Write the report as HTML."""
    style, script = (Path(__file__).with_name(f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    first = difference.first
    focus = first or max(difference.rows, key=lambda row: row.own.ratio, default=None)
    parts = [
        f"<h1>{markup(difference.title)}</h1>",
        f'<div class="soft">{markup(difference.on)} against {markup(difference.against)}</div>',
        _verdict(difference),
        '<section class="card"><h2>Errors along the graph</h2><div class="wide along">',
        f"{error_charts(difference.rows, difference.count)}</div></section>",
    ]
    if focus is not None:
        name = f"{focus.number} {shorten(focus.title, MAX_NAME)}"
        charts = [histogram(focus.own, f"{name}: own"), histogram(focus.total, f"{name}: end to end")]
        charts += [
            histogram(output.total, f"output {shorten(output.name, MAX_NAME)}: end to end")
            for output in difference.outputs[:4]
        ]
        parts.append(
            f'<section class="card"><h2>Histograms</h2><div class="histograms">{"".join(charts)}</div></section>'
        )
    for caption, drawing in drawings(difference, graph) if graph is not None else ():
        parts.append(f'<section class="card"><h2>{caption}</h2><div class="drawing">{drawing}</div></section>')
    parts.append(_table(difference))
    note = (
        "Own error: each operation on the inputs of the other side. End to end: each side on its own intermediates; the root "
        "mean square of the differences divided by that of the expected elements. ULP: units in the last place of the larger "
        "one of the element and a typical element of the tensor."
    )
    parts.append(f'<footer class="soft">{note}<br>Made by opweave {__version__}.</footer>')
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{markup(difference.title)}: opweave diff</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>{''.join(parts)}</main>\n<script>\n{script}</script></body></html>\n"
    )


def _verdict(difference: Difference) -> str:
    first = difference.first
    if first is None:
        text = f"{count_of(len(difference.rows), 'operation')}: all within their tolerances"
        heading, details = text, ""
    else:
        heading = f"First difference: {first.lines()[0]}"
        pairs = [line.strip().partition("  ")[::2] for line in first.lines()[1:]]
        details = "".join(f"<dt>{markup(name)}</dt><dd>{markup(text.strip())}</dd>" for name, text in pairs)
    rest = [
        line
        for line in difference.conclusion()
        if not line.startswith((" ", "first difference", f"{len(difference.rows):,} op"))
    ]
    notes = "".join(f"<div>{markup(line)}</div>" for line in rest)
    body = f"<dl>{details}</dl>" if details else ""
    return f'<section class="card verdict {"bad" if first else ""}"><h2>{markup(heading)}</h2>{body}{notes}</section>'


def _table(difference: Difference) -> str:
    head = "".join(
        f"<th{' class=number' if k in (0, 3, 4, 5, 6) else ''}><button>{name or '#'}</button></th>"
        for k, name in enumerate(HEAD[:-1])
    )
    rows = "".join(_row(row, row is difference.first) for row in difference.rows)
    only = '<label><input type="checkbox" id="only"> only those that differ</label>'
    return (
        f'<section class="card"><h2>Operations</h2>{only}<div class="wide"><table id="operations">'
        f"<thead><tr>{head}<th><button>found</button></th></tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _row(row: OperationDifference, is_first: bool) -> str:
    own, total = row.own, row.total
    details = f"<details><summary>{markup(row.title)}</summary><pre>{markup(chr(10).join(row.lines()))}</pre></details>"
    tag = f'<span class="tag {row.verdict}">{row.verdict}</span>' if row.verdict != "ok" else ""
    numbers = "".join(
        f'<td class="number" data-value="{_sortable(value)}">{number(value)}</td>'
        for value in (own.largest, own.ratio, own.ulp, total.relative)
    )
    return (
        f'<tr class="{row.verdict}{" first" if is_first else ""}" data-number="{row.number}">'
        f'<td class="number">{row.number}</td><td data-value="{markup(row.title)}">{details}</td><td>{markup(row.result)}</td>'
        f'{numbers}<td data-value="{sum(own.histogram)}">{sparkline(own)}</td><td>{tag}</td></tr>'
    )


def _sortable(value: float) -> str:
    return {"inf": "1e999", "nan": "1e999"}.get(f"{value}", f"{value:.9g}")
