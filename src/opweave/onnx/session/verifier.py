"""Verify other engines for a model, in a child process (`verification.verifier`)."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...compile import engines, tuning
from ...compile.engines import Measurement
from ...compile.uses import Sample
from ...support.errors import MLError
from ...support.formatting import size
from ...verification.process import MAX_COPIED_BYTES, Task, ways_of
from ..convert.trace import Trace
from ..model.arguments import Argument
from ..model.limits import ModelLimits
from ..model.model import Model
from ..model.parameters import QUANTISING
from ..model.protobuf import ModelProto
from ..model.shape_keys import text_of
from .choice import UNCOMPILED
from .compiled import sole_graph
from .model_program import Fallback, ModelProgram
from .shape_cache import ShapeCache, Shapes

if TYPE_CHECKING:
    from ...backends.isolation import EngineProcess
    from .parts import SessionParts


@dataclass(frozen=True)
class ModelTask(Task):
    """A model to verify for some shapes; `is_uncompiled`: ONNX Runtime runs it uncompiled by default."""

    model: Any
    title: str
    folder: str | None
    limits: ModelLimits
    inputs: Sequence[Argument]
    fallback: Fallback
    shapes: Shapes
    is_uncompiled: bool

    def verdict(self) -> Measurement | str:
        """See `Task.verdict`."""
        return _judge(self)


def task_of(parts: SessionParts, key: Any, sample: Mapping[str, Sample]) -> Task | Measurement | str:
    """The stored verdict for shapes in use; else the task of a child process, or the reason why none is started."""
    cache, context, model = parts.shape_cache, parts.context, parts.recipe.model
    if (verdict := engines.find(cache.digest, cache.ways).get(text_of(key))) is not None:
        return verdict
    if isinstance(model, ModelProto):
        if cache.weight_bytes > MAX_COPIED_BYTES:
            return f"a ModelProto with {size(cache.weight_bytes)} of weights would be copied; tune() verifies it"
        model = model.SerializeToString()
    if not isinstance(model, (str, os.PathLike)):
        model = pickle.PickleBuffer(model)  # written without a copy
    is_uncompiled = not any(compiled_key[: len(key)] == key for compiled_key, _ in cache.compiled.items())
    return ModelTask(
        ways_of(cache.ways),
        engines.machine(cache.ways),
        context.device.name,
        context.power_preference,
        sample,
        cache.weight_bytes,
        model,
        parts.recipe.title,
        parts.model.folder,
        parts.model.limits,
        parts.inputs,
        parts.recipe.arguments["fallback"],
        dict(key),
        is_uncompiled,
    )


def _judge(task: ModelTask) -> Measurement | str:
    from ...verification import verifier

    model = Model.load(task.model, task.limits)
    model.folder = task.folder
    ways = verifier.ways_for(task)
    cache = ShapeCache(
        model, verifier.context_for(task, ways), task.inputs, task.fallback, specialise="always", program_bytes=None
    )
    digest, text = cache.digest(), text_of(tuple(task.shapes.items()))
    if (verdict := verifier.kept_verdict(task, digest, ways, text)) is not None:
        return verdict
    sets = verifier.feeds(task.sample)

    def refuse(why: str) -> Measurement:
        return verifier.keep(digest, verifier.neutral_verdict(task, task.title, text, ways, why))

    def trace_model() -> Trace:
        return cache.trace_shapes(task.shapes, sets[0], {})[1]

    try:
        trace = trace_model()
    except MLError as error:
        return refuse(f"it cannot be compiled: {error}")
    names = [info.name for info in model.proto.graph.output]
    graph = sole_graph(trace, names)
    if graph is None:
        return refuse(f"{', '.join(list(ways)[1:])} not verified: parts of the model run on ONNX Runtime as they are")
    untried, notes = engines.expect_gains(graph, list(ways.values())[1:])
    if not untried:
        return refuse("; ".join(notes))
    for name in cache.deciding:  # different values would need a different program
        sets[1][name] = sets[0][name]
    own = UNCOMPILED if task.is_uncompiled else next(iter(ways))

    def build(name: str, process: EngineProcess | None) -> list[tuning.Run]:
        program: ModelProgram
        if name == UNCOMPILED:
            program = cache.open_uncompiled()
        elif process is not None:
            program = cache.compile_on(name, trace, process=process)
        else:
            program = cache.compile_on(name, trace_model())  # the trace counts as a part of the build
        return list(map(program.ordered_run(), sets))

    is_quantised = any(step.node.op_type in QUANTISING for step in trace.steps)
    outputs = sorted(names)
    return verifier.judge(task, task.title, text, digest, ways, build, [own, *untried], outputs, is_quantised)
