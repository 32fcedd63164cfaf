"""Compile a graph into a program: choose an implementation for each node, decompose what has none, fuse, partition."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..backends import KEEPS_FLOAT32, Backend, How, Placement, PowerPreference, Runner, Spinning, discover
from ..core.graph import Graph, Node, Operand, map_operands
from ..core.guards import guarded_sizes
from ..core.specialise import node_at
from ..core.value_ranges import input_ranges
from ..expr import kernels, limits
from ..kernels import KernelCall, PreparedKernel
from ..kernels.expression import descs_of, program_of_nodes
from ..memory.spaces import HOST
from ..ops.quantization import dequantize_linear
from ..run.program import Program
from ..run.steps import CompiledSegment, title
from ..support.errors import InvalidStateError, NotSupportedError, OperationError
from ..support.processors import processors
from ..support.records import record
from .choose import HOST_KERNELS, Chooser
from .completion import abandon_on_errors, complete
from .empty import emptiness, fold_empty, is_empty
from .engines import EngineChoice, choose_engine
from .fuse import move_to_engine, move_to_loops
from .legalise import cut_out, legalise
from .loops import EXPRESSION, fits, work
from .partition import LoopFusion, Segment, partition
from .widen import may_widen

if TYPE_CHECKING:
    from ..expr.recurrence import Recurrence

FOLDED = "a constant, computed when the graph was built"
ABSORBED = "narrow numbers, which the operations behind it read as they are"
"""Remarks on operations that do not run."""

IN_ENGINE = "a loop between operations of the engine would take longer"
"""Reason to decompose an operation that could be a compiled loop."""


def compile(
    graph: Graph,
    backend: Backend,
    *,
    device: str,
    power_preference: PowerPreference,
    fuse: bool = True,
    alone: bool = True,
    spinning: Spinning = "short",
    fallback: Literal["auto", "error"] = "auto",
    shares_processors: bool = False,
    wait: bool = True,
    choice: EngineChoice | None = None,
) -> Program:
    """Compile a graph. If several engines can run all of it, choose one of them (`choose_engine`).

    Args:
        graph: the graph.
        backend: the back end (or one of its rivals) that runs all nodes that it has rules for.
        device: a device of `backend`.
        power_preference: for the engines.
        fuse: whether chains of element-wise operations become one loop, where an engine would run them one by one.
        alone: whether the graph does not run alternately with other graphs.
        spinning: how long threads of an engine that runs the whole graph spin for the next operation.
        fallback: whether the host runs operations that a device lacks, or they are errors.
        shares_processors: whether another process needs the processors after each run.
        wait: whether to wait until the engines have compiled; otherwise the caller waits (`Runner.complete`).
        choice: the engine, if it is chosen already.

    Raises:
        NotSupportedError: an operation has neither a rule, a kernel, an expression nor a decomposition.
        OperationError: an engine refuses its part.
    """
    options: dict[str, Any] = {
        "device": device,
        "power_preference": power_preference,
        "fuse": fuse,
        "fallback": fallback,
        "wait": wait,
        "spinning": spinning if alone and not shares_processors else "least",
    }
    full, sources = fold_empty(graph)
    if full.has_names:  # rivals are verified for graphs whose sizes are known
        choice = EngineChoice(backend.without_rivals or backend)
    choice = choice or choose_engine(full, backend, alone)
    has_compiler = kernels.is_compiled()
    try:
        program = _compile_for(graph, full, sources, choice, **options)
    except OperationError as error:
        own = backend.tunable(full)[backend.name]
        if choice.backend.name == own.name:
            raise
        import logging  # most programs never need it

        log = logging.getLogger("opweave")
        log.warning("%s runs a graph that %s refuses: %s", own.name, choice.backend.name, error)
        choice = EngineChoice(own, f"{own.name}, since {choice.backend.name} refuses it: {error}")
        program = _compile_for(graph, full, sources, choice, **options)
    if has_compiler and not kernels.is_compiled():  # it could not be imported: engines are faster than NumPy
        program = _compile_for(graph, full, sources, choice, **options)
    return program


def _compile_for(
    graph: Graph,
    full: Graph,
    sources: Mapping[Node, Node],
    choice: EngineChoice,
    *,
    device: str,
    power_preference: PowerPreference,
    fuse: bool,
    spinning: Spinning,
    fallback: Literal["auto", "error"],
    wait: bool,
) -> Program:
    """Compile `full`, the graph without empty operands; `sources` maps its nodes to those of the user's `graph`."""
    backend = choice.backend
    if any(node.op.range_functions or node.op.bodies for node in full.nodes):
        from .clamp import clamp_computed

        full, sources = clamp_computed(full, sources)
    if fuse and choice.fuse and any(node.op.bodies for node in full.nodes):
        from .bodies import with_recurrences  # most graphs do without its imports

        full, sources = with_recurrences(full, sources, backend)
    chosen = _choose_for(full, sources, backend, device, fallback)
    host, chooser, engines = chosen.host, chosen.chooser, chosen.engines
    legal, origin = chosen.legal, chosen.origin
    if not backend.folds_constants:
        from .constants import fold_constants

        legal, origin = fold_constants(legal, origin)
    graphs = [*{item.nodes: item for item in (chosen.full, legal, graph)}.values()]
    for other in graphs[1:]:
        chooser.refusals |= backend.saved_refusals(other)
    fused: set[Node] = set()
    if fuse and choice.fuse and any(node.op.recurrence is not None for node in legal.nodes):
        from .recurrence_fusion import FUSED, fuse_recurrences  # most graphs do without its imports

        legal, origin, parts_of_steps = fuse_recurrences(
            legal,
            origin,
            partial(_runs_in_steps, chooser, backend),
            partial(_has_kernel_of_steps, backend),
            rounds=backend.precision == "ieee",
        )
        fused = {chosen.origin[node] for node in parts_of_steps if node in chosen.origin}
    most = limits.limit(limits.WORK_VARIABLE, limits.MAX_WORK) // 2  # the other half is for the loop itself

    def kinds_of(graph: Graph) -> dict[Node, Hashable]:
        kinds = chooser.kinds(graph.nodes)
        if fuse and choice.fuse and host.gains_from_loops and kernels.is_compiled():
            kinds = move_to_loops(graph, kinds, host.name, host.threads or processors(), most)
        return kinds

    def runs_in_engine(node: Node) -> bool:
        return chooser.kind(node) == host.name

    kinds = kinds_of(legal)
    is_folded = emptiness()
    reasons = {node: "" if is_folded(node) or node in chosen.absorbed else chooser.reason(node) for node in graph.nodes}
    if host.gains_from_loops and (moved := move_to_engine(legal, kinds, host.name, runs_in_engine, most)):
        exceptions = dict.fromkeys(moved, runs_in_engine)
        legal, parents = legalise(legal, lambda node: True, backend.name, exceptions=exceptions)
        reasons.update({origin[node]: IN_ENGINE for node in moved})
        origin = {node: origin[parent] for node, parent in parents.items()}
        kinds = kinds_of(legal)
    parts = partition(legal, kinds, LoopFusion(EXPRESSION, fits, work, most))
    host_device = device if backend is host else "cpu"

    def compile_body(graph: Graph) -> Program:
        return compile(
            graph,
            backend,
            device=device,
            power_preference=power_preference,
            fuse=fuse,
            alone=False,
            fallback=fallback,
            wait=False,
            choice=EngineChoice(backend, fuse=choice.fuse),
        )

    def compile_part(part: Segment[Node, Operand]) -> CompiledSegment:
        if part.kind not in engines:
            (node,) = part.nodes
            if node.op.bodies:
                from .bodies import compile_bodies  # most graphs do without its imports

                return compile_bodies(node, backend.space, device, compile_body)
            return _prepare_kernel(part, host_device)
        engine, engine_device = engines[part.kind]
        sub, reads, writes = _sub_graph(legal, part, alone=len(parts) == 1)
        turns: Spinning = spinning if len(parts) == 1 else "least"
        runner = engine.compile(sub, device=engine_device, power_preference=power_preference, spinning=turns)
        if fallback == "error":
            _require_device(runner, sub, engine_device)
        return CompiledSegment(runner, engine.space, engine_device, part.nodes, sub.nodes, reads, writes)

    compiled: list[CompiledSegment] = []
    with abandon_on_errors(compiled):
        with _loops(parts, host.expressions, backend.precision == "ieee", host_device) as loops:
            for part in parts:
                compiled.append(next(loops)() if part.kind == EXPRESSION else compile_part(part))
        if wait:
            complete(compiled, has_names=full.has_names)
    unrun = dict.fromkeys({chosen.origin[node] for node in chosen.legal.nodes}.difference(origin.values()), FOLDED)
    unrun |= chosen.absorbed
    unrun |= dict.fromkeys(fused.difference(origin.values()), FUSED if fused else "")
    placements = _placements(graph, reasons, legal, origin, compiled, host_device, unrun)
    program = Program(legal, origin, compiled, placements, backend.space, input_ranges(graph), choice.reason)
    program.untried = choice.untried
    program.refusals_parts = partial(_refusals_parts, backend, graphs, chooser.refusals)
    return program


