"""Expressions of whole arrays as operations of WebNN, on both back ends, against the evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expr_programs import Case, index_form, pointwise
from hypothesis import assume, given, settings

import opweave as ow
from opweave.expr.decompose import decompose, is_slow, refusal
from opweave.expr.evaluate import evaluate

DEVICES = ("reference", "cpu")


@pytest.fixture(scope="module", params=DEVICES)
def context(request: pytest.FixtureRequest) -> ow.MLContext:
    return ow.ml.create_context(device=request.param)


def compute_decomposed(context: ow.MLContext, program: Any, arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    builder = ow.MLGraphBuilder(context)
    operands = [builder.input(f"x{k}", array.dtype.name, array.shape) for k, array in enumerate(arrays)]
    results = decompose(program, builder, operands)
    assert [operand.desc for operand in results] == [output.desc for output in program.outputs]
    graph = builder.build({f"y{k}": operand for k, operand in enumerate(results)})
    made = context.compute(graph, {name: arrays[int(name[1:])] for name in graph.inputs})
    return [np.asarray(made[f"y{k}"]) for k in range(len(results))]


def check_decomposition(context: ow.MLContext, case: Case, rtol: float) -> None:
    program = case.program()
    wanted = [np.empty(output.desc.shape, output.desc.data_type) for output in program.outputs]
    evaluate(program, case.arrays, wanted)
    for got, want in zip(compute_decomposed(context, program, case.arrays), wanted, strict=True):
        assert got.dtype == want.dtype
        tolerance = max(rtol, 1e-3) if rtol and want.dtype == "float16" else rtol
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=1e-37 if rtol else 0)


@pytest.mark.long
@settings(max_examples=60)
@given(case=pointwise(exact=True, decomposable=True, depth=3))
def test_exact_functions_decompose_bit_for_bit(context: ow.MLContext, case: Case) -> None:
    check_decomposition(context, case, 0)


@pytest.mark.long(rows=1)
@settings(max_examples=40)
@given(case=pointwise(exact=False, decomposable=True, depth=3))
def test_smooth_functions_decompose(context: ow.MLContext, case: Case) -> None:
    check_decomposition(context, case, 1e-4)


@pytest.mark.long
@settings(max_examples=60)
@given(case=index_form())
def test_decompose_index_form_of_whole_arrays(context: ow.MLContext, case: Case) -> None:
    assume(refusal(case.program()) is None)
    check_decomposition(context, case, 1e-5)


X = np.linspace(-3, 3, 35, dtype=np.float32).reshape(5, 7)


def softmax(x: Any) -> Any:
    e = ow.expr.exp(x - ow.expr.reduce_max(x, [-1], keep_dimensions=True))
    return e / ow.expr.reduce_sum(e, [-1], keep_dimensions=True)


def triangle(x: Any) -> Any:
    return ow.expr.compute((5, 7), lambda i, j: ow.expr.where(i < j, x[i, j], -np.inf))


def separable(x: Any) -> Any:
    rows = ow.expr.store(ow.expr.compute((5, 5), lambda i, j: x[i, j] + x[i, j + 1] + x[i, j + 2]))
    return ow.expr.compute((3, 5), lambda i, j: rows[i, j] + rows[i + 1, j] + rows[i + 2, j])


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("function", [softmax, triangle, separable])
def test_decompose_movement(context: ow.MLContext, function: Any, data_type: str) -> None:
    check_decomposition(
        context, Case(lambda space, x: function(x), (X.astype(data_type),), True, function.__name__), 1e-5
    )


def test_extremes_and_their_positions_see_nan(context: ow.MLContext) -> None:
    x = X.copy()
    x[1, 4] = x[1, 6] = np.nan
    x[2, 3] = np.inf

    def function(space: Any, x: Any) -> Any:
        e = ow.expr
        return e.reduce_max(x, [1]), e.reduce_min(x, [1]), e.arg_max(x, 1), e.arg_min(x, 1)

    check_decomposition(context, Case(function, (x,), True, "extremes"), 0)
    program = Case(function, (x,), True, "extremes").program()
    assert [r[1].tolist() for r in compute_decomposed(context, program, (x,))[2:]] == [4, 4]


def test_float16_is_rounded_once(context: ow.MLContext) -> None:
    x = np.float16([60000, 1, 0.1])
    program = Case(lambda space, x: x * 4 / 4 + (x + 0.0001 - x), (x,), True, "once").program()
    wide = x.astype(np.float32)
    wanted = (wide * 4 / 4 + (wide + np.float32(0.0001) - wide)).astype(np.float16)
    np.testing.assert_array_equal(compute_decomposed(context, program, (x,))[0], wanted)


def test_decompose_results_independent_of_inputs(context: ow.MLContext) -> None:
    def function(x: Any) -> Any:
        return ow.expr.compute((2, 3), lambda i, j: 2.5), ow.expr.compute((2, 2), lambda i, j: i * 2 + j), x

    program = Case(lambda space, x: function(x), (X,), True, "constants").program()
    first, second, third = compute_decomposed(context, program, (X,))
    assert first.tolist() == [[2.5] * 3] * 2
    assert second.tolist() == [[0, 1], [2, 3]]
    np.testing.assert_array_equal(third, X)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: ow.expr.apply("fmod", x, 3.0), "WebNN has no fmod"),
        (lambda x: ow.expr.bitcast(x, "int32"), "WebNN has no bitcast"),
        (
            lambda x: ow.expr.compute((5,), lambda i: x.checked[ow.expr.cast(x[i, 0], "int32"), 0]),
            "checks of indices have no operation",
        ),
        (
            lambda x: ow.expr.sum_over((2,) * 9, lambda *r: x[0, 0] * r[0] * r[1] * r[2] * r[3] * r[4] * r[8]),
            "it needs arrays of more than 8 dimensions",
        ),
        (
            lambda x: ow.expr.compute((300, 300), lambda i, j: ow.expr.sum_over(5000, lambda k: x[0, 0] * (i + j + k))),
            "it needs arrays of 450000000 elements",
        ),
    ],
)
def test_decompose_rejects_partial_access(function: Any, reason: str) -> None:
    program = Case(lambda space, x: function(x), (X,), True, reason).program("blur")
    assert refusal(program)
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    with pytest.raises(ow.NotSupportedError) as error:
        decompose(program, builder, [builder.input("x", "float32", X.shape)])
    assert str(error.value) == f"blur: cannot be decomposed, {reason}"


INDEX = np.int64([[4, -3, 0], [2, 9, 2]])


def from_middle(x: Any, k: Any) -> Any:
    """The axes with computed positions are the first and the last one."""
    cube = ow.expr.store(ow.expr.compute((5, 2, 7), lambda i, j, k: x[i, k] * (j + 1)))
    return ow.expr.compute((2, 2, 3), lambda n, j, m: cube.clamped[k[n, m], j, k[n, m] + n])


READS: dict[str, Any] = {
    "diagonal": lambda x, k: ow.expr.compute((5,), lambda i: x[i, i]),
    "reverse": lambda x, k: ow.expr.compute((5, 7), lambda i, j: x[4 - i, 6 - j]),
    "clamped": lambda x, k: ow.expr.compute((5, 7), lambda i, j: x.clamped[i + 1, j - 2]),
    "padded": lambda x, k: ow.expr.compute((7, 9), lambda i, j: x.padded(-1.5)[i - 1, j - 1]),
    "rows": lambda x, k: ow.expr.compute((2, 3, 7), lambda n, m, j: x.clamped[k[n, m], j]),
    "columns": lambda x, k: ow.expr.compute((2, 5, 3), lambda n, i, m: x.clamped[i, k[n, m]]),
    "elements": lambda x, k: ow.expr.compute((2, 3), lambda n, m: x.clamped[k[n, m], k[1 - n, m]]),
    "row of each column": lambda x, k: ow.expr.compute((3, 7), lambda m, j: x.clamped[k[0, m] + j, j]),
    "one": lambda x, k: ow.expr.compute((2,), lambda n: x.clamped[k[1, 0], k[0, 0]] + n),
    "of a position": lambda x, k: ow.expr.compute((2, 3), lambda n, m: x.clamped[k.clamped[k[n, m], 0], m]),
    "middle": from_middle,
    "blocks": lambda x, k: ow.expr.compute((35,), lambda i: x[i // 7, i % 7]),
    "sum": lambda x, k: ow.expr.compute(
        (3,), lambda m: ow.expr.sum_over(2, lambda n: x.clamped[k[n, m], 0] * x.padded(0)[n, k[n, m]])
    ),
    "half": lambda x, k: ow.expr.cast(
        ow.expr.compute((2, 3), lambda n, m: ow.expr.cast(x, "float16").clamped[k[n, m], m]), "float32"
    ),
}


@pytest.mark.parametrize("name", READS)
def test_decompose_reads_at_computed_positions(context: ow.MLContext, name: str) -> None:
    function = READS[name]
    case = Case(lambda space, x, k: function(x, k), (X, INDEX), True, name)
    assert is_slow(case.program())
    check_decomposition(context, case, 1e-6)


@pytest.mark.parametrize("data_type", ["float32", "int8", "uint32", "int64"])
@pytest.mark.parametrize("reduction", ["sum", "product", "max", "min", "arg_max", "arg_min"])
def test_decompose_writes_out_large_reductions(
    context: ow.MLContext, reduction: str, data_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opweave.expr.decompose._MIN_LIMIT", 16)
    x = np.random.default_rng(3).integers(1, 4, [3, 40]).astype(data_type)
    if data_type == "float32" and reduction.startswith("arg"):
        x[1, [5, 9]] = np.nan
    over = getattr(ow.expr, f"{reduction}_over")

    def function(space: Any, x: Any) -> Any:
        return ow.expr.compute((3, 40), lambda i, j: over(11, lambda k: x.clamped[i, j + k]))

    case = Case(function, (x,), True, reduction)
    assert is_slow(case.program())
    check_decomposition(context, case, 1e-5 if data_type == "float32" else 0)


@pytest.mark.parametrize("shape", [(3, 5), (1, 2, 1, 1, 3, 1, 2, 2)])
@pytest.mark.parametrize("data_type", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("name", ["bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"])
def test_decompose_bits(context: ow.MLContext, name: str, data_type: str, shape: tuple[int, ...]) -> None:
    rng, info = np.random.default_rng(1), np.iinfo(data_type)
    x, y = (rng.integers(info.min, info.max, shape, data_type, endpoint=True) for _ in range(2))
    x.flat[:3], y.flat[:3] = (info.min, info.max, info.max), (info.max, info.max, info.min)
    if name.startswith("shift"):
        y = rng.integers(0 if info.min == 0 else -2, info.bits + 3, shape).astype(data_type)

    def function(space: Any, x: Any, y: Any) -> Any:
        apply = ow.expr.apply
        return apply(name, x, y), apply(name, x, 3), apply(name, x, 0), apply(name, x, info.max), apply(name, 6, y)

    case = Case(function, (x, y), True, name)
    assert is_slow(case.program())
    check_decomposition(context, case, 0)


EXTREMES = np.array([-np.inf, -200, -104, -90, -20, -17, -3, -0.0, 0, 1e-30, 0.5, 3, 17, 90, 200, np.inf, np.nan])


def names_of(result: Any) -> set[str]:
    """The operations that a result is made by."""
    return {result.node.op.name}.union(*(names_of(x) for x in result.node.operands if x.node)) if result.node else set()


SIGMOIDS = {
    "sigmoid": lambda x, y: 1 / (1 + ow.expr.exp(-y)),
    "swish": lambda x, y: x / (1 + ow.expr.exp(-x)),
    "gated": lambda x, y: x / (ow.expr.exp(-y) + 1),
    "falling": lambda x, y: 3 / (1.0 + ow.expr.exp(y)),
    "inside": lambda x, y: 0.5 * x * (1 + y / (1 + ow.expr.exp(-1.5 * y))),
}


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("name", SIGMOIDS)
def test_decompose_writes_sigmoids(context: ow.MLContext, name: str, data_type: Any) -> None:
    y = EXTREMES.astype(data_type)
    x = np.linspace(-2, 3, y.size).astype(data_type) if name == "gated" else y
    program = ow.expr.trace(SIGMOIDS[name], name, [ow.Desc(data_type, x.shape), ow.Desc(data_type, y.shape)])
    builder = ow.MLGraphBuilder(context)
    operands = [builder.input("x", data_type, x.shape), builder.input("y", data_type, y.shape)]
    (result,) = decompose(program, builder, operands)
    graph = builder.build({"result": result})
    assert "sigmoid" in names_of(result)
    assert not {"exp", "div"} & names_of(result)
    wanted = np.empty_like(x)
    with np.errstate(all="ignore"):
        evaluate(program, [x, y], [wanted])
    made = np.asarray(context.compute(graph, {name: {"x": x, "y": y}[name] for name in graph.inputs})["result"])
    limits = {"rtol": 2e-6, "atol": 1e-37} if data_type == "float32" else {"rtol": 1e-3, "atol": 1e-7}
    np.testing.assert_allclose(made, wanted, **limits)


OTHERS = {
    "two": lambda x: x / (2 + ow.expr.exp(-x)),
    "no power": lambda x: x / (1 + x),
    "product": lambda x: x * (1 + ow.expr.exp(-x)),
    "difference": lambda x: x / (1 - ow.expr.exp(-x)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_decompose_keeps_formulas_like_a_sigmoid(context: ow.MLContext, name: str) -> None:
    program = ow.expr.trace(OTHERS[name], "formula", [ow.Desc("float32", (4,))])
    (result,) = decompose(program, builder := ow.MLGraphBuilder(context), [builder.input("x", "float32", [4])])
    assert "sigmoid" not in names_of(result)
