"""ONNX Runtime rules: matrix products."""

from __future__ import annotations

from typing import Any

from ....ops import matrix as ops
from ..backend import ort
from ..dequantised import misread
from ..emit import MICROSOFT, Emitter, Value


@ort.lower(ops.matmul)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    left, right = ctx.node.arguments["a"], ctx.node.arguments["b"]
    if not ctx.portable and misread(left, right, 1 if right.rank == 2 else None):
        return ctx.emit("FusedMatMul", a, b, domain=MICROSOFT)  # which the engine leaves as it is
    return ctx.emit("MatMul", a, b)


@ort.lower(ops.gemm)
def _(ctx: Emitter, a: Value, b: Value, c: Value | None, a_transpose: bool, b_transpose: bool, **factors: Any) -> Value:
    return ctx.emit("Gemm", a, b, c, transA=a_transpose, transB=b_transpose, **factors)
