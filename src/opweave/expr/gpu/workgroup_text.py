"""Generate the code of kernels that are written workgroup by workgroup (`workgroups`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...core.sizes import is_same_size
from ..ir import Const, Expr, Index, Input, Load, call, size_of, walk
from ..reductions import unroll_short
from ..simplify import simplify_elements
from .block import MAX_WRITTEN_OUT_NODES, Block, Grid
from .dialect import Variable
from .forms import flat_position
from .kernel import Features, GpuKernel
from .module import GpuModule
from .statements import Fill, Local, Repeat, Statement, Write
from .types import computed_type
from .writing import convert, guard_lines, pattern_of, workgroup_number

if TYPE_CHECKING:
    from .workgroups import Workgroups

MAX_EARLY_LOADS = 16
"""Maximum elements that an invocation reads before waiting for the previous kernel; each takes a register. An estimate."""


class Text:
    def __init__(self, program: Workgroups, title: str, features: Features, fixed: frozenset[Input]) -> None:
        self.program, self.title, self.features = program, title, features
        self.module = GpuModule(features)
        rows, unsigned = size_of(program.rows), self.module.unsigned
        self.number, self.groups = workgroup_number(rows, features.max_workgroups, unsigned)
        self.fixed = fixed if features.dialect.starts_early(self.groups) else frozenset[Input]()
        # Statements that run before waiting for the previous kernel, and variables of the elements that they read.
        self.early: list[str] = []
        self.early_names: dict[str, str] = {}
        # Pending stores: devices do not load past a store, so other elements are loaded first.
        self.stores: list[str] = []
        self.values = 0
        for source in sorted(program.sources, key=lambda source: source.number):
            self.module.read(source)
        for target in program.targets:
            self.module.write(target)
        self.width = program.invocations(features)
        self.lines: list[str] = []
        self.depth = 0
        self.positions: dict[Index, str] = {}
        self.loops = 0  # number of enclosing loops, without those that are executed at most once
        # Local arrays that were read and written since the last barrier.
        self.read: set[Local] = set()
        self.written: set[Local] = set()
        for number, local in enumerate(program.locals):
            if local.private:
                self.module.names[local] = f"p{number}"
                zero = "0.0f" if local.desc.data_type == "float32" else f"{computed_type(local.desc.data_type)}()"
                self.lines += [f"var p{number}_{k} = {zero};" for k in range(self._chunks(local.desc.element_count))]
            else:
                self.module.names[local] = f"m{number}"
                count = local.desc.element_count
                self.module.shared.append(
                    Variable(f"m{number}", f"array<{computed_type(local.desc.data_type)}, {count}>")
                )

    def kernel(self) -> GpuKernel:
        head = guard_lines("row", self.number, size_of(self.program.rows), math.prod(self.groups), self.module.unsigned)
        self._statements(self.program.statements)
        self._store()
        if self.early:
            head += [*self.early, f"{self.features.dialect.await_previous}();"]
        return self.module.kernel(self.title, [], [*head, *self.lines], (self.width, 1, 1), self.groups)

    def _chunks(self, count: int) -> int:
        """The number of elements that an invocation computes, of `count` in total."""
        return -(-count // self.width)

    def _add(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def _barrier(self) -> None:
        self._add("workgroupBarrier();")
        self.read.clear()
        self.written.clear()

    def _block(self, names: Mapping[Expr, str] | None = None) -> Block:
        return Block(self.module, self.positions, names, grid=Grid(self.program.rows, "row"))

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
        limits = simplify_elements(loop.first, loop.end)
        block = self._block(self._read_early(self._early_loads(limits)))
        first, end = map(block.value, limits)
        name = f"n{len(self.positions)}"
        self._add("{", *(f"    {line}" for line in block.lines))
        if is_same_size(loop.most, 1):
            self._once(loop, name, first, end)
            return
        self._add(f"    for (var {name} = {first}; {name} < {end}; {name} += 1) {{")
        if self.read or self.written:
            self.lines[-1:-1] = ["    " * self.depth + "    workgroupBarrier();"]
            self.read.clear()
            self.written.clear()
        self.loops += 1
        self._inside(loop, name)
        self.loops -= 1
        if self.read or self.written:
            self.depth += 2
            self._barrier()  # before the first statement runs again
            self.depth -= 2
        self._add("    }", "}")

    def _once(self, loop: Repeat, name: str, first: str, end: str) -> None:
        """Add a loop that is executed at most once, without barriers before and after the loop."""
        read, written = set(self.read), set(self.written)
        self._add(f"    let {name} = {first};", f"    if ({name} < {end}) {{")
        self._inside(loop, name)
        self._add("    }", "}")
        self.read |= read  # there may have been no barrier
        self.written |= written

    def _inside(self, loop: Repeat, name: str) -> None:
        self.positions[loop.variable] = name
        self.depth += 2
        self._statements(loop.statements)
        self._store()
        self.depth -= 2
        del self.positions[loop.variable]

    def _elements(self, statement: Fill | Write) -> None:
        at = statement.at if isinstance(statement, Write) else ()
        body, *at_ = simplify_elements(statement.body, *at)
        body, *where = unroll_short((body, *at_), self.program.is_short)
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
                names = self._read_early(early, statement.axes, k)
                for load in loads:
                    if load.source in private:
                        assert _is_aligned(load, statement.axes), f"{self.title}: {load!r}"
                        names[load] = f"{self.module.names[load.source]}_{k}"
                self._chunk(statement, body, where, names, k, size)
            return
        lines = self._store_element(statement, body, where, self._read_early(filter(self._is_same, early)), None)
        self._add("{")
        if size > self.width:
            head = f"for (var flat = lane; flat < {size}u; flat += {self.width}u) {{"
        else:
            self._add("    let flat = lane;")
            head = f"if (lane < {size}u) {{" if size < self.width else "{"
        self._add(*(f"    {line}" for line in self.module.features.dialect.loop(head, lines)), "}")

    def _chunk(
        self, statement: Fill | Write, body: Expr, where: Sequence[Expr], names: dict[Expr, str], k: int, size: int
    ) -> None:
        """Add the statements for element `k` of each invocation."""
        start = k * self.width
        lines = self._store_element(statement, body, where, names, k)
        self._add("{", f"    let flat = lane + {start}u;" if k else "    let flat = lane;")
        if start + self.width > size:
            lines = [f"if (flat < {size}u) {{", *(f"    {line}" for line in lines), "}"]
        self._add(*(f"    {line}" for line in lines), "}")

    def _store_element(
        self, statement: Fill | Write, body: Expr, where: Sequence[Expr], names: dict[Expr, str], chunk: int | None
    ) -> list[str]:
        """Generate statements that compute and store the element number `flat`; the store may be deferred to `stores`."""
        # A new block: it reuses no values of earlier statements, because local arrays change.
        block = self._block(names)
        block.enter(grid=Grid(statement.axes, "flat", len(self.program.rows)))
        value, target = block.value(body), statement.target
        if isinstance(target, Local):
            name, value = self.module.names[target], convert(body, target.desc.data_type, value)
            place = f"{name}_{chunk}"
            if not target.private:
                assert isinstance(statement, Fill)
                row = call("add", statement.axes[0], Const(statement.start, "index"))
                at = (row, *statement.axes[1:]) if statement.start else statement.axes
                place = f"{name}[{block.value(flat_position(at, target.desc.shape))}]"
            block.add(f"{place} = {value};")
        else:
            data_type, place = target.desc.data_type, block.let_value(flat_position(where, target.desc.shape))
            value = convert(body, data_type, value)
            if chunk is not None and self.features.dialect.kept and self.module.layout(target).lanes == 1:
                name = f"value_{self.values}"
                self.values += 1
                self._add(f"var {name} = {computed_type(data_type)}();", f"var {name}_at = 0;")
                block.add(f"{name} = {value};", f"{name}_at = i32({place});")
                store, last = self.module.store(target, f"{name}_at", name), (chunk + 1) * self.width
                guard = f"if (lane + {chunk * self.width}u < {size_of(statement.axes)}u) {{"
                self.stores += [store] if last <= size_of(statement.axes) else [guard, f"    {store}", "}"]
            else:
                self._store()  # in order
                if self.module.layout(target).lanes == 1:
                    block.add(self.module.store(target, place, value))
                else:
                    block.add(*self.module.replace(target, place, pattern_of(value, data_type)))
        block.leave("{")
        return block.lines

    def _early_loads(self, roots: Sequence[Expr], axes: tuple[Index, ...] = ()) -> list[Load]:
        """The loads of a statement that may precede the wait for the previous kernel.

        They read arrays that no kernel writes, at positions that depend on the workgroup and on other such loads. Outside
        of loops, positions may also depend on the element.
        """
        bound, loads = {*self.program.rows, *(() if self.loops else axes)}, list[Load]()
        exists = self.module.positions.exists
        for node in walk(*roots) if self.fixed else ():
            if isinstance(node, Load) and node.source in self.fixed and node.free <= bound and exists(node):
                inner = (other for other in walk(*node.parts) if isinstance(other, Load))
                if all(other in loads for other in inner):
                    loads.append(node)
        return loads

    def _is_same(self, load: Load) -> bool:
        """Whether a load reads the same element for all elements that a workgroup computes."""
        return load.free <= {*self.program.rows}

    def _read_early(self, loads: Iterable[Load], axes: tuple[Index, ...] = (), chunk: int = 0) -> dict[Expr, str]:
        """Read elements before waiting for the previous kernel; return the variable of each load."""
        names: dict[Expr, str] = {}
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
            if text not in self.early_names and len(self.early_names) < MAX_EARLY_LOADS:
                name = self.early_names[text] = f"early_{len(self.early_names)}"
                lines = (line.replace("early = ", f"{name} = ") for line in block.lines)
                self.early += [
                    f"var {name} = {computed_type(load.type)}();",
                    "{",
                    *(f"    {line}" for line in lines),
                    "}",
                ]
            if text in self.early_names:
                names[load] = self.early_names[text]
        return names

    def _wait(self, statement: Fill | Write, loads: Sequence[Load]) -> None:
        """Add a barrier before a statement that depends on earlier reads or writes of other invocations."""
        reads = {load.source for load in loads if not load.source.private}  # type: ignore[union-attr]
        target = statement.target
        writes = {target} if isinstance(target, Local) and not target.private else set()
        is_disjoint = isinstance(statement, Fill) and statement.start > 0
        if reads & self.written or writes & (self.read if is_disjoint else self.read | self.written):
            self._barrier()
        for load in loads:  # an element that is replaced must not be read by another invocation
            assert load.source is not target or _is_aligned(load, statement.axes), f"{self.title}: {load!r}"
        self.read |= reads  # type: ignore[arg-type]
        self.written |= writes


def _is_aligned(load: Load, axes: tuple[Index, ...]) -> bool:
    """Whether a load reads the element at the position that is computed."""
    pairs = zip(load.parts, axes, strict=True)
    return all(part is axis or (axis.extent == 1 and isinstance(part, Const)) for part, axis in pairs)
