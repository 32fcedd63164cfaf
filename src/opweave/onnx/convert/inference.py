"""ONNX's knowledge of operators: schemas, definitions by other operators, and types of results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ..model.model import Model
from ..model.protobuf import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    copy_of,
    domain_of,
    sub_graphs,
    tensor_type,
)
from ..model.registry import TRADITIONAL, key_of
from ..model.scopes import free_names, rename_node
from ..model.values import Value, types_and_data

_NEVER_LARGER = frozenset({"NonZero", "Unique", "Compress"})
"""Operators whose results have data-dependent sizes, but are no larger than a few times the inputs."""

FLOATS_LIKE_INPUT = frozenset({(TRADITIONAL, "Normalizer"), (TRADITIONAL, "Scaler")})
"""Operators whose result is float32 in the shape of the input; ONNX's inference does not know this."""


def schema_of(node: NodeProto, model: Model) -> Any:
    """Return the `onnx.defs.OpSchema` of a node's operator; None if ONNX does not define the operator."""
    from onnx import defs

    domain = domain_of(node)
    try:
        return _schema(node.op_type, model.opsets.get(domain, 1), domain)
    except defs.SchemaError:
        return None


@cache
def _schema(op_type: str, version: int, domain: str) -> Any:
    """Look up a schema. Cached, because ONNX's registry makes a new object each time."""
    from onnx import defs

    return defs.get_schema(op_type, version, domain)


def infer(
    node: NodeProto, values: Sequence[Value | None], model: Model, environment: Mapping[str, Value]
) -> dict[str, TypeProto]:
    """Infer the types of a node's outputs, by name; empty if unknown. `environment` has the values that sub-graphs capture.

    Where ONNX's inference fails, as for int32 axes of Pad, the schema gives the element types of outputs that inputs have.
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
        if key_of(node) in FLOATS_LIKE_INPUT:
            result = copy_of(types[node.input[0]])
            result.tensor_type.elem_type = TensorProto.FLOAT
            return {node.output[0]: result}
        return _infer_alone(node, schema, types, data, model.proto)
    except Exception:  # inference of a broken node fails in many ways; the engine will report the reason
        return _types_like_inputs(node, schema, types)


def _types_like_inputs(node: NodeProto, schema: Any, types: Mapping[str, TypeProto]) -> dict[str, TypeProto]:
    """The types, without shapes, of outputs whose type parameter is that of an input.

    The variadic inputs of Loop and Scan have different types, which the type parameter does not say.
    """
    inputs = zip(schema.inputs, node.input, strict=False)
    parameters = {item.type_str: types[name] for item, name in inputs if name and item.is_homogeneous}
    results = {}
    for k, name in enumerate(node.output):
        like = parameters.get(schema.outputs[min(k, len(schema.outputs) - 1)].type_str)
        if name and like is not None and like.tensor_type.elem_type:
            results[name] = tensor_type(like.tensor_type.elem_type)
    return results


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
    """Return an upper bound of the bytes of a node's results; infinite if they are unbounded.

    `inferred` are types as `infer` returns them. Operators in `_NEVER_LARGER` count as 0: their inputs are in memory already.
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
    """Whether the type of a tensor has a shape without dynamic dimensions."""
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
    """Infer the outputs of a node whose sub-graphs capture values."""
    from onnx import shape_inference

    inferred = shape_inference.infer_shapes(model_of_node(node, types, proto, data), data_prop=True)
    return {value.name: value.type for value in inferred.graph.output if value.type.WhichOneof("value")}


def is_defined(node: NodeProto, model: Model) -> bool:
    """Whether ONNX defines the operator of a node by a function of other operators."""
    schema = schema_of(node, model)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def definition_of(node: NodeProto, types: Mapping[str, TypeProto], model: Model, prefix: str) -> list[NodeProto]:
    """Return the body of the function by which ONNX defines an operator; empty if there is none for these inputs.

    Names inside the body get the prefix, which makes them unique.
    """
    if not is_defined(node, model):
        return []
    schema = schema_of(node, model)
    present = {attribute.name for attribute in node.attribute}
    if not present.issubset(schema.attributes):
        # The inliner would ignore unknown attributes.
        return []
    from onnx import inliner

    # The inliner does not know defaults.
    full = copy_of(node)
    missing = (attribute.default_value for name, attribute in schema.attributes.items() if name not in present)
    full.attribute.extend(default for default in missing if default.name)
    one_node_model, function = model_of_node(full, types, model.proto), [(node.domain, node.op_type)]
    try:
        inlined = inliner.inline_selected_functions(one_node_model, function, inline_schema_functions=True).graph.node
    except Exception:  # the C++ inliner raises errors of many types
        return []
    if len(inlined) == 1 and inlined[0].op_type == node.op_type:
        return []
    inner = {name for part in inlined for name in part.output if name}.difference(node.output)
    names = {name: prefix + name for name in inner}
    return [rename_node(part, names, prefix) for part in inlined]


def model_of_node(
    node: NodeProto, types: Mapping[str, TypeProto], proto: ModelProto, data: Mapping[str, TensorProto] | None = None
) -> ModelProto:
    """Return a model of one node of `proto`, with inputs of these types; inputs in `data` are initializers."""
    data = data or {}
    return ModelProto(
        ir_version=proto.ir_version,
        opset_import=proto.opset_import,
        graph=GraphProto(
            name=node.op_type,
            node=[node],
            input=[ValueInfoProto(name=name, type=type) for name, type in types.items() if name not in data],
            output=[ValueInfoProto(name=name) for name in node.output if name],
            initializer=data.values(),
        ),
    )
