"""ONNX Runtime's plug-in execution providers: the packages that bring them, and the devices that they list.

A package `onnxruntime_ep_…` has functions `get_library_path` and `get_ep_names`. Its library is registered with the engine
when devices are listed for the first time, which takes milliseconds. The engine then lists the devices that the provider can
drive, and a session gets one of them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from threading import RLock
from typing import Any, Literal

from .. import Device, Precision

PREFIXES = ("onnxruntime_ep_", "onnxruntime_qnn")
"""What the names of packages with plug-ins begin with."""

OWN_PROVIDERS = frozenset({"CPUExecutionProvider"})
"""Providers whose devices other names stand for: `cpu`."""

QNN, OPENVINO = "QNNExecutionProvider", "OpenVINOExecutionProvider"
"""Providers that need options of their own."""

OPENVINO_PRECISIONS: dict[Precision, str] = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
"""What OpenVINO calls precisions."""

_CAPABILITIES: dict[str, Precision] = {"FP32": "float32", "BF16": "bfloat16", "FP16": "float16"}

VENDORS = {0x8086: "intel", 0x10DE: "nvidia", 0x1002: "amd", 0x1022: "amd", 0x106B: "apple", 0x13B5: "arm"}
VENDORS |= {0x5143: "qualcomm", 0x4D4F4351: "qualcomm", 0x1414: "microsoft"}
"""Names by the numbers of PCI and ACPI; the engine itself knows names of some only."""

Kind = Literal["cpu", "gpu", "npu"]


@dataclass(frozen=True)
class Plugin:
    """A device of a plug-in provider.

    Attributes:
        kind: of the device.
        vendor: who made the hardware, one word.
        provider: ONNX Runtime's name of the provider.
        handle: the engine's `OrtEpDevice`.
        number: counts devices that do not differ in the others.
        options: the user's options for the provider.
    """

    kind: Kind
    vendor: str
    provider: str
    handle: Any = field(compare=False)
    number: int = 0
    options: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def short_provider(self) -> str:
        """The provider without what all of them end with.

        >>> Plugin("npu", "intel", "OpenVINOExecutionProvider", None).short_provider
        'openvino'
        """
        return self.provider.removesuffix("ExecutionProvider").lower()

    @property
    def name(self) -> str:
        """The name of the device.

        >>> Plugin("gpu", "intel", "WebGpuExecutionProvider", None).name
        'gpu:intel:webgpu'
        """
        parts = [self.kind, *([self.vendor] if self.kind == "gpu" else []), self.short_provider]
        return ":".join([*parts, *([str(self.number)] if self.number else [])])

    def answers_to(self, name: str) -> bool:
        """Whether a name means this device: its own name, or one that leaves out vendor, provider or both.

        >>> device = Plugin("npu", "intel", "OpenVINOExecutionProvider", None)
        >>> [device.answers_to(name) for name in ("npu", "npu:intel", "npu:openvino", "npu:qnn")]
        [True, True, True, False]
        """
        kind, *parts = name.split(":")
        number = parts.pop() if parts and parts[-1].isdecimal() else "0"
        known = {self.vendor, self.short_provider}
        return kind == self.kind and int(number) == self.number and known.issuperset(parts)

    def device(self, processor: str) -> Device:
        """What `opweave.devices()` lists."""
        known = {**self.handle.device.metadata, **self.handle.ep_metadata}
        hardware = known.get("FULL_DEVICE_NAME") or known.get("Description") or ""
        if not hardware:
            hardware = processor if self.kind == "cpu" else f"{self.vendor}'s {self.kind.upper()}"
        low = self.kind == "npu" or (self.kind == "gpu" and known.get("Discrete") == "0")
        text = f"{hardware}, {self.provider} of ONNX Runtime"
        provider, precisions = self.provider, self.precisions
        return Device(
            self.name, self.kind, "onnxruntime", text, low_power=low, precisions=precisions, provider=provider
        )

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions that contexts on the device may have."""
        stated = self.handle.ep_metadata.get("OPTIMIZATION_CAPABILITIES")  # OpenVINO's
        if stated is not None:
            able = [precision for name, precision in _CAPABILITIES.items() if name in stated.split()]
            # Its CPUs compute float16 wrongly: docs/engine.md says what.
            return tuple(precision for precision in able if (self.kind, precision) != ("cpu", "float16"))
        return ("float16",) if self.kind == "npu" or self.provider == QNN else ("float32",)

    def add_to(self, session_options: Any, precision: Precision) -> None:
        """Let sessions of these options use the device, and record which nodes they place there."""
        options: dict[str, str] = {}
        if self.provider == QNN and self.kind == "cpu":
            options["backend_type"] = "htp"  # it has no default there, and emulates the NPU
        if self.provider == OPENVINO and self.kind != "npu":  # by default it rounds to what is fast
            import json

            hint = {"INFERENCE_PRECISION_HINT": OPENVINO_PRECISIONS[precision]}
            options["load_config"] = json.dumps({self.kind.upper(): hint})
        session_options.add_provider_for_devices([self.handle], {**options, **self.options})
        session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")


