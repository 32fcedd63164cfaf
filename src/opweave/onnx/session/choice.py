"""Choose between compiled shapes and ONNX Runtime, uncompiled: kept measurements, rules, and reasons to show.

`ShapeCache.decide` chooses by these rules. `SessionChoice` has its result in words, for profiles and the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...support.names import either
from ...support.records import field, record
from ..model.parameters import has_roundings

if TYPE_CHECKING:
    from ...backends import Backend, Device
    from ...compile.engines import Measurement
    from ...lazy.background import Recurring
    from ..convert.trace import Trace
    from ..model.model import Model

UNCOMPILED = "ONNX Runtime, uncompiled"
COMPILING = "compiling"


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


def reason_of_error(error: Exception, device: Device) -> Reason:
    """Reason to compile all shapes of a model that cannot run uncompiled on a device."""
    if device.name == "cpu":
        return Reason(f"ONNX Runtime cannot run it uncompiled: {error}")
    return Reason(f"{device.name} runs compiled models only", "context=ml.create_context(device='cpu')")


def reason_of_measurement(measurement: Measurement, change: str) -> Reason:
    """Reason for the engine that a measurement has chosen, or for the default if it has chosen none."""
    figures = "; ".join(measurement.verdicts())
    text = "it was measured to be faster" if measurement.chosen else AUTO.text
    return Reason(f"{text} ({figures})" if figures else text, change)


def threads_of(backend: Backend) -> int | None:
    """Maximum number of threads of an operation; None if the back end takes no limit."""
    if backend.threads is not None:
        return backend.threads
    from ...support.processors import processors

    count = processors()
    return count if backend.with_threads(count) is not backend else None


@record
class SessionChoice:
    """The way in which a session runs its calls, why, and the argument that changes it. `str` is a sentence.

    Attributes:
        engine: the back end that runs the model; "onnxruntime" also if it is uncompiled.
        device: the name of the device.
        is_compiled: whether the model is compiled for the shapes of its inputs.
        reason: the reason for the choice.
        change: the argument of `InferenceSession` that leads to another choice; empty if none does.
        sections: number of sections of the compiled model; 0 if it is not compiled, or not yet.
        fallbacks: number of sections that ONNX Runtime runs as they are.
        threads: maximum number of threads of an operation; None if the engine decides.
        dynamic: names of the dynamic dimensions, by input; "?" for one without a name.
        others: the choice for shapes that run in another way, by these shapes as text.

    >>> print(SessionChoice("onnxruntime", "cpu", False, NEVER.text, NEVER.change))
    your program runs this on ONNX Runtime, uncompiled, because specialise='never'; pass specialise='always' to change it
    """

    engine: str
    device: str
    is_compiled: bool
    reason: str
    change: str = ""
    sections: int = 0
    fallbacks: int = 0
    threads: int | None = None
    dynamic: Mapping[str, list[str]] = field(default_factory=dict)
    others: Mapping[str, SessionChoice] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The engine, and whether the model is uncompiled."""
        return self.engine if self.is_compiled else f"{self.engine}, uncompiled"

    @property
    def way(self) -> str:
        """The engine, whether the model is compiled, and its parts, as a phrase."""
        if not self.is_compiled:
            return f"on {UNCOMPILED}"
        if not self.sections:
            return f"on {self.engine}, compiled when a shape is first used"
        if self.fallbacks == self.sections:
            return "on ONNX Runtime (fallback)"
        if self.sections == 1:
            return f"on {self.engine}, compiled"
        return f"in {self.sections} parts, compiled, {self.fallbacks} of them on ONNX Runtime (fallback)"

    def to_dict(self) -> dict[str, Any]:
        """The attributes, the label and the sentence, for JSON."""
        names = (
            "label",
            "engine",
            "device",
            "is_compiled",
            "reason",
            "change",
            "sections",
            "fallbacks",
            "threads",
            "dynamic",
        )
        values: dict[str, Any] = {"sentence": str(self)} | {name: getattr(self, name) for name in names}
        return values | {"others": {shapes: other.to_dict() for shapes, other in self.others.items()}}

    def __str__(self) -> str:
        change = f"; pass {self.change} to change it" if self.change else ""
        others = [
            f"calls with {shapes} run {other.way}, because {other.reason}" for shapes, other in self.others.items()
        ]
        return "\n".join([f"your program runs this {self.way}, because {self.reason}{change}", *others])


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
