"""The adapter that tests of WebGPU run on: one of software, so that all machines see the same; else what there is.

The environment variable OPWEAVE_TEST_DEVICE names another one: `OPWEAVE_TEST_DEVICE=gpu pytest tests -k webgpu`.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest

import opweave as ow


@cache
def adapter() -> Any:
    """The adapter; tests that need it are skipped where there is none."""
    pytest.importorskip("wgpu", reason="wgpu is not installed")
    from opweave.backends.webgpu.adapters import adapters

    found = adapters()
    if not found:
        pytest.skip("there is no adapter of WebGPU; Mesa's mesa-vulkan-drivers has one for every processor")
    return found.get(os.environ.get("OPWEAVE_TEST_DEVICE", "gpu-software")) or next(iter(found.values()))


LEAST = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-storage-size": 16384,
}
"""What WebGPU guarantees on every device; wgpu gives more by default."""


def need(feature: str) -> None:
    """Skip the test where there is no adapter, or one without the feature."""
    if feature not in adapter().features:
        pytest.skip(f"the adapter has no {feature}")


@cache
def gpu_context() -> ow.MLContext:
    """A context on it, with all features that Opweave asks for; the same for all tests."""
    from opweave.backends.webgpu.adapters import adapters

    adapter()
    names = {id(found): name for name, found in adapters().items()}
    return ow.ml.create_context(device=names[id(adapter())])
