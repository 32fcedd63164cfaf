"""The devices that ONNX Runtime can drive here: the CPU, and those of plug-in execution providers."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from functools import cache

from ...support.processors import processor_lines, processor_name
from .. import Device, Precision


@cache
def version() -> str:
    """The version of the engine, read in its package without loading it, which processes on OpenVINO need not do.

    Packages of several names contain the module, so that those that describe themselves are not looked for.
    """
    if "onnxruntime" not in sys.modules:
        spec = importlib.util.find_spec("onnxruntime")
        if spec is not None and spec.origin:
            with open(spec.origin, encoding="utf-8") as file:
                found = re.search(r'^__version__ = "([^"]+)"', file.read(), re.MULTILINE)
            if found:
                return found[1]
    import onnxruntime

    return str(onnxruntime.__version__)


@cache
def cpu() -> Device:
    """The CPU, by the engine's own kernels."""
    precisions: tuple[Precision, ...] = ("float32", "ieee")
    if has_bfloat16():
        precisions += ("bfloat16",)
    text = f"{processor_name()}, ONNX Runtime {version()}"
    return Device("cpu", "cpu", "onnxruntime", text, precisions=precisions)


def has_bfloat16() -> bool:
    """Whether the engine has products of bfloat16 for this processor: on Linux, for ARM processors with such instructions."""
    if platform.system() != "Linux" or platform.machine() not in ("aarch64", "arm64"):
        return False
    return any("bf16" in line.split() for line in processor_lines("Features"))


def devices() -> list[Device]:
    """The CPU, and the devices of plug-in providers."""
    from .plugins import plugins

    return [cpu(), *(plugin.device(processor_name()) for plugin in plugins())]


def named(name: str) -> Device | None:
    """The device that a name means; plug-ins are registered only if it is not the CPU."""
    if name == cpu().name:
        return cpu()
    from .plugins import plugins

    return next((plugin.device(processor_name()) for plugin in plugins() if plugin.answers_to(name)), None)
