"""Operations that move elements of quantised tensors, and give them the scale and the zero point of the result."""

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


def _requantize(
    b: Operations, input: Operand, input_scale: Operand, input_zero_point: Operand, scale: Operand, zero_point: Operand
) -> Operand:
    """Convert a tensor to another scale and zero point."""
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
    """Join quantised tensors along an axis, and give all of them the same scale and zero point.

    An input is dequantised to `real = (input - input_zero_point) * input_scale`. The result has the elements
    `round(real / scale) + zero_point`, saturated; ties are rounded to even.

    Args:
        inputs: int8 or uint8, operands whose shapes differ along `axis` only.
        input_scales: float32, for each of `inputs` an operand with one element.
        input_zero_points: the data type of `inputs`, for each of them an operand with one element.
        scale: float32, the scale of the result, one element.
        zero_point: the data type of `inputs`, the zero point of the result, one element.

    Returns: An operand of the data type of `inputs`, as long along `axis` as all of them together. An input whose scale and
        zero point are constants equal to `scale` and `zero_point` is copied.
    Raises: no inputs, an axis out of range, shapes that differ along other axes, or not one scale and one zero point for each
        input.

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
    return b.concat([_requantize(b, *triple, scale, zero_point) for triple in triples], axis)
