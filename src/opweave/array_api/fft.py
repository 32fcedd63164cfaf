"""The extension `fft` of the standard: Fourier transforms by the composite `dft`, and in float64 by NumPy.

https://data-apis.org/array-api/latest/extensions/fourier_transform_functions.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from .. import ops
from ..composites import dft
from ..context.context import MLContext
from ..core.dtypes import FLOAT64, FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits
from ..lazy.array import Array
from ..support.errors import ValidationError, require
from ..support.names import short_repr
from .arguments import INTEGERS, as_array, axes_of, axis_of
from .complex_array import ComplexArray
from .complex_numbers import as_complex, joined
from .conversion import array_of
from .docs import complete
from .host import on_host
from .manipulation import expand_dims, reshape, roll
from .public import on_complex, publish
from .types import as_dtype, float32, isdtype

Norm = Literal["backward", "ortho", "forward"]

_NORMS = ("backward", "ortho", "forward")
_PART = Limits(FLOATS)


# ---------------------------------------------------------------------------------------------------------------------
# One transform along one axis


def _shape_with(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _host_rule(
    self: Builder,
    real: Operand,
    imag: Operand | None = None,
    *,
    n: int,
    axis: int,
    inverse: bool,
    onesided: bool,
    label: str = "",
) -> tuple[Desc, ...]:
    size = n // 2 + 1 if onesided and not inverse else n
    desc = Desc(real.data_type, _shape_with(real.shape, axis, size))
    return (desc,) if onesided and inverse else (desc, desc)


def _host_kernel(
    real: np.ndarray, imag: np.ndarray | None, n: int, axis: int, inverse: bool, onesided: bool, out: Any
) -> None:
    values = real if imag is None else joined(real, imag)
    compute: Any = {
        (False, False): np.fft.fft,
        (True, False): np.fft.ifft,
        (False, True): np.fft.rfft,
        (True, True): np.fft.irfft,
    }
    result = compute[inverse, onesided](values, n, axis)
    if isinstance(out, tuple) and len(out) == 2:
        out[0][...], out[1][...] = result.real, result.imag
    else:
        (out[0] if isinstance(out, tuple) else out)[...] = result


_host_transform = on_host("fft", _host_rule, _host_kernel, real=_PART, imag=Limits("real"))


def _length_of(n: Any, default: int, name: str) -> int:
    count = default if n is None else n
    if isinstance(count, bool) or not isinstance(count, INTEGERS) or count < 1:
        raise ValidationError(f"{name}: the length must be a positive integer, got {short_repr(count)}")
    return int(count)


def _scale(result: Any, norm: str, n: int, inverse: bool, name: str) -> Any:
    """Scale a transform, which is divided by its length if it is an inverse one."""
    require(norm in _NORMS, f"{name}: norm must be 'backward', 'ortho' or 'forward', got {short_repr(norm)}")
    factors = {
        "backward": 1.0,
        "ortho": math.sqrt(n) if inverse else 1 / math.sqrt(n),
        "forward": n if inverse else 1 / n,
    }
    factor = float(factors[norm])
    if factor == 1:
        return result
    if isinstance(result, ComplexArray):
        return ComplexArray(ops.mul(result.real, factor), ops.mul(result.imag, factor))
    return ops.mul(result, factor)


def _transform(x: Any, n: int, at: int, norm: str, name: str, *, inverse: bool = False, onesided: bool = False) -> Any:
    """Transform an array along one axis; complex, but for a one-sided inverse transform."""
    real, imag = (x.real, x.imag) if isinstance(x, ComplexArray) else (x, None)
    if real.data_type == FLOAT64:
        operands = (real,) if imag is None else (real, imag)
        parts = _host_transform(*operands, n=n, axis=at, inverse=inverse, onesided=onesided)
    else:
        real = ops.cast(real, "float32") if real.data_type == "float16" else real
        columns = [expand_dims(part, real.rank) for part in (real, imag) if part is not None]
        stacked = ops.concat(columns, real.rank) if len(columns) == 2 else columns[0]
        result = dft(stacked, n, axis=at, inverse=inverse, onesided=onesided)
        shape, count = result.shape[:-1], result.shape[-1]
        pieces = ops.split(result, [1] * count, axis=result.rank - 1) if count > 1 else [result]
        parts = tuple(reshape(piece, shape) for piece in pieces)
    output = parts[0] if len(parts) == 1 else ComplexArray(*parts)
    return _scale(output, norm, n, inverse, name)


def _floats(x: Any, name: str, takes_complex: bool = True) -> Any:
    if isinstance(x, ComplexArray):
        require(takes_complex, f"{name}: takes floats, got {x.desc}")
        return x
    if hasattr(x, "dtype") and x.dtype.kind == "c" and takes_complex:
        return as_complex(x, name)
    array = as_array(x, name)
    if array.dtype.kind != "f":
        raise ValidationError(
            f"{name}: takes floats{' or complex numbers' if takes_complex else ''}, got {array.dtype}"
        )
    return array


def _along(x: Any, axis: int, name: str) -> int:
    require(x.ndim > 0, f"{name}: takes arrays of one dimension or more, got {x.desc}")
    return axis_of(axis, x.ndim, name)


def _sizes_and_axes(
    x: Any, s: Sequence[int] | None, axes: Sequence[int] | None, name: str, halved: bool = False
) -> list[tuple[int, int]]:
    """Return the axis and the length of each transform, in the order of `axes`."""
    require(x.ndim > 0, f"{name}: takes arrays of one dimension or more, got {x.desc}")
    if axes is None:
        count = x.ndim if s is None else len(s)
        require(count <= x.ndim, f"{name}: s must have at most {x.ndim} elements, got {short_repr(s)}")
        axes = range(x.ndim - count, x.ndim)
    places = axes_of(tuple(axes), x.ndim, name)
    require(len(places) > 0, f"{name}: axes must have one element or more, got {short_repr(axes)}")
    sizes: Sequence[Any] = [None] * len(places) if s is None else [None if size == -1 else size for size in s]
    require(len(sizes) == len(places), f"{name}: s {short_repr(s)} and axes {places} have different lengths")
    lengths = []
    for number, (at, size) in enumerate(zip(places, sizes, strict=True)):
        is_last = number == len(places) - 1
        lengths.append((at, _length_of(size, 2 * (x.shape[at] - 1) if halved and is_last else x.shape[at], name)))
    return lengths


# ---------------------------------------------------------------------------------------------------------------------
# Complex transforms


def fft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> ComplexArray:
    """Compute the Fourier transform along an axis.

    Args:
        x: complex numbers or floats.

    >>> (xp.round(xp.fft.fft(xp.asarray([1.0, 2.0, 3.0, 4.0]))) + 0).tolist()
    [(10+0j), (-2+2j), (-2+0j), (-2-2j)]
    """
    x = _floats(x, "fft")
    at = _along(x, axis, "fft")
    result: ComplexArray = _transform(x, _length_of(n, x.shape[at], "fft"), at, norm, "fft")
    return result


def ifft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> ComplexArray:
    """Compute the inverse Fourier transform along an axis.

    Args:
        x: complex numbers or floats.

    >>> (xp.round(xp.fft.ifft(xp.asarray([10 + 0j, -2 + 2j, -2, -2 - 2j]))) + 0).tolist()
    [(1+0j), (2+0j), (3+0j), (4+0j)]
    """
    x = _floats(x, "ifft")
    at = _along(x, axis, "ifft")
    result: ComplexArray = _transform(x, _length_of(n, x.shape[at], "ifft"), at, norm, "ifft", inverse=True)
    return result


def fftn(
    x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> ComplexArray:
    """Compute the Fourier transform along several axes.

    Args:
        x: complex numbers or floats.

    >>> (xp.round(xp.fft.fftn(xp.asarray([[1.0, 2.0], [3.0, 4.0]]))) + 0).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    result = _floats(x, "fftn")
    for at, size in reversed(_sizes_and_axes(result, s, axes, "fftn")):
        result = _transform(result, size, at, norm, "fftn")
    return result  # type: ignore[no-any-return]


