"""Programs as kernels: what runs together, and which reductions are arrays of their own.

Reductions that do not depend on all axes of what they are part of are computed once: by a kernel of their own, or, where the
rest of the axes follows, by the workgroup that computes all elements of a row. Those of very many elements are made in parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...cache import Cache
from ...dtypes import FLOATS, INFO, DataType
from ..ir import (
    Cast,
    Const,
    Expr,
    Index,
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
from .forms import FEW, SHORT, Form, Target, reductions, row_axes
from .positions import size_of
from .types import layout
from .writing import read

if TYPE_CHECKING:
    from . import Features, Kernel

LARGEST = 2**31 - 1
"""Elements that an array may have: positions are i32."""
REPEATED = 4096
"""Steps that reductions may take in all where they are computed again for each element."""
HUGE = 1 << 15
"""Reductions of more elements, to few, are divided into parts."""

plans: Cache[tuple[Program, Features], list[Kernel]] = Cache(4)
"""The kernels of the last programs: they are asked for after it was asked whether there are any."""


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
    for kernel in kernels(program, features):
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
    return list(plans.make((program, features), lambda: _Plan(program, features).kernels))


class _Plan:
    """Making the kernels of a program."""

    def __init__(self, program: Program, features: Features) -> None:
        self.program, self.features = program, features
        self.kernels: list[Kernel] = []
        self.replaced: dict[Expr, Expr] = {}
        for stored in program.stored:
            self._add(stored.axes, [Target(stored, stored.body)])
        for group in self._groups():
            self._add(group[0].axes, [Target(output, output.body) for output in group])

    def _groups(self) -> list[list[Output]]:
        """Outputs that one kernel computes: of the same axes, as many of them to a word, within the limit of buffers."""
        groups: list[list[Output]] = []
        for output in self.program.outputs:
            for group in groups:
                bodies = [*(other.body for other in group), output.body]
                count = len(read(bodies)) + len(bodies)
                alike = self._lanes(group[0]) == self._lanes(output)
                if group[0].axes == output.axes and alike and count <= self.features.max_buffers:
                    group.append(output)
                    break
            else:
                groups.append([output])
        return groups

    def _lanes(self, buffer: Stored | Output) -> int:
        """How many elements of an array share a word."""
        return layout(buffer.desc.data_type, self.features).lanes

    def _add(self, axes: tuple[Index, ...], targets: Sequence[Target]) -> None:
        first: dict[Expr, Expr] = {axis: Const(0, "index") for axis in axes if axis.extent == 1}
        bodies = unified(*(substitute(target.body, first) for target in targets))
        bodies = self._without_repetition(axes, bodies, self._lanes(targets[0].buffer))
        bodies = self._with_fewer_buffers(axes, bodies)
        made = [Target(target.buffer, body) for target, body in zip(targets, bodies, strict=True)]
        self.kernels.append(Form(self.program, self.features, axes, made).kernel())

    # Reductions of their own -----------------------------------------------------------------------------------------

    def _without_repetition(self, axes: tuple[Index, ...], bodies: tuple[Expr, ...], lanes: int) -> tuple[Expr, ...]:
        """`bodies`, in which reductions that would be computed too often, or by too few, are loaded from other arrays."""
        while True:
            rows = row_axes(axes, bodies, lanes)
            chosen = next((n for n in reductions(bodies) if self._is_for_itself(n, axes, bodies, rows)), None)
            if chosen is None:
                return bodies
            value = self._kept(chosen)
            bodies = tuple(substitute(body, {chosen: value}) for body in bodies)

    @staticmethod
    def _is_for_itself(
        node: Reduce, axes: tuple[Index, ...], bodies: tuple[Expr, ...], rows: tuple[Index, ...] | None
    ) -> bool:
        """Whether a reduction is better computed by a kernel of its own."""
        size, results = size_of(node.variables), size_of(node.free)
        if size <= SHORT:
            return False
        if is_huge(size, results):
            return True
        around = _around(node, axes, bodies)
        repetition = size_of(around) // results
        if repetition == 1 or repetition * results * size <= REPEATED:
            return False
        in_rows = rows is not None and node.free == {axis for axis in rows if axis.extent > 1}
        return not (in_rows and around <= set(axes))

    def _kept(self, node: Reduce) -> Expr:
        """A load of a reduction that is an array of its own."""
        known = self.replaced.get(node)
        if known is None:
            huge = is_huge(size_of(node.variables), size_of(node.free))
            known = self.replaced[node] = self._in_parts(node) if huge else self._stored(node)
        return known

    def _stored(self, node: Expr) -> Expr:
        axes = tuple(sorted((v for v in node.free if v.extent > 1), key=lambda v: (v.axis == 0, v.axis, v.serial)))
        body = substitute(node, {v: Const(0, "index") for v in node.free if v.extent == 1})
        # float16 is kept as float32: it is rounded when the result is stored, not on the way.
        type: DataType = "float32" if storage(node.type) == "float16" else storage(node.type)
        kept = Stored(axes, Cast(body, type) if type != node.type else body)
        self._add(axes, [Target(kept, kept.body)])
        load = Load(kept, axes)
        return Cast(load, node.type) if node.type in ("bool", "index") else load

    def _with_fewer_buffers(self, axes: tuple[Index, ...], bodies: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """`bodies`, in which parts are loaded from other arrays, until they read no more buffers than a kernel may use."""
        most = self.features.max_buffers - len(bodies)
        while len(read(bodies)) > most:
            counts = {node: len(read([node])) for node in walk(*bodies) if node.free <= set(axes)}
            fitting = {node: count for node, count in counts.items() if 1 < count < self.features.max_buffers}
            if not fitting:
                return bodies
            chosen = max(fitting, key=lambda node: fitting[node])
            bodies = tuple(substitute(body, {chosen: self._stored(chosen)}) for body in bodies)
        return bodies

    def _in_parts(self, node: Reduce) -> Expr:
        """A reduction of the reductions of parts, which are computed by different workgroups."""
        whole, first, rest = _split(node)
        count = min(first.extent, max(1, _parts(node) // size_of(whole)))
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
    return max(2, min(1024, size_of(node.variables) // 4096))


def _split(node: Reduce) -> tuple[tuple[Index, ...], Index, tuple[Index, ...]]:
    """The variables whose every value is a part, the one that is divided, and those that parts go through wholly."""
    sizes = (size_of(node.variables[: k + 1]) for k in range(len(node.variables)))
    divided = next(k for k, size in enumerate(sizes) if size >= _parts(node))
    return node.variables[:divided], node.variables[divided], node.variables[divided + 1 :]


def _neutral(node: Reduce) -> Const:
    if node.reduction in ("sum", "product"):
        return Const(int(node.reduction == "product"), node.type)
    if node.type in FLOATS:
        return Const(-math.inf if node.reduction == "max" else math.inf, node.type)
    info = INFO[storage(node.type)]
    return Const(info.lowest if node.reduction == "max" else info.highest, node.type)


def _around(node: Reduce, axes: tuple[Index, ...], bodies: Sequence[Expr]) -> frozenset[Index]:
    """The variables of the loops that a reduction would be computed in, if it were nowhere hoisted from."""
    around = {axis for axis in axes if axis.extent > 1}
    for other in reductions(bodies):
        if other is not node and not node.free.isdisjoint(other.variables):
            around |= {variable for variable in other.variables if variable.extent > 1}
    return frozenset(around | {v for v in node.free if v.extent > 1})
