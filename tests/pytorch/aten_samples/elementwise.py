"""Sample calls of element-wise operators."""

from __future__ import annotations

import torch

from . import Sample, bools, floats, integers, specials

X, Y, HALF = floats(2, 3, 4), floats(3, 1, seed=1), floats(3, 4, dtype=torch.float16)
POSITIVE, UNIT = floats(2, 3, low=0.1, high=9), floats(2, 3, low=-0.9, high=0.9)
INTEGERS, DIVISORS = integers(3, 4), torch.tensor([1, -2, 3, -4])

_ARITHMETIC = [
    Sample(X, Y),
    Sample(HALF, HALF + 1),
    Sample(HALF, floats(4)),
    Sample(INTEGERS, DIVISORS),
    Sample(INTEGERS, floats(4)),
    Sample(INTEGERS.int(), DIVISORS),
    Sample(X, torch.tensor(2)),
    Sample(floats(3).double(), floats(3)),
    Sample(floats(), floats()),
]
_WITH_NUMBER = [Sample(X, 3), Sample(X, 2.5), Sample(INTEGERS, 3), Sample(INTEGERS, 2.5), Sample(HALF, 0.5)]
_BOOLS = [Sample(bools(3, 4), bools(4, seed=1))]
_ALPHA = [Sample(X, Y, alpha=2), Sample(INTEGERS, DIVISORS, alpha=-3), Sample(X, Y, alpha=0.5)]

# Numbers that 16-bit floats do not have, and quotients that round up to whole numbers which their divisor exceeds.
_WIDE = [Sample(floats(3, 4, low=-0.4, high=0.4, dtype=torch.float16), number) for number in (70000.0, 1e-4)]
_WIDE.append(Sample(floats(3, 4, dtype=torch.bfloat16), 1.003))
# Operands without axes keep their own data type, if they are the second ones.
_SCALARS = [
    Sample(floats(3, dtype=torch.float16, low=0.001, high=0.9), torch.tensor(70000.0)),
    Sample(floats(3, dtype=torch.float16, low=0.001, high=0.9), torch.tensor(70000)),
    Sample(floats(3, dtype=torch.bfloat16), torch.tensor(1.003, dtype=torch.float64)),
    Sample(torch.tensor(70000.0), floats(3, dtype=torch.float16)),
    Sample(floats(dtype=torch.float16), torch.tensor(70000.0)),
]
TENTHS = torch.arange(-50, 50) / 10

_UNARY = [Sample(X), Sample(HALF), Sample(floats())]
_ON_INTEGERS = [Sample(INTEGERS), Sample(bools(3))]

