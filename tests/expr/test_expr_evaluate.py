"""The NumPy evaluator against plain Python, and against what is known."""

from __future__ import annotations

import re
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from expr_plain import Space
from expr_programs import INTEGERS, Case, index_form, pointwise, programs
from hypothesis import given, settings
from row_sample import examples
from scipy import special

import opweave.expr as ex
from opweave.core.dtypes import FLOATS
from opweave.core.graph import Desc
from opweave.expr import trace
from opweave.expr.evaluate import Evaluator, evaluate
from opweave.expr.ir import Formula
from opweave.support.errors import OperationError, ValidationError


def evaluated(case: Case, precision: Any = "float32") -> list[np.ndarray]:
    program = case.program()
    wide = precision == "float64"
    descs = [output.desc for output in program.outputs]
    outputs = [np.empty(d.shape, "float64" if wide and d.data_type in FLOATS else d.data_type) for d in descs]
    evaluate(program, case.arrays, outputs, precision=precision)
    return outputs


def in_python(case: Case, outputs: list[np.ndarray], *, single: bool) -> list[np.ndarray]:
    space = Space(single=single)
    made = case.function(space, *(space.array(array) for array in case.arrays))
    results = []
    for plain, output in zip(made if isinstance(made, tuple) else (made,), outputs, strict=True):
        assert plain.shape == output.shape
        with np.errstate(all="ignore"):
            floats = "float32" if single else "float64"
            dtype = floats if plain.type in FLOATS else {"index": "int64"}.get(plain.type, plain.type)
            results.append(np.array(plain.values, dtype).astype(output.dtype).reshape(plain.shape))
    return results


