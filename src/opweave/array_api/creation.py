"""Functions of the standard that make arrays of given values.

https://data-apis.org/array-api/latest/API_specification/creation_functions.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..context.context import MLContext
from ..lazy.array import Array
from ..support.errors import ValidationError, require
from ..support.names import short_repr
from .arguments import INTEGERS, as_array, of_type
from .conversion import array_of
from .types import as_dtype, bool as bool_, float32, int32, isdtype

Shape = int | Sequence[int]


def full(shape: Shape, fill_value: float, *, dtype: Any = None, device: MLContext | None = None) -> Array:
    """Make an array in which all elements have the same value.

    Args:
        dtype: data type of the result; default: that of the value: bool, int32 or float32.

    Raises: the data type cannot hold the value; an invalid shape, data type or context.

    >>> xp.full([2, 2], 7).tolist()
    [[7, 7], [7, 7]]
    """
    number = fill_value.item() if hasattr(fill_value, "item") else fill_value
    kind = bool_ if isinstance(number, bool) else int32 if isinstance(number, int) else float32
    target = kind if dtype is None else as_dtype(dtype, "full")
    sizes = (shape,) if isinstance(shape, INTEGERS) else tuple(shape)
    try:
        value = np.array(number).astype(target) if target.kind in "fb" else np.array(number, target)
    except (OverflowError, ValueError):
        raise ValidationError(f"full: {short_repr(fill_value)} is not a value of {target}") from None
    return array_of(np.full(sizes, value, target), device, "full")


def zeros(shape: Shape, *, dtype: Any = None, device: MLContext | None = None) -> Array:
    """Make an array of zeros.

    >>> xp.zeros([2, 2]).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return full(shape, 0, dtype=float32 if dtype is None else dtype, device=device)


