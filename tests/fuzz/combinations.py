"""Graphs of what engines rewrite: normalisations and attention, whole and spelled out, and steps that are combined at random.

A step is taken back if its result is NaN, infinite or huge.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from fuzz.ingredients import FLOATS, STEPS, Maker, step
from opweave import composites
from opweave.core.graph import Operand

# Normalisations ------------------------------------------------------------------------------------------------------

EPSILONS = [1e-5, 1e-3, 0.1, 1e-6, 0.0123]


def spelled_normalization(make: Maker, x: Any, axes: list[int], *, rms: bool, affine: bool = True) -> Any:
    """A normalisation of layers, or by root mean squares, in one of its usual forms."""
    b, r, t = make.b, make.r, x.data_type
    epsilon = make.number(r.choice(EPSILONS[:3] if t == "float32" else [1e-3, 0.1]), t)

    def mean(v: Any) -> Any:
        return b.reduce_mean(v, axes=axes, keep_dimensions=True)

    centred = x if rms else b.sub(x, mean(x))
    square = b.mul(centred, centred) if make.chance(0.5) else b.pow(centred, make.number(2.0, t))
    root = b.sqrt(b.add(mean(square), epsilon))
    kind = r.choice(["div", "reciprocal", "pow"])
    if kind == "div":
        y = b.div(centred, root)
    elif kind == "reciprocal":
        y = b.mul(centred, b.reciprocal(root))
    else:
        y = b.mul(centred, b.pow(b.add(mean(square), epsilon), make.number(-0.5, t)))
    if not affine:
        return y
    shape = [x.shape[axis] for axis in axes] if axes == list(range(x.rank - len(axes), x.rank)) else []
    y = b.mul(y, make.operand(shape, t)) if make.chance(0.7) else y
    return b.add(y, make.operand(shape, t)) if make.chance(0.6) else y


@step(4)
def _(make: Maker, x: Any) -> Any:
    """Normalisations, whole or spelled out."""
    b, r, t = make.b, make.r, x.data_type
    if x.rank == 0:
        return None
    kinds = ["layer", "spelled", "spelled", "rms", "softmax", "softmax", "batch"]
    kinds += ["instance", "group", "lrn"] if x.rank == 4 else []
    kinds += ["skip", "skip_rms"] if x.rank in (2, 3) else []
    kind, epsilon = r.choice(kinds), r.choice(EPSILONS if t == "float32" else [1e-3, 0.1])
    axis, last = make.axis(x), x.shape[-1]
    if kind == "softmax":
        return composites.log_softmax(x, axis) if make.chance(0.2) else b.softmax(x, axis)
    if kind == "layer":
        axes = sorted(r.sample(range(x.rank), r.randint(1, x.rank))) if make.chance(0.5) else [x.rank - 1]
        shape = [x.shape[k] for k in axes]
        scale, bias = (make.operand(shape, t) if make.chance(0.7) else None for _ in range(2))
        return b.layer_normalization(x, scale=scale, bias=bias, axes=axes, epsilon=epsilon)
    if kind == "spelled":
        axes = [x.rank - 1] if make.chance(0.7) else sorted(r.sample(range(x.rank), r.randint(1, x.rank)))
        return spelled_normalization(make, x, axes, rms=make.chance(0.5))
    if kind == "rms":
        return composites.rms_normalization(x, make.vector(last, t), x.rank - 1, epsilon=epsilon)
    if kind == "batch":
        size = x.shape[axis]
        mean, variance = make.vector(size, t), make.vector(size, t, positive=True)
        scale, bias = (make.vector(size, t) if make.chance(0.7) else None for _ in range(2))
        return b.batch_normalization(x, mean, variance, scale=scale, bias=bias, axis=axis, epsilon=epsilon)
    if kind == "instance":
        scale, bias = (make.vector(x.shape[1], t) if make.chance(0.7) else None for _ in range(2))
        return b.instance_normalization(x, scale=scale, bias=bias, epsilon=epsilon)
    if kind == "group":
        groups = r.choice([k for k in range(1, x.shape[1] + 1) if x.shape[1] % k == 0])
        scale, bias = (make.vector(x.shape[1], t) if make.chance(0.7) else None for _ in range(2))
        return composites.group_normalization(x, scale, bias, groups=groups, epsilon=epsilon)
    if kind == "lrn":
        size = r.choice([1, 2, 3, 5])
        given = {
            "alpha": r.choice([1e-4, 0.3, 1.0]),
            "beta": r.choice([0.75, 0.5, 1.0, 0.3]),
            "bias": r.choice([1.0, 0.7, 2.0]),
        }
        return composites.local_response_normalization(x, size, **given)
    residual, scale = make.beside_whole(x), make.vector(last, t)
    offset = make.vector(last, t) if make.chance(0.5) else None
    if kind == "skip":
        bias = make.vector(last, t) if make.chance(0.5) else None
        return r.choice(composites.skip_layer_norm(x, residual, scale, bias, offset, epsilon=epsilon))
    return r.choice(composites.skip_rms_norm(x, residual, scale, offset, epsilon=epsilon))


# Attention and stacks of layers --------------------------------------------------------------------------------------


def _mask(make: Maker, shape: Sequence[int], data_type: str) -> Any:
    """A mask that leaves each query at least one key, or not."""
    kind = make.r.choice(["bytes", "added", "infinite", "input"])
    seen = make.numbers.integers(0, 2, shape)
    if make.chance(0.8):
        seen[..., 0] = 1
    if kind == "bytes":
        return make.b.constant(seen.astype("uint8"))
    if kind == "input":
        return make.input(seen.astype("uint8"))
    hidden = -np.inf if kind == "infinite" and seen[..., 0].all() else -1e4
    return make.b.constant(np.where(seen, 0, hidden).astype(data_type))


def spelled_attention(make: Maker, q: Any, k: Any, v: Any) -> Any:
    """Attention of [batch, heads, length, size], of products and a softmax."""
    b, r, t, size = make.b, make.r, q.data_type, q.shape[-1]
    scale = r.choice([1 / sqrt(size), 1 / sqrt(size), 0.3, None, 1.0])
    columns = b.transpose(k, permutation=[0, 1, 3, 2])
    place = r.choice(["query", "scores", "divide", "key"])
    if scale is not None and place == "query":
        q = b.mul(q, make.number(scale, t))
    if scale is not None and place == "key":
        columns = b.mul(columns, make.number(scale, t))
    scores = b.matmul(q, columns)
    if scale is not None and place == "scores":
        scores = b.mul(scores, make.number(scale, t))
    if scale is not None and place == "divide":
        scores = b.div(scores, make.number(1 / scale, t))
    kind = r.choice(["none", "none", "added", "where", "causal", "input"])
    shape = list(scores.shape)
    part = r.choice([shape, [1, 1, *shape[2:]], shape[2:], [shape[0], 1, 1, shape[3]]])
    if kind == "causal":
        triangle = np.where(np.tri(shape[2], shape[3]), 0, r.choice([-np.inf, -1e4])).astype(t)
        scores = b.add(scores, b.constant(triangle))
    elif kind == "added":
        scores = b.add(scores, b.constant(make.array(part, t)))
    elif kind == "input":
        scores = b.add(scores, make.input(make.array(part, t)))
    elif kind == "where":
        seen = make.numbers.integers(0, 2, part)
        seen[..., 0] = 1
        scores = b.where(b.constant(seen.astype("uint8")), scores, make.number(r.choice([-1e4, -np.inf, -5.0]), t))
    weights = b.softmax(scores, 3)
    y = b.matmul(weights, v)
    if make.chance(0.2):
        make.values.append(weights)
    return y


def _heads(make: Maker, x: Any, heads: int) -> Any:
    batch, length, width = x.shape
    return make.b.transpose(make.b.reshape(x, [batch, length, heads, width // heads]), permutation=[0, 2, 1, 3])


def _joined(make: Maker, x: Any) -> Any:
    batch, heads, length, size = x.shape
    return make.b.reshape(make.b.transpose(x, permutation=[0, 2, 1, 3]), [batch, length, heads * size])


def attention(make: Maker, x: Any, heads: int) -> Any:
    """Self-attention of [batch, length, width] with projections, as composites or spelled out."""
    b, t, width = make.b, x.data_type, x.shape[2]

    def projected() -> Any:
        y = b.matmul(
            x, b.mul(make.operand([width, width], t), make.number(width**-0.5, t)) if make.chance(0.3) else plain()
        )
        return b.add(y, make.vector(width, t)) if make.chance(0.6) else y

    def plain() -> Any:
        return b.constant((make.numbers.normal(size=(width, width)) * width**-0.5).astype(t))

    if make.chance(0.2):
        together = b.matmul(x, b.constant((make.numbers.normal(size=(width, 3 * width)) * width**-0.5).astype(t)))
        q, k, v = b.split(together, 3, axis=2)
    else:
        q, k, v = projected(), projected(), projected()
    kind = make.r.choice(["spelled", "spelled", "heads", "whole"])
    causal = make.chance(0.3)
    scale = make.r.choice([None, None, 0.3])
    shape = [x.shape[0], heads, x.shape[1], x.shape[1]]
    mask = _mask(make, make.r.choice([shape, shape[2:], [1, 1, *shape[2:]]]), t) if make.chance(0.3) else None
    if kind == "whole":
        y = composites.multi_head_attention(q, k, v, mask, heads=heads, causal=causal, scale=scale)
    else:
        parts = [_heads(make, each, heads) for each in (q, k, v)]
        if kind == "heads":
            y = composites.scaled_dot_product_attention(*parts, mask, causal=causal, scale=scale)
        else:
            y = spelled_attention(make, *parts)
        y = _joined(make, y)
    return b.matmul(y, plain()) if make.chance(0.7) else y


@step(3)
def _(make: Maker, x: Any) -> Any:
    """Attention to the values of the graph."""
    if x.rank == 3 and x.shape[2] <= 16 and x.shape[1] <= 8:
        return attention(make, x, make.r.choice([k for k in (1, 2, 4) if x.shape[2] % k == 0]))
    if x.rank == 4 and x.shape[2] <= 8 and x.shape[3] <= 16:
        keys = make.r.randint(1, 5)
        shape = [*x.shape[:2], keys, x.shape[3]]
        k, v = make.operand(shape, x.data_type), make.operand([*shape[:3], make.r.choice([x.shape[3], 3])], x.data_type)
        if make.chance(0.5):
            return spelled_attention(make, x, k, v)
        mask = _mask(make, [x.shape[2], keys], x.data_type) if make.chance(0.4) else None
        scale = make.r.choice([None, 0.3])
        return composites.scaled_dot_product_attention(x, k, v, mask, causal=make.chance(0.3), scale=scale)
    return None


def _norm(make: Maker, x: Any, kind: str) -> Any:
    b, width, t = make.b, x.shape[-1], x.data_type
    scale = b.constant(make.numbers.uniform(0.5, 1.5, width).astype(t))
    if kind == "layer":
        return b.layer_normalization(
            x, scale=scale, bias=b.constant(make.array([width], t)), axes=[x.rank - 1], epsilon=1e-5
        )
    if kind == "rms":
        return composites.rms_normalization(x, scale, x.rank - 1, epsilon=1e-5)
    return b.mul(spelled_normalization(make, x, [x.rank - 1], rms=kind == "spelled rms", affine=False), scale)


def encoder(make: Maker) -> Any:
    """A stack of equal layers of a transformer: with or without norms, biases, scales and heads."""
    b, r = make.b, make.r
    width = r.choices([4, 8, 16, 32, 128], [3, 3, 3, 2, 1])[0]
    length, layers = r.choice([1, 2, 3, 5, 9, 17]), r.choice([1, 2, 3, 4, 4, 5, 6])
    x = make.input(make.array([r.choice([1, 1, 2]), length, width]))
    heads, factor = r.choice([0, 1, 2]), r.choice([1, 2, 4])
    kind, is_first = r.choice(["none", "none", "layer", "rms", "spelled", "spelled rms"]), make.chance(0.5)
    activation = r.choice([b.relu, b.relu, b.gelu, lambda v: b.mul(v, b.sigmoid(v)), b.tanh])
    is_whole, causal, is_biased = heads > 0 and make.chance(0.5), make.chance(0.3), make.chance(0.5)
    scale = r.choice([None, 1.0, (width / max(1, heads)) ** -0.5])

    def dense(v: Any, rows: int, columns: int) -> Any:
        if make.chance(0.05):
            weight = b.mul(make.dequantised([rows, columns], "float32"), make.number(0.3, "float32"))
        else:
            weight = b.constant((make.numbers.normal(size=(rows, columns)) * rows**-0.5).astype("float32"))
        y = b.matmul(v, weight)
        return b.add(y, b.constant(make.array([columns]))) if is_biased else y

    def attended(v: Any) -> Any:
        q, k, u = (dense(v, width, width) for _ in range(3))
        if heads:
            q, k, u = (_heads(make, each, heads) for each in (q, k, u))
        if is_whole:
            y = composites.scaled_dot_product_attention(q, k, u, causal=causal, scale=scale)
        else:
            order = [*range(q.rank - 2), q.rank - 1, q.rank - 2]
            scores = b.matmul(q, b.transpose(k, permutation=order))
            if scale is not None:
                scores = b.mul(scores, make.number(scale, "float32"))
            if causal:
                scores = b.add(scores, b.constant(np.where(np.tri(length), 0, -np.inf).astype("float32")))
            y = b.matmul(b.softmax(scores, scores.rank - 1), u)
        return dense(_joined(make, y), width, width) if heads else y

    def forward(v: Any) -> Any:
        return dense(activation(dense(v, width, factor * width)), factor * width, width)

    for _ in range(layers):
        for part in (attended, forward):
            if kind == "none":
                x = b.add(x, part(x))
            else:
                x = b.add(x, part(_norm(make, x, kind))) if is_first else _norm(make, b.add(x, part(x)), kind)
    make.values.append(x)
    return x


def blocks(make: Maker) -> Any:
    """A stack of convolutions, normalisations and activations, at times with residuals."""
    b, r = make.b, make.r
    channels, size, layers = r.choice([2, 4, 8]), r.randint(4, 8), r.randint(1, 6)
    x = make.input(make.array([1, channels, size, size]))
    kind, is_residual = r.choice(["batch", "instance", "affine", "none"]), make.chance(0.4)
    is_deep = make.chance(0.3)
    activation = r.choice(
        [b.relu, b.hard_swish, b.sigmoid, lambda v: b.clamp(v, min_value=0, max_value=6), b.leaky_relu]
    )
    for _ in range(layers):
        groups = channels if is_deep else 1
        spread = (9 * channels / groups) ** -0.5
        filters = make.numbers.normal(size=(channels, channels // groups, 3, 3)) * spread
        bias = b.constant(make.array([channels])) if make.chance(0.5) else None
        y = b.conv2d(x, b.constant(filters.astype("float32")), padding=[1] * 4, groups=groups, bias=bias)
        scale, offset = (b.constant(make.array([channels], positive=k == 0)) for k in range(2))
        if kind == "batch":
            mean, variance = b.constant(make.array([channels])), b.constant(make.array([channels], positive=True))
            y = b.batch_normalization(y, mean, variance, scale=scale, bias=offset, epsilon=r.choice(EPSILONS))
        elif kind == "instance":
            y = b.instance_normalization(y, scale=scale, bias=offset)
        elif kind == "affine":
            y = b.add(b.mul(y, b.reshape(scale, [1, channels, 1, 1])), b.reshape(offset, [1, channels, 1, 1]))
        y = activation(y)
        x = b.add(x, y) if is_residual else y
    make.values.append(x)
    return x


# Graphs --------------------------------------------------------------------------------------------------------------

SHAPES: list[list[int]] = [
    [],
    [1],
    [4],
    [12],
    [3, 4],
    [1, 8],
    [2, 8],
    [4, 4],
    [5, 16],
    [1, 32],
    [2, 3, 4],
    [1, 4, 8],
    [1, 5, 8],
    [2, 2, 3, 4],
    [1, 2, 6, 6],
    [1, 4, 5, 5],
    [2, 3, 4, 4],
    [1, 2, 4, 8],
    [1, 2, 2, 3, 4],
]


def build(make: Maker) -> dict[str, Operand]:
    """A graph of mostly 2 to 8 operations; values in between may be outputs, too."""
    r = make.r
    if make.chance(0.03):
        last = make.r.choice([encoder, blocks])(make)
        if not make.is_fit(last):
            return build(make)
    else:
        data_type = "float16" if make.chance(0.12) else "float32"
        make.values.append(make.input(make.array(r.choice(SHAPES), data_type)))
    wanted, count = r.choice([1, 2, 2, 3, 3, 4, 5]), 0
    steps, weights = zip(*STEPS, strict=True)
    for _ in range(40):
        if count >= wanted:
            break
        x, kept = make.pick(), len(make.values)
        if x.data_type not in FLOATS:
            x = make.b.cast(x, "float32")
        made = r.choices(steps, weights)[0](make, x)
        if made is None or made.node is None or not make.is_fit(made):
            del make.values[kept:]
            continue
        if not all(make.is_fit(value) for value in make.values[kept:]):
            del make.values[kept:]
        make.values.append(made)
        count += 1
    results = [value for value in make.values if value.node is not None]
    if not results:
        return build(make)
    outputs = {"y": results[-1]}
    for name in ("z", "w"):
        if len(results) > 1 and make.chance(0.25):
            outputs[name] = r.choice(results)
    if make.chance(0.1):
        inner = [operand for operand in results[-1].node.operands if operand.node is not None]
        if inner:
            outputs["v"] = r.choice(inner)
    return outputs
