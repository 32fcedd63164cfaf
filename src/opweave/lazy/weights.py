"""Weights: turn inputs that are the same arrays on each read of a graph into constants, which engines pack once.

After several reads with the same arrays, a graph is compiled again with these arrays as constants. That program runs while the
arrays stay the same. Only immutable memory qualifies: arrays that own their memory, and constant tensors.

An array is a weight if it recurs, and is not the first operand of its call, which is the data. If the data were a constant,
the engine would fold results that depend on it, although the data may change later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import Any
from weakref import ref

import numpy as np

from .. import memory
from ..run.program import Program
from ..support.cache import Cache
from .array import Array, ArrayTemplate, Number
from .background import Recurring
from .deferred_free import drop_later
from .from_memory import Borrowed
from .graphs import CallGraph

RECURRENCES = 4
"""Number of reads with the same array before the array becomes a constant."""

PATIENCE = 4
"""Factor for the number of misses before compilation if not all candidates have recurred."""

VARIANTS = 8
"""Maximum number of programs with constants for one graph."""

SHARE = 4
"""All constants together take at most 1/SHARE of the machine's or container's memory, because engines keep packed copies."""

INEXACT = frozenset({"dequantize_linear"})
"""Operations whose operands stay inputs: ONNX Runtime multiplies constant quantized weights in eight bits, so results would
change from one read to the next."""


class Specialised(Recurring):
    """A graph with constants, the memory `values`, in place of the inputs at `positions`; `others` are the other inputs."""

    __slots__ = ("__weakref__", "_graph", "_leaves", "is_dropped", "others", "positions", "size", "values")

    counter = "specialised"

    def __init__(
        self, graph: WholeWeight, positions: Sequence[int], leaves: Sequence[Array], inputs: Sequence[Any]
    ) -> None:
        super().__init__()
        self._graph, self.is_dropped = graph, False
        self.positions = tuple(positions)
        self.values = tuple([inputs[position] for position in positions])
        self.size = sum([value.nbytes for value in self.values])
        fixed = set(positions)
        self.others = [position for position in range(len(inputs)) if position not in fixed]
        watched = [leaf for position in positions if not isinstance(leaf := leaves[position], Number)]
        self._leaves = [ref(leaf, partial(_release, ref(self))) for leaf in watched]
        for leaf in watched:
            if isinstance(leaf, Borrowed):
                leaf.release_with_tensor(self)

    def fits(self, inputs: Sequence[np.ndarray]) -> bool:
        """Whether the constants are the same memory as these inputs."""
        return not self.is_dropped and all(map(is_, self.values, [inputs[position] for position in self.positions]))

    def select_others(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the remaining inputs."""
        return [inputs[position] for position in self.others]

    def compile(self, make: Callable[[], Program]) -> None:
        """Compile the graph, unless one of its arrays has been deleted."""
        if not self.is_dropped:
            super().compile(make)
        if self.is_dropped:
            self.program = None

    def release(self) -> None:
        """Drop the program as soon as no other thread is reading."""
        self.is_dropped = True
        drop_later(self.drop)

    def drop(self) -> None:
        """Drop the program. The caller holds the lock of reads."""
        self.is_dropped = True
        # A new list, because another thread may be iterating over the old one.
        self._graph.variants = [variant for variant in self._graph.variants if variant is not self]
        specialised.pop(self)
        self._leaves, self.values, self.program = [], (), None


specialised: Cache[Specialised, Specialised] = Cache(
    max_bytes=memory.physical() // SHARE, raw=True, on_drop=Specialised.drop
)


def _release(variant: ref[Specialised], _: object) -> None:
    live = variant()
    if live is not None:
        live.release()


