"""OpenVINO rules: matrix products."""

from __future__ import annotations

from ....ops import matrix as ops
from ..backend import openvino
from ..emit import Emitter, Value


@openvino.lower(ops.matmul)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    return ctx.emit("matmul", a, ctx.weights(b, "columns"), False, False)


@openvino.lower(ops.gemm)
def _(
    ctx: Emitter, a: Value, b: Value, c: Value | None, alpha: float, beta: float, a_transpose: bool, b_transpose: bool
) -> Value:
    b = ctx.weights(b, "rows" if b_transpose else "columns")
    product = ctx.emit("matmul", a, b, a_transpose, b_transpose)
    if alpha != 1:
        product = ctx.emit("multiply", product, ctx.number(alpha, a))
    if c is None:
        return product
    return ctx.emit("add", product, c if beta == 1 else ctx.emit("multiply", c, ctx.number(beta, a)))
