"""Values of an ONNX graph, as tracing knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.graph import MLOperand
from .protobuf import TensorProto, TypeProto, element_type_of, tensor_type

FOLD_BYTES = 65536
"""Constants up to this size are folded: shape arithmetic, not weights."""


@dataclass(frozen=True)
class Constant:
    """A value that is known while the graph is built."""

    array: np.ndarray

    @property
    def element_type(self) -> int:
        """The ONNX element type."""
        return element_type_of(self.array.dtype)

    @property
    def whole(self) -> Constant | None:
        """The numbers as int64; None if some are no integers, or floats whose next integer float32 may not hold."""
        array = self.array
        if array.dtype.kind == "f" and not ((np.abs(array) <= 2**24) & (array == np.trunc(array))).all():
            return None
        return Constant(array.astype(np.int64)) if array.dtype.kind in "iuf" else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.array.shape


class NamedSizes(Constant):
    """Integers that depend on the sizes of a run: `symbols` is an array of `Size` and int.

    `array` has the numbers for one run. A graph made from `array` is valid for these numbers only, as `Guards` records.
    """

    def __init__(self, symbols: np.ndarray, dtype: np.dtype[Any]) -> None:
        object.__setattr__(self, "symbols", symbols)
        object.__setattr__(self, "dtype", dtype)

    symbols: np.ndarray
    dtype: np.dtype[Any]

    @property
    def whole(self) -> NamedSizes:
        """The sizes."""
        return self

    @property
    def array(self) -> np.ndarray:
        """The numbers for the sizes of this run."""
        return np.array([int(item) for item in self.symbols.flat], self.dtype).reshape(self.symbols.shape)

    @property
    def element_type(self) -> int:
        """The ONNX element type."""
        return element_type_of(self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.symbols.shape


class SizeData(Constant):
    """Numbers that a node computes from the sizes of a run, and that are no formulas, such as floats.

    The numbers, `array`, are for one run, and what reads them is valid for these numbers only. What reads an operand of them,
    which the graph computes, is valid for all sizes.
    """

    def __init__(self, node: Any, values: Sequence[Any], sample: np.ndarray, compute: Callable[[], np.ndarray]) -> None:
        """`sample` has the data type and the shape of the result of `node`."""
        object.__setattr__(self, "node", node)
        object.__setattr__(self, "values", tuple(values))
        object.__setattr__(self, "sample", sample)
        object.__setattr__(self, "compute", compute)
        object.__setattr__(self, "operands", {})

    node: Any
    values: tuple[Any, ...]
    sample: np.ndarray
    compute: Callable[[], np.ndarray]
    operands: dict[Any, MLOperand]
    """Operands of the result, by builder."""

    @property
    def whole(self) -> Constant | None:
        """The sizes that a cast to a type that holds sizes has converted; None for the results of other operators."""
        (source, *_), dtype = self.values, self.sample.dtype
        holds_sizes = dtype.kind in "iuf" and dtype.itemsize >= 4
        if self.node.op_type != "Cast" or not holds_sizes or not isinstance(source, (NamedSizes, SizeData)):
            return None
        return source.whole

    @property
    def array(self) -> np.ndarray:
        """The numbers for the sizes of this run."""
        return self.compute()

    @property
    def element_type(self) -> int:
        """The ONNX element type."""
        return element_type_of(self.sample.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.sample.shape


@dataclass(frozen=True)
class Tensor:
    """A value that is computed when the graph runs; the operand is uint8 for bool."""

    operand: MLOperand
    element_type: int


@dataclass(frozen=True)
class Dynamic:
    """An output of unknown shape, made by a node that falls back; the type is incomplete, or None."""

    type: TypeProto | None = None

    @property
    def element_type(self) -> int:
        """The ONNX element type; 0 if it is unknown, or the value is not a tensor."""
        return self.type.tensor_type.elem_type if self.type is not None else 0


Value = Constant | Tensor | Dynamic


def shape_of(value: Value | None) -> tuple[int, ...] | None:
    """The shape of a value; None if it is absent or its shape is unknown."""
    if isinstance(value, Tensor):
        return value.operand.shape
    return value.shape if isinstance(value, Constant) else None


def type_of(value: Value | None) -> TypeProto:
    """The ONNX type of a value; empty if it is unknown."""
    match value:
        case Constant():
            return tensor_type(value.element_type, value.shape)
        case Tensor(operand, element_type):
            return tensor_type(element_type, operand.shape)
        case Dynamic(type) if type is not None:
            return type
    return TypeProto()


def types_and_data(values: Mapping[str, Value | None]) -> tuple[dict[str, TypeProto], dict[str, TensorProto]]:
    """The known types of values, and the data of small constants, as ONNX's shape inference takes them."""
    from onnx import numpy_helper

    types, data = {}, {}
    for name, value in values.items():
        if (type := type_of(value)).WhichOneof("value"):
            types[name] = type
        if isinstance(value, Constant) and not isinstance(value, SizeData) and value.array.nbytes <= FOLD_BYTES:
            data[name] = numpy_helper.from_array(value.array, name)
    return types, data
