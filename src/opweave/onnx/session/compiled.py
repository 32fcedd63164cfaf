"""Compile a traced model into one program, in which the steps of WebNN and of ONNX Runtime share memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...backends import Backend, Placement
from ...compile.driver import abandoned_on_errors, compile
from ...compile.legalise import cut_out
from ...compile.partition import Segment, divide
from ...context.context import MLContext
from ...core.graph import Builder, Desc, Graph, Operand
from ...core.operation import Op
from ...memory.spaces import HOST, Cell
from ...run.program import Program
from ...run.steps import Part, Unsized
from ...support.errors import DataError, NotSupportedError
from ..convert.trace import Step, Trace
from ..model.booleans import bool_as_uint8
from ..model.model import Model
from ..model.protobuf import GraphProto, ModelProto, TensorProto, ValueInfoProto, sub_graphs
from ..model.registry import DATA_TYPES
from ..model.scopes import used_names
from ..model.values import Constant, Dynamic, Tensor, Value, shape_of, type_of
from .model_program import Fallback, ModelProgram, Result, Wrapper

_BUILDER = Builder()
"""Makes the operands that no node of WebNN takes: values of unknown shape, and outputs that are constants."""


class CompiledModel(ModelProgram):
    """A model for given input shapes, which has been traced.

    Args:
        model: the model.
        context: where it runs.
        trace: what became of its nodes.
        outputs: the names of its outputs.
        fallback: what becomes of nodes that WebNN cannot express.
        backend: what runs the graphs, in place of the back end of the context.
        whole: refuse a model that is not one graph for the back end, and do not fuse operations into loops of Opweave's own
            compiler: otherwise the model's own session is as fast.

    Attributes:
        sections: the nodes that run together, in order.
        choice: which of several engines was chosen, and why; empty where there was no choice.
        untried: the engines that may run it faster and are not verified, and why they are expected to.

    Raises:
        NotSupportedError: `fallback="error"`, and a node needs it; or it is to be whole, and is not.
        OperationError: the engine refuses a section.
    """

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
        self.choice = ""
        self.untried: Mapping[str, str] = {}
        self._check_types(model)
        self.sections = sections(trace, outputs)
        if fallback == "error" or whole:
            check_whole(self.sections, "cannot run on WebNN")
        self._fuses = not whole
        # What the program has for each name; names of one operand share its memory.
        self._operands: dict[str, Operand] = {}
        for name, value in trace.values.items():
            if not isinstance(value, Constant):
                self._operands[name] = value.operand if isinstance(value, Tensor) else Unsized(_BUILDER, name)
        for name in outputs:
            if isinstance(value := trace.values[name], Constant):
                self._operands[name] = _constant(value)
        self._sources: dict[Operand, Operand] = {}  # for operands of the trace, what parts write in their place
        # By the graph's inputs, not by all names: an abandoned expansion leaves names of the same operands.
        names = (info.name for info in model.proto.graph.input)
        inputs = {self._operands[name]: name for name in names if name in self._operands}
        self._placements: list[list[Placement]] = []  # of each section
        parts: list[Part] = []
        with abandoned_on_errors(parts):
            for section in self.sections:
                section_parts, placements = self._compile(model, section)
                self._placements.append([replace(p, segment=p.segment + len(parts)) for p in placements])
                parts += section_parts
            for part in parts:
                part.runner.complete()
        # In the order in which the parts take and give them: then a part that is alone runs without anything around it.
        order = {operand: k for k, operand in enumerate(operand for part in parts for operand in part.writes)}
        sources = {name: self._source(self._operands[name]) for name in outputs}
        ends = dict(sorted(sources.items(), key=lambda item: order.get(item[1], len(order))))
        read = dict.fromkeys([*(operand for part in parts for operand in part.reads), *ends.values()])
        starts = {inputs[operand]: operand for operand in read if operand in inputs and not operand.is_constant}
        placed = [placement for placements in self._placements for placement in placements]
        program = Program(Graph(starts, ends, ()), {}, parts, placed, context.backend.space)
        super().__init__(program, list(map(self._wrapper, starts)), list(map(self._result, ends)))

    @property
    def threads(self) -> int:
        """How many threads the engine has for it."""
        return self.program.threads

    def placements(self, number: int) -> list[Placement]:
        """Where the operations of a section run."""
        return self._placements[number]

    def custom(self, number: int) -> list[Placement]:
        """Where the custom operations of a section run."""
        ops = {step.op for step in self.sections[number].nodes if step.op is not None}
        return [placement for placement in self._placements[number] if placement.op in ops]

    def custom_steps(self) -> Iterator[tuple[Op[..., Any], Step]]:
        """The steps of nodes whose operators the user has registered, with their operations."""
        for step in self.trace.steps:
            if step.op is not None:
                yield step.op, step

    def segment_count(self, number: int) -> int:
        """How many segments a section is compiled to."""
        return len({placement.segment for placement in self._placements[number]})

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
        """The program's operand for an operand of the trace."""
        return self._sources.get(operand, operand)

    def _compile(self, model: Model, section: Segment[Step, str]) -> tuple[list[Part], list[Placement]]:
        """The parts that run a section, and where its operations run; none, if it only hands on what it takes."""
        if section.kind == "fallback":
            return [self._compile_fallback(model, section)], []
        takes = dict.fromkeys(self._operands[name] for name in section.inputs)
        gives = dict.fromkeys(self._operands[name] for name in section.outputs)
        wanted = [operand for operand in gives if operand not in takes and not operand.is_constant]
        if not wanted:
            return [], []
        graph, reads = cut_out(takes, wanted)
        context = self.context
        program = compile(
            graph,
            self._backend,
            device=context.device.name,
            power_preference=context.power_preference,
            fuse=self._fuses,
            alone=len(self.sections) == 1,
            wait=False,  # so that kernels of all sections are compiled at the same time
        )
        self.choice, self.untried = program.choice, program.untried
        sources = dict(zip(program.graph.inputs.values(), map(self._source, reads), strict=True))
        results = program.graph.outputs.values()
        self._sources.update(zip(wanted, (sources.get(o, o) for o in results), strict=True))
        program_parts = [step.part for step in program.steps if step.part]
        parts = [replace(part, reads=[sources.get(o, o) for o in part.reads]) for part in program_parts]
        return parts, program.placements

    def _compile_fallback(self, model: Model, section: Segment[Step, str]) -> Part:
        from ...backends.onnxruntime.model import ModelSession
        from ...backends.onnxruntime.values import type_proto

        values = self.trace.values
        used = dict.fromkeys(name for step in section.nodes for name in used_names(step.node))
        constants = {name: value.array for name in used if isinstance(value := values.get(name), Constant)}
        graph = GraphProto(
            name="fallback",
            node=[step.node for step in section.nodes],
            input=[_value_info(name, values[name]) for name in section.inputs],
            output=[_value_info(name, values[name]) for name in section.outputs],
        )
        ir_version, opsets = model.proto.ir_version, model.proto.opset_import
        proto = ModelProto(ir_version=ir_version, opset_import=opsets, graph=graph)
        threads = getattr(self.context.backend, "threads", None)  # of ONNX Runtime's, where the context is on that
        if not is_large_section(section, values):
            threads = 1
        title = ", ".join(dict.fromkeys(node.op_type for node in graph.node))
        preference, precision = self.context.power_preference, self.context.precision
        session = ModelSession(proto, constants, preference, threads, alone=False, title=title, precision=precision)
        for name in section.outputs:
            value = values[name]
            if isinstance(value, Dynamic) and (value.type is None or not value.type.WhichOneof("value")):
                values[name] = Dynamic(type_proto(session.types[name]))  # the engine's inference knows more than ONNX's
        reads = [self._source(self._operands[name]) for name in section.inputs]
        writes = [self._operands[name] for name in section.outputs]
        return Part(session, HOST, "cpu", (), (), reads, writes, title)


