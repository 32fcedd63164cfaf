"""Graphs whose sizes are known when they run, compared with the static graphs of the same sizes.

A graph grows by random calls (`fuzz.growth`), with symbols, and with the numbers of several combinations of sizes. Each device
runs the graph with names and its static graphs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

import opweave as ow
from fuzz.dynamic import LIMITS
from fuzz.frame import MEMORY, Campaign, Finding
from fuzz.graphs import TOLERANCES, disagreement
from fuzz.growth import COMBINATIONS, Growth, Value
from opweave.backends import Precision
from opweave.backends.precision import KEEPS_FLOAT32
from opweave.context.graph import state_of
from opweave.core.graph import Graph, add_like
from opweave.core.size_values import variables_in

OF_INTEGERS = f"wraps around|must not be negative|must be at most|must be within|an integer type|{LIMITS}"
"""Why formulas of sizes do not hold where integers of a chain wrap around, or are too long."""


@cache
def context_on(device: str, precision: Precision = "float32") -> ow.MLContext:
    """The context of all cases on a device."""
    return ow.ml.create_context(device=device, drafts=True, precision=precision)


def compare(rng: random.Random, number: int, devices: Sequence[str] = ("reference", "cpu")) -> str:
    """Grow a graph, run it with each combination of sizes on each device, and compare it with the static graphs.

    The last device may have fewer data types than the others: the graph is built for it.
    """
    growth = Growth(rng, context_on(devices[-1]))
    wanted = rng.choice([1, 3, 6, 10, 15, 30])
    for _ in range(3 * wanted):
        if growth.grow() and len(growth.names) >= wanted:
            break
    if not growth.values:
        return "doubtful" if growth.is_doubtful else "empty"
    ends = _ends(growth)
    graph = Graph.reaching({name: value.operand for name, value in ends.items()})
    statics = {k: Graph.reaching({name: value.twins[k] for name, value in ends.items()}) for k in growth.allowed}
    for device in devices:
        try:
            with np.errstate(all="ignore"):
                _run(growth, ends, graph, statics, device)
        except Finding as finding:
            raise Finding(f"{device}: {finding}\n{graph}") from finding
        except ow.MLError as error:
            raise Finding(f"{device}: {type(error).__name__}: {error}\n{graph}") from error
    return "doubtful" if growth.is_doubtful else "result"


def _ends(growth: Growth) -> dict[str, Value]:
    """The outputs of a graph that has grown."""
    ends = {f"y{k}": v for k, v in enumerate(growth.values) if k not in growth.read or growth.chance(0.1)}
    # Attributes may depend on the sizes of inputs that no operation reads.
    for name, value in growth.inputs.items():
        reached = Graph.reaching({name: value.operand for name, value in ends.items()}).inputs
        sizes = variables_in(tuple(operand.shape for operand in reached.values()))
        if name not in reached and growth.needed & variables_in(value.operand.shape) - sizes:
            ends[f"y_{name}"] = value.mapped(lambda operand: operand.builder.identity(operand))
    return ends


def build(context: ow.MLContext, graph: Graph) -> ow.MLGraph:
    """Compile the graph of another builder."""
    builder = ow.MLGraphBuilder(context)
    copies = {operand: ow.MLOperand(builder, operand.desc, value=operand.value) for operand in graph.constants}
    for name, operand in graph.inputs.items():
        copies[operand] = builder.inputs[name] = ow.MLOperand(builder, operand.desc, name=name)
    builder.has_names = graph.has_names
    for node in graph.nodes:
        copies.update(zip(node.outputs, add_like(builder, node, copies.__getitem__, node.label), strict=True))
    return builder.build({name: copies[operand] for name, operand in graph.outputs.items()})


def _run(growth: Growth, ends: dict[str, Value], recorded: Graph, statics: Mapping[int, Graph], device: str) -> None:
    context = context_on(device)
    graph = build(context, recorded)
    order = growth.rng.sample(range(COMBINATIONS), COMBINATIONS)
    for k in [*order, order[0]]:  # what belongs to other sizes must not stay
        names = growth.sizes[k]
        feeds = {name: growth.feeds[name][k] for name in graph.inputs}
        shapes = {name: array.shape for name, array in feeds.items()}
        if growth.errors[k]:
            _require_error(partial(graph.compute_shapes, shapes), growth.errors[k], "compute_shapes", names)
            _require_error(partial(context.compute, graph, feeds), growth.errors[k], "compute", names)
            continue
        computed = graph.compute_shapes(shapes)
        expected = {name: operand.shape for name, operand in statics[k].outputs.items()}
        if computed != expected:
            raise Finding(f"compute_shapes gives {computed} for {names}, and should give {expected}")
        try:
            static = build(context, statics[k])
            results = context.compute(static, {name: feeds[name] for name in static.inputs})
        except ow.MLError as error:  # such as lengths that are out of range for these sizes
            # What a decomposition refuses is said in names.
            message = str(error).rpartition(", got ")[0] or str(error)
            _require_error(partial(context.compute, graph, feeds), message, "compute", names)
            continue
        got = context.compute(graph, feeds)
        if any(_difference(got[name], results[name], device, ends[name]) for name in got) and (
            KEEPS_FLOAT32 in graph.explain() + static.explain()
        ):  # with "ieee", each operation rounds
            rounding = context_on(device, "ieee")
            got = rounding.compute(build(rounding, recorded), feeds)
            results = rounding.compute(build(rounding, statics[k]), {name: feeds[name] for name in static.inputs})
        for name, array in got.items():
            if difference := _difference(array, results[name], device, ends[name]):
                raise Finding(f"{name} for {names}: {difference}")
    refusal = getattr(state_of(graph), "refusal", "")
    if refusal and not re.search(OF_INTEGERS, refusal):
        raise Finding(f"it is compiled for numbers, since with names: {refusal}")


def _require_error(call: Callable[[], Any], message: str, subject: str, sizes: dict[str, int]) -> None:
    try:
        call()
    except ow.MLError as error:
        text = _without_numbers(str(error))
    else:
        raise Finding(f"{subject} accepts {sizes}; the static graph says: {message}")
    message = _without_numbers(message)
    if subject == "compute_shapes" and not re.search("; the sizes are .+ = ", text):
        raise Finding(f"{subject} for {sizes} names no sizes: {text}")
    rule, has_sizes, listed = text.removeprefix(f"{subject}: ").rpartition("; the sizes are ")
    rule, message = rule or text.removeprefix(f"{subject}: "), message.removeprefix(f"{subject}: ")
    if not (message.startswith(rule) or rule.startswith(message)):
        raise Finding(f"{subject} for {sizes} says: {text}\nthe static graph says: {message}")
    if has_sizes and not all(f"{sizes[name]}" == value for name, value in (s.split(" = ") for s in listed.split(", "))):
        raise Finding(f"{subject} for {sizes} says: {text}")


def _without_numbers(message: str) -> str:
    """A message without the engine's nodes, which the graphs may have others of, and without their numbers."""
    message = re.sub(
        r"^(compute: )?.*: (?=ONNX Runtime failed|\w+( '[^']*')?: there is not enough memory)", "", message
    )
    message = re.sub(r"(\[ONNXRuntimeError\] : \d+ : \w+ : |Error in execution: )(?=Non-zero status)", "", message)
    return re.sub(r"#\d+'", "'", message)


