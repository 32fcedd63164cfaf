"""Chains of element-wise operations: as one compiled loop, and by the engine, one operation after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import opweave as ow
from opweave.expr import kernels

from .common import Row, alternate, at_most

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
    cases = [
        (f"{name}, {side * side * 4} float32{where}", wrap(chain), side)
        for name, chain in {"5 operations": arithmetic, "gelu by tanh, 8 operations": gelu}.items()
        for where, wrap, sides in (("", lambda c: c, (128, 512, 1024)), (", between convolutions", between, (1024,)))
        for side in sides
    ]
    return [_row(*case) for case in cases]


def _row(what: str, chain: Chain, side: int) -> Row:
    context = ow.ml.create_context(device="cpu")
    image = context.tensor_from(np.random.default_rng(0).standard_normal((1, 4, side, side)).astype("float32"))
    calls: dict[str, Callable[[], object]] = {}
    results = []
    for name, fuse in (("fused", True), ("engine", False)):
        builder = ow.MLGraphBuilder(context)
        y = chain(builder, builder.input("x", "float32", image.shape))
        graph = builder.build({"y": y}, fuse=fuse)
        result = context.create_tensor("float32", y.shape, readable=True)
        results.append(result)

        def call(graph: ow.MLGraph = graph, result: ow.MLTensor = result) -> None:
            context.dispatch(graph, {"x": image}, {"y": result})

        calls[name] = call
        assert (fuse is True) == any(p.how == "expression" for p in graph.placements()), what
    times = alternate(calls, seconds=0.1, title=what)
    assert np.allclose(results[0].numpy(), results[1].numpy(), rtol=1e-4, atol=1e-4)
    ours, theirs = times["fused"] * 1e3, times["engine"] * 1e3
    return Row(what, "ms", ours, theirs, "operation by operation", "<= 1x", at_most(ours, theirs, 1.0))
