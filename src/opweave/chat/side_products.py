"""The products of adapters beside those of a network's matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.graph import MLOperand

SCALES = "adapter_scales"
"""The input with the scale of each rank."""


def side_product(x: Any, operands: Mapping[str, MLOperand], name: str) -> Any:
    """The side product of a matrix: float32 [1, tokens, rows] for `x` [1, tokens, columns].

    Args:
        x: the input of the product.
        operands: the inputs of the graph for adapters, by name.
        name: the name of the matrix.
    """
    a, b = operands[f"{name}.lora_a"], operands[f"{name}.lora_b"]
    low = x.reshape(x.shape[1:]).gemm(a, b_transpose=True, label=f"{name}.lora_a") * operands[SCALES]
    y = low.gemm(b, b_transpose=True, label=f"{name}.lora_b")
    return y.reshape([1, *y.shape])
