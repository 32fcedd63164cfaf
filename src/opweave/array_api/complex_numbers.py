"""Functions of the standard on complex numbers: formulas of the two parts, or functions of NumPy on the processor."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from .. import ops
from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits
from ..core.shapes import broadcast
from ..lazy.array import Array
from ..lazy.mask import as_mask
from ..support.errors import ValidationError, require
from ..support.names import short_repr
from . import creation, elementwise, indexing, linalg, manipulation, products, selection, statistics, transcendental
from .arguments import as_array, axes_of, axis_of, convert
from .complex_array import PART_OF, ComplexArray
from .conversion import array_of
from .host import on_host
from .lapack import joined
from .public import on_complex, publish
from .types import DType, as_dtype, bool as bool_

Parts = tuple[Array, Array]


def complex_of(real: Array, imag: Array | None = None) -> ComplexArray:
    """Make an array of complex numbers of its parts; without `imag`, this part is zero."""
    if real.data_type == "float16":
        real, imag = ops.cast(real, "float32"), None if imag is None else ops.cast(imag, "float32")
    imag = creation.zeros_like(real) if imag is None else imag
    return ComplexArray(real, imag)


def as_complex(value: Any, name: str, dtype: DType | None = None) -> ComplexArray:
    """Return an array of complex numbers for one of floats, or of NumPy; with `dtype`, in this complex data type."""
    if isinstance(value, (complex, float, int)) or (
        isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == "c"
    ):
        values = np.asarray(value, np.complex64 if dtype is None and not hasattr(value, "dtype") else dtype)
        result = from_numpy(values, None, name)
    elif isinstance(value, ComplexArray):
        result = value
    else:
        x = as_array(value, name)
        if x.dtype.kind != "f":
            raise ValidationError(
                f"{name}: {x.dtype} and complex numbers have no common data type; astype converts one"
            )
        result = complex_of(x)
    if dtype is None or result.dtype == dtype:
        return result
    part = PART_OF[dtype]
    return ComplexArray(convert(result.real, part), convert(result.imag, part))


def from_numpy(values: np.ndarray, device: Any, name: str) -> ComplexArray:
    """Make an array of complex numbers from NumPy's."""
    part = PART_OF[values.dtype]
    real, imag = (
        array_of(np.ascontiguousarray(x).reshape(values.shape), device, name) for x in (values.real, values.imag)
    )
    assert real.dtype == part
    return ComplexArray(real, imag)


def promote_complex(name: str, *operands: Any) -> list[ComplexArray]:
    """Convert operands to complex numbers of a common data type; Python numbers take that of the arrays."""
    # NumPy's float64 and complex128 are kinds of Python numbers.
    others = [x for x in operands if hasattr(x, "dtype") and not isinstance(x, (float, complex))]
    is_wide = any(x.dtype in (np.float64, np.complex128) for x in others)
    arrays = [x for x in others if isinstance(x, (Array, ComplexArray))]
    place: Any = arrays[0].context if arrays else nullcontext()
    with place:
        return [as_complex(x, name, np.dtype("complex128" if is_wide else "complex64")) for x in operands]


def _parts(x: ComplexArray) -> Parts:
    return x.real, x.imag


# ---------------------------------------------------------------------------------------------------------------------
# Arithmetic


@on_complex("add")
def _add(x1: Any, x2: Any) -> ComplexArray:
    (a, b), (c, d) = map(_parts, promote_complex("add", x1, x2))
    return ComplexArray(ops.add(a, c), ops.add(b, d))


@on_complex("subtract")
def _subtract(x1: Any, x2: Any) -> ComplexArray:
    (a, b), (c, d) = map(_parts, promote_complex("subtract", x1, x2))
    return ComplexArray(ops.sub(a, c), ops.sub(b, d))


@on_complex("multiply")
def _multiply(x1: Any, x2: Any) -> ComplexArray:
    (a, b), (c, d) = map(_parts, promote_complex("multiply", x1, x2))
    return ComplexArray(ops.sub(ops.mul(a, c), ops.mul(b, d)), ops.add(ops.mul(a, d), ops.mul(b, c)))


@on_complex("negative")
def _negative(x: ComplexArray) -> ComplexArray:
    return -x


@on_complex("positive")
def _positive(x: ComplexArray) -> ComplexArray:
    return +x


