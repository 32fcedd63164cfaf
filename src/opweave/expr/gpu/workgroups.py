"""Programs of workgroups: kernels whose invocations keep arrays between several steps.

An index expression says what one element of a result is. That is not enough where a step needs all elements of the one
before: the states of a recurrent network, or attention, which keeps a running maximum and sum for each query. In a program
of workgroups, each workgroup works on one position of `rows`. It executes statements one after the other, and keeps arrays
in workgroup memory, or in registers of its invocations. The elements that are computed are index expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from ...errors import require
from ...graph import Desc
from ..array import Array, as_array
from ..ir import Cast, Const, Expr, Index, Input, Load, Reduce, size_of, walk
from ..reductions import COMBINE, written_out
from ..simplify import simplified_elements
from ..tracing import of_input
from .block import MAX_WRITTEN_OUT_NODES, Block, Grid, exists
from .dialect import Variable
from .forms import flat_position
from .kernel import Features, Kernel, KernelProgram
from .module import Module
from .reductions import PART
from .types import computed
from .writing import converted, guarded, numbered, pattern_of, width_of

MAX_UNROLLED_ELEMENTS = 8
"""Reductions of up to this many elements are unrolled: their loads do not wait for each other."""
MAX_EARLY_LOADS = 16
"""Elements that an invocation reads before the kernel waits for the one before; each takes a register. An estimate."""


@dataclass(frozen=True, eq=False)
class Local(Input):
    """An array that each workgroup keeps for itself, float32.

    Attributes:
        private: whether elements lie in registers of the invocations that compute them, which read no others.
    """

    private: bool = False


@dataclass(frozen=True, eq=False)
class Fill:
    """Compute all elements of a local array: `target[axes] = body`."""

    target: Local
    axes: tuple[Index, ...]
    body: Expr


@dataclass(frozen=True, eq=False)
class Write:
    """Write elements of an array in memory: `target[at] = body` at all positions of `axes`."""

    target: Input
    axes: tuple[Index, ...]
    at: tuple[Expr, ...]
    body: Expr


@dataclass(frozen=True, eq=False)
class Repeat:
    """Execute statements for each `variable` from `first` to before `end`, at most `most` times.

    These limits must not depend on other variables than rows and those of loops around it.
    """

    variable: Index
    first: Expr
    end: Expr
    most: int
    statements: list[Statement]


Statement: TypeAlias = Fill | Write | Repeat


@dataclass(eq=False)
class Workgroups(KernelProgram):
    """A program of workgroups under construction.

    >>> program = Workgroups([2])  # one workgroup for each of two rows
    >>> x, y = Input(0, Desc("float32", (2, 8))), Input(1, Desc("float32", (2, 8)))
    >>> (row,) = program.positions
    >>> total = program.shared([8])
    >>> program.fill(total, lambda i: 0)
    >>> with program.repeat(3):
    ...     program.fill(total, lambda i: program[total][i] + of_input(x)[row, i])
    >>> program.write(y, [8], lambda i: (row, i), lambda i: program[total][i])
    >>> print(program.kernel("three times", Features()).workgroups)
    (2, 1, 1)

    Attributes:
        sizes: how many workgroups there are along each axis.
        width: about how many invocations of a workgroup have work at the same time.
        statements: in order.
    """

    sizes: Sequence[int]
    width: int = 256
    statements: list[Statement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = tuple(map(Index, self.sizes))
        self._locals: list[Local] = []
        self._kernels: dict[tuple[Features, frozenset[Input]], Kernel] = {}

    @property
    def positions(self) -> tuple[Array, ...]:
        """The position of a workgroup along each axis."""
        return tuple(Array((), row) for row in self.rows)

    @property
    def sources(self) -> list[Input]:
        """The arrays in memory that are read."""
        found: dict[Input, None] = {}
        for body in self._bodies(self.statements):
            loads = (node for node in walk(body) if isinstance(node, Load))
            found |= {
                load.source: None
                for load in loads
                if isinstance(load.source, Input) and not isinstance(load.source, Local)
            }
        return list(found)

    @property
    def targets(self) -> list[Input]:
        """The arrays in memory that are written."""
        return list(dict.fromkeys(s.target for s in _flat(self.statements) if isinstance(s, Write)))

    def __getitem__(self, local: Local) -> Array:
        """The elements of a local array."""
        return of_input(local)

    # Construction ----------------------------------------------------------------------------------------------------

    def shared(self, shape: Sequence[int]) -> Local:
        """A new array in workgroup memory, which all invocations read."""
        self._locals.append(Local(-1, Desc("float32", tuple(shape))))
        return self._locals[-1]

    def private(self, shape: Sequence[int]) -> Local:
        """A new array in registers: an invocation reads those elements that it has computed, at the same position."""
        self._locals.append(Local(-1, Desc("float32", tuple(shape)), private=True))
        return self._locals[-1]

    def fill(self, target: Local, value: Callable[..., Array | float], shape: Sequence[int] | None = None) -> None:
        """Compute the elements of a local array, or those of the leading part that `shape` says."""
        axes = tuple(map(Index, shape or target.desc.shape))
        self._add(Fill(target, axes, _element(value, axes)))

    def write(
        self,
        target: Input,
        shape: Sequence[int],
        at: Callable[..., Sequence[Array | int]],
        value: Callable[..., Array | float],
    ) -> None:
        """Write an element of an array in memory for each position in `shape`."""
        axes = tuple(map(Index, shape))
        positions = [Array((), axis) for axis in axes]
        where = tuple(as_array(index, "index").body for index in at(*positions))
        body = _element(value, axes)
        if body.type != target.desc.data_type:
            body = Cast(body, target.desc.data_type)
        self._add(Write(target, axes, where, body))

    @contextmanager
    def repeat(
        self, count: int, first: Array | int = 0, end: Array | int | None = None, *, most: int | None = None
    ) -> Iterator[Array]:
        """Repeat what is added in the `with` block.

        Args:
            count: the number of positions.
            first: where the position starts.
            end: where it ends, at most `count`, which is the default.
            most: the most positions from `first` to `end`, if fewer than `count`.

        Yields:
            The position.
        """
        outer, self.statements = self.statements, []
        variable = Index(count)
        try:
            yield Array((), variable)
        finally:
            inner, self.statements = self.statements, outer
        last = as_array(count if end is None else end, "index").body
        self._add(Repeat(variable, as_array(first, "index").body, last, most or count, inner))

    def _add(self, statement: Statement) -> None:
        self.statements.append(statement)

    def _bodies(self, statements: Sequence[Statement]) -> Iterator[Expr]:
        for statement in _flat(statements):
            if isinstance(statement, Repeat):
                yield from (statement.first, statement.end)
            else:
                yield statement.body
                yield from statement.at if isinstance(statement, Write) else ()

    # Text ------------------------------------------------------------------------------------------------------------

    @property
    def shared_bytes(self) -> int:
        """Workgroup memory that the program takes."""
        return sum(local.desc.byte_length for local in self._locals if not local.private)

    def iterations(self, features: Features) -> int:
        """How often an invocation repeats loops at most, all taken together."""
        return _iterations(self.statements, width_of(self.width, features))

    def kernel(self, title: str, features: Features, is_fixed: Callable[[Input], bool] = lambda _: False) -> Kernel:
        """The kernel of the program; its bindings are `sources` and `targets`. See `KernelProgram`."""
        require(
            self.shared_bytes <= features.max_shared, f"{title} takes {self.shared_bytes} bytes of workgroup memory"
        )
        count = self.iterations(features)
        require(count <= features.max_iterations, f"{title} repeats loops {count} times, too often for this device")
        key = features, frozenset(filter(is_fixed, self._finished_sources))
        if key not in self._kernels:
            self._kernels[key] = _Text(self, title, *key).kernel()
        return replace(self._kernels[key], title=title)

    @cached_property
    def _finished_sources(self) -> list[Input]:
        """`sources`, once all statements are there."""
        return self.sources


def _flat(statements: Sequence[Statement]) -> Iterator[Statement]:
    """The statements, each followed by those inside of it."""
    for statement in statements:
        yield statement
        if isinstance(statement, Repeat):
            yield from _flat(statement.statements)


def _iterations(statements: Sequence[Statement], width: int) -> int:
    """How often an invocation repeats the loops of statements."""
    total = 0
    for statement in statements:
        if isinstance(statement, Repeat):
            total += statement.most * (1 + _iterations(statement.statements, width)) + 1
        else:
            total += -(-size_of(statement.axes) // width) * (1 + _in_reductions(statement.body)) + 1
    return total


def _in_reductions(body: Expr) -> int:
    """How often the loops of the reductions in an element are repeated."""
    total = 0
    for node in walk(body, enter=lambda node: () if isinstance(node, Reduce) else node.parts):
        if isinstance(node, Reduce):
            size, inner = size_of(node.variables), _in_reductions(node.body)
            # Long sums have a loop over parts, too. The test that ends a loop counts as an iteration.
            total += size * inner if _is_short(node) else size * (1 + inner) + 2 * (size // PART) + 3
    return total


def _element(value: Callable[..., Array | float], axes: tuple[Index, ...]) -> Expr:
    return as_array(value(*(Array((), axis) for axis in axes)), "float32").body


def _is_short(node: Reduce) -> bool:
    return size_of(node.variables) <= MAX_UNROLLED_ELEMENTS and node.reduction in COMBINE


class _Text:
    """Generates the kernel of a program."""

    def __init__(self, program: Workgroups, title: str, features: Features, fixed: frozenset[Input]) -> None:
        self.program, self.title, self.features = program, title, features
        self.number, self.groups = numbered(size_of(program.rows), features.max_workgroups)
        self.fixed = fixed if features.dialect.starts_early(self.groups) else frozenset[Input]()
        # Statements before the kernel waits for the one before, and what they have read.
        self.early: list[str] = []
        self.known: dict[str, str] = {}
        # Stores of elements that are computed: devices do not load past a store, so others are loaded first.
        self.stores: list[str] = []
        self.values = 0
        self.module = Module(features)
        for source in sorted(program.sources, key=lambda source: source.number):
            self.module.read(source)
        for target in program.targets:
            self.module.write(target)
        self.width = width_of(program.width, features)
        self.lines: list[str] = []
        self.depth = 0
        self.positions: dict[Index, str] = {}
        # Local arrays that were read and written since the last barrier.
        self.read: set[Local] = set()
        self.written: set[Local] = set()
        for number, local in enumerate(program._locals):
            if local.private:
                self.module.names[local] = f"p{number}"
                self.lines += [f"var p{number}_{k} = 0.0f;" for k in range(self._chunks(local.desc.element_count))]
            else:
                self.module.names[local] = f"m{number}"
                count = local.desc.element_count
                self.module.shared.append(Variable(f"m{number}", f"array<f32, {count}>"))

    def kernel(self) -> Kernel:
        head = guarded("row", self.number, size_of(self.program.rows), math.prod(self.groups))
        self._statements(self.program.statements)
        self._store()
        if self.early:
            head += [*self.early, f"{self.features.dialect.await_previous}();"]
        return self.module.kernel(self.title, [], [*head, *self.lines], (self.width, 1, 1), self.groups)

    def _chunks(self, count: int) -> int:
        """How many of `count` elements an invocation computes."""
        return -(-count // self.width)

    def _add(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def _barrier(self) -> None:
        self._add("workgroupBarrier();")
        self.read.clear()
        self.written.clear()

    def _block(self, known: Mapping[Expr, str] | None = None) -> Block:
        return Block(self.module, self.positions, known, grid=Grid(self.program.rows, "row"))

    def _statements(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            if not isinstance(statement, Write):
                self._store()
            if isinstance(statement, Repeat):
                self._repeat(statement)
            else:
                self._elements(statement)

    def _store(self) -> None:
        self._add(*self.stores)
        self.stores.clear()

    def _repeat(self, loop: Repeat) -> None:
        limits = simplified_elements(loop.first, loop.end)
        block = self._block(self._read_early(self._early_loads(limits)))
        first, end = map(block.value, limits)
        name = f"n{len(self.positions)}"
        self._add("{", *(f"    {line}" for line in block.lines))
        self._add(f"    for (var {name} = {first}; {name} < {end}; {name} += 1) {{")
        if self.read or self.written:
            self.lines[-1:-1] = ["    " * self.depth + "    workgroupBarrier();"]
            self.read.clear()
            self.written.clear()
        self.positions[loop.variable] = name
        self.depth += 2
        self._statements(loop.statements)
        self._store()
        if self.read or self.written:
            self._barrier()  # before the first statement runs again
        self.depth -= 2
        del self.positions[loop.variable]
        self._add("    }", "}")

    def _elements(self, statement: Fill | Write) -> None:
        """The statements that compute elements, shared by the invocations."""
        at = statement.at if isinstance(statement, Write) else ()
        body, *at_ = simplified_elements(statement.body, *at)
        body, *where = written_out((body, *at_), _is_short)
        loads = [n for n in walk(body, *where) if isinstance(n, Load) and isinstance(n.source, Local)]
        self._wait(statement, loads)
        target, size = statement.target, size_of(statement.axes)
        early = self._early_loads((body, *where), statement.axes)
        private = {load.source for load in loads if load.source.private}  # type: ignore[union-attr]
        count = self._chunks(size)
        is_short = count <= self.features.dialect.kept and count * len(walk(body)) <= MAX_WRITTEN_OUT_NODES
        is_kept = is_short and (isinstance(statement, Write) or any(not self._is_same(load) for load in early))
        if private or is_kept or (isinstance(target, Local) and target.private):
            for k in range(count):
                known = self._read_early(early, statement.axes, k)
                for load in loads:
                    if load.source in private:
                        assert _is_aligned(load, statement.axes), f"{self.title}: {load!r}"
                        known[load] = f"{self.module.names[load.source]}_{k}"
                self._chunk(statement, body, where, known, k, size)
            return
        lines = self._stored(statement, body, where, self._read_early(filter(self._is_same, early)), None)
        self._add("{")
        if size > self.width:
            head = f"for (var flat = lane; flat < {size}u; flat += {self.width}u) {{"
        else:
            self._add("    let flat = lane;")
            head = f"if (lane < {size}u) {{" if size < self.width else "{"
        self._add(*(f"    {line}" for line in self.module.features.dialect.loop(head, lines)), "}")

    def _chunk(
        self, statement: Fill | Write, body: Expr, where: Sequence[Expr], known: dict[Expr, str], k: int, size: int
    ) -> None:
        """The statements for the elements number `k` of all invocations."""
        start = k * self.width
        lines = self._stored(statement, body, where, known, k)
        self._add("{", f"    let flat = lane + {start}u;" if k else "    let flat = lane;")
        if start + self.width > size:
            lines = [f"if (flat < {size}u) {{", *(f"    {line}" for line in lines), "}"]
        self._add(*(f"    {line}" for line in lines), "}")

    def _stored(
        self, statement: Fill | Write, body: Expr, where: Sequence[Expr], known: dict[Expr, str], chunk: int | None
    ) -> list[str]:
        """The statements that compute and store the element number `flat`; the last ones may wait in `stores`.

        Args:
            statement: which element.
            body: the element, written out.
            where: its position, written out.
            known: names of expressions that are already computed.
            chunk: the number of the invocation's element; None in a loop over them.
        """
        # A block of its own: nothing that earlier statements computed is used again, since local arrays change.
        block = self._block(known)
        block.enter(grid=Grid(statement.axes, "flat", len(self.program.rows)))
        value, target = block.value(body), statement.target
        if isinstance(target, Local):
            name, value = self.module.names[target], converted(body, "float32", value)
            place = f"{name}_{chunk}"
            if not target.private:
                place = f"{name}[{block.value(flat_position(statement.axes, target.desc.shape))}]"
            block.add(f"{place} = {value};")
        else:
            data_type, place = target.desc.data_type, block.named(flat_position(where, target.desc.shape))
            value = converted(body, data_type, value)
            if chunk is not None and self.features.dialect.kept and self.module.layout(target).lanes == 1:
                name = f"value_{self.values}"
                self.values += 1
                self._add(f"var {name} = {computed(data_type)}();", f"var {name}_at = 0;")
                block.add(f"{name} = {value};", f"{name}_at = i32({place});")
                store, last = self.module.store(target, f"{name}_at", name), (chunk + 1) * self.width
                guard = f"if (lane + {chunk * self.width}u < {size_of(statement.axes)}u) {{"
                self.stores += [store] if last <= size_of(statement.axes) else [guard, f"    {store}", "}"]
            elif self.module.layout(target).lanes == 1:
                block.add(self.module.store(target, place, value))
            else:
                block.add(*self.module.replace(target, place, pattern_of(value, data_type)))
        block.leave("{")
        return block.lines

    def _early_loads(self, roots: Sequence[Expr], axes: tuple[Index, ...] = ()) -> list[Load]:
        """The loads that a statement can do before the kernel waits for the one before.

        Those of arrays that no kernel writes, at places that follow from the workgroup and other such arrays. Outside of
        loops, they may depend on the position of the element, too.
        """
        bound, found = {*self.program.rows, *(axes if not self.positions else ())}, list[Load]()
        for node in walk(*roots) if self.fixed else ():
            if isinstance(node, Load) and node.source in self.fixed and node.free <= bound and exists(node):
                inner = (other for other in walk(*node.parts) if isinstance(other, Load))
                if all(other in found for other in inner):
                    found.append(node)
        return found

    def _is_same(self, load: Load) -> bool:
        """Whether all elements that a workgroup computes need the same element of an array."""
        return load.free <= {*self.program.rows}

    def _read_early(self, loads: Iterable[Load], axes: tuple[Index, ...] = (), chunk: int = 0) -> dict[Expr, str]:
        """Read elements before the kernel waits for the one before; return the names of the variables.

        Args:
            loads: what to read.
            axes: of the elements that are computed.
            chunk: the number of an invocation's element.
        """
        known: dict[Expr, str] = {}
        for load in loads:
            block, head, grid = self._block(), "{", None
            if not self._is_same(load):
                start, size, grid = chunk * self.width, size_of(axes), Grid(axes, "flat", len(self.program.rows))
                block.add(f"let flat = lane + {start}u;")
                head = head if start + self.width <= size else f"if (flat < {size}u) {{"
            block.enter(grid=grid)
            block.add(f"early = {block.value(load)};")
            block.leave(head)
            text = "\n".join(block.lines)
            if text not in self.known and len(self.known) < MAX_EARLY_LOADS:
                name = self.known[text] = f"early_{len(self.known)}"
                lines = (line.replace("early = ", f"{name} = ") for line in block.lines)
                self.early += [f"var {name} = {computed(load.type)}();", "{", *(f"    {line}" for line in lines), "}"]
            if text in self.known:
                known[load] = self.known[text]
        return known

    def _wait(self, statement: Fill | Write, loads: Sequence[Load]) -> None:
        """Put a barrier before the statement if another invocation may not have done yet what it depends on."""
        reads = {load.source for load in loads if not load.source.private}  # type: ignore[union-attr]
        target = statement.target
        writes = {target} if isinstance(target, Local) and not target.private else set()
        if reads & self.written or writes & (self.read | self.written):
            self._barrier()
        for load in loads:  # an element that is replaced must not be read by another invocation
            assert load.source is not target or _is_aligned(load, statement.axes), f"{self.title}: {load!r}"
        self.read |= reads  # type: ignore[arg-type]
        self.written |= writes


def _is_aligned(load: Load, axes: tuple[Index, ...]) -> bool:
    """Whether a load reads the element at the position that is computed."""
    pairs = zip(load.parts, axes, strict=True)
    return all(part is axis or (axis.extent == 1 and isinstance(part, Const)) for part, axis in pairs)


__all__ = ["Fill", "Local", "Repeat", "Workgroups", "Write"]
