"""Run what is pending: as one compiled graph where the same has been asked for before, else one operation at a time.

What is asked for, and what it needs, is a graph. Graphs that differ in the values of their inputs only have the same
signature, and are compiled once. At first nobody waits for that: the operations run one by one, each compiled on its own
and kept, and the graph is compiled in the background when it comes again.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from .. import memory
from ..cache import Cache
from ..errors import MLError, require
from ..graph import title
from ..links import compute, op_level, when_gone
from ..memory import pool
from . import adopted, constants
from .adopted import borrowed_by
from .constants import Whole
from .lazy import Array, Pending, Template
from .plan import Kept, Plan, position_of
from .recurring import background, compile_now, statistics

if TYPE_CHECKING:
    from ..context import MLContext
    from ..run.program import Program

GRAPHS = 256
"""How many graphs are kept compiled; beyond that, the one not used for longest is dropped."""

SINGLES = 512
"""How many operations are kept compiled on their own; beyond that, the one compiled first is dropped."""

SINGLE_BYTES = 80 * 2**10
"""About what the engine keeps for an operation on its own: 512 of them took 40 MB, measured."""

SINGLES_BYTES = 32 * 2**20
"""How many bytes all operations that are kept compiled on their own take at most, by that estimate."""

LARGEST = 2048
"""Graphs of more calls than this are not compiled: they run one operation at a time."""

graphs: Cache[Any, Whole] = Cache(GRAPHS, raw=True, on_drop=Whole.drop)
"""The graphs that came lately, by signature."""

singles: Cache[Hashable, Template] = Cache(SINGLES, SINGLES_BYTES, raw=True, on_drop=Template.release)
"""The operations that are compiled on their own, by the serial number of their template."""

_gone: deque[Hashable] = deque()
_lock = RLock()


# ---------------------------------------------------------------------------------------------------------------------
# What is read


def read(*arrays: Array) -> tuple[np.ndarray, ...]:
    """The values of several arrays, computed as one graph.

    >>> import opweave as ow
    >>> x = ow.array([1.0, 2.0])
    >>> [values.tolist() for values in ow.read(x + 1, x * x)]
    [[2.0, 3.0], [1.0, 4.0]]

    Raises:
        ValidationError: something else than an array.
        OperationError: a pending operation failed; the message says where it was called.
    """
    for array in arrays:
        require(isinstance(array, Array), f"read takes arrays of opweave, got {type(array).__name__}")
    force(arrays)
    return tuple(array.numpy() for array in arrays)


@compute.provide
def force(arrays: Sequence[Array]) -> None:
    """Compute pending arrays, and whatever is computed on the way and can still be asked for."""
    if len(arrays) == 1 and not _profiles and _short_way(arrays[0]):
        return
    # Memory of tensors is read under their locks, which are always taken before ours.
    with borrowed_by(arrays), _lock:  # one at a time: what one computes another may be waiting for
        wanted = [array for array in arrays if array._array is None]
        while wanted:
            context = wanted[0]._context
            context.check_alive()
            _run(context, [array for array in wanted if array._context is context])
            wanted = [array for array in wanted if array._context is not context]


@dataclass(frozen=True)
class Record:
    """What one read did.

    Attributes:
        calls: the operations that ran, in order, with their labels.
        places: where they were called.
        how: "one graph" where they were compiled as a whole, else "one by one".
        written: the results that were written: operation, data type and shape, and why: "asked for", or "held elsewhere".
        dropped: how many results nobody could ask for.
        seconds: how long it took.
        copies: how many copies of tensors were made.
        constants: how many inputs were constants of what ran, since they had been the same for some time.
    """

    calls: tuple[str, ...]
    places: tuple[str, ...]
    how: str
    written: tuple[tuple[str, str, str], ...]
    dropped: int
    seconds: float
    copies: int
    constants: int = 0

    def __str__(self) -> str:
        lines = [
            f"{len(self.calls)} operations, {self.how}, {self.seconds * 1e6:.0f} us: {len(self.written)} results written, "
            f"{self.dropped} dropped, {self.copies} copies"
        ]
        return "\n".join(lines + [f"  {call} -> {desc}: {why}" for call, desc, why in self.written])

    @classmethod
    def of(cls, nodes: Sequence[Pending], kept: Sequence[Kept], asked: set[int], whole: bool, *numbers: Any) -> Record:
        """The record of what has just run."""
        calls = tuple(title(node.template.op.name, node.label) for node in nodes)
        written = tuple(
            (calls[number], str(array.desc), "asked for" if id(array) in asked else "held elsewhere")
            for number, _, array in kept
        )
        return cls(
            calls, tuple(node.place for node in nodes), "one graph" if whole else "one by one", written, *numbers
        )


_profiles: list[list[Record]] = []


@contextmanager
def profile() -> Iterator[list[Record]]:
    """Collect a record of each read in the `with` block, of all threads.

    >>> import opweave as ow
    >>> x = ow.array([1.0, 2.0])
    >>> with ow.ops.profile() as records:
    ...     values = (x + 1).relu().numpy()
    >>> records[0].calls, records[0].dropped
    (('add', 'relu'), 1)
    """
    records: list[Record] = []
    _profiles.append(records)
    try:
        yield records
    finally:
        _profiles[:] = [other for other in _profiles if other is not records]


def wait() -> None:
    """Wait until the graphs that are being compiled in the background are ready (for measurements and tests)."""
    background.wait()


# ---------------------------------------------------------------------------------------------------------------------
# Running


def _run(context: MLContext, wanted: Sequence[Array]) -> None:
    nodes, uses = _needed(wanted)
    asked = {id(array) for array in wanted}
    start, copies = (perf_counter(), memory.copies.count) if _profiles else (0.0, 0)
    kept = _kept(nodes, uses, asked)
    outputs = [array._room() for _, _, array in kept]
    if len(nodes) == 1:
        _run_alone(context, nodes[0], kept, outputs)
        constants = None
    else:
        constants = _run_together(context, nodes, kept, outputs)
    dropped = sum([len(node.outputs) for node in nodes]) - len(kept)
    statistics.values += len(kept)
    statistics.dropped += dropped
    if _profiles:
        took = perf_counter() - start
        numbers = dropped, took, memory.copies.count - copies, constants or 0
        record = Record.of(nodes, kept, asked, constants is not None, *numbers)
        for records in _profiles:
            records.append(record)
    for (_, _, array), value in zip(kept, outputs, strict=True):
        array._array = value  # first: who looks without the lock looks at this
        array._node = None
    for node in reversed(nodes):  # the last first: it gives back the results of those before
        for output in node.outputs:
            result = output()
            if result is not None and result._array is None:  # somebody can still ask for it
                break
        else:
            node.inputs = ()


def _short_way(array: Array) -> bool:
    """Compute an array that takes one call with one result, and whose operands are there; says whether it was one."""
    with _lock:
        node = array._node
        if node is None or node.borrows or len(node.outputs) > 1:
            return False
        inputs = []
        for operand in node.inputs:
            if operand._array is None:
                return False
            inputs.append(operand._array)
        context, template = array._context, node.template
        context.check_alive()
        output = array._room()
        try:
            program = template.program or _single(template, context)
            program.run(inputs, [output])
        except MLError as error:
            _locate(error, node)
            raise
        statistics.operations += 1
        statistics.values += 1
        array._array = output
        array._node = None
        node.inputs = ()
        return True


def _run_alone(context: MLContext, node: Pending, kept: Sequence[Kept], outputs: Sequence[np.ndarray]) -> None:
    """Run one call, none of whose operands is pending."""
    template = node.template
    descs = template.descs
    if len(outputs) < len(descs):
        targets = {position: value for (_, position, _), value in zip(kept, outputs, strict=True)}
        outputs = [targets[k] if k in targets else pool.room(desc) for k, desc in enumerate(descs)]
    inputs = [array._values() for array in node.inputs]
    try:
        program = template.program or _single(template, context)
        program.run(inputs, outputs)
    except MLError as error:
        _locate(error, node)
        raise
    statistics.operations += 1


def _run_together(
    context: MLContext, nodes: Sequence[Pending], kept: Sequence[Kept], outputs: Sequence[np.ndarray]
) -> int | None:
    """Run several calls, as one graph if that is compiled, else one after the other.

    Returns:
        How many inputs were constants of the graph; None if it was not one.
    """
    signature, leaves = _signature(context, nodes, kept)
    inputs = [array._values() for array in leaves]
    program, given = None, None
    if sum([node.template.size for node in nodes]) <= LARGEST:
        program, given = _compiled(_entry(signature), partial(Plan, context, nodes, kept), leaves, inputs)
    if program is None:
        _one_by_one(context, Plan(context, nodes, kept), nodes, inputs, outputs)
        return None
    try:
        program.run(inputs if given is None else given, outputs)
    except MLError as error:
        _locate_in(error, nodes)
        raise
    statistics.graphs += 1
    return 0 if given is None else len(inputs) - len(given)


def _compiled(
    entry: Whole, plan: Callable[[], Plan], leaves: Sequence[Array], inputs: Sequence[np.ndarray]
) -> tuple[Program | None, list[np.ndarray] | None]:
    """What runs a graph as a whole, if that is compiled; and which inputs it takes, None for all."""
    variant = entry.find(inputs)
    program = variant.program if variant is not None else None
    if variant is not None and program is not None:
        return program, variant.given(inputs)
    program = entry.program or entry.come(plan().compiled)
    if program is not None and variant is None:
        variant = entry.learn(plan, leaves, inputs)
        if variant is not None and variant.program is not None:
            return variant.program, variant.given(inputs)
    return program, None


def _needed(wanted: Sequence[Array]) -> tuple[list[Pending], dict[int, int]]:
    """The pending calls that arrays need, in order, and how often each array is an operand of them."""
    order: list[Pending] = []
    seen: set[int] = set()
    uses: dict[int, int] = {}
    # Before a call come those that it needs: None says that they are there, and that the call follows.
    stack: list[Pending | None] = [array._node for array in reversed(wanted) if array._node is not None]
    while stack:
        node = stack.pop()
        if node is None:
            order.append(stack.pop())  # type: ignore[arg-type]
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        stack += (node, None)
        for array in reversed(node.inputs):
            key, made = id(array), array._node
            uses[key] = uses[key] + 1 if key in uses else 1
            if made is not None and id(made) not in seen:
                stack.append(made)
    return order, uses


def _signature(
    context: MLContext, nodes: Sequence[Pending], kept: Sequence[Kept]
) -> tuple[tuple[Any, ...], list[Array]]:
    """What tells a graph from others, and the arrays that it takes.

    Each call is the number of its template, and for each operand the call that yields it and which of its results it is, or
    a negative number for an input: how many numbers these are follows from the ones before, so nothing is ambiguous.
    """
    signature: list[Any] = [context.device.name, context.power_preference]
    numbers: dict[int, int] = {}
    slots: dict[int, int] = {}
    leaves: list[Array] = []
    add = signature.append
    for number, node in enumerate(nodes):
        add(node.template.serial)
        for array in node.inputs:
            made = array._node
            if made is not None:
                add(numbers[id(made)])
                add(0 if len(made.outputs) == 1 else position_of(array, made))
                continue
            slot = slots.get(id(array))
            if slot is None:
                slot = slots[id(array)] = len(leaves)
                leaves.append(array)
            add(-1 - slot)
        numbers[id(node)] = number
    signature.append("results")
    for number, position, _ in kept:
        signature.append(number)
        signature.append(position)
    return tuple(signature), leaves


def _holders(output: ref[Array]) -> int:
    """How many references there are to an array, with those of this function."""
    array = output()
    return sys.getrefcount(array)


class _Probe:
    """Something that one variable holds, to learn how many references `_holders` itself has: Python's versions differ."""


