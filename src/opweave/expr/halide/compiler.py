"""Compile programs with Halide."""

from __future__ import annotations

import threading
from typing import Any

from ...core.size_bounds import lower_bound
from ...core.size_evaluation import source_of
from ...core.size_values import rename
from ...core.sizes import Dimension, Size
from ...support.errors import OperationError
from ..fingerprint import identify
from ..ir import Formula, Load, Output, Source, walk
from ..ranges import ends_of_positions
from . import objects
from .image import pack
from .kernel import CompiledProgram, size_name
from .mathematics import hl
from .nest import Nest, SizeParameters, buffer_type
from .stages import Loops, Stage, divide

_lock = threading.Lock()  # Halide's compiler is not thread-safe


def compile_program(program: Formula) -> CompiledProgram:
    """Compile a program, without its checks."""
    stages = divide(program)
    targets = [target.source for stage in stages for target in stage.targets]
    stored = [target for target in targets if target not in program.outputs]
    positions = {array: k for k, array in enumerate((*program.inputs, *program.outputs, *stored))}
    digest, ordered = identify(program)
    names = {name: size_name(k) for k, name in enumerate(ordered)}
    sizes: dict[Size, int] = {}

    def number(dimension: Dimension) -> int:
        """A dimension, or ~k for the k-th of `sizes`."""
        return ~sizes.setdefault(dimension, len(sizes)) if isinstance(dimension, Size) else dimension

    calls, files = [], []
    for k, stage in enumerate(stages):
        name, read, shape = f"opweave_{digest[:32]}_{k}", sources_of(stage), Loops(stage).shape
        # An object for each stage: linking Halide's modules would lose strict float semantics.
        code, parameters = _object(program.name, stage, name, read)
        files.append(code)
        reads = tuple((positions[array], (number(array.desc.element_count),)) for array in read)
        writes = tuple((positions[target.source], tuple(map(number, shape))) for target in stage.targets)
        calls.append((f"{name}_argv", reads, tuple(map(number, parameters)), writes))
    kinds = tuple((array.desc.data_type, tuple(map(number, array.desc.shape))) for array in stored)
    for limit in _limits(program):
        number(limit)
    lanes = objects.target().natural_vector_size(hl.Float(32))
    return CompiledProgram(
        tuple(calls), kinds, tuple(source_of(rename(size, names)) for size in sizes), lanes, pack(files)
    )


def _limits(program: Formula) -> list[int]:
    """Sizes that must fit into int32, the type of positions: the numbers of elements, and ends of ranges beyond them."""
    bodies = (*(stored.body for stored in program.stored), *program.roots)
    arrays: list[Source | Output] = [*program.inputs, *program.stored, *program.outputs]
    counts = list(dict.fromkeys(array.desc.element_count for array in arrays))

    def may_exceed(end: int) -> bool:
        return lower_bound(end) < 0 or all(lower_bound(count - end) < 0 for count in counts)

    ends = filter(may_exceed, ends_of_positions(*bodies))
    return [*counts, *ends]


def _object(title: str, stage: Stage, name: str, read: list[Source]) -> tuple[bytes, list[Size]]:
    """The code of a stage, and the sizes that are its parameters behind the arrays."""
    target = objects.target().with_feature(hl.TargetFeature.NoRuntime)
    parameters: dict[Source, Any] = {}
    sizes = SizeParameters()
    with _lock:
        try:
            for k, source in enumerate(read):
                parameter = hl.ImageParam(buffer_type(source.desc.data_type), 1, f"x{k}")
                parameter.dim(0).set_bounds(0, sizes.number(source.desc.element_count)).set_stride(1)
                parameters[source] = parameter
            nest = Nest(stage, name, parameters, sizes, objects.target())
            arguments = [*parameters.values(), *sizes.of.values()]
            return objects.object_of(nest.function.compile_to_module(arguments, name, target)), list(sizes.of)
        except hl.HalideError as error:
            raise OperationError(f"{title}: Halide cannot compile this expression: {error}") from None


def sources_of(stage: Stage) -> list[Source]:
    """The arrays that a stage reads, each once."""
    loads = (node.source for node in walk(*stage.roots) if isinstance(node, Load))
    return [source for source in dict.fromkeys(loads) if source not in stage.rows]
