"""ONNX Runtime rules: matrix products."""

from __future__ import annotations

from ....ops import matrix as ops
from ..backend import ort
from ..emit import Emitter, Value

ort.rename({ops.matmul: "MatMul"})


@ort.lower(ops.gemm)
def _(
    ctx: Emitter,
    a: Value,
    b: Value,
    c: Value | None,
    alpha: float,
    beta: float,
    a_transpose: bool,
    b_transpose: bool,
) -> Value:
    return ctx.emit("Gemm", a, b, c, alpha=alpha, beta=beta, transA=int(a_transpose), transB=int(b_transpose))
