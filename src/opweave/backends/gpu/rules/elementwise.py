"""Element-wise operations without a formula, because other engines have exact kernels, and those with a faster form."""

from __future__ import annotations

from .... import expr
from ....core.dtypes import FLOATS
from ....expr import Traced
from ....expr.ir import Const
from ....ops import elementwise as ops
from ..table import gpu


@gpu.lower(ops.modulus_floor)
def _(a: Traced, b: Traced) -> Traced:
    return ops.floor_remainder(expr, _truncated_remainder(a, b), b)


@gpu.lower(ops.modulus_truncate)
def _truncated_remainder(a: Traced, b: Traced) -> Traced:
    return expr.apply("fmod", a, b) if a.data_type in FLOATS else ops.truncated_remainder(expr, a, b)


@gpu.lower(ops.pow)
def _(a: Traced, b: Traced) -> Traced:
    # Squares and cubes, as in normalisations and in the approximation of gelu; `pow` takes about 100 instructions.
    exponent = b.body.value if isinstance(b.body, Const) else None
    if a.data_type in FLOATS and exponent == 2:
        return a * a
    if a.data_type == "float32" and exponent == 3:
        return a * a * a  # within 2 ULP
    return expr.pow(a, b)
