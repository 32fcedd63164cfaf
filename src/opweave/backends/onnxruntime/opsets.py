"""Lower models to an operator set for which ONNX Runtime has kernels, if their nodes mean the same there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import onnx
import onnx.parser
from onnx import AttributeProto, NodeProto
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ...support.errors import OperationError
from .constants import all_graphs
from .model import KNOWN_IR
from .native import ENGINE_ERRORS, NativeSession
from .options import session_options

OLDEST_TARGET = 21
"""The engine has kernels for RoiAlign, Multinomial and random numbers of set 21, but not of set 22. Before set 21, more
operators have a different meaning."""

MEANING_CHANGED = frozenset({"BitShift"})
"""Operators whose newest version gives different results from that of `OLDEST_TARGET`: before set 28, a shift by the number of
bits or more was undefined."""

DEFINED_BY = {"Bernoulli": "RandomUniformLike"}
"""Operator without a kernel -> an operator of its definition with kernels for older operator sets only."""

NO_LAST_VERSION = 2**31 - 1
"""End of a kernel's range of operator sets in the engine's registry, if the range is open."""


@cache
def newest_opset() -> int:
    newest = onnx.defs.onnx_opset_version()
    return next((version for version in range(newest, 1, -1) if _takes(opset=version)), 1)


def _takes(opset: int) -> bool:
    text = f'<ir_version: 8, opset_import: ["": {opset}]> probe (float[1] x) => (float[1] y) {{ y = Relu(x) }}'
    model, options = onnx.parser.parse_model(text), session_options("default")
    try:
        NativeSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except ENGINE_ERRORS:
        return False
    return True


@cache
def engine_operators() -> Mapping[tuple[str, str], frozenset[str]]:
    """Map (domain, operator) to its attributes in the newest operator set that the engine accepts."""
    newest, operators = newest_opset(), {}
    for schema in sorted(engine.get_all_operator_schema(), key=lambda schema: schema.since_version):
        if schema.domain or schema.since_version <= newest:
            operators[schema.domain, schema.name] = frozenset(schema.attributes)
    return operators


def knows(node: NodeProto, domain: str) -> bool:
    """Whether the engine has the operator of a node with all its attributes."""
    attributes = engine_operators().get((domain, node.op_type))
    return attributes is not None and all(attribute.name in attributes for attribute in node.attribute)


def missing_nodes(proto: onnx.ModelProto) -> Iterator[NodeProto]:
    """The nodes of a model whose operators the engine does not have."""
    local = {(function.domain, function.name) for function in proto.functions}
    for node in (node for graph in all_graphs(proto.graph) for node in graph.node):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) not in engine_operators() and (node.domain, node.op_type) not in local:
            yield node


def unknown_operator(
    proto: onnx.ModelProto,
    needs_none: Callable[[NodeProto], bool] = lambda node: False,
    advice: Callable[[NodeProto], str] = lambda node: "",
) -> str:
    """Describe the first operator of a model that the engine does not have, with advice; empty if it has all.

    Nodes for which `needs_none` holds need no engine.
    """
    for node in missing_nodes(proto):
        if not needs_none(node):
            domain = "" if node.domain == "ai.onnx" else node.domain
            title = f"{node.op_type} {node.name!r}" if node.name else node.op_type
            problem = f"neither Opweave nor ONNX Runtime has the operator {node.op_type} of the domain {domain!r}"
            if domain == "" and not onnx.defs.has(node.op_type):
                problem = f"ONNX has no operator {node.op_type} in its own domain"
            usual = (
                f"declare an operation for it, and call ow.register_onnx({domain!r}, {node.op_type!r}, operation) before the "
                "model is loaded (on the command line, in a module that --operations names)"
            )
            return f"{title}: {problem}; {advice(node) or usual}"
    return ""


@cache
def kernel_versions() -> Mapping[str, frozenset[tuple[int, int]]]:
    """Map ONNX's own operators to the (first, last) version of each kernel on the CPU."""
    table: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for kernel in engine.get_all_opkernel_def():
        if not kernel.domain and kernel.provider == "CPUExecutionProvider":
            table[kernel.op_name].add(kernel.version_range)
    return {name: frozenset(versions) for name, versions in table.items()}


def has_kernel(operator: str, opset: int) -> bool:
    """Whether the engine has a kernel for one of ONNX's own operators in an operator set, for some data types.

    Also true without a kernel in any set: the engine then runs the function body, or fails.
    """
    kernels = kernel_versions().get(operator)
    version = _version(operator, opset)
    if kernels is None or version is None:
        return True
    # The engine uses a kernel without a last version for its first version alone.
    return any(first == version or first < version <= last < NO_LAST_VERSION for first, last in kernels)


def lower(proto: onnx.ModelProto) -> None:
    """Lower a model in place to the newest operator set in which all nodes have kernels and the same meaning.

    If there is none, choose the newest set that the engine accepts: creating a session then reports the missing kernel.
    """
    proto.ir_version = min(proto.ir_version, KNOWN_IR)
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > OLDEST_TARGET:
            graphs = all_graphs(proto.graph)
            nodes = [node for graph in graphs for node in graph.node if node.domain in ("", "ai.onnx")]
            target = _target(nodes, entry.version)
            if target < entry.version:
                for node in nodes:
                    for attribute in _unknown_attributes(node, entry.version, target):
                        node.attribute.remove(attribute)
                entry.version = target


def _target(nodes: Sequence[NodeProto], version: int) -> int:
    operators = {DEFINED_BY.get(node.op_type, node.op_type) for node in nodes}
    newest = min(version, newest_opset())
    for opset in range(newest, OLDEST_TARGET - 1, -1):
        complete = all(has_kernel(operator, opset) for operator in operators)
        if complete and _refusal(nodes, version, opset) is None:
            return opset
    if (refusal := _refusal(nodes, version, newest)) is not None:
        raise OperationError(f"ONNX Runtime has operator sets up to {newest}, and {refusal}")
    return newest


def _refusal(nodes: Sequence[NodeProto], version: int, target: int) -> str | None:
    """Return the reason against writing nodes in the older set `target`; None if there is none."""
    changed = {name for name in {n.op_type for n in nodes} if _version(name, version) != _version(name, target)}
    for node in nodes:
        if node.op_type not in changed:
            continue
        new = onnx.defs.get_schema(node.op_type, version)
        subject = f"{node.op_type} of {new.since_version}"
        if _version(node.op_type, target) is None:
            return f"{subject} is not in it"
        old = onnx.defs.get_schema(node.op_type, target)
        for attribute in _unknown_attributes(node, version, target):
            declared = new.attributes.get(attribute.name)
            if declared is None or declared.default_value != attribute:
                return f"{subject} has {attribute.name}, which it did not have before"
        if node.op_type in MEANING_CHANGED or len(node.input) > old.max_input or len(node.output) > old.max_output:
            return f"{subject} means something else"
    return None


def _unknown_attributes(node: NodeProto, version: int, target: int) -> list[AttributeProto]:
    """Return the attributes that the operator lacks in the older set `target`."""
    if _version(node.op_type, version) == _version(node.op_type, target):
        return []
    old = onnx.defs.get_schema(node.op_type, target)
    return [attribute for attribute in node.attribute if attribute.name not in old.attributes]


def _version(operator: str, opset: int) -> int | None:
    """Return the version of an operator in an operator set; None for functions and the engine's own operators."""
    try:
        since: int = onnx.defs.get_schema(operator, opset).since_version
    except onnx.defs.SchemaError:
        return None
    return since
