"""Quantised tensors that are moved: their elements get the scale and the zero point of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..ops.movement import concat
from ..support.errors import require
from .declare import declare
from .integers import BYTES, check_single
from .quantized import through_floats

if TYPE_CHECKING:
    from ..ops import Operations

_SCALE = Limits(("float32",))


def _requantized(
    b: Operations, input: Operand, input_scale: Operand, input_zero_point: Operand, scale: Operand, zero_point: Operand
) -> Operand:
    """Change the scale and the zero point of a tensor."""
    if _is_same(input_scale, scale) and _is_same(input_zero_point, zero_point):
        return input
    return through_floats(b, input, input_scale, input_zero_point, scale, zero_point, lambda real: real)


def _is_same(one: Operand, other: Operand) -> bool:
    """Whether two single elements are equal constants."""
    return one.is_constant and other.is_constant and np.array_equal(one.value.reshape(-1), other.value.reshape(-1))


@declare(
    inputs=Limits(BYTES, ranks=(1, N)),
    input_scales=_SCALE,
    input_zero_points=Limits("inputs"),
    scale=_SCALE,
    zero_point=Limits("inputs"),
    output=Limits("inputs", ranks="inputs"),
)
def quantized_concat(
    self: Builder,
    inputs: Sequence[Operand],
    input_scales: Sequence[Operand],
    input_zero_points: Sequence[Operand],
    scale: Operand,
    zero_point: Operand,
    axis: int,
    *,
    label: str = "",
) -> Desc:
    """Join quantised tensors along an axis, with one scale and zero point for all.

    Args:
        inputs: int8 or uint8, operands that differ in their size along `axis` only.
        input_scales: float32, one element for each of `inputs`, multiplied with `input - input_zero_point`.
        input_zero_points: the data type of `inputs`, one element for each of them.
        scale: float32, one element, of the result.
        zero_point: the data type of `inputs`, one element, added to the result.

    Returns: The joined elements `round(real / scale) + zero_point` of the dequantised `inputs`, saturated, of their data type.
        Ties are rounded to even. An input with the constants `scale` and `zero_point` is copied.
    Raises: no inputs, an axis out of range, shapes that differ, or other numbers of scales or zero points than of inputs.

    ONNX Runtime's QLinearConcat.

    >>> one, two, zero = np.float32(1), np.float32(2), np.uint8(0)
    >>> quantized_concat([np.uint8([1, 200]), np.uint8([3])], [one, two], [zero, zero], one, zero, 0).tolist()
    [1, 200, 6]
    """
    for name, parts in (("scales", input_scales), ("zero points", input_zero_points)):
        require(len(parts) == len(inputs), f"takes {len(inputs)} {name}, one for each input, got {len(parts)}")
    joined: Desc = concat.function(self, inputs, axis)
    singles: dict[str, Any] = {f"input_scales[{k}]": part for k, part in enumerate(input_scales)}
    singles |= {f"input_zero_points[{k}]": part for k, part in enumerate(input_zero_points)}
    check_single(**singles, scale=scale, zero_point=zero_point)
    return joined


@quantized_concat.decompose
def _(
    b: Operations,
    inputs: Sequence[Operand],
    input_scales: Sequence[Operand],
    input_zero_points: Sequence[Operand],
    scale: Operand,
    zero_point: Operand,
    axis: int,
) -> Operand:
    triples = zip(inputs, input_scales, input_zero_points, strict=True)
    return b.concat([_requantized(b, *triple, scale, zero_point) for triple in triples], axis)
