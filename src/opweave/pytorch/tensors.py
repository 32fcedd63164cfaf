"""PyTorch's data types and tensors, and the data types and arrays here that stand for them, over the same memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import memory
from ..core.dtypes import DataType, numpy_type
from ..support.errors import NotSupportedError

DATA_TYPES: dict[Any, Any] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.bool: "uint8",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz",
    torch.float8_e5m2: "float8_e5m2",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz",
}
"""Data type of PyTorch -> the name of the data type here. Tensors of bool are uint8 operands that hold 0 and 1."""

PARTS: dict[Any, Any] = {
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.complex32: torch.float16,
}
"""Data type of complex numbers -> that of their parts: operands have a last axis of 2, the real and the imaginary part."""

_IN_NUMPY = DATA_TYPES.keys() - {
    torch.bool,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
}
"""Data types whose tensors NumPy takes as arrays of the data type here."""

INTEGER_OF_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Width of an element in bytes -> an integer type that NumPy has, too."""


def data_type_of(dtype: Any, subject: str) -> DataType:
    """The name of a data type of PyTorch; of complex numbers, that of their parts.

    Raises:
        NotSupportedError: graphs have no such type, as quint8.
    """
    name: DataType | None = DATA_TYPES.get(PARTS.get(dtype, dtype))
    if name is None:
        raise NotSupportedError(f"{subject} is {dtype}, which graphs do not have")
    return name


def shape_of(tensor: Any) -> list[Any]:
    """The shape of the operand that stands for a tensor, which may be one without memory."""
    return [*tensor.shape, 2] if tensor.dtype in PARTS else list(tensor.shape)


def require_dense(tensor: Any, subject: str) -> None:
    """Require a tensor whose memory holds each element.

    Raises:
        NotSupportedError: the tensor is sparse, or in a layout of oneDNN.
    """
    if tensor.layout is not torch.strided:
        raise NotSupportedError(
            f"{subject} has the layout {tensor.layout}, and graphs take dense tensors; call .to_dense()"
        )


def array_of(tensor: Any, subject: str = "a tensor") -> np.ndarray:
    """The memory of a tensor on the CPU as an array, without a copy; bool becomes uint8, complex numbers their parts.

    Raises:
        NotSupportedError: the tensor is not dense; `subject` names it in the message.
    """
    if tensor.dtype in _IN_NUMPY and not tensor.requires_grad:
        try:  # most arguments of a call: the checks below take longer than this
            array: np.ndarray = tensor.numpy()
            return array
        except (RuntimeError, TypeError):  # negated, or in a layout that NumPy does not have
            pass
    require_dense(tensor, subject)
    plain = tensor.detach()
    if plain.is_conj():
        plain = plain.resolve_conj()
        memory.copies.add(plain.nbytes, "conjugated views of PyTorch")
    if plain.dtype in PARTS:
        plain = torch.view_as_real(plain)
    if plain.is_neg():
        # A part of a conjugated complex tensor: its memory has the other sign.
        plain = plain.resolve_neg()
        memory.copies.add(plain.nbytes, "negative views of PyTorch")
    name = DATA_TYPES[plain.dtype]
    if plain.dtype is torch.bool:
        return plain.view(torch.uint8).numpy()
    try:
        return plain.numpy()
    except TypeError:  # bfloat16 and others that NumPy lacks
        return plain.view(INTEGER_OF_BYTES[plain.element_size()]).numpy().view(numpy_type(name))


def tensor_of(array: np.ndarray, dtype: Any) -> Any:
    """A tensor of a data type of PyTorch over the memory of an array, which must be writable, without a copy."""
    if dtype is torch.bool:
        return torch.from_numpy(array).view(torch.bool)
    if dtype in PARTS:
        if not array.size:  # NumPy's strides of arrays without elements are none of PyTorch's complex tensors
            return torch.empty(array.shape[:-1], dtype=dtype)
        return torch.view_as_complex(tensor_of(array, PARTS[dtype]))
    try:
        return torch.from_numpy(array)
    except TypeError:
        integers = array.view(f"i{array.itemsize}") if array.itemsize > 1 else array.view(np.uint8)
        return torch.from_numpy(integers).view(dtype)


Span = tuple[int, int]
"""The address of the first byte of a tensor, and of the first one behind the tensor; 0 and 0 without elements."""


def span_of(value: Any) -> Span:
    """The memory that a dense tensor or an array spans, with the gaps between its elements."""
    if isinstance(value, np.ndarray):
        start, end = np.lib.array_utils.byte_bounds(value)
        return (start, end) if value.size else (0, 0)
    if value.layout is not torch.strided or is_traceable_wrapper_subclass(value) or not value.numel():
        return 0, 0
    last = sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    start = value.data_ptr()
    return start, start + (last + 1) * value.element_size()


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Spans in order, those that overlap as one.

    >>> merge_spans([(8, 12), (0, 4), (10, 16)])
    [(0, 4), (8, 16)]
    """
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[1]):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def overlaps(span: Span, merged: Sequence[Span]) -> bool:
    """Whether a span has a byte of one of these, as `merge_spans` has returned them.

    >>> overlaps((4, 8), [(0, 4), (8, 16)]), overlaps((4, 9), [(0, 4), (8, 16)])
    (False, True)
    """
    position = bisect_left(merged, (span[1], 0))  # how many begin before the end of the span
    return position > 0 and merged[position - 1][1] > span[0]


def share_elements(one: Any, other: Any) -> bool:
    """Whether two dense tensors have a byte in common. Spans overlap also if elements lie between those of the other tensor.

    >>> rows = torch.zeros(4, 2)
    >>> share_elements(rows[:, 0], rows[:, 1]), share_elements(rows[:, 0], rows[2])
    (False, True)
    """
    if not overlaps(span_of(one), merge_spans([span_of(other)])):
        return False
    return np.shares_memory(_bytes_at(one), _bytes_at(other))


def _bytes_at(tensor: Any) -> np.ndarray:
    """An array with the address, shape and strides of a dense tensor, which must not be read: a tensor may be on a GPU."""
    size = tensor.element_size()
    interface = {
        "version": 3,
        "typestr": f"|V{size}",
        "data": (tensor.data_ptr(), True),
        "shape": tuple(tensor.shape),
        "strides": tuple(step * size for step in tensor.stride()),
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))
