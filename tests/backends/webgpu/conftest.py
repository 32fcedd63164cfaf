"""The context and the device of the tests of WebGPU, and random numbers that do not depend on which tests ran before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.webgpu_device import LEAST, adapter, gpu_context
from support.webgpu_kernels import generator

import opweave as ow


@pytest.fixture(scope="module")
def context() -> ow.MLContext:
    return gpu_context()


@pytest.fixture
def device() -> Iterator[Any]:
    """A device with no features, and the least that there is."""
    made = adapter().request_device_sync(required_limits=LEAST)
    yield made
    made.destroy()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    generator.bit_generator.state = np.random.default_rng(0).bit_generator.state
