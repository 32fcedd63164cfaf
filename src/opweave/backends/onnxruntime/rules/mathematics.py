"""ONNX Runtime rules: inverse trigonometric and hyperbolic functions, bits, determinants and inverses.

`dft` and `stft` have no rules: for lengths that are no powers of two, the engine's kernels take up to 50 times as long as the
decompositions, and have relative errors of 3e-5 for 400 elements, and of 2e-2 for 65521. `cumulative_product` has no rule
because its kernel needs a newer opset than the engine's models have.
"""

from __future__ import annotations

from ....composites import bits, elementary, linear_algebra
from ....core.graph import Operand
from ....expr import kernels
from ..backend import ort
from ..emit import MICROSOFT, Emitter, Value
from .shared import is_single


def _has_no_loops(input: Operand) -> bool:
    """Whether there is no compiler: loops have smaller errors than these kernels, up to 4.3 ULP, and are faster."""
    return is_single(input) and not kernels.is_compiled()


ort.rename({elementary.acos: "Acos", elementary.asin: "Asin", elementary.atan: "Atan"}, when=_has_no_loops)
ort.rename({elementary.acosh: "Acosh", elementary.asinh: "Asinh", elementary.atanh: "Atanh"}, when=is_single)
ort.rename({elementary.cosh: "Cosh", elementary.sinh: "Sinh"}, when=is_single)
ort.rename({bits.bitwise_and: "BitwiseAnd", bits.bitwise_or: "BitwiseOr", bits.bitwise_xor: "BitwiseXor"})
ort.rename({bits.bitwise_not: "BitwiseNot"})


@ort.lower(linear_algebra.det, when=is_single)
def _(ctx: Emitter, input: Value) -> Value:
    result: Value = ctx.emit("Det", input, shape=ctx.output.shape)
    return result


@ort.lower_contrib(linear_algebra.inverse, when=is_single)
def _(ctx: Emitter, input: Value) -> Value:
    result: Value = ctx.emit("Inverse", input, domain=MICROSOFT, shape=ctx.output.shape)
    return result
