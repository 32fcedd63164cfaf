"""Arrays whose values are computed when somebody looks: the results of operations that are called one by one.

A call validates its arguments, notes what is to be done, and returns. Calls that differ in their values only are validated
once: what follows from the data types, shapes and attributes is kept as a `Template`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakValueDictionary, ref

import numpy as np

from .. import memory, operation
from ..arrays import as_array, contiguous, describe
from ..dtypes import INFO, DataType, cast_number, check
from ..errors import ValidationError, require
from ..graph import Builder, Desc, Operand, Operators
from ..operation import Op
from ..ops import Operations
from ..passes.legalise import constant
from ..tensor import MLTensor

if TYPE_CHECKING:
    from ..backends import Executable
    from ..context import MLContext

LONGEST = 256
"""A chain of so many operations runs by itself, so that programs which never look do not grow without end."""

TEMPLATES = 4096
"""For how many combinations of operation, data types, shapes and attributes a validated call is remembered."""

_codes: dict[Desc, int] = {}
_kinds: dict[tuple[Any, tuple[int, ...]], tuple[Desc, int]] = {}
entered: ContextVar[tuple[MLContext, ...]] = ContextVar("contexts", default=())
"""The contexts of the `with` blocks that we are in."""


def code_of(desc: Desc) -> int:
    """A number for a data type and shape, quicker to compare than those."""
    return _codes.setdefault(desc, len(_codes))


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
        executable: the operation on its own, once that was needed.
    """

    op: Op[..., Any]
    inputs: Mapping[str, Any]
    attributes: Mapping[str, Any]
    descs: tuple[Desc, ...]
    codes: tuple[int, ...]
    operands: tuple[Desc, ...]
    numbers: Mapping[int, DataType]
    serial: int
    executable: Executable | None = None
    lock: Lock = field(default_factory=Lock)

    def add_to(self, builder: Operations, operands: list[Operand]) -> tuple[Operand, ...]:
        """Add a node for the call to a graph."""

        def pick(value: Any) -> Any:
            return tuple(map(pick, value)) if isinstance(value, tuple) else None if value is None else operands[value]

        inputs = {name: pick(value) for name, value in self.inputs.items()}
        return builder.add_node(self.op, inputs, self.attributes, "", self.descs)


class Pending:
    """A call whose results are not computed yet; `outputs` are gone where nobody can ask for them any more."""

    __slots__ = ("depth", "inputs", "label", "outputs", "site", "template")
    depth: int

    def __init__(self, template: Template, inputs: tuple[Array, ...], label: str, site: tuple[Any, int]) -> None:
        self.template, self.inputs, self.label, self.site = template, inputs, label, site
        depth: int = 0
        for array in inputs:
            node = array._node
            if node is not None and node.depth > depth:
                depth = node.depth
        self.depth = depth + 1
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

    __slots__ = ("__weakref__", "_array", "_code", "_context", "_desc", "_node")
    __array_ufunc__ = None  # so that `array + x` asks x

    def __init__(
        self, context: MLContext, desc: Desc, code: int, *, node: Pending | None = None, array: np.ndarray | None = None
    ) -> None:
        self._context, self._desc, self._code = context, desc, code
        self._node, self._array = node, array

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
        if self._array is None:
            from .deferred import force

            force([self])
        assert self._array is not None
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        # DLPack has no read-only memory before its version 1; what comes of it must not be written to.
        return self._values().__dlpack__(**options)

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
        require(self._desc.data_type not in ("float32", "float16"), f"{self._desc} cannot be an index")
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        require(self.rank > 0, "an array of shape [] has no len()")
        return self.shape[0]

    def __repr__(self) -> str:
        if self._array is None:
            assert self._node is not None
            return f"<Array {self._desc}, pending: {self._node.template.op.name}>"
        values = np.array2string(self._array, threshold=20, edgeitems=3, separator=", ", prefix="<Array ")
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


