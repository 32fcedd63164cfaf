"""The report of a comparison: one HTML file with a table, the graph and histograms, which loads nothing from elsewhere."""

from __future__ import annotations

from ... import __version__
from ...support.names import counted
from ...support.words import markup, shorten
from .charts import along, histogram, sparkline
from .drawing import drawings
from .result import Difference, OperationDifference, number

MAX_NAME = 36
"""Maximum characters of a name above a histogram."""

STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #ffffff; --text: #1d2433; --soft: #5d687b; --line: #d9dee6;
  --blue: #3b74c9; --same: #9fb0c8; --bad: #d1242f; --bad-back: #ffefed; --warn: #b7791f;
  --good: #1a7f4b; --good-back: #e8f6ee; }
@media (prefers-color-scheme: dark) { :root { --back: #101318; --card: #191d25; --text: #e7eaf0; --soft: #9aa4b5;
  --line: #323a47; --blue: #6ea3ee; --same: #55647c; --bad: #ff7b72; --bad-back: #3a1b1a; --warn: #e0b04a; --good: #57c98a;
  --good-back: #15301f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 26px 24px 60px; }
h1 { font-size: 23px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 0 0 12px; } h1, h2 { overflow-wrap: anywhere; }
.soft { color: var(--soft); } .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 18px 20px; margin-top: 18px; }
.verdict { border-left: 5px solid var(--good); background: var(--good-back); }
.verdict.bad { border-left-color: var(--bad); background: var(--bad-back); } .verdict h2 { margin-bottom: 6px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 8px 0 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow: auto; } table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--line); white-space: nowrap; }
th button { all: unset; cursor: pointer; padding: 5px 0; } th button:focus-visible { outline: 2px solid var(--blue); }
th[aria-sort=ascending] button::after { content: " ↑"; } th[aria-sort=descending] button::after { content: " ↓"; }
td, th { padding: 5px 12px 5px 0; vertical-align: top; } td { border-bottom: 1px solid var(--line); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.differs td:first-child, tr.overflow td:first-child { box-shadow: inset 3px 0 var(--bad); }
tr.changed td:first-child { box-shadow: inset 3px 0 var(--warn); } td:first-child { padding-left: 9px; }
tr.first td { background: var(--bad-back); }
.tag { border-radius: 9px; padding: 1px 8px; font-size: 12px; color: var(--card); }
.tag.differs, .tag.overflow { background: var(--bad); } .tag.changed { background: var(--warn); }
td:nth-child(3) { white-space: nowrap; } details { min-width: 13em; overflow-wrap: anywhere; }
summary { cursor: pointer; } pre { margin: 6px 0 2px; font-size: 12.5px; white-space: pre-wrap; overflow-wrap: anywhere; }
.chart { width: 100%; display: block; } .along .chart { min-width: 640px; } .grid { stroke: var(--line); fill: none; }
.axis, .tick { fill: var(--soft); font-size: 11px; } .tick { font-size: 10px; text-anchor: middle; }
.name { fill: var(--text); font-size: 13px; font-weight: 600; }
.limit { stroke: var(--bad); stroke-dasharray: 5 4; fill: none; } .stem { stroke: var(--line); }
.dot { fill: var(--blue); } .dot.differs, .dot.overflow { fill: var(--bad); } .dot.changed { fill: var(--warn); }
.bar { fill: var(--blue); } .same { fill: var(--same); } rect.bad { fill: var(--bad); }
.histograms { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 10px 26px; }
.drawing { overflow: auto; max-height: 820px; text-align: center; border-radius: 8px; }
@media (max-width: 600px) { main { padding: 14px 10px 40px; } .card { padding: 12px; } }
label { font-size: 13.5px; } footer { margin-top: 22px; font-size: 12.5px; }
"""

SCRIPT = """
const body = document.querySelector("#operations tbody");
document.querySelectorAll("#operations th").forEach((head, column) => {
  head.firstChild.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") === "descending";
    document.querySelectorAll("#operations th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)], [m, n] = [Number(x), Number(y)];
      const order = Number.isNaN(m) || Number.isNaN(n) ? x.localeCompare(y) : m === n ? 0 : m - n;
      return (up ? order : -order) || a.dataset.number - b.dataset.number;
    });
    body.append(...rows);
  });
});
document.querySelector("#only").addEventListener("change", (event) => {
  for (const row of body.rows) row.hidden = event.target.checked && row.classList.contains("ok");
});
document.querySelectorAll(".drawing, .along").forEach((box) => {
  const first = box.querySelector("rect.first, .dot.differs, .dot.overflow, .dot.changed");
  if (!first) return;
  const [at, around] = [first.getBoundingClientRect(), box.getBoundingClientRect()];
  box.scrollTop += at.top + at.height / 2 - around.top - box.clientHeight / 2;
  box.scrollLeft += at.left + at.width / 2 - around.left - box.clientWidth / 2;
});
"""

HEAD = ("", "operation", "result", "own error", "of allowed", "ULP", "end to end", "own errors", "")


def html(difference: Difference) -> str:
    """Write the report as HTML."""
    first = difference.first
    focus = first or max(difference.rows, key=lambda row: row.own.ratio, default=None)
    parts = [
        f"<h1>{markup(difference.title)}</h1>",
        f'<div class="soft">{markup(difference.on)} against {markup(difference.against)}</div>',
        _verdict(difference),
        '<section class="card"><h2>Errors along the graph</h2><div class="wide along">',
        f"{along(difference.rows, difference.count)}</div></section>",
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
    for caption, drawing in drawings(difference):
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
        f"<title>{markup(difference.title)}: opweave diff</title>\n<style>{STYLE}</style></head>\n"
        f"<body><main>{''.join(parts)}</main>\n<script>{SCRIPT}</script></body></html>\n"
    )


def _verdict(difference: Difference) -> str:
    first = difference.first
    if first is None:
        text = f"{counted(len(difference.rows), 'operation')}: all within their tolerances"
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
