"""Charts for the pages, as SVG: bars, and dots on an axis. They read on a phone, and in dark and light mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from opweave.support.formatting import markup

WIDTH, MARGIN, LABELS, NUMBERS = 440, 12, 152, 54
"""Widths in pixels: of a chart, which a phone shows at four fifths; of the space around it, of names, and of numbers."""

PLOT = WIDTH - 2 * MARGIN - LABELS - NUMBERS
HEAD, ROW, FOOT = 40, 27, 26
"""Heights in pixels: of the title, of a row, and of the axis."""

LONGEST_LABEL = 20
"""Characters of a name; longer ones are set narrower."""

STYLE = """\
text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 13px } .soft { fill: #57606a; font-size: 12px }
.card { fill: #ffffff; stroke: #d0d7de } .line { stroke: #d0d7de } .mark { stroke: #57606a; stroke-dasharray: 3 3 }
.ours { fill: #c2571a } .theirs { fill: #8c959f } .dot { fill: #c2571a; fill-opacity: 0.45 }
.median { stroke: #24292f; stroke-width: 2.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .soft { fill: #9198a1 } .card { fill: #16191d; stroke: #30363d } .line { stroke: #30363d }
  .mark { stroke: #9198a1 } .ours { fill: #f0883e } .theirs { fill: #6e7681 } .dot { fill: #f0883e }
  .median { stroke: #e6edf3 }
}"""


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        label: its name.
        value: its length.
        is_ours: whether it is Opweave's, which has the colour.
    """

    label: str
    value: float
    is_ours: bool = True


@dataclass(frozen=True)
class Bars:
    """A chart of one value for each name.

    Attributes:
        title: what is shown, and whether more is better.
        bars: from top to bottom.
        unit: behind the numbers.
    """

    title: str
    bars: Sequence[Bar]
    unit: str

    def svg(self) -> str:
        """The text of the file."""
        longest = max(bar.value for bar in self.bars)
        lines = []
        for number, bar in enumerate(self.bars):
            top, length = HEAD + ROW * number, PLOT * bar.value / longest
            kind = "ours" if bar.is_ours else "theirs"
            lines += [
                _label(bar.label, top),
                f'<rect class="{kind}" x="{MARGIN + LABELS}" y="{top + 5}" width="{length:.1f}" height="{ROW - 10}" rx="2"/>',
                f'<text x="{MARGIN + LABELS + length + 7:.1f}" y="{top + 18}">{bar.value:.3g}{markup(self.unit)}</text>',
            ]
        return _page(self.title, HEAD + ROW * len(self.bars) + MARGIN, lines)


@dataclass(frozen=True)
class Dots:
    """A chart of many values for each name: a dot each, and a line at their median, on a logarithmic axis.

    Attributes:
        title: what is shown, and whether more is better.
        rows: name -> values, all above 0.
        unit: behind the numbers.
        mark: the value of a dashed line; None for no line.
    """

    title: str
    rows: Mapping[str, Sequence[float]]
    unit: str = "x"
    mark: float | None = 1.0

    def svg(self) -> str:
        """The text of the file."""
        values = [value for row in self.rows.values() for value in row]
        low, high = min(*values, self.mark or values[0]) / 1.06, max(*values, self.mark or values[0]) * 1.06
        bottom = HEAD + ROW * len(self.rows)

        def place(value: float) -> float:
            return MARGIN + LABELS + PLOT * math.log(value / low) / math.log(high / low)

        lines = []
        for tick in _ticks(low, high):
            x = place(tick)
            kind = "mark" if tick == self.mark else "line"
            lines += [
                f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 4}" y2="{bottom}"/>',
                f'<text class="soft" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:.2g}{markup(self.unit)}</text>',
            ]
        for number, (name, row) in enumerate(self.rows.items()):
            top, middle = HEAD + ROW * number, median(row)
            lines.append(_label(name, top))
            lines += [f'<circle class="dot" cx="{place(value):.1f}" cy="{top + 13}" r="4"/>' for value in row]
            x = place(middle)
            lines.append(f'<line class="median" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 4}" y2="{top + 22}"/>')
            lines.append(
                f'<text x="{WIDTH - MARGIN}" y="{top + 18}" text-anchor="end">{_number(middle)}{markup(self.unit)}</text>'
            )
        return _page(self.title, bottom + FOOT, lines)


def _number(value: float) -> str:
    return f"{value:.2f}" if 0.01 <= value < 100 else f"{value:.0e}"


def _ticks(low: float, high: float) -> list[float]:
    """Round values on a logarithmic axis: at most seven, 1 among them if it is on the axis."""
    for steps in ((1, 1.25, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(ticks) <= 6:
            return ticks
    return ticks[:: math.ceil(len(ticks) / 6)]


def _label(text: str, top: float) -> str:
    width = LABELS - 9
    narrow = f' textLength="{width}" lengthAdjust="spacingAndGlyphs"' if len(text) > LONGEST_LABEL else ""
    return f'<text x="{MARGIN + width}" y="{top + 18}" text-anchor="end"{narrow}>{markup(text)}</text>'


def _page(title: str, height: float, lines: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="title">\n'
        f'<title id="title">{markup(title)}</title>\n<style>\n{STYLE}\n</style>\n'
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>\n'
        f'<text class="title" x="{MARGIN}" y="25">{markup(title)}</text>\n'
    )
    return head + "\n".join(lines) + "\n</svg>\n"