def sections(trace: Trace, outputs: Sequence[str]) -> list[Segment[Step, str]]:
    """The sections of a trace that `outputs` need, of the kinds "webnn" and "fallback", in an order in which they can run."""
    needed: dict[int, list[str]] = {}  # the names that each of them takes
    pending = [trace.maker[name] for name in outputs if name in trace.maker]
    while pending:
        step = pending.pop()
        if id(step) not in needed:
            names = needed[id(step)] = used_names(step.node)
            pending += [trace.maker[name] for name in names if name in trace.maker]

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
    """The graph of a trace that is a single one; None where other sections, or values of unknown shape, are beside it."""
    segments = sections(trace, outputs)
    if len(segments) != 1 or segments[0].kind == "fallback":
        return None
    values = [[trace.values[name] for name in names] for names in (segments[0].inputs, segments[0].outputs)]
    if not all(isinstance(value, Tensor) for group in values for value in group):
        return None
    takes, gives = (dict.fromkeys(value.operand for value in group if isinstance(value, Tensor)) for group in values)
    wanted = [operand for operand in gives if operand not in takes and not operand.is_constant]
    return cut_out(takes, wanted)[0]


def check_whole(sections: Sequence[Segment[Step, str]], what: str) -> None:
    """Require that WebNN expresses all nodes.

    Raises:
        NotSupportedError: the name of a node that it does not, `what`, and why.
    """
    for section in sections:
        if section.kind == "fallback":
            step = section.nodes[0]
            name = f" {step.node.name!r}" if step.node.name else ""
            raise NotSupportedError(f"{step.node.op_type}{name} {what}: {step.reason}")


def is_large_section(section: Segment[Step, str], values: Mapping[str, Value]) -> bool:
    """Whether a section has operations that may gain from several threads; so it is where sizes are not known."""
    return any(_is_large_step(step, values) for step in section.nodes)


def _is_large_step(step: Step, values: Mapping[str, Value]) -> bool:
    from ...backends.onnxruntime.sessions import is_large

    if sub_graphs(step.node):
        return True
    for name in (*step.node.input, *step.node.output):
        shape = shape_of(values.get(name))
        if name in values and (shape is None or is_large(math.prod(shape))):
            return True
    return False


def large_sections(trace: Trace, outputs: Sequence[str]) -> int:
    """How many sections of a trace are large; 0 if it is a single one."""
    if not any(step.kind == "fallback" for step in trace.steps):
        return 0
    return sum(is_large_section(section, trace.values) for section in sections(trace, outputs))


def _constant(value: Constant) -> Operand:
    """An output that is a constant."""
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
