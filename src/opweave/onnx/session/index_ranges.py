"""Ranges of input values: indices into weights, such as token ids, and lengths of sequences.

In ONNX, an index out of range is an error; WebNN clamps it. GroupQueryAttention writes new keys at the lengths, and recurrent
networks have sequence lengths. Inputs in host memory are checked. Values that the model computes are clamped, but ONNX Runtime
refuses them in an uncompiled model. Values that a device holds are taken as they are.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy as np

from ...core.value_ranges import InputRange, ValueRange
from ...support.records import record
from ..model.checks import title_of
from ..model.model import Model
from ..model.protobuf import NodeProto, TensorProto, ValueInfoProto
from ..model.tables import MICROSOFT, key_of

INDEXING = {("", "Gather"): "axis", (MICROSOFT, "GatherBlockQuantized"): "gather_axis"}
"""Operators whose second input holds indices into the first, with the name of the axis attribute (0 by default)."""

KEEPS_VALUES = {("", op_type) for op_type in ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")}
"""Operators that keep the values of an integer first input."""

DEQUANTISES = {(domain, "DequantizeLinear") for domain in ("", MICROSOFT)}
"""Operators whose result has the shape of their first input, a weight of few bits."""

RECURRENT = {("", op_type) for op_type in ("GRU", "LSTM", "RNN")}
"""Operators whose fifth input holds the lengths of the sequences in the first."""

INTEGERS = {TensorProto.INT32, TensorProto.INT64}


class _Lengths:
    """A range of lengths in one input, computed from other inputs; `subject` is the operator's name for the lengths."""

    __slots__ = ()
    subject: ClassVar[str]
    lengths: str
    node: str

    def fits(self, inputs: Any) -> bool:
        """Whether all lengths are in the range; true if the range is unknown."""
        values = self._values(inputs)
        return values is None or values.outside(inputs[self.lengths]) is None

    def check(self, inputs: Any) -> None:
        """Raise `ValidationError` if a length is out of the range."""
        values = self._values(inputs)
        if values is not None:
            values.check(f"{self.node}: {self.subject}", inputs[self.lengths], f" in the input {self.lengths!r}")

    def _values(self, inputs: Any) -> ValueRange | None:
        """The range; None if it is unknown."""
        raise NotImplementedError


@record
class LengthRange(_Lengths):
    """The range of `seqlens_k` of GroupQueryAttention, the index of the last key of each sequence.

    Indices are below max(capacity, `total_sequence_length`), for `past` keys [batch, groups, capacity, size].
    """

    subject = "seqlens_k"
    lengths: str
    past: str
    total: str
    node: str

    def _values(self, inputs: Any) -> ValueRange | None:
        past, total = inputs[self.past], inputs[self.total]
        if not all(isinstance(array, np.ndarray) for array in (inputs[self.lengths], total)):
            return None  # in the memory of a device
        if len(past.shape) != 4 or total.size != 1:
            return None  # the operator refuses them
        capacity = max(past.shape[2], total.item())
        return ValueRange(0, capacity - 1, f"as there is room for {capacity} keys")


@record
class StepRange(_Lengths):
    """The range of `sequence_lens` of a recurrent network whose `sequence` is an input, with its steps along `axis`."""

    subject = "sequence_lens"
    lengths: str
    sequence: str
    axis: int
    node: str

    def _values(self, inputs: Any) -> ValueRange | None:
        shape = inputs[self.sequence].shape
        if not isinstance(inputs[self.lengths], np.ndarray) or len(shape) != 3:
            return None  # in the memory of a device, or refused by the operator
        return ValueRange(0, shape[self.axis], f"as there are {shape[self.axis]} steps")


Range: TypeAlias = InputRange | LengthRange | StepRange


def find_ranges(model: Model) -> list[Range]:
    """Find the ranges of inputs that are indices or lengths, each once; custom operators have none."""
    graph = model.proto.graph
    initialised = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in initialised}
    sources = {name: name for name, value in inputs.items() if value.type.tensor_type.elem_type in INTEGERS}
    if not sources:
        return []
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    overridable = {value.name for value in graph.input} - inputs.keys()
    ranges: dict[Any, Range] = {}
    for node in graph.node:
        key = key_of(node)
        if key in model.operations:
            continue
        if key in KEEPS_VALUES and node.input and node.input[0] in sources:
            sources.update(dict.fromkeys(node.output, sources[node.input[0]]))
        elif key in DEQUANTISES and node.input and node.input[0] in weights and node.input[0] not in overridable:
            weights.update(dict.fromkeys(node.output, weights[node.input[0]]))
        elif key in INDEXING and len(node.input) > 1 and node.input[1] in sources:
            table, name = node.input[0], sources[node.input[1]]
            size = None if table in overridable else _size(weights.get(table, ()), node)
            if size is not None:
                values = ValueRange(-size, size - 1, f"the rows of {table!r}")
                ranges.setdefault((name, size), InputRange(name, name, f"{title_of(node)}: indices", values))
        elif key == (MICROSOFT, "GroupQueryAttention") and len(node.input) > 6:
            past, lengths, total = node.input[3], sources.get(node.input[5]), sources.get(node.input[6])
            if past in inputs and lengths and total:
                length_range = LengthRange(lengths, past, total, title_of(node))
                ranges.setdefault((lengths, total, _capacity_of(inputs[past])), length_range)
        elif key in RECURRENT and len(node.input) > 4 and node.input[0] in inputs and node.input[4] in sources:
            axis = next((a.i for a in node.attribute if a.name == "layout"), 0)
            if axis in (0, 1):
                steps = StepRange(sources[node.input[4]], node.input[0], axis, title_of(node))
                ranges.setdefault((steps.lengths, steps.sequence, axis), steps)
    return list(ranges.values())


def _size(shape: tuple[int, ...], node: NodeProto) -> int | None:
    axis = next((a.i for a in node.attribute if a.name == INDEXING[key_of(node)]), 0)
    return int(shape[axis]) if -len(shape) <= axis < len(shape) else None


def _capacity_of(past: ValueInfoProto) -> int | str:
    """The declared capacity of past keys; without it, the name of the dimension, or of the input."""
    dims = past.type.tensor_type.shape.dim
    return (dims[2].dim_value or dims[2].dim_param or past.name) if len(dims) == 4 else past.name
