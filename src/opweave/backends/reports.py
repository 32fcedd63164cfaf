"""Reports of back ends on compiled graphs: the place of each node, and the time of each kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..support.records import record

if TYPE_CHECKING:
    from ..core.operation import Op
    from .base import How


# Not a record: type checkers take the operation of one for a method.
@dataclass(frozen=True, slots=True)
class Placement:
    """Place and implementation of a node of the user's graph; `segment` numbers the parts of a program that run in order."""

    node: str
    device: str
    how: How
    detail: str
    segment: int
    op: Op[..., Any]


@record(eq=True)
class KernelTime:
    """Time of one kernel of an engine.

    Attributes:
        node: label or name of the operation, or operations, that it computes; empty for kernels that the engine has added.
        kernel: the engine's name of the kernel.
        result: data type and shape of the result, in the engine's words.
        median: median time of all runs, in seconds; with OpenVINO, which keeps averages, the mean.
        minimum: minimum time of all runs, in seconds; with OpenVINO, the mean.
        segment: number of the segment that contains the kernel.
    """

    node: str
    kernel: str
    result: str
    median: float
    minimum: float
    segment: int = 0
