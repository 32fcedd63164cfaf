"""Random valid nodes of ONNX's operators that add up products: layers, windows, resampling, attention, quantisation."""

from __future__ import annotations

from math import prod
from operator import gt
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from fuzz.operator_draw import Draw, Input, Node
from fuzz.operator_nodes import makes, trimmed

# Products ------------------------------------------------------------------------------------------------------------


@makes("MatMul")
def _(draw: Draw) -> Node:
    batches, (m, k, n) = draw.shape(0, 2), (draw.size() for _ in range(3))
    left, right = (m, k), (k, n)
    first = () if draw.chance(0.3) else batches if draw.chance(0.6) else draw.narrower(batches)
    second = () if draw.chance(0.3) else batches if draw.chance(0.6) else draw.narrower(batches)
    shapes = [(*first, *left), (*second, *right)]
    if draw.chance(0.1):
        shapes[0] = (k,)
    if draw.chance(0.1):
        shapes[1] = (k,)
    return Node([draw.calm(shape) for shape in shapes])


@makes("Gemm")
def _(draw: Draw) -> Node:
    m, k, n = (draw.size() for _ in range(3))
    a, b = draw.pick(0, 1), draw.pick(0, 1)
    inputs = [draw.calm((k, m) if a else (m, k)), draw.calm((n, k) if b else (k, n))]
    has_c = draw.version < 11 or draw.chance(0.7)
    if has_c:
        inputs.append(draw.calm(draw.pick((m, n), (n,), (1, n), (m, 1), (1,), ())))
    options = draw.some(alpha=draw.pick(0.5, 1.0, -2.0), beta=draw.pick(0.0, 0.5, 1.0, 2.0))
    return Node(inputs, options | {"transA": a, "transB": b})


@makes("Einsum")
def _(draw: Draw) -> Node:
    equations = (
        "ij,jk->ik bij,bjk->bik ii->i ij->ji i,j->ij ij,ij-> ...ij,...jk->...ik ij,jk b...,b->... bhid,bhjd->bhij"
    )
    equations += " ijk->k ij,i->j i,i->i ii bij->b abc,cd,de->abe"
    equation = draw.r.choice(equations.split())
    sizes: dict[str, int] = {}
    dots = tuple(draw.pick(1, 2, 3) for _ in range(draw.pick(0, 1, 2)))
    inputs = []
    for term in equation.split("->")[0].split(","):
        shape: list[int] = []
        for part in term.replace("...", "."):
            shape += dots if part == "." else [sizes.setdefault(part, draw.pick(1, 2, 3, 4))]
        inputs.append(draw.calm(shape))
    if draw.chance(0.2):
        equation = equation.replace(",", " , ").replace("->", " -> ")
    return Node(inputs, {"equation": equation})


@makes("Det")
def _(draw: Draw) -> Node:
    size = draw.pick(1, 2, 3, 5)
    return Node([draw.calm((*draw.shape(0, 2), size, size))], rtol=1e-3)


@makes("MatMulInteger")
def _(draw: Draw) -> Node:
    m, k, n = (max(draw.size(), 1) for _ in range(3))
    a = draw.data((*draw.shape(0, 1), m, k), "T1", -120, 120)
    b = draw.data((k, n), "T2", -120, 120)
    zeros = [
        draw.pick(None, draw.data(draw.pick((), (1,)), "T1", -5, 9)),
        draw.pick(None, draw.data(draw.pick((), (n,)), "T2", -5, 9)),
    ]
    return Node(trimmed(draw, [a, b, *zeros]))


# Windows -------------------------------------------------------------------------------------------------------------


