"""Results of rules that a single expression cannot describe efficiently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....core.dtypes import DataType
from ....core.graph import Desc
from ....core.sizes import Dimension, is_same_shape, is_same_size
from ....expr import ir
from ....expr.array import Traced
from ....expr.gpu import Features, KernelProgram, Workgroups
from ....expr.ir import Input
from ....expr.tracing import of_input
from ....support.errors import NotSupportedError
from ..contraction.problem import Problem, View, strides_of


@dataclass(frozen=True, slots=True)
class Scatter:
    """A copy of an array with some elements replaced, in any order.

    For each position `p` in `shape`, `result[at(*p)] = value(*p)`.
    """

    into: Traced
    shape: tuple[int, ...]
    at: Callable[..., Sequence[Traced]]
    value: Callable[..., Traced]


@dataclass(frozen=True, slots=True)
class Products:
    """A contraction; `finish` is the epilogue, from the sums in the shape of the result to the result."""

    problem: Problem
    finish: Callable[[Traced], Traced] = lambda total: total


@dataclass(frozen=True, slots=True)
class Repeated:
    """Programs of workgroups that run several times; two arrays are swapped after each repetition.

    `swapped` is (old, new): the first repetition reads `old`, and writes `new`. If `count` has names, the last one also writes
    `new`.
    """

    stages: Sequence[ResultStage]
    count: Dimension
    swapped: tuple[Input, Input]


@dataclass(frozen=True, slots=True)
class ResultStage:
    """A part of an operation that takes several kernels.

    Attributes:
        target: the array to compute, which later stages may read.
        content: the elements, as in results of rules; a `KernelProgram`, which may write further arrays; `Repeated` stages; or
            an array in memory, to reinterpret in a different shape or data type.
    """

    target: Input
    content: Traced | Products | Scatter | KernelProgram | Repeated | Input
    title: str = ""

    @property
    def targets(self) -> list[Input]:
        if isinstance(self.content, KernelProgram):
            return self.content.targets
        if isinstance(self.content, Repeated):
            return [*self.content.swapped, *(target for stage in self.content.stages for target in stage.targets)]
        return [self.target]


class Stages:
    """Collects the stages of an operation in execution order.

    Attributes:
        remark: the way in which the stages compute the operation, for `explain`; empty if there is one way only.
    """

    def __init__(self, features: Features) -> None:
        self.features, self.remark = features, ""
        self.stages: list[ResultStage] = []
        self._count = 0

    def array(self, data_type: DataType, shape: Sequence[int]) -> Input:
        """A new array in memory, to be computed by a stage."""
        self._count += 1
        return Input(FIRST_NUMBER + self._count, Desc(data_type, tuple(shape)))

    def add(self, content: Traced | Products | Scatter | KernelProgram, target: Input, title: str = "") -> Traced:
        self.stages.append(ResultStage(target, content, title))
        return of_input(target)

    def store(self, array: Traced, title: str = "") -> Traced:
        """Store an expression in memory."""
        target = self.array(ir.storage(array.data_type), array.shape)
        self.stages.append(ResultStage(target, array, title))
        return of_input(target)

    def repeat(self, stages: Sequence[ResultStage], count: Dimension, swapped: tuple[Input, Input]) -> None:
        self.stages.append(ResultStage(stages[-1].target, Repeated(stages, count, swapped)))

    def view(self, array: Traced, shape: Sequence[int], data_type: DataType | None = None) -> Traced:
        """Reinterpret an array in memory in a different shape, and optionally as a different data type."""
        target = self.array(data_type or ir.storage(array.data_type), shape)
        self.stages.append(ResultStage(target, source_of(array)))
        return of_input(target)


def source_of(array: Traced) -> Input:
    """The input behind an array in memory."""
    assert isinstance(array.body, ir.Load)
    assert isinstance(array.body.source, Input)
    return array.body.source


def view_of(array: Traced) -> View | None:
    """The strided view behind an expression; None unless the expression is an array in memory with permuted axes."""
    load, rank = array.body, array.rank
    if not isinstance(load, ir.Load) or not isinstance(load.source, Input):
        return None
    if is_same_shape(array.shape, load.source.desc.shape) and ir.is_aligned(load):
        return View.of(load.source)
    strides = [0] * rank
    for part, stride in zip(load.parts, strides_of(load.source.desc.shape), strict=True):
        if isinstance(part, ir.Index) and part.axis < 0 and is_same_size(strides[part.axis], 0):
            strides[part.axis] = stride
        elif not (isinstance(part, ir.Const) and part.value == 0):
            return None
    return View(load.source, array.shape, tuple(strides))


FIRST_NUMBER = 1 << 20
"""First number of arrays that stages compute, beyond the numbers of operands."""


class Staged:
    """A result that takes several kernels: `plan` adds the stages, and returns the result arrays.

    `inputs` are the arrays that stand for the operands in the stages. `names_needed` returns the names that need numbers on a
    device, for all sizes and for those of this run; without it, all names do. With `may_exceed_limits`, the
    decomposition runs on devices that the stages do not fit (`fits`).
    """

    def __init__(
        self,
        plan: Callable[[Stages], Sequence[Traced]],
        names_needed: Callable[[Features], tuple[set[str], set[str]]] | None = None,
        *,
        may_exceed_limits: bool = False,
    ) -> None:
        self.plan, self.names_needed, self.may_exceed_limits = plan, names_needed, may_exceed_limits
        self.inputs: tuple[Input, ...] = ()
        self._plans: dict[Features, tuple[Stages, list[Input]]] = {}

    def fits(self, features: Features, max_byte_length: int) -> bool:
        """Whether a device can run the stages, whose arrays may have at most `max_byte_length` bytes."""
        if not self.may_exceed_limits:
            return True
        try:
            plan, _ = self.plan_for(features)
        except NotSupportedError:
            return False
        targets = (target for stage in plan.stages for target in stage.targets)
        programs = (stage.content for stage in plan.stages if isinstance(stage.content, Workgroups))
        has_room = all(target.desc.byte_length <= max_byte_length for target in targets)
        return has_room and all(program.fits(features) for program in programs)

    def plan_for(self, features: Features) -> tuple[Stages, list[Input]]:
        """The stages for a device, and the results. Equal operations share one plan."""
        if features not in self._plans:
            stages = Stages(features)
            results = [source_of(array) for array in self.plan(stages)]
            self._plans[features] = stages, results
        return self._plans[features]
