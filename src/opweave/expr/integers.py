"""Functions of integers that WebNN lacks, as its arithmetic on arrays: rounded division, bits and shifts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..core.dtypes import INFO, DataType
from ..core.graph import MAX_RANK, Desc, Operand
from ..core.shapes import broadcast

if TYPE_CHECKING:
    from ..ops import Operations

DIGIT_BITS = 4
"""Number of bits that one look-up combines: a table of two digits has 256 elements."""


def constant(b: Operations, value: object, data_type: DataType) -> Operand:
    array: np.ndarray = np.asarray(value, data_type)
    return Operand(b, Desc(data_type, array.shape), value=array)


def floor_div(b: Operations, x: Operand, y: Operand) -> Operand:
    """Divide, and round down; x // 0 is 0."""
    quotient = b.div(x, y)  # truncated toward zero; x / 0 is 0
    if INFO[x.data_type].kind == "u":
        return quotient
    zero = constant(b, 0, x.data_type)
    remainder = b.sub(x, b.mul(quotient, y))
    opposite = b.not_equal(b.lesser(remainder, zero), b.lesser(y, zero))
    inexact = b.logical_and(b.not_equal(remainder, zero), b.not_equal(y, zero))
    return b.sub(quotient, b.cast(b.logical_and(inexact, opposite), x.data_type))


def mod(b: Operations, x: Operand, y: Operand) -> Operand:
    """The remainder of `floor_div`; x % 0 is 0."""
    zero = constant(b, 0, x.data_type)
    return b.where(b.equal(y, zero), zero, b.sub(x, b.mul(floor_div(b, x, y), y)))


def bit_and(b: Operations, x: Operand, y: Operand) -> Operand:
    """Combine the bits of two numbers, by a table of all pairs of digits."""
    for number, mask in ((x, y), (y, x)):
        power = _end_of_mask(mask)
        if power is not None:
            return mod(b, number, constant(b, power, number.data_type))
    data_type, shape = x.data_type, broadcast(x.shape, y.shape)
    if len(shape) == MAX_RANK:  # the digits need another axis
        x, y = (b.reshape(b.expand(operand, shape), [*shape[:-2], shape[-2] * shape[-1]]) for operand in (x, y))
    wide: DataType = "uint64" if INFO[data_type].bits == 64 else "uint32"
    base, count = 1 << DIGIT_BITS, INFO[data_type].bits // DIGIT_BITS
    powers = constant(b, [base**digit for digit in range(count)], wide)

    def digits(number: Operand) -> Operand:
        """The digits along a new last axis; a cast to an unsigned type keeps the bits of negative numbers."""
        column = b.reshape(b.cast(number, wide), [*number.shape, 1])
        return mod(b, b.div(column, powers), constant(b, base, wide))

    pairs = b.cast(b.add(b.mul(digits(x), constant(b, base, wide)), digits(y)), "int32")
    table = constant(b, [left & right for left in range(base) for right in range(base)], wide)
    both = b.mul(b.gather(table, pairs), powers)
    total = b.cast(b.reduce_sum(both, axes=[both.rank - 1]), data_type)
    return total if total.shape == shape else b.reshape(total, shape)


def _end_of_mask(mask: Operand) -> int | None:
    """Return 2**n for a constant of which exactly the lowest n bits are 1; None for others, and if 2**n does not fit."""
    if not mask.is_constant or mask.value.size != 1:
        return None
    end = int(mask.value.item()) + 1
    return end if 0 < end <= INFO[mask.data_type].highest and end & (end - 1) == 0 else None


def bit_or(b: Operations, x: Operand, y: Operand) -> Operand:
    return b.add(x, b.sub(y, bit_and(b, x, y)))


def bit_xor(b: Operations, x: Operand, y: Operand) -> Operand:
    both = bit_and(b, x, y)
    return b.add(b.sub(x, both), b.sub(y, both))


def multiply_by_power(b: Operations, x: Operand, distance: Operand) -> Operand:
    """Shift to the left: `x * 2**distance`."""
    return b.mul(x, _power(b, distance))


def divide_by_power(b: Operations, x: Operand, distance: Operand) -> Operand:
    """Shift to the right: `x / 2**distance`, rounded down."""
    power = _power(b, distance)
    if INFO[x.data_type].kind == "u":
        return b.div(x, power)
    # For negative x, x >> n = ~(~x >> n); an integer divided by 0, or by the lowest one, is 0.
    is_negative, all_ones = b.lesser(x, constant(b, 0, x.data_type)), constant(b, -1, x.data_type)
    quotient = b.div(b.where(is_negative, b.sub(all_ones, x), x), power)
    return b.where(is_negative, b.sub(all_ones, quotient), quotient)


def _power(b: Operations, distance: Operand) -> Operand:
    """Compute 2 to the power of `distance`; 0 where the integer has no such bit, as for negative numbers."""
    data_type, bits = distance.data_type, INFO[distance.data_type].bits
    powers = np.array([*(1 << bit for bit in range(bits)), 0], f"uint{bits}").astype(data_type)
    lowest = 0 if INFO[data_type].kind == "u" else -1  # the index of the last power, which is 0
    if distance.is_constant:
        return constant(b, powers[np.clip(distance.value, lowest, bits).astype(np.int64)], data_type)
    positions = b.cast(b.clamp(distance, min_value=lowest, max_value=bits), "int32")
    return b.gather(constant(b, powers, data_type), positions)


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "floor_div": floor_div,
    "mod": mod,
    "bit_and": bit_and,
    "bit_or": bit_or,
    "bit_xor": bit_xor,
    "shift_left": multiply_by_power,
    "shift_right": divide_by_power,
}
"""Functions of expressions by name."""
