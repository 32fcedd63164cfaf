"""Divide a trace into segments: the largest sub-graphs for WebNN, and what falls back in segments of its own.

A node's level is the number of changes between WebNN and fallback on the longest way to it. Nodes of one level and kind
form a segment: nothing between two of them runs outside of it (it is convex), and segments in the order of their levels
find all their inputs computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .messages import NodeProto, sub_graphs
from .trace import Constant, Step, Trace, free_names


@dataclass
class Segment:
    """Nodes that run together.

    Attributes:
        kind: who runs it.
        steps: its nodes, in order.
        inputs: the names that it takes from the model's inputs and from other segments.
        outputs: the names that others, or the model's outputs, take from it.
        constants: the names of constants that it uses.
    """

    kind: Literal["webnn", "fallback"]
    steps: list[Step]
    inputs: list[str]
    outputs: list[str]
    constants: list[str]


def partition(trace: Trace, outputs: Sequence[str]) -> list[Segment]:
    """The segments of a trace that `outputs` need, in an order in which they can run."""
    needed = _needed(trace, outputs)
    groups: dict[tuple[int, str], list[Step]] = {}
    for step in needed:
        if step.kind == "folded":
            continue
        makers = [trace.maker[name] for name in used_names(step.node) if name in trace.maker]
        makers = [maker for maker in makers if maker.kind != "folded"]
        step.level = max((maker.level + (maker.kind != step.kind) for maker in makers), default=0)
        groups.setdefault((step.level, step.kind), []).append(step)

    wanted = set(outputs)
    users: dict[str, set[int]] = {}
    ordered = [groups[key] for key in sorted(groups)]
    for number, steps in enumerate(ordered):
        for step in steps:
            for name in used_names(step.node):
                users.setdefault(name, set()).add(number)
    segments = []
    for number, steps in enumerate(ordered):
        made = dict.fromkeys(name for step in steps for name in step.node.output if name)
        used = dict.fromkeys(name for step in steps for name in used_names(step.node))
        foreign = [name for name in used if name not in made]
        constants = [name for name in foreign if isinstance(trace.values.get(name), Constant)]
        kind: Literal["webnn", "fallback"] = "webnn" if steps[0].kind == "webnn" else "fallback"
        segments.append(
            Segment(
                kind,
                steps,
                [name for name in foreign if not isinstance(trace.values.get(name), Constant)],
                [
                    name
                    for name in made
                    if (name in wanted or users.get(name, set()) - {number})
                    and not isinstance(trace.values[name], Constant)
                ],
                constants,
            )
        )
    return segments


def used_names(node: NodeProto) -> list[str]:
    """The names that a node takes, those of its sub-graphs included."""
    inner = (name for graph in sub_graphs(node) for name in sorted(free_names(graph)))
    return list(dict.fromkeys([*(name for name in node.input if name), *inner]))


def _needed(trace: Trace, outputs: Iterable[str]) -> list[Step]:
    """The steps that the outputs depend on, in order."""
    found: set[int] = set()
    pending = [trace.maker[name] for name in outputs if name in trace.maker]
    while pending:
        step = pending.pop()
        if id(step) not in found:
            found.add(id(step))
            pending.extend(trace.maker[name] for name in used_names(step.node) if name in trace.maker)
    return [step for step in trace.steps if id(step) in found]
