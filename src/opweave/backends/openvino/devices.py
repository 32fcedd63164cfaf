"""The devices that OpenVINO can drive here."""

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
"""Files on Linux that say who made an NPU or a GPU."""

INTEL = "0x8086"
"""Intel in these files: the engine drives no others' NPUs and GPUs."""

WINDOWS_GPU = "/dev/dxg"
"""The device file of GPUs of all vendors in the Windows Subsystem for Linux."""

Kind = Literal["cpu", "gpu", "npu"]

NAMES: dict[str, tuple[str, Kind]] = {
    "CPU": ("cpu", "cpu"),
    "GPU": ("gpu:intel", "gpu"),
    "NPU": ("npu", "npu"),
}
"""Names and kinds of devices by what the engine calls them, without the number of a second one."""


def is_installed() -> bool:
    """Whether the package openvino is there."""
    return packages.is_installed("openvino")


@cache
def version() -> str:
    """The version of the installed package, from the name of the folder that describes it: the engine takes 0.1 s to load."""
    spec = importlib.util.find_spec("openvino")
    folder = os.path.dirname(os.path.dirname(spec.origin)) if spec is not None and spec.origin else "."
    names = os.listdir(folder)  # without patterns, whose module takes longer to load
    ends = "openvino-", ".dist-info"
    found = [
        name[len(ends[0]) : -len(ends[1])] for name in names if name.startswith(ends[0]) and name.endswith(ends[1])
    ]
    if found:
        return found[0]
    try:
        return str(engine().__version__).partition("-")[0]
    except MissingExtraError:
        return "broken"  # a trial of the engine says why


def may_have_accelerators() -> bool:
    """Whether there may be a GPU or an NPU for the engine, without loading it."""
    if not is_installed():
        return False
    return sys.platform != "linux" or os.path.exists(WINDOWS_GPU) or any(map(_is_intel, VENDORS))


def _is_intel(pattern: str) -> bool:
    """Whether one of the files says Intel; one that cannot be read may do so."""
    from glob import glob

    try:
        return any(_text(name).strip() == INTEL for name in glob(pattern))
    except OSError:
        return True


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


TELEMETRY = "openvino_telemetry"
"""The package by which openvino reports each import to its makers over the network, and that writes into the user's home."""


@cache
def engine() -> Any:
    """The package openvino, imported without its telemetry: all of Opweave's uses of openvino begin here.

    There is no option against the telemetry but a file in the user's home. Where the package for it cannot be imported,
    openvino takes a stub of its own, for the life of the process.

    Raises:
        MissingExtraError: openvino is not installed.
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
    """The operators that rules emit."""
    return engine().opset15


@cache
def core() -> Any:
    """The engine itself, which lists devices and compiles graphs for them.

    Raises:
        MissingExtraError: openvino is not installed.
    """
    return engine().Core()


def engine_name(device: str) -> str:
    """What the engine calls a device that is here.

    The engine loads the plug-ins for all kinds of devices to list them, which takes memory: it is not asked about the CPU.
    """
    return "CPU" if device == "cpu" else engine_names()[device]


def engine_names() -> dict[str, str]:
    """What the engine calls the devices that are here, by their names."""
    found = {}
    for engine_name in core().available_devices:
        kind, _, number = engine_name.partition(".")
        if kind in NAMES:
            name = NAMES[kind][0]
            found[f"{name}:{number}" if number not in ("", "0") else name] = engine_name
    return found


def devices(backend: str) -> list[Device]:
    """The devices of the engine, and those that it should have, or does not describe, which are unavailable."""
    if not is_installed():
        return [Device("cpu", "cpu", backend, PROCESSORS, available=False, hint=INSTALL)]
    try:
        names = engine_names()
    except Exception as error:  # the package is broken, or its plug-ins are
        return [_unavailable(backend, "cpu", "cpu", error)]
    # An engine that was built without the plug-in for CPUs does not list it; asking for it says why.
    found = [_listed(backend, name, engine_name) for name, engine_name in ({"cpu": "CPU"} | names).items()]
    if not any(device.kind == "npu" for device in found):
        hint = "OpenVINO lists no NPU; Intel's driver for it makes one"
        found.append(Device("npu", "npu", backend, "a neural processing unit", available=False, hint=hint))
    return found


def named(backend: str, name: str) -> Device | None:
    """The device of this name, if it is here; the others are not looked for where it is the CPU."""
    if name == "cpu" and is_installed():
        device = _listed(backend, name, engine_name(name))
        return device if device.available else None
    return next((device for device in devices(backend) if device.name == name and device.available), None)


PROCESSORS = "Intel's and other processors through OpenVINO"
"""The description of the CPU where the engine gives none."""


def _listed(backend: str, name: str, engine_name: str) -> Device:
    """A device as the engine describes it; unavailable, with the reason, if the engine fails to."""
    try:
        return _device(backend, name, engine_name)
    except Exception as error:  # the engine raises RuntimeError
        return _unavailable(backend, name, NAMES[engine_name.partition(".")[0]][1], error)


def _unavailable(backend: str, name: str, kind: Kind, error: Exception) -> Device:
    """A device that cannot be used because the engine, or the package, raised an error."""
    fault = str(error) if isinstance(error, MissingExtraError) else f"OpenVINO fails: {cause_text(error)}"
    text = PROCESSORS if kind == "cpu" else f"{name} through OpenVINO"
    return Device(name, kind, backend, text, available=False, hint=fault, fault=fault)


def _device(backend: str, name: str, engine_name: str) -> Device:
    """A device that is here, as the engine describes it."""
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
"""The precisions that a capability of a device means. CPUs state BF16 and FP16 where they have instructions for it, such as
AVX512_BF16 and AMX_FP16; NPUs state no FP32."""

FAULTY: dict[str, tuple[Precision, ...]] = {"cpu": ("float16",)}
"""The precisions that devices of a kind state, but compute wrongly: docs/engine.md says what."""


def _precisions(engine_name: str, kind: str) -> tuple[Precision, ...]:
    stated = core().get_property(engine_name, "OPTIMIZATION_CAPABILITIES")
    able = [precision for name, means in CAPABILITIES.items() if name in stated for precision in means]
    return tuple(precision for precision in able if precision not in FAULTY.get(kind, ())) or ("float32",)
