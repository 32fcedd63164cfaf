"""Lazy arrays: the results of operations called on arrays, computed when they are read.

A call that has not run yet is a `PendingCall`; its results are `Array`s that refer to it. Calls that differ only in the values
of their operands share a `ArrayTemplate`, the result of validation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from weakref import ref

import numpy as np

from .. import memory
from ..core.dtypes import INFO, DataType
from ..core.graph import Desc, Operand, map_operands, title
from ..core.operation import Op
from ..core.operators import Operators
from ..memory import pool
from ..memory.spaces import Memory
from ..ops import Operations
from ..support import hints
from ..support.cache import Cache
from ..support.errors import ValidationError, require
from ..support.lazy_imports import compute
from ..support.names import file_name, listing
from .standard import COMPARISONS, StandardArray, number_of

if TYPE_CHECKING:
    from ..context.context import MLContext
    from ..run.program import Program

LONGEST = 256
"""Maximum depth of a chain of pending operations. A deeper chain is computed without a read, to bound its memory."""

KINDS = 4096
"""Maximum number of entries of the caches below."""

_NEVER = -sys.maxsize
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")

_numbers = count(1)

codes: Cache[Desc, int] = Cache(KINDS, raw=True)

cuts: Cache[Any, tuple[ArrayTemplate, ...]] = Cache(KINDS, raw=True)
"""Calls that an index expression makes, by code of the array, device and index."""


def code_of(desc: Desc) -> int:
    """Return a number that identifies a data type and shape in this process; after an eviction, it is a new one."""
    return codes.peek(desc) or codes.make(desc, lambda: next(_numbers))


@dataclass(eq=False, slots=True, weakref_slot=True)
class ArrayTemplate:
    """A validated call without the values of its operands, for one device.

    Attributes:
        inputs: position of the operand for each operand parameter, or positions for a sequence.
        descs, codes: data types and shapes of the results, and their codes (`code_of`).
        operands, operand_codes: data types and shapes of the operands, and their codes.
        numbers: data types of those operands that are Python numbers, by position.
        serial: identifies the template in the keys of graphs.
        program: the compiled operation; None until it first runs on its own.
        size: number of operations.
        is_tuple: whether the call returns a tuple, which may have one element.
    """

    op: Op[..., Any]
    inputs: Mapping[str, Any]
    attributes: Mapping[str, Any]
    descs: tuple[Desc, ...]
    codes: tuple[int, ...]
    operands: tuple[Desc, ...]
    numbers: Mapping[int, DataType]
    serial: Hashable
    program: Program | None = None
    size: int = 1
    is_tuple: bool = False
    operand_codes: tuple[int, ...] = ()

    def release(self) -> None:
        """Release the program; the next run on its own compiles it again."""
        self.program = None

    def add_to(self, builder: Operations, operands: Sequence[Operand], label: str = "") -> tuple[Operand, ...]:
        """Add a node for the call to a graph."""
        inputs = map_operands(self.inputs, operands.__getitem__)
        return builder._add_node(self.op, inputs, self.attributes, label, self.descs)


class PendingCall:
    """A call that has not run yet. `outputs` are weak references: a deleted result needs no value."""

    __slots__ = ("borrows", "depth", "inputs", "label", "outputs", "site", "template")

    def __init__(self, template: ArrayTemplate, inputs: tuple[Array, ...], label: str, site: tuple[Any, int]) -> None:
        self.template, self.inputs, self.label = template, inputs, label
        # The caller's code object and instruction offset.
        self.site = site
        depth: int = 0
        borrows: bool = False
        for array in inputs:
            array.is_operand = True
            node = array.node
            if node is not None:
                if node.depth > depth:
                    depth = node.depth
                borrows = borrows or node.borrows
            elif array.is_written:
                borrows = True
        self.depth: int = depth + 1
        self.borrows: bool = borrows
        self.outputs: tuple[ref[Array], ...] = ()

    @property
    def place(self) -> str:
        """The line that made the call: `model.py, line 12`."""
        code, offset = self.site
        line = next((line for first, stop, line in code.co_lines() if first <= offset < stop), None)
        return f"{file_name(code.co_filename)}, line {line or code.co_firstlineno}"


class ArrayLike(Operators):
    """Base of `Array` and of `Traced` operands: the attributes of NumPy's arrays."""

    __slots__ = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type as a NumPy dtype."""
        return np.dtype(self._desc.data_type)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._desc.rank

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._desc.element_count


class LazyValue:
    """State of an array that the modules of this package share; it is not part of the API, so `dir` does not list it.

    Attributes:
        code: code of the data type and shape (`code_of`).
        is_captured: True once the array is a constant of a function of `jit`; not set before.
        is_operand: True once a call has taken the array; not set before.
        memory: the values; None while they are pending.
        node: the pending call; None once the values are computed.
        readers: the pending results of calls that take the array, if it is written to (`Watched`); else not set.
        reads: number of reads as a weight (`opweave.lazy.weights`); negative if the array must not be a weight.
    """

    __slots__ = ("code", "is_captured", "is_operand", "memory", "node", "readers", "reads")
    is_written: ClassVar[bool] = False
    """Whether the array may get other values: it has the memory of a tensor, or `x[key] = value` has assigned to it."""

    if TYPE_CHECKING:
        code: int
        is_captured: bool
        is_operand: bool
        memory: Memory | None
        node: PendingCall | None
        readers: list[ref[Array]]
        reads: int

    def __dir__(self) -> list[str]:
        return listing(self, _INTERNAL)


_INTERNAL = frozenset(name for name in vars(LazyValue) if not name.startswith("_"))


_REFLECTED = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "left_shift": "__rlshift__",
    "right_shift": "__rrshift__",
}
"""The ufunc that NumPy calls for `array + self` -> the operator of `self`."""


class Array(LazyValue, StandardArray, ArrayLike):
    """An array in a context, whose values may be pending. Made by `opweave.array` and by operations.

    It has the operators and methods of operands (`x @ w + b`, `x[..., 1:]`, `x.relu()`), and those of the Python array API
    standard (`x > 0`, `x.mT`, `opweave.array_api`). Reading it with `numpy()`, `np.asarray`, DLPack or `item()` computes
    everything that it depends on, as one graph.

    >>> import opweave as ow
    >>> x = ow.array([[1.0, 2.0, 3.0]])
    >>> y = x * 2 + 1
    >>> y.pending, y.shape, y.data_type, y.dtype.name, y.rank, y.ndim, y.size
    (True, (1, 3), 'float32', 'float32', 2, 2, 3)
    >>> y.tolist(), y[0, -1].item(), y.T.shape, y.mT.numpy().flags.writeable
    ([[3.0, 5.0, 7.0]], 7.0, (3, 1), False)
    >>> print(y.desc, y.context is x.context is x.device)
    float32[1, 3] True
    >>> y.to_device(ow.ml.create_context(device="reference")).context
    <MLContext on reference>
    """

    __slots__ = {"__weakref__": None, "_desc": None, "context": "Context that computes the array."}

    def __init__(
        self,
        context: MLContext,
        desc: Desc,
        code: int,
        # Not keyword-only: positional arguments are faster.
        node: PendingCall | None = None,
        array: np.ndarray | None = None,
    ) -> None:
        self.context, self._desc, self.code = context, desc, code
        self.node, self.memory = node, array
        self.reads = 0

    @property
    def pending(self) -> bool:
        """Whether the values are not computed yet."""
        return self.memory is None

    def numpy(self) -> np.ndarray:
        """A read-only view of the values; pending values are computed first.

        Raises:
            OperationError: a pending operation failed; the message names the line that called it.
        """
        values = values_of(self)
        view = values.view() if type(values) is np.ndarray else host_values(self).view()
        view.setflags(write=False)  # faster than view.flags
        return view

    def _as_read(self) -> np.ndarray:
        return host_values(self)

    def _is_immutable(self) -> bool:
        return type(self) is Array and self.reads >= 0 and isinstance(self.memory, np.ndarray)

    def _allocate(self) -> Memory:
        return allocate(self.context, self._desc)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # Comparisons with a NumPy array on the left: array < self.
        if method == "__call__" and not options and ufunc.__name__ in COMPARISONS.values():
            first, second = inputs
            return getattr(self.__array_namespace__(), ufunc.__name__)(number_of(first), second)
        if method == "__call__" and not options and ufunc.__name__ in _REFLECTED and not isinstance(inputs[0], Array):
            # The reflected operator promotes, and refuses truth values.
            return getattr(self, _REFLECTED[ufunc.__name__])(inputs[0])
        return super().__array_ufunc__(ufunc, method, *inputs, **options)

    def _refuse_ufunc(self, ufunc: Any, method: str) -> NoReturn:
        hint = hints.function("np", ufunc, method, f"an opweave.Array {self._desc}", dir(self))
        raise ValidationError(f"{hint}; x.numpy() is an array of NumPy")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        # DLPack before version 1 cannot mark memory as read-only: consumers must not write to it.
        options = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        options = {name: value for name, value in options.items() if value is not None}
        knows_read_only = max_version is not None and max_version >= (1, 0)
        values = host_values(self)
        if self._is_immutable():
            # PyTorch lets users write to read-only memory. With a new identity, the array is no constant of compiled programs.
            self.reads, self.memory = _NEVER, values.view()
        return (self.numpy() if knows_read_only else self._as_read()).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        # kDLCPU, device 0.
        return 1, 0

    def item(self) -> int | float:
        """The value of an array of one element, as a Python number."""
        require(self.size == 1, f"item() takes an array of one element, got {self._desc}")
        number: int | float = self._as_read().item()
        return number

    def tolist(self) -> Any:
        """The values as nested lists."""
        return self._as_read().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if INFO[self._desc.data_type].kind == "f" or self.size != 1:
            raise TypeError(f"an index must be an integer, got an array {self._desc}")
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __contains__(self, item: Any) -> bool:
        """Whether an element equals `item`."""
        return bool((self._as_read() == item).any())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __repr__(self) -> str:
        node, desc = self.node, f"{self.dtype}{list(self.shape)}"
        if self.memory is None and node is not None:
            return f"<Array {desc}, pending: {title(node.template.op.name, node.label)}>"
        values = np.array2string(self._as_read(), threshold=20, edgeitems=3, separator=", ", prefix="<Array ")
        return f"<Array {values}, {desc}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an array belongs to its context and cannot be pickled; array.numpy() can")

    def __getitem__(self, key: Any) -> Array:
        """Select elements as in NumPy: by integers, slices and `...`, and by arrays of positions or truth values, which are
        computed at once. None adds an axis of size 1.

        The result is another array, which later assignments to this one do not change.
        """
        frozen, context = _freeze_index(key), self.context
        if frozen is None:
            result: Array = super().__getitem__(key)
            return result
        whole = self.code, context._place, frozen
        steps = cuts.peek(whole)
        result = self
        if steps is not None:
            for template in steps:
                result = defer(template, (result,), "", context, sys._getframe(1))
            return result
        result = super().__getitem__(key)
        if result is self:
            return self.__copy__()
        steps = _steps(self, result)
        if steps is not None:
            cuts.put(whole, steps)
        return result

    def _watch(self, outputs: Sequence[ref[Array]]) -> None:
        """Record the pending results of a call that reads the array. Only memory that may be written needs them."""

    def _apply(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(Operations, name)(*args, **kwargs)


def values_of(array: Array) -> Memory:
    """Compute the values of an array if they are pending, and return their memory in the space of the context."""
    values = array.memory
    if values is None:
        force((array,))
        values = array.memory
        assert values is not None
    return values


def host_values(array: Array) -> np.ndarray:
    """Return the values of an array in host memory; for memory on a device, a counted copy."""
    values = values_of(array)
    if isinstance(values, np.ndarray):
        return values
    target = memory.empty(array.desc)
    array.context.backend.space.read([values], [target], "reading an array")
    return target


def allocate(context: MLContext, desc: Desc) -> Memory:
    """Allocate memory for a result, in the space of its context."""
    space = context.backend.space
    return pool.room(desc) if space.is_host else space.allocate(desc)


class Number(Array):
    """A Python number as an operand; equal numbers share memory."""

    __slots__ = ()

    def __init__(self, context: MLContext, array: np.ndarray, desc: Desc, code: int) -> None:
        # As `Array.__init__`, but faster.
        self.context, self._desc, self.code = context, desc, code
        self.node, self.memory, self.reads = None, array, 0


class Watched(Array):
    """An array that may get other values. Records the pending results that depend on the array."""

    __slots__ = ()
    is_written = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.readers = []

    def _watch(self, outputs: Sequence[ref[Array]]) -> None:
        if len(self.readers) % 64 == 63:
            self.readers = [*map(ref, self.pending_readers)]
        self.readers += outputs

    @property
    def pending_readers(self) -> list[Array]:
        """Return the pending results that depend on the array."""
        return [array for reader in self.readers if (array := reader()) is not None and array.pending]


# ---------------------------------------------------------------------------------------------------------------------
# Deferring


def site_of(frame: Any) -> tuple[Any, int]:
    """Return code object and instruction offset of the innermost caller outside of Opweave."""
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def defer(template: ArrayTemplate, inputs: tuple[Array, ...], label: str, context: MLContext, frame: Any) -> Any:
    """Return the pending result, or tuple of results, of a validated call. `site_of(frame)` is the calling line."""
    node = PendingCall(template, inputs, label, site_of(frame))
    if len(template.descs) == 1:
        output = Array(context, template.descs[0], template.codes[0], node)
        outputs: tuple[Array, ...] = (output,)
        node.outputs = (ref(output),)
    else:
        outputs = tuple(
            [Array(context, desc, code, node) for desc, code in zip(template.descs, template.codes, strict=True)]
        )
        node.outputs = tuple([ref(output) for output in outputs])
    if node.borrows:
        watch(inputs, node.outputs)
    if node.depth >= LONGEST:
        force(outputs)
    return outputs if template.is_tuple else outputs[0]


def watch(inputs: Sequence[Array], outputs: Sequence[ref[Array]]) -> None:
    """Tell the operands of a call which pending results depend on them, as those that may get other values must know."""
    for array in inputs:
        array._watch(outputs)


_PLAIN = frozenset({int, type(None)})


def _freeze_index(key: Any) -> tuple[Any, ...] | None:
    """Return a hashable key for an index of integers, slices, `...` and None, else None."""
    frozen: list[Any] = []
    for item in key if type(key) is tuple else (key,):
        kind = type(item)
        if kind is slice:
            start, stop, step = item.start, item.stop, item.step
            if type(start) not in _PLAIN or type(stop) not in _PLAIN or type(step) not in _PLAIN:
                return None
            frozen.append((start, stop, step))
        elif kind is int or item is None or item is Ellipsis:
            frozen.append(item)
        else:
            return None
    return tuple(frozen)


def _steps(source: Array, result: Array) -> tuple[ArrayTemplate, ...] | None:
    """Return the templates of the pending calls that lead from `source` to `result`; None if one has run already."""
    steps: list[ArrayTemplate] = []
    while result is not source:
        node = result.node
        inputs = node.inputs if node is not None else ()
        if node is None or not inputs:
            return None
        steps.append(node.template)
        result = inputs[0]
    return tuple(reversed(steps))


def force(arrays: Sequence[Array]) -> None:
    """Compute those arrays that are pending."""
    (compute.function or compute.load())(arrays)
