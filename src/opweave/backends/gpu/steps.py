"""Steps: kernels with the memory that they read and write."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from ...core.graph import Desc, Node
from ...core.guards import estimate
from ...core.size_values import values_at
from ...core.sizes import Size, is_same_shape, is_static
from ...expr import gpu, ir
from ...expr.array import Traced, as_array
from ...expr.evaluate import evaluate
from ...expr.gpu import Features, GpuKernel, KernelProgram
from ...expr.gpu.kernel import divisor_values
from ...expr.ir import Formula, Input, Output, Stored
from ...expr.simplify import simplify
from ...expr.table import TableEvaluator
from ...expr.tracing import make_formula, of_input
from ...memory.shared_constants import keys_of_shared
from ...support.background import background
from ..size_input import SizeInput
from .backend import GpuBackend
from .constants import GpuConstant
from .contraction.kernels import Contraction
from .fusion import Pending
from .rules.results import Products, Repeated, ResultStage, Scatter

MAX_TABLE_ELEMENTS = 1 << 14
"""The largest number of elements of a table that NumPy computes for each combination of sizes. An estimate."""


@dataclass(eq=False)
class Buffer:
    """A place in memory that kernels read or write.

    A place "between" kernels is an intermediate. A place of kind "sizes" has `values` that depend on the sizes of a run; `at`
    makes it a constant.
    """

    desc: Desc
    kind: Literal["input", "output", "constant", "between", "sizes"]
    number: int = 0
    value: GpuConstant | None = None
    values: SizeInput | SizeTable | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether no kernel of the graph writes to this place. An input updated in place is only read to be copied."""
        return self.kind in ("constant", "input", "sizes")

    def at(self, sizes: Mapping[str, int]) -> Buffer:
        """The place with numbers in place of sizes; itself, if it has none."""
        shape = self.desc.shape
        if self.values is not None:
            array = self.values.at(sizes)
            return Buffer(Desc(self.desc.data_type, array.shape), "constant", value=GpuConstant.of(array))
        if is_static(shape):
            return self
        return Buffer(Desc(self.desc.data_type, values_at(shape, sizes)), self.kind, self.number, self.value)

    @property
    def array(self) -> np.ndarray:
        assert self.value is not None
        return self.value.make()


@dataclass(eq=False)
class SizeTable:
    """An array that depends on sizes and constants alone: NumPy computes it for each version of a graph, not each run.

    Args:
        program: computes the array from those in `places`, which are constants and such tables.
    """

    program: Formula
    places: tuple[Buffer, ...]
    _last: tuple[Mapping[str, int], np.ndarray] | None = None

    @cached_property
    def _evaluator(self) -> TableEvaluator:
        return TableEvaluator(self.program)

    def at(self, sizes: Mapping[str, int]) -> np.ndarray:
        """The array for sizes by name. Several tables of a version may read it."""
        last = self._last  # another thread may replace it
        if last is not None and last[0] == sizes:
            return last[1]
        arrays = [
            _elements_as(
                place.array if place.values is None else place.values.at(sizes),
                Desc(source.desc.data_type, values_at(source.desc.shape, sizes)),
            )
            for place, source in zip(self.places, self.program.inputs, strict=True)
        ]
        array = self._evaluator(sizes, arrays)
        self._last = dict(sizes), array
        return array


@dataclass(eq=False)
class Repetition:
    """Steps whose number of repetitions has names. Each repetition reads the states that the previous one has written.

    A graph with names has the steps of one repetition, which reads `old` and writes `new`; `unroll` repeats them for certain
    sizes.
    """

    count: Size
    old: Buffer
    new: Buffer

    def with_places(self, place: Callable[[Buffer], Buffer]) -> Repetition:
        """The repetition with other places."""
        return replace(self, old=place(self.old), new=place(self.new))

    def unroll(
        self, steps: Sequence[KernelStep], sizes: Mapping[str, int], places: Mapping[Buffer, Buffer]
    ) -> list[KernelStep]:
        """The steps of all repetitions for certain sizes. `steps` are those of one; `places` maps places with names to those
        for these sizes.

        The last repetition writes `new`, the one before a spare place, and so on: readers of `new` need not know `count`.
        """
        old, new = places[self.old], places[self.new]
        spare = Buffer(new.desc, "between")
        read, unrolled = old, list[KernelStep]()
        by_places: dict[tuple[Buffer, Buffer], list[KernelStep]] = {}
        for left in reversed(range(self.count.at(sizes))):
            written = spare if left % 2 else new
            if (read, written) not in by_places:
                by_places[read, written] = [step.with_places({old: read, new: written}) for step in steps]
            unrolled += by_places[read, written]
            read = written
        return unrolled


