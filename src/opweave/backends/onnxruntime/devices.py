"""Devices of ONNX Runtime on this machine: the CPU, and the devices of plug-in execution providers."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from functools import cache

from ...support.errors import import_extra
from ...support.processors import processor_lines, processor_name
from .. import Device, Precision


@cache
def version() -> str:
    """Read the engine's version from its source: processes that use OpenVINO never import it."""
    if "onnxruntime" not in sys.modules:
        spec = importlib.util.find_spec("onnxruntime")
        if spec is not None and spec.origin:
            with open(spec.origin, encoding="utf-8") as file:
                match = re.search(r'^__version__ = "([^"]+)"', file.read(), re.MULTILINE)
            if match:
                return match[1]
    return str(import_extra("onnxruntime", "", "computing on the processor").__version__)


@cache
def cpu() -> Device:
    precisions: tuple[Precision, ...] = ("float32", "ieee")
    if has_bfloat16():
        precisions += ("bfloat16",)
    text = f"{processor_name()}, ONNX Runtime {version()}"
    return Device("cpu", "cpu", "onnxruntime", text, precisions=precisions)


def has_bfloat16() -> bool:
    """Whether the engine has bfloat16 products for this processor: Linux on ARM with bf16 instructions."""
    if platform.system() != "Linux" or platform.machine() not in ("aarch64", "arm64"):
        return False
    return any("bf16" in line.split() for line in processor_lines("Features"))


def devices() -> list[Device]:
    from .plugins import plugins

    return [cpu(), *(plugin.device(processor_name()) for plugin in plugins())]


def find_device(name: str) -> Device | None:
    """Return the device with this name; plug-ins are registered only if the name is not the CPU's."""
    if name == cpu().name:
        return cpu()
    from .plugins import plugins

    return next((plugin.device(processor_name()) for plugin in plugins() if plugin.answers_to(name)), None)
