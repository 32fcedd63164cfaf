"""ONNX Runtime's plug-in execution providers: installed packages and their devices.

A package `onnxruntime_ep_…` has functions `get_library_path` and `get_ep_names`. The first listing of devices registers its
library with the engine, which takes milliseconds. The engine then lists the provider's devices; a session uses one of them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from threading import RLock
from typing import Any, Literal

from ...support.records import field, record
from .. import Device, Precision

PREFIXES = ("onnxruntime_ep_", "onnxruntime_qnn")

OWN_PROVIDERS = frozenset({"CPUExecutionProvider"})
"""Providers of the engine itself; their device is `cpu`."""

QNN, OPENVINO = "QNNExecutionProvider", "OpenVINOExecutionProvider"
"""Providers that need specific options."""

OPENVINO_PRECISIONS: dict[Precision, str] = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
"""OpenVINO's names of precisions."""

_CAPABILITIES: dict[str, Precision] = {"FP32": "float32", "BF16": "bfloat16", "FP16": "float16"}

VENDORS = {0x8086: "intel", 0x10DE: "nvidia", 0x1002: "amd", 0x1022: "amd", 0x106B: "apple", 0x13B5: "arm"}
VENDORS |= {0x5143: "qualcomm", 0x4D4F4351: "qualcomm", 0x1414: "microsoft"}
"""Vendor names by PCI and ACPI identifier; the engine names only some vendors."""

Kind = Literal["cpu", "gpu", "npu"]


@record(eq=True, slots=False)
class Plugin:
    """A device of a plug-in provider. Its `handle` is the engine's `OrtEpDevice`."""

    kind: Kind
    vendor: str
    provider: str
    handle: Any = field(compare=False)
    number: int = 0
    options: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def short_provider(self) -> str:
        """The provider's name in lower case, without "ExecutionProvider"."""
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
        """Whether a name means this device; vendor and provider may be omitted.

        >>> device = Plugin("npu", "intel", "OpenVINOExecutionProvider", None)
        >>> [device.answers_to(name) for name in ("npu", "npu:intel", "npu:openvino", "npu:qnn")]
        [True, True, True, False]
        """
        kind, *parts = name.split(":")
        number = parts.pop() if parts and parts[-1].isdecimal() else "0"
        qualifiers = {self.vendor, self.short_provider}
        return kind == self.kind and int(number) == self.number and qualifiers.issuperset(parts)

    def device(self, processor: str) -> Device:
        metadata = {**self.handle.device.metadata, **self.handle.ep_metadata}
        hardware = metadata.get("FULL_DEVICE_NAME") or metadata.get("Description") or ""
        if not hardware:
            hardware = processor if self.kind == "cpu" else f"{self.vendor}'s {self.kind.upper()}"
        low = self.kind == "npu" or (self.kind == "gpu" and metadata.get("Discrete") == "0")
        text = f"{hardware}, {self.provider} of ONNX Runtime"
        provider, precisions = self.provider, self.precisions
        return Device(
            self.name, self.kind, "onnxruntime", text, low_power=low, precisions=precisions, provider=provider
        )

    @property
    def precisions(self) -> tuple[Precision, ...]:
        stated = self.handle.ep_metadata.get("OPTIMIZATION_CAPABILITIES")  # OpenVINO's
        if stated is not None:
            able = [precision for name, precision in _CAPABILITIES.items() if name in stated.split()]
            # float16 is wrong on OpenVINO's CPUs: see docs/engine.md.
            return tuple(precision for precision in able if (self.kind, precision) != ("cpu", "float16"))
        return ("float16",) if self.kind == "npu" or self.provider == QNN else ("float32",)

    def add_to(self, session_options: Any, precision: Precision) -> None:
        """Add the device to session options, and let the session record the nodes that it assigns to the device."""
        options: dict[str, str] = {}
        if self.provider == QNN and self.kind == "cpu":
            options["backend_type"] = "htp"  # it has no default there, and emulates the NPU
        if self.provider == OPENVINO and self.kind != "npu":  # the default precision is the fastest one
            import json

            hint = {"INFERENCE_PRECISION_HINT": OPENVINO_PRECISIONS[precision]}
            options["load_config"] = json.dumps({self.kind.upper(): hint})
        session_options.add_provider_for_devices([self.handle], {**options, **self.options})
        session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")


def packages() -> list[str]:
    """Return the modules of plug-in packages; those for hardware of any vendor come last."""
    modules: set[str] = set()
    for place in sys.path:
        try:
            folder = os.path.abspath(place)
            modules.update(_modules(folder, os.stat(folder).st_mtime_ns))
        except OSError:  # an entry of sys.path that does not exist, or is no folder
            continue
    return sorted(modules, key=lambda name: (name.endswith("webgpu"), name))


@lru_cache(maxsize=64)
def _modules(place: str, changed: int) -> tuple[str, ...]:
    """Return the plug-in modules in a folder; cached by modification time, since listing takes a millisecond or more."""
    return tuple(name for name in os.listdir(place) if name.isidentifier() and name.startswith(PREFIXES))


def names_of(module: str) -> list[str]:
    return list(_providers.get(module, ()))


_lock = RLock()
_states: dict[str, str] = {}
"""Error of each package whose registration was tried, by module; empty if the package works."""
_providers: dict[str, list[str]] = {}


def register() -> Mapping[str, str]:
    """Register the plug-ins of installed packages that are not registered yet; return the error of each plug-in by module.

    A plug-in that fails does not affect the others.
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
        # Some plug-ins name their provider after the registration.
        onnxruntime.register_execution_provider_library(names[0] if len(names) == 1 else module, library)
    except Exception as error:  # an error in a third-party package must not break the CPU
        if "already registered" in str(error):  # the program has registered the library itself
            return ""
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def plugins() -> list[Plugin]:
    """List the devices of installed plug-ins and of those that the program has registered."""
    import onnxruntime

    register()
    devices: list[Plugin] = []
    counts: Counter[str] = Counter()
    for handle in onnxruntime.get_ep_devices():
        provider, kind = handle.ep_name, _KINDS.get(handle.device.type.name)
        # A provider may also list a meta-device, which chooses between its devices.
        is_meta = "ov_meta_device" in handle.ep_metadata
        if provider not in OWN_PROVIDERS and kind is not None and not is_meta:
            vendor = VENDORS.get(handle.device.vendor_id) or (handle.device.vendor.split() or ["unknown"])[0].lower()
            name = Plugin(kind, vendor, provider, handle).name
            devices.append(Plugin(kind, vendor, provider, handle, counts[name]))
            counts[name] += 1
    return devices


_KINDS: dict[str, Kind] = {"CPU": "cpu", "GPU": "gpu", "NPU": "npu"}
