"""Access to the parts of a session, which users do not see, for the rooms that inspect sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..model.arguments import Argument
from ..model.model import Model
from .compiled import CompiledModel
from .index_ranges import Range
from .session import InferenceSession
from .shape_cache import ShapeCache


@dataclass(frozen=True, slots=True)
class SessionView:
    """The parts of a session; `compiled_for` returns the model compiled for shapes of its inputs."""

    model: Model
    inputs: Sequence[Argument]
    outputs: Mapping[str, Argument]
    ranges: Sequence[Range]
    shape_cache: ShapeCache
    compiled_for: Callable[[Mapping[str, Sequence[int]]], CompiledModel]


def parts_of(session: InferenceSession) -> SessionView:
    """The parts of a session."""
    s = session
    return SessionView(s._model, s._inputs, s._outputs, s._ranges, s._shape_cache, s._compiled_for)
