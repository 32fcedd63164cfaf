"""Compile a model for checked shapes before its first call (`InferenceSession.warmup`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import getLogger
from typing import TYPE_CHECKING, Any

from ...support.errors import MLError
from ...support.progress import report_work
from .choice import COMPILED, UNCOMPILED
from .tuning import combinations_of, random_feed

if TYPE_CHECKING:
    from .model_program import ModelProgram
    from .parts import SessionParts

DROPPED = "compiled, and dropped for other shapes: program_bytes has no room for all"


def warm_up(
    parts: SessionParts,
    shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]] | None,
    inputs: Mapping[str, Any] | None,
) -> dict[str, str]:
    """See `InferenceSession.warmup`."""
    parts.check_alive()
    combinations, checked = combinations_of(
        parts, "warmup", [shapes] if isinstance(shapes, Mapping) else shapes, inputs
    )
    cache = parts.shape_cache
    prepared: list[tuple[str, ModelProgram, str]] = []
    for sizes in combinations:
        feed = checked or random_feed(parts, sizes)
        text, program, refusal = cache.prepare(sizes, feed)
        prepared.append((text, program, refusal))
        try:
            with report_work(f"running the model once for {text}"):
                program.ordered_run()(feed)()
        except MLError as error:
            if checked:
                raise
            # The program is there; the model refuses random values, such as lengths that do not fit each other.
            getLogger("opweave").info("warmup: the model fails with random inputs for %s: %s", text, error)
    return {text: _way(program, refusal, cache.keeps(program)) for text, program, refusal in prepared}


def _way(program: ModelProgram, refusal: str, is_kept: bool) -> str:
    """The text that says how calls with the shapes of a program run."""
    if program.is_open:
        return f"{UNCOMPILED}: {refusal}" if refusal else UNCOMPILED
    return COMPILED if is_kept else DROPPED
