"""The devices that ONNX Runtime can drive here: the CPU, and those of plug-in execution providers."""

from __future__ import annotations

import platform
from functools import cache

from .. import Device
from .plugins import plugins


@cache
def cpu() -> Device:
    """The CPU, by the engine's own kernels."""
    import onnxruntime

    return Device("cpu", "cpu", "onnxruntime", f"{_processor()}, ONNX Runtime {onnxruntime.__version__}")


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
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
