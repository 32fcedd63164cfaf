"""Compile a graph with OpenVINO, and bind the session to memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.dtypes import name_of
from ...core.graph import Graph, Node
from ...support import disk_cache
from ...support.errors import OperationError
from ...support.processors import processors
from .. import How, Measured, Precision, Runner
from ..exports import COMPILED, Exported
from . import devices, exported
from .emit import Emitter, tensor

if TYPE_CHECKING:
    from .backend import OpenVino

ENGINE_ERRORS = (RuntimeError, MemoryError)

SERIAL_ELEMENTS = 8192
"""Graphs run on the caller's thread alone if all arrays have fewer elements."""

SESSION_THREADS = 2
"""Threads that the engine starts for each compiled model, besides its shared pool: one for the stream, and one for callbacks.
Models without streams have none, and run on the caller's thread alone."""

HINTS: dict[Precision, str] = {"float32": "f32", "ieee": "f32", "bfloat16": "bf16", "float16": "f16"}
"""The engine's names of precisions. Its default is bfloat16 on processors that support it."""


def compile(backend: OpenVino, graph: Graph, device: str, is_measured: bool = False) -> OpenVinoSession:
    key = ""
    if device == "cpu" and not is_measured and disk_cache.has_layers(COMPILED):
        if exported.is_exportable(backend, graph):
            key = exported.key_of(backend, graph)
        if key and (session := _import_session(backend, graph, key)) is not None:
            return session
    try:
        model, compiled, arrays, done, options = _compile_model(backend, graph, device, is_measured)
    except ENGINE_ERRORS as error:
        raise OperationError(f"OpenVINO does not take the graph: {error}") from error
    session_type: Callable[..., OpenVinoSession] = OpenVinoSession
    if is_measured:
        from .measure import MeasuredOpenVinoSession, sources_of

        session_type = partial(MeasuredOpenVinoSession, sources_of(model))
    session = session_type(compiled, arrays, done, backend.precision, partial(compile, backend, graph, device, True))
    session.threads = 0 if options.get("NUM_STREAMS") == 0 else SESSION_THREADS
    session.key = key
    if device == "cpu" and not is_measured:
        again = partial(_compile_model, backend, graph, device, is_measured)
        session.exporter = partial(exported.export, backend, graph, compiled, done, options, again)
    return session


def _compile_model(
    backend: OpenVino, graph: Graph, device: str, is_measured: bool
) -> tuple[Any, Any, Sequence[np.ndarray], Mapping[Node, How], dict[str, Any]]:
    """The engine's model of a graph, the compiled model, the weights that it reads, how nodes run, and the options."""
    ctx = Emitter(backend.precision)
    outputs, done = backend.emit(ctx, graph)
    results = [devices.operators().result(ctx.convert_output(value).output) for value in outputs]
    model = devices.engine().Model(results, ctx.parameters, "opweave")
    options = _options(backend, graph, device, bool(ctx.dequantised.products)) | {"PERF_COUNT": is_measured}
    compiled = devices.core().compile_model(model, devices.engine_name(device), options)
    return model, compiled, ctx.arrays, done, options


def _import_session(backend: OpenVino, graph: Graph, key: str) -> OpenVinoSession | None:
    """The session of a compiled model in a saved graph; None if there is none."""
    if (parts := exported.imported(key)) is None:
        return None
    compiled, done, options, content = parts
    again = partial(compile, backend, graph, "cpu", True)
    session = OpenVinoSession(compiled, [content], dict(zip(graph.nodes, done, strict=True)), backend.precision, again)
    session.threads = 0 if options.get("NUM_STREAMS") == 0 else SESSION_THREADS
    session.key = key
    return session


