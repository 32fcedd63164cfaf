"""Runs kernels in WGSL on arrays, on the first Vulkan adapter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from opweave.expr.gpu import Buffer, Features, GpuKernel

ALL = Features(float16=True, int64=True, max_buffers=16)
PACKED = Features(float16=False, int64=True, max_buffers=16)


@lru_cache
def device(features: Features = ALL) -> Any:
    """The device of the tests, which has what `features` say."""
    os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")  # Mesa says so much without it
    wgpu = pytest.importorskip("wgpu", reason="needs the extra webgpu")
    adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] == "Vulkan"]
    if not adapters:
        pytest.skip("no Vulkan adapter")
    wanted = ["shader-int64"] + ["shader-f16"] * features.float16
    missing = [name for name in wanted if name not in adapters[0].features]
    if missing:
        pytest.skip(f"{adapters[0].info['device']} lacks {', '.join(missing)}")
    limits = {"max-storage-buffers-per-shader-stage": features.max_buffers}
    return adapters[0].request_device_sync(required_features=wanted, required_limits=limits)


class Runner:
    """Runs kernels on arrays."""

    def __init__(self, features: Features = ALL) -> None:
        self.device = device(features)
        import wgpu

        usage = wgpu.BufferUsage
        self.usage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        self.buffers: dict[Buffer, Any] = {}

    def fill(self, buffer: Buffer, array: np.ndarray | None = None) -> None:
        """Memory for a buffer; without an array, it holds nonsense."""
        padded = np.full(max(4, -(-buffer.desc.byte_length // 4) * 4), 0xAB, np.uint8)
        if array is not None:
            padded[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.buffers[buffer] = self.device.create_buffer_with_data(data=padded, usage=self.usage)

    def run(self, made: Sequence[GpuKernel]) -> None:
        encoder = self.device.create_command_encoder()
        for kernel in made:
            for buffer in kernel.bindings:
                if buffer not in self.buffers:
                    self.fill(buffer)
            module = self.device.create_shader_module(code=kernel.source)
            pipeline = self.device.create_compute_pipeline(
                layout="auto", compute={"module": module, "entry_point": "main"}
            )
            entries = [
                {"binding": k, "resource": {"buffer": self.buffers[buffer]}} for k, buffer in enumerate(kernel.bindings)
            ]
            group = self.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
            step = encoder.begin_compute_pass()
            step.set_pipeline(pipeline)
            step.set_bind_group(0, group)
            step.dispatch_workgroups(*kernel.workgroups)
            step.end()
        self.device.queue.submit([encoder.finish()])

    def result(self, buffer: Buffer) -> np.ndarray:
        data = np.frombuffer(self.device.queue.read_buffer(self.buffers[buffer]), np.uint8)
        desc = buffer.desc
        return data[: desc.byte_length].view(desc.data_type).reshape(desc.shape)
