"""Dequantised operands of products: in which form the engine gets their scales, and where it would misread them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...graph import Graph, Node, Operand
from ...ops.convolution import conv2d
from ...ops.matrix import gemm
from ...ops.movement import transpose
from ...ops.quantization import dequantize_linear

BYTES = ("int8", "uint8")
"""The data types that the engine's operators dequantise, besides constants of int32."""

Shape = Sequence[int]
Form = tuple[Shape, Shape, dict[str, Any]]
"""The shape of the input, the shape of scale and zero point, and the attributes of the engine's operator."""


def native_form(shape: Shape, part: Shape) -> Form | None:
    """The form in which the engine's operator accepts scales of the shape `part`; None if it does not."""
    varying = [axis for axis, size in enumerate(part) if size > 1]
    if not varying:
        return shape, (), {}
    if len(varying) == 1 and part[varying[0]] == shape[varying[0]]:
        return shape, (part[varying[0]],), {"axis": varying[0]}
    return block_form(shape, part)


def block_form(shape: Shape, part: Shape) -> Form | None:
    """The form with a scale for each block of elements along one axis; None if there are blocks along several."""
    blocked = [axis for axis in range(len(shape)) if part[axis] < shape[axis]] or [0]
    if len(blocked) == 1:
        return shape, part, {"axis": blocked[0], "block_size": shape[blocked[0]] // part[blocked[0]]}
    return None


def is_dequantised(operand: Operand) -> bool:
    """Whether an operand is a result of dequantize_linear."""
    return operand.node is not None and operand.node.op is dequantize_linear


_MOVES = ("identity", "transpose", "reshape", "slice", "expand", "max_pool2d")
"""Operations that the engine's optimiser moves a dequantisation through, or removes."""
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1}
"""Operations that return their first operand if the second is this number, and which the optimiser removes."""


def _moved(operand: Operand) -> Operand | None:
    """What an operand is a part of, or is in another order; None if it is computed in another way."""
    node = operand.node
    if node is None:
        return None
    name = node.op.name
    if name in _MOVES:
        moved: Operand = node.arguments["input"]
        return moved
    if name in _NEUTRAL:
        a, b = node.arguments["a"], node.arguments["b"]
        for one, other in ((a, b), (b, a)) if name in ("add", "mul") else ((a, b),):
            if other.is_constant and other.desc.element_count == 1 and other.value.item() == _NEUTRAL[name]:
                neutral: Operand = one
                return neutral
    return None


def source_of(operand: Operand, axis: int | None = None) -> tuple[Node, int | None] | None:
    """The node that dequantises an operand, perhaps before it is moved, and an axis of the operand there, if it is one."""
    while (source := _moved(operand)) is not None:
        if operand.node is not None and operand.node.op is transpose:
            axis = None if axis is None else operand.node.arguments["permutation"][axis]
        elif source.shape != operand.shape:
            axis = None
        operand = source
    return (operand.node, axis) if operand.node is not None and is_dequantised(operand) else None


def shared_constants(graph: Graph) -> set[Node]:
    """The nodes of a graph that dequantise a constant, perhaps a computed one, if it or the result is read repeatedly."""
    reads = Counter(operand for node in graph.nodes for operand in node.operands)
    reads.update(graph.outputs.values())
    folded: set[Operand] = set()
    shared: set[Node] = set()
    for node in graph.nodes:
        if all(operand.is_constant or operand in folded for operand in node.operands):
            folded.update(node.outputs)
            if node.op is dequantize_linear and max(reads[node.arguments["input"]], reads[node.outputs[0]]) > 1:
                shared.add(node)
    return shared


def misread(a: Operand, b: Operand, axis: int | None) -> set[Node]:
    """The nodes that dequantise the operands of a product with scales that the engine's kernel for integers misreads.

    The engine computes products of two dequantised operands in integers. It takes several scales for those along any axis of
    `b` that its kernel knows, with wrong results, and some kernels fail if there are several for `a`.

    Args:
        a: the first operand, for which the kernel has one scale.
        b: the second operand.
        axis: the one of `b` along which the kernel has several scales: columns of a matrix, filters of a convolution. None if
            it has one scale only, as for a stack of matrices.
    """
    one, other = source_of(a), source_of(b, axis)
    if one is None or other is None:
        return set()
    return {node for node, own in (one, other) if not _is_scaled_along(node, own)}


def misread_in(graph: Graph) -> set[Node]:
    """The nodes of a graph that dequantise what `gemm` or `conv2d` would misread."""
    found: set[Node] = set()
    for node in graph.nodes:
        given = node.arguments
        if node.op is gemm:
            found |= misread(given["a"], given["b"], 0 if given["b_transpose"] else 1)
        elif node.op is conv2d:
            found |= misread(given["input"], given["filter"], given["filter_layout"].index("o"))
    return found


def _is_scaled_along(node: Node, axis: int | None) -> bool:
    """Whether a node that dequantises has one scale, or one for each index of an axis."""
    shape, part = node.arguments["input"].shape, node.arguments["scale"].shape
    return all(size == 1 or (k == axis and size == shape[k]) for k, size in enumerate(part))
