"""A builder without a context."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.dtypes import cast_number, check
from ..core.graph import Operand
from ..memory.arrays import describe
from ..support.errors import ValidationError
from ..support.hints import of_operand
from .constants import constant
from .operations import Operations


class Recorder(Operations):
    """A builder without a context. Numbers and arrays become constants."""

    def _as_operand(self, value: Any, data_type: Any) -> Operand:
        return constant(self, value, data_type)

    def constant(self, *args: Any) -> Operand:
        """Declare a constant: `constant(array)`, or `constant(data_type, number)`, as `MLGraphBuilder` does."""
        match args:
            case (str() as data_type, (int() | float() | np.number()) as number):
                plain = number.item() if isinstance(number, np.number) else number
                return self._as_operand(cast_number(plain, check(data_type, takes_all=True)), data_type)
            case (array,) if hasattr(array, "__array__"):
                values = np.asarray(array)
                return self._as_operand(values, describe(values, "constant: array", takes_all=True).data_type)
        types = ", ".join(type(value).__name__ for value in args)
        hint = of_operand(args[0]) if len(args) == 1 else ""
        raise ValidationError(f"constant: takes (array) or (data_type, number) in a decomposition, got ({types}){hint}")
