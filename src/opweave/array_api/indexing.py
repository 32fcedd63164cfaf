"""Indices by positions and truth values, assignment to elements, and functions whose shapes depend on values.

Shapes are known when a call is recorded. What determines one, such as a mask, is therefore computed at once; elements that are
selected by it stay pending.

https://data-apis.org/array-api/latest/API_specification/indexing.html
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..lazy.array import Array
from ..lazy.assignment import copy_of, replace_values, require_assignable
from ..support.errors import ValidationError, require
from ..support.names import short_repr
from .arguments import as_array, convert, of_type, promote_operands
from .conversion import array_of
from .creation import zeros
from .manipulation import broadcast_arrays, broadcast_to, reshape, stack
from .selection import positions_of, take, where
from .types import bool as bool_, int32


def _index(x: Array, items: tuple[Any, ...]) -> Array:
    """Return `x[items]`, with arrays among the items. Positions along one axis, or along the first axes, stay pending."""
    if all(isinstance(item, (Array, int)) and getattr(item, "dtype", int32).kind in "iu" for item in items) and not any(
        isinstance(item, bool) for item in items
    ):
        return _at_positions(x, items)
    arrays = [at for at, item in enumerate(items) if isinstance(item, Array)]
    if len(arrays) == 1 and items[arrays[0]].dtype.kind in "iu":
        (at,) = arrays
        if len(items) <= x.rank and all(
            isinstance(item, slice) and item == slice(None) for number, item in enumerate(items) if number != at
        ):
            return take(x, items[at], axis=at)
    return _select(x, _flat_positions(x.shape, items, "an index"))


def _at_positions(x: Array, items: Sequence[Any]) -> Array:
    """Return the elements at positions along the first axes."""
    if len(items) == 1:
        return take(x, items[0], axis=0)
    require(len(items) <= x.rank, f"an array of shape {list(x.shape)} takes {x.rank} indices, got {len(items)}")
    arrays = [array_of(np.array(i, np.int32), x.context, "an index") if isinstance(i, int) else i for i in items]
    positions = [positions_of(array) for array in arrays]
    (*aligned,), _ = promote_operands("an index", "integral", *positions)
    return of_type(ops.gather_nd(x, stack(broadcast_arrays(*aligned), axis=-1)), x.dtype)


def _select(x: Array, positions: np.ndarray) -> Array:
    if not positions.size:
        return zeros(positions.shape, dtype=x.dtype, device=x.context)
    return of_type(ops.gather(ops.reshape(x, [x.size]), positions), x.dtype)


def _flat_positions(shape: Sequence[int], items: Sequence[Any], name: str) -> np.ndarray:
    """Return the positions of the elements that an index selects, in the flattened array. Arrays in the index are computed."""
    for item in items:
        if isinstance(item, (bool, np.bool_)):
            raise ValidationError(f"{name}: takes positions, slices and arrays, got {short_repr(item)}")
    values = tuple(item.numpy() if isinstance(item, Array) else item for item in items)
    numbers = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    try:
        positions = numbers[values]
        return np.ascontiguousarray(positions).reshape(np.shape(positions))
    except (IndexError, ValueError, TypeError) as error:
        raise ValidationError(f"{name}: an array of shape {list(shape)}: {error}, got {short_repr(items)}") from None


# ---------------------------------------------------------------------------------------------------------------------
# Assignment


def _set_item(x: Array, items: tuple[Any, ...], value: Any) -> None:
    """Replace the elements of `x` that `items` select; see `Array.__setitem__`."""
    require_assignable(x)
    new = _value_for(x, value)
    (mask,) = items if len(items) == 1 else (None,)
    if isinstance(mask, Array) and mask.dtype == bool_ and mask.shape == x.shape and new.size == 1 and mask is not x:
        replace_values(x, lambda old: where(mask, reshape(new, ()), old))
        return
    positions = _flat_positions(x.shape, items, "x[key] = value")
    extra = new.rank - positions.ndim
    if extra > 0 and new.shape[:extra] == (1,) * extra:
        new = reshape(new, new.shape[extra:])
    try:
        fits = np.broadcast_shapes(new.shape, positions.shape) == positions.shape
    except ValueError:
        fits = False
    require(
        fits,
        f"x[key] = value: a value of shape {list(new.shape)} does not broadcast to the selected elements "
        f"{list(positions.shape)} of an array of shape {list(x.shape)}",
    )
    if not positions.size:
        return
    if positions.size == x.size and _is_in_order(positions):
        replace_values(x, lambda old: reshape(_apart(broadcast_to(new, positions.shape)), old.shape))
        return
    wide = reshape(broadcast_to(new, positions.shape), (positions.size,))
    flat = positions.reshape(-1)
    _, last = np.unique(flat[::-1], return_index=True)
    if last.size < flat.size:
        # As in NumPy, the last of several values for one element counts.
        last = flat.size - 1 - last
        flat, wide = flat[last], of_type(ops.gather(wide, last.astype(np.int32)), x.dtype)
    replace_values(
        x,
        lambda old: of_type(
            ops.reshape(ops.scatter_elements(ops.reshape(old, [old.size]), flat, wide), old.shape), x.dtype
        ),
    )


def _is_in_order(positions: np.ndarray) -> bool:
    flat = positions.reshape(-1)
    return bool((flat[1:] > flat[:-1]).all())


def _apart(x: Array) -> Array:
    """Return a new array with the same values."""
    return of_type(ops.identity(x), x.dtype)


def _value_for(x: Array, value: Any) -> Array:
    """Return a value in the data type and context of `x`, converted as NumPy does."""
    if isinstance(value, Array):
        if value.context is not x.context:
            raise ValidationError(f"x[key] = value: the array is in {x.context}, and the value in {value.context}")
        # If the value is `x`, the new values of `x` would depend on themselves: copy it.
        return convert(copy_of(value) if value is x else value, x.dtype)
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "biuf":
        raise ValidationError(f"x[key] = value: takes numbers for an array of {x.dtype}, got {short_repr(value)}")
    if numbers.dtype.kind in "iu" and x.dtype.kind in "iu" and numbers.size:
        info = np.iinfo(x.dtype)
        low, high = int(numbers.min()), int(numbers.max())
        fits = info.min <= low and high <= info.max
        require(fits, f"x[key] = value: {x.dtype} does not hold {low if low < info.min else high}")
    with np.errstate(invalid="ignore", over="ignore"):
        return array_of(numbers.astype(x.dtype), x.context, "x[key] = value")


# ---------------------------------------------------------------------------------------------------------------------
# Functions whose shapes depend on values


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """Find the positions of the elements that are not zero. The array is computed at once: its values determine the shape.

    Args:
        x: an array of any data type, of one dimension or more.

    Returns: An int32 array for each axis, with the positions along this axis, in the order of the flattened array.
    Raises: `x` is a scalar.

    >>> [positions.tolist() for positions in xp.nonzero(xp.asarray([[0, 1], [2, 0]]))]
    [[0, 1], [1, 0]]
    """
    x = as_array(x, "nonzero")
    require(x.rank > 0, f"nonzero: takes arrays of one dimension or more, got {x.desc}")
    return tuple(_positions(positions, x) for positions in np.nonzero(x.numpy()))


def _positions(positions: np.ndarray, like: Array) -> Array:
    return array_of(positions.astype(np.int32), like.context, "positions")


class UniqueAllResult(NamedTuple):
    """Different values, where each is first, the value of each element, and how often each occurs."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCountsResult(NamedTuple):
    """Different values, and how often each occurs."""

    values: Array
    counts: Array


