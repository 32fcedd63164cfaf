"""Dispatches that are noted, and run when somebody looks: the contexts of `create_context(deferred=True)`.

A tensor of such a context has a value, which may still have to be computed. A dispatch takes the values that its inputs have
now, and gives its outputs new ones: nobody changes a value, so the order of dispatches and writes is kept whatever runs
when, and a value that no tensor has any more, and nothing else needs, is never computed. What is read runs as the calls of
operations do (`opweave.runtime.deferred`): graph by graph at first, and as one compiled graph when it comes again.

Memory that somebody can look at or write to without asking us cannot be treated like that: dispatches that touch it run at
once. Such is memory of the user's (`tensor_from`), that of a WebAssembly module, and what somebody has a view of.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from mmap import mmap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import finalize, ref

import numpy as np

from .. import memory
from ..errors import require
from ..graph import Graph, Operand
from ..ops import Operations
from ..run.graph import MLGraph
from ..run.locks import Locks
from ..tensor import MLTensor
from . import deferred, lazy
from .lazy import Array, Pending, Template

if TYPE_CHECKING:
    from ..context import MLContext
    from ..run.program import Program

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_serials = count()
_DISPATCH: Any = SimpleNamespace(name="dispatch")
"""What stands for the operation where a whole graph is called."""


# ---------------------------------------------------------------------------------------------------------------------
# Values


class Value(Array):
    """What a tensor holds after a dispatch or a write; it stays the same when the tensor gets another one."""

    __slots__ = ("_readers", "_spare")

    def __init__(
        self, context: MLContext, desc: Any, code: int, *, node: Pending | None = None, array: np.ndarray | None = None
    ) -> None:
        super().__init__(context, desc, code, node=node, array=array)
        self._readers: list[ref[Array]] = []
        self._spare: np.ndarray | None = None

    def _room(self) -> np.ndarray:
        spare, self._spare = self._spare, None
        return memory.empty(self._desc) if spare is None else spare

    def watch(self, outputs: Sequence[ref[Array]]) -> None:
        """Remember the results of a dispatch that reads this."""
        if len(self._readers) % 64 == 63:
            self._readers = [reader for reader in self._readers if lazy.is_pending(reader)]
        self._readers += outputs

    @property
    def pending_readers(self) -> list[Array]:
        """The results that are pending and need this."""
        return [array for reader in self._readers if (array := reader()) is not None and array.pending]


class _Window:
    """Gives NumPy an array that does not own its memory: all views of it keep it, and so we learn when none is left."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.__array_interface__ = array, array.__array_interface__


