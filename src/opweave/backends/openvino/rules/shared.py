"""OpenVINO rules: epilogues of sums, and NaN, which several families use."""

from __future__ import annotations

from ....composites import is_composite
from ....core.dtypes import FLOATS
from ....core.graph import Operand
from ....ops.convolution import conv2d, conv_transpose2d
from ....ops.elementwise import add, div, mul, sub
from ....ops.matrix import gemm, matmul
from ....ops.normalization import batch_normalization
from ..emit import Emitter, Value

SUMS = (conv2d, conv_transpose2d, gemm, matmul)
"""Operations whose kernels fuse element-wise operations as an epilogue, besides the convolutions among composites."""

TAKEN = (add, sub, mul, div, batch_normalization)
"""Operations that such kernels fuse before an activation."""

MAX_TAKEN = 3
"""Number of fused operations between a sum and its activation: a bias, a normalisation, and a residual."""


def is_float(input: Operand) -> bool:
    return input.data_type in FLOATS


def follows_sum(input: Operand, most: int = MAX_TAKEN) -> bool:
    """Whether the kernel of a sum, at most `most` operations before `input`, also fuses the next element-wise operation."""
    node = input.node
    if node is None or node.op in SUMS or is_composite(node.op, "convolution", "conv_transpose"):
        return node is not None
    if not most or node.op not in TAKEN:
        return False
    return any(follows_sum(operand, most - 1) for operand in node.operands)


def keep_nan(ctx: Emitter, input: Value, result: Value) -> Value:
    """Return `result`, but NaN where the input is NaN: the engine's maxima, minima and exponentials lose it.

    Not for operations after a sum, which its epilogue fuses.
    """
    is_nan = ctx.emit("not_equal", input, input, data_type="bool")  # IsNaN would not be fused with its neighbours
    return ctx.emit("select", is_nan, input, result, data_type=result.data_type)
