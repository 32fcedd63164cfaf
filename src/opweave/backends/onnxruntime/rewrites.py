"""Rewrite whole models where ONNX Runtime's optimiser would change results, fail, or miss a faster form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .constants import MIXTURE, all_graphs

UINT8, FLOAT16 = 2, 10

BROADCASTING_SUM = 8
"""First operator set in which Sum broadcasts, as Add does."""


def forbid_rounding(proto: Any) -> None:
    from .narrow import FLOAT_LEVEL

    for graph in all_graphs(proto.graph):
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
                    attribute.i = FLOAT_LEVEL


def write_sums_as_additions(proto: Any, graphs: Sequence[Any]) -> None:
    """Replace Sum of two operands by Add: the engine's optimiser fuses only Add with a convolution and an activation."""
    if any(entry.domain in ("", "ai.onnx") and entry.version < BROADCASTING_SUM for entry in proto.opset_import):
        return
    for graph in graphs:
        for node in graph.node:
            if node.op_type == "Sum" and len(node.input) == 2 and node.domain in ("", "ai.onnx"):
                node.op_type = "Add"


def keep_casts_to_halves(graphs: Sequence[Any]) -> list[str]:
    """Insert an Identity after casts to float16, so that they round; return the optimiser passes to disable.

    Without a float16 kernel, the engine casts to float32, and removes this cast together with a preceding cast to float16,
    but not across an Identity.
    """
    is_changed = False
    for graph in graphs:
        casts = {node.output[0] for node in graph.node if node.op_type == "Cast" and _target(node) == FLOAT16}
        others = (node for inner in graphs for node in inner.node if node.op_type != "Cast")
        # The engine keeps pairs of the model's own casts.
        read = casts.intersection(name for node in others for name in node.input)
        if not read:
            continue
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            graph.node.append(node)
            if node.op_type == "Cast" and node.output[0] in read:
                name = node.output[0]
                last = graph.node[-1]
                last.output[0] = f"{name}/rounded"
                graph.node.add(op_type="Identity", name=f"{name}/rounded", input=[last.output[0]], output=[name])
                is_changed = True
    return ["EliminateIdentity"] if is_changed else []


FIRST_ZERO_POINTS = 11
"""The position of the zero points of the first layer among the inputs of QMoE; those of the second layer come next."""

_SCALES = (3, 6)
"""The positions of the scales of both layers."""

_MIDDLES = 0x88
"""Two zero points of 4 bits that are 8, as layers without zero points have."""


def complete_zero_points(graphs: Sequence[Any], constants: Mapping[str, np.ndarray]) -> None:
    """Give both layers of QMoE zero points if one of them has some.

    With numbers of 4 bits and a scale for each row, the engine computes a layer without zero points wrongly if the other layer
    has zero points: results are wrong by some percent.
    """
    shapes = {name: array.shape for name, array in constants.items()}
    shapes |= {tensor.name: tuple(tensor.dims) for graph in graphs for tensor in graph.initializer}
    for graph in graphs:
        for node in graph.node:
            if node.op_type != MIXTURE or len(node.input) <= FIRST_ZERO_POINTS:
                continue
            numbers = {attribute.name: int(attribute.i) for attribute in node.attribute}
            names = [*node.input, ""][FIRST_ZERO_POINTS : FIRST_ZERO_POINTS + 2]
            if (
                numbers.get("block_size", 0)
                or numbers.get("expert_weight_bits", 4) != 4
                or all(names)
                or not any(names)
            ):
                continue
            missing = names.index("")
            shape = shapes.get(node.input[_SCALES[missing]], ())
            if len(shape) != 2:
                continue
            experts, rows = shape
            name = f"{node.output[0]}/zero_points"
            points = np.full((experts, -(-rows // 2)), _MIDDLES, np.uint8)
            graph.initializer.add(name=name, data_type=UINT8, dims=points.shape, raw_data=points.tobytes())
            inputs = [*node.input, ""]
            inputs[FIRST_ZERO_POINTS + missing] = name
            del node.input[:]
            node.input.extend(inputs if inputs[-1] else inputs[:-1])


_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub", "Sum"})
"""The engine's optimiser may remove these operators, or move them into a product, if the other operands are numbers."""

_REMOVABLE = frozenset(
    {
        *("Clip", "Concat", "Dropout", "Expand", "Flatten", "Identity", "Max", "Mean", "Min", "Pad", "Relu", "Reshape"),
        *("Resize", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
"""The engine's optimiser may move these operators, or remove them where they change nothing."""


def keep_transpositions(graphs: Sequence[Any], constants: Mapping[str, np.ndarray]) -> list[str]:
    """Disable an optimiser pass that may end the process for products of operands that are transposed and cast.

    The pass swaps the transposition and the cast, and the engine fails if it then cannot fuse both with the product. For
    products of float16, the engine itself inserts such casts. Other passes may remove nodes between a cast and a product.
    """
    nodes = [node for graph in graphs for node in graph.node]
    products = [node for node in nodes if node.op_type in ("FusedMatMul", "MatMul")]
    if not products or not any(node.op_type == "Transpose" for node in nodes):
        return []
    has_halves = (
        any(tensor.data_type == FLOAT16 for graph in graphs for tensor in graph.initializer)
        or any(value.type.tensor_type.elem_type == FLOAT16 for graph in graphs for value in graph.input)
        or any(node.op_type == "Cast" and _target(node) == FLOAT16 for node in nodes)
    )
    if has_halves or _have_cast_operands(products, nodes, _numbers(graphs, nodes, constants)):
        return ["MatmulTransposeFusion"]
    return []


def _have_cast_operands(products: Sequence[Any], nodes: Sequence[Any], numbers: Mapping[str, bool]) -> bool:
    """Whether an operand of a product is the result of a cast, perhaps followed by removable operations."""
    producers = {name: node for node in nodes for name in node.output}
    pending = [name for node in products for name in node.input]
    seen = set(pending)
    while pending:
        node = producers.get(pending.pop())
        if node is None:
            continue
        if node.op_type == "Cast":
            return True
        operands = node.input[:1] if node.op_type in _REMOVABLE else ()
        if node.op_type in _ARITHMETIC:
            operands = [
                name
                for k, name in enumerate(node.input)
                if all(numbers.get(other, False) for j, other in enumerate(node.input) if j != k)
            ]
        pending += (name for name in operands if name not in seen)
        seen.update(operands)
    return False


def _numbers(graphs: Sequence[Any], nodes: Sequence[Any], constants: Mapping[str, np.ndarray]) -> dict[str, bool]:
    """Map each constant or foldable value to whether it may have a single element."""
    numbers = {tensor.name: prod(tensor.dims) == 1 for graph in graphs for tensor in graph.initializer}
    numbers |= {name: array.size == 1 for name, array in constants.items()}
    for node in nodes:
        if node.op_type == "Constant" or (node.input and all(name in numbers for name in node.input if name)):
            numbers.update(dict.fromkeys(node.output, True))
    return numbers


def _target(node: Any) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "to"), 0)
