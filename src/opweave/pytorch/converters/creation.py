"""New tensors: numbers, ranges, and tensors like others. Constants of static shapes are folded before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...context.builder import MLGraphBuilder
from ...core.dtypes import is_float
from ...core.graph import MLOperand
from ...core.sizes import Size
from ...ops.constants import line
from ..registry import AtenCall, as_type, converts
from ..sizes import divide_up


def full(b: MLGraphBuilder, shape: Sequence[Any], value: Any, call: AtenCall) -> MLOperand:
    """A tensor of one value."""
    if call.is_bool:
        value = bool(value)
    number = as_type(b, value, call.data_type)
    return b.expand(number, list(shape)) if len(shape) else b.identity(number)


@converts("aten.full.default")
def _(b: MLGraphBuilder, size: Sequence[Any], fill_value: Any, *, call: AtenCall, **options: Any) -> MLOperand:
    return full(b, size, fill_value, call)


@converts("aten.full_like.default", "aten.new_full.default", "aten.fill.Scalar")
def _(b: MLGraphBuilder, self: MLOperand, *args: Any, call: AtenCall, **options: Any) -> MLOperand:
    shape = args[0] if call.name.startswith("aten.new_full") else self.shape
    return full(b, shape, args[-1] if args else options["fill_value"], call)


@converts(
    "aten.zeros.default",
    "aten.ones.default",
    "aten.empty.memory_format",
    "aten.empty_strided.default",
    "aten.empty_permuted.default",
)
def _(b: MLGraphBuilder, size: Sequence[Any], *layout: Any, call: AtenCall, **options: Any) -> MLOperand:
    return full(b, size, int("ones" in call.name), call)


@converts("aten.new_zeros.default", "aten.new_ones.default", "aten.new_empty.default", "aten.new_empty_strided.default")
def _(
    b: MLGraphBuilder, self: MLOperand, size: Sequence[Any], *layout: Any, call: AtenCall, **options: Any
) -> MLOperand:
    return full(b, size, int("ones" in call.name), call)


@converts("aten.zeros_like.default", "aten.ones_like.default", "aten.empty_like.default", "aten.zero.default")
def _(b: MLGraphBuilder, self: MLOperand, *, call: AtenCall, **options: Any) -> MLOperand:
    return full(b, self.shape, int("ones" in call.name), call)


@converts("aten.scalar_tensor.default")
def _(b: MLGraphBuilder, s: Any, *, call: AtenCall, **options: Any) -> MLOperand:
    return b.identity(as_type(b, s, call.data_type))


@converts("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def _(b: MLGraphBuilder, *args: Any, call: AtenCall, **options: Any) -> MLOperand:
    start, end = (0, args[0]) if call.name == "aten.arange.default" else args[:2]
    step = args[2] if len(args) > 2 else 1
    count = divide_up(end - start, step)
    kind = call.data_type
    numbers = line(b, 0, count, "int64" if not is_float(kind) else "int32", [count])
    numbers = numbers if numbers.data_type == kind else b.cast(numbers, kind)
    if not _is(step, 1):
        numbers = b.mul(numbers, as_type(b, step, kind))
    return numbers if _is(start, 0) else b.add(numbers, as_type(b, start, kind))


def _is(value: Any, number: int) -> bool:
    return not isinstance(value, Size) and value == number
