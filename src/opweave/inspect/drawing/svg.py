"""Pictures as SVG without scripts or external files, with tooltips, for light and dark themes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

from ..words import shortened
from .layout import Item, Link, Placed, layout, spread
from .picture import Box, Edge, Lane, Picture

PAD = 14.0
"""Space between boxes and lanes, and at the border."""
CAPTION = 26
"""Maximum characters of a line of a caption; longer ones are wrapped."""
MAX_TEXT = 34
"""Maximum characters of a text in a box; the tooltip has all of it."""
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
        f".ow-graph{{font-family:{fonts}}}.ow-graph text{{font-size:12px}}.ow-graph .head{{font-weight:600;font-size:13px}}"
        ".ow-graph .soft{font-size:11px}.ow-graph .small{font-size:10px}.ow-graph .mid{text-anchor:middle}"
        ".ow-graph .custom{stroke-width:1.5}.ow-graph .line{fill:none;stroke-width:1.3}"
        ".ow-graph .copied .line{stroke-dasharray:5 3}"
    )
    return f"{shapes}{rules(1)}@media (prefers-color-scheme:dark){{{rules(2)}}}"


STYLE = _style()
"""All rules are for descendants of `ow-graph`, because a style in a notebook applies to the whole page."""

NARROW, WIDE = frozenset("iljtfrI.,:;'|![]() "), frozenset("mwMWQO@%→×")


def text_width(text: str, font: float = 12, bold: bool = False) -> float:
    """An upper estimate of the width of a text in common fonts."""
    units = 0.0
    for letter in text:
        if east_asian_width(letter) in "WF":
            units += 1.05
        elif letter in NARROW:
            units += 0.4
        elif letter in WIDE:
            units += 0.97
        else:
            units += 0.72 if letter.isupper() else 0.635
    return units * font * (1.1 if bold else 1.0)


def clean(text: str) -> str:
    """Escape a text for XML; characters that XML forbids are shown by their code."""
    allowed = (
        letter if letter in "\n\t" or " " <= letter <= "\ud7ff" or "\ue000" <= letter <= "\ufffd" or letter > "\uffff"
        else f"\\u{ord(letter):04x}"
        for letter in text
    )  # fmt: skip
    return escape("".join(allowed), {'"': "&quot;", "'": "&#39;"})


@dataclass
class _Shape:
    """A box with a size."""

    box: Box
    width: float
    height: float
    labels: dict[int, tuple[str, bool]]  # by port: type of the result, and whether all readers get a copy

    def port(self, number: int) -> float:
        """The distance of a result's line from the middle of the box; it starts at the middle of its label."""
        widths = [text_width(text, 11) + 14 for _, (text, _) in sorted(self.labels.items())]
        at = sorted(self.labels).index(number)
        return sum(widths[:at]) + widths[at] / 2 - sum(widths) / 2

    @property
    def room(self) -> float:
        """The width of the box with its labels."""
        return max(self.width, sum(text_width(text, 11) + 14 for text, _ in self.labels.values()))


def svg(picture: Picture, title: str) -> str:
    """A picture as the text of an SVG file."""
    shapes = _shapes(picture)
    items = [Item(shape.room, shape.height, shape.box.lane) for shape in shapes]
    links = [Link(edge.source, shapes[edge.source].port(edge.port), edge.target) for edge in picture.edges]
    placed = layout(items, links, len(picture.lanes))
    return _Writer(picture, shapes, placed, title).text()


def _shapes(picture: Picture) -> list[_Shape]:
    labels: list[dict[int, tuple[str, bool]]] = [{} for _ in picture.boxes]
    for edge in picture.edges:
        known = labels[edge.source].get(edge.port, ("", True))
        labels[edge.source][edge.port] = edge.text, known[1] and edge.is_copied
    shapes = []
    for box, its in zip(picture.boxes, labels, strict=True):
        lines = [text_width(shortened(line, MAX_TEXT), 11) for line in box.lines]
        chips = sum(text_width(shortened(chip, MAX_TEXT), 10) + 12 for chip in _chips(box)) + 6 * max(
            len(_chips(box)) - 1, 0
        )
        width = max(text_width(shortened(box.title, MAX_TEXT), 13, True), chips, *lines, 48) + 24
        if len(its) > 1:  # each line starts above its label
            width = max(width, sum(text_width(text, 11) + 14 for text, _ in its.values()))
        height = 30 + 15 * len(lines) + (21 if chips else 0) - (4 if box.style in ("input", "output") else 0)
        shapes.append(_Shape(box, width, height, its))
    return shapes


