"""Arithmetic with positions of loops, whose divisors and exponents are other positions, or sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opweave as ow

FORMULAS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "i // (j + 1)": lambda i, j, n: i // (j + 1),
    "i // j": lambda i, j, n: i // j,
    "i % j": lambda i, j, n: i % j,
    "i // -2": lambda i, j, n: i // -2,
    "i % -3": lambda i, j, n: i % -3,
    "i // (n - 2)": lambda i, j, n: i // (n - 2),
    "j % (2 - n)": lambda i, j, n: j % (2 - n),
    "-j": lambda i, j, n: -j,
    "j ** i": lambda i, j, n: j**i,
    "3 << j": lambda i, j, n: 3 << j,
    "j >> i": lambda i, j, n: j >> i,
}


def expected(name: str, i: int, j: int, n: int) -> int:
    """The result in Python; a quotient or remainder by 0 is 0."""
    try:
        return int(FORMULAS[name](i, j, n))
    except ZeroDivisionError:
        return 0


@pytest.mark.parametrize("size", ["n", 1000])
@pytest.mark.parametrize("function", [ow.expr.reduce_sum, ow.expr.reduce_max, ow.expr.reduce_product])
def test_positions_of_long_reductions(function: Any, size: Any) -> None:
    @ow.expression
    def reduced(x: Any) -> Any:
        n = x.shape[1]
        return ow.expr.compute((3,), lambda i: function(
            ow.expr.compute((n,), lambda j: x[i, j] * (j // (i + 1) - j % 7)), [0]
        ))  # fmt: skip

    context = ow.ml.create_context(device="cpu", drafts=True)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": reduced(builder, builder.input("x", "float32", [3, size]))})
    x = np.random.default_rng(1).uniform(-0.01, 0.01, (3, 1000)).astype("float32")
    i, j = np.indices(x.shape)
    numpy_function: Any = {"reduce_sum": np.sum, "reduce_max": np.max, "reduce_product": np.prod}[function.__name__]
    wanted = numpy_function(x.astype("float64") * (j // (i + 1) - j % 7), axis=1)
    np.testing.assert_allclose(context.compute(graph, {"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("size", ["n", 3])
@pytest.mark.parametrize("name", FORMULAS)
def test_positions_of_loops_are_integers(name: str, size: Any, device: Any) -> None:
    @ow.expression
    def tabulated(x: Any) -> Any:
        n = x.shape[0]
        table = ow.expr.compute((n, 4), lambda i, j: x[i, 0] + ow.expr.cast(FORMULAS[name](i, j, n), "int32"))
        sums = ow.expr.compute((n,), lambda i: ow.expr.reduce_sum(
            ow.expr.compute((4,), lambda j: ow.expr.cast(FORMULAS[name](i, j, n), "int32")), [0]
        ))  # fmt: skip
        return table, sums

    context = ow.ml.create_context(device=device, drafts=True)
    builder = ow.MLGraphBuilder(context)
    table, sums = tabulated(builder, builder.input("x", "int32", [size, 4]))
    graph = builder.build({"table": table, "sums": sums})
    for n in (3,) if size == 3 else (3, 2, 5):
        results = context.compute(graph, {"x": np.zeros((n, 4), "int32")})
        numbers = np.array([[expected(name, i, j, n) for j in range(4)] for i in range(n)], "int32")
        np.testing.assert_array_equal(results["table"], numbers)
        np.testing.assert_array_equal(results["sums"], numbers.sum(1))