def _refusals_parts(
    backend: Backend, graphs: Sequence[Graph], refusals: Mapping[Node, str | None]
) -> dict[tuple[str, str], bytes]:
    return {key: part for graph in graphs for key, part in backend.refusals_part(graph, refusals).items()}


def _runs_in_steps(chooser: Chooser, backend: Backend, node: Node) -> bool:
    """Whether a node runs where recurrences run as one kernel: on the device, or in compiled loops of the host."""
    kind = chooser.kind(node)
    if not backend.space.is_host:
        return kind == backend.name
    if not (backend.gains_from_loops and kernels.is_compiled()):
        return False
    return kind == node.serial if node.op.recurrence is not None else kind in (EXPRESSION, backend.name)


def _has_kernel_of_steps(backend: Backend, recurrence: Recurrence, operands: Sequence[Operand]) -> bool:
    """Whether one kernel runs a recurrence."""
    if backend.space.is_host:
        return True
    from .bodies import has_kernel

    return has_kernel(backend, recurrence, operands)


@record(eq=True, slots=False)
class _ChosenNodes:
    """The choice for each node of a graph, before operations are moved between engines and loops.

    Attributes:
        host: the back end on the host.
        engines: the back ends that may run parts, and their devices, by name.
        full: the graph from which `legalise` made `legal`.
        legal: the graph in which something runs each node; `origin` has the user's node of each of its nodes.
        absorbed: the user's nodes that `narrow` removed, with remarks.
    """

    host: Backend
    engines: Mapping[Hashable, tuple[Backend, str]]
    chooser: Chooser
    full: Graph
    legal: Graph
    origin: Mapping[Node, Node]
    absorbed: Mapping[Node, str]