class _Adopted(Array):
    """Memory of the caller's, which must not change while something is pending that reads it.

    NumPy cannot tell us of writes, so the array is read-only meanwhile, and can be written to when nobody needs it any more.
    """

    __slots__ = ("_unlock",)

    def __init__(self, context: MLContext, desc: Desc, code: int, array: np.ndarray) -> None:
        super().__init__(context, desc, code, array=array)
        self._unlock = bool(array.flags.writeable)
        if self._unlock:
            array.flags.writeable = False

    def __del__(self) -> None:
        if getattr(self, "_unlock", False):
            self._array.flags.writeable = True  # type: ignore[union-attr]


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
    context = current_context()
    if isinstance(values, Array) and data_type in (None, values.data_type):
        return values
    if isinstance(values, MLTensor):
        found = borrow(values)
        return array(found.numpy(), data_type) if copy or data_type not in (None, found.data_type) else found
    known = (
        isinstance(values, (np.ndarray, np.generic)) or hasattr(values, "__dlpack__") or hasattr(values, "__array__")
    )
    made = as_array(values, "values") if known else np.array(values)
    if data_type is None and not known:
        data_type = {"f": "float32", "i": "int32", "b": "uint8"}.get(made.dtype.kind)  # type: ignore[assignment]
    if data_type is not None:
        made = made.astype(check(data_type), copy=False)
    desc = describe(made, "values")
    if not copy and known:
        return _adopt(context, made)
    own = memory.empty(desc)
    memory.copy(own, made, "array()")
    return Array(context, desc, code_of(desc), array=own)


# ---------------------------------------------------------------------------------------------------------------------
# Calls

_OPERAND, _SEQUENCE, _ATTRIBUTE = 1, 2, 0
_templates: dict[Any, Template] = {}
_adopted: WeakValueDictionary[int, _Adopted] = WeakValueDictionary()
_parameters: dict[Op[..., Any], tuple[tuple[int, ...], dict[str, int]]] = {}
_serials = count()
_lock = Lock()
default_context: Callable[[], MLContext] | None = None
"""What gives the context of arrays that have none; set by `opweave.context`."""


def current_context() -> MLContext:
    """The context of the innermost `with context:`, else the default one."""
    contexts = entered.get()
    if contexts:
        return contexts[-1]
    if default_context is None:
        import_module("opweave.context")  # which says what the default is
    assert default_context is not None
    return default_context()


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
    parameters = _parameters.get(op) or _read_parameters(op)
    label = ""
    key: list[Any] = [op]
    inputs: list[Any] = []
    context: MLContext | None = None
    if len(args) > len(parameters[0]):
        raise ValidationError(f"{op.name}: takes {len(parameters[0])} positional arguments, got {len(args)}")
    given = list(zip(parameters[0], args, strict=False))
    if kwargs:
        for name, value in kwargs.items():
            flag = parameters[1].get(name)
            if name == "label":
                label = value
                continue
            if flag is None:
                raise ValidationError(f"{op.name}: has no argument {name!r}; it takes {', '.join(parameters[1])}")
            key.append(name)
            given.append((flag, value))
    for flag, value in given:
        if flag == _ATTRIBUTE or value is None:
            key.append(tuple(value) if type(value) is list else value)
        elif flag == _SEQUENCE:
            require(isinstance(value, (list, tuple)), f"{op.name}: takes a sequence of arrays, got {value!r}")
            key.append(len(value))
            for item in value:
                context = _take(op, item, key, inputs, context)
        elif type(value) is Array:
            key.append(value._code)
            inputs.append(value)
            if context is None:
                context = value._context
            elif context is not value._context:
                raise ValidationError(f"{op.name}: the operands belong to several contexts")
        else:
            context = _take(op, value, key, inputs, context)
    if context is None:
        context = current_context()
    key.append(id(context.backend))
    try:
        template = _templates.get(tuple(key))
    except TypeError as error:
        raise ValidationError(f"{op.name}: an argument cannot be compared ({error}): {key[1:-1]}") from None
    if template is None:
        template = _validated(op, tuple(key), context, args, kwargs, label)
    for position, data_type in template.numbers.items():
        desc = Desc(data_type, ())
        inputs[position] = Array(context, desc, code_of(desc), array=np.array(inputs[position], data_type))
    for position, value in enumerate(inputs):
        if not isinstance(value, Array):
            inputs[position] = _adopt(context, value)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("opweave"):
        frame = frame.f_back
    node = Pending(template, tuple(inputs), label, (frame.f_code, frame.f_lineno))
    outputs = tuple(
        [Array(context, desc, code, node=node) for desc, code in zip(template.descs, template.codes, strict=True)]
    )
    node.outputs = tuple([ref(output) for output in outputs])
    for value in inputs:
        if type(value) is _Borrowed:
            value.readers += node.outputs
    if node.depth >= LONGEST:
        from .deferred import force

        force(outputs)
    return outputs if len(outputs) > 1 else outputs[0]


