"""Graphs with names of each family at odd sizes on an NVIDIA GPU, also under compute-sanitizer (`make sanitize-gpu`)."""

from __future__ import annotations

import pytest
from support.cuda_driver import HARDWARE, cuda_context
from support.gpu_sizes import (
    ATTENTION,
    CLOSE,
    CONVOLUTIONS,
    DIVIDED_SUMS,
    EXACT,
    INTEGER_PRODUCTS,
    PRODUCT_SIZES,
    PRODUCTS,
    RECURRENCES,
    SIZES,
    STAGED,
    Build,
    check_with_reference,
)

import opweave as ow

FAMILIES: dict[str, dict[str, Build]] = {
    "exact": EXACT,
    "close": CLOSE,
    "products": PRODUCTS,
    "convolutions": CONVOLUTIONS,
    "attention": ATTENTION,
    "staged": STAGED,
    "recurrences": RECURRENCES,
}

pytestmark = pytest.mark.skipif(not HARDWARE, reason="needs an NVIDIA GPU: make test-gpu")


@pytest.fixture
def context() -> ow.MLContext:
    made = cuda_context()
    made._state.drafts = True
    return made


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, cases in FAMILIES.items() for name in cases])
def test_odd_sizes_on_cuda(context: ow.MLContext, family: str, name: str) -> None:
    sizes = SIZES if family in ("exact", "close") else PRODUCT_SIZES
    check_with_reference(context, FAMILIES[family][name], "float32", 1e-4, sizes[:3])


@pytest.mark.parametrize("name", [*CLOSE, *PRODUCTS, *CONVOLUTIONS, *ATTENTION])
def test_odd_sizes_in_float16_on_cuda(context: ow.MLContext, name: str) -> None:
    sizes = SIZES if name in CLOSE else PRODUCT_SIZES
    make = {**CLOSE, **PRODUCTS, **CONVOLUTIONS, **ATTENTION}[name]
    check_with_reference(context, make, "float16", 2e-2, sizes[:3])


@pytest.mark.parametrize("name", INTEGER_PRODUCTS)
def test_odd_sizes_of_integers_on_cuda(context: ow.MLContext, name: str) -> None:
    check_with_reference(context, INTEGER_PRODUCTS[name], "int8", 0, PRODUCT_SIZES[:3])


@pytest.mark.parametrize("name", DIVIDED_SUMS)
def test_divided_sums_on_cuda(context: ow.MLContext, name: str) -> None:
    make, sizes = DIVIDED_SUMS[name]
    check_with_reference(context, make, "float32", 1e-4, sizes)
