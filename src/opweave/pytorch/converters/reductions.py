"""Reductions: sums, means, extremes, norms, variances, softmax, positions of extremes."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan, prod
from typing import Any

import numpy as np

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.dtypes import is_float
from ...core.graph import MLOperand
from ...core.sizes import Size
from ..registry import AtenCall, as_type, axes_of, axis_of, converts, refuse_if
from .elementwise import cast
from .logic import truth

Axes = int | Sequence[int] | None


def _reduce(b: MLGraphBuilder, name: str, x: MLOperand, dim: Axes, keepdim: bool) -> MLOperand:
    """A reduction by its name in Opweave; of a scalar, over its only element."""
    if not x.rank:
        x = b.reshape(x, [1])
        y: MLOperand = getattr(b, name)(x, axes=[0], keep_dimensions=False)
        return y
    result: MLOperand = getattr(b, name)(x, axes=axes_of(dim, x.rank), keep_dimensions=keepdim)
    return result


@converts("aten.sum.default", "aten.sum.dim_IntList")
def _(
    b: MLGraphBuilder, self: MLOperand, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None, call: AtenCall
) -> MLOperand:
    return _reduce(b, "reduce_sum", cast(b, self, call.dtype_of(0), call.dtype), dim, keepdim)


@converts("aten.mean.default", "aten.mean.dim")
def _(
    b: MLGraphBuilder, self: MLOperand, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None, call: AtenCall
) -> MLOperand:
    return _reduce(b, "reduce_mean", cast(b, self, call.dtype_of(0), call.dtype), dim, keepdim)


@converts("aten.prod.default", "aten.prod.dim_int")
def _(
    b: MLGraphBuilder, self: MLOperand, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None, call: AtenCall
) -> MLOperand:
    return _reduce(b, "reduce_product", cast(b, self, call.dtype_of(0), call.dtype), dim, keepdim)


@converts("aten.amax.default", "aten.max.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: Axes = None, keepdim: bool = False) -> MLOperand:
    return extreme(b, "max", self, dim, keepdim)


@converts("aten.amin.default", "aten.min.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: Axes = None, keepdim: bool = False) -> MLOperand:
    return extreme(b, "min", self, dim, keepdim)


@converts("aten.aminmax.default")
def _(
    b: MLGraphBuilder, self: MLOperand, *, dim: int | None = None, keepdim: bool = False
) -> tuple[MLOperand, MLOperand]:
    return extreme(b, "min", self, dim, keepdim), extreme(b, "max", self, dim, keepdim)


def extreme(b: MLGraphBuilder, kind: str, x: MLOperand, dim: Axes, keepdim: bool) -> MLOperand:
    """The maximum or minimum, which is NaN if an element is; kernels of engines compare, and miss NaN."""
    result = _reduce(b, f"reduce_{kind}", x, dim, keepdim)
    if not is_float(x.data_type):
        return result
    has_nan = _reduce(b, "reduce_max", b.is_nan(x), dim, keepdim)
    return b.where(has_nan, as_type(b, nan, x.data_type), result)


@converts("aten.logsumexp.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: Axes, keepdim: bool = False, *, call: AtenCall) -> MLOperand:
    (x,) = call.promote(b, self)
    return _reduce(b, "reduce_log_sum_exp", x, dim, keepdim)


def _extreme(kind: str) -> Any:
    def convert(b: MLGraphBuilder, self: MLOperand, dim: int, keepdim: bool = False) -> tuple[MLOperand, MLOperand]:
        values = extreme(b, kind, self, dim, keepdim)
        return values, _position(b, kind, self, dim, keepdim)

    return convert


for _kind in ("max", "min"):
    converts(f"aten.{_kind}.dim")(_extreme(_kind))


def _position(b: MLGraphBuilder, kind: str, x: MLOperand, dim: int | None, keepdim: bool) -> MLOperand:
    """The position of an extreme, or of the first NaN; in the flattened tensor if there is no `dim`."""
    if dim is None:
        result = _position(b, kind, b.reshape(x, [prod(x.shape)]), 0, False)
        return b.reshape(result, [1] * x.rank) if keepdim else result
    y = x if x.rank else b.reshape(x, [1])
    axis, keeps = axis_of(dim, y.rank), keepdim and x.rank > 0

    def position(values: MLOperand, own: str) -> MLOperand:
        compute = b.arg_max if own == "max" else b.arg_min
        return compute(values, axis, keep_dimensions=keeps, output_data_type="int64")

    plain = position(y, kind)
    if not is_float(x.data_type):
        return plain
    is_nan = b.is_nan(y)
    has_nan = b.reduce_max(is_nan, axes=[axis], keep_dimensions=keeps)
    return b.where(has_nan, position(is_nan, "max"), plain)


@converts("aten.argmax.default", "aten.argmin.default")
def _(
    b: MLGraphBuilder, self: MLOperand, dim: int | None = None, keepdim: bool = False, *, call: AtenCall
) -> MLOperand:
    return _position(b, "max" if "argmax" in call.name else "min", self, dim, keepdim)


@converts("aten.any.default", "aten.any.dim", "aten.any.dims")
def _(b: MLGraphBuilder, self: MLOperand, dim: Axes = None, keepdim: bool = False, *, call: AtenCall) -> MLOperand:
    return _of_bools(b, "reduce_max", self, dim, keepdim, call)


@converts("aten.all.default", "aten.all.dim", "aten.all.dims")
def _(b: MLGraphBuilder, self: MLOperand, dim: Axes = None, keepdim: bool = False, *, call: AtenCall) -> MLOperand:
    return _of_bools(b, "reduce_min", self, dim, keepdim, call)


def _of_bools(b: MLGraphBuilder, name: str, x: MLOperand, dim: Axes, keepdim: bool, call: AtenCall) -> MLOperand:
    return _reduce(b, name, truth(b, x, call.dtype_of(0)), dim, keepdim)


# Variances and norms -------------------------------------------------------------------------------------------------


def _variance(
    b: MLGraphBuilder, x: MLOperand, dim: Axes, correction: Any, keepdim: bool
) -> tuple[MLOperand, MLOperand]:
    """The variance with a correction of the number of elements, and the mean."""
    y = x if x.rank else b.reshape(x, [1])
    axes = axes_of(dim, y.rank)
    mean = b.reduce_mean(y, axes=axes, keep_dimensions=True)
    off = b.sub(y, mean)
    count = prod(y.shape[axis] for axis in axes)
    keep = keepdim and x.rank > 0
    total = b.reduce_sum(b.mul(off, off), axes=axes, keep_dimensions=keep)
    divisor = count - correction if correction else count
    if isinstance(divisor, (int, float)):
        divisor = max(divisor, 0)
    variance = b.div(total, as_type(b, divisor, x.data_type))
    return variance, mean if keep else b.reshape(mean, variance.shape)


def _correction(unbiased: bool | None, correction: Any) -> Any:
    return (1 if correction is None else correction) if unbiased is None else int(unbiased)


@converts("aten.var.correction", "aten.std.correction", "aten.var_mean.correction", "aten.std_mean.correction")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    dim: Axes = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
    call: AtenCall,
) -> Any:
    return _spread(b, self, dim, _correction(None, correction), keepdim, call)


@converts("aten.var.dim", "aten.std.dim", "aten.var_mean.dim", "aten.std_mean.dim")
def _(
    b: MLGraphBuilder, self: MLOperand, dim: Axes, unbiased: bool = True, keepdim: bool = False, *, call: AtenCall
) -> Any:
    return _spread(b, self, dim, int(unbiased), keepdim, call)


@converts("aten.var.default", "aten.std.default", "aten.var_mean.default", "aten.std_mean.default")
def _(b: MLGraphBuilder, self: MLOperand, unbiased: bool = True, *, call: AtenCall) -> Any:
    return _spread(b, self, None, int(unbiased), False, call)


def _spread(b: MLGraphBuilder, x: MLOperand, dim: Axes, correction: Any, keepdim: bool, call: AtenCall) -> Any:
    variance, mean = _variance(b, x, dim, correction, keepdim)
    spread = b.sqrt(variance) if call.name.startswith("aten.std") else variance
    return (spread, mean) if "_mean" in call.name else spread


@converts("aten.norm.Scalar", "aten.norm.ScalarOpt_dim", "aten.linalg_vector_norm.default")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    ord: Any = 2,
    dim: Axes = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    call: AtenCall,
) -> MLOperand:
    (x,) = call.promote(b, self)
    order = 2 if ord is None else ord
    if order == 2:
        return _reduce(b, "reduce_l2", x, dim, keepdim)
    if order == 1:
        return _reduce(b, "reduce_l1", x, dim, keepdim)
    size = b.abs(x)
    if order in (float("inf"), float("-inf")):
        return extreme(b, "max" if order > 0 else "min", size, dim, keepdim)
    if order == 0:
        return _reduce(b, "reduce_sum", b.cast(b.not_equal(x, as_type(b, 0, x.data_type)), x.data_type), dim, keepdim)
    total = _reduce(b, "reduce_sum", b.pow(size, as_type(b, order, x.data_type)), dim, keepdim)
    return b.pow(total, as_type(b, 1 / order, x.data_type))


def _norm(b: MLGraphBuilder, x: MLOperand, order: float, axis: int) -> MLOperand:
    """The norm along an axis, which is removed."""
    if order == 2:
        return b.reduce_l2(x, axes=[axis])
    if order == 1:
        return b.reduce_l1(x, axes=[axis])
    if order == inf:
        return extreme(b, "max", b.abs(x), axis, False)
    if order == 0:
        return b.reduce_sum(b.cast(b.not_equal(x, as_type(b, 0, x.data_type)), x.data_type), axes=[axis])
    total = b.reduce_sum(b.pow(b.abs(x), as_type(b, order, x.data_type)), axes=[axis])
    return b.pow(total, as_type(b, 1 / order, x.data_type))


@converts("aten._cdist_forward.default")
def _(b: MLGraphBuilder, x1: MLOperand, x2: MLOperand, p: float, compute_mode: int | None) -> MLOperand:
    rows = b.reshape(x1, [*x1.shape[:-1], 1, x1.shape[-1]])
    columns = b.reshape(x2, [*x2.shape[:-2], 1, *x2.shape[-2:]])
    difference = b.sub(rows, columns)
    return _norm(b, difference, p, difference.rank - 1)


@converts("aten._pdist_forward.default")
def _(b: MLGraphBuilder, self: MLOperand, p: float = 2) -> MLOperand:
    count = self.shape[0]
    refuse_if(isinstance(count, Size), "the number of rows is not known")
    first, second = np.triu_indices(int(count), 1)
    rows = [b.gather(self, b.constant(places.astype(np.int64)), axis=0) for places in (first, second)]
    return _norm(b, b.sub(*rows), p, 1)


@converts("aten.dist.default")
def _(b: MLGraphBuilder, self: MLOperand, other: MLOperand, p: float = 2) -> MLOperand:
    difference = b.sub(self, other)
    return _norm(b, b.reshape(difference, [prod(difference.shape)]), p, 0)


# Softmax -------------------------------------------------------------------------------------------------------------


@converts("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, dtype: Any = None, *, call: AtenCall) -> MLOperand:
    x = cast(b, self, call.dtype_of(0), call.dtype)
    if not x.rank:
        return b.reshape(b.softmax(b.reshape(x, [1]), 0), [])
    axis = axis_of(dim, x.rank)
    y = b.softmax(x, axis)
    if "_safe_softmax" not in call.name:
        return y
    # A row of -inf gives zeros.
    largest = b.reduce_max(x, axes=[axis], keep_dimensions=True)
    return b.where(b.equal(largest, as_type(b, float("-inf"), x.data_type)), as_type(b, 0, x.data_type), y)


@converts("aten.log_softmax.int", "aten._log_softmax.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, dtype: Any = None, *, call: AtenCall) -> MLOperand:
    x = cast(b, self, call.dtype_of(0), call.dtype)
    if not x.rank:
        return b.reshape(composites.log_softmax(b, b.reshape(x, [1]), axis=0), [])
    return composites.log_softmax(b, x, axis=axis_of(dim, x.rank))


@converts("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def _(b: MLGraphBuilder, self: MLOperand, dim: Axes = None, *, call: AtenCall) -> MLOperand:
    return _reduce(b, "reduce_sum", b.cast(truth(b, self, call.dtype_of(0)), "int64"), dim, False)
