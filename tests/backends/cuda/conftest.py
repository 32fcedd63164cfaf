"""A driver of the CUDA back end that runs on the processor, and contexts on it, for one test each."""

from __future__ import annotations

import pytest
from support.cuda_driver import HARDWARE, CpuDriver, context_on, cuda_context
from support.cuda_on_cpu import compiler
from triton_cases import SMALL

import opweave as ow
from opweave.backends.gpu.contraction import tensor, tensor_tiles


@pytest.fixture
def driver() -> CpuDriver:
    compiler()
    return CpuDriver()


@pytest.fixture
def context(driver: CpuDriver) -> ow.MLContext:
    return context_on(driver)


@pytest.fixture
def device_context(driver: CpuDriver) -> ow.MLContext:
    """A context on the NVIDIA GPU that OPWEAVE_TEST_DEVICE names, or else on the processor."""
    return cuda_context() if HARDWARE else context_on(driver)


@pytest.fixture
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor cores for small problems, with small tiles, and as many parts of each sum as the test says."""
    splits = getattr(request, "param", 1)
    monkeypatch.setattr(tensor, "MIN_PRODUCTS", 0)
    monkeypatch.setattr(tensor_tiles, "is_faster", lambda *_: True)
    monkeypatch.setattr(tensor_tiles, "choose", lambda *_: (SMALL, splits))
