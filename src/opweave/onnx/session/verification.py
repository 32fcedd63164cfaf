"""Verification of other engines for the models of sessions: what a session notes, and what a child process gets.

Sessions import this; what a child needs is imported when one begins (`verification.process`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...compile.states import SWITCHED_OFF, YET
from ..convert.shape_keys import text_of

if TYPE_CHECKING:
    from ...compile.engines import Measurement
    from ...verification.process import Task
    from ...verification.uses import Sample, Use
    from .compiled import CompiledModel
    from .session import InferenceSession
    from .shape_cache import ShapeCache


def watch_session(session: InferenceSession, verify: bool | None) -> Use | None:
    """Note how long the session is used, if other engines may be verified for it; None if not."""
    is_on = session.context._verify if verify is None else session.context._verify and verify
    cache = session._shape_cache
    if not is_on or cache.why_not_verified() or (session._is_static and cache.verdicts):
        return None
    from ...verification.uses import MAX_VERIFIED, watch

    return watch.add(session, 1 if session._is_static else MAX_VERIFIED)


def note(use: Use, cache: ShapeCache, shapes: Mapping[str, Any], feed: Mapping[str, Any]) -> None:
    """Note a call, unless there is a verdict for its shapes, or an overridden initializer among its inputs."""
    sizes = tuple(shapes.items())
    if text_of(sizes) in cache.verdicts or not all(isinstance(value, np.ndarray) for value in feed.values()):
        use.skip()
    elif len(shapes) == cache.input_count:
        use.note(sizes, list(feed), list(feed.values()))


def task_of(session: InferenceSession, key: Any, sample: Mapping[str, Sample]) -> Task | Measurement | str:
    """What a child process verifies of a model; or why it cannot, or a verdict that is kept."""
    from .verifier import task_of

    return task_of(session, key, sample)


def state_of(session: InferenceSession, compiled: CompiledModel) -> str | Measurement:
    """What is known by now of other engines for a compiled model of a session."""
    if session._use is None:
        why = session._shape_cache.why_not_verified()
        return f"not verified: {why}" if why else SWITCHED_OFF
    keys = [key for key, model in session._shape_cache.compiled.items() if model is compiled]
    sizes = next((tuple(item for item in key if not isinstance(item[1], bytes)) for key in keys), ())
    return session._use.state(sizes)


def lines(session: InferenceSession) -> list[str]:
    """What is known of other engines for shapes that the model's own session runs."""
    cache = session._shape_cache
    rivals = ", ".join(list(cache.ways)[1:])
    if not rivals:
        return []
    notes = [
        f"engine for {measurement.what}: {'; '.join(measurement.verdicts())}"
        for measurement in cache.verdicts.values()
        if not measurement.chosen
    ]
    if session._use is None:
        why = cache.why_not_verified()
        return notes or [f"{rivals} {f'not verified: {why}' if why else SWITCHED_OFF}"]
    states: dict[Any, str | Measurement] = {**session._use.waiting, **session._use.states}
    for sizes, state in states.items():
        text = f"{rivals} {state}" if isinstance(state, str) else "; ".join(state.verdicts())
        after = "" if isinstance(state, str) else "; what is built from now on follows this"
        notes.append(f"engine for {text_of(sizes)}: {text}{after}")
    return notes or [f"{rivals} {YET}"]