_probe: Any = _Probe()
_OWN = _holders(ref(_probe)) - 1


def _kept(nodes: Sequence[Pending], uses: dict[int, int], asked: set[int]) -> list[Kept]:
    """The results to be written: those that are asked for, and those that others than these calls hold."""
    kept = []
    for number, node in enumerate(nodes):
        for position, output in enumerate(node.outputs):
            # CPython counts references. Without a counter, as elsewhere, each one looks as if it were held.
            holders = _holders(output) - _OWN
            array = output()
            if array is not None and (id(array) in asked or holders > uses.get(id(array), 0)):
                kept.append((number, position, array))
            del array
    return kept


def _entry(signature: Any) -> Whole:
    _sweep()
    return graphs.make(signature, Whole)


def forget(serial: Hashable) -> None:
    """Drop the graphs that a template is part of, now or when another thread is done with them; never waits."""
    _gone.append(serial)
    _try_to_sweep()


@when_gone.provide
def _try_to_sweep() -> None:
    """Drop what is not needed any more, unless another thread is reading: then it does that when it reads next."""
    if _lock.acquire(blocking=False):
        try:
            _sweep()
        finally:
            _lock.release()


def _sweep() -> None:
    constants.sweep()
    while _gone:
        serial = _gone.popleft()
        for signature, entry in graphs.items():
            if serial in signature:
                graphs.pop(signature)
                entry.drop()


