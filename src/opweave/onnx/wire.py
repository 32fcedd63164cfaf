"""Parse a serialised model without copying its weights.

A protocol buffer is a sequence of fields, each with its length, so initializers are found without parsing the fields between
them. `without_weights` replaces their raw data by references to their place, in the form of external data. Field numbers are
those of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..backends.onnxruntime.emit import field
from ..varint import read_varint

HERE = "\0"
"""The location of data inside the model itself; no file can have this name."""

LEAST_BYTES = 1024
"""Weights of this size or more are replaced by references."""

_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int, int]
"""The number of a field (negative if its value is not bytes), and the positions of its start, of its value, and of its end."""


def without_weights(data: memoryview) -> bytes | None:
    """A serialised ModelProto with references in place of large weights; None if `data` is not one valid ModelProto."""
    try:
        graphs = [found for found in _fields(data, 0, len(data)) if found[0] == _MODEL_GRAPH]
        if len(graphs) != 1:  # several fields would be merged
            return None
        ((_, start, value, end),) = graphs
        return bytes(data[:start]) + field(_MODEL_GRAPH, _graph(data, value, end)) + bytes(data[end:])
    except IndexError:  # incomplete, or not a protocol buffer
        return None


def _graph(data: memoryview, start: int, end: int) -> bytes:
    kept: list[memoryview | bytes] = []
    done = start
    for number, first, value, last in _fields(data, start, end):
        if number == _GRAPH_INITIALIZER and (tensor := _tensor(data, value, last)) is not None:
            kept += [data[done:first], field(_GRAPH_INITIALIZER, tensor)]
            done = last
    return b"".join([*kept, data[done:end]])


def _tensor(data: memoryview, start: int, end: int) -> bytes | None:
    """A TensorProto that refers to its raw data; None if it is small, or has external data already."""
    if end - start < LEAST_BYTES:
        return None
    raw: Field | None = None
    for found in _fields(data, start, end):
        number, _, value, _ = found
        elsewhere = number == _EXTERNAL_DATA or (number == -_DATA_LOCATION and data[value] != 0)
        if elsewhere or (number == _RAW_DATA and raw is not None):
            return None
        raw = found if number == _RAW_DATA else raw
    if raw is None or raw[3] - raw[2] < LEAST_BYTES:
        return None
    place = {"location": HERE, "offset": str(raw[2]), "length": str(raw[3] - raw[2])}
    entries = b"".join(field(_EXTERNAL_DATA, field(1, key) + field(2, text)) for key, text in place.items())
    return bytes(data[start : raw[1]]) + bytes(data[raw[3] : end]) + entries + field(_DATA_LOCATION, 1)


def _fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """The fields between two positions.

    Raises:
        IndexError: the last field does not end at `end`.
    """
    while at < end:
        start = at
        key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _BYTES:
            length, at = read_varint(data, at)
        elif kind == _VARINT:
            _, last = read_varint(data, at)
            number, length = -number, last - at
        elif kind in (_FIXED32, _FIXED64):
            number, length = -number, 4 if kind == _FIXED32 else 8
        else:
            raise IndexError(f"wire type {kind}")
        if at + length > end:
            raise IndexError(f"a field of {length} bytes")
        yield number, start, at, at + length
        at += length
