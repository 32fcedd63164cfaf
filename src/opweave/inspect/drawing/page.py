"""Pictures as one HTML page with pan, zoom, search and groups that open; it loads nothing from elsewhere.

The page has the outline of the picture and the layout of each group with all its groups closed. The script only makes room for
groups that are open. Names from a model are in the data alone, and the script writes them as text. A policy allows this script
by its digest, and nothing else.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any

from ...support.formatting import markup, shorten, size
from ...support.names import count_of, visible
from .families import CUSTOM, OTHER, family_of
from .layout import DrawnLink, Item, Placed, layout, line_ends
from .outline import Group, outline
from .picture import Box, Picture
from .text import text_width
from .times import Time

MAX_TITLE, MAX_LINE = 30, 34
"""Maximum characters of a title and of another line in a box."""
PADDING = 26.0
"""Space beside the texts of a box."""
GRID = 8.0
"""Widths of boxes are multiples of this, so that blocks whose names differ a little have one layout."""
BUTTON, BAR = 18.0, 9
"""Width for the button, and height for the bar of a closed group."""
PORT_GAP = 14.0
"""Distance between the lines that begin at one box."""
PORT_WIDTH = 10.0
"""Width of the place where a line enters or leaves an open group."""

Value = tuple[int, int]
"""A result: the index of its box, and its number among the results."""


def page(picture: Picture, title: str, times: Mapping[int, Time] | None = None) -> str:
    """Write a picture as a page. `times` are by the index of a box."""
    folder = Path(__file__).parent
    style, script = ((folder / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    contents = json.dumps(_PageWriter(picture, title, times).contents(), separators=(",", ":"))
    # In an element <script>, only < can begin a tag or a comment.
    contents = contents.replace("<", "\\u003c")
    digest = b64encode(sha256(f"\n{script}".encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{markup(title)}</title>\n<style>\n{style}</style></head>\n"
        f"<body>\n{(folder / 'page.html').read_text(encoding='utf-8')}"
        f'<script type="application/json" id="contents">{contents}</script>\n'
        f"<script>\n{script}</script></body></html>\n"
    )


class _PageWriter:
    def __init__(self, picture: Picture, title: str, times: Mapping[int, Time] | None) -> None:
        self.picture, self.title, self.times = picture, title, times
        self.groups: list[dict[str, Any]] = []
        self.layouts: dict[Hashable, tuple[Placed, list[float]]] = {}
        self.engines: dict[str, int] = {}
        self.reasons: dict[str, int] = {}
        self.values: dict[Value, int] = {}
        self.writes: dict[int, list[int]] = {}
        self.types: list[str] = []
        self.reads: dict[int, list[Value]] = {}
        for edge in picture.edges:
            value = edge.source, edge.port
            if value not in self.values:
                self.values[value] = len(self.values)
                self.types.append(visible(edge.text))
                self.writes.setdefault(edge.source, []).append(edge.port)
            self.reads.setdefault(edge.target, []).append(value)
        self.readers: dict[Value, list[int]] = {}
        for index, values in self.reads.items():
            for value in values:
                self.readers.setdefault(value, []).append(index)

    def contents(self) -> dict[str, Any]:
        """All that the script needs, as lists, dictionaries, strings and numbers."""
        root = outline(self.picture)
        self._group(root, "", True)
        boxes = [self._box(index, box) for index, box in enumerate(self.picture.boxes)]
        return {
            "title": visible(self.title),
            "boxes": boxes,
            "groups": self.groups,
            "values": [[box, text] for (box, _), text in zip(self.values, self.types, strict=True)],
            "engines": list(self.engines),
            "reasons": list(self.reasons),
            "timed": self.times is not None,
        }

    def _box(self, index: int, box: Box) -> dict[str, Any]:
        details = box.details
        family = family_of(box.title)
        entry: dict[str, Any] = {
            "title": visible(box.title),
            "style": box.style,
            "family": family if family != OTHER or box.style != "custom" else CUSTOM,
            "reads": [self.values[value] for value in self.reads.get(index, ())],
            "writes": [self.values[index, port] for port in self.writes.get(index, ())],
        }
        if box.style in ("input", "output"):
            return {**entry, "family": "end", "note": visible(box.tooltip)}
        entry |= {
            "name": visible(details.name),
            "engine": self.engines.setdefault(visible(details.engine), len(self.engines)),
            "reason": self.reasons.setdefault(visible(details.reason), len(self.reasons)),
            "attributes": [list(map(visible, row)) for row in details.attributes],
            "operands": [list(map(visible, row)) for row in details.reads],
            "results": [list(map(visible, row)) for row in details.writes],
        }
        if box.weights:
            entry["weights"] = size(sum(box.weights.values()))
        if self.times is not None and (time := self.times.get(index)) is not None:
            entry["seconds"] = time.seconds
            if time.shared:
                entry["shared"] = visible(time.shared)
        return entry

    # Groups --------------------------------------------------------------------------------------------------------------

    def _group(self, group: Group, path: str, is_root: bool = False) -> _Card:
        """Write a group with the layout of its members; return the card of the closed group.

        The items of the layout are the values that enter, the members, and the values that leave.
        """
        number = len(self.groups)
        self.groups.append({})
        boxes = self.picture.boxes
        members: list[int] = []
        cards: list[_Card] = []
        for member in group.members:
            if isinstance(member, Group):
                members.append(len(boxes) + len(self.groups))
                cards.append(self._group(member, f"{path}{member.title}/"))
            else:
                members.append(member)
                cards.append(self._leaf(member, path))
        enters, leaves, links = self._links(group)
        lanes = [
            {"input": 0, "output": 2}.get(boxes[member].style, 1) if is_root and member < len(boxes) else 1
            for member in members
        ]
        items = [
            *(Item(PORT_WIDTH, 0) for _ in enters),
            *(Item(card.width, lane) for card, lane in zip(cards, lanes, strict=True)),
            *(Item(PORT_WIDTH, 2) for _ in leaves),
        ]
        ports: list[dict[Value, float]] = [
            *({} for _ in enters),
            *(card.ports for card in cards),
            *({} for _ in leaves),
        ]
        lines = [DrawnLink(source, ports[source].get(value, 0.0), target) for source, value, target in links]
        placed, ends = self._layout(items, lines)
        exits = placed.x[len(items) - len(leaves) :]
        in_order = [value for _, value in sorted(zip(exits, leaves, strict=True))]
        counts = Counter(operation for leaf in group.leaves() for operation in boxes[leaf].operations)
        about = [count_of(counts.total(), "operation"), _common(counts)]
        card = _card(group.title, about, in_order, is_group=True)
        self.groups[number] = {
            "title": card.title,
            "path": visible(path),
            "width": card.width,
            "members": members,
            "sizes": [[card.width, card.height, card.title, card.lines] for card in cards],
            "enters": [self.values[value] for value in enters],
            "leaves": [self.values[value] for value in leaves],
            "x": [round(x, 1) for x in placed.x],
            "layer": placed.layer,
            "links": [
                [source, self.values[value], target, line.port, round(end - placed.x[target], 1), *map(round, route)]
                for (source, value, target), line, end, route in zip(links, lines, ends, placed.routes, strict=True)
            ],
        }
        return card

    def _links(self, group: Group) -> tuple[list[Value], list[Value], list[tuple[int, Value, int]]]:
        """The values that enter and leave a group, and the lines between its items: source, value and target."""
        home: dict[int, int] = {}
        for position, member in enumerate(group.members):
            home.update(dict.fromkeys(member.leaves() if isinstance(member, Group) else (member,), position))
        reads = [
            (home.get(value[0]), value, target) for box, target in home.items() for value in self.reads.get(box, ())
        ]
        writes = [(source, (box, port)) for box, source in home.items() for port in self.writes.get(box, ())]
        leaving = [(source, value) for source, value in writes if any(r not in home for r in self.readers[value])]
        enters = [*dict.fromkeys(value for source, value, _ in reads if source is None)]
        leaves = [value for _, value in leaving]
        entry = {value: item for item, value in enumerate(enters)}
        first, last = len(enters), len(enters) + len(group.members)
        links = [
            (entry[value] if source is None else first + source, value, first + target)
            for source, value, target in reads
            if source != target
        ]
        links += [(first + source, value, last + number) for number, (source, value) in enumerate(leaving)]
        return enters, leaves, sorted(dict.fromkeys(links), key=lambda link: (link[2], link[0], link[1]))

    def _layout(self, items: list[Item], lines: list[DrawnLink]) -> tuple[Placed, list[float]]:
        """Place items and the ends of lines. Blocks of a network are alike, and have one layout."""
        key = tuple(items), tuple(lines)
        if key not in self.layouts:
            placed = layout(items, lines, 3)
            self.layouts[key] = placed, line_ends(placed, lines, [item.width for item in items])
        return self.layouts[key]

    def _leaf(self, index: int, path: str) -> _Card:
        """The card of one box in a group; its lines are what is left of its name, and its results."""
        box = self.picture.boxes[index]
        values: list[Value] = [(index, port) for port in sorted(self.writes.get(index, ()))]
        if box.style in ("input", "output"):
            beside = values or self.reads.get(index, [])
            return _card(box.title, [self.types[self.values[value]] for value in beside[:1]], values)
        name = _local_name(box, path)
        shapes = [text for _, text in box.details.writes] or [self.types[self.values[value]] for value in values]
        return _card(box.title, [*([name] if name else []), *shapes[:1]], values)


@dataclass(frozen=True)
class _Card:
    """A closed box: its size, its texts, and the offsets of the lines that begin at it from its middle."""

    width: float
    height: int
    title: str
    lines: list[str]
    ports: dict[Value, float]


def _card(title: str, lines: Sequence[str], values: Sequence[Value], is_group: bool = False) -> _Card:
    title = visible(shorten(title, MAX_TITLE))
    lines = [visible(shorten(line, MAX_LINE)) for line in lines if line]
    width = max(text_width(title, 13, True), *(text_width(line, 11) for line in lines), PORT_GAP * len(values))
    width = ceil((width + PADDING + (BUTTON if is_group else 0)) / GRID) * GRID
    middle = (len(values) - 1) / 2
    ports = {value: PORT_GAP * (position - middle) for position, value in enumerate(values)}
    return _Card(width, 28 + 15 * len(lines) + (BAR if is_group else 0), title, lines, ports)


def _common(counts: Counter[str]) -> str:
    """The most common operations of a group, as many as fit into a line."""
    words = [name if count == 1 else f"{count} {name}" for name, count in counts.most_common()]
    for length in range(len(words), 1, -1):
        text = ", ".join(words[:length]) + (", …" if length < len(words) else "")
        if len(text) <= MAX_LINE:
            return text
    return words[0] if words else ""


def _local_name(box: Box, path: str) -> str:
    """The name of an operation without the groups around it, and without the operator at its end."""
    name, scope = box.details.name, list(box.details.scope)
    around = [part for part in path.split("/") if part]
    while scope and scope[0] in around:
        scope.pop(0)
    last = re.split("[/.]", name)[-1] if box.details.scope else name
    is_operator = re.sub(r"[\d_.]+$", "", last.strip("/").removeprefix("node_")).lower() == box.title.lower()
    return "/".join(scope if is_operator else [*scope, last] if last else scope)
