"""Compile operations with bodies: each body becomes a program, which `run.repeated` repeats or chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..backends import Backend
from ..composites.control import branch, directions_of, loop, stacked_number
from ..composites.placement import tensor_scatter
from ..core.bodies import Body, add_input, body_of
from ..core.graph import Desc, Graph, Node, Operand, add_like, add_node, map_operands
from ..core.guards import estimate
from ..core.operation import Op
from ..custom.recurrence import recur
from ..expr.ir import Formula, Reduce, size_of, walk
from ..expr.recurrence import Along, Recurrence, compile_recurrence
from ..expr.simplify import simplify
from ..kernels.expression import program_of_nodes
from ..memory.spaces import Space
from ..ops.constants import constant
from ..ops.formulas import FORMULAS
from ..ops.recorder import Recorder
from ..run.program import Program
from ..run.repeated import COUNTER, BodyRunner, BranchRunner, LoopForm, LoopRunner
from ..run.steps import CompiledSegment
from ..support.errors import NotSupportedError, ValidationError
from .legalise import legalise


def with_recurrences(graph: Graph, origin: Mapping[Node, Node], backend: Backend) -> tuple[Graph, Mapping[Node, Node]]:
    """The graph with recurrences in place of loops whose bodies are formulas, where one kernel runs all steps.

    Loops of little work stay as they are: compiling a kernel takes longer.
    """
    replaced: dict[Node, tuple[Recurrence, list[Operand]]] = {}
    for node in graph.nodes:
        match = recurrence_of_loop(node, rounds=backend.precision == "ieee") if node.op is loop else None
        if match is not None and _runs_as_one_kernel(node, *match, backend):
            replaced[node] = match
    if not replaced:
        return graph, origin
    builder, copies, parents = copy_inputs(graph), dict[Operand, Operand](), dict[Node, Node]()
    copies.update(zip(graph.inputs.values(), builder.inputs.values(), strict=True))

    def follow(operand: Operand) -> Operand:
        return copies.get(operand, operand)

    for node in graph.nodes:
        descs = tuple(output.desc for output in node.outputs)
        if node in replaced:
            recurrence, operands = replaced[node]
            inputs = {"operands": tuple(map(follow, operands))}
            results = add_node(builder, recur, inputs, {"recurrence": recurrence}, node.label, descs)
        else:
            results = add_like(builder, node, follow, node.label)
        copies.update(zip(node.outputs, results, strict=True))
        assert results[0].node is not None
        parents[results[0].node] = origin.get(node, node)
    return finish_copy(graph, builder, copies, parents)


def _runs_as_one_kernel(node: Node, recurrence: Recurrence, operands: Sequence[Operand], backend: Backend) -> bool:
    """Whether a device has one kernel for all steps of a loop, and the loop has enough work for it."""
    elements, terms = sum(desc.element_count for desc in node.attributes["body"].outputs), _terms_of(recurrence.step)
    if estimate(node.attributes["length"]) * (estimate(elements) + terms) < MIN_ELEMENTS:
        return False
    operations = len(node.attributes["body"].graph.nodes)
    if not backend.space.is_host:
        if terms > MAX_TERMS_ON_DEVICES:
            return False
    elif terms and (operations < MIN_OPERATIONS or terms > MAX_TERMS * operations):
        return False
    if backend.space.is_host:
        from ..expr.kernels import is_compiled

        if recurrence.step.has_sizes or not (backend.gains_from_loops and is_compiled()):
            return False
        from ..expr.halide.repetition import HalideLoop

        return isinstance(compile_recurrence(recurrence), HalideLoop)
    return has_kernel(backend, recurrence, operands)


def has_kernel(backend: Backend, recurrence: Recurrence, operands: Sequence[Operand]) -> bool:
    """Whether a device has one kernel for all steps of a recurrence."""
    descs = recurrence.results_for([operand.desc for operand in operands])
    inputs = {"operands": tuple(operands)}
    (result, *_) = add_node(Recorder(), recur, inputs, {"recurrence": recurrence}, "", descs)
    assert result.node is not None
    return backend.supports(result.node)


def recurrence_of_loop(node: Node, *, rounds: bool) -> tuple[Recurrence, list[Operand]] | None:
    """The recurrence of a loop and its operands; None for an unknown number of steps, or operations without a formula."""
    attributes = node.attributes
    length = attributes["length"]
    states, scanned, captured = (tuple(node.inputs[name] or ()) for name in ("states", "scanned", "captured"))
    ends_early = (
        attributes["gives_condition"] or node.inputs["count"] is not None or node.inputs["condition"] is not None
    )
    takes_position = attributes["takes_position"]
    needs_positions = takes_position or not scanned
    is_open = needs_positions and not (isinstance(length, int) and length <= MAX_POSITIONS)
    if ends_early or is_open or not states or (graph := _step_graph(attributes["body"].graph)) is None:
        return None
    declared = list(graph.inputs.values())
    position, rest = declared[: int(takes_position)], declared[int(takes_position) :]
    positions = [constant(Recorder(), np.arange(length), "int64")] if takes_position else []
    if not scanned and not takes_position:  # the number of steps is that of a sequence
        position = [Operand(Recorder(), Desc("uint8", ()), name="unread")]
        positions = [constant(Recorder(), np.zeros(length), "uint8")]
    reads = [*rest[: len(states)], *position, *rest[len(states) :], *graph.constants]
    outputs = list(graph.outputs.values())
    try:
        step, _, _ = program_of_nodes(graph.nodes, reads, outputs, rounds=rounds, formula_of=_formula_of)
        arrays = [operand for operand in graph.constants if operand.shape]
        backward = directions_of(attributes["backward"], len(scanned))
        number = len(outputs) - len(states)
        alongs: list[Along | None] = [Along(0)] * len(position)
        alongs += [Along(0, is_backward) for is_backward in backward]
        alongs += [None] * (len(captured) + len(arrays))
        stacked = directions_of(attributes["stacked_backward"], number)
        recurrence = Recurrence(simplify(step), len(states), tuple(alongs), tuple(Along(0, item) for item in stacked))
    except ValidationError:  # a formula that the step cannot have
        return None
    return recurrence, [*states, *positions, *scanned, *captured, *arrays]


def _step_graph(graph: Graph) -> Graph | None:
    """Decompose a body into operations with formulas; None if others remain, or if there are too many."""
    if any(node.op is loop and not _is_short(node) for node in graph.nodes):
        return None
    if not all(map(_is_step, graph.nodes)):
        try:
            graph = legalise(graph, _is_step, has_results=True)[0]
        except NotSupportedError:
            return None
    return graph if len(graph.nodes) <= MAX_FORMULAS else None


def _is_short(node: Node) -> bool:
    """Whether a loop in a body may be unrolled in it."""
    length = node.attributes["length"]
    return isinstance(length, int) and length <= MAX_INNER_STEPS


def _is_step(node: Node) -> bool:
    """Whether an operation may be part of the formula of a step."""
    return (node.op.formula is not None or node.op in FORMULAS) and not node.has_further_types


def _formula_of(op: Op[..., Any]) -> Callable[..., Any]:
    return op.formula or FORMULAS[op]


def _terms_of(step: Formula) -> int:
    """The number of terms of all sums, and of other reductions, of a step."""
    bodies = (*(stored.body for stored in step.stored), *step.roots)
    reductions = (node for node in walk(*bodies) if isinstance(node, Reduce))
    return sum(estimate(size_of((*node.free, *node.variables))) for node in reductions)


def copy_inputs(graph: Graph) -> Recorder:
    """A builder with the inputs of a graph."""
    builder = Recorder()
    builder.takes_empty = True
    for name, operand in graph.inputs.items():
        add_input(builder, name, operand.desc)
    return builder


def finish_copy(
    graph: Graph, builder: Recorder, copies: Mapping[Operand, Operand], parents: Mapping[Node, Node]
) -> tuple[Graph, Mapping[Node, Node]]:
    """The copy of a graph in a builder, and the parents of its nodes."""
    outputs = {name: copies.get(operand, operand) for name, operand in graph.outputs.items()}
    nodes = Graph.reaching(outputs).nodes
    return Graph(dict(builder.inputs), outputs, nodes), {node: parents[node] for node in nodes}


def with_legal_bodies(
    graph: Graph, origin: Mapping[Node, Node], supports: Callable[[Node], bool], backend: str
) -> tuple[Graph, Mapping[Node, Node]]:
    """The graph with bodies of which all nodes satisfy `supports`, as far as decompositions make them so.

    Args:
        graph: the graph.
        origin: the node that each of its nodes comes from; the second result is the same for the new graph.
        supports: whether an engine has a rule for a node.
        backend: the name of the engine, for messages.
    """
    if not any(node.op.bodies for node in graph.nodes):
        return graph, origin
    builder, parents = copy_inputs(graph), dict[Node, Node]()
    copies: dict[Operand, Operand] = dict(zip(graph.inputs.values(), builder.inputs.values(), strict=True))
    for node in graph.nodes:
        attributes = dict(node.attributes)
        for name in node.op.bodies:
            attributes[name] = _legal_body(attributes[name], supports, backend)
        inputs = map_operands(node.inputs, lambda operand: copies.get(operand, operand))
        descs = tuple(output.desc for output in node.outputs)
        results = add_node(builder, node.op, inputs, attributes, node.label, descs)
        copies.update(zip(node.outputs, results, strict=True))
        assert results[0].node is not None
        parents[results[0].node] = origin.get(node, node)
    return finish_copy(graph, builder, copies, parents)


def _legal_body(body: Body, supports: Callable[[Node], bool], backend: str) -> Body:
    """The body, decomposed for an engine; the body itself if the engine cannot run all of its operations."""
    if all(map(supports, body.graph.nodes)):
        return body
    inner = with_legal_bodies(body.graph, {}, supports, backend)[0]
    try:
        legal = legalise(inner, supports, backend, has_results=True)[0]
    except NotSupportedError:
        return body
    return Body(legal)


MIN_ELEMENTS = 2**16
"""The smallest number of elements, of all steps together, for which a kernel of a recurrence is compiled. An estimate: ONNX
Runtime takes a tenth of a millisecond for fewer elements, and compiling a kernel takes seconds."""

MAX_POSITIONS = 2**20
"""The largest number of iterations of a loop whose recurrence takes an array of the positions: 8 MiB."""

MIN_OPERATIONS = 5
"""The smallest number of operations of a body with reductions that becomes a recurrence on the host.

