"""Expressions that are too large to compile, in graphs: they are refused, or NumPy evaluates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opweave as ow
import opweave.expr as ex


def build_expression(function: Callable[[Any], Any]) -> ow.MLGraph:
    """A graph of one expression of 64 numbers."""
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    return builder.build({"y": ow.expression(function)(builder.input("x", "float32", [64]))})


@pytest.mark.long
def test_nested_clamped_stencils_are_refused() -> None:
    def stencils(x: Any) -> Any:
        for _ in range(14):  # each level doubles the expression
            x = ex.compute(x.shape, lambda i, y=x: y.clamped[i - 1] + y.clamped[i + 1])  # type: ignore[misc]
        return x

    with pytest.raises(ow.ValidationError, match=r"stencils: the expression has [\d,]+ nodes, more than the 50,000"):
        build_expression(stencils)


@pytest.mark.long
def test_formulas_5000_deep_are_not_compiled() -> None:
    def deep(x: Any) -> Any:
        for number in range(5000):
            x = x * 1.0001 + number
        return x

    graph = build_expression(deep)
    (placement,) = graph.placements()
    assert "NumPy" in placement.detail
    wanted = np.ones(64, np.float32)
    for number in range(5000):
        wanted = wanted * np.float32(1.0001) + np.float32(number)
    found = graph.context.compute(graph, {"x": np.ones(64, np.float32)})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
