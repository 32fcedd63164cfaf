"""Element-wise operations: binary, comparison, logical, unary, cast, clamp, where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dtypes import ANY, FLOATS, LOGICAL
from ..graph import Builder, Desc, Operand
from ..op import Limits, op
from ..shapes import broadcast

if TYPE_CHECKING:
    from . import Operations


@op(a=Limits(ANY), b=Limits("a"), output=Limits("a"))
def _binary(self: Builder, a: Operand, b: Operand, *, label: str = "") -> Desc:
    """Combine `a` and `b` element by element.

    Args:
        a: any data type, any rank.
        b: the data type of `a`; its shape and that of `a` broadcast to each other.
        label: a name for messages and tables.

    Returns:
        An operand of the data type of `a` and the broadcast shape.

    Raises:
        ValidationError: the data types differ, or the shapes do not broadcast.

    Integers wrap around on overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-binary
    """
    return Desc(a.data_type, broadcast(a.shape, b.shape))


add = _binary.named("add", "Add `a` and `b`, element by element.")


@op(input=Limits(FLOATS))
def _unary(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Map a function over the elements of `input`.

    Args:
        input: any rank.
        label: a name for messages and tables.

    Returns:
        An operand of the data type and shape of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
    """
    return input.desc


exp = _unary.named("exp", "Raise e to the power of each element.")