def ones(shape: Shape, *, dtype: Any = None, device: MLContext | None = None) -> Array:
    """Make an array of ones.

    >>> xp.ones([2, 2]).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return full(shape, 1, dtype=float32 if dtype is None else dtype, device=device)


def empty(shape: Shape, *, dtype: Any = None, device: MLContext | None = None) -> Array:
    """Make an array whose values are not specified (Opweave uses zeros).

    >>> xp.empty([2, 3]).shape
    (2, 3)
    """
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Array, /, fill_value: float, *, dtype: Any = None, device: MLContext | None = None) -> Array:
    """Make an array in which all elements have the same value, in the shape, data type and context of `x`.

    Raises: `x` is not an array; the data type cannot hold the value; an invalid data type or context.

    >>> xp.full_like(xp.asarray([1.0, 2.0]), 7).tolist()
    [7.0, 7.0]
    """
    x = as_array(x, "full_like")
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.context)


def zeros_like(x: Array, /, *, dtype: Any = None, device: MLContext | None = None) -> Array:
    """Make an array of zeros, in the shape, data type and context of `x`.

    >>> xp.zeros_like(xp.asarray([1, 2])).tolist()
    [0, 0]
    """
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Array, /, *, dtype: Any = None, device: MLContext | None = None) -> Array:
    """Make an array of ones, in the shape, data type and context of `x`.

    >>> xp.ones_like(xp.asarray([1, 2])).tolist()
    [1, 1]
    """
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Array, /, *, dtype: Any = None, device: MLContext | None = None) -> Array:
    """Make an array whose values are not specified, in the shape, data type and context of `x`.

    >>> xp.empty_like(xp.asarray([1, 2])).shape
    (2,)
    """
    return full_like(x, 0, dtype=dtype, device=device)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: MLContext | None = None,
) -> Array:
    """Make evenly spaced numbers in [start, stop), or in [0, start) if `stop` is not given.

    Args:
        start: the first number, or the end if `stop` is not given.
        stop: the end, which is not included.
        step: the distance between neighbours; may be negative.
        dtype: data type of the result; default: int32, or float32 if an argument is a float.

    Returns: An array of one dimension.
    Raises: the step is 0, or the data type cannot hold the numbers.

    >>> xp.arange(5).tolist()
    [0, 1, 2, 3, 4]
    >>> xp.arange(1.0, 2.0, 0.25).tolist()
    [1.0, 1.25, 1.5, 1.75]
    """
    bounds = (start, stop, step)
    kind = float32 if any(isinstance(value, (float, np.floating)) for value in bounds) else int32
    target = kind if dtype is None else as_dtype(dtype, "arange")
    require(step != 0, f"arange: step must not be 0, got {step}")
    values = np.arange(*((start, stop, step) if stop is not None else (0, start, step)))
    if values.size and isdtype(target, "integral"):
        info = np.iinfo(target)
        low, high = values.min(), values.max()
        fits = info.min <= low and high <= info.max
        require(fits, f"arange: {target} does not hold numbers from {low} to {high}")
    return array_of(values.astype(target), device, "arange")


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: MLContext | None = None,
    endpoint: bool = True,
) -> Array:
    """Make `num` evenly spaced numbers from `start` to `stop`.

    Args:
        start: the first number.
        stop: the end.
        num: the number of elements.
        endpoint: whether `stop` is the last number; otherwise, it is not included.

    Returns: An array [num].
    Raises: `num` is negative; an invalid data type or context.

    >>> xp.linspace(0.0, 1.0, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    require(num >= 0, f"linspace: num must not be negative, got {num}")
    target = float32 if dtype is None else as_dtype(dtype, "linspace")
    return array_of(np.linspace(start, stop, num, endpoint).astype(target), device, "linspace")


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: MLContext | None = None
) -> Array:
    """Make a matrix with ones on one diagonal, and zeros elsewhere.

    Args:
        n_rows: number of rows.
        n_cols: number of columns; default: `n_rows`.
        k: the diagonal: 0 is the main one, positive numbers are above it, negative ones below.

    Returns: An array [n_rows, n_cols].
    Raises: an invalid size, data type or context.

    >>> xp.eye(2, 3, k=1).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    target = float32 if dtype is None else as_dtype(dtype, "eye")
    return array_of(np.eye(n_rows, n_cols, k, target), device, "eye")


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Make coordinate grids from the coordinates along each axis.

    Args:
        arrays: the coordinates along each axis, of one dimension each.
        indexing: "xy" puts the second array on the first axis (rows), and the first one on the second axis; "ij" keeps the
            order of the arrays.

    Returns: An array for each of `arrays`, with the same data type and the rank `len(arrays)`.
    Raises: an array does not have one dimension, or `indexing` is neither "xy" nor "ij".

    >>> x, y = xp.meshgrid(xp.asarray([1, 2, 3]), xp.asarray([10, 20]))
    >>> x.tolist(), y.tolist()
    ([[1, 2, 3], [1, 2, 3]], [[10, 10, 10], [20, 20, 20]])
    """
    require(indexing in ("xy", "ij"), f"meshgrid: indexing must be 'xy' or 'ij', got {short_repr(indexing)}")
    rank, arrays = len(arrays), tuple(as_array(x, "meshgrid") for x in arrays)
    lines = []
    for x in arrays:
        require(x.rank == 1, f"meshgrid: takes arrays of one dimension, got {x.desc}")
    order = list(range(rank))
    if indexing == "xy" and rank > 1:
        order[:2] = [1, 0]
    shape = [0] * rank
    for x, axis in zip(arrays, order, strict=True):
        shape[axis] = x.shape[0]
    for x, axis in zip(arrays, order, strict=True):
        line = ops.reshape(x, [x.shape[0] if at == axis else 1 for at in range(rank)])
        lines.append(of_type(ops.expand(line, shape), x.dtype))
    return lines


def _triangle(name: str, x: Any, k: int, upper: bool) -> Array:
    x = as_array(x, name)
    require(x.rank >= 2, f"{name}: takes matrices, got {x.desc}")
    return of_type(ops.triangular(x, upper=upper, diagonal=k), x.dtype)


def tril(x: Array, /, *, k: int = 0) -> Array:
    """Keep the lower triangle of each matrix, and set all other elements to zero.

    Args:
        k: the last diagonal to keep: 0 is the main one, positive numbers are above it, negative ones below.

    >>> xp.tril(xp.asarray([[1, 2], [3, 4]])).tolist()
    [[1, 0], [3, 4]]
    """
    return _triangle("tril", x, k, upper=False)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """Keep the upper triangle of each matrix, and set all other elements to zero.

    Args:
        k: the first diagonal to keep: 0 is the main one, positive numbers are above it, negative ones below.

    >>> xp.triu(xp.asarray([[1, 2], [3, 4]])).tolist()
    [[1, 2], [0, 4]]
    """
    return _triangle("triu", x, k, upper=True)


__all__ = [
    "arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "meshgrid", "ones", "ones_like", "tril",
    "triu", "zeros", "zeros_like",
]  # fmt: skip
