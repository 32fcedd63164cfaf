"""Devices of OpenVINO on this machine."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from typing import Any, Literal

from ...support import packages
from ...support.errors import MissingExtraError, cause_text, import_extra
from .. import Device, Precision

INSTALL = "pip install 'opweave[openvino]'"
PURPOSE = "running on OpenVINO"

VENDORS = ("/sys/class/accel/accel*/device/vendor", "/sys/class/drm/renderD*/device/vendor")

INTEL = "0x8086"

WINDOWS_GPU = "/dev/dxg"
"""Device file of GPUs of all vendors in the Windows Subsystem for Linux."""

Kind = Literal["cpu", "gpu", "npu"]

NAMES: dict[str, tuple[str, Kind]] = {"CPU": ("cpu", "cpu"), "GPU": ("gpu:intel", "gpu"), "NPU": ("npu", "npu")}
"""The engine's name of a device, without the number -> Opweave's name and the kind."""


def is_installed() -> bool:
    return packages.is_installed("openvino")


@cache
def version() -> str:
    """Read the package's version from the name of its .dist-info folder: loading the engine takes 0.1 s."""
    spec = importlib.util.find_spec("openvino")
    folder = os.path.dirname(os.path.dirname(spec.origin)) if spec is not None and spec.origin else "."
    names = os.listdir(folder)  # not glob, which takes longer to import
    ends = "openvino-", ".dist-info"
    versions = [
        name[len(ends[0]) : -len(ends[1])] for name in names if name.startswith(ends[0]) and name.endswith(ends[1])
    ]
    if versions:
        return versions[0]
    try:
        return str(engine().__version__).partition("-")[0]
    except MissingExtraError:
        return "broken"  # a trial of the engine reports the reason


def may_have_accelerators() -> bool:
    """Whether the engine may have a GPU or an NPU, without loading the engine."""
    if not is_installed():
        return False
    return sys.platform != "linux" or os.path.exists(WINDOWS_GPU) or any(map(_is_intel, VENDORS))


def _is_intel(pattern: str) -> bool:
    """Whether one of the files may name Intel; an unreadable file counts."""
    from glob import glob

    try:
        return any(_text(name).strip() == INTEL for name in glob(pattern))
    except OSError:
        return True


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


TELEMETRY = "openvino_telemetry"
"""Package that reports each import of openvino to its makers over the network, and writes into the user's home."""


@cache
def engine() -> Any:
    """Import the package openvino without telemetry; all of Opweave's uses of openvino begin here.

    The only option against telemetry is a file in the user's home. If the telemetry package cannot be imported, openvino
    uses a stub for the life of the process.
    """
    absent: dict[str, Any] = {TELEMETRY: None}
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == TELEMETRY}
    sys.modules.update(absent)
    try:
        return import_extra("openvino", "openvino", PURPOSE)
    finally:
        del sys.modules[TELEMETRY]
        sys.modules.update(before)


@cache
def operators() -> Any:
    return engine().opset15


@cache
def core() -> Any:
    return engine().Core()


def engine_name(device: str) -> str:
    """Return the engine's name of a device. The CPU needs no listing, for which the engine would load all plug-ins."""
    return "CPU" if device == "cpu" else engine_names()[device]


def engine_names() -> dict[str, str]:
    names = {}
    for engine_name in core().available_devices:
        kind, _, number = engine_name.partition(".")
        if kind in NAMES and not (kind == "GPU" and _is_of_another_vendor(engine_name)):
            name = NAMES[kind][0]
            names[f"{name}:{number}" if number not in ("", "0") else name] = engine_name
    return names


def _is_of_another_vendor(engine_name: str) -> bool:
    """Whether a GPU is not Intel's: the engine lists all devices of OpenCL, but its kernels for others fail or are wrong."""
    try:
        architecture = str(core().get_property(engine_name, "DEVICE_ARCHITECTURE"))  # "GPU: vendor=0x10de arch=v9.0.0"
    except RuntimeError:
        return False  # describing the device reports the fault
    return "vendor=" in architecture and f"vendor={INTEL} " not in f"{architecture} "


def devices(backend: str) -> list[Device]:
    """List the engine's devices; devices that it fails to describe are unavailable."""
    if not is_installed():
        return [Device("cpu", "cpu", backend, PROCESSORS, available=False, hint=INSTALL)]
    try:
        names = engine_names()
    except Exception as error:  # the package or a plug-in is broken
        return [_unavailable(backend, "cpu", "cpu", error)]
    # An engine built without the CPU plug-in does not list the CPU; describing it reports the reason.
    entries = [_describe(backend, name, engine_name) for name, engine_name in ({"cpu": "CPU"} | names).items()]
    if not any(device.kind == "npu" for device in entries):
        hint = "OpenVINO lists no NPU; Intel's driver for it makes one"
        entries.append(Device("npu", "npu", backend, "a neural processing unit", available=False, hint=hint))
    return entries


def find_device(backend: str, name: str) -> Device | None:
    if name == "cpu" and is_installed():
        device = _describe(backend, name, engine_name(name))
        return device if device.available else None
    return next((device for device in devices(backend) if device.name == name and device.available), None)


PROCESSORS = "Intel's and other processors through OpenVINO"


def _describe(backend: str, name: str, engine_name: str) -> Device:
    try:
        return _device(backend, name, engine_name)
    except Exception as error:  # the engine raises RuntimeError
        return _unavailable(backend, name, NAMES[engine_name.partition(".")[0]][1], error)


def _unavailable(backend: str, name: str, kind: Kind, error: Exception) -> Device:
    fault = str(error) if isinstance(error, MissingExtraError) else f"OpenVINO fails: {cause_text(error)}"
    text = PROCESSORS if kind == "cpu" else f"{name} through OpenVINO"
    return Device(name, kind, backend, text, available=False, hint=fault, fault=fault)


def _device(backend: str, name: str, engine_name: str) -> Device:
    kind = NAMES[engine_name.partition(".")[0]][1]
    hardware = core().get_property(engine_name, "FULL_DEVICE_NAME").strip()
    is_low = kind == "npu" or (kind == "gpu" and "iGPU" in hardware)  # the plug-in for GPUs writes (iGPU) or (dGPU)
    text = f"{hardware}, OpenVINO {version()}"
    return Device(name, kind, backend, text, low_power=is_low, precisions=_precisions(engine_name, kind))


CAPABILITIES: dict[str, tuple[Precision, ...]] = {
    "FP32": ("float32", "ieee"),
    "BF16": ("bfloat16",),
    "FP16": ("float16",),
}
"""Precisions by capability of a device. CPUs state BF16 and FP16 if they have instructions for it, such as AVX512_BF16 and
AMX_FP16; NPUs state no FP32."""

FAULTY: dict[str, tuple[Precision, ...]] = {"cpu": ("float16",)}
"""Precisions that devices of a kind state, but compute wrongly: see docs/engine.md."""


def _precisions(engine_name: str, kind: str) -> tuple[Precision, ...]:
    stated = core().get_property(engine_name, "OPTIMIZATION_CAPABILITIES")
    able = [precision for name, means in CAPABILITIES.items() if name in stated for precision in means]
    return tuple(precision for precision in able if precision not in FAULTY.get(kind, ())) or ("float32",)
