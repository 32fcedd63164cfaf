"""Programs as kernels: what runs together, and which invocation computes what.

An invocation computes one element of the results, or those of one word. Reductions that do not depend on all axes of what
they are part of are computed once: by a kernel of their own, or, where the rest of the axes follows, by the workgroup that
computes all elements of a row. Reductions of many elements to few are computed by workgroups, those of very many in parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ...dtypes import FLOATS, INFO, DataType
from ...graph import Desc
from ..ir import (
    Cast,
    Const,
    Expr,
    Index,
    Input,
    Load,
    Output,
    Program,
    Reduce,
    Source,
    Stored,
    call,
    sources,
    storage,
    substitute,
    unified,
    walk,
)
from ..printing import inline
from .elements import called, wrapped
from .types import layout
from .writer import Block, Grid, Module

if TYPE_CHECKING:
    from . import Buffer, Features, Kernel

LARGEST = 2**31 - 1
"""Elements that an array may have: positions are i32."""

SHORT = 8
"""Reductions of so many elements are computed wherever they are used."""
REPEATED = 4096
"""Steps that reductions may take in all where they are computed again for each element."""
ALONE = 32
"""An invocation reduces so many elements by itself."""
MANY = 4096
"""So many elements of the result keep a device busy, an invocation each, or a workgroup each where rows follow."""
HUGE, FEW = 1 << 15, 64
"""Reductions of more elements than the first number, to no more than the second, are divided into parts."""
ROW = 1 << 14
"""The longest row that a workgroup computes."""


@dataclass(frozen=True, eq=False)
class _Target:
    """What a kernel writes: `body` is one element of `buffer`."""

    buffer: Stored | Output
    body: Expr


def unsupported(program: Program, features: Features) -> str:
    """Why a program has no kernels for a device; empty if it has."""
    if program.checks:
        return f"{program.name}: what must hold while it runs is not told by devices: {program.checks[0].message}"
    buffers: list[Source | Output] = [*sources(*program.roots), *program.outputs]
    for buffer in buffers:
        desc = buffer.desc
        if desc.element_count > LARGEST:
            return f"{program.name}: {desc} has more than {LARGEST} elements"
        if desc.data_type in ("int64", "uint64") and not features.int64:
            return f"{program.name}: the device has no {desc.data_type}"
    for root in (*program.roots, *(stored.body for stored in program.stored)):
        for node in walk(root):
            if node.type in ("int64", "uint64") and not features.int64:
                return f"{program.name}: the device has no {node.type}"
    for kernel in _planned(program, features):
        if len(kernel.bindings) > features.max_buffers:
            count = len(kernel.bindings)
            return f"{kernel.title} takes {count} buffers, the device has {features.max_buffers}"
    return ""


def kernels(program: Program, features: Features) -> list[Kernel]:
    """The kernels of a program, in the order in which they run.

    Args:
        program: what to compute; `unsupported` says nothing against it.
        features: what the device can do.

    Returns:
        First those that compute the arrays stored on the way (which may be more than the program's, and are bound like
        those), then those of the outputs. What is bound but no input of the program is written by a kernel before.
    """
    return list(_planned(program, features))


@lru_cache(4)
def _planned(program: Program, features: Features) -> tuple[Kernel, ...]:
    return tuple(_Plan(program, features).kernels)


class _Plan:
    """Making the kernels of a program."""

    def __init__(self, program: Program, features: Features) -> None:
        self.program, self.features = program, features
        self.kernels: list[Kernel] = []
        self.replaced: dict[Expr, Expr] = {}
        for stored in program.stored:
            self._add(stored.axes, [_Target(stored, stored.body)])
        for group in self._groups():
            self._add(group[0].axes, [_Target(output, output.body) for output in group])

    def _groups(self) -> list[list[Output]]:
        """Outputs that one kernel computes: of the same axes, as many of them to a word, within the limit of buffers."""
        groups: list[list[Output]] = []
        for output in self.program.outputs:
            for group in groups:
                bodies = [*(other.body for other in group), output.body]
                count = len(_read(bodies)) + len(bodies)
                alike = self._lanes(group[0]) == self._lanes(output)
                if group[0].axes == output.axes and alike and count <= self.features.max_buffers:
                    group.append(output)
                    break
            else:
                groups.append([output])
        return groups

    def _lanes(self, output: Output) -> int:
        """How many elements of an output share a word."""
        return layout(output.desc.data_type, self.features).lanes

    def _add(self, axes: tuple[Index, ...], targets: Sequence[_Target]) -> None:
        bodies = self._without_repetition(axes, unified(*(target.body for target in targets)))
        bodies = self._with_fewer_buffers(axes, bodies)
        made = [_Target(target.buffer, body) for target, body in zip(targets, bodies, strict=True)]
        self.kernels.append(_Writing(self.program, self.features, axes, made).kernel())

    # Reductions of their own -----------------------------------------------------------------------------------------

    def _without_repetition(self, axes: tuple[Index, ...], bodies: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """`bodies`, in which reductions that would be computed too often, or by too few, are loaded from other arrays."""
        while True:
            chosen = next((n for n in _reductions(bodies) if self._is_for_itself(n, axes, bodies)), None)
            if chosen is None:
                return bodies
            value = self._kept(chosen)
            bodies = tuple(substitute(body, {chosen: value}) for body in bodies)

    def _is_for_itself(self, node: Reduce, axes: tuple[Index, ...], bodies: tuple[Expr, ...]) -> bool:
        """Whether a reduction is better computed by a kernel of its own."""
        size, results = _size(node.variables), _size(node.free)
        if size <= SHORT:
            return False
        if is_huge(size, results):
            return node not in bodies or _divisible(node)
        around = _around(node, axes, bodies)
        repetition = _size(around) // results
        if repetition == 1 or repetition * results * size <= REPEATED:
            return False
        rows = row_axes(axes, bodies)
        return not (
            rows is not None and node.free == frozenset(a for a in rows if a.extent > 1) and around <= set(axes)
        )

    def _kept(self, node: Reduce) -> Expr:
        """A load of a reduction that is an array of its own."""
        known = self.replaced.get(node)
        if known is None:
            huge = is_huge(_size(node.variables), _size(node.free))
            known = self.replaced[node] = self._in_parts(node) if huge and _divisible(node) else self._stored(node)
        return known

    def _stored(self, node: Expr) -> Expr:
        axes = tuple(sorted((v for v in node.free if v.extent > 1), key=lambda v: (v.axis == 0, v.axis, v.serial)))
        body = substitute(node, {v: Const(0, "index") for v in node.free if v.extent == 1})
        # float16 is kept as float32: it is rounded when the result is stored, not on the way.
        type: DataType = "float32" if storage(node.type) == "float16" else storage(node.type)
        kept = Stored(axes, Cast(body, type) if type != node.type else body)
        self._add(axes, [_Target(kept, kept.body)])
        load = Load(kept, axes)
        return Cast(load, node.type) if node.type in ("bool", "index") else load

    def _with_fewer_buffers(self, axes: tuple[Index, ...], bodies: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """`bodies`, in which parts are loaded from other arrays, until they read no more buffers than a kernel may use."""
        most = self.features.max_buffers - len(bodies)
        while len(_read(bodies)) > most:
            counts = {node: len(_read([node])) for node in walk(*bodies) if node.free <= set(axes)}
            fitting = {node: count for node, count in counts.items() if 1 < count < self.features.max_buffers}
            if not fitting:
                return bodies
            chosen = max(fitting, key=lambda node: fitting[node])
            bodies = tuple(substitute(body, {chosen: self._stored(chosen)}) for body in bodies)
        return bodies

    def _in_parts(self, node: Reduce) -> Expr:
        """A reduction of the reductions of parts, which are computed by different workgroups."""
        split = _split(node)
        assert split is not None
        whole, first, rest = split
        count = min(first.extent, max(1, _parts(node) // _size(whole)))
        count = next((n for n in range(count, count // 2, -1) if first.extent % n == 0), count)
        size = -(-first.extent // count)
        count = -(-first.extent // size)
        part, position = Index(count), Index(size)
        index = call("add", call("mul", part, Const(size, "index")), position)
        inside: Expr | None = None
        if count * size != first.extent:
            inside = call("lesser", index, Const(first.extent, "index"))
            index = call("min", index, Const(first.extent - 1, "index"))
        body = substitute(node.body, {first: index})
        if node.reduction.startswith("arg_"):
            # The last element again does not come before itself.
            found = self._stored(Reduce(node.reduction, (position,), body))
            at = call("add", call("mul", part, Const(size, "index")), Cast(found, "index"))
            at = call("min", at, Const(first.extent - 1, "index"))
            best = Reduce(node.reduction, (part,), substitute(node.body, {first: at}))
            return Cast(substitute(at, {part: Cast(best, "index")}), "int32")
        if inside is not None:
            body = call("where", inside, body, _neutral(node))
        partial = self._stored(Reduce(node.reduction, (position, *rest), body))
        return Reduce(node.reduction, (*whole, part), partial)


def is_huge(size: int, results: int) -> bool:
    """Whether a reduction of `size` elements to each of `results` would keep too few invocations busy."""
    return size > HUGE and results <= FEW


def _parts(node: Reduce) -> int:
    """How many parts a huge reduction is divided into: as many as its parts have elements, in workgroups of them."""
    return max(2, min(1024, _size(node.variables) // 4096))


def _split(node: Reduce) -> tuple[tuple[Index, ...], Index, tuple[Index, ...]] | None:
    """The variables whose every value is a part, the one that is divided, and those that parts go through wholly."""
    wanted = _parts(node)
    for k, variable in enumerate(node.variables):
        before = node.variables[:k]
        if _size(before) * variable.extent >= wanted or k == len(node.variables) - 1:
            return before, variable, node.variables[k + 1 :]
    return None


def _divisible(node: Reduce) -> bool:
    return _split(node) is not None


def _neutral(node: Reduce) -> Const:
    if node.reduction in ("sum", "product"):
        return Const(int(node.reduction == "product"), node.type)
    if node.type in FLOATS:
        return Const(-math.inf if node.reduction == "max" else math.inf, node.type)
    info = INFO[storage(node.type)]
    return Const(info.lowest if node.reduction == "max" else info.highest, node.type)


def _size(variables: Sequence[Index] | frozenset[Index]) -> int:
    return math.prod(variable.extent for variable in variables)


def _reductions(bodies: Sequence[Expr]) -> list[Reduce]:
    """The reductions in expressions, inner ones first."""
    return [node for node in walk(*bodies) if isinstance(node, Reduce)]


def _around(node: Reduce, axes: tuple[Index, ...], bodies: Sequence[Expr]) -> frozenset[Index]:
    """The variables of the loops that a reduction would be computed in, if it were nowhere hoisted from."""
    around = {axis for axis in axes if axis.extent > 1}
    for other in _reductions(bodies):
        if other is not node and not node.free.isdisjoint(other.variables):
            around |= {variable for variable in other.variables if variable.extent > 1}
    return frozenset(around | {v for v in node.free if v.extent > 1})


def row_axes(axes: tuple[Index, ...], bodies: Sequence[Expr]) -> tuple[Index, ...] | None:
    """The first axes, if reductions depend on them only, and a workgroup is to compute all elements of the others."""
    outside = [node for node in _reductions(bodies) if node.free <= set(axes) and _size(node.variables) > ALONE]
    if not outside:
        return None
    free = {axis for node in outside for axis in node.free if axis.extent > 1}
    count = next((k + 1 for k in reversed(range(len(axes))) if axes[k] in free), 0)
    rows, rest = axes[:count], axes[count:]
    if any(axis.extent > 1 and axis not in free for axis in rows):
        return None
    longest = max(_size(rest), *(_size(node.variables) for node in outside))
    return rows if longest <= ROW or _size(rows) >= FEW else None


def _read(bodies: Sequence[Expr]) -> list[Source]:
    """What expressions load from."""
    return list(dict.fromkeys(node.source for node in walk(*bodies) if isinstance(node, Load)))


# ---------------------------------------------------------------------------------------------------------------------
# Kernels


class _Writing:
    """Writing the kernel of some targets of the same axes."""

    def __init__(
        self, program: Program, features: Features, axes: tuple[Index, ...], targets: Sequence[_Target]
    ) -> None:
        self.features, self.axes, self.targets = features, axes, targets
        self.bodies = [target.body for target in targets]
        self.size = _size(axes)
        self.module = Module(features)
        for source in sorted(
            _read(self.bodies), key=lambda s: s.number if isinstance(s, Input) else len(program.inputs)
        ):
            self.module.read(source)
        for target in targets:
            self.module.write(target.buffer)
        (self.lanes,) = {self.module.layout(target.buffer).lanes for target in targets}
        names = ", ".join(f"{self.module.names[t.buffer]} {t.buffer.desc}" for t in targets)
        self.title = f"{program.name}: {names}"

    def kernel(self) -> Kernel:
        """The kernel, in the form that suits its reductions."""
        rows = self._rows()
        return self._map() if rows is None else self._row_by_row(rows)

    def _rows(self) -> tuple[Index, ...] | None:
        """The axes whose every position is computed by a workgroup; None if an invocation computes an element."""
        rows = row_axes(self.axes, self.bodies)
        if rows is None:
            return None
        rest = self.axes[len(rows) :]
        if _size(rest) % self.lanes and self.size > 1 and (_size(rest) > 1):
            return None  # a word would belong to two rows
        if _size(rest) > 1:
            return rows
        longest = max(_size(node.variables) for node in _reductions(self.bodies))
        if longest <= ALONE or (self.size >= MANY and not self._reads_neighbours()):
            return None
        return rows

    def _reads_neighbours(self) -> bool:
        """Whether elements that follow each other in a reduction lie next to each other."""
        last = {node.variables[-1] for node in _reductions(self.bodies)}
        loads = [node for node in walk(*self.bodies) if isinstance(node, Load) and node.parts]
        return any(load.parts[-1] in last or not load.parts[-1].free.isdisjoint(last) for load in loads)

    def _map(self) -> Kernel:
        """An invocation for each element, or for each word."""
        count = -(-self.size // self.lanes)
        width = _width(count, self.features)
        groups, number = _dispatch(-(-count // width), width, self.features)
        name = "flat" if self.lanes == 1 else "word"
        lines = _guarded(name, number, count, math.prod(groups) * width)
        block = Block(self.module, {}, grid=Grid(self.axes) if self.lanes == 1 else None)
        if self.lanes == 1:
            self._stores(block)
        else:
            self._words(block, "word", self.size)
        return self._finished([*lines, *block.lines], (width, 1, 1), groups)

    def _row_by_row(self, rows: tuple[Index, ...]) -> Kernel:
        """A workgroup for each position of some axes; its invocations reduce together, and share the elements of a row."""
        rest = self.axes[len(rows) :]
        longest = max(_size(rest), *(_size(node.variables) for node in _reductions(self.bodies)))
        width = _width(max(32, -(-longest // 4)), self.features)
        count, length = _size(rows), _size(rest)
        packed = self.lanes > 1 and length == 1
        workgroups = -(-count // self.lanes) if packed else count
        groups, number = _dispatch(workgroups, 0, self.features)
        name = "word" if packed else "row"
        lines = _guarded(name, number, workgroups, math.prod(groups))
        if packed:
            block = Block(self.module, {}, team=width, team_depth=1)
            self._words(block, "word", count, alone="if (lane == 0u) {")
        else:
            block = Block(self.module, {}, grid=Grid(rows, "row"), team=width)
            self._row(block, rows, rest, width)
        return self._finished([*lines, *block.lines], (width, 1, 1), groups)

    def _row(self, block: Block, rows: tuple[Index, ...], rest: tuple[Index, ...], width: int) -> None:
        """The elements of a row."""
        length = _size(rest)
        for node in _reductions(self.bodies):
            if node.free <= set(rows) and _size(node.variables) > 4:
                block.value(node)  # all invocations take part, so it stands outside of what only some of them do
        if length == 1:
            block.enter()
            for target in self.targets:
                block.add(self._stored(block, target, "row"))
            block.leave("if (lane == 0u) {")
            return
        if self.lanes == 1:
            block.enter(grid=Grid(rest, "column", len(rows)))
            for target in self.targets:
                block.add(self._stored(block, target, f"row * {length}u + column"))
            block.leave(f"for (var column = lane; column < {length}u; column += {width}u) {{")
            return
        words = length // self.lanes
        block.enter()
        block.add(f"let word = row * {words}u + column_word;")
        self._words(block, "column_word", length, grid=Grid(rest, "flat", len(rows)), written="word")
        block.leave(f"for (var column_word = lane; column_word < {words}u; column_word += {width}u) {{")

    def _stores(self, block: Block) -> None:
        for target in self.targets:
            block.add(self._stored(block, target, "flat"))

    def _stored(self, block: Block, target: _Target, flat: str) -> str:
        """A statement that writes an element."""
        value = _converted(target.body, target.buffer.desc.data_type, block.value(target.body))
        return self.module.store(target.buffer, flat, value)

    def _words(
        self, block: Block, word: str, size: int, *, grid: Grid | None = None, written: str = "", alone: str = ""
    ) -> None:
        """Statements that compute all elements of a word, and write it; only those writes are within `alone`."""
        names = [f"{self.module.names[target.buffer]}_word" for target in self.targets]
        bits = 32 // self.lanes
        block.add(*(f"var {name} = 0u;" for name in names))
        block.enter(grid=grid or Grid(self.axes))
        last = f"{word} * {self.lanes}u + b"
        block.add(f"let flat = min({last}, {size - 1}u);" if size % self.lanes else f"let flat = {last};")
        for target, name in zip(self.targets, names, strict=True):
            data_type = target.buffer.desc.data_type
            pattern = _pattern(_converted(target.body, data_type, block.value(target.body)), data_type)
            block.add(f"{name} |= {pattern} << (b * {bits}u);")
        block.leave(f"for (var b = 0u; b < {self.lanes}u; b++) {{")
        pairs = zip(self.targets, names, strict=True)
        lines = [f"{self.module.names[target.buffer]}[{written or word}] = {name};" for target, name in pairs]
        block.add(*_within(alone, lines))

    def _finished(self, lines: Sequence[str], size: tuple[int, int, int], groups: tuple[int, int, int]) -> Kernel:
        from . import Kernel

        module = self.module
        comment = [_comment(module, target.buffer, self.axes, target.body) for target in self.targets]
        source = "\n".join([*comment, module.text("\n".join(lines), size)])
        return Kernel(self.title, source, tuple(module.bindings), tuple(module.writes), groups)


def _comment(module: Module, buffer: Buffer, axes: tuple[Index, ...], body: Expr, at: str = "") -> str:
    """What an array is, as a line of a module; that of the same expressions is always the same."""
    names = {source: name for source, name in module.names.items() if isinstance(source, (Input, Stored))}
    place = at or ", ".join(inline(axis, names, axes) for axis in axes)
    name = f"{module.names[buffer]}[{place}]" if place else module.names[buffer]
    return f"// {name} = {inline(body, names, axes)}"


def scatter(
    target: Desc, axes: tuple[Index, ...], at: tuple[Expr, ...], value: Expr, features: Features, title: str
) -> tuple[Kernel, Output]:
    """The kernel that writes some elements of an array, an invocation each; of those that meet, one stays.

    Args:
        target: the array, which has been filled before.
        axes: the domain; the kernel goes through all its positions.
        at: an index for each axis of the array, known to lie inside of it.
        value: what is written there.
        features: what the device can do.
        title: for tables.

    Returns:
        The kernel, and what stands for the array in its bindings.
    """
    from . import Kernel

    buffer = Output(tuple(Index(size) for size in target.shape), Const(0, target.data_type))
    *indices, value = unified(*at, value)
    module = Module(features)
    for source in _read([*indices, value]):
        module.read(source)
    module.write(buffer)
    count = _size(axes)
    width = _width(count, features)
    groups, number = _dispatch(-(-count // width), width, features)
    block = Block(module, {}, grid=Grid(axes))
    place = Const(0, "index")
    flat: Expr = place
    for index, size in zip(indices, target.shape, strict=True):
        flat = call("add", call("mul", flat, Const(size, "index")), index)
    position = block.named(flat)
    element = _converted(value, target.data_type, block.value(value))
    lanes = module.layout(buffer).lanes
    if lanes == 1:
        block.add(module.store(buffer, position, element))
    else:
        module.atomic.add(buffer)
        block.add(*_replaced(module.names[buffer], position, _pattern(element, target.data_type), lanes))
    lines = [*_guarded("flat", number, count, math.prod(groups) * width), *block.lines]
    where = ", ".join(inline(index, module.names, axes) for index in indices)  # type: ignore[arg-type]
    text = "\n".join([_comment(module, buffer, axes, value, where), module.text("\n".join(lines), (width, 1, 1))])
    return Kernel(title, text, tuple(module.bindings), tuple(module.writes), groups), buffer


def _replaced(name: str, flat: str, pattern: str, lanes: int) -> list[str]:
    """Statements that write an element in a word of which other invocations write others."""
    bits, shift = 32 // lanes, lanes.bit_length() - 1
    return [
        f"let shift = (u32({flat}) & {lanes - 1}u) * {bits}u;",
        f"let pattern = {pattern} << shift;",
        f"let word = u32({flat}) >> {shift}u;",
        "loop {",
        f"    let old = atomicLoad(&{name}[word]);",
        f"    let new_word = (old & ~({(1 << bits) - 1}u << shift)) | pattern;",
        f"    if (atomicCompareExchangeWeak(&{name}[word], old, new_word).exchanged) {{",
        "        break;",
        "    }",
        "}",
    ]


def _within(head: str, lines: Sequence[str]) -> list[str]:
    """Statements in the block that `head` begins, if it is not empty."""
    return [head, *(f"    {line}" for line in lines), "}"] if head and lines else list(lines)


def _pattern(text: str, data_type: DataType) -> str:
    """The bits of an element of a type of which several share a word, text of type u32."""
    return called("half_bits", (text,)) if data_type == "float16" else f"(u32({text}) & 255u)"


def _converted(body: Expr, data_type: DataType, text: str) -> str:
    """An element as text of the type that its data type is computed in."""
    if body.type == "bool":
        return called("select", ("0u", "1u", text))
    return wrapped(text, data_type) if body.type == "index" else text


def _guarded(name: str, number: str, count: int, invocations: int) -> list[str]:
    """The number of an invocation, or of a workgroup; those that are too many end."""
    lines = [f"let {name} = {number};"]
    return lines if invocations == count else [*lines, f"if ({name} >= {count}u) {{", "    return;", "}"]


def _width(count: int, features: Features) -> int:
    """Invocations of a workgroup, for so many of them in all."""
    width = 1 << (min(256, features.max_invocations).bit_length() - 1)
    while width > 32 and width // 2 >= count:
        width //= 2
    return width


def _dispatch(groups: int, width: int, features: Features) -> tuple[tuple[int, int, int], str]:
    """Workgroups in three dimensions, and the number of an invocation (of a workgroup, if `width` is 0) as text."""
    most = features.max_workgroups
    if groups <= most:
        return (groups, 1, 1), "global.x" if width else "group.x"
    planes = -(-groups // most)
    if planes <= most:
        x, y, z = -(-groups // planes), planes, 1
        number = f"group.y * {x}u + group.x"
    else:
        z = -(-planes // most)
        x, y = most, -(-planes // z)
        number = f"(group.z * {y}u + group.y) * {x}u + group.x"
    return (x, y, z), f"({number}) * {width}u + lane" if width else number


__all__ = ["kernels", "scatter", "unsupported"]
