"""Step plans: the scheduled steps of a graph, saved with the graph, so that loading neither traces nor schedules.

The key of a plan has the graph, the sources of Opweave, the features of the device, and the measured tiles. It does not have
the elements of weights above `digests.SMALL_BYTES`. A plan therefore says how each of its constants is computed from the
graph's, and which questions scheduling asked about elements of constants: it is used only if the answers are the same. In all
other cases the graph is scheduled.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.dtypes import numpy_type
from ...core.graph import Desc, Graph, Node
from ...expr.gpu import GpuKernel
from ...expr.gpu.triton import Bfloat16
from ...expr.ir import Input
from ...memory.shared_constants import keys_of_shared
from ...support import disk_cache
from .backend import GpuBackend
from .constants import ConstantQuestion, GpuConstant, asked_of
from .contraction.layout import in_parts
from .plan_keys import KIND, NoPlanError, constants_of, key_of, try_decode
from .steps import Buffer, KernelStep

MAX_LITERAL_BYTES = 2**16
"""Maximum bytes of a constant that is written into the plan, since it is in no constant of the graph. An estimate."""


@dataclass(frozen=True, eq=False)
class StepPlan:
    """The steps of a graph, with `unrounded` and `begun` as in `Schedule`.

    `questions` are those that scheduling asked about constants. `may_be_saved` is False if the steps depend on more than the
    answers and the key.
    """

    steps: list[KernelStep]
    unrounded: set[Node]
    questions: Sequence[ConstantQuestion]
    may_be_saved: bool = True
    begun: list[Any] = field(default_factory=list)


def step_plan(graph: Graph, backend: GpuBackend) -> StepPlan:
    """The plan of a graph: the saved one if it fits, else a new one."""
    if disk_cache.has_layers(KIND) and (key := key_of(graph, backend)):
        data = disk_cache.load(key, KIND)
        if data is not None and (loaded := _load(data, graph)) is not None:
            return loaded
    # A saved plan needs none of these imports.
    from .schedule import Schedule

    with asked_of() as questions:
        schedule = Schedule(graph, backend, backend.features)
    may_be_saved = keys_of_shared() is None and not schedule.computes_large
    return StepPlan(schedule.steps, schedule.unrounded, questions, may_be_saved, schedule.begun)


# Writing -------------------------------------------------------------------------------------------------------------


def plan_part(graph: Graph, backend: GpuBackend, plan: StepPlan) -> dict[tuple[str, str], bytes]:
    """The part that `step_plan` reads; empty if the plan cannot be saved."""
    key = key_of(graph, backend) if plan.may_be_saved else ""
    if not key:
        return {}
    try:
        content = _PlanWriter(graph).encode(plan)
    except NoPlanError:
        return {}
    return {(key, KIND): zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 1)}


class _NumberedEntries:
    """Entries of a JSON list, without duplicates: `of` returns the index of the entry for a key, and adds it if it is new."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def of(self, key: Any, describe: Callable[[], Any]) -> int:
        number = self._numbers.get(key)
        if number is None:
            entry = describe()
            number = self._numbers[key] = len(self.entries)
            self.entries.append(entry)
        return number


