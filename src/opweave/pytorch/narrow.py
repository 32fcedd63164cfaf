"""Find the calls that convert weights of few bits to floats for a matrix product: these weights stay integers.

Other calls on constants are computed while the program is read, or when the engine loads the graph. A matrix of 4 or 8 bits
would then take the memory of floats. For a product, the call becomes `dequantize_linear` instead, which the compiler merges
with the product (`compile/narrow.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..core.graph import MLOperand

NARROW = (torch.int8, torch.uint8)
"""PyTorch's data types of weights with few bits; torchao's integers of 1 to 7 bits are stored as int8."""

DEQUANTIZING = frozenset(
    {
        "torchao.dequantize_affine.default",
        "quantized_decomposed.dequantize_per_channel.default",
        "quantized_decomposed.dequantize_per_channel_group.default",
        "quantized_decomposed.dequantize_per_tensor.default",
        "quantized_decomposed.dequantize_per_tensor.tensor",
    }
)
"""Operators that convert integers to floats with scales."""

CASTS = frozenset({"aten.to.dtype", "aten._to_copy.default"})
"""Operators that convert integers to floats without scales; the result of the product is multiplied by scales instead."""

_MOVES = frozenset({"aten.t.default", "aten.transpose.int", "aten.permute.default", "aten.numpy_T.default"})
"""Operators that may transpose a weight before its product."""

_PRODUCTS = {
    "aten.linear.default": 1,
    "aten.mm.default": 1,
    "aten.matmul.default": 1,
    "aten.addmm.default": 2,
    "aten.embedding.default": 0,
}
"""Operator -> the position of the matrix that is a weight."""


def stays_narrow(node: Any, target: Any, args: Sequence[Any]) -> bool:
    """Whether a call converts a constant matrix of integers that only products read."""
    name = str(target)
    if name not in DEQUANTIZING and name not in CASTS:
        return False
    integers, result = args[0], node.meta.get("val")
    if (
        not isinstance(integers, torch.Tensor)
        or integers.dtype not in NARROW
        or integers.dim() != 2
        or not integers.numel()
    ):
        return False
    if name in DEQUANTIZING and not _has_constant_scales(name, integers, args):
        return False
    is_cast = name in CASTS
    return (
        bool(node.users)
        and result.dtype.is_floating_point
        and all(_is_read_by_product(node, user, is_cast) for user in node.users)
    )


def _has_constant_scales(name: str, integers: Any, args: Sequence[Any]) -> bool:
    """Whether scales and zero points are constants, and zero points are values of the weight's data type."""
    start = 2 if name.startswith("torchao") else 1
    if any(isinstance(value, MLOperand) for value in args[start : start + 2]):
        return False
    zeros, bounds = args[start + 1], torch.iinfo(integers.dtype)
    if zeros is None:
        return True
    zeros = torch.as_tensor(zeros)
    is_integer = not zeros.is_floating_point()
    return is_integer and bool(((zeros >= bounds.min) & (zeros <= bounds.max)).all())


def _is_read_by_product(node: Any, user: Any, is_cast: bool) -> bool:
    name = str(user.target)
    if name in _MOVES:
        return bool(user.users) and all(_is_read_by_product(user, other, is_cast) for other in user.users)
    position = _PRODUCTS.get(name)
    if position is None or user.args[position] is not node:
        return False
    # Without scales, the integers are no quantised weight but a table, such as a mask, whose products must be exact.
    if is_cast and not (user.users and all(str(other.target) == "aten.mul.Tensor" for other in user.users)):
        return False
    return sum(argument is node for argument in user.args) == 1
