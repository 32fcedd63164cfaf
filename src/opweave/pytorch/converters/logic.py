"""Comparisons, logic, bits, tests of elements, and choices between elements."""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from ... import composites, ops
from ...context.builder import MLGraphBuilder
from ...core.dtypes import is_float
from ...core.graph import MLOperand
from ..registry import AtenCall, as_type, converts
from .elementwise import cast

_COMPARISONS = {
    "eq": ops.equal,
    "ne": ops.not_equal,
    "gt": ops.greater,
    "ge": ops.greater_or_equal,
    "lt": ops.lesser,
    "le": ops.lesser_or_equal,
}


def _comparison(op: Any) -> Any:
    def convert(b: MLGraphBuilder, self: MLOperand, other: Any, *, call: AtenCall) -> MLOperand:
        kind = call.common_type()
        result: MLOperand = op(b, as_type(b, self, kind), as_type(b, other, kind))
        return result

    return convert


for _name, _op in _COMPARISONS.items():
    converts(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_comparison(_op))


def truth(b: MLGraphBuilder, x: MLOperand, dtype: Any) -> MLOperand:
    """Whether elements are not 0, as uint8; `dtype` is PyTorch's."""
    return x if dtype is torch.bool else b.not_equal(x, as_type(b, 0, x.data_type))


def _logical(op: Any) -> Any:
    def convert(b: MLGraphBuilder, self: MLOperand, other: MLOperand, *, call: AtenCall) -> MLOperand:
        result: MLOperand = op(b, truth(b, self, call.dtype_of(0)), truth(b, other, call.dtype_of(1)))
        return result

    return convert


_LOGICAL = {"and": ops.logical_and, "or": ops.logical_or, "xor": ops.logical_xor}
for _name, _op in _LOGICAL.items():
    converts(f"aten.logical_{_name}.default")(_logical(_op))


@converts("aten.logical_not.default")
def _(b: MLGraphBuilder, self: MLOperand, *, call: AtenCall) -> MLOperand:
    return b.logical_not(truth(b, self, call.dtype_of(0)))


def _bitwise(on_integers: Any, on_bools: Any) -> Any:
    def convert(b: MLGraphBuilder, self: Any, other: Any, *, call: AtenCall) -> MLOperand:
        op = on_bools if call.is_bool else on_integers
        result: MLOperand = op(b, *call.promote(b, self, other))
        return result

    return convert


for _name, _op in _LOGICAL.items():
    _names = [f"aten.bitwise_{_name}.{form}" for form in ("Tensor", "Scalar", "Scalar_Tensor")]
    _names += [f"aten.__{_name}__.{form}" for form in ("Tensor", "Scalar")]
    converts(*_names)(_bitwise(getattr(composites, f"bitwise_{_name}"), _op))


@converts("aten.bitwise_not.default")
def _(b: MLGraphBuilder, self: MLOperand, *, call: AtenCall) -> MLOperand:
    return b.logical_not(self) if call.is_bool else composites.bitwise_not(b, self)


for _name, _shift in {"left": composites.shift_left, "right": composites.shift_right}.items():
    _names = [f"aten.bitwise_{_name}_shift.{form}" for form in ("Tensor", "Tensor_Scalar")]
    converts(*_names, f"aten.__{_name[0]}shift__.Tensor", f"aten.__{_name[0]}shift__.Scalar")(_bitwise(_shift, _shift))


@converts("aten.isnan.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return b.is_nan(self) if is_float(self.data_type) else b.not_equal(self, self)


@converts("aten.isinf.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return b.is_infinite(self) if is_float(self.data_type) else b.not_equal(self, self)


@converts("aten.isfinite.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    if not is_float(self.data_type):
        return b.equal(self, self)
    return b.logical_not(b.logical_or(b.is_nan(self), b.is_infinite(self)))


@converts("aten.isposinf.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return b.equal(self, as_type(b, inf, self.data_type)) if is_float(self.data_type) else b.not_equal(self, self)


@converts("aten.isneginf.default")
def _(b: MLGraphBuilder, self: MLOperand) -> MLOperand:
    return b.equal(self, as_type(b, -inf, self.data_type)) if is_float(self.data_type) else b.not_equal(self, self)


@converts("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def _(b: MLGraphBuilder, condition: MLOperand, self: Any, other: Any, *, call: AtenCall) -> MLOperand:
    return b.where(truth(b, condition, call.dtype_of(0)), *call.promote(b, self, other))


@converts("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _(b: MLGraphBuilder, self: MLOperand, mask: MLOperand, value: Any, *, call: AtenCall) -> MLOperand:
    if isinstance(value, MLOperand):
        value = cast(b, value, call.dtype_of(2), call.dtype)
    return b.where(mask, as_type(b, value, self.data_type), self)