class UniqueInverseResult(NamedTuple):
    """Different values, and the position of each element's value among them."""

    values: Array
    inverse_indices: Array


def unique_all(x: Array, /) -> UniqueAllResult:
    """Find the different values, where they are, and how often each occurs. The array is computed at once.

    Returns: A named tuple: `values`, sorted, in the data type of `x`; `indices`, where each is first; `inverse_indices`,
        for each element the position of its value in `values`; `counts`. Positions and counts are int32. Each NaN is a
        value of its own.

    >>> values, indices, inverse, counts = xp.unique_all(xp.asarray([3, 1, 3]))
    >>> values.tolist(), indices.tolist(), inverse.tolist(), counts.tolist()
    ([1, 3], [1, 0], [1, 0, 1], [1, 2])
    """
    x = as_array(x, "unique_all")
    values, indices, inverse, counts = np.unique_all(x.numpy())
    return UniqueAllResult(
        array_of(values, x.context, "unique_all"), _positions(indices, x), _positions(inverse, x), _positions(counts, x)
    )


def unique_counts(x: Array, /) -> UniqueCountsResult:
    """Find the different values, and how often each occurs. The array is computed at once.

    Returns: A named tuple: `values`, sorted, in the data type of `x`, and `counts`, int32. Each NaN is a value of its own.

    >>> values, counts = xp.unique_counts(xp.asarray([3, 1, 3]))
    >>> values.tolist(), counts.tolist()
    ([1, 3], [1, 2])
    """
    values, _, _, counts = unique_all(as_array(x, "unique_counts"))
    return UniqueCountsResult(values, counts)


def unique_inverse(x: Array, /) -> UniqueInverseResult:
    """Find the different values, and which of them each element has. The array is computed at once.

    Returns: A named tuple: `values`, sorted, in the data type of `x`, and `inverse_indices`, int32, in the shape of `x`.
        Each NaN is a value of its own.

    >>> values, inverse = xp.unique_inverse(xp.asarray([3, 1, 3]))
    >>> values.tolist(), inverse.tolist()
    ([1, 3], [1, 0, 1])
    """
    values, _, inverse, _ = unique_all(as_array(x, "unique_inverse"))
    return UniqueInverseResult(values, inverse)


def unique_values(x: Array, /) -> Array:
    """Find the different values. The array is computed at once.

    Returns: An array [values], sorted, in the data type of `x`. Each NaN is a value of its own.

    >>> xp.unique_values(xp.asarray([3, 1, 3])).tolist()
    [1, 3]
    """
    return unique_all(as_array(x, "unique_values")).values


__all__ = ["nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"]
