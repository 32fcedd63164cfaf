"""A driver of the CUDA back end that runs on the processor: what it is told, in order, and results.

It checks that no memory is used after it was freed, that all of it is freed, and that kernels get what they take. Work is
done when it is submitted, so what a real stream defers is not seen; that takes hardware.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import opweave as ow
from opweave.backends import Device, Precision
from opweave.backends.cuda.backend import CudaBackend, precisions
from opweave.backends.cuda.devices import CudaInfo, DriverError
from opweave.backends.cuda.driver import CudaFunction, Driver, DriverLaunch
from opweave.backends.cuda.engine import CudaDevice
from opweave.core.graph import Desc
from opweave.expr.gpu import GpuKernel
from opweave.memory import dlpack
from support.cuda_on_cpu import Guarded, compiler, functions
from support.triton_on_cpu import interpreter

INFO = CudaInfo("a processor", "sm_90", units=132, max_shared=49152, max_dynamic_shared=232448, memory=2**30)


@dataclass
class Graph:
    """A graph of kernels; `is_released` once it must not be launched."""

    launches: list[DriverLaunch]
    is_released: bool = False


@dataclass
class CpuDriver(Driver):
    """A device of the processor's memory.

    Attributes:
        calls: how often each method was called.
        memory: what is allocated, by address.
        failing: the name of the error that the next launch has.
        waits: which stream was told to wait for which.
        retired: objects that were kept until the work before was done, which it is at once.
    """

    info: CudaInfo = INFO
    stream: int = 0x5EED
    calls: Counter[str] = field(default_factory=Counter)
    memory: dict[int, Guarded] = field(default_factory=dict)
    failing: str = ""
    waits: list[str] = field(default_factory=list)
    retired: list[Any] = field(default_factory=list)
    number: int = 0

    def functions(self, kernels: Sequence[GpuKernel]) -> list[CudaFunction]:
        self.calls["functions"] += 1
        functions.prepare(kernel.source for kernel in kernels if not kernel.compiler)
        # Triton's own arguments are two pointers.
        return [
            CudaFunction(kernel, kernel.block, trailing=2 if kernel.compiler == "triton" else 0) for kernel in kernels
        ]

    def allocate(self, count: int) -> int:
        self.calls["allocate"] += 1
        if count > self.info.memory:
            raise DriverError("CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        made = Guarded(count)
        made.array[:] = 0
        self.memory[made.address] = made
        return made.address

    def free(self, address: int) -> None:
        self.calls["free"] += 1
        if self.failing:
            raise DriverError(self.failing)
        del self.memory[address]

    def lend(self, array: np.ndarray) -> int:
        """Memory that is not the driver's, as another library has it."""
        made = Guarded(array.nbytes)
        self.memory[made.address] = made
        made.array[:] = array.reshape(-1).view(np.uint8)
        return made.address

    def bytes(self, address: int, count: int) -> np.ndarray:
        """Bytes of memory that is allocated."""
        for start, found in self.memory.items():
            if start <= address and address + count <= start + len(found.array):
                return found.array[address - start : address - start + count]
        raise AssertionError(f"{count} bytes at {address:#x} are not allocated")

    def bound(self, address: int, count: int) -> np.ndarray:
        """The bytes that a kernel may use: at most `count`. Another kernel of the same text may have had a larger array."""
        for start, found in self.memory.items():
            if start <= address < start + len(found.array):
                return found.array[address - start :][:count]
        raise AssertionError(f"{count} bytes at {address:#x} are not allocated")

    def upload(self, address: int, source: np.ndarray) -> None:
        self.calls["upload"] += 1
        assert source.flags.c_contiguous
        self.bytes(address, source.nbytes)[:] = source.reshape(-1).view(np.uint8)

    def download(self, targets: Sequence[np.ndarray], addresses: Sequence[int]) -> None:
        self.calls["download"] += 1
        for target, address in zip(targets, addresses, strict=True):
            assert target.flags.c_contiguous
            target.reshape(-1).view(np.uint8)[:] = self.bytes(address, target.nbytes)

    def copy(self, target: int, source: int, count: int) -> None:
        self.calls["copy"] += 1
        self.bytes(target, count)[:] = self.bytes(source, count)

    def graph(self, launches: Sequence[DriverLaunch]) -> Graph:
        self.calls["graph"] += 1
        return Graph(list(launches))

    def update(self, graph: Graph, number: int, launch: DriverLaunch) -> None:
        self.calls["update"] += 1
        assert graph.launches[number].function == launch.function
        graph.launches[number] = launch

    def launch(self, graph: Graph) -> None:
        self.calls["launch"] += 1
        assert not graph.is_released
        if self.failing:
            raise DriverError(self.failing, "an error")
        self._run(graph.launches)

    def _run(self, launches: Sequence[DriverLaunch]) -> None:
        from support.cuda_on_cpu import launch as run

        for one in launches:
            kernel: GpuKernel = one.function.handle
            assert one.function.invocations == kernel.block
            is_triton = kernel.compiler == "triton"
            sizes = len(kernel.sizes) if is_triton else int(bool(kernel.sizes))
            given = [*(kernel.arguments or range(len(kernel.bindings))), *[b""] * sizes]
            pairs = [
                (argument, number)
                for argument, number in zip(one.arguments, given, strict=True)
                if isinstance(number, int)
            ]
            most = self.info.memory if kernel.sizes else None
            bytes = [self.bound(address, most or kernel.bindings[number].desc.byte_length) for address, number in pairs]  # type: ignore[arg-type]
            if is_triton:
                assert one.parameters == (*one.arguments, 0, 0)
                arrays = [part.view(buffer.desc.data_type) for part, buffer in zip(bytes, kernel.bindings, strict=True)]
                numbers = [
                    int.from_bytes(argument, sys.byteorder, signed=True)
                    for argument in one.arguments[len(kernel.bindings) :]
                    if not isinstance(argument, int)
                ]
                interpreter().run(kernel, arrays, numbers, one.workgroups[0])
            else:
                run(kernel, one.arguments, one.workgroups)

    def release(self, graph: Graph) -> None:
        self.calls["release"] += 1
        assert not graph.is_released
        graph.is_released = True

    def times(self, launches: Sequence[DriverLaunch]) -> list[int]:
        self.calls["times"] += 1
        self._run(launches)
        return list(range(1, len(launches) + 1))

    def wait(self) -> None:
        self.calls["wait"] += 1

    def free_shared(self, address: int) -> None:
        self.calls["free_shared"] += 1
        self.free(address)

    def retire(self, owner: Any) -> None:
        self.retired.append(owner)

    def device_of(self, address: int) -> int:
        self.calls["device_of"] += 1
        if not any(start <= address < start + len(found.array) for start, found in self.memory.items()):
            raise DriverError("CUDA_ERROR_INVALID_VALUE", "invalid argument")
        return self.number

    def follow(self, stream: int) -> None:
        self.waits.append(f"{self.stream:#x} for {stream:#x}")

    def precede(self, stream: int) -> None:
        self.waits.append(f"{stream:#x} for {self.stream:#x}")


