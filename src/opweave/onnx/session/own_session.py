"""The reasons for which the model's own session runs calls, and when they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy.background import Recurring
from ...support.names import listed

if TYPE_CHECKING:
    from ..convert.trace import Trace
    from ..model.model import Model

OWN_SESSION = "the model's own session"
NEVER = "specialise='never'"
AUTO = "no other way to run it was measured to be faster"

PAYING = frozenset({("", "LRN")})
"""Operators for which a static model is compiled without a measurement of it. Opweave's loop for local response normalisation
takes a thirtieth of the time of ONNX Runtime's kernel (`compile.winners`), and AlexNet, ZFNet and Inception v1 two thirds of
ONNX Runtime's time (docs/benchmarks.md). Other networks of that page take as long as in ONNX Runtime, and longer to load."""

SMALL_BYTES = 2**20
"""The size of a static model, its weights, inputs and outputs, up to which it is not compiled. An estimate: such models run
briefly, and to trace and compile one takes tens of milliseconds, which it rarely regains."""

MAX_FALLBACKS = 0
"""The most nodes of a static model that WebNN cannot express, if it is compiled by default. Each divides the model: results
between sections are stored, and threads wait. `benchmarks small` compares such models with ONNX Runtime."""

MAX_POOLS = 5
"""Maximum number of sections with their own threads where shapes that recur are compiled. A static model with more runs in its
own session, which has one pool of threads."""


def may_pay(model: Model, size: int) -> bool:
    """Whether a static model may be faster compiled, as far as that is known without a trace.

    Args:
        model: the model.
        size: of its weights, inputs and outputs, in bytes.
    """
    if size <= SMALL_BYTES or PAYING.isdisjoint(model.operators):
        return False
    return len(model.unknown_operators()) <= MAX_FALLBACKS


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
