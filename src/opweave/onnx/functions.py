"""ONNX operators that are functions: the nodes that an operator's own definition says it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from .messages import AttributeProto, FunctionProto, NodeProto, TypeProto


def expand(
    node: NodeProto, schema: Any, types: Sequence[TypeProto], opsets: Mapping[str, int], prefix: str
) -> list[NodeProto] | None:
    """The nodes that `node` stands for by its definition; None where ONNX defines no function for it.

    Args:
        node: the node.
        schema: its operator, an `onnx.defs.OpSchema` (whose type stubs lack what is needed here).
        types: the types of its inputs, with shapes; empty ones where an input is absent.
        opsets: the versions of the operator sets of the model.
        prefix: what the names inside of the function begin with, to be told from all others.
    """
    node = _with_defaults(node, schema)
    function = _function(node, schema, types, opsets)
    if function is None:
        return None
    names = dict(zip(function.output, node.output, strict=False))
    names = {inner: outer for inner, outer in names.items() if outer}
    given = [*node.input, *[""] * len(function.input)]
    names |= dict(zip(function.input, given, strict=False))
    attributes = {attribute.name: attribute for attribute in node.attribute}
    return [_renamed(inner, names, attributes, prefix) for inner in function.node]


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
    """Whether a node means the same in the operator sets of a function and of the model."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    inside = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in function.opset_import}
    if domain not in inside or domain not in opsets:
        return False
    try:
        written = onnx.defs.get_schema(node.op_type, inside[domain], domain)
        read = onnx.defs.get_schema(node.op_type, opsets[domain], domain)
    except onnx.defs.SchemaError:
        return False
    # A later version takes more types, but other inputs where attributes have become inputs.
    return written.since_version == read.since_version or (
        {name: str(a.default_value) for name, a in written.attributes.items()}
        == {name: str(a.default_value) for name, a in read.attributes.items()}
        and [i.name for i in written.inputs] == [i.name for i in read.inputs]
    )


def _with_defaults(node: NodeProto, schema: Any) -> NodeProto:
    full = NodeProto()
    full.CopyFrom(node)
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            full.attribute.append(attribute.default_value)
    return full


def _renamed(
    node: NodeProto, names: Mapping[str, str], attributes: Mapping[str, AttributeProto], prefix: str
) -> NodeProto:
    def name_of(inner: str) -> str:
        return names.get(inner, prefix + inner) if inner else ""

    new = NodeProto(op_type=node.op_type, domain=node.domain, name=prefix + node.name if node.name else "")
    new.input.extend(name_of(name) for name in node.input)
    new.output.extend(name_of(name) for name in node.output)
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in attributes:
                new.attribute.append(attributes[attribute.ref_attr_name])
                new.attribute[-1].name = attribute.name
            continue
        new.attribute.append(attribute)
        if attribute.type == AttributeProto.GRAPH:
            graph = new.attribute[-1].g
            own = {value.name for value in [*graph.input, *graph.initializer]}
            own |= {name for inner in graph.node for name in inner.output if name}
            inner_names = {**names, **{name: prefix + name for name in own}}
            for value in [*graph.input, *graph.output, *graph.initializer]:
                value.name = inner_names.get(value.name, prefix + value.name)
            nodes = [_renamed(inner, inner_names, attributes, prefix) for inner in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
    return new
