"""Attention on tensor cores: Triton's interpreter against NumPy, and Triton's compiler, neither of which takes a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from triton_cases import F, array, check_kernels, run_steps, steps_of

import opweave as ow
from opweave import composites
from opweave.backends.cuda import compiler
from opweave.backends.gpu import patterns
from opweave.backends.gpu.rules import flash_tensor
from opweave.expr.gpu import TensorCores

pytestmark = pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")

FEW = replace(F, units=1)
"""Features of a device that a few programs keep busy, so that tiles have more than 16 queries."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_tensor, "MIN_PRODUCTS", 0)


def dot_product(**options: Any) -> Any:
    def build(b: ow.MLGraphBuilder, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return composites.scaled_dot_product_attention(b, q, k, v, mask=mask, **options)

    return build


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads", "groups", "queries", "keys", "size", "values"),
    [
        (2, 2, 64, 64, 16, 16),
        (4, 2, 40, 70, 24, 20),
        (2, 1, 17, 16, 64, 33),
        (1, 1, 100, 100, 32, 32),
    ],
)
def test_sizes(heads: int, groups: int, queries: int, keys: int, size: int, values: int, causal: bool) -> None:
    q, k, v = array(2, heads, queries, size), array(2, groups, keys, size), array(2, groups, keys, values)
    check_kernels(dot_product(causal=causal), q, k, v, constants=(), tolerance=2e-5)
    check_kernels(dot_product(causal=causal, scale=0.25), q, k, v, constants=(), tolerance=2e-5, features=FEW)


@pytest.mark.parametrize("features", [F, FEW])
def test_halves(features: Any) -> None:
    q, k, v = (array(1, 2, 80, 64, data_type="float16") + np.float16(number) for number in range(3))
    check_kernels(dot_product(causal=True), q, k, v, constants=(), tolerance=3e-3, features=features)


@pytest.mark.parametrize("shape", [(40, 50), (2, 1, 1, 50), (1, 4, 40, 50)])
@pytest.mark.parametrize("data_type", ["float32", "uint8"])
def test_masks(shape: tuple[int, ...], data_type: Any) -> None:
    q, k, v, mask = array(2, 4, 40, 16), array(2, 2, 50, 16), array(2, 2, 50, 16), array(*shape)
    if data_type == "uint8":
        mask = (mask > 0).astype(np.uint8)
    else:
        mask[..., 3] = -np.inf
    check_kernels(dot_product(), q, k, v, mask, constants=(), tolerance=2e-5)


def test_flash_attention_of_fully_masked_query() -> None:
    q, k, v, mask = array(1, 2, 40, 16), array(1, 2, 50, 16), array(1, 2, 50, 16), np.ones((40, 50), np.uint8)
    mask[7] = 0
    check_kernels(dot_product(), q, k, v, mask, constants=(), tolerance=2e-5)


def test_infinite_and_missing_numbers() -> None:
    q, k, v = array(1, 1, 32, 16), array(1, 1, 48, 16), array(1, 1, 48, 16)
    q[0, 0, 3, 2], v[0, 0, 44, 1] = np.nan, np.inf
    check_kernels(dot_product(), q, k, v, constants=(), tolerance=2e-5)


def in_one_projection(b: ow.MLGraphBuilder, q: Any, k: Any, v: Any) -> Any:
    return composites.multi_head_attention(b, q, k, v, heads=4)


def test_heads_side_by_side() -> None:
    check_kernels(in_one_projection, array(2, 33, 64), array(2, 35, 64), array(2, 35, 48), constants=(), tolerance=2e-5)


@pytest.mark.parametrize("options", [{}, {"window": 20}, {"softcap": 3.0}, {"sinks": True}])
@pytest.mark.parametrize("tables", [False, True])
def test_flash_attention_of_prompt_with_cache(tables: bool, options: Any) -> None:
    """Positions behind a cache of keys and values whose room holds NaN, turned by rotary tables."""
    options, new, room = dict(options), 24, 90
    given: dict[str, np.ndarray] = {
        "query": array(2, new, 64),
        "key": array(2, new, 32) + 1,
        "value": array(2, new, 32) - 1,
        "past_key": array(2, 2, room, 16),
        "past_value": array(2, 2, room, 16) + 2,
        "lengths": np.int32([room - new, 5]),
    }
    for batch, length in enumerate(given["lengths"]):
        given["past_key"][batch, :, length:] = given["past_value"][batch, :, length:] = np.nan
    if tables:
        given |= {"cosines": array(room, 8), "sines": array(room, 8) / 2}
    if options.pop("sinks", False):
        given["sinks"] = array(4)
    names = list(given)

    def build(b: ow.MLGraphBuilder, *operands: Any) -> Any:
        named = dict(zip(names, operands, strict=True))
        return composites.group_query_attention(b, **named, heads=4, groups=2, **options)[0]

    steps = steps_of(build, list(given.values()), (), F)
    assert [step.kernel.compiler for step in steps if "attention" in step.kernel.title][-1] == "triton"
    found = run_steps(steps, list(given.values()))
    context = ow.ml.create_context(device="reference")
    builder = ow.MLGraphBuilder(context)
    operands = [builder.input(name, a.dtype.name, list(a.shape)) for name, a in given.items()]  # type: ignore[arg-type]
    wanted = context.compute(builder.build({"y": build(builder, *operands)}), given)["y"]
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_attention_in_parts() -> None:
    """Products and a softmax, as models have them, become the same kernel."""

    def build(b: ow.MLGraphBuilder, q: Any, k: Any, v: Any) -> Any:
        scores = b.mul(b.matmul(q, b.transpose(k, permutation=[0, 1, 3, 2])), b.constant(np.float32(0.25)))
        return b.matmul(b.softmax(scores, 3), v)

    check_kernels(build, *(array(2, 2, 40, 16) + number for number in range(3)), constants=(), tolerance=2e-5)


