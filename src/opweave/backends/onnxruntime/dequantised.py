"""Dequantised operands: shapes and axes of scales that the engine's DequantizeLinear accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...composites import is_composite
from ...core.graph import Graph, Node, Operand
from ...core.sizes import is_static
from ...ops.convolution import conv2d, conv_transpose2d
from ...ops.matrix import gemm, matmul
from ...ops.movement import transpose
from ...ops.quantization import dequantize_linear

BYTES = ("int8", "uint8")
"""Data types that the engine dequantises, besides constants of int32."""

_PRODUCTS = (conv2d, conv_transpose2d, gemm, matmul)

Shape = Sequence[int]
Form = tuple[Shape, Shape, dict[str, Any]]
"""Shape of the input, shape of scale and zero point, and attributes of the engine's operator."""


def native_form(shape: Shape, part: Shape) -> Form | None:
    """Return the form in which the engine's operator accepts scales of shape `part`; None if there is none."""
    varying = [axis for axis, size in enumerate(part) if size != 1]
    if not varying:
        return shape, (), {}
    if len(varying) == 1 and part[varying[0]] == shape[varying[0]]:
        return shape, (part[varying[0]],), {"axis": varying[0]}
    return block_form(shape, part)


def block_form(shape: Shape, part: Shape) -> Form | None:
    """Return the form with one scale per block along one axis; None if several axes have blocks."""
    blocked = [axis for axis in range(len(shape)) if part[axis] != shape[axis]] or [0]
    block_size = shape[blocked[0]] // part[blocked[0]]
    if len(blocked) == 1 and is_static([block_size]):
        return shape, part, {"axis": blocked[0], "block_size": block_size}
    return None


def merge_axes(shape: Shape, part: Shape) -> tuple[Shape, Shape]:
    """Split each dimension into (blocks, elements of a block), and merge adjacent dimensions of the same kind.

    Return the new shape, and the shape of `part` that broadcasts to it.

    >>> merge_axes((6, 5, 4), (2, 5, 4))
    ([2, 3, 20], [2, 1, 20])
    """
    runs: list[tuple[int, bool]] = []
    for whole, count in zip(shape, part, strict=True):
        for size, varies in ((count, True), (whole // count, False)):
            if runs and runs[-1][1] == varies:
                runs[-1] = runs[-1][0] * size, varies
            elif size != 1:
                runs.append((size, varies))
    return [size for size, _ in runs], [size if varies else 1 for size, varies in runs]


def native_forms(shape: Shape, part: Shape) -> list[Form]:
    """Return all forms that the engine accepts; the form with the original shape comes first."""
    pairs = ((shape, part), merge_axes(shape, part))
    return [form for form in (native_form(*pair) for pair in pairs) if form is not None]


def is_dequantised(operand: Operand) -> bool:
    return operand.node is not None and operand.node.op is dequantize_linear


def is_scaled_along(operand: Operand, axis: int | None) -> bool:
    """Whether an operand is dequantised, and perhaps transposed, with one scale per tensor or per index of `axis`."""
    while (node := operand.node) is not None and node.op is transpose:
        axis = None if axis is None else node.arguments["permutation"][axis]
        operand = node.arguments["input"]
    if node is None or node.op is not dequantize_linear:
        return False
    shape, part = operand.shape, node.arguments["scale"].shape
    return all(size == 1 or (k == axis and size == shape[k]) for k, size in enumerate(part))


def shared_constants(graph: Graph) -> set[Node]:
    """Return the nodes that dequantise a constant (or a value computed from constants) with several readers.

    The count includes indirect readers up to the next product: the engine's optimiser may remove the nodes in between.
    """
    reads = Counter(graph.outputs.values())
    for node in reversed(graph.nodes):
        is_product = node.op in _PRODUCTS or is_composite(node.op, "convolution", "conv_transpose")
        through = 1 if is_product else max(1, *(reads[output] for output in node.outputs))
        for operand in node.operands:
            reads[operand] += through
    folded: set[Operand] = set()
    shared: set[Node] = set()
    for node in graph.nodes:
        if all(operand.is_constant or operand in folded for operand in node.operands):
            folded.update(node.outputs)
            if node.op is dequantize_linear and reads[node.arguments["input"]] > 1:
                shared.add(node)
    return shared