def _chips(box: Box) -> tuple[str, ...]:
    return box.chips if len(box.chips) <= 3 else (*box.chips[:2], f"{len(box.chips) - 2} more")


class _Writer:
    """Writes a picture whose boxes have positions."""

    def __init__(self, picture: Picture, shapes: Sequence[_Shape], placed: Placed, title: str) -> None:
        self.picture, self.shapes, self.placed, self.title = picture, shapes, placed, title
        self.captions = [_caption(lane) for lane in picture.lanes]
        widest = max((text_width(line, 13, True) for lines in self.captions for line in lines), default=0.0)
        self.left = PAD + widest + 2 * PAD + 12
        right = max((x + s.room / 2 for x, s in zip(placed.x, shapes, strict=True)), default=0.0)
        right = max([right, *(x for route in placed.routes for x in route)])
        self.width = self.left + right + 2 * PAD
        self._rows()

    def _rows(self) -> None:
        """The heights of layers and lanes."""
        count = self.placed.layers
        heights = [0.0] * count
        lane_of = [0] * count
        for layer, shape in zip(self.placed.layer, self.shapes, strict=True):
            heights[layer] = max(heights[layer], shape.height)
            lane_of[layer] = shape.box.lane
        self.tops = [0.0] * count
        self.bottoms = [0.0] * count
        self.lanes: list[tuple[int, float, float]] = []  # lane, from, to
        y = PAD
        for lane in sorted(set(lane_of)):
            start = y
            y += PAD
            layers = [layer for layer in range(count) if lane_of[layer] == lane]
            for layer in layers:
                self.tops[layer] = y
                self.bottoms[layer] = y + heights[layer]
                y = self.bottoms[layer] + LABEL + BEND * (layer != layers[-1])
            is_last = layers[-1] == count - 1
            y = max(y - (LABEL - PAD) * is_last, start + 15 * len(self.captions[lane]) + 2 * PAD - 4)
            self.lanes.append((lane, start, y))
            y += PAD
        self.height = y

    def text(self) -> str:
        width, height = f"{self.width:.0f}", f"{self.height:.0f}"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="ow-graph" role="img" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">',
            f"<title>{clean(self.title)}</title><style>{STYLE}</style>",
            f'<rect class="back" width="{width}" height="{height}" rx="8"/>',
            *(self._lane(*lane) for lane in self.lanes),
            *self._lines(),
            *(self._box(index) for index in range(len(self.shapes))),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _lane(self, lane: int, top: float, bottom: float) -> str:
        tint = self.picture.lanes[lane].tint
        rect = (
            f'<rect class="{tint}" x="{PAD:g}" y="{top:.1f}" width="{self.width - 2 * PAD:.1f}" '
            f'height="{bottom - top:.1f}" rx="8"/>'
        )
        lines = [
            f'<text class="{"head" if number == 0 else "soft"}" x="{2 * PAD:g}" y="{top + PAD + 11 + 15 * number:.1f}">'
            f"{clean(line)}</text>"
            for number, line in enumerate(self.captions[lane])
        ]
        return rect + "".join(lines)

    # Lines -----------------------------------------------------------------------------------------------------------

    def _lines(self) -> list[str]:
        """The lines of all edges, without duplicates; copies are drawn last, on top."""
        entries = self._entries()
        lines, seen = [], set()
        order = sorted(range(len(self.picture.edges)), key=lambda k: self.picture.edges[k].is_copied)
        for k in order:
            edge = self.picture.edges[k]
            path, tip = self._path(edge, self.placed.routes[k], entries[k])
            if (path, edge.is_copied) in seen:
                continue
            seen.add((path, edge.is_copied))
            moved = ", copied" if edge.is_copied else ""
            lines.append(
                f'<g class="{"copied" if edge.is_copied else "flow"}"><title>{clean(edge.text)}{moved}</title>'
                f'<path class="line" d="{path}"/><path class="tip" d="{tip}"/></g>'
            )
        return lines

    def _entries(self) -> list[float]:
        """The x at which each line ends; lines to the same box end side by side."""
        coming: dict[int, list[int]] = {}
        for k, edge in enumerate(self.picture.edges):
            coming.setdefault(edge.target, []).append(k)
        found = [0.0] * len(self.picture.edges)
        for target, lines in coming.items():
            start = {k: (self.placed.routes[k] or [self._start(self.picture.edges[k])[0]])[-1] for k in lines}
            places = sorted(set(start.values()))
            middle = self.placed.x[target]
            half = min(self.shapes[target].width / 2 - 14, 14.0 * (len(places) - 1))
            wanted = [min(max(place, middle - half), middle + half) for place in places]
            gaps = [min(14.0, 2 * half / (len(places) - 1)) if len(places) > 1 else 0.0] * (len(places) - 1)
            # A line from directly above stays straight.
            weights = [1.0 if abs(place - middle) < 2 else 1e-3 for place in places]
            ends = dict(zip(places, spread(wanted, weights, gaps), strict=True))
            for k in lines:
                found[k] = self.left + ends[start[k]]
        return found

    def _start(self, edge: Edge) -> tuple[float, float]:
        shape = self.shapes[edge.source]
        layer = self.placed.layer[edge.source]
        return self.placed.x[edge.source] + shape.port(edge.port), self.tops[layer] + shape.height

    def _path(self, edge: Edge, route: Sequence[float], end: float) -> tuple[str, str]:
        x, y = self._start(edge)
        x += self.left
        layer = self.placed.layer[edge.source]
        parts = [f"M{x:.1f} {y:.1f}"]
        y = self.bottoms[layer] + LABEL - 4  # straight through the label
        parts.append(f"V{y:.1f}")
        for passed, place in enumerate(route, start=layer + 1):
            parts.append(_curve(x, y, self.left + place, self.tops[passed] - 2))
            x, y = self.left + place, self.bottoms[passed] + LABEL - 4
            parts.append(f"V{y:.1f}")
        top = self.tops[self.placed.layer[edge.target]]
        parts.append(_curve(x, y, end, top - 5))
        tip = f"M{end - 3.6:.1f} {top - 6.5:.1f}h7.2L{end:.1f} {top:.1f}z"
        return "".join(parts), tip

    # Boxes -----------------------------------------------------------------------------------------------------------

    def _box(self, index: int) -> str:
        shape, middle = self.shapes[index], self.left + self.placed.x[index]
        top = self.tops[self.placed.layer[index]]
        box = shape.box
        is_end = box.style in ("input", "output")
        parts = [f"<g><title>{clean(box.tooltip)}</title>"] if box.tooltip else ["<g>"]
        if box.style == "several":  # a second rectangle behind the first
            parts.append(_rect("box", middle - shape.width / 2 + 4, top + 4, shape.width, shape.height, 7))
        kind = "end" if is_end else "box custom" if box.style == "custom" else "box"
        radius = shape.height / 2 if is_end else 7
        parts.append(_rect(kind, middle - shape.width / 2, top, shape.width, shape.height, radius))
        y = top + (17.5 if is_end else 20)
        parts.append(
            f'<text class="head mid" x="{middle:.1f}" y="{y:.1f}">{clean(shortened(box.title, MAX_TEXT))}</text>'
        )
        for line in box.lines:
            y += 15
            parts.append(
                f'<text class="soft mid" x="{middle:.1f}" y="{y:.1f}">{clean(shortened(line, MAX_TEXT))}</text>'
            )
        parts += _chip_row(_chips(box), middle, y + 9)
        for port, (text, is_copied) in shape.labels.items():
            x, below = middle + shape.port(port), top + shape.height + 6
            width = text_width(text, 11) + 4
            lane = self.picture.lanes[box.lane].tint
            parts.append(
                f'<rect class="{lane}" x="{x - width / 2:.1f}" y="{below:.1f}" width="{width:.1f}" height="14"/>'
            )
            style = "soft mid moved" if is_copied else "soft mid"
            parts.append(f'<text class="{style}" x="{x:.1f}" y="{below + 11:.1f}">{clean(text)}</text>')
        return "".join([*parts, "</g>"])


def _caption(lane: Lane) -> list[str]:
    head, *rest = lane.caption or ("",)
    return [*wrap(head, CAPTION), *(line for text in rest for line in wrap(text, CAPTION + 4))]


def _rect(kind: str, x: float, y: float, width: float, height: float, radius: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"/>'


def _chip_row(chips: Sequence[str], middle: float, y: float) -> list[str]:
    """Constants, as a row of chips."""
    texts = [shortened(chip, MAX_TEXT) for chip in chips]
    widths = [text_width(text, 10) + 12 for text in texts]
    x = middle - (sum(widths) + 6 * (len(widths) - 1)) / 2
    parts = []
    for text, width in zip(texts, widths, strict=True):
        parts.append(_rect("chip", x, y, width, 15, 7))
        centre = f'x="{x + width / 2:.1f}" y="{y + 11:.1f}"'
        parts.append(f'<text class="soft small mid" {centre}>{clean(text)}</text>')
        x += width + 6
    return parts


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """A curve that is vertical at both ends."""
    if abs(x - to_x) < 1.5:
        return f"L{to_x:.1f} {to_y:.1f}"
    half = (y + to_y) / 2
    return f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}"


__all__ = ["clean", "svg", "text_width"]
