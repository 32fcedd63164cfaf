"""Python's operators and indexing, for operands of graphs and for arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..support import hints
from ..support.errors import ValidationError, require
from ..support.names import listing, short_repr
from .desc import Described
from .questions import is_value
from .size_functions import larger, smaller
from .size_terms import interval
from .sizes import Size, Symbol

if TYPE_CHECKING:
    from ..ops.signatures import ArrayMethods
else:
    ArrayMethods = object


Same = TypeVar("Same", bound="Operators")
"""`Self`, in a form that Jedi follows into derived classes, so that results are completed."""

INFIX = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "matmul": "matmul"}
"""The infix operators of Python -> operations; `__add__` and `__radd__` are "add"."""


class Operators(Described, ArrayMethods):
    """Python's operators, and operations as methods, for operands of graphs and for arrays."""

    __slots__ = ()
    _kind = "an array"
    _takes_sizes = False
    """Whether a size that is known only when a graph runs may be an operand; arrays are computed with its number."""

    def __dir__(self) -> list[str]:
        return listing(self)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def _takes_empty(self) -> bool:
        """Whether a slice may pick nothing."""
        return True

    def _apply(self, name: str, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    if not TYPE_CHECKING:  # type checkers see `ArrayMethods`

        def __getattr__(self, name: str) -> NoReturn:
            raise hints.no_name(self, self._kind, name, lambda: self._hint(name))

    def _hint(self, name: str) -> str:
        """A hint for a missing attribute, as the end of a message; empty if there is none."""
        return hints.operation(name, dir(self))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and not options and ufunc.__name__ in hints.OPERATORS:  # array + self, and the like
            return self._apply(hints.WEBNN_NAMES.get(ufunc.__name__, ufunc.__name__), *inputs)
        return self._refuse_ufunc(ufunc, method)

    def _refuse_ufunc(self, ufunc: Any, method: str) -> NoReturn:
        raise NotImplementedError

    def __neg__(self: Same) -> Same:
        return self.neg()

    def __abs__(self: Same) -> Same:
        return self.abs()

    def __getitem__(self: Same, key: Any) -> Same:
        """Cut out a part with integers, slices and `...`, as in NumPy; None makes a new axis of size 1."""
        items = list(key) if isinstance(key, tuple) else [key]
        dots = [i for i, item in enumerate(items) if item is Ellipsis]
        require(len(dots) <= 1, f"an index can hold one '...', got {len(dots)}")
        count = sum(item is not None and item is not Ellipsis for item in items)
        require(count <= self.rank, f"an operand of shape {list(self.shape)} takes {self.rank} indices, got {count}")
        at = dots[0] if dots else len(items)
        items[at : at + len(dots)] = [slice(None)] * (self.rank - count)

        starts: list[int] = []
        sizes: list[int] = []
        strides: list[int] = []
        backwards: list[int] = []
        shape: list[int] = []
        for item in items:
            if item is None:
                shape.append(1)
                continue
            axis = len(starts)
            start, size, step = _window(item, axis, self.shape[axis], self._takes_empty)
            if isinstance(item, slice):
                shape.append(-(-size // abs(step)))
            if step < 0:
                backwards.append(axis)
            starts.append(start)
            sizes.append(size)
            strides.append(abs(step))
        result = self
        if tuple(sizes) != self.shape or any(stride != 1 for stride in strides):
            result = result.slice(starts, sizes, strides=strides)
        if backwards:
            result = result.reverse(axes=backwards)
        return result if result.shape == tuple(shape) else result.reshape(shape)

    def __len__(self) -> int:
        require(self.rank > 0, f"{self._kind} of shape [] has no len()")
        return self.shape[0]

    def __iter__(self: Same) -> Iterator[Same]:
        """The parts along the first axis."""
        require(self.rank > 0, "a scalar operand has no parts to go through")
        return (self[i] for i in range(self.shape[0]))


_NO_INDEX = (
    "an operand is indexed with integers, slices, None and '...', got {}; "
    "gather(x, indices, axis=…) and where(condition, a, b) select by values"
)


def _infix(name: str, swap: bool) -> Callable[[Operators, Any], Any]:
    def method(self: Operators, other: Any) -> Any:
        if isinstance(other, Symbol) and not self._takes_sizes:
            other = other.number()
        if not is_value(other):
            return NotImplemented
        return self._apply(name, other, self) if swap else self._apply(name, self, other)

    return method


for _name, _operation in INFIX.items():  # type checkers see `ArrayMethods`
    setattr(Operators, f"__{_name}__", _infix(_operation, swap=False))
    setattr(Operators, f"__r{_name}__", _infix(_operation, swap=True))


def _window(item: Any, axis: int, size: Any, takes_empty: bool) -> tuple[Any, Any, int]:
    """The first position that an integer or a slice picks from an axis, the extent of the positions, and the step.

    With a negative step, the positions are picked in reverse order. Where sizes are known only when a graph runs, its `slice`
    checks that the positions exist.
    """
    values = (item.start, item.stop) if isinstance(item, slice) else (item,)
    if not isinstance(size, Size) and not any(isinstance(value, Size) for value in values):
        picked = _positions(item, axis, size, takes_empty)
        upwards = picked if picked.step > 0 else picked[::-1]
        return upwards.start, upwards[-1] - upwards.start + 1 if upwards else 0, picked.step
    for value in values:
        is_integer = isinstance(value, Size) or (hasattr(value, "__index__") and not isinstance(value, bool))
        require(is_integer or (value is None and isinstance(item, slice)), _NO_INDEX.format(short_repr(item)))
    if not isinstance(item, slice):
        return _from_start(item, size), 1, 1
    step = 1 if item.step is None else operator.index(item.step)
    require(step != 0, f"index {short_repr(item)} of axis {axis}: slice step cannot be zero")
    if step < 0:
        whole = item.start is None and item.stop is None
        require(whole, f"index {short_repr(item)} of axis {axis} goes backwards, and depends on its size, {size}")
        start = larger(size - 1, 0) % -step
        return start, size - start, step
    start, first = (0, 0) if item.start is None else _bounds(item.start, size)
    _, stop = (size, size) if item.stop is None else _bounds(item.stop, size)
    return first, larger(stop - start, 0), step


def _bounds(position: Any, size: Any) -> tuple[Any, Any]:
    """The bound of a slice, counted from the start of an axis and at least 0; and the same, but at most `size`."""
    start = _from_start(position, size)
    if start is position:
        return start, smaller(start, size)
    start = larger(start, 0)
    return start, start


def _from_start(position: Any, size: Any) -> Any:
    """A position from the start of an axis; the axis has `size` elements, and negative positions count from its end."""
    low, high = interval(position if isinstance(position, Size) else operator.index(position))
    require(low >= 0 or high < 0, f"whether the index {position} counts from the end depends on sizes")
    return position if low >= 0 else size + position


def _positions(item: Any, axis: int, size: int, takes_empty: bool) -> range:
    """The positions that an integer or a slice picks from an axis; there is at least one, unless `takes_empty`."""
    if isinstance(item, slice):
        try:
            picked = range(size)[item]
        except (TypeError, ValueError) as error:
            raise ValidationError(f"index {short_repr(item)} of axis {axis}: {error}") from None
        if not picked:
            require(takes_empty, f"index {short_repr(item)} leaves nothing of axis {axis} with {size} elements")
            return range(0)
        return picked if len(picked) > 1 else range(picked[0], picked[0] + 1)
    try:
        position = operator.index(item) if not isinstance(item, bool) else None
    except TypeError:
        position = None
    if position is None:
        raise ValidationError(_NO_INDEX.format(short_repr(item)))
    require(
        -size <= position < size, f"index {short_repr(position)} is out of range for axis {axis} with {size} elements"
    )
    return range(position % size, position % size + 1)
