"""Functions traced with names in place of sizes that change, so that further sizes compile nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.sizes import Guards, Size, match_sizes
from ..support.errors import ValidationError
from .tracer import TracedFunction

FEWEST_SHAPES = 3
"""Combinations of shapes after which sizes that differ get names: two recompilations."""

MAX_TRACES = 4
"""Maximum number of traces with names of calls that differ in their shapes only. Functions that ask for the number of a size
need one for each number, and are then traced without names."""

Shapes = tuple[tuple[Any, ...], ...]


class NamedFunctions:
    """The traces of calls that differ only in the shapes of arrays."""

    def __init__(self) -> None:
        self._seen: list[Shapes] = []
        self._traced: list[tuple[Shapes, Guards, TracedFunction]] = []
        self._traces = 0

    def find(self, leaves: Sequence[Any]) -> TracedFunction | None:
        """The function for these arrays, if one that was traced with names is valid for them."""
        shapes = shapes_of(leaves)
        for named, guards, traced in self._traced:
            sizes = match_sizes(zip(named, shapes, strict=True))
            if sizes is not None and guards.hold(sizes):
                return traced.at(leaves)
        return None

    def trace(self, leaves: Sequence[Any], trace: Callable[[Shapes], TracedFunction]) -> TracedFunction | None:
        """Trace the function with names for the sizes that differ between calls; None if it is too early, or impossible."""
        self._seen.append(shapes_of(leaves))
        if len(self._seen) < FEWEST_SHAPES or self._traces >= MAX_TRACES:
            return None
        self._traces += 1
        named, sizes = _with_names(self._seen)
        guards = Guards(sizes)
        try:
            with guards.deciding():
                traced = trace(named)
        except Exception:  # the function needs numbers in place of names; without names, its own errors come again
            return None
        self._traced.insert(0, (named, guards, traced))
        try:
            return traced.at(leaves)
        except ValidationError:
            return None


def shapes_of(leaves: Sequence[Any]) -> Shapes:
    """The shapes of arrays."""
    return tuple([tuple(leaf.shape) for leaf in leaves])


def _with_names(seen: Sequence[Shapes]) -> tuple[Shapes, dict[str, int]]:
    """Shapes with names for sizes that differ between calls, and the sizes of the last call.

    Sizes that were always equal share a name.
    """
    names: dict[tuple[int, ...], Size] = {}
    sizes: dict[str, int] = {}

    def named(column: tuple[int, ...]) -> int | Size:
        if len(set(column)) == 1:
            return column[-1]
        name = names.setdefault(column, Size(f"size{len(names)}"))
        sizes[name.name] = column[-1]
        return name

    columns = zip(*seen, strict=True)
    return tuple(tuple(named(column) for column in zip(*shapes, strict=True)) for shapes in columns), sizes
