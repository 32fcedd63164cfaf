"""Chains of element-wise operations: as one compiled loop, and by the engine, one operation after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import opweave as ow
from opweave.compile.fuse import MIN_SAVED_BY_THREAD
from opweave.expr import kernels
from opweave.support.processors import processors

from .measure import alternate
from .rows import Row, dispatched

Chain = Callable[[ow.MLGraphBuilder, ow.MLOperand], ow.MLOperand]


def arithmetic(_: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
    y: ow.MLOperand = ((x * 1.5 + 2) * x - 3) * 0.5
    return y


def gelu(_: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
    y: ow.MLOperand = x * 0.5 * (((x + x * x * x * 0.044715) * 0.79788456).tanh() + 1)
    return y


def between(chain: Chain) -> Chain:
    """The chain between a pooling and a convolution, which belong to the engine."""

    def network(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        weights = b.constant(np.full((x.shape[1], x.shape[1], 1, 1), 0.1, "float32"))
        y = chain(b, b.max_pool2d(b.conv2d(x, weights), window_dimensions=[1, 1]))
        return b.conv2d(y, weights)

    return network


def rows() -> list[Row]:
    if not kernels.is_compiled():
        return []
    # The size from which on chains between convolutions are fused, if that is larger: it grows with the processors.
    large = next(side for side in (1024, 2048, 4096, 8192) if 16 * side**2 >= MIN_SAVED_BY_THREAD * processors())
    cases = [
        (f"{name}, {side * side * 4} float32{where}", wrap(chain), side)
        for name, chain in {"5 operations": arithmetic, "gelu by tanh, 8 operations": gelu}.items()
        for where, wrap, sides in (("", lambda c: c, (128, 512, 1024)), (", between convolutions", between, (large,)))
        for side in sides
    ]
    return [_row(*case) for case in cases]


def _row(what: str, chain: Chain, side: int) -> Row:
    context = ow.ml.create_context(device="cpu")
    image = np.random.default_rng(0).standard_normal((1, 4, side, side)).astype("float32")
    ways, results = {}, []
    for name, fuse in (("fused", True), ("engine", False)):
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": chain(builder, builder.input("x", "float32", image.shape))}, fuse=fuse)
        assert fuse == any(p.how == "expression" for p in graph.placements()), what
        ways[name], outputs = dispatched(graph, context, {"x": image})
        results.append(outputs["y"].numpy())
    times = alternate(ways)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-4)
    return Row.of(what, "ms", times["fused"], times["engine"], "operation by operation", "fused")
