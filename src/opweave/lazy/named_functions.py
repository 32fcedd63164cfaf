"""Functions traced with names in place of sizes that change, so that further sizes compile nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from traceback import walk_tb
from typing import Any

from ..core.guards import Guards
from ..core.size_values import match_sizes
from ..core.sizes import Size
from ..support.errors import MLError, ValidationError
from ..support.settings import STRICT
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
        self._has_noted_numbers = False

    def __str__(self) -> str:
        """The shapes that are compiled, and why sizes have no names, or one program for each number."""
        lines = []
        for named, guards, _ in self._traced:
            lines.append(f"  sizes with names: {_text(named)}, first for {_sizes(guards)}")
            lines += [f"    for {number} alone" for number in _numbers(guards)]
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

        A line of the log says why it is impossible, or valid for one number of a size; `title` is for the log.
        """
        self._seen.append(shapes_of(leaves))
        if len(self._seen) < FEWEST_SHAPES:
            return None
        if self._traces >= MAX_TRACES:
            # If every trace failed, the reasons have been noted already.
            if self._traced:
                numbers = ", ".join(_numbers(self._traced[0][1]))
                reason = f"asks for {numbers}" if numbers else "compares sizes, with other answers each time"
                self._note(title, f"the function {reason}; {MAX_TRACES} traces with names are the limit")
            return None
        self._traces += 1
        named, sizes = _with_names(self._seen)
        guards = Guards(sizes)
        try:
            with guards.deciding():
                traced = trace(named)
        except Exception as error:
            # Errors that names cause disappear without names; the user's own ones come again.
            if STRICT in os.environ and _is_internal(error):
                raise
            self._note(title, _reason(error, title))
            return None
        self._traced.insert(0, (named, guards, traced))
        if guards.lines and not self._has_noted_numbers:
            self._has_noted_numbers = True
            _log("%s: a program for each number of a size: %s", title, ", ".join(_numbers(guards)))
        try:
            return traced.at(leaves)
        except ValidationError as error:
            self._note(title, str(error))
            return None

    def _note(self, title: str, obstacle: str) -> None:
        """Say once why shapes are compiled one by one."""
        if obstacle != self._obstacle:
            self._obstacle = obstacle
            _log("%s: %s: %s", title, _ONE_BY_ONE, obstacle)


def _log(message: str, *values: str) -> None:
    import logging  # imported late, because it would add 2 ms to `import opweave`

    logging.getLogger("opweave").info(message, *values)


def _reason(error: Exception, title: str) -> str:
    """The message of an error; errors other than Opweave's get their type and the line of the function."""
    if isinstance(error, MLError):
        return str(error).removeprefix(f"{title}: ")
    lines = [note.removeprefix(f"while tracing {title}") for note in getattr(error, "__notes__", ())]
    return "".join([f"{type(error).__name__}: {error}", *lines])


def _is_internal(error: Exception) -> bool:
    """Whether an error that is not for users came from Opweave's code, rather than from the function or a library."""
    if isinstance(error, MLError) or error.__traceback__ is None:
        return False
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == __name__.partition(".")[0]


def _numbers(guards: Guards) -> list[str]:
    """The sizes that the function asked to be numbers, each with the line."""
    return [f"{size} = {size.at(guards.sizes)}{line}" for size, line in guards.lines.items()]


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

    def size_of(column: tuple[int, ...]) -> int | Size:
        if len(set(column)) == 1:
            return column[-1]
        name = names.setdefault(column, Size(f"size{len(names)}"))
        sizes[name.name] = column[-1]
        return name

    columns = zip(*seen, strict=True)
    return tuple(tuple(size_of(column) for column in zip(*shapes, strict=True)) for shapes in columns), sizes
