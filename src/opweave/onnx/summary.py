"""Summaries of a session: one line, a table for notebooks, and what runs each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..backends import PRECISIONS
from ..graph import printable
from ..names import counted
from .arguments import NodeArg

if TYPE_CHECKING:
    from ..context import MLContext
    from .compiled import CompiledModel
    from .session import InferenceSession

MAX_SHOWN = 6
"""The number of inputs, outputs or operators that a summary lists; language models have dozens."""


def line(session: InferenceSession) -> str:
    """The inputs, outputs and device of a session.

    Names are quoted unless they are plain words, so that a file cannot write control characters to a terminal.
    """
    takes, gives = _listed(session.get_inputs()), _listed(session.get_outputs())
    nodes = counted(len(session._model.proto.graph.node), "node")
    return f"<InferenceSession ({takes}) -> ({gives}), {nodes} on {session.context.device.name}>"


def html(session: InferenceSession) -> str:
    """Inputs, outputs and operators as a table."""
    from html import escape  # loads a table of all entities, which a session does not need

    rows = [
        (what, argument.name, argument.type, _shape(argument))
        for what, arguments in (("input", session.get_inputs()), ("output", session.get_outputs()))
        for argument in arguments
    ]
    head = "".join(f"<th>{name}</th>" for name in ("", "name", "type", "shape"))
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    nodes = session._model.proto.graph.node
    common = Counter(node.op_type for node in nodes).most_common()
    names = [f"{name} {number}" for name, number in common[:MAX_SHOWN]]
    names += [f"{counted(len(common) - MAX_SHOWN, 'more operator')}"] if len(common) > MAX_SHOWN else []
    note = f"{counted(len(nodes), 'node')} on {session.context.device.name}: {', '.join(names)}"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div style="max-height:24em;overflow:auto">{table}</div><p>{escape(note)}</p>'


def explained(compiled: CompiledModel, context: MLContext) -> list[str]:
    """Lines that tell which node of a compiled model runs where, and for nodes that fell back, why."""
    folded = sum(step.kind == "folded" for step in compiled.trace.steps)
    precision = context.precision
    lines = [f"precision {precision}: {PRECISIONS[precision]}"]
    lines += [f"engine: {compiled.choice}"] if compiled.choice else []
    for number, segment in enumerate(compiled.segments):
        where = f"WebNN on {context.device.name}" if segment.kind == "webnn" else "ONNX Runtime (fallback)"
        lines.append(f"segment {number}: {counted(len(segment.nodes), 'node')}, {where}")
        for step in segment.nodes:
            name = f" {step.node.name!r}" if step.node.name else ""
            lines.append(f"  {step.node.op_type}{name}" + (f": {step.reason}" if step.reason else ""))
        lines += [f"  custom: {p.node}, {p.how}, {p.detail}" for p in compiled.custom(number)]
        if context.device.provider:
            lines += [f"  {p.node} on {p.device}: {p.detail}" for p in compiled.placements(number)]
    lines.append(f"{counted(folded, 'node')} computed when the model was compiled")
    return lines


def _listed(arguments: Sequence[NodeArg]) -> str:
    shown = [f"{printable(a.name)}: {a.type}{_shape(a)}" for a in arguments[:MAX_SHOWN]]
    return ", ".join([*shown, f"{len(arguments) - MAX_SHOWN} more"] if len(arguments) > MAX_SHOWN else shown)


def _shape(argument: NodeArg) -> str:
    sizes = [
        "?" if size is None else printable(size) if isinstance(size, str) else str(size) for size in argument.shape
    ]
    return f"[{', '.join(sizes)}]"
