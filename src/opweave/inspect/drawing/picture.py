"""The contents of a drawing: boxes for operations, edges for values, and lanes for segments or sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ...core.graph import Graph, Node, Operand
from ...ops import Operations
from ...support.formatting import shorten, size
from ..profile import engine

if TYPE_CHECKING:
    from ...backends import Placement
    from ...run.program import Program
from ...support.names import printable

ROW = 30
"""Maximum characters of the operations of a chain that are listed in one line."""

MAX_VALUE = 300
"""Maximum characters of an attribute's value on a page."""

Style = Literal["operation", "custom", "several", "input", "output"]
"""The kind of a box; "several" stands for several operations."""
Mark = Literal["", "found", "first"]
"""Mark of a comparison: no difference in the operations of a box, a difference, or the first difference."""
Tint = Literal["plain", "engine", "kernel", "expression", "fallback"]
"""Kind of engine that runs a lane; "plain" lanes contain inputs and outputs."""


@dataclass(frozen=True)
class Details:
    """Facts about an operation that have no place in its box, for the panel of a page.

    Attributes:
        name: the label of the operation, or the name of the node.
        scope: names of the modules around the operation, from the outermost.
        engine: the engine and the device that run it.
        reason: the reason for this engine.
        attributes: names and values of attributes.
        reads: parameter, name, and description of each operand, constants included.
        writes: name and description of each result.
    """

    name: str = ""
    scope: tuple[str, ...] = ()
    engine: str = ""
    reason: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    reads: tuple[tuple[str, str, str], ...] = ()
    writes: tuple[tuple[str, str], ...] = ()


@dataclass
class Box:
    """A box: an input, an output, an operation, or several. Chips are short descriptions of constants.

    `weights` has the bytes of each constant, by the constant, since several operations may read one.
    """

    title: str
    lane: int
    style: Style = "operation"
    lines: tuple[str, ...] = ()
    chips: tuple[str, ...] = ()
    tooltip: str = ""
    operations: tuple[str, ...] = ()
    weights: Mapping[Hashable, int] = field(default_factory=dict)
    mark: Mark = ""
    details: Details = Details()


@dataclass(frozen=True)
class Edge:
    """A value that one box computes and another reads; `port` is its number among the results of the first box."""

    source: int
    port: int
    target: int
    text: str
    is_copied: bool = False


@dataclass(frozen=True)
class DrawnLane:
    """A group of boxes that run together; the first line of the caption is the heading."""

    caption: tuple[str, ...] = ()
    tint: Tint = "plain"


@dataclass
class Picture:
    """A drawing without positions. Boxes are in topological order, and the boxes of a lane are adjacent."""

    boxes: list[Box] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    lanes: list[DrawnLane] = field(default_factory=list)


class Sketch:
    """Builds a picture box by box, and adds lanes of inputs and outputs.

    `homes` has the box and the port that computes each value.
    """

    def __init__(self, lanes: Sequence[DrawnLane]) -> None:
        self.picture = Picture(lanes=[DrawnLane(("inputs",)), *lanes, DrawnLane(("outputs",))])
        self.homes: dict[Hashable, tuple[int, int]] = {}

    def add(self, box: Box, reads: Iterable[tuple[Hashable, str, bool]], makes: Iterable[Hashable]) -> None:
        """Add a box. Values that it reads come with data type and shape, and whether they are copied."""
        index = len(self.picture.boxes)
        self.picture.boxes.append(box)
        self.picture.edges += [Edge(*self.homes[value], index, text, is_copied) for value, text, is_copied in reads]
        self.homes.update({value: (index, port) for port, value in enumerate(makes)})

    def lane_of(self, value: Hashable) -> int:
        """The lane of the box that computes a value."""
        return self.picture.boxes[self.homes[value][0]].lane


NOT_COMPILED = "compiled when it first runs"


@dataclass
class _Unit:
    shown: Node
    placement: Placement | None
    segment: int
    nodes: list[Node] = field(default_factory=list)


