"""Draw a comparison: the graph, or the surroundings of the first difference, with marks on operations that differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...core.graph import Graph, Node, Operand
from ...support.names import printable
from ..drawing import Drawing, render
from ..drawing.condense import LARGE
from ..drawing.picture import Box, DrawnLane, Sketch
from .result import Difference, OperationDifference, number

REACH = 4
"""Number of operations to draw before and after the first difference, if a graph is too large for one drawing."""


def drawings(difference: Difference, graph: Graph) -> list[tuple[str, Drawing]]:
    """Draw a comparison; return captions and drawings."""
    first = difference.first
    whole = render_nodes(difference, graph, graph.nodes)
    if len(graph.nodes) <= LARGE or first is None:
        return [("The graph", whole)]
    near = neighbourhood(graph, graph.nodes[first.number], REACH)
    return [
        (f"Around operation {first.number}", render_nodes(difference, graph, near)),
        ("The graph, condensed", whole),
    ]


def neighbourhood(graph: Graph, node: Node, reach: int) -> list[Node]:
    """Nodes that are at most `reach` edges before or after a node, in order."""
    readers: dict[Operand, list[Node]] = {}
    for other in graph.nodes:
        for operand in other.operands:
            readers.setdefault(operand, []).append(other)

    def before(member: Node) -> Iterable[Node]:
        return (operand.node for operand in member.operands if operand.node is not None)

    def after(member: Node) -> Iterable[Node]:
        return (reader for output in member.outputs for reader in readers.get(output, ()))

    seen = {node}
    for step in (before, after):
        edge = {node}
        for _ in range(reach):
            edge = {other for member in edge for other in step(member)}
            seen |= edge
    return [other for other in graph.nodes if other in seen]


def render_nodes(difference: Difference, graph: Graph, nodes: Sequence[Node]) -> Drawing:
    """Draw nodes of a graph; values that other nodes compute or read get boxes like inputs and outputs."""
    rows: Mapping[Node, OperationDifference] = dict(zip(graph.nodes, difference.rows, strict=False))
    inside = {output for node in nodes for output in node.outputs}
    names = {operand: printable(name) for name, operand in graph.inputs.items()}
    sketch = Sketch([DrawnLane((difference.title, difference.on, f"against {difference.against}"), "engine")])
    outside = dict.fromkeys(o for node in nodes for o in node.operands if o not in inside and not o.is_constant)
    for operand in outside:
        producer = f"from {operand.node.title}" if operand.node is not None else ""
        sketch.add(Box(names.get(operand, producer), 0, "input", tooltip=f"{producer} {operand.desc}"), (), [operand])
    for node in nodes:
        reads = [(o, str(o.desc), False) for o in dict.fromkeys(node.operands) if not o.is_constant]
        sketch.add(_box(node, rows.get(node), difference.first), reads, node.outputs)
    drawn = {*nodes}
    further = {o: node for node in graph.nodes if node not in drawn for o in node.operands if o in inside}
    ends = [(o, f"to {node.title}") for o, node in further.items()]
    ends += [(o, printable(name)) for name, o in graph.outputs.items() if o in inside]
    for operand, title in ends:
        sketch.add(
            Box(title, 2, "output", tooltip=f"{title}: {operand.desc}"), [(operand, str(operand.desc), False)], ()
        )
    return render(sketch.picture, f"comparison of {difference.title}")


def _box(node: Node, row: OperationDifference | None, first: OperationDifference | None) -> Box:
    lines = [f"{node.label!r}"] if node.label else []
    chips: list[str] = []
    if row is not None and row.verdict != "ok":
        chips = [row.verdict if row.verdict != "differs" else f"{number(row.own.ratio)} × allowed"]
    return Box(
        node.op.name,
        1,
        "operation",
        tuple(lines),
        tuple(chips),
        "\n".join(row.lines()) if row is not None else f"{node.title}: not compared",
        (node.op.name,),
        {operand: operand.desc.byte_length for operand in node.operands if operand.is_constant},
        "" if not chips else "first" if row is first else "found",
    )
