"""Element-wise operators: arithmetic, functions of one tensor, activations, casts, clipping."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ... import composites, ops
from ...context.builder import MLGraphBuilder
from ...core.dtypes import INFO, DataType, is_float
from ...core.graph import MLOperand
from ..registry import AtenCall, as_type, converts, is_number, refuse_if
from ..tensors import data_type_of
from .quantized import float_matrix


def is_unsigned(x: MLOperand) -> bool:
    """Whether the elements are unsigned integers."""
    return INFO[x.data_type].kind == "u"


# Arithmetic ----------------------------------------------------------------------------------------------------------


@converts("aten.add.Tensor", "aten.add.Scalar")
def _(b: MLGraphBuilder, self: Any, other: Any, alpha: Any = 1, *, call: AtenCall) -> MLOperand:
    x, y = call.promote(b, self, other)
    if call.is_bool:
        return b.logical_or(x, y)
    return b.add(x, y if is_one(alpha) else b.mul(y, as_type(b, alpha, y.data_type)))


@converts("aten.sub.Tensor", "aten.sub.Scalar")
def _(b: MLGraphBuilder, self: Any, other: Any, alpha: Any = 1, *, call: AtenCall) -> MLOperand:
    x, y = call.promote(b, self, other)
    return b.sub(x, y if is_one(alpha) else b.mul(y, as_type(b, alpha, y.data_type)))


@converts("aten.rsub.Tensor", "aten.rsub.Scalar")
def _(b: MLGraphBuilder, self: Any, other: Any, alpha: Any = 1, *, call: AtenCall) -> MLOperand:
    x, y = call.promote(b, self, other)
    return b.sub(y, x if is_one(alpha) else b.mul(x, as_type(b, alpha, x.data_type)))


def is_one(alpha: Any) -> bool:
    """Whether a factor is the number 1."""
    return isinstance(alpha, (int, float)) and alpha == 1


@converts("aten.mul.Tensor", "aten.mul.Scalar")
def _(b: MLGraphBuilder, self: Any, other: Any, *, call: AtenCall) -> MLOperand:
    return as_type(b, b.mul(*promote_factors(b, call, self, other)), call.data_type)


@converts("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def _(b: MLGraphBuilder, self: Any, other: Any, *, call: AtenCall) -> MLOperand:
    return divide(b, call, self, other, None)


def promote_factors(b: MLGraphBuilder, call: AtenCall, *values: Any) -> list[MLOperand]:
    """Convert factors to the data type of the result, or to float32 if a 16-bit float type cannot represent a number exactly.

    PyTorch multiplies and divides 16-bit floats by numbers in float32, so that 0.001 * 70000 is 70 and not infinite. It does
    the same for a second operand that is a scalar of another data type.
    """
    data_type = call.data_type
    if data_type in ("float16", "bfloat16"):
        second = values[-1]
        if isinstance(second, MLOperand) and not second.rank and second.data_type != data_type:
            return call.promote(b, *values, data_type="float32")
        numbers = torch.tensor([value for value in values if isinstance(value, (int, float))], dtype=torch.float64)
        if not torch.equal(numbers.to(call.dtype).double(), numbers):
            data_type = "float32"
    return call.promote(b, *values, data_type=data_type)


@converts("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _(b: MLGraphBuilder, self: Any, other: Any, rounding_mode: str | None = None, *, call: AtenCall) -> MLOperand:
    return divide(b, call, self, other, rounding_mode)


@converts("aten.floor_divide.default", "aten.floor_divide.Scalar")
def _(b: MLGraphBuilder, self: Any, other: Any, *, call: AtenCall) -> MLOperand:
    return divide(b, call, self, other, "floor")


def divide(b: MLGraphBuilder, call: AtenCall, a: Any, d: Any, rounding: str | None) -> MLOperand:
    """Divide, and round down ("floor") or toward zero ("trunc")."""
    x, y = promote_factors(b, call, a, d)
    if rounding is None:
        quotient = b.div(x, y)
    elif is_float(x.data_type):
        quotient = truncate(b, b.div(x, y)) if rounding == "trunc" else divide_down(b, x, y)
    elif rounding == "trunc" or is_unsigned(x):
        quotient = b.div(x, y)
    else:
        quotient = b.sub(b.div(x, y), b.cast(_is_rounded_up(b, b.modulus_truncate(x, y), y), x.data_type))
    return as_type(b, quotient, call.data_type)


def _is_rounded_up(b: MLGraphBuilder, remainder: MLOperand, y: MLOperand) -> MLOperand:
    """Whether rounding x / y toward zero rounds up: the remainder is not 0, and has another sign than y."""
    zero = as_type(b, 0, remainder.data_type)
    return b.logical_and(b.not_equal(remainder, zero), b.not_equal(b.lesser(remainder, zero), b.lesser(y, zero)))


def divide_down(b: MLGraphBuilder, x: MLOperand, y: MLOperand) -> MLOperand:
    """Round the exact quotient of floats down.

    floor(x / y) may be too large: 1 / 0.1 is rounded to 10, but 10 times float32's 0.1 is more than 1, so the result is 9.
    """
    remainder = b.modulus_truncate(x, y)
    zero = as_type(b, 0, x.data_type)
    is_rounded_up = _is_rounded_up(b, remainder, y)
    quotient = b.sub(b.round_even(b.div(b.sub(x, remainder), y)), b.cast(is_rounded_up, x.data_type))
    return b.where(b.equal(y, zero), b.div(x, y), quotient)


def truncate(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Round toward zero."""
    return b.mul(b.sign(x), b.floor(b.abs(x)))


