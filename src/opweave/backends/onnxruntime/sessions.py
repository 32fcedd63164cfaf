"""Compile a graph into an ONNX Runtime session, and bind the session to memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ...composites import is_composite
from ...core.graph import Graph, Node
from ...core.guards import guarded_sizes
from ...core.sizes import Size
from ...memory import is_same, trim
from ...support import disk_cache
from ...support.errors import OperationError
from ...support.records import record
from .. import KEEPS_FLOAT32, How, Measured, PowerPreference, Precision, Returning, Runner, Spinning, Update
from ..exports import OPTIMISED, Exported
from .in_place import count_copies, updates_of, wrap_to_count
from .native import CPU, ENGINE_ERRORS as ENGINE_ERRORS, NativeSession, engine_call
from .options import (
    PRECISE_PRODUCTS as PRECISE_PRODUCTS,
    SPIN_MICROSECONDS as SPIN_MICROSECONDS,
    hand_over,
    is_quantised,
    pool_threads,
    session_options as session_options,
)
from .rounding import rounds_input
from .values import PLAIN_TYPES, to_engine

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

    from .emit import EmittedGraph, Emitter
    from .optimised import Optimised
    from .plugins import Plugin

_to_engine = engine.OrtValue.ortvalue_from_numpy

SERIAL_ELEMENTS = 8192
"""Graphs get no additional threads if all arrays have fewer elements: waking a thread would take longer than it saves. An
estimate."""


@record(eq=True, slots=False)
class SessionSettings:
    """Settings of a context's sessions.

    Attributes:
        spinning: how long threads spin for the next operation.
        threads: number of threads of an operation; None for all processors.
        plugin: device of a plug-in provider; None for the CPU.
        has_arena: whether memory of a run is kept for later runs.
    """

    power_preference: PowerPreference
    spinning: Spinning
    threads: int | None
    precision: Precision
    plugin: Plugin | None
    has_arena: bool = True


def compile(
    graph: Graph,
    emit: Callable[[], EmittedGraph],
    settings: SessionSettings,
    again: Callable[[], Any],
    measures: bool = False,
) -> OrtSession:
    """Compile an emitted graph into a session, a `MeasuredOrtSession` if `measures`; `again` compiles such a one."""
    plugin, precision = settings.plugin, settings.precision
    ctx, emitted, done = emit()
    # Plug-ins read all constants, and measurements write the optimised model with them.
    proto, weights = ctx.finish(emitted, hides_constants=plugin is None and not measures)
    threads = pool_threads(settings.threads) if gains_from_threads(graph) else 0
    is_integer = any(is_quantised(node.op_type) for node in (*ctx.nodes, *ctx.body_nodes))
    new_options = partial(_options, settings, is_integer, bool(threads))
    options = new_options()
    if plugin is not None:
        try:
            plugin.add_to(options, precision)
        except ENGINE_ERRORS as error:
            raise OperationError(f"{plugin.provider} does not take its options: {error}") from error
    recording = None
    if measures:
        import onnx

        from .measure import KernelRecording

        written = onnx.ModelProto.FromString(proto).graph
        recording = KernelRecording(options, written, lambda name: ctx.labels.get(name, ""), is_readable=plugin is None)
    key, stored = "", None
    if plugin is None and not measures and disk_cache.has_layers(OPTIMISED):
        from . import optimised

        key, stored = optimised.find(optimised.key_of(ctx, options, precision), ctx.constants)

    def load() -> Loaded:
        if stored is not None and (loaded := _load_optimised(stored, weights, new_options())) is not None:
            return loaded
        return _load(proto, weights, ctx, options, plugin)

    if ctx.any_size and not measures:
        from dataclasses import replace

        loaded = _share((proto, replace(settings, threads=options.intra_op_num_threads)), weights, load)
    else:
        loaded = load()
    updates = updates_of(ctx, emitted, graph)
    may_round = plugin is None and precision != "ieee"
    rounded = [node for node in graph.nodes if may_round and rounds_input(node)]
    notes = dict.fromkeys(ctx.unrounded, KEEPS_FLOAT32) | dict.fromkeys(rounded, "an operand rounded to 8 bits")
    parameters = ctx.parameters | ctx.size_inputs
    arguments = (loaded, parameters, len(graph.inputs), len(emitted), done, again, threads, updates, notes)
    if recording is not None:
        from .measure import MeasuredOrtSession

        return MeasuredOrtSession(recording, *arguments)
    if plugin is not None:
        from .provider_session import ProviderSession

        return ProviderSession(plugin.provider, ctx.written, *arguments)
    session = OrtSession(*arguments)
    session.key = key
    # A copy avoids a cycle of references, which would keep the weights until the garbage collector runs.
    plain = copy(session)
    session.exporter = partial(_export, graph, emit, new_options, precision, dict(guarded_sizes()), plain, plain.on)
    return session


def _options(settings: SessionSettings, quantised: bool, has_threads: bool) -> SessionOptions:
    options = session_options(
        settings.power_preference,
        settings.spinning,
        settings.threads,
        settings.precision,
        quantised=quantised,
        has_arena=settings.has_arena,
    )
    if not has_threads:
        options.intra_op_num_threads = 1
    return options


def _export(*arguments: Any) -> Exported:
    from .optimised import export

    return export(*arguments)


def packs_weights(graph: Graph) -> bool:
    """Whether sessions hold a packed copy of the weights, and gain nothing from static shapes.

    Language models have one graph for the tokens of a prompt, and one for single tokens.
    """
    return any(is_composite(node.op, "matmul_n_bits", "group_query_attention") for node in graph.nodes)


class Loaded:
    """A session of the engine with the arrays that it reads by reference."""

    def __init__(self, session: NativeSession, weights: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        self.session, self.weights, self._values = session, weights, values


TRIMMED_BYTES = 2**24
"""Fewest bytes of weights for which freed memory is returned to the system after compilation: the engine frees copies of
weights while it packs them. For fewer weights, a pass over all heaps returns too little. An estimate."""

_loaded: WeakValueDictionary[Any, Loaded] = WeakValueDictionary()
"""Sessions in use with dynamic shapes, by model and settings."""


def _share(key: Hashable, weights: Mapping[str, np.ndarray], load: Callable[[], Loaded]) -> Loaded:
    """Return a session in use of the same model with equal weights, or a new one."""
    cached = _loaded.get(key)
    if cached is None or not all(_is_equal(array, cached.weights[name]) for name, array in weights.items()):
        _loaded[key] = cached = load()
    return cached


def _is_equal(one: np.ndarray, other: np.ndarray) -> bool:
    return is_same(one, other) or np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


def _load(
    model: bytes, weights: Mapping[str, np.ndarray], ctx: Emitter, options: SessionOptions, plugin: Plugin | None = None
) -> Loaded:
    nodes, disabled = [*ctx.nodes, *ctx.body_nodes], sorted(ctx.disabled_optimizers)
    try:
        if plugin is None:
            readers = ((node.op_type, node.inputs, node.outputs) for node in nodes)
            values = hand_over(options, weights, readers, ctx.kernel_constants)
            session = NativeSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled)
        else:
            values = hand_over(options, weights, None)
            # Disable the fallback of the engine's class to the CPU if the provider fails.
            session = NativeSession(model, options, disabled_optimizers=disabled, enable_fallback=0)
    except ENGINE_ERRORS as error:
        engine_name = "ONNX Runtime" if plugin is None else f"ONNX Runtime with {plugin.provider}"
        raise OperationError(f"{engine_name} does not take the graph: {error}") from error
    if sum(array.nbytes for array in weights.values()) > TRIMMED_BYTES:
        trim()
    return Loaded(session, weights, values)


def _load_optimised(graph: Optimised, weights: Mapping[str, np.ndarray], options: SessionOptions) -> Loaded | None:
    """Load the optimised graph of a file; None if the engine refuses the graph, as one of another build."""
    from .optimised import load

    try:
        session, values = load(graph, options)
    except ENGINE_ERRORS:
        return None
    return Loaded(session, weights, values)


def gains_from_threads(graph: Graph) -> bool:
    operands = (operand for node in graph.nodes for operand in (*node.operands, *node.outputs))
    return any(is_large(operand.desc.element_count) for operand in operands)


def is_large(elements: int) -> bool:
    return isinstance(elements, Size) or elements >= SERIAL_ELEMENTS


class OrtSession(Runner):
    """A compiled graph. Several graphs may share the session in `loaded`.

    Args:
        parameters: additional inputs of the session, by name: arrays, or the functions of sizes that give them (see `at`).
        done: kind of implementation of each node.
        again: makes a session of the graph that measures its kernels.
        threads: number of threads that the engine starts for the session.
        updates: inputs that kernels copy or update.
        notes: remarks on the precision of nodes, for tables.
    """

    def __init__(
        self,
        loaded: Loaded,
        parameters: dict[str, Any],
        inputs: int,
        outputs: int,
        done: Mapping[Node, How],
        again: Callable[[], Any],
        threads: int,
        updates: Sequence[Update],
        notes: Mapping[Node, str],
    ) -> None:
        self._notes = notes
        self.use(loaded)
        self._again, self.threads, self.updates = again, threads, updates
        self.parameters = parameters
        self.takes_all_sizes = all(isinstance(value, np.ndarray) for value in parameters.values())
        self._inputs = [f"i{k}" for k in range(inputs)]
        self._outputs = [f"o{k}" for k in range(outputs)]
        ends = (*self._native.inputs_meta, *self._native.outputs_meta)
        self.is_plain = all(end.type in PLAIN_TYPES for end in ends)
        self._done = done

    key = ""
    """Key of the optimised graph in files of saved graphs; empty if no file was searched."""

    exporter: Callable[[], Exported] | None = None
    """Exports the optimised graph; None if the engine cannot write it."""

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        return [(self.key, OPTIMISED)] if self.key else []

    def exporters(self) -> Iterable[Callable[[], Exported]]:
        return [] if self.exporter is None else [self.exporter]

    def on(self, session: NativeSession, weights: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> OrtSession:
        """The same graph on another session of the engine; `weights` and `values` are kept alive with the session."""
        return copy(self).use(Loaded(session, weights, values))

    def use(self, loaded: Loaded) -> OrtSession:
        """Run this session of the engine."""
        self._loaded, self._session, self._native = loaded, loaded.session, loaded.session.native
        return self

    def at(self, sizes: Mapping[str, int]) -> OrtSession:
        """The same session, with the parameters for these sizes."""
        if self.takes_all_sizes:
            return self
        runner = copy(self)
        runner.parameters = {
            name: value if isinstance(value, np.ndarray) else value.at(sizes) for name, value in self.parameters.items()
        }
        return runner

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        call = OrtCall(self._native, self._new_binding(inputs, outputs), [*inputs, *outputs])
        return wrap_to_count(call, self.updates, inputs, outputs)

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run the session once on arrays; a new binding costs less than caching one."""
        try:
            self._native.run_with_iobinding(self._new_binding(inputs, outputs), None)
        except ENGINE_ERRORS as error:
            raise error_of(error) from error
        if self.updates:
            count_copies(self.updates, inputs, outputs)

    def returning(self, outputs: Sequence[int]) -> Returning | None:
        """Return a function from arrays to these outputs, in new memory of the engine; None for types that NumPy lacks.

        Without a binding, the overhead for small networks is half of that of `run`.
        """
        if not self.is_plain:
            return None
        names = [self._outputs[k] for k in outputs]
        return engine_call(self._native, self._inputs, names, self.parameters, self.updates, error_of)

    def _new_binding(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Any:
        # Bypass the Python wrappers of bindings and values, too.
        binding = engine.SessionIOBinding(self._native)
        for slot, array in zip(self._inputs, inputs, strict=True):
            if array.dtype.isbuiltin == 1:
                binding.bind_input(slot, array)  # in place, since arrays are contiguous
            else:
                binding.bind_ortvalue_input(slot, to_engine(array))
        for name, array in self.parameters.items():
            binding.bind_input(name, array)
        for slot, array in zip(self._outputs, outputs, strict=True):
            binding.bind_ortvalue_output(
                slot, _to_engine(array, CPU) if array.dtype.isbuiltin == 1 else to_engine(array)
            )
        return binding

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        notes = dict.fromkeys(self._notes[node] for node in nodes if node in self._notes)
        detail = ", ".join(("ONNX Runtime", *notes))
        return (self._done[nodes[0]] if len(nodes) == 1 else "decomposed"), detail

    def measured(self) -> Measured:
        session: Measured = self._again()
        return session


def error_of(error: Exception) -> OperationError:
    return OperationError(f"ONNX Runtime failed: {error}")


class OrtCall:
    """A session bound to memory. A call runs the graph; the engine releases the GIL."""

    __slots__ = ("_arrays", "_binding", "_run")

    def __init__(self, session: Any, binding: Any, arrays: list[np.ndarray]) -> None:
        self._run, self._binding = session.run_with_iobinding, binding
        self._arrays = arrays  # the binding holds addresses only

    def __call__(self) -> None:
        try:
            self._run(self._binding, None)
        except ENGINE_ERRORS as error:
            raise error_of(error) from error
