"""Quotients of integers in ONNX models, written so that they cannot end the process.

ONNX Runtime divides with the instruction of the processor. On x86 it raises a signal for the smallest int32 or int64 divided
by -1 (https://github.com/microsoft/onnxruntime/pull/32369). Here such a quotient is the dividend, and the remainder 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ...errors import OperationError
from .constants import all_graphs, sub_graphs

DTYPES = {6: "<i4", 7: "<i8"}
"""TensorProto.INT32 and INT64 -> NumPy's data types of their raw data: only these quotients raise signals."""

FLOATS = frozenset({"Exp", "Sqrt"})
"""Operators that make floats. By their results, and by constants, most models divide; for others the schemas of all operators
are read, which takes time and memory."""

OLDEST_OPSET = 9
"""The first operator set with Where, and with Less for integers."""


def guard_quotients(proto: Any, constants: Mapping[str, np.ndarray]) -> None:
    """Guard the integer quotients of a model and its sub-graphs in place, unless their divisors are constants other than -1.

    Args:
        proto: a ModelProto, whose functions are inlined.
        constants: the arrays of initializers that hold no data in the model, by name.

    Raises:
        OperationError: the operator set is too old.
    """
    graphs = list(all_graphs(proto.graph))
    quotients = [node for graph in graphs for node in graph.node if _is_quotient(node)]
    if quotients:
        others, divisors = _known_values(graphs, constants)
        quotients = [node for node in quotients if node.input[1] not in divisors and others.isdisjoint(node.input)]
    if quotients:
        integers = {name for name, array in constants.items() if array.dtype.str in DTYPES.values()}
        _find_integers(proto.graph, integers)
        quotients = [node for node in quotients if node.input[0] in integers]
    if not quotients:
        return
    opset = max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=1)
    if opset < OLDEST_OPSET:
        operators = " and ".join(sorted({node.op_type for node in quotients}))
        raise OperationError(f"{operators} of integers needs operator set {OLDEST_OPSET}, and the model has {opset}")
    outputs = {node.output[0] for node in quotients}
    for graph in reversed(graphs):  # inner ones first: the graph around them gets copies of its nodes
        nodes = list(graph.node)
        if not any(node.output[:1] and node.output[0] in outputs for node in nodes):
            continue
        del graph.node[:]
        for node in nodes:
            if _is_quotient(node) and node.output[0] in outputs:
                _add_guard(graph, node)
            graph.node.append(node)


def _is_quotient(node: Any) -> bool:
    """Whether a node divides with remainder; Mod with `fmod` does not use the processor's division."""
    if node.domain not in ("", "ai.onnx") or len(node.input) != 2 or len(node.output) != 1:
        return False
    return node.op_type == "Div" or (
        node.op_type == "Mod" and not any(a.name == "fmod" and a.i for a in node.attribute)
    )


def _add_guard(graph: Any, node: Any) -> None:
    """Add nodes that replace a divisor of -1 by 1, and change the sign of what it divides, to a graph; `node` takes them.

    They are right for all data types, since the type of a value is not always known.
    """
    a, b = node.input
    name = f"{node.output[0]}/opweave/"

    def add(op_type: str, *inputs: str) -> str:
        output = f"{name}{len(graph.node)}"
        graph.node.add(op_type=op_type, input=inputs, output=[output])
        return output

    zero, one = add("Sub", b, b), add("Div", b, b)
    # The second condition is for unsigned integers, of which the largest one and 1 are 0.
    is_minus_one = add("And", add("Equal", add("Add", b, one), zero), add("Less", b, zero))
    node.input[1] = add("Where", is_minus_one, one, b)
    if node.op_type == "Div":
        node.input[0] = add("Where", is_minus_one, add("Mul", a, b), a)


# What is known of values ---------------------------------------------------------------------------------------------
#
# By name only: where two branches use one name for different values, what holds for either is taken for both.


def _known_values(graphs: list[Any], constants: Mapping[str, np.ndarray]) -> tuple[set[str], set[str]]:
    """The names of values that are surely neither int32 nor int64, and of constants in which no element is -1."""
    others: set[str] = set()
    divisors: set[str] = set()
    unknown: set[str] = set()

    def sort(name: str, data_type: str, array: np.ndarray | None) -> None:
        if data_type not in DTYPES.values():
            others.add(name)
        elif array is not None and not (array == -1).any():
            divisors.add(name)
        else:
            unknown.add(name)

    for name, array in constants.items():
        sort(name, array.dtype.str, array)
    for graph in graphs:
        unknown.update(info.name for info in graph.input)
        for tensor in graph.initializer:
            if tensor.name not in constants:
                sort(tensor.name, DTYPES.get(tensor.data_type, ""), _elements(tensor))
        for node in graph.node:
            if node.op_type == "Constant" and len(node.attribute) == len(node.output) == 1:
                (attribute,) = node.attribute
                if attribute.name == "value":
                    sort(node.output[0], DTYPES.get(attribute.t.data_type, ""), _elements(attribute.t))
                    continue
            if node.op_type in FLOATS and node.domain in ("", "ai.onnx"):
                others.update(node.output)
            else:
                unknown.update(node.output)
    return others - divisors - unknown, divisors - others - unknown


def _elements(tensor: Any) -> np.ndarray | None:
    """The elements of a TensorProto of integers; None for other tensors, and those that lie elsewhere."""
    if tensor.data_type not in DTYPES or tensor.external_data:
        return None
    data_type = DTYPES[tensor.data_type]
    if tensor.raw_data:
        return np.frombuffer(tensor.raw_data, data_type)
    return np.array(tensor.int32_data or tensor.int64_data, data_type)


def _find_integers(graph: Any, found: set[str]) -> None:
    """Add the names of a graph's values that may be int32 or int64, and of those in its sub-graphs, to `found`."""
    tensors = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
    found.update(tensor.name for tensor in tensors if tensor.data_type in DTYPES)
    found.update(info.name for info in graph.input if info.type.tensor_type.elem_type in (0, *DTYPES))
    for node in graph.node:
        for inner in sub_graphs(node):
            _find_integers(inner, found)
        found.update(name for position, name in enumerate(node.output) if _may_be_integer(node, position, found))


def _may_be_integer(node: Any, position: int, found: set[str]) -> bool:
    """Whether the output of a node may be int32 or int64."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if bodies := sub_graphs(node):
        return any(output.name in found for body in bodies for output in body.output)
    match node.op_type:
        case "Cast" if "to" in attributes:
            return attributes["to"].i in DTYPES
        case "Constant" | "ConstantOfShape":
            has_integers = any(name in attributes for name in ("value_int", "value_ints", "sparse_value"))
            return has_integers or ("value" in attributes and attributes["value"].t.data_type in DTYPES)
    signature = _signatures().get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))
    if signature is None or not signature[1]:
        return True
    inputs, outputs = signature
    type, allows_integers = outputs[min(position, len(outputs) - 1)]
    same = [name for name, other in zip(node.input, inputs, strict=False) if other == type and name]
    return allows_integers and (not same or same[0] in found)


@cache
def _signatures() -> Mapping[tuple[str, str], tuple[list[str], list[tuple[str, bool]]]]:
    """(domain, operator) -> the types of its inputs, and of its outputs with whether they may be int32 or int64."""
    found = {}
    for schema in sorted(engine.get_all_operator_schema(), key=lambda schema: schema.since_version):
        outputs = [(o.typeStr, any("(int32" in type or "(int64" in type for type in o.types)) for o in schema.outputs]
        found[schema.domain, schema.name] = ([i.typeStr for i in schema.inputs], outputs)
    return found
