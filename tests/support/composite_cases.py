"""Composites on made-up calls, and the results that witnesses give for these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from samples import Call, Make

import opweave as ow
from opweave import composites
from opweave.lazy.custom_call import CustomOp
from support import (
    integer_cases as _integers,  # noqa: F401  (registers them)
    recurrence_cases as _recurrences,  # noqa: F401  (registers them)
    witness,
)
from support.agreement import outputs_of, record
from support.cases import ALL, CASES, Maker, case
from support.graphs import compute_again
from support.onnx_nodes import node_model
from support.witness import wide

__all__ = ["CASES", "ELEMENTARY", "check", "run"]

# Activations ---------------------------------------------------------------------------------------------------------


@case(composites.quick_gelu)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x, alpha = make.array("x", make.shape()), make.choice((1.0, 1.702, -0.5))
    return Call(x, alpha=alpha), [x * witness.sigmoid(alpha * wide(x))]


@case(composites.fast_gelu)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = make.array("x", make.shape())
    bias = make.array("x", x.shape[-1:]) if make.boolean() and x.ndim else None
    return Call(x, bias), [witness.gelu(wide(x) + (0 if bias is None else wide(bias)), approximate="tanh")]


@case(composites.swiglu, rtol=4e-6)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    shape = make.shape()
    gate, x = make.array("x", shape), make.array("x", shape)
    return Call(gate, x), [witness.silu(gate) * wide(x)]


@case(composites.geglu, rtol=4e-6, atol=4e-6, half=1e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    shape, approximate = make.shape(), make.choice(("none", "tanh"))
    gate, x = make.array("x", shape), make.array("x", shape)
    return Call(gate, x, approximate=approximate), [witness.gelu(wide(gate), approximate=approximate) * wide(x)]


# Normalisations ------------------------------------------------------------------------------------------------------


@case(composites.rms_normalization)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = make.array("x", make.shape(1))
    axis = make.integer(0, x.ndim - 1)
    scale = make.array("x", x.shape[axis:])
    return Call(x, scale, axis, epsilon=0.1), [witness.rms_norm(x, scale, 0.1)]


def sums(make: Make) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, Any]:
    shape = make.shape(2, 3)
    x, residual, scale = make.array("x", shape), make.array("x", shape), make.array("x", shape[-1:])
    before = make.array("x", shape[-1:]) if make.boolean() else None
    return x, residual, scale, before, wide(x) + wide(residual) + (0 if before is None else wide(before))


@case(composites.skip_layer_norm, rtol=1e-5, atol=1e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x, residual, scale, before, total = sums(make)
    bias = make.array("x", scale.shape) if make.boolean() else None
    wanted = witness.layer_norm(total, scale, bias, 0.1)
    return Call(x, residual, scale, bias, before, epsilon=0.1), [wanted, total]


@case(composites.skip_rms_norm, rtol=1e-5, atol=1e-5, half=1e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x, residual, scale, before, total = sums(make)
    return Call(x, residual, scale, before, epsilon=0.1), [witness.rms_norm(total, scale, 0.1), total]


@case(composites.group_normalization, rtol=1e-5, atol=1e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    groups = make.integer(1, 3)
    channels = groups * make.integer(1, 3)
    x = make.array("x", (make.integer(1, 3), channels, *make.shape(0, 3)))
    scale, bias = (make.array("x", (channels,)) if make.boolean() else None for _ in range(2))
    y: np.ndarray = wide(x).reshape(x.shape[0], groups, -1)
    y = witness.layer_norm(y, None, None, 0.1)
    column = (channels, *[1] * (x.ndim - 2))
    y = y.reshape(x.shape) * (1 if scale is None else wide(scale).reshape(column))
    return Call(x, scale, bias, groups=groups, epsilon=0.1), [y + (0 if bias is None else wide(bias).reshape(column))]


@case(composites.log_softmax)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = make.array("x", make.shape(1), -1000, 1000)
    axis = make.integer(0, x.ndim - 1)
    return Call(x, axis), [witness.log_softmax(x, axis)]


# Selection and movement ----------------------------------------------------------------------------------------------


@case(composites.top_k, ("float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8"))
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = make.array("x", make.shape(1, 4), special=True)
    if make.boolean():  # long enough to be done one by one
        x = np.concatenate([x] * -(-29 // x.shape[0]))
        axis = 0
    else:
        axis = make.integer(0, x.ndim - 1)
    k, largest = make.integer(1, min(x.shape[axis], 7)), make.boolean()
    keys = np.unique(x, return_inverse=True)[1].reshape(x.shape)  # NaN is the largest number
    if largest:  # a stable sort that goes down
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(keys, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(keys, axis, kind="stable")
    positions = np.take(order, range(k), axis)
    index_type = make.choice(("int32", "int64"))
    wanted = [np.take_along_axis(x, positions, axis), positions.astype(index_type)]
    return Call(x, k, axis, largest=largest, index_type=index_type), wanted


@case(composites.one_hot, ("int32", "int64"))
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    depth = make.integer(1, 5)
    indices = make.array("x", make.shape(0, 4), -depth - 2, depth + 2)
    axis = make.integer(0, indices.ndim)
    on, off = make.choice(((1.0, 0.0), (3.0, -2.0)))
    data_type = make.choice(("float32", "float16", "int64", "int8"))
    wanted = np.full((*indices.shape, depth), off)
    for place in np.ndindex(indices.shape):
        if -depth <= indices[place] < depth:
            wanted[place][int(indices[place])] = on
    wanted = np.moveaxis(wanted, -1, axis).astype(data_type)
    return Call(indices, depth, axis, on=on, off=off, data_type=data_type), [wanted]


@case(composites.hard_max)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = make.array("x", make.shape(1))
    axis = make.integer(0, x.ndim - 1)
    wanted = np.zeros_like(x)
    np.put_along_axis(wanted, np.expand_dims(x.argmax(axis), axis), 1, axis)
    return Call(x, axis), [wanted]


COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@case(composites.scatter_reduce, ALL, half=1e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    shape = make.shape(1, 4)
    axis, reduction = make.integer(0, len(shape) - 1), make.choice(tuple(COMBINE))
    counts = [make.integer(1, 6 if d == axis else size) for d, size in enumerate(shape)]
    x, updates = make.array("x", shape, 0, 4), make.array("x", counts, 0, 4)
    broadcast = [1 if make.boolean() and d != axis else size for d, size in enumerate(counts)]
    index_type = make.choice(("int32", "int64", "uint32"))
    lowest = 0 if index_type == "uint32" else -shape[axis] - 2
    indices = make.random.integers(lowest, shape[axis] + 2, broadcast).astype(index_type)
    positions = np.clip(indices.astype(np.int64), -shape[axis], shape[axis] - 1) % shape[axis]
    places = list(np.indices(counts))
    places[axis] = np.broadcast_to(positions, counts)
    wanted = wide(x).copy() if x.dtype.kind == "f" else x.copy()
    COMBINE[reduction].at(wanted, tuple(places), updates.astype(wanted.dtype))
    return Call(x, indices, updates, axis, reduction=reduction), [wanted.astype(x.dtype)]


@case(composites.tensor_scatter, ALL)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    shape = make.shape(2, 5)
    axis, mode = make.integer(1, len(shape) - 1), make.choice(("linear", "circular"))
    size, count = shape[axis], make.integer(1, shape[axis])
    past, update = make.array("x", shape), make.array("x", (*shape[:axis], count, *shape[axis + 1 :]))
    start = make.random.integers(-9, 9, shape[:1]).astype(make.choice(("int32", "int64"))) if make.boolean() else None
    wanted = past.copy()
    for batch in range(shape[0]):
        first = 0 if start is None else int(start[batch])
        if mode == "linear":
            first = min(max(first, 0), size - count)
        for k in range(count):
            np.moveaxis(wanted[batch], axis - 1, 0)[(first + k) % size] = np.moveaxis(update[batch], axis - 1, 0)[k]
    return Call(past, update, start, axis, mode=mode), [wanted]


@case(composites.non_zero, ALL)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = make.array("x", make.shape(1, 4), -1, 1, special=True)
    count = make.integer(1, x.size)
    return Call(x, count), list(_cut(np.stack(np.nonzero(x)), count, 1, -1))


def _cut(array: np.ndarray, count: int, axis: int, fill: float) -> tuple[np.ndarray, np.ndarray]:
    """The first `count` slices along an axis, or more of `fill`; and how many there are."""
    kept = np.take(array, range(min(count, array.shape[axis])), axis)
    padding = [(0, count - kept.shape[axis] if d == axis else 0) for d in range(array.ndim)]
    return np.pad(kept, padding, constant_values=fill), np.array([kept.shape[axis]])


@case(composites.compress, ALL)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = make.array("x", make.shape(1, 4), special=True)
    axis = make.integer(0, x.ndim - 1) if make.boolean() else None
    condition = make.random.integers(0, 3, make.integer(1, x.size if axis is None else x.shape[axis])).astype("uint8")
    count = make.integer(1, condition.size)
    wanted = _cut(np.compress(condition != 0, x, axis), count, axis or 0, 0)
    return Call(x, condition, count, axis), list(wanted)


@case(composites.unique, ALL)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x, is_sorted = make.array("x", make.shape(1, 3), -1, 1, special=True), make.boolean()
    axis = make.choice((None, *range(x.ndim)))
    if axis is not None:
        return _unique_slices(x, make.integer(1, x.shape[axis]), axis, is_sorted)
    count = make.integer(1, x.size)
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    if not is_sorted:
        order = np.argsort(first)
        values, first, counts = values[order], first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    (values, number), (first, _), (counts, _) = (
        _cut(a, count, 0, f) for a, f in ((values, 0), (first, -1), (counts, 0))
    )
    inverse = np.minimum(inverse.reshape(-1), count)
    return Call(x, count, sorted=is_sorted), [values, first, inverse, counts, number]


def _unique_slices(x: np.ndarray, count: int, axis: int, is_sorted: bool) -> tuple[Call, Sequence[Any]]:
    """Distinct slices by comparisons in Python: NumPy compares bits."""
    rows = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    keys = [tuple((1, 0) if value != value else (0, value) for value in row.tolist()) for row in rows]
    distinct = list(dict.fromkeys(keys))
    distinct = sorted(distinct) if is_sorted else distinct
    first = np.array([keys.index(key) for key in distinct])
    values, number = _cut(np.take(x, first, axis), count, axis, 0)
    counts, _ = _cut(np.array([keys.count(key) for key in distinct]), count, 0, 0)
    inverse = np.minimum([distinct.index(key) for key in keys], count)
    return Call(x, count, axis, sorted=is_sorted), [values, _cut(first, count, 0, -1)[0], inverse, counts, number]


@case(composites.non_max_suppression)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    batches, classes, count = make.integer(1, 2), make.integer(1, 3), make.integer(1, 23)
    boxes, scores = make.array("x", (batches, count, 4), 0, 8), make.array("x", (batches, classes, count), -1, 1)
    most, iou, is_center = make.integer(1, 14), make.choice((0.0, 0.31, 0.57, 1.0)), make.boolean()
    threshold = make.choice((None, -0.5, 0.0, 0.25))
    inputs = [boxes.astype("float32"), scores.astype("float32"), np.int64([most]), np.float32([iou])]
    names = ["boxes", "scores", "most", "iou"]
    if threshold is not None:
        inputs.append(np.float32([threshold]))
        names.append("threshold")
    node = onnx.helper.make_node("NonMaxSuppression", names, ["y"], center_point_box=int(is_center))
    (selected,) = ReferenceEvaluator(node).run(None, dict(zip(names, inputs, strict=True)))
    wanted = _cut(selected, batches * classes * min(most, count), 0, -1)
    options = {"iou_threshold": iou, "score_threshold": threshold, "center_point_box": is_center}
    return Call(boxes, scores, most, **options), list(wanted)


@case(composites.depth_to_space, ALL)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    block, (n, c, h, w) = make.integer(1, 3), make.shape(4, 4, 3)
    x, mode = make.array("x", (n, c * block**2, h, w)), make.choice(("dcr", "crd"))
    wanted = np.empty((n, c, h * block, w * block), x.dtype)
    for i in range(block):
        for j in range(block):
            place = i * block + j
            channels = slice(place * c, place * c + c) if mode == "dcr" else slice(place, None, block**2)
            wanted[:, :, i::block, j::block] = x[:, channels]
    return Call(x, block, mode=mode), [wanted]


@case(composites.space_to_depth, ALL)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    block, (n, c, h, w) = make.integer(1, 3), make.shape(4, 4, 3)
    x = make.array("x", (n, c, h * block, w * block))
    parts = [x[:, :, i::block, j::block] for i in range(block) for j in range(block)]
    return Call(x, block), [np.concatenate(parts, 1)]


def evaluated(op_type: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> np.ndarray:
    """The result of ONNX's reference evaluator."""
    model, feed = node_model(op_type, inputs, attributes, opset=20)
    return np.asarray(ReferenceEvaluator(model).run(None, feed)[0])


