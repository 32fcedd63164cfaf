"""The WebGPU back end: graphs as compute shaders on any vendor's GPU, through wgpu (https://wgpu-py.readthedocs.io).

All operations but contractions are expressions (`rules/`, or an operation's own formula), which `expr.wgsl` prints as
WGSL; `contraction` has the kernels of matmul, gemm and the convolutions; `schedule` decides what becomes one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ...dtypes import ANY, DataType
from ...errors import ValidationError, import_extra
from ...graph import Graph, Node
from ...operation import Op
from .. import Backend, Device, How, Placement, PowerPreference
from . import adapters

if TYPE_CHECKING:
    from .engine import Engine
    from .executable import DeviceExecutable


class WebGPU(Backend):
    """Kernels on WebGPU devices. The one that is registered knows the adapters; each device has one of its own.

    Attributes:
        memory: the device, where its tensors lie; None for the one that is registered.
    """

    name = "webgpu"

    def __init__(self, engine: Engine | None = None, device: Device | None = None) -> None:
        super().__init__()
        self.memory: Any = engine
        self.device = device
        self._reasons: dict[Any, str | None] = {}
        if engine is not None:
            self.max_byte_length = engine.max_byte_length

    def devices(self) -> list[Device]:
        return adapters.devices(self.name)

    def by_default(self) -> bool:
        return adapters.may_have_hardware()

    def open(self, device: Device, power_preference: PowerPreference) -> Backend:
        from .engine import Engine

        made = adapters.request_device(device.name, power_preference)
        return WebGPU(Engine(made), device)

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
        if self.memory is None or self.memory.features.int64:
            return None
        return tuple(t for t in ANY if t not in ("int64", "uint64"))

    def why_not(self, node: Node) -> str | None:
        """Why there are no kernels for a node; empty if there are; None if its decomposition may have some."""
        from ...expr.wgsl import Features
        from .schedule import supported

        # Without a device, one that has it all is meant.
        features = Features(float16=True, int64=True) if self.memory is None else self.memory.features
        return supported(node, features)

    def supports(self, node: Node) -> bool:
        return self.why_not(node) == ""

    def how(self, node: Node) -> How | None:
        return "native" if self.supports(node) else None if node.op.decomposition is None else "decomposed"

    def compile(
        self, graph: Graph, *, device: str, power_preference: PowerPreference, alone: bool = True
    ) -> DeviceExecutable:
        from ...passes.legalise import legalise
        from .executable import DeviceExecutable
        from .schedule import Schedule

        legal, origin = legalise(graph, self.supports, self.name)
        schedule = Schedule(legal, self.memory.features)
        return DeviceExecutable(legal, schedule, self.memory, _placements(graph, legal, origin, schedule, device))


def _placements(graph: Graph, legal: Graph, origin: Mapping[Node, Node], schedule: Any, device: str) -> list[Placement]:
    """Where each node of the user's graph runs, and with which others in one kernel."""
    homes: dict[Node, list[int]] = {}
    for number, step in enumerate(schedule.steps):
        for node in step.nodes:
            homes.setdefault(node, []).append(number)
    made: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for node in legal.nodes:
        made[origin[node]].append(node)
    found = []
    for node, its in made.items():
        numbers = sorted({number for part in its for number in homes.get(part, [])})
        how: How = "native" if len(its) == 1 and its[0].op is node.op else "decomposed"
        if how == "native" and "webgpu" in node.op.kernels:
            how = "kernel"
        kernels = "no kernel of its own" if not numbers else f"kernel {numbers[0]}" if len(numbers) == 1 else (
            f"kernels {numbers[0]} to {numbers[-1]}"
        )  # fmt: skip
        own = f", {node.op.kernels['webgpu'].detail}" if how == "kernel" else ""
        names = f", {', '.join(dict.fromkeys(part.op.name for part in its))}" if how == "decomposed" and its else ""
        found.append(Placement(node.title, device, how, f"WebGPU: {kernels}{own}{names}"))
    return found


# By the identity of the device, which lives as long as what is kept for it.
_opened: WeakValueDictionary[int, WebGPU] = WeakValueDictionary()

webgpu = WebGPU()
