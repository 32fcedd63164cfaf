"""Predict products in which the engine rounds an operand to 8 bits, since the other operand has weights of 8 or 4 bits.

With `precision="ieee"` the engine never rounds.
"""

from __future__ import annotations

from ...composites import is_composite
from ...core.dtypes import INFO
from ...core.graph import Node, Operand
from ...ops.matrix import gemm, matmul
from ...ops.movement import transpose
from .dequantised import BYTES, is_dequantised, native_forms

SMALLEST_BLOCK = 16


def rounds_input(node: Node) -> bool:
    """Whether the engine rounds an operand of a node to 8 bits, by blocks; the error is about 0.5% of the largest result."""
    arguments = node.arguments
    if is_composite(node.op, "matmul_n_bits"):
        from .narrow import form_of  # most graphs do without its imports

        weight, scale, zero_point = (arguments[name] for name in ("weight", "scale", "zero_point"))
        sizes = arguments["bits"], arguments["block_size"]
        form = form_of(arguments["input"], weight, scale, zero_point, *sizes, is_exact=False)
        return arguments["accuracy"] == "int8" and form == "blocks"
    if node.op not in (matmul, gemm) or not _is_quantised_weight(arguments["b"]):
        return False
    if node.op is matmul:
        return not is_dequantised(arguments["a"])
    is_plain = arguments["alpha"] == 1 and not arguments["a_transpose"] and not arguments["b_transpose"]
    return is_plain and is_dequantised(arguments["b"]) and not _is_dequantised_by_engine(arguments["a"])


def _is_dequantised_by_engine(operand: Operand) -> bool:
    """Whether the engine's own operator dequantises an operand, perhaps in a different shape."""
    if not is_dequantised(operand):
        return False
    arguments = operand.node.arguments  # type: ignore[union-attr]
    return arguments["input"].data_type in BYTES and bool(
        native_forms(arguments["input"].shape, arguments["scale"].shape)
    )


def _is_quantised_weight(weight: Operand) -> bool:
    """Whether a matrix is a dequantised constant of 4 or 8 bits with one scale per column, or per block of a column."""
    is_turned = weight.node is not None and weight.node.op is transpose
    if is_turned:
        weight = weight.node.arguments["input"]  # type: ignore[union-attr]
    if weight.rank != 2 or not is_dequantised(weight):
        return False
    arguments = weight.node.arguments  # type: ignore[union-attr]
    info = INFO[arguments["input"].data_type]
    is_constant = all(arguments[name].is_constant for name in ("input", "scale", "zero_point"))
    if not is_constant or info.bits > 8 or info.kind == "f":
        return False
    (rows, columns), (blocks, scales) = (
        (operand.shape[::-1] if is_turned else operand.shape) for operand in (weight, arguments["scale"])
    )
    if blocks == 1:
        return arguments["input"].data_type in ("int8", "uint8") and scales in (1, columns)
    return not is_turned and scales == columns and rows // blocks >= SMALLEST_BLOCK