def packages() -> list[str]:
    """The modules of the installed packages with plug-ins, those that drive hardware of any vendor last."""
    found: set[str] = set()
    for place in sys.path:
        try:
            folder = os.path.abspath(place)
            found.update(_modules(folder, os.stat(folder).st_mtime_ns))
        except OSError:  # a place of the path that is no folder, or is not there
            continue
    return sorted(found, key=lambda name: (name.endswith("webgpu"), name))


@lru_cache(maxsize=64)
def _modules(place: str, changed: int) -> tuple[str, ...]:
    """The modules with plug-ins in a folder since it was changed. To list a folder of packages takes a millisecond or more."""
    return tuple(name for name in os.listdir(place) if name.isidentifier() and name.startswith(PREFIXES))


def names_of(module: str) -> list[str]:
    """ONNX Runtime's names of the providers of a package that could be registered."""
    return list(_providers.get(module, ()))


_lock = RLock()
_states: dict[str, str] = {}
"""What is wrong with a package that has been registered, by module; empty for those that work."""
_providers: dict[str, list[str]] = {}
"""The providers of packages, by module."""


def register() -> Mapping[str, str]:
    """Register the plug-ins of all installed packages that are not registered yet.

    Returns:
        By module, why its plug-in cannot be used; empty where it can. One that fails does not keep others from working.
    """
    with _lock:
        for module in packages():
            if module not in _states:
                _states[module] = _register(module)
        return dict(_states)


def _register(module: str) -> str:
    import onnxruntime

    try:
        package = import_module(module)
        names, library = list(package.get_ep_names()), str(package.get_library_path())
        _providers[module] = names
        # Some plug-ins call their provider what the library is registered as.
        onnxruntime.register_execution_provider_library(names[0] if len(names) == 1 else module, library)
    except Exception as error:  # whatever goes wrong in a package of others must not break the CPU
        if "already registered" in str(error):  # the program has done it
            return ""
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def plugins() -> list[Plugin]:
    """The devices of the plug-ins that are installed, and of those that the program itself has registered."""
    import onnxruntime

    register()
    found: list[Plugin] = []
    counts: Counter[str] = Counter()
    for handle in onnxruntime.get_ep_devices():
        provider, kind = handle.ep_name, _KINDS.get(handle.device.type.name)
        # A provider may list a device twice, the second time to choose between its devices by itself.
        is_meta = "ov_meta_device" in handle.ep_metadata
        if provider not in OWN_PROVIDERS and kind is not None and not is_meta:
            vendor = VENDORS.get(handle.device.vendor_id) or (handle.device.vendor.split() or ["unknown"])[0].lower()
            first = Plugin(kind, vendor, provider, handle)
            found.append(replace(first, number=counts[first.name]))
            counts[first.name] += 1
    return found


_KINDS: dict[str, Kind] = {"CPU": "cpu", "GPU": "gpu", "NPU": "npu"}