@dataclass(eq=False)
class KernelStep:
    """A kernel, its bindings, and the operations that it computes.

    `copies` is (input, output) if the kernel only copies an input that later kernels update. The kernel is skipped if both
    share memory. `program` is the formula of a kernel that computes an expression without sizes. `numbers` are the values of
    the kernel's `sizes` and `divisors`. `titles` has other titles for the nodes that the kernel's title names: equal layers
    share kernels. Adjacent steps of a `repetition` are repeated together. `remark` is that of the `Stages`.
    """

    kernel: GpuKernel
    places: tuple[Buffer, ...]
    nodes: tuple[Node, ...]
    copies: tuple[Buffer, Buffer] | None = None
    program: Formula | None = None
    numbers: tuple[int, ...] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    repetition: Repetition | None = None
    remark: str = ""

    @property
    def title(self) -> str:
        """The title of the kernel, with the names of this step's nodes."""
        if not self.titles:
            return self.kernel.title
        names = "|".join(map(re.escape, sorted(self.titles, key=len, reverse=True)))
        return re.sub(names, lambda match: self.titles[match[0]], self.kernel.title)

    def at(self, sizes: Mapping[str, int], places: dict[Buffer, Buffer]) -> KernelStep:
        """The step with numbers in place of sizes; `places` maps places to those with numbers, and gets new entries."""
        for place in self.places:
            if place not in places:
                places[place] = place.at(sizes)
        kernel = self.kernel
        if any(isinstance(count, Size) for count in kernel.workgroups):
            kernel = replace(kernel, workgroups=values_at(kernel.workgroups, sizes))
        copies = self.copies and (places[self.copies[0]], places[self.copies[1]])
        bound = tuple([places[place] for place in self.places])
        numbers = values_at(kernel.sizes, sizes)
        numbers += tuple(value for k in kernel.divisors for value in divisor_values(max(1, numbers[k])))
        # `dataclasses.replace` takes three times as long.
        return KernelStep(
            kernel, bound, self.nodes, copies, self.program, numbers, self.titles, self.repetition, self.remark
        )

    def with_places(self, places: Mapping[Buffer, Buffer]) -> KernelStep:
        """The step with other places."""
        return replace(self, places=tuple(places.get(place, place) for place in self.places))


