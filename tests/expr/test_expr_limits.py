"""How large expressions may be, and what is left to NumPy because compiling it would take too long."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

import opweave as ow
import opweave.expr as ex
from opweave.core.graph import Desc
from opweave.expr import Traced, ir, kernels, limits, trace
from opweave.support.errors import OperationError, ValidationError

ROW = Desc("float32", (64,))


def stencils(levels: int, keep: bool = False) -> Callable[[Traced], Traced]:
    """Sums of neighbours of sums of neighbours …: each level doubles the expression, unless it is stored."""

    def function(x: Traced) -> Traced:
        for _ in range(levels):
            shape, before = x.shape, ex.store(x) if keep else x
            x = ex.compute(shape, lambda i, y=before: y.clamped[i - 1] + y.clamped[i + 1])  # type: ignore[misc]
        return x

    return function


def chain(length: int, name: str = "") -> Callable[[Traced], Traced]:
    def function(x: Traced) -> Traced:
        for number in range(length):
            x = ex.apply(name, x) if name else x * 1.0001 + number
        return x

    return function


def run_kernel(kernel: kernels.ExpressionKernel, x: np.ndarray) -> np.ndarray:
    y = np.zeros_like(x)
    kernel.run([x], [y])
    return y


def test_node_limit_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.NODES_VARIABLE, "500")
    trace(stencils(4), "stencils", [ROW])
    message = r"more than the 500 that are allowed; store\(array\).*OPWEAVE_MAX_EXPR"
    with pytest.raises(ValidationError, match=message):
        trace(stencils(8), "stencils", [ROW])
    monkeypatch.setenv(limits.NODES_VARIABLE, "many")
    with pytest.raises(ValidationError, match="OPWEAVE_MAX_EXPRESSION_NODES must be a positive integer, got 'many'"):
        trace(stencils(4), "stencils", [ROW])


def test_stored_levels_stay_small() -> None:
    program = trace(stencils(14, keep=True), "stencils", [ROW])
    kernel = kernels.compile(program, "numpy")
    assert run_kernel(kernel, np.ones(64, np.float32)).tolist() == [2.0**14] * 64


@pytest.mark.long
def test_deep_formula_uses_numpy() -> None:
    program = trace(chain(5000), "deep", [ROW])
    kernel = kernels.compile(program, "auto")
    wanted = np.ones(64, np.float32)
    for number in range(5000):
        wanted = wanted * np.float32(1.0001) + np.float32(number)
    np.testing.assert_allclose(run_kernel(kernel, np.ones(64, np.float32)), wanted, rtol=1e-5)
    assert kernel.detail.startswith("NumPy")
    if kernels.is_compiled():
        assert "OPWEAVE_MAX_COMPILE_WORK sets the limit" in kernel.detail


@pytest.mark.skipif(not kernels.has_halide(), reason="needs the extra halide")
def test_compile_rejects_too_much_work_with_halide(monkeypatch: pytest.MonkeyPatch) -> None:
    program = trace(chain(200, "sin"), "waves", [ROW])
    with pytest.raises(
        OperationError, match=r"waves: compiling it would take 7,\d+ units of work .* more than the 5,000"
    ):
        kernels.compile(program, "halide")
    small = trace(chain(3, "sin"), "ripples", [ROW])
    monkeypatch.setenv(limits.WORK_VARIABLE, "100")
    with pytest.raises(OperationError, match="more than the 100 that are allowed"):
        kernels.compile(small, "halide")
    monkeypatch.setenv(limits.WORK_VARIABLE, "1000")
    assert kernels.compile(small, "halide").detail.startswith("Halide")


def test_work_of_program() -> None:
    chained = trace(chain(10), "p", [ROW])
    assert limits.work_of_elements(chained) == 2 * 10 + len([n for n in ir.walk(*chained.roots) if not n.parts]) + 1
    assert limits.work(chained) == limits.work_of_elements(chained) + 50
    assert limits.work(trace(chain(10, "sin"), "p", [ROW])) > 360


@pytest.mark.skipif(not kernels.is_compiled(), reason="needs the extra halide")
def test_fusion_stays_within_work_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.WORK_VARIABLE, "300")
    half = ow.expression(lambda_named("half", lambda x: chain(4, "tan")(x * 0.5)))
    context = ow.ml.create_context()
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", (7,))
    graph = builder.build({"y": half(builder, half(builder, x))})
    assert "NumPy" not in str(graph.explain())
    value = np.linspace(0, 0.1, 7).astype(np.float32)
    wanted = value
    for _ in range(2):
        wanted = wanted * np.float32(0.5)
        for _ in range(4):
            wanted = np.tan(wanted)
    np.testing.assert_allclose(context.compute(graph, {"x": value})["y"], wanted, rtol=1e-5)


def lambda_named(name: str, function: Callable[[Traced], Traced]) -> Callable[[Traced], Traced]:
    def named(x: Traced) -> Traced:
        return function(x)

    named.__name__ = name
    return named


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("kind", ["chain", "stores", "text"])
def test_trace_and_text_of_deep_formulas_need_no_recursion(kind: str) -> None:
    depth = 3 * sys.getrecursionlimit()
    if kind == "stores":

        def function(x: Traced) -> Traced:
            for _ in range(depth):
                x = ex.store(x + 1)
            return x

        program = trace(function, "stores", [ROW])
        assert len(program.stored) == depth
    else:
        program = trace(chain(depth), "chain", [ROW])
    if kind == "text":
        text = str(program)
        assert len(text) < 60 * depth
        assert max(map(len, text.splitlines())) < 20_000
        return
    result = run_kernel(kernels.compile(program, "auto"), np.zeros(64, np.float32))
    assert kind == "chain" or result[0] == depth
