"""Kernels in CUDA C++, run on the processor as C++ (`cuda_on_cpu`): the conformance cases, and expressions against NumPy.

Reads outside of buffers, which are harmless in WebGPU, fail here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support import cuda_on_cpu, wpt
from support.cuda_cases import Compiled, compiled, rows
from triton_cases import array, check_kernels, steps_of

import opweave.expr as ex
from opweave.core.dtypes import ANY, DataType
from opweave.core.graph import Desc
from opweave.expr import Traced, ir, trace
from opweave.expr.array import apply
from opweave.expr.evaluate import evaluate
from opweave.expr.gpu import GpuKernel, kernels, mathematics, refusal_of, scatter
from opweave.expr.gpu.cuda import CUDA, PRELUDE

F = cuda_on_cpu.FEATURES


@pytest.fixture(scope="module")
def prepared(request: pytest.FixtureRequest) -> dict[str, Compiled]:
    """The graphs of all cases that are to run, with their kernels compiled together, which is faster."""
    cuda_on_cpu.compiler()
    items = [item for item in request.session.items if item.path == request.path]
    cases = [item.callspec.params["case"] for item in items if "case" in getattr(item, "fixturenames", ())]  # type: ignore[attr-defined]
    found = {case["id"]: compiled(case, F) for case in cases}
    cuda_on_cpu.functions.prepare(kernel.source for made in found.values() for kernel in made.kernels)
    return found


@pytest.mark.long
@pytest.mark.parametrize("case", rows("cuda"))
def test_conformance(prepared: dict[str, Compiled], case: wpt.Case) -> None:
    made = prepared[case["id"]]
    memory: dict[Any, cuda_on_cpu.Guarded] = {}
    inputs = [wpt.array_of(case["inputs"][name]) for name in made.graph.inputs]
    for step in made.steps:
        for place in step.places:
            if place not in memory:
                given = (
                    inputs[place.number] if place.kind == "input" else place.array if place.value is not None else None
                )
                memory[place] = cuda_on_cpu.Guarded.of(place.desc, given)
        cuda_on_cpu.launch(step.kernel, [memory[place].address for place in step.places])
    outputs = {place.number: array.view(place.desc) for place, array in memory.items() if place.kind == "output"}
    results = {name: outputs[k].reshape(o.shape) for k, (name, o) in enumerate(made.graph.outputs.items())}
    wpt.check_conformance(case, results)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("columns", [72, 45])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_tiles_read_no_terms_behind_the_last(columns: int, constants: tuple[int, ...]) -> None:
    """In steps of 20 terms, some invocations load more than others."""
    x, w = array(40, 40), array(40, columns)
    (step,) = steps_of(lambda b, x, w: b.matmul(x, w), (x, w), constants, F)
    assert "x20/" in step.kernel.source
    check_kernels(lambda b, x, w: b.matmul(x, w), x, w, constants=constants, kernels=[""], features=F)


@pytest.mark.long
def test_split_sums_have_no_empty_part() -> None:
    """With 90 steps, parts of 3 are 30 and not 32: the others would read behind the operands."""
    image, filter = array(1, 480, 1, 40), array(60, 480, 1, 3)
    check_kernels(lambda b, x, w: b.conv2d(x, w, padding=[0, 0, 1, 1]), image, filter, kernels=["", ""], features=F)


# ---------------------------------------------------------------------------------------------------------------------
# Expressions


def run_program(program: ir.Formula, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    assert refusal_of(program, F) == ""
    runner = cuda_on_cpu.Runner()
    for source, value in zip(program.inputs, arrays, strict=True):
        runner.fill(source, value)
    runner.run(kernels(program, F))
    return [runner.result(output) for output in program.outputs]


def agree(function: Callable[..., Any], *arrays: np.ndarray, ulps: float = 0) -> None:
    """Kernels and NumPy give the same results; floats may differ by `ulps`."""
    program = trace(function, "sample", [Desc(a.dtype.name, a.shape) for a in arrays])  # type: ignore[arg-type]
    expected = [np.zeros(o.desc.shape, o.desc.data_type) for o in program.outputs]
    evaluate(program, arrays, expected)
    for actual, wanted in zip(run_program(program, arrays), expected, strict=True):
        if actual.dtype.kind == "f" and ulps:
            limits = np.finfo(actual.dtype)
            np.testing.assert_allclose(
                actual.astype(np.float64),
                wanted.astype(np.float64),
                rtol=ulps * float(limits.eps),
                atol=float(limits.smallest_normal),
            )
        else:
            np.testing.assert_array_equal(actual, wanted)


def special(data_type: str) -> np.ndarray:
    """Numbers at which functions go wrong, the ends of the range among them."""
    dtype = np.dtype(data_type)
    if dtype.kind == "f":
        whole = [0, 0.5, 1, 1.5, 2.5, 88.8, 104, 2.0**15, 65504, 2.0**31, 3e38, 1e-7, np.inf, np.nan]
        with np.errstate(over="ignore"):
            return np.array([*whole, *(-v for v in whole)]).astype(dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    wanted = [low, low + 1, high, high - 1, -7, -2, -1, 0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64]
    return np.array([v for v in wanted if low <= v <= high], dtype)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ANY)
def test_functions_at_special_values(data_type: DataType) -> None:
    values = special(data_type)
    a, b = (np.ascontiguousarray(grid.ravel()) for grid in np.meshgrid(values, values))
    names = [name for name, function in ir.FUNCTIONS.items() if data_type in function.types and name != "where"]

    def function(x: Traced, y: Traced) -> tuple[Traced, ...]:
        calls = [apply(name, *(x, y)[: ir.FUNCTIONS[name].arity]) for name in names]
        less, same = x < y, x == y
        logic = [less & same, less | same, less ^ same, ~less, ex.where(less, x, y)]
        return (*calls, *(ex.cast(x, target) for target in ANY if target != data_type), *logic)

    agree(function, a, b, ulps=4)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["int32", "int64", "int8"])
def test_integers_wrap_around(data_type: DataType) -> None:
    """In C++ overflow of signed integers is undefined: compilers take `x + 1 > x` for true."""
    values = special(data_type)
    agree(lambda x: (x + 1 > x, x * x, -x, abs(x), x - (x + x), ex.reduce_sum(x), ex.reduce_product(x)), values)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((7,), (0,)),
        ((3, 40), (1,)),
        ((5, 1, 700), (2,)),
        ((5000, 40), (1,)),
        ((64, 4100), (0,)),
        ((2, 3, 41, 43), (0, 2)),
    ],
)
@pytest.mark.parametrize("data_type", ["float32", "int8", "float16"])
def test_reductions(shape: tuple[int, ...], axes: tuple[int, ...], data_type: DataType) -> None:
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(data_type)
    agree(
        lambda x: (
            ex.reduce_sum(x, axes) if data_type == "int8" else ex.cast(ex.reduce_sum(x, axes), "float32"),
            x - ex.reduce_max(x, axes, keep_dimensions=True),
            ex.arg_max(x, axes[-1]),
        ),
        x,
    )


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("length", [40, 256, 1000, 2048, 9000])
@pytest.mark.parametrize("data_type", ["float32", "float16", "int32", "int64", "uint64", "uint8"])
def test_workgroups_reduce_rows_with_one_barrier_each(length: int, data_type: DataType) -> None:
    """In warps of 32 lanes, of which a workgroup has one or several; elements of a lane are written out, or in a loop."""
    x = np.random.default_rng(0).integers(0, 9, (3, length)).astype(data_type)
    x[2, -1] = 77
    if data_type.startswith("float"):
        x[0, length // 2] = np.nan
        x[2, 1] = -np.inf

    def function(x: Traced) -> tuple[Traced, ...]:
        largest, smallest = (reduce(x, (1,), keep_dimensions=True) for reduce in (ex.reduce_max, ex.reduce_min))
        total = ex.reduce_sum(x, (1,), keep_dimensions=True)
        return (
            where_equal(x, largest),
            where_equal(x, smallest),
            where_equal(x, total),
            ex.arg_max(x, 1),
            ex.arg_min(x, 1),
        )

    def where_equal(x: Traced, value: Traced) -> Traced:
        return ex.where(x == value, x, value)

    agree(function, x)
    program = trace(function, "sample", [Desc(data_type, x.shape)])
    for kernel in kernels(program, F):
        text = kernel.source.partition(PRELUDE)[2]
        is_warp = kernel.invocations[0] == 32
        assert text.count("workgroupBarrier();") == (0 if is_warp else text.count("for (var bits")), text
        assert not re.search(r"if \(.*_value", text), text  # branches would keep loads apart


@pytest.mark.long
def test_row_reduction_loads_elements_once() -> None:
    """Before anything is stored. Rows that are longer are loaded again."""

    def function(x: Traced, scale: Traced) -> Traced:
        return (x - ex.reduce_max(x, (1,), keep_dimensions=True)) * scale

    for length in (1024, 1000, 9000):
        x, scale = array(5, length), array(length)
        agree(function, x, scale)
        (kernel,) = kernels(trace(function, "sample", [Desc("float32", a.shape) for a in (x, scale)]), F)
        text = kernel.source.partition(PRELUDE)[2]
        places = re.findall(r"x0\[([^]]*)\]", text)
        if length == 1024:
            assert len(places) == len(set(places)) == 4
            assert text.rindex("x1[") < text.index("y0[")
        elif length == 9000:
            assert len(places) == 2


@pytest.mark.long
def test_float16_all_values() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore", over="ignore"):
        agree(lambda x: (ex.cast(x, "float32"), x * 1.0), halves)
        floats = np.arange(0, 2**32, 160_001, dtype=np.uint64).astype(np.uint32).view(np.float32)
        agree(lambda x: (ex.cast(x, "float16") * 1.0, ex.cast(x, "float16")), floats)


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["int8", "float16", "int64"])
def test_scatter(data_type: DataType) -> None:
    rng = np.random.default_rng(0)
    place = rng.permutation(35)[:11]
    indices = np.stack([place // 7, place % 7], 1).astype(np.int32)
    values, array = rng.integers(0, 100, 11).astype(data_type), np.arange(35).reshape(5, 7).astype(data_type)
    at, source = ir.Input(0, Desc("int32", (11, 2))), ir.Input(1, Desc(data_type, (11,)))
    axis = ir.Index(11, -1)
    where = tuple(ir.Cast(ir.Load(at, (axis, ir.Const(k, "index"))), "index") for k in range(2))
    kernel, target = scatter(Desc(data_type, (5, 7)), (axis,), where, ir.Load(source, (axis,)), F, "scatterND 'a'")
    runner = cuda_on_cpu.Runner()
    for buffer, content in ((at, indices), (source, values), (target, array)):
        runner.fill(buffer, content)
    runner.run([kernel])
    array[indices[:, 0], indices[:, 1]] = values
    np.testing.assert_array_equal(runner.result(target), array)


# ---------------------------------------------------------------------------------------------------------------------
# Text


def relu() -> GpuKernel:
    (kernel,) = kernels(trace(lambda x: ex.max(x, 0), "relu", [Desc("float16", (4, 8))]), F)
    return kernel


def test_text() -> None:
    kernel = relu()
    before, _, text = kernel.source.partition(PRELUDE)
    assert before == "// y0[i, j] = max(x0[i, j], 0.0)\n"
    assert text == "\n".join(
        [
            "",
            "inline bool is_nan(f32 x) {",
            "    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;",
            "}",
            "",
            "// The maximum of x and a number that is not NaN.",
            "inline f32 at_least(f32 x, f32 limit) {",
            "    return select(max(x, limit), x, is_nan(x));",
            "}",
            "",
            'extern "C" __global__ void __launch_bounds__(32) opweave_kernel('
            "const f16* RESTRICT_UNLESS_EARLY x0, f16* RESTRICT_UNLESS_EARLY y0) {",
            "    const vec3<u32> global(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y, "
            "blockIdx.z * blockDim.z + threadIdx.z);",
            "    await_previous();",
            "    let flat = global.x;",
            "    let t0 = f32(x0[flat]);",
            "    y0[flat] = f16(at_least(t0, 0.0f));",
            "}",
            "",
            "}  // namespace opweave",
            "",
        ]
    )
    assert (kernel.entry_point, kernel.workgroups, kernel.invocations) == ("opweave_kernel", (1, 1, 1), (32, 1, 1))


def test_comment_with_trailing_backslash() -> None:
    from opweave.expr.gpu.dialect import DialectSource, KernelEntry

    text = CUDA.module(DialectSource(["// relu 'a\\"], [], [], [], [], [KernelEntry((1,), (), ("return;",))]), ())
    assert text.startswith("// relu 'a/\n")


def test_reads_outside_of_buffers_are_found() -> None:
    kernel = relu()
    small, whole = cuda_on_cpu.Guarded(16), cuda_on_cpu.Guarded(64)
    with pytest.raises(AssertionError, match="reads or writes outside of its buffers"):
        cuda_on_cpu.launch(kernel, [small.address, whole.address])
    cuda_on_cpu.launch(kernel, [whole.address, whole.address])


def lanes(statement: str) -> GpuKernel:
    """A kernel of two warps."""
    source = f'extern "C" __global__ void lanes(unsigned* y) {{ unsigned lane = threadIdx.x; {statement} }}'
    return GpuKernel("lanes", source, (), (), (1, 1, 1), "lanes", invocations=(64,))


def test_lanes_of_a_warp_exchange_registers() -> None:
    exchange = "__shfl_xor_sync(0xffffffffu, {}, {})"
    for branch in "", "if (lane >= 32)":  # a warp need not wait for the other one
        once, twice = exchange.format("lane * 10", 3), exchange.format("y[lane]", 16)
        memory = cuda_on_cpu.Guarded(256)
        memory.array[:] = 0
        cuda_on_cpu.launch(lanes(f"{branch} {{ y[lane] = {once}; y[lane] = {twice}; }}"), [memory.address])
        number = np.arange(64, dtype=np.uint32)
        wanted = ((number ^ 16) ^ 3) * 10
        np.testing.assert_array_equal(memory.array.view(np.uint32), np.where((number >= 32) | (not branch), wanted, 0))


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(
    "statement",
    [
        "if (lane < 16) y[lane] = __shfl_xor_sync(0xffffffffu, lane, 1);",
        "if (lane < 16) __syncthreads(); else y[lane] = __shfl_xor_sync(0xffffffffu, lane, 1);",
    ],
)
def test_launch_detects_threads_that_wait_forever(statement: str) -> None:
    memory = cuda_on_cpu.Guarded(256)
    with pytest.raises(AssertionError, match="wait for others which never come"):
        cuda_on_cpu.launch(lanes(statement), [memory.address])


def test_mathematics_library_is_complete() -> None:
    assert mathematics.declarations(CUDA).keys() == mathematics.DECLARATIONS.keys()
