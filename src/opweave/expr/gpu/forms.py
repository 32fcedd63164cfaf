"""The forms of kernels: the assignment of elements to invocations.

An invocation computes one element, or all elements of a word; or a workgroup computes a row, whose reductions its
invocations share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ...core.guards import estimate
from ...core.sizes import Size, is_same_size, may_exceed
from ..ir import Const, Expr, Index, Load, Output, Reduce, Source, Stored, call, size_of, walk
from ..reductions import COMBINE, unroll_short
from .block import MAX_WRITTEN_OUT_NODES, Block, Grid
from .kernel import Features, GpuKernel
from .module import GpuModule
from .writing import comment_of, convert, guard_lines, invocations, pattern_of, sources_of, width_of, workgroup_number

# Limits for GPUs; `python -m benchmarks webgpu gpu` measures their effect in whole networks.
MAX_INLINE_ELEMENTS = 8
"""Reductions of up to this many elements are inlined."""
MAX_SERIAL_ELEMENTS = 32
"""Reductions of up to this many elements are computed by one invocation."""
MANY_ROWS = 1 << 14
"""With more rows than this, workgroups also take rows of up to `MAX_SERIAL_ELEMENTS`."""
MIN_RESULTS = 4096
"""This many results keep a device busy with one invocation each."""
MIN_ROWS = 64
"""This many rows keep a device busy with one workgroup each."""
MIN_WIDE_ROW, WIDE_ROWS_SHARE, WIDE = 1 << 13, 4, 1024
"""Rows of this length, if there is one for each of at most a quarter of the device's units, have larger workgroups: the choice
of one of 32,000 tokens on an H200 takes 18 us with 256 invocations."""
MAX_ROW_ELEMENTS = 1 << 14
"""Maximum length of a row if there are fewer rows than `MIN_ROWS`; a row that has one result may be longer."""
MAX_UNROLLED_ELEMENTS = 32
"""Reductions of up to this many elements are unrolled: their loops are slow on GPUs."""


@dataclass(frozen=True, eq=False)
class Target:
    """An array that a kernel writes: `body` at indices `at`, or at the position of the kernel's axes."""

    buffer: Stored | Output
    body: Expr
    at: tuple[Expr, ...] | None = None


def reductions(bodies: Sequence[Expr]) -> list[Reduce]:
    """The reductions in expressions, inner ones first."""
    return [node for node in walk(*bodies) if isinstance(node, Reduce)]


def row_axes(axes: tuple[Index, ...], bodies: Sequence[Expr], lanes: int) -> tuple[Index, ...] | None:
    """The leading axes, if reductions depend on these only and a workgroup should compute each row; else None.

    `lanes` is the number of elements per word.
    """
    outside = [
        node
        for node in reductions(bodies)
        if node.free <= set(axes) and may_exceed(size_of(node.variables), MAX_INLINE_ELEMENTS)
    ]
    free = {axis for node in outside for axis in node.free if not is_same_size(axis.extent, 1)}
    count = next((k + 1 for k in reversed(range(len(axes))) if axes[k] in free), 0)
    rows, length = axes[:count], size_of(axes[count:])
    if not outside or any(not is_same_size(axis.extent, 1) and axis not in free for axis in rows):
        return None
    is_single = is_same_size(length, 1)
    if not is_single and length % lanes:
        return None  # a word would belong to two rows
    count, longest = estimate(size_of(rows)), _longest(length, outside)
    enough = MAX_SERIAL_ELEMENTS if is_single or count > MANY_ROWS else MAX_INLINE_ELEMENTS
    is_busy = is_single or longest <= MAX_ROW_ELEMENTS or count >= MIN_ROWS
    return rows if longest > enough and is_busy else None


def _longest(length: int, nodes: Sequence[Reduce]) -> int:
    """The largest of a length and the sizes of reductions; estimates, where sizes are known only at a run."""
    return max(estimate(length), *(estimate(size_of(node.variables)) for node in nodes))


def _iterations_of(bodies: Sequence[Expr], shared: Collection[Reduce] = ()) -> int:
    """Number of iterations of the loops of an element, without those of reductions that are `shared`."""
    nodes = [node for node in reductions(bodies) if node not in shared]
    owners = {variable: node for node in nodes for variable in node.variables}

    def around(node: Reduce) -> frozenset[Index]:
        """The variables of the loops around a reduction, which is hoisted out of loops on which it does not depend."""
        outer = {owners[variable] for variable in node.free if variable in owners}
        return frozenset(variable for other in outer for variable in (*other.variables, *around(other)))

    return sum(size_of(node.variables) * size_of(around(node)) for node in nodes)


