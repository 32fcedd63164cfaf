"""Draw which rooms of src/opweave import which others: docs/images/house.svg.

    python tools/draw_house.py

Rooms are listed as in CONTRIBUTING.md. An arc joins a room with one above it from which it imports.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "opweave"
PICTURE = ROOT / "docs" / "images" / "house.svg"

ROW, LEFT, NAMES, SMALL = 26, 16, 150, 13
"""Height of a row, margins and width of the names, and size of the text, in pixels."""

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #15181e }
path { fill: none; stroke: #3d6fb4; stroke-opacity: .45; stroke-width: 1.2 }
path:hover { stroke: #c8701a; stroke-opacity: 1; stroke-width: 2.5 }
.dot { fill: #3d6fb4 }
@media (prefers-color-scheme: dark) { text { fill: #e9edf3 } path { stroke: #8ab4f0 } .dot { fill: #8ab4f0 } }
"""


def rooms() -> list[str]:
    """The rooms in the order of CONTRIBUTING.md."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Rooms\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+)/`", page, re.MULTILINE)


def room_of(path: tuple[str, ...], listed: list[str]) -> str:
    """The room of a module given by the parts of its path; empty for the package itself."""
    return next((name for k in (2, 1) if (name := "/".join(path[:k])) in listed), "")


def imported(file: Path) -> Iterator[tuple[str, ...]]:
    """The modules that a file imports when it is loaded, as parts of their paths."""
    package = file.relative_to(SOURCE).parts[:-1]
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            for alias in node.names:
                yield (*base, *(node.module or "").split("."), alias.name) if node.module else (*base, alias.name)


@cache
def arrows() -> set[tuple[str, str]]:
    """Pairs of a room and another one from which it imports."""
    listed = rooms()
    found: set[tuple[str, str]] = set()
    for file in SOURCE.rglob("*.py"):
        room = room_of(file.relative_to(SOURCE).parts, listed)
        found |= {(room, room_of(path, listed)) for path in imported(file)}
    return {(room, other) for room, other in found if room and other and room != other}


def picture() -> str:
    """The picture as SVG."""
    listed = rooms()
    height = {name: LEFT + ROW * number + ROW / 2 for number, name in enumerate(listed)}
    start = LEFT + NAMES
    lines = []
    for room, other in sorted(arrows(), key=lambda pair: (listed.index(pair[0]), listed.index(pair[1]))):
        below, above = height[room], height[other]
        wide = (below - above) / 2
        lines.append(
            f'<path d="M{start} {below:g}A{wide:g} {wide:g} 0 0 0 {start} {above:g}">'
            f"<title>{room} imports {other}</title></path>"
        )
    for name, y in height.items():
        lines.append(
            f'<text x="{LEFT}" y="{y + SMALL / 3:g}">{name}/</text><circle class="dot" cx="{start}" cy="{y:g}" r="3"/>'
        )
    tall = 2 * LEFT + ROW * len(listed)
    wide = start + tall / 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {tall}" width="{wide:g}" height="{tall}">',
            "<title>Rooms of Opweave, and which others each of them imports from</title>",
            f"<style>{STYLE}</style>",
            *lines,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)}: {len(rooms())} rooms, {len(arrows())} arrows\n")
