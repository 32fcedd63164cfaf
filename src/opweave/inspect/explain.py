"""A graph and what runs each of its operations, as text."""

from __future__ import annotations

from ..backends import PRECISIONS
from ..compile.engines import SWITCHED_OFF, describe_choice
from ..context.graph import MLGraph, program_of, recorded_graph, state_of
from ..support import lazy_imports
from ..support.formatting import intermediates, table


@lazy_imports.explain.provide
def explain(graph: MLGraph) -> str:
    """See `MLGraph.explain`."""
    program = program_of(graph)
    has_segments = len(program.steps) > 1
    rows = [(p.node, p.device, p.how, p.detail) for p in program.placements]
    cells = [(str(p.segment), *row) if has_segments else row for p, row in zip(program.placements, rows, strict=True)]
    precision = graph.context.precision
    lines = [f"{recorded_graph(graph)}", "", f"precision {precision}: {PRECISIONS[precision]}"]
    if program.choice:
        use = state_of(graph).use
        state = SWITCHED_OFF if use is None else use.state(())
        lines.append(f"engine: {describe_choice(program.choice, program.untried, state)}")
    lines += ["", "what runs where:", *(f"  {line}" for line in table(cells, words=5))]
    if has_segments:
        plan = program.plan
        lines += ["", f"intermediates: {intermediates(len(plan.offsets), plan.total, plan.peak)}"]
    return "\n".join(lines)