def ifftn(
    x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> ComplexArray:
    """Compute the inverse Fourier transform along several axes.

    Args:
        x: complex numbers or floats.

    >>> xp.fft.ifftn(xp.asarray([[8.0, 0.0], [0.0, 0.0]])).tolist()
    [[(2+0j), (2+0j)], [(2+0j), (2+0j)]]
    """
    result = _floats(x, "ifftn")
    for at, size in reversed(_sizes_and_axes(result, s, axes, "ifftn")):
        result = _transform(result, size, at, norm, "ifftn", inverse=True)
    return result  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------------------------
# Transforms of real numbers


def rfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> ComplexArray:
    """Compute the Fourier transform of real numbers along an axis: the frequencies [0, n // 2], which determine the others.

    Args:
        x: floats.

    >>> (xp.round(xp.fft.rfft(xp.asarray([1.0, 2.0, 3.0, 4.0]))) + 0).tolist()
    [(10+0j), (-2+2j), (-2+0j)]
    """
    x = _floats(x, "rfft", takes_complex=False)
    at = _along(x, axis, "rfft")
    result: ComplexArray = _transform(x, _length_of(n, x.shape[at], "rfft"), at, norm, "rfft", onesided=True)
    return result


def irfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Compute the inverse of `rfft` along an axis: real numbers.

    Args:
        x: complex numbers or floats: the frequencies [0, n // 2].
        n: the number of results along the axis; default: 2 * (frequencies - 1).

    Returns: An array of floats, n long along the axis.

    >>> xp.round(xp.fft.irfft(xp.asarray([10 + 0j, -2 + 2j, -2]))).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    x = _floats(x, "irfft")
    at = _along(x, axis, "irfft")
    count = _length_of(n, 2 * (x.shape[at] - 1), "irfft")
    result: Array = _transform(x, count, at, norm, "irfft", inverse=True, onesided=True)
    return result


def rfftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> ComplexArray:
    """Compute the Fourier transform of real numbers along several axes; along the last one, `rfft`.

    Args:
        x: floats.

    >>> (xp.round(xp.fft.rfftn(xp.asarray([[1.0, 2.0], [3.0, 4.0]]))) + 0).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    x = _floats(x, "rfftn", takes_complex=False)
    *others, (last, length) = _sizes_and_axes(x, s, axes, "rfftn")
    result = _transform(x, length, last, norm, "rfftn", onesided=True)
    for at, size in reversed(others):
        result = _transform(result, size, at, norm, "rfftn")
    return result  # type: ignore[no-any-return]


def irfftn(
    x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """Compute the inverse of `rfftn` along several axes: real numbers.

    Args:
        x: complex numbers or floats.
        s: the number of results along each axis; default: those of `x`, and 2 * (frequencies - 1) along the last one.

    Returns: An array of floats.

    >>> xp.fft.irfftn(xp.asarray([[4.0, 0.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    result = _floats(x, "irfftn")
    *others, (last, length) = _sizes_and_axes(result, s, axes, "irfftn", halved=True)
    for at, size in others:
        result = _transform(result, size, at, norm, "irfftn", inverse=True)
    real: Array = _transform(result, length, last, norm, "irfftn", inverse=True, onesided=True)
    return real


_OPPOSITE = {"backward": "forward", "forward": "backward"}


def hfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Compute the Fourier transform of a Hermitian signal along an axis: real numbers.

    Args:
        x: complex numbers or floats: the elements [0, n // 2] of the signal.
        n: the number of results along the axis; default: 2 * (elements - 1).

    Returns: An array of floats, n long along the axis.

    >>> xp.round(xp.fft.hfft(xp.asarray([1 + 0j, 2j, 3]))).tolist()
    [4.0, 2.0, 4.0, -6.0]
    """
    x = as_complex(_floats(x, "hfft"), "hfft")
    at = _along(x, axis, "hfft")
    conjugate = ComplexArray(x.real, ops.neg(x.imag))
    count = _length_of(n, 2 * (x.shape[at] - 1), "hfft")
    result: Array = _transform(conjugate, count, at, _OPPOSITE.get(norm, norm), "hfft", inverse=True, onesided=True)
    return result


def ihfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> ComplexArray:
    """Compute the inverse of `hfft` along an axis: the elements [0, n // 2] of a Hermitian signal.

    Args:
        x: floats.

    >>> xp.round(xp.fft.ihfft(xp.asarray([4.0, 2.0, 4.0, -6.0]))).tolist()
    [(1-0j), 2j, (3-0j)]
    """
    x = _floats(x, "ihfft", takes_complex=False)
    at = _along(x, axis, "ihfft")
    count = _length_of(n, x.shape[at], "ihfft")
    result = _transform(x, count, at, _OPPOSITE.get(norm, norm), "ihfft", onesided=True)
    return ComplexArray(result.real, ops.neg(result.imag))


# ---------------------------------------------------------------------------------------------------------------------
# Frequencies and their order


def _frequencies(name: str, n: int, d: float, dtype: Any, device: Any) -> Array:
    target = float32 if dtype is None else as_dtype(dtype, name)
    require(isdtype(target, "real floating"), f"{name}: dtype must be a type of floats, got {target}")
    require(d != 0, f"{name}: d must not be 0, got {d}")
    compute = np.fft.fftfreq if name == "fftfreq" else np.fft.rfftfreq
    return array_of(compute(_length_of(n, n, name), d).astype(target), device, name)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: MLContext | None = None) -> Array:
    """Make the frequencies of `fft`, in cycles per unit: 0, the positive ones, then the negative ones.

    Args:
        n: the length of the transform.
        d: the distance of two samples.

    Returns: An array [n].
    Raises: `n` is not positive, `d` is 0, or an invalid data type or context.

    >>> xp.fft.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _frequencies("fftfreq", n, d, dtype, device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: MLContext | None = None) -> Array:
    """Make the frequencies of `rfft`, in cycles per unit.

    Args:
        n: the length of the transform.
        d: the distance of two samples.

    Returns: An array [n // 2 + 1].
    Raises: `n` is not positive, `d` is 0, or an invalid data type or context.

    >>> xp.fft.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    return _frequencies("rfftfreq", n, d, dtype, device)


def _shift(x: Any, axes: int | Sequence[int] | None, name: str, by: Any) -> Any:
    x = x if isinstance(x, ComplexArray) else as_array(x, name)
    places = axes_of(axes if axes is None or isinstance(axes, INTEGERS) else tuple(axes), x.ndim, name)
    if not places:
        return +x if isinstance(x, ComplexArray) else x
    shifts = [by(x.shape[at]) for at in places]
    if isinstance(x, ComplexArray):
        return ComplexArray(*(roll(+part, shifts, axis=places) for part in (x.real, x.imag)))
    return roll(x, shifts, axis=places)


def fftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Any:
    """Move the frequency 0 to the middle of axes.

    Args:
        x: an array of any data type.

    Returns: An array of the shape and data type of `x`.
    Raises: an axis is out of range, or occurs twice.

    >>> xp.fft.fftshift(xp.fft.fftfreq(4)).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return _shift(x, axes, "fftshift", lambda size: size // 2)


def ifftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Any:
    """Move the frequency 0 from the middle of axes to their start: the inverse of `fftshift`.

    Args:
        x: an array of any data type.

    Returns: An array of the shape and data type of `x`.
    Raises: an axis is out of range, or occurs twice.

    >>> xp.fft.ifftshift(xp.asarray([-0.5, -0.25, 0.0, 0.25])).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _shift(x, axes, "ifftshift", lambda size: -(size // 2))


__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip

complete({name: globals()[name] for name in __all__})
for _name in __all__:
    on_complex(f"fft.{_name}")(globals()[_name])
publish(globals(), __all__, "fft.")
