"""Compile programs with Halide."""

from __future__ import annotations

import threading
from typing import Any

from ...support.errors import OperationError
from ..fingerprint import fingerprint
from ..ir import Formula, Load, Output, Source, walk
from . import objects
from .image import pack
from .kernel import CompiledProgram
from .mathematics import hl
from .nest import Nest, buffer_type
from .stages import Loops, Stage, divide

_lock = threading.Lock()  # Halide's compiler is not thread-safe


def compile_program(program: Formula) -> CompiledProgram:
    """Compile a program, without its checks."""
    stages = divide(program)
    targets = [target.source for stage in stages for target in stage.targets]
    stored = [target for target in targets if target not in program.outputs]
    positions = {array: k for k, array in enumerate((*program.inputs, *program.outputs, *stored))}
    calls, files = [], []
    for number, stage in enumerate(stages):
        name, read, shape = f"opweave_{fingerprint(program)[:32]}_{number}", sources_of(stage), Loops(stage).shape
        # An object for each stage: linking Halide's modules would lose strict float semantics.
        files.append(_object(program.name, stage, name, read))
        shapes: list[tuple[Source | Output, tuple[int, ...]]] = [(array, (array.desc.element_count,)) for array in read]
        shapes += [(target.source, shape) for target in stage.targets]
        calls.append((f"{name}_argv", tuple((positions[array], shape) for array, shape in shapes)))
    kinds = tuple((array.desc.data_type, array.desc.shape) for array in stored)
    lanes = objects.target().natural_vector_size(hl.Float(32))
    return CompiledProgram(tuple(calls), kinds, lanes, pack(files))


def _object(title: str, stage: Stage, name: str, read: list[Source]) -> bytes:
    target = objects.target().with_feature(hl.TargetFeature.NoRuntime)
    parameters: dict[Source, Any] = {}
    with _lock:
        try:
            for k, source in enumerate(read):
                parameter = hl.ImageParam(buffer_type(source.desc.data_type), 1, f"x{k}")
                parameter.dim(0).set_bounds(0, source.desc.element_count).set_stride(1)
                parameters[source] = parameter
            nest = Nest(stage, name, parameters, objects.target())
            return objects.object_of(nest.function.compile_to_module(list(parameters.values()), name, target))
        except hl.HalideError as error:
            raise OperationError(f"{title}: Halide cannot compile this expression: {error}") from None


def sources_of(stage: Stage) -> list[Source]:
    """The arrays that a stage reads, each once."""
    loads = (node.source for node in walk(*stage.roots) if isinstance(node, Load))
    return [source for source in dict.fromkeys(loads) if source not in stage.rows]
