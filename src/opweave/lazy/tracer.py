"""Trace functions: call them with operands in place of arrays, and record the operations as a graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .. import memory
from ..context.builder import MLGraphBuilder
from ..context.context import MLContext
from ..context.graph import MLGraph, program_of, state_of
from ..context.tensor import Locks, MLTensor, guard_of
from ..context.tensors import own_memory
from ..core import dtypes
from ..core.dtypes import DataType
from ..core.graph import Desc, MLOperand, Operand, check_desc
from ..core.questions import READ, SIGNS
from ..core.sizes import Symbol
from ..memory.arrays import as_array, contiguous, describe
from ..memory.spaces import Memory
from ..support import hints
from ..support.errors import NoValueError, ValidationError, caller_line
from ..support.names import short_repr
from . import from_memory
from .array import Array, ArrayLike, allocate, code_of, force, host_values, values_of

if TYPE_CHECKING:
    from ..run.program import Program

# ---------------------------------------------------------------------------------------------------------------------
# Structures of arrays


def is_named_tuple(value: Any) -> bool:
    """Whether a value is a named tuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_array(value: Any) -> bool:
    """Whether a value of an unusual type is an array."""
    if isinstance(value, np.generic):
        return value.dtype.name in dtypes.ANY
    return not isinstance(value, type) and (isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"))


def map_leaves(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Copy nested tuples, lists and dictionaries, with `leaf(value)` in place of each other value."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([map_leaves(item, leaf) for item in value])
    if kind is dict or kind is OrderedDict:
        return kind((name, map_leaves(item, leaf)) for name, item in value.items())
    if is_named_tuple(value):
        return kind(*[map_leaves(item, leaf) for item in value])
    return leaf(value)


# ---------------------------------------------------------------------------------------------------------------------
# Tracing


_STATIC = "compute with operations, return the array, or make what it depends on a static argument"
_QUESTIONS = {
    "__dlpack__": "DLPack",
    "__dlpack_device__": "DLPack",
    "item": "item()",
    "tolist": "tolist()",
    "numpy": "numpy()",
}
"""Methods of arrays that give their values -> the question."""


class Traced(ArrayLike, MLOperand):
    """An operand that stands for an array while a function is traced."""

    __slots__ = ()
    __hash__ = object.__hash__
    _place = "ow.ops."

    @property
    def context(self) -> MLContext:
        """Context that will compute the array."""
        assert isinstance(self._builder, JitTracer)
        return self._builder.context

    def __iter__(self) -> Iterator[Any]:
        if self.rank == 0:
            self._refuse("iteration", READ)
        return super().__iter__()

    def _refuse(self, question: str, advice: str) -> NoReturn:
        tracer = self._builder
        assert isinstance(tracer, JitTracer)
        raise NoValueError(
            f"{tracer.title}: {question} asks for the values of {self._desc}, which are not known while the function is traced"
            f"{caller_line()}; {advice.format(self._place) if advice != READ else _STATIC}"
        )

    def _compares_identity(self, other: Any) -> bool:
        tracer = self._builder
        return isinstance(tracer, JitTracer) and not tracer.is_open

    def _refuse_function(self, library: str, function: Any, method: str = "__call__") -> NoReturn:
        sign = SIGNS.get(hints.WEBNN_NAMES.get(function.__name__, function.__name__))
        advice = hints.of_function(function, method, dir(self._builder), "{{}}{name}({all}) does that")
        self._refuse(f"'{sign}'" if sign else f"{library}.{function.__name__}", advice)


def _question(name: str, question: str) -> Callable[..., NoReturn]:
    def refuse(self: Traced, *_: Any, **__: Any) -> NoReturn:
        self._refuse(question, READ)

    refuse.__name__ = name
    return refuse


for _name, _text in _QUESTIONS.items():
    setattr(Traced, _name, _question(_name, _text))


@dataclass(frozen=True, slots=True)
class _ArgumentMarker:
    number: int


@dataclass(frozen=True, slots=True)
class _OutputMarker:
    number: int


class JitTracer(MLGraphBuilder):
    """Builder for the graph of a traced function."""

    _operand_type = Traced

    def __init__(self, context: MLContext, title: str, shapes: Sequence[tuple[Any, ...]] | None = None) -> None:
        """`shapes` of the arguments have names for sizes that change; default: the shapes of the arrays."""
        super().__init__(context)
        self._takes_drafts = True
        self.title, self.is_open, self._shapes = title, True, shapes
        self.takes_empty = True
        self.arguments: dict[Operand, int] = {}
        self.captured: dict[int, tuple[Any, Operand]] = {}
        self.tensors: dict[str, MLTensor] = {}
        self._outputs: dict[str, Operand] = {}
        self._markers: dict[Operand, _OutputMarker] = {}

    def _as_operand(self, value: Any, data_type: DataType) -> Operand:
        if isinstance(value, (int, float, Symbol, Sequence)):
            return super()._as_operand(value, data_type)
        captured = self.captured.get(id(value))
        if captured is not None:
            return captured[1]
        if isinstance(value, (Array, MLTensor)) and value.context is not self.context:
            raise ValidationError(f"an array of {value.context!r} in a function that runs in {self.context!r}")
        operand: Operand
        # Kept alive, because `id` is the key of `captured`.
        keep: Any = value
        if isinstance(value, MLTensor) and not value.constant:
            name = f"tensor{len(self.tensors)}"
            operand = self.input(name, value.data_type, value.shape)
            self.tensors[name] = value
        elif isinstance(value, MLTensor):
            operand = self.constant(value)
        else:
            if (source := from_memory.source_of(value)) is None:
                desc, constant = value.desc, host_values(value)
                value.is_captured = True
            else:
                desc = check_desc(describe(source, "an array"), self._max_byte_length, "an array", self.takes_empty)
                keep = from_memory.Captured(source)
                constant = keep.array
            operand = Traced(self, desc, value=constant)
        self.captured[id(value)] = (value, keep), operand
        return operand

    def stand_in(self, value: Any) -> Any:
        """Copy an argument, with operands in place of arrays."""

        def leaf(item: Any) -> Any:
            if not isinstance(item, (Array, MLTensor)) and not is_array(item):
                return item
            desc = item.desc if isinstance(item, (Array, MLTensor)) else describe(as_array(item, "it"), "it")
            shape = desc.shape if self._shapes is None else self._shapes[len(self.arguments)]
            operand = self.input(f"x{len(self.arguments)}", desc.data_type, shape)
            self.arguments[operand] = len(self.arguments)
            return operand

        return map_leaves(value, leaf)

    def finish(self, result: Any) -> TracedFunction:
        """Compile the graph of the function's result."""
        tree = map_leaves(result, self._mark)
        graph = self.build(self._outputs) if self._outputs else None
        self._built = True
        return TracedFunction(self, tree, graph)

    def _mark(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            value = self._as_operand(value, "float32")
        if isinstance(value, Operand):
            if value.builder is not self:
                raise ValidationError(f"{self.title}: a result is an operand of another graph: {short_repr(value)}")
            if value in self.arguments:
                return _ArgumentMarker(self.arguments[value])
            if value.is_input:
                return self.tensors[value.name]
            if value.is_constant:
                return _copy(self.context, value.value, value.desc)
            if value not in self._markers:
                self._markers[value] = _OutputMarker(len(self._outputs))
                self._outputs[f"y{len(self._outputs)}"] = value
            return self._markers[value]
        if not isinstance(value, (Array, MLTensor)):
            try:
                hash(value)
            except TypeError:
                raise ValidationError(
                    f"{self.title}: results are arrays, tuples, lists and dictionaries of them, and what is hashable, "
                    f"got a {type(value).__name__}"
                ) from None
        elif isinstance(value, Array):
            values_of(value)
        return value


# ---------------------------------------------------------------------------------------------------------------------
# Running


class TracedFunction:
    """A traced function, with the returned structure (`tree`), which has markers for values that depend on arguments.

    `sources` has the number of an argument or a tensor for each input of the graph; `captured` owns the memory of constants.
    """

    def __init__(self, tracer: JitTracer, tree: Any, graph: MLGraph | None) -> None:
        self.context, self.tree, self.graph, self.captured = tracer.context, tree, graph, tracer.captured
        source_by_name: dict[str, int | MLTensor] = {
            operand.name: number for operand, number in tracer.arguments.items()
        }
        source_by_name |= tracer.tensors
        self.sources = [source_by_name[name] for name in graph.inputs] if graph is not None else []
        self.takes_all = self.sources == list(range(len(tracer.arguments)))
        space = self.context.backend.space
        self.allocate = memory.empty if space.is_host else space.allocate
        self.program: Program | None = None
        self.outputs: list[tuple[Desc, int]] = []
        if graph is not None and not tracer.has_names:
            self.use(program_of(graph), graph.outputs)

    def use(self, program: Program, outputs: Mapping[str, Desc]) -> None:
        """Run a program, which has these outputs."""
        self.program, self.outputs = program, [(desc, code_of(desc)) for desc in outputs.values()]

    def at(self, leaves: Sequence[Any]) -> TracedFunction:
        """The function for arguments of certain shapes, if it was traced with names; it shares what was compiled."""
        function = copy(self)
        if self.graph is not None:
            arrays = [leaves[source] if type(source) is int else source for source in self.sources]
            version = state_of(self.graph).version("compute", dict(zip(self.graph.inputs, arrays, strict=True)))
            function.use(version.check_alive(), version.outputs)
        return function

    def __call__(self, leaves: list[Any]) -> Any:
        """Run the graph, and return the results; `leaves` are the arrays among the arguments."""
        results: list[Array] = []
        if self.program is not None:
            inputs = leaves if self.takes_all else [leaves[s] if type(s) is int else s for s in self.sources]
            pending = [leaf for leaf in inputs if isinstance(leaf, Array) and leaf.memory is None]
            if pending:
                # Before the locks below: `force` takes locks of tensors, too.
                force(pending)
            if any(isinstance(leaf, MLTensor) for leaf in inputs):
                with Locks(list({id(leaf): leaf for leaf in inputs if isinstance(leaf, MLTensor)}.values())):
                    results = self._compute(inputs)
            else:
                results = self._compute(inputs)
        if type(self.tree) is _OutputMarker:
            return results[self.tree.number]
        return map_leaves(self.tree, lambda value: self._result(value, results, leaves))

    def _result(self, value: Any, results: Sequence[Array], leaves: Sequence[Any]) -> Any:
        if type(value) is _OutputMarker:
            return results[value.number]
        leaf = leaves[value.number] if type(value) is _ArgumentMarker else value
        if isinstance(leaf, MLTensor):
            with guard_of(leaf).lock:
                return _copy(self.context, own_memory(self.context, leaf, "a result"), leaf.desc)
        return _copy(self.context, leaf, describe(leaf, "a result")) if isinstance(leaf, np.ndarray) else leaf

    def _compute(self, inputs: list[Any]) -> list[Array]:
        sources = [
            contiguous(leaf)
            if type(leaf) is np.ndarray
            else values_of(leaf)
            if isinstance(leaf, Array)
            else own_memory(self.context, leaf, "an argument")
            for leaf in inputs
        ]
        targets = [self.allocate(desc) for desc, _ in self.outputs]
        assert self.program is not None
        self.program.run(sources, targets)
        return [
            Array(self.context, desc, code, array=target)
            for (desc, code), target in zip(self.outputs, targets, strict=True)
        ]


def _copy(context: MLContext, values: Memory, desc: Desc) -> Array:
    own, reason = allocate(context, desc), "a result that is not computed"
    if isinstance(values, np.ndarray):
        context.backend.space.write(own, contiguous(values), reason)
    else:
        context.backend.space.copy(own, values, reason)
    return Array(context, desc, code_of(desc), array=own)
