"""Sides of a comparison: compile and run parts of a graph in a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...backends import PRECISIONS, Precision, discover
from ...backends.isolation import EngineProcess
from ...compile.driver import compile
from ...compile.engines import choose_engine
from ...compile.legalise import cut_out
from ...context.context import MLContext, ml
from ...context.graph import MLGraph
from ...context.graph_state import GraphState
from ...core.graph import Graph, Node, Operand, add_like
from ...ops.recorder import Recorder
from ...support.errors import ValidationError
from ...support.names import short_repr


def context_of(place: MLContext | str) -> MLContext:
    """Return the context that a place denotes: `DEVICE[:BACKEND][@PRECISION]`, as "cpu:openvino@bfloat16"."""
    if isinstance(place, MLContext):
        return place
    if not isinstance(place, str):
        raise ValidationError(
            f"diff: a place must be a context or DEVICE[:BACKEND][@PRECISION], got {short_repr(place)}"
        )
    where, sign, precision = place.partition("@")
    if sign and precision not in PRECISIONS:
        raise ValidationError(f"diff: the precision of {place!r} must be one of {', '.join(PRECISIONS)}")
    device, colon, backend = where.rpartition(":")  # names of devices may contain colons
    if not colon or backend not in (*discover(), "auto"):
        device, backend = where, "auto"
    chosen: Any = precision or "float32"
    return ml.create_context(device=device, backend=None if backend == "auto" else backend, precision=chosen)


Part = tuple[Sequence[Node], Sequence[Operand]]
"""Nodes in order, which read each other's results, and the results to compare."""


class Side:
    """A graph in a context.

    All parts run on the engine that is chosen for the whole graph. An engine that needs a trial runs in another process: it
    was verified for the whole graph, not for parts.
    """

    def __init__(self, context: MLContext, graph: Graph, fuse: bool = True) -> None:
        self.context, self.graph, self.fuse = context, graph, fuse
        self.backend = choose_engine(graph, context.backend, True).backend
        if self.backend.needs_trial:
            self.backend = EngineProcess().backend(self.backend)
        self.nodes = graph.nodes

    @property
    def title(self) -> str:
        """Device, engine and precision, for people."""
        device = self.context.device.name
        name = device if device == self.backend.name else f"{device} ({self.backend.name})"
        return name if self.precision == "float32" else f"{name} in {self.precision}"

    @property
    def precision(self) -> Precision:
        """The precision of the context."""
        return self.context.precision

    def compile_graph(self, graph: Graph) -> MLGraph:
        """Compile the graph, or a part of it."""
        context = self.context
        program = compile(
            graph,
            self.backend,
            device=context.device.name,
            power_preference=context.power_preference,
            fuse=self.fuse,
        )
        return MLGraph(GraphState(context, graph, program, self.fuse))

    def run(self, graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run a graph once on arrays for its inputs, in order; return the outputs, in order."""
        compiled = self.compile_graph(graph)
        try:
            results = MLContext.compute(self.context, compiled, dict(zip(graph.inputs, arrays, strict=True)))
        finally:
            compiled.destroy()
        return [results[name] for name in graph.outputs]

    def step(self, nodes: Sequence[Node], values: dict[Operand, np.ndarray]) -> None:
        """Run nodes as one graph on `values`, and add all results to `values`."""
        if not nodes:
            return
        outputs = [output for node in nodes for output in node.outputs]
        graph, reads = cut_out(values, outputs)
        values.update(zip(outputs, self.run(graph, [values[operand] for operand in reads]), strict=True))

    def run_alone(self, nodes: Sequence[Node], values: Mapping[Operand, np.ndarray]) -> dict[Operand, np.ndarray]:
        """Run nodes independently, each on `values` of its operands; return all results."""
        return self.run_parts([((node,), node.outputs) for node in nodes], values)

    def run_parts(self, parts: Sequence[Part], values: Mapping[Operand, np.ndarray]) -> dict[Operand, np.ndarray]:
        """Run parts independently, each on `values` of what other parts compute; return the results of all."""
        if not parts:
            return {}
        recorder = Recorder()
        stand_ins: dict[Operand, Operand] = {}

        def stand_in_for(operand: Operand) -> Operand:
            if operand not in stand_ins:
                name = "" if operand.is_constant else f"x{len(recorder.inputs)}"
                stand_in = stand_ins[operand] = Operand(recorder, operand.desc, name=name, value=operand.value)
                if name:
                    recorder.inputs[name] = stand_in
            return stand_ins[operand]

        results: dict[Operand, Operand] = {}
        nodes: list[Node] = []
        for part, outputs in parts:
            copies: dict[Operand, Operand] = {}

            def follow(operand: Operand, copies: dict[Operand, Operand] = copies) -> Operand:
                return copies[operand] if operand in copies else stand_in_for(operand)

            for node in part:
                new = add_like(recorder, node, follow, node.label)
                copies.update(zip(node.outputs, new, strict=True))
                assert new[0].node is not None
                nodes.append(new[0].node)
            results |= {output: copies[output] for output in outputs}
        graph = Graph(recorder.inputs, {f"y{k}": result for k, result in enumerate(results.values())}, tuple(nodes))
        arrays = [values[operand] for operand in stand_ins if not operand.is_constant]
        return dict(zip(results, self.run(graph, arrays), strict=True))
