"""Estimate the memory of a run besides inputs, outputs and constants, before the graph is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .. import ops
from ..core.graph import Desc, Graph
from ..core.size_terms import variables_of
from ..core.size_values import values_at
from ..memory import Life, plan

MIN_ELEMENT_BYTES = 4
"""Minimum bytes of an element: engines compute smaller types in float32 or int32."""

GATES = {ops.gru: 3, ops.lstm: 4}
"""Number of gates of a recurrent network. Kernels keep the products of each gate for all steps while they run."""

MAX_PLANNED = 128
"""The largest number of intermediates for an estimate with fragmentation: the plan takes quadratic time."""


def intermediate_bytes(graph: Graph, sizes: Mapping[str, int] = MappingProxyType({})) -> int:
    """Estimate the memory of all intermediates of a run. Intermediates whose lifetimes do not overlap share memory.

    Fused operations take less. Engines fold constants, so results of constants alone stay in memory. `sizes` are those of
    names; dimensions that do not follow from them count as 1.
    """
    outputs, last = set(graph.outputs.values()), len(graph.nodes)
    used = {operand: step for step, node in enumerate(graph.nodes) for operand in node.operands}
    varying = set(graph.inputs.values())
    lives = []
    for step, node in enumerate(graph.nodes):
        is_varying = not varying.isdisjoint(node.operands)
        if (gates := GATES.get(node.op)) is not None:
            first = node.outputs[0].desc  # [directions, batches, hidden_size]
            steps = values_at(node.attributes["steps"], sizes)
            lives.append(Life(gates * steps * _bytes(first, sizes), step, step))
        for result in node.outputs:
            if is_varying:
                varying.add(result)
            if result not in outputs or not is_varying:
                end = used.get(result, step)
                lives.append(Life(_bytes(result.desc, sizes), *((step, end) if is_varying else (0, last))))
    return _peak(lives)


def _peak(lives: list[Life]) -> int:
    """The memory of a plan, or for many intermediates, which take long to plan, the peak of live bytes."""
    if len(lives) <= MAX_PLANNED:
        return plan(lives).peak
    steps = max(life.last for life in lives) + 2
    changes = [0] * steps
    for life in lives:
        changes[life.first] += life.size
        changes[life.last + 1] -= life.size
    peak = now = 0
    for change in changes:
        now += change
        peak = max(peak, now)
    return peak


def _bytes(desc: Desc, sizes: Mapping[str, int]) -> int:
    shape = values_at(tuple([size for size in desc.shape if sizes.keys() >= {*variables_of(size)}]), sizes)
    static = Desc(desc.data_type, shape)
    return max(static.byte_length, static.element_count * MIN_ELEMENT_BYTES)
