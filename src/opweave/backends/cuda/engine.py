"""A CUDA device with Opweave's caches for it: kernels, and the memory of constants."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal
from weakref import finalize

import numpy as np

from ... import memory
from ...core.graph import Desc
from ...expr.gpu import Features, GpuKernel, TensorCores
from ...expr.gpu.cuda import CUDA
from ...memory import dlpack
from ...support.cache import Cache
from ...support.errors import OperationError, ValidationError, require
from ..gpu.arrays import DeviceArray
from ..gpu.device import GpuDevice
from ..precision import Precision
from . import compiler, sharing
from .devices import CudaInfo, DriverError
from .driver import CudaFunction, Driver, free_unless_lost
from .measured_tiles import MeasuredTiles

KERNEL_BYTES = 2**26
"""Maximum source size of the loaded kernels that are cached for later graphs. Graphs keep their kernels loaded."""

MAX_BUFFERS = 64
"""Maximum number of arguments of a kernel; CUDA allows 512, but kernels that read more arrays compile slowly."""


PRODUCTS: dict[Precision, Literal["tf32x3", "tf32", "bfloat16", "float16"]] = {
    "float32": "tf32x3",
    "tf32": "tf32",
    "bfloat16": "bfloat16",
    "float16": "float16",
}
"""Arithmetic of tensor cores for float32, by precision; other precisions do not use tensor cores."""


def features_of(info: CudaInfo, precision: Precision) -> Features:
    cores = None
    if precision in PRODUCTS and info.has_tensor_cores and compiler.triton_version():
        cores = TensorCores(PRODUCTS[precision], info.max_dynamic_shared)
    return Features(
        dialect=CUDA,
        float16=True,
        int64=True,
        subgroups=True,
        max_buffers=MAX_BUFFERS,
        max_invocations=1024,
        max_shared=info.max_shared,
        units=info.units,
        tensor_cores=cores,
        architecture=info.architecture,
    )


class Memory:
    """Device memory, freed with this object; `owner` is the caller's object that owns the memory, None for Opweave's."""

    _is_shared = False

    def __init__(self, driver: Driver, address: int, count: int, owner: Any = None) -> None:
        self.address, self.count, self.owner, self._driver = address, count, owner, driver
        self._free_with(driver.free if owner is None else driver.retire, address if owner is None else owner)

    def _free_with(self, free: Callable[[Any], None], held: Any) -> None:
        self._end = finalize(self, free_unless_lost, free, held)
        # At process exit the driver frees all memory, and may be gone before this runs.
        self._end.atexit = False

    def share(self) -> None:
        """Mark as shared: another library may use it on any stream, so freeing must synchronise."""
        if self.owner is None and not self._is_shared:
            self._is_shared = True
            self._end.detach()
            self._free_with(self._driver.free_shared, self.address)


class CudaDevice(GpuDevice):
    """A CUDA device and its stream, with measured `tiles` of kernels for tensor cores."""

    title = "CUDA"
    max_byte_length = 2**31 - 1

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self.driver = driver
        self.description = f"{driver.info.name}, CUDA"
        self._functions: Cache[Hashable, CudaFunction] = Cache(max_bytes=KERNEL_BYTES, raw=True)
        self.tiles = MeasuredTiles(driver)

    def features(self, precision: Precision) -> Features:
        return features_of(self.driver.info, precision)

    def raise_error(self, subject: str, explain: Callable[[str], str] | None, error: BaseException) -> None:
        if not isinstance(error, DriverError):
            return
        if not error.is_sticky:
            raise OperationError(f"{subject}: {error}") from error
        raise self.lose_contexts(subject, str(error)) from error

    def free_caches(self) -> None:
        self._functions.clear()

    # Memory ----------------------------------------------------------------------------------------------------------

    def buffer(self, count: int, label: str) -> Memory:
        # Kernels read whole vectors of constants, which are padded for that; a tensor without elements also needs an address.
        padded = max(sharing.ALIGNMENT, -(-count // sharing.ALIGNMENT) * sharing.ALIGNMENT)
        with self.calls(f"{label} of {count} bytes"):
            return Memory(self.driver, self.driver.allocate(padded), count)

    def copy(self, target: DeviceArray, source: DeviceArray, reason: str) -> None:
        with self.calls(reason):
            self.driver.copy(target.buffer.address, source.buffer.address, target.nbytes)
        memory.copies.add(target.nbytes, reason)

    def adopt(self, given: Any, desc: Desc | None) -> DeviceArray:
        """Wrap the memory of another library's array; later work waits for the work that writes it."""
        with self.calls("tensor_from"):
            lent = sharing.memory_of(given, self.driver)
        require(desc in (None, lent.desc), f"tensor_from: the array is {lent.desc}, not {desc}")
        buffer = Memory(self.driver, lent.address, lent.desc.byte_length, owner=lent.owner)
        return DeviceArray(lent.desc, buffer, lent=True, read_only=lent.read_only)

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return dlpack.CUDA, self.driver.number

    def dlpack(self, array: DeviceArray, *, read_only: bool, **options: Any) -> Any:
        own, read_only = array.buffer, read_only or array.read_only
        own.share()
        with self.calls("__dlpack__"):
            return sharing.capsule(own.address, array.desc, own, self.driver, read_only=read_only, **options)

    def interface(self, array: DeviceArray, *, read_only: bool) -> dict[str, Any]:
        array.buffer.share()
        read_only = read_only or array.read_only
        return sharing.interface(array.buffer.address, array.desc, self.driver, read_only=read_only)

    def write_buffer(self, buffer: Memory, source: np.ndarray, reason: str) -> None:
        with self.calls("writing a tensor"):
            self.driver.upload(buffer.address, np.ascontiguousarray(source))
        memory.copies.add(source.nbytes, reason)

    def read(self, sources: Sequence[DeviceArray], targets: Sequence[np.ndarray], reason: str) -> None:
        with self.calls("reading a tensor"):
            self.driver.download(targets, [source.buffer.address for source in sources])
        for target in targets:
            memory.copies.add(target.nbytes, reason)

    def check_overlap(
        self, sources: Mapping[str, DeviceArray], targets: Mapping[str, DeviceArray], constants: object = ()
    ) -> None:
        """Raise `ValidationError` if an output is read-only, or shares memory with another tensor."""
        taken = [(name, array.buffer) for name, array in sources.items()]
        for name, target in targets.items():
            if target.read_only:
                raise ValidationError(f"dispatch: output {name!r} is read-only memory")
            for other, buffer in taken:
                if _overlap(target.buffer, buffer):
                    raise ValidationError(f"output {name!r} overlaps the memory of {other!r}")
            taken.append((name, target.buffer))

    def wait(self) -> None:
        with self.calls("waiting for the device"):
            self.driver.wait()

    # Kernels ---------------------------------------------------------------------------------------------------------

    def begin(self, kernels: Sequence[GpuKernel]) -> list[Any]:
        """Begin to compile new kernels. The result must be held until `functions` is called."""
        return self.driver.begin([kernel for kernel in kernels if kernel.key not in self._functions])

    def functions(self, kernels: Sequence[GpuKernel]) -> list[CudaFunction]:
        """Return loaded kernels; new ones are compiled in parallel. Errors have the line that NVRTC rejects."""
        fresh = list({k.key: k for k in kernels if k.key not in self._functions}.values())
        with self.calls("loading kernels"):
            loaded = dict(zip([k.key for k in fresh], self.driver.functions(fresh) if fresh else [], strict=True))
        functions: list[CudaFunction] = []
        for kernel in kernels:
            size, key = len(kernel.source), kernel.key
            functions.append(self._functions.make(key, lambda k=key: loaded[k], lambda _, s=size: s))  # type: ignore[misc]
        return functions


def _overlap(one: Memory, other: Memory) -> bool:
    return one.address < other.address + other.count and other.address < one.address + one.count
