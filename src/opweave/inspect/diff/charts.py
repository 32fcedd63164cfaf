"""Charts of a report, as SVG that takes its colours from the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...support.formatting import markup
from ...support.names import count_of
from .measure import BINS, Error
from .result import OperationDifference

WIDTH, HEIGHT = 1080, 150
"""Size of the chart of errors along the graph, in pixels."""
LEFT, TOP, BOTTOM = 56, 14, 22


def error_charts(rows: Sequence[OperationDifference], count: int) -> str:
    """Draw two charts over the operations: the own error relative to the allowed one, and the error end to end."""
    ratios = _chart(rows, count, [row.own.ratio for row in rows], (-4, 3), "own error / allowed", limit=True)
    totals = _chart(rows, count, [row.total.relative for row in rows], (-9, 1), "end to end, relative")
    return ratios + totals


def _chart(
    rows: Sequence[OperationDifference],
    count: int,
    values: Sequence[float],
    decades: tuple[int, int],
    caption: str,
    limit: bool = False,
) -> str:
    low, high = decades
    inner = HEIGHT - TOP - BOTTOM
    step = (WIDTH - LEFT - 10) / max(count, 1)

    def y(value: float) -> float:
        power = low if value <= 0 else high if math.isinf(value) or math.isnan(value) else math.log10(value)
        return TOP + inner * (high - min(max(power, low), high)) / (high - low)

    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{caption} of each operation</title>']
    for power in range(low, high + 1, 1 if high - low < 8 else 2):
        tick = y(10.0**power)
        parts.append(f'<path class="grid" d="M{LEFT} {tick:.1f}H{WIDTH - 10}"/>')
        parts.append(f'<text class="axis" x="{LEFT - 6}" y="{tick + 3.5:.1f}" text-anchor="end">{_power(power)}</text>')
    parts.append(
        f'<text class="axis" x="{LEFT}" y="{HEIGHT - 5}">{caption}; operations 0 to {max(count - 1, 0)}</text>'
    )
    if limit:
        parts.append(f'<path class="limit" d="M{LEFT} {y(1):.1f}H{WIDTH - 10}"/>')
    radius = 3.4 if step > 6 else 2.4
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        x, kind = LEFT + step * (place + 0.5), row.verdict
        parts.append(f'<path class="stem {kind}" d="M{x:.1f} {TOP + inner}V{y(value):.1f}"/>')
        text = markup(f"{row.number} {row.title}: {value:.3g}")
        dot = f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y(value):.1f}" r="{radius}">'
        parts.append(f"{dot}<title>{text}</title></circle>")
    return "".join([*parts, "</svg>"])


def histogram(error: Error, title: str) -> str:
    """Draw the number of elements by error, relative to the larger one of the element and the typical element."""
    counts = (error.equal, *error.histogram)
    names = ["0", f"≤{_power(BINS[0])}", *map(_power, BINS[1:]), f">{_power(BINS[-1])}"]
    width, height, column, base = 460, 170, 31, 126
    most, total = max(counts), sum(counts) or 1
    parts = [f'<svg class="histogram" viewBox="0 0 {width} {height}" role="img"><title>{markup(title)}</title>']
    parts.append(f'<text class="name" x="14" y="16">{markup(title)}</text>')
    for place, (count, name) in enumerate(zip(counts, names, strict=True)):
        x = 22 + place * column
        # Logarithmic, to show a few bad elements among millions.
        size = 84 * math.log1p(count) / math.log1p(most) if count else 0.0
        kind = "same" if not place else "bad" if place > len(BINS) - 3 else "bar"
        parts.append(
            f'<rect class="{kind}" x="{x}" y="{base - size:.1f}" width="{column - 6}" height="{size:.1f}" rx="2">'
            f"<title>{count_of(count, 'element')}, {count / total:.2%}</title></rect>"
        )
        if count:
            middle = x + column / 2 - 3
            parts.append(f'<text class="tick" x="{middle:.1f}" y="{base - size - 4:.1f}">{_short(count)}</text>')
        parts.append(f'<text class="tick" x="{x + column / 2 - 3:.1f}" y="{base + 14}">{name}</text>')
    parts.append(f'<path class="grid" d="M14 {base}H{width - 14}"/>')
    parts.append(f'<text class="axis" x="14" y="{height - 10}">relative error, up to; heights are logarithmic</text>')
    return "".join([*parts, "</svg>"])


def sparkline(error: Error) -> str:
    """Draw a histogram as small as a word."""
    counts = (error.equal, *error.histogram)
    most = max(counts) or 1
    bars = [
        f'<rect class="{"same" if not k else "bad" if k > len(BINS) - 3 else "bar"}" x="{k * 6}" '
        f'y="{18 - (size := 17 * math.log1p(count) / math.log1p(most)):.1f}" width="5" height="{size:.1f}"/>'
        for k, count in enumerate(counts)
        if count
    ]
    return f'<svg class="spark" width="{6 * len(counts)}" height="18">{"".join(bars)}<path class="grid" d="M0 18H999"/></svg>'


def _power(exponent: int) -> str:
    digits = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{digits}" if exponent else "1"


def _short(count: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)
