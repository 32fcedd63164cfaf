"""A graph and what runs each of its operations, as text."""

from __future__ import annotations

from collections.abc import Mapping

from ..backends import PRECISIONS
from ..compile.engines import SWITCHED_OFF, describe_choice
from ..context.dynamic_graph_state import DynamicGraphState
from ..context.graph import MLGraph, program_of, recorded_graph, state_of
from ..context.graph_state import GraphState
from ..run.program import Program
from ..support import lazy_imports
from ..support.formatting import chosen_text, intermediates, sizes_text, table
from ..support.names import count_of, printable

MAX_LISTED = 8
"""Maximum number of combinations of sizes in a line, the last used ones."""


@lazy_imports.explain.provide
def explain(graph: MLGraph) -> str:
    """See `MLGraph.explain`."""
    state = state_of(graph)
    if isinstance(state, DynamicGraphState):
        return _explain_versions(graph, state)
    return "\n".join([*_heading(graph), *_lines(program_of(graph), state)])


def _heading(graph: MLGraph) -> list[str]:
    precision, state = graph.context.precision, state_of(graph)
    origin = [state.origin(state)] if state.origin is not None else []
    return [f"{recorded_graph(graph)}", "", *origin, f"precision {precision}: {PRECISIONS[precision]}"]


def _explain_versions(graph: MLGraph, state: DynamicGraphState) -> str:
    """Explain a graph with names: its static graphs, and what runs where in the one that was used last."""
    lines = _heading(graph)
    if state.variants:
        sizes = "; ".join(sizes_text(item.guards.sizes) for item in state.variants[:MAX_LISTED])
        more = "; …" if len(state.variants) > MAX_LISTED else ""
        lines.append(
            f"{count_of(len(state.variants), 'graph')} for different sizes, the text is that of the first: {sizes}{more}"
        )
    versions = [version for _, version in state.versions.items()]
    if not versions:
        backend = graph.context.backend
        rivals = [f"{rival.name} where it is measured to be faster" for rival in backend.rivals]
        engines = ", or ".join([next(iter(backend.tunable(recorded_graph(graph)))), *rivals])
        names = ", ".join(map(printable, state.names))
        many = "each size" if len(state.names) == 1 else "each combination of sizes"
        takes_names = backend.takes_names or backend.may_take_names
        when = f"compiled when it first runs, for {'many sizes' if takes_names else many} of {names}"
        return "\n".join([*lines, f"engine: {engines}", "", when])
    texts = [sizes_text(version.sizes) for version in versions]
    omitted = [f"… ({count_of(len(texts), 'combination')})"] if len(texts) > MAX_LISTED else []
    lines.append(f"ready for {'; '.join([*omitted, *texts[-MAX_LISTED:]])}")
    for operation, needed in _by_operation(state.numbers_needed).items():
        lines.append(f"compiled for each size of {needed}: {operation} has kernels for numbers only")
    for operation, needed in _by_operation(state.numbers_preferred).items():
        lines.append(f"compiled for some sizes of {needed} alone: {operation} has other kernels for these numbers")
    if state.tailored:
        lines.append(chosen_text(state.chosen_sizes(), state.tailored))
    if state.refusal:
        lines.append(f"compiled for numbers where formulas of sizes do not hold: {state.refusal}")
    return "\n".join([*lines, *_lines(versions[-1].check_alive(), versions[-1])])


def _by_operation(names: Mapping[str, str]) -> dict[str, str]:
    """Lists of names as text, by the title of the operation that needs their numbers."""
    by_operation: dict[str, list[str]] = {}
    for name, operation in names.items():
        by_operation.setdefault(operation, []).append(printable(name))
    return {operation: ", ".join(needed) for operation, needed in by_operation.items()}


def _lines(program: Program, state: GraphState) -> list[str]:
    """The engine, and what runs where, in a static graph."""
    has_segments = len(program.steps) > 1
    rows = [(p.node, p.device, p.how, p.detail) for p in program.placements]
    cells = [(str(p.segment), *row) if has_segments else row for p, row in zip(program.placements, rows, strict=True)]
    lines = []
    sizes = f" for {sizes_text(state.sizes)}" if state.sizes else ""
    if program.choice:
        verdict = SWITCHED_OFF if state.use is None else state.use.state(())
        lines.append(f"engine: {describe_choice(program.choice, program.untried, verdict)}")
    lines += ["", f"what runs where{sizes}:", *(f"  {line}" for line in table(cells, words=5))]
    if has_segments:
        plan = program.plan
        lines += ["", f"intermediates: {intermediates(len(plan.offsets), plan.total, plan.peak)}"]
    return lines
