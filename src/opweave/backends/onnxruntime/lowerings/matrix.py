"""ONNX Runtime rules: matrix products."""

from __future__ import annotations

from typing import Any

from ....ops import matrix as ops
from ..backend import ort
from ..emit import Emitter, Value

ort.rename({ops.matmul: "MatMul"})


@ort.lower(ops.gemm)
def _(ctx: Emitter, a: Value, b: Value, c: Value | None, a_transpose: bool, b_transpose: bool, **factors: Any) -> Value:
    return ctx.emit("Gemm", a, b, c, transA=a_transpose, transB=b_transpose, **factors)
