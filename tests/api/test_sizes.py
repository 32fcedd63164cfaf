"""Dimensions with names: formulas of sizes, what `build` refuses, and what `dispatch` refuses."""

import gc
import pickle
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.threads import together

import opweave as ow
from opweave.compile import driver
from opweave.composites import (
    average_pool,
    conv_transpose,
    lp_pool,
    max_pool,
    max_pool_with_indices,
    max_unpool,
    non_max_suppression,
    scaled_dot_product_attention,
)
from opweave.context.dynamic_graph_state import MAX_VERSIONS, DynamicGraphState
from opweave.context.graph import program_of, state_of
from opweave.core import size_bounds, size_calls
from opweave.core.formula_limits import MAX_DEPTH, LongFormulaError
from opweave.core.graph import Graph
from opweave.core.guards import Guards, explore
from opweave.core.size_bounds import lower_bound
from opweave.core.size_evaluation import COMPILED_AT, SizesOfCall, _sum_at, function_of, source_of
from opweave.core.size_functions import (
    choose,
    floored_remainder,
    is_equal,
    is_less,
    larger,
    smaller,
    truncated_quotient,
    truncated_remainder,
)
from opweave.core.size_scope import answer_for_all
from opweave.core.size_terms import interval, linear_interval
from opweave.core.size_values import at
from opweave.core.sizes import Size, call_of, is_same_size, is_unknown, size_of, unknown_size
from opweave.ops import Operations
from opweave.run.program import Program
from opweave.support.errors import require

N, M = Size("n"), Size("m")


@pytest.fixture(params=["reference", "cpu"])
def context(request: pytest.FixtureRequest) -> ow.MLContext:
    return ow.ml.create_context(device=request.param, drafts=True)


