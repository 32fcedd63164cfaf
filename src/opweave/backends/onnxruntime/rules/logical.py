"""ONNX Runtime rules: comparisons and logic.

The engine's truth values are bool, WebNN's are uint8. The emitter records the bool that each uint8 was cast from, so that
chains of logic and conditions of `where` read the bool.
"""

from __future__ import annotations

from collections.abc import Callable

from ....ops import logical as ops
from ..backend import ort
from ..emit import Emitter, Value


def _comparison(op_type: str) -> Callable[[Emitter, Value, Value], Value]:
    return lambda ctx, a, b: ctx.cast(ctx.emit(op_type, a, b, data_type="bool"), "uint8")


def _logical(op_type: str) -> Callable[[Emitter, Value, Value], Value]:
    return lambda ctx, a, b: ctx.cast(ctx.emit(op_type, ctx.cast(a, "bool"), ctx.cast(b, "bool")), "uint8")


def _predicate(op_type: str) -> Callable[[Emitter, Value], Value]:
    return lambda ctx, a: ctx.cast(ctx.emit(op_type, a, data_type="bool"), "uint8")


ort.lower(ops.equal)(_comparison("Equal"))
ort.lower(ops.greater)(_comparison("Greater"))
ort.lower(ops.greater_or_equal)(_comparison("GreaterOrEqual"))
ort.lower(ops.lesser)(_comparison("Less"))
ort.lower(ops.lesser_or_equal)(_comparison("LessOrEqual"))
ort.lower(ops.logical_and)(_logical("And"))
ort.lower(ops.logical_or)(_logical("Or"))
ort.lower(ops.logical_xor)(_logical("Xor"))
ort.lower(ops.is_nan)(_predicate("IsNaN"))
ort.lower(ops.is_infinite)(_predicate("IsInf"))


@ort.lower(ops.not_equal)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    return ctx.cast(ctx.emit("Not", ctx.emit("Equal", a, b, data_type="bool")), "uint8")


@ort.lower(ops.logical_not)
def _(ctx: Emitter, a: Value) -> Value:
    return ctx.cast(ctx.emit("Not", ctx.cast(a, "bool")), "uint8")
