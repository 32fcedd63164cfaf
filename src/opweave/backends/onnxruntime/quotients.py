"""Guard integer quotients of ONNX models against overflow, which would end the process.

ONNX Runtime divides with the processor's instruction. On x86, the smallest int32 or int64 divided by -1 raises a signal
(https://github.com/microsoft/onnxruntime/pull/32369). With a guard, the quotient is the dividend, and the remainder is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ...support.errors import OperationError
from .constants import QUOTIENTS, all_graphs, sub_graphs

DTYPES = {6: "<i4", 7: "<i8"}
"""TensorProto.INT32 and INT64, the types whose quotients raise signals -> NumPy's data type of the raw data."""

FLOATS = frozenset({"Exp", "Log", "Sigmoid", "Softmax", "Softplus", "Sqrt", "Tanh"})
"""Operators of ONNX whose results are floats. In most models, all divisors are such results, or constants."""

_KEEPING_TYPE = """
Abs Add Clip Concat CumSum Div Expand Flatten Gather GatherElements GatherND Identity MatMul Max Min Mod Mul Neg
Pad Pow ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape ScatterElements ScatterND Slice Squeeze Sub Tile
Transpose Unsqueeze
"""
FIRST = frozenset(_KEEPING_TYPE.split())
"""Operators of ONNX whose result has the type of their first input. Other operators are looked up in the engine's schemas,
which takes time and memory."""

OLDEST_OPSET = 9
"""First operator set with Where, and with Less for integers."""


def guard_quotients(proto: Any, constants: Mapping[str, np.ndarray], graphs: Sequence[Any] | None = None) -> None:
    """Guard the integer quotients of a model and its sub-graphs in place, except those by a constant other than -1.

    `graphs` may be the result of `all_graphs`; the nodes of graphs with quotients are replaced.
    """
    graphs = list(all_graphs(proto.graph)) if graphs is None else graphs
    quotients = [node for graph in graphs for node in graph.node if node.op_type in QUOTIENTS and _is_quotient(node)]
    if quotients:
        values = _QuotientValues(graphs, constants)
        quotients = [node for node in quotients if values.may_overflow(*node.input)]
    if not quotients:
        return
    opset = max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=1)
    if opset < OLDEST_OPSET:
        operators = " and ".join(sorted({node.op_type for node in quotients}))
        raise OperationError(f"{operators} of integers needs operator set {OLDEST_OPSET}, and the model has {opset}")
    outputs = {node.output[0] for node in quotients}
    for graph in reversed(graphs):  # inner graphs first: the outer graph's nodes are replaced by copies
        nodes = list(graph.node)
        if not any(node.output[:1] and node.output[0] in outputs for node in nodes):
            continue
        del graph.node[:]
        for node in nodes:
            if _is_quotient(node) and node.output[0] in outputs:
                _add_guard(graph, node)
            graph.node.append(node)


def _is_quotient(node: Any) -> bool:
    """Whether a node is Div, or Mod by integer division; Mod with `fmod` does not use the processor's instruction."""
    if node.domain not in ("", "ai.onnx") or len(node.input) != 2 or len(node.output) != 1:
        return False
    return node.op_type == "Div" or (
        node.op_type == "Mod" and not any(a.name == "fmod" and a.i for a in node.attribute)
    )


def _add_guard(graph: Any, node: Any) -> None:
    """Rewrite a / -1 as -a / 1 (and a mod -1 as a mod 1), by nodes that are correct for all data types: some are unknown."""
    a, b = node.input
    name = f"{node.output[0]}/opweave/"

    def add(op_type: str, *inputs: str) -> str:
        output = f"{name}{len(graph.node)}"
        graph.node.add(op_type=op_type, input=inputs, output=[output])
        return output

    zero, one = add("Sub", b, b), add("Div", b, b)
    # The second condition is for unsigned integers: the largest one + 1 is 0.
    is_minus_one = add("And", add("Equal", add("Add", b, one), zero), add("Less", b, zero))
    node.input[1] = add("Where", is_minus_one, one, b)
    if node.op_type == "Div":
        node.input[0] = add("Where", is_minus_one, add("Mul", a, b), a)


# Types and constants -------------------------------------------------------------------------------------------------