def _single(template: Template, context: MLContext) -> Program:
    """The program of one call; templates belong to one device."""
    program = template.program
    if program is None:
        program = template.program = Plan.of_one(template, context).compiled()
        singles.put(template.serial, template, SINGLE_BYTES)
    return program


def _one_by_one(
    context: MLContext,
    plan: Plan,
    nodes: Sequence[Pending],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
) -> None:
    """Run one call after the other; what nobody needs any more is given back on the way."""
    targets = dict(zip(plan.kept, outputs, strict=True))
    last: dict[tuple[int, int], int] = {}
    for number, refs in enumerate(plan.refs):
        last.update(dict.fromkeys(refs, number))
    values: dict[tuple[int, int], np.ndarray] = {(-1, k): array for k, array in enumerate(inputs)}
    for number, (template, refs) in enumerate(zip(plan.templates, plan.refs, strict=True)):
        results = []
        for k, desc in enumerate(template.descs):
            target = targets.get((number, k))
            values[number, k] = pool.room(desc) if target is None else target
            results.append(values[number, k])
        try:
            program = template.program or _single(template, context)
            program.run([values[operand] for operand in refs], results)
        except MLError as error:
            _locate(error, nodes[number])
            raise
        statistics.operations += 1
        for done in {*refs, *((number, k) for k in range(len(template.descs)))}:
            if last.get(done, number) == number:
                values.pop(done, None)


