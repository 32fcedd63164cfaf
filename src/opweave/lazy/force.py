"""Compute pending arrays: as one compiled graph if the same calls have been read before, else one call at a time.

Graphs that differ only in the values of their inputs have the same signature, and share one program. The first read does not
wait for a compiler: it runs each call with a separate program. The second read starts the compiler in the background.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from .. import memory
from ..context.tensors import check_alive
from ..core.graph import title
from ..support.cache import Cache
from ..support.errors import MLError, require
from ..support.lazy_imports import compute
from . import deferred_free, from_memory, records
from .array import Array, ArrayTemplate, PendingCall, allocate, values_of
from .background import statistics
from .graphs import CallGraph, ResultSlot, calls_for, kept_results, signature
from .records import Record
from .weights import WholeWeight

if TYPE_CHECKING:
    from ..context.context import MLContext
    from ..run.program import Program

GRAPHS = 256
"""Maximum number of compiled graphs."""

SINGLES = 512
"""Maximum number of programs of single calls."""

SINGLE_BYTES = 80 * 2**10
"""Bytes that an engine holds for the program of a single call. An estimate."""

SINGLES_BYTES = 32 * 2**20
"""Maximum of `SINGLE_BYTES` for all programs of single calls."""

LARGEST = 2048
"""Maximum number of calls of a compiled graph."""

graphs: Cache[Any, WholeWeight] = Cache(GRAPHS, raw=True, on_drop=WholeWeight.drop)


def _release(template: ref[ArrayTemplate]) -> None:
    live = template()
    if live is not None:
        live.release()


singles: Cache[Hashable, ref[ArrayTemplate]] = Cache(SINGLES, SINGLES_BYTES, raw=True, on_drop=_release)
"""Templates with a program, by serial number. The references are weak: operations own their templates."""


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def read(*arrays: Array) -> tuple[np.ndarray, ...]:
    """Compute the values of several arrays as one graph.

    Args:
        arrays: arrays of any contexts, pending or not.

    Returns:
        A read-only NumPy array for each, in its data type and shape.

    >>> import opweave as ow
    >>> x = ow.array([1.0, 2.0])
    >>> [values.tolist() for values in ow.read(x + 1, x * x)]
    [[2.0, 3.0], [1.0, 4.0]]

    Raises:
        ValidationError: an argument is not an array.
        OperationError: a pending operation failed; the message names the line that called it.
    """
    for array in arrays:
        require(isinstance(array, Array), f"read takes arrays of opweave, got {type(array).__name__}")
    force(arrays)
    return tuple(array.numpy() for array in arrays)


@compute.provide
def force(arrays: Sequence[Array]) -> None:
    """Compute pending arrays, and the intermediate results that are still referenced elsewhere."""
    if len(arrays) == 1 and not records.active and _run_ready(arrays[0]):
        return
    # Lock order: tensors before reads. One read at a time, because reads may share pending calls.
    with from_memory.locks_of(arrays), deferred_free.lock:
        pending = [array for array in arrays if array.memory is None]
        while pending:
            context = pending[0].context
            check_alive(context)
            _run(context, [array for array in pending if array.context is context])
            pending = [array for array in pending if array.context is not context]


# ---------------------------------------------------------------------------------------------------------------------
# Running


def _run(context: MLContext, arrays: Sequence[Array]) -> None:
    nodes, uses = calls_for(arrays)
    requested = {id(array) for array in arrays}
    start, copies = (perf_counter(), memory.copies.count) if records.active else (0.0, 0)
    kept = kept_results(nodes, uses, requested)
    outputs = [array._allocate() for _, _, array in kept]
    constants = _run_together(context, nodes, kept, outputs) if len(nodes) > 1 else None
    if constants is None:
        _run_one_by_one(context, nodes, uses, kept, outputs)
    dropped = sum([len(node.outputs) for node in nodes]) - len(kept)
    statistics.values += len(kept)
    statistics.dropped += dropped
    if records.active:
        seconds = perf_counter() - start
        numbers = dropped, seconds, memory.copies.count - copies, constants or 0
        record = Record.of(nodes, kept, requested, constants is not None, *numbers)
        for collected in records.active:
            collected.append(record)
    for (_, _, array), value in zip(kept, outputs, strict=True):
        # Set `memory` before `node` is cleared: threads without the lock read `memory`.
        array.memory = value
        array.node = None
    # From the last call to the first, since a call holds the results of earlier calls as its inputs.
    for node in reversed(nodes):
        for output in node.outputs:
            result = output()
            # The result can still be read.
            if result is not None and result.memory is None:
                break
        else:
            node.inputs = ()


def _run_together(
    context: MLContext, nodes: Sequence[PendingCall], kept: Sequence[ResultSlot], outputs: Sequence[np.ndarray]
) -> int | None:
    """Run several calls with the program of their graph, and return the number of its constants; None if nothing ran."""
    if sum([node.template.size for node in nodes]) > LARGEST:
        return None
    key, leaves = signature(context, nodes, kept)
    inputs = [values_of(array) for array in leaves]
    deferred_free.drop_waiting()
    entry = graphs.make(key, WholeWeight)
    program, remaining = _find_program(entry, partial(CallGraph, context, nodes, kept), leaves, inputs)
    if program is None:
        return None
    try:
        program.run(remaining, outputs)
    except MLError as error:
        _locate_in(error, nodes)
        raise
    statistics.graphs += 1
    return len(inputs) - len(remaining)


def _find_program(
    entry: WholeWeight, graph: Callable[[], CallGraph], leaves: Sequence[Array], inputs: Sequence[np.ndarray]
) -> tuple[Program | None, Sequence[np.ndarray]]:
    variant = entry.find(inputs)
    program = variant.program if variant is not None else None
    if variant is not None and program is not None:
        return program, variant.select_others(inputs)
    program = entry.program or entry.count_use(graph().compile)
    if program is not None and variant is None:
        variant = entry.learn(graph, leaves, inputs)
        if variant is not None and variant.program is not None:
            return variant.program, variant.select_others(inputs)
    return program, inputs


def _run_one_by_one(
    context: MLContext,
    nodes: Sequence[PendingCall],
    uses: dict[int, int],
    kept: Sequence[ResultSlot],
    outputs: Sequence[np.ndarray],
) -> None:
    """Run each call in order, and free intermediates after their last use."""
    values = {id(array): output for (_, _, array), output in zip(kept, outputs, strict=True)}
    for node in nodes:
        template = node.template
        inputs = [values[id(array)] if array.memory is None else array.memory for array in node.inputs]
        results = []
        for output, desc in zip(node.outputs, template.descs, strict=True):
            array = output()
            value = None if array is None else values.get(id(array))
            if value is None:
                value = allocate(context, desc)
                if array is not None and id(array) in uses:
                    values[id(array)] = value
            results.append(value)
        _run_call(context, node, inputs, results)
        if len(nodes) > 1:
            for array in node.inputs:
                uses[id(array)] -= 1
                if not uses[id(array)]:
                    values.pop(id(array), None)


def _run_ready(array: Array) -> bool:
    """Run the only call that an array needs, since its operands are computed; return False if there are others.

    This is the most frequent read, and a third faster without `_run` (measured).
    """
    with deferred_free.lock:
        node = array.node
        if node is None or node.borrows or len(node.outputs) > 1:
            return False
        inputs = []
        for operand in node.inputs:
            if operand.memory is None:
                return False
            inputs.append(operand.memory)
        check_alive(array.context)
        output = array._allocate()
        _run_call(array.context, node, inputs, [output])
        statistics.values += 1
        array.memory = output
        array.node = None
        node.inputs = ()
        return True


def _run_call(
    context: MLContext, node: PendingCall, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> None:
    try:
        (node.template.program or program_of(node.template, context)).run(inputs, outputs)
    except MLError as error:
        _locate(error, node)
        raise
    statistics.operations += 1


def program_of(template: ArrayTemplate, context: MLContext) -> Program:
    """Return the program of a single call, compiled on first use. Templates belong to one device."""
    program = template.program
    if program is None:
        program = template.program = CallGraph.of_one(template, context).compile()
        singles.put(template.serial, ref(template), SINGLE_BYTES)
    return program


# ---------------------------------------------------------------------------------------------------------------------
# Errors

_CALL = re.compile(r"(\w+) '@(\d+)(?:/([^']*))?'")
"""Name of a call in the errors of a program, see `CallGraph.graph`."""


def _locate(error: MLError, node: PendingCall) -> None:
    error.args = (f"{name_call(str(error), node.template.op.name, node.label)} (called in {node.place})",)


def name_call(text: str, name: str, label: str) -> str:
    """Put the label of a call into the error text of its program."""
    return re.sub(rf"^{re.escape(name)}( '@0')?(?=\W)", lambda _: title(name, label), text, count=1)


def _locate_in(error: MLError, nodes: Sequence[PendingCall]) -> None:
    """Add the source line of the first call that the error of a graph names, else the lines of the first four calls."""
    calls: list[PendingCall] = []

    def name(match: re.Match[str]) -> str:
        number = int(match[2])
        if number >= len(nodes) or (match[3] is None and nodes[number].template.op.name != match[1]):
            return match[0]
        calls.append(nodes[number])
        return title(match[1], nodes[number].label if match[3] is None else match[3])

    text = _CALL.sub(name, str(error))
    if calls:
        error.args = (f"{text} (called in {calls[0].place})",)
    else:
        places = ", ".join(dict.fromkeys(node.place for node in nodes[:4]))
        error.args = (f"{text} (while computing what was called in {places})",)


# ---------------------------------------------------------------------------------------------------------------------
# Cached programs


def forget(serial: Hashable) -> None:
    """Drop the graphs that contain a template. The caller holds the lock of reads."""
    for key, entry in graphs.items():
        if serial in key:
            graphs.pop(key)
            entry.drop()


def _after_fork() -> None:
    deferred_free.after_fork()
    from_memory.after_fork()
    # Destroying an engine's session joins its threads, which do not exist in this process. So leak the parent's sessions.
    entries = [entry for _, entry in graphs.items()]
    leaked = [
        [entry.program for entry in entries],
        [t.program for _, reference in singles.items() if (t := reference()) is not None],
    ]
    leaked += [[variant.program for entry in entries for variant in entry.variants]]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(leaked))
    graphs.clear()
    singles.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
