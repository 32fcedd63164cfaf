"""Declared inputs and outputs of a model, and the arrays that users pass for them."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ... import memory
from ...context.context import MLContext
from ...context.tensor import MLTensor, memory_of
from ...context.tensors import own_memory
from ...core.desc import MAX_DIMENSION
from ...core.dtypes import ANY
from ...memory.arrays import as_array, contiguous
from ...memory.spaces import Memory, TensorSpace
from ...support.errors import OperationError, ValidationError, require
from ...support.names import printable, short_repr
from ...support.records import record
from .booleans import as_declared, check_bool
from .protobuf import TensorProto, TypeProto, ValueInfoProto, dtype_of
from .tables import DATA_TYPES


@record(eq=True)
class NodeArg:
    """An input or output as `get_inputs()` and `get_outputs()` return it.

    Attributes:
        name: the name.
        type: the type as ONNX Runtime writes it, "tensor(float)".
        shape: an integer for a static dimension, a name for a dynamic one, None for a dynamic one without a name.
    """

    name: str
    type: str
    shape: list[int | str | None]


@record
class Argument:
    """The declared type and shape of an input or output.

    `element_type` is 0 if the value is not a tensor; `dims` are as in `NodeArg`, None if the rank is not declared; `example`
    is a shape that dynamic dimensions are assumed to have, () if they are assumed to be 1.
    """

    name: str
    type: str
    element_type: int
    dims: tuple[int | str | None, ...] | None
    example: tuple[int, ...] = ()

    @classmethod
    def of(cls, info: ValueInfoProto, fixed: FixedShapes | None = None) -> Argument:
        """Read a declaration, with sizes from `fixed`. Negative sizes count as dynamic: some exporters write them."""
        type = info.type.optional_type.elem_type if info.type.HasField("optional_type") else info.type
        tensor = type.tensor_type
        sizes = fixed.sizes if fixed is not None else {}
        dims: tuple[int | str | None, ...] | None = None
        if tensor.HasField("shape"):
            dims = tuple(_dimension(dim, sizes) for dim in tensor.shape.dim)
        if fixed is not None:
            dims = fixed.shapes.get(info.name, dims)
        element_type = tensor.elem_type if info.type.HasField("tensor_type") else 0
        return cls(info.name, type_name(info.type), element_type, dims)

    def with_dims(self, dims: tuple[int | str | None, ...] | None) -> Argument:
        """The declaration with another shape."""
        return Argument(self.name, self.type, self.element_type, dims, self.example)

    def public(self) -> NodeArg:
        """The declaration as users see it."""
        return NodeArg(self.name, self.type, list(self.dims or ()))

    def static_shape(self) -> tuple[int, ...] | None:
        """The shape; None if a dimension is dynamic."""
        sizes = [size for size in self.dims or () if isinstance(size, int)]
        return None if self.dims is None or len(sizes) < len(self.dims) else tuple(sizes)

    def static_bytes(self) -> int:
        """The size in bytes; 0 if it is not known in advance."""
        shape = self.static_shape()
        return prod(shape) * self.dtype.itemsize if shape is not None and self.element_type else 0

    def assumed_shape(self) -> tuple[int, ...]:
        """The shape, with 1 for dynamic dimensions, or their sizes in the example."""
        dims = self.dims or ()
        sizes = self.example if len(self.example) == len(dims) else (1,) * len(dims)
        return tuple(size if isinstance(size, int) else assumed for size, assumed in zip(dims, sizes, strict=True))

    def random(self, shape: Sequence[int], generator: np.random.Generator, count: int = 2) -> np.ndarray:
        """Random values: normally distributed floats, or integers in [0, count); 0 and 1 are valid indices and masks."""
        is_number = bool(self.element_type) and self.dtype.kind in "fiub"
        require(is_number, f"input {self.name!r} is {self.type}, which cannot be random")
        fits = all(0 <= size <= MAX_DIMENSION for size in shape) and prod(shape) <= MAX_DIMENSION
        require(
            fits,
            f"input {self.name!r} must have at most {MAX_DIMENSION} elements, got the shape {short_repr(list(shape))}",
        )
        try:
            if self.dtype.kind == "f":
                return np.asarray(generator.standard_normal(shape)).astype(self.dtype)
            return np.asarray(generator.integers(0, count, shape)).astype(self.dtype)
        except MemoryError:
            raise OperationError(
                f"there is no memory for random values of input {self.name!r}, {list(shape)}"
            ) from None

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's data type for the elements of a tensor."""
        return dtype_of(self.element_type)

    def check(self, array: np.ndarray, subject: str, *, converts: bool = True) -> None:
        """Raise `ValidationError` unless an array has the declared data type and shape.

        `subject` is its name in the message; `converts`: the caller could pass a converted copy instead.
        """
        expected = self.dtype
        fits = array.dtype.kind in "OUS" if expected.kind == "O" else array.dtype == expected
        # This runs on every call, so build messages only on failure.
        if not fits:
            hint = (
                f"; array.astype({expected.name!r}) converts it"
                if converts and {expected.kind, array.dtype.kind} <= set("biuf")
                else ""
            )
            raise ValidationError(f"{subject} must be {self.type}, got an array of {array.dtype}{hint}")
        if not self.takes(array.shape):
            raise ValidationError(f"{subject} must have shape {shape_text(self.dims or ())}, got {list(array.shape)}")

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether a shape fits the declared one."""
        return self.dims is None or (
            len(self.dims) == len(shape)
            and all(not isinstance(dim, int) or dim == size for dim, size in zip(self.dims, shape, strict=True))
        )

    def _on_device(self, tensor: MLTensor, context: MLContext, subject: str) -> Memory:
        """Check a tensor on the device, and return its memory."""
        buffer = own_memory(context, tensor, subject)
        array = as_declared(np.empty((), tensor.data_type), self.element_type)
        # One element broadcast to the shape stands for the data: `check` reads only type and shape.
        self.check(np.broadcast_to(array, tensor.shape), subject)
        return buffer

    def as_input(self, value: Any, context: MLContext) -> Any:
        """Convert and check the value for this input: an array, memory of the context's device, or a list for a sequence.

        The caller must hold the lock of an `MLTensor`.
        """
        subject = f"input {self.name!r}"
        if isinstance(value, MLTensor) and not context.backend.space.is_host:
            return self._on_device(value, context, subject)
        if not self.element_type:
            if self.type.startswith("seq("):
                require(isinstance(value, (list, tuple)), f"{subject} must be a list, got {type(value).__name__}")
                if self.type != "seq(tensor(string))":
                    return list(value)
                return [_as_texts(item, f"{subject}[{k}]") for k, item in enumerate(value)]
            return value
        if isinstance(value, MLTensor):
            array = as_declared(memory_of(value), self.element_type)
        elif self.element_type == TensorProto.STRING:
            array = _as_texts(value, subject)
        elif isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"):
            array = as_array(value, subject)
        else:
            array = self._convert(value, subject)
        self.check(array, subject)
        if self.element_type == TensorProto.STRING:
            return array
        array = contiguous(array)
        if self.element_type == TensorProto.BOOL:
            check_bool(array, subject, ValidationError)
        return array

    def _convert(self, value: Any, subject: str) -> np.ndarray:
        """Convert a value that is not an array: numbers and lists get the declared type, by the rules of `numpy.array`."""
        plain = isinstance(value, (bool, int, float, list, tuple, range, np.generic))
        if isinstance(value, np.generic):
            value = value.item()  # NumPy checks the range of Python's numbers, but not of NumPy scalars
        try:
            return np.asarray(value, self.dtype if plain else None)
        except (TypeError, ValueError, OverflowError) as error:
            kind = f"{self.type} or convert to it" if plain else "an array"
            raise ValidationError(f"{subject} must be {kind}, got {type(value).__name__} ({error})") from None

    def as_output(self, value: Any, context: MLContext) -> Memory:
        """Check the array or tensor that this output is written into, and return its memory."""
        subject = f"out[{self.name!r}]"
        if isinstance(value, MLTensor) and not context.backend.space.is_host:
            return self._on_device(value, context, subject)
        numeric = self.element_type and self.element_type != TensorProto.STRING
        require(bool(numeric), f"{subject}: {self.type} cannot be written into an array")
        if isinstance(value, MLTensor):
            array = as_declared(memory_of(value), self.element_type)
        else:
            is_array = isinstance(value, np.ndarray) or hasattr(value, "__dlpack__")
            require(is_array, f"{subject} must be an array, got {type(value).__name__}")
            array = value if isinstance(value, np.ndarray) else as_array(value, subject)
        self.check(array, subject, converts=False)
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned and flags.writeable):
            got = f"C-contiguous={flags.c_contiguous}, aligned={flags.aligned}, writable={flags.writeable}"
            raise ValidationError(f"{subject} must be C-contiguous, aligned and writable, got {got}")
        return array

    @property
    def fits_tensor(self) -> bool:
        """Whether an `MLTensor` can hold the value."""
        return DATA_TYPES.get(self.element_type) in ANY


def shape_text(dims: Sequence[int | str | None]) -> str:
    """Format a declared shape for messages and tables. Names that are not plain words are quoted.

    >>> shape_text([None, 3, "height", "a b", "?"])
    "[?, 3, height, 'a b', ?]"
    """
    sizes = ["?" if dim in (None, "?") else printable(dim) if isinstance(dim, str) else str(dim) for dim in dims]
    return f"[{', '.join(sizes)}]"


def check_target(name: str, target: Any, shape: tuple[int, ...]) -> None:
    """Require that the target of an output has the output's shape."""
    if target.shape != shape:
        raise ValidationError(f"out[{name!r}] must have shape {list(shape)}, got {list(target.shape)}")