ONNX Runtime takes 0.35 us for each operation on 32 elements. Beside a compiled loop, its Scan with a product, a sum and tanh
takes as long, a window of 4 elements, with 5 operations, 2.5 times as long, and a selective scan, with 9, 20 times."""

MAX_TERMS = 2**12
"""The largest number of terms of reductions of such a body for each of its operations: compiled loops add 5 products in a
nanosecond, ONNX Runtime's products of matrices 10."""

MAX_TERMS_ON_DEVICES = 2**20
"""The same on devices, where other loops submit several kernels for each step. An estimate."""

MAX_FORMULAS = 200
"""The largest number of operations of a body that becomes a formula. An estimate: most bodies have fewer than 50."""

MAX_INNER_STEPS = 8
"""The largest number of iterations of a loop that is unrolled in the formula of a body. An estimate."""

MAX_STEPS = 8
"""Maximum number of iterations in a program on a device. Submitting it takes as long as a few kernels. An estimate."""

MAX_STEP_NODES = 64
"""The largest number of operations of such a program."""

CompileGraph = Callable[[Graph], Program]


def compile_bodies(node: Node, space: Space, device: str, compile_graph: CompileGraph) -> CompiledSegment:
    """Compile a loop or a branch; `compile_graph` compiles a body for a device with memory in `space`."""
    reads = list(dict.fromkeys(node.operands))
    places = {operand: place for place, operand in enumerate(reads)}
    positions: dict[str, Any] = map_operands(node.inputs, places.__getitem__)
    runner: BodyRunner
    if node.op is branch:
        programs = [compile_graph(node.attributes[name].graph) for name in branch.bodies]
        runner = BranchRunner(node.title, programs, space, positions["condition"], positions["captured"])
    else:
        assert node.op is loop, node.op
        runner = _loop_runner(node, positions, space, compile_graph)
    return CompiledSegment(runner, space, device, [node], [node], reads, node.outputs)


