"""Rows times matrices as compiled loops: several rows of the matrix are read side by side, and large ones prefetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import opweave.expr as ex
from opweave.core.graph import Desc
from opweave.expr import Traced, trace

pytest.importorskip("halide", reason="needs the extra halide")
pytest.importorskip("llvmlite", reason="needs the extra halide")

from halide_code import recorded

from opweave.expr.halide import compile

rng = np.random.default_rng(0)


def product(rows: int, columns: int, inner: int) -> Callable[[Traced, Traced], Traced]:
    """The product of a matrix with the transpose of another."""
    return lambda a, b: ex.compute(
        (rows, columns), lambda m, n: ex.relu(ex.sum_over(inner, lambda k: a[m, k] * b[n, k]))
    )


def check_product(rows: int, columns: int, inner: int) -> None:
    a = rng.standard_normal((rows, inner)).astype("float32")
    b = rng.standard_normal((columns, inner)).astype("float32")
    program = trace(product(rows, columns, inner), "product", [Desc("float32", a.shape), Desc("float32", b.shape)])
    got = np.full((rows, columns), np.nan, "float32")
    compile(program).bind([a, b], [got])()
    wanted = np.maximum(a.astype("float64") @ b.astype("float64").T, 0)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6 * inner**0.5)


SIZES = [
    (1, 8, 64),
    (1, 8 * 513, 40),  # a last task that is smaller
    (1, 12, 33),  # streams of 4, and a rest along the rows
    (1, 25, 100),
    (1, 7, 17),
    (1, 1, 1000),
    (1, 997, 128),  # a prime number: one row at a time
    (1, 24, 7),  # rows shorter than a vector
    (5, 16, 70),
    (3, 997, 20),
]


@pytest.mark.parametrize(("rows", "columns", "inner"), SIZES)
def test_products_with_transposed_matrices(rows: int, columns: int, inner: int) -> None:
    check_product(rows, columns, inner)


def test_sums_along_two_rows() -> None:
    x = rng.standard_normal((40, 70)).astype("float32")
    row = rng.standard_normal(70).astype("float32")
    columns = rng.standard_normal((30, 40)).astype("float32")

    def both(x: Traced, row: Traced, columns: Traced) -> Traced:
        def element(n: Traced) -> Traced:
            return ex.sum_over(70, lambda k: x[n, k] * row[k]) - ex.sum_over(30, lambda k: columns[k, n])

        return ex.compute((40,), element)

    program = trace(both, "both", [Desc("float32", array.shape) for array in (x, row, columns)])
    got = np.empty(40, "float32")
    compile(program).bind([x, row, columns], [got])()
    np.testing.assert_allclose(got, x @ row - columns.sum(0), rtol=1e-4, atol=1e-4)


def code_of(rows: int, columns: int, inner: int, monkeypatch: pytest.MonkeyPatch, cache: Path) -> str:
    """The LLVM code of a product, which is checked, too."""
    made = recorded(monkeypatch, cache)
    check_product(rows, columns, inner)
    (code,) = made
    return code


@pytest.mark.parametrize(("inner", "is_prefetched"), [(1099, True), (300, False)])
def test_large_matrices_are_prefetched(
    inner: int, is_prefetched: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = code_of(1, 1000, inner, monkeypatch, tmp_path)  # 4.4 MB, or 1.2
    calls = [line for line in code.splitlines() if "call void @llvm.prefetch" in line]
    assert bool(calls) == is_prefetched
    # Into all caches: past them, as Halide has it, a product takes twice as long.
    assert all(line.endswith("i32 0, i32 3, i32 1)") for line in calls)


def test_reread_matrices_are_not_prefetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "@llvm.prefetch" not in code_of(2, 1000, 1099, monkeypatch, tmp_path)
