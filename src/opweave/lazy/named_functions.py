"""Functions traced with names in place of sizes that change, so that further sizes compile nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.guards import Guards
from ..core.size_values import match_sizes
from ..core.sizes import Size
from ..support.errors import ValidationError
from .tracer import TracedFunction

FEWEST_SHAPES = 3
"""Combinations of shapes after which sizes that differ get names: two recompilations."""

MAX_TRACES = 4
"""Maximum number of traces with names of calls that differ in their shapes only. Functions that ask for the number of a size
need one for each number, and are then traced without names."""

MAX_LISTED = 8
"""Maximum number of combinations of shapes that are listed."""

_ONE_BY_ONE = "shapes are compiled one by one"

Shapes = tuple[tuple[Any, ...], ...]


class NamedFunctions:
    """The traces of calls that differ only in the shapes of arrays."""

    def __init__(self) -> None:
        self._seen: list[Shapes] = []
        self._traced: list[tuple[Shapes, Guards, TracedFunction]] = []
        self._traces = 0
        self._obstacle = ""

    def __str__(self) -> str:
        """The shapes that are compiled, and why sizes have no names."""
        lines = [f"  sizes with names: {_text(named)}, first for {_sizes(guards)}" for named, guards, _ in self._traced]
        shapes = [*map(_text, self._seen[:MAX_LISTED]), *(["…"] if len(self._seen) > MAX_LISTED else [])]
        lines.append(f"  traced for: {', '.join(shapes)}")
        return "\n".join([*lines, *([f"  {_ONE_BY_ONE}: {self._obstacle}"] if self._obstacle else [])])

    def find(self, leaves: Sequence[Any]) -> TracedFunction | None:
        """The function for these arrays, if one that was traced with names is valid for them."""
        shapes = shapes_of(leaves)
        for named, guards, traced in self._traced:
            sizes = match_sizes(zip(named, shapes, strict=True))
            if sizes is not None and guards.hold(sizes):
                return traced.at(leaves)
        return None

    def trace(
        self, leaves: Sequence[Any], trace: Callable[[Shapes], TracedFunction], title: str
    ) -> TracedFunction | None:
        """Trace the function with names for the sizes that differ between calls; None if it is too early, or impossible.

        A line of the log says why it is impossible; `title` is for the log.
        """
        self._seen.append(shapes_of(leaves))
        if len(self._seen) < FEWEST_SHAPES:
            return None
        if self._traces >= MAX_TRACES:
            self._note(title, f"the function asks for numbers of sizes, after {MAX_TRACES} traces with names")
            return None
        self._traces += 1
        named, sizes = _with_names(self._seen)
        guards = Guards(sizes)
        try:
            with guards.deciding():
                traced = trace(named)
        except (
            Exception
        ) as error:  # the function needs numbers in place of names; its own errors come again without names
            self._note(title, str(error).removeprefix(f"{title}: "))
            return None
        self._traced.insert(0, (named, guards, traced))
        try:
            return traced.at(leaves)
        except ValidationError as error:
            self._note(title, str(error))
            return None

    def _note(self, title: str, obstacle: str) -> None:
        """Say once why shapes are compiled one by one."""
        if obstacle != self._obstacle:
            import logging  # here, since it would be 2 ms of `import opweave`

            self._obstacle = obstacle
            logging.getLogger("opweave").info("%s: %s: %s", title, _ONE_BY_ONE, obstacle)


def _text(shapes: Shapes) -> str:
    listed = ", ".join(str(list(shape)) for shape in shapes)
    return listed if len(shapes) == 1 else f"({listed})"


def _sizes(guards: Guards) -> str:
    return ", ".join(f"{name} = {size}" for name, size in guards.sizes.items())


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
