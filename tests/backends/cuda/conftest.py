"""A driver of the CUDA back end that runs on the processor, and a context on it, for one test each."""

from __future__ import annotations

import pytest
from cuda_driver import CpuDriver, context_on
from cuda_on_cpu import compiler

import opweave as ow


@pytest.fixture
def driver() -> CpuDriver:
    compiler()
    return CpuDriver()


@pytest.fixture
def context(driver: CpuDriver) -> ow.MLContext:
    return context_on(driver)
