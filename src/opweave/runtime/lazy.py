"""Arrays whose values are computed when somebody looks: the results of operations that are called one by one.

A call validates its arguments, notes what is to be done, and returns. Calls that differ in their values only are validated
once: what follows from the data types, shapes and attributes is kept as a `Template`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn, cast
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import numpy as np

from .. import memory, operation
from ..arrays import as_array, contiguous, describe
from ..dtypes import INFO, DataType, cast_number, check
from ..errors import ValidationError, require
from ..graph import Builder, Desc, Operand, Operators, check_desc, title
from ..operation import Op
from ..ops import Operations
from ..passes.legalise import constant
from ..tensor import MLTensor

if TYPE_CHECKING:
    from ..backends import Executable
    from ..context import MLContext

LONGEST = 256
"""A chain of so many operations runs by itself, so that programs which never look do not grow without end."""

TEMPLATES = 1024
"""For how many combinations of data types, shapes and attributes an operation remembers a validated call."""

KINDS = 4096
"""How many data types and shapes are numbered at a time."""

_NEVER = -sys.maxsize

entered: ContextVar[tuple[MLContext, ...]] = ContextVar("contexts", default=())
"""The contexts of the `with` blocks that we are in."""

_codes: dict[Desc, int] = {}
_numbers = count()


def code_of(desc: Desc) -> int:
    """A number for a data type and shape, quicker to compare than those. It stands for no other, in all of the process.

    One that has been forgotten gets another number when it comes again: its calls are validated once more.
    """
    code = _codes.get(desc)
    if code is None:
        code = _codes.setdefault(desc, next(_numbers))
        if len(_codes) > KINDS:
            _codes.clear()
    return code


@dataclass(eq=False, slots=True)
class Template:
    """A validated call, but for the values of its operands.

    Attributes:
        op: the operation.
        inputs: the numbers of the operands of each parameter.
        attributes: the values of the other parameters.
        descs: data types and shapes of the results.
        codes: the numbers of these.
        operands: data types and shapes of the operands.
        numbers: the data types of operands that were given as Python's numbers, by their numbers.
        serial: tells templates apart.
        executable: the operation on its own, once that was needed, on the one device that the template is for.
        size: how many operations it stands for.
        is_tuple: whether the results are given as a tuple, also where it is one result.
    """

    op: Op[..., Any]
    inputs: Mapping[str, Any]
    attributes: Mapping[str, Any]
    descs: tuple[Desc, ...]
    codes: tuple[int, ...]
    operands: tuple[Desc, ...]
    numbers: Mapping[int, DataType]
    serial: Hashable
    executable: Executable | None = None
    size: int = 1
    is_tuple: bool = False

    def add_to(self, builder: Operations, operands: Sequence[Operand], label: str = "") -> tuple[Operand, ...]:
        """Add a node for the call to a graph."""

        def pick(value: Any) -> Any:
            return tuple(map(pick, value)) if isinstance(value, tuple) else None if value is None else operands[value]

        inputs = {name: pick(value) for name, value in self.inputs.items()}
        return builder.add_node(self.op, inputs, self.attributes, label, self.descs)


class Pending:
    """A call whose results are not computed yet; `outputs` are gone where nobody can ask for them any more."""

    __slots__ = ("borrows", "depth", "inputs", "label", "outputs", "site", "template")

    def __init__(self, template: Template, inputs: tuple[Array, ...], label: str, site: tuple[Any, int]) -> None:
        self.template, self.inputs, self.label, self.site = template, inputs, label, site
        depth: int = 0
        borrows: bool = False
        for array in inputs:
            node = array._node
            if node is not None:
                if node.depth > depth:
                    depth = node.depth
                borrows = borrows or node.borrows
            elif type(array) is Borrowed:
                borrows = True
        self.depth: int = depth + 1
        self.borrows: bool = borrows
        self.outputs: tuple[ref[Array], ...] = ()

    @property
    def place(self) -> str:
        """Where the call was made: `model.py, line 12`."""
        code, line = self.site
        return f"{code.co_filename.rpartition('/')[2]}, line {line}"


class Array(Operators):
    """An array in a context, whose values may still have to be computed. Made by `opweave.array` and by operations.

    It has the operators and the methods of operands (`x @ w + b`, `x[..., 1:]`, `x.relu()`), and is read with `numpy()`,
    `np.asarray`, DLPack or `item()`: then what it needs is computed, as one graph.
    """

    __slots__ = ("__weakref__", "_array", "_code", "_context", "_desc", "_node", "_reads")
    __array_ufunc__ = None  # so that `array + x` asks x

    def __init__(
        self, context: MLContext, desc: Desc, code: int, *, node: Pending | None = None, array: np.ndarray | None = None
    ) -> None:
        self._context, self._desc, self._code = context, desc, code
        self._node, self._array = node, array
        self._reads = 0  # how often it was a weight (`opweave.runtime.constants`); never again if negative

    @property
    def data_type(self) -> DataType:
        """Type of the elements."""
        return self._desc.data_type

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same, as NumPy has it."""
        return np.dtype(self._desc.data_type)

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return self._desc.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions, as NumPy calls it."""
        return len(self._desc.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._desc.element_count

    @property
    def desc(self) -> Desc:
        """Data type and shape."""
        return self._desc

    @property
    def context(self) -> MLContext:
        """Where it is computed."""
        return self._context

    @property
    def pending(self) -> bool:
        """Whether its values are still to be computed."""
        return self._array is None

    def numpy(self) -> np.ndarray:
        """The values, a read-only view; computes them first, if they are pending.

        Raises:
            OperationError: a pending operation failed; the message says where it was called.
        """
        view = self._values().view()
        view.flags.writeable = False
        return view

    def _values(self) -> np.ndarray:
        values = self._array
        if values is None:
            _force((self,))
            values = self._array
            assert values is not None
        return values

    def _is_immutable(self) -> bool:
        """Whether nobody can write to the memory, now or later."""
        return type(self) is Array and self._reads >= 0

    def _room(self) -> np.ndarray:
        """Memory for the values, which are about to be computed."""
        return memory.empty(self._desc)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        # DLPack has no read-only memory before its version 1; what comes of it must not be written to.
        knows_read_only = (options.get("max_version") or (0,)) >= (1,)
        if self._is_immutable():
            # PyTorch, for one, writes to it nevertheless: no program may rely on it any more, which know it by identity.
            self._reads, self._array = _NEVER, self._values().view()
        return (self.numpy() if knows_read_only else self._values()).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the host

    def item(self) -> int | float:
        """The one value, as a number of Python's."""
        require(self.size == 1, f"item() takes an array of one element, got {self._desc}")
        number: int | float = self._values().item()
        return number

    def tolist(self) -> Any:
        """The values, in nested lists."""
        return self._values().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if INFO[self._desc.data_type].kind == "f" or self.size != 1:
            raise TypeError(f"an index must be an integer, got an array {self._desc}")
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        require(self.rank > 0, "an array of shape [] has no len()")
        return self.shape[0]

    def __contains__(self, item: Any) -> bool:
        """Whether an element has that value."""
        return bool((self._values() == item).any())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __copy__(self) -> Array:
        return self  # nobody changes it

    def __deepcopy__(self, memo: Any) -> Array:
        return self

    def __repr__(self) -> str:
        node = self._node
        if self._array is None and node is not None:
            return f"<Array {self._desc}, pending: {title(node.template.op.name, node.label)}>"
        values = np.array2string(self._values(), threshold=20, edgeitems=3, separator=", ", prefix="<Array ")
        return f"<Array {values}, {self._desc}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an array belongs to its context and cannot be pickled; array.numpy() can")

    def _apply(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return call(getattr(Operations, name), args, kwargs)

    def _home(self) -> type:
        return Operations

    def _method(self, op: Op[..., Any]) -> partial[Any]:
        return partial(op, self)

    def _operation(self, name: str) -> Op[..., Any] | None:
        op = None if name.startswith("_") else getattr(Operations, name, None)
        return op if isinstance(op, Op) and op.positional[0] not in op.sequences else None


class Number(Array):
    """A number of Python's that is an operand; the same number is the same memory each time."""

    __slots__ = ()


class _Locked:
    """Arrays of one owner that are read-only for the time being, and how many of ours read them."""

    __slots__ = ("arrays", "count", "owner")

    def __init__(self, owner: Any) -> None:
        self.owner, self.count = owner, 0
        self.arrays: list[np.ndarray] = []


_locked: dict[int, _Locked] = {}
_lock = RLock()  # also taken by `__del__`, which may come at any time


class _Adopted(Array):
    """Memory of the caller's, which must not change while something is pending that reads it.

    NumPy cannot tell us of writes, so the array is read-only meanwhile, and can be written to when nobody needs it any more.
    """

    __slots__ = ("_owner", "_source")

    def __init__(self, context: MLContext, desc: Desc, code: int, array: np.ndarray) -> None:
        # A view that is made now stays writable, as old versions of DLPack need it.
        super().__init__(context, desc, code, array=array.view())
        self._source = array
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        self._owner = id(owner)
        with _lock:
            locked = _locked.get(id(owner)) or _locked.setdefault(id(owner), _Locked(owner))
            locked.count += 1
            # What comes by DLPack could not be made writable again.
            if array.flags.writeable and type(owner.base).__name__ != "PyCapsule":
                array.flags.writeable = False
                locked.arrays.append(array)

    def __del__(self) -> None:
        owner = getattr(self, "_owner", None)
        if owner is None:
            return
        with _lock:
            locked = _locked[owner]
            locked.count -= 1
            if locked.count:
                return
            del _locked[owner]
        # The owner first: its views cannot be writable before.
        for array in sorted(locked.arrays, key=lambda array: array.base is not None):
            array.flags.writeable = True


def array(values: Any, data_type: DataType | None = None, *, copy: bool = True) -> Array:
    """Make an array of values.

    Args:
        values: an array, anything with DLPack, a tensor, a number, or nested lists of numbers.
        data_type: of the result; default: that of `values`, float32 for Python's floats, int32 for its integers.
        copy: whether the values are copied. Without, the array is the caller's memory; see below.

    Memory that is not copied (also that of arrays passed to operations directly) must not change while something is
    pending that reads it. NumPy's arrays are read-only meanwhile, so that writing is an error (other views of the same
    memory are not); tensors may be written: what is pending is computed first.

    >>> import opweave as ow
    >>> x = ow.array([[1.0, 2.0], [3.0, 4.0]])
    >>> (x @ x + 1).tolist()
    [[8.0, 11.0], [16.0, 23.0]]

    Raises:
        ValidationError: values of a type that WebNN does not have.
    """
    if isinstance(values, Array) and data_type in (None, values.data_type):
        return values
    if data_type is not None:
        check(data_type)
    if isinstance(values, Operand):  # a function of arrays that is traced, or called to build a graph
        same = data_type in (None, values.data_type)
        return cast("Array", values if same else values.cast(data_type))
    context = current_context()
    if isinstance(values, MLTensor):
        borrowed = borrow(values)
        if not copy and data_type in (None, borrowed.data_type):
            return borrowed
        context, made = borrowed._context, borrowed.numpy()
    elif isinstance(values, (np.ndarray, np.generic)) or hasattr(values, "__dlpack__") or hasattr(values, "__array__"):
        made = values if type(values) is np.ndarray else as_array(values, "values")
        if not copy and data_type in (None, made.dtype.name):
            desc = check_desc(describe(made, "values"), context.backend.max_byte_length, "values")
            return _adopt(context, made, desc, code_of(desc))
    else:
        made, data_type = _from_numbers(values, data_type)
    if data_type is not None:
        made = made.astype(data_type, copy=False)
    desc = check_desc(describe(made, "values"), context.backend.max_byte_length, "values")
    own = memory.empty(desc)
    memory.copy(own, made, "array()")
    return Array(context, desc, code_of(desc), array=own)


def _from_numbers(values: Any, data_type: DataType | None) -> tuple[np.ndarray, DataType]:
    """An array of nested lists of Python's numbers, and the data type to have it in, which can hold them."""
    try:
        made = np.array(values)
    except ValueError as error:
        raise ValidationError(f"values must be numbers in lists of the same lengths: {error}") from None
    if made.dtype.kind not in "fiub":
        raise ValidationError(f"values must be numbers that a data type of WebNN can hold, got {made.dtype.name}")
    if data_type is None:
        data_type = "float32" if made.dtype.kind == "f" else "uint8" if made.dtype.kind == "b" else "int32"
    if INFO[data_type].kind != "f" and made.size and made.dtype.kind in "iu":
        low, high = int(made.min()), int(made.max())
        fits = INFO[data_type].lowest <= low and high <= INFO[data_type].highest
        require(fits, f"values in [{low}, {high}] are not all values of {data_type}; data_type= takes a wider one")
    return made, data_type


# ---------------------------------------------------------------------------------------------------------------------
# Calls

_OPERAND, _SEQUENCE, _ATTRIBUTE = 1, 2, 0
_kinds: dict[tuple[Any, tuple[int, ...]], tuple[Desc, int]] = {}
_adopted: WeakValueDictionary[int, _Adopted] = WeakValueDictionary()
_scalars: dict[Any, np.ndarray] = {}
_serials = count()
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
default_context: Callable[[], MLContext] | None = None
"""What gives the context of arrays that have none; set by `opweave.context`."""
_default: MLContext | None = None


def current_context() -> MLContext:
    """The context of the innermost `with context:`, else the default one."""
    global _default
    contexts = entered.get()
    if contexts:
        return contexts[-1]
    if _default is None or _default._lost_info is not None:
        if default_context is None:
            import_module("opweave.context")  # which says what the default is
        assert default_context is not None
        _default = default_context()
    return _default


class _InGraph(Exception):  # noqa: N818  (never seen by users)
    """An operand of a graph is among the arguments: the call belongs to its builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder


def call(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Note that `op` is to be called on arrays, tensors and numbers; its result, or a tuple of them.

    With operands of a graph among the arguments it is added to that.
    """
    try:
        return _note(op, args, kwargs)
    except _InGraph as found:
        return op.add(found.builder, args, kwargs)


def _note(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    flags = op.flags
    label = ""
    # Two calls with the same key differ in nothing but the values of their operands: the names of the arguments by name,
    # then what there is to say of each argument, in order. Types are part of it, since 1 == True == 1.0.
    key: list[Any] = [len(args)]
    inputs: list[Any] = []
    context: MLContext | None = None
    if len(args) > len(op.positional):
        raise ValidationError(f"{op.name}: takes {len(op.positional)} positional arguments, got {len(args)}")
    given = list(zip(op.positional_flags, args, strict=False))
    if kwargs:
        for name, value in kwargs.items():
            if name == "label":
                if type(value) is not str:
                    raise ValidationError(f"{op.name}: label must be a string, got {value!r}")
                label = value
                continue
            if name not in flags:
                raise ValidationError(f"{op.name}: has no argument {name!r}; it takes {', '.join(flags)}")
            key.append(name)
            given.append((flags[name], value))
    for flag, value in given:
        if type(value) is Array and flag == _OPERAND:
            key.append(value._code)
            inputs.append(value)
            if context is not value._context:
                if context is not None:
                    raise ValidationError(f"{title(op.name, label)}: the operands belong to several contexts")
                context = value._context
        elif flag == _ATTRIBUTE or value is None:
            key.append(_frozen(value))
        elif flag == _SEQUENCE:
            if not isinstance(value, (list, tuple)):
                raise ValidationError(f"{title(op.name, label)}: takes a sequence of arrays, got {value!r}")
            key.append(len(value))
            for item in value:
                context = _take(op, label, item, key, inputs, context)
        else:
            context = _take(op, label, value, key, inputs, context)
    if context is None:
        context = current_context()
    key += (context._device.name, context._power_preference)
    whole: tuple[Any, ...] | None = tuple(key)
    try:
        template = op.templates.get(whole)
    except TypeError:  # an attribute that cannot be compared: validated each time
        whole, template = None, None
    if template is None:
        template = _validated(op, whole, context, args, kwargs, label)
    for position, data_type in template.numbers.items():
        inputs[position] = _scalar(op, label, context, inputs[position], data_type)
    for position, value in enumerate(inputs):
        if type(value) is not Array and not isinstance(value, Array):
            desc = template.operands[position]
            inputs[position] = borrow(value) if isinstance(value, MLTensor) else _adopt(context, value, desc)
    frame = sys._getframe(2)  # who called `call`
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    node = Pending(template, tuple(inputs), label, (frame.f_code, frame.f_lineno))
    if len(template.descs) == 1:
        output = Array(context, template.descs[0], template.codes[0], node=node)
        outputs: tuple[Array, ...] = (output,)
        node.outputs = (ref(output),)
    else:
        outputs = tuple(
            [Array(context, desc, code, node=node) for desc, code in zip(template.descs, template.codes, strict=True)]
        )
        node.outputs = tuple([ref(output) for output in outputs])
    if node.borrows:
        for value in inputs:
            if type(value) is Borrowed:
                value.watch(node.outputs)
    if node.depth >= LONGEST:
        _force(outputs)
    return outputs if template.is_tuple else outputs[0]


compute: Callable[[Sequence[Array]], None] | None = None
"""What computes arrays; set by `opweave.runtime.deferred`, which is imported when there is something to compute."""


def _force(arrays: Sequence[Array]) -> None:
    if compute is None:
        import_module("opweave.runtime.deferred")
    assert compute is not None
    compute(arrays)


def _frozen(value: Any) -> Any:
    """Something hashable that is equal for equal values of the same types only; -0.0 and 0.0 differ."""
    kind = type(value)
    if kind is float:
        return float, value.hex()
    if kind is list or kind is tuple:
        if set(map(type, value)) == {int}:
            return (kind, int, *value)
        return (kind, *map(_frozen, value))
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return kind, value.dtype.str, value.shape, value.tobytes()
    return kind, value


def _scalar(op: Op[..., Any], label: str, context: MLContext, value: int | float, data_type: DataType) -> Array:
    """A number as an array; for integer types it must be one of their values, as everywhere."""
    # Zeros are told apart by their text: 0.0 == -0.0.
    key = data_type, type(value), value or str(value)
    array = _scalars.get(key)
    if array is None:
        cast = cast_number(value, data_type)
        if INFO[data_type].kind != "f" and cast != value:
            raise ValidationError(f"{title(op.name, label)}: {value!r} is not a value of {data_type}")
        array = np.array(cast, data_type)
        if len(_scalars) > KINDS:
            _scalars.clear()
        _scalars[key] = array
    desc = Desc(data_type, ())
    return Number(context, desc, code_of(desc), array=array)


def _take(
    op: Op[..., Any], label: str, value: Any, key: list[Any], inputs: list[Any], context: MLContext | None
) -> MLContext | None:
    """Note an operand that may be anything: what tells it from others goes to `key`, itself to `inputs`."""
    own: MLContext | None = None
    if isinstance(value, Operand):
        raise _InGraph(value.builder)
    if isinstance(value, Array):
        key.append(value._code)
        own = value._context
    elif type(value) in (int, float):
        key.append(type(value))
    elif isinstance(value, MLTensor):
        key.append(code_of(value.desc))
        own = value.context
    else:
        if type(value) is not np.ndarray:
            value = as_array(value, f"{title(op.name, label)}: an operand")
        found = _kinds.get((value.dtype, value.shape))
        if found is None:
            what = f"{title(op.name, label)}: an operand"
            # How many bytes it may have depends on the back end: that is validated with the call.
            desc = check_desc(describe(value, what), 2**63, what)
            if len(_kinds) > KINDS:
                _kinds.clear()
            found = _kinds[value.dtype, value.shape] = desc, code_of(desc)
        key.append(found[1])
    inputs.append(value)
    if own is not None and context is not None and own is not context:
        raise ValidationError(f"{title(op.name, label)}: the operands belong to several contexts")
    return context or own


def _adopt(context: MLContext, value: np.ndarray, desc: Desc, code: int | None = None) -> Array:
    """The memory of a caller's array as an array of ours; a copy where engines cannot read it as it is."""
    code = code_of(desc) if code is None else code
    usable = contiguous(value)
    if usable is not value:
        return Array(context, desc, code, array=usable)
    known = _adopted.get(id(value))
    if known is not None and known._context is context and known._source is value:
        return known
    made = _adopted[id(value)] = _Adopted(context, desc, code, value)
    return made


class _Recorder(Operations):
    """A builder in which calls are validated."""

    def __init__(self, context: MLContext) -> None:
        super().__init__()
        self.context, self.max_byte_length = context, context.backend.max_byte_length

    def limits(self, op: Op[..., Any]) -> Any:
        return self.context.backend.limits(op)

    def as_operand(self, value: Any, data_type: DataType) -> Operand:
        if isinstance(value, (int, float)) and INFO[data_type].kind != "f":
            require(cast_number(value, data_type) == value, f"{value!r} is not a value of {data_type}")
        return constant(self, cast_number(value, data_type), data_type)


def _validated(
    op: Op[..., Any], key: Any, context: MLContext, args: tuple[Any, ...], kwargs: Mapping[str, Any], label: str
) -> Template:
    """Validate a call by adding it to a graph, and remember what came of it."""
    recorder = _Recorder(context)
    flags = op.flags
    what = f"{title(op.name, label)}: an operand"
    slots: dict[str, Any] = dict.fromkeys(op.operands)
    operands: list[Desc | None] = []  # None for numbers, whose data type is not known yet
    numbers: dict[str, int] = {}

    def stand_in(value: Any) -> Operand:
        desc = value.desc if isinstance(value, (Array, MLTensor)) else describe(as_array(value, what), what)
        operands.append(check_desc(desc, recorder.max_byte_length, what))
        return Operand(recorder, desc, name=f"x{len(operands) - 1}")

    def convert(name: str, value: Any) -> Any:
        if flags[name] == _ATTRIBUTE or value is None:
            return value
        if flags[name] == _SEQUENCE:
            slots[name] = tuple(range(len(operands), len(operands) + len(value)))
            return tuple(map(stand_in, value))
        slots[name] = len(operands)
        if type(value) in (int, float):
            numbers[name] = len(operands)
            operands.append(None)
            return value
        return stand_in(value)

    converted = [convert(name, value) for name, value in zip(op.positional, args, strict=False)]
    named = {name: convert(name, value) for name, value in kwargs.items() if name != "label"}
    result = op.add(recorder, tuple(converted), {**named, "label": label})
    outputs = result if isinstance(result, tuple) else (result,)
    node = outputs[0].node
    for name, position in numbers.items():
        operands[position] = node.inputs[name].desc
    descs = tuple(output.desc for output in outputs)
    template = Template(
        op,
        slots,
        node.attributes,
        descs,
        tuple(map(code_of, descs)),
        tuple(desc for desc in operands if desc is not None),
        {position: node.inputs[name].data_type for name, position in numbers.items()},
        next(_serials),
        is_tuple=isinstance(result, tuple),
    )
    if key is None:
        return template
    with _lock:
        known: Template = op.templates.setdefault(key, template)
        while len(op.templates) > TEMPLATES:
            del op.templates[next(iter(op.templates))]
    return known


class Borrowed(Array):
    """The memory of a tensor. Who writes to the tensor lets what is pending read it first."""

    __slots__ = ("_readers", "_tensor")

    def __init__(self, tensor: MLTensor) -> None:
        super().__init__(tensor.context, tensor.desc, code_of(tensor.desc), array=tensor.memory())
        self._tensor = ref(tensor)
        self._readers: list[ref[Array]] = []

    def _is_immutable(self) -> bool:
        tensor = self._tensor()
        return tensor is not None and tensor._constant and not tensor.destroyed

    def tell(self, who: Any) -> None:
        """Call `who.release()` when the tensor is destroyed."""
        tensor = self._tensor()
        if tensor is not None:
            tensor._bindings.add(who)

    def watch(self, outputs: Sequence[ref[Array]]) -> None:
        """Remember the results of a call that reads the tensor, until they are there."""
        tensor = self._tensor()
        if tensor is None:
            return
        with tensor._lock:
            if not self._readers:
                tensor.release_bindings()  # so that the next dispatch to it binds, and asks for `settle`
            if len(self._readers) % 64 == 63:
                self._readers = [reader for reader in self._readers if _is_pending(reader)]
            self._readers += outputs

    def settle(self) -> None:
        """Compute what is pending and reads the tensor. What fails keeps the tensor from being written while it is there."""
        readers, self._readers = self._readers, []
        try:
            _force([array for reader in readers if (array := reader()) is not None and array._array is None])
        except BaseException:
            self._readers += readers
            raise


_lasting: WeakKeyDictionary[MLTensor, Borrowed] = WeakKeyDictionary()


def _is_pending(output: ref[Array]) -> bool:
    array = output()
    return array is not None and array._array is None


def borrow(tensor: MLTensor) -> Borrowed:
    """The memory of a tensor as an array; the same one while somebody has it."""
    with tensor._lock:
        known = tensor.borrowed() if tensor.borrowed is not None else None
        if known is None or known._array is not tensor.memory():
            known = Borrowed(tensor)
            tensor.borrowed = ref(known)
            if tensor._constant:
                _lasting[tensor] = known  # the same one at each call, so that it is seen to recur
        return known


def settle(tensor: MLTensor) -> None:
    """Compute what is pending and reads a tensor that is about to be written."""
    known: Borrowed | None = tensor.borrowed() if tensor.borrowed is not None else None
    if known is not None and known._readers:
        known.settle()


def borrowed_by(arrays: Sequence[Array]) -> AbstractContextManager[Any]:
    """Holds the locks of the tensors whose memory is read to compute arrays."""
    stack = [node for array in arrays if (node := array._node) is not None and node.borrows]
    if not stack:
        return nullcontext()
    from .executable import Locks

    seen: set[int] = set()
    tensors: dict[int, MLTensor] = {}
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for array in node.inputs:
            made = array._node
            if made is not None and made.borrows:
                stack.append(made)
            elif isinstance(array, Borrowed) and (tensor := array._tensor()) is not None:
                tensors[id(tensor)] = tensor
    return Locks(list(tensors.values()))


operation.on_arrays = call
