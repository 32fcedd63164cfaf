"""Draw graphs and models, and write drawings into files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...context.graph import MLGraph, program_of, recorded_graph
from ...run.drawing import Drawing
from ...support import lazy_imports
from ...support.errors import require
from ...support.files import atomic_writer
from .condense import condense
from .picture import Picture, picture
from .svg import svg

if TYPE_CHECKING:
    from ...onnx.session.compiled import CompiledModel


@lazy_imports.draw.provide
def draw(graph: MLGraph, path: str | Path | None = None) -> Drawing:
    """Draw a user's graph; see `MLGraph.draw`."""
    inputs, outputs = ", ".join(graph.inputs), ", ".join(graph.outputs)
    drawing = render(picture(recorded_graph(graph), program_of(graph)), f"graph from {inputs} to {outputs}")
    if path is not None:
        save(drawing, path)
    return drawing


@lazy_imports.draw_model.provide
def draw_model(
    compiled: CompiledModel, inputs: Sequence[str], outputs: Sequence[str], title: str, path: str | Path | None
) -> Drawing:
    """Draw a compiled model; see `InferenceSession.draw`."""
    from .model import model_picture

    drawing = render(model_picture(compiled, list(inputs), list(outputs)), title)
    if path is not None:
        save(drawing, path)
    return drawing


def render(picture: Picture, title: str) -> Drawing:
    """Render a picture as SVG; large pictures are condensed first."""
    return Drawing(svg(condense(picture), title))


def save(drawing: str, path: str | Path) -> None:
    """Write a drawing into an .svg file."""
    require(Path(path).suffix.lower() == ".svg", f"draw: the name of the file must end with .svg, got {str(path)!r}")
    with atomic_writer(path) as file:
        file.write(drawing.encode())