def _choose_for(
    full: Graph, sources: Mapping[Node, Node], backend: Backend, device: str, fallback: Literal["auto", "error"]
) -> _ChosenNodes:
    """Choose what runs each node, and decompose the nodes that nothing runs whole."""
    host = _host_of(backend)
    stand_in = None if host.stand_in is None else _set_precision(discover()[host.stand_in], backend)
    others = _type_stand_ins(host) if any(node.has_further_types for node in full.nodes) else []
    engines: dict[Hashable, tuple[Backend, str]] = {
        engine.name: (engine, "cpu") for engine in (*others, stand_in, host) if engine
    }
    engines[backend.name] = backend, device
    absorbed: Mapping[Node, str] = {}
    if any(node.op is dequantize_linear for node in full.nodes):
        from .narrow import read_narrow  # brings composites along

        is_exact = backend.precision == "ieee"
        narrow, remaining, folded = read_narrow(
            full, sources, backend.gains_from_narrow, is_exact, backend.expands_filters
        )
        gone = set(sources.values()).difference(remaining.values())
        absorbed = {node: FOLDED if node in folded else ABSORBED for node in gone}
        full, sources = narrow, remaining
    if any(node.op.bodies and backend.rules_of(node.op) for node in full.nodes):
        from .bodies import with_legal_bodies

        full, sources = with_legal_bodies(full, sources, backend.supports, backend.name)
    if any(node.op.name == "dft" for node in full.nodes):
        from .real_parts import read_real_parts  # brings composites along

        full, sources = read_real_parts(full, sources)
    chooser = Chooser(backend, device, host, stand_in, fallback, others, backend.saved_refusals(full))
    legal, origin = full, sources
    if any(chooser.kind(node) is None for node in full.nodes):
        legal, parents = legalise(
            full,
            lambda node: chooser.kind(node) is not None,
            backend.name,
            decomposition_of=chooser.decomposition_of,
        )
        origin = {node: sources[parent] for node, parent in parents.items()}
    return _ChosenNodes(host, engines, chooser, full, legal, origin, absorbed)


def nodes_on_host(graph: Graph, backend: Backend, device: str) -> dict[Node, str]:
    """The nodes of a graph that the host runs because the device cannot, with the reasons. Nothing is compiled.

    The device need not be there (`Backend.for_absent_device`). Operations that the host runs for all devices do not count.
    """
    if backend.space.is_host:
        return {}
    full, sources = fold_empty(graph)
    chosen = _choose_for(full, sources, backend, device, "auto")
    nodes: dict[Node, str] = {}
    for node in chosen.legal.nodes:
        if node.op.bodies:
            for name in node.op.bodies:
                for reason in nodes_on_host(node.attributes[name].graph, backend, device).values():
                    nodes.setdefault(chosen.origin[node], reason)
        elif chosen.chooser.kind(node) != backend.name and not node.op.is_of_host:
            nodes[chosen.origin[node]] = chosen.chooser.reason(node) or "its kernels are for the host"
    return nodes


