"""The WebGPU adapters of this machine: GPUs, and software adapters, which compute on the processor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

from ...support import packages
from ...support.errors import MissingExtraError, NotSupportedError, cause_text, import_extra
from .. import Device, PowerPreference, Precision, hardware

WANTED_FEATURES = ("shader-f16", "shader-int64", "subgroup", "timestamp-query")

WANTED_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z",
)
"""Limits to raise to the adapter's limits; by default a device gets the minimum that WebGPU guarantees."""

INSTALL = "pip install 'opweave[webgpu]'"

MISSING: tuple[tuple[str, Literal["cpu", "gpu"], str, str], ...] = (
    (
        "gpu",
        "gpu",
        "any vendor's GPU through WebGPU",
        "there is no adapter for a GPU; a driver for Vulkan, Metal or DirectX 12 makes one",
    ),
    (
        "gpu-software",
        "cpu",
        "a software adapter, which runs on the processor; slow",
        "there is no driver of that kind; on Debian and Ubuntu, apt install mesa-vulkan-drivers libvulkan1",
    ),
)
"""Devices to list as unavailable if absent: name, kind, description, and the missing driver."""

PURPOSE = "running on WebGPU devices"

PRECISIONS: tuple[Precision, ...] = ("float32", "ieee")
"""Precisions of all devices: kernels compute exactly as their WGSL says."""

_processes: set[int] = set()
"""Ids of processes that have requested devices: this process, and the ancestors that it was forked from."""


def is_installed() -> bool:
    return packages.is_installed("wgpu")


def may_have_hardware() -> bool:
    """Whether a hardware adapter may exist, judged without loading wgpu, which takes much memory."""
    return is_installed() and hardware.may_have_gpu()


@contextmanager
def _quiet() -> Iterator[None]:
    """Set XDG_RUNTIME_DIR if it is missing: otherwise Mesa's EGL complains on standard error."""
    is_missing = sys.platform == "linux" and "XDG_RUNTIME_DIR" not in os.environ
    if is_missing:
        os.environ["XDG_RUNTIME_DIR"] = "/tmp"
    try:
        yield
    finally:
        if is_missing:
            os.environ.pop("XDG_RUNTIME_DIR", None)


@cache
def adapters() -> dict[str, Any]:
    """Adapters by the names of their devices: `gpu`, `gpu:1`, … for hardware, `gpu-software` for software."""
    wgpu = import_extra("wgpu", "webgpu", PURPOSE)
    with _quiet():
        listed = wgpu.gpu.enumerate_adapters_sync()
    # OpenGL lists the same hardware again, with poor compute shaders.
    usable = [adapter for adapter in listed if adapter.info["backend_type"] != "OpenGL"]
    rank = {"DiscreteGPU": 0, "IntegratedGPU": 1}
    usable.sort(key=lambda adapter: rank.get(adapter.info["adapter_type"], 2))
    named: dict[str, Any] = {}
    seen: set[tuple[str, int]] = set()
    for adapter in usable:
        info = adapter.info
        identity = info["device"], info["device_id"]
        if identity in seen and info["backend_type"] != "Vulkan":
            continue  # the same adapter through another API, such as DirectX 12 and Vulkan
        seen.add(identity)
        base = "gpu-software" if is_software(info) else "gpu"
        count = sum(name.partition(":")[0] == base for name in named)
        named[f"{base}:{count}" if count else base] = adapter
    return named


def is_software(info: Any) -> bool:
    return str(info["adapter_type"]) == "CPU"


def devices(backend: str) -> list[Device]:
    """The devices of all adapters, hardware first, then the unavailable ones with a hint."""
    available, fault = [], ""
    try:
        by_name = adapters() if is_installed() else {}
    except Exception as error:  # the package is broken, or its library
        by_name, fault = {}, str(error) if isinstance(error, MissingExtraError) else f"wgpu fails: {cause_text(error)}"
    for name, adapter in by_name.items():
        info = adapter.info
        software = is_software(info)
        text = f"{info['device']}, WebGPU on {info['backend_type']}"
        available.append(
            Device(
                name,
                "cpu" if software else "gpu",  # the processor computes, so do not report an accelerator
                backend,
                f"{text}; software, slow" if software else text,
                low_power=str(info["adapter_type"]) == "IntegratedGPU",
                precisions=PRECISIONS,
                is_software=software,
            )
        )
    names = {device.name for device in available}
    missing = [
        Device(
            *(name, kind, backend, description),
            available=False,
            hint=fault or (hint if is_installed() else INSTALL),
            fault=fault,
        )
        for name, kind, description, hint in MISSING
        if name not in names and (name == "gpu" or sys.platform == "linux")
    ]
    return [*available, *missing]


def request_device(name: str, power_preference: PowerPreference) -> Any:
    """Request a device of an adapter, with the features and limits that kernels use.

    Raises:
        NotSupportedError: the adapter gives no device, or this process was forked from one that has devices.
    """
    if _processes - {os.getpid()}:
        raise NotSupportedError(
            f"{name}: this process was forked from one that uses WebGPU, whose drivers would hang here; start processes "
            "with multiprocessing's 'spawn' method"
        )
    _processes.add(os.getpid())
    adapter = adapters()[name]
    features = [feature for feature in WANTED_FEATURES if feature in adapter.features]
    limits = {limit: adapter.limits[limit] for limit in WANTED_LIMITS if limit in adapter.limits}
    try:
        with _quiet():
            return adapter.request_device_sync(
                label="opweave",
                required_features=features,
                required_limits=limits,
            )
    except Exception as error:  # wgpu raises RuntimeError and its own errors
        raise NotSupportedError(f"the adapter {adapter.info['device']!r} gives no device: {error}") from error
