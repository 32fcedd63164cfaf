"""Small graphs for tests, built and computed in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import opweave as ow
from opweave.core.dtypes import of_array


def build_graph(
    context: ow.MLContext, build: Callable[..., Any], feeds: Mapping[str, np.ndarray], **options: Any
) -> ow.MLGraph:
    """Build a graph that has an input for each array.

    Args:
        context: where it runs.
        build: takes the builder and the inputs by name, and returns the operand of the output "y", a tuple of those of "y0",
            "y1" and so on, or all outputs by name.
        feeds: arrays whose names, data types and shapes the inputs have.
        **options: what `MLGraphBuilder.build` takes, too.
    """
    builder = ow.MLGraphBuilder(context)
    inputs = {name: builder.input(name, of_array(array.dtype), array.shape) for name, array in feeds.items()}
    result = build(builder, **inputs)
    if isinstance(result, tuple):
        result = {f"y{number}": operand for number, operand in enumerate(result)}
    return builder.build(result if isinstance(result, dict) else {"y": result}, **options)


def engine_line(subject: ow.MLGraph | ow.InferenceSession) -> str:
    """The line of `explain` that says which engine runs a graph or a session; empty if there is none."""
    return "".join(line for line in subject.explain().splitlines() if line.startswith("engine: "))


def outputs_of(
    context: ow.MLContext, build: Callable[..., Any], feeds: Mapping[str, np.ndarray], **options: Any
) -> dict[str, np.ndarray]:
    """Build a graph as `build_graph` does, and return all outputs by name."""
    graph = build_graph(context, build, feeds, **options)
    return dict(context.compute(graph, {name: feeds[name] for name in graph.inputs}))


def run(context: ow.MLContext, build: Callable[..., Any], *arrays: np.ndarray, **options: Any) -> np.ndarray:
    """Compute the operand that `build` returns; it takes the builder and an operand for each array, by position."""
    feeds = {f"x{number}": array for number, array in enumerate(arrays)}
    return outputs_of(context, lambda builder, **inputs: build(builder, *inputs.values()), feeds, **options)["y"]