def _require_device(runner: Runner, graph: Graph, device: str) -> None:
    """Require that the engine has not left operations to the CPU."""
    titles = dict.fromkeys(node.title for node in graph.nodes if runner.is_left([node]))
    if titles:
        raise NotSupportedError(f"{device} cannot run {', '.join(titles)}, which would run on the CPU")


def _set_precision(engine: Backend, backend: Backend) -> Backend:
    """A back end of the host with the precision of `backend`, or float32 if it does not have that precision."""
    device = engine.device_named("cpu")
    is_able = device is not None and backend.precision in device.precisions
    return engine.with_precision(backend.precision if is_able else "float32")


def can_run(node: Node, backend: Backend) -> bool:
    """Whether something runs a node with data types beyond the specification: the back end, the host, or its parts."""
    host = _host_of(backend)
    has_parts = node.op.decomposition is not None and not node.op.is_derived  # formulas know the specification's types
    if may_widen(node, backend) or has_parts or node.op.kernels:
        return True
    return any(other.supports(node) for other in (backend, host, *_type_stand_ins(host)))


def _host_of(backend: Backend) -> Backend:
    """The back end that runs on the host what `backend` lacks: itself, if it is on the host."""
    if backend.space.is_host:
        return backend
    return _set_precision(next(other for other in discover().values() if other.space.is_host), backend)


def _type_stand_ins(host: Backend) -> list[Backend]:
    """The host's back ends for data types that `host` lacks, in order."""
    others: list[Backend] = []
    name = host.stand_in_for_types
    while name is not None:
        others.append(_set_precision(discover()[name], host))
        name = others[-1].stand_in_for_types
    return others


def _sub_graph(graph: Graph, part: Segment[Node, Operand], alone: bool) -> tuple[Graph, list[Operand], list[Operand]]:
    """The graph of a part; the whole graph if it has no other part."""
    results = list(graph.outputs.values())
    alone = alone and not any(map(is_empty, graph.inputs.values()))
    if alone and len(set(results)) == len(results) and all(operand.node is not None for operand in results):
        return graph, list(graph.inputs.values()), results
    return *cut_out(part.inputs, part.outputs), part.outputs


# ---------------------------------------------------------------------------------------------------------------------
# Runners


@contextmanager
def _loops(
    parts: Sequence[Segment[Node, Operand]], engine: kernels.Engine, rounds: bool, device: str
) -> Iterator[Iterator[Callable[[], CompiledSegment]]]:
    """Functions that wait for the parts that are loops. A thread compiles the loops, while engines compile other parts."""
    loops = [part for part in parts if part.kind == EXPRESSION]
    compiling = [_prepare_loop(part, engine, rounds, device) for part in loops]
    if not 0 < len(loops) < len(parts):
        yield iter(compiling)
        return
    from concurrent.futures import ThreadPoolExecutor  # brings the module logging along

    with ThreadPoolExecutor(1, thread_name_prefix="opweave-compile") as pool:
        yield iter([pool.submit(compiled).result for compiled in compiling])


def _prepare_loop(
    part: Segment[Node, Operand], engine: kernels.Engine, rounds: bool, device: str
) -> Callable[[], CompiledSegment]:
    constants = dict.fromkeys(o for node in part.nodes for o in node.operands if o.is_constant)
    reads = [*constants, *part.inputs]
    program, reads, unrounded = program_of_nodes(part.nodes, reads, part.outputs, rounds=rounds)

    def compile_loop() -> CompiledSegment:
        kernel = kernels.compile(program, engine)
        runner = _ExpressionRunner(program.name, title(part.nodes), kernel, len(part.nodes), unrounded)
        return CompiledSegment(runner, HOST, device, part.nodes, part.nodes, reads, part.outputs)

    return compile_loop