def picture(graph: Graph, program: Program | None) -> Picture:
    """Build the picture of a user's graph; of a graph with names that has not run, without a program."""
    if program is None:
        return _sketch(
            graph,
            [_Unit(node, None, 0, [node]) for node in graph.nodes],
            [DrawnLane(("not compiled yet", NOT_COMPILED))],
        ).picture
    placements = dict(zip(graph.nodes, program.placements, strict=True))
    has_segments = len(program.steps) > 1
    if has_segments:
        units = _units(program, placements)
        legal = program.named_graph
        lanes = [_lane([placement for _, placement in program.parts(step)], step.segment) for step in program.steps]
    else:
        units = [_Unit(node, placement, 0, [node]) for node, placement in placements.items()]
        legal, lanes = graph, [_lane(list(placements.values()))]
    copied = {(number + 1, program.symbolic.get(operand, operand)) for number, operand in program.crossings()}
    return _sketch(legal, units, lanes, copied, has_segments).picture


def _sketch(
    legal: Graph,
    units: Iterable[_Unit],
    lanes: Sequence[DrawnLane],
    copied: Container[tuple[int, Operand]] = (),
    has_segments: bool = False,
) -> Sketch:
    sketch = Sketch(lanes)
    names = {operand: name for name, operand in (*legal.outputs.items(), *legal.inputs.items())}
    for name, operand in legal.inputs.items():
        tooltip = f"input {printable(name)}: {operand.desc}"
        sketch.add(Box(printable(name), 0, "input", tooltip=tooltip), (), [operand])
    for unit in sorted(units, key=lambda unit: unit.segment):
        lane = unit.segment + 1
        reads = [(operand, str(operand.desc), (lane, operand) in copied) for operand in _operands_read(unit.nodes)]
        sketch.add(_box(unit, lane, names), reads, [operand for node in unit.nodes for operand in node.outputs])
    first: dict[Operand, str] = {}
    for name, operand in legal.outputs.items():
        twin = operand in first and has_segments
        is_copied = twin or (sketch.lane_of(operand), operand) in copied
        tooltip = f"output {printable(name)}: {operand.desc}" + (f", copied from {first[operand]}" if twin else "")
        box = Box(printable(name), len(lanes) + 1, "output", tooltip=tooltip)
        sketch.add(box, [(operand, str(operand.desc), is_copied)], ())
        first.setdefault(operand, printable(name))
    return sketch


def _units(program: Program, placements: Mapping[Node, Placement]) -> list[_Unit]:
    """Make a unit of each of the user's operations; an operation that spans several segments is shown by its parts."""
    segment: dict[Node, int] = {}
    placed: dict[Node, Placement] = {}
    for step in program.steps:
        for node, placement in program.parts(step):
            segment[node], placed[node] = step.segment, placement
    homes: dict[Node, set[int]] = {}
    for node in program.graph.nodes:
        homes.setdefault(program.origin[node], set()).add(segment[node])
    units: dict[Node, _Unit] = {}
    for node in program.graph.nodes:
        origin = program.origin[node]
        whole = len(homes[origin]) == 1
        shown, placement = (origin, placements[origin]) if whole else (node, placed[node])
        units.setdefault(shown, _Unit(shown, placement, segment[node])).nodes.append(node)
    return list(units.values())


def _operands_read(nodes: Sequence[Node]) -> list[Operand]:
    own = {operand for node in nodes for operand in node.outputs}
    operands = dict.fromkeys(operand for node in nodes for operand in node.operands)
    return [operand for operand in operands if operand not in own and not operand.is_constant]


def _lane(placements: Sequence[Placement], number: int | None = None) -> DrawnLane:
    how = placements[0].how if placements else "native"
    where = ", ".join(dict.fromkeys(placement.device for placement in placements))
    detail = engine(placements)
    heading = detail.split(", ", 1) if number is None else (f"segment {number}", detail)
    return DrawnLane((*heading, f"on {where}"), how if how in ("kernel", "expression") else "engine")