class Kernels:
    """The kernels of a graph as `steps` in execution order, with the place of each array in expressions.

    Attributes:
        begun: results of `GpuBackend.begin`.
        cached: for a place, the results of kernels that read nothing else, while its elements do not change.
        computed: for the place of a computed constant, the places of the constants that it was computed from.
    """

    def __init__(self, backend: GpuBackend, features: Features) -> None:
        self.backend, self.features = backend, features
        self.steps: list[KernelStep] = []
        self.begun: list[Any] = []
        self._begun_keys: set[Hashable] = set()
        self.places: dict[Input | Stored | Output, Buffer] = {}
        self.cached: dict[Buffer, dict[Hashable, list[Buffer]]] = {}
        self.computed: dict[Buffer, tuple[Buffer, ...]] = {}

    def array_in(self, desc: Desc, place: Buffer) -> Input:
        source = Input(len(self.places), desc)
        self.places[source] = place
        return source

    def alias(self, array: Input, other: Input) -> None:
        """Let `array` be in the same place as `other`."""
        self.places[array] = self.places[other]

    def fill(self, place: Buffer, value: Pending, title: str) -> None:
        """Add the kernels that compute a pending value into a place."""
        inputs = tuple(sorted(value.sources, key=lambda source: source.number))
        program = simplify(make_formula(title, inputs, (value.result,)))
        self.places[program.outputs[0]] = place
        if value.anchor is None:
            kernels = gpu.kernels(program, self.features)
        else:
            plain = isinstance(program.outputs[0].body, ir.Load)
            self.places[value.anchor.result] = place  # the target without an epilogue
            kernels = value.anchor.kernels(None if plain else program, title)
        self.append(kernels, value.nodes)
        if value.anchor is None and len(kernels) == 1 and not program.has_sizes:
            self.steps[-1].program = program

    def table_of(self, value: Pending) -> Buffer | None:
        """A place for a value of few elements that depends on sizes and constants alone; None for any other value."""
        if value.anchor is not None or value.reduces or estimate(prod(value.result.shape)) > MAX_TABLE_ELEMENTS:
            return None
        inputs = tuple(value.sources)
        places = tuple(self.places[source] for source in inputs)
        program = make_formula("a table of sizes", inputs, (value.result,))
        if program.stored:
            return None
        depends_on_sizes = program.has_sizes or any(place.kind == "sizes" for place in places)
        if not depends_on_sizes or not all(place.kind in ("constant", "sizes") for place in places):
            return None
        return Buffer(program.outputs[0].desc, "sizes", values=SizeTable(program, places))

    def append(self, kernels: Sequence[GpuKernel], nodes: tuple[Node, ...], *, is_users: bool = False) -> None:
        """Add kernels; arrays without a place become intermediates.

        A kernel that reads a single array is not repeated while the array is unchanged: several products may read the same
        reordered operand. Users' kernels are always added: their text may not show all arguments.
        """
        background.give_way()
        fresh = [kernel for kernel in kernels if kernel.key not in self._begun_keys]
        self._begun_keys.update(kernel.key for kernel in fresh)
        self.begun += self.backend.begin(fresh)
        for kernel in kernels:
            pairs = list(zip(kernel.bindings, kernel.writes, strict=True))
            reads = [self.places[key] for key, writes in pairs if not writes]
            targets = [key for key, writes in pairs if writes]
            is_cached, work = False, (kernel.key, kernel.workgroups, kernel.sizes)
            if not is_users and len(reads) == 1 and self.places.keys().isdisjoint(targets):
                cached = self.cached.setdefault(reads[0], {})
                is_cached = work in cached
                results = cached.setdefault(work, [Buffer(key.desc, "between") for key in targets])
                self.places.update(zip(targets, results, strict=True))
            if not is_cached:
                for key in targets:
                    self.cached.pop(self.places.setdefault(key, Buffer(key.desc, "between")), None)
                self.steps.append(KernelStep(kernel, tuple(self.places[key] for key in kernel.bindings), nodes))

    def contraction(self, products: Products, desc: Desc) -> Contraction:
        sides = (products.problem.left, products.problem.right)
        places = {source: self.places[source] for side in sides for source in side.buffers}
        constants = {source: place.array for source, place in places.items() if place.kind == "constant"}
        return Contraction(products.problem, Input(len(self.places), desc), constants, self.features, self.backend.tile)

    def multiply(self, products: Products, desc: Desc, nodes: tuple[Node, ...]) -> Pending:
        """Products as a pending value. Rearranged operands become constants of the graph."""
        contraction = self.contraction(products, desc)
        shared = keys_of_shared()
        for source, constant in contraction.arranged.items():
            if shared is not None:
                shared.add(constant.key)
            # A dimension may be named after the other operand, which has as many terms. A constant has a number of them.
            desc = replace(source.desc, shape=tuple(map(int, source.desc.shape)))
            self.places[source] = Buffer(desc, "constant", value=constant)
        return Pending(products.finish(of_input(contraction.result)), nodes, contraction)

    def add_stages(
        self, stages: Sequence[ResultStage], targets: Mapping[Input, Buffer], nodes: tuple[Node, ...], title: str
    ) -> None:
        """Add the kernels of stages. Arrays that are not in `targets` become intermediates.

        Elements of constants are computed when the graph is built, unless another stage writes to the same array.
        """
        places = dict(targets)
        writes = Counter(target for stage in stages for target in stage.targets)
        for stage in stages:
            for target in stage.targets:
                self.places[target] = places.setdefault(target, Buffer(target.desc, "between"))
            self._add_stage(stage, nodes, title, may_fold=writes[stage.target] == 1)

    def _add_stage(self, stage: ResultStage, nodes: tuple[Node, ...], title: str, *, may_fold: bool = False) -> None:
        content, place = stage.content, self.places[stage.target]
        stage_title = f"{title}: {stage.title}" if stage.title else title
        if isinstance(content, Input):
            self.places[stage.target] = _view_as(self.places[content], stage.target.desc)
        elif isinstance(content, KernelProgram):
            kernel = content.kernel(stage_title, self.features, lambda source: self.places[source].is_fixed)
            self.append([kernel], nodes)
        elif isinstance(content, Repeated):
            self._repeat(content, nodes, title)
        elif isinstance(content, Scatter):
            self.copy_and_scatter(place, content, nodes, stage_title)
        elif isinstance(content, Products):
            self.fill(place, self.multiply(content, stage.target.desc, nodes), stage_title)
        else:
            value = Pending(content, nodes)
            if may_fold and place.kind == "between" and self._is_known(value):
                self.places[stage.target] = self._compute(value)
                return
            self.fill(place, value, stage_title)
            if place.kind == "output" and (copied := self._copy_source(value)):
                self.steps[-1].copies = copied, place

    def _repeat(self, repeated: Repeated, nodes: tuple[Node, ...], title: str) -> None:
        """Repeat the kernels of stages, with two places swapped after each repetition."""
        start = len(self.steps)
        self.cached.clear()  # each repetition changes the contents of places
        for stage in repeated.stages:
            self._add_stage(stage, nodes, title)
        self.cached.clear()
        odd = self.steps[start:]
        one, other = (self.places[array] for array in repeated.swapped)
        if isinstance(repeated.count, Size):
            repetition = Repetition(repeated.count, one, other)
            self.steps[start:] = [replace(step, repetition=repetition) for step in odd]
            return
        even = [step.with_places({one: other, other: one}) for step in odd]
        for number in range(1, repeated.count):
            self.steps += even if number % 2 else odd

    def copy_and_scatter(
        self, place: Buffer, scatter: Scatter, nodes: tuple[Node, ...], title: str, in_place: bool = False
    ) -> None:
        """Copy the operand of a scatter into a place, then write the updates.

        With `in_place`, callers may pass the same memory for an input and this output, which leaves out the copy.
        """
        operand = Pending(scatter.into, nodes)
        self.fill(place, operand, f"{title}: the operand")
        if in_place and place.kind == "output" and (copied := self._copy_source(operand)):
            self.steps[-1].copies = copied, place
        self.scatter(place, scatter, nodes, f"{title}: the updates")

    def scatter(self, place: Buffer, scatter: Scatter, nodes: tuple[Node, ...], title: str) -> None:
        """Write the updates of a scatter into a place."""
        axes = tuple(ir.Index(size, k - len(scatter.shape)) for k, size in enumerate(scatter.shape))
        position = [Traced((), axis) for axis in axes]
        where = tuple(as_array(index, "index").body for index in scatter.at(*position))
        where = tuple(index if index.type == "index" else ir.Cast(index, "index") for index in where)
        kernel, target = gpu.scatter(place.desc, axes, where, scatter.value(*position).body, self.features, title)
        self.places[target] = place
        self.append([kernel], nodes)

    def _copy_source(self, value: Pending) -> Buffer | None:
        """The input that a value copies; None for any other value."""
        load = value.result.body
        if not isinstance(load, ir.Load) or not isinstance(load.source, Input):
            return None
        place, same = self.places[load.source], is_same_shape(load.source.desc.shape, value.result.shape)
        return place if place.kind == "input" and same and ir.is_aligned(load) else None

    def _is_known(self, value: Pending) -> bool:
        """Whether a value depends on constants only, and has the same size in all runs."""
        is_constant = all(self.places[source].kind == "constant" for source in value.sources)
        return is_constant and is_static(value.result.shape)

    def _compute(self, value: Pending) -> Buffer:
        """Compute a value that depends on constants only."""
        inputs = tuple(value.sources)
        program = simplify(make_formula("a constant", inputs, (value.result,)))
        desc = program.outputs[0].desc
        array = np.empty(desc.shape, desc.data_type)
        # A reshaped array is in the place of the other shape.
        evaluate(program, [_view_as(self.places[source], source.desc).array for source in inputs], [array])
        place = Buffer(desc, "constant", value=GpuConstant.of(array))
        self.computed[place] = tuple(self.places[source] for source in inputs)
        return place


def _view_as(place: Buffer, desc: Desc) -> Buffer:
    """Reinterpret the bytes of a place as another array."""
    if place.kind != "constant":
        return place
    return Buffer(desc, "constant", value=GpuConstant.of(_elements_as(place.array, desc)))


def _elements_as(array: np.ndarray, desc: Desc) -> np.ndarray:
    """Reinterpret the bytes of an array with another data type and shape."""
    return np.ascontiguousarray(array).reshape(-1).view(desc.data_type).reshape(desc.shape)
