"""Operands of products in the order of their terms, as tensor cores want TF32: a kernel before the product moves them.

The same kernel rounds operands of products of bfloat16 and float16.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from support.cuda_cases import _Rules
from support.cuda_driver import CpuDriver, context_on
from triton_cases import WGMMA_TF32, Build, F, array, check_kernels, instructions, run_steps, steps_of

import opweave as ow
from opweave.backends.cuda import compiler, measured_tiles
from opweave.backends.gpu.contraction import terms
from opweave.backends.gpu.steps import Buffer, Kernels
from opweave.context.graph import program_of
from opweave.core.graph import Desc
from opweave.expr.gpu import Features, GpuKernel, TensorCores
from opweave.expr.gpu.triton import Bfloat16
from opweave.expr.ir import Input

pytestmark = pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")

Kind = Literal["tf32", "tf32x3", "bfloat16", "float16"]

HALVES: tuple[Kind, ...] = ("bfloat16", "float16")
"""Kinds of products whose operands are rounded to types of 16 bits."""


def features(kind: Kind, architecture: str = "sm_90") -> Features:
    return replace(F, architecture=architecture, tensor_cores=TensorCores(kind, 227 << 10))


@pytest.fixture
def always(small_tiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands of small products are moved, too."""
    monkeypatch.setattr(terms, "START_US", -1e6)


def gemm(a_transpose: bool, b_transpose: bool) -> Build:
    return lambda b, x, y: b.gemm(x, y, a_transpose=a_transpose, b_transpose=b_transpose)


def matmul(b: ow.MLGraphBuilder, x: Any, y: Any) -> Any:
    return b.relu(b.matmul(x, y))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["tf32", "tf32x3"])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((64, 64), (64, 64)),
        ((40, 50), (50, 45)),
        ((3, 40, 70), (3, 70, 36)),
        ((2, 3, 33, 17), (1, 3, 17, 18)),
        ((5, 20, 64), (64, 33)),
        ((4, 1, 20, 24), (3, 24, 70)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], kind: Kind) -> None:
    check_kernels(
        matmul, array(*left), array(*right), constants=(), kernels=("triton", "triton"), features=features(kind)
    )


def cut_off(array: np.ndarray) -> np.ndarray:
    """Elements as tensor cores read them: without the last 13 bits."""
    return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1.37, 1e30])
@pytest.mark.parametrize("draw", ["uniform", "standard_normal", "lognormal"])
def test_tf32_constants_make_up_for_bits_that_tensor_cores_cut_off(draw: str, scale: float) -> None:
    random = np.random.default_rng(5)
    x, constant = (np.abs(getattr(random, draw)(size=200_000)).astype(np.float32) for _ in range(2))
    constant *= np.float32(scale)
    products = (x * constant.astype(np.float64)).sum()
    cut = (cut_off(x) * cut_off(constant).astype(np.float64)).sum() / products - 1
    made_up = (cut_off(x) * cut_off(terms.in_tf32(constant)).astype(np.float64)).sum() / products - 1
    assert cut < -5e-4
    assert abs(made_up) < 5e-5


def test_tf32_constants_keep_infinities_nan_and_small_whole_numbers() -> None:
    values = np.float32([np.inf, -np.inf, 3.4028235e38, -3.4028235e38, 0, -0.0, 1, -1, 2, 4, 1e-45])
    np.testing.assert_array_equal(terms.in_tf32(values)[:-1], values[:-1])
    np.testing.assert_array_equal(np.signbit(terms.in_tf32(values)), np.signbit(values))
    assert np.isnan(terms.in_tf32(np.uint32([0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000]).view(np.float32))).all()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("kind", "transposes", "count"),
    [
        ("tf32", (False, False), 2),
        ("tf32", (False, True), 1),  # both operands are in order
        ("tf32", (True, True), 2),
        ("tf32", (True, False), 3),
        ("tf32x3", (True, False), 2),  # the left operand is divided in registers, in any order
        ("tf32x3", (True, True), 1),
    ],
)
def test_gemm(kind: Kind, transposes: tuple[bool, bool], count: int) -> None:
    a, b = (array(*((70, 40) if t else (40, 70))) for t in (transposes[0], not transposes[1]))
    check_kernels(gemm(*transposes), a, b, constants=(), kernels=("triton",) * count, features=features(kind))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("kind", "count"), [("tf32", 1), ("tf32x3", 1), ("float16", 3)])
