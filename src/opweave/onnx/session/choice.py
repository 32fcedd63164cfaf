"""Choose between compiled shapes and ONNX Runtime, uncompiled: kept measurements, rules, and reasons to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...lazy.background import Recurring
from ...support.names import either

if TYPE_CHECKING:
    from ...backends import Backend
    from ...compile.engines import Measurement
    from ..convert.trace import Trace
    from ..model.model import Model

UNCOMPILED = "ONNX Runtime, uncompiled"
NEVER = "specialise='never'"
AUTO = "no other way to run it was measured to be faster"

PAYING = frozenset({("", "LRN")})
"""Operators for which a static model is compiled without being measured. Opweave's loop for local response normalisation takes
1/30 of the time of ONNX Runtime's kernel (`compile.winners`); AlexNet, ZFNet and Inception v1 take 2/3 of ONNX Runtime's time
(docs/benchmarks.md). Other networks of that page take as long as in ONNX Runtime, and longer to load."""

SMALL_BYTES = 2**20
"""Static models up to this size of weights, inputs and outputs are not compiled. An estimate: tracing and compiling take tens
of milliseconds, which short runs rarely regain."""

MAX_FALLBACKS = 0
"""Maximum number of fallback nodes of a static model that is compiled by default. Each divides the model: results
between sections are stored, and threads wait. `benchmarks small` compares such models with ONNX Runtime."""

MAX_POOLS = 5
"""Maximum number of large sections, each with a pool of threads. Static models with more run uncompiled, in one pool."""


def find_measured(digest: Callable[[], str], ways: Mapping[str, Backend]) -> dict[str, Measurement]:
    """Find the measurements of a model by shapes as text; load no modules if there is only one engine in `ways`."""
    if len(ways) < 2:
        return {}
    from ...support import disk_cache

    if not disk_cache.has(disk_cache.TUNING):
        return {}
    from ...compile import keys

    model = digest()
    if not disk_cache.exists(keys.key_of(model, keys.machine(ways), keys.versions(ways)), keys.KIND):
        return {}
    from ...compile import engines

    return engines.find(lambda: model, ways)


def may_pay(model: Model, size: int) -> bool:
    """Predict without a trace whether compiling a static model may save time. `size`: bytes of weights, inputs and outputs."""
    if size <= SMALL_BYTES or PAYING.isdisjoint(model.operators):
        return False
    return len(model.unknown_operators()) <= MAX_FALLBACKS


def reason_after_trace(trace: Trace, outputs: list[str], is_auto: bool) -> str:
    """Reason to run a static model uncompiled, or "". `is_auto`: the user has left the choice to the session."""
    from .compiled import large_sections

    unknown = [step.node.op_type for step in trace.steps if step.kind == "fallback"]
    if is_auto and len(unknown) > MAX_FALLBACKS:
        return f"WebNN cannot express {either(list(dict.fromkeys(unknown)))}"
    large = large_sections(trace, outputs)
    return f"it would run in {large} sections, each with threads of its own" if large > MAX_POOLS else ""


class RecentShape(Recurring):
    """The input shapes of a recent call; compiled if they recur.

    `refused` is the reason not to compile recurring shapes, or "". `has_room` is set if memory and threads sufficed when they
    recurred.
    """

    waits = True

    def __init__(self, refused: str = "") -> None:
        super().__init__()
        self.refused, self.has_room = refused, False

    def describe(self) -> str:
        """Say how calls with these shapes run."""
        why = self.refused if self.refusal is None else f"it cannot be compiled: {self.refusal}"
        if why:
            return f"{UNCOMPILED}: {why}"
        return "compiling" if self.seen > 1 else UNCOMPILED