class _QuotientValues:
    """Types and constants among the values of a model, by name. Branches may use a name several times; all uses count."""

    def __init__(self, graphs: Sequence[Any], constants: Mapping[str, np.ndarray]) -> None:
        self._constants = constants
        # Definitions of each name: initializers, inputs, or (node, position of the output).
        self._tensors: dict[str, list[Any]] = {}
        self._inputs: dict[str, list[Any]] = {}
        self._nodes: dict[str, list[tuple[Any, int]]] = {}
        for graph in graphs:
            for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
                self._tensors.setdefault(tensor.name, []).append(tensor)
            for info in graph.input:
                self._inputs.setdefault(info.name, []).append(info)
            for node in graph.node:
                for position, name in enumerate(node.output[:]):
                    self._nodes.setdefault(name, []).append((node, position))

    def may_overflow(self, dividend: str, divisor: str) -> bool:
        """Whether a quotient may be int32 or int64 with a divisor of -1."""
        if any(self._is_other(name) for name in (dividend, divisor)) or self._is_harmless(divisor):
            return False
        return self._may_be_integer(dividend)

    def _constants_of(self, name: str) -> list[tuple[str, np.ndarray | None]] | None:
        """Data type (empty if not in `DTYPES`) and known elements of each constant; None if a value may have the name."""
        if name in self._inputs:
            return None
        constants = []
        if name in self._constants:
            array = self._constants[name]
            constants.append((array.dtype.str if array.dtype.str in DTYPES.values() else "", array))
        tensors = [*self._tensors.get(name, ())] if not constants else []
        for node, _ in self._nodes.get(name, ()):
            tensor = _tensor_of(node)
            if tensor is None:
                return None
            tensors.append(tensor)
        return constants + [(DTYPES.get(tensor.data_type, ""), _elements(tensor)) for tensor in tensors]

    def _is_other(self, name: str) -> bool:
        """Whether a value is surely neither int32 nor int64."""
        producers = self._nodes.get(name, ())
        if producers and all(n.op_type in FLOATS and n.domain in ("", "ai.onnx") for n, _ in producers):
            return name not in self._inputs and name not in self._tensors and name not in self._constants
        constants = self._constants_of(name)
        return bool(constants) and all(not data_type for data_type, _ in constants or ())

    def _is_harmless(self, name: str) -> bool:
        """Whether a value is a constant of int32 or int64 without an element of -1."""
        constants = self._constants_of(name)
        return bool(constants) and all(
            t and array is not None and not (array == -1).any() for t, array in constants or ()
        )

    def _may_be_integer(self, name: str) -> bool:
        pending, seen = [name], set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self._constants and self._constants[name].dtype.str in DTYPES.values():
                return True
            if any(tensor.data_type in DTYPES for tensor in self._tensors.get(name, ())):
                return True
            if any(info.type.tensor_type.elem_type in (0, *DTYPES) for info in self._inputs.get(name, ())):
                return True
            for node, position in self._nodes.get(name, ()):
                answer = _integer_sources(node, position)
                if answer is True:
                    return True
                pending += answer or ()
        return False


def _tensor_of(node: Any) -> Any | None:
    if node.op_type != "Constant" or len(node.attribute) != 1 or len(node.output) != 1:
        return None
    (attribute,) = node.attribute
    return attribute.t if attribute.name == "value" else None


def _elements(tensor: Any) -> np.ndarray | None:
    if tensor.data_type not in DTYPES or tensor.external_data:
        return None
    data_type = DTYPES[tensor.data_type]
    if tensor.raw_data:
        return np.frombuffer(tensor.raw_data, data_type)
    return np.array(tensor.int32_data or tensor.int64_data, data_type)


def _integer_sources(node: Any, position: int) -> bool | list[str]:
    """Return whether the output of a node may be int32 or int64, or the names of the values that decide this."""
    attributes = {attribute.name: attribute for attribute in node.attribute[:]}
    if bodies := sub_graphs(node):
        return [output.name for body in bodies for output in body.output]
    match node.op_type:
        case "Cast" if "to" in attributes:
            return attributes["to"].i in DTYPES
        case "Constant" | "ConstantOfShape":
            has_integers = any(name in attributes for name in ("value_int", "value_ints", "sparse_value"))
            return has_integers or ("value" in attributes and attributes["value"].t.data_type in DTYPES)
        case op_type if node.domain in ("", "ai.onnx") and op_type in FLOATS:
            return False
        case op_type if node.domain in ("", "ai.onnx") and op_type in FIRST:
            return node.input[:1]
    signature = _signatures().get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))
    if signature is None or not signature[1]:
        return True
    inputs, outputs = signature
    type, allows_integers = outputs[min(position, len(outputs) - 1)]
    same = [name for name, other in zip(node.input, inputs, strict=False) if other == type and name]
    return same[:1] if allows_integers and same else allows_integers


@cache
def _signatures() -> Mapping[tuple[str, str], tuple[list[str], list[tuple[str, bool]]]]:
    """Map (domain, operator) to the input types, and to pairs (output type, whether it allows int32 or int64)."""
    signatures = {}
    for schema in sorted(engine.get_all_operator_schema(), key=lambda schema: schema.since_version):
        outputs = [(o.typeStr, any("(int32" in type or "(int64" in type for type in o.types)) for o in schema.outputs]
        signatures[schema.domain, schema.name] = ([i.typeStr for i in schema.inputs], outputs)
    return signatures
