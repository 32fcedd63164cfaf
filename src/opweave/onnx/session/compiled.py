"""Compile a traced model into one program, in which the steps of WebNN and of ONNX Runtime share memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from ...backends import Backend, Placement
from ...compile.completion import abandon_on_errors
from ...compile.driver import compile
from ...compile.legalise import cut_out
from ...compile.partition import Segment, divide
from ...context.context import MLContext
from ...core.graph import Builder, Desc, Graph, Operand
from ...core.size_values import values_at
from ...memory.spaces import HOST, Cell
from ...run.program import Program
from ...run.steps import CompiledSegment, Unsized
from ...support.errors import DataError, NotSupportedError
from ..convert.trace import Trace, TracedNode
from ..model.booleans import bool_as_uint8
from ..model.model import Model
from ..model.protobuf import GraphProto, ModelProto, TensorProto, ValueInfoProto, sub_graphs
from ..model.registry import DATA_TYPES
from ..model.scopes import used_names
from ..model.values import Constant, Dynamic, Tensor, Value, shape_of, type_of
from .model_program import Fallback, ModelProgram, Result, Wrapper
from .named_models import NamedModel

_BUILDER = Builder()
"""Builder of operands outside WebNN graphs: values of unknown shape, and constant outputs."""


class CompiledModel(ModelProgram):
    """A traced model, compiled for given input shapes; `backend` runs the graphs instead of the context's.

    With `whole`, a fallback node is an error, since ONNX Runtime alone runs such a model as fast, and no operations are fused
    into loops of Opweave's compiler. `choice` is the engine chosen among several, with the reason, or empty. `untried` has
    unverified engines that may be faster, with the reason by name.

    Attributes:
        is_shared: whether it shares what was compiled with models for other shapes.
        named: the model that it is a version of, if its program returns results for all shapes of that model, too.
    """

    is_shared = False
    named: NamedModel | None = None

    def __init__(
        self,
        model: Model,
        context: MLContext,
        trace: Trace,
        outputs: Sequence[str],
        fallback: Fallback,
        whole: bool = False,
        backend: Backend | None = None,
    ) -> None:
        self.context, self.trace = context, trace
        self._backend = backend or context.backend
        self.sizes: Mapping[str, int] = {}  # the sizes for which it was compiled, by name
        self.choice = ""
        self.untried: Mapping[str, str] = {}
        self._check_types(model)
        self.sections = sections(trace, outputs)
        if fallback == "error" or whole:
            check_whole(self.sections, "cannot run on WebNN")
        self._fuses = not whole
        # Operands of the program by name; names with the same operand share memory.
        self._operands: dict[str, Operand] = {}
        for name, value in trace.values.items():
            if not isinstance(value, Constant):
                self._operands[name] = value.operand if isinstance(value, Tensor) else Unsized(_BUILDER, name)
        for name in outputs:
            if isinstance(value := trace.values[name], Constant):
                self._operands[name] = _constant(value)
        self._sources: dict[Operand, Operand] = {}  # operand of the trace -> operand that a part writes
        # Only names of the graph's inputs: an abandoned expansion leaves further names for the same operands.
        names = (info.name for info in model.proto.graph.input)
        inputs = {self._operands[name]: name for name in names if name in self._operands}
        self.placements: list[list[Placement]] = []  # for each section, those of its operations
        parts: list[CompiledSegment] = []
        with abandon_on_errors(parts):
            for section in self.sections:
                section_parts, placements = self._compile(model, section)
                self.placements.append([replace(p, segment=p.segment + len(parts)) for p in placements])
                parts += section_parts
            for part in parts:
                part.runner.complete()
        # Inputs and outputs in the order of the parts, so that a single part runs without a wrapper.
        order = {operand: k for k, operand in enumerate(operand for part in parts for operand in part.writes)}
        sources = {name: self._source(self._operands[name]) for name in outputs}
        ends = dict(sorted(sources.items(), key=lambda item: order.get(item[1], len(order))))
        read = dict.fromkeys([*(operand for part in parts for operand in part.reads), *ends.values()])
        starts = {inputs[operand]: operand for operand in read if operand in inputs and not operand.is_constant}
        placed = [placement for placements in self.placements for placement in placements]
        program = Program(Graph(starts, ends, ()), {}, parts, placed, context.backend.space)
        super().__init__(program, list(map(self._wrapper, starts)), list(map(self._result, ends)))

    @property
    def threads(self) -> int:
        """Number of threads of the engine."""
        return self.program.threads

    def at(self, sizes: Mapping[str, int]) -> CompiledModel:
        """The model for these sizes, if it was compiled with names; it shares what was compiled."""
        model = copy(self)
        model.is_shared, model.sizes = True, sizes
        model.set_program(
            self.program.at(sizes, ()), self._wrappers, [_result_at(result, sizes) for result in self._results]
        )
        return model

    @property
    def takes_all_sizes(self) -> bool:
        """Whether the program, compiled with names, returns results for other sizes, too."""
        return self.gives_values_as_is and self.program.takes_all_sizes

    def custom(self, number: int) -> list[Placement]:
        """Placements of the custom operations of a section."""
        ops = {step.op for step in self.sections[number].nodes if step.op is not None}
        return [placement for placement in self.placements[number] if placement.op in ops]

    # Compiling -----------------------------------------------------------------------------------------------------------

    def _wrapper(self, name: str) -> Wrapper:
        if isinstance(self._operands[name], Unsized):
            return Cell
        return bool_as_uint8 if self.trace.values[name].element_type == TensorProto.BOOL else None

    def _result(self, name: str) -> Result:
        operand = self._operands[name]
        if isinstance(operand, Unsized):
            return None
        is_bool = self.trace.values[name].element_type == TensorProto.BOOL
        return operand.desc, np.dtype(bool if is_bool else operand.desc.data_type)

    def _check_types(self, model: Model) -> None:
        """Require outputs of the element types that the model declares."""
        for info in model.proto.graph.output:
            value, declared = self.trace.values[info.name], info.type.tensor_type.elem_type
            if declared and not isinstance(value, Dynamic) and value.element_type != declared:
                names = [TensorProto.DataType.Name(type).lower() for type in (declared, value.element_type)]
                raise DataError(f"the output {info.name!r} is declared as {names[0]}, and is {names[1]}")

    def _source(self, operand: Operand) -> Operand:
        return self._sources.get(operand, operand)

    def _compile(
        self, model: Model, section: Segment[TracedNode, str]
    ) -> tuple[list[CompiledSegment], list[Placement]]:
        """Compile a section to parts and placements; to none if its outputs are only inputs or constants."""
        if section.kind == "fallback":
            return [self._compile_fallback(model, section)], []
        takes = dict.fromkeys(self._operands[name] for name in section.inputs)
        gives = dict.fromkeys(self._operands[name] for name in section.outputs)
        new_outputs = [operand for operand in gives if operand not in takes and not operand.is_constant]
        if not new_outputs:
            return [], []
        graph, reads = cut_out(takes, new_outputs)
        context = self.context
        program = compile(
            graph,
            self._backend,
            device=context.device.name,
            power_preference=context.power_preference,
            fuse=self._fuses,
            alone=len(self.sections) == 1,
            spinning="long",
            wait=False,  # kernels of all sections are compiled in parallel
        )
        self.choice, self.untried = program.choice, program.untried
        sources = dict(zip(program.graph.inputs.values(), map(self._source, reads), strict=True))
        results = program.graph.outputs.values()
        self._sources.update(zip(new_outputs, (sources.get(o, o) for o in results), strict=True))
        program_parts = [step.part for step in program.steps if step.part]
        parts = [replace(part, reads=[sources.get(o, o) for o in part.reads]) for part in program_parts]
        return parts, program.placements

    def _compile_fallback(self, model: Model, section: Segment[TracedNode, str]) -> CompiledSegment:
        from ...backends.onnxruntime.model import ModelSession
        from ...backends.onnxruntime.values import type_proto

        values = self.trace.values
        used = dict.fromkeys(name for step in section.nodes for name in used_names(step.node))
        constants = {name: value.array for name in used if isinstance(value := values.get(name), Constant)}

        def source() -> tuple[ModelProto, Mapping[str, np.ndarray]]:
            graph = GraphProto(
                name="fallback",
                node=[step.node for step in section.nodes],
                input=[_value_info(name, values[name]) for name in section.inputs],
                output=[_value_info(name, values[name]) for name in section.outputs],
            )
            ir_version, opsets = model.proto.ir_version, model.proto.opset_import
            return ModelProto(ir_version=ir_version, opset_import=opsets, graph=graph), constants

        threads = getattr(self.context.backend, "threads", None)  # only ONNX Runtime's back end has them
        if not is_large_section(section, values):
            threads = 1
        title = ", ".join(dict.fromkeys(step.node.op_type for step in section.nodes))
        preference, precision = self.context.power_preference, self.context.precision
        session = ModelSession(
            *source(),
            preference,
            threads,
            spinning="least",
            title=title,
            precision=precision,
            source=source,
            has_arena=self.context.backend.has_arena,
        )
        for name in section.outputs:
            value = values[name]
            if isinstance(value, Dynamic) and (value.type is None or not value.type.WhichOneof("value")):
                values[name] = Dynamic(type_proto(session.types[name]))  # the engine infers more than ONNX does
        reads = [self._source(self._operands[name]) for name in section.inputs]
        writes = [self._operands[name] for name in section.outputs]
        return CompiledSegment(session, HOST, "cpu", (), (), reads, writes, title)


def _result_at(result: Result, sizes: Mapping[str, int]) -> Result:
    if result is None:
        return None
    desc, dtype = result
    return Desc(desc.data_type, values_at(desc.shape, sizes)), dtype


def sections(trace: Trace, outputs: Sequence[str]) -> list[Segment[TracedNode, str]]:
    """Divide the steps that `outputs` need into sections of kind "webnn" or "fallback", in topological order."""
    needed: dict[int, list[str]] = {}  # names that a step reads, by its id
    pending = [trace.producer[name] for name in outputs if name in trace.producer]
    while pending:
        step = pending.pop()
        if id(step) not in needed:
            names = needed[id(step)] = used_names(step.node)
            pending += [trace.producer[name] for name in names if name in trace.producer]

    def non_constants(names: Iterable[str]) -> list[str]:
        return [name for name in names if name and not isinstance(trace.values.get(name), Constant)]

    return divide(
        [step for step in trace.steps if id(step) in needed and step.kind != "folded"],
        outputs,
        lambda step: step.kind,
        lambda step: non_constants(needed[id(step)]),
        lambda step: non_constants(step.node.output[:]),
    )


def sole_graph(trace: Trace, outputs: Sequence[str]) -> Graph | None:
    """The graph of a trace that is one WebNN section with known shapes; else None."""
    segments = sections(trace, outputs)
    if len(segments) != 1 or segments[0].kind == "fallback":
        return None
    values = [[trace.values[name] for name in names] for names in (segments[0].inputs, segments[0].outputs)]
    if not all(isinstance(value, Tensor) for group in values for value in group):
        return None
    takes, gives = (dict.fromkeys(value.operand for value in group if isinstance(value, Tensor)) for group in values)
    new_outputs = [operand for operand in gives if operand not in takes and not operand.is_constant]
    return cut_out(takes, new_outputs)[0]


def check_whole(sections: Sequence[Segment[TracedNode, str]], subject: str) -> None:
    """Raise `NotSupportedError` if a node falls back; the message has its name, `subject` and the reason."""
    for section in sections:
        if section.kind == "fallback":
            step = section.nodes[0]
            name = f" {step.node.name!r}" if step.node.name else ""
            raise NotSupportedError(f"{step.node.op_type}{name} {subject}: {step.reason}")


def is_large_section(section: Segment[TracedNode, str], values: Mapping[str, Value]) -> bool:
    """Whether a section may gain from several threads: an operation is large, or its size is unknown."""
    return any(_is_large_step(step, values) for step in section.nodes)


def _is_large_step(step: TracedNode, values: Mapping[str, Value]) -> bool:
    from ...backends.onnxruntime.sessions import is_large

    if sub_graphs(step.node):
        return True
    for name in (*step.node.input, *step.node.output):
        shape = shape_of(values.get(name))
        if name in values and (shape is None or is_large(math.prod(shape))):
            return True
    return False


def large_sections(trace: Trace, outputs: Sequence[str]) -> int:
    """Count the large sections of a trace; 0 if no node falls back."""
    if not any(step.kind == "fallback" for step in trace.steps):
        return 0
    return sum(is_large_section(section, trace.values) for section in sections(trace, outputs))


def _constant(value: Constant) -> Operand:
    if value.element_type in DATA_TYPES and value.array.size:
        stored = np.asarray(bool_as_uint8(value.array), order="C")
        return Operand(_BUILDER, Desc(DATA_TYPES[value.element_type], stored.shape), value=stored)
    return Unsized(_BUILDER, value=Cell(value.array))


def _value_info(name: str, value: Value) -> ValueInfoProto:
    type = type_of(value)
    return ValueInfoProto(name=name, type=type if type.WhichOneof("value") else None)


__all__ = [
    "CompiledModel",
    "check_whole",
    "is_large_section",
    "large_sections",
    "sections",
]
