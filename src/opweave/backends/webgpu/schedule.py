"""A graph as a sequence of kernels: which operations become one, and what lies in which memory.

Operations are functions of arrays whose elements are expressions. What one makes is not computed at once: it is passed to
those that read it, as an expression still, and becomes a part of theirs where nothing is computed twice for that. It gets
memory, and kernels that fill it, when somebody needs that: an operation that reads elements more than once, a second
reader, or the one who wants the result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...cache import Cache
from ...errors import ValidationError
from ...expr import compute, ir, wgsl
from ...expr.array import Array, as_array
from ...expr.ir import Input, Output, Program, Stored
from ...expr.simplify import simplified
from ...expr.tracing import of_input, program as make_program
from ...expr.wgsl import Features, Kernel
from ...graph import Desc, Graph, Node, Operand, each, flat
from ...kernels import KernelCall
from ...kernels.expression import descs_of, program_of
from ...operation import call_with
from ...ops.movement import concat, reshape
from .contraction import Contraction, contraction
from .rules import RULES, Scatter

LARGEST = 200
"""Calls and casts in one kernel, beyond which nothing more is made a part of it."""


@dataclass(eq=False)
class Place:
    """Memory that kernels read and write.

    Attributes:
        desc: data type and shape of what lies there.
        kind: a tensor of the caller, a constant, or what only kernels see.
        number: of the input or output.
        value: of the constant.
    """

    desc: Desc
    kind: Literal["input", "output", "constant", "between"]
    number: int = 0
    value: Any = None


@dataclass(eq=False)
class Step:
    """A kernel, what it is bound to, and the operations that it computes."""

    kernel: Kernel
    places: tuple[Place, ...]
    nodes: tuple[Node, ...]


@dataclass(eq=False)
class Pending:
    """What an operation makes, before it has memory.

    Attributes:
        result: its elements.
        nodes: the operations that it takes.
        anchor: the contraction whose accumulators `result` is a function of, if it is one.
        alias: the shape that it is read in, if that is another one.
    """

    result: Array
    nodes: tuple[Node, ...]
    anchor: Contraction | None = None
    alias: tuple[int, ...] | None = None
    _sources: frozenset[Input] | None = None
    _facts: tuple[bool, bool, int] | None = None

    @property
    def sources(self) -> frozenset[Input]:
        """The arrays in memory that it is computed from."""
        if self._sources is None:
            self._sources = frozenset(s for s in ir.sources(self.result.body) if isinstance(s, Input))
        return self._sources

    def _known(self) -> tuple[bool, bool, int]:
        if self._facts is None:
            nodes = ir.walk(self.result.body)
            calls = sum(isinstance(n, (ir.Call, ir.Cast)) and n.type != "index" for n in nodes)
            self._facts = any(isinstance(n, ir.Reduce) for n in nodes), calls == 0, calls
        return self._facts

    @property
    def reduces(self) -> bool:
        """Whether an element is a reduction, dear to compute twice."""
        return self._known()[0]

    @property
    def only_moves(self) -> bool:
        """Whether elements are those of other arrays as they are, which cost nothing to read anew."""
        reduces, plain, _ = self._known()
        return plain and not reduces and self.anchor is None

    @property
    def calls(self) -> int:
        """Operations an element."""
        return self._known()[2]


def forms(op: Any) -> Callable[..., Any] | None:
    """What makes an array of arrays for an operation: the rule for it here, or its own formula."""
    return RULES.get(op) or op.formula


def is_users_kernel(op: Any) -> bool:
    """Whether an operation runs as a kernel of the user's, as it does where the back end has no rule for it."""
    return op not in RULES and "webgpu" in op.kernels


@dataclass(frozen=True, eq=False)
class _Reading:
    """How an operation reads one operand: how many loads there are, how often each element is read, and at which positions."""

    loads: int
    times: float
    aligned: bool


traces: Cache[Any, Program | Scatter] = Cache(1024)
"""What operations are as programs, by operation, form, operands and attributes."""


def traced(node: Node) -> Program | Scatter:
    """A node's operation, on operands that all lie in memory."""
    descs = descs_of(node.inputs)
    key = node.op, forms(node.op), tuple(descs.items()), tuple(node.attributes.items())
    return traces.make(key, lambda: _trace(node, descs))


def _trace(node: Node, descs: Mapping[str, Any]) -> Program | Scatter:
    if node.op not in RULES:  # an expression of a user's, which may have indices to check
        return simplified(program_of(node.op, descs, node.attributes))
    inputs: list[Input] = []

    def array(desc: Desc) -> Array:
        inputs.append(Input(len(inputs), desc))
        return of_input(inputs[-1])

    made = _applied(node, each(descs, array))
    return made if isinstance(made, Scatter) else simplified(make_program(node.op.name, tuple(inputs), made))


