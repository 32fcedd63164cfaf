"""Divide programs into kernels.

A reduction that does not depend on all axes of the result is computed once: by a separate kernel, or by the workgroup
that computes a row of the result, if the remaining axes come last. Very large reductions are divided into parts (split-K).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from ...core.graph import Desc
from ...core.guards import estimate
from ...core.size_bounds import lower_bound
from ...core.sizes import Dimension, Size, is_same_size, may_exceed
from ...support.cache import Cache
from ...support.errors import ValidationError
from ...support.identity import ByIdentity
from .. import ir
from ..fingerprint import identify
from ..ir import Expr, Formula, Index, Input, Load, Output, Reduce, Stored, call, size_of, substitute, walk
from ..ranges import ends_of_positions
from ..reductions import split, stored_value
from .forms import MAX_INLINE_ELEMENTS, MIN_RESULTS, MIN_ROWS, Form, Target, reductions, row_axes
from .kernel import Buffer, Features, GpuKernel
from .types import layout
from .writing import sources_of

MAX_ELEMENTS = 2**31 - 1
"""Maximum elements of an array: positions are i32."""
MAX_REPEATED_STEPS = 4096
"""Reductions that take at most this many steps in total are recomputed for each element rather than stored."""
MAX_UNDIVIDED_ELEMENTS = 1 << 15
"""Larger reductions to few results are divided into parts."""

STORED_BY_REDUCTION = 3
"""Maximum number of arrays that a reduction stores: those of parts, and the results."""

MAX_REDUCTIONS = 4
"""One reduction may use 1/4 of the `max_iterations` of a device: a kernel may have several reductions."""

lowered: Cache[tuple[Formula, Features], list[GpuKernel]] = Cache(4)
"""Kernels of the most recent programs with sizes, because `refusal_of` needs them before `kernels` is called."""

_lowered_forms: Cache[Hashable, tuple[Formula, list[GpuKernel]]] = Cache(256, raw=True)
"""Programs without sizes, and their kernels, by structure: programs of equal layers differ in their arrays and names."""

_reasons: ByIdentity[Formula, dict[Features, str]] = ByIdentity()
"""Results of `refusal_of`: the layers of a graph repeat operations, and lowering an operation takes milliseconds."""


def refusal_of(program: Formula, features: Features) -> str:
    """Return the reason why a device cannot run a program; empty if it can."""
    reasons = _reasons.peek(id(program)) or _reasons.put(program, {})
    if features not in reasons:
        reasons[features] = _find_refusal(program, features)
    return reasons[features]


def _find_refusal(program: Formula, features: Features) -> str:
    if program.checks:
        return f"{program.name}: a GPU cannot report a failed check: {program.checks[0].message}"
    buffers: list[ir.Source | Output] = [*ir.sources(*program.roots), *program.outputs]
    for buffer in buffers:
        desc = buffer.desc
        is_checked = isinstance(buffer, Input | Output) and isinstance(desc.element_count, Size)  # with the operands
        if not is_checked and desc.element_count > MAX_ELEMENTS:
            return f"{program.name}: {desc} has more than {MAX_ELEMENTS} elements"
    for node in walk(*program.roots, *(stored.body for stored in program.stored)):
        if node.type in ("int64", "uint64") and not features.int64:
            return f"{program.name}: the device has no {node.type}"
    if most_buffers(program) > features.max_buffers:
        for kernel in kernels(program, features):
            if len(kernel.bindings) > features.max_buffers:
                count = len(kernel.bindings)
                return f"{kernel.title} takes {count} buffers, the device has {features.max_buffers}"
    elif program.has_sizes:
        _limit_numbers(program, ())
    return ""


def most_buffers(program: Formula) -> int:
    """At least the number of buffers that a kernel of the program takes, without lowering the program."""
    roots = [*program.roots, *(stored.body for stored in program.stored)]
    stored = STORED_BY_REDUCTION * sum(isinstance(node, Reduce) for node in walk(*roots))
    return len({*program.inputs, *sources_of(roots)}) + len(program.stored) + len(program.outputs) + stored


def kernels(program: Formula, features: Features) -> list[GpuKernel]:
    """The kernels of a program that `refusal_of` accepts, in the order in which they run.

    There may be more stored intermediates than the program's own. An earlier kernel writes each buffer that is not an input.
    """
    # Kernels with sizes depend on answers that this scope records, so programs of equal structure do not share them.
    if program.has_sizes:
        return list(lowered.make((program, features), lambda: _Lowering(program, features).kernels))
    order = sorted(range(len(program.inputs)), key=lambda position: program.inputs[position].number)
    kinds = (type(source.desc) for source in program.inputs)
    key = identify(program, by_position=True), *order, *kinds, features
    like, written = _lowered_forms.make(key, lambda: (program, _Lowering(program, features).kernels))
    return list(written) if like is program else _rebind(written, like, program)


def _rebind(kernels: Sequence[GpuKernel], like: Formula, program: Formula) -> list[GpuKernel]:
    """Move the kernels of `like` to the arrays and the name of `program`, which has the same structure."""
    buffers: dict[Buffer, Buffer] = dict(
        zip(
            (*like.inputs, *like.stored, *like.outputs),
            (*program.inputs, *program.stored, *program.outputs),
            strict=True,
        )
    )
    for buffer in (buffer for kernel in kernels for buffer in kernel.bindings):
        if isinstance(buffer, Stored):
            buffers.setdefault(buffer, Stored(buffer.axes, buffer.body))  # an intermediate of these kernels
    return [
        replace(
            kernel,
            title=f"{program.name}{kernel.title.removeprefix(like.name)}",
            bindings=tuple(buffers[buffer] for buffer in kernel.bindings),
        )
        for kernel in kernels
    ]


def element_for_workgroup(program: Formula) -> tuple[tuple[Index, ...], Expr] | None:
    """The axes and an element of the only result, if each workgroup can compute the whole result; else None.

    The reductions must be the same for all elements, as in one normalised row.
    """
    if len(program.outputs) != 1 or program.stored or program.checks:
        return None
    (output,) = program.outputs
    first: dict[Expr, Expr] = {axis: ir.Const(0, "index") for axis in output.axes if is_same_size(axis.extent, 1)}
    (body,) = ir.unify(substitute(output.body, first))
    nodes = reductions([body])
    if any(node.free or size_of(node.variables) > MAX_UNDIVIDED_ELEMENTS for node in nodes):
        return None
    return output.axes, body


def scatter(
    target: Desc, axes: tuple[Index, ...], at: tuple[Expr, ...], value: Expr, features: Features, title: str
) -> tuple[GpuKernel, Output]:
    """Build a kernel that writes `value` at the indices `at`, one invocation for each position of `axes`.

    If several invocations write the same element, one of them wins. Indices are known to be in bounds, and the array is
    initialised before. Return the kernel, and the buffer that represents the array in its bindings.
    """
    buffer = Output(tuple(Index(size) for size in target.shape), ir.Const(0, target.data_type))
    *indices, value = ir.unify(*at, value)
    return Form(title, features, axes, [Target(buffer, value, tuple(indices))]).map(), buffer


class _Lowering:
    def __init__(self, program: Formula, features: Features) -> None:
        self.program, self.features = program, features
        self.kernels: list[GpuKernel] = []
        self.replaced: dict[Expr, Expr] = {}
        for stored in program.stored:
            self._add(stored.axes, [Target(stored, stored.body)])
        for group in self._groups():
            self._add(group[0].axes, [Target(output, output.body) for output in group])
        if program.has_sizes:
            _limit_numbers(program, self.kernels)

    def _groups(self) -> list[list[Output]]:
        """Group outputs by kernel: with the same axes and packing, and at most `max_buffers` arrays."""
        groups: list[list[Output]] = []
        for output in self.program.outputs:
            for group in groups:
                bodies = [*(other.body for other in group), output.body]
                count = len(sources_of(bodies)) + len(bodies)
                alike = self._lanes(group[0]) == self._lanes(output)
                if group[0].axes == output.axes and alike and count <= self.features.max_buffers:
                    group.append(output)
                    break
            else:
                groups.append([output])
        return groups

    def _lanes(self, buffer: Stored | Output) -> int:
        return layout(buffer.desc.data_type, self.features).lanes

    def _add(self, axes: tuple[Index, ...], targets: Sequence[Target]) -> None:
        first: dict[Expr, Expr] = {axis: ir.Const(0, "index") for axis in axes if is_same_size(axis.extent, 1)}
        bodies = ir.unify(*(substitute(target.body, first) for target in targets))
        bodies = self._without_repetition(axes, bodies, self._lanes(targets[0].buffer))
        bodies = self._with_fewer_buffers(axes, bodies)
        rewritten = [Target(target.buffer, body) for target, body in zip(targets, bodies, strict=True)]
        self.kernels.append(Form(self.program.name, self.features, axes, rewritten).kernel())

    # Separate reductions ---------------------------------------------------------------------------------------------

    def _without_repetition(self, axes: tuple[Index, ...], bodies: tuple[Expr, ...], lanes: int) -> tuple[Expr, ...]:
        """Move reductions that would be recomputed, or use too few invocations, into separate kernels."""
        while True:
            rows = row_axes(axes, bodies, lanes)
            chosen = next((n for n in reductions(bodies) if self._is_separate(n, axes, bodies, rows, lanes)), None)
            if chosen is None:
                return bodies
            value = self._load_of(chosen, lanes)
            bodies = tuple(substitute(body, {chosen: value}) for body in bodies)

    def _is_separate(
        self,
        node: Reduce,
        axes: tuple[Index, ...],
        bodies: tuple[Expr, ...],
        rows: tuple[Index, ...] | None,
        lanes: int,
    ) -> bool:
        size, results = size_of(node.variables), size_of(node.free)
        if not may_exceed(size, MAX_INLINE_ELEMENTS):
            return False
        if self._is_huge(node, lanes):
            return True
        around = _around(node, axes, bodies)
        repetition = size_of(around) // results
        if is_same_size(repetition, 1) or estimate(repetition * results * size) <= MAX_REPEATED_STEPS:
            return False
        in_rows = rows is not None and node.free == {axis for axis in rows if not is_same_size(axis.extent, 1)}
        return not (in_rows and around <= set(axes))

    def _is_huge(self, node: Reduce, lanes: int) -> bool:
        """Whether a reduction would use too few invocations, or repeat loops too often for the device."""
        size, results = estimate(size_of(node.variables)), estimate(size_of(node.free))
        if size > MAX_UNDIVIDED_ELEMENTS and results <= MIN_ROWS:
            return True
        # With few results, a workgroup shares each reduction; otherwise one invocation may compute a whole word.
        alone = size * lanes if results >= MIN_RESULTS else size // 64
        return alone > self.features.max_iterations // MAX_REDUCTIONS

    def _load_of(self, node: Reduce, lanes: int) -> Expr:
        load = self.replaced.get(node)
        if load is None:
            huge = self._is_huge(node, lanes)
            load = self.replaced[node] = self._in_parts(node) if huge else self._store(node)
        return load

    def _store(self, node: Expr) -> Expr:
        kept = stored_value(node)
        self._add(kept.axes, [Target(kept, kept.body)])
        load = Load(kept, kept.axes)
        return ir.Cast(load, node.type) if node.type in ("bool", "index") else load

    def _with_fewer_buffers(self, axes: tuple[Index, ...], bodies: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Store subexpressions until the bodies read no more buffers than a kernel may use."""
        maximum = self.features.max_buffers - len(bodies)
        while len(sources_of(bodies)) > maximum:
            counts = {node: len(sources_of([node])) for node in walk(*bodies) if node.free <= set(axes)}
            fitting = {node: count for node, count in counts.items() if 1 < count < self.features.max_buffers}
            if not fitting:
                return bodies
            chosen = max(fitting, key=lambda node: fitting[node])
            bodies = tuple(substitute(body, {chosen: self._store(chosen)}) for body in bodies)
        return bodies

    def _in_parts(self, node: Reduce) -> Expr:
        """Reduce parts in several workgroups, then reduce their results."""
        whole, first, rest = _split(node)
        count = min(estimate(first.extent), max(1, _parts(node) // estimate(size_of(whole))))
        if not isinstance(first.extent, Size):
            count = next((n for n in range(count, count // 2, -1) if first.extent % n == 0), count)
        parts = split(first, count)
        body = substitute(node.body, {first: parts.index})
        if node.reduction.startswith("arg_"):
            # Positions clamped to the last element need no mask: the first of equal elements wins.
            positions = self._store(Reduce(node.reduction, (parts.position,), body))
            at = call("min", call("add", parts.start, ir.Cast(positions, "index")), ir.Const(first.extent - 1, "index"))
            best = Reduce(node.reduction, (parts.part,), substitute(node.body, {first: at}))
            return ir.Cast(substitute(at, {parts.part: ir.Cast(best, "index")}), "int32")
        partial = self._store(Reduce(node.reduction, (parts.position, *rest), parts.mask(node, first)))
        return Reduce(node.reduction, (*whole, parts.part), partial)


def _limit_numbers(program: Formula, kernels: Sequence[GpuKernel]) -> None:
    """Let kernels run only for sizes with which positions and parameters fit into int32."""
    bodies = [*(stored.body for stored in program.stored), *program.roots]
    arrays: list[ir.Source | Output] = [*program.inputs, *program.stored, *program.outputs]
    counts = list(dict.fromkeys(array.desc.element_count for array in arrays))
    pairs = [(size, kernel.workgroups) for kernel in kernels for size in kernel.sizes]
    parameters: list[Any] = [size for size, counts in pairs if not any(is_same_size(size, count) for count in counts)]
    for number in dict.fromkeys([*ends_of_positions(*bodies), *parameters]):
        if _may_exceed(number, counts) and number > MAX_ELEMENTS:
            raise ValidationError(f"{program.name}: the position {number} is beyond int32")
        if _may_exceed(-number, counts) and number < -MAX_ELEMENTS:
            raise ValidationError(f"{program.name}: the position {number} is beyond int32")


def _may_exceed(number: Dimension, counts: Sequence[int]) -> bool:
    """Whether a number may exceed int32. It cannot if it is at most one of `counts`, the numbers of elements of arrays."""
    return lower_bound(MAX_ELEMENTS - number) < 0 and all(lower_bound(count - number) < 0 for count in counts)


def _parts(node: Reduce) -> int:
    """The number of parts of a divided reduction: 4096 elements each, up to the size of a workgroup's reduction."""
    return max(2, min(1024, estimate(size_of(node.variables)) // 4096))


def _split(node: Reduce) -> tuple[tuple[Index, ...], Index, tuple[Index, ...]]:
    """Split the variables of a reduction into outer ones, the divided one, and inner ones.

    Each position of the outer variables has separate parts; each part covers the inner variables completely.
    """
    sizes = (estimate(size_of(node.variables[: k + 1])) for k in range(len(node.variables)))
    divided = next(k for k, size in enumerate(sizes) if size >= _parts(node))
    return node.variables[:divided], node.variables[divided], node.variables[divided + 1 :]


def _around(node: Reduce, axes: tuple[Index, ...], bodies: Sequence[Expr]) -> frozenset[Index]:
    """The variables of the loops in which a reduction would be evaluated, unless it is hoisted."""
    around = {axis for axis in axes if not is_same_size(axis.extent, 1)}
    for other in reductions(bodies):
        if other is not node and not node.free.isdisjoint(other.variables):
            around |= {variable for variable in other.variables if not is_same_size(variable.extent, 1)}
    return frozenset(around | {v for v in node.free if not is_same_size(v.extent, 1)})
