"""Verification of other engines for the models of sessions. `verification.process` is imported when a child process starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...compile.states import SWITCHED_OFF, YET
from ..model.shape_keys import text_of

if TYPE_CHECKING:
    from ...compile.engines import Measurement
    from ...compile.uses import Use
    from .compiled import CompiledModel
    from .parts import SessionParts
    from .shape_cache import ShapeCache


def use_of(parts: SessionParts) -> Use | None:
    """The record of the use of a session, which begins here; None if no other engines are verified for it."""
    cache = parts.shape_cache
    if parts.use is None and parts.verifies and not cache.why_not_verified():
        if parts.is_static and cache.verdicts:
            return None
        from ...verification.watch import MAX_VERIFIED, watch

        watch.add(parts, 1 if parts.is_static else MAX_VERIFIED)
    return parts.use


def note(use: Use, cache: ShapeCache, shapes: Mapping[str, Any], feed: Mapping[str, Any]) -> None:
    """Record a call, unless its shapes have a verdict, or it overrides an initializer."""
    sizes = tuple(shapes.items())
    if text_of(sizes) in cache.verdicts or not all(isinstance(value, np.ndarray) for value in feed.values()):
        use.skip()
    elif len(shapes) == cache.input_count:
        use.note(sizes, list(feed), list(feed.values()))


def state_of(parts: SessionParts, compiled: CompiledModel) -> str | Measurement:
    """State of the verification of other engines for a compiled model."""
    use = use_of(parts)
    if use is None:
        why = parts.shape_cache.why_not_verified()
        return f"not verified: {why}" if why else SWITCHED_OFF
    keys = [key for key, model in parts.shape_cache.compiled.items() if model is compiled]
    sizes = next((tuple(item for item in key if not isinstance(item[1], bytes)) for key in keys), ())
    return use.state(sizes)


def lines(parts: SessionParts) -> list[str]:
    """Lines on the verification of other engines for shapes that ONNX Runtime runs uncompiled."""
    cache = parts.shape_cache
    rivals = ", ".join(list(cache.ways)[1:])
    if not rivals:
        return []
    notes = [
        f"engine for {measurement.subject}: {'; '.join(measurement.verdicts())}"
        for measurement in cache.verdicts.values()
        if not measurement.chosen
    ]
    if parts.is_static and cache.verdicts:
        return notes
    subject = f"{'other shapes: ' if cache.verdicts else ''}{rivals}"
    use = use_of(parts)
    if use is None:
        why = cache.why_not_verified()
        return notes or [f"{subject} {f'not verified: {why}' if why else SWITCHED_OFF}"]
    states: dict[Any, str | Measurement] = {**use.waiting, **use.states}
    for sizes, state in states.items():
        text = f"{rivals} {state}" if isinstance(state, str) else "; ".join(state.verdicts())
        after = "" if isinstance(state, str) else "; what is built from now on follows this"
        notes.append(f"engine for {text_of(sizes)}: {text}{after}")
    return notes or [f"{subject} {YET}"]