@on_complex("square")
def _square(x: Any) -> ComplexArray:
    return _multiply(x, x)


@on_complex("conj")
def _conj(x: Any) -> ComplexArray:
    return ComplexArray(ops.identity(x.real), ops.neg(x.imag))


@on_complex("real")
def _real(x: Any) -> Any:
    return ops.identity(x.real)


@on_complex("imag")
def _imag(x: Any) -> Any:
    return ops.identity(x.imag)


@on_complex("abs")
def _abs(x: Any) -> Any:
    return transcendental.hypot(x.real, x.imag)


@on_complex("round")
def _round(x: Any) -> ComplexArray:
    return ComplexArray(elementwise.round(x.real), elementwise.round(x.imag))


def _any_part(name: str) -> Callable[..., Array]:
    test = getattr(elementwise, name)

    def function(x: Any) -> Array:
        result: Array = as_mask(ops.logical_or(test(x.real), test(x.imag)))
        return result

    on_complex(name)(function)
    return function


_isnan, _isinf = _any_part("isnan"), _any_part("isinf")


@on_complex("isfinite")
def _isfinite(x: Any) -> Array:
    return as_mask(ops.logical_and(elementwise.isfinite(x.real), elementwise.isfinite(x.imag)))


@on_complex("equal")
def _equal(x1: Any, x2: Any) -> Array:
    (a, b), (c, d) = map(_parts, promote_complex("equal", x1, x2))
    return as_mask(ops.logical_and(ops.equal(a, c), ops.equal(b, d)))


@on_complex("not_equal")
def _not_equal(x1: Any, x2: Any) -> Array:
    return as_mask(ops.logical_not(_equal(x1, x2)))


# ---------------------------------------------------------------------------------------------------------------------
# Functions of NumPy

_PART = Limits(FLOATS)


def _by_numpy(name: str, compute: Callable[..., Any], count: int) -> None:
    """Let NumPy compute a function of one or two complex operands when the graph runs."""

    def rule_of_one(self: Builder, a: Operand, b: Operand, *, label: str = "") -> tuple[Desc, Desc]:
        return a.desc, b.desc

    def kernel_of_one(a: np.ndarray, b: np.ndarray, out: Any) -> None:
        with np.errstate(all="ignore"):
            result = compute(joined(a, b))
        out[0][...], out[1][...] = result.real, result.imag

    def rule_of_two(
        self: Builder, a: Operand, b: Operand, c: Operand, d: Operand, *, label: str = ""
    ) -> tuple[Desc, Desc]:
        desc = Desc(a.data_type, broadcast(a.shape, c.shape))
        return desc, desc

    def kernel_of_two(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, out: Any) -> None:
        with np.errstate(all="ignore"):
            result = compute(joined(a, b), joined(c, d))
        out[0][...], out[1][...] = result.real, result.imag

    if count == 1:
        operation = on_host(name, rule_of_one, kernel_of_one, a=_PART, b=Limits("a"))
    else:
        operation = on_host(name, rule_of_two, kernel_of_two, a=_PART, b=Limits("a"), c=Limits("a"), d=Limits("a"))

    def function(*operands: Any) -> ComplexArray:
        parts = [part for x in promote_complex(name, *operands) for part in _parts(x)]
        return ComplexArray(*operation(*parts))

    on_complex(name)(function)


def _expm1(z: np.ndarray) -> np.ndarray:
    """NumPy's function has NaN for numbers that are infinite or NaN, which `exp` has not."""
    result: np.ndarray = np.asarray(np.expm1(z))
    outside = ~np.isfinite(z)
    result[outside] = np.exp(z[outside]) - 1
    result.real += 0.0
    return result


for _name in (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "log", "log10", "log1p", "log2",
    "reciprocal", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
):  # fmt: skip
    _by_numpy(_name, getattr(np, _name), 1)
_by_numpy("expm1", _expm1, 1)
for _name in ("divide", "pow"):
    _by_numpy(_name, getattr(np, _name), 2)


# ---------------------------------------------------------------------------------------------------------------------
# Functions that treat both parts alike


def _part_of(value: Any, is_imaginary: bool) -> Any:
    if isinstance(value, (ComplexArray, complex)):
        return value.imag if is_imaginary else value.real
    return [_part_of(item, is_imaginary) for item in value] if isinstance(value, list) else value