class HostValues(UserDict[str, Any]):
    """Inputs as host arrays; device memory is copied at the first lookup."""

    def __init__(self, feed: Mapping[str, Any], space: TensorSpace) -> None:
        super().__init__(feed)
        self._space = space

    def __getitem__(self, name: str) -> Any:
        value = self.data[name]
        if not self._space.owns(value):
            return value
        array = self.data[name] = memory.empty(value.desc)
        self._space.read([value], [array], "an input that determines shapes")
        return array


@record
class FixedShapes:
    """Sizes of named dimensions in all inputs, and `shapes` of whole inputs by name."""

    sizes: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, fix_shapes: Mapping[str, int | Sequence[int]] | None, inputs: Sequence[ValueInfoProto]) -> FixedShapes:
        """Read the argument `fix_shapes`: an integer for a named dimension, a list for an input."""
        arguments = {info.name: Argument.of(info) for info in inputs}
        dimensions = sorted({d for argument in arguments.values() for d in argument.dims or () if isinstance(d, str)})
        sizes: dict[str, int] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for name, entry in (fix_shapes or {}).items():
            require(
                name in dimensions or name in arguments,
                f"fix_shapes: no input or dimension is called {name!r}; "
                f"inputs: {list(arguments)}, dimensions: {dimensions}",
            )
            if name in dimensions and not isinstance(entry, (list, tuple)):
                sizes[name] = _size(repr(name), entry)
                continue
            require(name in arguments, f"fix_shapes: {name!r} must be a positive integer, got {entry!r}")
            argument = arguments[name]
            require(
                bool(argument.element_type),
                f"fix_shapes: input {name!r} is {argument.type}; only shapes of tensors can be fixed",
            )
            listed = entry if isinstance(entry, (list, tuple)) else [entry]
            shape = tuple(_size(f"each size of {name!r}", size) for size in listed)
            declared = shape_text(argument.dims or ())
            fits = f"fix_shapes: input {name!r} has the shape {declared}, which {list(shape)} does not fit"
            require(argument.takes(shape), fits)
            shapes[name] = shape
        return cls(sizes, shapes)


