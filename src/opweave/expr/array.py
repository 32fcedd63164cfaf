"""Traced arrays, which user functions receive and return during tracing."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial, reduce
from threading import Lock
from typing import Any, NoReturn, TypeAlias
from weakref import WeakValueDictionary

from ..core.dtypes import INFO, DataType, check
from ..core.questions import Questionable
from ..core.shapes import broadcast
from ..core.size_bounds import lower_bound
from ..core.sizes import Size, Symbol, is_same_size, is_static
from ..support import hints
from ..support.errors import NoSuchNameError, NoValueError, SignatureError, ValidationError, require
from . import ir
from .ir import Cast, Check, Const, Expr, Index, Input, Load, Type
from .limits import check_nodes
from .ranges import bounds, is_inside

_axis_variables: WeakValueDictionary[tuple[int, int], Index] = WeakValueDictionary()
_axis_lock = Lock()
run_checks: ContextVar[list[Check] | None] = ContextVar("checks", default=None)


def axis_variable(axis: int, extent: int) -> Index:
    """The variable of an axis, counted from the last one (-1). All arrays share it, so broadcasting needs no substitution."""
    with _axis_lock:  # two threads must not create two variables for one axis
        variable = _axis_variables.get((axis, extent))
        if variable is None:
            variable = _axis_variables[axis, extent] = Index(extent, axis)
        return variable


def axes_of(shape: Sequence[int]) -> tuple[Index, ...]:
    return tuple(axis_variable(k - len(shape), size) for k, size in enumerate(shape))


def positions_of(shape: Sequence[int]) -> tuple[Expr, ...]:
    """The variables of the axes; 0 for axes of size 1, which broadcast."""
    return tuple(Const(0, "index") if is_same_size(v.extent, 1) else v for v in axes_of(shape))


_INSTEAD = {
    "T": "compute(shape, function) exchanges axes: compute((n, m), lambda i, j: x[j, i])",
    "size": "x.shape has the sizes",
}
"""Attributes of NumPy's arrays -> advice."""


def no_such_name(subject: str, name: str, call: str = "{}", own: Sequence[str] = ()) -> NoSuchNameError:
    """The error for a name that `subject` lacks.

    `call` is a call of a function of `opweave.expr`, with `{}` for its name; `own` are the names that the subject has.
    """
    names = sys.modules[__package__].__all__
    hint = ""
    if mine := hints.synonym(name, own):
        hint = f"; did you mean {mine!r}?"
    elif same := name if name in names else hints.synonym(name, names):
        hint = f"; {call.format(f'ow.expr.{same}')} does that"
    elif own and name in _INSTEAD:
        hint = f"; {_INSTEAD[name]}"
    elif guess := hints.similar(name, own):
        hint = f"; did you mean {guess!r}?"
    elif guess := hints.similar(name, names):
        hint = f"; did you mean ow.expr.{guess}?"
    return NoSuchNameError(f"{subject} {name!r}{hint}")


_Operator: TypeAlias = Callable[["Traced", Any], "Traced"]


def _operator(name: str) -> _Operator:
    return lambda self, other: _infix(name, self, other)


def _reflected_operator(name: str) -> _Operator:
    return lambda self, other: _infix(name, other, self)


def _infix(name: str, *values: Any) -> Traced:
    """Apply an operator; `&`, `|` and `^` of conditions are logical."""
    array = next(value for value in values if isinstance(value, Traced))
    return apply(name.replace("bit_", "logical_") if array.data_type == "bool" else name, *values)