def _by_parts(function: Callable[..., Any], name: str = "") -> None:
    """Apply a function to both parts; arrays in a list, and operands of functions of several, become complex first."""
    name = name or function.__name__

    def on_parts(*args: Any, **kwargs: Any) -> Any:
        positional = [
            promote_complex(name, *value)
            if isinstance(value, (list, tuple)) and any(hasattr(item, "dtype") for item in value)
            else value
            for value in args
        ]
        real, imag = (
            function(*(_part_of(v, part) for v in positional), **{k: _part_of(v, part) for k, v in kwargs.items()})
            for part in (False, True)
        )
        if isinstance(real, (list, tuple)):
            return type(real)(ComplexArray(x, y) if x.dtype.kind == "f" else x for x, y in zip(real, imag, strict=True))
        return ComplexArray(real, imag)

    on_complex(name)(on_parts)


def _new_parts(function: Any) -> Any:
    """Make sure that neither part of a result is that of an argument."""
    names = {function.__name__: function}
    publish(names, [*names])
    return names[function.__name__]


for _listed in (
    manipulation.broadcast_to, manipulation.reshape, manipulation.expand_dims,
    manipulation.squeeze, manipulation.permute_dims, manipulation.moveaxis, manipulation.matrix_transpose,
    manipulation.flip, manipulation.roll, manipulation.repeat, manipulation.tile, manipulation.concat,
    manipulation.stack, manipulation.unstack, selection.take, selection.take_along_axis, creation.tril, creation.triu,
    statistics.mean,
):  # fmt: skip
    _by_parts(_new_parts(_listed))
_by_parts(linalg.diagonal, "linalg.diagonal")
on_complex("linalg.matrix_transpose")(lambda x: x.mT)


@on_complex("diff")
def _diff(x: Any, *, axis: int = -1, prepend: Any = None, append: Any = None, **kwargs: Any) -> ComplexArray:
    values = promote_complex("diff", *(part for part in (prepend, x, append) if part is not None))
    at = axis_of(axis, x.ndim, "diff")
    parts = ([value.real for value in values], [value.imag for value in values])
    return ComplexArray(*(statistics.diff(manipulation.concat(part, axis=at), axis=at, **kwargs) for part in parts))


@on_complex("broadcast_arrays")
def _broadcast_arrays(*arrays: Any) -> list[Any]:
    shape = manipulation.broadcast_shapes(*(x.shape for x in arrays))
    broadcast_to = _new_parts(manipulation.broadcast_to)
    return [
        ComplexArray(broadcast_to(x.real, shape), broadcast_to(x.imag, shape))
        if isinstance(x, ComplexArray)
        else broadcast_to(x, shape)
        for x in arrays
    ]


@on_complex("meshgrid")
def _meshgrid(*arrays: Any, indexing: str = "xy") -> list[Any]:
    grids = []
    for at, x in enumerate(arrays):
        lines = [creation.zeros(other.shape) for other in arrays]
        parts = _parts(x) if isinstance(x, ComplexArray) else (x,)
        own = [creation.meshgrid(*lines[:at], part, *lines[at + 1 :], indexing=indexing)[at] for part in parts]
        grids.append(ComplexArray(*own) if len(own) == 2 else own[0])
    return grids


@on_complex("where")
def _where(condition: Any, x1: Any, x2: Any) -> ComplexArray:
    (a, b), (c, d) = map(_parts, promote_complex("where", x1, x2))
    return ComplexArray(selection.where(condition, a, c), selection.where(condition, b, d))


def _sums(name: str) -> Callable[..., Any]:
    reduce = _new_parts(getattr(statistics, name))

    def function(x: Any, *, dtype: Any = None, **kwargs: Any) -> ComplexArray:
        x = x if dtype is None else to_complex(x, dtype, name)
        return ComplexArray(*(reduce(part, **kwargs) for part in _parts(x)))

    on_complex(name)(function)
    return function


_sum, _ = _sums("sum"), _sums("cumulative_sum")


@on_complex("linalg.trace")
def _trace(x: Any, *, offset: int = 0, dtype: Any = None) -> ComplexArray:
    x = x if dtype is None else to_complex(x, dtype, "trace")
    return ComplexArray(*(linalg.trace(part, offset=offset) for part in _parts(x)))


