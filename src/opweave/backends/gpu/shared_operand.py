"""Merge GEMVs that read the same small operand (Q, K, V of one token) into one kernel, with the normalisation before them.

Each GEMV reads too little to keep a GPU busy, so its kernel would mostly start and drain.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence

from ...core.graph import Node
from ...core.sizes import is_static
from ...expr import gpu
from ...expr.gpu import Features, GpuKernel
from ...expr.ir import Formula, Input, Output, Stored
from .contraction.gemv import MAX_SHARED_ELEMENTS, ThinKernel
from .steps import Buffer, KernelStep


def may_be_merged(kernel: GpuKernel) -> bool:
    """Whether `merge_steps` may replace a kernel: a GEMV, or a kernel of expressions that could compute its vectors."""
    if isinstance(kernel, ThinKernel):
        return True
    written = (binding.desc for binding, writes in zip(kernel.bindings, kernel.writes, strict=True) if writes)
    is_small = any(is_static(desc.shape) and desc.element_count <= MAX_SHARED_ELEMENTS for desc in written)
    return is_small and not kernel.compiler


def merge_steps(steps: Sequence[KernelStep], features: Features, *, rounds: bool) -> tuple[list[KernelStep], set[Node]]:
    """Merge sibling GEMVs into the first sibling, then merge each producer of vectors into its only reader.

    If `rounds`, float16 vectors must be rounded before the product, and therefore stored. Also returns the nodes whose
    float16 results are not rounded.
    """
    kernels = _MergedKernels(features)
    return _merge_producers(_merge_siblings(steps, kernels), kernels, rounds)


class _MergedKernels:
    """Merged kernels. Equal layers have the same kernels, which are merged once."""

    def __init__(self, features: Features) -> None:
        self.features = features
        self._merged: dict[Hashable, ThinKernel | None] = {}
        self._variants: dict[Hashable, list[tuple[ThinKernel, set[gpu.Buffer]]]] = {}
        self._held: list[object] = []  # keys have the identities of these

    def beside(self, one: ThinKernel, other: ThinKernel) -> ThinKernel | None:
        key = id(one), id(other)
        if key not in self._merged:
            self._held += (one, other)
            self._merged[key] = one.beside(other, self.features)
        return self._merged[key]

    def after(self, kernel: ThinKernel, before: Formula, title: str, fixed: Collection[Input]) -> ThinKernel | None:
        key = id(kernel), id(before), title, *map(id, fixed)
        if key not in self._merged:
            self._held += (kernel, before)
            self._merged[key] = kernel.after(before, title, self.features, fixed)
        return self._merged[key]

    def for_both(self, step: KernelStep, other: KernelStep) -> ThinKernel:
        """The kernel of `step`, which has an array of `other` exactly where both kernels read the same place.

        Steps of equal layers have the same arrays in different places.
        """
        kernel = step.kernel
        assert isinstance(kernel, ThinKernel)
        places = dict(_bindings_of(other))
        read = {
            (place, key.desc): key
            for (key, place), writes in zip(_bindings_of(other), other.kernel.writes, strict=True)
            if not writes
        }
        buffers: dict[gpu.Buffer, gpu.Buffer | None] = {}
        for (key, place), writes in zip(_bindings_of(step), kernel.writes, strict=True):
            same = None if writes else read.get((place, key.desc))
            if same is not None and same is not key:
                buffers[key] = same
            elif places.get(key, place) is not place:
                buffers[key] = None
        if not buffers:
            return kernel
        # A kernel of several layers has other arrays for each of them.
        variants = self._variants.setdefault(
            (id(kernel), *((id(key), id(buffer)) for key, buffer in buffers.items())), []
        )
        for changed, arrays in variants:
            if places.keys().isdisjoint(arrays):
                return changed
        self._held += (kernel, other.kernel)
        fresh = {key: _another(key) for key, buffer in buffers.items() if buffer is None}
        changed = kernel.with_buffers({key: buffer or fresh[key] for key, buffer in buffers.items()})
        variants.append((changed, set(fresh.values())))
        return changed


def _another(array: gpu.Buffer) -> gpu.Buffer:
    """An array of the same kind."""
    if isinstance(array, Input):
        return Input(array.number, array.desc, array.name)
    return (Stored if isinstance(array, Stored) else Output)(array.axes, array.body)


def _merge_siblings(steps: Sequence[KernelStep], kernels: _MergedKernels) -> list[KernelStep]:
    merged: list[KernelStep] = []
    for step in steps:
        joined = _join(merged, step, kernels) if isinstance(step.kernel, ThinKernel) else None
        if joined is None:
            merged.append(step)
        else:
            number, replacement = joined
            merged[number] = replacement
    return merged


def _join(before: Sequence[KernelStep], step: KernelStep, kernels: _MergedKernels) -> tuple[int, KernelStep] | None:
    """Merge `step` into an earlier step. Returns the index of that step and the merged step; None if none matches."""
    own, targets, few = set(step.places), set(_targets_of(step)), _place_of_few(step)
    for number in reversed(range(len(before))):
        other = before[number]
        if not own.isdisjoint(_targets_of(other)) or not targets.isdisjoint(other.places):
            return None  # `step` must run after `other`
        if isinstance(other.kernel, ThinKernel) and _place_of_few(other) is few:
            added = kernels.for_both(step, other)
            kernel = kernels.beside(other.kernel, added)
            if kernel is not None:
                place_of = {**dict(_bindings_of(other)), **dict(zip(added.bindings, step.places, strict=True))}
                return number, _merged_step(kernel, place_of, other, step)
    return None


def _merge_producers(
    steps: Sequence[KernelStep], kernels: _MergedKernels, rounds: bool
) -> tuple[list[KernelStep], set[Node]]:
    """Merge the producer of vectors into their only reader, whose workgroups then recompute the vectors."""
    merged: list[KernelStep | None] = list(steps)
    users: dict[Buffer, list[int]] = {}
    for number, step in enumerate(steps):
        for place in dict.fromkeys(step.places):
            users.setdefault(place, []).append(number)
    unrounded: set[Node] = set()
    for number, step in enumerate(steps):
        if not isinstance(step.kernel, ThinKernel):
            continue
        few = _place_of_few(step)
        is_half = few.desc.data_type == "float16"
        if (rounds and is_half) or few.kind != "between" or step.places.count(few) > 1:
            continue
        if len(users[few]) != 2 or users[few][1] != number:
            continue
        first = users[few][0]
        producer = merged[first]
        if producer is None:
            continue
        between = [other for other in merged[first + 1 : number] if other is not None]
        replacement = _with_producer(producer, between, step, kernels)
        if replacement is not None:
            if is_half:
                unrounded.add(producer.nodes[-1])
            merged[number], merged[first] = replacement, None
    return [step for step in merged if step is not None], unrounded


def _with_producer(
    producer: KernelStep, between: Sequence[KernelStep], step: KernelStep, kernels: _MergedKernels
) -> KernelStep | None:
    """The step that is merged with the producer of its vectors; None if they cannot be merged."""
    if producer.program is None:
        return None
    if any(not set(producer.places).isdisjoint(_targets_of(other)) for other in between):
        return None
    places = dict(_bindings_of(producer))
    # An input has no binding if none of its elements is read.
    fixed = [source for source in producer.program.inputs if source in places and places[source].is_fixed]
    changed = kernels.for_both(step, producer)
    kernel = kernels.after(changed, producer.program, producer.kernel.title.partition(":")[0], fixed)
    if kernel is None:
        return None
    return _merged_step(kernel, {**places, **dict(zip(changed.bindings, step.places, strict=True))}, producer, step)


def _merged_step(
    kernel: ThinKernel, place_of: dict[gpu.Buffer, Buffer], one: KernelStep, other: KernelStep
) -> KernelStep:
    places = tuple(place_of[buffer] for buffer in kernel.bindings)
    return KernelStep(kernel, places, (*one.nodes, *other.nodes), titles={**one.titles, **other.titles})


def _bindings_of(step: KernelStep) -> Iterable[tuple[gpu.Buffer, Buffer]]:
    return zip(step.kernel.bindings, step.places, strict=True)


def _targets_of(step: KernelStep) -> list[Buffer]:
    return [place for place, writes in zip(step.places, step.kernel.writes, strict=True) if writes]


def _place_of_few(step: KernelStep) -> Buffer:
    assert isinstance(step.kernel, ThinKernel)
    source = step.kernel.sections[0].few.source
    return next(place for buffer, place in _bindings_of(step) if buffer is source)