class _ExpressionRunner(Runner):
    def __init__(
        self, name: str, title: str, kernel: kernels.ExpressionKernel, count: int, unrounded: set[Node]
    ) -> None:
        self.name, self.title, self.kernel, self.count, self.unrounded = name, title, kernel, count, unrounded

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        call = self.kernel.bind(inputs, outputs)

        def run() -> None:
            try:
                call()
            except OperationError as error:
                raise self._error_of(error) from error

        return run

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        try:
            self.kernel.run(inputs, outputs)
        except OperationError as error:
            raise self._error_of(error) from error

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        return self.kernel.cache_keys()

    def at(self, sizes: Mapping[str, int]) -> Runner:
        return _ExpressionRunner(self.name, self.title, self.kernel.at(sizes), self.count, self.unrounded)

    def _error_of(self, error: OperationError) -> OperationError:
        return OperationError(f"{self.title}: {str(error).removeprefix(f'{self.name}: ')}")

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        together = f", {self.count} operations in one loop" if self.count > 1 else ""
        note = "" if self.unrounded.isdisjoint(nodes) else f", {KEEPS_FLOAT32}"
        return "expression", f"{self.kernel.detail}{together}{note}"


def _prepare_kernel(part: Segment[Node, Operand], device: str) -> CompiledSegment:
    (node,) = part.nodes
    runner = _KernelRunner(node, guarded_sizes())
    return CompiledSegment(
        runner, runner.prepared.space, device, part.nodes, part.nodes, list(dict.fromkeys(node.operands)), node.outputs
    )


class _KernelRunner(Runner):
    def __init__(self, node: Node, sizes: Mapping[str, int]) -> None:
        self._node = node
        self.node = node = node_at(node, sizes) if sizes else node
        call = KernelCall(
            node.title, node.op, descs_of(node.inputs), node.attributes, tuple(o.desc for o in node.outputs)
        )
        chosen = next(name for name in HOST_KERNELS if name in node.op.kernels)
        self.prepared: PreparedKernel = node.op.kernels[chosen].prepare(call)
        self.reads = list(dict.fromkeys(node.operands))
        places = {operand: place for place, operand in enumerate(self.reads)}
        self._places = map_operands(node.inputs, places.__getitem__)
        self._running: set[int] = set()  # the threads that it runs in

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        call = self.prepared.bind(map_operands(self._places, inputs.__getitem__), outputs)

        def run() -> None:
            thread = get_ident()
            if thread in self._running:
                raise InvalidStateError("the graph is dispatched by one of its own kernels")
            self._running.add(thread)
            try:
                call()
            finally:
                self._running.discard(thread)

        return run

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        # Users' kernels have no `cache_keys`.
        keys: Callable[[], Iterable[tuple[str, str]]] = getattr(self.prepared, "cache_keys", tuple)
        return keys()

    def at(self, sizes: Mapping[str, int]) -> Runner:
        return _KernelRunner(self._node, sizes)

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        return "kernel", self.prepared.detail


# ---------------------------------------------------------------------------------------------------------------------
# Placements


def _placements(
    graph: Graph,
    reasons: Mapping[Node, str],
    legal: Graph,
    origin: Mapping[Node, Node],
    parts: Sequence[CompiledSegment],
    host_device: str,
    unrun: Mapping[Node, str],
) -> list[Placement]:
    """The placements of the user's nodes, with the reasons why the device cannot run them; `unrun` has remarks."""
    homes = {
        node: (number, compiled)
        for number, part in enumerate(parts)
        for node, compiled in zip(part.nodes, part.compiled, strict=True)
    }
    replacements: dict[Node, list[Node]] = {node: [] for node in reasons}
    for node in legal.nodes:
        replacements[origin[node]].append(node)
    placements, computing = [], graph.computing_nodes()
    for node, nodes in replacements.items():
        number = homes[nodes[0]][0] if nodes else 0
        how: How = "decomposed"
        # A graph that becomes empty has no parts: its outputs are copies of inputs and constants.
        if node in unrun:
            detail = unrun[node]
        else:
            is_read = node in computing
            detail = "empty results" if all(map(is_empty, node.outputs)) else "its operand" if is_read else "not run"
        device = parts[number].device if parts else host_device
        if nodes:
            part = parts[number]
            compiled = [homes[n][1] for n in nodes if homes[n][0] == number]
            how, detail = part.runner.describe(compiled)
            if part.runner.is_left(compiled):
                device = "cpu"
        if nodes and (len(nodes) > 1 or nodes[0].op is not node.op):
            how, detail = "decomposed", f"{detail}: {', '.join(part.op.name for part in nodes)}"
        detail = f"{detail}: {reasons[node]}" if reasons[node] else detail
        placements.append(Placement(node.title, device, how, detail, number, node.op))
    return placements
