"""Element-wise operations without a formula, because other engines have exact kernels."""

from __future__ import annotations

from .... import expr
from ....core.dtypes import FLOATS
from ....expr import Traced
from ....ops import elementwise as ops
from ..table import gpu


@gpu.lower(ops.modulus_floor)
def _(a: Traced, b: Traced) -> Traced:
    return ops.floor_remainder(expr, _truncated_remainder(a, b), b)


@gpu.lower(ops.modulus_truncate)
def _truncated_remainder(a: Traced, b: Traced) -> Traced:
    return expr.apply("fmod", a, b) if a.data_type in FLOATS else ops.truncated_remainder(expr, a, b)
