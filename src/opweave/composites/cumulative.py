"""Cumulative products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.dtypes import WIDE
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..ops.constants import constant
from ..ops.reduction import narrow, widen
from ..support.errors import require
from .declare import declare

if TYPE_CHECKING:
    from ..ops import Operations


@declare(input=Limits(WIDE, ranks=(1, N)))
def cumulative_product(
    self: Builder, input: Operand, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = ""
) -> Desc:
    """Compute the partial products along `axis`.

    Args:
        exclusive: whether each product excludes its own element: [2, 3, 4] gives [1, 2, 6] instead of [2, 6, 24].
        reversed: whether to start from the end: [2, 3, 4] gives [24, 12, 4].

    Returns: An operand of the data type and shape of `input`. Integers wrap around on overflow. Floats are multiplied in an
        order that depends on the device; float16 in float32.

    ONNX's CumProd.

    >>> cumulative_product(np.float32([2, 3, 4]), 0).tolist()
    [2.0, 6.0, 24.0]
    """
    require(0 <= axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    return input.desc


@cumulative_product.decompose
def _(b: Operations, input: Operand, axis: int, exclusive: bool, reversed: bool) -> Operand:
    x = widen(b, input)
    size = x.shape[axis]

    def shift(value: Operand, distance: int) -> Operand:
        """Shift `value` by `distance` along the axis, filling with ones."""
        sizes, ones = list(value.shape), [0] * value.rank
        sizes[axis], ones[axis] = size - distance, distance
        return b.pad(b.slice(value, [0] * value.rank, sizes), ones, [0] * value.rank, value=1)

    if exclusive and size == 1:
        return b.expand(constant(b, 1, input.data_type), input.shape)
    result = b.reverse(x, axes=[axis]) if reversed else x
    if exclusive:
        result = shift(result, 1)
    # Parallel prefix products: each step doubles the number of factors in a product.
    distance = 1
    while distance < size:
        result = b.mul(result, shift(result, distance))
        distance *= 2
    return narrow(b, b.reverse(result, axes=[axis]) if reversed else result, input)
