"""Inputs and outputs of a model as it declares them, and the arrays that users pass for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import as_array, contiguous
from ..errors import ValidationError, require
from ..tensor import MLTensor
from .booleans import as_declared, check_bool
from .messages import TensorProto, TypeProto, ValueInfoProto, dtype_of
from .registry import DATA_TYPES


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of a model.

    Attributes:
        name: its name.
        type: its type as ONNX Runtime writes it, "tensor(float)".
        shape: its dimensions: integers, names of those that vary, or None for those without one.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class Argument:
    """What a model declares of an input or output.

    Attributes:
        name: its name.
        type: its type as ONNX Runtime writes it.
        element_type: ONNX's element type; 0 for what is no tensor.
        dims: the dimensions as in `NodeArg`; None where not even their number is declared.
    """

    name: str
    type: str
    element_type: int
    dims: tuple[int | str | None, ...] | None

    @classmethod
    def of(cls, info: ValueInfoProto, fixed: Mapping[str, int]) -> Argument:
        """What `info` says, with the sizes of named dimensions in `fixed`."""
        type = info.type.optional_type.elem_type if info.type.HasField("optional_type") else info.type
        tensor = type.tensor_type
        dims: list[int | str | None] = []
        for dim in tensor.shape.dim:
            if dim.HasField("dim_value"):
                dims.append(dim.dim_value)
            else:
                dims.append(fixed.get(dim.dim_param, dim.dim_param) if dim.dim_param else None)
        element_type = tensor.elem_type if info.type.HasField("tensor_type") else 0
        return cls(info.name, type_name(info.type), element_type, tuple(dims) if tensor.HasField("shape") else None)

    def public(self) -> NodeArg:
        """What users get to see."""
        return NodeArg(self.name, self.type, list(self.dims or ()))

    def static_shape(self) -> tuple[int, ...] | None:
        """The shape, where it is declared in full."""
        sizes = [size for size in self.dims or () if isinstance(size, int)]
        return None if self.dims is None or len(sizes) < len(self.dims) else tuple(sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's data type for the elements of a tensor."""
        return dtype_of(self.element_type)

    def check(self, array: np.ndarray, what: str) -> None:
        """Require the declared data type and shape of an array."""
        expected = self.dtype
        fits = array.dtype.kind in "OUS" if expected.kind == "O" else array.dtype == expected
        # Messages are made only when something is wrong: this is on the way of every run.
        if not fits:
            raise ValidationError(f"{what} must be {self.type}, got an array of {array.dtype}")
        if self.dims is not None:
            fits = len(array.shape) == len(self.dims) and all(
                not isinstance(wanted, int) or wanted == size
                for wanted, size in zip(self.dims, array.shape, strict=True)
            )
            if not fits:
                raise ValidationError(f"{what} must have shape {list(self.dims)}, got {list(array.shape)}")

    def array(self, value: Any) -> Any:
        """What the user passed for this input, as the engines take it; they hold the tensor's lock.

        Raises:
            ValidationError: no array, or one of another data type or shape.
        """
        what = f"input {self.name!r}"
        if not self.element_type:
            if self.type.startswith("seq("):
                require(isinstance(value, (list, tuple)), f"{what} must be a list, got {type(value).__name__}")
                return list(value)
            return value
        if isinstance(value, MLTensor):
            array = as_declared(value.memory(), self.element_type)
        elif self.element_type == TensorProto.STRING:
            array = np.asarray(value)
            texts = array.dtype.kind in "US" or all(isinstance(item, (str, bytes)) for item in array.flat)
            require(texts, f"{what} must hold strings, got an array of {array.dtype}")
        elif isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__dlpack__"):
            array = as_array(value, what)
        else:
            try:
                array = np.asarray(value)
            except (TypeError, ValueError) as error:
                raise ValidationError(f"{what} must be an array, got {type(value).__name__} ({error})") from None
        self.check(array, what)
        if self.element_type == TensorProto.STRING:
            return array
        array = contiguous(array)
        if self.element_type == TensorProto.BOOL:
            check_bool(array, what, ValidationError)
        return array

    def target(self, value: Any) -> np.ndarray:
        """The array that this output is to be written into.

        Raises:
            ValidationError: no array, one of another data type or shape, or one that cannot be written to.
        """
        what = f"out[{self.name!r}]"
        numeric = self.element_type and self.element_type != TensorProto.STRING
        require(bool(numeric), f"{what}: {self.type} cannot be written into an array")
        if isinstance(value, MLTensor):
            array = as_declared(value.memory(), self.element_type)
        else:
            require(isinstance(value, np.ndarray), f"{what} must be an array, got {type(value).__name__}")
            array = value
        self.check(array, what)
        flags = array.flags
        usable = flags.c_contiguous and flags.aligned and flags.writeable
        require(bool(usable), f"{what} must be C-contiguous, aligned and writable")
        return array

    @property
    def fits_tensor(self) -> bool:
        """Whether an `MLTensor` can hold it."""
        return self.element_type in DATA_TYPES


def check_named_dimensions(arguments: list[Argument], feed: Mapping[str, Any]) -> None:
    """Require one size for each dimension that the model gives a name."""
    sizes: dict[str, tuple[int, str]] = {}
    for argument in arguments:
        value = feed[argument.name]
        if argument.dims is None or not isinstance(value, np.ndarray):
            continue
        for name, size in zip(argument.dims, value.shape, strict=True):
            if isinstance(name, str):
                first, where = sizes.setdefault(name, (size, argument.name))
                require(
                    first == size,
                    f"the dimension {name!r} is {first} in input {where!r}, and {size} in input {argument.name!r}",
                )


def type_name(type: TypeProto) -> str:
    """A type as ONNX Runtime writes it.

    >>> type_name(TypeProto(sequence_type={"elem_type": {"tensor_type": {"elem_type": TensorProto.FLOAT}}}))
    'seq(tensor(float))'
    """
    match type.WhichOneof("value"):
        case "tensor_type" | "sparse_tensor_type" as kind:
            element = type.tensor_type if kind == "tensor_type" else type.sparse_tensor_type
            known = element.elem_type in TensorProto.DataType.values()
            name = TensorProto.DataType.Name(element.elem_type).lower() if known else "unknown"
            return f"tensor({name})" if kind == "tensor_type" else f"sparse_tensor({name})"
        case "sequence_type":
            return f"seq({type_name(type.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_name(type.optional_type.elem_type)})"
        case "map_type":
            key = TensorProto.DataType.Name(type.map_type.key_type).lower()
            return f"map({key},{type_name(type.map_type.value_type)})"
    return "unknown"
