"""The inputs of a model that are indices into its weights, as token ids are, and the values that they may have.

In ONNX, an index out of range is an error; WebNN clamps it. Indices that a call passes are checked, those that the model
computes are not.
"""

from __future__ import annotations

from ..value_ranges import InputRange, ValueRange
from .checks import title_of
from .messages import GraphProto, NodeProto, TensorProto
from .registry import MICROSOFT, key_of

INDEXING = {("", "Gather"): "axis", (MICROSOFT, "GatherBlockQuantized"): "gather_axis"}
"""Operators whose second input are indices into the first, and the attribute that says along which axis; 0 by default."""

KEEPS_VALUES = {("", op_type) for op_type in ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")}
"""Operators whose result has the values of their first input, where these are integers."""

INTEGERS = {TensorProto.INT32, TensorProto.INT64}


def index_ranges(graph: GraphProto) -> list[InputRange]:
    """The ranges of the inputs that are indices; each range once."""
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    inputs = {value.name: value.type.tensor_type.elem_type for value in graph.input if value.name not in weights}
    overridable = {value.name for value in graph.input} - inputs.keys()
    sources = {name: name for name, element_type in inputs.items() if element_type in INTEGERS}
    found: dict[tuple[str, int], InputRange] = {}
    for node in graph.node:
        key = key_of(node)
        if key in KEEPS_VALUES and node.input and node.input[0] in sources:
            sources.update(dict.fromkeys(node.output, sources[node.input[0]]))
        elif key in INDEXING and len(node.input) > 1 and node.input[1] in sources:
            table, name = node.input[0], sources[node.input[1]]
            size = None if table in overridable else _size(weights.get(table, ()), node)
            if size is not None:
                values = ValueRange(-size, size - 1, f"the rows of {table!r}")
                found.setdefault((name, size), InputRange(name, name, f"{title_of(node)}: indices", values))
    return list(found.values())


def _size(shape: tuple[int, ...], node: NodeProto) -> int | None:
    """The size of the axis that a node's indices select from; None where there is no such axis."""
    axis = next((a.i for a in node.attribute if a.name == INDEXING[key_of(node)]), 0)
    return int(shape[axis]) if -len(shape) <= axis < len(shape) else None
