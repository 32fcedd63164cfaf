"""Comparisons and logic. Results are uint8, 1 for true and 0 for false; as operands, all values but 0 are true."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import expr
from ..core.dtypes import ANY, FLOATS, LOGICAL
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, Op, op
from ..core.shapes import broadcast
from .constants import constant
from .elementwise import on_arguments

if TYPE_CHECKING:
    from .operations import Operations


@op(a=Limits(ANY), b=Limits("a"), output=Limits(LOGICAL))
def _comparison(self: Builder, a: Operand, b: Operand, *, label: str = "") -> Desc:
    """Compare `a` and `b` element by element.

    Args:
        b: the data type of `a`; `a` and `b` broadcast to each other.

    Returns: An operand of uint8, 1 where it is true and 0 elsewhere, of the broadcast shape.
    Raises: the data types differ, or the shapes do not broadcast.

    NaN is unequal to everything, itself included, and neither greater nor lesser than anything.
    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
    """
    return Desc("uint8", broadcast(a.shape, b.shape))


equal = _comparison.named(
    "equal",
    "Whether `a` is equal to `b`, element by element.",
    ">>> ow.ops.equal(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()\n[0, 1, 0]",
)
not_equal = _comparison.named(
    "not_equal",
    "Whether `a` differs from `b`, element by element.",
    ">>> ow.ops.not_equal(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()\n[1, 0, 1]",
)
greater = _comparison.named(
    "greater",
    "Whether `a` is greater than `b`, element by element.",
    ">>> ow.ops.greater(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()\n[0, 0, 1]",
)
greater_or_equal = _comparison.named(
    "greater_or_equal",
    "Whether `a` is greater than `b` or equal to it, by element.",
    ">>> ow.ops.greater_or_equal(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()\n[0, 1, 1]",
)
lesser = _comparison.named(
    "lesser",
    "Whether `a` is less than `b`, element by element.",
    ">>> ow.ops.lesser(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()\n[1, 0, 0]",
)
lesser_or_equal = _comparison.named(
    "lesser_or_equal",
    "Whether `a` is less than `b` or equal to it, element by element.",
    ">>> ow.ops.lesser_or_equal(np.float32([1, 2, 3]), np.float32([2, 2, 2])).tolist()\n[1, 1, 0]",
)


# The builder is not called b here, because the operands are a and b. The core operations are equal, greater and logical_and.
# `greater_or_equal` is not `not lesser`, which is true for NaN.


@not_equal.decompose
def _(builder: Operations, a: Operand, b: Operand) -> Operand:
    return builder.logical_not(builder.equal(a, b))


@greater_or_equal.decompose
def _(builder: Operations, a: Operand, b: Operand) -> Operand:
    return builder.logical_or(builder.greater(a, b), builder.equal(a, b))


@lesser.decompose
def _(builder: Operations, a: Operand, b: Operand) -> Operand:
    return builder.greater(b, a)


@lesser_or_equal.decompose
def _(builder: Operations, a: Operand, b: Operand) -> Operand:
    return builder.greater_or_equal(b, a)


@op(a=Limits(LOGICAL), b=Limits("a"), output=Limits(LOGICAL))
def _logical(self: Builder, a: Operand, b: Operand, *, label: str = "") -> Desc:
    """Combine the truth of `a` and `b` element by element.

    Args:
        a: uint8, any rank; any value but 0 is true.
        b: uint8; `a` and `b` broadcast to each other.

    Returns: An operand of uint8, 1 for true and 0 for false, of the broadcast shape.
    Raises: an operand is not uint8, or the shapes do not broadcast.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
    """
    return Desc("uint8", broadcast(a.shape, b.shape))


logical_and = _logical.named(
    "logical_and",
    "Whether both `a` and `b` are true, element by element.",
    ">>> ow.ops.logical_and(np.uint8([0, 0, 1, 2]), np.uint8([0, 1, 0, 1])).tolist()\n[0, 0, 0, 1]",
)
logical_or = _logical.named(
    "logical_or",
    "Whether `a` or `b` or both are true, element by element.",
    ">>> ow.ops.logical_or(np.uint8([0, 0, 1, 2]), np.uint8([0, 1, 0, 1])).tolist()\n[0, 1, 1, 1]",
)
logical_xor = _logical.named(
    "logical_xor",
    "Whether exactly one of `a` and `b` is true, element by element.",
    ">>> ow.ops.logical_xor(np.uint8([0, 0, 1, 2]), np.uint8([0, 1, 0, 1])).tolist()\n[0, 1, 1, 0]",
)


@logical_or.decompose
def _(builder: Operations, a: Operand, b: Operand) -> Operand:
    return builder.logical_not(builder.logical_and(builder.logical_not(a), builder.logical_not(b)))


@logical_xor.decompose
def _(builder: Operations, a: Operand, b: Operand) -> Operand:
    return builder.not_equal(builder.logical_not(a), builder.logical_not(b))


@op(a=Limits(LOGICAL), output=Limits(LOGICAL))
def logical_not(self: Builder, a: Operand, *, label: str = "") -> Desc:
    """Whether each element of `a` is false.

    Args:
        a: uint8, any rank; any value but 0 is true.

    Returns: An operand of uint8, 1 where `a` is 0 and 0 elsewhere, of the shape of `a`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical

    >>> ow.ops.logical_not(np.uint8([0, 1, 2])).tolist()
    [1, 0, 0]
    """
    return Desc("uint8", a.shape)


@logical_not.decompose
def _(builder: Operations, a: Operand) -> Operand:
    return builder.equal(a, constant(builder, 0, "uint8"))


@logical_not.expression
def _(a: expr.Traced) -> expr.Traced:
    return a == 0


@op(a=Limits(FLOATS), output=Limits(LOGICAL))
def _kind(self: Builder, a: Operand, *, label: str = "") -> Desc:
    """Test each element.

    Returns: An operand of uint8, 1 where it is true and 0 elsewhere, of the shape of `a`.

    The specification's table allows any data type, but its steps allow floats only.
    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-logical
    """
    return Desc("uint8", a.shape)


is_nan = _kind.named(
    "is_nan",
    "Whether each element of `a` is NaN.",
    ">>> ow.ops.is_nan(np.float32([1, np.nan, np.inf])).tolist()\n[0, 1, 0]",
)
is_infinite = _kind.named(
    "is_infinite",
    "Whether each element of `a` is infinite, positive or negative.",
    ">>> ow.ops.is_infinite(np.float32([1, np.nan, -np.inf])).tolist()\n[0, 0, 1]",
)


@is_nan.decompose
def _(builder: Operations, a: Operand) -> Operand:
    return builder.not_equal(a, a)


@is_infinite.decompose
def _(builder: Operations, a: Operand) -> Operand:
    return builder.equal(builder.abs(a), constant(builder, math.inf, a.data_type))


def _combine(name: str, a: expr.Traced, b: expr.Traced) -> expr.Traced:
    return expr.apply(name, a != 0, b != 0)


_op: Op[..., Any]
for _op in (equal, not_equal, greater, greater_or_equal, lesser, lesser_or_equal, is_nan, is_infinite):
    _op.expression(on_arguments(partial(expr.apply, _op.name)))
for _op in (logical_and, logical_or, logical_xor):
    _op.expression(partial(_combine, _op.name))
