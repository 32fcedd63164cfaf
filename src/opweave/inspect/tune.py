"""Measure the engines that can run a graph, and let it use the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from .. import memory
from ..backends.isolation import EngineProcess
from ..compile import engines, tuning
from ..compile.driver import compile
from ..compile.engines import EngineChoice, Tuning
from ..context.graph import MLGraph, state_of
from ..ops import quantize_linear
from ..run.program import Program
from ..support import lazy_imports
from ..support.formatting import sizes_text
from ..support.names import count_of
from .inputs import input_arrays


@lazy_imports.tune.provide
def tune(graph: MLGraph, inputs: Mapping[str, Any] | None, seconds: float) -> Tuning:
    """See `MLGraph.tune`."""
    tuning.check_seconds(seconds)
    whole = state_of(graph)
    state = whole.version_for("tune", None) if inputs is None else whole.version("tune", inputs)
    program, user_graph, named_graph = state.check_alive(), state.recorded, whole.recorded
    assert user_graph is not None
    assert named_graph is not None
    sources = list(input_arrays("tune", state.inputs, inputs).values())
    context = graph.context
    ways = context.backend.tunable(user_graph)
    without_loops = engines.way_without_loops(user_graph, context.backend) if state.is_fused else ""
    programs: dict[str, Program] = {}

    def build(name: str, process: EngineProcess | None) -> list[tuning.Run]:
        device, preference = context.device.name, context.power_preference
        way = ways[context.backend.name if name == without_loops else name]
        backend = way if process is None else process.backend(way)
        choice = EngineChoice(backend, fuse=state.is_fused and name != without_loops)
        program = compile(user_graph, backend, device=device, power_preference=preference, choice=choice)
        programs[name] = program
        targets = [memory.empty(desc) for desc in state.outputs.values()]
        call = program.bind(sources, targets)

        def run() -> list[np.ndarray]:
            call()
            return targets

        return [run]

    title = f"a graph of {count_of(len(user_graph.nodes), 'operation')}"
    if state.sizes:
        title += f", {sizes_text(state.sizes)}"
    digest, is_quantised = engines.digest(user_graph), any(node.op is quantize_linear for node in user_graph.nodes)
    names, outputs = [*ways, *([without_loops] if without_loops else [])], list(state.outputs)
    keep_further = None
    if named_graph is not user_graph:
        # The graph with names asks for this first: otherwise it would have to make the static graph for each shape.
        keep_further = partial(engines.keep_for_names, engines.outline(named_graph), context.backend)
    measurement = tuning.measure(
        "", title, digest, ways, build, names, outputs, seconds, is_quantised, keep_further=keep_further
    )
    if measurement.chosen in programs:
        program = programs[measurement.chosen]
        program.choice, program.untried = measurement.reason, {}
        state.replace_program(program)
    return Tuning((measurement,))
