"""The user's side of the tests on a GPU: shaders, pipelines and commands with wgpu alone, on the queue of the device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import wgpu

GROUP = 256
"""Invocations of a workgroup, as in the shaders."""

# Of each entry point; relu has no weights.
BINDINGS = {"conv2d": (0, 1, 2), "add": (0, 1, 2), "relu": (0, 2), "add_relu": (0, 1, 2)}


class Shaders:
    """Pipelines of a framework's own on a device.

    Attributes:
        device: the device, which graphs run on, too.
    """

    def __init__(self, device: Any, channels: int, size: int) -> None:
        self.device, self._grid = device, (-(-size * size // GROUP), channels, 1)
        module = device.create_shader_module(code=Path(__file__).with_name("shaders.wgsl").read_text())
        self._pipelines: dict[str, Any] = {}
        for name in BINDINGS:
            used = {"channels": channels, "size": size} if name == "conv2d" else {"size": size}
            self._pipelines[name] = device.create_compute_pipeline(
                layout="auto", compute={"module": module, "entry_point": name, "constants": used}
            )
        self._nbytes = 4 * channels * size * size

    def buffer(self, data: np.ndarray | None = None) -> Any:
        """A buffer for an image, or with these data."""
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        made = self.device.create_buffer(size=self._nbytes if data is None else data.nbytes, usage=usage)
        if data is not None:
            self.device.queue.write_buffer(made, 0, np.ascontiguousarray(data))
        return made

    def bound(self, *calls: tuple[str, Sequence[Any]]) -> Commands:
        """Commands that call shaders, each with its buffers, one after the other."""
        made = []
        for name, buffers in calls:
            pipeline = self._pipelines[name]
            entries = [
                {"binding": at, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
                for at, buffer in zip(BINDINGS[name], buffers, strict=True)
            ]
            group = self.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
            made.append((pipeline, group))
        return Commands(self.device, made, self._grid)


class Commands:
    """Dispatches of a framework's own, given to the queue when called. Nothing is waited for.

    Attributes:
        count: how many there are.
    """

    def __init__(self, device: Any, calls: Sequence[tuple[Any, Any]], grid: tuple[int, int, int]) -> None:
        self._device, self._calls, self._grid = device, calls, grid
        self.count = len(calls)

    def __call__(self) -> None:
        encoder = self._device.create_command_encoder()
        self._encode(encoder)
        self._device.queue.submit([encoder.finish()])

    def _encode(self, encoder: Any, **options: Any) -> None:
        compute = encoder.begin_compute_pass(**options)
        for pipeline, group in self._calls:
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*self._grid)
        compute.end()

    def seconds(self, repeat: int) -> list[float]:
        """The time between the timestamps before and after them on the device, of each of several runs."""
        device, usage = self._device, wgpu.BufferUsage
        queries = device.create_query_set(type="timestamp", count=2)
        found = device.create_buffer(size=16, usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
        writes = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
        times = []
        for _ in range(repeat + 1):
            encoder = device.create_command_encoder()
            self._encode(encoder, timestamp_writes=writes)
            encoder.resolve_query_set(queries, 0, 2, found, 0)
            device.queue.submit([encoder.finish()])
            start, end = np.frombuffer(device.queue.read_buffer(found), np.uint64).tolist()
            times.append((end - start) / 1e9)
        return times[1:]