def _read_parameters(op: Op[..., Any]) -> tuple[tuple[int, ...], dict[str, int]]:
    names = (*op.operands, *op.attributes)
    flags = {n: _SEQUENCE if n in op.sequences else _OPERAND if n in op.operands else _ATTRIBUTE for n in names}
    found = _parameters[op] = tuple(flags[name] for name in op.positional), flags
    return found


def _take(
    op: Op[..., Any], value: Any, key: list[Any], inputs: list[Any], context: MLContext | None
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
            value = as_array(value, op.name)
        found = _kinds.get((value.dtype, value.shape))
        if found is None:
            desc = describe(value, op.name)
            found = _kinds[value.dtype, value.shape] = desc, code_of(desc)
        key.append(found[1])
    inputs.append(value)
    if own is not None and context is not None and own is not context:
        raise ValidationError(f"{op.name}: the operands belong to several contexts")
    return context or own


def _adopt(context: MLContext, value: np.ndarray | MLTensor) -> Array:
    """The memory of a caller's array or tensor as an array of ours."""
    if isinstance(value, MLTensor):
        return borrow(value)
    known = _adopted.get(id(value))
    if known is not None and known._context is context:
        return known
    desc = describe(value, "an operand")
    made = _Adopted(context, desc, code_of(desc), contiguous(value))
    if made._array is value:
        _adopted[id(value)] = made
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
        return constant(self, value, data_type)


def _validated(
    op: Op[..., Any], key: Any, context: MLContext, args: tuple[Any, ...], kwargs: Mapping[str, Any], label: str
) -> Template:
    """Validate a call by adding it to a graph, and remember what came of it."""
    recorder = _Recorder(context)
    flags = _parameters[op][1]
    slots: dict[str, Any] = dict.fromkeys(op.operands)
    operands: list[Desc | None] = []  # None for numbers, whose data type is not known yet
    numbers: dict[str, int] = {}

    def stand_in(value: Any) -> Any:
        desc = value.desc if isinstance(value, (Array, MLTensor)) else describe(as_array(value, op.name), op.name)
        operands.append(desc)
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
    with _lock:
        template = _templates[key] = Template(
            op,
            slots,
            node.attributes,
            descs,
            tuple(map(code_of, descs)),
            tuple(desc for desc in operands if desc is not None),
            {position: node.inputs[name].data_type for name, position in numbers.items()},
            next(_serials),
        )
        while len(_templates) > TEMPLATES:
            del _templates[next(iter(_templates))]
    return template


class _Borrowed(Array):
    """The memory of a tensor. Who writes to the tensor lets what is pending read it first."""

    __slots__ = ("readers",)

    def __init__(self, tensor: MLTensor) -> None:
        super().__init__(tensor.context, tensor.desc, code_of(tensor.desc), array=tensor.memory())
        self.readers: list[ref[Array]] = []


def borrow(tensor: MLTensor) -> _Borrowed:
    """The memory of a tensor as an array; the same one while somebody has it."""
    known = tensor.borrowed() if tensor.borrowed is not None else None
    if known is None:
        known = _Borrowed(tensor)
        tensor.borrowed = ref(known)
        tensor.release_bindings()  # so that the next dispatch to it asks for `settle`
    return known


def settle(tensor: MLTensor) -> None:
    """Compute what is pending and reads a tensor that is about to be written."""
    known = tensor.borrowed() if tensor.borrowed is not None else None
    if known is not None:
        from .deferred import force

        force([array for reader in known.readers if (array := reader()) is not None and array.pending])
        tensor.borrowed = None


operation.on_arrays = call
