"""The 95 operations of the specification, one file for each family."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..graph import Builder
from ..hints import meant
from ..links import op_level
from ..operation import Op
from ..operators import Operators

if TYPE_CHECKING:
    from ..signatures import *  # noqa: F403  (the same names, with exact signatures)
    from ..signatures import BuilderMethods
else:
    BuilderMethods = object
    from . import (
        activation,
        convolution,
        elementwise,
        indexing,
        logical,
        matrix,
        movement,
        normalization,
        pooling,
        quantization,
        recurrent,
        reduction,
    )

if TYPE_CHECKING:  # at run time `__getattr__` below imports them when they are first used
    from ..lazy.force import (
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
        arg_min = reduction.arg_min
        arg_max = reduction.arg_max
        batch_normalization = normalization.batch_normalization
        cast = elementwise.cast
        clamp = elementwise.clamp
        concat = movement.concat
        conv2d = convolution.conv2d
        conv_transpose2d = convolution.conv_transpose2d
        cumulative_sum = reduction.cumulative_sum
        add = elementwise.add
        sub = elementwise.sub
        mul = elementwise.mul
        div = elementwise.div
        max = elementwise.max
        min = elementwise.min
        pow = elementwise.pow
        equal = logical.equal
        not_equal = logical.not_equal
        greater = logical.greater
        greater_or_equal = logical.greater_or_equal
        lesser = logical.lesser
        lesser_or_equal = logical.lesser_or_equal
        logical_not = logical.logical_not
        logical_and = logical.logical_and
        logical_or = logical.logical_or
        logical_xor = logical.logical_xor
        is_nan = logical.is_nan
        is_infinite = logical.is_infinite
        abs = elementwise.abs
        ceil = elementwise.ceil
        cos = elementwise.cos
        erf = elementwise.erf
        exp = elementwise.exp
        floor = elementwise.floor
        identity = elementwise.identity
        log = elementwise.log
        neg = elementwise.neg
        reciprocal = elementwise.reciprocal
        round_even = elementwise.round_even
        sin = elementwise.sin
        sign = elementwise.sign
        sqrt = elementwise.sqrt
        tan = elementwise.tan
        dequantize_linear = quantization.dequantize_linear
        quantize_linear = quantization.quantize_linear
        elu = activation.elu
        expand = movement.expand
        gather = indexing.gather
        gather_elements = indexing.gather_elements
        gather_nd = indexing.gather_nd
        gelu = activation.gelu
        gemm = matrix.gemm
        gru = recurrent.gru
        gru_cell = recurrent.gru_cell
        hard_sigmoid = activation.hard_sigmoid
        hard_swish = activation.hard_swish
        instance_normalization = normalization.instance_normalization
        layer_normalization = normalization.layer_normalization
        leaky_relu = activation.leaky_relu
        linear = activation.linear
        lstm = recurrent.lstm
        lstm_cell = recurrent.lstm_cell
        matmul = matrix.matmul
        pad = movement.pad
        average_pool2d = pooling.average_pool2d
        l2_pool2d = pooling.l2_pool2d
        max_pool2d = pooling.max_pool2d
        prelu = activation.prelu
        reduce_l1 = reduction.reduce_l1
        reduce_l2 = reduction.reduce_l2
        reduce_log_sum = reduction.reduce_log_sum
        reduce_log_sum_exp = reduction.reduce_log_sum_exp
        reduce_max = reduction.reduce_max
        reduce_mean = reduction.reduce_mean
        reduce_min = reduction.reduce_min
        reduce_product = reduction.reduce_product
        reduce_sum = reduction.reduce_sum
        reduce_sum_square = reduction.reduce_sum_square
        relu = activation.relu
        resample2d = convolution.resample2d
        reshape = movement.reshape
        reverse = movement.reverse
        scatter_elements = indexing.scatter_elements
        scatter_nd = indexing.scatter_nd
        sigmoid = activation.sigmoid
        slice = movement.slice
        softmax = normalization.softmax
        softplus = activation.softplus
        softsign = activation.softsign
        split = movement.split
        tanh = activation.tanh
        tile = movement.tile
        transpose = movement.transpose
        triangular = movement.triangular
        where = elementwise.where

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


globals().update(Operations.listing())  # type checkers read the names in `signatures`
for _name, _op in Operations.listing().items():
    if _op.positional[0] not in _op.sequences:
        setattr(Operators, _name, _method(_op))  # faster than `__getattr__`, and visible to editors
