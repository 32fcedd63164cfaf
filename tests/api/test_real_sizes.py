"""Real numbers that are computed from sizes: data, conditions, saved models."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import opweave as ow
from opweave.compile import driver
from opweave.core.guards import Guards, explore
from opweave.core.sizes import Size

N, M = Size("n"), Size("m")


@pytest.fixture(params=["reference", "cpu"])
def context(request: pytest.FixtureRequest) -> ow.MLContext:
    return ow.ml.create_context(device=request.param, drafts=True)


@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_real_numbers_of_sizes_are_data(context: ow.MLContext, data_type: Any) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", data_type, ["n", 4])
    n = x.shape[0]
    formulas: dict[str, Any] = {
        "reciprocal": lambda n: 1 / n,
        "fraction": lambda n: (n + 1) / 3 - n * 0.25,
        "root": lambda n: n**-0.5 + 2.5,
        "numpy": lambda n: np.sqrt(n) * np.log(n + 1) / np.float32(3),
        "rounded": lambda n: n // 1.5 + n % 2.5,
        "power": lambda n: 1.5**n - abs(-(n / 3)),
        "reflected": lambda n: 7 / (1.5 - n / 3) + 2**-n // 3 + 3 % (n + 0.5),
    }
    graph = builder.build({name: (x * formula(n)).relu() for name, formula in formulas.items()})
    for size in (1, 3, 5, 12):
        array = np.random.default_rng(size).random((size, 4)).astype(data_type)
        results = context.compute(graph, {"x": array})
        for name, formula in formulas.items():
            witness = np.maximum(array * np.array(formula(size), data_type), 0)
            assert_array_equal(results[name], witness, err_msg=name)


def test_real_numbers_of_sizes_run_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(driver, "_compile_for", count_calls(driver._compile_for, compiled))
    context = ow.ml.create_context(device="cpu", drafts=True)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", "m"])
    attention = builder.softmax(builder.matmul(x, x.transpose()) / x.shape[1] ** 0.5, 1)
    graph = builder.build({"y": attention})
    for n, m in ((2, 3), (4, 5), (7, 16), (2, 9)):
        array = np.random.default_rng(n).random((n, m), "float32")
        scores = np.exp(array @ array.T / np.sqrt(m))
        assert_allclose(
            context.compute(graph, {"x": array})["y"], scores / scores.sum(axis=1, keepdims=True), rtol=1e-5
        )
    assert len(compiled) == 1


def count_calls(function: Any, calls: list[Any]) -> Any:
    """The function, which notes its calls."""

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("formula", "sizes", "message"),
    [
        (lambda n: 1 / (n - 3), 3, r"1 / \(n - 3\) = 1 / 0: (integer |float )?division by zero"),
        (lambda n: (n - 5) ** 0.5, 3, r"\(n - 5\) \*\* 0.5 = \(-2\) \*\* 0.5 is no real number"),
        (lambda n: (n - 5).sqrt(), 3, r"sqrt\(n - 5\) = sqrt\(-2\): .*(domain|nonnegative).*"),
        (lambda n: (14.5 - n) ** (n * 100), 3, r".* \*\* \(100\*n\) = .*: Numerical result out of range"),
        (
            lambda n: 5 ** ((14 - n) * 10**9),
            3,
            r".* = 5 \*\* 11000000000: a power of integers must be less than 2\*\*63",
        ),
        (lambda n: (n - 6) ** ((14 - n) * 4), 3, r".* = \(-3\) \*\* 44: a power of integers must be less than 2\*\*63"),
        (lambda n: 6 // (n - 3), 3, r"6 // \(n - 3\) divides a size by 0"),
    ],
)
def test_real_numbers_that_do_not_exist(context: ow.MLContext, formula: Any, sizes: int, message: str) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n"])
    graph = builder.build({"y": builder.mul(x, formula(x.shape[0]), label="m")})
    message = f"^compute: mul 'm': {message}; the sizes are n = {sizes}$"
    for _ in range(2):  # before and after a run
        with pytest.raises(ow.ValidationError, match=message):
            context.compute(graph, {"x": np.ones(sizes, "float32")})
        with pytest.raises(ow.ValidationError, match=message.replace("compute", "compute_shapes")):
            graph.compute_shapes({"x": [sizes]})
        assert context.compute(graph, {"x": np.ones(14, "float32")})["y"].shape == (14,)


def test_real_number_of_a_size_for_an_integer(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "int32", ["n"])
    with pytest.raises(ow.ValidationError, match=r"mul: sizes are known only when the graph runs, .* n as a number"):
        x * (x.shape[0] / 2)
    guards = Guards({"n": 4})
    with guards.deciding():
        assert (x * (x.shape[0] / 2)).node is not None
        with pytest.raises(ow.ValidationError, match=r"n / 3 = 1\.33.* is not a value of int32"):
            x * (x.shape[0] / 3)
    assert list(guards.lines) == [Size("n")]


def test_real_numbers_in_conditions_are_guards() -> None:
    guards = Guards({"n": 5})
    with guards.deciding():
        assert N / 2 > 2
        assert N / 2 < 2.75
        assert np.float32(2) <= N**0.5
        assert N / 2 != 2
        assert 0.5 * N <= 2.5
        assert not guards.lines
    assert [n for n in range(1, 9) if guards.hold({"n": n})] == [5]
    assert explore(lambda: 1 if N / 2 > 3 else 2) == [1, 2]
    with pytest.raises(ow.ValidationError, match=r"whether .* is less than 0"):
        bool(N / 2 > 3)
    assert N / 2 == N / 2
    assert N / 2 != N / 3


def test_real_numbers_of_sizes_with_numpy() -> None:
    array = np.float32([1, 2])
    guards = Guards({"n": 4})
    with guards.deciding():
        assert [str(value) for value in (np.float32(2) * N, np.sqrt(N), np.log(N / 2), N / np.float64(2))] == [
            "n * 2.0",
            "sqrt(n)",
            "log(n / 2)",
            "n / 2.0",
        ]
        assert not guards.lines
        for result in (array * N / 2, N / 2 * array, array * (N / 2)):
            assert result.tolist() == [2, 4]
            assert result.dtype == "float32"
        assert "array * N / 2" in guards.lines[N]


def test_real_numbers_are_asked_for_with_the_line() -> None:
    guards = Guards({"n": 5, "m": 4})
    with guards.deciding():
        assert float(N / 2) == 2.5
        assert int(M / 3) == 1
        assert round(M / 3, 1) == 1.3
        assert f"{N / 3:.2f}" == "1.67"
    assert "float(N / 2) == 2.5" in guards.lines[N]
    assert "int(M / 3) == 1" in guards.lines[M]
    assert not guards.hold({"n": 6, "m": 4})


def test_saved_model_computes_real_numbers_of_sizes(tmp_path: Path) -> None:
    context = ow.ml.create_context(device="reference", drafts=True)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", "m"])
    n, m = Size("n"), Size("m")
    real = (n + 1).sqrt() / m.log() - n // 1.5 + m % 2.5 + abs(-(n / 2)) + 1.5**m
    graph = builder.build({"y": x * real, "z": x + n / m})
    ow.onnx.save(graph, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for shape in ((2, 3), (5, 2)):
        array = np.random.default_rng(1).random(shape, "float32")
        witnesses = context.compute(graph, {"x": array})
        for result, witness in zip(session.run(None, {"x": array}), witnesses.values(), strict=True):
            assert_allclose(result, witness, rtol=1e-6)
    with pytest.raises(
        ow.NotSupportedError, match=r"mul: b must not be computed from sizes with names in JavaScript, got m, n; "
    ):
        ow.js.save(graph, tmp_path / "model.js")
