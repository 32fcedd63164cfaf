"""Operators whose kernels update inputs in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...memory import NOT_IN_PLACE, copies
from ...memory.spaces import Memory
from .. import Update

if TYPE_CHECKING:
    from ...core.desc import Desc
    from ...core.graph import Graph
    from .emit import Emitter, Value

IN_PLACE = {"GroupQueryAttention": ((3, 1), (4, 2))}
"""Pairs (input, output) that may alias, by operator: all pairs of a node, or none.

Without aliasing, the kernel copies the inputs. If only one of two pairs aliases, the kernel overwrites the past with zeros:
https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/contrib_ops/cpu/bert/gqa_attention_base.h"""


def find_updates(
    nodes: Iterable[tuple[str, Sequence[str], Sequence[str]]],
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> list[Update]:
    """Find the inputs of a model that its nodes update. Only an input without other readers is updated in place.

    `nodes` are (operator, inputs, outputs) of all nodes, including sub-graphs. `inputs` and `outputs` are positions by name,
    `sizes` are the known bytes of results.
    """
    all_nodes = list(nodes)
    updating = [node for node in all_nodes if node[0] in IN_PLACE]
    if not updating:
        return []
    readers = Counter(list(outputs))
    readers.update(name for _, read, _ in all_nodes for name in read)
    updates = []
    for op_type, read, written in updating:
        places = IN_PLACE[op_type]
        pairs = [(read[i], written[o]) for i, o in places if i < len(read) and o < len(written)]
        fits = len(pairs) == len(places) and all(i in inputs and o in outputs and readers[i] == 1 for i, o in pairs)
        copied = [read[i] for i, _ in places if i < len(read) and read[i]]
        if copied:
            updates.append(
                Update(
                    tuple((inputs[i], outputs[o]) for i, o in pairs) if fits else (),
                    tuple(inputs[i] for i in copied if i in inputs),
                    tuple(sizes[i] for i in copied if i in sizes and i not in inputs),
                )
            )
    return updates


def updates_of(ctx: Emitter, emitted: Mapping[str, tuple[Value, Desc]], graph: Graph) -> list[Update]:
    """Find the updates by the nodes that an emitter wrote for a graph with the inputs `i0`, `i1`, …"""
    places: dict[str, int] = {}
    for k, (value, _) in enumerate(emitted.values()):
        places.setdefault(value.name, k)  # the second output of the same value is a separate Identity
    nodes = ((node.op_type, node.inputs, node.outputs) for node in ctx.nodes)
    return find_updates(nodes, {f"i{k}": k for k in range(len(graph.inputs))}, places, ctx.sizes)


def count_copies(updates: Sequence[Update], inputs: Sequence[Memory], outputs: Sequence[Memory] = ()) -> None:
    """Count the engine's copies in a run on this memory; without `outputs`, no output aliases an input."""
    sizes = [size for update in updates for size in update.copy_sizes(inputs, outputs)]
    if sizes:
        copies.add(sum(sizes), NOT_IN_PLACE, len(sizes))


def wrap_to_count(
    call: Callable[[], None], updates: Sequence[Update], inputs: Sequence[Memory], outputs: Sequence[Memory]
) -> Callable[[], None]:
    """Wrap `call`, bound to this memory, to count the engine's copies; return `call` itself if there are none."""
    if not any(update.copy_sizes(inputs, outputs) for update in updates):
        return call

    def run() -> None:
        call()
        count_copies(updates, inputs, outputs)

    return run
