"""Operator sets newer than ONNX Runtime's: models are lowered where their nodes mean the same in an older set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import onnx
from onnx import AttributeProto, NodeProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ...errors import OperationError

MEANING_CHANGED = frozenset({"BitShift"})
"""Operators whose newest version computes something else from the same node.

Before opset 28, shifting by as many bits as there are, or more, was left to the machine.
"""


@cache
def newest_opset() -> int:
    """The newest of ONNX's own operator sets that the engine takes."""
    known = onnx.defs.onnx_opset_version()
    return next((version for version in range(known, 1, -1) if _takes(opset=version)), 1)


@cache
def newest_ir() -> int:
    """The newest version of the file format that the engine takes."""
    return next((version for version in range(onnx.IR_VERSION, 3, -1) if _takes(opset=13, ir=version)), 3)


def _takes(opset: int, ir: int = 8) -> bool:
    from .native import NativeSession
    from .sessions import ENGINE_ERRORS, session_options

    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    other = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "probe", [value], [other])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    options = session_options("default")
    try:
        NativeSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except ENGINE_ERRORS:
        return False
    return True


@cache
def engine_operators() -> Mapping[tuple[str, str], frozenset[str]]:
    """(domain, operator) of all operators in the operator sets that the engine takes -> the attributes of the newest."""
    newest, found = newest_opset(), {}
    for schema in sorted(engine.get_all_operator_schema(), key=lambda schema: schema.since_version):
        if schema.domain or schema.since_version <= newest:
            found[schema.domain, schema.name] = frozenset(schema.attributes)
    return found


def knows(node: NodeProto, domain: str) -> bool:
    """Whether the engine has the operator of a node, with the attributes that it has there."""
    known = engine_operators().get((domain, node.op_type))
    return known is not None and all(attribute.name in known for attribute in node.attribute)


def advice(proto: onnx.ModelProto) -> str:
    """How to supply the first operator of a model that the engine does not know; empty if it knows all."""
    nodes = ((node, "" if node.domain == "ai.onnx" else node.domain) for node in all_nodes(proto.graph.node))
    local = {(function.domain, function.name) for function in proto.functions}
    for node, domain in nodes:
        if (domain, node.op_type) not in engine_operators() and (node.domain, node.op_type) not in local:
            call = f"ow.register_onnx({domain!r}, {node.op_type!r}, op)"
            return f"; nothing knows the operator {node.op_type}: {call} lets an operation of yours compute it"
    return ""


def lower(proto: onnx.ModelProto) -> None:
    """Lower a model in place to the operator set and file format that the engine takes.

    Raises:
        OperationError: a node means something else in the older operator set, or is not in it.
    """
    proto.ir_version = min(proto.ir_version, newest_ir())
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > newest_opset():
            for node in all_nodes(proto.graph.node):
                if node.domain in ("", "ai.onnx"):
                    _lower_node(node, entry.version)
            entry.version = newest_opset()


def _lower_node(node: NodeProto, version: int) -> None:
    target = newest_opset()
    try:
        new = onnx.defs.get_schema(node.op_type, version)
    except onnx.defs.SchemaError:
        return  # a function of the model, or the engine's own: it will say what it does not know
    if new.since_version <= target:
        return
    refusal = f"ONNX Runtime has operator sets up to {target}, and {node.op_type} of {new.since_version}"
    try:
        old = onnx.defs.get_schema(node.op_type, target)
    except onnx.defs.SchemaError:
        raise OperationError(f"{refusal} is not in it") from None
    unknown = [attribute for attribute in node.attribute if attribute.name not in old.attributes]
    for attribute in unknown:
        default = new.attributes[attribute.name].default_value if attribute.name in new.attributes else None
        if default is None or helper.get_attribute_value(default) != helper.get_attribute_value(attribute):
            raise OperationError(f"{refusal} has {attribute.name}, which it did not have before")
    if node.op_type in MEANING_CHANGED or len(node.input) > old.max_input or len(node.output) > old.max_output:
        raise OperationError(f"{refusal} means something else")
    for attribute in unknown:
        node.attribute.remove(attribute)


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those of their sub-graphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            graphs = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
            for graph in graphs:
                yield from all_nodes(graph.node)
