"""Ranges of integer operands (indices and lengths), which are checked before a graph runs.

The values are known only when a graph runs. Kernels clamp values out of range, fail, or read out of bounds. So an operand is
checked if it is an input of the graph and in host memory, and clamped if the graph computes it (`compile.clamp`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..support.errors import ValidationError
from ..support.records import record
from .size_values import values_at, values_in_scope

if TYPE_CHECKING:
    from .graph import Graph


_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


@record
class ValueRange:
    """The values that an operand may hold, from `low` to `high`.

    `why` says where the bounds come from: a text, or its parts with dimensions between them, as in
    `("as there are ", steps, " steps")`, so that messages have the numbers of a run in place of names.
    """

    low: int
    high: int
    why: str | tuple[str | int, ...]

    def at(self, sizes: Mapping[str, int]) -> ValueRange:
        """The range for sizes by name."""
        return ValueRange(*values_at((self.low, self.high, self.why), sizes))

    def outside(self, values: np.ndarray) -> int | None:
        """One of `values`, an array of integers, that is not in the range; None if all are."""
        if not values.size:
            return None
        if values.size == 1:
            least = most = values.item()
        # The methods of arrays take twice as long for few elements. As unsigned integers, negative values are the largest.
        elif self.low <= 0 and int(np.maximum.reduce(values.view(_UNSIGNED[values.itemsize]), axis=None)) <= self.high:
            return None
        else:
            least, most = int(np.minimum.reduce(values, axis=None)), int(np.maximum.reduce(values, axis=None))
        return least if least < self.low else most if most > self.high else None

    def check(self, subject: str, values: np.ndarray, where: str = "") -> None:
        """Require that all of `values` are in the range; `subject` is the operand, and `where` the place of the values."""
        got = self.outside(values)
        if got is not None:
            low, high, why = values_in_scope((self.low, self.high, self.why))
            reason = why if isinstance(why, str) else "".join(map(str, why))
            raise ValidationError(f"{subject} must be in [{low}, {high}], {reason}, got {got}{where}")


@record
class InputRange:
    """The range of the input `name`, at `key` of a list or dictionary; `subject` is the operation and its operand."""

    key: Any
    name: str
    subject: str
    values: ValueRange

    def at(self, sizes: Mapping[str, int]) -> InputRange:
        """The range for sizes by name."""
        return InputRange(self.key, self.name, self.subject, self.values.at(sizes))

    def fits(self, inputs: Any) -> bool:
        """Whether the values are in the range; True for values in the memory of a device."""
        array = inputs[self.key]
        return not isinstance(array, np.ndarray) or self.values.outside(array) is None

    def check(self, inputs: Any) -> None:
        """Raise `ValidationError` for values out of range, unless they are in the memory of a device."""
        array = inputs[self.key]
        if isinstance(array, np.ndarray):
            self.values.check(self.subject, array, f" in the input {self.name!r}")


def input_ranges(graph: Graph) -> list[InputRange]:
    """The ranges of a graph's inputs, each once: many operations may take the same input.

    A node of which only the shape is needed does not read its inputs.
    """
    places: dict[Any, tuple[int, str]] = {operand: (k, name) for k, (name, operand) in enumerate(graph.inputs.items())}
    ranges: dict[tuple[int, int, int], InputRange] = {}
    ranged = [node for node in graph.nodes if node.op.range_functions]
    computing = graph.computing_nodes() if ranged else set()
    for node in filter(computing.__contains__, ranged):
        for name, values in node.op.value_ranges(node.arguments):
            if (place := places.get(node.inputs[name])) is not None:
                input_range = InputRange(*place, f"{node.title}: {name}", values)
                ranges.setdefault((input_range.key, values.low, values.high), input_range)
    return list(ranges.values())


def with_checks(call: Callable[[], None], ranges: Sequence[InputRange], inputs: Sequence[Any]) -> Callable[[], None]:
    """A function that checks the ranges of inputs on the host, then calls `call`; `call` itself if there are none."""
    checked = [input_range for input_range in ranges if isinstance(inputs[input_range.key], np.ndarray)]
    if not checked:
        return call

    def run() -> None:
        for input_range in checked:
            input_range.check(inputs)
        call()

    return run