def test_quotients_of_formulas_in_a_scope_with_guards() -> None:
    guards = Guards({"n": 3})
    with guards.deciding():
        assert [at(truncated_quotient(N - 8, 2), {"n": N}), at(truncated_quotient(8 - N, -2), {"n": N})] == [
            -((8 - N) // 2),
            -((8 - N) // 2),
        ]
        assert at(truncated_remainder(N - 8, 3), {"n": N}) == N - 8 + 3 * ((8 - N) // 3)
    assert guards.hold({"n": 5}), "8 - n is positive, too"
    assert not guards.hold({"n": 9})


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (2 * N - N, "n"),
        (N * 0, "0"),
        (N * M - M * N, "0"),
        (N + 3 - 5 + 2, "n"),
        (N * M + 3 + M - 4, "m*n + m - 1"),
        (7 - N - 7, "-n"),
        ((2 * N + 4) // 2, "n + 2"),
        ((N * M + 3) // M, "(3 // m) + n"),
        ((2 * N + 2) // (N + 1), "2"),
        ((2 * N + 2) % (N + 1), "0"),
        ((M - N * M) // (N - 1), "-m"),
        ((N * M + 1) // (N + 1), "(m*n + 1) // (n + 1)"),
        (-(-N // 2), "-((-n) // 2)"),
        ((N + 1) % 4, "-4*((n + 1) // 4) + n + 1"),
        (Size("batch size") * 2, "2*'batch size'"),
    ],
)
def test_size_has_a_normal_form(formula: object, text: str) -> None:
    assert str(formula) == text
    if isinstance(formula, Size):
        shifted = formula + 3
        normal = size_of(dict(shifted.terms))
        assert isinstance(normal, Size)
        assert normal.terms == shifted.terms
        assert is_same_size(formula, formula + 1 - 1)
        assert not is_same_size(formula, formula + 1)


@pytest.mark.parametrize("other", [N * M - 2 * N, N * M - 2**61 * N, (N * M - 2 * N) // 3, (N * M - 2 * N).sqrt()])
def test_caches_with_formulas_of_another_graph_do_not_ask_the_scope(other: Any) -> None:
    kind = {"sqrt": lambda size: size.sqrt(), "//": lambda size: size // 3}
    first = next((function for text, function in kind.items() if text in str(other)), lambda size: size)(N * M - N)
    cache = lru_cache(2)(lambda size: size)
    for size in (first, other, first):
        cache(size)
    guards = Guards({"k": 3})
    with guards.deciding():
        for size in (4, 5, 6):
            cache(size)
    assert not guards.answers


def test_halves_that_are_rounded_both_ways_are_the_whole() -> None:
    whole = N // 2 + (N + 1) // 2
    assert answer_for_all("zero", whole - N), "the difference is between -1/2 and 1/2, and an integer"
    guards = Guards({"n": 3})
    with guards.deciding():
        assert whole == N
    assert guards.hold({"n": 8})
    # Without a scope, equality, hashes and `is_same_size` have the normal form.
    assert [whole == N, {N: 1}.get(whole) is not None, is_same_size(whole, N)] == [False] * 3


@pytest.mark.parametrize(
    "size", [N**40 - M // 2, N**40 * unknown_size() - M // 2, N**40 // 2 - M // 2 - unknown_size()]
)
def test_bounds_beyond_the_range_of_floats(size: Any) -> None:
    low, high = linear_interval(size)
    assert low < -(2**29)
    assert high > 2**1024
    assert lower_bound(size) < 1
    assert size != 0


def test_lower_bound_of_deep_and_wide_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]
    expand = size_bounds._expand

    def counted(factors: Any, coefficient: int) -> Any:
        calls[0] += 1
        return expand(factors, coefficient)

    monkeypatch.setattr(size_bounds, "_expand", counted)
    formula: Any = N
    for divisor in range(2, 8):
        formula = smaller(M // divisor + formula, formula * M - 2)
    assert lower_bound(formula) <= 0
    names = [Size(f"k{k}") for k in range(40)]
    assert [lower_bound(prod(names) + 3), lower_bound(prod(names[:4]) - names[0])] == [4, 0]
    assert calls[0] < 100


@pytest.mark.parametrize("kind", ["//", "<", "max", "where"])
def test_deepest_formulas_are_evaluated(kind: str) -> None:
    formula: Any = N
    for _ in range(MAX_DEPTH):
        formula = call_of(kind, M, formula + 1, 2) if kind == "where" else call_of(kind, formula + 1, 2)
    for numbers in ({"n": 2**51 + k, "m": k % 2} for k in range(2 * COMPILED_AT)):
        assert function_of([source_of(formula)])(numbers) == (formula.at(numbers),)
        assert formula.at(_of_call(**numbers)) == formula.at(numbers)
    assert pickle.loads(pickle.dumps(formula)) == formula


@pytest.mark.parametrize(
    ("step", "rule"),
    [
        (lambda size: (size + 1) // 2, "at most 50 nested calls, got 51"),
        (lambda size: size % 5 + size % 3, "at most 4096 names and calls, got "),  # each remainder doubles it
        (lambda size: size * size, "at most 4096 names and calls, got 8192"),
        (lambda size: size**4097, "at most 4096 names and calls, got 4097"),
        (lambda size: sum((Size(f"x{k}") for k in range(100)), size) // 2, "at most 4096 names and calls, got "),
        (lambda size: size * Size("long" * 250), "at most 65536 characters, got 66001"),
        (lambda size: size * 10**300, "integers of at most 2048 bits, got 2990"),
        (lambda size: size // 10**5000, "integers of at most 2048 bits, got 16610"),
        (lambda size: size / 2 + 1, "at most 50 nested calls, got 51"),
        (lambda size: (size / 2) * size, "at most 4096 names and calls, got 6142"),
        (lambda size: size**0.5 + Size("long" * 500) % 3, "at most 65536 characters, got "),
        (lambda size: size * 0.5 * 10**5000, "integers of at most 2048 bits, got 16610"),
    ],
)
def test_formulas_are_limited(step: Callable[[Any], Any], rule: str) -> None:
    sizes: list[Any] = [N]

    def build() -> None:
        while len(sizes) < 1100:
            sizes.append(step(sizes[-1]))

    with pytest.raises(ow.ValidationError, match=f"a formula of sizes must have {rule}"):
        build()
    numbers: dict[str, int] = defaultdict(lambda: 2)
    assert len({nested(300, sizes[-1].at, numbers) for _ in range(2 * COMPILED_AT)}) == 1


def nested(depth: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function below `depth` further frames."""
    return nested(depth - 1, function, *arguments) if depth else function(*arguments)


def test_size_at_agrees_with_python() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        numbers = {"n": int(rng.integers(1, 9)), "m": int(rng.integers(1, 9))}
        formula, value = N, numbers["n"]
        for _ in range(4):
            other, number = (M, numbers["m"]) if rng.random() < 0.5 else [int(rng.integers(1, 6))] * 2
            match rng.integers(5):
                case 0:
                    formula, value = formula + other, value + number
                case 1:
                    formula, value = formula * other, value * number
                case 2:
                    formula, value = formula // other, value // number
                case 3:
                    formula, value = formula % other, value % number
                case _:
                    formula, value = other - formula, number - value
            if isinstance(formula, int):
                assert formula == value
                break
            assert formula.at(numbers) == value
            low, high = interval(formula)
            assert low <= value <= high


@pytest.mark.parametrize("kind", ["//", "/", "%", "<", "==", "&", "fmod", "max", "min", "broadcast", "where"])
def test_first_and_later_evaluations_of_a_call_agree(kind: str) -> None:
    arguments = (N - 3, M + 1, (N * M) // (N - 2)) if kind == "where" else (N - 3, M + 1)
    formula: Any = call_of(kind, *arguments)
    numbers = [{"n": n, "m": m} for n in range(2, 7) for m in range(4)]
    first = [_sum_at(formula.terms, sizes) for sizes in numbers]
    assert first == [function_of([source_of(formula)])(sizes)[0] for sizes in numbers]
    assert first == [formula.at(sizes) for sizes in numbers]
    assert first == [formula.at(_of_call(**sizes)) for sizes in numbers]


def test_formulas_share_factors_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    quotients: list[int] = []

    def divide(a: int, b: int) -> int:
        quotients.append(a)
        return a // b

    monkeypatch.setitem(size_calls.CALLS, "//", divide)
    half, sizes = (N + 1) // 2, _of_call(n=6)
    formulas: list[Any] = [half, half + M, half * (half // 2), 3 * half - 1]
    assert [formula.at({"n": 6, "m": 2}) for formula in formulas] == [3, 5, 3, 8]
    quotients.clear()
    sizes["m"] = 2
    assert [formula.at(sizes) for formula in formulas * 2] == [3, 5, 3, 8] * 2
    assert quotients == [7, 3]
    for number in range(2 * COMPILED_AT):
        quotients.clear()
        assert half.at(_of_call(n=number)) == (number + 1) // 2
        assert quotients == [number + 1], "generated code would not call this function"


def _of_call(**numbers: int) -> SizesOfCall:
    sizes = SizesOfCall()
    sizes.update(numbers)
    return sizes


def test_size_without_a_scope_has_no_number_and_no_order() -> None:
    for question in (lambda: int(N), lambda: N > 3, lambda: range(N)):
        with pytest.raises(ow.ValidationError, match="known only when the graph runs"):
            question()
    assert N == "n"
    assert Size("n") == N
    assert {N: 1}["n"] == 1  # type: ignore[index]
    assert M != N
    assert N + 1 != 0
    assert 2 * N != 7


def test_explore_takes_all_consistent_ways() -> None:
    def way() -> str:
        if N > 4:
            return "large" if N + 1 > 5 else "contradiction"
        if N == M:
            return "equal"
        raise ow.ValidationError("other")

    assert explore(way) == ["large", "equal"]


def test_guards_hold_for_sizes_with_the_same_answers() -> None:
    guards = Guards({"n": 8, "m": 2})
    with guards.deciding():
        assert N > 4
        assert N % 2 == 0
        assert int(M) == 2
    assert guards.hold({"n": 6, "m": 2})
    assert not any(guards.hold(sizes) for sizes in ({"n": 4, "m": 2}, {"n": 7, "m": 2}, {"n": 8, "m": 3}))


def test_dispatch_runs_each_size(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x, y = builder.input("x", "float32", ["n", 4]), builder.input("y", "float32", [4, "m"])
    product = builder.matmul(x, y)
    assert product.shape == (N, M)
    graph = builder.build({"double": builder.concat([product, product], 0), "sum": builder.reduce_sum(x, axes=[0])})
    assert graph.outputs["double"].shape == (2 * N, M)
    assert "float32[n, 4]" in repr(graph)
    for n, m in [(2, 3), (5, 1), (2, 3)]:
        a, b = np.random.rand(n, 4).astype("float32"), np.random.rand(4, m).astype("float32")
        results = context.compute(graph, {"x": a, "y": b})
        assert_allclose(results["double"], np.concatenate([a @ b] * 2), rtol=1e-5)
        assert graph.compute_shapes({"x": a.shape, "y": b.shape}) == {k: v.shape for k, v in results.items()}
        out = context.create_tensor("float32", [2 * n, m], readable=True)
        total = context.create_tensor("float32", [4], readable=True)
        tensors = {"x": context.tensor_from(a), "y": context.tensor_from(b)}
        for _ in range(2):
            context.dispatch(graph, tensors, {"double": out, "sum": total})
        assert_allclose(out.numpy(), results["double"])


def test_build_refuses_what_no_sizes_make_valid(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", 3])
    with pytest.raises(
        ow.ValidationError, match=r"reshape 'r': new_shape must have the 3\*n elements of float32\[n, 3\], got \[7\]"
    ):
        builder.reshape(x, [7], label="r")
    with pytest.raises(ow.ValidationError, match=r"add: the shapes of a and b do not broadcast: \[n, 3\] and \[n, 4\]"):
        builder.add(x, builder.input("y", "float32", ["n", 4]))


def test_dispatch_refuses_sizes_with_the_message_of_the_operation(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x, y = builder.input("x", "float32", ["n", 3]), builder.input("y", "float32", ["m", 3])
    graph = builder.build({"z": builder.add(x, y, label="sum"), "k": builder.identity(x)})
    error = r"add 'sum': the shapes of a and b do not broadcast: \[2, 3\] and \[5, 3\]; the sizes are n = 2, m = 5"
    with pytest.raises(ow.ValidationError, match=error):
        graph.compute_shapes({"x": [2, 3], "y": [5, 3]})
    with pytest.raises(ow.ValidationError, match=error):
        context.compute(graph, {"x": np.ones((2, 3), "float32"), "y": np.ones((5, 3), "float32")})
    with pytest.raises(ow.ValidationError, match=r"input 'x' must be float32\[n, 3\], got the shape \[2, 4\]"):
        graph.compute_shapes({"x": [2, 4], "y": [5, 3]})
    assert graph.compute_shapes({"x": [2, 3], "y": [1, 3]})["z"] == (2, 3)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([""], r"shape\[0\] must be an integer, a name that is not empty"),
        ([None], r"shape\[0\] must be an integer, a name that is not empty"),
        ([2, {"min_size": 3}], r"shape\[1\] must have name"),
        ([{"name": "n", "min_size": 3, "max_size": 2}], r"shape\[0\].max_size must be at least min_size, 3, got 2"),
        ([{"name": "n", "min_size": -1}], r"shape\[0\].min_size must be in \[0, 4294967295\], got -1"),
        ([N + 1], r"shape\[0\] must be an integer, a name"),
    ],
)
def test_input_refuses_wrong_names(shape: list[object], message: str) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    with pytest.raises(ow.ValidationError, match=message):
        builder.input("x", "float32", shape)  # type: ignore[arg-type]


def test_names_need_the_switch() -> None:
    context = ow.ml.create_context(device="reference")
    with pytest.raises(ow.ValidationError, match=r"create_context\(drafts=True\)"):
        ow.MLGraphBuilder(context).input("x", "float32", ["n"])
    with pytest.raises(ow.ValidationError, match="only inputs have sizes with names"):
        context.create_tensor("float32", ["n"])  # type: ignore[list-item]


# ---------------------------------------------------------------------------------------------------------------------
# Static graphs for combinations of sizes


def doubling(context: ow.MLContext) -> ow.MLGraph:
    """Build y = concat(2 x, x), of which x has n rows."""
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", 4])
    return builder.build({"y": builder.concat([x * 2, x], 0, label="joined")})


def rows(count: int) -> np.ndarray:
    return np.arange(4 * count, dtype="float32").reshape(count, 4)


def test_compute_shapes_returns_a_new_dictionary(context: ow.MLContext) -> None:
    graph = doubling(context)
    graph.compute_shapes({"x": [2, 4]}).clear()
    assert graph.compute_shapes({"x": [2, 4]}) == {"y": (4, 4)}


def test_oldest_combination_releases_program_and_bindings(context: ow.MLContext) -> None:
    graph = doubling(context)
    state = state_of(graph)
    assert isinstance(state, DynamicGraphState)
    tensors = []
    for n in range(1, MAX_VERSIONS + 2):
        x, y = context.tensor_from(rows(n)), context.create_tensor("float32", [2 * n, 4], readable=True)
        context.dispatch(graph, {"x": x}, {"y": y})
        tensors.append((x, y))
        if n == 1:
            first = ref(program_of(graph))
            assert len(state.bindings) == 1
    gc.collect()
    assert first() is None
    assert len(state.versions) == len(state.bindings) == MAX_VERSIONS
    for x, y in tensors:
        context.dispatch(graph, {"x": x}, {"y": y})
        np.testing.assert_array_equal(y.numpy(), np.concatenate([x.numpy() * 2, x.numpy()]))


def test_destroy_releases_all_combinations(context: ow.MLContext) -> None:
    graph = doubling(context)
    programs = []
    for n in (1, 2):
        context.compute(graph, {"x": rows(n)})
        programs.append(ref(program_of(graph)))
    graph.destroy()
    gc.collect()
    assert [program() for program in programs] == [None, None]
    assert graph.destroyed
    y = context.create_tensor("float32", [4, 4])
    for use in (
        lambda: context.compute(graph, {"x": rows(2)}),
        lambda: context.dispatch(graph, {"x": context.tensor_from(rows(2))}, {"y": y}),
        lambda: graph.compute_shapes({"x": [2, 4]}),
        lambda: graph.profile(input_shapes={"x": [2, 4]}),
        graph.explain,
    ):
        with pytest.raises(ow.InvalidStateError, match="the graph is destroyed"):
            use()


def test_context_destroy_ends_graphs_with_names(context: ow.MLContext) -> None:
    graph = doubling(context)
    context.compute(graph, {"x": rows(1)})
    context.destroy()
    assert graph.destroyed
    with pytest.raises(ow.InvalidStateError, match="the context is lost"):
        graph.compute_shapes({"x": [1, 4]})


def test_threads_with_the_same_sizes_compile_once(context: ow.MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, compiled = doubling(context), list[Graph]()
    compile_graph = driver.compile

    def count(graph: Graph, *args: Any, **options: Any) -> Program:
        compiled.append(graph)
        return compile_graph(graph, *args, **options)

    monkeypatch.setattr(driver, "compile", count)
    for n in (3, 4):
        together(*[lambda: context.compute(graph, {"x": rows(n)})] * 4)  # noqa: B023
    assert len(compiled) == (1 if context.backend.takes_names else 2)


def test_explain_lists_combinations(context: ow.MLContext) -> None:
    graph = doubling(context)
    text = graph.explain()
    assert text.startswith("graph(x: float32[n, 4]) -> (y: float32[2*n, 4]):\n")
    is_cpu = context.device.name == "cpu"
    assert text.endswith(f"compiled when it first runs, for {'many sizes' if is_cpu else 'each size'} of n")
    engine = "onnxruntime" if is_cpu else "reference"
    assert f"\nengine: {engine}" in text
    for read in (graph.placements, lambda: graph.devices):
        with pytest.raises(ow.InvalidStateError, match="for the sizes of n; run it first"):
            read()
    for n in (3, 5):
        context.compute(graph, {"x": rows(n)})
    text = graph.explain()
    assert "\nready for n = 3; n = 5\n" in text
    assert "\nwhat runs where for n = 5:\n" in text
    assert graph.devices == (context.device.name,)
    for n in range(10, 20):
        context.compute(graph, {"x": rows(n)})
    assert "\nready for … (12 combinations); n = 12; " in graph.explain()


def test_tune_and_diff_need_sizes() -> None:
    graph = doubling(ow.ml.create_context(device="cpu", drafts=True))
    for use in (graph.tune, lambda: ow.diff(graph)):
        with pytest.raises(
            ow.ValidationError, match="the sizes of n are known when the graph runs; run it first, or pass inputs"
        ):
            use()
    with pytest.raises(ow.ValidationError, match=r"tune: input 'x' must be float32\[n, 4\], got the shape \[3, 5\]"):
        graph.tune({"x": np.zeros((3, 5), "float32")})


@pytest.mark.long
def test_tune_takes_the_sizes_of_inputs_or_of_the_last_run() -> None:
    graph = doubling(ow.ml.create_context(device="cpu", drafts=True))
    assert ", n = 3" in str(graph.tune({"x": rows(3)}, seconds=0))
    assert "what runs where for n = 3:" in graph.explain()
    assert ", n = 3" in str(graph.tune(seconds=0))


def test_diff_takes_the_sizes_of_inputs_or_of_the_last_run() -> None:
    context = ow.ml.create_context(device="cpu", drafts=True)
    graph = doubling(context)
    context.compute(graph, {"x": rows(3)})
    difference = ow.diff(graph, inputs={"x": rows(7)})
    assert difference.title == "graph, n = 7"
    assert [row.title for row in difference.rows] == ["mul", "concat 'joined'"]
    assert ow.diff(graph, doubling(context)).title == "two graphs, n = 3"


# Operations ----------------------------------------------------------------------------------------------------------


@ow.composite
def weighted(b: Operations, x: ow.MLOperand) -> ow.MLOperand:
    total: ow.MLOperand = b.slice(x, [0, 0], [1, x.shape[1]])
    for k in range(1, x.shape[0]):
        total = total * 0.5 + b.slice(x, [k, 0], [1, x.shape[1]])
    return total


@ow.expression
def unrolled(x: ow.expr.Traced) -> ow.expr.Traced:
    total = x
    for _ in range(x.shape[0]):
        total = total * 0.5
    return total


@ow.op
def stacked(self: object, x: ow.MLOperand, count: int) -> ow.Desc:
    return ow.Desc(x.data_type, (x.shape[0] * count, *x.shape[1:]))


@stacked.kernel("cpu")
def _(x: np.ndarray, count: int, out: np.ndarray) -> None:
    out[...] = np.concatenate([x] * count)


@pytest.mark.parametrize(
    ("op", "shape", "witness"),
    [
        (weighted, (1, M), lambda a: sum(row * 0.5 ** (len(a) - 1 - k) for k, row in enumerate(a))[None]),
        (unrolled, (N, M), lambda a: a * 0.5 ** len(a)),
        (lambda x: stacked(x, N), (N * N, M), lambda a: np.concatenate([a] * len(a))),
        (lambda x: x / x.builder.constant(np.float32(1)), (N, M), lambda a: a),
        (lambda x: scaled_dot_product_attention(*[x.reshape([1, 1, *x.shape])] * 3), (1, 1, N, M), None),
    ],
    ids=["loop of a composite", "loop of a formula", "kernel", "constant", "default that asks for a number"],
)
def test_operations_take_sizes(context: ow.MLContext, op: Any, shape: tuple[Any, ...], witness: Any) -> None:
    builder = ow.MLGraphBuilder(context)
    result = op(builder.input("x", "float32", ["n", "m"]))
    assert result.shape == shape
    graph = builder.build({"y": result})
    for n, m in [(3, 2), (1, 4), (5, 2)]:
        a = np.random.rand(n, m).astype("float32")
        y = context.compute(graph, {"x": a})["y"]
        assert y.shape == tuple(size if isinstance(size, int) else size.at({"n": n, "m": m}) for size in shape)
        if witness is not None:
            assert_allclose(y, witness(a), rtol=1e-6)


INDICES = [
    np.s_[1:, ..., 0],
    -1,
    np.s_[:-1],
    np.s_[:3],
    np.s_[-2:],
    np.s_[::-1],
    np.s_[::2],
    np.s_[::-2],
    np.s_[1:-1:2],
]


@pytest.mark.parametrize("index", [*INDICES, np.s_[None, 0], ..., 2, np.s_[:, 1]], ids=str)
def test_index_agrees_with_numpy(index: Any) -> None:
    context = ow.ml.create_context(device="reference", drafts=True)
    builder = ow.MLGraphBuilder(context)
    part = builder.input("x", "float32", ["n", 3])[index]
    graph = builder.build({"y": builder.identity(part)})
    for n in range(7):
        a = np.random.rand(n, 3).astype("float32")
        try:
            wanted = a[index]
        except IndexError:
            with pytest.raises(ow.ValidationError, match="slice"):
                context.compute(graph, {"x": a})
        else:
            assert_array_equal(context.compute(graph, {"x": a})["y"], wanted)
            assert wanted.shape == tuple(size if isinstance(size, int) else size.at({"n": n}) for size in part.shape)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (len, "asked for n as a number"),
        (list, "asked for n as a number"),
        (lambda x: x[N - 2], "whether the index n - 2 counts from the end depends on sizes"),
        (lambda x: x[3:1:-1], r"index slice\(3, 1, -1\) of axis 0 goes backwards, and depends on its size, n"),
        (lambda x: x[0.5], "an operand is indexed with integers"),
        (lambda x: x.pad([-N - 1, 0], [0, 0]), r"pad: beginning_padding\[0\] must be in .*, got -n - 1"),
        (lambda x: x.split(N), "split: .* asked for n as a number|split: the number of results depends on sizes"),
        (
            lambda x: x.gather_nd(x.builder.input("i", "int32", ["k"])),
            "gather_nd: the rank of the result depends on sizes",
        ),
        (
            lambda x: x.builder.concat([x, x.builder.input("y", "float32", ["m", 4])], 0),
            "inputs must differ in the size of axis 0",
        ),
    ],
)
def test_sizes_refused(call: Any, message: str) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))
    with pytest.raises(ow.ValidationError, match=message):
        call(builder.input("x", "float32", ["n", 3]))


def test_attribute_of_a_run_is_checked(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.pad(builder.input("x", "float32", ["n"]), [N - 3], [0], label="p")})
    with pytest.raises(
        ow.ValidationError, match=r"pad 'p': beginning_padding\[?0?\]? must be in \[0, 4294967295\], got -2"
    ):
        graph.compute_shapes({"x": [1]})
    assert graph.compute_shapes({"x": [4]}) == {"y": (5,)}


def test_build_refuses_a_size_of_no_input(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n"])
    with pytest.raises(
        ow.ValidationError, match=r"build: expand 'e': the size 'k' is no dimension of the inputs \['x'\]"
    ):
        builder.build({"y": builder.expand(x, [Size("k"), N], label="e")})


def test_names_that_look_like_sizes_without_a_formula(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n"])
    shortened = _shortened(builder, x)
    assert is_unknown(shortened.shape[0])
    other = builder.input("y", "float32", [str(shortened.shape[0])])
    assert other.shape != shortened.shape
    graph = builder.build({"x": builder.neg(shortened), "y": builder.neg(other)})
    inputs = {"x": np.ones(5, "float32"), "y": np.ones(2, "float32")}
    assert {name: array.shape for name, array in context.compute(graph, inputs).items()} == {"x": (3,), "y": (2,)}


def _shortened(builder: Any, x: Any) -> Any:
    """A value whose size is n // 2 + 1 or n, without a formula."""

    @ow.op
    def shortened(self: Any, x: ow.MLOperand) -> ow.Desc:
        return ow.Desc(x.data_type, (x.shape[0] // 2 + 1,) if x.shape[0] > 3 else x.shape)

    @shortened.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        out[...] = x[: len(out)]

    return shortened(builder, x)


def test_scalars_times_sizes_are_scalars(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x, number = builder.input("x", "int8", [2, "n"]), builder.input("number", "float32", [])
    y, z = number * x.shape[1], builder.cast(builder.div(number, x.shape[1]), "int32")
    graph = builder.build({"y": y, "z": z, "x": builder.identity(x)})
    results = context.compute(graph, {"x": np.zeros((2, 5), "int8"), "number": np.float32(10)})
    assert (results["y"].shape, results["y"].item()) == ((), 50)
    assert (results["z"].shape, results["z"].item()) == ((), 2)


@pytest.mark.parametrize("data_type", ["float32", "float16", "int32", "uint8", "int64"])
def test_sizes_are_data(context: ow.MLContext, data_type: Any) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", data_type, ["n", "m"])
    n, m = x.shape
    graph = builder.build({"a": x + n, "b": (n * m - 1) - x, "c": builder.max(x, n // 2), "d": x * 1})
    for shape in ((2, 3), (4, 1), (1, 5)):
        array = np.arange(np.prod(shape)).reshape(shape).astype(data_type)
        results = context.compute(graph, {"x": array})
        expected = [array + shape[0], np.array(array.size - 1, data_type) - array, np.maximum(array, shape[0] // 2)]
        for name, witness in zip("abc", expected, strict=True):
            assert results[name].dtype == data_type
            assert_array_equal(results[name], witness)


def test_size_that_is_no_value_of_the_data_type(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "uint8", ["n"])
    graph = builder.build({"y": builder.add(x, x.shape[0], label="a")})
    assert context.compute(graph, {"x": np.ones(255, "uint8")})["y"].tolist() == [0] * 255
    with pytest.raises(ow.ValidationError, match=r"add 'a': 256 is not a value of uint8; the sizes are n = 256"):
        graph.compute_shapes({"x": [256]})
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n"])
    graph = builder.build({"y": x * x.shape[0] ** 5})
    assert graph.compute_shapes({"x": [7000]}) == {"y": (7000,)}
    with pytest.raises(
        ow.ValidationError, match=r"mul: 32768000000000000000 is not an integer of 64 bits, .*; the sizes are n = 8000"
    ):
        graph.compute_shapes({"x": [8000]})


def test_saved_model_computes_sizes_that_are_data(tmp_path: Path) -> None:
    context = ow.ml.create_context(device="reference", drafts=True)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", "m"])
    graph = builder.build({"mean": builder.reduce_sum(x) / (x.shape[0] * x.shape[1]), "rows": x + x.shape[0]})
    ow.onnx.save(graph, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for shape in ((2, 3), (5, 1)):
        array = np.random.default_rng(1).random(shape, "float32")
        mean, rows = session.run(None, {"x": array})
        assert_allclose(mean, array.mean(), rtol=1e-6)
        assert_array_equal(rows, array + np.float32(shape[0]))
    with pytest.raises(
        ow.NotSupportedError,
        match=r"[a-z]+: b must not be computed from sizes .* got m, n; save\(\.\.\., input_shapes=",
    ):
        ow.js.save(graph, tmp_path / "model.js")


CALLS: dict[str, Any] = {
    "and": lambda n, m: n & 3,
    "less": is_less,
    "equal": lambda n, m: is_equal(n, 9),
    "choice": lambda n, m: choose(is_less(n, m), n, m * 2),
    "maximum": lambda n, m: larger(n, m),
    "minimum": lambda n, m: smaller(n - 4, m),
    "floored quotient": lambda n, m: (n - 4) // m,
    "truncated quotient": lambda n, m: truncated_quotient(n - 11, 3 - m),
    "floored remainder": lambda n, m: floored_remainder(n - 4, 3 - m),
    "truncated remainder": lambda n, m: truncated_remainder(n - 11, 3 - m),
}


@pytest.mark.parametrize("name", CALLS)
def test_saved_model_computes_calls_of_sizes(name: str, tmp_path: Path) -> None:
    context = ow.ml.create_context(device="reference", drafts=True)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", "m"])
    formula = CALLS[name](Size("n"), Size("m"))
    graph = builder.build({"y": x + formula})
    ow.onnx.save(graph, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for n, m in ((3, 7), (9, 2), (2, 5), (13, 3), (20, 1)):
        (result,) = session.run(None, {"x": np.zeros((n, m), "float32")})
        assert result[0, 0] == formula.at({"n": n, "m": m}), (n, m)


@pytest.mark.parametrize("pool", [average_pool, lp_pool, max_pool, max_pool_with_indices], ids=lambda op: op.name)
def test_pooling_of_volumes_takes_names_everywhere(context: ow.MLContext, pool: Any) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 1, "a", "b", "c"])
    y = builder.input("y", "float32", ["m", "n"])
    m, n = y.shape
    options = {"strides": [3, m, m], "dilations": [1, 1, m], "window_dimensions": [m, 3, m], "output_sizes": [n, m, m]}
    result = pool(builder, x, **({"p": 2} if pool is lp_pool else {}), padding=[0, 1, 1, 0, 1, 0], **options)
    first = result[0] if isinstance(result, (tuple, list)) else result
    graph = builder.build({"z": first, "m": builder.neg(y)})
    for sizes, count in (((4, 5, 4), 2), ((5, 5, 5), 2), ((5, 4, 4), 3)):
        feeds = {"x": np.ones((1, 1, *sizes), "float32"), "y": np.ones((2, count), "float32")}
        assert context.compute(graph, feeds)["z"].shape == (1, 1, count, 2, 2)
    with pytest.raises(ow.ValidationError, match=r"output_sizes must be .* along each axis, got .*; the sizes are"):
        graph.compute_shapes({"x": [1, 1, 9, 5, 4], "y": [2, 2]})


def test_explore_says_that_a_formula_is_too_long_where_all_other_ways_are_wrong() -> None:
    def way() -> None:
        require(Size("n") != 0, "n must not be 0")
        raise LongFormulaError("a formula of sizes is too long")

    with pytest.raises(LongFormulaError, match="a formula of sizes is too long"):
        explore(way)


def test_explore_refuses_too_many_ways() -> None:
    with pytest.raises(ow.ValidationError, match="more than 64 combinations"):
        explore(lambda: [Size(f"n{k}") > 4 for k in range(7)])


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls in which the operations of a graph are checked with sizes."""
    from opweave.core import specialise

    calls: list[Any] = []
    check = specialise.specialise

    def note(*args: Any) -> Graph:
        calls.append(args)
        return check(*args)

    monkeypatch.setattr(specialise, "specialise", note)
    return calls


def test_sizes_with_known_answers_are_not_checked_again(context: ow.MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["rows", 4])
    y = builder.concat([x, builder.relu(x)], 0)
    tail = builder.slice(x, [2, 0], [x.shape[0] - 2, 4])
    graph = builder.build({"y": builder.reshape(y, [y.shape[0], 2, 2]), "tail": tail})
    for rows in (5, 7, 3, 5, 40):
        array = np.random.default_rng(rows).normal(size=(rows, 4)).astype("float32")
        results = context.compute(graph, {"x": array})
        assert_array_equal(results["y"], np.concatenate([array, np.maximum(array, 0)]).reshape(-1, 2, 2))
        assert_array_equal(results["tail"], array[2:])
    if context.backend.takes_names:
        assert len(calls) == 1  # with names, for the first sizes
    assert context.compute(graph, {"x": np.ones((2, 4), "float32")})["tail"].shape == (0, 4)
    with pytest.raises(ow.ValidationError, match="slice"):
        context.compute(graph, {"x": np.ones((1, 4), "float32")})


def test_compute_shapes_and_the_run_check_operations_once(
    context: ow.MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["rows", 4])
    tail = builder.slice(builder.neg(x), [2, 0], [x.shape[0] - 2, 4])
    graph = builder.build({"y": builder.concat([x, tail], 0), "tail": tail})
    for rows in (5, 7, 40):
        shapes = graph.compute_shapes({"x": [rows, 4]})
        results = context.compute(graph, {"x": np.ones((rows, 4), "float32")})
        assert shapes == {name: array.shape for name, array in results.items()}
    if context.backend.takes_names:
        assert len(calls) == 2, "with numbers and with names, for the first sizes"
    assert graph.compute_shapes({"x": [2, 4]}) == {"y": (2, 4), "tail": (0, 4)}
    with pytest.raises(ow.ValidationError, match=r"compute_shapes: slice: .*rows = 1"):
        graph.compute_shapes({"x": [1, 4]})
    graph.compute_shapes({"x": [3, 4]})
    graph.destroy()
    with pytest.raises(ow.InvalidStateError, match="destroyed"):
        graph.compute_shapes({"x": [3, 4]})
    with pytest.raises(ow.InvalidStateError, match="destroyed"):
        context.compute(graph, {"x": np.ones((3, 4), "float32")})


def test_limits_hold_for_sizes_that_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ow.ml.create_context(device="cpu", drafts=True)
    monkeypatch.setattr(type(context.backend), "max_byte_length", 4000)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", 4])
    graph = builder.build({"y": builder.concat([x, x], 0)})
    for rows in (5, 9, 125):
        assert context.compute(graph, {"x": np.ones((rows, 4), "float32")})["y"].shape == (2 * rows, 4)
    with pytest.raises(ow.ValidationError, match=r"concat: .*at most 4000 bytes.*n = 126"):
        context.compute(graph, {"x": np.ones((126, 4), "float32")})


VIOLATIONS: dict[str, tuple[Any, list[Any], list[Any], list[Any]]] = {
    "matmul": (lambda b, x, y: b.matmul(x, y), [[2, "n"], ["m", 2]], [3, 3], [3, 4]),
    "gemm": (lambda b, x, y: b.gemm(x, y), [[2, "n"], ["m", 2]], [3, 3], [3, 4]),
    "gemm c": (lambda b, x, y: b.gemm(x, x, c=y, b_transpose=True), [["n", 2], ["m"]], [3, 3], [3, 4]),
    "add": (lambda b, x, y: b.add(x, y), [[2, "n"], ["m"]], [3, 1], [3, 4]),
    "where": (lambda b, x, y: b.where(b.greater(x, x), x, y), [[2, "n"], [2, "m"]], [3, 3], [3, 4]),
    "prelu": (lambda b, x, y: b.prelu(x, y), [[2, "n"], ["m"]], [3, 3], [3, 4]),
    "expand": (lambda b, x, y: b.expand(x, [2, y.shape[0]]), [[2, "n"], ["m"]], [3, 3], [3, 4]),
    "reshape": (lambda b, x, y: b.reshape(x, [y.shape[0], 2]), [[2, "n"], ["m"]], [3, 3], [3, 4]),
    "concat": (lambda b, x, y: b.concat([x, y], 0), [[2, "n"], [2, "m"]], [3, 3], [3, 4]),
    "slice": (lambda b, x, y: b.slice(x, [0, 0], [2, y.shape[0]]), [[2, "n"], ["m"]], [3, 2], [3, 4]),
    "split": (lambda b, x, y: b.split(x, [1, y.shape[0]], axis=1), [[2, "n"], ["m"]], [3, 2], [3, 3]),
    "gather_elements": (
        lambda b, x, y: b.gather_elements(x, b.cast(y, "int32"), axis=0), [[2, "n"], [4, "m"]], [3, 3], [3, 4]
    ),
    "scatter_elements": (
        lambda b, x, y: b.scatter_elements(x, b.cast(x, "int32"), y, axis=0), [[2, "n"], [2, "m"]], [3, 3], [3, 4]
    ),
    "conv2d": (lambda b, x, y: b.conv2d(x, y), [[1, "n", 4, 4], [2, "m", 2, 2]], [3, 3], [3, 4]),
    "conv_transpose2d of no rows and less than no columns": (
        lambda b, x, y: b.conv_transpose2d(
            x, b.constant(np.ones((2, 2, 2, 3), "float32")), padding=[y.shape[0], 1, y.shape[0], y.shape[0]]
        ),
        [["k", 2, 2, "n"], ["m"]], [1, 2, 1], [1, 1, 2],
    ),
    "conv_transpose2d of less than no rows": (
        lambda b, x, y: b.conv_transpose2d(
            x, b.constant(np.ones((2, 2, 2, 3), "float32")), padding=[y.shape[0], 2, y.shape[0], y.shape[0]]
        ),
        [["k", 2, 3, "n"], ["m"]], [1, 2, 1], [1, 2, 3],
    ),
    "conv2d bias": (
        lambda b, x, y: b.conv2d(x, b.slice(b.concat([x, x], 0), [0] * 4, [2, x.shape[1], 2, 2]), bias=y),
        [[1, "n", 4, 4], ["m"]], [3, 2], [3, 4],
    ),
    "batch_normalization": (
        lambda b, x, y: b.batch_normalization(x, y, y), [[2, "n", 2], ["m"]], [3, 3], [3, 4]
    ),
    "layer_normalization": (
        lambda b, x, y: b.layer_normalization(x, scale=y, axes=[1]), [[2, "n"], ["m"]], [3, 3], [3, 4]
    ),
    "dequantize_linear": (
        lambda b, x, y: b.dequantize_linear(b.cast(x, "int8"), y, b.cast(y, "int8")), [[2, "n"], [2, "m"]], [6, 3], [6, 4]
    ),
    "gru": (
        lambda b, x, y: b.gru(x, b.expand(y, [1, 6, 2]), b.constant(np.ones((1, 6, 2), "float32")), 1, 2)[0],
        [["k", 2, "n"], [1, 1, "m"]], [1, 2, 2], [2, 2, 2],
    ),
    "sizes": (lambda b, x, y: b.add(b.cast(x, "uint8"), y.shape[0]), [["n"], ["m"]], [3, 255], [3, 256]),
    "sizes of 32 bits": (
        lambda b, x, y: b.add(b.cast(x, "int32"), y.shape[0] * 2**20), [["n"], ["m"]], [3, 2**11 - 1], [3, 2**11]
    ),
    "values of a range": (
        lambda b, x, y: max_unpool(b, x, np.int64([[[5]]]), [y.shape[0]]), [["k", "n", 1], ["m"]], [1, 1, 6], [1, 1, 5]
    ),
}  # fmt: skip
"""Calls of operands x and y of these shapes; for the first sizes they are right, for the second ones refused."""


@pytest.mark.parametrize("name", VIOLATIONS)
def test_sizes_that_an_operation_refuses_after_a_run(context: ow.MLContext, name: str) -> None:
    call, shapes, right, wrong = VIOLATIONS[name]

    def build() -> ow.MLGraph:
        builder = ow.MLGraphBuilder(context)
        operands = [builder.input(k, "float32", shape) for k, shape in zip("xy", shapes, strict=True)]
        result = call(builder, *operands)
        first = result[0] if isinstance(result, (tuple, list)) else result
        return builder.build({"out": first, "y2": builder.neg(operands[1])})

    def feeds(numbers: list[int]) -> dict[str, Any]:
        names = dict.fromkeys(size for shape in shapes for size in shape if isinstance(size, str))
        sizes = dict(zip(names, numbers, strict=True))
        return {
            k: np.ones([sizes.get(size, size) for size in shape], "float32")  # type: ignore[call-overload]
            for k, shape in zip("xy", shapes, strict=True)
        }

    with pytest.raises(ow.ValidationError) as first:
        context.compute(build(), feeds(wrong))
    assert "; the sizes are " in str(first.value)
    graph = build()
    context.compute(graph, feeds(right))
    for _ in range(2):
        with pytest.raises(ow.ValidationError) as after:
            context.compute(graph, feeds(wrong))
        assert str(after.value) == str(first.value)
    with pytest.raises(ow.ValidationError, match="; the sizes are "):
        graph.compute_shapes({k: array.shape for k, array in feeds(wrong).items()})


def test_size_that_is_divided_by_zero(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x, y = builder.input("x", "float32", ["n", 2]), builder.input("y", "float32", ["m"])
    n, m = x.shape[0], y.shape[0]
    graph = builder.build({"z": builder.reshape(x, [n // m, m * 2], label="rows"), "y": builder.neg(y)})
    for rows, columns in ((4, 0), (4, 2), (6, 3), (4, 0)):
        feeds = {"x": np.ones((rows, 2), "float32"), "y": np.ones(columns, "float32")}
        if columns:
            assert context.compute(graph, feeds)["z"].shape == (rows // columns, columns * 2)
            continue
        message = r"reshape 'rows': n // m divides a size by 0; the sizes are n = 4, m = 0"
        with pytest.raises(ow.ValidationError, match=f"compute: {message}"):
            context.compute(graph, feeds)
        with pytest.raises(ow.ValidationError, match=f"compute_shapes: {message}"):
            graph.compute_shapes({name: array.shape for name, array in feeds.items()})


def test_sizes_that_broadcast_share_a_program() -> None:
    context = ow.ml.create_context(device="cpu", drafts=True)
    builder = ow.MLGraphBuilder(context)
    x, y = builder.input("x", "float32", ["n", 2]), builder.input("y", "float32", ["m", 2])
    graph = builder.build({"z": builder.add(x, y)})
    for n, m in ((3, 3), (1, 4), (5, 1), (1, 1), (7, 7)):
        arrays = {"x": np.full((n, 2), 2, "float32"), "y": np.full((m, 2), 3, "float32")}
        assert_array_equal(context.compute(graph, arrays)["z"], np.full((max(n, m), 2), 5))
    assert len(state_of(graph)._open) == 1  # type: ignore[attr-defined]


def test_windows_of_odd_and_even_sizes_have_one_program() -> None:
    context = ow.ml.create_context(drafts=True)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [1, 1, "rows", "columns"])
    options: dict[str, Any] = {"window_dimensions": [2, 2], "strides": [2, 2]}
    graph = builder.build({"max": builder.max_pool2d(x, **options), "mean": builder.average_pool2d(x, **options)})
    for rows, columns in (4, 6), (5, 6), (4, 7), (9, 3):
        image = np.random.default_rng(rows).random((1, 1, rows, columns), np.float32)
        ends = rows // 2, columns // 2
        windows = image[0, 0, : 2 * ends[0], : 2 * ends[1]].reshape(ends[0], 2, ends[1], 2)
        results = context.compute(graph, {"x": image})
        assert_allclose(results["max"][0, 0], windows.max((1, 3)), 1e-6)
        assert_allclose(results["mean"][0, 0], windows.mean((1, 3)), 1e-6)
    assert len(state_of(graph)._open) == 1  # type: ignore[attr-defined]


def test_graph_of_sizes_that_were_not_checked_is_made_when_it_is_needed(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", 4])
    graph = builder.build({"y": builder.softmax(builder.neg(x), 1)})
    for rows in (5, 9):
        context.compute(graph, {"x": np.ones((rows, 4), "float32")})
    assert "float32[9, 4]" in str(state_of(graph).version_for("explain", {"x": [9, 4]}).recorded)
    assert "for n = 9" in graph.explain()
    assert graph.profile(input_shapes={"x": [9, 4]}, repeat=1).steps
    tensors = (
        {"x": context.tensor_from(np.ones((9, 4), "float32"))},
        {"y": context.create_tensor("float32", [9, 4], readable=True)},
    )
    context.dispatch(graph, *tensors)
    assert_allclose(tensors[1]["y"].numpy(), np.full((9, 4), 0.25), rtol=1e-6)
    graph.destroy()
    with pytest.raises(ow.InvalidStateError, match="destroyed"):
        context.dispatch(graph, *tensors)


def test_deferred_graphs_take_sizes_that_were_not_checked() -> None:
    context = ow.ml.create_context(device="cpu", drafts=True, deferred=True)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.input("x", "float32", ["n"]).neg()})
    for size in (3, 5, 3, 5, 5, 5, 5):
        x, y = (
            context.tensor_from(np.arange(size, dtype="float32")),
            context.create_tensor("float32", [size], readable=True),
        )
        for _ in range(3):
            context.dispatch(graph, {"x": x}, {"y": y})
        assert_array_equal(y.numpy(), -np.arange(size, dtype="float32"))


def test_ranges_of_values_hold_for_all_sizes(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    table = builder.constant(np.arange(10, dtype="float32"))
    graph = builder.build({"y": builder.gather(table, builder.input("i", "int32", ["n"]))})
    for size in (2, 3, 5):
        indices = np.arange(size, dtype="int32")
        assert_array_equal(context.compute(graph, {"i": indices})["y"], indices)


@pytest.mark.parametrize("op", ["quantize_linear", "dequantize_linear"])
def test_blocks_of_no_elements(context: ow.MLContext, op: str) -> None:
    builder = ow.MLGraphBuilder(context)
    is_float = op == "quantize_linear"
    x = builder.input("x", "float32" if is_float else "int8", ["n"])
    scale, zeros = builder.input("scale", "float32", ["m"]), builder.input("zeros", "int8", ["m"])
    graph = builder.build({"y": getattr(builder, op)(x, scale, zeros)})
    for n, m in ((0, 0), (6, 3), (0, 2), (4, 4), (0, 0), (3, 1)):
        feeds = {
            "x": np.arange(n, dtype=x.data_type),
            "scale": np.full(m, 0.5, "float32"),
            "zeros": np.full(m, 1, "int8"),
        }
        expected = feeds["x"] / 0.5 + 1 if is_float else (feeds["x"] - 1) * 0.5
        assert_array_equal(context.compute(graph, feeds)["y"], expected)
    for n, m in ((4, 0), (5, 2)):
        feeds = {"x": np.ones(n, x.data_type), "scale": np.ones(m, "float32"), "zeros": np.ones(m, "int8")}
        with pytest.raises(ow.ValidationError, match=rf"must divide those of input, got \[{m}\] and \[{n}\]"):
            context.compute(graph, feeds)


@pytest.mark.parametrize("axes", [1, 2])
def test_default_that_checks_sizes_is_checked_in_each_run(context: ow.MLContext, axes: int) -> None:
    """One element and a window of one give a result that does not depend on the stride."""
    builder = ow.MLGraphBuilder(context)
    shape = [1] * (axes + 2)
    x, taps = builder.input("x", "float32", [*shape[1:], "n"]), np.ones(shape, "float32")
    y = builder.reshape(builder.slice(x, [0] * len(shape), shape), shape)
    strides = [x.shape[-1]] * axes
    op = conv_transpose if axes == 1 else Operations.conv_transpose2d
    graph = builder.build({"y": op(builder, y, taps, strides=strides, output_padding=[1] * axes)})
    assert context.compute(graph, {"x": np.ones((*shape[1:], 3), "float32")})["y"].shape == (1, 1, *[2] * axes)
    with pytest.raises(ow.ValidationError, match="output_padding must be less than strides, "):
        context.compute(graph, {"x": np.ones((*shape[1:], 1), "float32")})


def test_selection_among_no_boxes(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    boxes = builder.input("boxes", "float32", ["batches", "count", 4])
    scores = builder.input("scores", "float32", ["batches", "classes", "count"])
    selected, number = non_max_suppression(builder, boxes, scores, 2)
    graph = builder.build({"selected": selected, "number": number})
    for batches, classes, count in ((1, 2, 0), (1, 2, 3), (0, 1, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0)):
        feeds = {
            "boxes": np.tile(np.float32([0, 0, 1, 1]), (batches, count, 1)),
            "scores": np.ones((batches, classes, count), "float32"),
        }
        results = context.compute(graph, feeds)
        groups = batches * classes if count else 0
        assert results["selected"].shape == (batches * classes * min(count, 2), 3)
        assert results["number"].tolist() == [groups]


def test_graph_whose_operations_need_long_formulas_is_compiled_for_numbers() -> None:
    context = ow.ml.create_context(device="cpu", drafts=True)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.relu(builder.input("x", "float32", ["n"]))})
    state: Any = state_of(graph)
    compile_one = state._compile

    def compile_numbers(inner: Any) -> Any:
        if inner.has_names:
            raise LongFormulaError("a formula of sizes must have at most 4096 names and calls, got 4115")
        return compile_one(inner)

    state._compile = compile_numbers
    for n in (2, 3):
        assert context.compute(graph, {"x": np.full(n, -1, "float32")})["y"].tolist() == [0] * n
    assert "4096 names and calls" in state.refusal
