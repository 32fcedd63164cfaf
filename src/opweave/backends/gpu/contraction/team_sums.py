"""The end of GEMV kernels: the invocations of a team add their partial sums, and store the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from ....expr.gpu import Features, GpuModule
from ....expr.gpu.dialect import Variable
from ....expr.gpu.teams import Team, TeamValue
from ....expr.gpu.types import computed_type
from ....expr.ir import Load
from .parameters import KernelNumbers
from .section import Section
from .text import plus, statement

MAX_GIVEN_VECTORS = 1
"""Maximum vectors whose epilogue operands are loaded before the sums are computed. Each takes four registers. With more
vectors, an H200 would run three concurrent workgroups instead of four (counted in sm_90 code)."""
MAX_PARTS = 8
"""Maximum parts of a team's sum to add without a loop."""
MAX_PART_BYTES = 1 << 14
"""Workgroup memory for partial sums. The sums of as many vectors as fit are added between two barriers. An estimate: on an
H200, registers limit the number of concurrent workgroups, not this memory."""


@dataclass(eq=False)
class TeamSums:
    """Adds partial sums, and stores the results.

    Attributes:
        width: number of teams in a workgroup.
        fours: whether each team sums four lines, not one.
        products: maximum number of products of a section.
        deep: whether the partial sum of a line is a vector of four.
        turns: number of blocks of lines that a workgroup computes.
        room: remaining bytes of workgroup memory.
    """

    section: Section
    features: Features
    invocations: int
    width: int
    fours: bool
    products: int
    deep: bool
    turns: int
    room: int

    def __post_init__(self) -> None:
        self.size = self.invocations // self.width
        distance = 1 if self.section.along else self.width
        self._team = Team(self.features.dialect, self.invocations, self.size, distance, "part")
        is_line = self.deep and not self.fours
        self._whole = "({0}.x + {0}.y) + ({0}.z + {0}.w)" if is_line else "{0}"
        # Whether an invocation stores four adjacent lines, the sums of four teams, as one vector.
        self._stores_fours = is_line and not self.section.is_swapped
        self._is_local = self._team.is_in_warp and not self._stores_fours
        # Successive turns alternate between two memories, which saves a barrier.
        self._memories = 2 if self.turns > 1 and self._team.warp else 1
        vector_bytes = self._memories * self._team.elements * self.products * (16 if self.fours else 4)
        self._together = max(1, min(self.section.count, min(MAX_PART_BYTES, self.room) // vector_bytes))

    @property
    def memory(self) -> list[Variable]:
        vector, size = "vec4<f32>" if self.fours else "f32", self._memories * self._together * self._team.elements
        products = range(0 if self._is_local else self.products)
        return [Variable(f"parts_{j}", f"array<{vector}, {size}>") for j in products]

    def early_loads(self, section: Section) -> list[Load]:
        """Return the loads of the epilogue that storing invocations can issue before they compute sums."""
        is_four = self._stores_fours or (self.fours and not section.is_swapped)
        keeps = self.features.dialect.kept > 0 and is_four and self.turns == 1 and section.count <= MAX_GIVEN_VECTORS
        has_vectors = section.vectors(self.features) and section.problems[0].contiguous
        return [
            load for load in section.end.aligned_loads if keeps and has_vectors and computed_type(load.type) == "f32"
        ]

    def reads(
        self, section: Section, loads: Sequence[Load], module: GpuModule, stack: str, block: str
    ) -> Iterator[str]:
        """Yield the statements that execute `early_loads`."""
        for k, n in product(range(section.count if loads else 0), range(len(loads))):
            yield f"var given_{k}_{n} = vec4<f32>();"
        for k in range(section.count if loads else 0):
            problem = section.problems[0]
            lines = [f"let at = {problem.flat_index(stack, f'{k}u', 'column', module)};"]
            for n, load in enumerate(loads):
                values = (module.load(load.source, plus("at", c)) for c in range(4))
                lines.append(f"given_{k}_{n} = vec4<f32>({', '.join(values)});")
            inside = statement(f"if (column < {module.unsigned(problem.columns)})", lines)
            yield from statement(
                f"if ({self._stores(section, module)})", [f"let column = {self._column(block)};", *inside]
            )

    def _stores(self, section: Section, texts: KernelNumbers) -> str:
        if self._stores_fours:
            return f"lane < {self.width // 4}u"
        return f"part == 0u && unit < {texts.unsigned(section.units(self.fours))}"

    def _column(self, block: str) -> str:
        """The first of four columns of the result that an invocation stores."""
        return f"{block} * {self.width}u + lane * 4u" if self._stores_fours else "unit * 4u"

    def lines(
        self, section: Section, put: str, stack: str, block: str, preloaded: int, texts: KernelNumbers
    ) -> Iterator[str]:
        """Yield the statements. `put` is the function that stores results; `preloaded` is the number of loads in `reads`."""
        products, memory = range(len(section.problems)), self._team.elements
        turn = f"turn % {self._memories}u * {memory * self._together}u" if self._memories > 1 else ""
        for first in range(0, section.count, self._together):
            numbers = range(first, min(first + self._together, section.count))
            begins = {k: plus(turn, (k - first) * memory) if turn else f"{(k - first) * memory}u" for k in numbers}
            begins[first] = turn
            values = list[TeamValue]()
            for k, j in product(numbers, products):
                name = f"total_{k}_{j}"
                yield f"var {name} = {self._whole.format(f'sum_{k}_{j}')};"
                values.append(TeamValue([name], [f"parts_{j}"], partial(_addition, name), begins[k]))
            yield from self._team.exchange(values)
            if not self._is_local:
                yield from self._team.store(values)
            stores, line = list[str](), f"lane / {self.size}u" if section.along else f"lane % {self.width}u"
            if self._team.parts > MAX_PARTS:
                stores += self._add_parts(numbers, products, line, begins)
            for k in numbers:
                more = [f"given_{k}_{n}" for n in range(preloaded)]
                if self._stores_fours:
                    fours = ([self._sum(k, j, f"(lane * 4u + {c}u)", begins[k]) for c in range(4)] for j in products)
                    sums = [*(f"vec4<f32>({', '.join(four)})" for four in fours), *more]
                    stores.append(f"{put}({stack}, {k}u, {self._column(block)}, {', '.join(sums)});")
                else:
                    sums = [*(self._sum(k, j, line, begins[k]) for j in products), *more]
                    stores += self._puts(section, put, stack, block, k, sums)
            yield from statement(f"if ({self._stores(section, texts)})", stores)
            if numbers.stop < section.count or (self.turns > 1 and self._memories == 1):
                yield "workgroupBarrier();"

    def _add_parts(
        self, numbers: Sequence[int], products: Sequence[int], line: str, begins: Mapping[int, str]
    ) -> list[str]:
        step = self.width if self._team.distance > 1 else 1
        firsts = {k: self._team.positions(line, begins[k])[0] for k in numbers}
        sums = [(f"total_{k}_{j}", f"parts_{j}", firsts[k]) for k, j in product(numbers, products)]
        lines = [f"{total} += {parts}[{first} + warp * {step}u];" for total, parts, first in sums]
        loop = self.features.dialect.loop(f"for (var warp = 1u; warp < {self._team.parts}u; warp++) {{", lines)
        return [*(f"{total} = {parts}[{first}];" for total, parts, first in sums), *loop]

    def _sum(self, k: int, j: int, line: str, begin: str) -> str:
        """Return a sum as an expression; `line` is the index of its line in the workgroup."""
        if self._is_local or self._team.parts > MAX_PARTS:
            return f"total_{k}_{j}"
        terms = [f"parts_{j}[{position}]" for position in self._team.positions(line, begin)]
        while len(terms) > 1:
            terms = [f"({a} + {b})" for a, b in zip(terms[::2], terms[1::2], strict=True)]
        return terms[0]

    def _puts(self, section: Section, put: str, stack: str, block: str, k: int, sums: Sequence[str]) -> list[str]:
        """Store the sums of a line, or of four lines."""
        if self.fours and not section.is_swapped:
            return [f"{put}({stack}, {k}u, {self._column(block)}, {', '.join(sums)});"]
        if not self.fours:
            where = f"unit, {k}u" if section.is_swapped else f"{k}u, unit"
            return [f"{put}({stack}, {where}, {', '.join(sums)});"]
        return [
            f"{put}({stack}, unit * 4u + {c}u, {k}u, {', '.join(f'{part}.{letter}' for part in sums)});"
            for c, letter in enumerate("xyzw")
        ]


def _addition(total: str, other: Sequence[str]) -> list[str]:
    return [f"{total} += {other[0]};"]