def test_tf32_terms_of_transposed_operands_are_read_in_place(kind: Kind, count: int) -> None:
    """In the order of their terms, which costs no kernel unless they are rounded; else they are moved once."""
    heads: Build = lambda b, q, k: b.matmul(  # noqa: E731
        b.transpose(q, permutation=[0, 2, 1, 3]), b.transpose(k, permutation=[0, 2, 3, 1])
    )
    arrays = array(2, 33, 3, 20), array(2, 40, 3, 20)
    tolerance = 2e-2 if kind == "float16" else None
    check_kernels(
        heads, *arrays, constants=(), kernels=["triton"] * count, features=features(kind), tolerance=tolerance
    )
    values: Build = lambda b, w, v: b.relu(b.matmul(w, b.transpose(v, permutation=[0, 2, 1, 3])))  # noqa: E731
    kernels = ["triton"] * (3 if kind == "float16" else 2)
    arrays = array(2, 3, 36, 40), array(2, 40, 3, 20)
    check_kernels(values, *arrays, constants=(), kernels=kernels, features=features(kind), tolerance=tolerance)


@pytest.mark.usefixtures("always")
def test_shared_keys_are_not_repeated() -> None:
    def build(b: ow.MLGraphBuilder, q: Any, k: Any) -> Any:
        return b.matmul(q, b.expand(b.reshape(k, [2, 1, 20, 40]), [2, 3, 20, 40]))

    arrays = array(2, 3, 33, 20), array(2, 20, 40)
    check_kernels(build, *arrays, constants=(), kernels=("triton", "triton"), features=features("tf32"))


@pytest.mark.usefixtures("always")
def test_tf32_terms_of_views_are_copied() -> None:
    """Reversed, sliced and computed operands, and results of products, get memory of their own."""
    given = features("tf32")
    a, b = array(40, 64), array(64, 36)
    chain: Build = lambda b, x, y: b.matmul(b.transpose(b.matmul(x, y)), x)  # noqa: E731
    check_kernels(chain, a, b, constants=(), kernels=("triton",) * 5, features=given)
    sliced: Build = lambda b, x, y: b.matmul(b.slice(x, [1, 2], [36, 32]), b.slice(y, [2, 0], [32, 36]))  # noqa: E731
    check_kernels(sliced, a, b, constants=(), kernels=("", "", "triton", "triton"), features=given)
    turned: Build = lambda b, x, y: b.matmul(b.reverse(x, axes=[0]), y)  # noqa: E731
    check_kernels(turned, a, b, constants=(), kernels=("", "triton", "triton"), features=given)


@pytest.mark.usefixtures("always")
def test_constants_are_moved_at_build() -> None:
    a, b = array(40, 70), array(70, 36)
    check_kernels(matmul, a, b, constants=(1,), features=features("tf32"))
    check_kernels(matmul, a, b, constants=(0,), kernels=("triton", "triton"), features=features("tf32"))
    check_kernels(
        matmul, a, b, constants=(0,), features=features("tf32x3")
    )  # the other operand is divided in registers


@pytest.mark.usefixtures("always")
def test_filters() -> None:
    """The terms of an input that is a filter go over taps and channels."""
    build: Build = lambda b, x, w: b.conv2d(x, w, input_layout="nhwc", filter_layout="hwio")  # noqa: E731
    image, filter = array(1, 8, 7, 20), array(3, 3, 20, 33)
    check_kernels(build, image, filter, constants=(), kernels=("triton", "triton"), features=features("tf32"))
    build = lambda b, x, w: b.conv2d(x, w, filter_layout="hwio")  # noqa: E731
    image = np.ascontiguousarray(image.transpose(0, 3, 1, 2))
    # The image keeps its order, so that it would not help to move the filter.
    check_kernels(build, image, filter, constants=(), features=features("tf32"))


