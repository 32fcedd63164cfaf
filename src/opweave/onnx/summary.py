"""Summaries of a session: one line, and a table for notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graph import printable
from ..names import counted
from .arguments import NodeArg

if TYPE_CHECKING:
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
    from html import escape  # with a table of all entities, 0.4 MiB, that a session does not need

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


def _listed(arguments: Sequence[NodeArg]) -> str:
    shown = [f"{printable(a.name)}: {a.type}{_shape(a)}" for a in arguments[:MAX_SHOWN]]
    return ", ".join([*shown, f"{len(arguments) - MAX_SHOWN} more"] if len(arguments) > MAX_SHOWN else shown)


def _shape(argument: NodeArg) -> str:
    sizes = [
        "?" if size is None else printable(size) if isinstance(size, str) else str(size) for size in argument.shape
    ]
    return f"[{', '.join(sizes)}]"
