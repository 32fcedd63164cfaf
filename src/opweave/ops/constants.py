"""Constants in decompositions and passes, and constants whose numbers are sizes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..core.casts import cast_array
from ..core.conversion import Integer
from ..core.dtypes import ANY, INFO, DataType, cast_number, numpy_type
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N, op
from ..core.sizes import Size
from ..support.errors import require


def constant(builder: Builder, value: Any, data_type: Any) -> Operand:
    """Make a constant operand of a number, an array, or nested sequences of sizes, outside of a user's builder."""
    if has_sizes(value):
        values = array_of_sizes(value)
        result: Operand = sizes(builder, tuple(values.flat), data_type, values.shape)
        return result
    array = np.asarray(value, order="C")
    array = cast_array(array, data_type) if array.dtype.kind == "V" else array.astype(numpy_type(data_type), copy=False)
    return Operand(builder, Desc(data_type, array.shape), value=array)


def has_sizes(value: Any) -> bool:
    """Whether a value is a size, or nested sequences with sizes, whose numbers are known only when a graph runs."""
    return isinstance(value, Size) or (isinstance(value, (list, tuple)) and any(map(has_sizes, value)))


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
    for value in values:
        if INFO[data_type].kind != "f" and not isinstance(value, Size):
            require(cast_number(value, data_type) == value, f"{value} is not a value of {data_type}")
    return Desc(data_type, tuple(shape))


@sizes.decompose
def _(b: Builder, values: Sequence[int], data_type: DataType, shape: Sequence[int]) -> Operand:
    numbers = [cast_number(value, data_type) for value in values]
    return constant(b, np.array(numbers, numpy_type(data_type)).reshape(shape), data_type)
