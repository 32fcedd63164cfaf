"""Expressions as WGSL, run on the first Vulkan adapter, against those evaluated with NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from expr_programs import Case, program_of, programs
from hypothesis import Phase, given, settings
from support.wgsl_runner import ALL, PACKED, Runner

import opweave.expr as ex
from opweave.core.dtypes import ANY, DataType
from opweave.core.graph import Desc
from opweave.expr import Traced, ir, trace
from opweave.expr.array import apply
from opweave.expr.evaluate import evaluate
from opweave.expr.gpu import Block, Features, GpuKernel, GpuModule, kernels, mathematics, refusal_of, scatter
from opweave.expr.gpu.lowering import most_buffers


def run_program(program: ir.Formula, arrays: Sequence[np.ndarray], features: Features = ALL) -> list[np.ndarray]:
    assert refusal_of(program, features) == ""
    runner = Runner(features)
    for source, array in zip(program.inputs, arrays, strict=True):
        runner.fill(source, array)
    lowered = kernels(program, features)
    assert max(len(kernel.bindings) for kernel in lowered) <= most_buffers(program)
    runner.run(lowered)
    return [runner.result(output) for output in program.outputs]


def run_wgsl(function: Callable[..., Any], *arrays: np.ndarray, features: Features = ALL) -> list[np.ndarray]:
    return run_program(program_of(function, *arrays), arrays, features)


def witness(program: ir.Formula, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    expected = [np.zeros(o.desc.shape, o.desc.data_type) for o in program.outputs]
    evaluate(program, arrays, expected)
    return expected


def sources(function: Callable[..., Any], *descs: Desc, features: Features = ALL) -> list[str]:
    return [kernel.source for kernel in kernels(trace(function, "sample", descs), features)]


def assert_close(actual: np.ndarray, expected: np.ndarray, rtol: float, atol: float = 1.2e-38) -> None:
    """Integers are the same, floats close; what is denormal may be 0."""
    if actual.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected)
    else:
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)


# ---------------------------------------------------------------------------------------------------------------------
# Programs


@pytest.mark.long
@pytest.mark.parametrize("features", [ALL, PACKED], ids=["f16", "packed"])
@settings(
    max_examples=80,
    phases=[Phase.explicit, Phase.generate],
)
@given(case=programs())
def test_programs_agree_with_numpy(features: Features, case: Case) -> None:
    program = case.program()
    for a, e in zip(run_program(program, case.arrays, features), witness(program, case.arrays), strict=True):
        rtol, atol = (1e-6, 1.2e-38) if case.exact else (1e-3, 1e-6)
        assert_close(a, e, rtol if a.dtype != "float16" or case.exact else 2e-3, atol)


# How many elements, and which axes are reduced, so that all forms of kernels take part.
REDUCED: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((7,), (0,)),
    ((3, 40), (1,)),
    ((40, 6), (0,)),
    ((5, 1, 700), (2,)),
    ((2, 300, 5), (1,)),
    ((5000, 40), (1,)),
    ((64, 4100), (0,)),
    ((40_003,), (0,)),
    ((3, 60, 700), (1, 2)),
    ((2, 3, 41, 43), (0, 2, 3)),
]


@pytest.mark.parametrize(("shape", "axes"), REDUCED)
@pytest.mark.parametrize("data_type", ["float32", "int8", "float16"])
def test_reductions(shape: tuple[int, ...], axes: tuple[int, ...], data_type: DataType) -> None:
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(data_type)

    def function(x: Traced) -> tuple[Traced, ...]:
        centred = x - ex.reduce_max(x, axes, keep_dimensions=True)
        total = ex.reduce_sum(x, axes) if data_type == "int8" else ex.cast(ex.reduce_sum(x, axes), "float32")
        return total, ex.reduce_min(x, axes), centred, ex.arg_max(x, axes[-1]), ex.arg_min(x, axes[-1])

    program = program_of(function, x)
    for actual, expected in zip(run_program(program, [x]), witness(program, [x]), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("shape", "axes"), [((5, 700), (1,)), ((40_003,), (0,)), ((300, 9000), (0,))])
def test_reductions_of_special_numbers(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    plain = rng.integers(-2, 3, shape).astype(np.float32)
    x = np.where(rng.random(shape) < 0.001, np.float32(np.nan), plain)
    for array in (x, plain, np.full(shape, -np.inf, np.float32), np.full(shape, np.nan, np.float32)):
        program = program_of(
            lambda x: (
                ex.reduce_max(x, axes),
                ex.reduce_min(x, axes),
                *(f(x, axes[0]) for f in (ex.arg_max, ex.arg_min)),
            ),
            array,
        )
        for actual, expected in zip(run_program(program, [array]), witness(program, [array]), strict=True):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("shape", [(3, 5), (64, 1000), (1000, 64), (200_003,), (7, 40, 33), (2, 65_600)])
@pytest.mark.parametrize("axis", [0, -1])
def test_normalisations(shape: tuple[int, ...], axis: int) -> None:
    def softmax(x: Traced) -> tuple[Traced, ...]:
        e = ex.exp(x - ex.reduce_max(x, [axis], keep_dimensions=True))
        mean = ex.reduce_mean(x, [axis], keep_dimensions=True)
        return e / ex.reduce_sum(e, [axis], keep_dimensions=True), x - mean, ex.arg_max(x, axis), ex.reduce_sum(x)

    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    soft, centred, position, total = run_wgsl(softmax, x)
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis, keepdims=True))
    np.testing.assert_allclose(soft, e / e.sum(axis, keepdims=True), rtol=2e-6)
    np.testing.assert_allclose(centred, wide - wide.mean(axis, keepdims=True), atol=2e-6)
    np.testing.assert_array_equal(position, x.argmax(axis))
    np.testing.assert_allclose(total, wide.sum(), atol=1e-3)


@pytest.mark.parametrize("data_type", ["float32", "int8"])
@pytest.mark.parametrize("count", [1, 6])
def test_reductions_in_reductions(data_type: DataType, count: int) -> None:
    """The inner ones depend on the position of the outer ones, of which each invocation has another."""
    x = np.random.default_rng(0).integers(-3, 4, (count, 2, 57)).astype(data_type)

    def element(x: Traced, i: Traced) -> Traced:
        window = lambda a, b: ex.sum_over(40, lambda r: x.clamped[i, a, b + r - 1])  # noqa: E731
        return ex.sum_over((2, 57), lambda a, b: window(a, b) * x[i, a, b])

    program = program_of(lambda x: ex.compute((count,), lambda i: element(x, i)), x)
    for features in (ALL, PACKED):
        np.testing.assert_array_equal(run_program(program, [x], features)[0], witness(program, [x])[0])


@pytest.mark.parametrize("shape", [(50,), (5000, 4), (1, 12_345), (300_007,)])
def test_sums_are_accurate(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random(shape, np.float32)
    (y,) = run_wgsl(lambda x: ex.reduce_sum(x, [0 if x.shape[0] > 1 else 1]), x)
    exact = x.astype(np.float64).sum(0 if shape[0] > 1 else 1)
    assert np.max(np.abs(y - exact) / exact) <= 3e-7


@pytest.mark.parametrize("data_type", ["float32", "uint8", "float16", "int64"])
@pytest.mark.parametrize("shape", [(), (1,), (17,), (257, 263), (70_000, 3), (5, 1, 7, 401)])
def test_sizes(shape: tuple[int, ...], data_type: DataType) -> None:
    x = np.random.default_rng(0).integers(0, 99, shape).astype(data_type)
    row = np.ascontiguousarray(x[..., :1]) if shape else x
    for features in (ALL, PACKED):
        (y,) = run_wgsl(lambda x, r: x * 2 + r, x, row, features=features)
        np.testing.assert_array_equal(y, x * 2 + row)


def test_workgroups_exceed_one_dimension() -> None:
    features = Features(max_workgroups=9)
    x = np.arange(9999, dtype=np.float32)
    (y,) = run_wgsl(lambda x: x + 1, x, features=features)
    np.testing.assert_array_equal(y, x + 1)
    rows = np.random.default_rng(0).integers(0, 9, (25, 64)).astype(np.float32)
    (total,) = run_wgsl(lambda x: ex.reduce_sum(x, [1]), rows, features=features)
    np.testing.assert_array_equal(total, rows.sum(1))
    (kernel,) = kernels(program_of(lambda x: x + 1, np.zeros(256 * 10, np.float32)), features)
    assert math.prod(kernel.workgroups) >= 10
    assert max(kernel.workgroups) <= 9


# ---------------------------------------------------------------------------------------------------------------------
# Functions


def special(data_type: str) -> np.ndarray:
    """Numbers at which functions go wrong."""
    dtype = np.dtype(data_type)
    if dtype.kind != "f":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        wanted = [low, low + 1, high, high - 1, -7, -2, -1, 0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 63, 64]
        return np.array([v for v in wanted if low <= v <= high], dtype)
    whole = [*(2.0**k for k in (7, 8, 15, 16, 31, 32, 63, 64)), 65504, 65519.9, 65520, 255.5, 3e38, 1e-7]
    values = [0, 0.5, 1, 1.5, 2.5, 127.5, 88.8, 104, *whole, math.inf, math.nan]
    with np.errstate(over="ignore"):
        return np.array([*values, *(-v for v in values)]).astype(dtype)


def errors(actual: np.ndarray, exact: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """The difference in units in the last place; 0 where both are NaN, the same infinity, or denormal."""
    limits = np.finfo(dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        unit = np.spacing(np.minimum(np.abs(rounded), limits.max)).astype(np.float64)
        difference = np.abs(actual.astype(np.float64) - exact) / np.maximum(unit, float(limits.smallest_subnormal))
    same = (actual == rounded.astype(actual.dtype)) | (np.isnan(actual) & np.isnan(exact))
    difference[same & ~np.isfinite(rounded)] = 0
    least = float(np.finfo(np.float32).smallest_normal)
    difference[(np.abs(exact) <= least) & (np.abs(actual) <= least)] = 0
    return np.where(np.isnan(difference), math.inf, difference)


@pytest.mark.parametrize("data_type", ANY)
def test_functions_at_special_values(data_type: DataType) -> None:
    values = special(data_type)
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))
    names = [name for name, function in ir.FUNCTIONS.items() if data_type in function.types and name != "where"]
    targets = [t for t in ANY if t != data_type]

    def function(x: Traced, y: Traced) -> tuple[Traced, ...]:
        calls = [apply(name, *(x, y)[: ir.FUNCTIONS[name].arity]) for name in names]
        less, same = x < y, x == y
        logic = [less & same, less | same, less ^ same, ~less, less == same, less <= same, ex.where(less, x, y)]
        return (*calls, *(ex.cast(x, target) for target in targets), *logic, ex.cast(less, data_type))

    labels = [*names, *targets, *["logic"] * 8]
    program = program_of(function, a, b)
    results = zip(labels, run_program(program, (a, b)), witness(program, (a, b)), strict=True)
    for label, actual, expected in results:
        if actual.dtype.kind == "f":
            ulps = errors(actual.astype(np.float32), expected.astype(np.float64), actual.dtype)
            assert ulps.max() <= 4, (label, a[ulps.argmax()], b[ulps.argmax()], actual[ulps.argmax()])
        else:
            wrong = np.flatnonzero(actual != expected)
            assert not len(wrong), (label, [(a[k], b[k], actual[k], expected[k]) for k in wrong[:5]])


REARRANGED: list[Callable[[Traced, Traced], Traced]] = [
    lambda x, y: (x + y) - y,
    lambda x, y: x - (x - y),
    lambda x, y: (x + 1) - 1,
    lambda x, y: (x + y + 7) - (x + y),
    lambda x, y: x + (-x),
    lambda x, y: x * y - y * x,
    lambda x, y: x * y + x * 3,
    lambda x, y: ex.max(x, y) + -ex.max(x, y),
    lambda x, y: x * 1e30 * 1e-30,
    lambda x, y: x * y * 1e-20,
    lambda x, y: -(x * 1e30) * 1e-30,
    lambda x, y: -(x + 1) + 1,
    lambda x, y: -(x - 1) - 1,
    lambda x, y: 0.5 * -(x * 3e38),
    lambda x, y: ex.sqrt(x) * ex.sqrt(x),
    lambda x, y: 0 / x + y,
]


def test_compilers_do_not_rearrange_arithmetic() -> None:
    values = np.float32([0, 1, -2.5, 1e-10, 1e-20, 1e20, 1e30, -1e30, 3e38, math.inf, -math.inf, math.nan])
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))
    program = program_of(lambda x, y: tuple(function(x, y) for function in REARRANGED), a, b)
    for number, (actual, expected) in enumerate(
        zip(run_program(program, (a, b)), witness(program, (a, b)), strict=True)
    ):
        np.testing.assert_allclose(actual, expected, 1e-7, 1.2e-38, err_msg=f"function {number}")


def test_softplus_is_accurate() -> None:
    x = np.linspace(-100, 100, 4001, dtype=np.float32)
    (actual,) = run_wgsl(ex.softplus, x)
    np.testing.assert_allclose(actual, np.logaddexp(0, x.astype(np.float64)), 5e-7, 1.2e-38)


@pytest.mark.parametrize("data_type", ANY)
def test_constants(data_type: DataType) -> None:
    values = [v.item() for v in special(data_type)]
    outputs = tuple(
        ir.Output((), ir.number(v, data_type) if k % 2 else ir.call("max", *[ir.number(v, data_type)] * 2))
        for k, v in enumerate(values)
    )
    program = ir.Formula("constants", (), outputs)
    features = Features(float16=True, int64=True, max_buffers=8)
    for actual, value in zip(run_program(program, [], features), values, strict=True):
        np.testing.assert_array_equal(actual, np.array(value).astype(data_type))


EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **{name: getattr(np, name) for name in ("exp", "log", "sin", "cos", "tan", "tanh")},
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sigmoid": lambda x: np.where(x >= 0, 1, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x))),
}


def test_functions_are_accurate_everywhere() -> None:
    x = np.arange(0, 2**32, 16381, dtype=np.uint64).astype(np.uint32).view(np.float32)  # every exponent, 512 times
    x = x[~((np.abs(x) < np.finfo(np.float32).smallest_normal) & (x != 0))]
    results = run_wgsl(lambda x: tuple(getattr(ex, name)(x) for name in EXACT), x)
    with np.errstate(all="ignore"):
        for (name, exact), result in zip(EXACT.items(), results, strict=True):
            expected = exact(x.astype(np.float64))
            ulps = errors(result, expected)
            assert ulps.max() <= mathematics.BOUNDS[name], (name, ulps.max(), x[ulps.argmax()])
            known = ~np.isnan(expected) & (np.abs(expected) > np.finfo(np.float32).smallest_normal)
            assert (np.signbit(result) == np.signbit(expected))[known].all(), name


def test_powers_are_accurate_everywhere() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, (2, 100_000), dtype=np.uint32).view(np.float32)
    bits = bits[:, (np.abs(bits) >= np.finfo(np.float32).smallest_normal).all(0)]
    usual = np.stack([np.exp(rng.uniform(-10, 10, 100_000)), rng.uniform(-20, 20, 100_000)]).astype(np.float32)
    near_one = np.stack([rng.uniform(0.9, 1.1, 100_000), rng.uniform(-900, 900, 100_000)]).astype(np.float32)
    grid = np.stack([g.ravel() for g in np.meshgrid(special("float32"), special("float32"))])
    a, b = np.ascontiguousarray(np.concatenate([bits, usual, near_one, grid], axis=1))
    (result,) = run_wgsl(ex.pow, a, b)
    with np.errstate(all="ignore"):
        ulps = errors(result, np.power(a.astype(np.float64), b.astype(np.float64)))
    assert ulps.max() <= mathematics.BOUNDS["pow"], (ulps.max(), a[ulps.argmax()], b[ulps.argmax()])


@pytest.mark.parametrize("features", [ALL, PACKED], ids=["f16", "packed"])
def test_float16_all_values(features: Features) -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    (wide,) = run_wgsl(lambda x: ex.cast(x, "float32"), halves, features=features)
    np.testing.assert_array_equal(wide, halves.astype(np.float32))
    bits = np.arange(0, 2**32, 16001, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):  # between neighbours, and a little beside
        between = ((wide[:-1].astype(np.float64) + wide[1:]) / 2).astype(np.float32)
        floats = np.concatenate([bits, between, np.nextafter(between, -np.inf), np.nextafter(between, np.inf)])
        expected = floats.astype(np.float16)
    computed, narrow = run_wgsl(
        lambda x: (ex.cast(x, "float16") * 1.0, ex.cast(x, "float16")), floats, features=features
    )
    (stored,) = run_wgsl(lambda x, y: ex.cast(x, "float16") + y, floats, np.zeros((), np.float16), features=features)
    for actual in (computed, narrow, stored):
        np.testing.assert_array_equal(actual, expected)


# ---------------------------------------------------------------------------------------------------------------------
# Elements scattered, and parts of kernels that others write


@pytest.mark.parametrize("features", [ALL, PACKED], ids=["f16", "packed"])
@pytest.mark.parametrize("data_type", ANY)
def test_scatter(data_type: DataType, features: Features) -> None:
    rng = np.random.default_rng(0)
    place = rng.permutation(35)[:11]
    indices = np.stack([place // 7, place % 7], 1).astype(np.int32)
    values, array = rng.integers(0, 100, 11).astype(data_type), np.arange(35).reshape(5, 7).astype(data_type)
    at, source = ir.Input(0, Desc("int32", (11, 2))), ir.Input(1, Desc(data_type, (11,)))
    axis = ir.Index(11, -1)
    where = tuple(ir.Cast(ir.Load(at, (axis, ir.Const(k, "index"))), "index") for k in range(2))
    kernel, target = scatter(
        Desc(data_type, (5, 7)), (axis,), where, ir.Load(source, (axis,)), features, "scatterND 'a'"
    )
    assert kernel.title == f"scatterND 'a': y0 {data_type}[5, 7]"
    assert kernel.writes == (False, False, True)
    runner = Runner(features)
    for buffer, content in ((at, indices), (source, values), (target, array)):
        runner.fill(buffer, content)
    runner.run([kernel])
    array[indices[:, 0], indices[:, 1]] = values
    np.testing.assert_array_equal(runner.result(target), array)


def test_scatter_duplicate_indices_keep_one_value() -> None:
    values = np.arange(1, 1001, dtype=np.uint8)
    source, axis = ir.Input(0, Desc("uint8", (1000,))), ir.Index(1000, -1)
    place = ir.call("mod", axis, ir.Const(3, "index"))
    kernel, target = scatter(Desc("uint8", (5,)), (axis,), (place,), ir.Load(source, (axis,)), ALL, "scatter")
    runner = Runner()
    runner.fill(source, values)
    runner.fill(target, np.zeros(5, np.uint8))
    runner.run([kernel])
    result = runner.result(target)
    assert all(result[k] in values[k::3] for k in range(3))
    assert result[3:].tolist() == [0, 0]


def test_kernel_of_parts() -> None:
    x, y = ir.Input(0, Desc("float32", (4, 8))), ir.Input(1, Desc("float32", (8,)))
    i, j = ir.Index(4, -2), ir.Index(8, -1)
    target = ir.Output((i, j), ir.Const(0.0, "float32"))
    product: ir.Expr = ir.Load(x, (i, j))
    module = GpuModule(ALL)
    module.read(x)
    module.write(target)
    block = Block(module, {i: "m", j: "n"}, {product: "sum"})
    value = block.value(ir.call("max", ir.call("add", product, ir.Load(y, (j,))), ir.number(0.0, "float32")))
    assert value == "at_least(sum + x1[n], 0.0f)"
    body = ["let m = i32(local.y);", "let n = i32(local.x);", f"let sum = 2.0f * {module.load(x, 'm * 8 + n')};"]
    entry = module.entry([*body, *block.lines, module.store(target, "m * 8 + n", value)], (8, 4, 1))
    text = module.text([], [entry])
    assert module.bindings == [x, target, y]
    assert module.writes == [False, True, False]
    kernel = GpuKernel("relu", text, tuple(module.bindings), tuple(module.writes), (1, 1, 1))
    runner = Runner()
    a, b = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)[:4], np.ones(8, np.float32)
    runner.fill(x, a)
    runner.fill(y, b)
    runner.run([kernel])
    np.testing.assert_array_equal(runner.result(target), np.maximum(2 * a + b, 0))


# ---------------------------------------------------------------------------------------------------------------------
# Texts


def test_unit_axis_needs_no_index() -> None:
    (source,) = sources(lambda x, y, b: ex.max(x + y * b, 0), *[Desc("float32", (4, 8))] * 2, Desc("float32", (8,)))
    assert (
        source
        == """\
