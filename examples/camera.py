"""A camera whose pictures a network draws as pencil sketches, on the device alone.

Cameras, video decoders and canvases have textures. Here, a shader of Opweave copies a frame from a texture to a tensor, a
small network finds the lines in it, and another shader draws the result to the texture of a canvas. For each frame, all of
this is one command buffer, and nothing comes to the host. The camera is a moving picture, whose frames are uploaded as a
camera's driver would do it.

    pip install 'opweave[webgpu,demo]'
    python examples/camera.py
    python examples/camera.py --width 1280 --frames 300 --output sketch.png

The picture that is written has the last frame on the left, and its sketch on the right.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import opweave as ow

try:
    import wgpu
    from PIL import Image
except ImportError as error:
    sys.exit(f"{error.name} is missing: pip install 'opweave[webgpu,demo]'")

RATE = 60
"""Frames per second of the camera."""
NANOSECONDS = 1e-6
"""Milliseconds of a nanosecond, the unit of timestamps."""


def gpu_device() -> Any:
    """The best device that there is, with timestamps where it has them."""
    adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    kinds = "max-buffer", "max-storage-buffer", "max-compute"
    limits = {name: limit for name, limit in adapter.limits.items() if name.startswith(kinds)}
    features = [name for name in ("timestamp-query",) if name in adapter.features]
    return adapter.request_device_sync(required_features=features, required_limits=limits)


def gaussian(width: float) -> np.ndarray:
    """The filter [1, 1, side, side] of a blur."""
    reach = int(np.ceil(3 * width))
    line = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    square = np.outer(line, line)
    return np.asarray((square / square.sum())[None, None], np.float32)


def sketch(context: ow.MLContext, height: int, width: int) -> ow.MLGraph:
    """A network from a grey picture to a sketch of its lines: the difference of two blurs, through a soft threshold."""
    builder = ow.MLGraphBuilder(context)
    frame = builder.input("frame", "float32", [1, 1, height, width])

    def blurred(reach: float) -> ow.MLOperand:
        weights = gaussian(reach)
        border = weights.shape[2] // 2
        padded = builder.pad(frame, [0, 0, border, border], [0, 0, border, border], mode="edge")
        return builder.conv2d(padded, builder.constant(weights), label=f"blur {reach}")

    lines = blurred(0.8).sub(blurred(1.6)).abs()
    ink = lines.mul(builder.constant("float32", 25.0)).tanh()
    return builder.build({"sketch": builder.constant("float32", 1.0).sub(ink)})


class Camera:
    """A moving picture in the format of cameras and canvases, blue before green and red."""

    def __init__(self, width: int, height: int) -> None:
        """Prepare the parts of frames of `width` x `height` pixels."""
        self._x, self._y = np.meshgrid(np.linspace(-1.6, 1.6, width), np.linspace(-0.9, 0.9, height))
        self._waves = np.sin(9 * self._x) * np.sin(7 * self._y + self._x)

    def frame(self, seconds: float) -> np.ndarray:
        """The frame [height, width, 4] of uint8 at a time."""
        frame = np.empty((*self._x.shape, 4), np.uint8)
        frame[...] = (150 + 40 * self._waves)[..., None]
        for k, colour in enumerate(((60, 90, 220), (90, 200, 110), (210, 140, 60))):
            angle = seconds * (0.7 + 0.3 * k) + 2 * k
            centre = 0.9 * np.cos(angle), 0.5 * np.sin(1.3 * angle)
            inside = (self._x - centre[0]) ** 2 + (self._y - centre[1]) ** 2 < (0.28 + 0.08 * k) ** 2
            frame[inside, :3] = colour
        frame[..., 3] = 255
        return frame


class Sketches:
    """The way of a frame on the device: texture, tensor, network, tensor, texture."""

    def __init__(self, device: Any, width: int, height: int) -> None:
        """Make textures, tensors and the graph."""
        self.device, self.size = device, (width, height, 1)
        self.context = ow.ml.create_context(device)
        usage = wgpu.TextureUsage
        self.camera = self._texture(usage.COPY_DST | usage.TEXTURE_BINDING | usage.COPY_SRC)
        self.canvas = self._texture(usage.RENDER_ATTACHMENT | usage.COPY_SRC)
        self.graph = sketch(self.context, height, width)
        self.source, self.target = (self.context.create_tensor("float32", [1, 1, height, width]) for _ in range(2))
        self.queries: Any = None
        if "timestamp-query" in device.features:
            self.queries = device.create_query_set(type="timestamp", count=2)
            usages = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
            self.times = device.create_buffer(size=16, usage=usages)

    def _texture(self, usage: int) -> Any:
        return self.device.create_texture(size=self.size, format="bgra8unorm", usage=usage)

    def show(self, frame: np.ndarray) -> None:
        """Upload a frame, and submit all that draws its sketch."""
        layout = {"bytes_per_row": 4 * self.size[0]}
        self.device.queue.write_texture({"texture": self.camera}, frame, layout, self.size)
        encoder = self.device.create_command_encoder()
        self.source.copy_from_texture(self.camera, channels="gray", encoder=encoder)
        stamps = None
        if self.queries is not None:
            stamps = {
                "query_set": self.queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1
            }  # fmt: skip
        self.context.dispatch(
            self.graph, {"frame": self.source}, {"sketch": self.target}, encoder=encoder, pass_timestamps=stamps
        )
        self.target.copy_to_texture(self.canvas, channels="gray", encoder=encoder)
        if stamps is not None:
            encoder.resolve_query_set(self.queries, 0, 2, self.times, 0)
        self.device.queue.submit([encoder.finish()])

    def network_time(self) -> float | None:
        """Milliseconds of the network's pass in the last frame; None if the device has no timestamps."""
        if self.queries is None:
            return None
        begin, end = np.frombuffer(self.device.queue.read_buffer(self.times), np.uint64)
        return float(end - begin) * NANOSECONDS

    def pixels(self, texture: Any) -> np.ndarray:
        """The picture in a texture, with red before green and blue; waits for it."""
        width, height, _ = self.size
        raw = self.device.queue.read_texture({"texture": texture}, {"bytes_per_row": 4 * width}, self.size)
        return np.frombuffer(raw, np.uint8).reshape(height, width, 4)[..., 2::-1]


