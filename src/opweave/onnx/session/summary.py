"""Summaries of a session: one line, a table for notebooks, and what runs each node."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...backends import PRECISIONS
from ...compile.engines import YET, Measurement, describe_choice
from ...core.guards import Guards
from ...support.formatting import markup
from ...support.names import count_of, printable
from ..model.arguments import NodeArg, shape_text

if TYPE_CHECKING:
    from ...context.context import MLContext
    from ...core.operation import Op
    from .compiled import CompiledModel
    from .parts import SessionParts

MAX_SHOWN = 6
"""Maximum number of inputs, outputs or operators in a summary; language models have dozens."""


def line(parts: SessionParts) -> str:
    """Summarise the inputs, outputs and device of a session in one line.

    Names are quoted unless they are plain words, so that a file cannot write control characters to a terminal.
    """
    takes, gives = map(_list_arguments, _arguments_of(parts))
    nodes = count_of(len(parts.model.proto.graph.node), "node")
    return f"<InferenceSession ({takes}) -> ({gives}), {nodes} on {parts.context.device.name}>"


def html(parts: SessionParts) -> str:
    """Show inputs, outputs and operators as a table."""
    rows = [
        (kind, argument.name, argument.type, shape_text(argument.shape))
        for kind, arguments in zip(("input", "output"), _arguments_of(parts), strict=True)
        for argument in arguments
    ]
    head = "".join(f"<th>{name}</th>" for name in ("", "name", "type", "shape"))
    body = "".join(f"<tr>{''.join(f'<td>{markup(cell)}</td>' for cell in row)}</tr>" for row in rows)
    nodes = parts.model.proto.graph.node
    common = Counter(node.op_type for node in nodes).most_common()
    names = [f"{name} {number}" for name, number in common[:MAX_SHOWN]]
    names += [f"{count_of(len(common) - MAX_SHOWN, 'more operator')}"] if len(common) > MAX_SHOWN else []
    note = f"{count_of(len(nodes), 'node')} on {parts.context.device.name}: {', '.join(names)}"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div style="max-height:24em;overflow:auto">{table}</div><p>{markup(note)}</p>'


def _arguments_of(parts: SessionParts) -> tuple[list[NodeArg], list[NodeArg]]:
    return [argument.public() for argument in parts.inputs], [a.public() for a in parts.outputs.values()]


def explain_lines(compiled: CompiledModel, context: MLContext, state: str | Measurement = YET) -> list[str]:
    """Tell in lines which node of a compiled model runs where, and why nodes fell back; `state` describes verification."""
    folded = sum(step.kind == "folded" for step in compiled.trace.steps)
    precision = context.precision
    lines = [f"precision {precision}: {PRECISIONS[precision]}"]
    lines += [f"engine: {describe_choice(compiled.choice, compiled.untried, state)}"] if compiled.choice else []
    from .whole import line_of  # lazily: a line of a session needs no compiler

    with Guards(compiled.sizes).deciding():  # as when the model was compiled with names
        lines.append(line_of(compiled.trace, compiled.outputs, context, has_list=True))
    lines += customs(compiled)
    for number in range(len(compiled.sections)):
        lines.append(heading(compiled, number))
        section = compiled.sections[number]
        lines += [f"  custom: {p.node}, {p.how}, {p.detail}" for p in compiled.custom(number)]
        for step in section.nodes:
            name = f" {step.node.name!r}" if step.node.name else ""
            lines.append(f"  {step.node.op_type}{name}" + (f": {step.reason}" if step.reason else ""))
        if context.device.provider:
            lines += [f"  {p.node} on {p.device}: {p.detail}" for p in compiled.placements[number]]
    lines.append(f"{count_of(folded, 'node')} computed when the model was compiled")
    return lines


def heading(compiled: CompiledModel, number: int) -> str:
    """Heading of a section: its number, the number of nodes, and the engine."""
    section = compiled.sections[number]
    nodes = count_of(len(section.nodes), "node")
    if section.kind == "fallback":
        return f"section {number}: {nodes}, ONNX Runtime (fallback)"
    placements = compiled.placements[number]
    segments = len({placement.segment for placement in placements})
    engines = dict.fromkeys(re.split("[,:]", placement.detail, maxsplit=1)[0] for placement in placements)
    divided = f", in {segments} segments" if segments > 1 else ""
    # A section that only returns its inputs has no placement, and no engine.
    ways = f" ({' + '.join(engines)})" if engines else ", which computes nothing"
    return f"section {number}: {nodes}, WebNN on {compiled.context.device.name}{ways}{divided}"


def customs(compiled: CompiledModel) -> list[str]:
    """Lines for custom operations, one for each way to run nodes of an operation; empty if the model has none."""
    counts: dict[Op[..., Any], Counter[str]] = {}
    operators: dict[Op[..., Any], dict[str, None]] = {}  # ONNX operators of each operation, in order
    for step in compiled.trace.steps:
        if (op := step.op) is None:
            continue
        domain, op_type = step.node.domain, step.node.op_type
        operators.setdefault(op, {})[f"{domain}.{op_type}" if domain else op_type] = None
        ways = counts.setdefault(op, Counter())
        if step.kind == "fallback":
            ways[f"ONNX Runtime (fallback): {step.reason}"] += 1
        elif step.kind == "folded":
            ways["computed when the model was compiled"] += 1
    for number in range(len(compiled.sections)):
        for placement in compiled.custom(number):
            assert placement.op is not None
            counts[placement.op][f"{placement.how}, {placement.detail}"] += 1
    if not counts:
        return []
    lines = [
        f"  {op.name} for {', '.join(operators[op])}: {count_of(count, 'node')}, {way}"
        for op, ways in counts.items()
        for way, count in ways.items()
    ]
    return ["custom operations:", *lines]


def _list_arguments(arguments: Sequence[NodeArg]) -> str:
    shown = [f"{printable(a.name)}: {a.type}{shape_text(a.shape)}" for a in arguments[:MAX_SHOWN]]
    return ", ".join([*shown, f"{len(arguments) - MAX_SHOWN} more"] if len(arguments) > MAX_SHOWN else shown)
