"""Random valid nodes of ONNX's operators that treat elements, move them, reduce, choose and count them, by version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from fuzz.operator_draw import Draw, Input, Node

Maker = Callable[[Draw], Node]
MAKERS: dict[str, Maker] = {}

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE})


def makes(*names: str) -> Callable[[Maker], Maker]:
    """Register the decorated function as the maker of operators."""

    def register(function: Maker) -> Maker:
        MAKERS.update(dict.fromkeys(names, function))
        return function

    return register


# Elements ------------------------------------------------------------------------------------------------------------

_UNARY = (
    *("Abs", "Ceil", "Erf", "Exp", "Floor", "Identity", "IsNaN", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid"),
    *("Sign", "Softplus", "Softsign", "Sqrt", "Tanh", "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh"),
    *("Cosh", "Asinh", "Acosh", "Atanh", "Not", "BitwiseNot", "HardSwish"),
)
_LIMITS = {"Acosh": (1, 4), "Atanh": (-0.95, 0.95), "Asin": (-1, 1), "Acos": (-1, 1), "Log": (0, 4), "Sqrt": (0, 4)}


def _first(draw: Draw) -> str:
    return str(draw.schema.inputs[0].type_str)


@makes(*_UNARY)
def _(draw: Draw) -> Node:
    return Node([draw.data(draw.shape(0, 6), _first(draw), *_LIMITS.get(draw.schema.name, (-3, 3)))])


@makes("Elu", "LeakyRelu", "ThresholdedRelu", "Swish")
def _(draw: Draw) -> Node:
    return Node([draw.data(draw.shape())], draw.some(alpha=draw.pick(0.0, 0.3, 1.0, 2.0, -0.5)))


@makes("HardSigmoid", "Selu", "Shrink")
def _(draw: Draw) -> Node:
    names = {"HardSigmoid": ("alpha", "beta"), "Selu": ("alpha", "gamma"), "Shrink": ("lambd", "bias")}
    values = {name: draw.pick(0.0, 0.25, 0.5, 1.5) for name in names[draw.schema.name]}
    return Node([draw.data(draw.shape())], draw.some(**values))


@makes("Gelu")
def _(draw: Draw) -> Node:
    return Node([draw.data(draw.shape())], draw.some(approximate=draw.pick("none", "tanh")))


@makes("PRelu")
def _(draw: Draw) -> Node:
    shape = draw.shape()
    return Node([draw.data(shape), draw.data(draw.narrower(shape))])


def _pair(draw: Draw, first: str, second: str, low: float = -3, high: float = 3) -> list[Input]:
    shape = draw.shape(0, 6)
    shapes = [shape, draw.narrower(shape)]
    if draw.chance(0.5):
        shapes.reverse()
    return [draw.data(shapes[0], first), draw.data(shapes[1], second, low, high)]


@makes("Add", "Sub", "Mul", "And", "Or", "Xor", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
def _(draw: Draw) -> Node:
    return Node(_pair(draw, "T", "T"))


@makes("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _(draw: Draw) -> Node:
    return Node(_pair(draw, "T", "T"))


@makes("Div", "Mod")
def _(draw: Draw) -> Node:
    name = draw.schema.name
    kind = draw.type("T")
    is_float = helper.tensor_dtype_to_np_dtype(kind).kind == "f"
    x, y = _pair(draw, "T", "T")
    if not is_float:
        sign = draw.pick(1, -1) if helper.tensor_dtype_to_np_dtype(kind).kind == "i" else 1
        low, high = (1, 5) if sign > 0 else (-6, -4)
        y = draw.data(y.array.shape, kind, low, high, special=False)
    fmod = 1 if is_float and name == "Mod" else draw.pick(0, 1, None)
    return Node([x, y], {"fmod": fmod} if name == "Mod" and fmod is not None else {})


@makes("Pow")
def _(draw: Draw) -> Node:
    second = "T1" if draw.version >= 12 else "T"
    kind = helper.tensor_dtype_to_np_dtype(draw.type(second)).kind
    x, y = _pair(draw, "T", second, -2 if kind == "f" else 0, 3 if kind == "f" else 1)
    if draw.chance(0.4) and kind == "f":
        y = Input(np.full(draw.pick((), (1,)), draw.pick(0.5, 2.0, -0.5, 3.0, 0.0, -1.0), y.array.dtype))
    return Node([x, y])


@makes("BitShift")
def _(draw: Draw) -> Node:
    x, y = _pair(draw, "T", "T", 0, 4)
    if draw.chance(0.3):
        y = draw.data(y.array.shape, "T", 0, 70)
    return Node([x, y], {"direction": draw.pick("LEFT", "RIGHT")})


@makes("Max", "Min", "Sum", "Mean")
def _(draw: Draw) -> Node:
    shape = draw.shape()
    return Node([draw.data(shape if draw.chance(0.5) else draw.narrower(shape)) for _ in range(draw.pick(1, 2, 3, 4))])


@makes("Where")
def _(draw: Draw) -> Node:
    shape = draw.shape()
    shapes = [draw.narrower(shape) for _ in range(3)]
    shapes[draw.r.randrange(3)] = shape
    return Node([draw.data(shapes[0], "B"), draw.data(shapes[1]), draw.data(shapes[2])])


@makes("IsInf")
def _(draw: Draw) -> Node:
    draw.is_special = True
    options = draw.some(detect_negative=draw.pick(0, 1), detect_positive=draw.pick(0, 1))
    return Node([draw.data(draw.shape(), _first(draw))], options)


@makes("Clip")
def _(draw: Draw) -> Node:
    kind = draw.type("T")
    x = draw.data(draw.shape(), special=draw.version != 11)  # which has limits for infinities in ONNX Runtime
    low, high = draw.pick(-1, 0, 1), draw.pick(0, 1, 2, -2)
    if draw.version < 11:
        return Node([x], draw.some(min=float(low), max=float(high)))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    bounds = [max(value, 0) if dtype.kind == "u" else value for value in (low, high)]
    inputs = [x, *(draw.pick(None, Input(np.array(value, dtype))) for value in bounds)]
    return Node(trimmed(draw, inputs))


def trimmed(draw: Draw, inputs: Sequence[Input | None]) -> list[Input | None]:
    """Inputs without absent ones at the end, or with them."""
    kept = list(inputs)
    while kept and kept[-1] is None and draw.chance(0.7):
        kept.pop()
    return kept


@makes("Cast")
def _(draw: Draw) -> Node:
    kinds = [k for k in draw.allowed("T2") if k != TensorProto.STRING]
    draw.type("T1", without=[TensorProto.STRING])
    to = draw.r.choice(kinds)
    is_unsigned = helper.tensor_dtype_to_np_dtype(to).kind == "u"
    low, high = (0, 100) if is_unsigned else (-100, 100)
    return Node([draw.data(draw.shape(), "T1", low, high, special=to in (1, 9, 10, 11))], {"to": to})


@makes("CastLike")
def _(draw: Draw) -> Node:
    draw.type("T1", without=[TensorProto.STRING])
    draw.type("T2", without=[TensorProto.STRING])
    is_unsigned = helper.tensor_dtype_to_np_dtype(draw.type("T2")).kind == "u"
    low, high = (0, 100) if is_unsigned else (-100, 100)
    return Node([draw.data(draw.shape(), "T1", low, high, special=False), draw.data(draw.shape(), "T2")])


@makes("BitCast")
def _(draw: Draw) -> Node:
    bits = helper.tensor_dtype_to_np_dtype(draw.type("T1", without=[TensorProto.STRING])).itemsize
    same = [
        k
        for k in draw.allowed("T2")
        if k not in (TensorProto.STRING, TensorProto.BOOL) and helper.tensor_dtype_to_np_dtype(k).itemsize == bits
    ]
    return Node([draw.data(draw.shape(), "T1")], {"to": draw.r.choice(same)})


@makes("CumSum", "CumProd")
def _(draw: Draw) -> Node:
    shape = draw.shape(1)
    axis = draw.integers(draw.axis(len(shape)), draw.pick(TensorProto.INT32, TensorProto.INT64))
    return Node([draw.calm(shape), axis], draw.some(exclusive=draw.pick(0, 1), reverse=draw.pick(0, 1)))


# Reductions ----------------------------------------------------------------------------------------------------------

_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
    *("ReduceSum", "ReduceSumSquare"),
)


@makes(*_REDUCTIONS)
def _(draw: Draw) -> Node:
    draw.may_be_empty &= draw.schema.name not in ("ReduceMax", "ReduceMean", "ReduceMin")  # which ONNX leaves undefined
    shape = draw.shape(0, 6)
    axes = draw.r.sample(range(len(shape)), draw.r.randint(0, len(shape)))
    signed = [axis - len(shape) if draw.version >= 11 and draw.chance(0.3) else axis for axis in axes]
    attributes = draw.some(keepdims=draw.pick(0, 1))
    low, high = (0.2, 3) if draw.schema.name == "ReduceLogSum" else (-2, 2)
    # ONNX Runtime computes exponentials of integers as integers.
    kinds = [kind for kind in draw.allowed("T") if kind not in FLOATS] if draw.schema.name == "ReduceLogSumExp" else []
    draw.type("T", without=kinds)
    x = draw.data(shape, "T", low, high, special=False)
    if len(draw.schema.inputs) == 1:
        return Node([x], attributes | ({"axes": signed} if signed else {}))
    attributes |= draw.some(noop_with_empty_axes=draw.pick(0, 1))
    return Node(
        trimmed(draw, [x, draw.integers(np.array(signed, np.int64)) if signed or draw.chance(0.5) else None]),
        attributes,
    )


@makes("ArgMax", "ArgMin")
def _(draw: Draw) -> Node:
    shape = draw.shape(1)
    last = draw.pick(0, 1) if draw.version >= 12 else None
    axis = draw.axis(len(shape)) if draw.version >= 11 else draw.r.randrange(len(shape))
    options = draw.some(axis=axis, keepdims=draw.pick(0, 1), select_last_index=last)
    x = draw.data(shape, "T", -1, 1, special=False)
    return Node([x], options)


@makes("Softmax", "LogSoftmax", "Hardmax")
def _(draw: Draw) -> Node:
    shape = draw.shape(1)
    axis = draw.axis(len(shape)) if draw.version >= 11 else draw.r.randrange(len(shape))
    if len(shape) == 1 and draw.version < 13:
        return Node([draw.calm(shape)], {"axis": 0})
    return Node([draw.calm(shape)], draw.some(axis=axis))


@makes("TopK")
def _(draw: Draw) -> Node:
    shape = tuple(max(size, 1) for size in draw.shape(1))
    axis = draw.axis(len(shape)) if draw.version >= 11 else draw.r.randrange(len(shape))
    k = draw.r.randint(1, shape[axis])
    attributes = draw.some(axis=axis) if shape[-1] >= k else {"axis": axis}
    if draw.version >= 11:
        attributes |= draw.some(largest=draw.pick(0, 1)) | draw.some(sorted=1)
    x = draw.data(shape, "T", -2, 2, special=False)
    if draw.version < 10:
        return Node([x], attributes | {"k": k}, 2)
    return Node([x, draw.integers([k])], attributes, 2)


# Movement ------------------------------------------------------------------------------------------------------------


@makes("Transpose")
def _(draw: Draw) -> Node:
    shape = draw.shape(0, 6)
    return Node([draw.data(shape)], draw.some(perm=draw.r.sample(range(len(shape)), len(shape)) or None))


@makes("Concat")
def _(draw: Draw) -> Node:
    shape = list(draw.shape(1))
    axis = draw.axis(len(shape)) if draw.version >= 11 else draw.r.randrange(len(shape))
    parts = []
    for _ in range(draw.pick(1, 2, 3, 5)):
        shape[axis] = draw.size()
        parts.append(draw.data(list(shape)))
    return Node(parts, {"axis": axis})


@makes("Split")
def _(draw: Draw) -> Node:
    shape = draw.shape(1)
    axis = draw.axis(len(shape)) if draw.version >= 11 else draw.r.randrange(len(shape))
    size, count = shape[axis], draw.pick(1, 2, 3)
    cuts = sorted(draw.r.randint(0, size) for _ in range(count - 1))
    sizes = [after - before for before, after in zip([0, *cuts], [*cuts, size], strict=True)]
    attributes = {"axis": axis} if axis else draw.some(axis=0)
    x = draw.data(shape)
    is_equal = draw.chance(0.4) and (
        size % count == 0 or (draw.version >= 18 and size > -(-size // count) * (count - 1))
    )
    if is_equal:
        if draw.version >= 18:
            attributes["num_outputs"] = count
        return Node([x], attributes, count)
    if draw.version < 13:
        return Node([x], attributes | {"split": sizes}, count)
    return Node([x, draw.integers(sizes)], attributes, count)


@makes("Slice")
def _(draw: Draw) -> Node:
    shape = draw.shape(1)
    rank = len(shape)
    axes = draw.r.sample(range(rank), draw.r.randint(1, rank))
    has_axes = draw.chance(0.7)
    if not has_axes:
        axes = list(range(len(axes)))
    far = 2**63 - 1
    steps = [draw.pick(1, 1, 2, -1, -2, 3) if draw.version >= 10 else 1 for _ in axes]
    starts = [draw.pick(0, 1, -1, -2, draw.r.randint(-9, 9)) for _ in axes]
    ends = [draw.pick(far, 2**31 - 1, -1, -far, draw.r.randint(-9, 9), size) for size in (shape[axis] for axis in axes)]
    signed = [axis - rank if draw.version >= 11 and draw.chance(0.3) else axis for axis in axes]
    x = draw.data(shape)
    if draw.version < 10:
        return Node([x], {"starts": starts, "ends": ends} | ({"axes": axes} if has_axes else {}))
    kind = draw.pick(TensorProto.INT64, TensorProto.INT64, TensorProto.INT32)
    if kind == TensorProto.INT32:
        ends = [min(max(end, -(2**31)), 2**31 - 1) for end in ends]
    has_steps = any(step != 1 for step in steps)
    inputs = [x, draw.integers(starts, kind), draw.integers(ends, kind)]
    inputs.append(draw.integers(signed, kind) if has_axes else None)
    return Node(trimmed(draw, [*inputs, draw.integers(steps, kind) if has_steps else None]))


@makes("Pad")
def _(draw: Draw) -> Node:
    shape = tuple(max(size, 1) for size in draw.shape(1, 5))
    modes = ["constant", "constant", "reflect", "edge", *(["wrap"] if draw.version >= 19 else [])]
    mode = draw.r.choice(modes)
    rank = len(shape)
    axes = list(range(rank))
    has_axes = draw.version >= 18 and draw.chance(0.4)
    if has_axes:
        axes = draw.r.sample(axes, draw.r.randint(1, rank))
    pairs = []
    for axis in axes:
        size = shape[axis]
        most = size - 1 if mode == "reflect" else size if mode == "wrap" else 3
        least = -(size // 2) if mode == "constant" and draw.chance(0.3) else 0
        pairs.append([draw.r.randint(least, min(most, 3)) for _ in range(2)])
    pads = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    attributes = {} if mode == "constant" and draw.chance(0.5) else {"mode": mode}
    x = draw.data(shape)
    if draw.version < 11:
        return Node([x], attributes | {"pads": pads} | draw.some(value=draw.pick(0.0, 1.5, -2.0)))
    value = None
    if draw.chance(0.4):
        value = Input(draw.values(draw.type("T"), (), 0, 3))
    inputs = [x, draw.integers(pads), value]
    if draw.version >= 18:
        signed = [axis - rank if draw.chance(0.3) else axis for axis in axes]
        inputs.append(draw.integers(signed, "Tind") if has_axes else None)
    return Node(trimmed(draw, inputs), attributes)


@makes("Tile")
def _(draw: Draw) -> Node:
    shape = draw.shape(1)
    return Node([draw.data(shape), draw.integers([draw.pick(1, 1, 2, 3) for _ in shape])])


@makes("Expand")
def _(draw: Draw) -> Node:
    shape = draw.shape()
    return Node(
        [
            draw.data(draw.narrower(shape)),
            draw.integers(np.array(draw.narrower(shape) if draw.chance(0.3) else shape, np.int64)),
        ]
    )


@makes("Reshape")
def _(draw: Draw) -> Node:
    shape = draw.shape(0, 6)
    new: list[int] = []
    rest = prod(shape)
    if 0 in shape:
        new = list(draw.r.sample(shape, len(shape)))
        can = draw.version >= 14
        if not can:
            new = [
                0 if position < len(shape) and shape[position] == size else size for position, size in enumerate(new)
            ]
            if any(size == 0 and shape[position] != 0 for position, size in enumerate(new)):
                new = list(shape)
        return Node([draw.data(shape), draw.integers(np.array(new, np.int64))], {"allowzero": 1} if can else {})
    while rest > 1 or draw.chance(0.3):
        options = [k for k in range(1, rest + 1) if rest % k == 0]
        new.append(draw.r.choice(options))
        rest //= new[-1]
    for position, size in enumerate(new):
        if position < len(shape) and shape[position] == size and draw.chance(0.3):
            new[position] = 0
    if new and draw.chance(0.4):
        new[draw.r.randrange(len(new))] = -1
    return Node(
        [draw.data(shape), draw.integers(np.array(new, np.int64))],
        draw.some(allowzero=0 if draw.version >= 14 else None),
    )


@makes("Flatten")
def _(draw: Draw) -> Node:
    shape = draw.shape(0, 5)
    axis = draw.r.randint(-len(shape) if draw.version >= 11 else 0, len(shape))
    return Node([draw.data(shape)], draw.some(axis=axis) if len(shape) else {"axis": 0})


@makes("Squeeze")
def _(draw: Draw) -> Node:
    shape = tuple(1 if draw.chance(0.5) else draw.size() for _ in range(draw.r.randint(0, 6)))
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    axes = draw.r.sample(ones, draw.r.randint(0, len(ones)))
    signed = [axis - len(shape) if draw.version >= 11 and draw.chance(0.3) else axis for axis in axes]
    x = draw.data(shape)
    if draw.version < 13:
        return Node([x], {"axes": signed} if signed else {})
    return Node([x, draw.integers(signed)] if signed else [x])


@makes("Unsqueeze")
def _(draw: Draw) -> Node:
    shape = draw.shape(0, 4)
    count = draw.pick(1, 1, 2)
    rank = len(shape) + count
    axes = draw.r.sample(range(rank), count)
    signed = [axis - rank if draw.version >= 11 and draw.chance(0.3) else axis for axis in axes]
    x = draw.data(shape)
    return Node([x], {"axes": signed}) if draw.version < 13 else Node([x, draw.integers(signed)])


@makes("DepthToSpace", "SpaceToDepth")
def _(draw: Draw) -> Node:
    block = draw.pick(1, 2, 3)
    n, c, h, w = (draw.pick(1, 2, 3) for _ in range(4))
    if draw.schema.name == "SpaceToDepth":
        mode = draw.pick("DCR", "CRD") if draw.version >= 28 else None
        return Node([draw.data([n, c, h * block, w * block])], {"blocksize": block} | draw.some(mode=mode))
    mode = draw.pick("DCR", "CRD") if draw.version >= 11 else None
    return Node([draw.data([n, c * block * block, h, w])], {"blocksize": block} | draw.some(mode=mode))


@makes("CenterCropPad")
def _(draw: Draw) -> Node:
    shape = tuple(max(size, 1) for size in draw.shape(1))
    rank = len(shape)
    axes = draw.r.sample(range(rank), draw.r.randint(1, rank)) if draw.chance(0.6) else None
    count = rank if axes is None else len(axes)
    signed = None if axes is None else [axis - rank if draw.chance(0.3) else axis for axis in axes]
    attributes = {} if signed is None else {"axes": signed}
    return Node(
        [draw.data(shape), draw.integers([draw.pick(1, 2, 3, 4, 6, 9) for _ in range(count)], "Tind")], attributes
    )


@makes("Trilu")
def _(draw: Draw) -> Node:
    shape = (*draw.shape(0, 2), draw.size(), draw.size())
    k = draw.pick(None, draw.integers(draw.r.randint(-4, 4)))
    return Node(trimmed(draw, [draw.data(shape), k]), draw.some(upper=draw.pick(0, 1)))


@makes("Gather")
def _(draw: Draw) -> Node:
    shape = [max(size, 1) for size in draw.shape(1)]
    axis = draw.axis(len(shape)) if draw.version >= 11 else draw.r.randrange(len(shape))
    indices = draw.indices(draw.shape(0, 3), shape[axis], negative=draw.version >= 11)
    return Node([draw.data(shape), indices], {"axis": axis} if axis else draw.some(axis=0))


@makes("GatherElements")
def _(draw: Draw) -> Node:
    shape = [max(size, 1) for size in draw.shape(1)]
    axis = draw.axis(len(shape))
    counts = [draw.r.randint(1, size) for size in shape]
    counts[axis] = draw.pick(1, 2, 5)
    return Node([draw.data(shape), draw.indices(counts, shape[axis])], {"axis": axis} if axis else draw.some(axis=0))


@makes("GatherND")
def _(draw: Draw) -> Node:
    shape = [max(size, 1) for size in draw.shape(2)]
    batches = draw.r.randint(0, len(shape) - 1) if draw.version >= 12 and draw.chance(0.5) else 0
    depth = draw.r.randint(1, len(shape) - batches)
    size = min(shape[batches : batches + depth])
    indices = draw.indices([*shape[:batches], *draw.shape(0, 2), depth], size, TensorProto.INT64)
    return Node([draw.data(shape), indices], {"batch_dims": batches} if batches else {})


@makes("ScatterElements", "Scatter")
def _(draw: Draw) -> Node:
    shape = [max(size, 1) for size in draw.shape(1, 4)]
    axis = draw.axis(len(shape)) if draw.version >= 11 else draw.r.randrange(len(shape))
    reductions = ["none", "add", "mul", "max", "min"] if draw.version >= 18 else ["none", "add", "mul"]
    kind = draw.type("T")
    is_number = kind not in (TensorProto.BOOL, TensorProto.STRING)
    reduction = draw.r.choice(reductions) if draw.version >= 16 and is_number else "none"
    counts = [draw.r.randint(1, size) for size in shape]
    along = axis % len(shape)
    if reduction == "none":  # positions must be distinct
        order = np.stack(
            [draw.numbers.permutation(shape[along])[: counts[along]] for _ in range(prod(counts) // counts[along])]
        )
        moved = [size for position, size in enumerate(counts) if position != along]
        places = np.moveaxis(order.reshape(*moved, counts[along]), -1, along)
        indices = Input(np.ascontiguousarray(places).astype(helper.tensor_dtype_to_np_dtype(draw.type("Tind"))))
    else:
        counts[along] = draw.pick(1, 2, 5)
        indices = draw.indices(counts, shape[along])
    attributes = ({"axis": axis} if axis else draw.some(axis=0)) | (
        {"reduction": reduction} if reduction != "none" else {}
    )
    return Node([draw.calm(shape), indices, draw.calm(indices.array.shape)], attributes)


@makes("ScatterND")
def _(draw: Draw) -> Node:
    shape = [max(size, 1) for size in draw.shape(1, 4)]
    depth = draw.r.randint(1, len(shape))
    reductions = ["none", "add", "mul", "max", "min"] if draw.version >= 18 else ["none", "add", "mul"]
    is_number = draw.type("T") not in (TensorProto.BOOL, TensorProto.STRING)
    reduction = draw.r.choice(reductions) if draw.version >= 16 and is_number else "none"
    count = draw.pick(1, 2, 4)
    if reduction == "none":
        count = min(count, prod(shape[:depth]))
        flat = draw.numbers.permutation(prod(shape[:depth]))[:count]
        places = np.stack(np.unravel_index(flat, shape[:depth]), -1).astype(np.int64)
        if draw.chance(0.3):
            places = np.where(draw.numbers.random(places.shape) < 0.5, places, places - np.array(shape[:depth]))
        indices = Input(places)
    else:
        indices = draw.indices([count, depth], min(shape[:depth]), TensorProto.INT64)
    options = {"reduction": reduction} if reduction != "none" else {}
    return Node([draw.calm(shape), indices, draw.calm([count, *shape[depth:]])], options)


@makes("OneHot")
def _(draw: Draw) -> Node:
    shape = draw.shape(0, 3)
    depth = draw.pick(1, 3, 5)
    kind = draw.type("T1")
    is_signed = helper.tensor_dtype_to_np_dtype(kind).kind != "u" and draw.version >= 11
    indices = Input(
        draw.values(kind, shape, -6 if is_signed else 0, 5, special=False)
        .round()
        .astype(helper.tensor_dtype_to_np_dtype(kind))
    )
    number = draw.integers(depth if draw.chance(0.5) else [depth], "T2")
    axis = draw.r.randint(-len(shape) - 1, len(shape))
    return Node([indices, number, draw.data([2], "T3", special=False)], draw.some(axis=axis))


@makes("ReverseSequence")
def _(draw: Draw) -> Node:
    shape = [max(size, 1) for size in draw.shape(2, 4)]
    batch = draw.pick(0, 1)
    lengths = draw.integers([draw.r.randint(1, shape[1 - batch]) for _ in range(shape[batch])])
    attributes = {"batch_axis": batch, "time_axis": 1 - batch}
    return Node(
        [draw.data(shape), lengths], draw.pick(attributes, attributes) if batch == 0 else draw.some() | attributes
    )


@makes("Compress")
def _(draw: Draw) -> Node:
    shape = [max(size, 1) for size in draw.shape(1, 4)]
    axis = draw.pick(None, draw.axis(len(shape)) if draw.version >= 11 else draw.r.randrange(len(shape)))
    size = prod(shape) if axis is None else shape[axis]
    condition = draw.data([draw.r.randint(1, size)], TensorProto.BOOL)
    return Node([draw.data(shape), condition], {} if axis is None else {"axis": axis})


@makes("NonZero")
def _(draw: Draw) -> Node:
    return Node([draw.data(draw.shape(1, 4), "T", -1, 1, special=False)])


@makes("Unique")
def _(draw: Draw) -> Node:
    shape = [max(size, 1) for size in draw.shape(1, 3)]
    axis = draw.pick(None, draw.axis(len(shape)))
    x = draw.data(
        shape,
        draw.pick(TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT8, TensorProto.DOUBLE),
        -1,
        0,
        special=False,
    )
    x.array = x.array.round()
    return Node([Input(x.array)], draw.some(axis=axis, sorted=draw.pick(0, 1)), draw.pick(1, 2, 3, 4))


@makes("EyeLike")
def _(draw: Draw) -> Node:
    x = draw.data([draw.size(), draw.size()], "T1", special=False)
    return Node([x], draw.some(k=draw.r.randint(-3, 3), dtype=draw.pick(1, 6, 7, 11)))


@makes("ConstantOfShape")
def _(draw: Draw) -> Node:
    kind = draw.pick(TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8, TensorProto.FLOAT16)
    value = helper.make_tensor("v", kind, [1], draw.values(kind, [1], 0, 3, special=False).tolist())
    return Node([draw.integers(np.array(draw.shape(0, 4), np.int64))], draw.some(value=value))


@makes("Range")
def _(draw: Draw) -> Node:
    kind = draw.type("T", without=[TensorProto.FLOAT16])
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    start, step = draw.r.randint(-3, 4), draw.pick(1, 2, 3, -1, -2)
    limit = start + draw.r.randint(-2, 8) * (1 if step > 0 else -1)
    values = [start, limit, step]
    if dtype.kind == "f":
        values = [value / 4 for value in values]
    return Node([Input(np.array(value, dtype)) for value in values])


@makes("Shape")
def _(draw: Draw) -> Node:
    shape = draw.shape(0, 5)
    if draw.version < 15:
        return Node([draw.data(shape)])
    return Node([draw.data(shape)], draw.some(start=draw.r.randint(-7, 7), end=draw.r.randint(-7, 7)))


@makes("Size")
def _(draw: Draw) -> Node:
    return Node([draw.data(draw.shape(0, 5))])


@makes("Dropout")
def _(draw: Draw) -> Node:
    x = draw.data(draw.shape())
    if draw.version < 12:  # ONNX Runtime's masks are zeros there
        return Node([x], draw.some(ratio=0.3))
    outputs = draw.pick(1, 1, 2)
    ratio = draw.pick(None, draw.integers(draw.pick(0.0, 0.5), "T1"))
    mode = draw.pick(None, Input(np.array(False)))
    if ratio is not None and float(ratio.array) == 0 and draw.chance(0.5):
        mode = Input(np.array(True))
    return Node(trimmed(draw, [x, ratio, mode]), {}, outputs)


@makes("TensorScatter")
def _(draw: Draw) -> Node:
    rank = draw.pick(3, 4)
    shape = [draw.pick(1, 2, 3) for _ in range(rank)]
    axis = draw.r.randrange(1, rank)
    shape[axis] = draw.pick(4, 5, 8)
    update = list(shape)
    update[axis] = draw.pick(1, 2, 3)
    mode = draw.pick("linear", "circular")
    most = shape[axis] - update[axis] if mode == "linear" else shape[axis] - 1
    starts = draw.pick(None, draw.integers([draw.r.randint(0, most) for _ in range(shape[0])]))
    attributes = (
        {"axis": draw.pick(axis, axis - rank)} if axis != rank - 2 else draw.some(axis=draw.pick(axis, axis - rank))
    )
    return Node(
        trimmed(draw, [draw.data(shape), draw.data(update), starts]),
        attributes | draw.some(mode=mode) if mode == "linear" else attributes | {"mode": mode},
    )


def sizes_of(node: Node) -> list[Any]:
    """Data types and shapes of the inputs of a node, to show."""
    return [None if x is None else f"{x.array.dtype}{list(x.array.shape)}" for x in node.inputs]
