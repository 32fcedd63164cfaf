"""Copy the steps of a layer for the equal layers that follow.

Two layers are scheduled. If the second one begins and ends in the same state, the kernels of the next layer are the same, with
other memory. The state consists of the operands that later nodes read, each in memory or pending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from ...core.graph import Desc, Node, Operand
from ...core.sizes import Size
from ...expr import ir
from ...expr.array import Traced
from ...expr.ir import Index, Input, Stored
from .constants import ConstantQuestion, GpuConstant
from .contraction.kernels import Contraction
from .fusion import Pending
from .layers import LayerRun
from .steps import Buffer, Kernels, KernelStep, Repetition, SizeTable


class UnlikeError(Exception):
    """A layer whose steps cannot be copied, for example because its code depends on constants in an unrecorded way."""


class _Structure:
    """A key of a value that is equal for values of the same structure; `inputs` are the arrays that it reads, in order."""

    def __init__(self) -> None:
        self.inputs: dict[Input, None] = {}
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, str, bytes)):
            return value
        if isinstance(value, Size):
            return Size, value.terms
        if isinstance(value, float):
            return float, repr(value)
        if isinstance(value, Desc):
            return Desc, value.data_type, self.of(value.shape)
        if isinstance(value, (tuple, list)):
            return (type(value), *map(self.of, value))
        if isinstance(value, Mapping):
            return dict, *((self.of(key), self.of(entry)) for key, entry in value.items())
        if isinstance(value, Input):
            self.inputs.setdefault(value)
            return Input, self._number(value), self.of(value.desc)
        if isinstance(value, Traced):
            return Traced, self.of(value.shape), self._expression(value.body)
        if isinstance(value, ir.Expr):
            return self._expression(value)
        if isinstance(value, GpuConstant):
            return GpuConstant, value.how, self.of(value.source.shape), value.source.dtype
        if isinstance(value, Contraction):
            return self._contraction(value)
        if is_dataclass(value):
            return (type(value), *(self.of(getattr(value, field.name)) for field in fields(value)))
        return value

    def _contraction(self, value: Contraction) -> Any:
        if id(value) in self._numbers:
            return Contraction, self._number(value)
        others = value.problem, value.result, value.arranged, value.orderings, value.method, value.tile, value.splits
        return Contraction, self._number(value), *map(self.of, others), self.of(value.combined)

    def _expression(self, root: ir.Expr) -> Any:
        nodes = []
        for node in ir.walk(root):
            if id(node) in self._numbers:
                continue
            parts = tuple(self._number(part) for part in node.parts)
            nodes.append((type(node), node.type, *self._payload(node), parts, self._number(node)))
        return tuple(nodes), self._number(root)

    def _payload(self, node: ir.Expr) -> tuple[Any, ...]:
        if isinstance(node, ir.Load) and isinstance(node.source, Stored):
            if id(node.source) in self._numbers:
                return (self._number(node.source),)
            axes, body = self.of(node.source.axes), self._expression(node.source.body)
            return self._number(node.source), axes, body
        if isinstance(node, ir.Load):
            return (self.of(node.source),)
        if isinstance(node, Index):
            return self.of(node.extent), node.axis
        if isinstance(node, ir.Reduce):
            return node.reduction, self.of(node.variables)
        if isinstance(node, ir.Const) and isinstance(node.value, Size):
            return Size, node.value.terms
        return ir.payload(node)

    def _number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._held.append(value)
        return self._numbers.setdefault(id(value), len(self._numbers))


@dataclass(frozen=True, eq=False)
class _Live:
    """The value of an operand that nodes behind a position read, and the places of the arrays that it reads, in order."""

    operand: Operand
    value: Pending | Input
    form: Any
    places: tuple[tuple[Input, Buffer | None], ...]


@dataclass(frozen=True, eq=False)
class LayerState:
    """The values that nodes behind a position may read.

    Attributes:
        number: of the first node behind the position.
        live: by the operand's place in the graph, relative to the position if it belongs to a layer; else by identity.
        cached: for places that `live` reads, the results of kernels that are not repeated (`Kernels.cached`).
        arrays: what is in `live` and the constants that the next layer reads, in the order in which kernels bind arrays.
    """

    number: int
    live: Mapping[Any, _Live]
    cached: Mapping[Buffer, tuple[tuple[Any, tuple[Buffer, ...]], ...]]
    arrays: Sequence[Any]


class LayerCopies:
    """Copies of the steps of a layer, for one run of layers.

    Args:
        nodes: all nodes of the graph.
        order: the number of each node.
        reads: for each operand, the numbers of the nodes with which its readers are scheduled.
        outputs: the number of each operand that is an output.
        values: the schedule's value of each operand.
        kernels: the schedule's kernels.
        unrounded: the schedule's unrounded nodes.
    """

    def __init__(
        self,
        run: LayerRun,
        nodes: Sequence[Node],
        order: Mapping[Node, int],
        reads: Mapping[Operand, Sequence[int]],
        outputs: Mapping[Operand, int],
        values: MutableMapping[Operand, Pending | Input],
        kernels: Kernels,
        unrounded: set[Node],
    ) -> None:
        self.run, self.nodes, self.order = run, nodes, order
        self.last_uses = {operand: max(numbers) for operand, numbers in reads.items()}
        self.uses_in_run = {o: max((n for n in numbers if n < run.end), default=-1) for o, numbers in reads.items()}
        self.outputs, self.values, self.kernels, self.unrounded = outputs, values, kernels, unrounded

    # States -----------------------------------------------------------------------------------------------------------

    def state(self, number: int) -> LayerState:
        """The state before the node of this number."""
        live: dict[Any, _Live] = {}
        cached: dict[Buffer, tuple[tuple[Any, tuple[Buffer, ...]], ...]] = {}
        for operand, value in self.values.items():
            if operand.node is None or not self._is_read(operand, value, number):
                continue
            at = self.order[operand.node]
            form, content = _Structure(), None
            # By identity: an operand that is compared with a number raises an error.
            key: Any = (id(operand), id(value))
            if at >= self.run.start:
                key = at - number, operand.node.outputs.index(operand)
                content = form.of(value.desc if isinstance(value, Input) else (value.result, value.alias, value.anchor))
                if isinstance(value, Pending):
                    content = content, tuple(self._relative(node, number) for node in value.nodes)
                else:
                    form.inputs.setdefault(value)
            else:
                form.of(value if isinstance(value, Input) else (value.result, value.anchor))
            places = tuple((source, self.kernels.places.get(source)) for source in form.inputs)
            kinds = [None if p is None else (p.kind, form.of(p.desc)) for _, p in places]
            works = []
            for place in dict.fromkeys(p for _, p in places if p is not None):
                entries = self.kernels.cached.get(place)
                if entries:
                    cached[place] = tuple((work, tuple(results)) for work, results in entries.items())
                    works.append([form.of(work) for work in entries])
            live[key] = _Live(operand, value, (type(value), content, kinds, form.of(works)), places)
        numbers: list[tuple[int, Any]] = [
            (source.number, (key, k)) for key, one in live.items() for k, (source, _) in enumerate(one.places)
        ]
        for operand in dict.fromkeys(
            o for node in self.nodes[number : number + self.run.length] for o in node.operands
        ):
            array = self.values.get(operand)
            if operand.is_constant and isinstance(array, Input):
                numbers.append((array.number, id(operand)))
        arrays = [key for _, key in sorted(numbers, key=lambda pair: pair[0])]
        return LayerState(number, live, cached, arrays)

    def _is_read(self, operand: Operand, value: Pending | Input, number: int) -> bool:
        """Whether a value matters for the layers from a position on: their nodes read it, or it has no memory yet."""
        if isinstance(value, Pending):
            return operand in self.outputs or self.last_uses.get(operand, -1) >= number
        return self.uses_in_run.get(operand, -1) >= number

    def _relative(self, node: Node, number: int) -> Any:
        at = self.order[node]
        return at - number if at >= self.run.start else node

    def crossing(self, one: LayerState, other: LayerState) -> dict[Buffer, Buffer] | None:
        """The places of one state in another one, a layer later; None if the states differ."""
        if one.live.keys() != other.live.keys() or one.arrays != other.arrays:
            return None
        places: dict[Buffer, Buffer] = {}
        back: dict[Buffer, Buffer] = {}

        def pair(before: Buffer | None, behind: Buffer | None) -> bool:
            if before is None or behind is None:
                return before is behind
            return places.setdefault(before, behind) is behind and back.setdefault(behind, before) is before

        for key, live in one.live.items():
            same = other.live[key]
            if live.form != same.form:
                return None
            for (_, before), (_, behind) in zip(live.places, same.places, strict=True):
                if not pair(before, behind):
                    return None
        for before, behind in list(places.items()):
            for (_, results), (_, others) in zip(one.cached.get(before, ()), other.cached.get(behind, ()), strict=True):
                if not all(pair(*both) for both in zip(results, others, strict=True)):
                    return None
        return places

    def may_install(self, state: LayerState, crossing: Mapping[Buffer, Buffer]) -> bool:
        """Whether the pending values behind later layers may be those of this state, with their arrays in other places.

        Nothing else may read these arrays then.
        """
        own = {live.operand: live for live in self.moving(state)}
        moved = {
            source
            for live in own.values()
            if isinstance(live.value, Pending)
            for source, place in live.places
            if place is None or crossing.get(place) is not place
        }
        behind = state.number + self.run.length
        for operand, value in self.values.items():
            is_read = self.last_uses.get(operand, -1) >= behind or operand in self.outputs
            if not moved or not is_read:
                continue
            if operand in own and isinstance(value, Pending):
                return False
            form = _Structure()
            form.of(value if isinstance(value, Input) else (value.result, value.anchor))
            if not moved.isdisjoint(form.inputs):
                return False
        return True

    def moving(self, state: LayerState) -> Iterator[_Live]:
        """The values of layers, without those from before the run."""
        for live in state.live.values():
            assert live.operand.node is not None
            if self.order[live.operand.node] >= self.run.start:
                yield live

    def place_in_memory(self, operand: Operand) -> Buffer | None:
        """The place of an operand in memory; None for a pending one, or a constant that nothing has read yet."""
        value = self.values.get(operand)
        return self.kernels.places[value] if isinstance(value, Input) else None

    def place_of(self, operand: Operand) -> Buffer:
        """The place of a constant or an input of the graph."""
        place = self.place_in_memory(operand)
        if place is None:
            assert operand.is_constant, operand
            place = Buffer(operand.desc, "constant", value=GpuConstant.of(operand.value))
            self.values[operand] = self.kernels.array_in(operand.desc, place)
        return place

    # Copies -----------------------------------------------------------------------------------------------------------

    def copy(
        self,
        steps: Sequence[KernelStep],
        state: LayerState,
        crossing: Mapping[Buffer, Buffer],
        questions: Sequence[ConstantQuestion],
        unrounded: set[Node],
    ) -> int:
        """Copy the steps of a layer for the layers that follow. Returns the number of the node behind the last of them.

        Args:
            steps: the steps of the layer.
            state: the state behind the layer.
            crossing: the places of the state before the layer, in `state`.
            questions: what the code of these steps asked of constants.
            unrounded: the nodes that scheduling the layer found to be unrounded.
        """
        layer: _CopiedLayer | None = None
        first = state.number
        while first + self.run.length <= self.run.end:
            following = _CopiedLayer(self, steps, state.number - self.run.length, first, crossing, layer)
            try:
                following.check(questions)
                copied = following.steps()
                following.install(state, is_last=False)
            except UnlikeError:
                break
            self.kernels.steps += copied
            self.unrounded.update(map(following.node, unrounded))
            layer, first = following, first + self.run.length
        if layer is not None:
            layer.install(state, is_last=True)
        return first


class _CopiedLayer:
    """A layer whose steps are copied: the places, operands and nodes that correspond to those of the layer with the steps.

    Args:
        copies: the copies of the run.
        steps: the steps to copy.
        source: the number of the first node of their layer.
        first: the number of the first node of this layer.
        crossing: as in `LayerCopies.copy`.
        previous: the layer before; None for the layer with the steps.
    """

    def __init__(
        self,
        copies: LayerCopies,
        steps: Sequence[KernelStep],
        source: int,
        first: int,
        crossing: Mapping[Buffer, Buffer],
        previous: _CopiedLayer | None,
    ) -> None:
        self._copies, self._steps, self._distance = copies, steps, first - source
        self._crossing, self._previous = crossing, previous
        self._places: dict[Buffer, Buffer] = {}
        self._sources: dict[int, np.ndarray] = {}
        self._own = {
            place
            for step in steps
            for place, writes in zip(step.places, step.kernel.writes, strict=True)
            if writes and place not in crossing
        }
        self._operands: dict[Operand, Operand] = {}
        for number in range(source, source + copies.run.length):
            pairs = zip(copies.nodes[number].operands, copies.nodes[number + self._distance].operands, strict=True)
            self._operands.update((one, other) for one, other in pairs if one.node is None)
            outputs = zip(copies.nodes[number].outputs, copies.nodes[number + self._distance].outputs, strict=True)
            self._operands.update(outputs)
        self._by_place = {
            copies.kernels.places[value]: operand
            for operand in self._operands
            if operand.node is None and isinstance(value := copies.values.get(operand), Input)
        }
        self._numbers = {
            copies.outputs[one]: copies.outputs[other]
            for one, other in self._operands.items()
            if one in copies.outputs and other in copies.outputs
        }

    def node(self, node: Node) -> Node:
        at = self._copies.order[node]
        return self._copies.nodes[at + self._distance] if at >= self._copies.run.start else node

    def place(self, place: Buffer) -> Buffer:
        """The place that corresponds to a place of the layer with the steps."""
        other = self._places.get(place)
        if other is None:
            other = self._places[place] = self._make_place(place)
        return other

    def _make_place(self, place: Buffer) -> Buffer:
        operand = self._by_place.get(place)
        own = None if operand is None else self._operands[operand]
        if place in self._crossing:
            behind = self._crossing[place]
            crossed = behind if self._previous is None else self._previous.place(behind)
            if own is not None and self._copies.place_in_memory(own) is not crossed:
                raise UnlikeError("an array that the layer before and this one read, and that differs between layers")
            return crossed
        if own is not None:
            return self._copies.place_of(own)
        if place.value is not None:
            if (sources := self._copies.kernels.computed.get(place)) is not None:
                if all(self.place(source) is source for source in sources):
                    return place
                raise UnlikeError("a constant that is computed from other constants")
            return self._constant(place, place.value)
        if isinstance(place.values, SizeTable):
            if all(self.place(source) is source for source in place.values.places):
                return place
            raise UnlikeError("a table of sizes that is computed from other constants")
        if place not in self._own:
            raise UnlikeError("an array of an earlier layer")
        if place.kind == "output":
            return Buffer(place.desc, "output", self._numbers[place.number])
        return Buffer(place.desc, place.kind)

    def _constant(self, place: Buffer, value: GpuConstant) -> Buffer:
        source = self._source(value.source)
        return place if source is value.source else Buffer(place.desc, "constant", value=value.on(source))

    def _source(self, source: np.ndarray) -> np.ndarray:
        """The array or view that corresponds to one of a constant of the layer with the steps."""
        same = [other.value for one, other in self._operands.items() if one.value is source]
        if same and all(value is same[0] for value in same):
            return same[0]
        start = source.ctypes.data
        holders = [
            (one, other)
            for one, other in self._operands.items()
            if one.is_constant and 0 <= start - one.value.ctypes.data < max(1, one.value.nbytes)
        ]
        if len(holders) != 1:
            raise UnlikeError("a constant of unknown origin, or in the memory of several")
        ((one, other),) = holders
        if other is one:
            return source
        array = one.value
        if array.dtype != other.value.dtype or not (array.flags.c_contiguous and other.value.flags.c_contiguous):
            raise UnlikeError("a view of a constant in another layout")
        key = id(source)
        view = self._sources.get(key)
        if view is None:
            data, offset = other.value.reshape(-1).view(np.uint8), start - array.ctypes.data
            view = self._sources[key] = np.ndarray(source.shape, source.dtype, data, offset, source.strides)
        return view

    def check(self, questions: Sequence[ConstantQuestion]) -> None:
        """Raise `UnlikeError` if a constant of this layer has another answer to a question."""
        for question in questions:
            constant = question.constant.on(self._source(question.constant.source))
            if constant.holds(question.predicate, *question.arguments) != question.answer:
                raise UnlikeError("another constant")

    def steps(self) -> list[KernelStep]:
        copied: dict[KernelStep, KernelStep] = {}
        repetitions: dict[Repetition | None, Repetition | None] = {None: None}
        for step in self._steps:
            if step not in copied:
                nodes = tuple(map(self.node, step.nodes))
                pairs = zip(step.nodes, nodes, strict=True)
                titles = {one.title: other.title for one, other in pairs if one.title != other.title}
                if step.repetition is not None and step.repetition not in repetitions:
                    repetitions[step.repetition] = step.repetition.with_places(self.place)
                copied[step] = replace(
                    step,
                    places=tuple(map(self.place, step.places)),
                    nodes=nodes,
                    copies=step.copies and (self.place(step.copies[0]), self.place(step.copies[1])),
                    titles=titles,
                    repetition=repetitions[step.repetition],
                )
        return [copied[step] for step in self._steps]

    def install(self, state: LayerState, *, is_last: bool) -> None:
        """Set the values of this layer's operands that later nodes read; pending ones only behind the last layer."""
        copies = self._copies
        values, kernels = copies.values, copies.kernels
        moving = list(copies.moving(state))
        arrays = {source: self.place(place) for live in moving for source, place in live.places if place is not None}
        end = state.number + self._distance
        for number in range(state.number - copies.run.length, state.number):
            for one, operand in zip(
                copies.nodes[number].outputs, copies.nodes[number + self._distance].outputs, strict=True
            ):
                value, is_read = values.get(one), copies.last_uses.get(operand, -1) >= end or operand in copies.outputs
                if isinstance(value, Input) and is_read and operand not in values:
                    values[operand] = kernels.array_in(value.desc, self.place(kernels.places[value]))
        if is_last:
            # Kernels bind arrays in the order of their numbers: the same arrays behind the layers give the same kernels.
            moved = [live for live in moving if isinstance(live.value, Pending) or not self._is_read(live.operand, end)]
            for source in dict.fromkeys(source for live in moved for source, _ in live.places):
                if source in arrays:
                    kernels.places[source] = arrays[source]
            for place, works in state.cached.items():
                kernels.cached[self.place(place)] = {work: list(map(self.place, results)) for work, results in works}
            for live in moved:
                assert live.operand.node is not None
                number = live.operand.node.outputs.index(live.operand)
                operand, value = self.node(live.operand.node).outputs[number], live.value
                if isinstance(value, Pending):
                    value = replace(value, nodes=tuple(map(self.node, value.nodes)))
                values[operand] = value

    def _is_read(self, operand: Operand, number: int) -> bool:
        """Whether nodes from this number on read an operand."""
        return self._copies.last_uses.get(operand, -1) >= number