@case(composites.resize, rtol=2e-5, atol=2e-5, half=1e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = make.array("x", make.shape(1, 3, 6))
    sizes = [make.integer(1, 8) for _ in x.shape]
    mode, antialias = make.choice(("linear", "cubic")), make.boolean()
    coordinates = make.choice(("half_pixel", "align_corners", "asymmetric"))
    options: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    wanted = evaluated("Resize", [wide(x), None, None, np.int64(sizes)], {**options, "antialias": int(antialias)})
    return Call(x, sizes=sizes, antialias=antialias, **options), [wanted]


@case(composites.affine_grid, half=1e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    rank, corners = make.integer(2, 3), make.boolean()
    sizes = [make.integer(1 + corners, 5) for _ in range(rank)]
    theta = make.array("x", (make.integer(1, 3), rank, rank + 1))
    shape = np.int64([len(theta), 1, *sizes])
    wanted = evaluated("AffineGrid", [theta.astype("float32"), shape], {"align_corners": int(corners)})
    return Call(theta, sizes, align_corners=corners), [wanted]


@case(composites.center_crop_pad, ALL)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = make.array("x", make.shape(1, 4))
    axes = sorted(make.subset(range(x.ndim)))
    sizes = [make.integer(1, 7) for _ in axes]
    attributes = {"axes": axes}
    wanted = evaluated("CenterCropPad", [x, np.int64(sizes)], attributes) if axes else x
    return Call(x, sizes, axes=axes), [wanted]


# Small integers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix of packed numbers: the operands by name, the attributes, and the elements."""

    operands: dict[str, Any]
    attributes: dict[str, int]
    elements: Any


def packed_matrix(make: Make, rows: int, width: int, size: int, group: int = 1) -> PackedMatrix:
    """Draw a matrix in blocks of `size` numbers; `group` adjacent rows share scales."""
    bits, kind = make.choice((2, 4, 4, 8, 8)), make.choice(("none", "zero point", "minimum"))
    with_upper = bits < 8 and size % 8 == 0 and kind != "zero point" and make.boolean()
    upper_bits = make.choice((1, 2)[: bits // 2]) if with_upper else 0
    blocks = -(-width // size)
    numbers = make.random.integers(0, 2 ** (bits + upper_bits), (rows, blocks * size))
    units = make.choice([k for k in range(1, blocks + 1) if blocks % k == 0]) if make.boolean() else 0
    operands: dict[str, Any] = dict.fromkeys(("zero_point", "minimum", "upper", "scale_unit", "minimum_unit"))

    def of_blocks(name: str) -> Any:
        """Draw scales or minima, and their units; return the real values."""
        shape = rows // group, blocks
        if units:
            operands[name] = make.random.integers(1, 60, shape).astype(make.choice(("int8", "uint8")))
            unit = operands[f"{name}_unit"] = make.array("x", (shape[0], units), 0.5, 1)
            unit /= 64
            return operands[name] * np.repeat(unit.astype(float), blocks // units, axis=1)
        values = make.array("x", shape, 0.5, 1)
        operands[name] = (values / 2**upper_bits).astype(values.dtype)
        return operands[name].astype(float)

    def spread(values: Any) -> Any:
        return np.repeat(np.repeat(values, size, 1), group, 0)

    scale = spread(of_blocks("scale"))
    if kind == "minimum":
        elements = numbers * scale + spread(of_blocks("minimum"))
    else:
        zeros = np.full((rows // group, blocks), 2 ** (bits + upper_bits - 1))
        if kind == "zero point":
            zeros = make.random.integers(0, 2**bits, zeros.shape)
            operands["zero_point"] = composites.pack_bits(zeros, bits=bits)
        elements = (numbers - spread(zeros)) * scale
    is_whole = size * bits % 8 == 0
    shaped = numbers.reshape(rows, blocks, size) if is_whole else numbers[:, None, :width]
    operands["weight"] = composites.pack_bits(shaped % 2**bits, bits=bits)
    if upper_bits:
        operands["upper"] = composites.pack_bits(shaped >> bits, bits=upper_bits)
    return PackedMatrix(operands, {"bits": bits, "upper_bits": upper_bits, "block_size": size}, elements[:, :width])


@case(composites.matmul_n_bits, rtol=2e-5, atol=2e-4, half=1e-3)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    inner, columns = make.integer(1, 100), make.integer(1, 20)
    x = make.array("x", (*make.shape(1, 3), inner), -1, 1)
    matrix = packed_matrix(make, columns, inner, make.choice((16, 32, 64)))
    bias = make.array("x", (columns,)) if make.boolean() else None
    wanted = x.astype(float) @ matrix.elements.T + (0 if bias is None else bias.astype(float))
    return Call(x, bias=bias, **matrix.operands, **matrix.attributes), [wanted]


@case(composites.gather_n_bits, half=1e-3)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    width, rows = make.integer(1, 100), make.integer(1, 3) * (group := make.choice((1, 1, 2)))
    matrix = packed_matrix(make, rows, width, make.choice((1, 3, 8, 16, 24, 32, 64)), group)
    indices = make.random.integers(-rows, rows, make.shape(0, 2)).astype("int32")
    weight, scale = (matrix.operands.pop(name) for name in ("weight", "scale"))
    call = Call(weight, scale, indices, **matrix.operands, width=width, **matrix.attributes)
    return call, [matrix.elements[indices]]


# Mathematics -------------------------------------------------------------------------------------------------------

INTEGERS = ALL[2:]
ELEMENTARY: dict[Any, Any] = {
    composites.acos: np.arccos,
    composites.acosh: np.arccosh,
    composites.asin: np.arcsin,
    composites.asinh: np.arcsinh,
    composites.atan: np.arctan,
    composites.atanh: np.arctanh,
    composites.cosh: np.cosh,
    composites.erf_inv: witness.erf_inv,
    composites.expm1: np.expm1,
    composites.log1p: np.log1p,
    composites.sinh: np.sinh,
}
"""Functions of one number, and the same in float64."""


def elementary(function: Any) -> Maker:
    def make_one(make: Make) -> tuple[Call, Sequence[Any]]:
        is_special = function not in (np.cosh, np.expm1, np.sinh)  # whose results exceed float16
        x = make.array("x", make.shape(), -1 if make.boolean() else -4, 1 if make.boolean() else 4, special=is_special)
        with np.errstate(all="ignore"):
            return Call(x), [function(wide(x))]

    return make_one


for _op, _function in ELEMENTARY.items():
    case(_op, rtol=1e-6, atol=1e-12)(elementary(_function))


def pair(make: Make) -> tuple[np.ndarray, np.ndarray]:
    shape = make.shape()
    info = np.iinfo(make.types["x"])
    a, b = (make.array("x", s, info.min, info.max, special=True) for s in (shape, make.broadcastable(shape)))
    return (a, b) if make.boolean() else (b, a)


for _op, _function in {
    composites.bitwise_and: np.bitwise_and,
    composites.bitwise_or: np.bitwise_or,
    composites.bitwise_xor: np.bitwise_xor,
}.items():

    def _bits(make: Make, function: Any = _function) -> tuple[Call, Sequence[Any]]:
        a, b = pair(make)
        return Call(a, b), [function(a, b)]

    case(_op, INTEGERS)(_bits)


@case(composites.bitwise_not, INTEGERS)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = pair(make)[0]
    return Call(x), [~x]


def shift(make: Make, left: bool) -> tuple[Call, Sequence[Any]]:
    shape = make.shape()
    info = np.iinfo(make.types["x"])
    a = make.array("x", shape, info.min, info.max, special=True)
    distance = make.array("x", make.broadcastable(shape), -3, info.bits + 3)
    numbers, distances = np.broadcast_arrays(a.astype(object), distance.astype(object))
    wanted = np.zeros(numbers.shape, a.dtype)
    for place in np.ndindex(numbers.shape):
        number, bits = int(numbers[place]), int(distances[place])
        if 0 <= bits < info.bits:
            shifted = number << bits if left else number >> bits
            wanted[place] = np.uint64(shifted % 2**64).astype(f"uint{info.bits}").astype(a.dtype)
        elif number < 0 and not left:
            wanted[place] = -1
    return Call(a, distance), [wanted]


@case(composites.shift_left, INTEGERS)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    return shift(make, True)


@case(composites.shift_right, INTEGERS)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    return shift(make, False)


@case(composites.bit_cast, ALL)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = make.array("x", make.shape())
    same = [t for t in ALL if np.dtype(t).itemsize == x.itemsize and (t == "float16") == (x.dtype == np.float16)]
    target = make.choice(same)
    return Call(x, target), [x.view(target)]


@case(composites.cumulative_product, ("float32", "float16", "int32", "uint32", "int64", "uint64"), half=1e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = make.array("x", make.shape(1, 4, 6), -2, 2)
    axis, exclusive, reversed = make.integer(0, x.ndim - 1), make.boolean(), make.boolean()
    factors = np.flip(x, axis) if reversed else x
    if exclusive:
        first = np.ones_like(np.take(x, [0], axis))
        factors = np.concatenate([first, np.take(factors, range(x.shape[axis] - 1), axis)], axis)
    factors = wide(factors) if x.dtype.kind == "f" else factors
    wanted = np.cumprod(factors, axis, dtype=factors.dtype)
    call = Call(x, axis, exclusive=exclusive, reversed=reversed)
    return call, [np.flip(wanted, axis) if reversed else wanted]


def well_conditioned(make: Make) -> np.ndarray:
    """Matrices with large elements on a diagonal that is moved, so that rows must be exchanged."""
    size = make.integer(1, 6)
    x = make.array("x", (*make.shape(0, 2, 3), size, size), -1, 1)
    return x + np.roll(np.eye(size, dtype=x.dtype) * (size + 1), make.integer(0, size - 1), 0)


@case(composites.det, rtol=1e-5, atol=1e-4, half=1e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = well_conditioned(make)
    if x.dtype == np.float16:
        x = x / np.float16(2)
    return Call(x), [np.linalg.det(wide(x))]


@case(composites.inverse, rtol=1e-5, atol=1e-5, half=1e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    x = well_conditioned(make)
    return Call(x), [np.linalg.inv(wide(x))]


def transformed(x: np.ndarray, length: int | None, axis: int, inverse: bool, onesided: bool) -> np.ndarray:
    """NumPy's transform of the numbers whose parts are in the last dimension."""
    numbers = wide(x[..., 0]) + (1j * wide(x[..., 1]) if x.shape[-1] == 2 else 0)
    if inverse and onesided:
        return np.fft.irfft(numbers, length, axis)[..., None]
    result = (np.fft.ifft if inverse else np.fft.fft)(numbers, length, axis)
    if onesided:
        result = np.take(result, range(result.shape[axis] // 2 + 1), axis)
    return np.stack([result.real, result.imag], -1)


@case(composites.dft, rtol=1e-5, atol=2e-4, half=3e-1)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    inverse, onesided = make.boolean(), make.boolean()
    parts = 1 if onesided and not inverse else make.integer(1, 2)
    shape = list(make.shape(1, 3))
    axis = make.integer(0, len(shape) - 1)
    if make.integer(0, 3) == 0:
        shape[axis] = make.choice((60, 513, 521, 625, 1030))  # long ones are factorised, or have large prime factors
    shape[axis] += inverse and onesided
    x = make.array("x", (*shape, parts), -1, 1)
    length = make.integer(1, shape[axis] + 3) if make.boolean() else None
    options = {"axis": axis, "inverse": inverse, "onesided": onesided}
    wanted = transformed(x, length, **options)
    if make.integer(0, 3) == 0:
        return Call(x, length, **options, parts="real"), [wanted[..., :1]]
    return Call(x, length, **options), [wanted]


@case(composites.stft, rtol=1e-5, atol=2e-5, half=5e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    batches, length, step = make.integer(1, 3), make.integer(4, 30), make.integer(1, 12)
    size, onesided = make.integer(1, length), make.boolean()
    signal = make.array("x", (batches, length, 1 if onesided else make.integer(1, 2)), -1, 1)
    window = make.array("x", (size,)) if make.boolean() else None
    frames = np.lib.stride_tricks.sliding_window_view(wide(signal), size, 1)[:, ::step].swapaxes(2, 3)
    frames = frames * (1 if window is None else wide(window)[:, None])
    call = Call(signal, window, step=step, frame_length=size, onesided=onesided)
    return call, [transformed(frames, None, 2, False, onesided)]


# Attention -----------------------------------------------------------------------------------------------------------


def joined_heads(x: np.ndarray) -> np.ndarray:
    """[batch, heads, length, size] -> [batch, length, heads * size]."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def mask_for(make: Make, shape: tuple[int, ...]) -> np.ndarray | None:
    """None, or a mask that broadcasts: bytes, or numbers and minus infinity."""
    kind = make.choice(("none", "bytes", "numbers"))
    if kind == "none":
        return None
    if kind == "bytes":
        return make.random.integers(0, 2, make.broadcastable(shape)).astype(np.uint8)
    added = make.array("x", make.broadcastable(shape))
    return np.asarray(np.where(make.random.random(added.shape) < 0.3, np.array(-np.inf, added.dtype), added))


def scale_for(make: Make) -> dict[str, Any]:
    return {"scale": 0.5} if make.boolean() else {}


@case(composites.scaled_dot_product_attention, rtol=1e-5, atol=1e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    batches, groups, times, queries, keys, size = (make.integer(1, 4) for _ in range(6))
    q = make.array("x", (batches, groups * times, queries, size), -2, 2)
    k = make.array("x", (batches, groups, keys, size), -2, 2)
    v = make.array("x", (batches, groups, keys, make.integer(1, 4)))
    mask, causal, scale = mask_for(make, (*q.shape[:3], keys)), make.boolean(), scale_for(make)
    wanted = witness.attention(q, k, v, mask, causal=causal, **scale)
    return Call(q, k, v, mask, causal=causal, **scale), [wanted]


@case(composites.multi_head_attention, rtol=1e-5, atol=1e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    batches, heads, queries, keys, size = (make.integer(1, 4) for _ in range(5))
    keys = queries if make.boolean() else keys
    q = make.array("x", (batches, queries, heads * size), -2, 2)
    k = make.array("x", (batches, keys, heads * size), -2, 2)
    v = make.array("x", (batches, keys, heads * make.integer(1, 4)))
    mask, causal, scale = mask_for(make, (batches, heads, queries, keys)), make.boolean(), scale_for(make)
    a, b, c = (x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for x in (q, k, v))
    wanted = joined_heads(witness.attention(a, b, c, mask, causal=causal, **scale))
    return Call(q, k, v, mask, heads=heads, causal=causal, **scale), [wanted]


@case(composites.group_query_attention, rtol=1e-5, atol=1e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    batches, groups, times, new, past = (make.integer(1, 3) for _ in range(5))
    size, heads = make.choice((3, 8, 16)), groups * times
    q = make.array("x", (batches, new, heads * size), -1, 1)
    k, v = (make.array("x", (batches, new, groups * size), -1, 1) for _ in range(2))
    a, b, c = (x.reshape(*x.shape[:2], -1, size).swapaxes(1, 2) for x in (q, k, v))
    same: dict[str, Any] = {**scale_for(make), "softcap": make.choice((0.0, 1.5)), "window": make.integer(0, 3)}
    operands: dict[str, Any] = {}
    kind = make.choice(("none", "full", "room"))
    if kind == "none":
        past = 0
    room = new + make.integer(0, 2) if kind == "room" else 0
    keys = past + (room or new)
    lengths = make.random.integers(0, past + 1, batches) if room else np.full(batches, past)
    if kind != "none":
        for name in ("past_key", "past_value"):
            operands[name] = make.array("x", (batches, groups, past + room, size), -1, 1)
    if room:
        operands["past_value"][:, :, past:] = np.nan  # the values beyond the past ones must not matter
        operands["lengths"] = lengths.astype(np.int32)
    if make.boolean():
        same["bias"] = make.array("x", make.broadcastable((batches, heads, new, keys)), -2, 2)
    if make.boolean():
        same["sinks"] = make.array("x", (heads,), -1, 1)
    interleaved = make.boolean()
    if make.boolean():
        cos, sin = tables(make, keys + make.integer(0, 2), make.integer(1, size // 2))
        operands |= {"cosines": cos, "sines": sin}
        positions = lengths[:, None] + np.arange(new)
        a, b = (witness.rotated(x, cos, sin, positions, interleaved) for x in (a, b))
    pasts = [operands[name] for name in ("past_key", "past_value") if name in operands]
    y, *memories = witness.cached_attention(a, b, c, pasts, lengths, keys, **same)
    options = {"heads": heads, "groups": groups, "interleaved": interleaved, **same}
    return Call(q, k, v, **operands, **options), [joined_heads(y), *memories]


def tables(make: Make, rows: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of angles."""
    angles = make.random.random((rows, pairs)) * 6
    return np.cos(angles).astype(make.types["x"]), np.sin(angles).astype(make.types["x"])


@case(composites.rotary_embedding)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    batches, heads, length, half, rows = (make.integer(1, 4) for _ in range(5))
    cos, sin = tables(make, rows + length, make.integer(1, half))
    positions = make.random.integers(0, rows + length, (batches, length)) if make.boolean() else None
    interleaved, joined = make.boolean(), make.boolean()
    x = make.array("x", (batches, heads, length, 2 * half))
    wanted = witness.rotated(x, cos, sin, np.arange(length)[None] if positions is None else positions, interleaved)
    if joined:
        x, wanted = (joined_heads(y) for y in (x, wanted))
    options = {"interleaved": interleaved, **({"heads": heads} if joined else {})}
    return Call(np.ascontiguousarray(x), cos, sin, positions, **options), [wanted]


def run(context: ow.MLContext, op: CustomOp[Any], call: Call) -> list[np.ndarray]:
    builder, result, arrays = record(context, op, call)
    return list(compute_again(context, builder.build(outputs_of(result)), arrays).values())


def check(op: CustomOp[Any], call: Call, got: Sequence[np.ndarray], wanted: Sequence[Any]) -> None:
    row = CASES[op]
    assert len(got) == len(wanted)
    for array, other in zip(got, wanted, strict=True):
        expected = np.asarray(other, np.float64)
        assert array.shape == expected.shape
        if array.dtype.kind != "f":
            np.testing.assert_array_equal(array, np.asarray(other), err_msg=repr(call))
            continue
        known = ~np.isnan(expected) if op is composites.group_query_attention else np.ones(expected.shape, bool)
        half = array.dtype == np.float16
        np.testing.assert_allclose(
            array[known].astype(np.float64),
            expected[known],
            rtol=row.half if half else row.rtol,
            atol=row.half if half else row.atol,
            err_msg=repr(call),
        )
