"""The WebGPU back end itself: its devices, and their common table of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ...core.graph import Graph
from ...support.errors import ValidationError, import_extra
from .. import Backend, Device, PowerPreference, Spinning
from ..gpu.backend import GpuBackend
from . import adapters

if TYPE_CHECKING:
    from ...expr.gpu import Features
    from .engine import WebGpuDevice
    from .executable import DeviceRunner


class WebGPU(GpuBackend):
    """Kernels on WebGPU devices. Each open device has a separate instance; the registered one has no `engine`."""

    name = "webgpu"
    title = "WebGPU"
    claims = "gpu_device"

    def __init__(self, engine: WebGpuDevice | None = None, device: Device | None = None) -> None:
        super().__init__()
        self.engine, self.device = engine, device
        if engine is not None:
            self.rules = webgpu.rules
            self.space, self.max_byte_length = engine, engine.max_byte_length

    @property
    def features(self) -> Features:
        """Features of the device; the registered instance has all features that affect support."""
        from ...expr.gpu import Features

        return Features(float16=True, int64=True) if self.engine is None else self.engine.features

    def devices(self) -> list[Device]:
        return adapters.devices(self.name)

    def by_default(self) -> bool:
        return adapters.may_have_hardware()

    def may_accelerate(self) -> bool:
        return adapters.may_have_hardware()

    def open(self, device: Device, power_preference: PowerPreference) -> Backend:
        from .engine import WebGpuDevice

        gpu = adapters.request_device(device.name, power_preference)
        return WebGPU(WebGpuDevice(gpu, is_own=True), device)

    def on(self, gpu_device: Any, device: str | None) -> tuple[WebGPU, Device]:
        if device is not None:
            raise ValidationError(f"device must not be given with gpu_device, got {device!r}")
        wgpu = import_extra("wgpu", "webgpu", adapters.PURPOSE)
        if not isinstance(gpu_device, wgpu.GPUDevice):
            raise ValidationError(f"gpu_device must be a wgpu.GPUDevice, got {type(gpu_device).__name__}")
        cached = _opened.get(id(gpu_device))
        if cached is None:
            from .engine import WebGpuDevice

            engine = WebGpuDevice(gpu_device)
            kind = "cpu" if engine.is_software else "gpu"
            name = "gpu-software" if engine.is_software else "gpu"
            text = f"{engine.description}, the caller's device"
            entry = Device(name, kind, self.name, text, precisions=adapters.PRECISIONS, is_software=engine.is_software)  # type: ignore[arg-type]
            cached = _opened[id(gpu_device)] = WebGPU(engine, entry)
        assert cached.device is not None
        return cached, cached.device

    def compile(
        self, graph: Graph, *, device: str, power_preference: PowerPreference, spinning: Spinning = "short"
    ) -> DeviceRunner:
        from .executable import DeviceRunner

        assert self.engine is not None
        return DeviceRunner(graph, self, self.engine)


# Keyed by the identity of the device, which the engine keeps alive.
_opened: WeakValueDictionary[int, WebGPU] = WeakValueDictionary()

webgpu = WebGPU()