@on_complex("prod")
def _prod(x: Any, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> ComplexArray:
    x = x if dtype is None else to_complex(x, dtype, "prod")
    axes = sorted(axes_of(axis, x.ndim, "prod"))
    kept = [at for at in range(x.ndim) if at not in axes]
    parts = [manipulation.permute_dims(part, [*kept, *axes]) if x.ndim else part for part in _parts(x)]
    shape = [x.shape[at] for at in kept]
    count = math.prod(x.shape[at] for at in axes)
    factors = ComplexArray(*(manipulation.reshape(part, [*shape, count]) for part in parts))
    result = complex_of(creation.ones(shape, dtype=x.real.dtype, device=x.context))
    while count:
        # Halves are multiplied with each other: log2(count) steps.
        half = count // 2
        if count % 2:
            result = _multiply(result, factors[..., count - 1])
        if half:
            factors = _multiply(factors[..., :half], factors[..., half : 2 * half])
        count = half
    final = [1 if at in axes else x.shape[at] for at in range(x.ndim)] if keepdims else shape
    return ComplexArray(*(manipulation.reshape(part, final) for part in _parts(result)))


@on_complex("cumulative_prod")
def _cumulative_prod(x: Any, *, axis: Any = None, dtype: Any = None, include_initial: bool = False) -> ComplexArray:
    x = x if dtype is None else to_complex(x, dtype, "cumulative_prod")
    require(axis is not None or x.ndim == 1, f"cumulative_prod: axis must be given for {x.desc}")
    at = axis_of(axis or 0, x.ndim, "cumulative_prod")
    front: tuple[Any, ...] = (slice(None),) * at
    running, product = [], None
    for position in range(x.shape[at]):
        factor = x[(*front, slice(position, position + 1))]
        product = factor if product is None else _multiply(product, factor)
        running.append(product)
    if include_initial or not running:
        shape = [*x.shape[:at], 1 if include_initial else 0, *x.shape[at + 1 :]]
        running.insert(0, complex_of(creation.ones(shape, dtype=x.real.dtype, device=x.context)))
    return ComplexArray(
        manipulation.concat([y.real for y in running], axis=at),
        manipulation.concat([y.imag for y in running], axis=at),
    )


def _is_not_zero(x: Any) -> Array:
    return as_mask(ops.logical_or(ops.not_equal(x.real, 0.0), ops.not_equal(x.imag, 0.0)))


for _test in (statistics.all, statistics.any, statistics.count_nonzero):
    on_complex(_test.__name__)(lambda x, _test=_test, **kwargs: _test(_is_not_zero(x), **kwargs))


# ---------------------------------------------------------------------------------------------------------------------
# Products


def _bilinear(product: Callable[..., Array], name: str, conjugates: bool = False) -> None:
    def function(x1: Any, x2: Any, **kwargs: Any) -> ComplexArray:
        (a, b), (c, d) = map(_parts, promote_complex(name, x1, x2))
        b = ops.neg(b) if conjugates else b
        return ComplexArray(
            ops.sub(product(a, c, **kwargs), product(b, d, **kwargs)),
            ops.add(product(a, d, **kwargs), product(b, c, **kwargs)),
        )

    on_complex(name)(function)
    on_complex(f"linalg.{name}")(function)


_bilinear(products.matmul, "matmul")
_bilinear(products.tensordot, "tensordot")
_bilinear(products.vecdot, "vecdot", conjugates=True)
_bilinear(linalg.outer, "outer")
_bilinear(linalg.cross, "cross")


@on_complex("linalg.vector_norm")
def _vector_norm(x: Any, **kwargs: Any) -> Array:
    return linalg.vector_norm(_abs(x), **kwargs)


# ---------------------------------------------------------------------------------------------------------------------
# Creation and conversion


def to_complex(x: Any, dtype: Any, name: str) -> ComplexArray:
    """Convert an array of any data type to a complex one."""
    target = as_dtype(dtype, name, takes_complex=True)
    require(target in PART_OF, f"{name}: complex numbers cannot become {target}; xp.real and xp.imag are the parts")
    if not isinstance(x, ComplexArray):
        return complex_of(convert(as_array(x, name), PART_OF[target]))
    return as_complex(x, name, target)


@on_complex("astype")
def _astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    target = as_dtype(dtype, "astype", takes_complex=True)
    if target == bool_:
        mask = _is_not_zero(x)
        return mask if device is None else mask.to_device(device)
    result = to_complex(x, target, "astype")
    result = result if device is None else result.to_device(device)
    return +result if copy and result is x else result


@on_complex("asarray")
def _asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    target = None if dtype is None else as_dtype(dtype, "asarray", takes_complex=True)
    if isinstance(obj, (ComplexArray, Array)):
        result = obj if target is None else to_complex(obj, target, "asarray")
        result = result if device is None else result.to_device(device)
        if copy is False and result is not obj:
            raise ValueError(f"asarray: {obj.desc} cannot become complex without a copy")
        return +result if copy and result is obj else result
    if copy is False:
        raise ValueError("asarray: the parts of complex numbers are apart, so that they cannot share memory")
    values = np.asarray(obj)
    if target is None:
        target = values.dtype if hasattr(obj, "dtype") and values.dtype.kind == "c" else np.dtype("complex64")
    require(target in PART_OF, f"asarray: complex numbers cannot become {target}")
    return from_numpy(values.astype(target), device, "asarray")


@on_complex("from_dlpack")
def _from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    return _asarray(x, device=device, copy=copy)


@on_complex("full")
def _full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> ComplexArray:
    target = np.dtype("complex64") if dtype is None else as_dtype(dtype, "full", takes_complex=True)
    require(target in PART_OF, f"full: {short_repr(fill_value)} is not a value of {target}")
    number, part = complex(fill_value), PART_OF[target]
    return ComplexArray(*(creation.full(shape, v, dtype=part, device=device) for v in (number.real, number.imag)))


def _creation(name: str, value: Any) -> None:
    def create(shape: Any, *, dtype: Any, device: Any = None) -> ComplexArray:
        return _full(shape, value, dtype=dtype, device=device)

    def create_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
        return _full_like(x, value, dtype=dtype, device=device)

    on_complex(name)(create)
    on_complex(f"{name}_like")(create_like)


@on_complex("full_like")
def _full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    target = x.dtype if dtype is None else as_dtype(dtype, "full_like", takes_complex=True)
    place = device or x.context
    if target.kind == "c":
        return _full(x.shape, fill_value, dtype=target, device=place)
    require(not np.iscomplexobj(fill_value), f"full_like: {short_repr(fill_value)} is not a value of {target}")
    return creation.full(x.shape, fill_value, dtype=target, device=place)


for _name, _value in (("zeros", 0), ("ones", 1), ("empty", 0)):
    _creation(_name, _value)


@on_complex("eye")
def _eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any, device: Any = None) -> ComplexArray:
    return to_complex(creation.eye(n_rows, n_cols, k=k, device=device), dtype, "eye")