def _size(subject: str, size: Any) -> int:
    is_size = isinstance(size, (int, np.integer)) and not isinstance(size, bool) and size > 0
    require(bool(is_size), f"fix_shapes: {subject} must be a positive integer, got {size!r}")
    return int(size)


def _dimension(dim: Any, sizes: Mapping[str, int]) -> int | str | None:
    """The size of a dimension, or the name of a dynamic one; None if it has neither."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return sizes.get(dim.dim_param, str(dim.dim_param)) if dim.dim_param else None


def type_name(type: TypeProto) -> str:
    """A type as ONNX Runtime writes it.

    >>> type_name(TypeProto(sequence_type={"elem_type": {"tensor_type": {"elem_type": TensorProto.FLOAT}}}))
    'seq(tensor(float))'
    """
    match type.WhichOneof("value"):
        case "tensor_type" | "sparse_tensor_type" as kind:
            element = type.tensor_type if kind == "tensor_type" else type.sparse_tensor_type
            is_known = element.elem_type in TensorProto.DataType.values()
            name = TensorProto.DataType.Name(element.elem_type).lower() if is_known else "unknown"
            return f"tensor({name})" if kind == "tensor_type" else f"sparse_tensor({name})"
        case "sequence_type":
            return f"seq({type_name(type.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_name(type.optional_type.elem_type)})"
        case "map_type":
            key = TensorProto.DataType.Name(type.map_type.key_type).lower()
            return f"map({key},{type_name(type.map_type.value_type)})"
    return "unknown"


_NUMBERS = (bool, int, float, complex, np.bool_, np.number)


def _as_texts(value: Any, subject: str) -> np.ndarray:
    """Convert a value to an array of texts: decode bytes, and write the numbers of lists, as ONNX Runtime does.

    ONNX Runtime reads arrays of bytes to the next zero, beyond the end of an element, and makes "b'…'" of bytes in others.
    """
    is_list = isinstance(value, (list, tuple))
    array = np.asarray(value, object if is_list else None)  # arrays of texts drop zeros at the end of a text
    if is_list:
        plain = [item[()] if isinstance(item, np.ndarray) else item for item in array.flat]
        items = [str(item) if isinstance(item, _NUMBERS) else item for item in plain]
        array = np.array(items, object).reshape(array.shape)
    if array.dtype.kind == "U" or (array.dtype.kind == "O" and all(type(item) is str for item in array.flat)):
        return array
    is_text = array.dtype.kind in "OS" and all(isinstance(item, (str, bytes)) for item in array.flat)
    require(is_text, f"{subject} must hold strings, got an array of {array.dtype}")
    try:
        texts = [item.decode() if isinstance(item, bytes) else item for item in array.flat]
    except UnicodeDecodeError as error:
        raise ValidationError(f"{subject} must hold texts in UTF-8: {error}") from None
    return np.array(texts, object).reshape(array.shape)
