"""Bitwise functions of the standard: composites for integers, operations for truth values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import composites, ops
from ..lazy.array import Array
from .arguments import as_array, require_kind
from .declare import as_operands, binary
from .elementwise import logical_not


def _bits(of_integers: Any, of_truths: Callable[[Any, Any], Array] | None = None) -> Callable[[Any, Any], Array]:
    def compute(x1: Any, x2: Any) -> Array:
        a, b = as_operands(x1, x2)
        result: Array = of_truths(a, b) if of_truths is not None and a.dtype.kind == "b" else of_integers(a, b)
        return result

    return compute


_EITHER = "integral or bool"
bitwise_and = binary(
    "bitwise_and",
    _EITHER,
    _bits(composites.bitwise_and, ops.logical_and),
    "Bitwise AND of two arrays.",
    ([5, 6], 3),
    "[1, 2]",
)
bitwise_or = binary(
    "bitwise_or",
    _EITHER,
    _bits(composites.bitwise_or, ops.logical_or),
    "Bitwise OR of two arrays.",
    ([5, 6], 3),
    "[7, 7]",
)
bitwise_xor = binary(
    "bitwise_xor",
    _EITHER,
    _bits(composites.bitwise_xor, ops.logical_xor),
    "Bitwise XOR of two arrays.",
    ([5, 6], 3),
    "[6, 5]",
)
bitwise_left_shift = binary(
    "bitwise_left_shift",
    "integral",
    _bits(composites.shift_left),
    "Shift the bits of `x1` to the left by `x2`.",
    ([1, 3], 2),
    "[4, 12]",
)
bitwise_right_shift = binary(
    "bitwise_right_shift",
    "integral",
    _bits(composites.shift_right),
    "Shift the bits of `x1` to the right by `x2`; the sign is kept.",
    ([8, -8], 2),
    "[2, -2]",
)


def bitwise_invert(x: Any, /) -> Array:
    """Invert all bits of each element.

    https://data-apis.org/array-api/latest/API_specification/generated/array_api.bitwise_invert.html

    Args:
        x: integers or bool.

    Raises: `x` is neither integers nor bool.

    >>> xp.bitwise_invert(xp.asarray([0, 5])).tolist()
    [-1, -6]
    """
    bits = as_array(x, "bitwise_invert")
    require_kind(bits, _EITHER, "bitwise_invert")
    if bits.dtype.kind == "b":
        return logical_not(bits)
    return composites.bitwise_not(bits)


__all__ = [
    "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
]  # fmt: skip
