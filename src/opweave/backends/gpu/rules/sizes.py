"""Sizes that are data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....core.dtypes import FLOATS, INFO, DataType, cast_number
from ....core.sizes import Size, is_symbolic
from ....expr import Traced, compute, ir, where
from ....ops import constants
from ...size_input import SizeInput
from ..table import gpu


@gpu.lower(constants.sizes)
def _(values: Sequence[int], data_type: DataType, shape: Sequence[int]) -> Traced:
    numbers = [_number(value, data_type) for value in values]

    def element(*p: Traced) -> Traced:
        flat: Any = 0
        for position, size in zip(p, shape, strict=True):
            flat = flat * size + position
        result = numbers[-1]
        for k in reversed(range(len(numbers) - 1)):
            result = where(flat == k, numbers[k], result)
        return result

    return compute(shape, element)


@gpu.lower(constants.computed, when=lambda arguments: is_symbolic(arguments))
def _(function: constants.HostFunction, arguments: Any, data_type: DataType, shape: Sequence[int]) -> SizeInput:
    return SizeInput(data_type, tuple(shape), function, arguments)


def _number(value: int, data_type: DataType) -> Traced:
    """A number as a constant: a parameter of kernels, where it fits into int32 and the data type."""
    if isinstance(value, Size):
        info = INFO["int32" if data_type in FLOATS else data_type]
        low, high = max(info.lowest, INFO["int32"].lowest + 1), min(info.highest, INFO["int32"].highest)
        if low <= value <= high:
            if data_type == "float16":
                return Traced((), ir.Cast(ir.Const(value, "float32"), data_type))
            return Traced((), ir.Const(value, data_type))
    return Traced((), ir.number(cast_number(int(value), data_type), data_type))
