"""The way in which a session runs its calls, in words, for profiles and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...support.records import field, record
from .choice import UNCOMPILED

if TYPE_CHECKING:
    from ...backends import Backend


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

    >>> print(SessionChoice("onnxruntime", "cpu", False, "specialise='never'", "specialise='always'"))
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
        subject = "calls with other shapes run" if others else "your program runs this"
        return "\n".join([f"{subject} {self.way}, because {self.reason}{change}", *others])
