"""Simpler positions mean the same, and are what they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expr_programs import Case, index_form, programs
from hypothesis import given, settings, strategies as st
from row_sample import examples

import opweave.expr as ex
from opweave.backends.webgpu import webgpu
from opweave.core.graph import Desc
from opweave.core.operation import Op
from opweave.expr import Traced, compute, trace
from opweave.expr.evaluate import evaluate
from opweave.expr.ir import Formula
from opweave.expr.simplify import simplify
from opweave.ops import movement as ops


def results(program: Formula, arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    outputs = [np.empty(output.desc.shape, output.desc.data_type) for output in program.outputs]
    evaluate(program, arrays, outputs)
    return outputs


def assert_means_the_same(case: Case) -> None:
    program = case.program()
    for got, wanted in zip(results(simplify(program), case.arrays), results(program, case.arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.long
@settings(max_examples=200)
@given(index_form())
def test_index_forms_mean_the_same(case: Case) -> None:
    assert_means_the_same(case)


@settings(max_examples=examples(100, in_sample=30))
@given(programs())
def test_programs_mean_the_same(case: Case) -> None:
    assert_means_the_same(case)


SHAPES: tuple[tuple[int, ...], ...] = (
    *((24,), (2, 12), (12, 2), (4, 6), (3, 8), (2, 3, 4), (4, 3, 2)),
    *((1, 24), (2, 2, 6), (2, 1, 3, 4), (24, 1)),
)
IN_NUMPY: dict[Op[..., Any], Callable[..., np.ndarray]] = {
    ops.reshape: lambda x, new_shape: x.reshape(new_shape),
    ops.transpose: lambda x, permutation: x.transpose(permutation),
    ops.reverse: lambda x, axes: np.flip(x, axes),
}


@st.composite
def moves(draw: st.DrawFn) -> list[tuple[Op[..., Any], dict[str, Any]]]:
    """Operations in a row, with their attributes, that move 24 elements."""
    steps: list[tuple[Op[..., Any], dict[str, Any]]] = []
    shape = SHAPES[0]
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from([ops.reshape, ops.reshape, ops.transpose, ops.reverse]))
        if kind is ops.reshape:
            shape = draw(st.sampled_from(SHAPES))
            steps.append((kind, {"new_shape": shape}))
        elif kind is ops.transpose:
            order = draw(st.permutations(range(len(shape))))
            shape = tuple(shape[axis] for axis in order)
            steps.append((kind, {"permutation": order}))
        else:
            steps.append((kind, {"axes": (draw(st.integers(0, len(shape) - 1)),)}))
    return steps


def lowered(op: Op[..., Any], input: Traced, **attributes: Any) -> Traced:
    (rule,) = webgpu.rules[op]
    result = rule((), {"input": input, **attributes})
    assert isinstance(result, Traced)
    return result


@pytest.mark.long
@settings(max_examples=200)
@given(moves())
def test_simplify_keeps_repeated_movement(
    steps: list[tuple[Op[..., Any], dict[str, Any]]],
) -> None:
    def expression(x: Traced) -> Traced:
        for op, attributes in steps:
            x = lowered(op, x, **attributes)
        return x

    x = wanted = np.arange(24, dtype=np.int32)
    for op, attributes in steps:
        wanted = IN_NUMPY[op](wanted, **attributes)
    (got,) = results(simplify(trace(expression, "moved", [Desc("int32", (24,))])), (x,))
    np.testing.assert_array_equal(got, wanted)


def text(function: Callable[..., Traced], *shapes: tuple[int, ...], data_type: str = "float32") -> str:
    """What one element of the result is."""
    program = simplify(trace(function, "f", [Desc(data_type, shape) for shape in shapes]))
    return " ".join(str(program).splitlines()[2:]).replace("    ", "").strip()


def reshaped(x: Traced, *shapes: list[int]) -> Traced:
    for shape in shapes:
        x = lowered(ops.reshape, x, new_shape=shape)
    return x


@pytest.mark.parametrize(
    ("function", "shape", "wanted"),
    [
        (lambda x: reshaped(x, [24], [2, 3, 4]), (2, 3, 4), "x0[i, j, k]"),
        (lambda x: reshaped(x, [4, 6], [6, 4], [2, 3, 4]), (2, 3, 4), "x0[i, j, k]"),
        (lambda x: reshaped(x, [2, 12]), (2, 3, 4), "x0[i, j // 4, j % 4]"),
        (lambda x: reshaped(x, [2, 12], [8, 3]), (2, 12), "x0[i // 4, ((i % 4) * 3) + j]"),
        (lambda x: compute((4,), lambda i: x[(i * 6 + 3) // 3]), (8,), "x0[(i * 2) + 1]"),
        (lambda x: compute((4,), lambda i: x[(i * 6 + 5) % 8]), (8,), "x0[((((i * 3) + 2) % 4) * 2) + 1]"),
        (lambda x: compute((4,), lambda i: x[i // 2 // 2]), (1,), "x0[0]"),
        (lambda x: compute((40,), lambda i: x[i // 2 // 5]), (4,), "x0[i // 10]"),
        (lambda x: compute((4,), lambda i: x.clamped[i - 1]), (3,), "x0[max(i - 1, 0)]"),
        (lambda x: compute((3,), lambda i: x.clamped[i % 0 + i]), (3,), "x0[min(max((i % 0) + i, 0), 2)]"),
        (lambda x: compute((4,), lambda i: x.padded(7)[i]), (3,), "where(i < 3, x0[min(i, 2)], 7.0)"),
        (lambda x: compute((3,), lambda i: x.padded(7)[i]), (3,), "x0[i]"),
        (lambda x: compute((3,), lambda i: ex.where(i + 1 > 0, x[2 - i], 0)), (3,), "x0[2 - i]"),
        (lambda x: compute((3,), lambda i: ex.where(i > 2, 1, x[abs(i)])), (3,), "x0[i]"),
        (lambda x: compute((3,), lambda i: ex.where((i < 3) & (i > 1), x[i], 0)), (3,), "where(i > 1, x0[i], 0.0)"),
        (lambda x: ex.sum_over((1, 3), lambda i, j: x[i, j]), (1, 3), "sum(r0 < 3: x0[0, r0])"),
        (lambda x: ex.sum_over(1, lambda i: x[i]), (1,), "x0[0]"),
        (lambda x: ex.cast(ex.arg_max_over(1, lambda i: x[i]), "float32"), (1,), "float32(0)"),
    ],
)
def test_positions_are_simple(function: Callable[[Traced], Traced], shape: tuple[int, ...], wanted: str) -> None:
    assert text(function, shape) == wanted


def test_simplify_stored_arrays() -> None:
    def function(x: Traced) -> Traced:
        total = ex.store(compute((4,), lambda i: ex.sum_over(6, lambda j: reshaped(x, [24])[i * 6 + j])))
        return x / compute((4, 6), lambda i, j: total[i])

    program = simplify(trace(function, "f", [Desc("float32", (4, 6))]))
    assert "sum(r0 < 6: x0[i, r0])" in str(program)


def test_checks_are_simplified_and_kept() -> None:
    program = simplify(
        trace(
            lambda x, k: compute((3,), lambda i: x.checked[k[i + 0]]), "f", [Desc("float32", (3,)), Desc("int32", (3,))]
        )
    )
    assert [check.message for check in program.checks] == ["the index x1[i] of axis 0 must be in [0, 3)"]


def test_simplify_keeps_data_dependent_divisors() -> None:
    def function(x: Traced) -> Traced:
        return compute((3,), lambda i: (i + 4) // x[i])

    assert text(function, (3,), data_type="int32") == "int32(i + 4) // x0[i]"
