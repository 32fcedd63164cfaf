"""OpenVINO rules: comparisons and logic.

The emitter records the bool that each uint8 of WebNN was cast from, for chains of logic and conditions of `where`. Integers of
more than 8 bits have rules for equality only: the engine compares them as float32. Its `greater` and `greater_equal` are true
for NaN, unlike `less` and `less_equal`.
"""

from __future__ import annotations

from collections.abc import Callable

from ....core.dtypes import FLOATS
from ....core.graph import Operand
from ....ops import logical as ops
from ..backend import openvino
from ..emit import WIDE, Emitter, Value


def _is_exact(a: Operand) -> bool:
    return a.data_type in (*FLOATS, "int8", "uint8")


def _is_float(a: Operand) -> bool:
    return a.data_type in FLOATS


def _comparison(name: str, swapped: bool = False) -> Callable[[Emitter, Value, Value], Value]:
    def rule(ctx: Emitter, a: Value, b: Value) -> Value:
        return ctx.cast(ctx.emit(name, *((b, a) if swapped else (a, b)), data_type="bool"), "uint8")

    return rule


openvino.lower(ops.lesser, when=_is_exact)(_comparison("less"))
openvino.lower(ops.lesser_or_equal, when=_is_exact)(_comparison("less_equal"))
openvino.lower(ops.greater, when=_is_exact)(_comparison("less", swapped=True))
openvino.lower(ops.greater_or_equal, when=_is_exact)(_comparison("less_equal", swapped=True))


@openvino.lower(ops.equal, ops.not_equal)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    name = "equal" if ctx.node.op is ops.equal else "not_equal"
    if a.data_type in (*FLOATS, "int8", "uint8"):
        return ctx.cast(ctx.emit(name, a, b, data_type="bool"), "uint8")
    difference = ctx.emit("bitwise_xor", a, b, data_type="int32")  # 0 only where the bits are equal
    if a.data_type in WIDE:
        low, high = (
            ctx.emit("gather", difference, ctx.constant(half), ctx.constant(-1), data_type="int32") for half in (0, 1)
        )
        difference = ctx.emit("bitwise_or", low, high)
    return ctx.cast(ctx.emit(name, difference, ctx.constant(0), data_type="bool"), "uint8")


def _logical(name: str) -> Callable[[Emitter, Value, Value], Value]:
    return lambda ctx, a, b: ctx.cast(ctx.emit(name, ctx.cast(a, "bool"), ctx.cast(b, "bool")), "uint8")


openvino.lower(ops.logical_and)(_logical("logical_and"))
openvino.lower(ops.logical_or)(_logical("logical_or"))
openvino.lower(ops.logical_xor)(_logical("logical_xor"))


@openvino.lower(ops.logical_not)
def _(ctx: Emitter, a: Value) -> Value:
    return ctx.cast(ctx.emit("logical_not", ctx.cast(a, "bool")), "uint8")


def _predicate(name: str) -> Callable[[Emitter, Value], Value]:
    return lambda ctx, a: ctx.cast(ctx.emit(name, a, data_type="bool"), "uint8")


openvino.lower(ops.is_nan, when=_is_float)(_predicate("is_nan"))
openvino.lower(ops.is_infinite, when=_is_float)(_predicate("is_inf"))