SAMPLES = {
    "aten.add.Tensor": _ARITHMETIC + _ALPHA + _BOOLS + [Sample(bools(4), integers(4)), Sample(X, 1.5)],
    "aten.add.Scalar": [*_WITH_NUMBER, Sample(X, 3, 2)],
    "aten.sub.Tensor": _ARITHMETIC + _ALPHA,
    "aten.sub.Scalar": [*_WITH_NUMBER, Sample(X, 3, 2)],
    "aten.rsub.Tensor": _ARITHMETIC + _ALPHA,
    "aten.rsub.Scalar": [*_WITH_NUMBER, Sample(X, 3, 2)],
    "aten.mul.Tensor": _ARITHMETIC + _BOOLS + _WIDE + _SCALARS + [Sample(bools(4), floats(4))],
    "aten.mul.Scalar": _WITH_NUMBER,
    "aten.div.Tensor": _ARITHMETIC + _BOOLS + _WIDE + _SCALARS,
    "aten.hypot.default": [
        Sample(X, Y),
        Sample(X * 1e30, Y),
        Sample(specials(), specials().flip(0)),
        Sample(HALF, HALF),
    ],
    "aten.signbit.default": [Sample(X), Sample(specials()), Sample(INTEGERS), Sample(HALF), Sample(X.double())],
    "aten.copysign.Tensor": [Sample(X, Y), Sample(specials(), specials().flip(0)), Sample(INTEGERS, floats(4))],
    "aten.copysign.Scalar": [Sample(X, -2.0), Sample(X, 1), Sample(specials(), -0.0)],
    "aten.fmax.default": [Sample(X, Y), Sample(INTEGERS, DIVISORS), Sample(specials(), specials().flip(0))],
    "aten.fmin.default": [Sample(X, Y), Sample(INTEGERS, DIVISORS), Sample(specials(), specials().flip(0))],
    "aten.ldexp.Tensor": [Sample(X, integers(4)), Sample(X, Y)],
    "aten.div.Scalar": _WITH_NUMBER,
    "aten.true_divide.Tensor": [Sample(X, Y), Sample(INTEGERS, DIVISORS)],
    "aten.div.Tensor_mode": [
        *[Sample(X, Y, rounding_mode=mode) for mode in ("floor", "trunc", None)],
        *[Sample(INTEGERS, DIVISORS, rounding_mode=mode) for mode in ("floor", "trunc", None)],
        Sample(INTEGERS.abs().to(torch.uint8), DIVISORS.abs().to(torch.uint8), rounding_mode="floor"),
    ],
    "aten.div.Scalar_mode": [Sample(X, 0.3, rounding_mode="floor"), Sample(INTEGERS, 4, rounding_mode="floor")],
    "aten.floor_divide.default": [Sample(INTEGERS, DIVISORS), Sample(X, Y), Sample(INTEGERS, 3), Sample(TENTHS, 0.1)],
    "aten.floor_divide.Scalar": [
        Sample(INTEGERS, 3),
        Sample(X, -1.5),
        Sample(TENTHS, -0.1),
        Sample(TENTHS.half(), 0.1),
        Sample(X, 0.0),
        Sample(torch.tensor([float("inf"), -1, 1]), 2.0),
        Sample(X, float("inf")),
    ],
    "aten.remainder.Tensor": [Sample(INTEGERS, DIVISORS), Sample(X, Y)],
    "aten.remainder.Scalar": [Sample(INTEGERS, 3), Sample(INTEGERS, -3), Sample(X, 0.7)],
    "aten.remainder.Scalar_Tensor": [Sample(7, DIVISORS)],
    "aten.fmod.Tensor": [Sample(INTEGERS, DIVISORS), Sample(X, Y)],
    "aten.fmod.Scalar": [Sample(INTEGERS, -3), Sample(X, 0.7)],
    "aten.pow.Tensor_Tensor": [Sample(POSITIVE, UNIT), Sample(integers(4, low=0), integers(4, low=0, high=5))],
    "aten.pow.Tensor_Scalar": [
        *[Sample(POSITIVE, p) for p in (2, 3, 0.5, -1, 2.5, 0)],
        Sample(X, 3),
        Sample(INTEGERS, 2),
        Sample(INTEGERS, 3),
        Sample(INTEGERS, 0.0),
    ],
    "aten.pow.Scalar": [Sample(2, X), Sample(2, integers(3, low=0)), Sample(0.5, X)],
    "aten.maximum.default": _ARITHMETIC + _BOOLS + [Sample(specials(), specials().flip(0))],
    "aten.minimum.default": _ARITHMETIC + _BOOLS + [Sample(specials(), specials().flip(0))],
    "aten.max.other": [Sample(X, Y), Sample(INTEGERS, DIVISORS)],
    "aten.min.other": [Sample(X, Y), Sample(INTEGERS, DIVISORS)],
    "aten.clamp.default": [
        *[Sample(X, *limits) for limits in ((-0.5, 0.5), (0,), (None, 0), (1.0, -1.0))],
        Sample(INTEGERS, -3, 4),
        Sample(INTEGERS, 0.5),
        Sample(specials(), -1, 1),
    ],
    "aten.clamp.Tensor": [Sample(X, Y, Y + 1), Sample(X, None, Y), Sample(INTEGERS, DIVISORS)],
    "aten.clip.default": [Sample(X, -0.5, 0.5)],
    "aten.clip.Tensor": [Sample(X, Y, Y + 1)],
    "aten.hardtanh.default": [Sample(X), Sample(X, 0.0, 6.0), Sample(X, max_val=0.25)],
    "aten.clamp_min.default": [Sample(X, 0.25), Sample(INTEGERS, 2)],
    "aten.clamp_min.Tensor": [Sample(X, Y)],
    "aten.clamp_max.default": [Sample(X, 0.25), Sample(INTEGERS, 2)],
    "aten.clamp_max.Tensor": [Sample(X, Y)],
    **{
        f"aten.{name}.default": [*_UNARY, *_ON_INTEGERS, Sample(specials())]
        for name in (
            "cos",
            "erf",
            "exp",
            "sigmoid",
            "sin",
            "tan",
            "tanh",
            "sinh",
            "cosh",
            "asinh",
            "atan",
            "expm1",
            "exp2",
        )
    },
    **{
        f"aten.{name}.default": [
            Sample(POSITIVE),
            Sample(POSITIVE.half()),
            Sample(integers(3, low=1)),
            Sample(specials()),
        ]
        for name in ("log", "sqrt", "rsqrt", "log2", "log10", "log1p", "reciprocal")
    },
    **{
        f"aten.{name}.default": [Sample(UNIT), Sample(specials())]
        for name in ("acos", "asin", "atanh", "erfinv", "erfc")
    },
    "aten.acosh.default": [Sample(POSITIVE + 1)],
    "aten.neg.default": [Sample(X), Sample(INTEGERS)],
    "aten.square.default": [Sample(X), Sample(INTEGERS)],
    **{
        f"aten.{name}.default": [Sample(X * 5), Sample(specials(1.5, 2.5, -1.5)), Sample(INTEGERS)]
        for name in ("ceil", "floor", "round", "trunc")
    },
    "aten.frac.default": [Sample(X * 5)],
    "aten.abs.default": [Sample(X), Sample(INTEGERS), Sample(INTEGERS.abs().to(torch.uint8)), Sample(specials())],
    "aten.absolute.default": [Sample(X)],
    "aten.sign.default": [Sample(X), Sample(INTEGERS), Sample(integers(4, low=0).to(torch.uint8)), Sample(bools(3))],
    "aten.sgn.default": [Sample(X), Sample(INTEGERS)],
    "aten.atan2.default": [
        Sample(X, Y),
        Sample(torch.tensor([0.0, 1.0, -1.0, 0.0, 0.0, 2.0]), torch.tensor([0.0, 0.0, 0.0, 1.0, -1.0, -3.0])),
    ],
    "aten.relu.default": [Sample(X), Sample(HALF), Sample(INTEGERS.int()), Sample(specials())],
    "aten.relu6.default": [Sample(X * 5)],
    "aten.hardswish.default": [Sample(X * 3), Sample(HALF)],
    "aten.gelu.default": [Sample(X), Sample(X, approximate="tanh"), Sample(HALF)],
    "aten.silu.default": [Sample(X), Sample(HALF)],
    "aten.mish.default": [Sample(X), Sample(X * 20)],
    "aten.leaky_relu.default": [Sample(X), Sample(X, 0.2)],
    "aten.elu.default": [Sample(X), Sample(X, 0.5), Sample(X, -0.5), Sample(X, 1.5, 2.0)],
    "aten.celu.default": [Sample(X), Sample(X, 0.5)],
    "aten.selu.default": [Sample(X)],
    "aten.prelu.default": [
        Sample(X, torch.tensor([0.25])),
        Sample(X, floats(3)),
        Sample(floats(2, 5, 3, 3), floats(5)),
    ],
    "aten._prelu_kernel.default": [Sample(X, floats(3, 1))],
    "aten.hardsigmoid.default": [Sample(X * 4)],
    "aten.softplus.default": [Sample(X), Sample(X * 30), Sample(X, 2.0, 0.5), Sample(X, -1.0)],
    "aten.log_sigmoid.default": [Sample(X), Sample(X * 60)],
    "aten.log_sigmoid_forward.default": [Sample(X)],
    "aten.threshold.default": [Sample(X, 0.1, 20.0)],
    "aten.glu.default": [Sample(floats(2, 6)), Sample(floats(4, 3, 2), 0)],
    "aten.dropout.default": [Sample(X, 0.5, False)],
    "aten.feature_dropout.default": [Sample(X, 0.5, False)],
    "aten.alpha_dropout.default": [Sample(X, 0.5, False)],
    "aten.to.dtype": [
        *[Sample(X * 5, kind) for kind in (torch.float16, torch.int64, torch.int32, torch.bool, torch.float64)],
        *[Sample(INTEGERS, kind) for kind in (torch.float32, torch.int8, torch.bool, torch.uint8)],
        Sample(bools(3), torch.float32),
        Sample(bools(3), torch.int64),
        Sample(X, torch.bfloat16),
    ],
    "aten.to.dtype_layout": [Sample(X, dtype=torch.float16)],
    "aten.to.device": [Sample(X, torch.device("cpu"), torch.float16)],
    "aten.to.other": [Sample(X, HALF)],
    "aten._to_copy.default": [Sample(X, dtype=torch.int32), Sample(X)],
    "aten.type_as.default": [Sample(X, INTEGERS)],
    "prims.convert_element_type.default": [Sample(X, torch.float16)],
    **{
        f"aten.{name}.default": [Sample(X), Sample(bools(2))]
        for name in (
            "alias",
            "clone",
            "contiguous",
            "detach",
            "lift_fresh",
            "lift_fresh_copy",
            "detach_copy",
            "alias_copy",
        )
    },
    **{f"aten.{name}.default": [Sample(X)] for name in ("positive", "resolve_conj", "resolve_neg")},
    "aten.copy.default": [Sample(X, Y), Sample(X, INTEGERS), Sample(INTEGERS, X[0] * 5), Sample(bools(3, 4), X[0])],
    "aten.nan_to_num.default": [Sample(specials()), Sample(specials(), 1.0, 2.0, -3.0), Sample(INTEGERS)],
    "aten.addcmul.default": [Sample(X, Y, floats(4)), Sample(X, Y, Y, value=0.5)],
    "aten.addcdiv.default": [Sample(X, Y, floats(4)), Sample(X, Y, Y, value=0.5)],
    "aten.lerp.Scalar": [Sample(X, Y.expand(2, 3, 4).contiguous(), 0.25)],
    "aten.lerp.Tensor": [Sample(X, X + 1, UNIT[:1, :1])],
}
