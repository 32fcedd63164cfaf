"""Converters: one function for each operator of PyTorch (ATen), with the operator's arguments.

    @converts("aten.softmax.int", "aten._softmax.default")
    def _(b: MLGraphBuilder, self: MLOperand, dim: int, half_to_float: bool = False) -> MLOperand: ...

A converter gets the builder and the arguments of the call: tensors are operands (constants, too: `operand.value` is their
array), lists of tensors are lists of operands, and other arguments are as in PyTorch. Integers may be sizes (`opweave.Size`):
converters compute with `+ - * //`, and never call `int`. Tensors of bool are uint8 operands that hold 0 and 1.

A keyword-only parameter `call` gets the `AtenCall`: data types of arguments and results, and the shapes that PyTorch inferred.
PyTorch converts the operands of arithmetic to a common data type without a node, so converters cast by `call.promote`.

A converter returns the operand, or a tuple of operands. In the tuple, None stands for a result that graphs do not compute,
such as the saved mean of a normalisation: if a program reads that result, the call is decomposed, or run by PyTorch. A
converter raises `NotConvertible` if graphs cannot express the call; an error of the builder means the same. The operator is
then decomposed by PyTorch's own table, or run by PyTorch.

Operators that write to an argument (`add_`, `relu_`) have no converters: they run as those without the underscore, and the
results replace the argument, and what it is a view of.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import _prims_common

from ..context.builder import MLGraphBuilder
from ..core.dtypes import DataType, is_float
from ..core.graph import MLOperand
from ..core.sizes import Size
from ..ops.constants import constant, has_sizes
from .tensors import data_type_of

AtenConverter = Callable[..., Any]

BFLOAT16 = cast(DataType, "bfloat16")
"""A data type that WebNN does not have, and which graphs of modules have."""

CONVERTERS: dict[str, tuple[AtenConverter, bool]] = {}
"""Name of an operator with its overload, such as "aten.add.Tensor" -> its converter, and whether it takes `call`."""

COMPLEX_CONVERTERS: dict[str, tuple[AtenConverter, bool]] = {}
"""The same for calls with complex tensors among arguments and results: operands have their parts in a last axis of 2."""


class NotConvertible(Exception):  # noqa: N818  (a property of a call, which becomes an error only with fallback="error")
    """A call that graphs cannot express; the message is the reason that `explain()` shows."""


def refuse_if(condition: Any, reason: str) -> None:
    """Raise `NotConvertible` with `reason` if `condition` holds."""
    if condition:
        raise NotConvertible(reason)


def converts(*names: str) -> Callable[[AtenConverter], AtenConverter]:
    """Register the decorated function as the converter of operators: `"aten.add.Tensor"`."""
    return _register(CONVERTERS, names)


def converts_complex(*names: str) -> Callable[[AtenConverter], AtenConverter]:
    """Register the decorated function as the converter of calls with complex tensors."""
    return _register(COMPLEX_CONVERTERS, names)


def _register(
    table: dict[str, tuple[AtenConverter, bool]], names: Sequence[str]
) -> Callable[[AtenConverter], AtenConverter]:
    def register(function: AtenConverter) -> AtenConverter:
        takes_call = "call" in inspect.signature(function).parameters
        for name in names:
            assert name not in table, name
            table[name] = function, takes_call
        return function

    return register


class AtenCall:
    """A call of an operator, as PyTorch recorded it.

    Attributes:
        name: the operator with its overload, "aten.add.Tensor".
        arguments: the arguments by position as PyTorch sees them: tensors without memory (`FakeTensor`) in place of operands.
        value: the result as PyTorch sees it, a tensor without memory, or a tuple of them.
        keeps_narrow: whether the call widens a constant of few bits for a product, which reads the constant as it is.
    """

    def __init__(self, name: str, arguments: Sequence[Any], value: Any, keeps_narrow: bool = False) -> None:
        self.name, self.arguments, self.value, self.keeps_narrow = name, arguments, value, keeps_narrow

    @property
    def dtype(self) -> Any:
        """PyTorch's data type of the result, or of the first one."""
        value = self.value[0] if isinstance(self.value, (tuple, list)) else self.value
        return value.dtype

    @property
    def data_type(self) -> DataType:
        """The data type of the result, or of the first one."""
        return data_type_of(self.dtype, f"the result of {self.name}")

    @property
    def is_bool(self) -> bool:
        """Whether the result is bool, which operands hold as uint8."""
        return self.dtype is torch.bool

    def dtype_of(self, position: int) -> Any:
        """PyTorch's data type of an argument that is a tensor; None for others."""
        return getattr(self.arguments[position], "dtype", None) if position < len(self.arguments) else None

    def common_type(self, *positions: int) -> DataType:
        """The data type to which PyTorch converts arguments before it computes; default: the first two."""
        chosen = [self.arguments[position] for position in positions or (0, 1) if position < len(self.arguments)]
        kind = _prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        computing, _ = _prims_common.elementwise_dtypes(*chosen, type_promotion_kind=kind)
        return data_type_of(_common(chosen) or computing, f"an operand of {self.name}")

    def promote(self, b: MLGraphBuilder, *values: Any, data_type: DataType | None = None) -> list[MLOperand]:
        """Operands and numbers as operands of one data type; default: that of the result."""
        return [as_type(b, value, data_type or self.data_type) for value in values]


def _common(values: Sequence[Any]) -> Any:
    """The type of the result of arithmetic on two values, which for half precision is not the type that computes; or None."""
    if len(values) == 2 and any(isinstance(value, torch.Tensor) for value in values):
        numbers = [value for value in values if isinstance(value, (torch.SymInt, torch.SymFloat))]
        return None if numbers else torch.result_type(*values)
    return None


def as_type(b: MLGraphBuilder, value: Any, data_type: DataType) -> MLOperand:
    """An operand in another data type, or a number or size as a constant of the data type."""
    if isinstance(value, MLOperand):
        return value if value.data_type == data_type else b.cast(value, data_type)
    if has_sizes(value):
        return constant(b, value, data_type)
    if not is_float(data_type) and isinstance(value, float):
        refuse_if(value != int(value) if np.isfinite(value) else True, f"{value} is not a value of {data_type}")
        value = int(value)
    return constant(b, int(value) if isinstance(value, bool) else value, data_type)


def axis_of(axis: int, rank: int) -> int:
    """An axis in [0, rank); PyTorch counts negative ones from the end."""
    refuse_if(not -max(rank, 1) <= axis < max(rank, 1), f"axis {axis} is out of range for rank {rank}")
    return axis % rank if rank else 0


def axes_of(axes: int | Sequence[int] | None, rank: int) -> list[int]:
    """Axes in [0, rank); all of them for None and for an empty list, as in PyTorch's reductions."""
    chosen = [axes] if isinstance(axes, int) else list(axes or range(rank))
    return [axis_of(axis, rank) for axis in chosen] if rank else []


def is_number(value: Any) -> bool:
    """Whether an argument is a number or a size, and not an operand."""
    return isinstance(value, (bool, int, float, Size))
