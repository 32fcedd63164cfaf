"""OpenVINO rules, one file for each family of operations, including composites.

What OpenVINO does otherwise than WebNN has no rule, or one for some data types only: the expression, the decomposition or ONNX
Runtime takes such nodes. On CPUs the engine compares and divides int32 as float32, narrows integers of 64 bits to 32, and
saturates those of 8; `emit` carries all of them so that moving them is exact.
"""

from __future__ import annotations

from ....dtypes import FLOATS
from ....graph import Operand
from ....ops.convolution import conv2d, conv_transpose2d
from ....ops.matrix import gemm, matmul
from ..emit import Emitter, Value

SUMS = (conv2d, conv_transpose2d, gemm, matmul)
"""Operations whose kernels take the element-wise operation that follows."""


def is_float(input: Operand) -> bool:
    """Whether `input` is float32 or float16."""
    return input.data_type in FLOATS


def follows_sum(input: Operand) -> bool:
    """Whether `input` is computed by a kernel that takes the element-wise operation after it."""
    return input.node is not None and input.node.op in SUMS


def keeping_nan(ctx: Emitter, input: Value, result: Value) -> Value:
    """`result`, but NaN where the input is: the engine's maxima, minima and exponentials lose it.

    Not for what follows a sum: there the engine's own operation becomes part of the kernel before it.
    """
    is_nan = ctx.emit("is_nan", input, data_type="bool")
    return ctx.emit("select", is_nan, input, result, data_type=result.data_type)
