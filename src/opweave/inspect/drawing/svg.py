"""Pictures as SVG without scripts or external files, with tooltips, for light and dark themes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from textwrap import wrap

from ...support.formatting import markup, shorten
from .layout import DrawnLink, Item, Placed, layout, line_ends
from .picture import Box, DrawnLane, Edge, Picture
from .text import text_width

PAD = 14.0
"""Space between boxes and lanes, and at the border."""
CAPTION = 26
"""Maximum characters of a line of a caption; longer ones are wrapped."""
MAX_TEXT = 34
"""Maximum characters of a text in a box; the tooltip has the full text."""
LABEL = 24.0
"""Space below a box for the types of its results."""
BEND = 20.0
"""Space between two layers in which lines change their x."""

COLOURS = {
    ".back": ("fill", "#ffffff", "#15181e"),
    "text": ("fill", "#1d2433", "#e7eaf0"),
    ".soft": ("fill", "#5d687b", "#9aa4b5"),
    ".box": ("fill", "#ffffff", "#242a34"),
    ".box,.end": ("stroke", "#b9c2d0", "#4a5464"),
    ".end,.chip": ("fill", "#e9edf3", "#333b48"),
    ".custom": ("fill", "#fff6ea", "#372a1a"),
    ".custom ": ("stroke", "#c8701a", "#e8994a"),
    ".found": ("fill", "#fff3d6", "#3d3216"),
    ".found ": ("stroke", "#b7791f", "#e0b04a"),
    ".first": ("fill", "#ffe1de", "#4d1f1d"),
    ".first ": ("stroke", "#d1242f", "#ff7b72"),
    ".line": ("stroke", "#8a94a6", "#76829a"),
    ".tip": ("fill", "#8a94a6", "#76829a"),
    ".copied .line": ("stroke", "#d1242f", "#ff7b72"),
    ".copied .tip,.moved": ("fill", "#d1242f", "#ff7b72"),
    ".plain": ("fill", "#f7f8fa", "#1b1f27"),
    ".engine": ("fill", "#edf4fe", "#1a2536"),
    ".kernel": ("fill", "#fdf1e0", "#2f2415"),
    ".expression": ("fill", "#f3edfd", "#281f3a"),
    ".fallback": ("fill", "#f1eeea", "#292622"),
}
"""Selectors, property, and colours of the light and the dark theme. (Few viewers support CSS variables.)"""


def _style() -> str:
    def rules(column: int) -> str:
        return "".join(
            ",".join(f".ow-graph {part.strip()}" for part in names.split(",")) + f"{{{row[0]}:{row[column]}}}"
            for names, row in COLOURS.items()
        )

    fonts = 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif'
    shapes = (
        f".ow-graph{{font-family:{fonts};max-width:100%}}"
        ".ow-graph text{font-size:12px}.ow-graph .head{font-weight:600;font-size:13px}"
        ".ow-graph .soft{font-size:11px}.ow-graph .small{font-size:10px}.ow-graph .mid{text-anchor:middle}"
        ".ow-graph .custom{stroke-width:1.5}"
        ".ow-graph .found{stroke-width:2}.ow-graph .first{stroke-width:3}.ow-graph .line{fill:none;stroke-width:1.3}"
        ".ow-graph .copied .line{stroke-dasharray:5 3}"
    )
    return f"{shapes}{rules(1)}@media (prefers-color-scheme:dark){{{rules(2)}}}"


STYLE = _style()
"""All rules are for descendants of `ow-graph`, because a style in a notebook applies to the whole page."""


class _Shape:
    """A box with a size, and labels by port: the type of a result, and whether all readers get a copy.

    `room` is the width of the box with its labels; `ports` are the offsets of lines from the middle of the box.
    """

    def __init__(self, box: Box, labels: Mapping[int, tuple[str, bool]]) -> None:
        self.box, self.labels = box, dict(sorted(labels.items()))
        chips = box.chips if len(box.chips) <= 3 else (*box.chips[:2], f"{len(box.chips) - 2} more")
        self.chips = [shorten(chip, MAX_TEXT) for chip in chips]
        rows = [_row_width(self.chips), *(text_width(shorten(line, MAX_TEXT), 11) for line in box.lines)]
        self.width = max(text_width(shorten(box.title, MAX_TEXT), 13, True), *rows, 48) + 24
        widths = [text_width(text, 11) + 14 for text, _ in self.labels.values()]
        self.room = max(self.width, sum(widths))
        if len(widths) > 1:  # each line starts above its label
            self.width = self.room
        ends = accumulate(widths)
        self.ports = {
            port: end - width / 2 - sum(widths) / 2 for port, end, width in zip(self.labels, ends, widths, strict=True)
        }
        self.is_end = box.style in ("input", "output")
        self.height = 30 + 15 * len(box.lines) + (21 if chips else 0) - (4 if self.is_end else 0)


def svg(picture: Picture, title: str) -> str:
    """Write a picture as SVG."""
    labels: list[dict[int, tuple[str, bool]]] = [{} for _ in picture.boxes]
    for edge in picture.edges:
        _, copied = labels[edge.source].get(edge.port, ("", True))
        labels[edge.source][edge.port] = edge.text, copied and edge.is_copied
    shapes = [_Shape(*of) for of in zip(picture.boxes, labels, strict=True)]
    items = [Item(shape.room, shape.box.lane) for shape in shapes]
    links = [DrawnLink(edge.source, shapes[edge.source].ports[edge.port], edge.target) for edge in picture.edges]
    placed = layout(items, links, len(picture.lanes))
    ends = line_ends(placed, links, [shape.width for shape in shapes])
    return _SvgWriter(picture, shapes, placed, ends, title).text()


class _SvgWriter:
    def __init__(
        self, picture: Picture, shapes: Sequence[_Shape], placed: Placed, ends: Sequence[float], title: str
    ) -> None:
        self.picture, self.shapes, self.placed, self.ends, self.title = picture, shapes, placed, ends, title
        self.captions = [_caption(lane) for lane in picture.lanes]
        widest = max((text_width(line, 13, True) for lines in self.captions for line in lines), default=0.0)
        self.left = PAD + widest + 2 * PAD + 12
        right = max((x + s.room / 2 for x, s in zip(placed.x, shapes, strict=True)), default=0.0)
        right = max([right, *(x for route in placed.routes for x in route)])
        self.width = self.left + right + 2 * PAD
        self._rows()

    def _rows(self) -> None:
        heights: dict[int, dict[int, float]] = {}  # lane -> layer -> height
        for layer, shape in zip(self.placed.layer, self.shapes, strict=True):
            layers = heights.setdefault(shape.box.lane, {})
            layers[layer] = max(layers.get(layer, 0.0), shape.height)
        self.tops: dict[int, float] = {}
        self.bottoms: dict[int, float] = {}
        self.lanes: list[tuple[int, float, float]] = []  # lane, from, to
        y = PAD
        for lane, layers in sorted(heights.items()):
            start = y
            y += PAD - BEND
            for layer, height in sorted(layers.items()):
                self.tops[layer] = y + BEND
                self.bottoms[layer] = y + BEND + height
                y = self.bottoms[layer] + LABEL
            if layer == self.placed.layers - 1:  # no labels below outputs
                y += PAD - LABEL
            y = max(y, start + 15 * len(self.captions[lane]) + 2 * PAD - 4)
            self.lanes.append((lane, start, y))
            y += PAD
        self.height = y

    def text(self) -> str:
        width, height = f"{self.width:.0f}", f"{self.height:.0f}"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="ow-graph" role="img" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" preserveAspectRatio="xMidYMin meet">',
            f"<title>{markup(self.title)}</title><style>{STYLE}</style>",
            f'<rect class="back" width="{width}" height="{height}" rx="8"/>',
            *(self._lane(*lane) for lane in self.lanes),
            *self._lines(),
            *(self._box(index) for index in range(len(self.shapes))),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _lane(self, lane: int, top: float, bottom: float) -> str:
        tint = self.picture.lanes[lane].tint
        rect = _rect(tint, PAD, top, self.width - 2 * PAD, bottom - top, 8)
        lines = [
            _text("soft" if number else "head", 2 * PAD, top + PAD + 11 + 15 * number, line)
            for number, line in enumerate(self.captions[lane])
        ]
        return rect + "".join(lines)

    # Lines -----------------------------------------------------------------------------------------------------------

    def _lines(self) -> list[str]:
        """Draw the lines of all edges, without duplicates; copies come last, on top."""
        lines, seen = [], set()
        order = sorted(range(len(self.picture.edges)), key=lambda k: self.picture.edges[k].is_copied)
        for k in order:
            edge = self.picture.edges[k]
            path, tip = self._path(edge, self.placed.routes[k], self.left + self.ends[k])
            kind, moved = ("copied", ", copied") if edge.is_copied else ("flow", "")
            if (path, kind) not in seen:
                seen.add((path, kind))
                lines.append(
                    f'<g class="{kind}"><title>{markup(edge.text)}{moved}</title>'
                    f'<path class="line" d="{path}"/><path class="tip" d="{tip}"/></g>'
                )
        return lines

    def _start(self, edge: Edge) -> tuple[float, float]:
        shape = self.shapes[edge.source]
        layer = self.placed.layer[edge.source]
        return self.placed.x[edge.source] + shape.ports[edge.port], self.tops[layer] + shape.height

    def _path(self, edge: Edge, route: Sequence[float], end: float) -> tuple[str, str]:
        x, y = self._start(edge)
        x += self.left
        layer = self.placed.layer[edge.source]
        parts = [f"M{x:.1f} {y:.1f}"]
        y = self.bottoms[layer] + LABEL - 4  # straight through the label
        parts.append(f"V{y:.1f}")
        for crossed, place in enumerate(route, start=layer + 1):
            parts.append(_curve(x, y, self.left + place, self.tops[crossed] - 2))
            x, y = self.left + place, self.bottoms[crossed] + LABEL - 4
            parts.append(f"V{y:.1f}")
        top = self.tops[self.placed.layer[edge.target]]
        parts.append(_curve(x, y, end, top - 5))
        tip = f"M{end - 3.6:.1f} {top - 6.5:.1f}h7.2L{end:.1f} {top:.1f}z"
        return "".join(parts), tip

    # Boxes -----------------------------------------------------------------------------------------------------------

    def _box(self, index: int) -> str:
        shape, middle = self.shapes[index], self.left + self.placed.x[index]
        box, top, left = shape.box, self.tops[self.placed.layer[index]], middle - shape.width / 2
        parts = [f"<g><title>{markup(box.tooltip)}</title>"] if box.tooltip else ["<g>"]
        if box.style == "several":  # a second rectangle behind the first
            parts.append(_rect("box", left + 4, top + 4, shape.width, shape.height, 7))
        kind = "end" if shape.is_end else "box custom" if box.style == "custom" else "box"
        kind += f" {box.mark}" if box.mark else ""
        parts.append(_rect(kind, left, top, shape.width, shape.height, shape.height / 2 if shape.is_end else 7))
        y = top + (17.5 if shape.is_end else 20)
        parts.append(_text("head mid", middle, y, shorten(box.title, MAX_TEXT)))
        for line in box.lines:
            y += 15
            parts.append(_text("soft mid", middle, y, shorten(line, MAX_TEXT)))
        x = middle - _row_width(shape.chips) / 2
        for chip in shape.chips:
            width = text_width(chip, 10) + 12
            parts.append(_rect("chip", x, y + 9, width, 15, 7))
            parts.append(_text("soft small mid", x + width / 2, y + 20, chip))
            x += width + 6
        for port, (text, is_copied) in shape.labels.items():
            x, below, width = middle + shape.ports[port], top + shape.height + 6, text_width(text, 11) + 4
            parts.append(_rect(self.picture.lanes[box.lane].tint, x - width / 2, below, width, 14, 0))
            parts.append(_text("soft mid moved" if is_copied else "soft mid", x, below + 11, text))
        return "".join([*parts, "</g>"])


def _caption(lane: DrawnLane) -> list[str]:
    head, *rest = lane.caption or ("",)
    return [*wrap(head, CAPTION), *(line for text in rest for line in wrap(text, CAPTION + 4))]


def _rect(kind: str, x: float, y: float, width: float, height: float, radius: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"/>'


def _text(style: str, x: float, y: float, text: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{markup(text)}</text>'


def _row_width(chips: Sequence[str]) -> float:
    return sum(text_width(chip, 10) + 12 for chip in chips) + 6 * max(len(chips) - 1, 0)


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """A curve that is vertical at both ends."""
    if abs(x - to_x) < 1.5:
        return f"L{to_x:.1f} {to_y:.1f}"
    half = (y + to_y) / 2
    return f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}"
