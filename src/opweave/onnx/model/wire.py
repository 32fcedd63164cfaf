"""Parse a serialised model without copying its weights.

A protocol buffer is a sequence of fields with lengths, so initializers and Constant nodes of the main graph are found without
parsing other fields. `without_weights` replaces their raw data by references to its place, in the form of external data. Field
numbers come from onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ...backends.onnxruntime.records import field
from ...support.varint import read_varint
from .contents import LEAST_BYTES as LEAST_BYTES

HERE = "\0"
"""The location of data inside the model itself; no file can have this name."""

_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_INITIALIZER = 7, 1, 5
_NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN, _ATTRIBUTE_TENSOR = 4, 5, 7, 5
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int, int]
"""(number, start, value, end): number of a field, negative if the value is not bytes, and three positions in the data."""


def without_weights(data: memoryview, nodes: bool = True) -> bytes | None:
    """A serialised ModelProto with references in place of large weights; None if `data` is not one valid ModelProto.

    `nodes`: weights in Constant nodes are replaced, too.
    """
    try:
        graphs = [item for item in _fields(data, 0, len(data)) if item[0] == _MODEL_GRAPH]
        if len(graphs) != 1:  # several fields would be merged
            return None
        ((_, start, value, end),) = graphs
        change = {_GRAPH_INITIALIZER: _tensor} | ({_GRAPH_NODE: _node} if nodes else {})
        graph = _replace_fields(data, value, end, change)
    except IndexError:  # incomplete, or not a protocol buffer
        return None
    return bytes(data) if graph is None else b"".join((data[:start], field(_MODEL_GRAPH, graph), data[end:]))


Change = Callable[[memoryview, int, int], bytes | None]
"""Returns the new value of the field between two positions; None to keep the field."""


def _replace_fields(data: memoryview, start: int, end: int, changes: Mapping[int, Change]) -> bytes | None:
    """Replace fields of a message, by number; None if all fields stay."""
    kept: list[memoryview | bytes] = []
    done = start
    for number, first, value, last in _fields(data, start, end):
        if number in changes and (new := changes[number](data, value, last)) is not None:
            kept += [data[done:first], field(number, new)]
            done = last
    return b"".join([*kept, data[done:end]]) if kept else None


def _node(data: memoryview, start: int, end: int) -> bytes | None:
    """Replace the raw data in a Constant node by a reference; None for other nodes."""
    if end - start < LEAST_BYTES:
        return None
    operator = domain = b""
    for number, _, value, last in _fields(data, start, end):
        if number == _NODE_OPERATOR:
            operator = bytes(data[value:last])
        elif number == _NODE_DOMAIN:
            domain = bytes(data[value:last])
    if operator != b"Constant" or domain not in (b"", b"ai.onnx"):
        return None
    return _replace_fields(data, start, end, {_NODE_ATTRIBUTE: _attribute})


def _attribute(data: memoryview, start: int, end: int) -> bytes | None:
    """Replace the raw data in an attribute's tensor by a reference; None for other attributes."""
    tensors = [number for number, *_ in _fields(data, start, end) if number == _ATTRIBUTE_TENSOR]
    # Protobuf would merge several tensors.
    return _replace_fields(data, start, end, {_ATTRIBUTE_TENSOR: _tensor}) if len(tensors) == 1 else None


def _tensor(data: memoryview, start: int, end: int) -> bytes | None:
    """Replace the raw data of a TensorProto by a reference; None if it is small, or has external data already."""
    if end - start < LEAST_BYTES:
        return None
    raw: Field | None = None
    for item in _fields(data, start, end):
        number, _, value, _ = item
        elsewhere = number == _EXTERNAL_DATA or (number == -_DATA_LOCATION and data[value] != 0)
        if elsewhere or (number == _RAW_DATA and raw is not None):
            return None
        raw = item if number == _RAW_DATA else raw
    if raw is None or raw[3] - raw[2] < LEAST_BYTES:
        return None
    place = {"location": HERE, "offset": str(raw[2]), "length": str(raw[3] - raw[2])}
    entries = b"".join(field(_EXTERNAL_DATA, field(1, key) + field(2, text)) for key, text in place.items())
    return bytes(data[start : raw[1]]) + bytes(data[raw[3] : end]) + entries + field(_DATA_LOCATION, 1)


def _fields(data: memoryview, position: int, end: int) -> Iterator[Field]:
    """Iterate over the fields between two positions; `IndexError` if the last one does not end at `end`."""
    while position < end:
        start = position
        key, position = data[position], position + 1  # nearly all keys and most lengths are one byte
        if key >= 0x80:
            key, position = read_varint(data, start)
        number, kind = key >> 3, key & 7
        if kind == _BYTES:
            length, position = data[position], position + 1
            if length >= 0x80:
                length, position = read_varint(data, position - 1)
        elif kind == _VARINT:
            _, last = read_varint(data, position)
            number, length = -number, last - position
        elif kind in (_FIXED32, _FIXED64):
            number, length = -number, 4 if kind == _FIXED32 else 8
        else:
            raise IndexError(f"wire type {kind}")
        if position + length > end:
            raise IndexError(f"a field of {length} bytes")
        yield number, start, position, position + length
        position += length
