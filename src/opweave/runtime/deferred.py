"""Run what is pending: as one compiled graph where the same has been asked for before, else one operation at a time.

What is asked for, and what it needs, is a graph. Graphs that differ in the values of their inputs only have the same
signature, and are compiled once. At first nobody waits for that: the operations run one by one, each compiled on its own
and kept, and the graph is compiled in the background when it comes again.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import memory
from ..errors import MLError
from ..graph import Graph, Operand
from ..ops import Operations
from . import segments
from .lazy import Array, Pending, Template

if TYPE_CHECKING:
    from ..backends import Executable
    from ..context import MLContext

GRAPHS = 256
"""How many graphs are kept compiled; beyond that, the one not used for longest is dropped."""

VARIABLE = "OPWEAVE_COMPILE"
"""The environment variable that says when graphs are compiled: "now", at the first time, or "background", at the second."""


@dataclass
class Statistics:
    """What has been done since the start, or the last `reset`.

    Attributes:
        graphs: reads that ran a compiled graph.
        operations: operations that ran one by one.
        compiled: graphs that were compiled.
        values: results that were written, because they were asked for or could be asked for later.
        dropped: results that nobody could ask for, which were never written to an array of their own.
    """

    graphs: int = 0
    operations: int = 0
    compiled: int = 0
    values: int = 0
    dropped: int = 0

    def reset(self) -> None:
        """Start again from zero."""
        self.__init__()  # type: ignore[misc]


statistics = Statistics()


@dataclass
class _Entry:
    """A graph that has been asked for: its executable, once it is compiled."""

    seen: int = 0
    executable: Executable | None = None
    failed: bool = False
    lock: RLock = field(default_factory=RLock)


_entries: OrderedDict[Any, _Entry] = OrderedDict()
_lock = RLock()
_compile_now = os.environ.get(VARIABLE, "background") == "now"


def compile_now(value: bool = True) -> bool:
    """Compile graphs when they are first read, instead of in the background when they come again; what it was before."""
    global _compile_now
    before, _compile_now = _compile_now, value
    return before


def read(*arrays: Array) -> tuple[np.ndarray, ...]:
    """The values of several arrays, computed as one graph.

    >>> import opweave as ow
    >>> x = ow.array([1.0, 2.0])
    >>> [values.tolist() for values in ow.read(x + 1, x * x)]
    [[2.0, 3.0], [1.0, 4.0]]
    """
    force(arrays)
    return tuple(array.numpy() for array in arrays)


def force(arrays: Sequence[Array]) -> None:
    """Compute pending arrays, and whatever is computed on the way and can still be asked for."""
    with _lock:  # one at a time: what one computes another may be waiting for
        wanted = [array for array in arrays if array._array is None]
        if not wanted:
            return
        context = wanted[0]._context
        mine = [array for array in wanted if array._context is context]
        context.check_alive()
        _run(context, mine)
        force([array for array in wanted if array._array is None])


def _run(context: MLContext, wanted: Sequence[Array]) -> None:
    nodes, uses = _needed(wanted)
    leaves: dict[int, tuple[int, Array]] = {}
    numbers = {id(node): number for number, node in enumerate(nodes)}
    signature: list[Any] = [context.device.name, context.power_preference]
    refs: list[list[tuple[int, int]]] = []
    for node in nodes:
        signature.append(node.template.serial)
        its = []
        for array in node.inputs:
            if array._node is not None and id(array._node) in numbers:
                its.append((numbers[id(array._node)], _position(array)))
            else:
                slot = leaves.setdefault(id(array), (len(leaves), array))[0]
                its.append((-1, slot))
        refs.append(its)
        signature += its
    kept = _kept(nodes, uses, wanted)
    signature += [-2, *((number, position) for number, position, _ in kept)]
    inputs = [array._values() for _, array in leaves.values()]
    outputs = [memory.empty(array.desc) for _, _, array in kept]
    entry = _entry(tuple(signature))
    plan = _Plan(context, [node.template for node in nodes], refs, [(n, p) for n, p, _ in kept])
    entry.seen += 1
    if entry.executable is None and not entry.failed and len(nodes) > 1:
        if _compile_now:
            plan.compile(entry)
        elif entry.seen == 2:
            _background.put((plan, entry))
    try:
        if entry.executable is not None:
            entry.executable.run(
                {f"x{k}": array for k, array in enumerate(inputs)}, {f"y{k}": a for k, a in enumerate(outputs)}
            )
            statistics.graphs += 1
        else:
            plan.run(inputs, outputs)
    except MLError as error:
        raise _located(error, nodes) from error
    statistics.values += len(kept)
    statistics.dropped += sum(len(node.outputs) for node in nodes) - len(kept)
    for (_, _, array), value in zip(kept, outputs, strict=True):
        array._array, array._node = value, None
    for node in nodes:
        if all(output() is None or output()._array is not None for output in node.outputs):  # type: ignore[union-attr]
            node.inputs = ()


def _needed(wanted: Sequence[Array]) -> tuple[list[Pending], dict[int, int]]:
    """The pending calls that arrays need, in order, and how often each array is an operand of them."""
    order: list[Pending] = []
    seen: set[int] = set()
    uses: dict[int, int] = {}
    stack: list[tuple[Pending, bool]] = [(a._node, False) for a in reversed(wanted) if a._node is not None]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        stack.append((node, True))
        for array in reversed(node.inputs):
            uses[id(array)] = uses.get(id(array), 0) + 1
            if array._node is not None and id(array._node) not in seen:
                stack.append((array._node, False))
    return order, uses


def _position(array: Array) -> int:
    """Which of its call's results an array is."""
    node = array._node
    assert node is not None
    return next(k for k, output in enumerate(node.outputs) if output() is array)


