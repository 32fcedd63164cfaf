"""Measure the engines that can run a graph, and let it use the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import memory
from ..backends.isolation import EngineProcess
from ..compile import engines, tuning
from ..compile.driver import compile
from ..compile.engines import Choice, Tuning
from ..memory.arrays import as_array, contiguous, fit
from ..ops import quantize_linear
from ..run.graph import MLGraph, check_names
from ..run.program import Program
from ..support import lazy_imports
from ..support.errors import require
from ..support.names import counted, shown
from .profile import random


@lazy_imports.tune.provide
def tune(graph: MLGraph, inputs: Mapping[str, Any] | None, seconds: float) -> Tuning:
    """See `MLGraph.tune`."""
    graph._check_alive()
    tuning.check_seconds(seconds)
    sources = _sources(graph, inputs)
    context, user_graph = graph.context, graph._graph
    assert user_graph is not None
    ways = context.backend.tunable(user_graph)
    without_loops = engines.way_without_loops(user_graph, context.backend) if graph._fuse else ""
    programs: dict[str, Program] = {}

    def build(name: str, process: EngineProcess | None) -> list[tuning.Run]:
        device, preference = context.device.name, context.power_preference
        way = ways[context.backend.name if name == without_loops else name]
        backend = way if process is None else process.backend(way)
        choice = Choice(backend, fuse=graph._fuse and name != without_loops)
        program = compile(user_graph, backend, device=device, power_preference=preference, choice=choice)
        programs[name] = program
        targets = [memory.empty(desc) for desc in graph.outputs.values()]
        call = program.bind(sources, targets)

        def run() -> list[np.ndarray]:
            call()
            return targets

        return [run]

    what = f"a graph of {counted(len(user_graph.nodes), 'operation')}"
    digest, is_quantised = engines.digest(user_graph), any(node.op is quantize_linear for node in user_graph.nodes)
    current = engines.engine_of(graph._check_alive().choice)
    names, outputs = [*ways, *([without_loops] if without_loops else [])], list(graph.outputs)
    measurement = tuning.measure("", what, digest, ways, build, names, outputs, seconds, is_quantised, current)
    if measurement.chosen in programs:
        program = programs[measurement.chosen]
        program.choice, program.untried = measurement.reason, {}
        graph._replace_program(program)
    return Tuning((measurement,))


def _sources(graph: MLGraph, inputs: Mapping[str, Any] | None) -> list[np.ndarray]:
    """An array for each input of a graph."""
    require(
        inputs is None or isinstance(inputs, Mapping), f"tune: inputs must map names to arrays, got {shown(inputs)}"
    )
    if inputs is None:
        return list(random(graph.inputs).values())
    check_names("tune: inputs", inputs, graph.inputs)
    arrays = []
    for name, desc in graph.inputs.items():
        label = f"tune: input {name!r}"
        arrays.append(contiguous(fit(as_array(inputs[name], label, desc.data_type), label, desc)))
    return arrays
