"""The tests as bars, in SVG; for light and for dark pages."""

from __future__ import annotations

from html import escape

from .measure import Line, Report

TITLES = {
    1: "1  All custom",
    2: "2  Built-in conv2d; its result copied out, and in again",
    3: "3  Built-in conv2d; custom operations in the same memory",
    4: "4  All built in",
}
WIDTH, LEFT, RIGHT = 820, 250, 90
BAR, GAP, ROW_GAP, HEAD = 13, 2, 9, 34
TOP, BOTTOM = 92, 20

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f }
  .title { font-size: 17px; font-weight: 600 } .head { font-weight: 600 } .soft { fill: #57606a }
  .card { fill: #ffffff; stroke: #d0d7de } .line { stroke: #d0d7de }
  .t1 { fill: #8c959f } .t2 { fill: #bc4c00 } .t3 { fill: #1a7f64 } .t4 { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .soft { fill: #9198a1 } .card { fill: #0d1117; stroke: #30363d } .line { stroke: #30363d }
    .t1 { fill: #848d97 } .t2 { fill: #f0883e } .t3 { fill: #3fb68b } .t4 { fill: #4493f8 }
  }"""


def name(line: Line) -> str:
    """What tells a line from others of its test."""
    return line.conv if line.test == 1 else line.rest


def chart(reports: list[Report]) -> str:
    """A bar for each way to do it and each number of threads."""
    longest = max(line.median for report in reports for line in report.lines)
    scale = (WIDTH - LEFT - RIGHT) / longest
    shades = [round(1 - 0.55 * (len(reports) - 1 - at) / max(len(reports) - 1, 1), 2) for at in range(len(reports))]
    body, y, test = [], TOP, 0
    for number, line in enumerate(reports[0].lines):
        if line.test != test:
            test = line.test
            count = sum(other.test == test for other in reports[0].lines)
            body.append(f'<text class="head" x="24" y="{y + 18}">{escape(TITLES[test])}</text>')
            y += HEAD - 6
            below = y + count * (len(reports) * (BAR + GAP) + ROW_GAP) - ROW_GAP
            body.append(f'<line class="line" x1="{LEFT - 0.5}" x2="{LEFT - 0.5}" y1="{y - 3}" y2="{below + 1}"/>')
        height = len(reports) * (BAR + GAP) - GAP
        body.append(f'<text x="{LEFT - 12}" y="{y + height / 2 + 4.5:g}" text-anchor="end">{escape(name(line))}</text>')
        for report, shade in zip(reports, shades, strict=True):
            took = report.lines[number].median
            width = max(took * scale, 1)
            body.append(
                f'<rect class="t{test}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" opacity="{shade}"/>'
                f'<text class="soft" x="{LEFT + width + 7:.1f}" y="{y + 11}">{took:.1f}</text>'
            )
            y += BAR + GAP
        y += ROW_GAP
    height = y + BOTTOM
    legend, x = [], LEFT
    for report, shade in zip(reports, shades, strict=True):
        text = f"{report.threads} thread{'s' if report.threads > 1 else ''}"
        legend.append(
            f'<rect class="t3" x="{x}" y="62" width="{BAR}" height="{BAR}" rx="2" opacity="{shade}"/>'
            f'<text class="soft" x="{x + 20}" y="73">{text}</text>'
        )
        x += 100
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
            f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="title">',
            '<title id="title">conv2d, add and relu: milliseconds of each way to do them</title>',
            f"<style>{STYLE}\n</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>',
            '<text class="title" x="24" y="36">conv2d → add → relu on the CPU, float32 [1, 100, 100, 100]</text>',
            '<text class="soft" x="24" y="73">milliseconds; shorter is better</text>',
            *legend,
            *body,
            "</svg>\n",
        ]
    )
