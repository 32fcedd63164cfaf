"""Deferred contexts (`create_context(deferred=True)`): a dispatch runs when one of its results is read.

A dispatch reads the current values of its input tensors, and assigns new, pending values (`DeferredValue`) to its output
tensors. Values never change, so dispatches and writes may run late. A value without a tensor or a pending reader is never
computed. A read (`force`) runs the pending dispatches that it needs one by one, and as one compiled graph if they recur.

A dispatch runs immediately if it uses memory that is accessible without Opweave: memory of the user (`tensor_from`), memory of
a WebAssembly module, and tensors with a view.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import finalize, ref

import numpy as np

from .. import memory
from ..context.context import MLContext
from ..context.graph import MLGraph
from ..context.graph_state import GraphState
from ..context.tensor import Locks, MLTensor, guard_of, memory_of
from ..context.tensors import check_alive, check_own
from ..core.graph import Desc, Graph, Operand, add_like, title
from ..memory.arrays import is_immutable
from ..ops import Operations
from ..support.errors import NotSupportedError, require
from ..support.lazy_imports import deferred_context
from . import force as reads
from .array import LONGEST, Array, ArrayTemplate, Number, PendingCall, Watched, code_of, site_of, values_of
from .background import statistics
from .deferred_free import drop_later
from .force import force

if TYPE_CHECKING:
    from ..run.program import Program

_serials = count()
_DISPATCH: Any = SimpleNamespace(name="dispatch", kernels={})
"""Stands for the operation in the template of a whole graph."""


# ---------------------------------------------------------------------------------------------------------------------
# Values


class DeferredValue(Watched):
    """The contents of a tensor after a dispatch. A value never changes; the tensor gets a new one."""

    __slots__ = ("spare",)
    spare: np.ndarray | None
    """Memory to reuse for the contents while they are pending (`DeferredTensor.become`)."""

    def _allocate(self) -> np.ndarray:
        spare, self.spare = self.spare, None
        return memory.empty(self._desc) if spare is None else spare


class _DeferredWindow:
    """Base object of the views of a tensor. NumPy keeps it alive while a view exists."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.__array_interface__ = array, array.__array_interface__