def _difference(got: np.ndarray, wanted: np.ndarray, device: str, value: Value) -> str:
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        return f"it is {got.dtype}{list(got.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if got.tobytes() == wanted.tobytes():
        return ""
    if device != "reference" and not value.is_specified:
        return ""
    if device != "reference" and not value.has_certain_nans and got.dtype.kind == "f":
        is_certain = ~(np.isnan(got) | np.isnan(wanted))
        got, wanted = got[is_certain], wanted[is_certain]
    if device == "reference" or got.dtype.kind != "f" or value.is_exact:
        differs = _bits(got) != _bits(wanted)
        if got.dtype.kind == "f":  # the sign and the payload of NaN are not specified
            differs &= ~(np.isnan(got) & np.isnan(wanted))
        if not differs.any():
            return ""
        at = tuple(map(int, np.argwhere(differs)[0]))
        return f"at {at}, it is {got[at]!r} instead of {wanted[at]!r}"
    return disagreement(got, wanted, TOLERANCES[got.dtype.name])


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")


def obstacle(device: str) -> str:
    """Why a device cannot run here; empty if it can."""
    try:
        ow.ml.create_context(device=device)
    except ow.MLError as error:
        return str(error)
    return ""


_CAMPAIGN = Campaign(
    "sizes",
    "graphs of up to 30 operations whose sizes have names, against their static graphs, on the reference and on ONNX Runtime",
    compare,
    count=100_000,
    short=100,
    batch=200,
    memory=2 * MEMORY,
    outcomes=frozenset({"result", "doubtful", "empty"}),
)


def _gpu(device: str, where: str, count: int) -> Campaign:
    return replace(
        _CAMPAIGN,
        name=f"sizes-{device}",
        about=f"graphs of up to 30 operations whose sizes have names, against their static graphs, on {where}",
        case=partial(compare, devices=[device]),
        count=count,
        short=5,
        batch=50,
        memory=None,
        seconds=120,
        obstacle=partial(obstacle, device),
    )


_ALL = (_CAMPAIGN, _gpu("gpu-software", "WebGPU", 200), _gpu("cuda", "CUDA", 1000))
CAMPAIGNS = {campaign.name: campaign for campaign in _ALL}
