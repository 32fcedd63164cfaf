"""Inputs of a graph that stay the same become constants of it: engines bring those into the layout they want, once.

A graph that recurs is compiled with all of its arrays as inputs. When the same arrays come with it again and again, it is
compiled once more with those as constants, and that program runs as long as they come. Only memory that nobody can write
counts: arrays that own theirs, and constant tensors.

Which arrays are weights is learned, not told. Two things keep the rest out: an array must recur, and the call that takes it
must work *with* it (a filter, a scale), not *on* it: the first operand of a call is what it works on, and stays an input
where the others are constants, so that nothing is computed once and for all of what only happens to be the same for a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import Any
from weakref import ref

import numpy as np

from .. import memory
from ..cache import Cache
from ..links import when_gone
from ..run.program import Program
from .adopted import Borrowed
from .lazy import Array, Number, Template
from .plan import Plan
from .recurring import Recurring

RECURRENCES = 4
"""So often an array must have been seen as a weight before it becomes a constant."""

PATIENCE = 4
"""Where other arrays come each time, those that stay the same must have been seen so many times as often."""

VARIANTS = 8
"""How many programs with constants of their own a graph has at most; the one not used for longest makes room."""

SHARE = 4
"""Constants take at most one part in so many of the machine's memory, since engines keep packed copies of them."""

INEXACT = frozenset({"dequantize_linear"})
"""Operations whose operands stay inputs: where quantized weights are constants, ONNX Runtime multiplies them with activations
in eight bits, and results would be others from one read to the next."""

_gone: deque[Specialised] = deque()


