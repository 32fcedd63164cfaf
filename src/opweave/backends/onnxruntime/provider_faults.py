"""Operations that plug-in providers compute wrongly, without an error; they run on the CPU instead.

Found by the conformance cases of the specification on onnxruntime-ep-openvino 1.8.1 and onnxruntime-qnn 2.7.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...core.graph import Node

FLOATS = ("float32", "float16")
WIDE = ("int64", "uint64", "uint32")

INTEGERS = "providers compute integers in narrower types, or as floats"
"""OpenVINO and QNN compute 64-bit integers in 32 bits, and clamp 32-bit ones as float32."""


def why_not(provider: str, node: Node) -> str:
    """Return the reason why a node must not run on a plug-in provider; empty if it may."""
    types = [operand.data_type for operand in (*node.operands, *node.outputs)]
    if not any(data_type in FLOATS for data_type in types):
        return INTEGERS
    if node.op.name == "cast" and any(data_type in WIDE for data_type in types):
        return INTEGERS
    for is_wrong, reason in FAULTS.get(provider, {}).get(node.op.name, ()):
        if is_wrong(node):
            return f"{provider} is wrong for {reason}"
    return ""


def _reduces_nothing(node: Node) -> bool:
    axes = node.attributes.get("axes")
    return all(operand.rank == 0 for operand in node.operands) or (axes is not None and not len(axes))


def _has_many_axes(node: Node) -> bool:
    return any(operand.rank > 4 for operand in node.operands)


def _is_padded(node: Node) -> bool:
    return any(node.attributes["padding"])


def _has_output_padding(node: Node) -> bool:
    return any(node.attributes["output_padding"])


Fault = tuple[Callable[[Node], bool], str]

_REDUCTIONS = ("l1", "l2", "log_sum", "log_sum_exp", "max", "mean", "min", "product", "sum", "sum_square")

FAULTS: Mapping[str, Mapping[str, tuple[Fault, ...]]] = {
    "OpenVINOExecutionProvider": {
        f"reduce_{name}": ((_reduces_nothing, "reductions of no axis"),) for name in _REDUCTIONS
    },
    "QNNExecutionProvider": {
        "matmul": ((_has_many_axes, "more than four dimensions"),),
        **dict.fromkeys(("max_pool", "max_pool2d", "max_pool_with_indices"), ((_is_padded, "padded maxima"),)),
        **dict.fromkeys(("conv_transpose", "conv_transpose2d"), ((_has_output_padding, "padded outputs"),)),
    },
}
"""(predicate of nodes, reason) pairs, by provider and operation."""
