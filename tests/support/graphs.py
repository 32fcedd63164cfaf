"""Small graphs for tests, built and computed in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
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


def reversed_elements(array: np.ndarray) -> np.ndarray:
    """Return the elements in reverse order: other numbers of the same range, so that indices stay valid."""
    return np.ascontiguousarray(np.asarray(array).reshape(-1)[::-1]).reshape(np.shape(array))


def compute_again(context: ow.MLContext, graph: ow.MLGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute a graph, once more with other numbers, and again; return the last results, which must equal the first ones.

    An engine may write results in place of what it computed while it loaded the graph, or keep what belongs to other inputs:
    then the first run is right, and later ones are wrong.

    Args:
        context: where the graph runs.
        graph: the graph.
        feeds: arrays by name, at least those of the graph's inputs.

    Raises:
        AssertionError: the runs with equal inputs differ.
    """
    arrays = {name: feeds[name] for name in graph.inputs}
    first = context.compute(graph, arrays)
    if arrays:
        with suppress(ow.MLError):  # an operation may refuse these numbers
            context.compute(graph, {name: reversed_elements(array) for name, array in arrays.items()})
    last = context.compute(graph, arrays)
    for name, array in last.items():
        assert_same(array, first[name], f"{name} of a later run")
    return dict(last)


def assert_same(array: np.ndarray, other: np.ndarray, title: str) -> None:
    """Require the same numbers; a NaN equals a NaN."""
    if array.tobytes() != other.tobytes():
        np.testing.assert_array_equal(array, other, err_msg=title)


def outputs_of(
    context: ow.MLContext, build: Callable[..., Any], feeds: Mapping[str, np.ndarray], **options: Any
) -> dict[str, np.ndarray]:
    """Build a graph as `build_graph` does, and return all outputs of a later run by name."""
    return compute_again(context, build_graph(context, build, feeds, **options), feeds)


def run(context: ow.MLContext, build: Callable[..., Any], *arrays: np.ndarray, **options: Any) -> np.ndarray:
    """Compute the operand that `build` returns; it takes the builder and an operand for each array, by position."""
    feeds = {f"x{number}": array for number, array in enumerate(arrays)}
    return outputs_of(context, lambda builder, **inputs: build(builder, *inputs.values()), feeds, **options)["y"]
