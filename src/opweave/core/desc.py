"""Descriptors: the data type and the shape of an operand, a tensor or an array, without the graphs that operands are in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

from ..support.records import record
from . import dtypes
from .dtypes import DataType, completable

MAX_RANK = 8
"""The largest rank of a tensor (the specification leaves it to the implementation)."""

MAX_DIMENSION = 2**31 - 1
"""The largest dimension and element count, https://www.w3.org/TR/webnn/#valid-dimension."""


MAX_COUNTS = 1024
"""Number of shapes whose products are kept. An estimate: networks have some dozens."""


@lru_cache(MAX_COUNTS)
def _count_of(shape: tuple[int, ...]) -> int:
    """The product of dimensions. Cached: with names it is a formula, and graphs need it for the same shapes many times."""
    # Integers of NumPy would overflow, and they are equal to those that the cache has.
    return prod(size.item() if hasattr(size, "item") else size for size in shape)


@lru_cache(MAX_COUNTS)
def _times(count: int, width: int) -> int:
    return count * width


@record(eq=True)
class Desc:
    """Data type and shape of an operand or a tensor (`MLOperandDescriptor`).

    Attributes:
        data_type: one of the eight data types of WebNN.
        shape: the dimensions; `()` for a scalar.

    >>> import opweave as ow
    >>> desc = ow.Desc("float32", (2, 3))
    >>> print(desc, desc.rank, desc.element_count, desc.byte_length)
    float32[2, 3] 2 6 24
    """

    data_type: DataType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def element_count(self) -> int:
        """Number of elements; 1 for a scalar."""
        return _count_of(self.shape) if type(self.shape) is tuple else prod(self.shape)

    @property
    def byte_length(self) -> int:
        """Bytes that the elements take."""
        return _times(self.element_count, dtypes.INFO[self.data_type].byte_length)

    def __str__(self) -> str:
        return f"{self.data_type}{list(self.shape)}"


@completable
class Described:
    """Base of classes whose objects have a data type and a shape."""

    __slots__ = ()
    _desc: Desc

    @property
    def data_type(self) -> DataType:
        """Type of the elements, one of `opweave.core.dtypes.ANY`."""
        return self._desc.data_type

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions; `()` for a scalar."""
        return self._desc.shape

    @property
    def desc(self) -> Desc:
        """Data type and shape."""
        return self._desc


class OtherShapes(Exception):  # noqa: N818  (not an error: the caller compiles anew)
    """Results have other shapes than expected: `shapes`, by name."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(", ".join(shapes))
        self.shapes = shapes
