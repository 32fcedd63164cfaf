"""Schedule a graph as a sequence of kernels, and assign each array to memory.

The result of an operation is pending at first. A reader inlines a pending value, if nothing is recomputed by that. A pending
value gets memory and kernels when an operation reads an element more than once, when the value has a second reader, or
when the value is an output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core.graph import Desc, Graph, Node, Operand, iter_operands, map_operands
from ...core.sizes import is_same_shape, is_same_size
from ...expr import ir
from ...expr.array import Traced, is_rounded, round_float16
from ...expr.gpu import Features
from ...expr.ir import Formula, Input
from ...expr.tracing import of_input
from ...kernels import KernelCall
from ...kernels.expression import descs_of, in_data_type
from ...ops.constants import computed
from ...ops.formulas import reshape_array
from ...ops.movement import concat, reshape
from ...support.digests import SMALL_BYTES
from .. import NumbersNeededError
from ..size_input import SizeInput
from .backend import GpuBackend
from .constants import GpuConstant, asked_of
from .contraction.kernels import Contraction
from .diamonds import diamond_operands
from .forms import apply_node, is_users_kernel, names_needed, trace
from .fusion import Pending, ReadPattern, combine, is_of_rows, joins, read_patterns
from .layer_copies import LayerCopies
from .layers import LayerRun, layer_runs
from .patterns import AttentionMatch, attentions
from .prefetch import prefetch_matrices
from .rules.flash import attend
from .rules.products import TAKE_VIEWS
from .rules.results import Products, Scatter, Staged, Stages, view_of
from .shared_operand import merge_steps
from .steps import Buffer, Kernels, KernelStep

MAX_UNLIKE = 3
"""The largest number of layers of a run that are scheduled until one begins and ends in the same state."""


class Schedule:
    """The kernels of a graph, as `steps` in execution order.

    Rules, formulas and `Products` are the same for all kernel languages; only `gpu.kernels`, `gpu.scatter`, `Contraction`
    and users' kernels write code. `fusion` decides which pending values are inlined; `steps` holds the kernels and their
    memory. `forms.refusal_of` must be empty for each node.

    Attributes:
        begun: results of `GpuBackend.begin`.
        unrounded: nodes whose float16 result another node reads unrounded.
        computes_large: whether constants were computed from constants of more than `SMALL_BYTES`.
    """

    def __init__(self, graph: Graph, backend: GpuBackend, features: Features) -> None:
        self.backend, self.features = backend, features
        self._rounds = backend.precision == "ieee"
        self.unrounded: set[Node] = set()
        if graph.has_names:
            _require_numbers(graph, backend, features)
        self._kernels = Kernels(backend, features)
        self._values: dict[Operand, Pending | Input] = {}
        self._tables: dict[int, Buffer] = {}
        self._outputs = {operand: number for number, operand in enumerate(graph.outputs.values())}
        self._uses = Counter(operand for node in graph.nodes for operand in node.operands)
        self._uses.update(graph.outputs.values())
        self._in_diamonds = diamond_operands(graph, backend)
        for number, operand in enumerate(graph.inputs.values()):
            self._memory(operand, Buffer(operand.desc, "input", number))
        matches = [match for match in attentions(graph, features) if not (self._rounds and match.has_halves)]
        self._nodes(graph.nodes, {node: match for match in matches for node in match.nodes})
        for operand in graph.outputs.values():
            self._in_memory(operand)
        steps, unrounded = merge_steps(self._read_steps(), features, rounds=self._rounds)
        self.steps = prefetch_matrices(steps, features)
        self.unrounded |= unrounded
        self.begun = self._kernels.begun
        sources = (source for sources in self._kernels.computed.values() for source in sources)
        self.computes_large = any(source.desc.byte_length > SMALL_BYTES for source in sources)

    def _read_steps(self) -> list[KernelStep]:
        """The steps whose results are read: a graph may use only some results of an operation.

        All kernels of users are kept, so that the compiler reports errors also in kernels that write nothing.
        """
        read: set[Buffer] = set()
        needed: list[KernelStep] = []
        for step in reversed(self._kernels.steps):
            written = [place for place, writes in zip(step.places, step.kernel.writes, strict=True) if writes]
            # Each iteration reads states that the previous iteration has written.
            is_read = step.repetition or any(place.kind == "output" or place in read for place in written)
            if is_read or any(is_users_kernel(node, self.backend) for node in step.nodes):
                needed.append(step)
                read.update(step.places)
        return needed[::-1]

    # Operands --------------------------------------------------------------------------------------------------------

    def _memory(self, operand: Operand, place: Buffer) -> Input:
        source = self._values[operand] = self._kernels.array_in(operand.desc, place)
        return source

    def _value(self, operand: Operand) -> Pending | Input:
        value = self._values.get(operand)
        if value is None:
            assert operand.is_constant, operand
            value = self._memory(operand, Buffer(operand.desc, "constant", value=GpuConstant.of(operand.value)))
        return value

    def _in_memory(self, operand: Operand) -> Input:
        """The operand as an array in memory. Schedules the kernels of a pending operand."""
        value = self._value(operand)
        if isinstance(value, Input):
            return value
        table = None if operand in self._outputs else self._kernels.table_of(value)
        if table is not None:
            return self._memory(operand, table)
        place = self._target(operand, value.result.shape)
        self._kernels.fill(place, value, " + ".join(node.title for node in value.nodes))
        return self._memory(operand, place)

    # Nodes -----------------------------------------------------------------------------------------------------------

    def _nodes(self, nodes: Sequence[Node], attentions: Mapping[Node, AttentionMatch]) -> None:
        """Schedule the nodes; those of `attentions` together. The steps of equal layers are copies."""
        order = {node: number for number, node in enumerate(nodes)}
        last = {node: order[match.nodes[-1]] for node, match in attentions.items()}

        def schedule(start: int, end: int) -> None:
            for node in nodes[start:end]:
                if node not in attentions:
                    self._node(node)
                elif last[node] == order[node]:
                    self._attention(attentions[node])

        def facts_of(node: Node) -> Any:
            if node.op is computed:
                return node  # each node has its own table, so layers that contain one are not copied
            facts = ((self._uses[o], o in self._outputs, o in self._in_diamonds) for o in node.outputs)
            return *facts, last[node] - order[node] if node in last else None

        number = 0
        for run in layer_runs(nodes, facts_of):
            schedule(number, run.start)
            number = self._layers(run, nodes, order, last, schedule)
        schedule(number, len(nodes))

    def _layers(
        self,
        run: LayerRun,
        nodes: Sequence[Node],
        order: Mapping[Node, int],
        last: Mapping[Node, int],
        schedule: Callable[[int, int], None],
    ) -> int:
        """Schedule equal layers. Returns the number of the node behind the last one.

        `last` has the number of the node with which some nodes are scheduled; `schedule` schedules the nodes in a range.
        """
        reads: dict[Operand, list[int]] = {}
        for node in nodes:
            for operand in node.operands:
                reads.setdefault(operand, []).append(last.get(node, order[node]))

        def schedule_layer(first: int) -> None:
            schedule(first, first + run.length)
            for operand in (o for node in nodes[first : first + run.length] for o in node.outputs):
                if operand in self._outputs and operand in self._values:
                    self._in_memory(operand)  # nothing would inline it later, either

        copies = LayerCopies(run, nodes, order, reads, self._outputs, self._values, self._kernels, self.unrounded)
        number = run.start + run.length
        schedule_layer(run.start)
        before = copies.state(number)
        for _ in range(min(run.count - 2, MAX_UNLIKE)):
            count, unrounded = len(self._kernels.steps), set(self.unrounded)
            with asked_of() as questions:
                schedule_layer(number)
            number += run.length
            behind = copies.state(number)
            crossing = copies.crossing(before, behind)
            if crossing is not None and copies.may_install(behind, crossing):
                steps = self._kernels.steps[count:]
                return copies.copy(steps, behind, crossing, questions, self.unrounded - unrounded)
            before = behind
        return number

    def _node(self, node: Node) -> None:
        if is_users_kernel(node, self.backend):
            self._kernel(node)
        elif node.op is reshape:
            self._reshape(node)
        elif isinstance(program := trace(node, self.backend), Products):
            self._products(node)
        elif isinstance(program, Scatter):
            self._scatter(node)
        elif isinstance(program, SizeInput):
            self._size_input(node, program)
        elif isinstance(program, Staged):
            self._stages(node, program)
        elif node.op is concat and len(set(node.operands)) >= self.features.max_buffers:
            self._concat(node)
        else:
            self._expression(node, program)

    def _expression(self, node: Node, program: Formula) -> None:
        """Make the results of a node pending, with operands inlined where `joins` holds."""
        self._make_room(node, program)
        arrays: dict[Operand, Traced] = {}
        nodes: list[Node] = []
        anchor: Contraction | None = None
        # Diamonds first: if another contraction became the anchor, the one in the diamond would be computed twice.
        ordered = sorted(read_patterns(node, program).items(), key=lambda pair: pair[0] not in self._in_diamonds)
        for operand, reading in ordered:
            value = self._values.get(operand)
            if isinstance(value, Pending) and self._is_inlined(value, operand, node, program, reading, anchor):
                result = self._as_read(value)
                arrays[operand] = result if value.alias is None else reshape_array(result, value.alias)
                nodes += (n for n in value.nodes if n not in nodes)
                anchor = combine(anchor, value.anchor)
            else:
                arrays[operand] = self._load(operand)
        for operand, result in zip(node.outputs, apply_node(node, self.backend, arrays), strict=True):
            self._values[operand] = Pending(in_data_type(result, operand.data_type), (*nodes, node), anchor)

    def _as_read(self, value: Pending) -> Traced:
        result = value.result
        if value.anchor is not None and result.data_type == "float16" and isinstance(result.body, ir.Load):
            result = (
                Traced(result.shape, ir.Cast(ir.Cast(result.body, "float32"), "float16")) if self._rounds else result
            )
            # `is_rounded` would be true for the float16 array, but the accumulators are float32.
            has_rounded = self._rounds
        else:
            result = round_float16(result) if self._rounds else result
            has_rounded = is_rounded(result)
        if not has_rounded:
            self.unrounded.add(value.nodes[-1])
        return result

    def _is_inlined(
        self,
        value: Pending,
        operand: Operand,
        node: Node,
        program: Formula,
        reading: ReadPattern,
        beside: Contraction | None,
    ) -> bool:
        if operand in self._outputs:
            return False
        is_shared = self._uses[operand] > 1 and operand not in self._in_diamonds
        if joins(value, operand.desc, program, reading, self.features, is_shared=is_shared, beside=beside):
            return True
        return value.reduces and not is_shared and self._is_of_rows(value, operand, node, program)

    def _is_of_rows(self, value: Pending, operand: Operand, node: Node, program: Formula) -> bool:
        """Whether a kernel with one workgroup for each row of the result computes the value once per row."""
        values = map(self._values.get, node.operands)
        is_anchored = any(isinstance(other, Pending) and other.anchor is not None for other in values)
        if is_anchored or value.alias is not None:
            return False
        arrays = {o: of_input(source) for source, o in zip(program.inputs, iter_operands(node.inputs), strict=True)}
        fused = apply_node(node, self.backend, arrays | {operand: value.result})
        return len(fused) == 1 and is_of_rows(value, fused[0], program, self.features)

    def _load(self, operand: Operand) -> Traced:
        """An operand as an array in memory; a scalar constant becomes a number."""
        if operand.is_constant and not operand.shape:
            number: Any = operand.value.item()
            return Traced((), ir.number(number, operand.data_type))
        return of_input(self._in_memory(operand))

    def _make_room(self, node: Node, program: Formula) -> None:
        """Store pending operands until one kernel can bind all arrays that the node reads."""
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
                    bound |= {*value.sources, *value.anchor.sources} - {*value.anchor.results}
            if len(bound) + len(program.outputs) <= self.features.max_buffers or not pending:
                return
            self._in_memory(max(pending, key=lambda o: len(self._values[o].sources)))  # type: ignore[union-attr]

    def _reshape(self, node: Node) -> None:
        """Alias the operand. A kernel copies the operand only if it is in memory and the result is an output."""
        (operand,), (result,) = node.operands, node.outputs
        value = self._value(operand)
        is_shared = self._uses[operand] > 1 or operand in self._outputs
        if isinstance(value, Pending) and is_shared:
            value = self._in_memory(operand)
        if isinstance(value, Pending):
            self._values[result] = replace(value, alias=result.shape, nodes=(*value.nodes, node))
        elif result in self._outputs:
            self._values[result] = Pending(reshape_array(of_input(value), result.shape), (node,))
        else:
            self._memory(result, self._kernels.places[value])

    def _products(self, node: Node) -> None:
        """Make the result of a contraction pending, with the rest of the operation as its epilogue."""
        (result,) = node.outputs
        products, nodes = self._of_halves(node) or self._of_views(node) or (None, ())
        if products is None:
            products = apply_node(node, self.backend, {operand: self._load(operand) for operand in node.operands})
        self._values[result] = self._kernels.multiply(products, result.desc, (*nodes, node))

    def _of_halves(self, node: Node) -> tuple[Products, tuple[Node, ...]] | None:
        """The products with a constant of 16-bit floats that a cast widens, and the cast; None if there is no such operand."""
        if node.op not in TAKE_VIEWS or node.outputs[0].data_type != "float32":
            return None
        sides = [operand for name in "ab" if isinstance(operand := node.inputs[name], Operand)]
        pending = {operand: self._values.get(operand) for operand in sides}
        halves = {o: half for o, value in pending.items() if (half := self._half_behind(value)) is not None}
        if len(halves) != 1:
            return None
        arrays = {o: of_input(halves[o]) if o in halves else self._load(o) for o in node.operands}
        (value,) = (value for o, value in pending.items() if o in halves)
        assert isinstance(value, Pending)
        products: Products = apply_node(node, self.backend, arrays)
        return products, value.nodes

    def _half_behind(self, value: Pending | Input | None) -> Input | None:
        """The constant of 16-bit floats that a value only casts to float32; None for other values."""
        if not isinstance(value, Pending) or value.alias is not None or not isinstance(value.result.body, ir.Cast):
            return None
        load = value.result.body.parts[0]
        if value.result.data_type != "float32" or not isinstance(load, ir.Load) or not isinstance(load.source, Input):
            return None
        place, data_type = self._kernels.places[load.source], load.source.desc.data_type
        is_half = data_type in ("float16", "bfloat16") and place.kind == "constant"
        is_whole = ir.is_aligned(load) and is_same_shape(value.result.shape, load.source.desc.shape)
        return load.source if is_half and is_whole else None

    def _of_views(self, node: Node) -> tuple[Products, tuple[Node, ...]] | None:
        """The products of transposed operands, read through strided views, and the transposing nodes.

        None if no operand is transposed, or without tensor cores: the other kernels read such views slower.
        """
        if self.features.tensor_cores is None or node.op not in TAKE_VIEWS:
            return None
        pending = {operand: self._values.get(operand) for operand in node.operands}
        views = {o: value for o, value in pending.items() if isinstance(value, Pending) and _is_transposed(value)}
        if not views:
            return None
        arrays = {o: views[o].result if o in views else self._load(o) for o in pending}
        products: Products = apply_node(node, self.backend, arrays)
        nodes = dict.fromkeys(view_node for value in views.values() for view_node in value.nodes)
        is_fast = self._kernels.contraction(products, node.outputs[0].desc).method == "tensor"
        return (products, tuple(nodes)) if is_fast else None

    def _stages(self, node: Node, staged: Staged) -> None:
        """Schedule an operation of several kernels. Equal operations share their stages."""
        for source, operand in zip(staged.inputs, iter_operands(node.inputs), strict=True):
            self._kernels.alias(source, self._in_memory(operand))
        plan, results = staged.plan_for(self.features)
        targets = {result: self._target(operand) for operand, result in zip(node.outputs, results, strict=True)}
        start = len(self._kernels.steps)
        self._kernels.add_stages(plan.stages, targets, (node,), node.title)
        for step in self._kernels.steps[start:]:
            step.remark = plan.remark
        for operand, result in zip(node.outputs, results, strict=True):
            self._memory(operand, self._kernels.places[result])

    def _attention(self, match: AttentionMatch) -> None:
        """Schedule attention that a graph spells out in parts."""
        operands = [self._read(operand) for operand in (match.query, match.key, match.value, *match.operands)]
        problem, result = match.problem(*operands), match.result
        if match.has_halves:
            self.unrounded.update(match.nodes[:-1])
        stages = Stages(self.features)
        target = stages.array(ir.storage(result.data_type), result.shape)
        attend(stages, problem, target, match.place)
        place = self._target(result)
        self._kernels.add_stages(stages.stages, {target: place}, match.nodes, "attention")
        self._memory(result, place)

    def _read(self, operand: Operand) -> Traced:
        """An operand as an array. A pending operand that only moves elements is inlined."""
        value = self._values.get(operand)
        if isinstance(value, Pending) and value.only_moves:
            return value.result if value.alias is None else reshape_array(value.result, value.alias)
        return self._load(operand)

    def _scatter(self, node: Node) -> None:
        """Copy the operand, then write the updates."""
        scatter = apply_node(node, self.backend, {operand: self._load(operand) for operand in node.operands})
        (result,) = node.outputs
        place = self._target(result)
        self._kernels.copy_and_scatter(place, scatter, (node,), node.title, in_place=0 in node.op.updates)
        self._memory(result, place)

    def _size_input(self, node: Node, values: SizeInput) -> None:
        """Bind an array that each version of the runner computes and uploads. If it is an output, a kernel copies it."""
        (result,) = node.outputs
        place = self._tables.setdefault(id(values), Buffer(result.desc, "sizes", values=values))
        source = self._memory(result, place)
        if result in self._outputs:
            self._values[result] = Pending(of_input(source), (node,))

    def _concat(self, node: Node) -> None:
        """Write each operand with a separate kernel, because one kernel cannot bind all operands."""
        (result,) = node.outputs
        axis: int = node.attributes["axis"]
        place, start = self._target(result), 0
        for operand in node.operands:
            part = self._load(operand)

            def at(*p: Traced, start: int = start) -> tuple[Traced, ...]:
                return *p[:axis], p[axis] + start, *p[axis + 1 :]

            title = f"{node.title}: {start} to {start + operand.shape[axis]}"
            self._kernels.scatter(
                place, Scatter(part, operand.shape, at, lambda *p, part=part: part[p]), (node,), title
            )
            start += operand.shape[axis]
        self._memory(result, place)

    def _target(self, operand: Operand, shape: tuple[int, ...] | None = None) -> Buffer:
        """A place for an operand, optionally in a different shape of equal size."""
        desc = operand.desc if shape is None else Desc(operand.data_type, shape)
        number = self._outputs.get(operand)
        return Buffer(desc, "between") if number is None else Buffer(desc, "output", number)

    def _kernel(self, node: Node) -> None:
        sources = {operand: self._in_memory(operand) for operand in dict.fromkeys(node.operands)}
        targets = [self._memory(operand, self._target(operand)) for operand in node.outputs]
        call = KernelCall(
            node.title, node.op, descs_of(node.inputs), node.attributes, tuple(o.desc for o in node.outputs)
        )
        inputs = map_operands(node.inputs, sources.__getitem__)
        kernels = node.op.kernels[self.backend.name].kernels(call, inputs, targets, self.features)
        self._kernels.append(kernels, (node,), is_users=True)


def _require_numbers(graph: Graph, backend: GpuBackend, features: Features) -> None:
    """Raise `NumbersNeededError` if kernels of the graph need numbers for some named sizes."""
    for_all: dict[str, str] = {}
    for_these: dict[str, str] = {}
    for node in graph.nodes:
        pairs = zip((for_all, for_these), names_needed(node, backend, features), strict=True)
        for operations, names in pairs:
            operations.update((name, node.title) for name in sorted(names) if name not in operations)
    if for_all or for_these:
        raise NumbersNeededError(for_all or for_these, is_for_all=bool(for_all))


def _is_transposed(value: Pending) -> bool:
    """Whether a value is a strided view of an array in memory: the last two strides are not 0, and one of them is 1."""
    view = view_of(value.result) if value.only_moves and value.alias is None else None
    if view is None or any(is_same_size(stride, 0) for stride in view.strides[-2:]):
        return False
    return any(is_same_size(stride, 1) for stride in view.strides[-2:])
