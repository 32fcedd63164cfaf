"""Run a call that repeats no recent one: parse its arguments, choose the program, execute it, return the results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ... import memory
from ...context.tensor import Locks, MLTensor, memory_of
from ...core.desc import Desc
from ...support.errors import MLError, OperationError, ValidationError, require
from ...support.records import record
from ...support.refusals import require_names
from ..model.arguments import Argument, HostValues, check_target
from ..model.booleans import bool_as_uint8
from ..model.shape_keys import Shapes
from ..ort_api.ort_values import unwrap
from .direct import direct_call
from .model_program import ModelProgram
from .parts import SessionParts
from .repeat import RepeatedCall

ASKED_TWICE = "an output that is asked for twice"
"""Reason to copy an output: the caller owns each result."""

WRONG_LENGTHS = "seqlens_k.* is out of range"
"""Pattern of the engine's error for invalid lengths that the model computes. The compiled model would run the same kernel."""


@record
class SessionCall:
    """A call with known names.

    Attributes:
        output_names: the argument, as a list or None.
        asked: the names of the outputs to return, `names` each of them once.
        out: the caller's memory for outputs, by name.
    """

    output_names: list[str] | None
    asked: list[str]
    names: list[str]
    inputs: Sequence[Argument]
    feed: Mapping[str, Any]
    out: Mapping[str, Any]
    tensors: list[MLTensor]


@record
class CallValues:
    """The checked memory of a call. `on_host` is `feed`, with the memory of devices copied at the first lookup.

    `shared` has the outputs that reuse the memory of an input, with the name of that input.
    """

    feed: dict[str, Any]
    on_host: Mapping[str, Any]
    targets: dict[str, Any]
    shared: dict[str, str]
    shapes: Shapes


def run_call(
    parts: SessionParts,
    output_names: Sequence[str] | None,
    input_feed: Mapping[str, Any],
    out: Mapping[str, np.ndarray | MLTensor] | None,
) -> list[Any]:
    """`InferenceSession.run` for a call that repeats no recent one."""
    call = _parse(parts, output_names, input_feed, out)
    cache = parts.shape_cache
    with Locks(call.tensors):
        values = _read_values(parts, call)
        choices = cache.choices
        model, is_settled = cache.select(values.shapes, values.on_host)
        new_tensors = {} if parts.space.is_host else _new_tensors(parts, model, call.names, values.targets)
        model, results = _execute(parts, model, call.names, values)
        if parts.use is not None:
            from . import verification

            verification.note(parts.use, cache, values.shapes, values.feed)
        _keep(parts, call, values, model, is_settled)
        if cache.choices != choices:  # another thread has tuned, perhaps before a call was kept
            parts.repeats.clear()
    if parts.returns_arrays and call.names == call.asked and not call.out:
        return results
    by_name, destinations = dict(zip(call.names, results, strict=True)), {**new_tensors, **call.out}
    return [
        _place_result(
            parts,
            parts.outputs[name],
            memory.copied(by_name[name], ASKED_TWICE) if name in call.asked[:position] else by_name[name],
            destinations.get(name),
        )
        for position, name in enumerate(call.asked)
    ]


def _parse(parts: SessionParts, output_names: Any, input_feed: Any, out: Any) -> SessionCall:
    """Check the names in the arguments of a call."""
    outputs = parts.outputs
    is_list = isinstance(output_names, Iterable) and not isinstance(output_names, (str, bytes))
    if output_names is not None and is_list:
        output_names = list(output_names)
    requested_names = output_names or list(outputs)
    is_of_names = (is_list or output_names is None) and all(isinstance(name, str) for name in requested_names)
    require(is_of_names, f"output_names must be a list of names, got {output_names!r}")
    require(isinstance(input_feed, Mapping), f"inputs must map names to arrays, got {type(input_feed).__name__}")
    feed = unwrap(input_feed)
    inputs: Sequence[Argument] = parts.inputs
    if feed.keys() - parts.inputs_by_name.keys():
        inputs = [*inputs, *(i for i in parts.overridable() if i.name in feed)]
    require_names("inputs", feed, {i.name: i for i in inputs})
    require(out is None or isinstance(out, Mapping), f"out must map names to arrays, got {type(out).__name__}")
    out = unwrap(out or {}, "output")
    for label, requested in (("output_names", requested_names), ("out", list(out))):
        unknown = [name for name in requested if name not in outputs]
        require(not unknown, f"{label} must be among {list(outputs)}; unknown: {unknown}")
    tensors = [value for value in (*feed.values(), *out.values()) if isinstance(value, MLTensor)]
    return SessionCall(output_names, requested_names, list(dict.fromkeys(requested_names)), inputs, feed, out, tensors)