class OnDevice:
    """An array of another library on the device, which notes for which stream it is asked."""

    def __init__(
        self,
        driver: CpuDriver,
        array: np.ndarray,
        device: tuple[int, int] = (dlpack.CUDA, 0),
        *,
        old: bool = False,
        offset: int = 0,
    ) -> None:
        self.address, self.device, self.old = driver.lend(array) + offset, device, old
        self.desc = Desc(array.dtype.name, array.shape)  # type: ignore[arg-type]
        self.streams: list[int | None] = []
        self.read_only = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        if self.old and options:
            raise TypeError(f"__dlpack__() got unexpected keyword arguments {list(options)}")
        self.streams.append(stream)
        version = options.get("max_version")
        return dlpack.capsule(self.address, self.desc, self.device, self, read_only=self.read_only, max_version=version)


def context_on(driver: Driver, precision: Precision = "float32", engine: CudaDevice | None = None) -> ow.MLContext:
    """A context on a driver, with an engine of its own unless there is one."""
    device = Device("cuda", "gpu", "cuda", "", precisions=precisions(driver.info))
    return ow.MLContext(CudaBackend(engine or CudaDevice(driver)).with_precision(precision), device, "default")


HARDWARE = os.environ.get("OPWEAVE_TEST_DEVICE", "").startswith("cuda")
"""Whether tests run on an NVIDIA GPU (`make test-gpu`)."""


@cache
def cuda_context() -> ow.MLContext:
    """A context on the processor, or on the GPU that the environment variable OPWEAVE_TEST_DEVICE names ("cuda", "cuda:1")."""
    if HARDWARE:
        return ow.ml.create_context(device=os.environ["OPWEAVE_TEST_DEVICE"])
    compiler()
    return context_on(CpuDriver())