class WholeWeight(Recurring):
    """A graph that has been read, and its programs with weights as constants, the most recently used first."""

    __slots__ = ("_candidates", "_misses", "_needed", "_numbers", "variants")

    def __init__(self) -> None:
        super().__init__()
        self.variants: list[Specialised] = []
        self._candidates: tuple[int, ...] | None = None
        self._misses, self._needed = 0, RECURRENCES
        # Last value and number of repetitions of each Python number, by position; None if the number changes.
        self._numbers: dict[int, tuple[np.ndarray, int] | None] = {}

    def find(self, inputs: Sequence[np.ndarray]) -> Specialised | None:
        """Return the program whose constants are among these inputs; None if there is none."""
        for variant in self.variants:
            if variant.fits(inputs):
                if variant is not self.variants[0]:
                    self.variants = [variant, *(other for other in self.variants if other is not variant)]
                specialised.get(variant)
                return variant
        return None

    def drop(self) -> None:
        """Drop all programs with constants. The caller holds the lock of reads."""
        for variant in self.variants:
            variant.drop()

    def learn(
        self, make_calls: Callable[[], CallGraph], leaves: Sequence[Array], inputs: Sequence[np.ndarray]
    ) -> Specialised | None:
        """Count a read without a matching program. Compile a program with constants if enough inputs have recurred.

        The required number of reads doubles with each compilation, to limit the share of time for compilation.
        """
        if self._candidates is None:
            self._candidates = candidates(make_calls(), leaves)
        if not self._candidates:
            return None
        self._misses += 1
        hot, is_complete = self._hot(leaves, inputs)
        if not hot or self._misses < (self._needed if is_complete else self._needed * PATIENCE):
            return None
        self._misses, self._needed = 0, self._needed * 2
        calls = make_calls()
        chosen = choose(calls, hot, leaves)
        return self._add(Specialised(self, chosen, leaves, inputs), calls) if chosen else None

    def _hot(self, leaves: Sequence[Array], inputs: Sequence[np.ndarray]) -> tuple[set[int], bool]:
        """Return the candidates that have recurred, and whether these are all candidates."""
        hot: set[int] = set()
        is_complete, has_arrays = True, False
        assert self._candidates is not None
        for position in self._candidates:
            leaf = leaves[position]
            if isinstance(leaf, Number):
                if self._is_steady(position, inputs[position]):
                    hot.add(position)
            elif leaf._is_immutable():
                leaf.reads += 1
                if leaf.reads >= RECURRENCES:
                    hot.add(position)
                    has_arrays = True
                else:
                    is_complete = False
        return hot if has_arrays else set(), is_complete

    def _is_steady(self, position: int, value: np.ndarray) -> bool:
        """Whether a number has recurred. A number that changed while it was a constant never becomes one again."""
        before = self._numbers.get(position, (value, 0))
        if before is None:
            return False
        same = before[0] is value
        if not same and any(position in variant.positions for variant in self.variants):
            self._numbers[position] = None
            return False
        count = before[1] + 1 if same else 1
        self._numbers[position] = value, count
        return count >= RECURRENCES

    def _add(self, variant: Specialised, calls: CallGraph) -> Specialised | None:
        """Compile a program, and drop the oldest if there are too many. Return None if the constants are too large."""
        if variant.size > (specialised.max_bytes or 0):
            return None
        while len(self.variants) >= VARIANTS:
            self.variants[-1].drop()
        specialised.put(variant, variant, variant.size)
        self.variants = [variant, *self.variants]
        variant.start(lambda: calls.compile(dict(zip(variant.positions, variant.values, strict=True))))
        return variant


# ---------------------------------------------------------------------------------------------------------------------
# Choice of weights


def candidates(calls: CallGraph, leaves: Sequence[Array]) -> tuple[int, ...]:
    """Return the inputs that may be weights: numbers, and all operands of calls but the first, also through other calls."""
    positions: set[int] = {position for position, leaf in enumerate(leaves) if isinstance(leaf, Number)}
    roots: dict[tuple[int, int], frozenset[int]] = {(-1, k): frozenset({k}) for k in range(len(leaves))}
    for number, (template, refs) in enumerate(zip(calls.templates, calls.refs, strict=True)):
        arrays = [operand for operand in refs if not (operand[0] < 0 and operand[1] in positions)]
        if len(set(arrays)) == 1 and arrays[0] in roots and template.op.name not in INEXACT:
            roots.update({(number, k): roots[arrays[0]] for k in range(len(template.descs))})
    numbers = frozenset(positions)
    for template, refs in zip(calls.templates, calls.refs, strict=True):
        # Users' kernels do not pack weights.
        if not template.op.kernels and template.op.name not in INEXACT:
            for operand in _operands_of(template, refs)[1:]:
                positions |= roots.get(operand, frozenset())
    return tuple(sorted(positions)) if positions > numbers else ()


def choose(calls: CallGraph, hot: set[int], leaves: Sequence[Array]) -> list[int]:
    """Return the inputs of `hot` that become constants; none if only numbers are left.

    If all arrays of a call would be constants, the first of several stays an input, and so do all that determine a result.
    """
    numbers = {position for position in hot if isinstance(leaves[position], Number)}
    fixed = set(hot)
    while data := _find_data(calls, fixed, numbers):
        fixed -= data
    return sorted(fixed) if fixed - numbers else []


def _find_data(calls: CallGraph, fixed: set[int], numbers: set[int]) -> frozenset[int]:
    roots: dict[tuple[int, int], frozenset[int]] = {(-1, k): frozenset({k}) - numbers for k in fixed}
    for number, (template, refs) in enumerate(zip(calls.templates, calls.refs, strict=True)):
        if not refs or not all(operand in roots for operand in refs):
            continue
        arrays = [operand for operand in dict.fromkeys(_operands_of(template, refs)) if roots[operand]]
        if len(arrays) > 1:
            return roots[arrays[0]]
        together: frozenset[int] = frozenset().union(*[roots[operand] for operand in refs])
        roots.update({(number, k): together for k in range(len(template.descs))})
    for result in calls.kept:
        if result in roots:
            return roots[result] or frozenset(fixed)
    return frozenset()


def _operands_of(template: ArrayTemplate, refs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    operands = []
    for value in template.inputs.values():
        number = value[0] if isinstance(value, tuple) else value
        if number is not None:
            operands.append(refs[number])
    return operands
