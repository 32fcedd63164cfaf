"""Compile a graph into an ONNX Runtime session, and bind the session to memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ...errors import OperationError
from ...graph import Graph, Node
from ...passes.legalise import legalise
from .. import Placement, PowerPreference
from .emit import Emitter

if TYPE_CHECKING:
    from . import OnnxRuntime

_ENGINE_ERRORS = (engine.Fail, engine.InvalidArgument, engine.InvalidGraph, engine.NotImplemented, RuntimeError)


def compile(backend: OnnxRuntime, graph: Graph, device: str, power_preference: PowerPreference) -> Session:
    """Make a session of `graph`.

    Raises:
        OperationError: the engine refuses the graph.
    """
    legal, origin = legalise(graph, backend.supports, backend.name)
    ctx = Emitter()
    emitted = backend.emit(ctx, legal)
    descs = [operand.desc for operand in graph.outputs.values()]
    named = {f"o{k}": (value, desc) for k, (value, desc) in enumerate(zip(emitted.values(), descs, strict=True))}
    model, weights = ctx.finish(named)
    options = session_options(power_preference)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in weights.items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except _ENGINE_ERRORS as error:
        raise OperationError(f"ONNX Runtime does not take the graph: {error}") from error
    placements = _placements(backend, graph, legal, origin, device)
    return Session(session, list(graph.inputs), list(graph.outputs), values, placements)


def session_options(power_preference: PowerPreference) -> onnxruntime.SessionOptions:
    """The options of all our sessions."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; its warnings speak of graphs that are meant to be so
    if power_preference == "low-power":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _placements(
    backend: OnnxRuntime, graph: Graph, legal: Graph, origin: Mapping[Node, Node], device: str
) -> list[Placement]:
    made_of: dict[Node, list[Node]] = {}
    for node in legal.nodes:
        made_of.setdefault(origin[node], []).append(node)
    placements = []
    for node in graph.nodes:
        parts = made_of.get(node, [])
        if len(parts) == 1 and parts[0].op is node.op:
            rule = backend.rule(parts[0])
            how = "native" if rule is not None and rule.native else "composed"
            placements.append(Placement(node.title, device, how, "ONNX Runtime"))  # type: ignore[arg-type]
        else:
            detail = "ONNX Runtime: " + ", ".join(part.op.name for part in parts)
            placements.append(Placement(node.title, device, "decomposed", detail))
    return placements


class Session:
    """A compiled graph. It keeps the weights, whose memory the engine reads."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        inputs: list[str],
        outputs: list[str],
        weights: Mapping[str, Any],
        placements: list[Placement],
    ) -> None:
        self._session, self._inputs, self._outputs = session, inputs, outputs
        self._weights, self._placements = weights, placements

    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> Call:
        """Tie the session to arrays, which it reads and writes in place."""
        binding = self._session.io_binding()
        value_of = onnxruntime.OrtValue.ortvalue_from_numpy
        for k, name in enumerate(self._inputs):
            binding.bind_ortvalue_input(f"i{k}", value_of(inputs[name]))
        for k, name in enumerate(self._outputs):
            binding.bind_ortvalue_output(f"o{k}", value_of(outputs[name]))
        return Call(self._session, binding)

    def explain(self) -> list[Placement]:
        """What runs where, one entry a node of the user's graph."""
        return self._placements


class Call:
    """A session bound to memory; calling it runs the graph. The engine releases the GIL meanwhile."""

    __slots__ = ("_binding", "_run")

    def __init__(self, session: onnxruntime.InferenceSession, binding: onnxruntime.IOBinding) -> None:
        # The wrappers' methods cost a microsecond; the engine's own are called directly.
        self._run, self._binding = session._sess.run_with_iobinding, binding._iobinding

    def __call__(self) -> None:
        try:
            self._run(self._binding, None)
        except _ENGINE_ERRORS as error:
            raise OperationError(f"ONNX Runtime failed: {error}") from error
