"""Dequantised operands that the engine's passes for products of 8 bits would misread.

The passes run if a graph quantises anything. They take dequantised operands with one scale, and constant second operands with
any scales. For others they give wrong numbers or fail: `tests/backends/openvino/test_openvino_quantization.py` has them all.
"""

from __future__ import annotations

from ...graph import Graph, Node, Operand
from ...ops.convolution import conv2d, conv_transpose2d
from ...ops.matrix import gemm, matmul
from ...ops.movement import transpose
from ...ops.quantization import dequantize_linear

PRODUCTS = {matmul: ("a", "b"), gemm: ("a", "b"), conv2d: ("input", "filter"), conv_transpose2d: ("input", "filter")}
"""The operands of each product."""


def has_many_scales(graph: Graph) -> bool:
    """Whether a graph dequantises what it computes or gets with more than one scale.

    Products by such operands are wrong (the second one has a scale for each column), or are refused by the engine (the first
    one has a scale for each row).
    """
    return any(
        node.arguments["scale"].desc.element_count > 1
        for node in graph.nodes
        if node.op is dequantize_linear and not node.arguments["input"].is_constant
    )


def misread_constants(graph: Graph) -> set[Node]:
    """The nodes that dequantise constants which the passes misread in a product.

    The passes take zero points of a constant first operand for those of the other one, and those of a transposed convolution's
    filter for zeros.
    """
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op in PRODUCTS:
            first, second = (_source(node.arguments[name]) for name in PRODUCTS[node.op])
            found |= {first} if first is not None else set()
            if node.op is conv_transpose2d and second is not None and second.arguments["zero_point"].value.any():
                found.add(second)
    return found


def _source(operand: Operand) -> Node | None:
    """The node that dequantises a constant, perhaps before transpositions; None if there is none."""
    while operand.node is not None and operand.node.op is transpose:
        operand = operand.node.arguments["input"]
    node = operand.node
    is_known = node is not None and node.op is dequantize_linear and all(each.is_constant for each in node.operands)
    return node if is_known else None