# ---------------------------------------------------------------------------------------------------------------------
# Errors

_CALL = re.compile(r"(\w+) '@(\d+)(?:/([^']*))?'")
"""How a call is named in the errors of a graph, see `_Plan.graph`."""


def _locate(error: MLError, node: Pending) -> None:
    """Add the label of the call that failed, and where it was made."""
    name = node.template.op.name
    text = re.sub(rf"^{re.escape(name)}( '@0')?(?=\W)", lambda _: title(name, node.label), str(error), count=1)
    error.args = (f"{text} (called in {node.place})",)


def _locate_in(error: MLError, nodes: Sequence[Pending]) -> None:
    """The same for a graph: which call it was is said by the first one named, if one is."""
    found: list[Pending] = []

    def name(match: re.Match[str]) -> str:
        number = int(match[2])
        if number >= len(nodes) or (match[3] is None and nodes[number].template.op.name != match[1]):
            return match[0]
        found.append(nodes[number])
        return title(match[1], nodes[number].label if match[3] is None else match[3])

    text = _CALL.sub(name, str(error))
    if found:
        error.args = (f"{text} (called in {found[0].place})",)
    else:
        places = ", ".join(dict.fromkeys(node.place for node in nodes[:4]))
        error.args = (f"{text} (while computing what was called in {places})",)


# ---------------------------------------------------------------------------------------------------------------------
# What is kept in this process


def _after_fork() -> None:
    """A child has none of the threads of the engines, and nobody who would give the lock back."""
    global _lock
    _lock = RLock()
    adopted.after_fork()
    # To end an engine's session is to wait for its threads, for ever: those that came from the parent are never let go.
    entries = [entry for _, entry in graphs.items()]
    lost = [[entry.program for entry in entries], [template.program for _, template in singles.items()]]
    lost += [[variant.program for entry in entries for variant in entry.variants]]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(lost))
    graphs.clear()
    singles.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@op_level.provide
def _public(name: str) -> Any:
    return globals()[name]


__all__ = ["GRAPHS", "Record", "background", "compile_now", "force", "profile", "read", "statistics", "wait"]
