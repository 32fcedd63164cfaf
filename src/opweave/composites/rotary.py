"""Rotary embeddings of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits
from ..core.value_ranges import ValueRange
from ..support.errors import require
from .declare import check_divides, declare

if TYPE_CHECKING:
    from ..ops import Operations


@declare(
    input=Limits(FLOATS, ranks=(3, 4)),
    cosines=Limits("input", ranks=(2, 2)),
    sines=Limits("input", ranks=(2, 2)),
    positions=Limits(("int64",), ranks=(2, 2)),
)
def rotary_embedding(
    self: Builder,
    input: Operand,
    cosines: Operand,
    sines: Operand,
    positions: Operand | None = None,
    *,
    heads: int = 0,
    interleaved: bool = False,
    label: str = "",
) -> Desc:
    """Rotate pairs of elements by angles that depend on their position.

    Args:
        input: float32 or float16 [batches, heads, length, size], or [batches, length, heads * size].
        cosines: the cosines of the angles [positions, pairs]. With fewer pairs than size / 2, others are unchanged.
        sines: the sines of the angles [positions, pairs].
        positions: int64 [batches, length], rows of these tables, which must exist. Default: 0, 1, 2, ...
        heads: the number of heads of an input of rank 3, 0 for rank 4.
        interleaved: whether elements 2 * i and 2 * i + 1 are a pair; otherwise elements i and i + pairs are.

    Returns: `(x1 * cos - x2 * sin, x2 * cos + x1 * sin)` for each pair, in the data type and shape of `input`.

    ONNX's and ONNX Runtime's RotaryEmbedding; Su et al., RoFormer (2021), arXiv:2104.09864.

    >>> x, table = np.float32([1, 2, 3, 4]).reshape(1, 1, 1, 4), np.float32([[0, 1]])
    >>> rotary_embedding(x, table, 1 - table).ravel().tolist()
    [-3.0, 2.0, 1.0, 4.0]
    """
    if input.rank == 4:
        require(heads == 0, f"heads must be left out for an input of rank 4, got {heads}")
        batches, _, length, size = input.shape
    else:
        batches, length, size = *input.shape[:2], check_divides("input", input, heads)
    check_shape(cosines.shape, "that of cosines", sines=sines)
    pairs = cosines.shape[1]
    require(2 * pairs <= size, f"cosines must be of at most {size // 2} pairs, half of the size, got {cosines.desc}")
    check_shape([batches, length], "batches and length of input", positions=positions)
    has_rows = positions is None or cosines.shape[0] != 0 or 0 in positions.shape
    require(has_rows, f"cosines must have rows for the positions, got {cosines.desc}")
    fits = positions is not None or length <= cosines.shape[0]
    require(fits, f"cosines must have a row for each of {length} positions, got {cosines.desc}")
    return input.desc


@rotary_embedding.value_range("positions")
def _(cosines: Operand) -> ValueRange:
    return ValueRange(0, cosines.shape[0] - 1, "the rows of cosines")


@rotary_embedding.decompose
def _(
    b: Operations,
    input: Operand,
    cosines: Operand,
    sines: Operand,
    positions: Operand | None,
    heads: int,
    interleaved: bool,
) -> Operand:
    shape, pairs = input.shape, cosines.shape[1]
    length_axis = 2 if input.rank == 4 else 1
    length = shape[length_axis]
    x = input if input.rank == 4 else b.reshape(input, [*shape[:2], heads, shape[2] // heads])

    def table(values: Operand) -> Operand:
        """Return the values of each position, in a shape that broadcasts to the pairs of `x`."""
        if positions is None:
            rows = b.reshape(b.slice(values, [0, 0], [length, pairs]), [1, length, pairs])
        else:
            rows = b.gather(values, positions)
        sizes = [rows.shape[0], 1, 1, pairs]
        sizes[length_axis] = length
        return b.reshape(rows, [*sizes, 1] if interleaved else [*sizes[:3], 1, pairs])

    cos, sin = table(cosines), table(sines)
    turned, rest = b.slice(x, [0] * 4, [*x.shape[:3], 2 * pairs]), x.shape[3] - 2 * pairs
    pair_axis = 4 if interleaved else 3
    halves = b.reshape(turned, [*x.shape[:3], pairs, 2] if interleaved else [*x.shape[:3], 2, pairs])
    first, second = b.split(halves, 2, axis=pair_axis)
    y = b.concat([first * cos - second * sin, second * cos + first * sin], pair_axis)
    y = b.reshape(y, turned.shape)
    if rest:
        y = b.concat([y, b.slice(x, [0, 0, 0, 2 * pairs], [*x.shape[:3], rest])], 3)
    return y if input.rank == 4 else b.reshape(y, shape)
