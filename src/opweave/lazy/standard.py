"""Operators of arrays, which call `opweave.array_api`: truth values are of type bool, and data types are promoted.

https://data-apis.org/array-api/
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.dtypes import FLOAT64, FLOATS
from ..core.operators import INFIX, Operators
from ..core.questions import is_value
from ..support.errors import ValidationError
from ..support.lazy_imports import array_namespace

if TYPE_CHECKING:
    from ..context.context import MLContext
    from .array import Array

COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}

_BINARY = {
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "floordiv": "floor_divide",
    "mod": "remainder",
}

_PROMOTED = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "pow": "pow", "matmul": "matmul"}


class StandardArray(Operators):
    """Operators and attributes of the standard that operands of graphs do not have."""

    __slots__ = ()
    # `==` compares elements, but dictionaries compare arrays by identity.
    __hash__ = object.__hash__

    if TYPE_CHECKING:
        context: MLContext

        @property
        def dtype(self) -> np.dtype[Any]: ...  # noqa: D102  (`ArrayLike` has it)
        def __lt__(self, other: Any) -> Array: ...
        def __le__(self, other: Any) -> Array: ...
        def __gt__(self, other: Any) -> Array: ...
        def __ge__(self, other: Any) -> Array: ...
        def __eq__(self, other: object) -> Array: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Array: ...  # type: ignore[override]
        def __and__(self, other: Any) -> Array: ...
        def __rand__(self, other: Any) -> Array: ...
        def __or__(self, other: Any) -> Array: ...
        def __ror__(self, other: Any) -> Array: ...
        def __xor__(self, other: Any) -> Array: ...
        def __rxor__(self, other: Any) -> Array: ...
        def __lshift__(self, other: Any) -> Array: ...
        def __rlshift__(self, other: Any) -> Array: ...
        def __rshift__(self, other: Any) -> Array: ...
        def __rrshift__(self, other: Any) -> Array: ...
        def __floordiv__(self, other: Any) -> Array: ...
        def __rfloordiv__(self, other: Any) -> Array: ...
        def __mod__(self, other: Any) -> Array: ...
        def __rmod__(self, other: Any) -> Array: ...

    def _hint(self, name: str) -> str:
        is_standard = name in array_namespace(None).__all__
        return f"; use opweave.array_api.{name}(x)" if is_standard else super()._hint(name)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Return the module with the functions of the standard, `opweave.array_api`.

        Raises:
            ValueError: the module does not follow that version of the standard.
        """
        module: ModuleType = array_namespace(api_version)
        return module

    @property
    def device(self) -> MLContext:
        """Context of the array."""
        return self.context

    def to_device(self, device: MLContext, /, *, stream: Any = None) -> Array:
        """Copy the array to another context, and count the copy. An array in this context is returned itself.

        Raises:
            ValidationError: `device` is not a context, or `stream` is not None.
        """
        return _function("_to_device")(self, device, stream=stream)

    @property
    def T(self) -> Array:  # noqa: N802  (the standard's name)
        """Transpose of a matrix."""
        if self.rank != 2:
            raise ValidationError(f"T: takes a matrix, got {self._desc}; x.mT and permute_dims take others")
        return self.mT

    @property
    def mT(self) -> Array:  # noqa: N802  (the standard's name)
        """Transpose of each matrix: the last two axes swapped."""
        return _function("matrix_transpose")(self)

    def __pos__(self) -> Any:
        return _function("_copy_of")(self)

    def __abs__(self) -> Any:
        return _function("abs")(self) if self.data_type.startswith("u") else self.abs()

    def __neg__(self) -> Any:
        return _function("negative")(self) if self.data_type.startswith("u") else self.neg()

    def __invert__(self) -> Array:
        return _function("bitwise_invert")(self)

    def __copy__(self) -> Array:
        return _function("_copy_of")(self)

    def __deepcopy__(self, memo: Any) -> Array:
        return _function("_copy_of")(self)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Replace the elements that `key` selects, as in NumPy; `value` broadcasts, and is converted to the array's data type.

        Other arrays do not change: calls that have read the array keep what they have read, and its parts are no views.

        Raises:
            ValidationError: the key, or the shape of the value, does not fit the array.
            TypeError: the array shares the memory of a NumPy array or a tensor.
        """
        _function("_set_item")(self, key if isinstance(key, tuple) else (key,), value)

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        if any(isinstance(item, (Operators, np.ndarray, list)) for item in items):
            return _function("_index")(self, items)
        return super().__getitem__(key)


def _function(name: str) -> Callable[..., Array]:
    function: Callable[..., Array] = getattr(array_namespace(None), name)
    return function


def _is_mask(array: StandardArray) -> bool:
    """Whether an array has truth values. Only few arrays are uint8, so the data type of NumPy is rarely made."""
    return array.data_type == "uint8" and array.dtype.kind == "b"


def _is_promoted(array: StandardArray, value: Any) -> bool:
    """Whether an operand that is no array of Opweave is promoted with an array, or refused by the rules of promotion.

    Floats of 64 bits are refused by the operation, because NumPy makes them of numbers by default.
    """
    if type(value) is float or type(value) is int:
        return False
    if isinstance(value, (bool, complex)):
        return True
    dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.kind in "bc" or (dtype != array.dtype and dtype != FLOAT64)


def number_of(value: Any) -> Any:
    """A scalar array of float64 as a number; other values as they are.

    NumPy passes its float64, which is a kind of Python's float, as such an array where it stands on the left.
    """
    is_number = type(value) is np.ndarray and value.ndim == 0 and value.dtype == FLOAT64
    return value.item() if is_number else value


def _operator(function: str, swap: bool = False) -> Callable[[Any, Any], Any]:
    is_comparison = function in COMPARISONS.values()

    def method(self: StandardArray, other: Any) -> Any:
        if not is_value(other) and not isinstance(other, complex):
            return NotImplemented
        if is_comparison:
            other = number_of(other)
        return _function(function)(other, self) if swap else _function(function)(self, other)

    return method


def _promoting(operation: str, swap: bool) -> Callable[[Any, Any], Any]:
    """Return the method of an operator that is an operation of WebNN; the standard's function promotes other operands."""
    name = f"__{'r' if swap else ''}{next(key for key, value in INFIX.items() if value == operation)}__"
    plain: Callable[[Any, Any], Any] = getattr(Operators, name)
    function = _PROMOTED[operation]

    def method(self: StandardArray, other: Any) -> Any:
        if isinstance(other, np.float64):
            other = float(other)
        if isinstance(other, StandardArray):
            # The function refuses truth values, which operations take for uint8.
            is_promoted = other.data_type != self.data_type or _is_mask(self) or _is_mask(other)
        else:
            is_promoted = _is_mask(self) or _is_promoted(self, other)
        if isinstance(other, np.ndarray) and self.data_type == FLOAT64:
            other = _function("asarray")(other, device=self.context)
        if operation == "div" and self.data_type not in (*FLOATS, FLOAT64) and is_value(other):
            kind = "bool" if _is_mask(self) else self.data_type
            raise ValidationError(
                f"/: takes arrays of floats, got {kind}{list(self.shape)}; // rounds down, opweave.ops.div rounds "
                "towards zero, and opweave.array_api.astype converts"
            )
        # WebNN's matmul takes only matrices of floats.
        if operation == "matmul":
            is_promoted |= self.data_type not in (*FLOATS, FLOAT64) or 1 in (self.rank, getattr(other, "ndim", 2))
        if is_promoted:
            return _function(function)(other, self) if swap else _function(function)(self, other)
        return plain(self, other)

    return method


# Type checkers see the declarations above.
for _name, _called in {**COMPARISONS, **_BINARY}.items():
    setattr(StandardArray, f"__{_name}__", _operator(_called))
    if _name in _BINARY:
        setattr(StandardArray, f"__r{_name}__", _operator(_called, swap=True))
for _name, _called in INFIX.items():
    for _swap in (False, True):
        setattr(StandardArray, f"__{'r' if _swap else ''}{_name}__", _promoting(_called, _swap))