def _applied(node: Node, given: Mapping[str, Any]) -> Any:
    """The arrays (or the scatter) that a node's operation makes of others."""
    form = forms(node.op)
    assert form is not None, node
    result = call_with(form, {**given, **node.attributes})
    if isinstance(result, Scatter):
        return result
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def supported(node: Node, features: Features) -> str | None:
    """Why there are no kernels for a node; empty if there are; None if it must be decomposed first."""
    descs = [o.desc for o in (*node.operands, *node.outputs)]
    if not features.int64 and any(d.data_type in ("int64", "uint64") for d in descs):
        return "shaders of this device have no 64-bit integers"
    if is_users_kernel(node.op) or contraction(node, features) is not None:
        return ""
    if forms(node.op) is None:
        if node.op.decomposition is None and node.op.kernels:
            return f"its kernels are for {', '.join(map(repr, node.op.kernels))}, not for 'webgpu'"
        return None
    try:
        program = traced(node)
    except ValidationError as error:  # positions beyond int32
        return str(error)
    return "" if isinstance(program, Scatter) else wgsl.unsupported(program, features)


class Schedule:
    """The kernels of a graph.

    Attributes:
        steps: in the order in which they run.
        outputs: for each output its place; several may be the same.
    """

    def __init__(self, graph: Graph, features: Features) -> None:
        self.graph, self.features = graph, features
        self.steps: list[Step] = []
        self._values: dict[Operand, Pending | Input] = {}
        self._places: dict[Input | Stored | Output, Place] = {}
        self._wanted = {operand: number for number, operand in enumerate(graph.outputs.values())}
        self._uses = Counter(operand for node in graph.nodes for operand in node.operands)
        self._uses.update(graph.outputs.values())
        for number, operand in enumerate(graph.inputs.values()):
            self._memory(operand, Place(operand.desc, "input", number))
        for node in graph.nodes:
            self._node(node)
        for operand in graph.outputs.values():
            self._in_memory(operand)

    # Operands --------------------------------------------------------------------------------------------------------

    def _memory(self, operand: Operand, place: Place) -> Input:
        """Note that an operand lies in memory."""
        source = Input(len(self._places), operand.desc)
        self._places[source] = place
        self._values[operand] = source
        return source

    def _value(self, operand: Operand) -> Pending | Input:
        known = self._values.get(operand)
        if known is None:
            assert operand.is_constant, operand
            known = self._memory(operand, Place(operand.desc, "constant", value=operand.value))
        return known

    def _in_memory(self, operand: Operand) -> Input:
        """The operand as an array in memory; what it takes to compute it is scheduled now if it is not there yet."""
        value = self._value(operand)
        if isinstance(value, Input):
            return value
        place = self._target(operand, value.result.shape)
        self._fill(place, value, " + ".join(node.title for node in value.nodes))
        return self._memory(operand, place)

    def _fill(self, place: Place, value: Pending, title: str) -> None:
        """Schedule the kernels that compute a pending value."""
        inputs = tuple(sorted(value.sources, key=lambda source: source.number))
        program = simplified(make_program(title, inputs, (value.result,)))
        self._places[program.outputs[0]] = place
        if value.anchor is None:
            kernels = wgsl.kernels(program, self.features)
        else:
            plain = isinstance(program.outputs[0].body, ir.Load)
            self._places[value.anchor.result] = place  # where it goes without an epilogue
            kernels = value.anchor.kernels(None if plain else program, title)
        self._append(kernels, value.nodes)

    def _append(self, kernels: Sequence[Kernel], nodes: tuple[Node, ...]) -> None:
        for kernel in kernels:
            for key in kernel.bindings:
                if key not in self._places:
                    self._places[key] = Place(key.desc, "between")
            self.steps.append(Step(kernel, tuple(self._places[key] for key in kernel.bindings), nodes))

    # Nodes -----------------------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        """Make pending values of what a node yields, or kernels."""
        if is_users_kernel(node.op):
            self._kernel(node)
        elif node.op is reshape:
            self._reshape(node)
        elif (found := contraction(node, self.features)) is not None:
            self._contraction(node, found)
        elif isinstance(program := traced(node), Scatter):
            self._scatter(node)
        elif node.op is concat and len(set(node.operands)) >= self.features.max_buffers:
            self._concat(node)
        else:
            self._expression(node, program)

    def _expression(self, node: Node, program: Program) -> None:
        """Make pending values of what a node yields, which those that it reads may become a part of."""
        self._make_room(node, program)
        known: dict[Operand, Array] = {}
        nodes: list[Node] = []
        anchor: Contraction | None = None
        for operand, reading in _readings(node, program).items():
            if self._joins(operand, node, program, reading, anchor):
                value = self._values[operand]
                assert isinstance(value, Pending)
                known[operand] = self._as_array(value)
                nodes += (n for n in value.nodes if n not in nodes)
                anchor = anchor or value.anchor
            else:
                known[operand] = self._loaded(operand)
        made = _applied(node, each(node.inputs, known.__getitem__))
        for operand, result in zip(node.outputs, made, strict=True):
            if result.data_type in ("bool", "index"):  # what others read is what would be stored
                result = Array(result.shape, ir.Cast(result.body, operand.data_type))
            self._values[operand] = Pending(result, (*nodes, node), anchor)

    def _loaded(self, operand: Operand) -> Array:
        """An operand that lies in memory, as an array; scalars among the constants are numbers."""
        if operand.is_constant and not operand.shape:
            number: Any = operand.value.item()
            return Array((), ir.number(number, operand.data_type))
        return of_input(self._in_memory(operand))

    def _as_array(self, value: Pending) -> Array:
        if value.alias is None:
            return value.result
        shape = value.alias
        return compute(shape, lambda *at: _element(value.result, shape, at))

    def _joins(
        self, operand: Operand, node: Node, program: Program, reading: _Reading, anchor: Contraction | None
    ) -> bool:
        """Whether an operand that is pending becomes a part of the node that reads it."""
        value = self._values.get(operand)
        if not isinstance(value, Pending) or operand in self._wanted:
            return False
        if self._uses[operand] > 1 and not value.only_moves:
            return False
        if value.calls + program.operations > LARGEST:
            return False
        if value.anchor is not None or value.reduces:
            same = all(output.desc.shape == operand.shape for output in program.outputs)
            alone = value.anchor is None or (anchor is None and len(program.outputs) == 1)
            once = not program.stored and not any(isinstance(n, ir.Reduce) for n in ir.walk(*program.roots))
            return reading.aligned and same and alone and value.alias is None and once
        if value.only_moves:
            return reading.loads <= 4 and value.alias is None
        return reading.loads <= 1 and reading.times <= 1 and (value.alias is None or value.calls <= 8)

    def _make_room(self, node: Node, program: Program) -> None:
        """Give memory to pending operands until one kernel can bind all that the node reads."""
        operands = [o for o in dict.fromkeys(node.operands) if not (o.is_constant and not o.shape)]
        while True:
            pending = [o for o in operands if isinstance(self._values.get(o), Pending)]
            bound: set[Any] = set()
            for operand in operands:
                value = self._values.get(operand)
                bound |= value.sources if isinstance(value, Pending) else {operand if value is None else value}
                if isinstance(value, Pending) and value.anchor is not None:
                    bound |= {(operand, k) for k in range(len(value.anchor.inputs))}
            if len(bound) + len(program.outputs) <= self.features.max_buffers or not pending:
                return
            self._in_memory(max(pending, key=lambda o: len(self._values[o].sources)))  # type: ignore[union-attr]

    def _reshape(self, node: Node) -> None:
        """The same memory in another shape; a kernel only where an output must be written that is an input, say."""
        (operand,), (result,) = node.operands, node.outputs
        value = self._value(operand)
        if isinstance(value, Pending) and (self._uses[operand] > 1 or operand in self._wanted):
            value = self._in_memory(operand)
        if isinstance(value, Pending):
            self._values[result] = replace(value, alias=result.shape, nodes=(*value.nodes, node))
        elif result in self._wanted:
            flat = of_input(value)
            shape = result.shape
            made = compute(shape, lambda *at: _element(flat, shape, at)) if shape else _scalar(flat)
            self._values[result] = Pending(made, (node,))
        else:
            self._memory(result, self._places[value])

    def _contraction(self, node: Node, found: Contraction) -> None:
        (result,) = node.outputs
        for number, (operand, source) in enumerate(zip(found.operands, found.inputs, strict=True)):
            prepare = found.prepared.get(number) if operand.is_constant else None
            if prepare is None:
                self._places[source] = self._places[self._in_memory(operand)]
            else:
                value = prepare(operand.value)
                self._places[source] = Place(source.desc, "constant", value=value)
        self._values[result] = Pending(of_input(found.result), (node,), found)

    def _scatter(self, node: Node) -> None:
        """The operand as it is, then the updates over it."""
        known = {operand: self._loaded(operand) for operand in dict.fromkeys(node.operands)}
        made = _applied(node, each(node.inputs, known.__getitem__))
        assert isinstance(made, Scatter)
        (result,) = node.outputs
        place = self._target(result)
        self._fill(place, Pending(made.into, (node,)), f"{node.title}: the operand")
        self._scattered(place, made.shape, made.at, made.value, node, f"{node.title}: the updates")
        self._memory(result, place)

    def _concat(self, node: Node) -> None:
        """Each operand into its part of the result, where one kernel cannot bind them all."""
        (result,) = node.outputs
        axis: int = node.attributes["axis"]
        place, start = self._target(result), 0
        for operand in node.operands:
            part = self._loaded(operand)
            offset = start

            def at(*position: Array, offset: int = offset) -> tuple[Array, ...]:
                return tuple(p + offset if k == axis else p for k, p in enumerate(position))

            def value(*position: Array, part: Array = part) -> Array:
                return part[position]

            title = f"{node.title}: {start} to {start + operand.shape[axis]}"
            self._scattered(place, operand.shape, at, value, node, title)
            start += operand.shape[axis]
        self._memory(result, place)

    def _target(self, operand: Operand, shape: tuple[int, ...] | None = None) -> Place:
        """Where an operand is written, which may be in another shape of as many elements."""
        desc = operand.desc if shape is None else Desc(operand.data_type, shape)
        number = self._wanted.get(operand)
        return Place(desc, "between") if number is None else Place(desc, "output", number)

    def _scattered(
        self,
        place: Place,
        shape: tuple[int, ...],
        at: Callable[..., Sequence[Array]],
        value: Callable[..., Array],
        node: Node,
        title: str,
    ) -> None:
        axes = tuple(ir.Index(size, k - len(shape)) for k, size in enumerate(shape))
        position = [Array((), axis) for axis in axes]
        where = tuple(as_array(index, "index").body for index in at(*position))
        where = tuple(index if index.type == "index" else ir.Cast(index, "index") for index in where)
        kernel, target = wgsl.scatter(place.desc, axes, where, value(*position).body, self.features, title)
        self._places[target] = place
        self._append([kernel], (node,))

    def _kernel(self, node: Node) -> None:
        """A kernel of the user's, in WGSL."""
        sources = {operand: self._in_memory(operand) for operand in dict.fromkeys(node.operands)}
        targets = []
        for operand in node.outputs:
            source = Input(len(self._places), operand.desc)
            self._places[source] = self._target(operand)
            targets.append(source)
            self._values[operand] = source
        call = KernelCall(
            node.title, node.op, descs_of(node.inputs), node.attributes, tuple(o.desc for o in node.outputs)
        )
        inputs = each(node.inputs, sources.__getitem__)
        self._append(node.op.kernels["webgpu"].kernels(call, inputs, targets, self.features), (node,))


