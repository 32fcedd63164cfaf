"""Drawings of graphs, as SVG: inputs at the top, outputs at the bottom, a lane for each part that something runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import require
from ...files import written
from ...graph import Graph
from .condense import condense
from .picture import Picture, picture
from .svg import svg

if TYPE_CHECKING:
    from ...backends import Executable


def draw(graph: Graph, executable: Executable) -> str:
    """The drawing of a user's graph."""
    inputs, outputs = ", ".join(graph.inputs), ", ".join(graph.outputs)
    return render(picture(graph, executable), f"graph from {inputs} to {outputs}")


def render(picture: Picture, title: str) -> str:
    """The drawing of a picture; large ones are condensed first."""
    return svg(condense(picture), title)


def save(drawing: str, path: str | Path) -> None:
    """Write a drawing into a file.

    Raises:
        ValidationError: the file's name says that it is something else, as that of a .png does.
        DataError: the file cannot be written.
    """
    require(Path(path).suffix.lower() == ".svg", f"draw: the name of the file must end with .svg, got {str(path)!r}")
    with written(path) as file:
        file.write(drawing.encode())


__all__ = ["draw", "render", "save"]
