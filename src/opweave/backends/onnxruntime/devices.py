"""The devices that ONNX Runtime can drive here: the CPU, and those of plug-in execution providers."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from functools import cache

from .. import Device, Precision
from .plugins import plugins


@cache
def cpu() -> Device:
    """The CPU, by the engine's own kernels."""
    import onnxruntime

    precisions: tuple[Precision, ...] = ("float32", "ieee")
    if has_bfloat16():
        precisions += ("bfloat16",)
    text = f"{_processor()}, ONNX Runtime {onnxruntime.__version__}"
    return Device("cpu", "cpu", "onnxruntime", text, precisions=precisions)


def has_bfloat16() -> bool:
    """Whether the engine has products of bfloat16 for this processor: on Linux, for ARM processors with such instructions."""
    if platform.system() != "Linux" or platform.machine() not in ("aarch64", "arm64"):
        return False
    return any("bf16" in line.split() for line in _cpu_lines("Features"))


def devices() -> list[Device]:
    """The CPU, and the devices of plug-in providers."""
    return [cpu(), *(plugin.device(_processor()) for plugin in plugins())]


def named(name: str) -> Device | None:
    """The device that a name means; plug-ins are registered only if it is not the CPU."""
    if name == cpu().name:
        return cpu()
    return next((plugin.device(_processor()) for plugin in plugins() if plugin.answers_to(name)), None)


@cache
def _processor() -> str:
    return next(_cpu_lines("model name"), "") or platform.processor() or platform.machine()


def _cpu_lines(name: str) -> Iterator[str]:
    """What Linux says about each processor, in the lines of this name."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith(name):
                    yield line.partition(":")[2].strip()
    except OSError:
        return