def _loop_runner(node: Node, positions: dict[str, Any], space: Space, compile_graph: CompileGraph) -> LoopRunner:
    states, scanned = node.inputs["states"], node.inputs["scanned"]
    assert isinstance(states, tuple)
    assert isinstance(scanned, tuple)
    attributes = node.attributes
    body: Body = attributes["body"]
    on_host = space.is_host
    number = stacked_number(body, states, attributes["gives_condition"])
    form = LoopForm(
        positions["states"],
        positions["scanned"],
        positions["captured"],
        positions["count"],
        positions["condition"],
        attributes["length"],
        attributes["takes_position"],
        attributes["gives_condition"],
        directions_of(attributes["backward"], len(scanned)),
        directions_of(attributes["stacked_backward"], number),
        [operand.desc for operand in states],
    )
    if on_host:
        return LoopRunner(node.title, [compile_graph(body.graph)], space, form)
    graphs = [_device_graph(node, body, form, 1)]
    steps = min(MAX_STEPS, MAX_STEP_NODES // len(body.graph.nodes))
    # A size with a name may be smaller in another run.
    is_long = form.length is None or (isinstance(form.length, int) and form.length >= 2 * steps)
    if steps > 1 and is_long and not form.gives_condition:
        graphs.append(_device_graph(node, body, form, steps))
        form.steps = steps
    return LoopRunner(node.title, list(map(compile_graph, graphs)), space, form)


def _device_graph(node: Node, body: Body, form: LoopForm, steps: int) -> Graph:
    """The graph of `steps` iterations that takes whole arrays and a counter, and writes elements into the stacked results.

    The counter and the states are inputs and outputs of the same order. Stacked results are inputs, too, whose memory their
    outputs use.
    """
    b = Recorder()
    b.takes_empty = True

    def declare(kind: str, descs: list[Desc]) -> list[Operand]:
        return [add_input(b, f"{kind}{k}", desc) for k, desc in enumerate(descs)]

    def descs_of(name: str) -> list[Desc]:
        operands = node.inputs[name]
        assert isinstance(operands, tuple)
        return [operand.desc for operand in operands]

    counter = add_input(b, "counter", COUNTER)
    first, scanned, captured = (declare(kind, descs_of(kind)) for kind in ("states", "scanned", "captured"))
    # Stacked results have one batch for `tensor_scatter`, which writes in place.
    descs = [output.desc for output in node.outputs[len(first) :]]
    stacked = declare("stacked", [Desc(desc.data_type, (1, *desc.shape)) for desc in descs])

    def place(step: int, is_backward: bool) -> Operand:
        length: Any = form.length
        if is_backward:
            return b.sub(constant(b, length - 1 - step, "int32"), counter)
        return counter if step == 0 else b.add(counter, constant(b, step, "int32"))

    states, flag = first, []
    elements: list[list[Operand]] = [[] for _ in stacked]
    for step in range(steps):
        position = [b.cast(place(step, False), "int64")] if form.takes_position else []
        slices = [
            b.gather(operand, place(step, is_backward), axis=0)
            for operand, is_backward in zip(scanned, form.backward, strict=True)
        ]
        results = list(body.call(b, [*position, *states, *slices, *captured]))
        flag = [results.pop(0)] if form.gives_condition else []
        states = results[: len(first)]
        for items, element in zip(elements, results[len(first) :], strict=True):
            items.append(b.reshape(element, [1, 1, *element.shape]))
    written = []
    for target, items, is_backward in zip(stacked, elements, form.stacked_backward, strict=True):
        rows = b.concat(items[::-1] if is_backward else items, 1) if steps > 1 else items[0]
        start = b.reshape(place(steps - 1 if is_backward else 0, is_backward), [1])
        written.append(tensor_scatter(b, target, rows, start, 1))
    following = place(steps, False)
    inputs = [counter, *first, *scanned, *captured, *stacked]
    return body_of(b, inputs, [following, *flag, *states, *written]).graph
