"""Products by packed weights with CUDA: as C++ on the processor, and for tensor cores by Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from support import cuda_on_cpu
from support.packed_products import (
    Form,
    PackedKernels,
    PackedProduct,
    kernels_of,
    product_of,
    random_form,
    random_k_form,
)
from support.triton_on_cpu import interpreter
from triton_cases import SMALL, F

from opweave.backends.cuda import compiler
from opweave.backends.gpu.contraction import expansion
from opweave.expr.gpu import Features, TensorCores

needs_triton = pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")

PLAIN = replace(F, tensor_cores=None)


def computed(kernels: PackedKernels, product: PackedProduct) -> np.ndarray:
    """The result of kernels, of which those in CUDA C++ run as C++."""
    runner = cuda_on_cpu.Runner()
    for source, array in kernels.arrays(product).items():
        runner.fill(source, array)
    for kernel in kernels.kernels:
        for buffer in kernel.bindings:
            if buffer not in runner.buffers:
                runner.fill(buffer)
        if kernel.compiler == "triton":
            interpreter().run(kernel, [runner.buffers[buffer].view(buffer.desc) for buffer in kernel.bindings])
        else:
            runner.run([kernel])
    return runner.result(kernels.kernels[-1].bindings[-1])


def check_form(form: Form, features: Features, *, is_constant: bool = True, tolerance: float | None = None) -> Any:
    product = product_of(form)
    kernels = kernels_of(product, features, is_constant=is_constant, choose=lambda _: (SMALL, 1))
    product.check(computed(kernels, product), tolerance)
    return kernels


FORMS = (
    Form(1, 4096, 32),
    Form(1, 4096, 32, others="zero_point"),
    Form(1, 2048, 36, others="minimum bias", data_type="float16"),
    Form(2, 1024, 64, bits=8, block_terms=128, others="zero_point"),
    Form(12, 256, 40, others="bias"),
    Form(1, 96, 33, bits=8, block_terms=1, block_lines=3, others="zero_point"),
    Form(2, 60, 10, block_terms=20, others="zero_point"),
    Form(1, 37, 5, padding=2, block_terms=5),
    Form(1, 41, 7, bits=8, padding=2, block_terms=5),
    Form(3, 2048, 16, block_terms=1, block_lines=8, others="zero_point"),
    Form(1, 64, 24, block_terms=64, block_lines=24, others="zero_point"),
    Form(70, 45, 37, bits=8, block_terms=8),
    Form(33, 64, 64, block_terms=1, block_lines=8, others="zero_point"),
    Form(130, 96, 20, others="minimum"),
    Form(1, 1024, 64, upper_bits=2, block_terms=16, others="scale_unit", units=4),  # Q6_K
    Form(1, 1024, 36, upper_bits=1, others="minimum scale_unit minimum_unit", units=4),  # Q5_K
    Form(2, 512, 33, bits=2, block_terms=16, others="minimum scale_unit minimum_unit", units=2),  # Q2_K
    Form(1, 512, 12, bits=2, upper_bits=1, block_terms=16, others="scale_unit", units=2),  # Q3_K
    Form(20, 64, 24, bits=2, upper_bits=1, block_terms=16, others="scale_unit"),
    Form(1, 64, 24, bits=2, block_terms=8, others="zero_point"),  # words of two blocks
)


@pytest.mark.long(rows=4)
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "input"])
def test_forms(form: Form, is_constant: bool) -> None:
    kernels = check_form(form, PLAIN, is_constant=is_constant)
    assert len(kernels.kernels) == 1


@pytest.mark.long(rows=4)
@pytest.mark.parametrize("seed", range(40))
def test_random_forms(seed: int) -> None:
    check_form(random_form(np.random.default_rng(seed)), PLAIN, is_constant=seed % 3 > 0)


@pytest.mark.long(rows=4)
@pytest.mark.parametrize("seed", range(40))
def test_random_forms_of_2_to_6_bits(seed: int) -> None:
    check_form(random_k_form(np.random.default_rng(seed)), PLAIN, is_constant=seed % 3 > 0)


def test_one_row_computes_four_lines_of_words() -> None:
    kernels = check_form(Form(1, 2048, 1024), PLAIN)
    (kernel,) = kernels.kernels
    assert "fours of lines" in kernel.source
    assert "in vectors of 8" in kernel.source
    before, _, _ = kernel.source.partition("opweave_kernel(")[2].partition("await_previous();")
    assert "b0[" in before  # constants load while the preceding kernel drains


TENSOR_FORMS = (
    Form(64, 128, 64),
    Form(48, 96, 40, others="zero_point bias"),
    Form(48, 96, 40, others="minimum", block_terms=16),
    Form(40, 75, 45, bits=8, block_terms=8, others="zero_point"),
    Form(40, 75, 45, block_terms=5, others="zero_point", padding=3),
    Form(64, 64, 64, block_terms=1, block_lines=8, others="zero_point"),
    Form(33, 64, 48, block_terms=64, block_lines=48, others="zero_point"),
    Form(40, 128, 64, others="zero_point", data_type="float16"),
    Form(40, 60, 64, bits=8, block_terms=1, block_lines=64),
    Form(48, 256, 40, upper_bits=2, block_terms=16, others="scale_unit"),
    Form(40, 256, 64, upper_bits=1, others="minimum scale_unit minimum_unit", units=2),
    Form(40, 128, 48, bits=2, block_terms=16, others="minimum scale_unit minimum_unit"),
    Form(40, 256, 64, bits=2, upper_bits=1, block_terms=16, others="scale_unit", units=4, data_type="float16"),
    Form(40, 120, 48, upper_bits=2, block_terms=24, others="scale_unit", units=5),
    Form(40, 72, 48, bits=2, block_terms=8, others="zero_point"),
)
KINDS: tuple[Literal["tf32x3", "tf32", "bfloat16", "float16"], ...] = ("tf32x3", "tf32", "bfloat16", "float16")


@pytest.mark.parametrize(("columns", "is_loop"), [(1024, False), (8192, True)])
def test_loops_keep_their_constant_in_a_register(columns: int, is_loop: bool) -> None:
    """An instruction has place for one constant, the mask; without a loop, registers are worth more. All lines share the
    address of the first word, and that of the first scale.
    """
    (kernel,) = check_form(Form(1, 2048, columns), PLAIN).kernels
    assert ("| in_register(0x4b000000u)" in kernel.source) == is_loop
    assert ("for (var chunk" in kernel.source) == is_loop
    assert kernel.source.count("b0[u64(start + part) + 512u]") == 1
    assert kernel.source.count("b0_scale[u64(line * 64u + part / 4u) + 64u]") == 1


@needs_triton
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("form", TENSOR_FORMS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_tensor_cores_expand_tiles(form: Form, kind: Literal["tf32x3", "tf32", "bfloat16", "float16"]) -> None:
    features = replace(F, architecture="sm_90", tensor_cores=TensorCores(kind, 227 << 10))
    tolerance = {"tf32x3": None, "tf32": 2e-3, "bfloat16": 2e-2, "float16": 2e-3}[kind]
    kernels = check_form(form, features, tolerance=tolerance)
    assert kernels.contraction.method == "tensor"
    assert "tl.interleave" in kernels.kernels[-1].source


@needs_triton
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("small_tiles", [3], indirect=True)
def test_parts_of_sums() -> None:
    product = product_of(Form(40, 256, 40, others="zero_point"))
    kernels = kernels_of(product, F, choose=lambda _: (SMALL, 3))
    product.check(computed(kernels, product))


@needs_triton
@pytest.mark.long(rows=2)
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("seed", range(24))
def test_random_forms_on_tensor_cores(seed: int) -> None:
    form = random_form(np.random.default_rng(seed))
    form = replace(form, rows=max(form.rows, 33))
    check_form(form, F)


@needs_triton
@pytest.mark.usefixtures("small_tiles")
def test_weights_that_are_no_constants_take_no_tensor_cores() -> None:
    kernels = check_form(Form(64, 128, 64), F, is_constant=False)
    assert [kernel.compiler for kernel in kernels.kernels] == [""]


def test_scales_that_float16_has_are_stored_as_float16() -> None:
    limits = np.float32([65504, 65520, 2**-14, 2**-15, 1 + 2**-10, 1 + 2**-11, -0.0, -65504, np.inf, -np.inf, np.nan])
    halves = np.arange(0, 2**16, 97, dtype=np.uint16).view(np.float16).astype(np.float32)
    others: np.ndarray = np.random.default_rng(0).integers(0, 2**32, 500, dtype=np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        for number in np.concatenate([limits, halves, others]):
            is_normal = number == 0 or abs(number) >= np.finfo(np.float16).tiny
            is_half = is_normal and np.float32(np.float16(number)) == number
            assert expansion._are_halves(np.float32([[1, number]])) == is_half, number
    last: np.ndarray = np.ones(expansion.PART + 1, np.float32)
    last[-1] = 65520
    assert not expansion._are_halves(last)
