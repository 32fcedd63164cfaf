"""A chart of the times of engines, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from ..support.formatting import duration, markup
from .engines import Result

ROW, CHARACTER, BARS, NUMBERS, MARGIN = 30, 8, 400, 150, 16
"""Sizes in pixels: the height of a row; the widths of a character of a name, of bars and numbers; the space around them."""


def chart(results: Sequence[Result], title: str) -> str:
    """The text of an SVG file: a bar for the median of each engine, a line between its quartiles."""
    longest = max((result.quartiles[2] for result in results if result.turns), default=1.0)
    labels = CHARACTER * max((len(result.label) for result in results), default=0)
    left, width = MARGIN + labels, MARGIN * 2 + labels + BARS + NUMBERS
    height = MARGIN * 2 + ROW * (len(results) + 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="system-ui,Helvetica,Arial,DejaVu Sans,sans-serif" font-size="13" fill="#1d2433">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 14}" font-weight="600">{markup(title)}</text>',
    ]
    for number, result in enumerate(results, 1):
        top = MARGIN + ROW * number
        text = top + ROW * 0.62
        lines.append(f'<text x="{left - 10}" y="{text:.1f}" text-anchor="end">{markup(result.label)}</text>')
        if not result.turns:
            lines.append(f'<text x="{left}" y="{text:.1f}" fill="#5d687b">cannot run it</text>')
            continue
        lower, middle, upper = result.quartiles
        bar, low, high = (BARS * value / longest for value in (middle, lower, upper))
        colour = "#9aa4b5" if number == 1 else "#3b74c9"
        centre = top + ROW / 2
        lines += [
            f'<rect x="{left}" y="{top + 6}" width="{bar:.1f}" height="{ROW - 12}" rx="2" fill="{colour}"/>',
            f'<path d="M{left + low:.1f} {centre}H{left + high:.1f}" stroke="#1d2433" stroke-width="1.5"/>',
            f'<text x="{left + max(bar, high) + 8:.1f}" y="{text:.1f}">{duration(middle)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
