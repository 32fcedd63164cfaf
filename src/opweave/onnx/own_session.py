"""The reasons for which the model's own session runs calls, and when they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy.background import Recurring
from ..names import listed

if TYPE_CHECKING:
    from .model import Model
    from .trace import Trace

OWN_SESSION = "the model's own session"
NEVER = "specialise='never'"
AUTO = "no other way to run it was measured to be faster"
SMALL = "it is small"

SMALL_BYTES = 2**20
"""The size of a static model, its weights, inputs and outputs, up to which its own session runs it without tracing it. An
estimate: calls of such models are short, and to trace and compile one takes tens of milliseconds, which it rarely regains."""

MAX_FALLBACKS = 0
"""The most nodes of a static model that WebNN cannot express, if it is compiled by default. Each divides the model: results
between sections are stored, and threads wait. `benchmarks small` compares such models with ONNX Runtime."""

MAX_POOLS = 5
"""Maximum number of sections with their own threads where shapes that recur are compiled. A static model with more runs in its
own session, which has one pool of threads."""


def reason_before_trace(model: Model, size: int) -> str:
    """Why the model's own session runs a static model, as far as that is known without a trace; empty if it is not.

    Args:
        model: the model.
        size: of its weights, inputs and outputs, in bytes.
    """
    if size <= SMALL_BYTES:
        return SMALL
    unknown = sorted(model.unknown_operators())
    if len(unknown) <= MAX_FALLBACKS:
        return ""
    return _inexpressible([f"{domain}.{op_type}" if domain else op_type for domain, op_type in unknown])


def reason_after_trace(trace: Trace, outputs: list[str], is_auto: bool) -> str:
    """Why the model's own session runs a static model; empty if it is to be compiled.

    Args:
        trace: of the model.
        outputs: the names of its outputs.
        is_auto: whether the user has left the choice to the session.
    """
    from .compiled import large_sections

    unknown = [step.node.op_type for step in trace.steps if step.kind == "fallback"]
    if is_auto and len(unknown) > MAX_FALLBACKS:
        return _inexpressible(unknown)
    large = large_sections(trace, outputs)
    return f"it would run in {large} sections, each with threads of its own" if large > MAX_POOLS else ""


def _inexpressible(names: list[str]) -> str:
    return f"WebNN cannot express {listed(list(dict.fromkeys(names)))}"


class RecentShape(Recurring):
    """The shapes of a recent call, which are compiled if they recur.

    Args:
        refused: why they are not compiled though they recurred; empty if there is no reason.

    Attributes:
        refused: the same.
        has_room: whether there was room for them when they recurred.
    """

    waits = True

    def __init__(self, refused: str = "") -> None:
        super().__init__()
        self.refused, self.has_room = refused, False

    def describe(self) -> str:
        """How calls with these shapes run."""
        why = self.refused if self.refusal is None else f"it cannot be compiled: {self.refusal}"
        if why:
            return f"{OWN_SESSION}: {why}"
        return "compiling" if self.seen > 1 else OWN_SESSION
