"""Element-wise operations without a formula, because other engines have exact kernels."""

from __future__ import annotations

from .... import expr
from ....expr import Traced
from ....ops import elementwise as ops
from ..table import gpu


@gpu.lower(ops.modulus_floor)
def _(a: Traced, b: Traced) -> Traced:
    return ops.floored_remainder(expr, a, b)


@gpu.lower(ops.modulus_truncate)
def _(a: Traced, b: Traced) -> Traced:
    return ops.truncated_remainder(expr, a, b)
