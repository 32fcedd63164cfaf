"""Make arrays from values, NumPy arrays and tensors. The memory of NumPy arrays and tensors is shared where possible."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import numpy as np

from .. import memory
from ..context.context import MLContext, current_context
from ..context.tensor import Locks, MLTensor, guard_of, memory_of
from ..core.dtypes import INFO, DataType, check
from ..core.graph import Desc, Operand, check_desc
from ..memory import pool
from ..memory.arrays import as_array, contiguous, describe, is_immutable
from ..support.errors import ValidationError, require
from ..support.names import short_repr
from .array import Array, Watched, code_of, force
from .assignment import copy_of


def array(values: Any, data_type: DataType | None = None, *, copy: bool = True) -> Array:
    """Make an array.

    Args:
        values: an array, anything with DLPack, a tensor, a number, or nested lists of numbers.
        data_type: the data type of the result; default: that of `values`, float32 for Python floats, int32 for integers.
        copy: whether the values are copied. If not, the array shares the memory of `values`.

    Shared memory must not change while a pending operation reads it; this includes arrays that are passed to operations. NumPy
    arrays are read-only until then, so that a write raises an error (other views of the same memory are not protected).
    Tensors may be written: pending operations that read a tensor are computed before the write.

    In a context on a GPU, values are copied to the device, and results stay there until they are read.

    As in NumPy, a Python integer that `data_type` does not hold is an error, while integers of an array wrap around.

    >>> import opweave as ow
    >>> x = ow.array([[1.0, 2.0], [3.0, 4.0]])
    >>> (x @ x + 1).tolist()
    [[8.0, 11.0], [16.0, 23.0]]

    Raises:
        ValidationError: WebNN has no data type for the values.
    """
    if data_type is not None and not isinstance(values, Array):
        check(data_type)
    result = make_array(values, data_type, copy)
    return copy_of(result) if copy and result is values and isinstance(result, Array) else result


def make_array(
    values: Any, data_type: DataType | None = None, copy: bool = True, *, takes_float64: bool = False
) -> Array:
    """Make an array as `array` does; with `takes_float64`, also one of the standard's float64."""
    if isinstance(values, Array) and data_type in (None, values.data_type):
        return values
    # An operand in a function that is traced, or that builds a graph.
    if isinstance(values, Operand):
        if data_type is None or data_type == values.data_type:
            return cast("Array", values)
        return cast("Array", values.cast(data_type))
    context = current_context()
    if isinstance(values, MLTensor):
        borrowed = borrow(values)
        if not copy and data_type in (None, borrowed.data_type):
            return borrowed
        context, source = borrowed.context, borrowed.numpy()
    elif isinstance(values, (np.ndarray, np.generic)) or hasattr(values, "__dlpack__") or hasattr(values, "__array__"):
        source = values if type(values) is np.ndarray else as_array(values, "values")
        if not copy and data_type in (None, source.dtype.name):
            desc = check_desc(
                describe(source, "values", takes_float64 and source.dtype == np.float64),
                context.backend.max_byte_length,
                "values",
                takes_empty=True,
            )
            return adopt(context, source, desc, code_of(desc))
    else:
        source, data_type = _from_numbers(values, data_type)
    if data_type is not None:
        desc = Desc(data_type, source.shape)
    else:
        desc = describe(source, "values", takes_float64 and source.dtype == np.float64)
    own = pool.room(check_desc(desc, context.backend.max_byte_length, "values", takes_empty=True))
    np.copyto(own, source, casting="unsafe")
    space = context.backend.space
    if space.is_host:
        memory.copies.add(own.nbytes, "array()")
        return Array(context, desc, code_of(desc), array=own)
    on_device = space.allocate(desc)
    space.write(on_device, own, "array()")
    return Array(context, desc, code_of(desc), array=on_device)


def _from_numbers(values: Any, data_type: DataType | None) -> tuple[np.ndarray, DataType]:
    try:
        numbers = np.array(values)
    except ValueError as error:
        raise ValidationError(f"values must be numbers in lists of the same lengths: {error}") from None
    if numbers.dtype.kind not in "fiub":
        got = numbers.dtype.name if numbers.dtype.kind == "c" else short_repr(values)
        raise ValidationError(f"values must be numbers that a data type of WebNN can hold, got {got}")
    if data_type is None:
        data_type = "float32" if numbers.dtype.kind == "f" else "uint8" if numbers.dtype.kind == "b" else "int32"
    if INFO[data_type].kind != "f" and numbers.size and numbers.dtype.kind in "iu":
        low, high = int(numbers.min()), int(numbers.max())
        fits = INFO[data_type].lowest <= low and high <= INFO[data_type].highest
        require(fits, f"values in [{low}, {high}] are not all values of {data_type}; data_type= takes a wider one")
    return numbers, data_type


