"""The end of kernels of `thin`: invocations that share the terms of sums add up their parts, and store the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from ....expr.gpu import Features
from ....expr.gpu.dialect import Variable
from ....expr.gpu.teams import Team, Value
from .section import Section
from .text import plus

MAX_PART_BYTES = 1 << 14
"""Memory of a workgroup for parts of sums: those of as many vectors as fit are added up together, with fewer barriers. An
estimate: an H200 runs as many workgroups with this memory as its registers allow."""


class TeamSums:
    """Adds up the parts of sums, and stores the results.

    Args:
        section: one of those of the kernel, which have the same form.
        features: features and limits of the device.
        invocations: of a workgroup.
        width: lines of a workgroup, or groups of four lines, each of a team.
        fours: whether an invocation computes four lines.
        products: most products of a section.
        deep: whether the sum of a line is in four parts.
        turns: how often a workgroup computes its lines, of others each time.
        room: bytes of workgroup memory that are left.
    """

    def __init__(
        self,
        section: Section,
        features: Features,
        *,
        invocations: int,
        width: int,
        fours: bool,
        products: int,
        deep: bool,
        turns: int,
        room: int,
    ) -> None:
        self.width, self.fours, self.products, self.turns, self.size = (
            width,
            fours,
            products,
            turns,
            invocations // width,
        )
        distance = 1 if section.along else width
        self._team = Team(features.dialect, invocations, self.size, distance, "part")
        self._whole = "({0}.x + {0}.y) + ({0}.z + {0}.w)" if deep and not fours else "{0}"
        # Whether an invocation stores four adjacent lines, of as many teams, or one that has the sum in its registers.
        self._stores_fours = deep and not fours and not section.swapped
        self._is_local = self._team.is_in_warp and not self._stores_fours
        # Turns use other memory than the one before, so that they need no barrier between them.
        self._memories = 2 if turns > 1 and self._team.warp else 1
        each = self._memories * self._team.elements * products * (16 if fours else 4)
        self._together = max(1, min(section.count, min(MAX_PART_BYTES, room) // each))

    @property
    def memory(self) -> list[Variable]:
        """Memory of the workgroup."""
        vector, size = "vec4<f32>" if self.fours else "f32", self._memories * self._together * self._team.elements
        products = range(0 if self._is_local else self.products)
        return [Variable(f"parts_{j}", f"array<{vector}, {size}>") for j in products]

    def lines(self, section: Section, put: str, stack: str, block: str) -> Iterator[str]:
        """The statements.

        Args:
            section: what is computed.
            put: the function that stores a result.
            stack: text of the number of a matrix in its source.
            block: text of the number of the workgroup's lines, in units of `width`.
        """
        products, memory = range(len(section.problems)), self._team.elements
        turn = f"turn % {self._memories}u * {memory * self._together}u" if self._memories > 1 else ""
        for first in range(0, section.count, self._together):
            numbers = range(first, min(first + self._together, section.count))
            begins = {k: plus(turn, (k - first) * memory) if turn else f"{(k - first) * memory}u" for k in numbers}
            begins[first] = turn
            values = list[Value]()
            for k, j in product(numbers, products):
                name = f"total_{k}_{j}"
                yield f"var {name} = {self._whole.format(f'sum_{k}_{j}')};"
                values.append(Value([name], [f"parts_{j}"], partial(_addition, name), begins[k]))
            yield from self._team.exchanged(values)
            if not self._is_local:
                yield from self._team.stored(values)
            if self._stores_fours:
                yield f"if (lane < {self.width // 4}u) {{"
                for k in numbers:
                    fours = ([self._sum(k, j, f"(lane * 4u + {c}u)", begins[k]) for c in range(4)] for j in products)
                    sums = ", ".join(f"vec4<f32>({', '.join(four)})" for four in fours)
                    yield f"    {put}({stack}, {k}u, {block} * {self.width}u + lane * 4u, {sums});"
            else:
                yield f"if (part == 0u && unit < {section.units(self.fours)}u) {{"
                line = f"lane / {self.size}u" if section.along else f"lane % {self.width}u"
                for k in numbers:
                    yield from self._puts(section, put, stack, k, [self._sum(k, j, line, begins[k]) for j in products])
            yield "}"
            if numbers.stop < section.count or (self.turns > 1 and self._memories == 1):
                yield "workgroupBarrier();"

    def _sum(self, k: int, j: int, line: str, begin: str) -> str:
        """The text of a sum, of the line with a number in the workgroup."""
        if self._is_local:
            return f"total_{k}_{j}"
        terms = [f"parts_{j}[{place}]" for place in self._team.places(line, begin)]
        while len(terms) > 1:
            terms = [f"({a} + {b})" for a, b in zip(terms[::2], terms[1::2], strict=True)]
        return terms[0]

    def _puts(self, section: Section, put: str, stack: str, k: int, sums: Sequence[str]) -> list[str]:
        """Store the sums of a line, or of four lines."""
        if self.fours and not section.swapped:
            return [f"    {put}({stack}, {k}u, unit * 4u, {', '.join(sums)});"]
        if not self.fours:
            where = f"unit, {k}u" if section.swapped else f"{k}u, unit"
            return [f"    {put}({stack}, {where}, {', '.join(sums)});"]
        return [
            f"    {put}({stack}, unit * 4u + {c}u, {k}u, {', '.join(f'{part}.{letter}' for part in sums)});"
            for c, letter in enumerate("xyzw")
        ]


def _addition(total: str, other: Sequence[str]) -> list[str]:
    return [f"{total} += {other[0]};"]


__all__ = ["TeamSums"]
