"""Operations that move elements: their formulas are kernels."""

from __future__ import annotations

from ....ops import movement as ops
from ....ops.formulas import FORMULAS
from ..table import gpu

for _op in (
    *(ops.concat, ops.expand, ops.pad, ops.reshape, ops.reverse, ops.slice, ops.split, ops.tile),
    *(ops.transpose, ops.triangular),
):
    gpu.lower(_op)(FORMULAS[_op])
