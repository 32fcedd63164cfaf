"""Graphs with names that GPUs run as one program for all sizes, compared with the static graphs of the same sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

import opweave as ow
from opweave import composites as c
from opweave.core.size_values import values_at

Build = Callable[..., Any]
"""Adds operations to a builder, with a function that makes an input, and the sizes n and m; returns the results."""


def build(context: ow.MLContext, make: Build, data_type: Any, sizes: Mapping[str, int] | None = None) -> ow.MLGraph:
    """The graph with the names n and m, or with these numbers in their place. Inputs are named x0, x1, …"""
    builder = ow.MLGraphBuilder(context)

    def x(*shape: Any, type: Any = data_type) -> Any:
        dimensions = [size.name if isinstance(size, ow.Size) else size for size in shape]
        return builder.input(f"x{len(builder.inputs)}", type, dimensions)

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
    "sums of sums": lambda b, x, n, m: b.reduce_sum(b.softmax(x(n, m), 1) * x(m), axes=[0]),
}
"""Graphs with sums, whose order may depend on sizes."""


def check(
    context: ow.MLContext, make: Build, data_type: Any, tolerance: float, sizes: Sequence[Mapping[str, int]] = SIZES
) -> ow.MLGraph:
    """Run the graph with names for all sizes, and compare it with the static graphs."""
    graph = build(context, make, data_type)
    feeds = [arrays_for(graph, numbers) for numbers in sizes]
    results = [context.compute(graph, arrays) for arrays in feeds]
    for numbers, arrays, result in zip(sizes, feeds, results, strict=True):
        for name, expected in context.compute(build(context, make, data_type, numbers), arrays).items():
            np.testing.assert_allclose(result[name], expected, tolerance, tolerance, strict=True)
    return graph
