"""Graphs with names that GPUs run as one program for all sizes, compared with the static graphs of the same sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

import opweave as ow
from opweave import composites as c
from opweave.core.size_values import values_at
from opweave.ops.constants import line
from support.graphs import assert_same

Build = Callable[..., Any]
"""Adds operations to a builder, with a function that makes an input, and the sizes n and m; returns the results."""


def build(context: ow.MLContext, make: Build, data_type: Any, sizes: Mapping[str, int] | None = None) -> ow.MLGraph:
    """The graph with the names n and m, or with these numbers in their place. Inputs are named x0, x1, …"""
    builder = ow.MLGraphBuilder(context)

    def x(*shape: Any, type: Any = data_type) -> Any:
        dimensions = [size.name if isinstance(size, ow.Size) else size for size in shape]
        return builder.input(f"x{len(builder.inputs)}", type, dimensions)

    x.data_type = data_type  # type: ignore[attr-defined]
    made = make(builder, x, *(ow.Size(name) if sizes is None else sizes.get(name, 1) for name in "nm"))
    results = made if isinstance(made, tuple) else (made,)
    return builder.build({f"y{k}": result for k, result in enumerate(results)})


def arrays_for(graph: ow.MLGraph, sizes: Mapping[str, int] = MappingProxyType({})) -> dict[str, np.ndarray]:
    """Random inputs of a graph, for these sizes of its names."""
    rng, arrays = np.random.default_rng(0), {}
    for name, desc in graph.inputs.items():
        shape = values_at(desc.shape, sizes)
        is_integer = desc.data_type.startswith(("int", "uint"))
        array = rng.integers(0, 5, shape) if is_integer else rng.standard_normal(shape)
        arrays[name] = array.astype(desc.data_type)
    return arrays


SIZES: list[dict[str, int]] = [
    {"n": 6, "m": 3},
    {"n": 1, "m": 3},
    {"n": 40, "m": 1},
    {"n": 300, "m": 70},
    {"n": 7, "m": 1000},
]
EXACT: dict[str, Build] = {
    "element-wise": lambda b, x, n, m: (x(n, 4) * 2 + x(4)).relu(),
    "two names": lambda b, x, n, m: b.sub(x(n, m).sigmoid(), x(m)),
    "a size as a number": lambda b, x, n, m: x(n, m) / n + m,
    "transpose": lambda b, x, n, m: b.transpose(x(n, m, 3)).neg(),
    "transpose alone": lambda b, x, n, m: b.transpose(x(n, m)),
    "reshape": lambda b, x, n, m: b.reshape(x(n, 4, 6).exp(), [n, 24]).sin(),
    "reshape of names": lambda b, x, n, m: b.reshape(b.transpose(x(n, m, 3)), [3 * m, n]).abs(),
    "slice": lambda b, x, n, m: b.slice(x(n, 8), [0, 2], [n, 3], strides=[2, 1]).neg(),
    "slices of names": lambda b, x, n, m: b.slice(b.concat([x(n, 2), x(n, 2)], 0), [n - 1, 0], [n, 2]),
    "concat": lambda b, x, n, m: b.concat([x(n, 3), x(m, 3) * 2, x(2, 3)], 0),
    "concat of columns": lambda b, x, n, m: b.concat([x(n, m), x(n, 5)], 1).relu(),
    "pad": lambda b, x, n, m: b.pad(x(n, m), [1, 2], [0, 3], value=7),
    "pad with edges": lambda b, x, n, m: b.pad(x(n, m), [1, 2], [0, 3], mode="edge").neg(),
    "gather": lambda b, x, n, m: b.gather(x(n, 5), x(m, type="int32"), axis=0) * 3,
    "gather_elements": lambda b, x, n, m: b.gather_elements(x(n, 5), x(n, m, type="int64"), axis=1),
    "expand": lambda b, x, n, m: b.expand(x(1, 4), [n, 4]) + x(n, 1),
    "split": lambda b, x, n, m: tuple(part.neg() for part in b.split(x(n, 6), [2, 4], axis=1)),
    "tile": lambda b, x, n, m: b.tile(x(n, 3), [2, 3]).neg(),
    "triangular": lambda b, x, n, m: b.triangular(x(n, m), upper=True) + 1,
    "reverse": lambda b, x, n, m: b.reverse(x(n, m), axes=[0]),
    "where": lambda b, x, n, m: b.where(b.greater(x(n, m), x(m)), x(n, 1), 2),
    "a cast": lambda b, x, n, m: b.cast(b.cast(x(n, 3) * 3, "int32"), "uint8"),
    "several readers": lambda b, x, n, m: (lambda y: (y * y.sigmoid(), b.transpose(y)))(x(n, 5) + 1),
    "a formula": lambda b, x, n, m: b.reshape(x(n, m) * 2, [n * m]) + x(1),
    "scatter_elements": lambda b, x, n, m: b.scatter_elements(x(n, m, 5), x(n, m, 1, type="int32"), x(n, m, 1), axis=2),
    "scatter_nd": lambda b, x, n, m: b.scatter_nd(x(5, m), x(1, 1, type="int32"), x(1, m)) + x(n, 1, m),
    "scatter_nd of rows": lambda b, x, n, m: b.scatter_nd(x(n, m), x(1, 1, type="int32"), x(1, m)).neg(),
    "resample2d to the nearest": lambda b, x, n, m: b.resample2d(x(2, n, m, 3), sizes=[2 * n, m + 3], axes=[1, 2]),
    "resize to the nearest": lambda b, x, n, m: c.resize(b, x(n, 2, m), sizes=[m + 3, 2 * n], axes=[2, 0]),
    "resize of integers": lambda b, x, n, m: c.resize(
        b, x(n, m, type="uint8"), scales=[2, 3], coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    ),
    "positions along an axis": lambda b, x, n, m: x(n, m) + line(b, 0, n, x.data_type, [n, 1]),
    "positions alone": lambda b, x, n, m: (b.identity(line(b, 3, n, "int32", [n])), x(n).neg()),
    "concat of many": lambda b, x, n, m: b.concat([x(n, k + 1) for k in range(9)], 1),
    "concat of many rows": lambda b, x, n, m: b.concat([x(m, 3) if k % 2 else x(n, 3) for k in range(9)], 0).neg(),
}
"""Graphs without sums."""

FLOATS_ONLY = frozenset({"two names", "a size as a number", "reshape", "several readers"})
"""Those whose operations or sizes are none of 8-bit integers."""

CLOSE: dict[str, Build] = {
    "reduce_sum of columns": lambda b, x, n, m: b.reduce_sum(x(n, 5), axes=[1]),
    "reduce_sum of rows": lambda b, x, n, m: b.reduce_sum(x(n, 5), axes=[0]) * 2,
    "reduce_mean": lambda b, x, n, m: b.reduce_mean(x(n, m), axes=[0, 1]),
    "reduce_max": lambda b, x, n, m: b.reduce_max(x(n, m, 3), axes=[1], keep_dimensions=True),
    "arg_max": lambda b, x, n, m: b.arg_max(x(n, m), axis=1),
    "reduce_log_sum_exp": lambda b, x, n, m: b.reduce_log_sum_exp(x(n, m), axes=[1]),
    "softmax": lambda b, x, n, m: b.softmax(x(n, 9) * 2, 1),
    "softmax of a name": lambda b, x, n, m: b.softmax(x(4, n), 1),
    "softmax of rows": lambda b, x, n, m: b.softmax(x(n, m), 0),
    "log_softmax": lambda b, x, n, m: c.log_softmax(b, x(m, n), 1),
    "layer_normalization": lambda b, x, n, m: b.layer_normalization(x(n, m, 8), axes=[2], scale=x(8), bias=x(8)).relu(),
    "layer_normalization of a name": lambda b, x, n, m: b.layer_normalization(x(3, n), axes=[1]),
    "rms_normalization": lambda b, x, n, m: c.rms_normalization(b, x(n, 64) + x(n, 64), x(64)),
    "instance_normalization": lambda b, x, n, m: b.instance_normalization(x(n, 4, m, 2) * 2),
    "batch_normalization": lambda b, x, n, m: b.batch_normalization(x(n, 4, m), x(4), x(4).abs() + 1),
    "resample2d by a factor": lambda b, x, n, m: b.resample2d(x(1, n, m, 2), scales=[2, 3], mode="linear", axes=[1, 2]),
    "resample2d to sizes": lambda b, x, n, m: b.resample2d(x(2, m, n, 5), sizes=[m + 2, 7], mode="linear"),
    "resample2d of a formula": lambda b, x, n, m: b.resample2d(b.concat([x(1, 1, n, m)] * 3, 3), scales=[1.5, 0.5]),
    "resize by cubics": lambda b, x, n, m: c.resize(b, x(1, n, m, 2), scales=[2.5, 1.5], axes=[1, 2], mode="cubic"),
    "resize of a part": lambda b, x, n, m: c.resize(
        b,
        x(n, m) * 2,
        sizes=[4, 2 * m],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        roi=[0.25, -0.5, 1, 1.5],
        extrapolation_value=7,
    ),
    "fractions of sizes": lambda b, x, n, m: x(n, m) * (1 / n) + m**0.5,
    "windows": lambda b, x, n, m: b.max_pool2d(
        b.pad(x(1, 2, n, m), [0] * 4, [0, 0, 1, 1]), window_dimensions=[2, 2], strides=[2, 2]
    ),
    "windows that end beyond": lambda b, x, n, m: b.average_pool2d(
        x(1, 2, n, m), window_dimensions=[3, 2], strides=[2, 2], padding=[1, 1, 0, 1], output_shape_rounding="ceil"
    ),
    "sums of sums": lambda b, x, n, m: b.reduce_sum(b.softmax(x(n, m), 1) * x(m), axes=[0]),
}
"""Graphs with sums, whose order may depend on sizes."""


def weights(builder: ow.MLGraphBuilder, x: Any, *shape: int) -> Any:
    """A constant matrix or filter, of the data type of inputs."""
    return builder.constant(np.random.default_rng(1).standard_normal(shape).astype(x.data_type))


def _attend(b: ow.MLGraphBuilder, q: Any, k: Any, v: Any) -> Any:
    axes = [*range(k.rank - 2), k.rank - 1, k.rank - 2]
    return b.matmul(b.softmax(b.matmul(q, b.transpose(k, permutation=axes)) * 0.25, q.rank - 1), v)


def _conv(b: ow.MLGraphBuilder, input: Any, filter: Any, *more: Any, **options: Any) -> Any:
    return b.conv2d(input, filter, **({"bias": more[0]} if more else {}), **options)


_NHWC: dict[str, Any] = {"input_layout": "nhwc", "filter_layout": "ohwi"}
PRODUCTS: dict[str, Build] = {
    "matmul of rows": lambda b, x, n, m: b.matmul(x(n, 8), x(8, 6)),
    "matmul of columns": lambda b, x, n, m: b.matmul(x(5, 8), x(8, n)),
    "matmul of rows and columns": lambda b, x, n, m: b.matmul(x(n, 36), x(36, m)).relu(),
    "matmul of terms": lambda b, x, n, m: b.matmul(x(3, n), x(n, 20)),
    "matmul of all sizes": lambda b, x, n, m: b.matmul(x(n, m), x(m, n)),
    "matmul of stacks": lambda b, x, n, m: b.matmul(x(n, 3, m), x(n, m, 4)),
    "matmul of stacks that broadcast": lambda b, x, n, m: b.matmul(x(n, 1, 3, 8), x(m, 8, 5)) * 2,
    "matmul of stacks of matrices": lambda b, x, n, m: b.matmul(x(2, n, 4, 8), x(n, 8, m)),
    "matmul with one right matrix": lambda b, x, n, m: b.matmul(x(n, m, 8), x(8, 4)),
    "matmul with one left matrix": lambda b, x, n, m: b.matmul(x(5, m), x(n, m, 4)),
    "matmul with a constant": lambda b, x, n, m: (b.matmul(x(n, m, 12), weights(b, x, 12, 10)) + x(10)).relu(),
    "matmul with a constant at the left": lambda b, x, n, m: b.matmul(weights(b, x, 7, 12), x(n, 12, m)),
    "matmul of sums of sizes": lambda b, x, n, m: b.matmul(b.concat([x(n, 8), x(m, 8)], 0), x(8, 9)),
    "matmul and a transpose": lambda b, x, n, m: b.matmul(x(n, m), b.transpose(x(17, m))),
    "a vector and columns": lambda b, x, n, m: b.matmul(x(3, 1, 40), x(3, 40, n)) * 2,
    "two vectors and terms": lambda b, x, n, m: b.matmul(x(m, 2, n), x(m, n, 20)) + x(20),
    "few columns": lambda b, x, n, m: b.matmul(x(n, 64), weights(b, x, 64, 3)).sigmoid() / n,
    "products of one vector": lambda b, x, n, m: (lambda h: b.matmul(h, x(64, n)).sigmoid() * b.matmul(h, x(64, n)))(
        x(1, 64) * 2
    ),
    "gemm": lambda b, x, n, m: b.gemm(x(n, 40), x(6, 40), c=x(6), alpha=0.5, beta=2.0, b_transpose=True),
    "gemm of columns": lambda b, x, n, m: b.gemm(x(m, n), x(m, 5), c=x(n, 1), a_transpose=True),
    "gemm of all sizes": lambda b, x, n, m: b.gemm(x(m, n), x(n, m), c=x(n, n), a_transpose=True, b_transpose=True),
    "gemm with a constant": lambda b, x, n, m: b.gemm(x(n, 32), weights(b, x, 48, 32), b_transpose=True),
    "a product and sizes": lambda b, x, n, m: b.matmul(x(n, 8), x(8, m)) / n + x(m),
    "a product and its sigmoid": lambda b, x, n, m: (lambda y: y * y.sigmoid())(b.matmul(x(n, 8), x(8, m))),
    "a product that is reshaped": lambda b, x, n, m: b.reshape(b.matmul(x(n, m, 8), x(8, 6)), [n * m, 2, 3]).neg(),
    "a residual": lambda b, x, n, m: (b.matmul(x(n, 8), x(8, m)) + x(n, m)).relu(),
    "attention": lambda b, x, n, m: _attend(b, x(n, 16), x(m, 16), x(m, 16)),
    "attention of heads": lambda b, x, n, m: _attend(b, x(2, n, 16), x(2, n, 16), x(2, n, 16)),
    "attention of stacks": lambda b, x, n, m: _attend(b, x(m, 2, n, 8), x(m, 2, 9, 8), x(m, 2, 9, 8)),
}
"""Matrix products: rows, columns, terms and stacks with names."""

DIVIDED_SUMS: dict[str, tuple[Build, list[dict[str, int]]]] = {
    "rows": (
        lambda b, x, n, m: b.matmul(x(n, 200), weights(b, x, 200, 24)).relu(),
        [{"n": 13}, {"n": 100}, {"n": 5}],
    ),
    "terms": (lambda b, x, n, m: b.matmul(x(20, n), x(n, 24)), [{"n": 900}, {"n": 33}, {"n": 20}]),
    "stacks of terms": (
        lambda b, x, n, m: b.matmul(x(m, 20, n), x(m, n, 23)) + x(23),
        [{"n": 900, "m": 2}, {"n": 33, "m": 9}, {"n": 400, "m": 1}],
    ),
    "windows": (
        lambda b, x, n, m: b.conv2d(x(1, 64, n, m), weights(b, x, 16, 64, 3, 3), padding=[1, 1, 1, 1]),
        [{"n": 8, "m": 8}, {"n": 3, "m": 20}, {"n": 12, "m": 16}],
    ),
}
"""Products that split-K divides for the first sizes, and sizes with more tiles, or with parts without steps."""

CONVOLUTIONS: dict[str, Build] = {
    "conv2d": lambda b, x, n, m: _conv(b, x(n, 3, m, 9), x(4, 3, 3, 3), x(4), padding=[1, 1, 1, 1]).relu(),
    "conv2d of images": lambda b, x, n, m: _conv(b, x(1, 3, m, n), x(10, 3, 3, 3), padding=[1, 1, 1, 1]),
    "conv2d of images with an epilogue": lambda b, x, n, m: (
        _conv(b, x(1, 3, m, n), x(10, 3, 3, 3), x(10), padding=[1, 1, 1, 1]).sigmoid() * x(1, 10, m, n)
    ),
    "conv2d of batches with an epilogue": lambda b, x, n, m: (
        _conv(b, x(3, 16, n, m), x(8, 16, 1, 1), x(8)).sigmoid() + x(3, 8, n, m)
    ),
    "conv2d of batches": lambda b, x, n, m: _conv(b, x(n, 16, 5, 5), weights(b, x, 12, 16, 2, 2), strides=[2, 1]),
    "conv2d in nhwc": lambda b, x, n, m: _conv(b, x(n, m, 6, 8), x(12, 3, 3, 8), x(12), padding=[1, 1, 0, 2], **_NHWC),
    "conv2d with dilations": lambda b, x, n, m: _conv(
        b, x(2, 4, n, m), x(5, 4, 2, 3), padding=[1, 1, 2, 2], dilations=[2, 2]
    ),
    "conv2d of single pixels": lambda b, x, n, m: _conv(b, x(n, 8, m, 3), x(6, 8, 1, 1), x(6)),
    "conv2d of single pixels in nhwc": lambda b, x, n, m: _conv(b, x(n, m, 3, 8), x(6, 1, 1, 8), **_NHWC),
    "conv2d in groups": lambda b, x, n, m: _conv(b, x(n, 24, m, 4), x(48, 12, 3, 1), padding=[1, 1, 0, 0], groups=2),
    "depthwise conv2d": lambda b, x, n, m: _conv(b, x(n, 8, m, 5), x(8, 1, 3, 3), x(8), padding=[1, 1, 1, 1], groups=8),
    "depthwise conv2d in nhwc": lambda b, x, n, m: _conv(
        b, x(n, m, 5, 8), x(8, 3, 3, 1), padding=[1, 1, 1, 1], groups=8, **_NHWC
    ),
    "conv2d of channels": lambda b, x, n, m: _conv(b, x(2, n, 5, 6), x(7, n, 3, 3)),
    "conv_transpose2d": lambda b, x, n, m: b.conv_transpose2d(x(1, 3, n, m), x(3, 5, 3, 3), padding=[1, 1, 0, 0]),
    "conv_transpose2d with strides": lambda b, x, n, m: b.conv_transpose2d(
        x(n, 3, m, 4), x(3, 5, 3, 2), strides=[2, 3]
    ),
    "conv_transpose2d with a constant": lambda b, x, n, m: b.conv_transpose2d(
        x(n, 3, m, 4), weights(b, x, 3, 5, 3, 3), strides=[2, 2], padding=[1, 0, 1, 0], bias=x(5)
    ),
}
"""Convolutions: batches, heights, widths and channels with names."""

ATTENTION: dict[str, Build] = {
    "attention of queries and keys": lambda b, x, n, m: c.scaled_dot_product_attention(
        b, x(2, 2, n, 8), x(2, 2, m, 8), x(2, 2, m, 12)
    ),
    "attention of batches": lambda b, x, n, m: c.scaled_dot_product_attention(
        b, x(n, 2, m, 8), x(n, 2, 9, 8), x(n, 2, 9, 8)
    ),
    "causal attention": lambda b, x, n, m: c.scaled_dot_product_attention(
        b, x(2, 2, n, 8), x(2, 2, n, 8), x(2, 2, n, 8), causal=True
    ),
    "attention of groups": lambda b, x, n, m: c.scaled_dot_product_attention(
        b, x(1, 4, n, 8), x(1, 2, m, 8), x(1, 2, m, 8), x(n, m), scale=0.5
    ),
    "attention with a mask": lambda b, x, n, m: c.scaled_dot_product_attention(
        b, x(n, 2, 3, 8), x(n, 2, m, 8), x(n, 2, m, 8), x(n, 1, 1, m, type="uint8")
    ),
    "multi_head_attention": lambda b, x, n, m: c.multi_head_attention(
        b, x(2, n, 24), x(2, m, 24), x(2, m, 12), heads=3
    ),
    "group_query_attention": lambda b, x, n, m: c.group_query_attention(
        b, x(2, n, 16), x(2, n, 8), x(2, n, 8), x(2, 2, m, 4), x(2, 2, m, 4), heads=4, groups=2
    ),
    "group_query_attention with room": lambda b, x, n, m: c.group_query_attention(
        *(b, x(2, n, 16), x(2, n, 8), x(2, n, 8), x(2, 2, 512, 4), x(2, 2, 512, 4)),
        lengths=b.constant(np.array([3, 200], "int32")),
        cosines=x(512, 2),
        sines=x(512, 2),
        heads=4,
        groups=2,
        window=40,
    )[0],
}
"""Composites of attention: batches, queries and keys with names."""


def _network(b: ow.MLGraphBuilder, op: str, input: Any, hidden: int, **options: Any) -> Any:
    """A recurrent network whose weights are constants; the results are those of the last step and of all steps."""
    gates, rng = {"gru": 3, "lstm": 4}[op], np.random.default_rng(2)
    directions = 2 if options.get("direction") == "both" else 1
    steps, _, size = input.shape

    def constant(*shape: int) -> Any:
        return b.constant((rng.standard_normal(shape) / hidden**0.5).astype(input.data_type))

    weights = constant(directions, gates * hidden, size), constant(directions, gates * hidden, hidden)
    options["bias"] = constant(directions, gates * hidden)
    return tuple(getattr(b, op)(input, *weights, steps, hidden, **options))


def _lengths(b: ow.MLGraphBuilder, counts: Any) -> Any:
    """Lengths of sequences of 1 step or more: 0 or 1."""
    return b.min(counts, b.constant(np.int32(1)))


STAGED: dict[str, Build] = {
    "gru of steps and batches": lambda b, x, n, m: _network(b, "gru", x(n, m, 5), 6, return_sequence=True),
    "gru of both directions": lambda b, x, n, m: _network(
        b, "gru", x(n, m, 5), 4, direction="both", return_sequence=True, reset_after=False
    ),
    "lstm of steps": lambda b, x, n, m: _network(b, "lstm", x(n, 2, 5), 40, direction="backward"),
    "lstm of batches": lambda b, x, n, m: _network(b, "lstm", x(3, m, 8), 7, return_sequence=True),
    "lstm of many units and batches": lambda b, x, n, m: _network(b, "lstm", x(2, m, 8), 260, return_sequence=True),
    "gru of many units and steps": lambda b, x, n, m: _network(
        b, "gru", x(n, 1, 5), 257, direction="both", return_sequence=True, reset_after=False
    ),
    "gru of lengths": lambda b, x, n, m: c.ragged_gru(
        *(b, x(n, m, 5), weights(b, x, 2, 12, 5), weights(b, x, 2, 12, 4), _lengths(b, x(m, type="int32"))),
        direction="both",
    ),
    "rnn of lengths": lambda b, x, n, m: c.rnn(
        b, x(n, 2, 3), weights(b, x, 1, 4, 3), weights(b, x, 1, 4, 4), lengths=_lengths(b, x(2, type="int32"))
    ),
    "top_k of rows": lambda b, x, n, m: c.top_k(b, x(n, 9), 4),
    "top_k along a name": lambda b, x, n, m: c.top_k(b, b.concat([x(n, m), x(3, m)], 0), 4, axis=0),
    "top_k of chunks": lambda b, x, n, m: c.top_k(b, b.reshape(x(n, m, 7), [n * m * 7]), 3, largest=False),
    "scatter_reduce": lambda b, x, n, m: c.scatter_reduce(b, x(n, 5), x(m, 5, type="int32"), x(m, 5)),
    "scatter_reduce of columns": lambda b, x, n, m: c.scatter_reduce(
        b, x(n, m), x(n, 3, type="int64"), x(n, 3), axis=1, reduction="max"
    ),
}
"""Operations that take several kernels: sequences, batches, lines, and lengths with names."""


@ow.recurrence
def _follow(level: Any, x: Any, *, share: float = 0.25) -> Any:
    level = level + (x - level) * share
    return level, level


@ow.recurrence(constants="w")
def _mix(h: Any, x: Any, w: Any) -> Any:
    batches, size = h.shape

    def element(i: Any, j: Any) -> Any:
        return ow.expr.tanh(x[i, j] + ow.expr.sum_over(size, lambda k: h[i, k] * w[j, k]))

    new = ow.expr.compute((batches, size), element)
    return new, new


def _rates(b: ow.MLGraphBuilder, x: Any, *shape: Any) -> Any:
    """Negative numbers, so that states do not grow."""
    return b.neg(b.abs(x(*shape)))


def _selective_scan(b: ow.MLGraphBuilder, x: Any, batches: Any, tokens: Any, *middle: int) -> Any:
    """Mamba, or Mamba 2 with groups."""
    width = (4,) if middle else ()
    rates = _rates(b, x, 6) if middle else _rates(b, x, 6, 5)
    return c.selective_scan(
        *(b, x(batches, tokens, 6, *width), b.abs(x(batches, tokens, 6)), rates),
        *(x(batches, tokens, *middle, 5), x(batches, tokens, *middle, 5), x(6)),
    )


def _attend_in_chunks(b: ow.MLGraphBuilder, x: Any, n: Any, rule: str, batches: Any = 1, heads: int = 4) -> Any:
    """Linear attention of 22 n tokens, in groups of two heads."""
    groups = max(1, heads // 2)

    def tokens(width: int) -> Any:
        return b.reshape(x(batches, n, 22 * width), [batches, 22 * n, width])

    decay = -b.abs(tokens(groups)) if "gated" in rule else None
    beta = b.sigmoid(tokens(groups)) if "delta" in rule else None
    operands = tokens(8 * heads), b.div(tokens(8 * groups), 4), tokens(6 * groups), None, decay, beta
    return c.linear_attention(b, *operands, heads=heads, groups=groups, update_rule=rule)


def _scan_in_chunks(b: ow.MLGraphBuilder, x: Any, n: Any) -> Any:
    """Mamba 2 with two groups of two heads, of 22 n tokens."""

    def tokens(*sizes: int) -> Any:
        return b.reshape(x(1, n, 22 * prod(sizes)), [1, 22 * n, *sizes])

    operands = tokens(4, 3), b.div(b.abs(tokens(4)), 4), _rates(b, x, 4), tokens(2, 5), tokens(2, 5)
    return c.selective_scan(b, *operands, x(4))


RECURRENCES: dict[str, Build] = {
    "selective_scan in chunks": lambda b, x, n, m: _scan_in_chunks(b, x, n),
    "linear attention in chunks": lambda b, x, n, m: _attend_in_chunks(b, x, n, "linear", m, 1),
    "linear attention with decays in chunks": lambda b, x, n, m: _attend_in_chunks(b, x, n, "gated"),
    "delta rule in chunks": lambda b, x, n, m: _attend_in_chunks(b, x, n, "gated_delta"),
    "selective_scan of tokens": lambda b, x, n, m: _selective_scan(b, x, 2, n),
    "selective_scan of batches and tokens": lambda b, x, n, m: _selective_scan(b, x, m, n),
    "selective_scan of groups": lambda b, x, n, m: _selective_scan(b, x, m, n, 3),
    "linear_attention": lambda b, x, n, m: c.linear_attention(
        *(b, x(m, n, 12), x(m, n, 6) * 0.125, x(m, n, 10), None, _rates(b, x, m, n, 2)),
        heads=4,
        groups=2,
        update_rule="gated",
    ),
    "linear_attention with a delta rule": lambda b, x, n, m: c.linear_attention(
        *(b, x(1, n, 8), x(1, n, 8) * 0.125, x(1, n, 8), x(1, 2, 4, 4), None, x(1, n, 2).sigmoid()),
        heads=2,
        groups=2,
        update_rule="delta",
    ),
    "leaky_integrator": lambda b, x, n, m: c.leaky_integrator(b, x(m, n, 3), decay=0.5, axis=1, reversed=True),
    "steps of rows": lambda b, x, n, m: _follow(b, x(m), x(n, m)),
    "steps of even rows": lambda b, x, n, m: _follow(
        b, b.reshape(x(m, 2, 3), [2 * m, 3]), b.reshape(x(n, m, 6), [n, 2 * m, 3])
    ),
    "products in steps": lambda b, x, n, m: _mix(b, x(m, 5) * 0.5, x(n, m, 5), x(5, 5) * 0.25),
}
"""Recurrences of steps, and of rows, with names."""

INTEGER_PRODUCTS: dict[str, Build] = {
    "integer_matmul": lambda b, x, n, m: c.integer_matmul(b, x(n, m), x(m, 6)),
    "integer_matmul of stacks": lambda b, x, n, m: c.integer_matmul(b, x(n, 3, 10), x(n, 10, m), x(1), x(1)),
    "integer_matmul with zero points of columns": lambda b, x, n, m: c.integer_matmul(
        b, x(m, 7), x(7, n), None, x(1, n)
    ),
    "integer_conv2d": lambda b, x, n, m: c.integer_conv2d(b, x(n, 6, m, 5), x(8, 6, 3, 2), padding=[1, 1, 0, 1]),
    "integer_conv2d with zero points": lambda b, x, n, m: c.integer_conv2d(
        b, x(1, 5, n, m), x(4, 5, 2, 2), x(1), x(4), padding=[1, 0, 0, 1], strides=[2, 1]
    ),
}
"""Products of 8-bit integers, whose sums are exact."""

PRODUCT_SIZES: list[dict[str, int]] = [
    {"n": 6, "m": 3},
    {"n": 1, "m": 3},
    {"n": 33, "m": 1},
    {"n": 130, "m": 37},
    {"n": 7, "m": 257},
    {"n": 1, "m": 1},
]
"""Sizes of products: 1, primes, whole tiles, and a little more."""


def check(
    context: ow.MLContext, make: Build, data_type: Any, tolerance: float, sizes: Sequence[Mapping[str, int]] = SIZES
) -> ow.MLGraph:
    """Run the graph with names for all sizes, and compare it with the static graphs."""
    graph = build(context, make, data_type)
    feeds = [arrays_for(graph, numbers) for numbers in sizes]
    results = [context.compute(graph, arrays) for arrays in feeds]
    for name, array in context.compute(graph, feeds[0]).items():
        assert_same(array, results[0][name], f"{name} of a later run")
    for numbers, arrays, result in zip(sizes, feeds, results, strict=True):
        for name, expected in context.compute(build(context, make, data_type, numbers), arrays).items():
            np.testing.assert_allclose(result[name], expected, tolerance, tolerance, strict=True)
    return graph


def check_with_reference(
    context: ow.MLContext, make: Build, data_type: Any, tolerance: float, sizes: Sequence[Mapping[str, int]]
) -> ow.MLGraph:
    """Run the graph with names for all sizes, and compare it with the reference."""
    graph, reference = build(context, make, data_type), ow.ml.create_context(device="reference")
    for numbers in sizes:
        arrays = arrays_for(graph, numbers)
        static = build(reference, make, data_type, numbers)
        expected = reference.compute(static, {name: arrays[name] for name in static.inputs})
        for name, result in context.compute(graph, arrays).items():
            np.testing.assert_allclose(result, expected[name], tolerance, tolerance, strict=True)
    return graph
