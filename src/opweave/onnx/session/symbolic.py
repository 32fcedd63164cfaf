"""One ONNX Runtime session for a whole model with dynamic dimensions; it runs calls of any shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...context.context import MLContext
from ...support.errors import MLError, NotSupportedError
from ..model.arguments import Argument
from ..model.model import Model
from ..model.protobuf import PLAIN, ModelProto, NodeProto, TensorProto, stored_bytes, sub_graphs, tensor_type
from ..model.scopes import all_nodes, used_names
from ..model.tables import MICROSOFT
from .model_program import ModelProgram

if TYPE_CHECKING:
    from ...backends import Aliases, Returning, Runner, TakingFeeds
    from ...run.program import Program

LARGE_CONSTANT_BYTES = 4096
"""Constant nodes from this size in bytes are treated as weights; smaller ones may hold shapes, which inference must see."""

CRASH_PRONE = frozenset({"LayerNormalization", "Loop", "SplitToSequence"})
"""Operators that can crash or hang the engine if the model is invalid. Models with them are traced first: tracing refuses
invalid ones."""


class OpenModel(ModelProgram):
    """The unchanged model in ONNX Runtime's session, which runs calls of all shapes on the caller's memory.

    The engine's runner does what a program of one step does. The program itself is made for calls that alias inputs and
    outputs, to bind memory, and to measure kernels: most processes need none of its modules.
    """

    def __init__(self, runner: Runner, device: str, inputs: list[str], outputs: list[str]) -> None:
        self.is_open = True
        self._runner, self._device = runner, device
        self._set_values(inputs, outputs, [None] * len(inputs), [None] * len(outputs))

    @cached_property
    def program(self) -> Program:  # type: ignore[override]
        """The program of one step."""
        from ...core.graph import Builder, Graph, Operand
        from ...memory.spaces import HOST
        from ...run.program import Program
        from ...run.steps import CompiledSegment, Unsized

        builder = Builder()
        takes: dict[str, Operand] = {name: Unsized(builder, name) for name in self.inputs}
        gives: dict[str, Operand] = {name: Unsized(builder, name) for name in self.outputs}
        reads, writes = list(takes.values()), list(gives.values())
        part = CompiledSegment(self._runner, HOST, self._device, (), (), reads, writes, "the model")
        return Program(Graph(takes, gives, ()), {}, [part], [], HOST)

    def _run_program(self, inputs: Sequence[Any], outputs: Sequence[Any], shared: Aliases) -> None:
        if shared:
            self.program.run(inputs, outputs, shared)
        else:
            self._runner.run(inputs, outputs)

    def _returning(self, wanted: Sequence[int]) -> Returning | None:
        return self._runner.returning(wanted)

    def taking_feeds(self, wanted: Sequence[int]) -> TakingFeeds | None:
        """See `ModelProgram.taking_feeds`."""
        return self._runner.taking_feeds(wanted)


def open_program(model: Model, context: MLContext, inputs: Sequence[Argument]) -> OpenModel:
    """Create ONNX Runtime's session for a model, a program that takes all shapes; `NotSupportedError` if it cannot run."""
    for _, op_type in model.operations:
        raise NotSupportedError(f"{op_type} is a custom operation, which needs static shapes")
    if any(domain == MICROSOFT for domain, _ in model.operators):
        from ..model.engine_rules import check_decided

        shapes = {tensor.name: tuple(tensor.dims[:]) for tensor in model.proto.graph.initializer}
        static = {argument.name: argument.static_shape() for argument in inputs}
        check_decided(model.proto.graph.node, shapes | {n: shape for n, shape in static.items() if shape is not None})
    try:
        runner = context.backend.compile_model(partial(_for_engine, model, inputs), context.power_preference)
    except MLError as error:
        raise NotSupportedError(str(error)) from error
    if runner is None:
        raise NotSupportedError(f"{context.device.name} cannot run uncompiled models")
    takes = [argument.name for argument in inputs]
    gives = list(dict.fromkeys(output.name for output in model.proto.graph.output))
    return OpenModel(runner, context.device.name, takes, gives)


def must_be_traced(model: Model) -> bool:
    """Whether a model must be traced before it is passed to the engine unchanged."""
    prone = {op_type for _, op_type in model.operators if op_type in CRASH_PRONE}
    if prone != {"LayerNormalization"} or not model.is_flat or model.proto.functions:
        return bool(prone)
    shapes = {tensor.name: tuple(tensor.dims[:]) for tensor in model.proto.graph.initializer}
    nodes = (node for node in model.proto.graph.node if node.op_type == "LayerNormalization")
    return not all(_is_plain_normalisation(node, shapes) for node in nodes)


def _is_plain_normalisation(node: NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a LayerNormalization has the last axis, and weights of one length, which the engine checks."""
    weights = [shapes.get(name, ()) for name in node.input[1:]]
    axes = [attribute.i for attribute in node.attribute[:] if attribute.name == "axis"]
    are_vectors = len(weights) in (1, 2) and all(len(shape) == 1 and shape[0] > 0 for shape in weights)
    return are_vectors and weights[0] == weights[-1] and axes in ([], [-1])


def _for_engine(model: Model, inputs: Sequence[Argument]) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """Build the model for the engine without its weights, and collect the used weights by name."""
    source = model.proto.graph
    proto = ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import)
    graph = proto.graph
    graph.name = source.name or "model"
    constants = dict(model.weights)
    nodes = []
    for node in source.node:
        if (tensor := _large_constant(node)) is None:
            nodes.append(node)
        else:  # the engine would copy it several times
            constants[node.output[0]] = model.array(tensor)
    graph.node.extend(nodes)
    graph.output.extend(source.output)
    arguments = {argument.name: argument for argument in inputs}
    for info in source.input:
        if (argument := arguments.get(info.name)) is None:
            continue  # overridable initializer: calls that override it run a `CompiledModel`
        if argument.element_type and argument.dims is not None:
            graph.input.add(name=info.name, type=tensor_type(argument.element_type, argument.dims))
        else:
            graph.input.append(info)
    # Inline external data: the engine would look for the files in another folder.
    for node in graph.node if model.is_flat else all_nodes(graph.node):
        attributes = node.attribute[:]
        tensors = [attribute.t for attribute in attributes if attribute.HasField("t")]
        tensors += [tensor for attribute in attributes for tensor in attribute.tensors[:]]
        if not model.is_flat:
            tensors += [tensor for inner in sub_graphs(node) for tensor in inner.initializer]
        for tensor in tensors:
            if tensor.data_location == TensorProto.EXTERNAL:
                array = model.array(tensor)
                del tensor.external_data[:]
                tensor.ClearField("data_location")
                tensor.raw_data = array.tobytes()
    names_of = (node.input[:] if model.is_flat else used_names(node) for node in graph.node)
    used = {value.name for value in graph.output}.union(*names_of)
    return proto, {name: array for name, array in constants.items() if name in used and name not in arguments}


def _large_constant(node: NodeProto) -> TensorProto | None:
    """The tensor of a large Constant node, to pass as a weight; None for other nodes."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    (attribute,) = node.attribute
    tensor = attribute.t
    is_large = stored_bytes(tensor) >= LARGE_CONSTANT_BYTES and tensor.data_type in PLAIN
    return tensor if attribute.name == "value" and is_large else None
