"""What back ends report of compiled graphs: where nodes run, and how long kernels take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.operation import Op
    from . import How


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a node of the user's graph runs, and how; `segment` counts what runs one after the other, `op` is the node's."""

    node: str
    device: str
    how: How
    detail: str
    segment: int
    op: Op[..., Any]


@dataclass(frozen=True, slots=True)
class KernelTime:
    """How long one kernel of an engine runs.

    Attributes:
        node: the label, or the name, of the operation that it computes, or operations; empty for what the engine has added.
        kernel: what the engine calls it.
        result: data type and shape of what it makes, in the engine's words.
        median: its time in seconds, the middle of all runs.
        minimum: its time in seconds, the best of all runs.
        segment: the number of the segment that it is in.
    """

    node: str
    kernel: str
    result: str
    median: float
    minimum: float
    segment: int = 0