def _readings(node: Node, program: Program) -> dict[Operand, _Reading]:
    """How a node reads each of its operands."""
    numbers = list(flat({name: node.inputs.get(name) for name in node.op.operands}))
    loads: dict[Operand, list[ir.Load]] = {operand: [] for operand in numbers}
    inside: Counter[Operand] = Counter()
    largest = max(output.desc.element_count for output in program.outputs)
    roots = [*(stored.body for stored in program.stored), *program.roots]
    owners = dict(zip(program.inputs, numbers, strict=True))
    for root in roots:
        for found in ir.walk(root):
            if isinstance(found, ir.Load) and isinstance(found.source, Input):
                loads[owners[found.source]].append(found)
            if isinstance(found, ir.Reduce):
                domain = math.prod(variable.extent for variable in found.variables)
                for part in ir.walk(found.body):
                    if isinstance(part, ir.Load) and isinstance(part.source, Input):
                        operand = owners[part.source]
                        inside[operand] = max(inside[operand], largest * domain)
    made = {}
    for operand, its in loads.items():
        reads = inside[operand] or largest
        aligned = all(ir._aligned(load) for load in its) and len(its) <= 4
        times = reads / max(1, operand.desc.element_count)
        made[operand] = _Reading(len(its) * (2 if operand in inside and len(its) > 1 else 1), times, aligned)
    return made


def _element(array: Array, shape: tuple[int, ...], at: Sequence[Array]) -> Array:
    """The element of `array` at a position of the same elements in another shape."""
    flat: Any = 0
    for size, index in zip(shape, at, strict=True):
        flat = flat * size + index
    position = []
    for size in reversed(array.shape):
        position.append(flat % size)
        flat = flat // size
    return array[tuple(reversed(position))] if array.shape else array


def _scalar(array: Array) -> Array:
    return array[(0,) * array.rank] if array.rank else array


__all__ = ["Pending", "Place", "Schedule", "Step", "is_users_kernel", "supported", "traced"]