class Specialised(Recurring):
    """A graph with constants in place of some inputs.

    Attributes:
        positions: the numbers of these inputs.
        values: their memory. Nothing else gets the identity of what is held here.
        size: how many bytes that is.
        others: the numbers of the inputs that it takes.
    """

    __slots__ = ("__weakref__", "_graph", "_leaves", "is_dropped", "others", "positions", "size", "values")

    counter = "specialised"

    def __init__(self, graph: Whole, positions: Sequence[int], leaves: Sequence[Array], inputs: Sequence[Any]) -> None:
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
                leaf.tell(self)  # when the tensor is destroyed

    def fits(self, inputs: Sequence[np.ndarray]) -> bool:
        """Whether the constants are what these inputs are."""
        return not self.is_dropped and all(map(is_, self.values, [inputs[position] for position in self.positions]))

    def given(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Those of all the inputs that it takes."""
        return [inputs[position] for position in self.others]

    def compile(self, make: Callable[[], Program]) -> None:
        """Compile it, unless one of the arrays is gone by now."""
        if not self.is_dropped:
            super().compile(make)
        if self.is_dropped:
            self.program = None

    def release(self) -> None:
        """Let go of it, now or when another thread is done with it; never waits."""
        self.is_dropped = True
        _gone.append(self)
        (when_gone.function or when_gone.load())()

    def drop(self) -> None:
        """Let go of it. Who calls this has the lock of all reads."""
        self.is_dropped = True
        # The list is replaced, since somebody may be going through it.
        self._graph.variants = [variant for variant in self._graph.variants if variant is not self]
        specialised.pop(self)
        self._leaves, self.values, self.program = [], (), None


specialised: Cache[Specialised, Specialised] = Cache(
    max_bytes=memory.physical() // SHARE, raw=True, on_drop=Specialised.drop
)
"""All programs with constants."""


def _release(variant: ref[Specialised], _: object) -> None:
    """An array is gone that is a constant."""
    found = variant()
    if found is not None:
        found.release()


def sweep() -> None:
    """Drop the programs whose arrays are gone."""
    while _gone:
        _gone.popleft().drop()


class Whole(Recurring):
    """A graph that may come again, and programs of it in which inputs that came again are constants.

    Attributes:
        variants: these programs, the one used last first.
    """

    __slots__ = ("_candidates", "_misses", "_needed", "_numbers", "variants")

    def __init__(self) -> None:
        super().__init__()
        self.variants: list[Specialised] = []
        self._candidates: tuple[int, ...] | None = None
        self._misses, self._needed = 0, RECURRENCES
        # For each input that is a number of Python's: what it was last, and how often in a row; None if it changes.
        self._numbers: dict[int, tuple[np.ndarray, int] | None] = {}

    def find(self, inputs: Sequence[np.ndarray]) -> Specialised | None:
        """The program for these inputs, if there is one that is compiled."""
        for variant in self.variants:
            if variant.fits(inputs):
                if variant is not self.variants[0]:
                    self.variants = [variant, *(other for other in self.variants if other is not variant)]
                specialised.get(variant)
                return variant
        return None

    def drop(self) -> None:
        """Let go of all programs with constants. Who calls this has the lock of all reads."""
        for variant in self.variants:
            variant.drop()

    def learn(
        self, plan: Callable[[], Plan], leaves: Sequence[Array], inputs: Sequence[np.ndarray]
    ) -> Specialised | None:
        """These inputs came, and there is no program for them: make one, if they have come often enough.

        Each attempt takes twice as many reads as the one before, so that compiling stays cheap beside them whatever comes.
        """
        if self._candidates is None:
            self._candidates = candidates(plan(), leaves)
        if not self._candidates:
            return None
        self._misses += 1
        hot, is_complete = self._hot(leaves, inputs)
        if not hot or self._misses < (self._needed if is_complete else self._needed * PATIENCE):
            return None
        self._misses, self._needed = 0, self._needed * 2
        made = plan()
        chosen = choose(made, hot, leaves)
        return self._added(Specialised(self, chosen, leaves, inputs), made) if chosen else None

    def _hot(self, leaves: Sequence[Array], inputs: Sequence[np.ndarray]) -> tuple[set[int], bool]:
        """The candidates that recur; and whether those are all that could."""
        hot: set[int] = set()
        is_complete, has_arrays = True, False
        assert self._candidates is not None
        for position in self._candidates:
            leaf = leaves[position]
            if isinstance(leaf, Number):
                if self._is_steady(position, inputs[position]):
                    hot.add(position)
            elif leaf._is_immutable():
                leaf._reads += 1
                if leaf._reads >= RECURRENCES:
                    hot.add(position)
                    has_arrays = True
                else:
                    is_complete = False
        return hot if has_arrays else set(), is_complete

    def _is_steady(self, position: int, value: np.ndarray) -> bool:
        """Whether a number has been the same for some time. One that was not, after it was a constant, is none again."""
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

    def _added(self, variant: Specialised, plan: Plan) -> Specialised | None:
        """Compile a program, in place of others where there are too many; None where it is too large."""
        if variant.size > (specialised.max_bytes or 0):
            return None
        while len(self.variants) >= VARIANTS:
            self.variants[-1].drop()
        specialised.put(variant, variant, variant.size)
        self.variants = [variant, *self.variants]
        variant.start(partial(_compiled, plan, variant))
        return variant


def _compiled(plan: Plan, variant: Specialised) -> Program:
    return plan.compiled(dict(zip(variant.positions, variant.values, strict=True)))


# ---------------------------------------------------------------------------------------------------------------------
# Which inputs can be weights


def candidates(plan: Plan, leaves: Sequence[Array]) -> tuple[int, ...]:
    """The inputs that some call works with: those that are not its first operand, and numbers; also by way of others."""
    found: set[int] = {position for position, leaf in enumerate(leaves) if isinstance(leaf, Number)}
    roots: dict[tuple[int, int], frozenset[int]] = {(-1, k): frozenset({k}) for k in range(len(leaves))}
    for number, (template, refs) in enumerate(zip(plan.templates, plan.refs, strict=True)):
        arrays = [operand for operand in refs if not (operand[0] < 0 and operand[1] in found)]
        if len(set(arrays)) == 1 and arrays[0] in roots and template.op.name not in INEXACT:
            roots.update({(number, k): roots[arrays[0]] for k in range(len(template.descs))})
    numbers = frozenset(found)
    for template, refs in zip(plan.templates, plan.refs, strict=True):
        if not _has_kernels(template) and template.op.name not in INEXACT:  # kernels of users gain nothing
            for operand in _ordered(template, refs)[1:]:
                found |= roots.get(operand, frozenset())
    return tuple(sorted(found)) if found > numbers else ()


def choose(plan: Plan, hot: set[int], leaves: Sequence[Array]) -> list[int]:
    """Those inputs out of `hot` that become constants; none if only numbers are left.

    Where all operands of a call would be constants, the first one stays an input, unless the call has no other. So does
    what a result would depend on alone.
    """
    numbers = {position for position in hot if isinstance(leaves[position], Number)}
    fixed = set(hot)
    while data := _worked_on(plan, fixed, numbers):
        fixed -= data
    return sorted(fixed) if fixed - numbers else []


def _worked_on(plan: Plan, fixed: set[int], numbers: set[int]) -> frozenset[int]:
    """Inputs that must not be constants together with the others; empty if all can be."""
    roots: dict[tuple[int, int], frozenset[int]] = {(-1, k): frozenset({k}) - numbers for k in fixed}
    for number, (template, refs) in enumerate(zip(plan.templates, plan.refs, strict=True)):
        if not refs or not all(operand in roots for operand in refs):
            continue
        arrays = [operand for operand in dict.fromkeys(_ordered(template, refs)) if roots[operand]]
        if len(arrays) > 1:
            return roots[arrays[0]]
        together: frozenset[int] = frozenset().union(*[roots[operand] for operand in refs])
        roots.update({(number, k): together for k in range(len(template.descs))})
    for result in plan.kept:
        if result in roots:
            return roots[result] or frozenset(fixed)
    return frozenset()


def _ordered(template: Template, refs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The operands of a call in the order of the operation's parameters; of a sequence the first one stands for all."""
    found = []
    for value in template.inputs.values():
        number = value[0] if isinstance(value, tuple) else value
        if number is not None:
            found.append(refs[number])
    return found


def _has_kernels(template: Template) -> bool:
    return bool(getattr(template.op, "kernels", ()))


__all__ = ["RECURRENCES", "Specialised", "Whole", "candidates", "choose", "sweep"]
