"""Call custom operations on arrays and tensors; the decorators that declare such operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.graph import Operand, title
from ..custom import CustomOp, composite, expression, op, recurrence
from ..expr.array import Traced as Traced
from ..support.errors import require
from ..support.lazy_imports import call_custom
from .array import Array
from .call import call, compute_now


@call_custom.provide
def _call(op: CustomOp[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    has_arrays = False
    for value in (*args, *kwargs.values()) if kwargs else args:
        if type(value) is np.ndarray:
            has_arrays = True
            continue
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, Operand):
                return op.add(item.builder, args, kwargs)
            if isinstance(item, Array):
                return call(op, args, kwargs)
            if isinstance(item, Traced):
                return op.inline(args, kwargs)
    if not has_arrays:
        arguments = {**dict(zip(op.positional, args, strict=False)), **kwargs}
        numbers = [
            value is None or isinstance(value, (int, float)) for name, value in arguments.items() if name in op.operands
        ]
        rule = "at least one operand must be an array, a tensor, or an operand of a graph"
        require(not all(numbers), f"{title(op.name, str(kwargs.get('label', '')))}: {rule}")
    return compute_now(op, args, kwargs)


__all__ = ["CustomOp", "composite", "expression", "op", "recurrence"]