class DeferredTensor(MLTensor):
    """A tensor whose contents may still have to be computed.

    `pinned` memory belongs to somebody else: it stays where it is.
    """

    def __init__(self, context: MLContext, desc: Any, array: np.ndarray, *, pinned: bool, **flags: bool) -> None:
        self._pinned, self._code = pinned, lazy.code_of(desc)
        self._is_fixed = pinned and _is_immutable(array)
        self._window: ref[np.ndarray] | None = None
        self._value: Value | None = None
        self._memory: np.ndarray | None = array
        super().__init__(context, desc, array, **flags)

    @property
    def _array(self) -> np.ndarray | None:
        """The memory; what is pending is computed first."""
        value = self._value
        if value is not None:
            self._memory = value._values()
        return self._memory

    @_array.setter
    def _array(self, array: np.ndarray | None) -> None:
        self._value, self._memory = None, array

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` has been called, here or by the loss of the context."""
        return self._value is None and self._memory is None

    @property
    def _is_seen(self) -> bool:
        """Whether somebody can look at the memory without asking."""
        return self._pinned or (self._window is not None and self._window() is not None)

    @property
    def _is_shared(self) -> bool:
        """Whether somebody can write to the memory without asking."""
        return (self._pinned and not self._is_fixed) or (self._writable and self._is_seen and not self._pinned)

    def numpy(self) -> np.ndarray:
        """A view of the contents, no copy; it computes what is pending, and stays valid after `destroy`.

        As long as there is a view, dispatches that write to the tensor run at once; so do those that read it, if the view
        can be written to.

        Raises:
            ValidationError: the tensor is destroyed, or not readable.
            OperationError: a pending dispatch failed; the message says where it was called.
        """
        if self._pinned or self.destroyed or not self._readable:
            return super().numpy()
        with self._lock:
            array = self.memory()
            if self._writable and self._value is not None:
                deferred.force(self._value.pending_readers)  # before the memory changes
            window = self._window() if self._window is not None else None
            if window is None:
                window = np.asarray(_Window(array))
                self._window = ref(window)
            view = window.view()
            view.setflags(write=self._writable)
            return view

    def _target(self) -> np.ndarray:
        """The memory to write all of: other memory than before, if what is there is still needed."""
        value = self._value
        if value is not None and not value.pending and (self._is_seen or not value.pending_readers):
            deferred.force(value.pending_readers)
            self._array = value._array  # the value is not this any more
        elif value is not None:
            self._array = memory.empty(self._desc)
            self._forget_bindings()
        return self.memory()

    @property
    def _is_ready(self) -> bool:
        """Whether nobody needs what the memory holds, which is about to be written."""
        borrowed = self.borrowed() if self.borrowed is not None else None
        return self._value is None and not (borrowed is not None and borrowed._readers)

    def current(self) -> Value:
        """What the tensor holds, for a dispatch that reads it."""
        if self._value is None:
            self._value = Value(self._context, self._desc, self._code, array=self._memory)
        return self._value

    def become(self, value: Value) -> None:
        """Hold something else from now on, in the memory that there was, if nobody needs that any more.

        Who calls this holds the lock, and has found that nobody sees the memory.
        """
        before, borrowed = self._value, self.borrowed() if self.borrowed is not None else None
        if borrowed is None and not (before is not None and before.pending_readers):
            value._spare = before._spare if before is not None and before.pending else self._array
        self._value, self._memory = value, None
        self._forget_bindings()

    def _forget_bindings(self) -> None:
        if self._bindings:
            self.release_bindings()


def _is_immutable(array: np.ndarray) -> bool:
    """Whether nobody can write to memory through NumPy: it is read-only, and so is whatever it is a view of."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return base is None or isinstance(base, (bytes, mmap))


# ---------------------------------------------------------------------------------------------------------------------
# Graphs as calls


class Noted(Pending):
    """A dispatch that has not run yet."""

    __slots__ = ()

    def __del__(self) -> None:
        if self.inputs:  # which who runs it takes away
            deferred.statistics.dropped += len(self.outputs)


class GraphTemplate(Template):
    """A graph as a call: what becomes part of a larger graph, and runs alone until that is compiled."""

    __slots__ = ("graph",)

    def __init__(self, graph: Graph, program: Program) -> None:
        descs = tuple(operand.desc for operand in graph.outputs.values())
        operands = tuple(operand.desc for operand in graph.inputs.values())
        codes = tuple(map(lazy.code_of, descs))
        super().__init__(_DISPATCH, {}, {}, descs, codes, operands, {}, ("graph", next(_serials)))
        self.graph, self.size = graph, len(graph.nodes)
        self.program = program

    def add_to(self, builder: Operations, operands: Sequence[Operand], label: str = "") -> tuple[Operand, ...]:
        """Add the nodes of the graph to another one."""
        made = dict(zip(self.graph.inputs.values(), operands, strict=True))

        def follow(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(follow, value))
            return made.get(value, value)  # constants are the same in all graphs

        for node in self.graph.nodes:
            inputs = {name: follow(value) for name, value in node.inputs.items()}
            descs = tuple(output.desc for output in node.outputs)
            outputs = builder.add_node(node.op, inputs, node.attributes, f"{label}/{node.label}", descs)
            made.update(zip(node.outputs, outputs, strict=True))
        return tuple(made[operand] for operand in self.graph.outputs.values())


def _template(graph: MLGraph) -> GraphTemplate:
    """A living graph as a call."""
    known: GraphTemplate | None = graph._template
    if known is None:
        with graph._lock:
            known = graph._template
            if known is None:
                program = graph.check_alive()
                assert graph._graph is not None
                known = graph._template = GraphTemplate(graph._graph, program)
                graph._forget = finalize(graph, _forget, known)
                graph._forget.atexit = False
    return known


def _forget(template: GraphTemplate) -> None:
    """Drop what has been compiled with a graph that is gone; what is pending can still run, graph by graph."""
    template.size = deferred.LARGEST + 1
    deferred.forget(template.serial)


# ---------------------------------------------------------------------------------------------------------------------
# Dispatch


def dispatch(
    context: MLContext, graph: MLGraph, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]
) -> None:
    """Note that a graph is to run on tensors; run it at once where somebody could see that it has not."""
    sources, targets = _checked(context, graph, inputs, outputs)
    template = _template(graph)
    with Locks([*sources, *targets]):
        context.check_alive()
        if any(tensor.destroyed for tensor in (*sources, *targets)):
            graph.check_dispatch(inputs, outputs)  # says which
        now = _must_run_now(sources, targets)
        values = [] if now else _note(context, template, sources, targets)
    if now:  # without our locks: what must run before takes those of other tensors
        while not _at_once(graph, inputs, outputs, sources, targets):
            pass
    elif values and values[0]._node is not None and values[0]._node.depth >= lazy.LONGEST:
        deferred.force(values)


def _note(
    context: MLContext, template: GraphTemplate, sources: Sequence[DeferredTensor], targets: Sequence[DeferredTensor]
) -> list[Value]:
    """Give tensors values that are still to be computed."""
    node = Noted(template, tuple([tensor.current() for tensor in sources]), "", _site())
    values = [Value(context, desc, code, node=node) for desc, code in zip(template.descs, template.codes, strict=True)]
    node.outputs = tuple([ref(value) for value in values])
    for value in node.inputs:
        if isinstance(value, Value):
            value.watch(node.outputs)
    for tensor, value in zip(targets, values, strict=True):
        tensor.become(value)
    return values


def _must_run_now(sources: Sequence[DeferredTensor], targets: Sequence[DeferredTensor]) -> bool:
    """Whether somebody could see, or spoil, what has not run yet."""
    return any(tensor._is_seen for tensor in targets) or any(tensor._is_shared for tensor in sources)


def _at_once(
    graph: MLGraph,
    inputs: Mapping[str, MLTensor],
    outputs: Mapping[str, MLTensor],
    sources: Sequence[DeferredTensor],
    targets: Sequence[DeferredTensor],
) -> bool:
    """Run a graph on the memory of tensors; False if another thread has changed them meanwhile."""
    for tensor in targets:
        tensor.settle()
    with Locks([*sources, *targets]):
        for tensor in sources:
            tensor.memory()
        for tensor in targets:
            tensor._target()
    key = (len(inputs), *inputs, *map(id, inputs.values()), *outputs, *map(id, outputs.values()))
    binding = graph._bindings.peek(key) or graph._bind(inputs, outputs)
    with Locks([*sources, *targets]):
        ready = graph._bindings.peek(key) is binding and all(tensor._is_ready for tensor in targets)
        if ready:
            binding()
    return ready


def _checked(
    context: MLContext, graph: MLGraph, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]
) -> tuple[list[DeferredTensor], list[DeferredTensor]]:
    """The tensors in the order of the graph's inputs and outputs, if they are as the specification wants them."""
    context._check(graph, "dispatch").check_alive()
    try:
        sources = [inputs[name] for name in graph._inputs]
        targets = [outputs[name] for name in graph._outputs]
        tensors = [*sources, *targets]
        fits = len(tensors) == len(inputs) + len(outputs) == len(set(map(id, tensors)))
        for tensor, desc in zip(tensors, (*graph._inputs.values(), *graph._outputs.values()), strict=True):
            fits = fits and type(tensor) is DeferredTensor and tensor._context is context and not tensor._constant
            fits = fits and (tensor._desc is desc or tensor._desc == desc)
    except (KeyError, TypeError, AttributeError):
        fits = False
    if not fits:
        graph.check_dispatch(inputs, outputs)
        require(False, "dispatch: the tensors do not fit the graph")  # which the line above says in detail
    return sources, targets  # type: ignore[return-value]


def _site() -> tuple[Any, int]:
    """Where `dispatch` was called."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


__all__ = ["DeferredTensor", "dispatch"]
