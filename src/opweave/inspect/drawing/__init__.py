"""Drawings of graphs, as SVG: inputs at the top, outputs at the bottom, a lane for each segment or section."""

from __future__ import annotations

from ...run.drawing import Drawing
from .api import draw, draw_model, render, save

__all__ = ["Drawing", "draw", "draw_model", "render", "save"]