# ---------------------------------------------------------------------------------------------------------------------
# Memory of NumPy arrays


class _Locked(list[np.ndarray]):
    """Read-only NumPy arrays over memory that `readers` objects read. No `__init__`: it would cost 0.1 us a call."""

    __slots__ = ("owner", "readers")

    owner: np.ndarray
    readers: int


_locked: dict[int, _Locked] = {}
_adopted: dict[int, ref[Adopted]] = {}
# Reentrant: `__del__` takes the lock, too, and may run at any time.
_lock = RLock()


def after_fork() -> None:
    """Replace the lock, which another thread of the parent process may have held."""
    global _lock
    _lock = RLock()


class Adopted(Array):
    """A caller's NumPy array, which is read-only while this object exists: NumPy does not report writes."""

    __slots__ = ("_owner", "source")

    def __init__(self, context: MLContext, desc: Desc, code: int, array: np.ndarray, is_writable: bool) -> None:
        # As `Array.__init__`, but faster. The view is made first, so that it stays writable: old versions of DLPack need that.
        self.context, self._desc, self.code = context, desc, code
        self.node, self.memory, self.reads = None, array.view(), 0
        self.source = owner = array
        base = array.base
        while base is not None and isinstance(base, np.ndarray):
            owner, base = base, base.base
        number = self._owner = id(owner)
        lock = _lock
        # Saves 0.1 us over `with lock`. An interrupt after `acquire` does not leave the lock held.
        try:
            lock.acquire()
            locked = _locked.get(number)
            if locked is None:
                locked = _locked[number] = _Locked()
                locked.owner, locked.readers = owner, 1
            else:
                locked.readers += 1
            # Read `flags` again: another thread may just have released the array. `setflags(False)` is faster than by name.
            if (is_writable or array.flags.writeable) and (base is None or _is_writable_buffer(base)):
                array.setflags(False)  # type: ignore[call-arg]
                locked.append(array)
            _adopted[id(array)] = ref(self)
        finally:
            lock.release()

    def __del__(self) -> None:
        try:
            number = self._owner
        except AttributeError:
            # `__init__` failed.
            return
        lock = _lock
        try:
            lock.acquire()
            source = id(self.source)
            reference = _adopted.get(source)
            adopted = reference() if reference is not None else None
            # Else the entry belongs to another context.
            if adopted is None or adopted is self:
                _adopted.pop(source, None)
            _release(number)
        finally:
            lock.release()


def _release(number: int) -> None:
    """Remove one reader of an owner's memory; the last one makes the arrays writable. The caller holds `_lock`."""
    locked = _locked[number]
    locked.readers -= 1
    if locked.readers:
        return
    del _locked[number]
    # The owner first: a view can become writable only after its base.
    if len(locked) > 1:
        locked.sort(key=_depth)
    for array in locked:
        array.setflags(True)  # type: ignore[call-arg]


def _depth(array: np.ndarray) -> int:
    depth, base = 0, array.base
    while isinstance(base, np.ndarray):
        depth, base = depth + 1, base.base
    return depth


def _is_writable_buffer(base: object) -> bool:
    """Whether NumPy can make arrays over an object's memory writable again, as the base of an array from DLPack cannot."""
    try:
        with memoryview(base) as buffer:  # type: ignore[arg-type]
            return not buffer.readonly
    except (TypeError, ValueError, BufferError):
        return False


def adopt(context: MLContext, value: np.ndarray, desc: Desc, code: int) -> Array:
    """Return an array that shares the memory of a NumPy array, or a copy if engines cannot read that."""
    flags = value.flags
    # Writable, contiguous and aligned.
    is_writable = flags.carray
    if not is_writable:
        usable = contiguous(value)
        if usable is not value:
            return Array(context, desc, code, array=usable)
        is_writable = flags.writeable
        reference = _adopted.get(id(value))
        adopted = reference() if reference is not None else None
        if adopted is not None and adopted.context is context and adopted.source is value and adopted.code == code:
            return adopted
    return Adopted(context, desc, code, value, is_writable)


