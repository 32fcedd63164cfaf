"""Verification of other engines for the models of sessions: records of use, and tasks for child processes.

Sessions import this module; `verification.process` is imported when a child process starts.
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
    """Record how long the session is used, if other engines may be verified for it; else return None."""
    is_on = session.context._verify if verify is None else session.context._verify and verify
    cache = session._shape_cache
    if not is_on or cache.why_not_verified() or (session._is_static and cache.verdicts):
        return None
    from ...verification.uses import MAX_VERIFIED, watch

    return watch.add(session, 1 if session._is_static else MAX_VERIFIED)


def note(use: Use, cache: ShapeCache, shapes: Mapping[str, Any], feed: Mapping[str, Any]) -> None:
    """Record a call, unless its shapes have a verdict, or it overrides an initializer."""
    sizes = tuple(shapes.items())
    if text_of(sizes) in cache.verdicts or not all(isinstance(value, np.ndarray) for value in feed.values()):
        use.skip()
    elif len(shapes) == cache.input_count:
        use.note(sizes, list(feed), list(feed.values()))


def task_of(session: InferenceSession, key: Any, sample: Mapping[str, Sample]) -> Task | Measurement | str:
    """The task of a child process for a model, a kept verdict, or the reason for neither."""
    from .verifier import task_of

    return task_of(session, key, sample)


def state_of(session: InferenceSession, compiled: CompiledModel) -> str | Measurement:
    """State of the verification of other engines for a compiled model."""
    if session._use is None:
        why = session._shape_cache.why_not_verified()
        return f"not verified: {why}" if why else SWITCHED_OFF
    keys = [key for key, model in session._shape_cache.compiled.items() if model is compiled]
    sizes = next((tuple(item for item in key if not isinstance(item[1], bytes)) for key in keys), ())
    return session._use.state(sizes)


def lines(session: InferenceSession) -> list[str]:
    """Lines on the verification of other engines for shapes that ONNX Runtime runs uncompiled."""
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