class _PlanWriter:
    """Encode the plan of a graph as values of JSON."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = {node: number for number, node in enumerate(graph.nodes)}
        self._sources = [operand.value for operand in constants_of(graph)]
        self._buffers, self._constants, self._kernels, self._steps = (_NumberedEntries() for _ in range(4))

    def encode(self, plan: StepPlan) -> dict[str, Any]:
        order = [self._steps.of(id(step), lambda step=step: self._step(step)) for step in plan.steps]  # type: ignore[misc]
        questions = [
            [self._constant(asked.constant), _name_of(asked.predicate), _encode(asked.arguments), asked.answer]
            for asked in plan.questions
        ]
        return {
            "constants": self._constants.entries,
            "buffers": self._buffers.entries,
            "kernels": self._kernels.entries,
            "steps": self._steps.entries,
            "order": order,
            "unrounded": [self._node(node) for node in plan.unrounded],
            "questions": list({json.dumps(question): question for question in questions}.values()),
        }

    def _node(self, node: Node) -> int:
        if node not in self._nodes:
            raise NoPlanError(f"{node.title} is no node of the graph")
        return self._nodes[node]

    def _step(self, step: KernelStep) -> list[Any]:
        if step.repetition is not None or step.numbers:
            raise NoPlanError("a step depends on sizes")
        kernel = step.kernel
        return [
            self._kernels.of(id(kernel), lambda: self._kernel(kernel)),
            [*map(self._buffer, step.places)],
            [*map(self._node, step.nodes)],
            None if step.copies is None else [*map(self._buffer, step.copies)],
            dict(step.titles),
            step.remark,
        ]

    def _kernel(self, kernel: GpuKernel) -> list[Any]:
        if kernel.explain is not None or kernel.compiled is not None or kernel.arguments or kernel.sizes:
            raise NoPlanError(f"{kernel.title} is not generated, or depends on sizes")
        bindings = [_encode_desc(binding.desc) for binding in kernel.bindings]
        described = kernel.title, kernel.source, bindings, kernel.writes, kernel.workgroups, kernel.entry_point
        return [*described, kernel.invocations, kernel.compiler, kernel.options, kernel.starts_early]

    def _buffer(self, buffer: Buffer) -> int:
        return self._buffers.of(id(buffer), lambda: self._describe(buffer))

    def _describe(self, buffer: Buffer) -> list[Any]:
        if buffer.values is not None:
            raise NoPlanError("a place depends on sizes")
        constant = None if buffer.value is None else self._constant(buffer.value)
        return [_encode_desc(buffer.desc), buffer.kind, buffer.number, constant]

    def _constant(self, constant: GpuConstant) -> int:
        source, key = constant.source, (id(constant.source), constant.how)
        return self._constants.of(key, lambda: [self._source(source), [*map(_encode, constant.how)]])

    def _source(self, array: np.ndarray) -> list[Any]:
        """Encode an array: as the number of a graph's constant and an offset in its memory, or by its elements."""
        start = array.ctypes.data
        for number, whole in enumerate(self._sources):
            offset = start - whole.ctypes.data
            if whole.flags.c_contiguous and offset >= 0 and offset + array.nbytes <= whole.nbytes and array.nbytes:
                return [array.dtype.name, list(array.shape), number, offset]
        if array.nbytes > MAX_LITERAL_BYTES:
            raise NoPlanError(f"a constant of {array.nbytes} bytes is not in the graph")
        return [array.dtype.name, list(array.shape), None, array.tobytes().hex()]


def _encode_desc(desc: Desc) -> list[Any]:
    if type(desc) not in (Desc, Bfloat16):
        raise NoPlanError(f"{desc} is no array of numbers")
    return [desc.data_type, list(desc.shape), isinstance(desc, Bfloat16)]