def main() -> None:
    """Show frames at the camera's rate; print what a frame took, and write a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, help="width of the frames in pixels; default: 1280, 256 in software")
    parser.add_argument("--frames", type=int, help="the number of frames; default: 300, 3 in software")
    parser.add_argument("--output", type=Path, default=Path("camera.png"), help="the picture to write")
    options = parser.parse_args()
    if not options.output.parent.is_dir():
        sys.exit(f"--output: there is no folder {options.output.parent}")
    device = gpu_device()
    software = device.adapter_info["adapter_type"] == "CPU"
    width, frames = options.width or (256 if software else 1280), options.frames or (3 if software else 300)
    if width < 64 or width % 64 or frames < 1:
        sys.exit("--width takes multiples of 64, --frames a number of 1 or more")

    camera = Camera(width, width * 9 // 16)
    sketches = Sketches(device, width, width * 9 // 16)
    moving = [camera.frame(number / RATE) for number in range(min(frames, RATE))]
    sketches.show(moving[0])
    sketches.pixels(sketches.canvas)  # kernels are compiled now
    ow.memory.copies.reset()
    start = time.perf_counter()
    for number in range(frames):
        sketches.show(moving[number % len(moving)])
        time.sleep(max(0.0, start + (number + 1) / RATE - time.perf_counter()))
    picture = sketches.pixels(sketches.canvas)
    rate = frames / (time.perf_counter() - start)
    where = device.adapter_info["device"]
    print(f"{where}: {frames} frames of {width} x {width * 9 // 16}, {rate:.1f} a second of the camera's {RATE}")
    if (milliseconds := sketches.network_time()) is not None:
        print(f"the network takes {milliseconds:.3f} ms of a frame on the device")
    print(f"copies a frame, on the device: {ow.memory.copies.count // frames}, texture to tensor and tensor to texture")
    Image.fromarray(np.concatenate([sketches.pixels(sketches.camera), picture], axis=1)).save(options.output)
    print(f"written: {options.output}")


if __name__ == "__main__":
    main()