def _read_values(parts: SessionParts, call: SessionCall) -> CallValues:
    """Check the values of a call, whose tensors are locked."""
    feed = {i.name: i.as_input(call.feed[i.name], parts.context) for i in call.inputs}
    for value_range in parts.ranges:
        value_range.check(feed)
    targets = {name: parts.outputs[name].as_output(value, parts.context) for name, value in call.out.items()}
    on_host = feed if parts.space.is_host else HostValues(feed, parts.space)
    return CallValues(feed, on_host, targets, _check_overlap(parts, feed, targets), parts.shapes_in(feed))


def _check_overlap(parts: SessionParts, feed: Mapping[str, Any], targets: Mapping[str, Any]) -> dict[str, str]:
    """Require outputs to overlap only the input that they may update; return such outputs with their inputs."""
    shared = memory.in_place(feed, targets, parts.in_place)
    feed = {name: value for name, value in feed.items() if name not in shared.values()}
    numbers = {n: a for n, a in feed.items() if isinstance(a, np.ndarray) and a.dtype.kind not in "OUS"}
    arrays = {f"output {n}": a for n, a in targets.items() if isinstance(a, np.ndarray)}
    memory.check_overlap({f"input {n}": a for n, a in numbers.items()}, arrays)
    if not (space := parts.space).is_host:
        sources = {name: value for name, value in feed.items() if space.owns(value)}
        space.check_overlap(sources, {name: target for name, target in targets.items() if space.owns(target)})
    return shared


def _new_tensors(
    parts: SessionParts, model: ModelProgram, names: Sequence[str], targets: dict[str, Any]
) -> dict[str, MLTensor]:
    """Create tensors, as targets, for the outputs that are wanted on the device and have known shapes."""
    on_device = [name for name in names if parts.locations[name] != "cpu" and name in model.results]
    tensors = {name: _tensor(parts, model.results[name][0]) for name in on_device if name not in targets}
    targets.update({name: memory_of(tensor) for name, tensor in tensors.items()})
    return tensors


def _tensor(parts: SessionParts, desc: Desc) -> MLTensor:
    return parts.context.create_tensor(desc.data_type, desc.shape, readable=True, writable=True)


def _execute(
    parts: SessionParts, model: ModelProgram, names: Sequence[str], values: CallValues
) -> tuple[ModelProgram, list[Any]]:
    """Run a program, or the compiled model if it refuses the call; return the one that ran, and the outputs `names`."""
    try:
        return model, _run_by_name(model, names, values)
    except OperationError as error:
        if not model.is_open or re.search(WRONG_LENGTHS, str(error)):
            raise
    # WebNN defines calls that the engine refuses, such as indices out of range, and has different errors.
    compiled = parts.shape_cache.compile_for(values.shapes, values.on_host)
    try:
        return compiled, _run_by_name(compiled, names, values)
    except MLError:
        parts.shape_cache.drop(compiled)  # other values of these shapes do not need this program
        raise


def _run_by_name(model: ModelProgram, names: Sequence[str], values: CallValues) -> list[Any]:
    targets = values.targets
    for name in model.results.keys() & targets.keys():
        check_target(name, targets[name], model.results[name][0].shape)
    inputs = [values.feed[name] for name in model.inputs]
    positions = [model.outputs.index(name) for name in names]
    if not targets:
        return model.returning(positions)(inputs)
    return model.run(inputs, [targets.get(name) for name in model.outputs], positions, values.shared)


def _keep(parts: SessionParts, call: SessionCall, values: CallValues, model: ModelProgram, is_settled: bool) -> None:
    """Keep a call that later ones may repeat, and the direct call for its outputs."""
    cache, names, feed = parts.shape_cache, call.names, values.feed
    if names != call.asked or len(feed) != len(parts.inputs):
        return
    is_only = model is cache.only_uncompiled
    if is_only and parts.run_trace is None and parts.returns_arrays:
        parts.repeats.keep_direct(call.output_names, lambda: direct_call(model, parts.inputs, names, parts.ranges))
    if is_settled and parts.is_repeatable and (parts.space.is_host or not call.tensors):
        deciding = cache.deciding & feed.keys()
        same = None if call.output_names is None else list(call.output_names)
        declared = (parts.inputs_by_name, parts.outputs) if is_only else None
        accepts = cache.accepts(model)
        repeat = RepeatedCall(
            model, feed, same, names, deciding, parts.ranges, parts.in_place, values.targets, declared, accepts
        )
        parts.repeats.keep(repeat, {name: feed[name] for name in call.feed})


def _place_result(parts: SessionParts, output: Argument, result: Any, target: Any) -> Any:
    if isinstance(target, MLTensor):
        return target
    if target is not None or parts.locations[output.name] == "cpu":
        return result
    try:
        stored = bool_as_uint8(result)
        if parts.space.is_host:
            return parts.context.tensor_from(stored)
        tensor = _tensor(parts, Desc(stored.dtype.name, stored.shape))
        parts.space.write(memory_of(tensor), stored, f"the output {output.name!r}, whose shape was not known")
        return tensor
    except ValidationError as error:
        raise ValidationError(f"output {output.name!r} cannot be a tensor: {error}") from None
