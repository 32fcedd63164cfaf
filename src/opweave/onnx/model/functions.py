"""Inline the functions of a model: bind their attributes, then replace calls by bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .checks import Callee, callee_of, check_node_count, count_nodes
from .limits import ModelLimits
from .protobuf import AttributeProto, FunctionProto, ModelProto, NodeProto, copy_of, sub_graphs
from .scopes import all_nodes, flatten


def inline_functions(proto: ModelProto, limits: ModelLimits, subject: str, *, is_owned: bool) -> ModelProto:
    """Inline all functions of a model; none may be recursive. The inliner, in C++, raises errors of many classes."""
    from onnx import inliner

    if any(function.attribute or function.attribute_proto for function in proto.functions):
        if not is_owned:
            proto = copy_of(proto)
        _Binder(proto, limits, subject).bind()
    result: ModelProto = inliner.inline_local_functions(proto, convert_version=True)
    return result


class _Binder:
    """Gives each call a copy of its function in which values replace references to attributes.

    The inliner of `onnx` binds the attributes of a call, but ignores default values.
    """

    def __init__(self, proto: ModelProto, limits: ModelLimits, subject: str) -> None:
        self.proto, self.limits, self.subject = proto, limits, subject
        self.functions: dict[Callee, FunctionProto] = {
            (function.domain, function.name, function.overload): function for function in proto.functions
        }
        self.names = {name for _, name, _ in self.functions}
        self.copies: dict[tuple[Callee, tuple[bytes, ...]], FunctionProto] = {}
        self.pending: list[tuple[FunctionProto, dict[str, AttributeProto]]] = []

    def bind(self) -> None:
        """Bind the attributes of all calls, and replace the functions of the model by the copies."""
        self._bind_nodes(self.proto.graph.node, None)
        nodes = flatten(self.proto.graph)[0]
        node_count = len(nodes)
        while self.pending:
            copy, values = self.pending.pop()
            self._bind_nodes(copy.node, values)
            # A graph attribute is copied for each reference: sizes may double with each call.
            node_count += len(list(all_nodes(copy.node)))
            check_node_count(node_count, self.limits, self.subject)
        copies = list(self.copies.values())
        check_node_count(count_nodes(nodes, copies), self.limits, self.subject)
        del self.proto.functions[:]
        self.proto.functions.extend(copies)

    def _bind_nodes(self, nodes: Sequence[NodeProto], values: Mapping[str, AttributeProto] | None) -> None:
        """Bind the attributes of nodes in place; `values` are the enclosing function's attributes, or None."""
        for node in nodes:
            for graph in sub_graphs(node):
                self._bind_nodes(graph.node, values)
            # From here on, the node may have graphs of `values`, whose own nodes are bound already.
            if values is not None and any(attribute.ref_attr_name for attribute in node.attribute):
                attributes = [bound for original in node.attribute if (bound := _resolve(original, values)) is not None]
                del node.attribute[:]
                node.attribute.extend(attributes)
            if (callee := callee_of(node)) in self.functions:
                node.op_type, node.overload = self._copy(callee, node.attribute).name, ""
                del node.attribute[:]

    def _copy(self, callee: Callee, attributes: Sequence[AttributeProto]) -> FunctionProto:
        """Copy a function for a call with these attributes; calls with equal values share a copy."""
        function = self.functions[callee]
        values = {attribute.name: attribute for attribute in (*function.attribute_proto, *attributes)}
        texts = tuple(values[name].SerializeToString(deterministic=True) for name in sorted(values))
        if (cached := self.copies.get((callee, texts))) is not None:
            return cached
        self.copies[callee, texts] = copy = copy_of(function)
        copy.name, copy.overload = self._unused_name(function.name), ""
        del copy.attribute[:], copy.attribute_proto[:]
        # The caller's node loses its attributes.
        self.pending.append((copy, {name: copy_of(value) for name, value in values.items()}))
        return copy

    def _unused_name(self, name: str) -> str:
        number = len(self.copies)
        while (unused := f"{name}_{number}") in self.names:
            number += 1
        self.names.add(unused)
        return unused


def _resolve(attribute: AttributeProto, values: Mapping[str, AttributeProto]) -> AttributeProto | None:
    """Resolve a reference to a function's attribute; None if it has no value, so that the operator's default applies."""
    if not attribute.ref_attr_name:
        return attribute
    value = values.get(attribute.ref_attr_name)
    if value is None:
        return None
    bound = copy_of(value)
    bound.name = attribute.name
    return bound
