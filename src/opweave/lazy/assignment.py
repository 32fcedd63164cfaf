"""Assignment to elements of arrays: an array gets other values, and calls that have read it keep what they have read.

Calls refer to arrays, which are immutable for them. `replace_values` therefore gives the old values to another object, which
takes the array's place in all pending calls, and computes the new values from it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from weakref import ref

from ..ops import identity
from . import deferred_free
from .array import Array, PendingCall, Watched, watch
from .mask import ArrayMask, as_mask


class Assigned(Watched):
    """An array that elements were assigned to; it records the pending results that depend on it."""

    __slots__ = ()


class AssignedMask(ArrayMask, Watched):
    """An array of truth values that elements were assigned to."""

    __slots__ = ()


_ASSIGNED = {Array: Assigned, ArrayMask: AssignedMask, Assigned: Assigned, AssignedMask: AssignedMask}
"""Classes of arrays that may be assigned to -> their classes from then on."""


def copy_of(array: Array) -> Array:
    """Return another array with the same values: assignments change only one of the two. Computed values are shared."""
    result: Array
    if array.memory is None or not is_assignable(array):
        result = identity(array)
    else:
        result = Array(array.context, array.desc, array.code, array=array.memory)
    return as_mask(result) if isinstance(array, ArrayMask) else result


def is_assignable(array: Array) -> bool:
    """Whether an array owns its values: it shares no memory with a NumPy array or tensor."""
    return type(array) in _ASSIGNED


def require_assignable(array: Array) -> None:
    """Require an array that is no constant of a function, and shares no memory, which a write would have to change."""
    if hasattr(array, "is_captured"):
        raise TypeError(
            f"x[key] = value: the array {array.desc} is a constant of a function of jit; pass it as an argument, or assign to "
            "array_api.asarray(x, copy=True)"
        )
    if not is_assignable(array):
        raise TypeError(
            f"x[key] = value: the array {array.desc} shares the memory of a NumPy array or a tensor; "
            "opweave.array(values) copies these"
        )


def replace_values(array: Array, compute: Callable[[Array], Array]) -> None:
    """Give an array the values that `compute` makes of its old ones, in the same data type and shape."""
    with deferred_free.lock:
        old = _with_old_values(array)
        try:
            result = compute(old)
        except BaseException:
            _take_values(array, copy_of(old))
            raise
        _take_values(array, result)


def _with_old_values(array: Array) -> Array:
    """Return a new object with the values of an array, which takes its place in pending calls."""
    old = Array(array.context, array.desc, array.code, array.node, array.memory)
    if isinstance(array, ArrayMask):
        as_mask(old)
    node = array.node
    if node is not None:
        node.outputs = tuple([ref(old) if output() is array else output for output in node.outputs])
        if node.borrows:
            watch(node.inputs, (ref(old),))
    for reader in _readers_of(array):
        reader.inputs = tuple([old if operand is array else operand for operand in reader.inputs])
        old.is_operand = True
    return old


def _readers_of(array: Array) -> list[PendingCall]:
    """Return the pending calls that take an array."""
    if array.is_written:
        readers = [result.node for reference in array.readers if (result := reference()) is not None]
        return [node for node in readers if node is not None and any(operand is array for operand in node.inputs)]
    if not hasattr(array, "is_operand"):
        return []
    # Arrays do not record who reads them, as that would slow down each call. From now on, this one does.
    return list(_holders_of(array))


def _holders_of(array: Array) -> Iterator[PendingCall]:
    """Find the pending calls that hold an array among all objects of Python."""
    frozen = gc.get_freeze_count()
    if frozen:
        gc.unfreeze()
    try:
        for operands in gc.get_referrers(array):
            if type(operands) is tuple:
                for node in gc.get_referrers(operands):
                    if isinstance(node, PendingCall) and node.inputs is operands:
                        yield node
    finally:
        if frozen:
            gc.freeze()


def _take_values(array: Array, result: Array) -> None:
    """Let an array have the values of a new one, which nothing else refers to."""
    node = result.node
    array.reads = 0
    array.memory, array.node = result.memory, node
    if node is not None:
        references = tuple([ref(array) if output() is result else output for output in node.outputs])
        if node.borrows:
            watch(node.inputs, references)
        node.outputs, node.borrows = references, True
    array.__class__ = _ASSIGNED[type(array)]
    array.readers = []


__all__ = ["Assigned", "AssignedMask", "copy_of", "is_assignable", "replace_values", "require_assignable"]
