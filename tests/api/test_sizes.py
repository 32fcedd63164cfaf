"""Dimensions with names: formulas of sizes, what `build` refuses, and what `dispatch` refuses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import opweave as ow
from opweave.core.sizes import Guards, Size, explore, interval

N, M = Size("n"), Size("m")


@pytest.fixture(params=["reference", "cpu"])
def context(request: pytest.FixtureRequest) -> ow.MLContext:
    return ow.ml.create_context(device=request.param, drafts=True)


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (2 * N - N, "n"),
        (N * 0, "0"),
        (N * M - M * N, "0"),
        ((2 * N + 4) // 2, "n + 2"),
        ((N * M + 3) // M, "(3 // m) + n"),
        (-(-N // 2), "-((-n) // 2)"),
        ((N + 1) % 4, "-4*((n + 1) // 4) + n + 1"),
        (Size("batch size") * 2, "2*'batch size'"),
    ],
)
def test_size_has_a_normal_form(formula: object, text: str) -> None:
    assert str(formula) == text


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
