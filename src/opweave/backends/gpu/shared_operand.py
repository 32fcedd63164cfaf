"""Merge GEMVs that read the same small operand (Q, K, V of one token) into one kernel, with the normalisation before them.

Each GEMV reads too little to keep a GPU busy, so its kernel would mostly start and drain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...core.graph import Node
from ...expr.gpu import Features
from .contraction.gemv import ThinKernel
from .steps import Buffer, KernelStep


def merge_steps(steps: Sequence[KernelStep], features: Features, *, rounds: bool) -> tuple[list[KernelStep], set[Node]]:
    """Merge sibling GEMVs into the first sibling, then merge each producer of vectors into its only reader.

    If `rounds`, float16 vectors must be rounded before the product, and therefore stored. Also returns the nodes whose
    float16 results are not rounded.
    """
    return _merge_producers(_merge_siblings(steps, features), features, rounds)


def _merge_siblings(steps: Sequence[KernelStep], features: Features) -> list[KernelStep]:
    merged: list[KernelStep] = []
    for step in steps:
        joined = _join(merged, step, features) if isinstance(step.kernel, ThinKernel) else None
        if joined is None:
            merged.append(step)
        else:
            number, replacement = joined
            merged[number] = replacement
    return merged


def _join(before: Sequence[KernelStep], step: KernelStep, features: Features) -> tuple[int, KernelStep] | None:
    """Merge `step` into an earlier step. Returns the index of that step and the merged step; None if none matches."""
    own = set(step.places)
    for number in reversed(range(len(before))):
        other = before[number]
        if not own.isdisjoint(_targets_of(other)) or not set(_targets_of(step)).isdisjoint(other.places):
            return None  # `step` must run after `other`
        if isinstance(other.kernel, ThinKernel) and _place_of_few(other) is _place_of_few(step):
            assert isinstance(step.kernel, ThinKernel)
            kernel = other.kernel.beside(step.kernel, features)
            if kernel is not None:
                place_of = {**dict(_bindings_of(other)), **dict(_bindings_of(step))}
                places = tuple(place_of[buffer] for buffer in kernel.bindings)
                return number, KernelStep(kernel, places, (*other.nodes, *step.nodes))
    return None


def _merge_producers(
    steps: Sequence[KernelStep], features: Features, rounds: bool
) -> tuple[list[KernelStep], set[Node]]:
    """Merge the producer of vectors into their only reader, whose workgroups then recompute the vectors."""
    merged = list(steps)
    unrounded: set[Node] = set()
    for step in steps:
        if not isinstance(step.kernel, ThinKernel):
            continue
        is_half = _place_of_few(step).desc.data_type == "float16"
        if not (rounds and is_half) and (pair := _with_producer(merged, step, features)):
            producer, replacement = pair
            if is_half:
                unrounded.add(producer.nodes[-1])
            merged[merged.index(step)] = replacement
            merged.remove(producer)
    return merged, unrounded


def _with_producer(
    steps: Sequence[KernelStep], step: KernelStep, features: Features
) -> tuple[KernelStep, KernelStep] | None:
    """The producer of the vectors of `step`, and the merged step; None if they cannot be merged."""
    assert isinstance(step.kernel, ThinKernel)
    few = _place_of_few(step)
    if few.kind != "between" or step.places.count(few) > 1:
        return None
    users = [other for other in steps if few in other.places]
    if len(users) != 2 or users[1] is not step or users[0].program is None:
        return None
    producer = users[0]
    between = steps[steps.index(producer) + 1 : steps.index(step)]
    if any(not set(producer.places).isdisjoint(_targets_of(other)) for other in between):
        return None
    assert producer.program is not None
    places = dict(_bindings_of(producer))
    # An input has no binding if none of its elements is read.
    fixed = [source for source in producer.program.inputs if source in places and places[source].is_fixed]
    kernel = step.kernel.after(producer.program, producer.kernel.title.partition(":")[0], features, fixed)
    if kernel is None:
        return None
    place_of = {**places, **dict(_bindings_of(step))}
    return producer, KernelStep(
        kernel, tuple(place_of[buffer] for buffer in kernel.bindings), (*producer.nodes, *step.nodes)
    )


def _bindings_of(step: KernelStep) -> Iterable[tuple[object, Buffer]]:
    return zip(step.kernel.bindings, step.places, strict=True)


def _targets_of(step: KernelStep) -> list[Buffer]:
    return [place for place, writes in zip(step.places, step.kernel.writes, strict=True) if writes]


def _place_of_few(step: KernelStep) -> Buffer:
    assert isinstance(step.kernel, ThinKernel)
    source = step.kernel.sections[0].few.source
    return next(place for buffer, place in _bindings_of(step) if buffer is source)
