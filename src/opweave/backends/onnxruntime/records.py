"""Encode the protocol buffers of ONNX models by hand, with the field numbers of onnx.proto3."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import copysign, inf
from struct import pack
from typing import Any

import numpy as np

from ... import memory
from ...core.dtypes import INFO, ONNX_TYPES
from ...core.sizes import Size
from ...support.records import record
from ...support.varint import varint

OPSET = 21
"""ONNX operator set of written models; the engine's optimiser supports its forms best."""
POOLING_OPSET = 18
"""Operator set for graphs with AveragePool, if possible: from 19 on, the CPU kernel is several times slower."""
IR_VERSION = 10

NEWER = {"CumProd": 26}
"""Operators that `OPSET` lacks, with the operator set that a model with one of them has. Rules emit one only if the engine has
all kernels of the graph there."""

_UNCHANGED = """
Add AveragePool BatchNormalization Clip Concat Conv ConvTranspose Div Elu Erf Exp Expand Gather Gemm GlobalAveragePool
GlobalLpPool GlobalMaxPool HardSigmoid Identity InstanceNormalization LRN LeakyRelu Log LpPool MatMul Max MaxPool Min
Mul Neg PRelu Pad Pow Reciprocal Relu Reshape Sigmoid Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Tanh
Transpose Unsqueeze Where
"""
_SAME_FOR_POOLING = frozenset(_UNCHANGED.split())
"""Operators with the same meaning and kernels for the same types in `POOLING_OPSET` and `OPSET`."""

INLINE_BYTES = 1024

INLINE_BYTES_OF_RULES = 8192 * 8
"""`INLINE_BYTES` for constants of rules: shape inference must see the sizes of the largest possible Split."""

OPAQUE = frozenset({"GatherBlockQuantized", "GroupQueryAttention", "MatMulNBits"})
"""Operators in `options.USED_IN_PLACE` whose large constants the optimiser does not read, unless it folds the node."""

EMPTY_FILE = os.devnull
"""The file of constants that only kernels get: the engine requires that it exists, and refuses to read it."""

_NUMBERS = tuple(bytes([byte]) for byte in range(128))


def field(number: int, value: bytes | str | int) -> bytes:
    """Encode a protobuf field: length-delimited for bytes and strings, varint for integers."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    if number < 16 and (length := len(data)) < 128:
        return _NUMBERS[number << 3 | 2] + _NUMBERS[length] + data
    return varint(number << 3 | 2) + varint(len(data)) + data


class Subgraph(bytes):
    """An encoded GraphProto, as an attribute of a node."""


def _in_float32(value: float) -> bytes:
    """Encode a number; beyond the largest of float32, it is infinity."""
    try:
        return pack("<f", value)
    except OverflowError:
        return pack("<f", copysign(inf, value))


def attribute(name: str, value: Any) -> bytes:
    """Encode an AttributeProto of a subgraph, an int, float, str, bytes, or a sequence of ints, floats or strings."""
    if isinstance(value, (bool, int, Size)):
        return field(1, name) + field(3, int(value)) + field(20, 2)
    if isinstance(value, float):
        return field(1, name) + varint(2 << 3 | 5) + _in_float32(value) + field(20, 1)
    if isinstance(value, Subgraph):
        return field(1, name) + field(6, bytes(value)) + field(20, 5)
    if isinstance(value, (str, bytes)):
        return field(1, name) + field(4, value) + field(20, 3)
    items = list(value)
    if items and all(isinstance(item, float) for item in items):
        return field(1, name) + field(7, b"".join(map(_in_float32, items))) + field(20, 6)
    if items and all(isinstance(item, str) for item in items):
        return field(1, name) + b"".join(field(9, item) for item in items) + field(20, 8)
    return field(1, name) + field(8, b"".join(varint(int(item)) for item in items)) + field(20, 7)


def value_info(name: str, data_type: str, shape: Sequence[int | str | None]) -> bytes:
    """Encode a ValueInfoProto; a dimension may be a size, a name, or None for an unknown size."""
    dims = b"".join(field(1, _dimension(size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, ONNX_TYPES[data_type]) + field(2, dims)))


def external_data(name: str, array: np.ndarray, files: Any) -> dict[str, str]:
    """Entries of `TensorProto.external_data`: a part of one of the mapped files, or the name of an array without one."""
    match = memory.find_in_files(array, files) if array.flags.c_contiguous else None
    if match is None:
        return {"location": name}
    return {"location": match[0][1:], "offset": str(match[1]), "length": str(array.nbytes)}


def external_fields(place: Mapping[str, str]) -> bytes:
    """Encode the fields of a TensorProto whose data are outside of the model, with these entries of `external_data`."""
    return b"".join(field(13, field(1, key) + field(2, text)) for key, text in place.items()) + field(14, 1)


def packed_bytes(array: np.ndarray) -> bytes:
    """The bytes of an array as ONNX stores them: elements of less than 8 bits share bytes, the first in the lowest bits.

    >>> import ml_dtypes
    >>> packed_bytes(np.array([1, -2, 3], ml_dtypes.int4)).hex()
    'e103'
    """
    info = INFO.get(array.dtype.name)
    if info is None or info.bits >= 8:
        return array.tobytes()
    codes = array.reshape(-1).view(np.uint8) & ((1 << info.bits) - 1)
    count = 8 // info.bits
    codes = np.pad(codes, (0, -len(codes) % count)).reshape(-1, count)
    result: bytes = np.bitwise_or.reduce(codes << np.arange(0, 8, info.bits, dtype=np.uint8), 1).tobytes()
    return result


def _dimension(size: int | str | None) -> bytes:
    if size is None:
        return b""
    return field(2, size) if isinstance(size, str) else field(1, size)


@record(frozen=False, eq=True)
class OnnxNode:
    """A node of the model, with encoded attributes; the name of an omitted operand is empty.

    `captures` are the values that its sub-graphs read from around them.
    """

    op_type: str
    inputs: list[str]
    outputs: list[str]
    attributes: bytes
    domain: str
    name: str
    captures: tuple[str, ...] = ()

    @property
    def is_same_for_pooling(self) -> bool:
        """Whether the node means the same in `POOLING_OPSET`; AveragePool has no dilations there."""
        dilated = self.op_type == "AveragePool" and b"dilations" in self.attributes
        return bool(self.domain) or (self.op_type in _SAME_FOR_POOLING and not dilated)


def opset_of(nodes: Sequence[OnnxNode]) -> int:
    newer = [NEWER[node.op_type] for node in nodes if node.op_type in NEWER and not node.domain]
    if newer:
        return max(newer)
    pools = any(node.op_type == "AveragePool" for node in nodes)
    return POOLING_OPSET if pools and all(node.is_same_for_pooling for node in nodes) else OPSET
