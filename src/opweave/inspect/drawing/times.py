"""Times of operations, from a profile or from a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any

from ...run.profile import Profile
from ...support.errors import require
from ...support.names import short_repr
from .picture import Picture

JOINT = " + "
"""Stands between the names of the operations that one kernel computes."""


@dataclass(frozen=True)
class Time:
    """Seconds that an operation took, and the operations that took them together, if there are several."""

    seconds: float
    shared: str = ""


def times_of(picture: Picture, profile: Profile | Mapping[str, float]) -> dict[int, Time]:
    """Find the time of each box of a picture.

    A time that several operations share is divided equally: that of a kernel that computes them, and that of a name that they
    have in common.
    """
    if isinstance(profile, Profile):
        rows: Iterable[tuple[str, Any]] = [(kernel.node, kernel.median) for kernel in profile.kernels]
        advice = "the profile has no times of kernels: measure it with detail=True"
        require(bool(profile.kernels), f"draw: {advice}")
    else:
        is_mapping = isinstance(profile, Mapping)
        require(is_mapping, f"draw: profile must be a Profile, or map names to seconds, got {short_repr(profile)}")
        rows = profile.items()
    boxes = _boxes_by_name(picture)
    seconds: dict[int, float] = {}
    shared: dict[int, dict[str, None]] = {}
    for name, value in rows:
        is_time = isinstance(value, Real) and isfinite(value) and float(value) >= 0
        require(is_time, f"draw: times in profile must be finite and not negative, got {short_repr({name: value})}")
        names = [name] if name in boxes else str(name).split(JOINT)
        targets = [*dict.fromkeys(index for part in names for index in boxes.get(part, ()))]
        for index in targets:
            seconds[index] = seconds.get(index, 0.0) + float(value) / len(targets)
            if len(targets) > 1:
                text = name if len(names) > 1 else f"{len(targets)} operations called {name}"
                shared.setdefault(index, {})[text] = None
    some = short_repr([name for name, _ in rows])
    require(bool(seconds), f"draw: profile has no time of an operation of this graph; its names are {some}")
    return {index: Time(time, ", ".join(shared.get(index, ()))) for index, time in seconds.items()}


def _boxes_by_name(picture: Picture) -> dict[str, list[int]]:
    """The boxes that a name stands for: a label or the name of a node, with or without the operation; or an operation."""
    boxes: dict[str, list[int]] = {}
    for index, box in enumerate(picture.boxes):
        name = box.details.name
        for key in (name, f"{box.title} {name!r}") if name else (box.title,):
            if box.style not in ("input", "output"):
                boxes.setdefault(key, []).append(index)
    return boxes
