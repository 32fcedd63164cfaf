"""Operations of users between operations of an engine: as loops, or as operations of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import opweave as ow
from opweave.compile import fuse
from opweave.compile.driver import IN_ENGINE
from opweave.expr import kernels

expr = ow.expr
SIZES = 5, 1, 2, 5, 16
WIDTH = 8

pytestmark = pytest.mark.skipif(not kernels.has_halide(), reason="no compiler of loops is installed")


@pytest.fixture(autouse=True)
def _loops(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.is_compiled()


def _swish(x: Any) -> Any:
    return x / (1 + expr.exp(-x))


FORMULAS: dict[str, Callable[[Any], Any]] = {
    "swish": _swish,
    "clamp": lambda x: expr.min(expr.max(x, -1), 1),
    "row": lambda x: x - expr.reduce_max(x, axes=[1], keep_dimensions=True),
    "column": lambda x: x - expr.reduce_sum(x, axes=[0], keep_dimensions=True),
    "cast": lambda x: expr.cast(expr.cast(x * 3, "float16"), "float32"),
    "logic": lambda x: expr.cast((x > 0) & (x < 1), "float32"),
    "sums": lambda x: expr.compute(
        x.shape, lambda i, j: x[i, j] - expr.sum_over(x.shape[1], lambda k: x[i, k] * x[0, k])
    ),
    "ramp": lambda x: expr.compute(x.shape, lambda i, j: x[i, j] + i * 0.5),
    "share": lambda x: x / x.shape[0],
    "mean": lambda x: x - expr.reduce_mean(x, axes=[0], keep_dimensions=True),
    "tail": lambda x: expr.compute(x.shape, lambda i, j: x[i, j] - x[i, 7]),
}


def declare(formula: Callable[[Any], Any]) -> Any:
    def between(x: Any) -> Any:
        return formula(x)

    return ow.expression(between)


def build(
    op: Any, shape: list[Any], where: str = "between", device: str = "cpu", data_type: Any = "float32", **options: Any
) -> tuple[ow.MLContext, ow.MLGraph]:
    context = ow.ml.create_context(device=device, drafts=True, **options)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", data_type, shape)
    weights = builder.constant((np.eye(shape[-1]) * 0.5 + 0.01).astype(data_type))
    y = x if where == "first" else builder.matmul(x, weights)
    y = op(builder, y)
    y = y if where == "last" else builder.matmul(y, weights)
    return context, builder.build({"y": y})


def hows(graph: ow.MLGraph) -> list[str]:
    return [placement.how for placement in graph.placements() if placement.op.name == "between"]


def inputs(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape[0]).normal(size=shape).astype("float32")


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("has_names", [False, True])
def test_small_operation_between_products_runs_in_the_engine(name: str, has_names: bool) -> None:
    op = declare(FORMULAS[name])
    shared = build(op, ["n", WIDTH], device="reference")
    context, graph = build(op, ["n", WIDTH])
    for size in SIZES:
        x = inputs(size, WIDTH)
        if not has_names:
            context, graph = build(op, [size, WIDTH])
        result = context.compute(graph, {"x": x})["y"]
        expected = shared[0].compute(shared[1], {"x": x})["y"]
        assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
        assert hows(graph) == ["decomposed"]
        assert len({placement.segment for placement in graph.placements()}) == 1
    assert IN_ENGINE in graph.explain()


@pytest.mark.parametrize("precision", ["float32", "ieee"])
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("name", ["swish", "clamp", "row", "logic", "cast"])
def test_operation_in_the_engine_treats_special_values_like_the_loop(
    name: str, data_type: str, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph has no product: one would spread a NaN over its row."""
    op = declare(FORMULAS[name])
    results = []
    for limit in (fuse.MAX_SAVED, -1):
        monkeypatch.setattr(fuse, "MAX_SAVED", limit)
        context = ow.ml.create_context(device="cpu", precision=precision)
        builder = ow.MLGraphBuilder(context)
        x = builder.input("x", data_type, [4, WIDTH])
        y = builder.transpose(op(builder, builder.transpose(x)))
        graph = builder.build({"y": y})
        assert hows(graph) == ["expression" if limit < 0 else "decomposed"]
        values = np.random.default_rng(0).normal(size=(4, WIDTH)).astype(data_type)
        values[0, :4] = np.nan, np.inf, -np.inf, -0.0
        with np.errstate(all="ignore"):
            results.append(context.compute(graph, {"x": values})["y"])
    tolerance = 1e-6 if data_type == "float32" else 2e-3
    assert_allclose(results[0].astype("float32"), results[1].astype("float32"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("where", ["first", "last"])
def test_operation_at_an_end_stays_a_loop(where: str) -> None:
    _, graph = build(declare(_swish), [16, WIDTH], where)
    assert hows(graph) == ["expression"]


@pytest.mark.parametrize(
    ("formula", "rows", "how"),
    [
        (_swish, fuse.MAX_SAVED // 4, "expression"),  # large
        (lambda x: x * 2, 2**10, "decomposed"),
        (lambda x: expr.where(x > 0, x, x * 0.1), 2**10, "expression"),  # the engine's kernels are slow
        (lambda x: expr.compute(x.shape, lambda i, j: x.clamped[i + 1, j]), 4, "expression"),
        (lambda x: expr.compute(x.shape, lambda i, j: x.checked[i, expr.cast(x[i, 0], "int32")]), 4, "expression"),
        (lambda x: expr.cast(expr.cast(x, "int32") // 3, "float32"), 4, "expression"),  # it would be many operations
        (lambda x: x * 2 if x.shape[0] > 4 else x.clamped[0, 0] + x, 8, "decomposed"),
    ],
)
def test_loop_between_products_is_kept_where_the_engine_takes_longer(formula: Any, rows: int, how: str) -> None:
    _, graph = build(declare(formula), [rows, WIDTH])
    assert hows(graph) == [how]


def test_all_sizes_have_the_program_for_those_of_the_first_run() -> None:
    for first, how in ((2**11, "decomposed"), (2**17, "expression")):
        context, graph = build(declare(_swish), ["n", WIDTH])
        for size in (first, 3):
            context.compute(graph, {"x": np.zeros((size, WIDTH), "float32")})
            assert hows(graph) == [how]


def test_neighbours_of_an_operation_in_the_engine_are_checked() -> None:
    """A loop of a user's operation and built-in ones around it: the engine runs all of it, once each."""
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [4, WIDTH])
    weights = builder.constant(np.eye(WIDTH, dtype="float32"))
    y = builder.matmul(x, weights)
    y = declare(_swish)(builder, y) * y
    graph = builder.build({"y": builder.matmul(y, weights)})
    assert len({placement.segment for placement in graph.placements()}) == 1
    values = inputs(4, WIDTH)
    expected = values * values / (1 + np.exp(-values))
    assert_allclose(context.compute(graph, {"x": values})["y"], expected, rtol=1e-5)


def test_operation_with_a_name_of_0_rows_in_the_engine() -> None:
    context, graph = build(declare(_swish), ["n", WIDTH])
    for size in (3, 0, 4):
        x = np.ones((size, WIDTH), "float32")
        assert context.compute(graph, {"x": x})["y"].shape == (size, WIDTH)


def test_operation_of_integers_in_the_engine() -> None:
    op = declare(lambda x: x * 3 - x // 2)
    context = ow.ml.create_context(device="cpu", drafts=True)
    builder = ow.MLGraphBuilder(context)
    y = builder.transpose(op(builder, builder.transpose(builder.input("x", "int32", ["n", 3]))))
    graph = builder.build({"y": y})
    for size in (4, 7):
        x = np.arange(-5, 3 * size - 5, dtype="int32").reshape(size, 3)
        assert_array_equal(context.compute(graph, {"x": x})["y"], x * 3 - x // 2)
    assert hows(graph) == ["decomposed"]
