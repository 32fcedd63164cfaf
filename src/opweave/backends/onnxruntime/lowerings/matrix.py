"""ONNX Runtime rules: matrix products."""

from __future__ import annotations

from typing import Any

from ....graph import Operand
from ....ops import matrix as ops
from ....ops.quantization import dequantize_linear
from ..backend import ort
from ..emit import MICROSOFT, Emitter, Value


def _is_refused_by_integer_product(a: Operand, b: Operand) -> bool:
    """Whether the engine would multiply two dequantised matrices by a kernel that refuses their scales when it runs.

    It makes MatMulIntegerToFloat of any MatMul between two DequantizeLinear. The kernel takes one scale for `a`, and for `b`
    one, or one for each column; not others, such as those of blocks.
    """
    if any(operand.node is None or operand.node.op is not dequantize_linear for operand in (a, b)):
        return False
    rows, columns = (operand.node.arguments["scale"] for operand in (a, b) if operand.node is not None)
    return rows.desc.element_count != 1 or columns.desc.element_count not in (1, columns.shape[-1])


@ort.lower(ops.matmul)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    operands = ctx.node.arguments
    if not ctx.portable and _is_refused_by_integer_product(operands["a"], operands["b"]):
        return ctx.emit("FusedMatMul", a, b, domain=MICROSOFT)  # which the engine leaves as it is
    return ctx.emit("MatMul", a, b)


@ort.lower(ops.gemm)
def _(ctx: Emitter, a: Value, b: Value, c: Value | None, a_transpose: bool, b_transpose: bool, **factors: Any) -> Value:
    return ctx.emit("Gemm", a, b, c, transA=a_transpose, transB=b_transpose, **factors)
