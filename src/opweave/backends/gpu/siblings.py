"""Products of the same few vectors, as those of queries, keys and values of one token, become one kernel.

Each of them reads too little to keep a GPU busy, so a kernel takes most of its time to start and to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...expr.gpu import Features
from .contraction.thin import ThinKernel
from .steps import Place, Step


def together(steps: Sequence[Step], features: Features) -> list[Step]:
    """The steps with those of siblings joined, at the place of the first of them.

    Args:
        steps: in the order in which they run.
        features: features and limits of the device.
    """
    found: list[Step] = []
    for step in steps:
        joined = _joined(found, step, features) if isinstance(step.kernel, ThinKernel) else None
        if joined is None:
            found.append(step)
        else:
            number, made = joined
            found[number] = made
    return found


def _joined(before: Sequence[Step], step: Step, features: Features) -> tuple[int, Step] | None:
    """The number of an earlier step, and the step that does its work and that of `step`; None if there is none."""
    own = set(step.places)
    for number in reversed(range(len(before))):
        other = before[number]
        if not own.isdisjoint(_written(other)) or not set(_written(step)).isdisjoint(other.places):
            return None  # `step` must run after `other`
        if isinstance(other.kernel, ThinKernel) and _few(other) is _few(step):
            assert isinstance(step.kernel, ThinKernel)
            kernel = other.kernel.beside(step.kernel, features)
            if kernel is not None:
                known = {**dict(_bound(other)), **dict(_bound(step))}
                places = tuple(known[buffer] for buffer in kernel.bindings)
                return number, Step(kernel, places, (*other.nodes, *step.nodes))
    return None


def _bound(step: Step) -> Iterable[tuple[object, Place]]:
    return zip(step.kernel.bindings, step.places, strict=True)


def _written(step: Step) -> list[Place]:
    return [place for place, writes in zip(step.places, step.kernel.writes, strict=True) if writes]


def _few(step: Step) -> Place:
    """Where the few vectors lie."""
    assert isinstance(step.kernel, ThinKernel)
    source = step.kernel.sections[0].few.source
    return next(place for buffer, place in _bound(step) if buffer is source)


__all__ = ["together"]
