"""Whether a device runs all of a model, and which nodes run on the processor instead. Nothing is compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...compile.driver import nodes_on_host
from ...context.context import MLContext
from ...core.graph import Graph, Node
from ...support.names import count_of, printable
from ..convert.trace import Trace, TracedNode, Tracer
from ..model.values import Tensor
from .compiled import sections
from .summary import MAX_SHOWN

if TYPE_CHECKING:
    from ...backends import Backend, Device
    from ..model.model import Model
    from .shape_cache import Shapes


def line_without_device(model: Model, shapes: Shapes, outputs: Sequence[str], backend: Backend, device: Device) -> str:
    """Return the line for a device that this machine lacks, from the limits of its back end."""
    context = MLContext(backend.for_absent_device(), device, "default")
    return line_of(Tracer(model, context, shapes).run(), outputs, context)


def line_of(trace: Trace, outputs: Sequence[str], context: MLContext, has_list: bool = False) -> str:
    """Say whether the device of a context runs a traced model whole, else which nodes run elsewhere, and why.

    Nodes that ONNX Runtime runs as they are, and WebNN's operations that the device cannot run, are counted by operator and
    reason; beyond `MAX_SHOWN` of these, by number only. With `has_list`, a list of what falls back follows, and several
    reasons are not written twice. Nodes that are computed when the model is compiled do not count.
    """
    parts = sections(trace, outputs)
    steps = [step for part in parts for step in part.nodes]
    reasons: dict[int, tuple[str, str]] = {}  # operator and reason, by the id of a step
    owners = _owners_of(trace)
    for part in parts:
        if part.kind == "fallback":
            reasons.update((id(step), (step.node.op_type, step.reason)) for step in part.nodes)
            continue
        graph = _graph_of(trace, part.inputs, part.outputs)
        for node, reason in nodes_on_host(graph, context.backend, context.device.name).items():
            step = owners[node]
            reasons.setdefault(id(step), (step.node.op_type, reason))
    if not reasons:
        return f"runs whole on {context.device.name}"
    verb = "falls" if len(reasons) == 1 else "fall"
    where = f"{verb} back to ONNX Runtime" if context.backend.space.is_host else "on the processor"
    counts = Counter(reasons[id(step)] for step in steps if id(step) in reasons)
    groups = list(counts.items())
    start = f"{len(reasons)} of {count_of(len(steps), 'node')} {where}"
    if has_list and len(groups) > 1 and context.backend.space.is_host:
        return start
    listed = [
        f"{printable(name)}{f' {count}x' if count > 1 else ''} ({reason})"
        for (name, reason), count in groups[:MAX_SHOWN]
    ]
    if len(groups) > MAX_SHOWN:
        rest = sum(count for _, count in groups[MAX_SHOWN:])
        listed.append(count_of(rest, "more node"))
    return f"{start}: {', '.join(listed)}"


def _graph_of(trace: Trace, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """The operations of a section."""
    takes = {value.operand: name for name in inputs if isinstance(value := trace.values[name], Tensor)}
    gives = {name: value.operand for name in outputs if isinstance(value := trace.values[name], Tensor)}
    return Graph.reaching(gives, takes) if gives else Graph({}, {}, ())


def _owners_of(trace: Trace) -> Mapping[Node, TracedNode]:
    """The step that has made each operation."""
    values = {name: trace.values.get(name) for name in trace.producer}
    ends = {name: value.operand for name, value in values.items() if isinstance(value, Tensor)}
    inner = set(ends.values())
    owners: dict[Node, TracedNode] = {}
    for name, end in ends.items():
        pending = [end.node]
        while pending:
            node = pending.pop()
            if node is not None and node not in owners:
                owners[node] = trace.producer[name]
                pending += [operand.node for operand in node.operands if operand not in inner]
    return owners
