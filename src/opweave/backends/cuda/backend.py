"""The CUDA back end itself: its devices, and the rules that all GPUs share."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from ...core.graph import Graph
from ...support.errors import ValidationError
from .. import PRECISIONS, Device, PowerPreference, Precision, Spinning
from ..gpu.backend import GpuBackend
from . import devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...expr.gpu import Features, GpuKernel
    from .. import Backend
    from ..gpu.contraction.kernels import Contraction
    from ..gpu.contraction.tensor import TensorTile
    from .engine import CudaDevice
    from .executable import CudaRunner

ALL: tuple[Precision, ...] = tuple(PRECISIONS)
"""Precisions of devices with tensor cores."""

WITHOUT_TENSOR_CORES: tuple[Precision, ...] = ("float32", "ieee")
"""Precisions of other devices, and of all devices without Triton, which compiles for tensor cores."""

LEGACY = (0, 1)
"""Handles of the default stream of each device
(https://docs.nvidia.com/cuda/cuda-driver-api/stream-sync-behavior.html)."""

PER_THREAD = 2
"""Handle that stands for the default stream of the calling thread."""


class CudaBackend(GpuBackend):
    """Kernels on NVIDIA's GPUs. Each open device has a separate instance; the registered one has no `engine`."""

    name = "cuda"
    title = "CUDA"
    claims = "cuda_stream"
    measures = False
    """Whether tiles are measured on the device for each compiled graph."""

    def __init__(self, engine: CudaDevice | None = None) -> None:
        super().__init__()
        self.engine = engine
        if engine is not None:
            self.rules = cuda.rules
            self.space, self.max_byte_length = engine, engine.max_byte_length

    @property
    def features(self) -> Features:
        """Features of the device; the registered instance has the features of all devices."""
        from ...expr.gpu import Features
        from ...expr.gpu.cuda import CUDA

        if self.engine is None:
            return Features(dialect=CUDA, float16=True, int64=True)
        return self.engine.features(self.precision)

    def devices(self) -> list[Device]:
        trouble = devices.trouble()
        if trouble:
            text = "an NVIDIA GPU"
            return [Device("cuda", "gpu", self.name, text, available=False, hint=trouble, fault=devices.fault())]
        return [
            Device(
                *(_name(number), "gpu", self.name, f"{info.name}, {info.architecture}"),
                precisions=precisions(info),
                fault=fault(info),
            )
            for number, info in enumerate(devices.infos())
        ]

    def device_named(self, name: str) -> Device | None:
        if name.partition(":")[0] == "cuda" and devices.may_be_there():
            from . import servers

            # The driver, which starts now, says later whether the device has any.
            servers.start(for_tensor_cores=True)
        return super().device_named(name)

    def tile(self, contraction: Contraction) -> tuple[TensorTile, int]:
        assert self.engine is not None
        if contraction.has_names:
            return super().tile(contraction)
        tiles = self.engine.tiles
        return tiles.measure(contraction) if self.measures else tiles.find(contraction) or super().tile(contraction)

    def tiles_in_use(self) -> str:
        assert self.engine is not None
        return "measured now" if self.measures else self.engine.tiles.digest()

    def begin(self, kernels: Sequence[GpuKernel]) -> list[Any]:
        from ..gpu.shared_operand import may_be_merged

        final = [kernel for kernel in kernels if not may_be_merged(kernel)]
        return [] if self.engine is None else self.engine.begin(final)

    def tunable(self, graph: Graph) -> dict[str, Backend]:
        """With tensor cores, compare cached or tabulated tiles with newly measured ones."""
        ways = super().tunable(graph)
        if self._has_tiles():
            measuring = copy(self)
            measuring.measures = True
            ways["measured tiles"] = measuring
        return ways

    def may_choose(self) -> bool:
        return self._has_tiles() or super().may_choose()

    def _has_tiles(self) -> bool:
        return self.engine is not None and self.features.tensor_cores is not None

    def by_default(self) -> bool:
        # Without a name, contexts get `gpu`, which covers all vendors.
        return False

    def may_accelerate(self) -> bool:
        # Only Linux has the file; the Windows Subsystem for Linux does not.
        return devices.may_be_there() or (not devices.has_files() and super().may_accelerate())

    def version(self) -> str:
        from . import compiler

        return " and ".join(filter(None, (compiler.version(), compiler.triton_version())))

    def open(self, device: Device, power_preference: PowerPreference) -> CudaBackend:
        return self._backend_of(device)

    def on(self, stream: Any, device: str | None) -> tuple[CudaBackend, Device]:
        """Return the back end for a stream of the caller, which must outlive the context.

        `stream` is an object with `__cuda_stream__`, such as a stream of PyTorch; or its handle. Without `device`, the
        driver reports the stream's device.
        """
        from .. import find_device

        handle = handle_of(stream)
        # If there is no device, the error says what is missing.
        _, match = find_device(device or "cuda", self.name)
        name = _name(devices.number_of(handle))
        if handle not in LEGACY and device not in (None, name):
            raise ValidationError(f"cuda_stream: the stream is of device {name!r}, not of {device!r}")
        if device is None:
            _, match = find_device(name, self.name)
        return self._backend_of(match, handle, stream), match

    def _backend_of(self, device: Device, stream: int | None = None, owner: Any = None) -> CudaBackend:
        from .engine import CudaDevice
        from .nvidia import NvidiaDriver

        number = next(n for n, _ in enumerate(devices.infos()) if _name(n) == device.name)
        return CudaBackend(CudaDevice(NvidiaDriver(number, stream, owner)))

    def compile(
        self, graph: Graph, *, device: str, power_preference: PowerPreference, spinning: Spinning = "short"
    ) -> CudaRunner:
        from . import compiler
        from .executable import CudaRunner

        assert self.engine is not None
        with compiler.stop_on_interrupt():
            return CudaRunner(graph, self, self.engine)


def precisions(info: devices.CudaInfo) -> tuple[Precision, ...]:
    from . import compiler

    return ALL if info.has_tensor_cores and compiler.triton_version() else WITHOUT_TENSOR_CORES


def fault(info: devices.CudaInfo) -> str:
    """The precisions that a device lacks without Triton, and why; empty if none."""
    from . import compiler

    return compiler.triton_fault() if info.has_tensor_cores else ""


def _name(number: int) -> str:
    return f"cuda:{number}" if number else "cuda"


def handle_of(cuda_stream: Any) -> int:
    """Return the handle of a stream.

    >>> handle_of("x")
    Traceback (most recent call last):
    opweave.support.errors.ValidationError: cuda_stream must have __cuda_stream__, or be the handle of a stream, got str
    """
    handle: int | None = None
    protocol = getattr(cuda_stream, "__cuda_stream__", None)
    if protocol is not None:
        version, number = protocol() if callable(protocol) else protocol
        if version != 0:
            raise ValidationError(f"cuda_stream: the version of its __cuda_stream__ must be 0, got {version}")
        handle = int(number)
    if handle is None and isinstance(cuda_stream, int) and not isinstance(cuda_stream, bool) and cuda_stream >= 0:
        handle = cuda_stream
    if handle == PER_THREAD:
        raise ValidationError(
            "cuda_stream must be one stream; 2 stands for a stream of each thread, where work of several has no order"
        )
    if handle is not None:
        return handle
    kind = type(cuda_stream).__name__
    raise ValidationError(f"cuda_stream must have __cuda_stream__, or be the handle of a stream, got {kind}")


cuda = CudaBackend()