@on_complex("linspace")
def _linspace(
    start: complex, stop: complex, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> ComplexArray:
    target = np.dtype("complex64") if dtype is None else as_dtype(dtype, "linspace", takes_complex=True)
    require(target in PART_OF, f"linspace: complex numbers cannot become {target}")
    require(num >= 0, f"linspace: num must not be negative, got {num}")
    return from_numpy(np.linspace(start, stop, num, endpoint).astype(target), device, "linspace")


@on_complex("nonzero")
def _nonzero(x: Any) -> Any:
    return indexing.nonzero(_is_not_zero(x))


def _unique(name: str) -> None:
    def function(x: Any, /) -> Any:
        result = getattr(np, name)(x.numpy())
        kind = {
            "unique_all": indexing.UniqueAllResult, "unique_counts": indexing.UniqueCountsResult,
            "unique_inverse": indexing.UniqueInverseResult,
        }.get(name)  # fmt: skip
        values, *others = (result,) if kind is None else result
        array = from_numpy(values, x.context, name)
        if kind is None:
            return array
        return kind(array, *(array_of(other.astype(np.int32), x.context, name) for other in others))

    on_complex(name)(function)


for _name in ("unique_all", "unique_counts", "unique_inverse", "unique_values"):
    _unique(_name)

__all__ = ["as_complex", "complex_of", "joined", "promote_complex", "to_complex"]
