"""The devices that ONNX Runtime can drive here."""

from __future__ import annotations

import platform
from functools import cache

from .. import Device


@cache
def devices() -> list[Device]:
    """The CPU; accelerators come with their own execution providers."""
    import onnxruntime

    engine = f"ONNX Runtime {onnxruntime.__version__}"
    return [Device("cpu", "cpu", "onnxruntime", f"{_processor()}, {engine}")]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
