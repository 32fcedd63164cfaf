"""What the functions of users see while they are traced: arrays whose elements are expressions."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from threading import Lock
from typing import Any, NoReturn, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from .. import hints
from ..dtypes import FLOATS, DataType
from ..errors import ValidationError, require
from ..graph import Desc
from ..shapes import broadcast, reduced
from . import ir
from .ir import Call, Cast, Check, Const, Expr, Index, Input, Load, Output, Program, Reduce, Reduction, Stored, Type
from .limits import check_nodes

_axis_variables: WeakValueDictionary[tuple[int, int], Index] = WeakValueDictionary()
_axis_lock = Lock()
_checks: ContextVar[list[Check] | None] = ContextVar("checks", default=None)


def axis_variable(axis: int, extent: int) -> Index:
    """The variable of an axis, counted from the last one (-1): the same for all arrays, so that broadcasting is free."""
    with _axis_lock:  # two threads must not make two of them
        variable = _axis_variables.get((axis, extent))
        if variable is None:
            variable = _axis_variables[axis, extent] = Index(extent, axis)
        return variable


def _axes(shape: Sequence[int]) -> tuple[Index, ...]:
    return tuple(axis_variable(k - len(shape), size) for k, size in enumerate(shape))


def _positions(shape: Sequence[int]) -> tuple[Expr, ...]:
    """The variables of the axes; 0 for those of size 1, which broadcast."""
    return tuple(Const(0, "index") if v.extent == 1 else v for v in _axes(shape))


class Array:
    """An array whose elements are an expression of their position, or one element (of shape `()`) of one.

    Operators and the functions of `opweave.expr` work on all elements, with NumPy's broadcasting. `x[i, j]` is the element
    at a position, and must lie inside; where it may not, `x.clamped[i, j]`, `x.padded(0)[i, j]` and `x.checked[i, j]` say
    what then. Nothing is computed while the function is traced.
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

    def __getitem__(self, key: Any) -> Array:
        """The element at a position; `ValidationError` if that is not certainly inside."""
        return self._element(key, _inside)

    @property
    def clamped(self) -> _Access:
        """Access in which positions outside mean the nearest element."""
        return _Access(self, _clamped)

    @property
    def checked(self) -> _Access:
        """Access in which a position outside is an `OperationError` when the expression runs."""
        return _Access(self, _checked)

    def padded(self, value: int | float = 0) -> _Access:
        """Access in which positions outside have the given value."""
        value = _plain(value)
        require(isinstance(value, (bool, int, float)), f"padded takes a number, got {value!r}")
        return _Access(self, None, ir.number(value, self.data_type))

    def _element(self, key: Any, fit: Callable[[Array, Expr, int], Expr]) -> Array:
        indices = [fit(self, index, axis) for axis, index in enumerate(self._indices(key))]
        return self._at(indices)

    def _at(self, indices: Sequence[Expr]) -> Array:
        variables = _axes(self.shape)
        values: dict[Expr, Expr] = {v: i for v, i in zip(variables, indices, strict=True) if v is not i}
        body = ir.substitute(self.body, values)
        if body is not self.body:
            check_nodes(len(ir.walk(body)))
        return Array((), body)

    def _indices(self, key: Any) -> list[Expr]:
        """The indices of a subscript, one for each axis."""
        items = key if isinstance(key, tuple) else (key,)
        require(len(items) == self.rank, f"an array of shape {list(self.shape)} takes {self.rank} indices, got {key!r}")
        indices = []
        for axis, item in enumerate(items):
            if isinstance(item, Array):
                whole = item.data_type in (*ir.INTEGERS, "index")
                if not whole or item.shape:
                    raise ValidationError(f"an index must be an integer of shape (), got {item!r}")
                indices.append(item.body)
                continue
            try:
                position = operator.index(item)
            except TypeError:
                raise ValidationError(
                    f"an index must be an integer, got {item!r}; compute(shape, function) takes parts of arrays"
                ) from None
            size = self.shape[axis]
            indices.append(Const(position + size if -size <= position < 0 else position, "index"))
        return indices

    # Operators -------------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Array:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Array:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Array:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> Array:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> Array:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> Array:
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> Array:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Array:
        return apply("div", other, self)

    def __floordiv__(self, other: Any) -> Array:
        return apply("floor_div", self, other)

    def __rfloordiv__(self, other: Any) -> Array:
        return apply("floor_div", other, self)

    def __mod__(self, other: Any) -> Array:
        return apply("mod", self, other)

    def __rmod__(self, other: Any) -> Array:
        return apply("mod", other, self)

    def __pow__(self, other: Any) -> Array:
        return apply("pow", self, other)

    def __rpow__(self, other: Any) -> Array:
        return apply("pow", other, self)

    def __lshift__(self, other: Any) -> Array:
        return apply("shift_left", self, other)

    def __rlshift__(self, other: Any) -> Array:
        return apply("shift_left", other, self)

    def __rshift__(self, other: Any) -> Array:
        return apply("shift_right", self, other)

    def __rrshift__(self, other: Any) -> Array:
        return apply("shift_right", other, self)

    def __and__(self, other: Any) -> Array:
        return apply("logical_and" if self.data_type == "bool" else "bit_and", self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Array:
        return apply("logical_or" if self.data_type == "bool" else "bit_or", self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Array:
        return apply("logical_xor" if self.data_type == "bool" else "bit_xor", self, other)

    __rxor__ = __xor__

    def __invert__(self) -> Array:
        return apply("logical_not", self) if self.data_type == "bool" else apply("bit_xor", self, _ones(self))

    def __neg__(self) -> Array:
        return apply("neg", self)

    def __pos__(self) -> Array:
        return self

    def __abs__(self) -> Array:
        return apply("abs", self)

    def __eq__(self, other: object) -> Array:  # type: ignore[override]
        return apply("equal", self, other)

    def __ne__(self, other: object) -> Array:  # type: ignore[override]
        return apply("not_equal", self, other)

    def __lt__(self, other: Any) -> Array:
        return apply("lesser", self, other)

    def __le__(self, other: Any) -> Array:
        return apply("lesser_or_equal", self, other)

    def __gt__(self, other: Any) -> Array:
        return apply("greater", self, other)

    def __ge__(self, other: Any) -> Array:
        return apply("greater_or_equal", self, other)

    # What has no value yet -------------------------------------------------------------------------------------------

    def __bool__(self) -> NoReturn:
        raise ValidationError(
            "an expression has no value while it is traced: use where(condition, a, b) instead of if, and & | ~ instead of "
            "and, or, not"
        )

    def __iter__(self) -> NoReturn:
        raise ValidationError("an expression cannot be gone through; compute(shape, function) and sum_over do that")

    def __len__(self) -> NoReturn:
        raise ValidationError(f"an expression has no len(); its shape is {list(self.shape)}")

    def _no_number(self) -> NoReturn:
        raise ValidationError("an expression has no value while it is traced; it cannot become a number of Python's")

    __float__ = __int__ = __index__ = __complex__ = _no_number

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        function = _OF_NUMPY.get(ufunc.__name__)
        if method == "__call__" and function and not options:  # a number of NumPy's and an expression
            for value in inputs:
                if isinstance(value, np.ndarray) and value.ndim:
                    as_array(value)  # which refuses it
            return function(*map(_plain, inputs))
        known = dir(sys.modules[__package__])
        raise ValidationError(
            hints.ufunc(
                ufunc.__name__, "an expression, which has no values yet", known, lambda name: f"ow.expr.{name} does"
            )
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise ValidationError("NumPy's functions do not take expressions; use those of opweave.expr")


_OF_NUMPY: dict[str, Callable[..., Array]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "power": operator.pow,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
}
"""What NumPy calls for the operators of one of its numbers and an expression."""

Operand: TypeAlias = Array | int | float | bool
"""What functions take: an array, or one of Python's (or NumPy's) numbers."""


class _Access:
    """`x.clamped`, `x.checked`, `x.padded(value)`: subscripts that may lie outside."""

    __slots__ = ("_array", "_fit", "_value")

    def __init__(self, array: Array, fit: Callable[[Array, Expr, int], Expr] | None, value: Expr | None = None) -> None:
        self._array, self._fit, self._value = array, fit, value

    def __getitem__(self, key: Any) -> Array:
        array = self._array
        if self._fit is not None:
            return array._element(key, self._fit)
        assert self._value is not None
        inside: Expr | None = None
        indices = array._indices(key)
        for axis, index in enumerate(indices):
            condition = _is_inside(index, array.shape[axis])
            if condition is not None:
                inside = condition if inside is None else ir.call("logical_and", inside, condition)
        element = array._at([_clamped(array, index, axis) for axis, index in enumerate(indices)])
        return element if inside is None else Array((), ir.call("where", inside, element.body, self._value))


def _surely_inside(index: Expr, size: int) -> bool:
    known = ir.bounds(index)
    return known is not None and known[0] >= 0 and known[1] < size


def _inside(array: Array, index: Expr, axis: int) -> Expr:
    size, known = array.shape[axis], ir.bounds(index)
    if known is None:
        raise ValidationError(
            f"the index {ir.text(index)} of axis {axis} depends on data; x.clamped[...], x.checked[...] or "
            "x.padded(value)[...] say what happens outside of the array"
        )
    if known[0] < 0 or known[1] >= size:
        raise ValidationError(
            f"the index {ir.text(index)} of axis {axis} goes from {known[0]} to {known[1]}, it must be in [0, {size}); "
            "x.clamped[...] or x.padded(value)[...] say what happens outside of the array"
        )
    return _as_index(index)


def _as_index(index: Expr) -> Expr:
    return index if index.type == "index" else Cast(index, "index")


def _clamped(array: Array, index: Expr, axis: int) -> Expr:
    size = array.shape[axis]
    if not _surely_inside(index, size):
        if index.type in ("int8", "uint8"):
            index = Cast(index, "int32")  # which holds the size
        if index.type not in ("uint32", "uint64"):
            index = ir.call("max", index, Const(0, index.type))
        index = ir.call("min", index, Const(size - 1, index.type))
    return _as_index(index)


def _is_inside(index: Expr, size: int) -> Expr | None:
    """The condition for an index to lie inside; None if it certainly does."""
    if _surely_inside(index, size):
        return None
    if index.type in ("int8", "uint8"):
        index = Cast(index, "int32")
    below = ir.call("lesser", index, Const(size, index.type))
    if index.type in ("uint32", "uint64"):
        return below
    return ir.call("logical_and", ir.call("greater_or_equal", index, Const(0, index.type)), below)


def _checked(array: Array, index: Expr, axis: int) -> Expr:
    size = array.shape[axis]
    condition = _is_inside(index, size)
    if condition is not None:
        checks = _checks.get()
        require(checks is not None, "x.checked works in expressions only")
        assert checks is not None
        checks.append(Check(condition, f"the index {ir.text(index)} of axis {axis} must be in [0, {size})"))
    return _clamped(array, index, axis)


# ---------------------------------------------------------------------------------------------------------------------
# Functions of elements


def _plain(value: Any) -> Any:
    """A number of NumPy's as one of Python's; anything else as it is."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def as_array(value: Any, like: Type | None = None) -> Array:
    """An array as it is; a number as a constant of the type `like`."""
    if isinstance(value, Array):
        return value
    value = _plain(value)
    if not isinstance(value, (bool, int, float)):
        hint = "; pass it as an operand" if hasattr(value, "__array__") else ""
        raise ValidationError(f"expected an expression or a number, got {type(value).__name__}{hint}")
    if like is None:
        like = "bool" if isinstance(value, bool) else "index" if isinstance(value, int) else "float32"
    return Array((), ir.number(value, like))


def _unified(values: Sequence[Any]) -> list[Array]:
    """Arrays of one type: indices and numbers take the type of the others."""
    arrays = [value for value in values if isinstance(value, Array)]
    types = [array.data_type for array in arrays if array.data_type != "index"]
    has_float = any(isinstance(v, float) or str(getattr(v, "dtype", "")).startswith("float") for v in values)
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
        array = as_array(value, common)
        if array.data_type == "index" and common not in ("index", "bool"):
            array = Array(array.shape, Cast(array.body, common))
        unified.append(array)
    return unified


def apply(name: str, *values: Any) -> Array:
    """A function of the vocabulary on arrays and numbers, element by element; shapes broadcast."""
    arrays = [as_array(values[0]), *_unified(values[1:])] if name == "where" else _unified(values)
    if name == "where" and arrays[0].data_type != "bool":
        arrays[0] = Array(arrays[0].shape, _truth(arrays[0].body))
    types = ir.FUNCTIONS[name].types
    if arrays[-1].data_type == "index" and "index" not in types:
        wanted: DataType = "int32" if "int32" in types else "float32"
        arrays = [Array(a.shape, Cast(a.body, wanted)) if a.data_type == "index" else a for a in arrays]
    shape = broadcast(*(array.shape for array in arrays), names="the operands") if len(arrays) > 1 else arrays[0].shape
    return Array(shape, ir.call(name, *(array.body for array in arrays)))


def _truth(body: Expr) -> Expr:
    if isinstance(body, Cast) and body.parts[0].type == "bool":
        return body.parts[0]
    return ir.call("not_equal", body, Const(0, body.type))


def _ones(array: Array) -> int:
    """The number with all bits set."""
    require(array.data_type in ir.INTEGERS, f"~ takes integers and conditions, got {array.data_type}")
    return -1 if array.data_type.startswith("int") else 2 ** int(array.data_type[4:]) - 1


def cast(x: Operand, data_type: DataType) -> Array:
    """Convert each element to another data type; see `opweave.expr.ir.Cast`."""
    from ..dtypes import check

    array, target = as_array(x), check(data_type)
    return array if array.data_type == target else Array(array.shape, Cast(array.body, target))


# ---------------------------------------------------------------------------------------------------------------------
# Index form


def compute(shape: Sequence[int], function: Callable[..., Any]) -> Array:
    """An array of `shape` whose element at `i, j, …` is `function(i, j, …)`.

    Args:
        shape: positive integers.
        function: takes a position for each axis, and returns one element.

    >>> from opweave.expr import trace
    >>> from opweave.graph import Desc
    >>> print(trace(lambda x: compute((3, 2), lambda i, j: x[j, i]), "transposed", [Desc("float32", (2, 3))]))
    transposed(x0: float32[2, 3]) -> (y0: float32[3, 2]):
      y0[i, j] =
        x0[j, i]
    """
    sizes = ir.check_extents(tuple(shape) if isinstance(shape, Sequence) else (shape,))
    fresh = tuple(Index(size) for size in sizes)
    element = as_array(function(*(Array((), variable) for variable in fresh)))
    require(not element.shape, f"compute: the function must return one element, got an array {list(element.shape)}")
    return Array(sizes, ir.substitute(element.body, dict(zip(fresh, _positions(sizes), strict=True))))


def store(array: Array) -> Array:
    """The same array, computed completely before others read it, instead of anew wherever it is used.

    Worth it for what is dear and used at several positions, as the first pass of a separable filter is.

    >>> import numpy as np, opweave as ow
    >>> @ow.expression
    ... def blurred(x):
    ...     h, w = x.shape
    ...     rows = ow.expr.store(ow.expr.compute((h, w - 1), lambda i, j: x[i, j] + x[i, j + 1]))
    ...     return ow.expr.compute((h - 1, w - 1), lambda i, j: (rows[i, j] + rows[i + 1, j]) / 4)
    >>> blurred(np.float32([[0, 4], [4, 8]])).tolist()
    [[4.0]]
    """
    source = Stored(_axes(array.shape), array.body)
    require(
        array.body.free <= set(source.axes), "store takes whole arrays, not what depends on a position of the outside"
    )
    body: Expr = Load(source, _positions(array.shape))
    if array.data_type == "bool":
        body = _truth(body)
    return Array(array.shape, body)


def over(reduction: Reduction, extents: int | Sequence[int], function: Callable[..., Any]) -> Array:
    """A reduction of `function(r0, r1, …)` over positions in `extents`."""
    sizes = ir.check_extents(tuple(extents) if isinstance(extents, Sequence) else (extents,))
    if reduction.startswith("arg_"):
        require(len(sizes) == 1, f"{reduction}_over takes one size, got {list(sizes)}")
    variables = tuple(Index(size) for size in sizes)
    element = as_array(function(*(Array((), variable) for variable in variables)))
    require(not element.shape, f"{reduction}_over: the function must return one element, got {list(element.shape)}")
    return Array((), _reduce(reduction, variables, element.body))


def _reduce(reduction: Reduction, variables: tuple[Index, ...], body: Expr) -> Expr:
    if body.type == "bool":
        raise ValidationError(f"{reduction}: bool cannot be reduced; cast it to a data type")
    return Reduce(reduction, variables, Cast(body, "int32") if body.type == "index" else body)


def reduce(reduction: Reduction, x: Array, axes: Sequence[int] | None, keep_dimensions: bool) -> Array:
    """A reduction of a whole array over axes."""
    array = as_array(x)
    rank = array.rank
    require(
        axes is None or isinstance(axes, Sequence), f"{reduction}: axes must be a sequence of integers, got {axes!r}"
    )
    given = range(rank) if axes is None else axes
    require(all(-rank <= axis < rank for axis in given), f"axes must be in [{-rank}, {rank}), got {list(given)}")
    chosen = [axis % rank for axis in given]
    shape = reduced(array.shape, chosen, keep_dimensions)
    if not chosen:
        return array
    old = _axes(array.shape)
    variables = {axis: Index(array.shape[axis]) for axis in sorted(chosen)}
    kept = [axis for axis in range(array.rank) if axis not in variables]
    body = ir.substitute(array.body, {old[axis]: variable for axis, variable in variables.items()})
    result = _reduce(reduction, tuple(variables.values()), body)
    if not keep_dimensions:
        new = _positions(shape)
        result = ir.substitute(result, {old[axis]: new[k] for k, axis in enumerate(kept) if old[axis] is not new[k]})
    return Array(shape, result)


# ---------------------------------------------------------------------------------------------------------------------
# Tracing


def of_input(source: Input) -> Array:
    """The array of the elements of an input."""
    return Array(source.desc.shape, Load(source, _positions(source.desc.shape)))


def inputs_of(descs: Sequence[Desc]) -> tuple[tuple[Input, ...], tuple[Array, ...]]:
    """Inputs of data types and shapes, and the arrays of their elements."""
    inputs = tuple(Input(number, desc) for number, desc in enumerate(descs))
    return inputs, tuple(map(of_input, inputs))


def trace(function: Callable[..., Any], name: str, descs: Sequence[Desc], **attributes: Any) -> Program:
    """The program that `function` stands for, called with an `Array` for each of `descs`.

    Args:
        function: returns an array, or a tuple of arrays.
        name: for messages and tables.
        descs: data type and shape of each operand.
        attributes: passed on.

    Raises:
        ValidationError: it returns something else, or what it does with its arrays is wrong.
    """
    inputs, arrays = inputs_of(descs)
    checks: list[Check] = []
    token = _checks.set(checks)
    try:
        result = function(*arrays, **attributes)
        results = tuple(as_array(r) for r in (result if isinstance(result, (tuple, list)) else (result,)))
    finally:
        _checks.reset(token)
    return program(name, inputs, results, checks)


def program(name: str, inputs: tuple[Input, ...], results: Sequence[Array], checks: Sequence[Check] = ()) -> Program:
    """The program that computes `results` from `inputs`.

    Raises:
        ValidationError: there is no result; one depends on a position outside of it, or on another array than the inputs.
    """
    require(len(results) > 0, "an expression must return an array, or a tuple of them")
    for array in results:
        if not array.body.free <= set(_axes(array.shape)):
            raise ValidationError(f"the result depends on a position outside of its axes: {array!r}")
    bodies = ir.unified(*(array.body for array in results))
    outputs = tuple(Output(_axes(array.shape), body) for array, body in zip(results, bodies, strict=True))
    made = Program(name, inputs, outputs, tuple(dict.fromkeys(checks)))
    foreign = [source for source in ir.sources(*made.roots) if isinstance(source, Input) and source not in inputs]
    require(
        not foreign, f"the result depends on an array of another expression, {', '.join(str(s.desc) for s in foreign)}"
    )
    check_nodes(len(ir.walk(*(stored.body for stored in made.stored), *made.roots)))
    ir.check_positions(*(stored.body for stored in made.stored), *made.roots)
    return made


__all__ = [
    "FLOATS",
    "Array",
    "Call",
    "Operand",
    "apply",
    "cast",
    "compute",
    "inputs_of",
    "of_input",
    "over",
    "program",
    "reduce",
    "store",
    "trace",
]
