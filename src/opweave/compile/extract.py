"""Cut a part out of a graph.

Requires operands of one builder; ensures that the result has the boundary operands it reached as inputs, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..graph import Graph, Node, Operand, each
from ..ops import Operations


def cut_out(inputs: Iterable[Operand], outputs: Iterable[Operand]) -> tuple[Graph, list[Operand]]:
    """The graph that computes `outputs` from `inputs`, and which of these it takes, in the order of its own inputs."""
    names = {f"x{k}": operand for k, operand in enumerate(inputs)}
    made = extract(
        {f"y{k}": operand for k, operand in enumerate(outputs)}, {operand: name for name, operand in names.items()}
    )
    return made, [names[name] for name in made.inputs]


def extract(outputs: Mapping[str, Operand], boundary: Mapping[Operand, str]) -> Graph:
    """The graph that computes `outputs` from the operands of `boundary`, under the names that it gives them.

    Inputs of the original graph must be in `boundary`; constants are taken along.
    """
    builder = Operations()
    replaced: dict[Operand, Operand] = {}
    nodes: set[Node] = set()
    pending = list(outputs.values())
    while pending:
        operand = pending.pop()
        if operand in replaced:
            continue
        if operand in boundary:
            name = boundary[operand]
            replaced[operand] = builder.inputs[name] = Operand(builder, operand.desc, name=name)
        elif operand.is_constant:
            replaced[operand] = Operand(builder, operand.desc, value=operand.value)
        else:
            assert operand.node is not None, f"{operand!r} is outside of the boundary"
            if operand.node not in nodes:
                nodes.add(operand.node)
                pending.extend(operand.node.operands)

    for node in sorted(nodes, key=lambda node: node.serial):
        inputs = each(node.inputs, replaced.__getitem__)
        descs = tuple(output.desc for output in node.outputs)
        made = builder.add_node(node.op, inputs, node.attributes, node.label, descs)
        replaced.update(zip(node.outputs, made, strict=True))
    return Graph.reaching({name: replaced[operand] for name, operand in outputs.items()})
