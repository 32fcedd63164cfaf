"""Rectifiers whose slopes are NaN or infinite: elements that are not negative are their own result, on every device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.every_device import DEVICES, context_on

import opweave as ow
from opweave.compile.driver import compile
from opweave.compile.legalise import legalise
from opweave.core.graph import Graph

X = [3, -2, 0, np.inf, -np.inf, np.nan, 0.5, -0.5]
SLOPES = [np.inf, -np.inf, np.nan, 2]

Build = Callable[[ow.MLGraphBuilder, ow.MLOperand, str], ow.MLOperand]


def expected(dtype: str) -> np.ndarray:
    """[slopes, elements]"""
    x, slopes = np.array(X, dtype), np.array(SLOPES, dtype)[:, None]
    with np.errstate(invalid="ignore"):
        return np.where(x < 0, x * slopes, x)


ROWS: dict[str, tuple[Build, tuple[int, ...], np.ndarray]] = {
    # The prelu of X, in a shape, by slopes, in another one.
    "slopes along the first axis": (lambda b, x, dtype: x, (1, 8), np.reshape(SLOPES, (4, 1))),
    "slopes of all elements": (
        lambda b, x, dtype: b.expand(x, [4, 8]),
        (1, 8),
        np.broadcast_to(np.reshape(SLOPES, (4, 1)), (4, 8)),
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("kind", ["input", "constant", "computed"])
@pytest.mark.parametrize("fuse", [True, False])
def test_prelu_ignores_slopes_of_non_negative_elements(
    kind: str, row: str, dtype: str, device: str, fuse: bool
) -> None:
    arrange, shape, slopes = ROWS[row]
    context = context_on(device)
    b = ow.MLGraphBuilder(context)
    x, given = b.input("x", dtype, shape), slopes.astype(dtype)
    slope = b.constant(given) if kind == "constant" else b.input("s", dtype, given.shape)
    if kind == "computed":
        slope = b.neg(slope)
        given = -given
    graph = b.build({"y": b.prelu(arrange(b, x, dtype), slope)}, fuse=fuse)
    feeds = {"x": np.array(X, dtype).reshape(shape), **({} if kind == "constant" else {"s": given})}
    np.testing.assert_array_equal(context.compute(graph, feeds)["y"], expected(dtype))


@pytest.mark.parametrize("device", DEVICES)
def test_prelu_ignores_single_slope_of_non_negative_elements(device: str) -> None:
    context = context_on(device)
    for position, slope in enumerate(SLOPES):
        for shape in ((), (1,)):
            b = ow.MLGraphBuilder(context)
            graph = b.build({"y": b.prelu(b.input("x", "float32", [8]), b.input("s", "float32", shape))})
            result = context.compute(graph, {"x": np.float32(X), "s": np.full(shape, slope, "float32")})["y"]
            np.testing.assert_array_equal(result, expected("float32")[position])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["leaky_relu", "elu"])
@pytest.mark.parametrize(("dtype", "alpha"), [("float32", 1e39), ("float16", 1e6), ("float16", -1e6)])
def test_infinite_alpha_does_not_affect_positive_elements(name: str, dtype: str, alpha: float, device: str) -> None:
    context = context_on(device)
    for fuse in (True, False):
        b = ow.MLGraphBuilder(context)
        graph = b.build({"y": getattr(b, name)(b.input("x", dtype, [8]), alpha=alpha)}, fuse=fuse)
        result = context.compute(graph, {"x": np.array(X, dtype)})["y"]
        np.testing.assert_array_equal(
            result, expected(dtype)[0] * [1, np.sign(alpha), 1, 1, np.sign(alpha), 1, 1, np.sign(alpha)]
        )


@pytest.mark.parametrize("name", ["prelu", "leaky_relu", "elu"])
def test_decomposed_rectifiers_ignore_slopes_of_non_negative_elements(name: str) -> None:
    context = ow.ml.create_context(device="reference")
    b = ow.MLGraphBuilder(context)
    x = b.input("x", "float32", [8])
    y = b.prelu(x, b.constant(np.float32([np.inf] * 8))) if name == "prelu" else getattr(b, name)(x, alpha=1e39)
    graph, _ = legalise(Graph.reaching({"y": y}), lambda node: node.op.name != name)
    program = compile(graph, context.backend, device="reference", power_preference="default", fuse=False)
    result = np.empty(8, "float32")
    program.run([np.float32(X)], [result])
    np.testing.assert_array_equal(result, expected("float32")[0])