@pytest.mark.parametrize("features", [F, replace(F, tensor_cores=None)], ids=["Triton", "CUDA C++"])
def test_attention_whose_missing_weights_become_zero(features: Any) -> None:
    """The form of PyTorch's exporter, in which a query that sees no key gives 0; so does one with a score that is NaN."""

    def build(b: ow.MLGraphBuilder, q: Any, k: Any, v: Any, mask: Any) -> Any:
        weights = b.softmax(b.add(b.matmul(q, b.transpose(k, permutation=[0, 1, 3, 2])), mask), 3)
        return b.matmul(b.where(b.is_nan(weights), 0.0, weights), v)

    mask = np.where(array(40, 48) > 1, -np.inf, array(40, 48)).astype(np.float32)
    mask[7], mask[9, 3], mask[11, 4] = -np.inf, np.nan, np.inf
    arrays = array(2, 2, 40, 16), array(2, 2, 48, 16) + 1, array(2, 2, 48, 16) + 2, mask
    kernel = "triton" if features.tensor_cores else ""
    check_kernels(build, *arrays, constants=(3,), kernels=(kernel,), tolerance=2e-5, features=features)


@pytest.mark.parametrize("zero", [1.0, np.nan])
def test_weights_that_become_other_numbers_are_not_fused(zero: float) -> None:
    def build(b: ow.MLGraphBuilder, q: Any, k: Any, v: Any) -> Any:
        weights = b.softmax(b.matmul(q, k), 3)
        return b.matmul(b.where(b.is_nan(weights), zero, weights), v)

    q = array(1, 2, 40, 16)
    q[0, 0, 3, 2] = np.nan
    arrays = q, array(1, 2, 16, 48), array(1, 2, 48, 16)
    assert len(steps_of(build, arrays, (), F)) > 1


def test_attention_of_long_queries_is_not_fused() -> None:
    """The channels of an image attend to each other: few queries, whose size is the number of pixels."""

    def build(b: ow.MLGraphBuilder, q: Any, k: Any, v: Any) -> Any:
        return b.matmul(b.softmax(b.matmul(q, k), 3), v)

    for size, count in ((256, 1), (257, 3)):
        arrays = array(1, 2, 12, size), array(1, 2, size, 12), array(1, 2, 12, size)
        steps = steps_of(build, arrays, (), F)
        assert (len([step for step in steps if "attention" in step.kernel.title]) == 1) == (count == 1)


def test_much_work_is_one_kernel_on_tensor_cores_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_OPERATIONS", 0)

    def build(b: ow.MLGraphBuilder, q: Any, k: Any, v: Any) -> Any:
        return b.matmul(b.softmax(b.matmul(q, k), axis=3), v)

    q, k, v = array(1, 2, 40, 16), array(1, 2, 16, 50), array(1, 2, 50, 16)
    check_kernels(build, q, k, v, constants=(), tolerance=2e-5)
    monkeypatch.setattr(flash_tensor, "MAX_SIZE", 8)
    assert len(steps_of(build, [q, k, v], (), F)) == 3
    assert len(steps_of(build, [q, k, v], (), replace(F, tensor_cores=None))) == 3


def test_flash_attention_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    def compilers(queries: int, size: int = 16, features: Any = F) -> set[str]:
        arrays = [array(1, 2, n, size) for n in (queries, 64, 64)]
        return {step.kernel.compiler for step in steps_of(dot_product(), arrays, (), features)}

    assert compilers(32) == {"triton"}
    assert compilers(1) == {""}  # memory is the limit
    assert compilers(32, 257) == {""}
    assert compilers(32, features=replace(F, tensor_cores=None)) == {""}
    monkeypatch.setattr(flash_tensor, "MIN_PRODUCTS", 1 << 22)
    assert compilers(31) == {""}  # of another size: operations that are alike are planned once


ARCHITECTURES = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "sm_120": 99 << 10}
"""Architectures, with the bytes of shared memory that a kernel may ask for."""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tiles_compile(
    request: pytest.FixtureRequest, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sizes with `--all`, else one."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))
    kernels = []
    for data_type, size in (("float16", 64), ("float32", 64), ("float16", 128), ("float32", 128), ("float16", 256)):
        arrays = [array(1, 4, 256, size, data_type=data_type) for _ in range(3)]
        features = replace(FEW, tensor_cores=TensorCores("tf32x3", ARCHITECTURES[architecture]))
        kernels += [step.kernel for step in steps_of(dot_product(causal=True), arrays, (), features)]
    assert {kernel.compiler for kernel in kernels} == {"triton"}
    number = list(ARCHITECTURES).index(architecture)
    chosen = kernels if request.config.option.all else [kernels[number]]
    for kernel, binary in zip(chosen, compiler.binaries(chosen, architecture), strict=True):
        assert binary.image.startswith(b"\x7fELF")
        assert (binary.invocations, binary.trailing) == (kernel.block, 2)
        assert binary.shared <= ARCHITECTURES[architecture]
