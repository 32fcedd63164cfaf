"""The 95 operations of the specification, one file for each family."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..graph import Builder, Operators
from ..hints import meant
from ..links import op_level
from ..operation import Op

if TYPE_CHECKING:
    from ..signatures import *  # noqa: F403  (the same names, with what can be passed to them)
    from ..signatures import BuilderMethods
else:
    BuilderMethods = object
    from .activation import (
        elu as elu,
        gelu as gelu,
        hard_sigmoid as hard_sigmoid,
        hard_swish as hard_swish,
        leaky_relu as leaky_relu,
        linear as linear,
        prelu as prelu,
        relu as relu,
        sigmoid as sigmoid,
        softplus as softplus,
        softsign as softsign,
        tanh as tanh,
    )
    from .convolution import conv2d as conv2d, conv_transpose2d as conv_transpose2d, resample2d as resample2d
    from .elementwise import (
        abs as abs,
        add as add,
        cast as cast,
        ceil as ceil,
        clamp as clamp,
        cos as cos,
        div as div,
        erf as erf,
        exp as exp,
        floor as floor,
        identity as identity,
        log as log,
        max as max,
        min as min,
        mul as mul,
        neg as neg,
        pow as pow,
        reciprocal as reciprocal,
        round_even as round_even,
        sign as sign,
        sin as sin,
        sqrt as sqrt,
        sub as sub,
        tan as tan,
        where as where,
    )
    from .indexing import (
        gather as gather,
        gather_elements as gather_elements,
        gather_nd as gather_nd,
        scatter_elements as scatter_elements,
        scatter_nd as scatter_nd,
    )
    from .logical import (
        equal as equal,
        greater as greater,
        greater_or_equal as greater_or_equal,
        is_infinite as is_infinite,
        is_nan as is_nan,
        lesser as lesser,
        lesser_or_equal as lesser_or_equal,
        logical_and as logical_and,
        logical_not as logical_not,
        logical_or as logical_or,
        logical_xor as logical_xor,
        not_equal as not_equal,
    )
    from .matrix import gemm as gemm, matmul as matmul
    from .movement import (
        concat as concat,
        expand as expand,
        pad as pad,
        reshape as reshape,
        reverse as reverse,
        slice as slice,
        split as split,
        tile as tile,
        transpose as transpose,
        triangular as triangular,
    )
    from .normalization import (
        batch_normalization as batch_normalization,
        instance_normalization as instance_normalization,
        layer_normalization as layer_normalization,
        softmax as softmax,
    )
    from .pooling import average_pool2d as average_pool2d, l2_pool2d as l2_pool2d, max_pool2d as max_pool2d
    from .quantization import dequantize_linear as dequantize_linear, quantize_linear as quantize_linear
    from .recurrent import gru as gru, gru_cell as gru_cell, lstm as lstm, lstm_cell as lstm_cell
    from .reduction import (
        arg_max as arg_max,
        arg_min as arg_min,
        cumulative_sum as cumulative_sum,
        reduce_l1 as reduce_l1,
        reduce_l2 as reduce_l2,
        reduce_log_sum as reduce_log_sum,
        reduce_log_sum_exp as reduce_log_sum_exp,
        reduce_max as reduce_max,
        reduce_mean as reduce_mean,
        reduce_min as reduce_min,
        reduce_product as reduce_product,
        reduce_sum as reduce_sum,
        reduce_sum_square as reduce_sum_square,
    )

if TYPE_CHECKING:  # at run time `__getattr__` below imports them when they are first used
    from ..runtime.deferred import (
        compile_now as compile_now,
        profile as profile,
        statistics as statistics,
        wait as wait,
    )

_CALLED_ON_ARRAYS = ("compile_now", "profile", "statistics", "wait")


def __getattr__(name: str) -> Any:
    """Import the functions for calling operations on arrays on first use; declaring operations does not need them."""
    if name not in _CALLED_ON_ARRAYS:
        hint = "" if name.startswith("_") else meant(name, Operations.listing())
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    return (op_level.function or op_level.load())(name)


class Operations(Builder, BuilderMethods):
    """A builder with every operation as a method, in the specification's order."""

    if not TYPE_CHECKING:  # which see `BuilderMethods`
        arg_min = arg_min
        arg_max = arg_max
        batch_normalization = batch_normalization
        cast = cast
        clamp = clamp
        concat = concat
        conv2d = conv2d
        conv_transpose2d = conv_transpose2d
        cumulative_sum = cumulative_sum
        add = add
        sub = sub
        mul = mul
        div = div
        max = max
        min = min
        pow = pow
        equal = equal
        not_equal = not_equal
        greater = greater
        greater_or_equal = greater_or_equal
        lesser = lesser
        lesser_or_equal = lesser_or_equal
        logical_not = logical_not
        logical_and = logical_and
        logical_or = logical_or
        logical_xor = logical_xor
        is_nan = is_nan
        is_infinite = is_infinite
        abs = abs
        ceil = ceil
        cos = cos
        erf = erf
        exp = exp
        floor = floor
        identity = identity
        log = log
        neg = neg
        reciprocal = reciprocal
        round_even = round_even
        sin = sin
        sign = sign
        sqrt = sqrt
        tan = tan
        dequantize_linear = dequantize_linear
        quantize_linear = quantize_linear
        elu = elu
        expand = expand
        gather = gather
        gather_elements = gather_elements
        gather_nd = gather_nd
        gelu = gelu
        gemm = gemm
        gru = gru
        gru_cell = gru_cell
        hard_sigmoid = hard_sigmoid
        hard_swish = hard_swish
        instance_normalization = instance_normalization
        layer_normalization = layer_normalization
        leaky_relu = leaky_relu
        linear = linear
        lstm = lstm
        lstm_cell = lstm_cell
        matmul = matmul
        pad = pad
        average_pool2d = average_pool2d
        l2_pool2d = l2_pool2d
        max_pool2d = max_pool2d
        prelu = prelu
        reduce_l1 = reduce_l1
        reduce_l2 = reduce_l2
        reduce_log_sum = reduce_log_sum
        reduce_log_sum_exp = reduce_log_sum_exp
        reduce_max = reduce_max
        reduce_mean = reduce_mean
        reduce_min = reduce_min
        reduce_product = reduce_product
        reduce_sum = reduce_sum
        reduce_sum_square = reduce_sum_square
        relu = relu
        resample2d = resample2d
        reshape = reshape
        reverse = reverse
        scatter_elements = scatter_elements
        scatter_nd = scatter_nd
        sigmoid = sigmoid
        slice = slice
        softmax = softmax
        softplus = softplus
        softsign = softsign
        split = split
        tanh = tanh
        tile = tile
        transpose = transpose
        triangular = triangular
        where = where

    @classmethod
    def listing(cls) -> dict[str, Op[..., Any]]:
        """All operations by name, in the specification's order."""
        return {name: value for name, value in vars(Operations).items() if isinstance(value, Op)}


def _method(op: Op[..., Any]) -> Callable[..., Any]:
    """An operation as a method of its first operand."""

    def method(self: Operators, /, *args: Any, **kwargs: Any) -> Any:
        return self._method(op)(*args, **kwargs)

    method.__name__, method.__doc__ = op.name, op.__doc__
    method.__signature__ = op.__signature__.replace(  # type: ignore[attr-defined]
        parameters=list(op.__signature__.parameters.values())[1:]
    )
    return method


for _name, _op in Operations.listing().items():
    if _op.positional[0] not in _op.sequences:
        setattr(Operators, _name, _method(_op))  # faster than `__getattr__`, and visible to editors