@pytest.mark.usefixtures("always")
def test_tf32_terms_of_non_finite_values() -> None:
    """Infinities, NaN and values that TF32 rounds to infinity, in either operand or in both."""
    a, b = array(40, 64), array(64, 36)
    # What is multiplied by the largest values is a power of two, which has no rest, and leaves the product finite.
    a[:, [3, 8]], b[3] = np.copysign(2.0**-7, a[:, [3, 8]]), np.copysign(2.0**-7, b[3])
    a[0, 0], a[1, 1], a[2, 2], a[3, 3], a[4, :2] = np.inf, -np.inf, np.nan, 3.402e38, (np.inf, -np.inf)
    b[5, 0], b[6, 1], b[7, 2], b[8, 3], b[0, 4], b[0, 5], b[3, 6] = np.inf, -np.inf, np.nan, 3.402e38, np.inf, 0, 3.4e38
    a[5, 5], a[6, 0] = 0, np.inf  # 0 times infinity is NaN
    with np.errstate(all="ignore"):
        check_kernels(gemm(False, False), a, b, constants=(), kernels=("triton", "triton"), features=features("tf32x3"))


def test_tf32_terms_are_ordered_for_large_products() -> None:
    """Of TF32, only on architectures that need the order, and not where both operands have it."""

    def count(size: int, build: Build, given: Features, data_type: str = "float32") -> int:
        arrays = [array(size, size, data_type=data_type) for _ in range(2)]
        return sum("terms in order" in step.kernel.title for step in steps_of(build, arrays, (), given))

    plain = gemm(False, False)
    assert [count(size, plain, features("tf32")) for size in (256, 512, 1024, 2048)] == [0, 0, 1, 1]
    assert [count(size, plain, features("tf32x3")) for size in (512, 1024, 2048)] == [0, 0, 1]
    assert count(2048, gemm(False, True), features("tf32")) == 0
    assert count(2048, gemm(True, True), features("tf32")) == 1
    assert count(2048, plain, features("tf32", "sm_80")) == 0
    for kind in HALVES:
        assert [count(size, plain, features(kind)) for size in (512, 1024, 1280, 2048)] == [0, 0, 2, 2]
        assert count(2048, gemm(False, True), features(kind, "sm_80")) == 2
    assert [count(2048, plain, features(kind), "float16") for kind in ("tf32", *HALVES)] == [0, 0, 0]


