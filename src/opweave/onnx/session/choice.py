"""Choose between compiled shapes and ONNX Runtime, uncompiled: kept measurements, rules, and reasons to show.

`ShapeCache.decide` chooses by these rules. `session_choice` has its result in words, for profiles and the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...support.names import either
from ...support.records import record
from ..model.parameters import has_roundings

if TYPE_CHECKING:
    from ...backends import Backend
    from ...compile.engines import Measurement
    from ...context.context import MLContext
    from ...lazy.background import Recurring
    from ..convert.trace import Trace
    from ..model.model import Model

UNCOMPILED = "ONNX Runtime, uncompiled"
COMPILED, COMPILING = "compiled", "compiling"


@record
class Reason:
    """Reason for a choice, and `change`: the argument of the session that leads to another choice; empty if none does."""

    text: str
    change: str = ""

    def __str__(self) -> str:
        return self.text


COMPILE, LEAVE = "specialise='always'", "specialise='never'"
NEVER = Reason(LEAVE, COMPILE)
ALWAYS = Reason(COMPILE, LEAVE)
AUTO = Reason("no other way to run it was measured to be faster", COMPILE)
UNMEASURED = Reason("no other way to run them was measured", COMPILE)
WITHOUT_FALLBACK = Reason("fallback='error' requires that WebNN runs all of it", "fallback='auto'")
OWN_OPERATIONS = Reason("only compiled models run your own operations")
IEEE = Reason("precision='ieee' requires that float16 and quantised results are rounded", "precision='float32'")
STATIC = Reason("specialise='recurring' compiles a model without dynamic dimensions", LEAVE)
RECURS = Reason("specialise='recurring' compiles shapes that recur", LEAVE)
NEW = Reason("these shapes have not recurred", COMPILE)
SMALL = Reason("it is small: compiling takes longer than short runs regain", COMPILE)

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


def find_measured(
    digest: Callable[[], str], backend: Backend, find_ways: Callable[[], Mapping[str, Backend]]
) -> dict[str, Measurement]:
    """Find the measurements of a model by shapes as text; load no engine unless the model was measured."""
    if not backend.may_choose():
        return {}
    from ...support.tuned import has_tuning

    if not has_tuning():
        return {}
    from ...support.digests import prefix_of

    model = digest()
    if not has_tuning(prefix_of(model)) or len(ways := find_ways()) < 2:
        return {}
    from ...compile import keys
    from ...support import disk_cache

    if not disk_cache.exists(keys.key_of(model, keys.machine(ways), keys.versions(ways)), keys.KIND):
        return {}
    from ...compile import engines

    return engines.find(lambda: model, ways)


def reason_to_compile_all(model: Model, precision: str, specialise: str, fallback: str) -> Reason | None:
    """Reason to compile all shapes, with which ONNX Runtime never runs the model uncompiled; None if there is none."""
    if specialise == "always":
        return ALWAYS
    if fallback == "error":
        return WITHOUT_FALLBACK
    if model.operations:
        return OWN_OPERATIONS
    # An uncompiled model ignores custom operations, or refuses their nodes. It also keeps float16 and quantised
    # results in float32, which `ieee` requires to be rounded.
    return IEEE if specialise != "never" and precision == "ieee" and has_roundings(model) else None


def reason_before_trace(model: Model, size: int) -> Reason | None:
    """Reason to run a static model uncompiled; None if compiling may save time. `size`: bytes of all arrays."""
    if PAYING.isdisjoint(model.operators):
        return AUTO
    if size <= SMALL_BYTES:
        return SMALL
    unknown = sorted(op_type for _, op_type in model.unknown_operators())
    return _inexpressible(unknown) if len(unknown) > MAX_FALLBACKS else None


def reason_to_compile(model: Model) -> Reason:
    """Reason to compile a static model without a measurement: `reason_before_trace` and `reason_after_trace` have none."""
    paying = [op_type for domain, op_type in sorted(PAYING) if (domain, op_type) in model.operators]
    return Reason(f"Opweave's loop for {', '.join(paying)} takes less time than ONNX Runtime's kernel", LEAVE)


def reason_after_trace(trace: Trace, outputs: list[str], is_auto: bool) -> Reason | None:
    """Reason to run a static model uncompiled, or None. `is_auto`: the user has left the choice to the session."""
    from .compiled import large_sections

    unknown = [step.node.op_type for step in trace.steps if step.kind == "fallback"]
    if is_auto and len(unknown) > MAX_FALLBACKS:
        return _inexpressible(unknown)
    large = large_sections(trace, outputs)
    text = f"it would run in {large} sections, each with threads of its own"
    return Reason(text, COMPILE) if large > MAX_POOLS else None


def _inexpressible(operators: list[str]) -> Reason:
    return Reason(f"WebNN cannot express {either(list(dict.fromkeys(operators)))}", COMPILE)


def reason_of_error(error: Exception, context: MLContext) -> Reason:
    """Reason to compile all shapes of a model that cannot run uncompiled in a context."""
    device, engine, precision = context.device.name, context.backend.name, context.precision
    if device != "cpu":
        return Reason(f"{device} runs compiled models only", "context=ml.create_context(device='cpu')")
    if engine == "onnxruntime":
        return Reason(f"ONNX Runtime cannot run it uncompiled: {error}")
    if precision != "float32":
        return Reason(f"{precision} runs on {engine}, which runs compiled models only", "precision='float32'")
    return Reason(f"{engine} runs compiled models only", "context=ml.create_context(backend='onnxruntime')")


def reason_of_measurement(measurement: Measurement, change: str) -> Reason:
    """Reason for the engine that a measurement has chosen, or for the default if it has chosen none."""
    figures = "; ".join(measurement.verdicts())
    text = "it was measured to be faster" if measurement.chosen else AUTO.text
    return Reason(f"{text} ({figures})" if figures else text, change)


class RecentShape:
    """The input shapes of a recent call; compiled if they recur.

    `refused` is the reason not to compile recurring shapes, or "". `has_room` is set if memory and threads sufficed when they
    recurred. `uses` counts the calls, and compiles the shapes in the background; None if recurring shapes are not compiled.
    """

    __slots__ = ("has_room", "refused", "uses")

    def __init__(self, refused: str = "") -> None:
        self.refused, self.has_room = refused, False
        self.uses: Recurring | None = None

    def describe(self) -> str:
        """Say how calls with these shapes run."""
        refusal = None if self.uses is None else self.uses.refusal
        why = self.refused if refusal is None else f"it cannot be compiled: {refusal}"
        if why:
            return f"{UNCOMPILED}: {why}"
        return COMPILING if self.uses is not None and self.uses.seen > 1 else UNCOMPILED
