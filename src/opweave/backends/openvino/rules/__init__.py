"""OpenVINO rules, one file for each family of operations, including composites.

What OpenVINO does otherwise than WebNN has no rule, or one for some data types only: the expression, the decomposition or ONNX
Runtime takes such nodes. On CPUs the engine compares and divides int32 as float32, narrows integers of 64 bits to 32, and
saturates those of 8; `emit` carries all of them so that moving them is exact.
"""

from __future__ import annotations

from ....core.dtypes import FLOATS
from ....core.graph import Operand
from ....ops.convolution import conv2d, conv_transpose2d
from ....ops.elementwise import add, div, mul, sub
from ....ops.matrix import gemm, matmul
from ....ops.normalization import batch_normalization
from ..emit import Emitter, Value

SUMS = (conv2d, conv_transpose2d, gemm, matmul)
"""Operations whose kernels take the element-wise operations that follow."""

TAKEN = (add, sub, mul, div, batch_normalization)
"""What such kernels take before an activation."""

MAX_TAKEN = 3
"""How many of these may stand between a sum and its activation: a bias, a normalisation, and what a residual block adds."""


def is_float(input: Operand) -> bool:
    """Whether `input` is float32 or float16."""
    return input.data_type in FLOATS


def follows_sum(input: Operand, most: int = MAX_TAKEN) -> bool:
    """Whether `input` is computed by a kernel that takes the element-wise operation after it: a sum, or what follows one.

    Args:
        input: the operand.
        most: how many operations may stand between.
    """
    node = input.node
    if node is None or node.op in SUMS:
        return node is not None
    if not most or node.op not in TAKEN:
        return False
    return any(follows_sum(operand, most - 1) for operand in node.operands)


def keeping_nan(ctx: Emitter, input: Value, result: Value) -> Value:
    """`result`, but NaN where the input is: the engine's maxima, minima and exponentials lose it.

    Not for what follows a sum: there the engine's own operation becomes part of the kernel before it.
    """
    is_nan = ctx.emit("not_equal", input, input, data_type="bool")  # IsNaN would not be joined with what is around it
    return ctx.emit("select", is_nan, input, result, data_type=result.data_type)
