"""Expressions: operations defined by one element of their result.

    import opweave as ow

    @ow.expression                                  # point-wise; shapes, types and broadcasting are inferred
    def swiglu(x, gate):
        return x * gate * ow.expr.sigmoid(gate)

    @ow.expression                                  # index form
    def box3(x):
        n, c, h, w = x.shape
        return ow.expr.compute((n, c, h - 2, w - 2), lambda i, j, y, k:
            sum(x[i, j, y + dy, k + dx] for dy in range(3) for dx in range(3)) / 9)

A function is traced once for each combination of shapes, data types and attributes. Halide compiles the result if the
extra `halide` is installed; otherwise NumPy evaluates it.
"""

from __future__ import annotations

from typing import Any

from .array import (
    Traced as Traced,
    apply as apply,
    cast as cast,
    no_such_name as _no_such_name,
)
from .array_reductions import (
    arg_max as arg_max,
    arg_max_over as arg_max_over,
    arg_min as arg_min,
    arg_min_over as arg_min_over,
    max_over as max_over,
    min_over as min_over,
    product_over as product_over,
    reduce_max as reduce_max,
    reduce_mean as reduce_mean,
    reduce_min as reduce_min,
    reduce_product as reduce_product,
    reduce_sum as reduce_sum,
    sum_over as sum_over,
)
from .index_form import compute as compute, store as store
from .pointwise import (
    abs as abs,
    add as add,
    ceil as ceil,
    clamp as clamp,
    cos as cos,
    div as div,
    equal as equal,
    erf as erf,
    exp as exp,
    floor as floor,
    gelu as gelu,
    greater as greater,
    greater_or_equal as greater_or_equal,
    is_infinite as is_infinite,
    is_nan as is_nan,
    lesser as lesser,
    lesser_or_equal as lesser_or_equal,
    log as log,
    logical_and as logical_and,
    logical_not as logical_not,
    logical_or as logical_or,
    logical_xor as logical_xor,
    max as max,
    min as min,
    mul as mul,
    neg as neg,
    not_equal as not_equal,
    pow as pow,
    reciprocal as reciprocal,
    relu as relu,
    round_even as round_even,
    sigmoid as sigmoid,
    sign as sign,
    silu as silu,
    sin as sin,
    softplus as softplus,
    sqrt as sqrt,
    sub as sub,
    tan as tan,
    tanh as tanh,
    where as where,
)
from .tracing import trace as trace

__all__ = [
    "Traced",
    "abs",
    "add",
    "apply",
    "arg_max",
    "arg_max_over",
    "arg_min",
    "arg_min_over",
    "cast",
    "ceil",
    "clamp",
    "compute",
    "cos",
    "div",
    "equal",
    "erf",
    "exp",
    "floor",
    "gelu",
    "greater",
    "greater_or_equal",
    "is_infinite",
    "is_nan",
    "lesser",
    "lesser_or_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "max",
    "max_over",
    "min",
    "min_over",
    "mul",
    "neg",
    "not_equal",
    "pow",
    "product_over",
    "reciprocal",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_product",
    "reduce_sum",
    "relu",
    "round_even",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "store",
    "sub",
    "sum_over",
    "tan",
    "tanh",
    "trace",
    "where",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # protocols that tools ask for
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    raise _no_such_name("opweave.expr has no function", name)
