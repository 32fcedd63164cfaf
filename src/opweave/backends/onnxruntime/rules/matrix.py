"""ONNX Runtime rules: matrix products."""

from __future__ import annotations

from typing import Any

from ....ops import matrix as ops
from ..backend import ort
from ..emit import Emitter, Value
from ..products import emit_product


@ort.lower(ops.matmul)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    return emit_product(ctx, "MatMul", a, b, axis=1 if ctx.node.arguments["b"].rank == 2 else None)


@ort.lower(ops.gemm, when=lambda c, beta: c is None or beta != 0)  # the kernel does not read c if beta is 0
def _(ctx: Emitter, a: Value, b: Value, c: Value | None, a_transpose: bool, b_transpose: bool, **factors: Any) -> Value:
    columns = 0 if b_transpose else 1
    return emit_product(ctx, "Gemm", a, b, c, axis=columns, transA=a_transpose, transB=b_transpose, **factors)