// y0[i, j] = max(x0[i, j] + (x1[i, j] * x2[j]), 0.0)
@group(0) @binding(0) var<storage, read> x0: array<f32>;
@group(0) @binding(1) var<storage, read> x1: array<f32>;
@group(0) @binding(2) var<storage, read> x2: array<f32>;
@group(0) @binding(3) var<storage, read_write> y0: array<f32>;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// The maximum of x and a number that is not NaN.
fn at_least(x: f32, limit: f32) -> f32 {
    return select(max(x, limit), x, is_nan(x));
}

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) global: vec3<u32>) {
    let flat = global.x;
    let j = i32(flat % 8u);
    y0[flat] = at_least(x0[flat] + (x1[flat] * x2[j]), 0.0f);
}
"""
    )


def test_neighbouring_axes_are_one_number() -> None:
    """A bias of channels, and a mask of rows and columns."""
    image, bias, mask = Desc("float32", (2, 3, 5, 7)), Desc("float32", (3, 1, 1)), Desc("float32", (5, 7))
    (source,) = sources(lambda x, b, m: x * m + b, image, bias, mask)
    body = source[source.index("{") :]
    assert "let kl = i32(flat % 35u);" in body
    assert "let j = i32((flat / 35u) % 3u);" in body
    assert "y0[flat] = (x0[flat] * x2[kl]) + x1[j];" in body


def test_source_is_deterministic() -> None:
    softmax = lambda x: ex.exp(x) / ex.reduce_sum(ex.exp(x), [1], keep_dimensions=True)  # noqa: E731
    first, second = (sources(softmax, Desc("float32", (64, 640))) for _ in range(2))
    assert first == second


def test_loop_invariants_are_hoisted() -> None:
    def function(x: Traced, k: Traced) -> Traced:
        return ex.compute((4, 5), lambda i, j: ex.sum_over(33, lambda r: ex.exp(x[i, j]) * k[r]))

    (source,) = sources(function, Desc("float32", (4, 5)), Desc("float32", (33,)))
    body = source[source.index("fn main") :]
    assert body.count("exp_f32(") == 1
    assert body.index("exp_f32(") < body.index("for (")


def test_where_loads_only_chosen_value() -> None:
    def function(x: Traced, y: Traced, z: Traced) -> Traced:
        shared = z * 2
        joined = ex.compute((8,), lambda i: ex.where(i < 4, x.clamped[i] + shared[i], ex.exp(y.clamped[i - 4])))
        return joined * shared

    descs = (Desc("float32", (4,)), Desc("float32", (4,)), Desc("float32", (8,)))
    (source,) = sources(function, *descs)
    body = source[source.index("fn main") :].split("\n")
    assert body[5:] == [
        "    let t0 = i32(flat);",
        "    let t2 = x2[flat];",
        "    let t3 = t2 * 2.0f;",
        "    var t1 = f32();",
        "    if (t0 < 4) {",
        "        t1 = x0[min(max(t0, 0), 3)] + t3;",
        "    } else {",
        "        t1 = exp_f32(x1[min(max(i32(flat) - 4, 0), 3)]);",
        "    }",
        "    y0[flat] = t1 * t3;",
        "}",
        "",
    ]
    # Padding loads from one array only.
    padded = lambda x: ex.compute((6,), lambda i: x.padded(0)[i - 1])  # noqa: E731
    assert "select(" in sources(padded, Desc("float32", (4,)))[0]
    arrays = [np.arange(desc.shape[0], dtype=np.float32) for desc in descs]
    program = program_of(function, *arrays)
    (actual,), (expected,) = run_program(program, arrays), witness(program, arrays)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def count(function: Callable[..., Any], *descs: Desc) -> tuple[int, list[Mapping[str, Any]]]:
    made = kernels(trace(function, "sample", descs), ALL)
    return len(made), [{"groups": math.prod(k.workgroups), "barrier": "Barrier" in k.source} for k in made]


@pytest.mark.parametrize("results", [1, 3, 40, 63, 64, 200])
@pytest.mark.parametrize("count", [40, 1000, 16_384, 16_385, 25_088, 32_768, 32_769, 100_352])
def test_no_invocation_computes_long_reduction_alone(results: int, count: int) -> None:
    array = np.zeros((results, count), np.float32)
    for function in (lambda x: ex.reduce_sum(x, [1]), lambda x: x - ex.reduce_mean(x, [1], keep_dimensions=True)):
        (first, *_) = kernels(program_of(function, array), ALL)
        # A workgroup has as many invocations as a quarter of the elements, from 32 to 256.
        assert first.invocations[0] * first.workgroups[0] >= results * min(max(count // 8, 32), 256), first.source


def test_forms_of_kernels() -> None:
    """Rows are one kernel; what is reduced along other axes is stored; huge reductions are made in parts."""
    softmax = lambda x, axis: ex.exp(x) / ex.reduce_sum(ex.exp(x), [axis], keep_dimensions=True)  # noqa: E731
    rows, columns = Desc("float32", (64, 512)), Desc("float32", (512, 4096))
    assert count(lambda x: softmax(x, 1), rows) == (1, [{"groups": 64, "barrier": True}])
    number, made = count(lambda x: softmax(x, 0), columns)
    assert number == 2
    assert made == [{"groups": 16, "barrier": False}, {"groups": 512 * 4096 // 256, "barrier": False}]
    number, made = count(lambda x: x - ex.reduce_max(x), Desc("float32", (1 << 20,)))
    assert [entry["groups"] for entry in made] == [256, 1, 4096]
    # Windows of few elements are computed where they are used.
    blurred = lambda x: ex.compute((62, 62), lambda i, j: ex.sum_over((3, 3), lambda a, b: x[i + a, j + b]))  # noqa: E731
    assert count(blurred, Desc("float32", (64, 64))) == (1, [{"groups": 16, "barrier": False}])


def test_outputs_of_one_shape_share_a_kernel() -> None:
    program = trace(lambda x: (x + 1, ex.reduce_max(x), x * 2), "sample", [Desc("float32", (9, 9))])
    made = kernels(program, ALL)
    assert made[0].bindings[-2:] == (program.outputs[0], program.outputs[2])
    assert made[0].title == "sample: y0 float32[9, 9], y1 float32[9, 9]"
    assert made[1].bindings == (program.inputs[0], program.outputs[1])
    narrow = kernels(program, Features(max_buffers=2))
    assert [len(kernel.bindings) for kernel in narrow] == [2, 2, 2]


def test_programs_of_equal_structure_share_texts_but_no_arrays() -> None:
    softmax = lambda x: ex.exp(x) / ex.reduce_sum(ex.exp(x), [0], keep_dimensions=True)  # noqa: E731
    programs = [trace(softmax, name, [Desc("float32", (512, 4096))]) for name in ("first", "second")]
    one, other = (kernels(program, ALL) for program in programs)
    assert [kernel.key for kernel in one] == [kernel.key for kernel in other]
    for (sums, quotients), program in zip((one, other), programs, strict=True):
        assert sums.bindings == (program.inputs[0], quotients.bindings[1])
        assert (quotients.bindings[0], quotients.bindings[2]) == (program.inputs[0], program.outputs[0])
        assert {kernel.title.partition(":")[0] for kernel in (sums, quotients)} == {program.name}
    assert one[0].bindings[1] is not other[0].bindings[1]
    differences = [trace(of, "sample", [Desc("float32", (9,))] * 2) for of in (lambda x, y: x - y, lambda x, y: y - x)]
    assert len({kernels(program, ALL)[0].key for program in differences}) == 2


def test_outputs_of_all_types() -> None:
    x = np.arange(35).reshape(5, 7).astype(np.float32)
    wanted = [t for t in ANY for _ in range(2)]
    for features in (ALL, PACKED):
        results = run_wgsl(lambda x: tuple(ex.cast(x + k, t) for k, t in enumerate(wanted)), x, features=features)
        for k, (result, data_type) in enumerate(zip(results, wanted, strict=True)):
            np.testing.assert_array_equal(result, (x + k).astype(data_type))


@pytest.mark.parametrize("data_type", ["float32", "int8"])
def test_inputs_exceed_kernel_bindings(data_type: DataType) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-9, 9, (4, 8)).astype(data_type) for _ in range(20)]

    def joined(*arrays: Traced) -> Traced:
        def element(i: Traced, j: Traced) -> Traced:
            result = arrays[0].clamped[i, j]
            for k, array in enumerate(arrays[1:], 1):
                result = ex.where(i >= k * 4, array.clamped[i - k * 4, j], result)
            return result

        return ex.compute((80, 8), element)

    program = program_of(joined, *arrays)
    features = Features(max_buffers=8)
    assert max(len(kernel.bindings) for kernel in kernels(program, features)) <= 8
    (result,) = run_program(program, arrays, features)
    np.testing.assert_array_equal(result, np.concatenate(arrays))


# ---------------------------------------------------------------------------------------------------------------------
# What cannot run


def test_unsupported_names_missing_feature() -> None:
    add = lambda x: x + 1  # noqa: E731
    whole = trace(add, "p", [Desc("int64", (3,))])
    assert refusal_of(whole, Features()) == "p: the device has no int64"
    assert refusal_of(whole, Features(int64=True)) == ""
    wide = trace(lambda x: ex.cast(ex.cast(x, "uint64") * 2, "int32"), "p", [Desc("int32", (3,))])
    assert refusal_of(wide, Features()) == "p: the device has no uint64"
    checked = trace(
        lambda x, i: ex.compute((2,), lambda k: x.checked[i[k]]), "p", [Desc("float32", (3,)), Desc("int32", (2,))]
    )
    assert refusal_of(checked, Features()).startswith("p: a GPU cannot report a failed check: the index")
    large = trace(add, "p", [Desc("uint8", (2**31,))])
    assert refusal_of(large, Features()) == "p: uint8[2147483648] has more than 2147483647 elements"


def test_refusals_lower_nothing_unless_buffers_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    program = trace(lambda x: ex.exp(x) / 7, "p", [Desc("float32", (3, 5))])
    monkeypatch.setattr("opweave.expr.gpu.lowering.kernels", lambda *_: pytest.fail("lowered"))
    assert refusal_of(program, Features()) == ""
