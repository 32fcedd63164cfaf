"""Arrays of complex numbers, as two arrays of floats: WebNN has no complex data types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..context.context import MLContext
from ..lazy.array import Array, force
from ..memory import copies
from ..support.errors import ValidationError, require
from ..support.lazy_imports import array_namespace

COMPLEX_OF: dict[str, np.dtype[Any]] = {
    "float16": np.dtype("complex64"),
    "float32": np.dtype("complex64"),
    "float64": np.dtype("complex128"),
}
"""Data type of the parts -> that of the complex numbers. float16 parts are converted to float32."""

PART_OF: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype("complex64"): np.dtype("float32"),
    np.dtype("complex128"): np.dtype("float64"),
}
"""Complex data type -> that of the parts."""


class ComplexArray:
    """An array of complex64 or complex128, whose values may be pending. Made by functions of `opweave.array_api`.

    It has the operators of the standard, and indices like `Array`. `xp.real(x)` and `xp.imag(x)` copy its parts.

    >>> from opweave import array_api as xp
    >>> x = xp.asarray([[3 + 4j, 1j]])
    >>> x.dtype, x.shape, x.ndim, x.rank, x.size, x.desc, x.pending
    (dtype('complex64'), (1, 2), 2, 2, 2, 'complex64[1, 2]', False)
    >>> (x * 1j).tolist(), abs(x).tolist(), x.real.tolist(), x.imag.tolist()
    ([[(-4+3j), (-1+0j)]], [[5.0, 1.0]], [[3.0, 0.0]], [[4.0, 1.0]])
    >>> x.T.shape, x.mT.shape, x[0, 0].item(), x.numpy().flags.writeable, x.to_device(x.device) is x, x.context is x.device
    ((2, 1), (2, 1), (3+4j), False, True, True)
    """

    __slots__ = {
        "__weakref__": None,
        "imag": "Imaginary parts of the elements: an assignment to this array changes the complex one, too.",
        "real": "Real parts of the elements: an assignment to this array changes the complex one, too.",
    }
    # NumPy leaves operators to this class.
    __array_ufunc__ = None
    __hash__ = object.__hash__

    if TYPE_CHECKING:

        def __add__(self, other: Any) -> ComplexArray: ...
        def __radd__(self, other: Any) -> ComplexArray: ...
        def __sub__(self, other: Any) -> ComplexArray: ...
        def __rsub__(self, other: Any) -> ComplexArray: ...
        def __mul__(self, other: Any) -> ComplexArray: ...
        def __rmul__(self, other: Any) -> ComplexArray: ...
        def __truediv__(self, other: Any) -> ComplexArray: ...
        def __rtruediv__(self, other: Any) -> ComplexArray: ...
        def __pow__(self, other: Any) -> ComplexArray: ...
        def __rpow__(self, other: Any) -> ComplexArray: ...
        def __matmul__(self, other: Any) -> ComplexArray: ...
        def __rmatmul__(self, other: Any) -> ComplexArray: ...
        def __eq__(self, other: object) -> Array: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Array: ...  # type: ignore[override]

    def __init__(self, real: Array, imag: Array) -> None:
        if real.desc != imag.desc or real.data_type not in ("float32", "float64"):
            raise ValidationError(
                f"ComplexArray: parts must be float32 or float64, and of one shape, got {real.desc} and {imag.desc}"
            )
        self.real, self.imag = real, imag

    @property
    def dtype(self) -> np.dtype[Any]:
        """complex64 or complex128, of NumPy."""
        return COMPLEX_OF[self.real.data_type]

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions."""
        return self.real.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.real.rank

    rank = ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.real.size

    @property
    def context(self) -> MLContext:
        """Context that computes the array."""
        return self.real.context

    device = context

    @property
    def desc(self) -> str:
        """Data type and shape, for messages."""
        return f"{self.dtype}{list(self.shape)}"

    @property
    def pending(self) -> bool:
        """Whether a part is not computed yet."""
        return self.real.pending or self.imag.pending

    def numpy(self) -> np.ndarray:
        """A read-only copy of the values, which are computed first as one graph; the copy is counted.

        Raises:
            OperationError: a pending operation failed.
        """
        force((self.real, self.imag))
        values = np.empty(self.shape, self.dtype)
        values.real, values.imag = self.real.numpy(), self.imag.numpy()
        copies.add(values.nbytes, "reading complex numbers")
        values.setflags(write=False)
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self.numpy()
        if dtype is None or values.dtype == dtype:
            return values.copy() if copy else values
        return values.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().copy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        # kDLCPU, device 0.
        return 1, 0

    def item(self) -> complex:
        """The value of an array of one element."""
        require(self.size == 1, f"item() takes an array of one element, got {self.desc}")
        number: complex = self.numpy().item()
        return number

    def tolist(self) -> Any:
        """The values as nested lists."""
        return self.numpy().tolist()

    def __complex__(self) -> complex:
        return self.item()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> NoReturn:
        raise TypeError("a complex number has no float; xp.real(x), xp.imag(x) and xp.abs(x) are floats")

    __int__ = __index__ = __float__

    def __repr__(self) -> str:
        if self.pending:
            return f"<ComplexArray {self.desc}, pending>"
        values = np.array2string(self.numpy(), threshold=20, edgeitems=3, separator=", ", prefix="<ComplexArray ")
        return f"<ComplexArray {values}, {self.desc}>"

    def __len__(self) -> int:
        return len(self.real)

    def __iter__(self) -> Iterator[ComplexArray]:
        require(self.ndim > 0, "a scalar has no parts to go through")
        return (self[i] for i in range(self.shape[0]))

    def __getitem__(self, key: Any) -> ComplexArray:
        """Select elements, as `Array` does."""
        return ComplexArray(self.real[key], self.imag[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Replace elements, as `Array` does."""
        real: Any
        imag: Any
        if isinstance(value, ComplexArray):
            # The first assignment must not change the second value.
            real, imag = value.real, +value.imag if value.imag is self.real else value.imag
        elif isinstance(value, Array):
            real, imag = value, array_namespace(None).zeros_like(value)
        else:
            numbers: Any = np.asarray(value)
            real, imag = numbers.real, numbers.imag
        self.real[key] = real
        self.imag[key] = imag

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Return the module with the functions of the standard, `opweave.array_api`."""
        module: ModuleType = array_namespace(api_version)
        return module

    def to_device(self, device: MLContext, /, *, stream: Any = None) -> ComplexArray:
        """Copy the array to another context, and count the copies. An array in this context is returned itself."""
        if device is self.context and stream is None:
            return self
        return ComplexArray(self.real.to_device(device, stream=stream), self.imag.to_device(device, stream=stream))

    @property
    def T(self) -> ComplexArray:  # noqa: N802  (the standard's name)
        """Transpose of a matrix."""
        return ComplexArray(self.real.T, self.imag.T)

    @property
    def mT(self) -> ComplexArray:  # noqa: N802  (the standard's name)
        """Transpose of each matrix: the last two axes swapped."""
        return ComplexArray(self.real.mT, self.imag.mT)

    def __copy__(self) -> ComplexArray:
        return ComplexArray(self.real.__copy__(), self.imag.__copy__())

    def __deepcopy__(self, memo: Any) -> ComplexArray:
        return self.__copy__()

    __pos__ = __copy__

    def __neg__(self) -> ComplexArray:
        return ComplexArray(self.real.neg(), self.imag.neg())

    def __abs__(self) -> Array:
        result: Array = array_namespace(None).abs(self)
        return result


def _operator(name: str, function: str, swap: bool) -> Callable[[Any, Any], Any]:
    def method(self: ComplexArray, other: Any) -> Any:
        if not isinstance(other, (int, float, complex)) and not hasattr(other, "__array__"):
            return NotImplemented
        compute = getattr(array_namespace(None), function)
        return compute(other, self) if swap else compute(self, other)

    method.__name__ = name
    return method


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "pow", "matmul": "matmul",
    # The standard's functions refuse complex numbers for these operators.
    "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}  # fmt: skip
# Type checkers see the declarations above.
for _name, _function in _OPERATORS.items():
    setattr(ComplexArray, f"__{_name}__", _operator(f"__{_name}__", _function, swap=False))
    if _name not in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(ComplexArray, f"__r{_name}__", _operator(f"__r{_name}__", _function, swap=True))
