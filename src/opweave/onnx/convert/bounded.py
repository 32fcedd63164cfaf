"""Values whose size depends on data, but has a bound: padded to that bound, they stay on a device with its own memory.

NonZero, NonMaxSuppression, Compress and Unique become composites, which return results of the largest possible size and the
number of those that count. Nodes that treat each of these results alone, such as Gather, are computed on the padded values.
Where another node or the caller needs the value itself, only the padded value and the number are copied, and a Slice on the
processor cuts off the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...composites import compress, non_max_suppression, non_zero, unique
from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ...core.sizes import is_static
from ...memory.spaces import HOST
from ...support.errors import NotSupportedError, ValidationError
from ..model.protobuf import NodeProto, TensorProto, TypeProto, attribute_value, domain_of, node as make_node
from ..model.registry import Unsupported, integer, normalize_axis, operand, shape_of as shape_of_tensor, unsupported_if
from ..model.values import Constant, Tensor, Value, shape_of
from .conversion import convert

if TYPE_CHECKING:
    from .trace import TracedNode, Tracer

MAX_BOUND = 2**20
"""Maximum number of results of a padded value: beyond, a copy of the operand costs less than padding. An estimate."""

MAX_STEPS = 1024
"""Maximum number of boxes of a class: each takes two kernels on a GPU. An estimate."""

MAX_COMPARED = 2**15
"""Maximum number of elements that are compared with each other to find distinct ones. An estimate."""

MAX_PAIRS = 2**24
"""Maximum number of comparisons of elements of pairs of slices, to find distinct ones. An estimate."""

MIN_OPSET = 10
"""The operator set from which on Slice takes its limits as inputs."""


@dataclass(frozen=True)
class PaddedValue:
    """A padded value: the name of the `operand`, that of the `count` of results along `axis`."""

    operand: str
    count: str
    axis: int


Results: TypeAlias = tuple[Sequence[tuple[MLOperand, int | None]], MLOperand]
"""Outputs with the axis of their results, None if they have a fixed size; and the number of results, int64 [1]."""


def bound(tracer: Tracer, node: NodeProto) -> list[TracedNode]:
    """The steps of a node whose results have a bound, or which treats such results alone; empty for any other node."""
    if domain_of(node) or tracer.opset < MIN_OPSET or tracer.context.backend.space is HOST or not any(node.output):
        return []
    try:
        if node.op_type in _SOURCES:
            return _source(tracer, node)
        return _follow(tracer, node)
    except (Unsupported, ValidationError, NotSupportedError):
        return []


def _source(tracer: Tracer, node: NodeProto) -> list[TracedNode]:
    from .trace import TracedNode

    values = [tracer.trace.values[name] if name else None for name in node.input]
    inputs = [_plain(tracer.builder, value) for value in values]
    results, number = _SOURCES[node.op_type](tracer.builder, *inputs, **_attributes(node))
    prefix, types = tracer.fresh(node), tracer.infer(node, values)
    named = {name: result for name, result in zip(node.output, results, strict=False) if name}
    missing = any(name and name not in types for name in node.output)
    unsupported_if(missing or len(results) < len(node.output), "the types of its outputs are not known")
    count = f"{prefix}count"
    tracer.trace.values[count] = Tensor(number, TensorProto.INT64)
    names, cuts = [], []
    for name, (array, axis) in named.items():
        names.append(name if axis is None else f"{prefix}{name}")
        tracer.trace.values[names[-1]] = Tensor(array, types[name].tensor_type.elem_type)
        if axis is not None:
            cuts.append(_cut(tracer, node, name, PaddedValue(names[-1], count, axis), types[name]))
    whole = NodeProto(op_type=node.op_type, name=node.name, input=node.input, output=[*names, count])
    return [TracedNode(whole, "webnn", None), *cuts]


def _plain(builder: MLGraphBuilder, value: Value | None) -> MLOperand | np.ndarray | None:
    match value:
        case None:
            return None
        case Constant(array):
            return array
        case Tensor(result) if is_static(result.shape):
            return result
    raise Unsupported("the shape of an input is not known")


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: attribute_value(attribute) for attribute in node.attribute}


def _cut(tracer: Tracer, node: NodeProto, name: str, bounded: PaddedValue, type: TypeProto | None) -> TracedNode:
    """The step on the processor that makes the value itself."""
    from .trace import TracedNode

    tracer.bounded[name] = bounded
    tracer.add_dynamic(name, type)
    zero = tracer.add_constant(f"{bounded.operand}/start", np.zeros(1, np.int64))
    axis = tracer.add_constant(f"{bounded.operand}/axis", np.array([bounded.axis], np.int64))
    cut = make_node("Slice", [bounded.operand, zero, bounded.count, axis], [name])
    cut.name = node.name
    return TracedNode(cut, "fallback", None, f"the size of what {node.op_type} makes depends on data")


def _follow(tracer: Tracer, node: NodeProto) -> list[TracedNode]:
    """Compute a node on padded values."""
    from .trace import TracedNode

    bounds = [tracer.bounded.get(name) for name in node.input]
    counts = {item.count for item in bounds if item is not None}
    if len(counts) != 1 or node.op_type not in _FOLLOWERS:
        return []
    names = [name if item is None else item.operand for name, item in zip(node.input, bounds, strict=True)]
    values = [tracer.trace.values[name] if name else None for name in names]
    shapes = [shape_of(value) for value in values]
    if any(value is not None and shape is None for value, shape in zip(values, shapes, strict=True)):
        return []
    axes = [None if item is None else item.axis for item in bounds]
    rule = _FOLLOWERS[node.op_type]
    call = PaddedCall(_attributes(node), values, [shape or () for shape in shapes], axes, tracer.opset)
    axis = rule(call)
    prefix = tracer.fresh(node)
    padded = {name: f"{prefix}{name}" for name in node.output if name}
    whole = NodeProto()
    whole.CopyFrom(node)
    whole.input[:] = names
    whole.output[:] = [padded.get(name, "") for name in node.output]
    outputs = convert(tracer.builder, whole, values, tracer.model, lambda: tracer.infer(whole, values))
    first = next(item for item in bounds if item is not None)
    size = (shape_of(tracer.trace.values[first.operand]) or ())[first.axis]
    size = size if call.limit is None else min(size, call.limit)
    for value in outputs.values():
        shape = shape_of(value)
        unsupported_if(not isinstance(value, Tensor) or shape is None or len(shape) <= axis, "it has no such axis")
        unsupported_if(shape is None or shape[axis] != size, "it changes the number of results")
    tracer.trace.values |= outputs
    count = first.count
    if call.limit is not None:
        number = tracer.trace.values[count]
        assert isinstance(number, Tensor)
        whole.input.append(count)
        count = f"{prefix}count"
        whole.output.append(count)
        fewer = tracer.builder.min(number.operand, tracer.builder.constant(np.array([call.limit])))
        tracer.trace.values[count] = Tensor(fewer, TensorProto.INT64)
    original = [tracer.trace.values[name] if name else None for name in node.input]
    types = tracer.infer(node, original)
    cuts = []
    for name, other in padded.items():
        inferred = types.get(name)
        if inferred is None or not inferred.tensor_type.elem_type:
            inferred = TypeProto()
            value = outputs[other]
            assert isinstance(value, Tensor)
            inferred.tensor_type.elem_type = value.element_type
        cuts.append(_cut(tracer, node, name, PaddedValue(other, count, axis), inferred))
    return [TracedNode(whole, "webnn", None), *cuts]


# Nodes whose results have a bound ------------------------------------------------------------------------------------


def _non_zero(b: MLGraphBuilder, x: MLOperand | np.ndarray) -> Results:
    count = _bound_of(math.prod(shape_of_tensor(x)))
    positions, number = non_zero(b, operand(b, x), count)
    return [(positions, 1)], number


def _bound_of(count: int) -> int:
    unsupported_if(not 1 <= count <= MAX_BOUND, f"it may have {count} results")
    return count


def _compress(
    b: MLGraphBuilder, x: MLOperand | np.ndarray, condition: MLOperand | np.ndarray, *, axis: int | None = None
) -> Results:
    along = None if axis is None else normalize_axis(axis, len(shape_of_tensor(x)))
    count = _bound_of(shape_of_tensor(condition)[0])
    values, number = compress(b, operand(b, x), operand(b, condition), count, along)
    return [(values, along or 0)], number


def _unique(b: MLGraphBuilder, x: MLOperand | np.ndarray, *, axis: int | None = None, sorted: int = 1) -> Results:
    shape = shape_of_tensor(x)
    along = None if axis is None or len(shape) < 2 else normalize_axis(axis, len(shape))
    count = math.prod(shape) if along is None else shape[along]
    pairs = count if along is None else count * math.prod(shape)
    unsupported_if(not 1 <= count <= MAX_COMPARED, f"it compares {count} elements")
    unsupported_if(along is not None and pairs > MAX_PAIRS, f"it compares all pairs of {count} slices")
    values, first, inverse, counts, number = unique(b, operand(b, x), count, along, sorted=bool(sorted))
    return [(values, along or 0), (first, 0), (inverse, None), (counts, 0)], number


def _non_max_suppression(
    b: MLGraphBuilder,
    boxes: MLOperand | np.ndarray,
    scores: MLOperand | np.ndarray,
    max_output_boxes: MLOperand | np.ndarray | None = None,
    iou_threshold: MLOperand | np.ndarray | None = None,
    score_threshold: MLOperand | np.ndarray | None = None,
    *,
    center_point_box: int = 0,
) -> Results:
    batches, classes, count = shape_of_tensor(scores)
    most = min(0 if max_output_boxes is None else integer(max_output_boxes, "the number of boxes"), count)
    unsupported_if(not 1 <= most <= MAX_STEPS, f"it selects up to {most} boxes")
    _bound_of(batches * classes * most)
    iou, score = (_number(value) for value in (iou_threshold, score_threshold))
    selected, number = non_max_suppression(
        b,
        operand(b, boxes),
        operand(b, scores),
        most,
        iou_threshold=iou or 0.0,
        score_threshold=score,
        center_point_box=bool(center_point_box),
    )
    return [(selected, 0)], number


def _number(value: MLOperand | np.ndarray | None) -> float | None:
    if value is None:
        return None
    unsupported_if(not isinstance(value, np.ndarray) or value.size != 1, "a threshold is not constant")
    assert isinstance(value, np.ndarray)
    return float(value.reshape(()))


_SOURCES: Mapping[str, Callable[..., Results]] = {
    "Compress": _compress,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _non_zero,
    "Unique": _unique,
}


# Nodes that treat each result alone ----------------------------------------------------------------------------------


@dataclass
class PaddedCall:
    """A call with padded operands: attributes, values and shapes of the inputs, and the axis of results, None for others.

    A rule sets `limit` to the maximum number of results that the call keeps, if it drops some.
    """

    attributes: Mapping[str, Any]
    values: Sequence[Value | None]
    shapes: Sequence[tuple[int, ...]]
    axes: Sequence[int | None]
    opset: int
    limit: int | None = None

    def only(self, *positions: int) -> int:
        """The axis of results of the one input that has results, which must be one of these."""
        others = [k for k, axis in enumerate(self.axes) if axis is not None and k not in positions]
        unsupported_if(bool(others), "it combines results")
        return next(axis for k in positions if k < len(self.axes) and (axis := self.axes[k]) is not None)

    def integers(self, position: int, name: str) -> list[int] | None:
        """A list of integers, an attribute or a constant input; None if it is absent."""
        if name in self.attributes:
            return list(self.attributes[name])
        value = self.values[position] if position < len(self.values) else None
        if value is None:
            return None
        unsupported_if(not isinstance(value, Constant), f"{name} are not constant")
        assert isinstance(value, Constant)
        return [int(item) for item in value.array.reshape(-1)]

    def axis(self, default: int, rank: int) -> int:
        """The attribute `axis`, in [0, rank)."""
        return normalize_axis(self.attributes.get("axis", default), rank)


def _elementwise(call: PaddedCall) -> int:
    """The axis of results, which operands have at the same distance from the last axis, if they have it at all.

    Raises:
        Unsupported: the distances differ, or another operand is not the same for all results.
    """
    ends = {len(shape) - axis for shape, axis in zip(call.shapes, call.axes, strict=True) if axis is not None}
    unsupported_if(len(ends) != 1, "results are on several axes")
    (end,) = ends
    for shape, axis in zip(call.shapes, call.axes, strict=True):
        unsupported_if(axis is None and len(shape) >= end and shape[-end] != 1, "an operand differs between results")
    return max(map(len, call.shapes)) - end


def _gather(call: PaddedCall) -> int:
    along = call.axis(0, len(call.shapes[0]))
    data, indices = call.axes
    if data is None:
        assert indices is not None
        return along + indices
    unsupported_if(indices is not None or data == along, "it selects results")
    return data if data < along else data - 1 + len(call.shapes[1])


def _gather_elements(call: PaddedCall) -> int:
    data, indices = call.axes
    along = call.axis(0, len(call.shapes[0]))
    unsupported_if(data == along or (data is not None and data != indices), "it selects results")
    unsupported_if(indices is None or (data is None and indices != along), "an operand differs between results")
    assert indices is not None
    return indices


def _gather_nd(call: PaddedCall) -> int:
    axis, batches = call.only(1), call.attributes.get("batch_dims", 0)
    unsupported_if(axis >= len(call.shapes[1]) - 1 or axis < batches, "it joins results")
    return axis


def _unsqueeze(call: PaddedCall) -> int:
    axis, axes = call.only(0), call.integers(1, "axes") or []
    rank = len(call.shapes[0]) + len(axes)
    added = {normalize_axis(item, rank) for item in axes}
    return [d for d in range(rank) if d not in added][axis]


def _squeeze(call: PaddedCall) -> int:
    axis, axes, rank = call.only(0), call.integers(1, "axes"), len(call.shapes[0])
    unsupported_if(axes is None, "it may remove the axis of results")
    removed = {normalize_axis(item, rank) for item in axes or []}
    unsupported_if(axis in removed, "it removes the axis of results")
    return axis - sum(item < axis for item in removed)


def _slice(call: PaddedCall) -> int:
    axis, rank = call.only(0), len(call.shapes[0])
    starts = call.integers(1, "starts") or []
    axes = call.integers(3, "axes")
    along = [normalize_axis(item, rank) for item in (range(len(starts)) if axes is None else axes)]
    if axis in along:
        ends, steps = call.integers(2, "ends") or [], call.integers(4, "steps") or [1] * len(starts)
        k = along.index(axis)
        is_start = starts[k] == 0 and steps[k] == 1 and ends[k] > 0
        unsupported_if(not is_start, "it keeps other results than the first ones")
        call.limit = ends[k]
    return axis


def _transpose(call: PaddedCall) -> int:
    axis, rank = call.only(0), len(call.shapes[0])
    return list(call.attributes.get("perm") or range(rank)[::-1]).index(axis)


def _concat(call: PaddedCall) -> int:
    axes, along = set(call.axes), call.axis(0, len(call.shapes[0]))
    unsupported_if(len(axes) != 1 or along in axes, "it joins results with others")
    (axis,) = axes
    assert axis is not None
    return axis


def _split(call: PaddedCall) -> int:
    axis, along = call.only(0), call.axis(0, len(call.shapes[0]))
    unsupported_if(axis == along, "it divides results")
    return axis


def _along_axis(call: PaddedCall) -> int:
    """An operation along another axis, which stays."""
    axis, along = call.only(0), call.axis(-1, len(call.shapes[0]))
    unsupported_if(axis == along, "it combines results")
    return axis


def _from_axis(call: PaddedCall) -> int:
    """An operation over all axes from one on."""
    axis, along = call.only(0), call.axis(-1, len(call.shapes[0]))
    # Before operator set 13, the default of softmax and its relatives was another one.
    unsupported_if(axis >= along or (call.opset < 13 and axis > 0), "it combines results")
    return axis


def _reduce(call: PaddedCall) -> int:
    axis, axes, rank = call.only(0), call.integers(1, "axes"), len(call.shapes[0])
    unsupported_if(not axes, "it combines results")
    along = {normalize_axis(item, rank) for item in axes or []}
    unsupported_if(axis in along, "it combines results")
    return axis if call.attributes.get("keepdims", 1) else axis - sum(item < axis for item in along)


def _arg_max(call: PaddedCall) -> int:
    axis, along = call.only(0), call.axis(0, len(call.shapes[0]))
    unsupported_if(axis == along, "it combines results")
    return axis if call.attributes.get("keepdims", 1) or axis < along else axis - 1


def _reshape(call: PaddedCall) -> int:
    """All of the sizes before and behind the axis of results stay, as products."""
    axis, shape, target = call.only(0), call.shapes[0], call.integers(1, "shape") or []
    if not call.attributes.get("allowzero", 0):
        target = [shape[d] if size == 0 and d != axis else size for d, size in enumerate(target)]
    before, behind = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    for d, size in enumerate(target):
        rest = [*target[:d], *target[d + 1 :]]
        is_results = size == -1 or (size == 0 and d == axis)
        if is_results and -1 not in rest and math.prod(target[:d]) == before and math.prod(target[d + 1 :]) == behind:
            return d
    raise Unsupported("it joins results")


def _product(call: PaddedCall) -> int:
    axis, rank = call.only(0), len(call.shapes[0])
    unsupported_if(len(call.shapes[1]) != 2 or axis == rank - 1, "it combines results")
    return axis


def _gemm(call: PaddedCall) -> int:
    axis = call.only(0)
    unsupported_if(axis != int(bool(call.attributes.get("transA", 0))), "it combines results")
    if len(call.shapes) > 2 and len(call.shapes[2]) == 2:
        unsupported_if(call.shapes[2][0] != 1, "an operand differs between results")
    return 0


def _batch(call: PaddedCall) -> int:
    """Results are along the axis of batches, each of which the operator computes by itself."""
    unsupported_if(call.only(0) != 0, "it combines results")
    return 0


def _flatten(call: PaddedCall) -> int:
    axis, rank = call.only(0), len(call.shapes[0])
    along = call.attributes.get("axis", 1)
    along = along + rank if along < 0 else along
    unsupported_if(axis != 0 or along != 1, "it joins results")
    return 0


def _roi_align(call: PaddedCall) -> int:
    unsupported_if(list(call.axes) != [None, 0, 0], "an operand differs between results")
    return 0


_ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal",
    "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf",
    "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not",
    "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
)  # fmt: skip

_FOLLOWERS: Mapping[str, Callable[[PaddedCall], int]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"), _reduce),
    **dict.fromkeys(("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"), _reduce),
    **dict.fromkeys(("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GlobalAveragePool"), _batch),
    **dict.fromkeys(("GlobalMaxPool", "InstanceNormalization", "MaxPool"), _batch),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_max),
    **dict.fromkeys(("Hardmax", "LayerNormalization", "LogSoftmax", "RMSNormalization", "Softmax"), _from_axis),
    "Concat": _concat,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": _product,
    "Reshape": _reshape,
    "RoiAlign": _roi_align,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "TopK": _along_axis,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""Operator -> the axis of results of its outputs; `Unsupported` if it does not treat each result alone."""