def _encode(value: Any) -> Any:
    """Encode a function or an argument of `GpuConstant.then`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return [*map(_encode, value)]
    if isinstance(value, type) and issubclass(value, np.generic):
        return {"type": value.__name__}
    return {"function": _name_of(value)}


def _name_of(function: Callable[..., Any]) -> str:
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', function)}"
    if _function(name) is not function:
        raise NoPlanError(f"{name} is the name of another function")
    return name


def _function(name: str) -> Callable[..., Any]:
    """A function of the back ends for GPUs, by the name of its module and its own name."""
    home, _, own = name.partition(":")
    function = getattr(sys.modules.get(home), own, None) if home.startswith(__package__) else None
    if not callable(function):
        raise NoPlanError(f"there is no function {name}")
    return function


# Reading -------------------------------------------------------------------------------------------------------------


def _load(data: bytes, graph: Graph) -> StepPlan | None:
    """Read a plan; None if it is damaged, or the constants of the graph give other answers."""
    return try_decode(lambda: _PlanReader(graph).decode(json.loads(zlib.decompress(data))))


class _PlanReader:
    """Decode the plan of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._sources = [operand.value for operand in constants_of(graph)]
        self._arrays: dict[str, np.ndarray] = {}
        self._made: dict[Hashable, GpuConstant] = {}

    def decode(self, content: Mapping[str, Any]) -> StepPlan:
        constants = [self._constant(*entry) for entry in content["constants"]]
        questions = []
        for number, name, arguments, answer in content["questions"]:
            question = ConstantQuestion(constants[number], _function(name), _decode(arguments), answer)
            if question.constant.holds(question.predicate, *question.arguments) != answer:
                raise NoPlanError("constants of the graph have changed")
            questions.append(question)
        buffers = [
            Buffer(_decode_desc(desc), kind, number, None if constant is None else constants[constant])
            for desc, kind, number, constant in content["buffers"]
        ]
        kernels = [_decode_kernel(*entry) for entry in content["kernels"]]
        steps = []
        for kernel, places, nodes, copies, titles, remark in content["steps"]:
            source, target = copies or (0, 0)
            steps.append(
                KernelStep(
                    kernels[kernel],
                    tuple([buffers[place] for place in places]),
                    self._nodes_of(nodes),
                    (buffers[source], buffers[target]) if copies else None,
                    titles=titles,
                    remark=remark,
                )
            )
        order = [steps[number] for number in content["order"]]
        return StepPlan(order, set(self._nodes_of(content["unrounded"])), questions)

    def _nodes_of(self, numbers: Iterable[int]) -> tuple[Node, ...]:
        return tuple([self._nodes[number] for number in numbers])

    def _constant(self, source: list[Any], how: list[Any]) -> GpuConstant:
        """Apply the functions of `how`, each before its arguments, to a source. One call of `in_parts` makes both parts."""
        key = json.dumps(source)
        array = self._arrays.get(key)
        if array is None:
            array = self._arrays[key] = self._array(*source)
        constant = GpuConstant.of(array)
        for function, arguments in zip(map(_decode, how[::2]), map(_decode, how[1::2]), strict=True):
            if function is in_parts:
                kept, name = arguments
                constant = self._part(key, constant, kept, name)
            else:
                constant = constant.then(function, *arguments)
        return constant

    def _part(
        self, source: str, whole: GpuConstant, kept: Callable[[np.ndarray], np.ndarray], name: str
    ) -> GpuConstant:
        key = source, whole.how, kept
        if (*key, name) not in self._made:
            for part in in_parts(whole, kept):
                self._made[(*key, part.how[-1][1])] = part  # type: ignore[index]
        return self._made[(*key, name)]

    def _array(self, data_type: str, shape: list[int], number: int | None, place: Any) -> np.ndarray:
        dtype = numpy_type(data_type)
        if number is None:
            return np.frombuffer(bytes.fromhex(place), dtype).reshape(shape)
        whole = self._sources[number]
        if whole.dtype == dtype and list(whole.shape) == shape:
            return whole
        if not whole.flags.c_contiguous:
            raise NoPlanError("a constant of the graph is not contiguous")
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        array: np.ndarray = whole.reshape(-1).view(np.uint8)[place : place + size].view(dtype).reshape(shape)
        return array


def _decode_desc(entry: list[Any]) -> Desc:
    data_type, shape, is_bfloat16 = entry
    return Bfloat16(shape=tuple(shape)) if is_bfloat16 else Desc(data_type, tuple(shape))


def _decode_kernel(
    title: str,
    source: str,
    bindings: list[Any],
    writes: list[bool],
    workgroups: list[int],
    entry_point: str,
    invocations: list[int],
    compiler: str,
    options: list[tuple[str, int]],
    starts_early: bool,
) -> GpuKernel:
    x, y, z = workgroups
    return GpuKernel(
        title,
        source,
        tuple([Input(number, _decode_desc(desc)) for number, desc in enumerate(bindings)]),
        tuple(writes),
        (x, y, z),
        entry_point,
        invocations=tuple(invocations),
        compiler=compiler,
        options=tuple([(name, value) for name, value in options]),
        starts_early=starts_early,
    )


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_decode, value))
    if isinstance(value, dict):
        return getattr(np, value["type"]) if "type" in value else _function(value["function"])
    return value
