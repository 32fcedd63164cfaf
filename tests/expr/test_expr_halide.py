"""Expressions compiled with Halide, against those evaluated with NumPy."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import random
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expr_programs import Case, program_of, programs
from hypothesis import Phase, given, settings

import opweave.expr as ex
from opweave.composites import grid_sample
from opweave.core.dtypes import ANY
from opweave.core.graph import Desc
from opweave.expr import Traced, ir, trace
from opweave.expr.array import apply
from opweave.expr.evaluate import evaluate
from opweave.expr.fingerprint import fingerprint
from opweave.kernels.expression import program_of as formula_of
from opweave.support.errors import OperationError, ValidationError

pytest.importorskip("halide", reason="needs the extra halide")
pytest.importorskip("llvmlite", reason="needs the extra halide")

from opweave.expr.halide import compile, compiler, kernel as kernels, mathematics, objects, set_threads, threads
from opweave.expr.halide.image import Code, load


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("OPWEAVE_CACHE", str(tmp_path_factory.mktemp("objects")))
    yield
    patch.undo()


def run_program(program: ir.Formula, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    outputs = [np.full(o.desc.shape, 99, o.desc.data_type) for o in program.outputs]
    compile(program).bind(arrays, outputs)()
    return outputs


def run_halide(function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    return run_program(program_of(function, *arrays), arrays)


def both(function: Callable[..., Any], *arrays: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    program = program_of(function, *arrays)
    expected = [np.zeros(o.desc.shape, o.desc.data_type) for o in program.outputs]
    evaluate(program, arrays, expected)
    return list(zip(run_program(program, arrays), expected, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# Programs made at random

SHAPES = [(), (1,), (5,), (3, 1), (1, 4), (7, 3), (2, 1, 17), (2, 3, 40), (1, 130), (2, 70, 3), (3, 2, 5, 4)]


class Maker:
    """Expressions made at random, of whatever there is."""

    def __init__(self, seed: int, data_type: str) -> None:
        self.random, self.data_type = random.Random(seed), data_type

    def array(self, inputs: Sequence[Traced], depth: int) -> Traced:
        if depth == 0:
            return self.random.choice(inputs)
        kinds = [
            self.binary,
            self.binary,
            self.unary,
            self.reduction,
            self.indexed,
            self.shifted,
            self.gathered,
            self.kept,
        ]
        return self.random.choice(kinds)(inputs, depth - 1)

    def binary(self, inputs: Sequence[Traced], depth: int) -> Traced:
        a, b = self.array(inputs, depth), self.array(inputs, 0)
        names = (
            ["add", "sub", "mul", "max", "min"]
            if self.data_type[0] == "f"
            else ["add", "sub", "mul", "max", "div", "mod", "floor_div"]
        )
        name = self.random.choice(names)
        chooses = self.random.random() < 0.3
        try:
            return ex.where(a > b, a, b * 2) if chooses else apply(name, a, b)
        except ValidationError:  # the shapes do not broadcast
            return apply(name, a, 3)

    def unary(self, inputs: Sequence[Traced], depth: int) -> Traced:
        return apply(
            self.random.choice(["abs", "neg", "sign"] if self.data_type != "uint8" else ["bit_xor"]),
            self.array(inputs, depth),
            *([] if self.data_type != "uint8" else [3]),
        )

    def reduction(self, inputs: Sequence[Traced], depth: int) -> Traced:
        a = self.array(inputs, depth)
        if not a.rank:
            return a + 1
        name = self.random.choice(["reduce_sum", "reduce_max", "reduce_min", "reduce_sum"])
        axes = self.random.sample(range(a.rank), self.random.randint(1, a.rank))
        if self.random.random() < 0.25:
            chosen = ex.arg_max if self.random.random() < 0.5 else ex.arg_min
            return ex.cast(chosen(a, axes[0], keep_dimensions=True), self.data_type)  # type: ignore[arg-type]
        result: Traced = getattr(ex, name)(a, axes, keep_dimensions=self.random.random() < 0.7)
        return a - result if self.random.random() < 0.5 and result.rank == a.rank else result

    def indexed(self, inputs: Sequence[Traced], depth: int) -> Traced:
        a = self.array(inputs, depth)
        if a.rank < 2:
            return a * 2
        order = self.random.sample(range(a.rank), a.rank)
        steps = [self.random.choice([1, 1, 2]) if a.shape[k] > 1 else 1 for k in order]
        shape = [-(-a.shape[k] // step) for k, step in zip(order, steps, strict=True)]

        def element(*p: Traced) -> Traced:
            where = dict(zip(order, (q * step for q, step in zip(p, steps, strict=True)), strict=True))
            return a[tuple(where[k] for k in range(a.rank))]

        return ex.compute(shape, element)

    def shifted(self, inputs: Sequence[Traced], depth: int) -> Traced:
        a = self.array(inputs, depth)
        offset = self.random.randint(-2, 2)
        kind = self.random.choice(["clamped", "padded", "sum", "mod"])
        if not a.rank:
            return a
        if kind == "sum" and self.data_type != "float16":
            return ex.compute(
                a.shape,
                lambda *p: ex.sum_over(self.random.choice([3, 40]), lambda r: a.clamped[(*p[:-1], p[-1] + r - 1)]),
            )
        if kind == "mod":
            return ex.compute(a.shape, lambda *p: a[(*p[:-1], (p[-1] * 3 + 1) % a.shape[-1])])
        chosen = a.clamped if kind == "clamped" else a.padded(2)
        return ex.compute(a.shape, lambda *p: chosen[(*(q + offset for q in p[:-1]), p[-1] - offset)])

    def gathered(self, inputs: Sequence[Traced], depth: int) -> Traced:
        a, b = self.array(inputs, depth), inputs[0]
        if not a.rank:
            return a
        return ex.compute(b.shape, lambda *p: a.clamped[(*(0 for _ in a.shape[:-1]), ex.cast(b[p], "int32"))])

    def kept(self, inputs: Sequence[Traced], depth: int) -> Traced:
        return ex.store(self.array(inputs, depth))


def close(actual: np.ndarray, expected: np.ndarray, ulps: float) -> bool:
    if actual.dtype.kind != "f":
        return bool((actual == expected).all())
    with np.errstate(all="ignore"):
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        scale = np.nanmax(np.abs(b), initial=1.0, where=np.isfinite(b))
        error = np.abs(a - b) <= ulps * np.finfo(actual.dtype).eps * max(float(scale), 1.0)
    return bool((error | (a == b) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_agree_with_numpy(seed: int) -> None:
    data_type = ["float32", "int32", "uint8", "float16", "float32"][seed % 5]
    maker, rng = Maker(seed, data_type), np.random.default_rng(seed)
    arrays = [rng.integers(0, 9, maker.random.choice(SHAPES)).astype(data_type) for _ in range(2)]

    def function(*inputs: Traced) -> tuple[Traced, ...]:
        return tuple(maker.array(inputs, maker.random.randint(1, 4)) for _ in range(3))

    for k, (actual, expected) in enumerate(both(function, *arrays)):
        assert close(actual, expected, 32), f"output {k}\n{actual}\n{expected}"


@pytest.mark.long
@settings(
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],  # making a failure smaller compiles for minutes
)
@given(programs())
def test_programs_agree_with_numpy(case: Case) -> None:
    program = case.program()
    expected = [np.zeros(o.desc.shape, o.desc.data_type) for o in program.outputs]
    actual = [np.full(o.desc.shape, 99, o.desc.data_type) for o in program.outputs]
    evaluate(program, case.arrays, expected)
    compile(program).bind(case.arrays, actual)()
    for a, e in zip(actual, expected, strict=True):
        if case.exact or a.dtype.kind != "f":
            assert np.array_equal(a, e, equal_nan=a.dtype.kind == "f"), str(program)
        else:
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(a.astype(np.float64), e.astype(np.float64), rtol=1e-3, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Functions


def special(data_type: str) -> np.ndarray:
    """Numbers at which functions go wrong."""
    dtype = np.dtype(data_type)
    if dtype.kind != "f":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        wanted = [low, low + 1, high, high - 1, -7, -2, -1, 0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 63, 64]
        return np.array([v for v in wanted if low <= v <= high], dtype)
    whole = [*(2.0**k for k in (7, 8, 15, 16, 31, 32, 63, 64)), 65504, 65519.9, 65520, 255.5, 3e38, 1e-7, 1e-40, 1e-45]
    values = [0, 0.5, 1, 1.5, 2.5, 127.5, 88.8, 104, *whole, math.inf, math.nan]
    with np.errstate(over="ignore"):
        return np.array([*values, *(-v for v in values)]).astype(dtype)


@pytest.mark.long
@pytest.mark.parametrize("data_type", ANY)
def test_functions_at_special_values(data_type: str) -> None:
    values = special(data_type)
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))
    names = [name for name, function in ir.FUNCTIONS.items() if data_type in function.types and name != "where"]
    targets = [t for t in ANY if t != data_type]

    def function(x: Traced, y: Traced) -> tuple[Traced, ...]:
        calls = [apply(name, *(x, y)[: ir.FUNCTIONS[name].arity]) for name in names]
        less, same = x < y, x == y
        logic = [less & same, less | same, less ^ same, ~less, less == same, less <= same, ex.where(less, x, y)]
        return (*calls, *(ex.cast(x, target) for target in targets), *logic, ex.cast(less, data_type))  # type: ignore[arg-type]

    labels = [*names, *targets, *["logic"] * 8]
    for label, (actual, expected) in zip(labels, both(function, a, b), strict=True):
        if actual.dtype.kind == "f":
            with np.errstate(all="ignore"):
                ulps = errors(actual.astype(np.float32), expected.astype(np.float64), actual.dtype)
            assert ulps.max() <= 4, (label, a[ulps.argmax()], b[ulps.argmax()])
        else:
            wrong = np.flatnonzero(actual != expected)
            assert not len(wrong), (label, [(a[k], b[k], actual[k], expected[k]) for k in wrong[:5]])


def errors(actual: np.ndarray, exact: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """The difference in units in the last place; 0 where both are NaN, or the same infinity."""
    limits = np.finfo(dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        unit = np.spacing(np.minimum(np.abs(rounded), limits.max)).astype(np.float64)
        unit = np.maximum(unit, float(limits.smallest_subnormal))
        difference = np.abs(actual.astype(np.float64) - exact) / unit
    same = (actual == rounded.astype(actual.dtype)) | (np.isnan(actual) & np.isnan(exact))
    difference[same & ~np.isfinite(rounded)] = 0
    return np.where(np.isnan(difference), math.inf, difference)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **{name: getattr(np, name) for name in ("exp", "log", "sin", "cos", "tan", "tanh")},
    "erf": _erf,
    "sigmoid": _sigmoid,
}


def assert_accurate(step: int) -> None:
    """Every function keeps its bound on each `step`-th of all float32."""
    x = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    results = run_halide(lambda x: tuple(getattr(ex, name)(x) for name in EXACT), x)
    with np.errstate(all="ignore"):
        for (name, exact), result in zip(EXACT.items(), results, strict=True):
            expected = exact(x.astype(np.float64))
            ulps = errors(result, expected)
            assert ulps.max() <= mathematics.BOUNDS[name], (name, ulps.max(), x[ulps.argmax()])
            known = ~np.isnan(expected)
            assert (np.signbit(result) == np.signbit(expected))[known].all(), name


@pytest.mark.long
def test_functions_are_accurate_everywhere() -> None:
    assert_accurate(8191)  # every exponent, 1024 times


def use_features(features: str, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Compile for a machine that has nothing but these, into a cache of its own."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(cache))
    hl = mathematics.hl
    here = hl.get_host_target()
    if here.arch != hl.TargetArch.X86 or not here.has_feature(hl.TargetFeature.FMA):
        pytest.skip("needs an x86 processor with these features")
    system = str(here).split("-")[2]
    lesser = hl.Target(f"x86-64-{system}-{features}-strict_float")
    monkeypatch.setattr(objects, "target", lambda: lesser)


@pytest.mark.long
@pytest.mark.parametrize("features", ["sse41", "sse41-avx", "sse41-avx-avx2-f16c-fma"])
def test_functions_are_accurate_on_lesser_machines(
    features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_features(features, monkeypatch, tmp_path)
    assert_accurate(32749)


@pytest.mark.long
def test_functions_without_fma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(code: str) -> bytes:
        raise RuntimeError("this LLVM cannot read it")

    monkeypatch.setattr(objects, "assemble", refused)
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    assert_accurate(32749)


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid"])
def test_products_in_functions_may_be_fused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[str] = []
    assemble = objects.assemble

    def seen(code: str) -> bytes:
        codes.append(code)
        return assemble(code)

    monkeypatch.setattr(objects, "assemble", seen)
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    run_halide(lambda x: apply(name, x), np.zeros(4099, np.float32))
    products = [line for code in codes for line in code.splitlines() if " = fmul " in line]
    others = [line for line in products if " = fmul contract " not in line]
    assert len(products) >= 8
    assert len(others) == (
        2 if name == "exp" else 0
    )  # that ends with a product of products, in vectors and in the rest


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("name", [*EXACT, "pow"])
def test_arithmetic_on_function_results_is_not_fused(name: str) -> None:
    def applied(x: Traced) -> Traced:
        return ex.pow(ex.abs(x), 1.7) if name == "pow" else apply(name, x)

    x, y, z = np.random.default_rng(0).uniform(0.1, 3, (3, 5001)).astype(np.float32)
    (f,), (g,) = run_halide(applied, x), run_halide(applied, y)

    def combined(x: Traced, y: Traced, z: Traced) -> tuple[Traced, ...]:
        a, b = applied(x), applied(y)
        return a * y + z, y * z - a, a * b + 0.5, x * math.log2(math.e) + z

    expected = f * y + z, y * z - f, f * g + np.float32(0.5), x * np.float32(math.log2(math.e)) + z
    for result, wanted in zip(run_halide(combined, x, y, z), expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_powers_are_accurate_everywhere() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, (2, 300_000), dtype=np.uint32).view(np.float32)
    usual = np.stack([np.exp(rng.uniform(-10, 10, 300_000)), rng.uniform(-20, 20, 300_000)]).astype(np.float32)
    grid = np.stack([g.ravel() for g in np.meshgrid(special("float32"), special("float32"))])
    a, b = np.concatenate([bits, usual, grid], axis=1)
    (result,) = run_halide(ex.pow, a, b)
    with np.errstate(all="ignore"):
        ulps = errors(result, np.power(a.astype(np.float64), b.astype(np.float64)))
    assert ulps.max() <= mathematics.BOUNDS["pow"], (ulps.max(), a[ulps.argmax()], b[ulps.argmax()])


@pytest.mark.parametrize("native", [True, False])
def test_float16_all_values(native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        use_features("sse41-avx-fma", monkeypatch, tmp_path)
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    (wide,) = run_halide(lambda x: ex.cast(x, "float32"), halves)
    assert np.array_equal(wide, halves.astype(np.float32), equal_nan=True)
    bits = np.arange(0, 2**32, 16001, dtype=np.uint64).astype(np.uint32).view(np.float32)
    # Between neighbours, and a little beside.
    with np.errstate(all="ignore"):
        between = (wide[:-1].astype(np.float64) + wide[1:]) / 2
        near = [
            between,
            np.nextafter(between.astype(np.float32), -np.inf),
            np.nextafter(between.astype(np.float32), np.inf),
        ]
        floats = np.concatenate([bits, *(n.astype(np.float32) for n in near)])
        (narrow,) = run_halide(lambda x: ex.cast(x, "float16"), floats)
        assert np.array_equal(narrow, floats.astype(np.float16), equal_nan=True)
        assert (np.signbit(narrow) == np.signbit(floats))[~np.isnan(floats)].all()


# ---------------------------------------------------------------------------------------------------------------------
# Loops


@pytest.mark.parametrize(
    "shape", [(), (1,), (17,), (16384,), (65537,), (257, 263), (70_000, 3), (3, 70_000), (5, 1, 7, 4001)]
)
def test_sizes_of_loops(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    row = np.ascontiguousarray(x[..., :1]) if shape else x
    (y,) = run_halide(lambda x, r: x * 2 + r, x, row)
    np.testing.assert_array_equal(y, x * 2 + row)


@pytest.mark.long
@pytest.mark.parametrize("shape", [(3, 5), (64, 1000), (1000, 64), (200_003,), (7, 40, 33)])
@pytest.mark.parametrize("axis", [0, -1])
def test_normalisations(shape: tuple[int, ...], axis: int) -> None:
    def softmax(x: Traced) -> tuple[Traced, ...]:
        e = ex.exp(x - ex.reduce_max(x, [axis], keep_dimensions=True))
        mean = ex.reduce_mean(x, [axis], keep_dimensions=True)
        return e / ex.reduce_sum(e, [axis], keep_dimensions=True), x - mean, ex.arg_max(x, axis), ex.reduce_sum(x)

    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    soft, centred, position, total = run_halide(softmax, x)
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis, keepdims=True))
    np.testing.assert_allclose(soft, e / e.sum(axis, keepdims=True), rtol=2e-5)
    np.testing.assert_allclose(centred, wide - wide.mean(axis, keepdims=True), atol=2e-6)
    np.testing.assert_array_equal(position, x.argmax(axis))
    np.testing.assert_allclose(total, wide.sum(), atol=1e-2)


@pytest.mark.parametrize(("n", "k", "m"), [(1, 40, 1), (12, 33, 64), (37, 100, 29), (64, 64, 100)])
def test_products_of_matrices(n: int, k: int, m: int) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((n, k), (k, m)))
    (y,) = run_halide(lambda a, b: ex.compute((n, m), lambda i, j: ex.sum_over(k, lambda r: a[i, r] * b[r, j])), a, b)
    np.testing.assert_allclose(y, a @ b, atol=1e-4)


@pytest.mark.parametrize("count", [50, 200_003])
def test_sums_are_accurate(count: int) -> None:
    x = np.random.default_rng(0).random(count, np.float32)
    (y,) = run_halide(ex.reduce_sum, x)
    assert abs(float(y) - math.fsum(x.tolist())) <= 4e-7 * count


def test_division_of_folded_values_compiles() -> None:
    """Halide refuses signed integers that overflow while it folds constants, which its own division did."""
    x, largest = np.array([-(2**31), -1, 0, 7, 2**31 - 1], np.int32), 2**31 - 1

    def folded(x: Traced) -> tuple[Traced, ...]:
        values = [
            f(operand)
            for operand in (x, x - x)
            for f in (lambda a: a / largest, lambda a: a // largest, lambda a: a % largest)
        ]
        return tuple(ex.where(x * 0 == 0, value, x) for value in values)

    program = trace(folded, "p", [Desc("int32", x.shape)])
    found, wanted = ([np.empty_like(x) for _ in program.outputs] for _ in range(2))
    compile(program).run([x], found)
    evaluate(program, [x], wanted)
    np.testing.assert_array_equal(found, wanted)


def test_values_of_few_positions_are_not_unrolled() -> None:
    """Halide would hoist them from the loop over channels, and compile a cubic filter at 3 positions for minutes."""
    x = np.random.default_rng(0).random((1, 20_000, 5, 2), np.float32)
    grid = np.linspace(-1.2, 1.2, 6, dtype=np.float32).reshape(1, 3, 1, 2)
    attributes = {"mode": "cubic", "padding_mode": "border", "align_corners": False}
    descs = {"input": Desc("float32", x.shape), "grid": Desc("float32", grid.shape)}
    program = formula_of(grid_sample, descs, attributes)
    expected = np.empty((1, 20_000, 3, 1), np.float32)
    evaluate(program, [x, grid], [expected])
    (result,) = run_program(program, [x, grid])
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_constant_zeros_have_signs() -> None:
    x = np.float32([0, 1, -1, 3, math.inf, -math.inf, math.nan])

    def function(x: Traced) -> tuple[Traced, ...]:
        return x / 0, x / -0.0, 0.0**x, (-0.0) ** x, ex.bitcast(ex.where(x > 0, 0.0, -0.0), "int32")

    for actual, expected in both(function, x):
        np.testing.assert_array_equal(actual, expected)
        np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))


def test_colour_image() -> None:
    x = np.random.default_rng(0).random((130, 141, 3), np.float32)
    window = lambda y, k, c, x: sum(x[y + dy, k + dx, c] for dy in range(3) for dx in range(3)) / 9  # noqa: E731
    blurred, grey = run_halide(
        lambda x: (
            ex.compute((128, 139, 3), lambda y, k, c: window(y, k, c, x)),
            ex.compute((130, 141), lambda y, k: x[y, k, 0] * 0.25 + x[y, k, 1] * 0.5 + x[y, k, 2] * 0.25),
        ),
        x,
    )
    expected = sum(x[dy : dy + 128, dx : dx + 139].astype(np.float64) for dy in range(3) for dx in range(3)) / 9
    np.testing.assert_allclose(blurred, expected, rtol=1e-6)
    np.testing.assert_allclose(grey, x @ np.float32([0.25, 0.5, 0.25]), rtol=1e-6)  # type: ignore[operator]


def test_output_overlapping_input() -> None:
    x = np.arange(100, dtype=np.float32)
    program = program_of(lambda x: ex.compute((100,), lambda i: x[99 - i] + 1), x)
    compile(program).bind([x], [x])()
    np.testing.assert_array_equal(x, np.arange(100, dtype=np.float32)[::-1] + 1)


# ---------------------------------------------------------------------------------------------------------------------
# Checks, objects, threads


def test_failed_check_keeps_outputs() -> None:
    table, indices = np.arange(6, dtype=np.float32), np.array([0, 5, 2], np.int64)
    program = program_of(lambda t, i: ex.compute(i.shape, lambda k: t.checked[i[k]]), table, indices)
    output = np.zeros(3, np.float32)
    call = compile(program).bind([table, indices], [output])
    call()
    assert output.tolist() == [0, 5, 2]
    indices[1] = 6
    output[:] = 7
    with pytest.raises(OperationError, match=r"^sample: the index .* of axis 0 must be in \[0, 6\), got -?\d+$"):
        call()
    assert output.tolist() == [7, 7, 7]


def _sample() -> tuple[ir.Formula, np.ndarray]:
    x = np.arange(1000, dtype=np.float32)
    return program_of(lambda x: ex.sqrt(x) * 3, x), x


def test_objects_are_kept_and_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "new" / "folder"))
    program, x = _sample()
    made: list[object] = []
    original = compiler.compile_program
    monkeypatch.setattr(compiler, "compile_program", lambda given: made.append(1) or original(given))  # type: ignore[func-returns-value]

    def correct() -> bool:
        y = np.zeros_like(x)
        compile(program).bind([x], [y])()
        return np.array_equal(y, np.sqrt(x) * 3)

    assert correct()
    assert correct()
    assert len(made) == 1
    (path,) = (p for p in (tmp_path / "new" / "folder").iterdir() if not p.name.startswith("runtime"))
    for damage in (path.read_bytes()[:-1], b"", path.read_bytes().replace(b"argv", b"vgra"), None):
        path.unlink() if damage is None else path.write_bytes(damage)
        count = len(made)
        assert correct()
        assert len(made) == count + 1
    monkeypatch.setenv("OPWEAVE_CACHE", str(path / "not a folder"))
    assert correct()


def test_fingerprint_differs_between_programs() -> None:
    x = np.ones(3, np.int8)
    seen = set()
    for value, type in ((1, "int8"), (2, "int8"), (1, "int32"), (1, "float32"), (1, "float16")):
        constant = ir.Const(value, type)  # type: ignore[arg-type]
        body = ir.Cast(ir.call("add", constant, constant), "float32")
        seen.add(fingerprint(ir.Formula("p", (), (ir.Output((), body),))))
    assert len(seen) == 5
    first, second = (program_of(lambda x: x + 1, x) for _ in range(2))
    assert fingerprint(first) == fingerprint(second)


SCRIPT = """
import sys, numpy as np
import opweave.expr as ex
from opweave.expr.halide import compile
from opweave.core.graph import Desc
x = np.arange(100_000, dtype="float32")
y = np.zeros_like(x)
compile(ex.trace(lambda x: ex.exp(x * 1e-5) + x, "p", [Desc("float32", x.shape)])).bind([x], [y])()
print(float(abs(y - (np.exp(x * 1e-5) + x)).max()) < 0.1)
"""


@pytest.mark.long
def test_several_processes_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "OPWEAVE_CACHE": str(tmp_path)}
    start = lambda: subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE)  # noqa: E731
    processes = [start() for _ in range(3)]
    for process in processes:
        output, _ = process.communicate(timeout=600)
        assert (process.returncode, output.strip()) == (0, b"True")


def test_threads_can_be_chosen_and_share_a_kernel() -> None:
    program, x = _sample()
    kernel, before = compile(program), threads()
    try:
        set_threads(1)
        assert threads() == 1
        assert compile(program).detail.endswith(", 1 thread")
    finally:
        set_threads(before)
    results = [np.zeros_like(x) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda y: kernel.bind([x], [y])(), results))
    assert all(np.array_equal(y, np.sqrt(x) * 3) for y in results)


def test_runtime_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_short_input(data: bytes) -> kernels.CompiledProgram:
        found = read(data)
        calls = [
            (name, tuple((position, (5,) if position == 0 else shape) for position, shape in reads), *others)
            for name, reads, *others in found.calls
        ]
        return dataclasses.replace(found, calls=tuple(calls))

    read = kernels.CompiledProgram.from_bytes
    monkeypatch.setattr(kernels.CompiledProgram, "from_bytes", with_short_input)
    program, x = _sample()
    with pytest.raises(OperationError, match=rf"^{program.name}: .*x0"):
        compile(program).run([x], [np.zeros_like(x)])


def test_bind_rejects_wrong_arrays() -> None:
    program, x = _sample()
    kernel = compile(program)
    for inputs, outputs in (([x[:5]], [x]), ([x], [x.astype("float16")]), ([x, x], [x])):
        with pytest.raises(ValidationError, match="sample: "):
            kernel.bind(inputs, outputs)


def test_kernels_are_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[weakref.ref[Code]] = []

    def recorded(data: bytes, outside: Callable[[str], int]) -> Code:
        made = load(data, outside)
        codes.append(weakref.ref(made))
        return made

    monkeypatch.setattr(kernels, "load", recorded)
    program, x = _sample()
    kernel = compile(program)
    (library,) = codes
    call = kernel.bind([x], [np.zeros_like(x)])
    del kernel
    gc.collect()
    assert library() is not None
    call()
    del call
    gc.collect()
    assert library() is None


WITHOUT_HALIDE = "import sys; sys.modules['llvmlite'] = None; sys.modules['halide'] = None\n"


def test_compile_names_missing_package(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_HALIDE + SCRIPT],
        capture_output=True,
        text=True,
        env={**os.environ, "OPWEAVE_CACHE": str(tmp_path)},
    )
    message = "MissingExtraError: compiling expressions needs halide: pip install 'opweave[halide]'"
    assert result.stderr.strip().endswith(message)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="object files of other systems are linked by llvmlite")
def test_cached_kernel_runs_without_halide_and_llvmlite(tmp_path: Path) -> None:
    for code in (SCRIPT, WITHOUT_HALIDE + SCRIPT):
        environment = {**os.environ, "OPWEAVE_CACHE": str(tmp_path)}
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert (result.stderr, result.stdout.strip()) == ("", "True")
