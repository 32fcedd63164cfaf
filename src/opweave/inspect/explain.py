"""What runs where, as text."""

from __future__ import annotations

from .. import links
from ..run.graph import MLGraph
from .words import intermediates


@links.explain.provide
def explain(graph: MLGraph) -> str:
    """A graph, and what runs each of its operations; `MLGraph.explain` describes it."""
    program = graph.check_alive()
    rows = [(p.node, p.device, p.how, p.detail) for p in program.placements]
    last = ""
    if len(program.steps) > 1:
        rows = [(str(p.segment), *row) for p, row in zip(program.placements, rows, strict=True)]  # type: ignore[misc]
        last = f"\n\nintermediates: {intermediates(program.plan)}"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    return f"{graph._graph}\n\nwhat runs where:\n{table}{last}"
