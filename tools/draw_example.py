"""Draw the graph that the documentation shows: two convolutions, and between them an operation of one's own.

python tools/draw_example.py docs/images/graph.svg
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import opweave as ow


@ow.op
def top_k(self: ow.MLGraphBuilder, x: ow.MLOperand, k: int) -> tuple[ow.Desc, ow.Desc]:
    """The `k` largest elements along the last axis, and where they are."""
    shape = (*x.shape[:-1], k)
    return ow.Desc(x.data_type, shape), ow.Desc("int32", shape)


@top_k.kernel("cpu")
def _(x: np.ndarray, k: int, *, out: tuple[np.ndarray, np.ndarray]) -> None:
    values, indices = out
    indices[...] = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    values[...] = np.take_along_axis(x, indices, -1)


@ow.op
def dither(self: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
    """Each element rounded, and what is lost handed on to the next one of its row."""
    return x.desc


@dither.kernel("cpu")
def _(x: np.ndarray, out: np.ndarray) -> None:
    rest = np.zeros(x.shape[:-1], x.dtype)
    for column in range(x.shape[-1]):
        wanted = x[..., column] + rest
        out[..., column] = np.rint(wanted)
        rest = wanted - out[..., column]


@ow.composite
def rms_norm(b: Any, x: ow.MLOperand, weight: ow.MLOperand, *, epsilon: float = 1e-6) -> Any:
    """Divide the last axis by its root mean square."""
    mean = b.reduce_mean(x * x, axes=[x.rank - 1], keep_dimensions=True)
    return x / b.sqrt(mean + epsilon) * weight


def example() -> ow.MLGraph:
    """The graph."""
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> ow.MLOperand:
        return builder.constant(rng.standard_normal(shape, np.float32))

    x = builder.input("image", "float32", [1, 3, 24, 24])
    stem = builder.relu(builder.conv2d(x, weights(16, 3, 3, 3), padding=[1, 1, 1, 1], label="stem"))
    rounded = dither(stem, label="to integers")
    head = builder.conv2d(rounded, weights(16, 16, 3, 3), bias=weights(16), padding=[1, 1, 1, 1], label="head")
    normal = rms_norm(builder.add(head, stem), weights(24))
    best, places = top_k(normal, 3, label="best")
    return builder.build({"best": best, "places": places})


if __name__ == "__main__":
    example().draw(sys.argv[1])
