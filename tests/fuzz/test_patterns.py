"""The judge of the campaigns of patterns: it finds planted faults, and accepts any rounding of float32."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opweave as ow
from fuzz import patterns
from fuzz.__main__ import campaign
from fuzz.conditioning import UNITS, Engine, Evaluation, Judge
from fuzz.frame import reported, run
from fuzz.recipe import Recipe, Step, reduced
from fuzz.reduction import reduce_findings
from opweave.core.graph import Graph, Node, Operand

Array = np.ndarray
EXACT = Engine()


def recipe_of(make: Callable[[ow.MLGraphBuilder, Any], Any], x: Array) -> Recipe:
    """The recipe of a graph with one input."""
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", backend="reference"))
    made = make(builder, builder.input("x", x.dtype.name, x.shape))
    return Recipe.of(Graph.reaching({"y": made}), {"x": x}, fuse=True)


def on_reference(recipe: Recipe) -> dict[str, Array]:
    context = ow.ml.create_context(device="reference", backend="reference")
    builder = ow.MLGraphBuilder(context)
    graph = builder.build(recipe.build(builder), fuse=False)
    return context.compute(graph, {name: recipe.feeds[name] for name in graph.inputs})


def verdicts(recipe: Recipe, results: dict[str, Array], engine: Engine = EXACT) -> list[str]:
    judge = Judge(patterns.on_reference(recipe), recipe.feeds, engine)
    return [verdict.text for verdict in judge.verdicts(results)]


@cache
def case(number: int) -> Recipe:
    return patterns.made_case(random.Random(f"test {number}"))[0]


def cases(count: int) -> Iterator[tuple[int, Recipe]]:
    for number in range(count):
        yield number, case(number)


# Faults --------------------------------------------------------------------------------------------------------------

Fault = Callable[[Recipe], Recipe]


def without(recipe: Recipe, step: Step, ref: str) -> Recipe:
    """`ref` in place of the result of a step."""
    names = {step.results[0]: ref}
    steps = tuple(other.renamed(names) for other in recipe.steps if other is not step)
    outputs = {name: names.get(output, output) for name, output in recipe.outputs.items()}
    return replace(recipe, steps=steps, outputs=outputs)


def reciprocals_dropped(recipe: Recipe) -> Recipe:
    for step in recipe.steps:
        if step.op == "reciprocal":
            return without(recipe, step, step.inputs["input"])
    return recipe


def casts_dropped(recipe: Recipe) -> Recipe:
    """The operand of a cast to float16 and back, instead of what float16 keeps of it."""
    results = {step.results[0]: step for step in recipe.steps}
    for step in recipe.steps:
        first = results.get(step.inputs.get("input")) if step.op == "cast" else None
        if first is not None and first.op == "cast" and step.attributes["data_type"] == "float32":
            source = first.inputs["input"]
            if first.attributes["data_type"] == "float16" and recipe.descs()[source][0] == "float32":
                identity = replace(step, op="identity", inputs={"input": source}, attributes={})
                steps = tuple(identity if other is step else other for other in recipe.steps)
                return replace(recipe, steps=steps).cleaned()
    return recipe


def _constants_changed(recipe: Recipe, op: str, parameter: str, change: Callable[[Array], Array]) -> Recipe:
    names = {step.inputs.get(parameter) for step in recipe.steps if step.op == op}
    constants = {name: change(array) if name in names else array for name, array in recipe.constants.items()}
    return replace(recipe, constants=constants)


def zero_points_made_even(recipe: Recipe) -> Recipe:
    return _constants_changed(recipe, "dequantize_linear", "zero_point", lambda zero: zero - zero % 2)


def scales_along_another_axis(recipe: Recipe) -> Recipe:
    return _constants_changed(
        recipe, "dequantize_linear", "scale", lambda scale: np.roll(scale, 1) if scale.size > 1 else scale
    )


def biases_truncated(recipe: Recipe) -> Recipe:
    for op, parameter in (
        ("gemm", "c"),
        ("conv2d", "bias"),
        ("conv_transpose2d", "bias"),
        ("layer_normalization", "bias"),
    ):
        recipe = _constants_changed(recipe, op, parameter, np.trunc)
    return recipe


def attributes_rounded(recipe: Recipe) -> Recipe:
    """Fractional attributes, as an integer would hold them."""
    steps = tuple(
        replace(
            step, attributes={k: float(round(v)) if k in ("alpha", "beta") else v for k, v in step.attributes.items()}
        )
        for step in recipe.steps
    )
    return replace(recipe, steps=steps)


def operands_swapped(recipe: Recipe) -> Recipe:
    steps = tuple(
        replace(step, inputs={"a": step.inputs["b"], "b": step.inputs["a"]}) if step.op in ("sub", "div") else step
        for step in recipe.steps
    )
    return replace(recipe, steps=steps)


FAULTS: list[Fault] = [
    reciprocals_dropped,
    casts_dropped,
    zero_points_made_even,
    scales_along_another_axis,
    biases_truncated,
    attributes_rounded,
    operands_swapped,
]


def is_equal(arrays: dict[str, Array], others: dict[str, Array]) -> bool:
    return all(np.array_equal(array, others[name], equal_nan=True) for name, array in arrays.items())


def is_changed(right: Array, got: Array, part: float) -> bool:
    """Whether floats differ by this part of the largest one."""
    if right.dtype.kind != "f" or not np.isfinite(right).all():
        return False
    return not np.allclose(got, right, rtol=part, atol=part * (1e-6 + float(abs(right).max())))


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_judge_finds_planted_faults_in_campaign_graphs(fault: Fault) -> None:
    """Faults that change a well-conditioned result by more than one percent are found; few results are not judged."""
    planted = seen = 0
    for _, recipe in cases(250):
        if planted == 30:
            break
        wrong = fault(recipe)
        if str(wrong) == str(recipe) and is_equal(wrong.constants, recipe.constants):
            continue
        right, got = on_reference(recipe), on_reference(wrong)
        if any(is_changed(array, got[name], 3e-5 if fault is casts_dropped else 1e-2) for name, array in right.items()):
            planted += 1
            seen += bool(verdicts(recipe, got))
    assert planted >= 3
    assert seen >= 0.9 * planted, f"{seen} of {planted}"


ROW = np.float32([[0.3, -1.7, 2.6, 0.9]])
SQUARE = (np.arange(16, dtype="float32").reshape(4, 4) - 5) / 7


def dequantised(b: ow.MLGraphBuilder, scale: Array, zero: Array) -> Any:
    numbers = np.arange(16, dtype="int8").reshape(4, 4) * 7 - 60
    return b.dequantize_linear(*map(b.constant, (numbers.astype("int8"), scale, zero)))


SCALES = np.float32([[0.1, 0.13, 0.09, 0.11]])
ZEROS = np.zeros((1, 4), "int8")
ONE = np.ones((1, 1), "float32")


@pytest.mark.parametrize(
    ("make", "wrong", "x"),
    [
        pytest.param(
            lambda b, x: b.reciprocal(b.add(b.abs(b.matmul(x, SQUARE)), 0.5)),
            lambda b, x: b.add(b.abs(b.matmul(x, SQUARE)), 0.5),
            ROW,
            id="reciprocal dropped",
        ),
        pytest.param(
            lambda b, x: b.cast(b.cast(x, "float16"), "float32"), lambda b, x: b.identity(x), ROW, id="casts dropped"
        ),
        pytest.param(
            lambda b, x: b.matmul(b.cast(x, "float16"), np.ones((2, 1), "float16")),
            lambda b, x: b.cast(b.matmul(b.cast(x, "float32"), np.ones((2, 1), "float32")), "float16"),
            np.int32([[2049, -2048]]),
            id="cast of integers dropped before a product of float16",
        ),
        pytest.param(
            lambda b, x: b.matmul(x, dequantised(b, SCALES, ZEROS)),
            lambda b, x: b.matmul(x, dequantised(b, SCALES.T.copy(), ZEROS.T.copy())),
            ROW,
            id="scale along the other axis",
        ),
        pytest.param(
            lambda b, x: b.gemm(x, SQUARE, c=b.constant(ROW[0])),
            lambda b, x: b.gemm(x, SQUARE, c=b.constant(np.trunc(ROW[0]))),
            ROW,
            id="bias truncated",
        ),
        pytest.param(
            lambda b, x: b.leaky_relu(x, alpha=0.1),
            lambda b, x: b.leaky_relu(x, alpha=0.01),
            ROW,
            id="default attribute",
        ),
        pytest.param(
            lambda b, x: b.quantize_linear(x, b.constant(2 * ONE), b.constant(np.full((1, 1), 1, "int8"))),
            lambda b, x: b.cast(b.round_even(b.add(b.mul(x, 0.5), 1.0)), "int8"),
            np.float32([[1, 3, 5, 7]]),
            id="zero point added before a tie is rounded",
        ),
        pytest.param(
            lambda b, x: b.sub(b.add(x, 1.0), 1.0),
            lambda b, x: b.mul(x, 1.00001),
            ROW,
            id="relative error of 1e-5",
        ),
        pytest.param(
            lambda b, x: b.layer_normalization(x, axes=[1], epsilon=0.1),
            lambda b, x: b.layer_normalization(x, axes=[1], epsilon=0.1001),
            ROW,
            id="epsilon",
        ),
        pytest.param(
            lambda b, x: b.max(b.where(np.uint8([[1, 0, 1, 0]]), b.softmax(x, 1), 0.0), 0.0),
            lambda b, x: b.softmax(x, 1),
            ROW,
            id="choice dropped",
        ),
        pytest.param(
            lambda b, x: b.where(b.greater(x, 0.9), x, 0.0),
            lambda b, x: b.where(b.greater_or_equal(x, 0.9), x, 0.0),
            ROW,
            id="comparison of exact equals",
        ),
    ],
)
def test_judge_finds_a_fault(
    make: Callable[[ow.MLGraphBuilder, Any], Any], wrong: Callable[[ow.MLGraphBuilder, Any], Any], x: Array
) -> None:
    recipe = recipe_of(make, x)
    assert not verdicts(recipe, on_reference(recipe))
    assert verdicts(recipe, on_reference(recipe_of(wrong, x)))


# Rounding ------------------------------------------------------------------------------------------------------------


class Rounded(Evaluation):
    """An engine of the declared data types, whose operations are off by up to two units in the last place."""

    def __init__(self, feeds: dict[str, Array], number: int, is_half_rounded: bool) -> None:
        super().__init__(feeds)
        self._numbers = np.random.default_rng(number)
        self._is_half_rounded = is_half_rounded

    def _finished(self, node: Node, output: Operand, arguments: dict[str, Any], result: Array, rule: Any) -> Array:
        result = super()._finished(node, output, arguments, result, rule)
        if output.data_type == "float32" or (output.data_type == "float16" and self._is_half_rounded):
            return result.astype(output.data_type).astype(np.float64)
        return result

    def _rounded(self, node: Node, output: Operand, result: Array, size: Any) -> Array:
        if output in self.exact:
            return result
        return result * (1 + 2 * UNITS[output.data_type] * self._numbers.uniform(-1, 1, result.shape))


def simulated(recipe: Recipe, number: int) -> dict[str, Array]:
    graph = patterns.on_reference(recipe)
    values = Rounded(recipe.feeds, number, number % 2 == 0)
    with np.errstate(all="ignore"):
        return {name: values(operand).astype(operand.data_type) for name, operand in graph.outputs.items()}


@pytest.mark.long
def test_judge_accepts_any_rounding() -> None:
    wrong = {number: texts for number, recipe in cases(250) if (texts := verdicts(recipe, simulated(recipe, number)))}
    assert not wrong


@pytest.mark.parametrize(
    ("make", "got"),
    [
        pytest.param(lambda b, x: b.sub(b.mul(x, 1e4 / 3), b.mul(x, 1e4 / 3 + 1e-3)), -0.0005, id="cancellation"),
        pytest.param(lambda b, x: b.floor(b.mul(b.div(x, 3.0), 3.0)), 0.0, id="jump"),
        pytest.param(
            lambda b, x: b.arg_max(b.div(x, 3.0), 1, output_data_type="int32"), 1, id="index of nearly equal ones"
        ),
    ],
)
def test_judge_accepts_rounding_differences(make: Callable[[ow.MLGraphBuilder, Any], Any], got: float) -> None:
    recipe = recipe_of(make, np.float32([[1, 1]]))
    results = on_reference(recipe)
    assert not verdicts(recipe, {"y": np.full_like(results["y"], got)})


def test_judge_accepts_unrounded_float16_results_except_of_casts() -> None:
    x = np.float16([[1.001, 2.003]])
    recipe = recipe_of(lambda b, x: b.cast(b.mul(b.mul(x, 1.1), 3.3), "float32"), x)
    factors = np.float16([1.1, 3.3]).astype("float64")
    unrounded = x.astype("float64") * factors[0] * factors[1]
    assert not verdicts(recipe, {"y": unrounded.astype("float32")})
    assert not verdicts(recipe, on_reference(recipe))
    assert verdicts(recipe, {"y": (unrounded * 1.02).astype("float32")})


def normalised(x: Array) -> Array:
    """A local response normalisation over three channels, in float64."""
    near = np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0), (1, 1), (0, 0), (0, 0)]), 3, axis=1)
    result: Array = x / (0.5 + np.square(near).sum(-1) / 3) ** 0.75
    return result


def test_judge_accepts_float32_intermediates_of_float16() -> None:
    def build(b: ow.MLGraphBuilder, x: Any) -> Any:
        for _ in range(2):
            x = ow.composites.local_response_normalization(b, x, 3, alpha=1.0, beta=0.75, bias=0.5)
        return x

    for seed in (0, 29, 87):
        x = np.random.default_rng(seed).uniform(-3, 3, (1, 4, 5, 5)).astype("float16")
        recipe, y = recipe_of(build, x), normalised(normalised(x.astype("float64")))
        assert not verdicts(recipe, {"y": y.astype("float16")})
        assert verdicts(recipe, {"y": (y * 1.02).astype("float16")})


def test_judge_accepts_operands_rounded_to_bytes_if_allowed() -> None:
    x = np.float32([[0.31, -1, 0.77, 0.4]])
    recipe = recipe_of(lambda b, x: b.matmul(x, dequantised(b, SCALES, ZEROS)), x)
    rounded = replace(recipe, feeds={"x": np.round(x * 127).astype("float32") / 127})
    assert verdicts(recipe, on_reference(rounded))
    assert not verdicts(recipe, on_reference(rounded), Engine(rounds_to_bytes=True))


# Recipes -------------------------------------------------------------------------------------------------------------


def test_recipe_builds_the_graph_that_it_was_made_of() -> None:
    for _, recipe in cases(20):
        again = Recipe.of(patterns.on_reference(recipe), recipe.feeds, recipe.fuse)
        assert str(again) == str(recipe)


def test_reduced_leaves_the_operation_that_is_at_fault() -> None:
    def make(b: ow.MLGraphBuilder, x: Any) -> Any:
        y = b.softmax(b.matmul(b.relu(x), SQUARE), 1)
        return b.transpose(b.add(b.leaky_relu(y, alpha=0.1), b.exp(y)))

    recipe = recipe_of(make, ROW)
    assert reduced(recipe, patterns.values_of, lambda r: "leaky_relu" in r.kind().split()).kind() == "leaky_relu"


def test_reduced_stops_at_failing_operation() -> None:
    recipe = recipe_of(lambda b, x: b.mul(*b.split(b.relu(x), 2, axis=1)), ROW)
    assert reduced(recipe, patterns.values_of, lambda r: "split" in r.kind().split()).kind() == "split"


@pytest.mark.long
def test_reduce_findings_counts_kinds(tmp_path: Path) -> None:
    """The engine of `pattern-faults` computes the sigmoid of 1.01 times its operand."""
    chosen = campaign("pattern-faults")
    result = run(chosen, range(60), seed=5, out=tmp_path, most=3)
    assert result.findings
    assert all("wanted" in text for text in result.findings.values())
    numbers = reported(chosen, 5, tmp_path)
    assert numbers == sorted(result.findings)
    text = (tmp_path / f"pattern-faults-5-{numbers[0]}.txt").read_text()
    assert "sigmoid(input=" in text
    assert "x0 = input" in text
    kinds = reduce_findings(chosen, numbers, seed=5, out=tmp_path)
    assert list(kinds) == ["wrong: sigmoid"]
    assert (tmp_path / "pattern-faults-kinds.md").read_text().startswith(f"## wrong: sigmoid: {len(numbers)} (")