@converts("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def _(b: MLGraphBuilder, self: Any, other: Any, *, call: AtenCall) -> MLOperand:
    return b.modulus_floor(*call.promote(b, self, other))


@converts("aten.fmod.Tensor", "aten.fmod.Scalar")
def _(b: MLGraphBuilder, self: Any, other: Any, *, call: AtenCall) -> MLOperand:
    return b.modulus_truncate(*call.promote(b, self, other))


@converts("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar")
def _(b: MLGraphBuilder, self: Any, exponent: Any, *, call: AtenCall) -> MLOperand:
    x, y = call.promote(b, self, exponent)
    if is_number(exponent) and exponent == 2:
        return b.mul(x, x)
    if is_number(exponent) and exponent == 0.5:
        return b.sqrt(x)
    return b.pow(x, y)


@converts("aten.maximum.default", "aten.max.other")
def _(b: MLGraphBuilder, self: MLOperand, other: MLOperand, *, call: AtenCall) -> MLOperand:
    return b.max(*call.promote(b, self, other))


@converts("aten.minimum.default", "aten.min.other")
def _(b: MLGraphBuilder, self: MLOperand, other: MLOperand, *, call: AtenCall) -> MLOperand:
    return b.min(*call.promote(b, self, other))


@converts("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", "aten.clip.Tensor")
def _(b: MLGraphBuilder, self: MLOperand, min: Any = None, max: Any = None, *, call: AtenCall) -> MLOperand:
    (x,) = call.promote(b, self)
    if min is not None:
        x = b.max(x, as_type(b, min, x.data_type))
    return x if max is None else b.min(x, as_type(b, max, x.data_type))


@converts("aten.hardtanh.default")
def _(b: MLGraphBuilder, self: MLOperand, min_val: Any = -1, max_val: Any = 1) -> MLOperand:
    kind = self.data_type
    return b.min(b.max(self, as_type(b, min_val, kind)), as_type(b, max_val, kind))


@converts("aten.clamp_min.default", "aten.clamp_min.Tensor")
def _(b: MLGraphBuilder, self: MLOperand, min: Any, *, call: AtenCall) -> MLOperand:
    return b.max(*call.promote(b, self, min))


@converts("aten.clamp_max.default", "aten.clamp_max.Tensor")
def _(b: MLGraphBuilder, self: MLOperand, max: Any, *, call: AtenCall) -> MLOperand:
    return b.min(*call.promote(b, self, max))


# Functions of one tensor ---------------------------------------------------------------------------------------------


def _function_converter(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The converter of a function whose operand is converted to the data type of the result."""

    def convert(b: MLGraphBuilder, self: MLOperand, *, call: AtenCall) -> MLOperand:
        (x,) = call.promote(b, self)
        result: MLOperand = compute(b, x)
        return result

    return convert


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(ops, name) for name in ("cos", "erf", "exp", "log", "sigmoid", "sin", "sqrt", "tan", "tanh")},
    **{name: getattr(composites, name) for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh")},
    "expm1": composites.expm1,
    "log1p": composites.log1p,
    "erfinv": composites.erf_inv,
    "reciprocal": ops.reciprocal,
    "rsqrt": lambda b, x: b.reciprocal(b.sqrt(x)),
    "neg": ops.neg,
    "square": lambda b, x: b.mul(x, x),
    "exp2": lambda b, x: b.exp(b.mul(x, math.log(2))),
    "log2": lambda b, x: b.mul(b.log(x), 1 / math.log(2)),
    "log10": lambda b, x: b.mul(b.log(x), 1 / math.log(10)),
    "erfc": lambda b, x: b.sub(1.0, b.erf(x)),
}
for _name, _compute in _FUNCTIONS.items():
    converts(f"aten.{_name}.default")(_function_converter(_compute))

_ROUNDING: dict[str, Callable[..., Any]] = {
    "ceil": ops.ceil,
    "floor": ops.floor,
    "round": ops.round_even,
    "trunc": truncate,
    "frac": lambda b, x: b.sub(x, truncate(b, x)),
}


def _rounding_converter(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The converter of a function that leaves integers unchanged."""
    return lambda b, self: compute(b, self) if is_float(self.data_type) else self


for _name, _compute in _ROUNDING.items():
    converts(f"aten.{_name}.default")(_rounding_converter(_compute))


@converts("aten.abs.default", "aten.absolute.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return self if is_unsigned(self) else b.abs(self)


@converts("aten.sign.default", "aten.sgn.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return b.min(self, as_type(b, 1, self.data_type)) if is_unsigned(self) else b.sign(self)


@converts("aten.atan2.default")
def _(b: MLGraphBuilder, self: MLOperand, other: MLOperand, *, call: AtenCall) -> MLOperand:
    return arc_tangent(b, *call.promote(b, self, other))


def arc_tangent(b: MLGraphBuilder, y: MLOperand, x: MLOperand) -> MLOperand:
    """The angle of the point (x, y)."""
    # atan(y / x), turned by pi where x is negative; for x = 0 the quotient is infinite, or 0 / 0 for the origin.
    zero, pi = as_type(b, 0, x.data_type), as_type(b, math.pi, x.data_type)
    is_origin = b.logical_and(b.equal(x, zero), b.equal(y, zero))
    quotient = b.div(y, b.where(is_origin, as_type(b, 1, x.data_type), x))
    is_far = b.logical_and(b.is_infinite(x), b.is_infinite(y))
    angle = composites.atan(b, b.where(is_far, b.mul(b.sign(x), b.sign(y)), quotient))
    turn = b.where(is_signed(b, y), b.neg(pi), pi)
    return b.where(is_signed(b, x), b.add(angle, turn), angle)


@converts("aten.hypot.default")
def _(b: MLGraphBuilder, self: MLOperand, other: MLOperand, *, call: AtenCall) -> MLOperand:
    return length_of(b, *call.promote(b, self, other))


def length_of(b: MLGraphBuilder, x: MLOperand, y: MLOperand) -> MLOperand:
    """The length of the vector (x, y); the larger part is divided out, since its square may be infinite."""
    zero, one = (as_type(b, number, x.data_type) for number in (0, 1))
    x, y = b.abs(x), b.abs(y)
    largest = b.max(x, y)
    is_infinite = b.logical_or(b.is_infinite(x), b.is_infinite(y))
    size = b.where(b.logical_or(b.equal(largest, zero), is_infinite), one, largest)
    first, second = b.div(x, size), b.div(y, size)
    length = b.mul(size, b.sqrt(b.add(b.mul(first, first), b.mul(second, second))))
    return b.where(is_infinite, as_type(b, math.inf, x.data_type), length)


@converts("aten.signbit.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return is_signed(b, self)


def is_signed(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Whether the sign is negative, also for -0.0 and NaN."""
    if is_float(x.data_type):
        kinds: dict[str, Any] = {"float32": "int32", "float64": "int64", "float16": "int16", "bfloat16": "int16"}
        x = composites.bit_cast(b, x, kinds[x.data_type])
    return b.lesser(x, as_type(b, 0, x.data_type))


@converts("aten.copysign.Tensor", "aten.copysign.Scalar")
def _(b: MLGraphBuilder, self: MLOperand, other: Any, *, call: AtenCall) -> MLOperand:
    x, y = call.promote(b, self, other)
    size = b.abs(x)
    return b.where(is_signed(b, y), b.neg(size), size)


@converts("aten.fmax.default", "aten.fmin.default")
def _(b: MLGraphBuilder, self: MLOperand, other: MLOperand, *, call: AtenCall) -> MLOperand:
    """The larger or smaller element; the other one if an element is NaN."""
    x, y = call.promote(b, self, other)
    result = b.max(x, y) if "fmax" in call.name else b.min(x, y)
    if not is_float(x.data_type):
        return result
    return b.where(b.is_nan(x), y, b.where(b.is_nan(y), x, result))


@converts("aten.ldexp.Tensor")
def _(b: MLGraphBuilder, self: MLOperand, other: MLOperand, *, call: AtenCall) -> MLOperand:
    x, y = call.promote(b, self, other)
    return b.mul(x, b.pow(as_type(b, 2, x.data_type), y))


# Activations ---------------------------------------------------------------------------------------------------------

for _name, _op in {"relu": ops.relu, "hardswish": ops.hard_swish}.items():
    converts(f"aten.{_name}.default")(_op)


@converts("aten.relu6.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return b.clamp(self, min_value=0.0, max_value=6.0)


@converts("aten.gelu.default")
def _(b: MLGraphBuilder, self: MLOperand, approximate: str = "none") -> MLOperand:
    return b.gelu(self) if approximate == "none" else composites.fast_gelu(b, self)


@converts("aten.silu.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return b.mul(self, b.sigmoid(self))


@converts("aten.mish.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return b.mul(self, b.tanh(b.softplus(self)))


@converts("aten.leaky_relu.default")
def _(b: MLGraphBuilder, self: MLOperand, negative_slope: float = 0.01) -> MLOperand:
    return b.leaky_relu(self, alpha=negative_slope)


@converts("aten.elu.default")
def _(b: MLGraphBuilder, self: MLOperand, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> MLOperand:
    refuse_if(input_scale != 1, f"input_scale is {input_scale}")
    y = b.elu(self, alpha=alpha) if alpha >= 0 else _elu(b, self, alpha)
    return y if scale == 1 else b.mul(y, as_type(b, scale, y.data_type))


def _elu(b: MLGraphBuilder, x: MLOperand, alpha: float) -> MLOperand:
    zero = as_type(b, 0, x.data_type)
    return b.add(b.max(x, zero), b.mul(composites.expm1(b, b.min(x, zero)), as_type(b, alpha, x.data_type)))


@converts("aten.celu.default")
def _(b: MLGraphBuilder, self: MLOperand, alpha: float = 1.0) -> MLOperand:
    zero, factor = as_type(b, 0, self.data_type), as_type(b, alpha, self.data_type)
    return b.add(b.max(self, zero), b.mul(composites.expm1(b, b.div(b.min(self, zero), factor)), factor))


@converts("aten.selu.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return b.mul(b.elu(self, alpha=1.6732632423543772), as_type(b, 1.0507009873554805, self.data_type))


@converts("aten.prelu.default", "aten._prelu_kernel.default")
def _(b: MLGraphBuilder, self: MLOperand, weight: MLOperand) -> MLOperand:
    if weight.rank == 1 and self.rank > 2:
        weight = b.reshape(weight, [weight.shape[0], *[1] * (self.rank - 2)])
    elif weight.rank == 1 and self.rank == 0:
        weight = b.reshape(weight, [])
    return b.prelu(self, weight)


@converts("aten.hardsigmoid.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return b.hard_sigmoid(self, alpha=1 / 6, beta=0.5)


@converts("aten.softplus.default")
def _(b: MLGraphBuilder, self: MLOperand, beta: float = 1, threshold: float = 20) -> MLOperand:
    scaled = self if beta == 1 else b.mul(self, as_type(b, beta, self.data_type))
    y = b.softplus(scaled)
    y = y if beta == 1 else b.div(y, as_type(b, beta, self.data_type))
    return b.where(b.greater(scaled, as_type(b, threshold, self.data_type)), self, y)


@converts("aten.log_sigmoid.default", "aten.log_sigmoid_forward.default")
def _(b: MLGraphBuilder, self: MLOperand, *, call: AtenCall) -> Any:
    y = b.neg(b.softplus(b.neg(self)))
    return (y, None) if call.name.startswith("aten.log_sigmoid_forward") else y


@converts("aten.threshold.default")
def _(b: MLGraphBuilder, self: MLOperand, threshold: float, value: float) -> MLOperand:
    limit, other = as_type(b, threshold, self.data_type), as_type(b, value, self.data_type)
    return b.where(b.lesser_or_equal(self, limit), other, self)  # NaN stays


@converts("aten.glu.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int = -1) -> MLOperand:
    x, gate = b.split(self, 2, axis=dim % self.rank)
    return b.mul(x, b.sigmoid(gate))


@converts("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")
def _(b: MLGraphBuilder, input: MLOperand, p: float, train: bool) -> MLOperand:
    refuse_if(train and p > 0, "it drops elements at random; export the module after module.eval()")
    return input


# Casts ---------------------------------------------------------------------------------------------------------------


def cast(b: MLGraphBuilder, x: MLOperand, source: Any, target: Any) -> MLOperand:
    """Convert from one data type of PyTorch to another: floats to integers by truncation, and numbers to bool by x != 0."""
    data_type: DataType = data_type_of(target, "the result")
    if target is source:
        return x
    if target is torch.bool:
        return b.not_equal(x, as_type(b, 0, x.data_type))
    if is_float(x.data_type) and not is_float(data_type):
        x = truncate(b, x)
    return x if x.data_type == data_type else b.cast(x, data_type)


@converts(
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.to.other",
    "aten._to_copy.default",
    "aten.type_as.default",
    "prims.convert_element_type.default",
)
def _(b: MLGraphBuilder, self: MLOperand, *args: Any, call: AtenCall, **kwargs: Any) -> MLOperand:
    if call.keeps_narrow:
        return float_matrix(b, self, call.data_type)
    return cast(b, self, call.dtype_of(0), call.dtype)


@converts(
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.detach_copy.default",
    "aten.lift_fresh.default",
    "aten.lift_fresh_copy.default",
    "aten.positive.default",
    "aten.resolve_conj.default",
    "aten.resolve_neg.default",
    "aten.alias_copy.default",
)
def _(b: MLGraphBuilder, self: MLOperand, **options: Any) -> MLOperand:
    return self


@converts("aten.copy.default")
def _(b: MLGraphBuilder, self: MLOperand, src: MLOperand, non_blocking: bool = False, *, call: AtenCall) -> MLOperand:
    x = cast(b, src, call.dtype_of(1), call.dtype)
    return x if x.shape == self.shape else b.expand(x, self.shape)


@converts("aten.nan_to_num.default")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> MLOperand:
    if not is_float(self.data_type):
        return self
    limits = torch.finfo(getattr(torch, self.data_type))
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    kind = self.data_type
    y = b.where(b.is_nan(self), as_type(b, nan or 0.0, kind), self)
    y = b.where(b.equal(self, as_type(b, math.inf, kind)), as_type(b, high, kind), y)
    return b.where(b.equal(self, as_type(b, -math.inf, kind)), as_type(b, low, kind), y)


@converts("aten.addcmul.default")
def _(
    b: MLGraphBuilder, self: MLOperand, tensor1: MLOperand, tensor2: MLOperand, *, value: Any = 1, call: AtenCall
) -> Any:
    x, y, z = call.promote(b, self, tensor1, tensor2)
    product = b.mul(y, z)
    return b.add(x, product if is_one(value) else b.mul(product, as_type(b, value, x.data_type)))


@converts("aten.addcdiv.default")
def _(
    b: MLGraphBuilder, self: MLOperand, tensor1: MLOperand, tensor2: MLOperand, *, value: Any = 1, call: AtenCall
) -> Any:
    x, y, z = call.promote(b, self, tensor1, tensor2)
    quotient = b.div(y, z)
    return b.add(x, quotient if is_one(value) else b.mul(quotient, as_type(b, value, x.data_type)))


@converts("aten.lerp.Scalar", "aten.lerp.Tensor")
def _(b: MLGraphBuilder, self: MLOperand, end: MLOperand, weight: Any, *, call: AtenCall) -> MLOperand:
    x, y, w = call.promote(b, self, end, weight)
    # Start from the nearer end, so that weights of 0 and 1 give exactly the ends.
    step, one = b.sub(y, x), as_type(b, 1, x.data_type)
    is_near = b.lesser(b.abs(w), as_type(b, 0.5, x.data_type))
    return b.where(is_near, b.add(x, b.mul(w, step)), b.sub(y, b.mul(step, b.sub(one, w))))
