"""Graphs with names on CUDA, on the processor: sizes are arguments of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from row_sample import examples
from support.cuda_driver import CpuDriver, context_on
from support.gpu_sizes import CLOSE, EXACT, SIZES, check

import opweave as ow


@pytest.fixture
def context(driver: CpuDriver) -> ow.MLContext:
    made = context_on(driver)
    made._state.drafts = True
    return made


def sizes() -> Sequence[Mapping[str, int]]:
    """The sizes to compare: the static graph of each is compiled as C++."""
    return SIZES[: examples(len(SIZES), in_sample=2)]


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("name", EXACT)
def test_results_equal_those_of_static_graphs(context: ow.MLContext, name: str) -> None:
    check(context, EXACT[name], "float32", 0, sizes())


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("name", CLOSE)
def test_sums_are_close_to_those_of_static_graphs(context: ow.MLContext, name: str) -> None:
    check(context, CLOSE[name], "float16", 4e-3, sizes())
    check(context, CLOSE[name], "float32", 1e-5, sizes())
