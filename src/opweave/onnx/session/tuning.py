"""Measure the engines that can run a model (`InferenceSession.tune`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...compile import tuning
from ...compile.engines import Tuning
from ...core.value_ranges import InputRange
from ...support.errors import require
from ...support.names import short_repr
from ..model.parameters import QUANTISING
from .choice import NEVER, UNCOMPILED
from .direct import direct_call
from .repeat import RepeatedCall
from .shape_cache import Shapes, text_of

if TYPE_CHECKING:
    from ...backends.isolation import EngineProcess
    from ...compile.engines import Measurement
    from ...compile.tuning import Run
    from .compiled import CompiledModel
    from .model_program import ModelProgram
    from .parts import SessionParts


LONG_SECONDS = 1.0
"""Longer builds are measured once, unless they compile loops: the time to load modules is negligible."""

T = TypeVar("T")


def tune(
    parts: SessionParts,
    shapes: Sequence[Mapping[str, Sequence[int]]] | None,
    inputs: Mapping[str, Any] | None,
    seconds: float,
) -> Tuning:
    """See `InferenceSession.tune`."""
    tuning.check_seconds(seconds)
    parts.check_alive()
    combinations, feed = combinations_of(parts, "tune", shapes, inputs)
    if parts.shape_cache.specialise == "never":  # some models must be compiled all the same
        is_compiled = all(parts.shape_cache.find_uncompiled(sizes) is None for sizes in combinations)
        require(is_compiled, f"tune: the session compiles nothing: {NEVER}")
    measurements = []
    try:
        for sizes in combinations:
            measurements.append(_tune(parts, sizes, feed or random_feed(parts, sizes), seconds))
    finally:
        parts.shape_cache.repeats.clear()  # calls select their program again
    return Tuning(tuple(measurements))


def combinations_of(
    parts: SessionParts,
    subject: str,
    shapes: Sequence[Mapping[str, Sequence[int]]] | None,
    inputs: Mapping[str, Any] | None,
) -> tuple[list[Shapes], Mapping[str, Any]]:
    """The shapes that a method is for, and the checked inputs if the user has passed them; `subject` names the method."""
    cache = parts.shape_cache
    require(shapes is None or inputs is None, f"{subject}: shapes and inputs must not be given both")
    if inputs is not None:
        require(isinstance(inputs, Mapping), f"{subject}: inputs must map names to arrays, got {short_repr(inputs)}")
        feed = parts.read_feed(f"{subject}: inputs", inputs)
        return [{n: a.shape if isinstance(a, np.ndarray) else None for n, a in feed.items()}], feed
    if shapes is not None:
        is_list = isinstance(shapes, Sequence) and all(isinstance(item, Mapping) for item in shapes)
        require(
            is_list, f"{subject}: shapes must be a list with a shape by name for each input, got {short_repr(shapes)}"
        )
        return [parts.shapes_of(item) for item in shapes], {}
    combinations: list[Shapes] = [parts.shapes_of({})] if parts.is_static else cache.shapes_in_use()
    require(bool(combinations), f"{subject}: no shapes are in use yet; run the model first, or pass shapes")
    return combinations, {}


def _tune(parts: SessionParts, shapes: Shapes, feed: Mapping[str, Any], seconds: float) -> Measurement:
    cache, name = parts.shape_cache, parts.recipe.title
    if len(cache.ways) == 1:
        return tuning.default_measurement(name, text_of(tuple(shapes.items())), cache.ways)
    was_uncompiled, uncompiled = cache.only_uncompiled is not None, cache.find_uncompiled(shapes)
    deciding = {name: feed[name] for name in cache.deciding & feed.keys()}
    (key, trace), trace_seconds = _time_build(lambda: cache.trace_shapes(shapes, feed, deciding))
    models: dict[str, CompiledModel] = {}
    builds = dict[str, float]()

    def build(name: str, process: EngineProcess | None = None) -> list[Run]:
        if uncompiled is not None and name == UNCOMPILED:
            model = uncompiled
            _, builds[name] = _time_build(cache.open_uncompiled)
        elif process is not None:
            model = cache.compile_on(name, trace, process=process)
        else:
            models[name], build_seconds = _time_build(lambda: cache.compile_on(name, trace))
            model, builds[name] = models[name], trace_seconds + build_seconds
        return [model.ordered_run()(feed) if process is not None else _call_of(parts, model, feed)]

    names = list(cache.ways)
    if uncompiled is not None:
        try:
            build(UNCOMPILED)[0]()
            names.insert(0, UNCOMPILED)
        except tuning.REFUSALS as error:  # the engine refuses what WebNN defines, such as indices out of range
            from logging import getLogger

            getLogger("opweave").info("%s is not measured: %s", UNCOMPILED, error)
    text = text_of(tuple(shapes.items()))
    is_quantised = any(step.node.op_type in QUANTISING for step in trace.steps)
    digest, outputs = cache.digest(), sorted(parts.outputs)
    measurement = tuning.measure(name, text, digest, cache.ways, build, names, outputs, seconds, is_quantised, builds)
    cache.use_tuned(key, measurement, models.get(measurement.chosen))
    if parts.is_static and not was_uncompiled and measurement.chosen != UNCOMPILED:
        cache.drop_uncompiled()
    return measurement


def _call_of(parts: SessionParts, model: ModelProgram, feed: Mapping[str, Any]) -> Run:
    """A function that runs a model as a session repeats a call; checks take a tenth of the time of a small model."""
    run, arrays, names = model.ordered_run()(feed), dict(feed), sorted(parts.outputs)
    if not (parts.is_repeatable and parts.space.is_host):
        return run
    direct = direct_call(model, parts.inputs, names, parts.ranges) if model.is_open else None
    if direct is None:
        deciding = parts.shape_cache.deciding & feed.keys()
        direct = partial(_repeat, RepeatedCall(model, arrays, None, names, deciding, parts.ranges, parts.in_place))

    def call() -> list[Any]:
        results = direct(arrays)
        return run() if results is None else results  # `run` raises the errors

    return call


def _repeat(repeat: RepeatedCall, arrays: dict[str, Any]) -> list[Any] | None:
    return repeat.run(None, arrays, None)


def _time_build(build: Callable[[], T]) -> tuple[T, float]:
    """The result of a build, and the seconds of a repeated build.

    The first build also loads modules, and compiles loops, which the cache on disk keeps for other processes.
    """
    from ...expr import kernels

    for _ in range(2):
        compiled = kernels.compiled.statistics.misses
        begin = perf_counter()
        result = build()
        seconds = perf_counter() - begin
        if seconds > LONG_SECONDS and kernels.compiled.statistics.misses == compiled:
            break
    return result, seconds


def random_feed(parts: SessionParts, shapes: Shapes) -> dict[str, np.ndarray]:
    """Random values for the inputs of a model; indices, such as token ids, cover the whole table.

    With only two token ids, results of 8-bit networks depend more on rounding than on the input.
    """
    generator = np.random.default_rng(0)
    counts: dict[str, int] = {}
    for index_range in parts.ranges:
        if isinstance(index_range, InputRange):
            counts[index_range.name] = min(
                index_range.values.high + 1, counts.get(index_range.name, index_range.values.high + 1)
            )
    return {
        argument.name: argument.random(shapes[argument.name] or (), generator, counts.get(argument.name, 2))
        for argument in parts.inputs
    }
