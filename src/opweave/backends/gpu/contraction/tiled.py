"""Tiled contractions: a workgroup computes a tile of the result from tiles of both operands in workgroup memory.

A workgroup computes a tile of `rows` x `columns`. Lines are rows of the left matrix or columns of the right one; an element of
the result is the sum of a product for each term. Each step loads `depth` terms of all lines into registers while the products
of the previous step are computed, and then stores the loaded elements in workgroup memory. Terms are the slowest axis of
workgroup memory, so that an invocation reads four adjacent lines as a vector. Terms of integers are words of four bytes. Each
sum is a separate variable, because devices spill dynamically indexed arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ....core.guards import estimate
from ....core.sizes import Dimension, is_multiple, is_same_size, is_static, may_exceed
from ....expr.gpu.dialect import Dialect, Part, Variable
from ....expr.gpu.writing import MAX_WORKGROUPS, workgroup_number
from .elements import ElementReader
from .parameters import KernelNumbers
from .problem import Matrix, Problem, ProblemWindow, strides_of, unravel
from .text import entry, part, plus, quarter, return_if, stack_offset, statement, times, window_start, window_tap

UNROLLED_TERMS = 4
"""Unroll factor of the loop over terms, a divisor of all depths."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of a workgroup, of `rows` x `columns`, with `depth` terms per step.

    An invocation computes `height` x `width` of the tile, both multiples of 4.
    """

    rows: int
    columns: int
    depth: int
    height: int
    width: int

    @property
    def invocations(self) -> int:
        return self.rows // self.height * (self.columns // self.width)

    @property
    def shared_bytes(self) -> int:
        """Upper bound of the workgroup memory in bytes; lines may be padded by four elements."""
        return 4 * self.depth * (self.rows + self.columns + 8)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}/{self.height}x{self.width}"


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a problem with a tile.

    Attributes:
        per_tap: steps per tap; 0 if a step may have terms of several taps.
        ragged: whether the last step (of each tap, if `per_tap` > 0) has surplus terms, which must be read as 0.
    """

    count: int
    per_tap: int
    ragged: bool

    @classmethod
    def of(cls, problem: Problem, depth: int) -> Steps:
        """Start each tap with a new step, unless that adds more than an eighth of the work, by an estimate."""
        per_tap = -(-problem.channels // depth)
        flat = -(-problem.terms // depth)
        if problem.taps == 1 or estimate(per_tap * problem.taps * 8) <= estimate(flat * 9):
            return cls(per_tap * problem.taps, per_tap, not is_multiple(problem.channels, depth))
        return cls(flat, 0, not is_multiple(problem.terms, depth))

    @property
    def is_by_tap(self) -> bool:
        """Whether all terms of a step belong to one tap."""
        return not is_same_size(self.per_tap, 0)


class TileSide:
    """Generates the code of one operand: setup, loads of a step, and stores to workgroup memory.

    Attributes:
        along_terms: whether adjacent invocations load adjacent terms rather than adjacent lines.
        linear: whether the addresses of a step are the addresses of the first step plus an offset.
        total, count: loads of a step by the workgroup, and by each invocation.
        once: statements before the loop, for `positions`.
        at: name of the variable with the address (or window) of the line of each load.
    """

    def __init__(
        self,
        name: str,
        matrix: Matrix | ProblemWindow,
        problem: Problem,
        tile: Tile,
        reader: ElementReader,
        numbers: KernelNumbers,
    ) -> None:
        self.name, self.matrix, self.problem, self.tile, self.numbers = name, matrix, problem, tile, numbers
        self.lines = tile.rows if name == "a" else tile.columns
        self.steps = Steps.of(problem, tile.depth)
        if isinstance(matrix, ProblemWindow):
            self.along_terms = is_same_size(matrix.step, 1)
        else:
            self.along_terms = estimate(matrix.step) < estimate(matrix.stride)
        self.linear = isinstance(matrix, Matrix) and (
            self.steps.is_by_tap or problem.taps == 1 or is_same_size(matrix.tap, problem.channels * matrix.step)
        )
        self.width = 4 if self._can_load_vectors() else 1
        self.reader = reader
        self.padding = 4 if self.along_terms else 0
        inner = (tile.depth if self.along_terms else self.lines) // self.width
        outer = self.lines if self.along_terms else tile.depth
        self.total, self.count = inner * outer, -(-inner * outer // tile.invocations)
        self.element, zero = ("u32", "0u") if problem.is_integer else ("f32", "0.0f")
        self.zero = f"vec4<{self.element}>()" if self.width == 4 else zero
        self.once: list[str] = []
        self.at: list[str] = []
        self.positions = list(self._positions(inner, tile.invocations))

    def _can_load_vectors(self) -> bool:
        """Whether aligned groups of four elements can be loaded as vectors."""
        matrix, problem = self.matrix, self.problem
        if may_exceed(problem.stacks, 1) and not all(problem.is_multiple(step, 4) for _, step in matrix.stack):
            return False
        if isinstance(matrix, ProblemWindow):
            fits = all(is_multiple(size, 4) for size in (problem.channels, matrix.pixel, matrix.batch))
            return self.along_terms and fits and self.steps.is_by_tap and self.tile.depth % 4 == 0
        if not self.linear:
            return False
        spaced = problem.taps == 1 or is_multiple(matrix.tap, 4)
        if self.along_terms:
            whole = is_multiple(problem.channels, 4) and self.tile.depth % 4 == 0
            return is_same_size(matrix.step, 1) and is_multiple(matrix.stride, 4) and whole and spaced
        if not is_same_size(matrix.stride, 1) or not spaced:
            return False
        return all(problem.is_multiple(size, 4) for size in (matrix.lines, matrix.step))

    def _positions(self, inner: int, invocations: int) -> Iterator[tuple[str, str]]:
        """(line, term) of the first element of each load of an invocation, relative to the tile. Appends statements to `once`.

        `i` is the position along the axis of adjacent invocations, `o` along the other axis.
        """
        n = self.name
        for k in range(self.count):
            if invocations % inner == 0:
                i, o = f"{n}_i", plus(f"{n}_o", k * (invocations // inner))
                if not k:
                    self.once += [f"let {n}_i = lane % {inner}u;", f"let {n}_o = lane / {inner}u;"]
            else:
                i, o = f"{n}_i{k}", f"{n}_o{k}"
                at = plus("lane", k * invocations)
                self.once += [f"let {i} = ({at}) % {inner}u;", f"let {o} = ({at}) / {inner}u;"]
            if self.width == 4:
                i = f"{part(i)} * 4u"
            if (k + 1) * invocations > self.total and not self.along_terms:
                # Surplus invocations load a valid term that nothing reads; lines are in bounds.
                o = f"min({o}, {self.tile.depth - 1}u)"
            yield (o, i) if self.along_terms else (i, o)

    @property
    def declaration(self) -> Variable:
        quads = (self.lines + self.padding) // 4
        return Variable(f"tile_{self.name}", f"array<array<vec4<{self.element}>, {quads}>, {self.tile.depth}>")

    def setup(self) -> list[str]:
        n, matrix = self.name, self.matrix
        first = "first_row" if n == "a" else "first_column"
        last = matrix.lines - (4 if self.width == 4 and not self.along_terms else 1)
        numbers = self.numbers
        offset = stack_offset(matrix, "stack", self.problem.stacks, numbers)
        base = [f"{n}_stack"] if offset != "0u" else []
        lines = [*self.once, *(f"let {name} = {offset};" for name in base)]
        seen: dict[str, str] = {}
        for k, (line, term) in enumerate(self.positions):
            if line not in seen:
                name = seen[line] = f"{n}_line{len(seen)}"
                at = f"min({first} + {line}, {numbers.unsigned(last)})"
                if isinstance(matrix, ProblemWindow):
                    lines += _window(matrix, name, at, base, numbers)
                else:
                    lines.append(f"let {name} = {' + '.join([*base, times(at, matrix.stride, numbers)])};")
            self.at.append(seen[line])
            if self.linear:
                text = f"{seen[line]} + {times(part(term), matrix.step, numbers)}"
                lines.append(f"let {n}_at{k} = {quarter(text, self.width)};")
        type = f"vec4<{self.element}>" if self.width == 4 else self.element
        return [*lines, *(f"var {n}_next{k} = {type}();" for k in range(self.count))]

    def fetch(self) -> list[str]:
        """Load the elements of a step, given its first tap and channel (or its first term, if steps cross taps)."""
        matrix, lines, numbers = self.matrix, list[str](), self.numbers
        bound = self.problem.channels if self.steps.is_by_tap else self.problem.terms
        if self.linear:
            assert isinstance(matrix, Matrix)
            jump = times("first", matrix.step, numbers)
            if self.problem.taps > 1 and self.steps.is_by_tap:
                within = f" + {jump}" if may_exceed(self.steps.per_tap, 1) else ""
                jump = f"tap * {numbers.unsigned(matrix.tap)}{within}"
            lines.append(f"let {self.name}_jump = {quarter(jump, self.width)};")
        elif isinstance(matrix, ProblemWindow) and self.steps.is_by_tap:
            for name in dict.fromkeys(self.at):
                lines += _tap(matrix, name, name, "tap", numbers)
        for k, (_, term) in enumerate(self.positions):
            at, conditions = self._address(k, term, lines)
            if self.steps.ragged:
                conditions.append(f"first + {term} < {numbers.unsigned(bound)}")
            value = self.reader.load(at, self.width)
            if conditions:
                value = f"select({self.zero}, {value}, {' && '.join(conditions)})"
            lines.append(f"{self.name}_next{k} = {value};")
        return lines

    def _address(self, k: int, term: str, lines: list[str]) -> tuple[str, list[str]]:
        """The address of load `k`, and the conditions that the element exists. Appends required statements to `lines`."""
        n, matrix, channels, numbers = self.name, self.matrix, self.problem.channels, self.numbers
        if self.linear:
            return f"{n}_at{k} + {n}_jump", []
        name, tap, channel = self.at[k], "tap", f"(first + {term})"
        if not self.steps.is_by_tap:
            size = numbers.divisor(channels)
            is_split = may_exceed(channels, 1)
            tap, channel = (f"{channel} / {size}", f"{channel} % {size}") if is_split else (channel, "0u")
        if isinstance(matrix, Matrix):
            return f"{name} + {times(channel, matrix.step, numbers)} + {times(tap, matrix.tap, numbers)}", []
        if not self.steps.is_by_tap:
            name = f"{name}_{k}"
            lines += _tap(matrix, self.at[k], name, tap, numbers)
        at = quarter(f"u32({name}_at) + {times(channel, matrix.step, numbers)}", self.width)
        return at, [] if matrix.inside else [f"{name}_in"]

    def store(self) -> list[str]:
        """Store the loaded elements in workgroup memory, at [term][line]."""
        lines = []
        for k, (line, term) in enumerate(self.positions):
            tile, value = f"tile_{self.name}", f"{self.name}_next{k}"
            if self.width == 4 and not self.along_terms:
                text = [f"{tile}[{term}][{_quad(line)}] = {value};"]
            elif self.width == 4:
                text = [
                    f"{tile}[{plus(term, c)}][{_quad(line)}][{part(line)} % 4u] = {value}.{'xyzw'[c]};"
                    for c in range(4)
                ]
            else:
                text = [f"{tile}[{term}][{_quad(line)}][{part(line)} % 4u] = {value};"]
            if (k + 1) * self.tile.invocations > self.total:
                at = plus("lane", k * self.tile.invocations)
                text = statement(f"if ({at} < {self.total}u)", text)
            lines += text
        return lines


def _window(m: ProblemWindow, name: str, line: str, base: list[str], numbers: KernelNumbers) -> list[str]:
    """Define the origin of the window of a line; `base` holds the name of the stack's offset, or nothing."""
    p = f"{name}_position"
    is_single, pixels = not may_exceed(m.batches, 1), prod(m.output)
    terms = [*base, *([] if is_single else [times(f"({p} / {numbers.divisor(pixels)})", m.batch, numbers)])]
    return [
        f"let {p} = {line};",
        *window_start(m, name, unravel(p, m.output, is_single, numbers.divisor), numbers),
        f"let {name}_image = i32({' + '.join(terms) or '0u'});",
    ]


def _tap(m: ProblemWindow, name: str, key: str, tap: str, numbers: KernelNumbers) -> list[str]:
    """Define `{key}_at`, the pixel at a tap of a window, and `{key}_in`, the condition that the pixel exists."""
    distances = []
    for axis, (size, below, dilation) in enumerate(zip(m.kernel, strides_of(m.kernel), m.dilations, strict=True)):
        text = f"i32({tap})" if below == 1 else f"i32({tap}) / {below}"
        if axis or len(m.kernel) == 1:
            text = f"{text} % {size}"
        distances.append("0" if size == 1 else f"({text}) * {dilation}" if dilation > 1 else text)
    lines, conditions, offset = window_tap(m, name, key, distances, numbers)
    lines.append(f"let {key}_at = {name}_image + {offset};")
    if conditions:
        lines.append(f"let {key}_in = {' && '.join(conditions)};")
    return lines


def _quad(line: str) -> str:
    """The index of the group of four lines that contains a line."""
    return line.removesuffix(" * 4u") if line.endswith(" * 4u") else f"{part(line)} / 4u"


def body(
    problem: Problem,
    tile: Tile,
    a: ElementReader,
    b: ElementReader,
    splits: Dimension,
    dialect: Dialect,
    numbers: KernelNumbers,
) -> tuple[list[Part], tuple[int, int, int]]:
    """Workgroup memory, the entry point, and its dispatch size. The entry point calls `put(stack, row, column, vec4)`.

    With split-K, the stack passed to `put` is split * stacks + stack. A factor that is a number leaves each part steps; the
    last parts may have none if sizes have names, and sums of 0 then.
    """
    left = TileSide("a", problem.left, problem, tile, a, numbers)
    right = TileSide("b", problem.right, problem, tile, b, numbers)
    a.width, b.width = left.width, right.width
    place, groups, once = _locate_workgroup(workgroups(problem, tile, splits), numbers)
    across = tile.columns // tile.width
    steps, unsigned, divisor = left.steps, numbers.unsigned, numbers.divisor
    share = -(-steps.count // splits)
    has_stacks = may_exceed(problem.stacks, 1)
    is_divided = not (isinstance(splits, int) and splits == 1)
    stack = f"{place}.z % {divisor(problem.stacks)}" if is_divided else f"{place}.z"
    once += [
        f"let first_row = {place}.y * {tile.rows}u;",
        f"let first_column = {place}.x * {tile.columns}u;",
        *([f"let stack = {stack};"] if has_stacks else []),
        f"let ty = lane / {across}u;",
        f"let tx = lane % {across}u;",
        *left.setup(),
        *right.setup(),
    ]
    if is_divided:
        split = f"{place}.z / {divisor(problem.stacks)}" if has_stacks else f"{place}.z"
        once.append(f"let begin = {split} * {unsigned(share)};")
        once.append(f"let end = min(begin + {unsigned(share)}, {unsigned(steps.count)});")
    begin, end = ("begin", "end") if is_divided else ("0u", unsigned(steps.count))
    may_be_empty = is_divided and not is_static((splits, steps.count))
    sums = [f"sum_{r}_{c}" for r in range(tile.height) for c in range(tile.width // 4)]
    fetch = [*_locate_step(steps, tile.depth, numbers), *left.fetch(), *right.fetch()]
    loop = [
        "workgroupBarrier();",
        *left.store(),
        *right.store(),
        "workgroupBarrier();",
        *statement(f"if (step + 1u < {end})", ["let ahead = step + 1u;", *fetch]),
        *_compute(tile, dialect, problem.is_integer),
    ]
    text = [
        *once,
        *(f"var {name} = vec4<{problem.sum_type}>();" for name in sums),
        *statement("if (begin < end)" if may_be_empty else "", [f"let ahead = {begin};", *fetch]),
        *statement(f"for (var step = {begin}; step < {end}; step++)", loop),
        *_finish(tile, f"{place}.z" if is_divided or has_stacks else "0u"),
    ]
    return [left.declaration, right.declaration, entry(tile.invocations, text)], groups


def _locate_workgroup(
    counts: tuple[int, int, int], numbers: KernelNumbers
) -> tuple[str, tuple[int, int, int], list[str]]:
    """Locate a workgroup in a grid of size `counts`: name of the position, dispatch size, statements that define the name."""
    if all(count <= MAX_WORKGROUPS for count in counts):  # an answer that is recorded, if there are names
        return "group", counts, []
    unsigned, total = numbers.unsigned, prod(counts)
    x, y, area = map(numbers.divisor, (*counts[:2], prod(counts[:2])))
    number, groups = workgroup_number(total, unsigned=unsigned)
    lines = [f"let number = {number};", *return_if(f"number >= {unsigned(total)}")]
    return "place", groups, [*lines, f"let place = vec3<u32>(number % {x}, number / {x} % {y}, number / {area});"]


def _locate_step(steps: Steps, depth: int, numbers: KernelNumbers) -> list[str]:
    """Define `tap` and the channel `first`, or the term `first`, at which the step `ahead` begins."""
    if not steps.is_by_tap or is_same_size(steps.per_tap, steps.count):
        return [f"let first = ahead * {depth}u;"]
    if is_same_size(steps.per_tap, 1):
        return ["let tap = ahead;", "let first = 0u;"]
    per_tap = numbers.divisor(steps.per_tap)
    return [f"let tap = ahead / {per_tap};", f"let first = ahead % {per_tap} * {depth}u;"]


def _compute(tile: Tile, dialect: Dialect, is_integer: bool) -> Iterator[str]:
    """Add up the products of a step: in a loop if the dialect has a hint to unroll loops, else in unrolled statements.

    NVRTC compiles the loop faster than the statements, and both kernels are equally fast.
    """
    if hint := dialect.unroll_hint(UNROLLED_TERMS):
        yield from (*hint, *statement(f"for (var k = 0u; k < {tile.depth}u; k++)", _products(tile, "k", is_integer)))
        return
    for k in range(tile.depth):
        yield from statement("", _products(tile, str(k), is_integer))


def _products(tile: Tile, term: str, is_integer: bool) -> Iterator[str]:
    down, across = tile.rows // tile.height, tile.columns // tile.width
    for r in range(tile.height // 4):
        yield f"let a{r} = tile_a[{term}][{plus('ty', r * down)}];"
    for c in range(tile.width // 4):
        yield f"let b{c} = tile_b[{term}][{plus('tx', c * across)}];"
    for r in range(tile.height):
        for c in range(tile.width // 4):
            left, total = f"a{r // 4}.{'xyzw'[r % 4]}", f"sum_{r}_{c}"
            yield (
                f"{total} += products_of_bytes({left}, b{c});"
                if is_integer
                else f"{total} = fma(vec4<f32>({left}), b{c}, {total});"
            )


def _finish(tile: Tile, stack: str) -> Iterator[str]:
    down, across = tile.rows // tile.height, tile.columns // tile.width
    for r in range(tile.height):
        for c in range(tile.width // 4):
            row = f"first_row + ty * 4u + {r // 4 * down * 4 + r % 4}u"
            column = f"first_column + tx * 4u + {c * across * 4}u"
            yield f"put({stack}, {row}, {column}, sum_{r}_{c});"


def workgroups(problem: Problem, tile: Tile, splits: Dimension) -> tuple[int, int, int]:
    """(tiles across the columns, tiles down the rows, stacks * splits)."""
    return -(-problem.columns // tile.columns), -(-problem.rows // tile.rows), problem.stacks * splits
