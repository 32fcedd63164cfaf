"""Constants in decompositions and passes, and constants that are computed from sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from math import prod
from typing import Any

import numpy as np

from ..core.casts import cast_array
from ..core.conversion import Integer, Unconverted
from ..core.dtypes import ANY, INFO, DataType, cast_number, is_float, numpy_type
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N, op
from ..core.size_possibilities import may_be_within
from ..core.size_values import values_in_scope
from ..core.sizes import Size, Symbol
from ..support.errors import require


def constant(builder: Builder, value: Any, data_type: Any) -> Operand:
    """Make a constant operand of a number, an array, or nested sequences of sizes, outside of a user's builder.

    A real number computed from sizes, in place of an integer, is an error as any fraction is.
    """
    if has_sizes(value):
        return _constant_of_sizes(builder, array_of_sizes(value), data_type)
    array = np.asarray(value, order="C")
    array = cast_array(array, data_type) if array.dtype.kind == "V" else array.astype(numpy_type(data_type), copy=False)
    return Operand(builder, Desc(data_type, array.shape), value=array)


def _constant_of_sizes(builder: Builder, values: np.ndarray, data_type: Any) -> Operand:
    result: Operand
    if not all(isinstance(value, (int, Size)) for value in values.flat):
        if is_float(data_type):
            formulas = tuple(getattr(value, "formula", value) for value in values.flat)
            result = computed(builder, real_numbers, formulas, data_type, values.shape)
            return result
        numbers = [value.number() if isinstance(value, Symbol) else value for value in values.flat]
        for value, number in zip(values.flat, numbers, strict=True):
            require(cast_number(number, data_type) == number, f"{value} = {number} is not a value of {data_type}")
        return constant(builder, np.reshape(numbers, values.shape), data_type)
    result = sizes(builder, tuple(values.flat), data_type, values.shape)
    return result


def line(builder: Builder, first: Any, count: Any, data_type: Any, shape: Sequence[Any]) -> Operand:
    """Make a constant of `count` consecutive integers from `first` on, any of which may be a size, in this shape."""
    if not has_sizes((first, count)):
        return constant(builder, np.arange(first, first + count).reshape(shape), data_type)
    result: Operand = computed(builder, integers_from, (first, count), data_type, shape)
    return result


def has_sizes(value: Any) -> bool:
    """Whether a value is a size, or nested sequences with sizes, whose numbers are known only when a graph runs."""
    return isinstance(value, Symbol) or (isinstance(value, (list, tuple)) and any(map(has_sizes, value)))


def array_of_sizes(value: Any) -> np.ndarray:
    """An array of objects for nested sequences of numbers and sizes. NumPy would ask sizes for their numbers."""
    if isinstance(value, (list, tuple)):
        items = [array_of_sizes(item) for item in value]
        shapes = {item.shape for item in items}
        require(len(shapes) < 2, f"nested sequences must have equal lengths, got {list(value)}")
        return np.stack(items) if items else np.empty(0, object)
    scalar = np.empty((), object)
    scalar[()] = value
    return scalar


INTEGERS = -(2**63), 2**64 - 1
"""The range of integers that engines can take as numbers of sizes."""


@op(output=Limits(ANY, ranks=(0, N)))
def sizes(
    self: Builder, values: Sequence[Integer], data_type: DataType, shape: Sequence[int], *, label: str = ""
) -> Desc:
    """Make a constant of sizes that are known only when the graph runs: sizes that are data.

    An engine that runs all sizes with one program gets the numbers as an input. For others, it is a constant.

    Args:
        values: integers and sizes. In an integer data type, numbers that it cannot hold are an error.
        data_type: any data type.
        shape: as many elements as `values`.
    """
    count = prod(shape)
    require(count == len(values), f"shape must have {len(values)} elements, got {list(shape)}")
    info = INFO[data_type]
    low, high = INTEGERS if info.kind == "f" else (info.lowest, info.highest)
    rule = "an integer of 64 bits, as values of sizes must be" if info.kind == "f" else f"a value of {data_type}"
    for value in values:
        require(may_be_within(value, low, high), f"{value} is not {rule}")
    return Desc(data_type, tuple(shape))


@sizes.decompose
def _(b: Builder, values: Sequence[int], data_type: DataType, shape: Sequence[int]) -> Operand:
    numbers = [cast_number(value, data_type) for value in values_in_scope(tuple(values))]
    return constant(b, np.array(numbers, numpy_type(data_type)).reshape(shape), data_type)


class HostFunction:
    """A function of numbers that depend on sizes, which Python computes once for each combination of sizes.

    Decorate functions of modules: graphs are pickled with the names of the functions.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """The array, or nested sequences of numbers."""
        return self.function(*arguments)

    def __repr__(self) -> str:
        return str(self.function.__name__)

    def __reduce__(self) -> str:
        return str(self.function.__qualname__)


@HostFunction
def real_numbers(*formulas: Any) -> Any:
    """The values of formulas of numbers (`core/reals.py`)."""
    from ..core.reals import evaluate

    return [evaluate(formula) for formula in formulas]


@HostFunction
def integers_from(first: int, count: int) -> Any:
    """Consecutive integers."""
    return np.arange(first, first + count)


@op(output=Limits(ANY, ranks=(0, N)))
def computed(
    self: Builder,
    function: Unconverted,
    arguments: Unconverted,
    data_type: DataType,
    shape: Sequence[int],
    *,
    label: str = "",
) -> Desc:
    """Make a constant that Python computes from sizes when the graph runs: real numbers, tables of positions.

    An engine that runs all sizes with one program gets the array as an input. For others, it is a constant.

    Args:
        function: a `HostFunction`. It takes `arguments`, with numbers in place of sizes.
        arguments: a tuple of numbers, texts, sizes, and tuples of them.
        data_type: any data type.
        shape: the shape of the result, or another one with as many elements.
    """
    if function is real_numbers and not has_sizes(arguments):
        function(*arguments)  # raises the error of a formula without a value, such as 1 / 0
    return Desc(data_type, tuple(shape))


@computed.decompose
def _(b: Builder, function: HostFunction, arguments: Any, data_type: DataType, shape: Sequence[int]) -> Operand:
    return constant(b, np.reshape(function(*arguments), shape), data_type)
