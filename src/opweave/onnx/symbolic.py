"""A model's own session: the model as it is, with varying dimensions, in a session of the engine that takes all shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..backends import ModelRunner
from ..context import MLContext
from ..errors import MLError, NotSupportedError, OperationError, ValidationError
from ..graph import Desc
from .arguments import Argument
from .engine_rules import check_decided
from .messages import PLAIN, ModelProto, NodeProto, TensorProto, sub_graphs, tensor_type
from .model import KNOWN_OPSET, Model
from .registry import CONVERTERS, key_of
from .scopes import all_nodes, used_names

KNOWN_IR = 10
"""Models in file formats up to this version need not be lowered for the engine."""

LARGE_CONSTANT = 4096
"""Constant nodes from this size in bytes are treated as weights; smaller ones may hold shapes, which inference must see."""

SUSPICIOUS = frozenset({"LayerNormalization", "Loop", "SplitToSequence"})
"""Operators with which a broken model ends the process, or never comes back. Whether one does is seen when it is traced."""

_TYPES = {f"tensor({TensorProto.DataType.Name(element_type).lower()})" for element_type in (*PLAIN, TensorProto.STRING)}
"""Tensors that the engine takes from NumPy, and gives to it."""


class SymbolicModel:
    """The model's own session, which runs calls of any shape, in place of a `CompiledModel`.

    Args:
        model: the model.
        context: where it runs.
        inputs: what is declared of its inputs, with the sizes that the user has fixed.

    Attributes:
        results: empty: nothing is known of an output before it is computed.

    Raises:
        NotSupportedError: there can be no such session; the message says why.
    """

    def __init__(self, model: Model, context: MLContext, inputs: Sequence[Argument]) -> None:
        self.results: dict[str, tuple[Desc, np.dtype[Any]]] = {}
        for node in all_nodes(model.proto.graph.node):
            converter = CONVERTERS.get(key_of(node))
            if converter is not None and converter.is_custom:
                raise NotSupportedError(f"{node.op_type} is an operation of the user's, which needs static shapes")
        shapes = {tensor.name: tuple(tensor.dims) for tensor in model.proto.graph.initializer}
        static = {argument.name: argument.static_shape() for argument in inputs}
        check_decided(model.proto.graph.node, shapes | {n: shape for n, shape in static.items() if shape is not None})
        try:
            proto, constants = _with_open_dimensions(model, inputs)
            runner = context.backend.compile_model(proto, constants, context.power_preference)
        except MLError as error:
            raise NotSupportedError(str(error)) from error
        if runner is None:
            raise NotSupportedError(f"{context.device.name} runs no models with dimensions that vary")
        for name, type in runner.types.items():
            parts = type.removeprefix("optional(").removeprefix("seq(").rstrip(")") + ")"
            if parts not in _TYPES:
                raise NotSupportedError(f"{name!r} is {type}, which NumPy does not have")
        self._runner: ModelRunner = runner

    def run(self, feed: Mapping[str, Any], names: Sequence[str], out: Mapping[str, np.ndarray]) -> list[Any]:
        """Run on arrays that have been checked, and return the outputs `names`; those in `out` are written in place.

        Raises:
            OperationError: the engine failed.
            ValidationError: an array of `out` has another shape than its output.
        """
        asked = list(dict.fromkeys([*names, *out])) if out else names
        try:
            return self._runner.run(feed, asked, out)[: len(names)]
        except OperationError:
            if out:
                self._check_targets(feed, out)
            raise

    def _check_targets(self, feed: Mapping[str, Any], out: Mapping[str, np.ndarray]) -> None:
        """After a failure: whether the engine can compute the results, and only has no room for them."""
        for (name, target), found in zip(out.items(), self._runner.run(feed, list(out), {}), strict=True):
            if target.shape != found.shape:
                raise ValidationError(f"out[{name!r}] must have shape {list(found.shape)}, got {list(target.shape)}")


def is_suspicious(model: Model) -> bool:
    """Whether a model must be traced before the engine gets it as it is."""
    return any(node.op_type in SUSPICIOUS for node in all_nodes(model.proto.graph.node))


def _with_open_dimensions(model: Model, inputs: Sequence[Argument]) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """The model for the engine, without its weights, and the arrays of those that it uses."""
    source = model.proto.graph
    proto = ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import)
    graph = proto.graph
    graph.name = source.name or "model"
    constants = dict(model.weights)
    for node in source.node:
        if (tensor := _large_constant(node)) is None:
            graph.node.append(node)
        else:  # the engine would copy it several times
            constants[node.output[0]] = model.array(tensor)
    graph.output.extend(source.output)
    given = {argument.name: argument for argument in inputs}
    for info in source.input:
        if (argument := given.get(info.name)) is None:
            continue  # an initializer that might be overridden: models are compiled for calls that do so
        if argument.element_type and argument.dims is not None:
            graph.input.add(name=info.name, type=tensor_type(argument.element_type, argument.dims))
        else:
            graph.input.append(info)
    for node in all_nodes(graph.node):  # external data: the engine looks for files in another folder
        tensors = [tensor for attribute in node.attribute for tensor in (attribute.t, *attribute.tensors)]
        tensors += [tensor for inner in sub_graphs(node) for tensor in inner.initializer]
        for tensor in tensors:
            if tensor.data_location == TensorProto.EXTERNAL:
                array = model.array(tensor)
                del tensor.external_data[:]
                tensor.ClearField("data_location")
                tensor.raw_data = array.tobytes()
    used = {name for node in graph.node for name in used_names(node)} | {value.name for value in graph.output}
    if proto.ir_version > KNOWN_IR or model.opsets.get("", 1) > KNOWN_OPSET:
        from ..backends.onnxruntime.opsets import lower

        lower(proto)
    return proto, {name: array for name, array in constants.items() if name in used and name not in given}


def _large_constant(node: NodeProto) -> TensorProto | None:
    """The tensor of a Constant node that is better handed over as a weight."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    (attribute,) = node.attribute
    is_large = attribute.name == "value" and attribute.t.ByteSize() >= LARGE_CONSTANT and attribute.t.data_type in PLAIN
    return attribute.t if is_large else None
