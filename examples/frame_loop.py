"""A loop of frames: a shader draws them small, a network enlarges them by three, a shader composes what is shown.

All three work on the same WebGPU device and on the same buffers: what the first shader writes is the input of the graph, and
what the graph writes is read by the second, in the order of the device's queue. No frame ever comes to the host. The same
loop is then run with copies through the host, as it is where the two sides do not share memory.

    pip install 'opweave[webgpu,demo]'
    python examples/frame_loop.py
    python examples/frame_loop.py --width 640 --frames 200 --output frame.png

The picture that is written is the last frame, enlarged without the network on the left, with it on the right, and three times
as large in the lens. The network and its weights are those of `opweave demo`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import opweave as ow

try:
    import wgpu
    from PIL import Image
    from rich.console import Console
    from rich.progress import track

    from opweave.demo.colours import bicubic, merge, psnr, split
    from opweave.demo.enlarger import Enlarger
    from opweave.demo.network import FACTOR
except ImportError as error:
    sys.exit(f"{error.name} is missing: pip install 'opweave[webgpu,demo]'")

SHADERS = Path(__file__).with_name("frame_loop.wgsl").read_text()
STEP = 1 / 30
"""Seconds from frame to frame; the last one is at 0."""
SIDE = 8
"""Of a workgroup, as in the shaders."""
STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST


def gpu_device() -> Any:
    """The best device that there is, with the largest buffers and workgroups that it can have."""
    adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    kinds = "max-buffer", "max-storage-buffer", "max-compute"
    limits = {name: limit for name, limit in adapter.limits.items() if name.startswith(kinds)}
    return adapter.request_device_sync(required_limits=limits)


class Shader:
    """A compute shader that makes a picture, bound to its buffers."""

    def __init__(self, device: Any, module: Any, entry: str, size: tuple[int, int], pixels: int, *buffers: Any) -> None:
        """Bind it.

        Args:
            device: where it runs.
            module: the compiled shaders.
            entry: its name there.
            size: width and height of the picture.
            pixels: how many of them, side by side, an invocation makes.
            *buffers: in the order of its bindings, after the one for the frame.
        """
        self._device, self._size = device, size
        self._pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": entry})
        self._frame = device.create_buffer(size=16, usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST)
        bindings = {"draw": (0, 1), "compose": (0, 2, 3, 4)}[entry]
        self._group = device.create_bind_group(
            layout=self._pipeline.get_bind_group_layout(0),
            entries=[
                {"binding": at, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
                for at, buffer in zip(bindings, (self._frame, *buffers), strict=True)
            ],
        )
        width, height = size
        self._groups = math.ceil(width / pixels / SIDE), math.ceil(height / SIDE)

    def __call__(self, seconds: float) -> None:
        """Give the frame of this time to the queue."""
        frame = np.zeros((), [("size", "u4", 2), ("seconds", "f4"), ("divider", "f4")])
        frame["size"], frame["seconds"] = self._size, seconds
        frame["divider"] = 0.5 + 0.12 * math.sin(0.9 * seconds)
        self._device.queue.write_buffer(self._frame, 0, frame)
        encoder = self._device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self._pipeline)
        compute.set_bind_group(0, self._group)
        compute.dispatch_workgroups(*self._groups)
        compute.end()
        self._device.queue.submit([encoder.finish()])


class FrameLoop:
    """Shaders and a graph, on one device."""

    def __init__(self, device: Any, width: int, height: int) -> None:
        """Compile shaders and graph for small frames of `width` x `height` pixels."""
        self.device, self.context = device, ow.ml.create_context(device)
        self.small_size, self.large_size = (width, height), (FACTOR * width, FACTOR * height)
        self.graph = Enlarger(self.context, height, width, tile=max(width, height)).graph
        # The shaders' buffers are the graph's tensors.
        self.small, self.large = self._buffer(self.small_size, 3), self._buffer(self.large_size, 3)
        self.picture = self._buffer(self.large_size, 4)
        desc = self.graph.inputs["small"], self.graph.outputs["large"]
        self.source = self.context.tensor_from(self.small, desc[0].data_type, desc[0].shape)
        self.target = self.context.tensor_from(self.large, desc[1].data_type, desc[1].shape)

        # To compare with: tensors of the graph's own, which only copies lead to.
        self.far_source = self.context.create_tensor(desc[0].data_type, desc[0].shape, writable=True)
        self.far_target = self.context.create_tensor(desc[1].data_type, desc[1].shape, readable=True)

        module = device.create_shader_module(code=SHADERS)
        self.draw = Shader(device, module, "draw", self.small_size, 4, self.small)
        self.draw_large = Shader(device, module, "draw", self.large_size, 4, self.large)
        self.compose = Shader(device, module, "compose", self.large_size, 1, self.small, self.large, self.picture)

    def _buffer(self, size: tuple[int, int], channels: int) -> Any:
        return self.device.create_buffer(size=size[0] * size[1] * channels, usage=STORAGE)

    def shared(self, seconds: float) -> None:
        """A frame in shared buffers: nothing is copied, and nothing waited for."""
        self.draw(seconds)
        self.context.dispatch(self.graph, {"small": self.source}, {"large": self.target})
        self.compose(seconds)

    def copied(self, seconds: float) -> None:
        """A frame through the host."""
        self.draw(seconds)
        frame = np.frombuffer(self.device.queue.read_buffer(self.small), np.uint8)
        self.context.write_tensor(self.far_source, frame)
        self.context.dispatch(self.graph, {"small": self.far_source}, {"large": self.far_target})
        enlarged = self.context.read_tensor(self.far_target)
        self.device.queue.write_buffer(self.large, 0, enlarged)
        self.compose(seconds)

    def pixels(self, buffer: Any, size: tuple[int, int], channels: int = 3) -> np.ndarray:
        """The picture in a buffer; waits for it."""
        return np.frombuffer(self.device.queue.read_buffer(buffer), np.uint8).reshape(size[1], size[0], channels)

    def rate(self, frame: Callable[[float], None], frames: int, title: str) -> float:
        """Measure the rate of `frames` frames, until the last one is finished; return frames a second."""
        console = Console(stderr=True)
        frame(0.0)
        self.device.queue.read_buffer(self.picture, 0, 4)
        start = time.perf_counter()
        for number in track(range(frames), title, console=console, transient=True, disable=not console.is_terminal):
            frame((number - frames + 1) * STEP)
        self.device.queue.read_buffer(self.picture, 0, 4)
        return frames / (time.perf_counter() - start)


def quality(loop: FrameLoop) -> tuple[float, float]:
    """How near the last enlarged frame comes to the scene drawn large: with a bicubic filter, and with the network, in dB."""
    small, large = loop.pixels(loop.small, loop.small_size), loop.pixels(loop.large, loop.large_size)
    loop.draw_large(0.0)
    drawn = loop.pixels(loop.large, loop.large_size)
    luma, blue, red = (bicubic(plane, *loop.large_size) for plane in split(small))
    return psnr(merge(luma, blue, red), drawn), psnr(large, drawn)


def main() -> None:
    """Run both loops; print what they took, and write a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, help="of the small frames, in pixels; default: 640, 96 in software")
    parser.add_argument("--frames", type=int, help="how many to make in each way; default: 120, 2 in software")
    parser.add_argument("--output", type=Path, default=Path("frame_loop.png"), help="the picture to write")
    options = parser.parse_args()
    if not options.output.parent.is_dir():
        sys.exit(f"--output: there is no folder {options.output.parent}")
    device = gpu_device()
    software = device.adapter_info["adapter_type"] == "CPU"
    width = options.width or (96 if software else 640)
    frames = options.frames or (2 if software else 120)
    if width < 16 or width % 16 or frames < 1:
        sys.exit("--width takes multiples of 16, --frames a number of 1 or more")

    loop = FrameLoop(device, width, width * 9 // 16 // 4 * 4)
    print(f"{device.adapter_info['device']}: frames of {_size(loop.small_size)}, enlarged to {_size(loop.large_size)}")
    ow.memory.copies.reset()
    copied = loop.rate(loop.copied, frames, "through the host")
    tensors = ow.memory.copies.count // (frames + 1)
    print(f"through the host: {copied:.1f} frames a second; a frame copies {tensors} tensors, and as many buffers")
    ow.memory.copies.reset()
    shared = loop.rate(loop.shared, frames, "shared buffers")
    print(f"shared buffers:   {shared:.1f} frames a second; {ow.memory.copies.count} copies")

    picture = Image.fromarray(loop.pixels(loop.picture, loop.large_size, 4)).convert("RGB")
    picture.save(options.output)
    before, after = quality(loop)
    print(f"against the scene drawn large: bicubic {before:.2f} dB, network {after:.2f} dB")
    print(f"written: {options.output}")


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


if __name__ == "__main__":
    main()
