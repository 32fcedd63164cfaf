"""What was measured on a WebGPU device, as data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

CHANNELS = 100


@dataclass
class GpuLine:
    """One way to do it; times in milliseconds, the middle and the best of all runs.

    Attributes:
        test: of the issue: 1 to 4; 0 for what is compared with.
        conv: what does the convolution.
        rest: what does add and relu.
        gpu: what the kernels take on the device, by timestamps.
        wall: from the first call until the device is done.
        row: one of many runs in a row, waited for at the end.
        kernels: how many there are.
        copies: between device and host, in one run.
    """

    test: int
    conv: str
    rest: str
    gpu: tuple[float, float] | None = None
    wall: tuple[float, float] | None = None
    row: float | None = None
    kernels: int | None = None
    copies: int | None = None


@dataclass
class GpuReport:
    """What was measured on a device.

    Attributes:
        device: its name, as it says itself.
        software: whether a processor pretends to be one.
        machine: what else the numbers are of.
        size: height and width of the images.
        repeat: how often each way was measured.
        shared: whether the buffer that the graph wrote is the one that the user's shaders read, the very same object.
        lines: the ways.
        missing: what is left out, and why.
    """

    device: str
    software: bool
    machine: str
    size: int
    repeat: int
    shared: bool = False
    lines: list[GpuLine] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def line(self, test: int) -> GpuLine:
        """The first line of a test."""
        return next(line for line in self.lines if line.test == test)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, text: str) -> GpuReport:
        """What `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        lines = [GpuLine(**line) for line in values.pop("lines")]
        for line in lines:  # pairs are lists in JSON
            line.gpu, line.wall = _pair(line.gpu), _pair(line.wall)
        return cls(**values, lines=lines)


def _pair(values: Sequence[float] | None) -> tuple[float, float] | None:
    return None if values is None else (values[0], values[1])