def _box(unit: _Unit, lane: int, names: Mapping[Operand, str]) -> Box:
    node = unit.shown
    constants = {name: o for name, o in named_operands(node.inputs) if o.is_constant}
    arguments = dict(node.op.explicit_arguments(node.arguments))
    attributes = [f"{name} = {_short(value)}" for name, value in arguments.items() if name in node.attributes]
    place = unit.placement
    where = f"{place.how} on {place.device}: {place.detail}" if place else ""
    details = Details(
        node.label,
        scope_of(node.label),
        f"{engine([place])} on {place.device}" if place else NOT_COMPILED,
        f"{place.how}: {place.detail}" if place else "",
        tuple((name, _short(value, MAX_VALUE)) for name, value in arguments.items() if name in node.attributes),
        tuple((name, names.get(o, ""), describe(o)) for name, o in named_operands(node.inputs)),
        tuple((names.get(output, ""), str(output.desc)) for output in node.outputs),
    )
    results = [f"→ {output.desc}" for output in node.outputs]
    return Box(
        node.op.name,
        lane,
        "operation" if is_built_in(node) else "custom",
        (f"{node.label!r}",) if node.label else (),
        tuple(_chip(name, operand) for name, operand in constants.items()),
        "\n".join(filter(None, [node.title, *attributes, *results, where])),
        (node.op.name,),
        {operand: operand.desc.byte_length for operand in constants.values()},
        details=details,
    )


def scope_of(name: str) -> tuple[str, ...]:
    """The modules around an operation, from its label or the name of its node; empty if the name has no such structure.

    >>> scope_of("/layer1/layer1.0/conv1/Conv"), scope_of("encoder.layer.0.query"), scope_of("p2o.Conv.19")
    (('layer1', 'layer1.0', 'conv1'), ('encoder', 'layer', '0'), ())
    """
    parts = [part for part in name.split("/") if part]
    if "/" not in name:
        parts = name.split(".")
        if len(parts) < 3 or parts[-1].isdigit() or not all(parts):
            return ()
    return tuple(parts[:-1])


def describe(operand: Operand) -> str:
    """Data type and shape of an operand; of a constant also its value or its size."""
    if not operand.is_constant:
        return str(operand.desc)
    content = _short(operand.value.item()) if operand.desc.element_count == 1 else size(operand.desc.byte_length)
    return f"constant {operand.desc}, {content}"


def is_built_in(node: Node) -> bool:
    """Whether the specification, or a draft of it, has the operation of a node."""
    return vars(Operations).get(node.op.name) is node.op


def named_operands(inputs: Mapping[str, Any]) -> Iterator[tuple[str, Operand]]:
    """Yield the operands of a node by parameter; operands in a sequence get their index."""
    for name, value in inputs.items():
        if isinstance(value, tuple):
            yield from ((f"{name}[{number}]", item) for number, item in enumerate(value))
        elif value is not None:
            yield name, value


def _chip(name: str, operand: Operand) -> str:
    if operand.desc.element_count == 1:
        return f"{name} {_short(operand.value.item())}"
    return f"{name} {'×'.join(map(str, operand.shape))}"


def _short(value: Any, limit: int = 60) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_short, value[:8]))}{', …' if len(value) > 8 else ''}]"
    return shorten(repr(value), limit)


def summary(count: int, operations: Sequence[str], weights: int) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Title, lines and chips of a box for several operations, repeated `count` times."""
    title = f"{len(operations)} operations"
    chips = (f"weights {size(weights)}",) if weights else ()
    row = " → ".join(operations)
    if count == 1 and len(row) <= ROW:
        return row, (), chips
    words = [name if number == 1 else f"{number} {name}" for name, number in Counter(operations).items()]
    if len(words) > 6:
        words[5:] = ["…"]
    lines = [
        ", ".join(words[start : start + 2]) + ("," if start + 2 < len(words) else "")
        for start in range(0, len(words), 2)
    ]
    return (f"{count} × ({title})" if count > 1 else title), tuple(lines), chips
