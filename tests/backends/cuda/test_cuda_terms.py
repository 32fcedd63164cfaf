"""Operands of products in the order of their terms, as tensor cores want TF32: a kernel before the product moves them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from cuda_driver import CpuDriver, context_on
from triton_cases import WGMMA_TF32, Build, F, array, check, instructions, steps_of

import opweave as ow
from opweave.backends.cuda import compiler
from opweave.backends.gpu.contraction import terms
from opweave.expr.gpu import Features, TensorCores

pytestmark = pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")

Kind = Literal["tf32", "tf32x3", "bfloat16", "float16"]


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
    check(matmul, array(*left), array(*right), constants=(), kernels=("triton", "triton"), features=features(kind))


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
    check(gemm(*transposes), a, b, constants=(), kernels=("triton",) * count, features=features(kind))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("kind", "count"), [("tf32", 1), ("tf32x3", 1), ("float16", 1)])
def test_transposed_operands_are_read_where_they_are(kind: Kind, count: int) -> None:
    """In the order of their terms, which costs no kernel; in that of their lines they are moved once."""
    heads: Build = lambda b, q, k: b.matmul(  # noqa: E731
        b.transpose(q, permutation=[0, 2, 1, 3]), b.transpose(k, permutation=[0, 2, 3, 1])
    )
    arrays = array(2, 33, 3, 20), array(2, 40, 3, 20)
    tolerance = 2e-2 if kind == "float16" else 1e-5
    check(heads, *arrays, constants=(), kernels=["triton"] * count, features=features(kind), tolerance=tolerance)
    values: Build = lambda b, w, v: b.relu(b.matmul(w, b.transpose(v, permutation=[0, 2, 1, 3])))  # noqa: E731
    kernels = ["triton"] * (1 if kind == "float16" else 2)
    arrays = array(2, 3, 36, 40), array(2, 40, 3, 20)
    check(values, *arrays, constants=(), kernels=kernels, features=features(kind), tolerance=tolerance)


@pytest.mark.usefixtures("always")
def test_shared_keys_are_not_repeated() -> None:
    def build(b: ow.MLGraphBuilder, q: Any, k: Any) -> Any:
        return b.matmul(q, b.expand(b.reshape(k, [2, 1, 20, 40]), [2, 3, 20, 40]))

    arrays = array(2, 3, 33, 20), array(2, 20, 40)
    check(build, *arrays, constants=(), kernels=("triton", "triton"), features=features("tf32"))


@pytest.mark.usefixtures("always")
def test_views_that_kernels_do_not_read() -> None:
    """Reversed, sliced and computed operands, and results of products, get memory of their own."""
    given = features("tf32")
    a, b = array(40, 64), array(64, 36)
    chain: Build = lambda b, x, y: b.matmul(b.transpose(b.matmul(x, y)), x)  # noqa: E731
    check(chain, a, b, constants=(), kernels=("triton",) * 5, features=given)
    sliced: Build = lambda b, x, y: b.matmul(b.slice(x, [1, 2], [36, 32]), b.slice(y, [2, 0], [32, 36]))  # noqa: E731
    check(sliced, a, b, constants=(), kernels=("", "", "triton", "triton"), features=given)
    turned: Build = lambda b, x, y: b.matmul(b.reverse(x, axes=[0]), y)  # noqa: E731
    check(turned, a, b, constants=(), kernels=("", "triton", "triton"), features=given)


@pytest.mark.usefixtures("always")
def test_constants_are_moved_at_build() -> None:
    a, b = array(40, 70), array(70, 36)
    check(matmul, a, b, constants=(1,), features=features("tf32"))
    check(matmul, a, b, constants=(0,), kernels=("triton", "triton"), features=features("tf32"))
    check(matmul, a, b, constants=(0,), features=features("tf32x3"))  # the other operand is divided in registers


@pytest.mark.usefixtures("always")
def test_filters() -> None:
    """The terms of an input that is a filter go over taps and channels."""
    build: Build = lambda b, x, w: b.conv2d(x, w, input_layout="nhwc", filter_layout="hwio")  # noqa: E731
    image, filter = array(1, 8, 7, 20), array(3, 3, 20, 33)
    check(build, image, filter, constants=(), kernels=("triton", "triton"), features=features("tf32"))
    build = lambda b, x, w: b.conv2d(x, w, filter_layout="hwio")  # noqa: E731
    image = np.ascontiguousarray(image.transpose(0, 3, 1, 2))
    # The image keeps its order, so that it would not help to move the filter.
    check(build, image, filter, constants=(), features=features("tf32"))


@pytest.mark.usefixtures("always")
def test_what_cannot_be_divided() -> None:
    """Infinities, NaN and values that TF32 rounds to infinity, in either operand or in both."""
    a, b = array(40, 64), array(64, 36)
    # What is multiplied by the largest values is a power of two, which has no rest, and leaves the product finite.
    a[:, [3, 8]], b[3] = np.copysign(2.0**-7, a[:, [3, 8]]), np.copysign(2.0**-7, b[3])
    a[0, 0], a[1, 1], a[2, 2], a[3, 3], a[4, :2] = np.inf, -np.inf, np.nan, 3.402e38, (np.inf, -np.inf)
    b[5, 0], b[6, 1], b[7, 2], b[8, 3], b[0, 4], b[0, 5], b[3, 6] = np.inf, -np.inf, np.nan, 3.402e38, np.inf, 0, 3.4e38
    a[5, 5], a[6, 0] = 0, np.inf  # 0 times infinity is NaN
    with np.errstate(all="ignore"):
        check(gemm(False, False), a, b, constants=(), kernels=("triton", "triton"), features=features("tf32x3"))


def test_large_products_pay_for_it() -> None:
    """Only on architectures that need the order, and not where both operands have it, or where no TF32 is multiplied."""

    def count(size: int, build: Build, given: Features, data_type: str = "float32") -> int:
        arrays = [array(size, size, data_type=data_type) for _ in range(2)]
        return sum("terms in order" in step.kernel.title for step in steps_of(build, arrays, (), given))

    plain = gemm(False, False)
    assert [count(size, plain, features("tf32")) for size in (256, 512, 1024, 2048)] == [0, 0, 1, 1]
    assert [count(size, plain, features("tf32x3")) for size in (512, 1024, 2048)] == [0, 0, 1]
    assert count(2048, gemm(False, True), features("tf32")) == 0
    assert count(2048, gemm(True, True), features("tf32")) == 1
    assert count(2048, plain, features("tf32", "sm_80")) == 0
    assert count(2048, plain, features("bfloat16")) == 0
    assert count(2048, plain, features("tf32"), "float16") == 0


def test_graphs(monkeypatch: pytest.MonkeyPatch, small_tiles: None, always: None) -> None:
    """The kernel is one of the graph, and the operand in order is an intermediate of its plan."""
    context = context_on(CpuDriver(), "tf32")
    builder = ow.MLGraphBuilder(context)
    a, b = builder.input("a", "float32", [40, 64]), builder.input("b", "float32", [64, 36])
    graph = builder.build({"y": builder.relu(builder.matmul(a, b, label="scores"))})
    feeds = {"a": array(40, 64), "b": array(64, 36)}
    found = context.compute(graph, feeds)["y"]
    np.testing.assert_allclose(found, np.maximum(feeds["a"] @ feeds["b"], 0), rtol=1e-4, atol=1e-4)
    assert "kernels 0 to 1" in graph.explain()
    profile = graph.profile(feeds, detail=True)
    assert "scores" in str(profile)
    assert "terms in order" in str(profile)
    runner: Any = next(step.part.runner for step in graph._check_alive().steps if step.part)
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
    (plain,) = [step.kernel for step in steps_of(gemm(False, False), arrays, (), features(kind))]
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
