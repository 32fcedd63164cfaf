"""Draw graphs and models as SVG or as pages, and write drawings into files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...context.dynamic_graph_state import DynamicGraphState
from ...context.graph import MLGraph, recorded_graph, state_of
from ...run.drawing import Drawing
from ...run.profile import Profile
from ...support import lazy_imports
from ...support.errors import require
from ...support.files import atomic_writer, check_writable
from ...support.formatting import sizes_text
from .condense import LARGE, condense
from .picture import Picture, picture
from .svg import svg

if TYPE_CHECKING:
    from ...onnx.session.compiled import CompiledModel


@lazy_imports.draw.provide
def draw(
    graph: MLGraph, path: str | Path | None = None, profile: Profile | Mapping[str, float] | None = None
) -> Drawing:
    """Draw a user's graph; see `MLGraph.draw`."""
    inputs, outputs = ", ".join(graph.inputs), ", ".join(graph.outputs)
    title = f"graph from {inputs} to {outputs}"
    state = state_of(graph)
    program = None
    if not isinstance(state, DynamicGraphState):
        program = state.check_alive()
    elif (last := state.last) is not None:
        program = last.check_alive()
        title += f": {sizes_text(last.sizes)}"
    return _draw(picture(recorded_graph(graph), program), title, path, profile)


@lazy_imports.draw_model.provide
def draw_model(
    compiled: CompiledModel,
    inputs: Sequence[str],
    outputs: Sequence[str],
    title: str,
    path: str | Path | None,
    profile: Profile | Mapping[str, float] | None = None,
) -> Drawing:
    """Draw a compiled model; see `InferenceSession.draw`."""
    from .model import model_picture

    return _draw(model_picture(compiled, list(inputs), list(outputs)), title, path, profile)


def _draw(
    picture: Picture, title: str, path: str | Path | None, profile: Profile | Mapping[str, float] | None
) -> Drawing:
    """Draw a picture as its file's name says: without a file, as a page if it is large or has times."""
    suffix = "" if path is None else check_drawing(path)
    require(
        profile is None or suffix != ".svg",
        f"draw: only pages show a profile; the name of the file must end with .html, got {str(path)!r}",
    )
    if suffix == ".svg" or (not suffix and profile is None and len(picture.boxes) <= LARGE):
        drawing = render(picture, title)
    else:
        from .page import page
        from .times import times_of

        drawing = Drawing(page(picture, title, None if profile is None else times_of(picture, profile)))
    if path is not None:
        with atomic_writer(path) as file:
            file.write(drawing.encode())
    return drawing


def check_drawing(path: str | Path) -> str:
    """Require that the name of a file ends like a drawing's, and that it can be written; return the suffix."""
    suffix = Path(path).suffix.lower()
    is_drawing = suffix in (".svg", ".html", ".htm")
    require(is_drawing, f"draw: the name of the file must end with .svg or .html, got {str(path)!r}")
    check_writable(path)
    return suffix


def render(picture: Picture, title: str) -> Drawing:
    """Render a picture as SVG; large pictures are condensed first."""
    return Drawing(svg(condense(picture), title))