def _options(backend: OpenVino, graph: Graph, device: str, multiplies_bytes: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if device.partition(":")[0] == "npu":
        return options  # an NPU computes in float16, and has no threads
    options["INFERENCE_PRECISION_HINT"] = HINTS[backend.precision]
    options["EXECUTION_MODE_HINT"] = "ACCURACY" if HINTS[backend.precision] == "f32" else "PERFORMANCE"
    if device == "cpu":
        threads = processors() if backend.threads is None else backend.threads
        operands = (operand for node in graph.nodes for operand in (*node.operands, *node.outputs))
        is_small = all(operand.desc.element_count < SERIAL_ELEMENTS for operand in operands)
        options["INFERENCE_NUM_THREADS"] = 1 if is_small else threads
        if options["INFERENCE_NUM_THREADS"] == 1:
            options["NUM_STREAMS"] = 0
        options["ENABLE_CPU_PINNING"] = False  # other engines run beside it
        options["CPU_DENORMALS_OPTIMIZATION"] = False  # do not flush subnormal numbers to 0
        # Kernels for whole subgraphs save at most 5% of a transformer's time. The pass that creates them ends the process if
        # an element-wise operation reads an attention and another such subgraph.
        options["SNIPPETS_MODE"] = "DISABLE"
        options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0  # products of float32 stay products of float32
        if not multiplies_bytes:
            options["LP_TRANSFORMS_MODE"] = False  # the passes would also move scales through other operations
    return options


class OpenVinoSession(Runner):
    """A compiled graph. It keeps the weights, whose memory the engine reads."""

    def __init__(
        self,
        compiled: Any,
        weights: Sequence[np.ndarray],
        done: Mapping[Node, How],
        precision: Precision,
        again: Callable[[], Any],
    ) -> None:
        self._compiled, self._weights, self._done, self._precision = compiled, weights, done, precision
        self._again = again  # compiles the graph once more, with counters
        # Requests without a run in flight; append() and pop() of a list are atomic.
        self._idle: list[Any] = []

    key = ""
    """The key by which files of saved graphs may have the compiled model; empty if none was looked for."""

    exporter: Callable[[], Exported] | None = None
    """Exports the compiled model; None if it was imported."""

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        """Key and kind of the part of a saved graph that is needed."""
        return [(self.key, COMPILED)] if self.key else []

    def exporters(self) -> Iterable[Callable[[], Exported]]:
        return [self._imported if self.exporter is None else self.exporter]

    def _imported(self) -> Exported:
        """The compiled model as a file had it."""
        data = disk_cache.load(self.key, COMPILED) if self.key else None
        return Exported() if data is None else Exported({(self.key, COMPILED): data})

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        request = self._compiled.create_infer_request()
        self._tie(request, inputs, outputs)
        return self.call_of(request, [*inputs, *outputs])

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run the graph once on arrays; reuse an idle request."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        self._tie(request, inputs, outputs)
        self.call_of(request, ())()
        self._idle.append(request)

    def call_of(self, request: Any, arrays: Sequence[np.ndarray]) -> Callable[[], None]:
        """Return a function that runs a request, and keeps arrays: the request holds addresses only."""
        return OpenVinoCall(request, arrays)

    def _tie(self, request: Any, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        for slot, array in enumerate(inputs):
            request.set_input_tensor(slot, tensor(array, name_of(array.dtype)))
        for slot, array in enumerate(outputs):
            request.set_output_tensor(slot, tensor(array, name_of(array.dtype)))

    def measured(self) -> Measured:
        session: Measured = self._again()
        return session

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        engine = "OpenVINO" if HINTS[self._precision] == "f32" else f"OpenVINO in {self._precision}"
        if self._precision == "float32" and any(
            output.data_type == "float16" for node in nodes for output in node.outputs
        ):
            engine += ", float32 until stored"
        return (self._done[nodes[0]] if len(nodes) == 1 else "decomposed"), engine


class OpenVinoCall:
    """A request bound to memory. The engine releases the GIL."""

    __slots__ = ("_arrays", "_infer")

    def __init__(self, request: Any, arrays: Sequence[np.ndarray]) -> None:
        self._infer = request.infer
        self._arrays = arrays

    def __call__(self) -> None:
        try:
            self._infer(share_outputs=True)  # returns views, which are not used
        except ENGINE_ERRORS as error:
            raise OperationError(f"OpenVINO failed: {error}") from error