@pytest.mark.parametrize("kind", HALVES)
def test_tf32_terms_precomputed_only_if_reread(kind: Kind) -> None:
    def moved(rows: int, columns: int, constants: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
        arrays = [array(rows, 2048), array(2048, columns)]
        steps = steps_of(gemm(False, False), arrays, constants, features(kind))
        return [step.places[0].desc.shape for step in steps if "terms in order" in step.kernel.title]

    assert moved(4096, 512) == [(2048, 512)]
    assert moved(512, 4096) == [(512, 2048)]
    assert moved(1024, 512) == []
    assert moved(256, 4096, (1,)) == [(256, 2048)]
    assert moved(64, 16384, (1,)) == []  # it takes as long to read the weights


# ---------------------------------------------------------------------------------------------------------------------
# Operands of 16 bits


def special(x: np.ndarray) -> np.ndarray:
    """An array that has infinities, NaN, numbers between two of a smaller type, and such as it has not."""
    tie, one = 1 + 2.0**-8, np.float32(1)
    values = [
        np.inf,
        -np.inf,
        np.nan,
        3.4e38,
        -3.4e38,
        65519,
        65520,
        1e-40,
        -1e-7,
        -0.0,
        tie,
        tie + 2.0**-7,
        tie + 2.0**-20,
    ]
    values += [np.uint32(0xFFFFFFFF).view(np.float32), one + 2.0**-11, one + 3 * 2.0**-11, np.nextafter(one, 2 * one)]
    made = x.copy()
    made.reshape(-1)[: 3 * len(values) : 3] = values
    return made


def words(x: np.ndarray) -> np.ndarray:
    """The bits of an array of 16-bit elements; all NaN are one."""
    return np.where(np.isnan(x), np.uint16(0x7E00), x.view(np.uint16)) if x.dtype == np.float16 else x


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("constants", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize(("left", "right"), [((40, 50), (50, 45)), ((2, 3, 33, 24), (1, 3, 24, 18))])
def test_operands_are_rounded_once_with_the_same_results(
    left: tuple[int, ...],
    right: tuple[int, ...],
    constants: tuple[int, ...],
    kind: Kind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As they would be in the kernel of the product: the bits of its results are the same."""
    arrays = special(array(*left)), special(array(*right))
    inputs = [each for number, each in enumerate(arrays) if number not in constants]
    steps = steps_of(matmul, arrays, constants, features(kind))
    assert len(steps) == 3 - len(constants)
    with np.errstate(all="ignore"):
        found = run_steps(steps, inputs)
        monkeypatch.setattr(terms, "START_US", 1e6)
        (step,) = steps_of(matmul, arrays, (), features(kind))
        assert f"tl.cast(a_tile, tl.{kind})" in step.kernel.source
        np.testing.assert_array_equal(found, run_steps([step], arrays))
    assert np.isfinite(found).any()
    assert np.isnan(found).any()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", HALVES)
def test_constants_are_rounded_as_by_the_kernel(kind: Kind) -> None:
    """To nearest even, in half the memory."""
    weights = special(array(33, 45))
    values = special(array(1, 33 * 45)).reshape(-1)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with np.errstate(all="ignore"):
        wanted = values.astype(ml_dtypes.bfloat16 if kind == "bfloat16" else np.float16)
        found = terms.in_bfloat16(values) if kind == "bfloat16" else terms.in_float16(values)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(found.view(np.uint16)[numbers], wanted.view(np.uint16)[numbers])
    assert np.isnan(found.view(wanted.dtype).astype(np.float32)[~numbers]).all()
    (step,) = steps_of(lambda b, x, y: b.matmul(x, y), (array(40, 33), weights), (0, 1), features(kind))
    constant = step.places[1]
    assert str(constant.desc) == f"{kind}[45, 40]"
    assert constant.desc.byte_length == constant.array.nbytes == 45 * 40 * 2
    first = steps_of(lambda b, x, y: b.matmul(x, y), (array(40, 33), weights), (0,), features(kind))[0]
    laid = replace(first, places=(first.places[0], replace(first.places[1], kind="output")))
    np.testing.assert_array_equal(words(run_steps([laid], [weights]).view(constant.array.dtype)), words(constant.array))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_filters_are_rounded_and_images_are_not(kind: Kind, layout: Any) -> None:
    image, filter = array(1, 8, 8, 8), array(32, 8, 3, 3)
    build: Build = lambda b, x, w: b.conv2d(x, w, input_layout=layout)  # noqa: E731
    check_kernels(build, image, filter, features=features(kind), tolerance=2e-2)
    check_kernels(build, image, filter, constants=(), kernels=("triton",) * 2, features=features(kind), tolerance=2e-2)
    (step,) = steps_of(build, (image, filter), (1,), features(kind))
    assert sum(f", tl.{kind})" in line for line in step.kernel.source.splitlines()) == 1
    assert {str(place.desc).partition("[")[0] for place in step.places} == {"float32", kind}


@pytest.mark.usefixtures("always")
def test_products_share_an_operand_in_order() -> None:
    """Queries, keys and values are products of the same array."""

    def build(b: ow.MLGraphBuilder, x: Any, q: Any, k: Any, v: Any) -> Any:
        return b.matmul(b.matmul(b.relu(b.matmul(x, q)), b.transpose(b.matmul(x, k))), b.matmul(x, v))

    arrays, given = [array(40, 50), *(array(50, 40) for _ in range(3))], features("bfloat16")
    titles = [step.kernel.title for step in steps_of(build, arrays, (1, 2, 3), given)]
    assert sum("in order" in title for title in titles) == 1 + 2 + 2  # x; queries and keys; scores and values
    assert len(titles) == 5 + 5
    check_kernels(build, *arrays, constants=(1, 2, 3), kernels=["triton"] * 10, features=given, tolerance=3e-2)


def test_ordered_copy_renewed_after_write() -> None:
    kernels, desc = Kernels(_Rules(F), F), Desc("float32", (4,))
    x = kernels.array_in(desc, Buffer(desc, "between"))

    def ordered() -> Buffer:
        target = Input(0, desc)
        kernels.append([GpuKernel("order", "y = x", (x, target), (False, True), (1, 1, 1))], ())
        return kernels.places[target]

    first = ordered()
    assert ordered() is first
    kernels.append([GpuKernel("write", "x = 1", (x,), (True,), (1, 1, 1))], ())
    second = ordered()
    assert second is not first
    assert ordered() is second
    assert [step.kernel.title for step in kernels.steps] == ["order", "write", "order"]


@pytest.mark.parametrize("kind", HALVES)
def test_memory_of_operands_of_16_bits(kind: Kind, small_tiles: None, always: None) -> None:
    context = context_on(CpuDriver(), kind)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [40, 64])
    graph = builder.build({"y": builder.matmul(x, builder.constant(array(64, 36)), label="scores")})
    found = context.compute(graph, {"x": array(40, 64)})["y"]
    np.testing.assert_allclose(found, array(40, 64) @ array(64, 36), rtol=0.1, atol=0.1)
    runner: Any = next(step.part.runner for step in program_of(graph).steps if step.part)
    assert [place.array.nbytes for place in runner._constants] == [36 * 64 * 2]
    assert runner.plan.peak == 40 * 64 * 2
    assert "kernels 0 to 1" in graph.explain()
    profile = str(graph.profile({"x": array(40, 64)}, detail=True))
    assert f"terms in order, in {kind}" in profile
    assert f"{kind}[40, 64]" in profile


def test_tiles_are_measured_with_numbers_of_bfloat16(
    small_tiles: None, always: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constant has random numbers of its type, because power, and so speed, depends on them."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    deviations = dict[str, float]()

    def time(driver: CpuDriver, kernels: Sequence[GpuKernel], memory: dict[Any, int], copies: Any) -> float:
        addresses = {**memory, **{buffer: its[-1] for buffer, its in copies.items()}}
        for buffer in {buffer for kernel in kernels for buffer in kernel.bindings}.intersection(addresses):
            values = driver.bytes(addresses[buffer], buffer.desc.byte_length)
            if isinstance(buffer.desc, Bfloat16):
                numbers = (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                numbers = values.view(buffer.desc.data_type)
            deviations[str(buffer.desc)] = float(numbers.std())
        return 1.0

    monkeypatch.setattr(measured_tiles, "microseconds", time)
    builder = ow.MLGraphBuilder(context_on(CpuDriver(), "bfloat16"))
    product = builder.matmul(builder.input("x", "float32", [40, 64]), builder.constant(array(64, 40)))
    graph = builder.build({"y": product})
    (found,) = graph.tune(seconds=0).measurements
    assert "measured tiles" in found.seconds
    assert deviations == {"float32[40, 64]": pytest.approx(1, abs=0.1), "bfloat16[40, 64]": pytest.approx(1, abs=0.1)}


def test_graphs(monkeypatch: pytest.MonkeyPatch, small_tiles: None, always: None) -> None:
    """The kernel is one of the graph, and the operand in order is an intermediate of its plan."""
    context = context_on(CpuDriver(), "tf32")
    builder = ow.MLGraphBuilder(context)
    a, b = builder.input("a", "float32", [40, 64]), builder.input("b", "float32", [64, 36])
    graph = builder.build({"y": builder.relu(builder.matmul(a, b, label="scores"))})
    feeds = {"a": array(40, 64), "b": array(64, 36)}
    found = context.compute(graph, feeds)["y"]
    np.testing.assert_allclose(found, np.maximum(feeds["a"] @ feeds["b"], 0), rtol=2e-3, atol=2e-2)
    assert "kernels 0 to 1" in graph.explain()
    profile = graph.profile(feeds, detail=True)
    assert "scores" in str(profile)
    assert "terms in order" in str(profile)
    runner: Any = next(step.part.runner for step in program_of(graph).steps if step.part)
    assert [place.desc.shape for place in runner._between] == [(36, 64)]
    assert runner.plan.peak == 36 * 64 * 4


# ---------------------------------------------------------------------------------------------------------------------
# Compilation


@pytest.mark.parametrize("kind", ["tf32", "tf32x3"])
def test_tensor_cores_read_operands_as_they_are_copied(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products are wgmma of TF32, whose operands are copied to shared memory in 16 bytes each, and stay there."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    arrays = [np.zeros((2048, 2048), np.float32)] * 2
    before, product = [step.kernel for step in steps_of(gemm(False, False), arrays, (), features(kind))]
    monkeypatch.setattr(terms, "IN_ORDER", ())
    plain, *_ = [step.kernel for step in steps_of(gemm(False, False), arrays, (), features(kind))]
    images = [binary.image for binary in compiler.binaries([before, product, plain], "sm_90")]
    moving, ordered, unordered = (instructions(image, tmp_path) for image in images)
    assert [any(map(WGMMA_TF32.fullmatch, each)) for each in (moving, ordered, unordered)] == [False, True, True]
    in_vectors = [name for name in moving if name.startswith(("LDG.", "STG."))]
    assert in_vectors
    assert all(name.endswith(".128") for name in in_vectors)
    assert {name for name in ordered if name.startswith("LDGSTS")} == {"LDGSTS.E.BYPASS.128"}
    last = max(k for k, name in enumerate(ordered) if WGMMA_TF32.fullmatch(name))
    assert not any(name.startswith("STS") for name in ordered[:last])  # to shared memory by registers
    without = unordered[: max(k for k, name in enumerate(unordered) if WGMMA_TF32.fullmatch(name))]
    assert "LDGSTS.E" in without or any(name.startswith("STS") for name in without)  # 4 bytes each, or divided


@pytest.mark.parametrize("kind", HALVES)
def test_tensor_cores_read_operands_of_16_bits_from_shared_memory(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel of the product converts nothing, and copies 16 bytes at a time."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    arrays = [np.zeros((2048, 2048), np.float32)] * 2
    steps = steps_of(gemm(False, False), arrays, (), features(kind))
    images = [binary.image for binary in compiler.binaries([step.kernel for step in steps], "sm_90")]
    left, right, product = (instructions(image, tmp_path) for image in images)
    for moving in (left, right):
        assert any(name.startswith("F2FP") for name in moving)
        in_vectors = [name for name in moving if name.startswith(("LDG.", "STG."))]
        assert in_vectors
        assert all(name.endswith(".128") for name in in_vectors)
    assert any(re.fullmatch(r"HGMMA\.64x\d+x16\.F32(\.BF16)?", name) for name in product)
    assert not any(name.startswith("F2F") for name in product)
    assert {name for name in product if name.startswith("LDGSTS")} == {"LDGSTS.E.BYPASS.128"}
    last = max(k for k, name in enumerate(product) if name.startswith("HGMMA"))
    assert not any(
        name.startswith(("LDS.", "LDSM", "STS")) for name in product[:last]
    )  # neither to registers nor from them


@pytest.mark.parametrize("architecture", ["sm_80", "sm_100", "sm_120"])
@pytest.mark.parametrize("kind", HALVES)
def test_kernels_of_16_bits_compile(
    kind: Kind, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that round, and products of one or two operands that are rounded, or of an image and a filter."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    given = replace(F, architecture=architecture, tensor_cores=TensorCores(kind, 99 << 10))
    steps = steps_of(gemm(True, False), [np.zeros((2048, 2048), np.float32)] * 2, (), given)
    steps += steps_of(matmul, [np.zeros((256, 256), np.float32)] * 2, (1,), given)
    convolution: Build = lambda b, x, w: b.conv2d(x, w, padding=[1, 1, 1, 1])  # noqa: E731
    steps += steps_of(
        convolution, [np.zeros((1, 64, 28, 28), np.float32), np.zeros((64, 64, 3, 3), np.float32)], (1,), given
    )
    assert [step.kernel.title.split(":")[0] for step in steps[:5]] == [*["gemm"] * 3, "matmul + relu", "conv2d"]
    for binary in compiler.binaries([step.kernel for step in steps], architecture):
        assert binary.image.startswith(b"\x7fELF")
        assert binary.shared <= 99 << 10