def _window(
    draw: Draw, sizes: list[int], taps: list[int], *, dilates: bool = True, strides: bool = True
) -> dict[str, Any]:
    rank = len(sizes)
    attributes: dict[str, Any] = {}
    if strides and draw.chance(0.6):
        attributes["strides"] = [draw.pick(1, 2, 3) for _ in range(rank)]
    if dilates and draw.chance(0.4):
        attributes["dilations"] = [draw.pick(1, 2) for _ in range(rank)]
    kind = draw.pick("pads", "pads", "none", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
    if kind.startswith("SAME") and any(map(gt, attributes.get("strides", [1] * rank), taps)):
        kind = "none"  # ONNX Runtime's padding would be negative
    if kind in ("SAME_UPPER", "SAME_LOWER"):
        attributes.pop("dilations", None)
    if kind in ("pads", "NOTSET"):
        attributes["pads"] = [draw.r.randint(0, tap - 1) for _ in range(2) for tap in taps]
    if kind not in ("pads", "none"):
        attributes["auto_pad"] = kind
    return attributes


def _image(draw: Draw, spatial: int | None = None, least: int = 4) -> tuple[list[int], list[int]]:
    rank = draw.pick(1, 2, 2, 2, 3) if spatial is None else spatial
    sizes = [draw.r.randint(least, 9) for _ in range(rank)]
    return sizes, [draw.pick(1, 2, 3) for _ in range(rank)]


@makes("Conv")
def _(draw: Draw) -> Node:
    sizes, taps = _image(draw, least=6)
    groups, n, c, m = draw.pick(1, 1, 2, 3), draw.pick(1, 2), draw.pick(1, 2, 3), draw.pick(1, 2, 4)
    if draw.chance(0.15):
        c = m = 1
    x, w = draw.calm([n, c * groups, *sizes]), draw.calm([m * groups, c, *taps])
    bias = draw.pick(None, draw.calm([m * groups]))
    attributes = _window(draw, sizes, taps) | draw.some(kernel_shape=taps)
    return Node(trimmed(draw, [x, w, bias]), attributes | ({"group": groups} if groups > 1 else {}))


@makes("ConvTranspose")
def _(draw: Draw) -> Node:
    sizes, taps = _image(draw, draw.pick(1, 2, 2, 2), least=2)
    groups, n, c, m = draw.pick(1, 1, 2), draw.pick(1, 2), draw.pick(1, 2, 3), draw.pick(1, 2, 4)
    x, w = draw.calm([n, c * groups, *sizes]), draw.calm([c * groups, m, *taps])
    attributes = _window(draw, sizes, taps)
    strides = attributes.get("strides", [1] * len(sizes))
    if draw.chance(0.3):
        attributes["output_padding"] = [draw.r.randint(0, stride - 1) for stride in strides]
    if draw.chance(0.15) and "pads" not in attributes:
        attributes["output_shape"] = [size * stride for size, stride in zip(sizes, strides, strict=True)]
        attributes.pop("output_padding", None)
        attributes.pop("dilations", None)
        attributes.pop("auto_pad", None)
    bias = draw.pick(None, draw.calm([m * groups]))
    attributes |= draw.some(kernel_shape=taps)
    return Node(trimmed(draw, [x, w, bias]), attributes | ({"group": groups} if groups > 1 else {}))


@makes("AveragePool", "MaxPool", "LpPool")
def _(draw: Draw) -> Node:
    name, version = draw.schema.name, draw.version
    sizes, taps = _image(draw, least=5)
    dilates = version >= {"AveragePool": 19, "MaxPool": 10, "LpPool": 18}[name]
    attributes = _window(draw, sizes, taps, dilates=dilates) | {"kernel_shape": taps}
    if version >= {"AveragePool": 10, "MaxPool": 10, "LpPool": 18}[name]:
        attributes |= draw.some(ceil_mode=draw.pick(0, 1))
    outputs = 1
    if name == "AveragePool":
        attributes |= draw.some(count_include_pad=draw.pick(0, 1))
    elif name == "LpPool":
        attributes |= draw.some(p=draw.pick(1, 2, 3))
    elif draw.chance(0.3):
        outputs = 2
        attributes |= draw.some(storage_order=draw.pick(0, 1))
    x = draw.calm([draw.pick(1, 2), draw.pick(1, 3), *sizes])
    return Node([x], attributes, outputs)


@makes("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _(draw: Draw) -> Node:
    sizes, _ = _image(draw, least=1)
    options = draw.some(p=draw.pick(1, 2, 3)) if draw.schema.name == "GlobalLpPool" else {}
    return Node([draw.calm([draw.pick(1, 2), draw.pick(1, 3), *sizes])], options)


@makes("Col2Im")
def _(draw: Draw) -> Node:
    rank = draw.pick(1, 2, 2, 3)
    image = [draw.r.randint(3, 6) for _ in range(rank)]
    block = [draw.pick(1, 2, 3) for _ in range(rank)]
    strides = [draw.pick(1, 2) for _ in range(rank)]
    dilations = [1] * rank
    pads = [draw.pick(0, 1) for _ in range(2 * rank)]
    counts = [
        (image[k] + pads[k] + pads[rank + k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1 for k in range(rank)
    ]
    x = draw.calm([draw.pick(1, 2), draw.pick(1, 2) * prod(block), prod(counts)])
    return Node([x, draw.integers(image), draw.integers(block)], {"strides": strides, "pads": pads})


@makes("GridSample")
def _(draw: Draw) -> Node:
    rank = 3 if draw.version >= 20 and draw.chance(0.3) else 2
    sizes, outs = ([draw.pick(1, 2, 3, 4) for _ in range(rank)] for _ in range(2))
    n = draw.pick(1, 2)
    names = ("linear", "nearest", "cubic") if draw.version >= 20 else ("bilinear", "nearest", "bicubic")
    mode = names[draw.r.randrange(2 if rank == 3 else 3)]
    # ONNX Runtime moves positions to the border before it takes the neighbours of cubic interpolation.
    padding = "zeros" if mode in ("cubic", "bicubic") else draw.pick("zeros", "border", "reflection")
    options = draw.some(align_corners=draw.pick(0, 1), padding_mode=padding)
    x, grid = draw.calm([n, draw.pick(1, 2), *sizes], "T1"), draw.calm([n, *outs, rank], "T2", -1.3, 1.3)
    return Node([x, grid], options | {"mode": mode}, rtol=1e-3)


@makes("AffineGrid")
def _(draw: Draw) -> Node:
    rank = draw.pick(2, 3)
    size = [draw.pick(1, 2), draw.pick(1, 3), *(draw.pick(1, 2, 4) for _ in range(rank))]
    theta = draw.calm([size[0], rank, rank + 1], "T1")
    # ONNX defines no aligned corners of a single element.
    return Node([theta, draw.integers(size)], draw.some(align_corners=draw.pick(0, 1)) if min(size[2:]) > 1 else {})


@makes("RoiAlign")
def _(draw: Draw) -> Node:
    n, count = draw.pick(1, 2), draw.pick(1, 3)
    x = draw.calm([n, draw.pick(1, 2), 6, 5], "T1")
    starts = draw.numbers.uniform(0, 3, (count, 2))
    rois = np.concatenate([starts, starts + draw.numbers.uniform(0.5, 4, (count, 2))], 1)
    options = draw.some(
        mode=draw.pick("avg", "max"), sampling_ratio=draw.pick(0, 1, 2), spatial_scale=draw.pick(1.0, 0.5)
    )
    options |= draw.some(output_height=draw.pick(1, 2, 3), output_width=draw.pick(1, 2))
    if draw.version >= 16:
        options |= draw.some(coordinate_transformation_mode=draw.pick("half_pixel", "output_half_pixel"))
    batches = draw.indices([count], n, TensorProto.INT64, negative=False)
    dtype = helper.tensor_dtype_to_np_dtype(draw.type("T1"))
    return Node([x, Input(rois.astype(dtype)), batches], options, rtol=1e-3)


@makes("Resize")
def _(draw: Draw) -> Node:
    rank = draw.pick(1, 2, 3, 4, 4, 5)
    shape = [draw.pick(1, 2, 3, 4) for _ in range(rank)]
    free = min(rank, 2) if draw.chance(0.8) else 1
    mode = draw.pick("nearest", "linear", "cubic") if draw.version >= 11 else draw.pick("nearest", "linear")
    if mode == "cubic":
        rank, shape, free = 4, [1, 2, 4, 3], 2
    x = draw.calm(shape, "T" if draw.version < 11 else "T1")
    factors = [1.0] * (rank - free) + [draw.pick(0.5, 1.0, 2.0, 1.5, 3.0, 0.7) for _ in range(free)]
    options: dict[str, Any] = {"mode": mode}
    if draw.version < 11:
        return Node([x, Input(np.array(factors, np.float32))], options, rtol=1e-3)
    transforms = ["half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners"]
    transforms += ["half_pixel_symmetric"] if draw.version >= 19 else []
    transforms += ["tf_half_pixel_for_nn"] if draw.version < 13 else []
    options |= draw.some(coordinate_transformation_mode=draw.r.choice(transforms))
    if mode == "nearest":
        rounding = draw.pick("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        options |= draw.some(nearest_mode=rounding)
    if mode == "cubic":
        options |= draw.some(cubic_coeff_a=draw.pick(-0.75, -0.5), exclude_outside=draw.pick(0, 1))
    has_axes = draw.version >= 18 and draw.chance(0.4)
    if draw.version >= 18 and mode != "nearest" and draw.chance(0.3):
        options["antialias"] = 1
    if has_axes:
        axes = list(range(rank - free, rank))
        options["axes"] = [axis - rank if draw.chance(0.3) else axis for axis in axes]
        factors = factors[-free:]
    roi = None if draw.version >= 13 and draw.chance(0.7) else Input(np.array([], np.float32))
    sizes = [max(1, int(draw.pick(1, 2, 3, 5, 7))) for _ in factors]
    if not has_axes:
        sizes[: rank - free] = shape[: rank - free]
    if draw.chance(0.5) or options.get("coordinate_transformation_mode") == "align_corners":
        # ONNX Runtime takes another width for scales with aligned corners.
        scales = Input(np.array([], np.float32)) if draw.version < 13 else None
        return Node([x, roi, scales, draw.integers(sizes)], options, rtol=1e-3)
    return Node([x, roi, Input(np.array(factors, np.float32))], options, rtol=1e-3)


@makes("Upsample")
def _(draw: Draw) -> Node:
    shape = [draw.pick(1, 2, 3) for _ in range(4)]
    factors = [1.0, 1.0, draw.pick(1.0, 2.0, 1.5), draw.pick(1.0, 2.0, 3.0)]
    options = draw.some(mode=draw.pick("nearest", "linear"))
    x = draw.calm(shape)
    if draw.version < 9:
        return Node([x], options | {"scales": factors})
    return Node([x, Input(np.array(factors, np.float32))], options)


# Normalisations ------------------------------------------------------------------------------------------------------


@makes("BatchNormalization")
def _(draw: Draw) -> Node:
    sizes = draw.shape(0, 3)
    channels = draw.pick(1, 2, 3)
    x = draw.calm([draw.pick(1, 2), channels, *sizes])
    kinds = (
        ("T1", "T1", "T2", "T2")
        if draw.version >= 15
        else ("T",) * 2 + (("U",) * 2 if draw.version >= 14 else ("T",) * 2)
    )
    parts = [draw.calm([channels], kind) for kind in kinds[:3]] + [draw.calm([channels], kinds[3], 0.3, 2)]
    return Node([x, *parts], draw.some(epsilon=draw.pick(1e-5, 0.1), momentum=0.5))


@makes("InstanceNormalization")
def _(draw: Draw) -> Node:
    channels = draw.pick(1, 2, 3)
    sizes = [draw.pick(2, 3, 4) for _ in range(draw.pick(1, 2, 3))]
    return Node(
        [draw.calm([draw.pick(1, 2), channels, *sizes]), draw.calm([channels]), draw.calm([channels])],
        draw.some(epsilon=0.1),
        rtol=1e-3,
    )


@makes("GroupNormalization")
def _(draw: Draw) -> Node:
    groups, each = draw.pick(1, 2, 3), draw.pick(1, 2)
    count = groups * each if draw.version >= 21 else groups
    sizes = [draw.pick(2, 3) for _ in range(draw.pick(1, 2))]
    inputs = [draw.calm([draw.pick(1, 2), groups * each, *sizes]), draw.calm([count]), draw.calm([count])]
    return Node(inputs, draw.some(epsilon=0.1) | {"num_groups": groups}, rtol=1e-3)


@makes("LayerNormalization", "RMSNormalization")
def _(draw: Draw) -> Node:
    shape = tuple(draw.pick(1, 2, 3, 5) for _ in range(draw.pick(1, 2, 3, 4)))
    axis = draw.axis(len(shape))
    if axis not in (-1, len(shape) - 1) or draw.chance(0.5):
        options = {"axis": axis}
    else:
        options = {}
    part = shape[axis:]
    if draw.schema.name == "RMSNormalization":
        return Node([draw.calm(shape), draw.calm(part, "V")], options | draw.some(epsilon=0.1), rtol=1e-3)
    outputs = draw.pick(1, 1, 2, 3)
    return Node(
        trimmed(draw, [draw.calm(shape), draw.calm(part), draw.pick(None, draw.calm(part))]),
        options | draw.some(epsilon=0.1),
        outputs,
        rtol=1e-3,
    )


@makes("LRN")
def _(draw: Draw) -> Node:
    shape = [draw.pick(1, 2), draw.pick(1, 3, 5), *(draw.pick(1, 2, 3) for _ in range(draw.pick(1, 2, 2, 3)))]
    return Node([draw.calm(shape)], draw.some(alpha=0.1, beta=0.5, bias=2.0) | {"size": draw.pick(1, 2, 3, 4, 5)})


@makes("MeanVarianceNormalization")
def _(draw: Draw) -> Node:
    rank = draw.pick(4, 4, 3)
    axes = draw.r.sample(range(rank), draw.r.randint(1, rank))
    return Node(
        [draw.calm([draw.pick(2, 3) for _ in range(rank)])],
        {"axes": axes} if rank != 4 else draw.some(axes=axes),
        rtol=1e-3,
    )


@makes("LpNormalization")
def _(draw: Draw) -> Node:
    shape = draw.shape(1, 4)
    x = draw.calm(shape)
    if draw.chance(0.1):
        x = Input(np.zeros_like(x.array))
    return Node([x], draw.some(axis=draw.axis(len(shape)), p=draw.pick(1, 2)))


# Recurrent networks --------------------------------------------------------------------------------------------------


@makes("RNN", "GRU", "LSTM")
def _(draw: Draw) -> Node:
    name = draw.schema.name
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[name]
    steps, batch, width, hidden = draw.pick(1, 2, 4), draw.pick(1, 2, 3), draw.pick(1, 2, 4), draw.pick(1, 2, 3)
    direction = draw.pick("forward", "reverse", "bidirectional")
    d = 2 if direction == "bidirectional" else 1
    layout = 0
    x = draw.calm([batch, steps, width] if layout else [steps, batch, width])
    w, r = draw.calm([d, gates * hidden, width], low=-1, high=1), draw.calm([d, gates * hidden, hidden], low=-1, high=1)
    bias = draw.pick(None, draw.calm([d, 2 * gates * hidden]))
    lengths = draw.pick(None, None, draw.integers([draw.r.randint(1, steps) for _ in range(batch)], TensorProto.INT32))
    state = [batch, d, hidden] if layout else [d, batch, hidden]
    inputs = [x, w, r, bias, lengths, draw.pick(None, draw.calm(state))]
    options = {"hidden_size": hidden} | ({"direction": direction} if direction != "forward" else {})
    if layout:
        options["layout"] = 1
    if name == "LSTM":
        inputs += [draw.pick(None, draw.calm(state)), draw.pick(None, None, draw.calm([d, 3 * hidden]))]
        options |= draw.some(input_forget=draw.pick(0, 0, 0, 1))
    if name == "GRU":
        options |= draw.some(linear_before_reset=draw.pick(0, 1))
    if draw.chance(0.2):
        options["clip"] = draw.pick(0.5, 1.5)
    if draw.chance(0.3):
        count = {"RNN": 1, "GRU": 2, "LSTM": 3}[name] * d
        options["activations"] = [
            draw.pick("Relu", "Tanh", "Sigmoid", "HardSigmoid", "Softsign", "Softplus", "LeakyRelu", "Elu", "Affine")
            for _ in range(count)
        ]
        if draw.chance(0.6):
            takes = {"HardSigmoid": (0.3, 0.4), "LeakyRelu": (0.2,), "Elu": (0.7,), "Affine": (0.5, 0.1)}
            used = [takes.get(text, ()) for text in options["activations"]]
            options["activation_alpha"] = [values[0] for values in used if values]
            options["activation_beta"] = [values[1] for values in used if len(values) > 1]
            options = {k: v for k, v in options.items() if v != []}
    return Node(trimmed(draw, inputs), options, draw.r.randint(1, 3 if name == "LSTM" else 2), rtol=1e-3)


# Quantisation --------------------------------------------------------------------------------------------------------


@makes("QuantizeLinear", "DequantizeLinear")
def _(draw: Draw) -> Node:
    is_quantising = draw.schema.name == "QuantizeLinear"
    shape = [draw.pick(1, 2, 4, 6) for _ in range(draw.pick(1, 2, 3, 4))]
    axis = draw.axis(len(shape)) if draw.version >= 13 else None
    kind = draw.pick("tensor", "tensor", "axis", "block") if axis is not None else "tensor"
    if kind == "block" and (draw.version < 21 or shape[axis or 0] < 2):
        kind = "axis"
    options: dict[str, Any] = {}
    part: list[int] = []
    if kind == "axis":
        part, options = [shape[axis or 0]], {"axis": axis}
        if axis in (1, 1 - len(shape)) and draw.chance(0.5):
            options = {}
    elif kind == "block":
        part = list(shape)
        part[axis or 0] //= 2
        options = {"axis": axis, "block_size": 2}
    narrow = (
        "T2" if is_quantising and draw.version < 23 else "T3" if is_quantising else "T" if draw.version < 19 else "T1"
    )
    integer = draw.type(narrow)
    scale_type: int = TensorProto.FLOAT
    names = {item.type_str for item in draw.schema.inputs}
    if is_quantising:
        first = draw.type("T1") if "T1" in names else TensorProto.FLOAT
        scale_type = first
        if draw.version >= 23:
            scale_type = draw.types.setdefault("T2", first)
    elif draw.version >= 19:
        scale_type = draw.type("T2")
    scale = Input(draw.values(scale_type, part, 0.05, 0.5, special=False))
    if scale.array.dtype.kind != "f":
        scale = Input(np.full(part, 1, scale.array.dtype))
    low, high = (-20, 20) if is_quantising else (-120, 120)
    x = draw.data(shape, first if is_quantising else narrow, low, high, special=False)
    zero = Input(draw.values(integer, part, -9 if integer != TensorProto.INT32 else 0, 9, special=False))
    if integer == TensorProto.INT32:
        zero = Input(np.zeros(part, np.int32))
    has_zero = draw.chance(0.7) or (is_quantising and integer != TensorProto.UINT8)
    if is_quantising and draw.version >= 19:
        options |= draw.some(saturate=1)
    return Node([x, scale, zero] if has_zero else [x, scale], options, steps=1 if is_quantising else 0)


@makes("DynamicQuantizeLinear")
def _(draw: Draw) -> Node:
    return Node([draw.calm(draw.shape(1), TensorProto.FLOAT)], {}, 3, steps=1)


# Attention -----------------------------------------------------------------------------------------------------------


@makes("Attention")
def _(draw: Draw) -> Node:
    batch, heads, group = draw.pick(1, 2), draw.pick(1, 2), draw.pick(1, 1, 2)
    queries, keys, width, other = (draw.pick(1, 2, 3, 5) for _ in range(4))
    past = draw.pick(0, 0, 0, 2)
    is_flat = draw.chance(0.4)
    many = heads * group

    def part(count: int, length: int, size: int, kind: str) -> Input:
        return draw.calm([batch, length, count * size] if is_flat else [batch, count, length, size], kind)

    inputs = [part(many, queries, width, "T1"), part(heads, keys, width, "T1"), part(heads, keys, other, "T2")]
    options: dict[str, Any] = {"q_num_heads": many, "kv_num_heads": heads} if is_flat else {}
    total = keys + past
    mask = None
    if draw.chance(0.5):
        shape = draw.pick(
            (queries, total), (1, 1, queries, total), (batch, 1, queries, total), (batch, many, queries, total)
        )
        if draw.chance(0.5):
            flags = draw.numbers.random(shape) < 0.7
            flags[..., 0] = True
            mask = Input(flags)
        else:
            mask = draw.calm(shape, "T1")
    more = (
        [draw.calm([batch, heads, past, width], "T1"), draw.calm([batch, heads, past, other], "T2")]
        if past
        else [None, None]
    )
    inputs += [mask, *more]
    if draw.version >= 24 and not past and draw.chance(0.3):
        inputs.append(draw.integers([draw.r.randint(1, keys) for _ in range(batch)]))
    options |= draw.some(is_causal=draw.pick(0, 0, 1), scale=draw.pick(0.5, 1.0, 0.3), softcap=draw.pick(0.0, 0.0, 2.0))
    outputs = draw.pick(1, 1, 3, 4) if past else draw.pick(1, 1, 1, 4)
    if outputs == 4:
        options |= draw.some(qk_matmul_output_mode=draw.pick(0, 1, 2, 3))
    return Node(trimmed(draw, inputs), options, outputs, rtol=1e-3)


@makes("RotaryEmbedding")
def _(draw: Draw) -> Node:
    batch, heads, length, width = draw.pick(1, 2), draw.pick(1, 2, 3), draw.pick(1, 2, 4), draw.pick(2, 4, 8)
    rotary = draw.pick(0, 0, width // 2 if width % 4 == 0 else 0)
    half = (rotary or width) // 2
    is_flat = draw.chance(0.4)
    x = draw.calm([batch, length, heads * width] if is_flat else [batch, heads, length, width])
    options = draw.some(interleaved=draw.pick(0, 1)) | ({"rotary_embedding_dim": rotary} if rotary else {})
    if is_flat:
        options["num_heads"] = heads
    if draw.chance(0.5):
        caches = [draw.calm([9, half]), draw.calm([9, half])]
        return Node([x, *caches, draw.indices([batch, length], 9, TensorProto.INT64, negative=False)], options)
    return Node([x, draw.calm([batch, length, half]), draw.calm([batch, length, half])], options)


@makes("DFT")
def _(draw: Draw) -> Node:
    shape = [draw.pick(1, 2, 3, 5) for _ in range(draw.pick(1, 2, 3))]
    inverse, onesided = draw.pick((0, 0), (1, 0), (0, 1))
    last = 1 if onesided or draw.chance(0.4) else 2
    rank = len(shape) + 1
    axis = draw.r.randrange(len(shape))
    x = draw.calm([*shape, last], "T1")
    options = (
        draw.some(inverse=inverse, onesided=onesided)
        if not (inverse or onesided)
        else {"inverse": inverse, "onesided": onesided}
    )
    length = draw.pick(None, None, draw.integers(draw.pick(2, 4, 6)))
    if draw.version >= 20:
        where = draw.integers(draw.pick(axis, axis - rank)) if axis != rank - 2 or draw.chance(0.5) else None
        return Node(trimmed(draw, [x, length, where]), options, rtol=1e-3)
    return Node(trimmed(draw, [x, length]), options | {"axis": axis}, rtol=1e-3)
