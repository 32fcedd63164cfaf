"""Positions and layouts, as several rules need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....expr import Array, clamp, compute, where
from ....expr.ir import Cast

Positions = Mapping[str, Any]
"""A position along each axis, by the letter of the axis in a layout."""


def sizes_of(array: Array, layout: str) -> dict[str, int]:
    """The size of each axis by its letter."""
    return dict(zip(layout, array.shape, strict=True))


def at(array: Array, layout: str, positions: Positions) -> Array:
    """The element at positions that are inside."""
    return array[tuple(positions[letter] for letter in layout)]


def computed(layout: str, sizes: Mapping[str, int], element: Callable[[dict[str, Array]], Array]) -> Array:
    """An array whose axes have letters: `element` takes the position along each of them."""
    shape = [sizes[letter] for letter in layout]
    return compute(shape, lambda *p: element(dict(zip(layout, p, strict=True))))


def named(index: Array, size: int) -> Array:
    """The position in [0, size) that an index of data means: clamped to [-size, size - 1], negative ones from the end."""
    if not index.data_type.startswith("u"):
        index = where(index < 0, index + size, index)
    return inside(index, size)


def inside(index: Array, size: int) -> Array:
    """The position in [0, size) that is closest to an index."""
    index = clamp(index, None if index.data_type.startswith("u") else 0, size - 1)
    return index if index.data_type == "index" else Array((), Cast(index.body, "index"))


def own(array: Array, positions: Sequence[Any]) -> tuple[Any, ...]:
    """The positions in an array that broadcasts: those of its own axes, and 0 along axes of size 1."""
    trailing = positions[len(positions) - array.rank :]
    return tuple(0 if size == 1 else position for size, position in zip(array.shape, trailing, strict=True))