class DeferredTensor(MLTensor):
    """A tensor whose contents may be pending. `pinned` memory belongs to the user, and is never replaced."""

    def __init__(self, context: MLContext, desc: Any, array: np.ndarray, *, pinned: bool, **flags: bool) -> None:
        self._pinned, self._code = pinned, code_of(desc)
        self._is_fixed = pinned and is_immutable(array)
        self._window: ref[np.ndarray] | None = None
        self._value: DeferredValue | None = None
        self._stored: np.ndarray | None = array
        super().__init__(context, desc, array, **flags)

    @property
    def _array(self) -> np.ndarray | None:
        value = self._value
        if value is not None:
            self._stored = values_of(value)
        return self._stored

    @_array.setter
    def _array(self, array: np.ndarray | None) -> None:
        self._value, self._stored = None, array

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` has been called, or the context is lost."""
        return self._value is None and self._stored is None

    def fits(self, context: MLContext, desc: Desc) -> bool:
        """Whether it is a tensor `desc` of a context, and can be dispatched."""
        return self._context is context and not self._constant and (self._desc is desc or self._desc == desc)

    @property
    def is_seen(self) -> bool:
        """Whether the memory can be read without Opweave."""
        return self._pinned or (self._window is not None and self._window() is not None)

    @property
    def is_shared(self) -> bool:
        """Whether the memory can be written without Opweave."""
        return (self._pinned and not self._is_fixed) or (self._writable and self.is_seen and not self._pinned)

    def numpy(self) -> np.ndarray:
        """A view of the contents, no copy, after computing a pending value. The view stays valid after `destroy`.

        While there is a view, dispatches that write the tensor run immediately. If the view is writable, dispatches that read
        the tensor run immediately, too.
        """
        if self._pinned or self.destroyed or not self._readable:
            return super().numpy()
        with self._guard.lock:
            array = self._memory()
            if self._writable and self._value is not None:
                # Before the user writes to the memory.
                force(self._value.pending_readers)
            window = self._window() if self._window is not None else None
            if window is None:
                window = np.asarray(_DeferredWindow(array))
                self._window = ref(window)
            view = window.view()
            view.setflags(write=self._writable)
            return view

    def _target(self, is_updated: bool = False) -> np.ndarray:
        """Return the memory to overwrite: new memory if pending calls need the old contents, unless these are updated."""
        value = self._value
        keeps = is_updated or self.is_seen
        if value is not None and not value.pending and (keeps or not value.pending_readers):
            force(value.pending_readers)
            # The memory stays, and the tensor no longer has this value.
            self._array = value.memory
        elif value is not None:
            self._array = memory.empty(self._desc)
            self._forget_bindings()
        return self._memory()

    @property
    def is_ready(self) -> bool:
        """Whether the memory can be written: no pending call reads it."""
        borrowed = self._guard.borrowed() if self._guard.borrowed is not None else None
        return self._value is None and not (borrowed is not None and borrowed.readers)

    def current(self) -> DeferredValue:
        """Return the value, for a dispatch that reads the tensor."""
        if self._value is None:
            self._value = DeferredValue(self._context, self._desc, self._code, array=self._stored)
        return self._value

    def become(self, value: DeferredValue) -> None:
        """Replace the value. The new value reuses the memory of the old one if no pending call reads that.

        The caller holds the lock, and has checked that the memory is not visible outside of Opweave.
        """
        before, borrowed = self._value, self._guard.borrowed() if self._guard.borrowed is not None else None
        value.spare = None
        if borrowed is None and not (before is not None and before.pending_readers):
            value.spare = before.spare if before is not None and before.pending else self._array
        self._value, self._stored = value, None
        self._forget_bindings()

    def _forget_bindings(self) -> None:
        if self._guard.bindings:
            self._guard.release_bindings()


# ---------------------------------------------------------------------------------------------------------------------
# Graphs as calls


class PendingDispatch(PendingCall):
    """A dispatch that has not run yet."""

    __slots__ = ()

    def __del__(self) -> None:
        # A run removes the inputs.
        if self.inputs:
            statistics.dropped += len(self.outputs)


class GraphTemplate(ArrayTemplate):
    """Template for dispatches of a graph, which runs the graph's own program until a larger graph with it is compiled."""

    __slots__ = ("graph",)

    def __init__(self, graph: Graph, program: Program) -> None:
        descs = tuple(operand.desc for operand in graph.outputs.values())
        operands = tuple(operand.desc for operand in graph.inputs.values())
        codes = tuple(map(code_of, descs))
        super().__init__(_DISPATCH, {}, {}, descs, codes, operands, {}, ("graph", next(_serials)))
        self.graph, self.size = graph, len(graph.nodes)
        self.program = program

    def add_to(self, builder: Operations, operands: Sequence[Operand], label: str = "") -> tuple[Operand, ...]:
        """Add the nodes of the graph to the graph of `builder`."""
        copies = dict(zip(self.graph.inputs.values(), operands, strict=True))

        def follow(operand: Operand) -> Operand:
            # All graphs share constants.
            return copies.get(operand, operand)

        for node in self.graph.nodes:
            outputs = add_like(builder, node, follow, f"{label}/{node.label}")
            copies.update(zip(node.outputs, outputs, strict=True))
        return tuple(copies[operand] for operand in self.graph.outputs.values())


def _template_of(graph: GraphState) -> GraphTemplate:
    template: GraphTemplate | None = graph.template
    if template is None:
        with graph.lock:
            template = graph.template
            if template is None:
                program = graph.check_alive()
                assert graph.recorded is not None
                template = graph.template = GraphTemplate(graph.recorded, program)
                graph.forget = forget = finalize(graph, _forget, template)
                forget.atexit = False
    return template


def _forget(template: GraphTemplate) -> None:
    """Drop the programs that contain a destroyed graph. Pending dispatches of the graph still run, one at a time."""
    template.size = reads.LARGEST + 1
    drop_later(partial(reads.forget, template.serial))


# ---------------------------------------------------------------------------------------------------------------------
# Dispatch


def _compute_long(values: Sequence[DeferredValue]) -> None:
    """Compute new values if their chain of pending calls is too long, without holding locks."""
    if values and values[0].node is not None and values[0].node.depth >= LONGEST:
        force(values)


def _defer(
    context: MLContext,
    template: ArrayTemplate,
    inputs: Sequence[Array],
    targets: Sequence[DeferredTensor],
    label: str = "",
) -> list[DeferredValue]:
    node = PendingDispatch(template, tuple(inputs), label, site_of(sys._getframe(1)))
    values = [
        DeferredValue(context, desc, code, node=node) for desc, code in zip(template.descs, template.codes, strict=True)
    ]
    node.outputs = tuple([ref(value) for value in values])
    for value in node.inputs:
        value._watch(node.outputs)
    for tensor, value in zip(targets, values, strict=True):
        tensor.become(value)
    return values


def _must_run_now(sources: Sequence[DeferredTensor], targets: Sequence[DeferredTensor]) -> bool:
    return any(tensor.is_seen for tensor in targets) or any(tensor.is_shared for tensor in sources)


def _run_now(
    graph: GraphState,
    inputs: Mapping[str, MLTensor],
    outputs: Mapping[str, MLTensor],
    sources: Sequence[DeferredTensor],
    targets: Sequence[DeferredTensor],
) -> bool:
    """Run a graph on the memory of tensors; return False if another thread has changed the tensors meanwhile."""
    for tensor in targets:
        guard_of(tensor).settle()
    with Locks([*sources, *targets]):
        for tensor in sources:
            memory_of(tensor)
        updated = set(map(id, sources))
        for tensor in targets:
            tensor._target(id(tensor) in updated)
    key = (len(inputs), *inputs, *map(id, inputs.values()), *outputs, *map(id, outputs.values()))
    binding = graph.bindings.peek(key) or graph.bind(inputs, outputs)
    with Locks([*sources, *targets]):
        ready = graph.bindings.peek(key) is binding and all(tensor.is_ready for tensor in targets)
        if ready:
            binding.run()
    return ready


@deferred_context.provide
class DeferredContext(MLContext):
    """A context in which dispatches wait until one of their results is read."""

    def dispatch(
        self,
        graph: MLGraph,
        inputs: Mapping[str, MLTensor],
        outputs: Mapping[str, MLTensor],
        *,
        encoder: Any = None,
        pass_timestamps: Mapping[str, Any] | None = None,
    ) -> None:
        """Defer the dispatch of a graph, or run it now if its memory is visible outside of Opweave."""
        if encoder is not None or pass_timestamps is not None:
            raise NotSupportedError(
                "dispatch: encoder is not for a deferred context, whose graphs run when a result is read"
            )
        state = self._state_of(graph, "dispatch").version("dispatch", inputs)
        sources, targets = self._check_tensors(state, inputs, outputs)
        template = _template_of(state)
        with Locks([*sources, *targets]):
            check_alive(self)
            if any(tensor.destroyed for tensor in (*sources, *targets)):
                # The error names the tensor.
                state.check_dispatch(inputs, outputs)
            now = _must_run_now(sources, targets)
            values = [] if now else _defer(self, template, [tensor.current() for tensor in sources], targets)
        # Release the locks first: earlier dispatches take the locks of other tensors.
        if now:
            while not _run_now(state, inputs, outputs, sources, targets):
                pass
        else:
            _compute_long(values)

    def _check_tensors(
        self, graph: GraphState, inputs: Mapping[str, MLTensor], outputs: Mapping[str, MLTensor]
    ) -> tuple[list[DeferredTensor], list[DeferredTensor]]:
        graph.check_alive()
        try:
            sources = [inputs[name] for name in graph.inputs]
            targets = [outputs[name] for name in graph.outputs]
            tensors = [*sources, *targets]
            fits = len(tensors) == len(inputs) + len(outputs) == len(set(map(id, tensors)))
            for tensor, desc in zip(tensors, (*graph.inputs.values(), *graph.outputs.values()), strict=True):
                fits = fits and type(tensor) is DeferredTensor and tensor.fits(self, desc)
        except (KeyError, TypeError, AttributeError):
            fits = False
        if not fits:
            graph.check_dispatch(inputs, outputs)
            # `check_dispatch` raises the detailed error, except for a tensor that is both input and output.
            require(len(set(map(id, tensors))) < len(tensors), "dispatch: the tensors do not fit the graph")
        return sources, targets  # type: ignore[return-value]

    def _defer_call(self, template: ArrayTemplate, inputs: Sequence[Any], outputs: Sequence[Any], label: str) -> bool:
        tensors: dict[int, Any] = {id(value): value for value in inputs if isinstance(value, MLTensor)}
        if any(isinstance(value, np.ndarray) and k not in template.numbers for k, value in enumerate(inputs)):
            # NumPy arrays are accessible without Opweave.
            return False
        with Locks([*tensors.values(), *outputs]):
            for tensor in tensors.values():
                check_own(self, tensor, title(template.op.name, label))
            if _must_run_now(list(tensors.values()), outputs):
                return False
            operands = [
                Number(self, value, desc, code_of(desc)) if isinstance(value, np.ndarray) else value.current()
                for value, desc in zip(inputs, template.operands, strict=True)
            ]
            values = _defer(self, template, operands, outputs, label)
        _compute_long(values)
        return True

    def _make_tensor(self, desc: Desc, array: np.ndarray, pinned: bool, **flags: bool) -> MLTensor:
        return DeferredTensor(self, desc, array, pinned=pinned, **flags)