def _is_short(node: Reduce) -> bool:
    size = size_of(node.variables)
    if may_exceed(size, MAX_UNROLLED_ELEMENTS) or isinstance(size, Size):
        return False
    short = size * len(walk(node.body)) <= MAX_WRITTEN_OUT_NODES
    return short and node.reduction in COMBINE


def flat_position(indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The flat position in an array of the element at `indices`."""
    flat: Expr = Const(0, "index")
    for index, size in zip(indices, shape, strict=True):
        flat = call("add", call("mul", flat, Const(size, "index")), index)
    return flat


def shared_elements(
    module: GpuModule,
    axes: tuple[Index, ...],
    body: Expr,
    place: Callable[[str], str],
    team: int,
    fixed: Collection[Source],
) -> tuple[list[str], list[str]]:
    """Generate statements that compute all elements of an array into workgroup memory, followed by a barrier.

    The reductions of `body` depend on none of `axes`. `place` takes the code of an element's index, and returns the f32
    variable of the element. Return the statements that read only arrays in `fixed`, which no kernel writes, and the others.
    """
    block = Block(module, {}, team=team, fixed=fixed)
    for node in reductions([body]):
        if not node.free and size_of(node.variables) > 4:
            block.value(node)  # all invocations must reach its barriers
    block.divide(axes, [body], lambda flat: block.add(f"{place(flat)} = {block.value(body)};"))
    return block.early, [*block.lines, "workgroupBarrier();"]


class Form:
    """Generates the kernel of targets with the same axes."""

    def __init__(self, title: str, features: Features, axes: tuple[Index, ...], targets: Sequence[Target]) -> None:
        self.features, self.axes, self.targets = features, axes, targets
        self.bodies = tuple(target.body for target in targets)
        self.size = size_of(axes)
        self.module = GpuModule(features)
        indices = [index for target in targets for index in target.at or ()]
        for source in sorted(sources_of([*indices, *self.bodies]), key=lambda s: getattr(s, "number", math.inf)):
            self.module.read(source)
        for target in targets:
            self.module.write(target.buffer)
        (self.lanes,) = {1 if target.at else self.module.layout(target.buffer).lanes for target in targets}
        names = ", ".join(f"{self.module.names[t.buffer]} {t.buffer.desc}" for t in targets)
        self.title = f"{title}: {names}"

    def kernel(self) -> GpuKernel:
        """The kernel, in the form that suits its reductions."""
        rows = self._rows()
        if rows is not None:
            return self._row_by_row(rows)
        self.bodies = unroll_short(self.bodies, _is_short)
        return self.map()

    def _limit_iterations(self, iterations: int) -> None:
        """Let this kernel run only for sizes with which an invocation makes no more iterations than the device allows."""
        if isinstance(iterations, Size) and iterations > self.features.max_iterations:
            int(iterations)  # the limit is an estimate for these sizes, so it holds for them alone

    def _rows(self) -> tuple[Index, ...] | None:
        """The axes whose positions are one workgroup each; None for one invocation per element."""
        rows = row_axes(self.axes, self.bodies, self.lanes)
        is_whole = rows is not None and is_same_size(size_of(rows), self.size)
        if is_whole and estimate(self.size) >= MIN_RESULTS and not self._reads_neighbours():
            return None  # reads of adjacent invocations are coalesced without rows
        return rows

    def _reads_neighbours(self) -> bool:
        """Whether consecutive steps of a reduction read adjacent elements."""
        last = {node.variables[-1] for node in reductions(self.bodies)}
        loads = [node for node in walk(*self.bodies) if isinstance(node, Load) and node.parts]
        return any(not load.parts[-1].free.isdisjoint(last) for load in loads)

    def map(self) -> GpuKernel:
        """One invocation for each element, or for each word."""
        count = -(-self.size // self.lanes)
        width, unsigned = width_of(estimate(count), self.features), self.module.unsigned
        number, groups = invocations(count, width, self.features, unsigned)
        self._limit_iterations(_iterations_of(self.bodies) * self.lanes)
        name = "flat" if self.lanes == 1 else "word"
        lines = guard_lines(name, number, count, math.prod(groups) * width, unsigned)
        block = Block(self.module, {}, grid=Grid(self.axes) if self.lanes == 1 else None)
        if self.lanes == 1:
            self._stores(block, "flat")
        else:
            self._words(block, "word", self.size)
        return self._finish([*lines, *block.lines], (width, 1, 1), groups)

    def _row_by_row(self, rows: tuple[Index, ...]) -> GpuKernel:
        """One workgroup for each row; its invocations share the reductions and the elements of the row."""
        rest = self.axes[len(rows) :]
        longest, unsigned = _longest(size_of(rest), reductions(self.bodies)), self.module.unsigned
        count, length = size_of(rows), size_of(rest)
        is_alone = longest >= MIN_WIDE_ROW and estimate(count) * WIDE_ROWS_SHARE <= self.features.units
        # Without warps, each invocation has an element of workgroup memory for each reduction.
        is_wide = is_alone and self.features.dialect.warp > 0
        width = width_of(max(32, -(-longest // 4)), self.features, WIDE if is_wide else 256)
        packed = self.lanes > 1 and is_same_size(length, 1)
        shared = [node for node in reductions(self.bodies) if node.free <= set(rows)]
        steps = [-(-length // width) * self.lanes, *(-(-size_of(node.variables) // width) for node in shared)]
        self._limit_iterations(sum(steps) * (1 + _iterations_of(self.bodies, shared)))
        workgroups = -(-count // self.lanes) if packed else count
        number, groups = workgroup_number(workgroups, self.features.max_workgroups, unsigned)
        name = "word" if packed else "row"
        lines = guard_lines(name, number, workgroups, math.prod(groups), unsigned)
        if packed:
            block = Block(self.module, {}, team=width)
            self._words(block, "word", count, alone="if (lane == 0u) {")
        else:
            block = Block(self.module, {}, grid=Grid(rows, "row"), team=width)
            self._row(block, rows, rest, width)
        return self._finish([*lines, *block.early, *block.lines], (width, 1, 1), groups)

    def _row(self, block: Block, rows: tuple[Index, ...], rest: tuple[Index, ...], width: int) -> None:
        length, unsigned = size_of(rest), self.module.unsigned
        for node in reductions(self.bodies):
            if node.free <= set(rows) and may_exceed(size_of(node.variables), 4):
                block.value(node)  # all invocations must reach the barriers, so compute it before any branch
        if is_same_size(length, 1):
            block.enter()
            self._stores(block, "row")
            block.leave("if (lane == 0u) {")
            return
        if self.lanes == 1:
            first = f"row * {unsigned(length)}"
            add = lambda flat: self._stores(block, f"{first} + {flat}")  # noqa: E731
            block.divide(rest, self.bodies, add, len(rows))
            return
        words = unsigned(length // self.lanes)
        block.enter()
        block.add(f"let word = row * {words} + column_word;")
        self._words(block, "column_word", length, grid=Grid(rest, "flat", len(rows)), written="word")
        block.leave(f"for (var column_word = lane; column_word < {words}; column_word += {width}u) {{")

    def _stores(self, block: Block, flat: str) -> None:
        for target, body in zip(self.targets, self.bodies, strict=True):
            data_type, where = target.buffer.desc.data_type, flat
            if target.at is not None:
                where = block.let_value(flat_position(target.at, target.buffer.desc.shape))
            value = convert(body, data_type, block.value(body))
            if target.at is None or self.module.layout(target.buffer).lanes == 1:
                block.add(self.module.store(target.buffer, where, value))
            else:
                block.add(*self.module.replace(target.buffer, where, pattern_of(value, data_type)))

    def _words(
        self, block: Block, word: str, size: int, *, grid: Grid | None = None, written: str = "", alone: str = ""
    ) -> None:
        """Compute and write all elements of a word; `alone` guards the writes."""
        names = [f"{self.module.names[target.buffer]}_word" for target in self.targets]
        bits = 32 // self.lanes
        block.add(*(f"var {name} = 0u;" for name in names))
        block.enter(grid=grid or Grid(self.axes), together=bool(alone))
        last = f"{word} * {self.lanes}u + b"
        is_whole = is_same_size(size % self.lanes, 0)
        block.add(f"let flat = {last};" if is_whole else f"let flat = min({last}, {self.module.unsigned(size - 1)});")
        for target, body, name in zip(self.targets, self.bodies, names, strict=True):
            data_type = target.buffer.desc.data_type
            pattern = pattern_of(convert(body, data_type, block.value(body)), data_type)
            block.add(f"{name} |= {pattern} << (b * {bits}u);")
        block.leave(f"for (var b = 0u; b < {self.lanes}u; b++) {{")
        pairs = zip(self.targets, names, strict=True)
        lines = [f"{self.module.names[target.buffer]}[{written or word}] = {name};" for target, name in pairs]
        if alone:
            block.enter()
        block.add(*lines)
        if alone:
            block.leave(alone)

    def _finish(self, lines: Sequence[str], size: tuple[int, int, int], groups: tuple[int, int, int]) -> GpuKernel:
        comments = [comment_of(self.module, t.buffer, self.axes, t.body, t.at or self.axes) for t in self.targets]
        return self.module.kernel(self.title, comments, lines, size, groups)
