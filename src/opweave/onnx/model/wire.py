"""Parse a serialised model without copying its weights.

A protocol buffer is a sequence of fields with lengths, so initializers and Constant nodes of the main graph are found without
parsing other fields. `without_weights` replaces their raw data by references to its place, in the form of external data. Field
numbers come from onnx.proto3.
"""

from __future__ import annotations

from ...backends.onnxruntime.protobuf import Field, fields, replace_fields
from ...backends.onnxruntime.records import external_fields, field
from .contents import LEAST_BYTES as LEAST_BYTES

HERE = "\0"
"""The location of data inside the model itself; no file can have this name."""

_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_INITIALIZER = 7, 1, 5
_NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN, _ATTRIBUTE_TENSOR = 4, 5, 7, 5
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14


def without_weights(data: memoryview, nodes: bool = True) -> bytes | None:
    """A serialised ModelProto with references in place of large weights; None if `data` is not one valid ModelProto.

    `nodes`: weights in Constant nodes are replaced, too.
    """
    try:
        graphs = [item for item in fields(data, 0, len(data)) if item[0] == _MODEL_GRAPH]
        if len(graphs) != 1:  # several fields would be merged
            return None
        ((_, start, value, end),) = graphs
        change = {_GRAPH_INITIALIZER: _tensor} | ({_GRAPH_NODE: _node} if nodes else {})
        graph = replace_fields(data, value, end, change)
    except IndexError:  # incomplete, or not a protocol buffer
        return None
    return bytes(data) if graph is None else b"".join((data[:start], field(_MODEL_GRAPH, graph), data[end:]))


def _node(data: memoryview, start: int, end: int) -> bytes | None:
    """Replace the raw data in a Constant node by a reference; None for other nodes."""
    if end - start < LEAST_BYTES:
        return None
    operator = domain = b""
    for number, _, value, last in fields(data, start, end):
        if number == _NODE_OPERATOR:
            operator = bytes(data[value:last])
        elif number == _NODE_DOMAIN:
            domain = bytes(data[value:last])
    if operator != b"Constant" or domain not in (b"", b"ai.onnx"):
        return None
    return replace_fields(data, start, end, {_NODE_ATTRIBUTE: _attribute})


def _attribute(data: memoryview, start: int, end: int) -> bytes | None:
    """Replace the raw data in an attribute's tensor by a reference; None for other attributes."""
    tensors = [number for number, *_ in fields(data, start, end) if number == _ATTRIBUTE_TENSOR]
    # Protobuf would merge several tensors.
    return replace_fields(data, start, end, {_ATTRIBUTE_TENSOR: _tensor}) if len(tensors) == 1 else None


def _tensor(data: memoryview, start: int, end: int) -> bytes | None:
    """Replace the raw data of a TensorProto by a reference; None if it is small, or has external data already."""
    if end - start < LEAST_BYTES:
        return None
    raw: Field | None = None
    for item in fields(data, start, end):
        number, _, value, _ = item
        elsewhere = number == _EXTERNAL_DATA or (number == -_DATA_LOCATION and data[value] != 0)
        if elsewhere or (number == _RAW_DATA and raw is not None):
            return None
        raw = item if number == _RAW_DATA else raw
    if raw is None or raw[3] - raw[2] < LEAST_BYTES:
        return None
    place = {"location": HERE, "offset": str(raw[2]), "length": str(raw[3] - raw[2])}
    return bytes(data[start : raw[1]]) + bytes(data[raw[3] : end]) + external_fields(place)