@pytest.mark.long
@settings(max_examples=250)
@given(pointwise(exact=True))
def test_exact_functions_agree_with_plain_python_bit_for_bit(case: Case) -> None:
    outputs = evaluated(case)
    for got, wanted in zip(outputs, in_python(case, outputs, single=True), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.long
@settings(max_examples=200)
@given(pointwise(exact=False))
def test_smooth_functions_in_float64_agree_with_plain_python(case: Case) -> None:
    outputs = evaluated(case, "float64")
    for got, wanted in zip(outputs, in_python(case, outputs, single=False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-320)


@pytest.mark.long
@settings(max_examples=200)
@given(index_form())
def test_index_form_agrees_with_plain_python(case: Case) -> None:
    outputs = evaluated(case)
    for got, wanted in zip(outputs, in_python(case, outputs, single=True), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0 if case.exact else 1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Blocks, memory


@pytest.mark.long
@settings(max_examples=150)
@given(programs())
def test_blocks_of_single_elements_change_nothing(case: Case) -> None:
    wanted = evaluated(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opweave.expr.evaluate.BLOCK_BYTES", 0)
        split = evaluated(case)
    for got, want in zip(split, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@settings(max_examples=examples(100, in_sample=30))
@given(programs())
def test_arrays_need_not_be_contiguous(case: Case) -> None:
    program, wanted = case.program(), evaluated(case)

    def spread(array: np.ndarray) -> np.ndarray:
        wide = np.zeros([2 * size for size in array.shape], array.dtype)
        view = wide[tuple(slice(1, None, 2) for _ in array.shape)][...]
        view[...] = array
        return view

    outputs = [spread(output) for output in wanted]
    for output in outputs:
        output[...] = 0
    evaluate(program, [spread(array) for array in case.arrays], outputs)
    for got, want in zip(outputs, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def traced(function: Callable[..., Any], *arrays: np.ndarray) -> Formula:
    return trace(function, "f", [Desc(array.dtype.name, array.shape) for array in arrays])


def result(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    (output,) = evaluated(Case(lambda space, *given: function(*given), arrays, True, "given"))
    return output


def test_temporaries_are_small() -> None:
    x = np.ones((64, 1024, 64), np.float32)  # 16 MiB
    out = np.empty_like(x)
    run = Evaluator(
        traced(lambda x: ex.exp(x * 2) / (1 + ex.exp(x)) + ex.reduce_sum(x, [2], keep_dimensions=True), x)
    ).bind([x], [out])
    run()
    tracemalloc.start()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_evaluator_splits_inner_axis_if_first_is_short() -> None:
    x = np.arange(2**20, dtype=np.float32).reshape(1, 2, 2**19)
    plan = Evaluator(traced(lambda x: (x + 1) * (x - 1) + x, x))
    (stage,) = (stage for _, stage in plan.results)
    assert len(stage.blocks) > 8
    np.testing.assert_array_equal(result(lambda x: (x + 1) * (x - 1) + x, x), (x + 1) * (x - 1) + x)


def test_blocks_of_diagonals_and_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opweave.expr.evaluate.BLOCK_BYTES", 0)
    x = np.arange(42, dtype=np.float32).reshape(6, 7)
    np.testing.assert_array_equal(
        result(lambda x: ex.compute((6,), lambda i: x[i, i] * 2 + x[5 - i, 6 - i]), x),
        x.diagonal() * 2 + x[::-1, ::-1].diagonal(),
    )
    rows = result(lambda x: ex.compute((6, 3), lambda i, j: ex.sum_over(3, lambda r: x[i, 2 * j + r] * (r + 1) + i)), x)
    wanted = [[sum(x[i, 2 * j + r] * (r + 1) + i for r in range(3)) for j in range(3)] for i in range(6)]
    np.testing.assert_array_equal(rows, wanted)


def test_function_is_one_pass_into_output() -> None:
    plan = Evaluator(traced(lambda x: ex.exp(x), np.empty((4096, 1024), np.float32)))
    (stage,) = (stage for _, stage in plan.results)
    assert len(stage.blocks) == 1
    assert [step.target for _, step in stage.per_block] == [-1, 0]


@pytest.mark.parametrize("view", [slice(0, 8), slice(1, 9)])
def test_output_overlapping_input(view: slice) -> None:
    memory = np.arange(9, dtype=np.float32)
    x, out = memory[0:8], memory[view]
    wanted = x * 2 + x[::-1]
    evaluate(traced(lambda x: x * 2 + ex.compute((8,), lambda i: x[7 - i]), x), [x], [out])
    np.testing.assert_array_equal(out, wanted)


def test_pointwise_in_place() -> None:
    x = np.arange(8, dtype=np.float32)
    run = Evaluator(traced(lambda x: x * 2 + x, x)).bind([x], [x])
    run()
    run()
    np.testing.assert_array_equal(x, np.arange(8) * 9)


def test_several_outputs_over_inputs() -> None:
    a, b = np.arange(4, dtype=np.int32), np.arange(4, 8, dtype=np.int32)
    evaluate(traced(lambda a, b: (a + b, a - b), a, b), [a, b], [b, a])
    assert b.tolist() == [4, 6, 8, 10]
    assert a.tolist() == [-4, -4, -4, -4]


# ---------------------------------------------------------------------------------------------------------------------
# Checks and errors


def test_failed_check_keeps_outputs() -> None:
    table, ids, out = np.arange(4, dtype=np.float32), np.int32([0, 5]), np.full(2, 7, np.float32)
    program = traced(lambda t, i: ex.compute((2,), lambda k: t.checked[i[k]]), table, ids)
    with pytest.raises(OperationError) as error:
        evaluate(program, [table, ids], [out])
    assert str(error.value) == "f: the index x1[i] of axis 0 must be in [0, 4), got 5"
    assert out.tolist() == [7, 7]
    evaluate(program, [table, np.int32([3, 0])], [out])
    assert out.tolist() == [3, 0]


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ([], [(3,)], "f: takes 1 inputs, got 0"),
        ([(3,)], [(3,), (3,)], "f: takes 1 outputs, got 2"),
        ([(4,)], [(3,)], "f: input 0 must be float32[3], got float32[4]"),
        ([(3,)], [(3, 1)], "f: output 0 must be float32[3], got float32[3, 1]"),
    ],
)
def test_evaluate_rejects_wrong_shapes(inputs: Any, outputs: Any, message: str) -> None:
    program = traced(lambda x: x + 1, np.empty(3, np.float32))
    with pytest.raises(ValidationError) as error:
        evaluate(program, [np.empty(s, np.float32) for s in inputs], [np.empty(s, np.float32) for s in outputs])
    assert str(error.value) == message


def test_evaluate_rejects_wrong_data_types() -> None:
    program, x = traced(lambda x: x + 1, np.empty(3, np.float32)), np.empty(3, np.float32)
    with pytest.raises(ValidationError, match=re.escape("f: input 0 must be float32[3], got float64[3]")):
        evaluate(program, [x.astype(float)], [x])
    with pytest.raises(ValidationError, match=re.escape("f: output 0 must be float64[3], got float32[3]")):
        evaluate(program, [x], [x], precision="float64")


# ---------------------------------------------------------------------------------------------------------------------
# Values


def test_evaluate_raises_no_warnings() -> None:
    x = np.float32([0, -1, np.inf, -np.inf, np.nan, 3e38])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result(
            lambda x: x % 0 + x // 0 + ex.pow(x, -1) + ex.cast(ex.cast(x * 2**30, "int32"), "int64"),
            np.int64([-(2**63), 0, 1]),
        )
        result(lambda x: ex.log(x) + 1 / x + ex.exp(x) + ex.cast(ex.cast(x * x, "int8"), "float32"), x)
        result(lambda x: x * 1e39, x)


@pytest.mark.parametrize("function", ["erf", "sigmoid"])
def test_our_own_functions_are_accurate(function: str) -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), rng.normal(scale=30, size=50_000).astype(np.float32)])
    x = x[np.isfinite(x)]
    wide = x.astype(np.float64)
    wanted = special.erf(wide) if function == "erf" else special.expit(wide)
    got = result(getattr(ex, function), x)
    with np.errstate(under="ignore"):
        unit = np.spacing(np.abs(wanted).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(got - wanted) / unit) < {"erf": 1, "sigmoid": 4}[function]
    edges = result(getattr(ex, function), np.float32([np.inf, -np.inf, np.nan]))
    np.testing.assert_array_equal(edges, {"erf": [1, -1, np.nan], "sigmoid": [1, 0, np.nan]}[function])


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
def test_casts_clamp(source: str, target: str) -> None:
    info = np.iinfo(target)
    with np.errstate(over="ignore"):
        x = np.array([np.nan, np.inf, -np.inf, 3.9, -3.9, 300.5, -300.5, 6e4, 2.0**31, 2.0**63, -(2.0**63)], source)
    clamped = (info.max if v >= info.max else info.min if v <= info.min else v for v in x.tolist())
    wanted = [0 if np.isnan(v) else int(v) for v in clamped]
    assert result(lambda x: ex.cast(x, target), x).tolist() == wanted


def test_float16_all_values_round_trip() -> None:
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(result(lambda x: x * 1, x), x)


def test_float16_sums_do_not_overflow_on_the_way() -> None:
    x = np.full(4096, 100, np.float16)
    assert result(lambda x: ex.reduce_mean(x), x) == 100
    assert result(lambda x: ex.reduce_sum(x) / 4096 + 0, x) == 100


@pytest.mark.parametrize("data_type", ["int8", "uint8", "int32", "uint32"])
def test_means_of_integers_do_not_overflow(data_type: str) -> None:
    x = np.full((2, 300), np.iinfo(data_type).max, data_type)
    x[1] -= np.arange(300).astype(data_type) % 2 + 1
    expected = x.sum(1, dtype=np.int64) // 300
    (mean,) = evaluated(Case(lambda space, x: ex.reduce_mean(x, [1]), (x,), True, "mean"))
    assert (mean.dtype, mean.tolist()) == (x.dtype, expected.tolist())


def test_sums_of_float32_are_accumulated_in_float64() -> None:
    x = np.float32([1e8, 1, -1e8, 1])
    assert result(lambda x: ex.reduce_sum(x), x) == 2
    assert result(lambda x: ex.sum_over(4, lambda k: x[k]), x) == 2


def test_reduction_independent_of_its_variables() -> None:
    x = np.float32([2, 3])
    got = result(lambda x: ex.compute((2,), lambda i: ex.sum_over((3, 4), lambda a, b: x[i] + 0 * b)), x)
    assert got.tolist() == [24, 36]


def test_reduction_nested_in_index() -> None:
    x = np.int32([[0, 1], [1, 0]])

    def function(x: Any) -> Any:
        last = ex.reduce_max(x, [1])
        return ex.compute((2,), lambda i: last.clamped[last[i] - 1])

    assert result(function, x).tolist() == [1, 1]


def test_hundred_reductions_of_one_expression() -> None:
    x = np.arange(6, dtype=np.float32)
    got = result(lambda x: sum(ex.sum_over(6, lambda r, k=k: x[r] * k) for k in range(100)), x)
    assert got == 15 * 4950


def test_plan_runs_in_several_threads() -> None:
    x = np.random.default_rng(0).normal(size=(64, 1000)).astype(np.float32)
    plan = Evaluator(traced(lambda x: ex.exp(x) / ex.reduce_sum(ex.exp(x), [1], keep_dimensions=True), x))
    outputs = [np.empty_like(x) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda out: plan.bind([x], [out])(), outputs))
    for out in outputs[1:]:
        np.testing.assert_array_equal(out, outputs[0])
    np.testing.assert_allclose(outputs[0].sum(1), 1, rtol=1e-5)


def test_numbers_out_of_bounds_are_as_computed_positions() -> None:
    x = np.float32([1, 2, 3])
    for k in (-4, -1, 0, 2, 3):
        for access, expected in (("clamped", x[min(max(k, 0), 2)]), ("padded", x[k] if 0 <= k < 3 else 9)):

            def function(x: ex.Traced, k: int = k, access: str = access) -> ex.Traced:
                reads = x.clamped if access == "clamped" else x.padded(9)
                return ex.compute((2,), lambda i: ex.where(i == 0, reads[k], reads[i - 1 + k]))

            assert result(function, x).tolist() == [expected, expected]


def test_bitcast_is_not_written_over() -> None:
    x, copy = np.float32([1, 2]), np.float32([1, 2])

    def function(x: ex.Traced) -> ex.Traced:
        twice = x * 2
        return (
            ex.bitcast((ex.bitcast(x, "int32") + 1) * 3 + (ex.bitcast(twice, "int32") + 1) * 5, "float32") + x + twice
        )

    bits, more = x.view(np.int32), (x * 2).view(np.int32)
    expected = ((bits + 1) * 3 + (more + 1) * 5).view(np.float32) + x + x * 2
    np.testing.assert_array_equal(result(function, x), expected)
    np.testing.assert_array_equal(x, copy)


def test_half_as_an_exponent_is_not_a_square_root() -> None:
    x = np.float32([-np.inf, -0.0, 4, -4])
    np.testing.assert_array_equal(result(lambda x: 1 / ex.pow(x, 0.5), x), [0, np.inf, 0.5, np.nan])


@pytest.mark.parametrize("rows", [False, True])
def test_gathers_of_rows_and_elements(rows: bool) -> None:
    table, at = np.arange(60, dtype=np.float32).reshape(3, 4, 5), np.int64([[2, 0, -7], [1, 9, 1]])
    inside = np.clip(at, 0, 2)
    if rows:  # the positions within a row stand before and between those of the indices
        got = result(lambda t, a: ex.compute((5, 2, 4, 3), lambda k, i, j, m: t.clamped[a[i, m], j, k]), table, at)
        np.testing.assert_array_equal(got, table[inside].transpose(3, 0, 2, 1))
    else:
        got = result(lambda t, a: ex.compute((2, 3, 5), lambda i, j, k: t.clamped[a[i, j], (k + 1) % 4, k]), table, at)
        np.testing.assert_array_equal(got, table[inside[:, :, None], (np.arange(5) + 1) % 4, np.arange(5)])


def test_reduction_of_terms_without_its_variable() -> None:
    x = np.arange(6, dtype="float32").reshape(3, 2)
    nested = trace(
        lambda x: ex.sum_over(3, lambda r: ex.sum_over(40, lambda _: x[r, 0])), "nested", [Desc("float32", (3, 2))]
    )
    y = np.empty((), "float32")
    evaluate(nested, [x], [y])
    assert y == x[:, 0].sum() * 40
    sides = trace(
        lambda x: ex.sum_over(3, lambda r: ex.max_over(5, lambda _: x[r, 1]) * ex.sum_over(4, lambda s: x[r, 0])),
        "sides",
        [Desc("float32", (3, 2))],
    )
    evaluate(sides, [x], [y])
    assert y == (x[:, 1] * x[:, 0] * 4).sum()
