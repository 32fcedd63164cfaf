"""What the element-wise operations and activations say about wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest

import opweave as ow

CONTEXT = ow.ml.create_context(device="reference")

# An operand is written as its data type and shape.
F, N, B = ("float32", 2, 3), ("int32", 2, 3), ("uint8", 2, 3)
ARITHMETIC = ("add", "sub", "mul", "div", "max", "min", "pow")
COMPARISONS = ("equal", "not_equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
FLOATS_ONLY = (
    *("ceil", "cos", "erf", "exp", "floor", "log", "reciprocal", "round_even", "sin", "sqrt", "tan"),
    *("elu", "gelu", "hard_sigmoid", "hard_swish", "leaky_relu", "linear", "sigmoid", "softplus", "softsign", "tanh"),
)
SIGNED_ONLY = ("abs", "neg", "sign", "relu")

Row = tuple[str, tuple[Any, ...], dict[str, Any], str]
ROWS: list[Row] = [
    *((n, (F, ("float32", 4)), {}, "the shapes of a and b do not broadcast: [2, 3] and [4]") for n in ARITHMETIC),
    *((n, (F, N), {}, "b must have the data type of a, float32, got int32[2, 3]") for n in ARITHMETIC),
    *((n, (F, ("float32", 4)), {}, "the shapes of a and b do not broadcast: [2, 3] and [4]") for n in COMPARISONS),
    *((n, (N, F), {}, "b must have the data type of a, int32, got float32[2, 3]") for n in COMPARISONS),
    *((n, (B, ("uint8", 2)), {}, "the shapes of a and b do not broadcast: [2, 3] and [2]") for n in LOGICAL),
    *((n, (F, F), {}, "a must be uint8, got float32[2, 3]") for n in LOGICAL),
    *((n, (B, N), {}, "b must have the data type of a, uint8, got int32[2, 3]") for n in LOGICAL),
    *((n, (N,), {}, "input must be float32 or float16, got int32[2, 3]") for n in FLOATS_ONLY),
    *((n, (B,), {}, "input must be float32, float16, int64, int32 or int8, got uint8[2, 3]") for n in SIGNED_ONLY),
    ("logical_not", (N,), {}, "a must be uint8, got int32[2, 3]"),
    ("is_nan", (N,), {}, "a must be float32 or float16, got int32[2, 3]"),
    ("is_infinite", (B,), {}, "a must be float32 or float16, got uint8[2, 3]"),
    ("add", (None, F), {}, "a must be an operand, got None"),
    (
        "cast",
        (F, "float64"),
        {},
        "data_type must be float32, float16, int32, uint32, int64, uint64, int8 or uint8, got 'float64'; "
        "did you mean 'float32'?",
    ),
    ("clamp", (F,), {"min_value": 3, "max_value": 1}, "min_value must not be greater than max_value, got 3.0 and 1.0"),
    (
        "clamp",
        (B,),
        {"min_value": 300, "max_value": 254},
        "min_value must not be greater than max_value, got 255 and 254",
    ),
    ("clamp", (F,), {"min_value": "low"}, "min_value must be a number, got 'low'"),
    ("where", (F, F, F), {}, "condition must be uint8, got float32[2, 3]"),
    ("where", (B, F, N), {}, "false_value must have the data type of true_value, float32, got int32[2, 3]"),
    (
        "where",
        (B, F, ("float32", 4)),
        {},
        "the shapes of true_value and false_value do not broadcast: [2, 3] and [4]",
    ),
    ("where", (("uint8", 2), F, F), {}, "the shapes of condition and the values do not broadcast: [2] and [2, 3]"),
    ("where", (B, 1, 0), {}, "true_value must be an operand, got 1; builder.constant('int32', 1) declares a constant"),
    ("elu", (F,), {"alpha": float("nan")}, "alpha must be a finite number, got nan"),
    ("linear", (F,), {"beta": float("inf")}, "beta must be a finite number, got inf"),
    ("prelu", (F, N), {}, "slope must have the data type of input, float32, got int32[2, 3]"),
    ("prelu", (F, ("float32", 2)), {}, "the shapes of input and slope do not broadcast: [2, 3] and [2]"),
    ("prelu", (B, B), {}, "input must be float32, float16, int64, int32 or int8, got uint8[2, 3]"),
]


@pytest.mark.whole
@pytest.mark.parametrize(("name", "arguments", "options", "message"), ROWS)
def test_message(name: str, arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    operands = [
        builder.input(f"x{i}", value[0], value[1:]) if isinstance(value, tuple) else value
        for i, value in enumerate(arguments)
    ]
    with pytest.raises(ow.ValidationError) as error:
        getattr(builder, name)(*operands, **options, label="stem")
    assert str(error.value) == f"{name} 'stem': {message}"
