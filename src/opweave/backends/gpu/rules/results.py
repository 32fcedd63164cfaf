"""Results of rules that a single expression cannot describe, or not efficiently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....core.dtypes import DataType
from ....core.graph import Desc
from ....expr import ir
from ....expr.array import Array
from ....expr.gpu import Features, KernelProgram
from ....expr.ir import Input
from ....expr.tracing import of_input
from ..contraction.problem import Problem, View, strides_of


@dataclass(frozen=True, slots=True)
class Scatter:
    """A copy of an array with some elements replaced, in any order.

    Attributes:
        into: the array to copy.
        shape: how many elements are written then; for each position `p` in it, `result[at(*p)] = value(*p)`.
        at: takes a position, and returns an index for each axis of the result, all of them inside of it.
        value: takes a position, and returns the element to write there.
    """

    into: Array
    shape: tuple[int, ...]
    at: Callable[..., Sequence[Array]]
    value: Callable[..., Array]


@dataclass(frozen=True, slots=True)
class Products:
    """A result whose elements are sums of products, for which there are kernels of their own.

    Attributes:
        problem: what is multiplied and added up; its sources are what the operands load, all of them in memory.
        finish: takes the sums, in the shape of the result, and returns the result: with a bias, say.
    """

    problem: Problem
    finish: Callable[[Array], Array] = lambda total: total


@dataclass(frozen=True, slots=True)
class Repeated:
    """Stages that run several times, with kernels that are made once.

    Attributes:
        stages: programs of workgroups.
        count: how many times.
        swapped: two arrays of the same data type and shape, each of which takes the other's place after each time.
    """

    stages: Sequence[Stage]
    count: int
    swapped: tuple[Input, Input]


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of an operation that takes several kernels.

    Attributes:
        target: the array that is computed; a stage after this one may read it.
        made: the elements, as in results of rules; a `KernelProgram`, which may write several arrays, `target` among them;
            `Repeated` stages; or an array in memory, whose bytes are read in another shape or data type.
        title: what it does, for tables.
        fold: whether elements that depend on constants only are computed at build.
    """

    target: Input
    content: Array | Products | Scatter | KernelProgram | Repeated | Input
    title: str = ""
    fold: bool = True

    @property
    def targets(self) -> list[Input]:
        """All arrays that are computed."""
        if isinstance(self.content, KernelProgram):
            return self.content.targets
        if isinstance(self.content, Repeated):
            return [target for stage in self.content.stages for target in stage.targets]
        return [self.target]


class Stages:
    """The parts of an operation that takes several kernels, in the order in which they run.

    Attributes:
        features: features and limits of the device.
        stages: the parts so far.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.stages: list[Stage] = []
        self._count = 0

    def array(self, data_type: DataType, shape: Sequence[int]) -> Input:
        """A new array in memory, for a stage to compute."""
        self._count += 1
        return Input(FIRST_NUMBER + self._count, Desc(data_type, tuple(shape)))

    def add(self, content: Array | Products | Scatter | KernelProgram, target: Input, title: str = "") -> Array:
        """Add a stage, and return the array that it computes."""
        self.stages.append(Stage(target, content, title))
        return of_input(target)

    def store(self, array: Array, title: str = "", *, fold: bool = True) -> Array:
        """An array in memory of the elements of another; with `fold`, at build, if these depend on constants only."""
        target = self.array(ir.storage(array.data_type), array.shape)
        self.stages.append(Stage(target, array, title, fold))
        return of_input(target)

    def repeat(self, stages: Sequence[Stage], count: int, swapped: tuple[Input, Input]) -> None:
        """Repeat programs of workgroups; see `Repeated`."""
        self.stages.append(Stage(stages[-1].target, Repeated(stages, count, swapped)))

    def view(self, array: Array, shape: Sequence[int], data_type: DataType | None = None) -> Array:
        """An array in memory, whose bytes are read in another shape, and as another data type if one is given."""
        target = self.array(data_type or ir.storage(array.data_type), shape)
        self.stages.append(Stage(target, source_of(array)))
        return of_input(target)


def source_of(array: Array) -> Input:
    """The input that an array in memory is loaded from."""
    assert isinstance(array.body, ir.Load)
    assert isinstance(array.body.source, Input)
    return array.body.source


def view_of(array: Array) -> View | None:
    """An array in memory as its elements are read; None if they are not those of one array, with axes in any order."""
    load, rank = array.body, array.rank
    if not isinstance(load, ir.Load) or not isinstance(load.source, Input):
        return None
    if array.shape == load.source.desc.shape and ir._aligned(load):
        return View.of(load.source)
    strides = [0] * rank
    for part, stride in zip(load.parts, strides_of(load.source.desc.shape), strict=True):
        if isinstance(part, ir.Index) and part.axis < 0 and not strides[part.axis]:
            strides[part.axis] = stride
        elif not (isinstance(part, ir.Const) and part.value == 0):
            return None
    return View(load.source, array.shape, tuple(strides))


FIRST_NUMBER = 1 << 20
"""Numbers of arrays that stages compute begin here, behind those of operands."""


class Staged:
    """A result that takes several kernels.

    Args:
        plan: adds the stages, and returns the array of each result.

    Attributes:
        inputs: the arrays of the operands in the stages.
    """

    def __init__(self, plan: Callable[[Stages], Sequence[Array]]) -> None:
        self.plan = plan
        self.inputs: tuple[Input, ...] = ()
        self._plans: dict[Features, tuple[list[Stage], list[Input]]] = {}

    def plan_for(self, features: Features) -> tuple[list[Stage], list[Input]]:
        """The stages for a device, and the results; planned once for all operations that are alike."""
        if features not in self._plans:
            stages = Stages(features)
            results = [source_of(array) for array in self.plan(stages)]
            self._plans[features] = stages.stages, results
        return self._plans[features]
