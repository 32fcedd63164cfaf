"""NaN on the engine and on the reference back end: where they differ, the page of deviations says so, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import opweave as ow

DEVIATIONS = Path(__file__).resolve().parents[3] / "docs" / "deviations.md"
NAN = float("nan")
Build = Callable[[ow.MLGraphBuilder, ow.MLOperand], ow.MLOperand]


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype("float32")


def recurrent(name: str, gates: int) -> Build:
    """The last state of a network of 5 units, with a bias, over 4 steps of 5 values."""

    def build(b: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.MLOperand:
        matrix = b.constant(weights(1, gates * 5, 5))
        bias = b.constant(weights(1, gates * 5))
        results = getattr(b, name)(b.reshape(x, [4, 1, 5]), matrix, matrix, 4, 5, bias=bias)
        return results[0]

    return build


OPERATIONS: dict[str, Build] = {
    **{name: lambda b, x, name=name: getattr(b, name)(x, axes=[1]) for name in ("reduce_max", "reduce_min")},  # type: ignore[misc]
    **{name: lambda b, x, name=name: getattr(b, name)(x, 1) for name in ("arg_max", "arg_min")},  # type: ignore[misc]
    "max_pool2d": lambda b, x: b.max_pool2d(b.reshape(x, [1, 1, 4, 5]), window_dimensions=[2, 2]),
    "average_pool2d": lambda b, x: b.average_pool2d(b.reshape(x, [1, 1, 4, 5]), window_dimensions=[2, 2]),
    "reduce_sum": lambda b, x: b.reduce_sum(x, axes=[1]),
    "max": lambda b, x: b.max(x, 0.5),
    "min": lambda b, x: b.min(x, 0.5),
    "clamp": lambda b, x: b.clamp(x, min_value=-1, max_value=1),
    "relu": lambda b, x: b.relu(x),
    "softmax": lambda b, x: b.softmax(x, 1),
    "prelu": lambda b, x: b.prelu(x, b.constant(np.float32([NAN, np.inf, -np.inf, 2, 1]))),
    "gru": recurrent("gru", 3),
    "lstm": recurrent("lstm", 4),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_nan_deviations_are_documented(name: str) -> None:
    differs = False
    for position in range(0, 20, 3):
        x = weights(4, 5)
        x.flat[position] = NAN
        results = []
        for device in ("cpu", "reference"):
            context = ow.ml.create_context(device=device)
            builder = ow.MLGraphBuilder(context)
            graph = builder.build({"y": OPERATIONS[name](builder, builder.input("x", "float32", [4, 5]))})
            results.append(context.compute(graph, {"x": x})["y"])
        differs = differs or not np.allclose(results[0], results[1], equal_nan=True)
    is_told = f"`MLGraphBuilder.{name}: NaN`" in DEVIATIONS.read_text(encoding="utf-8")
    assert differs == is_told
