"""A graph as a sequence of kernels: which operations become one, and what lies in which memory.

Operations are functions of arrays whose elements are expressions. The result of an operation is pending at first: its
reader substitutes it into its own expression where nothing is computed twice by that. It gets memory, and kernels that
fill it, when an operation reads its elements more than once, when it has a second reader, or when it is an output.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ...expr import gpu, ir
from ...expr.array import Array, as_array
from ...expr.evaluate import evaluate
from ...expr.gpu import Features, Kernel, Workgroups
from ...expr.gpu.forms import row_axes
from ...expr.gpu.types import layout
from ...expr.ir import Input, Output, Program, Stored
from ...expr.simplify import simplified
from ...expr.tracing import of_input, program as make_program
from ...graph import Desc, Graph, Node, Operand, each, flat
from ...kernels import KernelCall
from ...kernels.expression import descs_of, in_data_type
from ...ops.movement import concat, reshape
from .backend import GpuBackend
from .contraction.kernels import Contraction
from .forms import applied, is_users_kernel, traced
from .patterns import Found, attentions
from .rules.flash import attend
from .rules.positions import reshaped
from .rules.results import Products, Repeated, Scatter, Stage, Staged, Stages

MAX_FUSED_CALLS = 200
"""Calls and casts of one element up to which operations are fused into one kernel: the time to compile grows with their
square. A chain of 400 takes 2.5 times as long in one kernel as in two, one of 1,600 takes 9 times as long as in eight
(Mesa's software adapter)."""

MAX_MOVED_LOADS = 4
"""Loads of an operand that only moves elements, for which it is still read through instead of stored."""

MAX_REPEATED_CALLS = 8
"""Calls of an element up to which it is computed again for each pass over a row, as in a normalisation, instead of stored."""

MAX_REPEATED_SOURCES = 2
"""Arrays of the size of the operand that may be read again for each pass. With two, as for a sum, three passes read twice what
they would read of the stored sum, from the cache; a kernel that writes it reads and writes as much, from memory."""

MAX_RESHAPED_CALLS = 8
"""Calls of an element that is read in another shape, above which it is stored first."""


@dataclass(eq=False)
class Place:
    """A place in memory that kernels read or write.

    Attributes:
        desc: data type and shape of what lies there.
        kind: a tensor of the caller, a constant, or "between" for an intermediate.
        number: of the input or output.
        value: of the constant.
    """

    desc: Desc
    kind: Literal["input", "output", "constant", "between"]
    number: int = 0
    value: Any = None


@dataclass(eq=False)
class Step:
    """A kernel, what it is bound to, and the operations that it computes.

    Attributes:
        copies: the input and the output, if all that the kernel does is to copy an input that later kernels update. It does
            not run where both lie in the same memory.
    """

    kernel: Kernel
    places: tuple[Place, ...]
    nodes: tuple[Node, ...]
    copies: tuple[Place, Place] | None = None


@dataclass(eq=False)
class Pending:
    """The result of an operation that has no memory yet.

    Attributes:
        result: its elements.
        nodes: the operations that compute it.
        anchor: the contraction whose accumulators `result` is a function of, if it is one.
        alias: the shape in which it is read, if that is not its own.
    """

    result: Array
    nodes: tuple[Node, ...]
    anchor: Contraction | None = None
    alias: tuple[int, ...] | None = None

    @cached_property
    def sources(self) -> frozenset[Input]:
        """The arrays in memory that it is computed from."""
        return frozenset(s for s in ir.sources(self.result.body) if isinstance(s, Input))

    @cached_property
    def reduces(self) -> bool:
        """Whether an element is a reduction, which is expensive to compute twice."""
        return any(isinstance(node, ir.Reduce) for node in ir.walk(self.result.body))

    @cached_property
    def calls(self) -> int:
        """Operations an element."""
        return sum(isinstance(n, (ir.Call, ir.Cast)) and n.type != "index" for n in ir.walk(self.result.body))

    @property
    def only_moves(self) -> bool:
        """Whether elements are copies of those of other arrays, which cost nothing to compute twice."""
        return not self.calls and not self.reduces and self.anchor is None


@dataclass(frozen=True, eq=False)
class _Reading:
    """How an operation reads one operand: how many loads there are, how often each element is read, and at which positions."""

    loads: int
    times: float
    aligned: bool


class Schedule:
    """The kernels of a graph.

    Rules, formulas and the structure of `Products` are the same for all languages of kernels; only `gpu.kernels`,
    `gpu.scatter`, `Contraction` and users' kernels write code.

    Args:
        graph: what to compute; `forms.supported` must hold for each node.
        backend: whose rules and users' kernels apply.
        features: features and limits of the device.

    Attributes:
        steps: in the order in which they run.
    """

    def __init__(self, graph: Graph, backend: GpuBackend, features: Features) -> None:
        self.backend, self.features = backend, features
        self.steps: list[Step] = []
        self._values: dict[Operand, Pending | Input] = {}
        self._places: dict[Input | Stored | Output, Place] = {}
        self._wanted = {operand: number for number, operand in enumerate(graph.outputs.values())}
        self._uses = Counter(operand for node in graph.nodes for operand in node.operands)
        self._uses.update(graph.outputs.values())
        for number, operand in enumerate(graph.inputs.values()):
            self._memory(operand, Place(operand.desc, "input", number))
        whole = {node: found for found in attentions(graph) for node in found.nodes}
        for node in graph.nodes:
            if node not in whole:
                self._node(node)
            elif node is whole[node].nodes[-1]:
                self._attention(whole[node])
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
        """The operand as an array in memory; if it is pending, its kernels are scheduled now."""
        value = self._value(operand)
        if isinstance(value, Input):
            return value
        place = self._target(operand, value.result.shape)
        self._fill(place, value, " + ".join(node.title for node in value.nodes))
        return self._memory(operand, place)

    def _fill(self, place: Place, value: Pending, title: str) -> None:
        """Schedule the kernels that compute a pending value into a place."""
        inputs = tuple(sorted(value.sources, key=lambda source: source.number))
        program = simplified(make_program(title, inputs, (value.result,)))
        self._places[program.outputs[0]] = place
        if value.anchor is None:
            kernels = gpu.kernels(program, self.features)
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
        """Schedule kernels for a node, or make its results pending."""
        if is_users_kernel(node, self.backend):
            self._kernel(node)
        elif node.op is reshape:
            self._reshape(node)
        elif isinstance(program := traced(node, self.backend), Products):
            self._products(node)
        elif isinstance(program, Scatter):
            self._scatter(node)
        elif isinstance(program, Staged):
            self._stages(node, program)
        elif node.op is concat and len(set(node.operands)) >= self.features.max_buffers:
            self._concat(node)
        else:
            self._expression(node, program)

    def _expression(self, node: Node, program: Program) -> None:
        """Make the results of a node pending, with pending operands substituted where that pays."""
        self._make_room(node, program)
        known: dict[Operand, Array] = {}
        nodes: list[Node] = []
        anchor: Contraction | None = None
        for operand, reading in _readings(node, program).items():
            if self._joins(operand, node, program, reading, anchor):
                value = self._values[operand]
                assert isinstance(value, Pending)
                known[operand] = value.result if value.alias is None else reshaped(value.result, value.alias)
                nodes += (n for n in value.nodes if n not in nodes)
                anchor = anchor or value.anchor
            else:
                known[operand] = self._loaded(operand)
        for operand, result in zip(node.outputs, applied(node, self.backend, known), strict=True):
            self._values[operand] = Pending(in_data_type(result, operand.data_type), (*nodes, node), anchor)

    def _loaded(self, operand: Operand) -> Array:
        """An operand that lies in memory, as an array; scalars among the constants are numbers."""
        if operand.is_constant and not operand.shape:
            number: Any = operand.value.item()
            return Array((), ir.number(number, operand.data_type))
        return of_input(self._in_memory(operand))

    def _joins(
        self, operand: Operand, node: Node, program: Program, reading: _Reading, anchor: Contraction | None
    ) -> bool:
        """Whether an operand that is pending becomes a part of the node that reads it."""
        value = self._values.get(operand)
        if not isinstance(value, Pending) or operand in self._wanted:
            return False
        if self._uses[operand] > 1 and not value.only_moves:
            return False
        if value.calls + program.operations > MAX_FUSED_CALLS:
            return False
        if value.anchor is not None or value.reduces:
            same = all(output.desc.shape == operand.shape for output in program.outputs)
            alone = value.anchor is None or (anchor is None and len(program.outputs) == 1)
            once = not program.stored and not any(isinstance(n, ir.Reduce) for n in ir.walk(*program.roots))
            return reading.aligned and same and alone and value.alias is None and once
        if value.only_moves:
            return reading.loads <= MAX_MOVED_LOADS and value.alias is None
        if reading.loads <= 1 and reading.times <= 1:
            return value.alias is None or value.calls <= MAX_RESHAPED_CALLS
        return self._is_repeated_in_rows(value, operand, program)

    def _is_repeated_in_rows(self, value: Pending, operand: Operand, program: Program) -> bool:
        """Whether a value is cheap to compute again, by a workgroup that goes over each of its rows several times."""
        size = operand.desc.element_count
        large = sum(source.desc.element_count >= size for source in value.sources)
        if value.alias is not None or value.calls > MAX_REPEATED_CALLS or large > MAX_REPEATED_SOURCES:
            return False
        (first, *others), bodies = program.outputs, [output.body for output in program.outputs]
        lanes = layout(first.desc.data_type, self.features).lanes
        return not others and not program.stored and row_axes(first.axes, bodies, lanes) is not None

    def _make_room(self, node: Node, program: Program) -> None:
        """Give memory to pending operands until one kernel can bind all that the node reads."""
        operands = [o for o in dict.fromkeys(node.operands) if not (o.is_constant and not o.shape)]
        while True:
            pending = [o for o in operands if isinstance(self._values.get(o), Pending)]
            bound: set[Any] = set()
            for operand in operands:
                value = self._values.get(operand)
                if not isinstance(value, Pending):
                    bound.add(operand if value is None else value)
                elif value.anchor is None:
                    bound |= value.sources
                else:
                    bound |= {*value.sources, *value.anchor.sources} - {value.anchor.result}
            if len(bound) + len(program.outputs) <= self.features.max_buffers or not pending:
                return
            self._in_memory(max(pending, key=lambda o: len(self._values[o].sources)))  # type: ignore[union-attr]

    def _reshape(self, node: Node) -> None:
        """Share the operand's memory. A kernel runs only to copy an operand that is in memory already to an output."""
        (operand,), (result,) = node.operands, node.outputs
        value = self._value(operand)
        if isinstance(value, Pending) and (self._uses[operand] > 1 or operand in self._wanted):
            value = self._in_memory(operand)
        if isinstance(value, Pending):
            self._values[result] = replace(value, alias=result.shape, nodes=(*value.nodes, node))
        elif result in self._wanted:
            self._values[result] = Pending(reshaped(of_input(value), result.shape), (node,))
        else:
            self._memory(result, self._places[value])

    def _products(self, node: Node) -> None:
        """A pending value whose kernels add up products; what the operation does with the sums is its expression."""
        (result,) = node.outputs
        made = applied(node, self.backend, {operand: self._loaded(operand) for operand in node.operands})
        self._values[result] = self._multiplied(made, result.desc, node)

    def _multiplied(self, made: Products, desc: Desc, node: Node) -> Pending:
        places = {side.source: self._places[side.source] for side in (made.problem.left, made.problem.right)}
        constants = {source: place.value for source, place in places.items() if place.kind == "constant"}
        found = Contraction(made.problem, Input(len(self._places), desc), constants, self.features, self.backend.tile)
        for source, array in found.arranged.items():
            self._places[source] = Place(source.desc, "constant", value=array)
        return Pending(made.finish(of_input(found.result)), (node,), found)

    def _stages(self, node: Node, made: Staged) -> None:
        """The kernels of an operation that takes several. All operations that are alike have the same stages."""
        for source, operand in zip(made.inputs, flat(node.inputs), strict=True):
            self._places[source] = self._places[self._in_memory(operand)]
        stages, results = made.planned(self.features)
        fresh: dict[Input, Place] = {}
        for operand, result in zip(node.outputs, results, strict=True):
            fresh[result] = self._target(operand)
        for stage in stages:
            for target in stage.targets:
                self._places[target] = fresh.setdefault(target, Place(target.desc, "between"))
            self._stage(stage, node)
        for operand, result in zip(node.outputs, results, strict=True):
            self._memory(operand, fresh[result])

    def _stage(self, stage: Stage, node: Node) -> None:
        title, made = f"{node.title}: {stage.title}" if stage.title else node.title, stage.made
        place = self._places[stage.target]
        if isinstance(made, Input):
            self._places[stage.target] = _viewed(self._places[made], stage.target.desc)
        elif isinstance(made, Workgroups):
            self._append([made.kernel(title, self.features)], (node,))
        elif isinstance(made, Repeated):
            self._repeated(made, node)
        elif isinstance(made, Scatter):
            self._fill(place, Pending(made.into, (node,)), f"{title}: the operand")
            self._scattered(place, made, node, f"{title}: the updates")
        elif isinstance(made, Products):
            self._fill(place, self._multiplied(made, stage.target.desc, node), title)
        else:
            value = Pending(made, (node,))
            if stage.fold and place.kind == "between" and self._is_known(value):
                self._places[stage.target] = self._computed(value)
                return
            self._fill(place, value, title)
            if place.kind == "output" and (copied := self._copied(value)):
                self.steps[-1].copies = copied, place

    def _repeated(self, made: Repeated, node: Node) -> None:
        """Schedule stages once, and the same kernels again, each time with two places swapped."""
        start = len(self.steps)
        for stage in made.stages:
            self._stage(stage, node)
        odd = self.steps[start:]
        one, other = (self._places[array] for array in made.swapped)
        swapped = {one: other, other: one}
        even = [replace(step, places=tuple(swapped.get(place, place) for place in step.places)) for step in odd]
        for number in range(1, made.count):
            self.steps += even if number % 2 else odd

    def _attention(self, found: Found) -> None:
        """The kernels of attention that a graph has in parts."""
        operands = [self._read(operand) for operand in (found.query, found.key, found.value, *found.operands)]
        problem, result = found.problem(*operands), found.result
        stages = Stages(self.features)
        target = stages.array(ir.storage(result.data_type), result.shape)
        attend(stages, problem, target, found.place)
        self._places[target] = place = self._target(result)
        for stage in stages.stages:
            assert isinstance(stage.made, Workgroups), stage
            for array in stage.targets:
                self._places.setdefault(array, Place(array.desc, "between"))
            title = f"attention: {stage.title}" if stage.title else "attention"
            self._append([stage.made.kernel(title, self.features)], found.nodes)
        self._memory(result, place)

    def _read(self, operand: Operand) -> Array:
        """An operand as an array that is read where it is, if it only moves elements of others."""
        value = self._values.get(operand)
        if not isinstance(value, Pending) or not value.only_moves:
            return self._loaded(operand)
        return value.result if value.alias is None else reshaped(value.result, value.alias)

    def _copied(self, value: Pending) -> Place | None:
        """The input that a value is an exact copy of; None if it is computed."""
        load = value.result.body
        if not isinstance(load, ir.Load) or not isinstance(load.source, Input):
            return None
        place, same = self._places[load.source], load.source.desc.shape == value.result.shape
        return place if place.kind == "input" and same and ir._aligned(load) else None

    def _is_known(self, value: Pending) -> bool:
        """Whether a value depends on constants only."""
        return all(self._places[source].kind == "constant" for source in value.sources)

    def _computed(self, value: Pending) -> Place:
        """Compute a value that depends on constants only."""
        inputs = tuple(value.sources)
        program = simplified(make_program("a constant", inputs, (value.result,)))
        desc = program.outputs[0].desc
        array = np.empty(desc.shape, desc.data_type)
        evaluate(program, [self._places[source].value for source in inputs], [array])
        return Place(desc, "constant", value=array)

    def _scatter(self, node: Node) -> None:
        """Write the operand, then the updates over it."""
        made = applied(node, self.backend, {operand: self._loaded(operand) for operand in node.operands})
        (result,) = node.outputs
        place = self._target(result)
        self._fill(place, Pending(made.into, (node,)), f"{node.title}: the operand")
        self._scattered(place, made, node, f"{node.title}: the updates")
        self._memory(result, place)

    def _concat(self, node: Node) -> None:
        """Write each operand into its part of the result, if one kernel cannot bind them all."""
        (result,) = node.outputs
        axis: int = node.attributes["axis"]
        place, start = self._target(result), 0
        for operand in node.operands:
            part = self._loaded(operand)

            def at(*p: Array, start: int = start) -> tuple[Array, ...]:
                return *p[:axis], p[axis] + start, *p[axis + 1 :]

            title = f"{node.title}: {start} to {start + operand.shape[axis]}"
            self._scattered(place, Scatter(part, operand.shape, at, lambda *p, part=part: part[p]), node, title)
            start += operand.shape[axis]
        self._memory(result, place)

    def _target(self, operand: Operand, shape: tuple[int, ...] | None = None) -> Place:
        """The place to write an operand to, optionally in another shape of the same size."""
        desc = operand.desc if shape is None else Desc(operand.data_type, shape)
        number = self._wanted.get(operand)
        return Place(desc, "between") if number is None else Place(desc, "output", number)

    def _scattered(self, place: Place, made: Scatter, node: Node, title: str) -> None:
        """Write the elements of a scatter over what lies in a place."""
        axes = tuple(ir.Index(size, k - len(made.shape)) for k, size in enumerate(made.shape))
        position = [Array((), axis) for axis in axes]
        where = tuple(as_array(index, "index").body for index in made.at(*position))
        where = tuple(index if index.type == "index" else ir.Cast(index, "index") for index in where)
        kernel, target = gpu.scatter(place.desc, axes, where, made.value(*position).body, self.features, title)
        self._places[target] = place
        self._append([kernel], (node,))

    def _kernel(self, node: Node) -> None:
        """A user kernel, in WGSL."""
        sources = {operand: self._in_memory(operand) for operand in dict.fromkeys(node.operands)}
        targets = [self._memory(operand, self._target(operand)) for operand in node.outputs]
        call = KernelCall(
            node.title, node.op, descs_of(node.inputs), node.attributes, tuple(o.desc for o in node.outputs)
        )
        inputs = each(node.inputs, sources.__getitem__)
        self._append(node.op.kernels[self.backend.name].kernels(call, inputs, targets, self.features), (node,))


def _viewed(place: Place, desc: Desc) -> Place:
    """A place whose bytes are read as another array."""
    if place.kind != "constant":
        return place
    flat = np.ascontiguousarray(place.value).reshape(-1)
    return Place(desc, "constant", value=flat.view(desc.data_type).reshape(desc.shape))


def _readings(node: Node, program: Program) -> dict[Operand, _Reading]:
    """How a node reads each of its operands."""
    numbers = list(flat(node.inputs))
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
        aligned = all(ir._aligned(load) for load in its) and len(its) <= MAX_MOVED_LOADS
        times = reads / max(1, operand.desc.element_count)
        made[operand] = _Reading(len(its) * (2 if operand in inside and len(its) > 1 else 1), times, aligned)
    return made


__all__ = ["Pending", "Place", "Schedule", "Step"]
