"""The WebGPU back end: graphs as compute shaders on any vendor's GPU, through wgpu (https://wgpu-py.readthedocs.io).

All operations but contractions are expressions (`rules/`, or an operation's own formula), which `expr.wgsl` prints as
WGSL; `contraction` has the kernels of matmul, gemm and the convolutions; `schedule` decides what becomes one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ...dtypes import ANY, DataType
from ...errors import ValidationError, import_extra, require
from ...graph import Graph, Node
from ...operation import Op
from .. import Backend, Device, How, PowerPreference, RuleFunction
from . import adapters

if TYPE_CHECKING:
    from .engine import Engine
    from .executable import DeviceRunner


class WebGPU(Backend):
    """Kernels on WebGPU devices. The one that is registered knows the adapters; each device has one of its own.

    Attributes:
        engine: the device; None for the one that is registered.
    """

    name = "webgpu"

    def __init__(self, engine: Engine | None = None, device: Device | None = None) -> None:
        super().__init__()
        self.engine, self.device = engine, device
        if engine is not None:
            self.space, self.max_byte_length = engine, engine.max_byte_length

    def devices(self) -> list[Device]:
        return adapters.devices(self.name)

    def by_default(self) -> bool:
        return adapters.may_have_hardware()

    def open(self, device: Device, power_preference: PowerPreference) -> Backend:
        from .engine import Engine

        made = adapters.request_device(device.name, power_preference)
        return WebGPU(Engine(made, is_own=True), device)

    def on(self, gpu_device: Any) -> WebGPU:
        """The back end of a user's device.

        Raises:
            MissingExtraError: wgpu is not installed.
            ValidationError: it is no `wgpu.GPUDevice`.
        """
        wgpu = import_extra("wgpu", "webgpu", adapters.PURPOSE)
        if not isinstance(gpu_device, wgpu.GPUDevice):
            raise ValidationError(f"gpu_device must be a wgpu.GPUDevice, got {type(gpu_device).__name__}")
        known = _opened.get(id(gpu_device))
        if known is None:
            from .engine import Engine

            engine = Engine(gpu_device)
            kind = "cpu" if engine.is_software else "gpu"
            name = "gpu-software" if engine.is_software else "gpu"
            found = Device(name, kind, self.name, f"{engine.description}, the caller's device")  # type: ignore[arg-type]
            known = _opened[id(gpu_device)] = WebGPU(engine, found)
        return known

    def data_types(self, op: Op[..., Any], operand: str) -> tuple[DataType, ...] | None:
        if self.engine is None or self.engine.features.int64:
            return None
        return tuple(t for t in ANY if t not in ("int64", "uint64"))

    def lower(
        self, *ops: Op[..., Any], when: Callable[..., bool] | None = None
    ) -> Callable[[RuleFunction], RuleFunction]:
        """Register the decorated function, which takes and returns arrays of `opweave.expr`, as the rule of `ops`.

        Raises:
            ValidationError: one of them has a rule already; or a condition, which rules for WebGPU cannot have.
        """
        from .rules import RULES, rule

        require(when is None, f"{self.name}: rules have no conditions (when=)")
        for op in ops:
            require(op not in RULES, f"{self.name}: {op.name} has a rule already")
        return rule(*ops)

    def why_not(self, node: Node) -> str | None:
        """Why there are no kernels for a node; empty if there are; None if its decomposition may have some."""
        from ...expr.wgsl import Features
        from .schedule import supported

        # Without a device, one that has it all is meant.
        features = Features(float16=True, int64=True) if self.engine is None else self.engine.features
        return supported(node, features)

    def supports(self, node: Node) -> bool:
        return self.why_not(node) == ""

    def how(self, node: Node) -> How | None:
        return "native" if self.supports(node) else None if node.op.decomposition is None else "decomposed"

    def compile(
        self, graph: Graph, *, device: str, power_preference: PowerPreference, alone: bool = True
    ) -> DeviceRunner:
        from .executable import DeviceRunner
        from .schedule import Schedule

        assert self.engine is not None
        return DeviceRunner(graph, Schedule(graph, self.engine.features), self.engine)


# By the identity of the device, which lives as long as what is kept for it.
_opened: WeakValueDictionary[int, WebGPU] = WeakValueDictionary()

webgpu = WebGPU()
