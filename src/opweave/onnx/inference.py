"""ONNX's own knowledge of operators: their schemas, and the types of their results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .messages import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, domain_of, sub_graphs
from .model import Model
from .scopes import free_names
from .values import Value, types_and_data

_NEVER_LARGER = frozenset({"NonZero", "Unique", "Compress"})
"""Operators whose results have sizes that depend on values, but are no larger than a few times the inputs."""


def schema_of(node: NodeProto, model: Model) -> Any:
    """The `onnx.defs.OpSchema` of a node's operator; None if ONNX does not have it."""
    from onnx import defs

    domain = domain_of(node)
    try:
        return defs.get_schema(node.op_type, model.opsets.get(domain, 1), domain)
    except defs.SchemaError:
        return None


def infer(
    node: NodeProto, values: Sequence[Value | None], model: Model, environment: Mapping[str, Value]
) -> dict[str, TypeProto]:
    """Infer the types of a node's outputs.

    Args:
        node: the node.
        values: its inputs, None for those that are absent.
        model: the model that it is part of.
        environment: all values, by name, for sub-graphs that use values from around them.

    Returns:
        The types by name of the output, as far as ONNX's shape inference finds them.
    """
    schema = schema_of(node, model)
    if schema is None:
        return {}
    named = dict(zip(node.input, values, strict=True))
    for graph in sub_graphs(node):
        named |= {name: environment[name] for name in sorted(free_names(graph))}
    types, data = types_and_data(named)
    if len(types) < len([name for name in named if name]):
        return {}
    try:
        if len(named) > len(node.input):
            return _infer_in_model(node, types, data, model.proto)
        return _infer_alone(node, schema, types, data, model.proto)
    except Exception:  # inference of a broken node fails in many ways; the engine will say what is wrong with it
        return {}


def is_valid(node: NodeProto, values: Mapping[str, Value], model: Model) -> bool:
    """Whether ONNX's checker and its shape inference accept a node with these inputs."""
    from onnx import checker

    proto, schema = model.proto, schema_of(node, model)
    context = checker.C.CheckerContext()
    context.ir_version = proto.ir_version
    context.opset_imports = {entry.domain: entry.version for entry in proto.opset_import}
    try:
        checker.check_node(node, context)
        if schema is not None:
            _infer_alone(node, schema, *types_and_data(values), proto)
    except Exception:  # ONNX's checks raise errors of many types
        return False
    return True


def result_bytes(node: NodeProto, inferred: Mapping[str, TypeProto]) -> float:
    """An upper bound of the bytes of a node's results; infinite if they could have any size.

    Args:
        node: the node.
        inferred: the types of its outputs, as `infer` returns them.
    """
    total: float = 0
    for name in node.output:
        tensor = inferred.get(name, TypeProto()).tensor_type
        if name and (tensor.elem_type == 0 or not is_static(tensor)):
            return 0 if node.op_type in _NEVER_LARGER else math.inf
        sizes = [dim.dim_value for dim in tensor.shape.dim]
        total += 8 * math.prod(sizes) if min(sizes, default=0) >= 0 else math.inf
    return total


def is_static(tensor: TypeProto.Tensor) -> bool:
    """Whether the type of a tensor has a shape without dimensions that vary."""
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def _infer_alone(
    node: NodeProto, schema: Any, types: Mapping[str, TypeProto], data: Mapping[str, TensorProto], proto: ModelProto
) -> dict[str, TypeProto]:
    from onnx import shape_inference

    return shape_inference.infer_node_outputs(
        schema, node, dict(types), dict(data), opset_imports=list(proto.opset_import), ir_version=proto.ir_version
    )


def _infer_in_model(
    node: NodeProto, types: Mapping[str, TypeProto], data: Mapping[str, TensorProto], proto: ModelProto
) -> dict[str, TypeProto]:
    """Infer the outputs of a node whose sub-graphs use values from around them."""
    from onnx import helper, shape_inference

    inputs = [ValueInfoProto(name=name, type=type) for name, type in types.items() if name not in data]
    outputs = [ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "inference", inputs, outputs, initializer=list(data.values()))
    model = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    found = shape_inference.infer_shapes(model, data_prop=True)
    return {value.name: value.type for value in found.graph.output if value.type.WhichOneof("value")}
