"""Expand ONNX operators that ONNX defines as functions of other operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from .messages import AttributeProto, FunctionProto, NodeProto, TypeProto, domain_of, sub_graphs
from .scopes import renamed


def expand(
    node: NodeProto, schema: Any, types: Sequence[TypeProto], opsets: Mapping[str, int], prefix: str
) -> list[NodeProto] | None:
    """The nodes that define `node`; None if ONNX defines no function for its operator.

    Args:
        node: the node.
        schema: the `onnx.defs.OpSchema` of its operator (the type stubs lack some of its methods).
        types: the types of its inputs, with shapes; empty for an absent input.
        opsets: the versions of the model's operator sets.
        prefix: added to the names inside the function, to make them unique.
    """
    node = _with_defaults(node, schema)
    function = _function(node, schema, types, opsets)
    if function is None:
        return None
    names = {name: prefix + name for inner in function.node for name in inner.output if name}
    names |= {inner: outer for inner, outer in zip(function.output, node.output, strict=False) if outer}
    names |= dict.fromkeys(function.input, "") | dict(zip(function.input, node.input, strict=False))
    attributes = {attribute.name: attribute for attribute in node.attribute}
    nodes = [renamed(inner, names, prefix) for inner in function.node]
    for inner in nodes:
        _fill_in(inner, attributes)
    return nodes


def _function(
    node: NodeProto, schema: Any, types: Sequence[TypeProto], opsets: Mapping[str, int]
) -> FunctionProto | None:
    version = opsets.get("", schema.since_version)
    plain = [v for v in schema.function_opset_versions if v <= version]
    dependent = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if plain:
        data = schema.get_function_with_opset_version(max(plain))
    elif dependent:
        data = schema.get_context_dependent_function_with_opset_version(
            max(dependent), node.SerializeToString(), [type.SerializeToString() for type in types]
        )
    else:
        return None
    function: FunctionProto = FunctionProto.FromString(data)
    if not function.node or any(not _same(inner, function, opsets) for inner in function.node):
        return None
    return function


def _same(node: NodeProto, function: FunctionProto, opsets: Mapping[str, int]) -> bool:
    """Whether an operator means the same in the operator sets of a function and of the model."""
    domain = domain_of(node)
    inside = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in function.opset_import}
    if domain not in inside or domain not in opsets:
        return False
    try:
        written = onnx.defs.get_schema(node.op_type, inside[domain], domain)
        read = onnx.defs.get_schema(node.op_type, opsets[domain], domain)
    except onnx.defs.SchemaError:
        return False
    # Later versions may take more types, but their inputs and defaults must be the same.
    return written.since_version == read.since_version or (
        {name: str(a.default_value) for name, a in written.attributes.items()}
        == {name: str(a.default_value) for name, a in read.attributes.items()}
        and [i.name for i in written.inputs] == [i.name for i in read.inputs]
    )


def _with_defaults(node: NodeProto, schema: Any) -> NodeProto:
    """A copy of a node with the default values of attributes that it leaves out."""
    full = NodeProto()
    full.CopyFrom(node)
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            full.attribute.append(attribute.default_value)
    return full


def _fill_in(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> None:
    """Replace references to a function's attributes, also in sub-graphs; those to absent attributes are left out."""
    found = list(node.attribute)
    del node.attribute[:]
    for attribute in found:
        value = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if value is not None:
            node.attribute.append(value)
            node.attribute[-1].name = attribute.name
    for graph in sub_graphs(node):
        for inner in graph.node:
            _fill_in(inner, attributes)