class Captured:
    """A NumPy array that is a constant of a cached graph. It, and all arrays that it is a view of, are read-only.

    `array` is a view of it if it owns its memory or is immutable, else a copy.
    """

    __slots__ = ("_owners", "_source", "array")

    def __init__(self, source: np.ndarray) -> None:
        self._source, self._owners = source, list[int]()
        is_private = source.base is None or is_immutable(source)
        segments = _segments(source)
        with _lock:
            for arrays, base in segments:
                owner = arrays[-1]
                locked = _locked.get(id(owner))
                if locked is None:
                    locked = _locked[id(owner)] = _Locked()
                    locked.owner, locked.readers = owner, 0
                locked.readers += 1
                self._owners.append(id(owner))
                if base is None or _is_writable_buffer(base):
                    for array in arrays:
                        if array.flags.writeable:
                            array.setflags(write=False)
                            locked.append(array)
        # Other views of shared memory, and other libraries, can still write to it.
        usable = contiguous(source)
        if usable is source and not is_private:
            usable = np.empty(source.shape, source.dtype)
            memory.copy(usable, source, "captured by a function of jit")
        self.array = usable.view(np.ndarray)

    def __del__(self) -> None:
        with _lock:
            for number in self._owners:
                _release(number)


def source_of(value: Any) -> np.ndarray | None:
    """Return the caller's NumPy array, or a view of another library's memory; None for arrays that own their values."""
    if isinstance(value, Array):
        return value.source if isinstance(value, Adopted) else None
    plain = as_array(value, "an array")
    # For a subclass, return the original: a locked view would leave the original writable.
    return value if isinstance(value, np.ndarray) else plain


def _segments(array: np.ndarray) -> list[tuple[list[np.ndarray], object]]:
    """Follow the bases of an array: return lists of arrays, views before their base, each with the object under the last one.

    The object is None if the last array owns the memory. A memoryview between arrays starts a new list.
    """
    segments: list[tuple[list[np.ndarray], object]] = []
    base: object = array
    while isinstance(base, np.ndarray):
        arrays = [base]
        while isinstance(base := arrays[-1].base, np.ndarray):
            arrays.append(base)
        segments.append((arrays, base))
        # `as_strided` and `sliding_window_view` wrap the array in a helper object, whose attribute `base` is the array.
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return segments


# ---------------------------------------------------------------------------------------------------------------------
# Memory of tensors


class Borrowed(Watched):
    """The memory of a tensor. `settle` computes the pending operations that read the tensor before it is written."""

    __slots__ = ("tensor_ref",)

    def __init__(self, tensor: MLTensor) -> None:
        super().__init__(tensor.context, tensor.desc, code_of(tensor.desc), array=memory_of(tensor))
        self.tensor_ref = ref(tensor)

    def _is_immutable(self) -> bool:
        tensor = self.tensor_ref()
        is_on_host = isinstance(self.memory, np.ndarray)
        return is_on_host and tensor is not None and tensor.constant and not tensor.destroyed

    def release_with_tensor(self, binding: Any) -> None:
        """Call `binding.release()` when the tensor is destroyed."""
        tensor = self.tensor_ref()
        if tensor is not None:
            guard_of(tensor).bindings.add(binding)

    def _watch(self, outputs: Sequence[ref[Array]]) -> None:
        tensor = self.tensor_ref()
        if tensor is None or tensor.constant:
            return
        with guard_of(tensor).lock:
            if not self.readers:
                # The next dispatch that writes the tensor must bind again, which calls `settle`.
                guard_of(tensor).release_bindings()
            super()._watch(outputs)

    def settle(self) -> None:
        """Compute the pending results that depend on the tensor. If one fails, the tensor cannot be written."""
        if not self.readers:
            return
        readers, self.readers = self.readers, []
        try:
            force([array for reader in readers if (array := reader()) is not None and array.memory is None])
        except BaseException:
            self.readers += readers
            raise


_lasting: WeakKeyDictionary[MLTensor, Borrowed] = WeakKeyDictionary()


def borrow(tensor: MLTensor) -> Borrowed:
    """Return the memory of a tensor as an array: the same object while it is referenced."""
    guard = guard_of(tensor)
    with guard.lock:
        borrowed = guard.borrowed() if guard.borrowed is not None else None
        if borrowed is None or borrowed.memory is not memory_of(tensor):
            borrowed = Borrowed(tensor)
            guard.borrowed = ref(borrowed)
            if tensor.constant:
                # Return one object for all calls, so that `weights` recognises it.
                _lasting[tensor] = borrowed
        return borrowed


def locks_of(arrays: Sequence[Array]) -> AbstractContextManager[Any]:
    """Return the locks of all tensors that the computation of arrays reads."""
    stack = [node for array in arrays if (node := array.node) is not None and node.borrows]
    if not stack:
        return nullcontext()
    seen: set[int] = set()
    tensors: dict[int, MLTensor] = {}
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for array in node.inputs:
            producer = array.node
            if producer is not None and producer.borrows:
                stack.append(producer)
            elif isinstance(array, Borrowed) and (tensor := array.tensor_ref()) is not None:
                tensors[id(tensor)] = tensor
    return Locks(list(tensors.values()))