class Traced:
    """A symbolic array: an expression of the element at each position. A single element has shape `()`.

    Operators and the functions of `opweave.expr` apply to all elements, with NumPy's broadcasting. `x[i, j]` is the
    element at a position that must be in bounds; otherwise use `x.clamped[i, j]`, `x.padded(0)[i, j]` or `x.checked[i,
    j]`, for which -1 is out of bounds, too. Nothing is computed during tracing.

    >>> import numpy as np, opweave as ow
    >>> @ow.expression
    ... def neighbours(x):
    ...     assert (x.data_type, x.rank, x.shape) == ("float32", 1, (3,))
    ...     return (
    ...         ow.expr.compute(x.shape, lambda i: x.padded(9)[i + 1]),
    ...         ow.expr.compute(x.shape, lambda i: x.clamped[i + 1]),
    ...         ow.expr.compute(x.shape, lambda i: x.checked[ow.expr.cast(x[i], "int32")]),
    ...     )
    >>> [y.tolist() for y in neighbours(np.float32([2, 0, 1]))]
    [[0.0, 1.0, 9.0], [0.0, 1.0, 1.0], [1.0, 2.0, 0.0]]
    """

    __slots__ = ("body", "shape")
    __hash__ = None  # type: ignore[assignment]  # == makes an expression

    def __init__(self, shape: tuple[int, ...], body: Expr) -> None:
        self.shape, self.body = shape, body

    @property
    def data_type(self) -> Type:
        """Type of the elements; "bool" for comparisons, "index" for positions."""
        return self.body.type

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<Array {self.data_type}{list(self.shape)}: {ir.text(self.body)}>"

    # Elements --------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Traced:
        """The element at a position; `ValidationError` unless the position is known to be in bounds."""
        return self._element(key, _require_inside)

    @property
    def clamped(self) -> _Access:
        """Indexing that clamps positions to the array."""
        return _Access(lambda key: self._element(key, _clamp_index))

    @property
    def checked(self) -> _Access:
        """Indexing that raises `OperationError` at run time if a position is out of bounds."""
        return _Access(lambda key: self._element(key, _check_index))

    def padded(self, value: int | float = 0) -> _Access:
        """Indexing that returns `value` at positions out of bounds.

        Args:
            value: a number, which is converted to the type of the array.
        """
        value = _plain(value)
        require(isinstance(value, (bool, int, float)), f"padded takes a number, got {value!r}")
        outside = ir.number(value, self.data_type)

        def element(key: Any) -> Traced:
            inside = [_is_inside(index, size) for index, size in zip(self._indices(key), self.shape, strict=True)]
            if any(is_same_size(size, 0) for size in self.shape):
                return Traced((), outside)
            conditions = [condition for condition in inside if condition is not None]
            array = self._element(key, _clamp_index)
            if not conditions:
                return array
            return Traced(
                (), ir.call("where", reduce(partial(ir.call, "logical_and"), conditions), array.body, outside)
            )

        return _Access(element)

    def _element(self, key: Any, fit: Callable[[Traced, Expr, int], Expr]) -> Traced:
        from_end = fit is _require_inside  # negative numbers count from the end, unless they may be outside
        indices = [fit(self, index, axis) for axis, index in enumerate(self._indices(key, from_end))]
        values: dict[Expr, Expr] = {v: i for v, i in zip(axes_of(self.shape), indices, strict=True) if v is not i}
        body = ir.substitute(self.body, values)
        if body is not self.body:
            check_nodes(len(ir.walk(body)))
        return Traced((), body)

    def _indices(self, key: Any, from_end: bool = False) -> list[Expr]:
        items = key if isinstance(key, tuple) else (key,)
        require(
            len(items) == self.rank,
            f"an array of shape {list(self.shape)} takes {self.rank} indices, got {len(items)}: {key!r}",
        )
        indices = []
        for axis, item in enumerate(items):
            if isinstance(item, Traced):
                whole = item.data_type in (*ir.INTEGERS, "index")
                if not whole or item.shape:
                    raise ValidationError(f"an index must be an integer of shape (), got {item!r}")
                indices.append(item.body)
                continue
            try:
                position = item if isinstance(item, Size) else operator.index(item)
            except TypeError:
                raise ValidationError(
                    f"an index must be an integer, got {item!r}; compute(shape, function) takes parts of arrays"
                ) from None
            size = self.shape[axis]
            is_from_end = from_end and lower_bound(position) < 0 and -size <= position < 0
            indices.append(Const(position + size if is_from_end else position, "index"))
        return indices

    # Operators -------------------------------------------------------------------------------------------------------

    __add__, __radd__ = _operator("add"), _reflected_operator("add")
    __sub__, __rsub__ = _operator("sub"), _reflected_operator("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected_operator("mul")
    __truediv__, __rtruediv__ = _operator("div"), _reflected_operator("div")
    __floordiv__, __rfloordiv__ = _operator("floor_div"), _reflected_operator("floor_div")
    __mod__, __rmod__ = _operator("mod"), _reflected_operator("mod")
    __pow__, __rpow__ = _operator("pow"), _reflected_operator("pow")
    __lshift__, __rlshift__ = _operator("shift_left"), _reflected_operator("shift_left")
    __rshift__, __rrshift__ = _operator("shift_right"), _reflected_operator("shift_right")
    __and__, __rand__ = _operator("bit_and"), _reflected_operator("bit_and")
    __or__, __ror__ = _operator("bit_or"), _reflected_operator("bit_or")
    __xor__, __rxor__ = _operator("bit_xor"), _reflected_operator("bit_xor")
    __eq__, __ne__ = _operator("equal"), _operator("not_equal")  # type: ignore[assignment]
    __lt__, __le__ = _operator("lesser"), _operator("lesser_or_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_or_equal")

    def _no_product(self, _: Any) -> NoReturn:
        raise ValidationError(
            "@ is not defined for expressions; compute(shape, function) and sum_over make a product: "
            "compute((m, n), lambda i, j: sum_over(size, lambda k: a[i, k] * b[k, j]))"
        )

    __matmul__ = __rmatmul__ = _no_product

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # protocols that libraries ask for
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        others = ", data_type" if name == "astype" else ""
        own = [mine for mine in dir(type(self)) if not mine.startswith("_")]
        raise no_such_name("an expression has no attribute", name, f"{{}}(x{others})", own)

    def __invert__(self) -> Traced:
        return apply("logical_not", self) if self.data_type == "bool" else apply("bit_xor", self, _ones(self))

    def __neg__(self) -> Traced:
        return apply("neg", self)

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        return apply("abs", self)

    # Conversions that need a value ----------------------------------------------------------------------------------

    def __bool__(self) -> NoReturn:
        raise NoValueError(
            "an expression has no value while it is traced: use where(condition, a, b) instead of if, & | ~ instead of "
            "and, or, not, and ow.expr.max(a, b) and min(a, b) instead of max and min"
        )

    def __iter__(self) -> NoReturn:
        raise NoValueError("an expression cannot be gone through; compute(shape, function) and sum_over do that")

    def __len__(self) -> NoReturn:
        raise NoValueError(f"an expression has no len(); its shape is {list(self.shape)}")

    def _no_number(self) -> NoReturn:
        raise NoValueError(
            "an expression has no value while it is traced; it cannot become a number of Python's; "
            "opweave.expr has functions for it, as exp for math.exp"
        )

    __float__ = __int__ = __index__ = __complex__ = _no_number

    def __round__(self, digits: int | None = None) -> NoReturn:
        raise NoValueError("an expression has no value while it is traced; ow.expr.round_even(x) rounds")

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        raise NoValueError(f"an expression has no value while it is traced; it cannot be formatted as {spec!r}")

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise ValidationError(
            "the elements of an expression cannot be assigned; compute(shape, function) returns the element at each "
            "position, and where(condition, a, b) chooses between two"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        name = _OF_NUMPY.get(ufunc)
        if method == "__call__" and name and not options:  # an operator applied to a NumPy scalar and an expression
            return _infix(name, *inputs)
        return self._refuse(ufunc, method)

    def _refuse(self, function: Any, method: str) -> NoReturn:
        """Refuse a function of NumPy; the message names its counterpart in `opweave.expr`."""
        subject = "an expression, which has no values yet"
        raise NoValueError(
            hints.function("np", function, method, subject, sys.modules[__package__].__all__, "ow.expr.{name} does")
        )

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        self._refuse(function, "__call__")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise NoValueError("NumPy's functions do not take expressions; use those of opweave.expr")


_OF_NUMPY = {f.ufunc: name for name, f in ir.FUNCTIONS.items() if f.symbol and not f.symbol.isalpha()}
"""The operators that NumPy calls as ufuncs when the left operand is a NumPy scalar."""

Operand: TypeAlias = Traced | int | float | bool
"""An argument of a function: an array, or a Python or NumPy number."""


class _Access:
    """Indexing with positions that may be out of bounds: `x.clamped`, `x.checked`, `x.padded(value)`."""

    __slots__ = ("_element",)

    def __init__(self, element: Callable[[Any], Traced]) -> None:
        self._element = element

    def __getitem__(self, key: Any) -> Traced:
        return self._element(key)


def _surely_inside(index: Expr, size: int) -> bool:
    span = bounds(index)
    return span is not None and is_inside(span, size)


def _require_inside(array: Traced, index: Expr, axis: int) -> Expr:
    size, span = array.shape[axis], bounds(index)
    if span is None:
        reads = any(isinstance(node, ir.Load) for node in ir.walk(index))
        raise ValidationError(
            f"the index {ir.text(index)} of axis {axis} {'depends on data' if reads else 'has no known range'}; "
            "x.clamped[...], x.checked[...] or x.padded(value)[...] say what happens outside of the array"
        )
    if not is_inside(span, size) and (span[0] < 0 or span[1] >= size):
        raise ValidationError(
            f"the index {ir.text(index)} of axis {axis} goes from {span[0]} to {span[1]}, it must be in [0, {size}); "
            "x.clamped[...] or x.padded(value)[...] say what happens outside of the array"
        )
    return _as_index(index)


def element_inside(array: Traced, key: tuple[Any, ...]) -> Traced:
    """The element at a position that is in bounds by construction. No formula of sizes has to prove it."""
    return array._element(key, lambda array, index, axis: _as_index(index))


def _as_index(index: Expr) -> Expr:
    return index if index.type == "index" else Cast(index, "index")


def _clamp_index(array: Traced, index: Expr, axis: int) -> Expr:
    size = array.shape[axis]
    if not _surely_inside(index, size):
        if index.type in ("int8", "uint8"):
            index = Cast(index, "int32")  # the size may not fit into 8 bits
        if index.type not in ("uint32", "uint64"):
            index = ir.call("max", index, Const(0, index.type))
        index = ir.call("min", index, ir.number(size - 1, index.type))
    return _as_index(index)


def _is_inside(index: Expr, size: int) -> Expr | None:
    """The condition that an index is in bounds; None if it always is."""
    if _surely_inside(index, size):
        return None
    if index.type in ("int8", "uint8"):
        index = Cast(index, "int32")
    below = ir.call("lesser", index, ir.number(size, index.type))
    if index.type in ("uint32", "uint64"):
        return below
    return ir.call("logical_and", ir.call("greater_or_equal", index, Const(0, index.type)), below)


def _check_index(array: Traced, index: Expr, axis: int) -> Expr:
    size = array.shape[axis]
    condition = _is_inside(index, size)
    if condition is not None:
        checks = run_checks.get()
        require(checks is not None, "x.checked works in expressions only")
        assert checks is not None
        checks.append(Check(condition, f"the index {ir.text(index)} of axis {axis}", size, index))
    return _clamp_index(array, index, axis)


# ---------------------------------------------------------------------------------------------------------------------
# Element-wise functions


def _plain(value: Any) -> Any:
    """A number of Python, or a size; kernels have no parameters for real numbers that are computed from sizes."""
    if isinstance(value, Symbol) and not isinstance(value, Size):
        return value.number()
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def as_array(value: Any, like: Type | None = None) -> Traced:
    """Convert a number to a constant of type `like`; arrays are returned unchanged."""
    if isinstance(value, Traced):
        return value
    value = _plain(value)
    if not isinstance(value, (bool, int, float, Size)):
        hint = "; pass it as an operand" if hasattr(value, "__array__") else ""
        if isinstance(value, Questionable):
            hint = ", an operand of a graph; functions of ow.expr are for formulas (@ow.expression)"
        raise SignatureError(f"expected an expression or a number, got {type(value).__name__}{hint}")
    if like is None:
        like = "bool" if isinstance(value, bool) else "index" if isinstance(value, (int, Size)) else "float32"
    return Traced((), ir.number(value, like))


def _unify(values: Sequence[Any]) -> list[Traced]:
    """Convert the operands to one type: indices and numbers take the type of the others."""
    arrays = [value for value in values if isinstance(value, Traced)]
    types = [array.data_type for array in arrays if array.data_type != "index"]
    values = [value if isinstance(value, Traced) else _plain(value) for value in values]
    has_float = any(isinstance(value, float) for value in values)
    common: Type
    if types:
        common = types[0]
    elif has_float:
        common = "float32"
    elif arrays:
        common = "index"
    else:
        return [as_array(value) for value in values]
    unified = []
    for value in values:
        if isinstance(value, float) and common in ir.INTEGERS and not value.is_integer():
            name = next(map(_name, (array for array in arrays if array.data_type == common)))
            raise ValidationError(
                f"{value} is not a value of {common}; {name} is {common}: ow.expr.cast({name}, 'float32')"
            )
        array = as_array(value, common)
        if array.data_type == "index" and common not in ("index", "bool"):
            array = Traced(array.shape, Cast(array.body, common))
        unified.append(array)
    return unified


def apply(name: str, *values: Any) -> Traced:
    """Apply a function to arrays and numbers, element by element, with broadcasting.

    Args:
        name: the name of a function of this module, or of an operator: "floor_div", "mod", "bit_and", "bit_or", "bit_xor",
            "shift_left", "shift_right".
        values: its arguments: arrays of one type, or Python numbers.

    Returns:
        An array of the broadcast shape.

    Raises:
        ValidationError: types that the function does not take, types that differ, or shapes that do not broadcast.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.apply("max", x, 2))(np.float32([1, 3])).tolist()
    [2.0, 3.0]
    """
    require(name in ir.FUNCTIONS, f"apply: name must be one of {', '.join(ir.FUNCTIONS)}, got {name!r}")
    arrays = [as_array(values[0]), *_unify(values[1:])] if name == "where" else _unify(values)
    if name == "where" and arrays[0].data_type != "bool":
        arrays[0] = Traced(arrays[0].shape, truth(arrays[0].body))
    types = ir.FUNCTIONS[name].types
    if arrays[-1].data_type == "index" and "index" not in types:
        number_type: DataType = "int32" if "int32" in types else "float32"
        arrays = [Traced(a.shape, Cast(a.body, number_type)) if a.data_type == "index" else a for a in arrays]
    shapes = [array.shape for array in arrays]
    if all(map(is_static, shapes)):
        shape = broadcast(*shapes, names="the operands") if len(shapes) > 1 else shapes[0]
        return Traced(shape, ir.call(name, *(array.body for array in arrays)))
    shape = reduce(_broadcast_sizes, shapes)
    return Traced(shape, ir.call(name, *(stretch(array, shape) for array in arrays)))


def _broadcast_sizes(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast shapes. The scope decides whether sizes are equal or 1, if their formulas leave that open."""
    rank = max(len(left), len(right))
    return tuple(
        _broadcast_size(a, b, (left, right))
        for a, b in zip(
            (1,) * (rank - len(left)) + left,
            (1,) * (rank - len(right)) + right,
            strict=True,
        )
    )


def _broadcast_size(left: int, right: int, shapes: tuple[tuple[int, ...], ...]) -> int:
    if is_same_size(right, 1) or is_same_size(left, right):
        return left
    if is_same_size(left, 1):
        return right
    if left == right:
        return left if isinstance(right, Size) else right
    if left == 1:
        return right
    if right == 1:
        return left
    listed = " and ".join(str(list(shape)) for shape in shapes)
    raise ValidationError(f"the shapes of the operands do not broadcast: {listed}")


def stretch(array: Traced, shape: tuple[int, ...]) -> Expr:
    """The element of an array at the positions of a shape to which it broadcasts."""
    values: dict[Expr, Expr] = {}
    for axis in range(-array.rank, 0):
        own, target = array.shape[axis], shape[axis]
        if not is_same_size(own, target) and not is_same_size(own, 1):
            values[axis_variable(axis, own)] = axis_variable(axis, target) if own == target else Const(0, "index")
    return ir.substitute(array.body, values) if values else array.body


def _name(array: Traced) -> str:
    """The user's name of an operand, else the text of its expression."""
    body = array.body
    if (
        isinstance(body, Load)
        and isinstance(body.source, Input)
        and all(isinstance(p, (Index, Const)) for p in body.parts)
    ):
        return body.source.name or f"x{body.source.number}"
    return ir.text(body)


def truth(body: Expr) -> Expr:
    """Convert a value to "bool": `value != 0`."""
    if isinstance(body, Cast) and body.parts[0].type == "bool":
        return body.parts[0]
    return ir.call("not_equal", body, Const(0, body.type))


def _ones(array: Traced) -> int:
    require(array.data_type in ir.INTEGERS, f"~ takes integers and conditions, got {array.data_type}")
    return -1 if array.data_type.startswith("int") else 2 ** int(array.data_type[4:]) - 1


def cast(x: Operand, data_type: DataType) -> Traced:
    """Convert each element to another data type.

    Floats are truncated to integers and clamped to their range; NaN becomes 0. Conditions become 1 or 0.

    Args:
        x: any type.
        data_type: one of the eight data types of WebNN.

    Returns:
        An array of the shape of `x`.

    Raises:
        ValidationError: no such data type.

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.cast(x, "int32"))(np.float32([1.5, -2.5])).tolist()
    [1, -2]
    """
    array, target = as_array(x), check(data_type)
    if array.data_type == target:
        return round_float16(array) if target == "float16" else array
    return Traced(array.shape, Cast(array.body, target))


def cast_to_storage(array: Traced, data_type: DataType) -> Traced:
    """Cast to a data type that is only stored (`dtypes.WIDENED`), from the one that computes it."""
    return Traced(array.shape, Cast(array.body, data_type))


def bitcast(x: Operand, data_type: DataType) -> Traced:
    """Reinterpret the bits of each element as another data type of the same width.

    Devices may change the bits of NaN, and flush denormal floats to 0, if `x` is computed rather than read.

    Args:
        x: float32, or any integers.
        data_type: float32, int32 or uint32 for 32 bits; for others, the signed or unsigned integers of the same width.

    Returns:
        An array of the shape of `x`.

    Raises:
        ValidationError: the widths differ, or the type has no form for bits (float16).

    >>> import numpy as np, opweave as ow
    >>> ow.expression(lambda x: ow.expr.bitcast(x, "int32"))(np.float32([1, -0.0])).tolist()
    [1065353216, -2147483648]
    """
    array, target = as_array(x), check(data_type)
    source = array.data_type
    fits = source in INFO and INFO[source].bits == INFO[target].bits
    require(fits, f"bitcast: the data types must have the same width, got {source} and {target}")
    if source == target:
        return array
    if source in ir.INTEGERS and target in ir.INTEGERS:
        return Traced(array.shape, Cast(array.body, target))
    require(
        "float16" not in (source, target), f"bitcast: float16 has no bits in expressions, got {source} and {target}"
    )
    return Traced(array.shape, ir.Bitcast(array.body, target))


def round_float16(array: Traced) -> Traced:
    """Round the elements of a float16 array before they are read, not only when they are stored."""
    return array if is_rounded(array) else Traced(array.shape, Cast(Cast(array.body, "float32"), "float16"))


def is_rounded(array: Traced) -> bool:
    """Whether elements already have the precision of their data type: `ir` computes float16 in float32."""
    body = array.body
    is_loaded = isinstance(body, Load) and isinstance(body.source, Input)
    is_cast = isinstance(body, Cast) and body.parts[0].type != "float16"
    return array.data_type != "float16" or is_loaded or is_cast