def _kept(nodes: Sequence[Pending], uses: dict[int, int], wanted: Sequence[Array]) -> list[tuple[int, int, Array]]:
    """The results to be written: those that are wanted, and those that others than these calls hold."""
    asked = {id(array) for array in wanted}
    kept = []
    for number, node in enumerate(nodes):
        for position, output in enumerate(node.outputs):
            array = output()
            # CPython counts references: the operand lists of these calls, `array`, and the argument of getrefcount.
            if array is not None and (id(array) in asked or sys.getrefcount(array) > uses.get(id(array), 0) + 2):
                kept.append((number, position, array))
    return kept


def _entry(signature: Any) -> _Entry:
    entry = _entries.get(signature)
    if entry is None:
        entry = _entries[signature] = _Entry()
        while len(_entries) > GRAPHS:
            _entries.popitem(last=False)
    else:
        _entries.move_to_end(signature)
    return entry


def _located(error: MLError, nodes: Sequence[Pending]) -> MLError:
    """The same error, with the place where the operation was called."""
    text = str(error)
    for node in nodes:
        if text.startswith(node.template.op.name):
            title = f"{node.template.op.name} {node.label!r}" if node.label else node.template.op.name
            rest = text.removeprefix(node.template.op.name)
            return type(error)(f"{title}{rest} (called in {node.place})")
    places = ", ".join(dict.fromkeys(node.place for node in nodes[:4]))
    return type(error)(f"{text} (while computing what was called in {places})")


class _Plan:
    """A graph that was asked for, without its values.

    Attributes:
        templates: its calls, in order.
        refs: for each call its operands: the call and the number of its result, or -1 and the number of an input.
        kept: the results to be written: call, and number of its result.
    """

    def __init__(
        self,
        context: MLContext,
        templates: list[Template],
        refs: list[list[tuple[int, int]]],
        kept: list[tuple[int, int]],
    ) -> None:
        self.backend, self.device, self.power = context.backend, context.device.name, context.power_preference
        self.templates, self.refs, self.kept = templates, refs, kept

    def compile(self, entry: _Entry) -> None:
        """Compile the whole; a graph that the engine refuses is run one operation at a time."""
        with entry.lock:
            if entry.executable is not None or entry.failed:
                return
            try:
                entry.executable = self._compiled(self.graph())
                statistics.compiled += 1
            except MLError:
                entry.failed = True

    def graph(self) -> Graph:
        """The calls as a graph with inputs `x0`, … and outputs `y0`, …"""
        builder = Operations()
        inputs: dict[int, Operand] = {}
        made: list[tuple[Operand, ...]] = []
        for template, refs in zip(self.templates, self.refs, strict=True):
            operands = []
            for (call, number), desc in zip(refs, template.operands, strict=True):
                if call < 0 and number not in inputs:
                    inputs[number] = Operand(builder, desc, name=f"x{number}")
                operands.append(inputs[number] if call < 0 else made[call][number])
            made.append(template.add_to(builder, operands))
        builder.inputs.update((f"x{number}", inputs[number]) for number in sorted(inputs))
        return Graph.reaching({f"y{k}": made[call][number] for k, (call, number) in enumerate(self.kept)})

    def _compiled(self, graph: Graph) -> Executable:
        return segments.compile(graph, self.backend, device=self.device, power_preference=self.power)

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run one call after the other; what nobody needs any more is given back on the way."""
        targets = dict(zip(self.kept, outputs, strict=True))
        last: dict[tuple[int, int], int] = {}
        for number, refs in enumerate(self.refs):
            last.update(dict.fromkeys(refs, number))
        values: dict[tuple[int, int], np.ndarray] = {(-1, k): array for k, array in enumerate(inputs)}
        for number, (template, refs) in enumerate(zip(self.templates, self.refs, strict=True)):
            executable = template.executable or self._single(template)
            results = {}
            for k, desc in enumerate(template.descs):
                target = targets.get((number, k))
                results[f"y{k}"] = values[number, k] = memory.empty(desc) if target is None else target
            executable.run({f"x{k}": values[ref] for k, ref in enumerate(refs)}, results)
            statistics.operations += 1
            for ref in {*refs, *((number, k) for k in range(len(template.descs)))}:
                if last.get(ref, number) == number:
                    values.pop(ref, None)

    def _single(self, template: Template) -> Executable:
        """The executable of one call."""
        with template.lock:
            if template.executable is None:
                refs = [(-1, k) for k in range(len(template.operands))]
                kept = [(0, k) for k in range(len(template.descs))]
                alone = _Plan.__new__(_Plan)
                alone.backend, alone.device, alone.power = self.backend, self.device, self.power
                alone.templates, alone.refs, alone.kept = [template], [refs], kept
                template.executable = self._compiled(alone.graph())
            return template.executable


class _Background:
    """A thread that compiles graphs; it begins with the first one, and ends with the process."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[_Plan, _Entry]] = SimpleQueue()
        self._thread: Thread | None = None

    def put(self, item: tuple[_Plan, _Entry]) -> None:
        """Compile a graph when there is time."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._work, name="opweave-compiler", daemon=True)
            self._thread.start()
        self._queue.put(item)

    def _work(self) -> None:
        while True:
            plan, entry = self._queue.get()
            plan.compile(entry)


_background = _Background()
