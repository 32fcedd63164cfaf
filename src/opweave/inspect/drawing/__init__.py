"""Drawings of graphs, with inputs at the top and outputs at the bottom.

An SVG has a lane for each segment or section. A page in HTML is for large graphs: it has groups that open, and a search.
"""

from __future__ import annotations

from ...run.drawing import Drawing
from .api import draw, draw_model, render

__all__ = ["Drawing", "draw", "draw_model", "render"]
