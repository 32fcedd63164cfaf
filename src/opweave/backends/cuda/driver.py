"""Interface to a device: `nvidia` implements it with NVIDIA's driver, tests implement it on the processor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ...expr.gpu import GpuKernel
from .devices import CudaInfo, DriverError

Argument: TypeAlias = int | bytes
"""Argument of a kernel: an address, or the bytes of a value."""


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """A loaded kernel, with threads of a block in each dimension, and bytes of dynamic shared memory.

    `trailing` null pointers follow the arguments. `module` keeps the kernel loaded.
    """

    handle: Any
    invocations: tuple[int, int, int]
    shared: int = 0
    trailing: int = 0
    module: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DriverLaunch:
    """A kernel bound to memory: addresses and values in the order of the kernel's parameters.

    If `starts_early`, the kernel may start while the previous one ends, for which it then waits itself.
    """

    function: CudaFunction
    workgroups: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    starts_early: bool

    @property
    def parameters(self) -> tuple[Argument, ...]:
        return *self.arguments, *[0] * self.function.trailing


def free_unless_lost(free: Callable[[Any], None], held: Any) -> None:
    """Free something on the device; a lost device has freed it already."""
    with suppress(DriverError):
        free(held)


class Driver(ABC):
    """A device with one stream, whose work runs in order. All methods may be called from several threads.

    The stream, kernels and staging memory are freed with the last reference to the driver; memory and graphs hold one, too.
    `number` is CUDA's number of the device, `stream` the handle of the stream.
    """

    info: CudaInfo
    number: int
    stream: int

    def begin(self, kernels: Sequence[GpuKernel]) -> list[Any]:
        """Begin to compile kernels. While the result is held, `functions` need not compile them again."""
        return []

    @abstractmethod
    def functions(self, kernels: Sequence[GpuKernel]) -> list[CudaFunction]:
        """Compile and load kernels; new ones are compiled in parallel."""

    @abstractmethod
    def allocate(self, count: int) -> int:
        """Allocate `count` bytes of zeros in stream order, and return the address."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Free memory after the work that has been submitted to the stream."""

    @abstractmethod
    def free_shared(self, address: int) -> None:
        """Free memory that other libraries have used: after the work of all streams."""

    @abstractmethod
    def retire(self, owner: Any) -> None:
        """Keep alive an object whose memory kernels use, until the submitted work is done."""

    @abstractmethod
    def device_of(self, address: int) -> int:
        """Return the number of the device that owns an address, or raise `DriverError` if there is none."""

    @abstractmethod
    def follow(self, stream: int) -> None:
        """Make later work wait for the work that has been submitted to another stream."""

    @abstractmethod
    def precede(self, stream: int) -> None:
        """Make later work of another stream wait for the work submitted to this one."""

    @abstractmethod
    def upload(self, address: int, source: np.ndarray) -> None:
        """Copy a contiguous array to the device; the array may change as soon as this returns."""

    @abstractmethod
    def download(self, targets: Sequence[np.ndarray], addresses: Sequence[int]) -> None:
        """Copy to contiguous arrays, and wait. Copies start before the wait, during which other threads may work."""

    @abstractmethod
    def copy(self, target: int, source: int, count: int) -> None:
        """Copy device memory to device memory."""

    @abstractmethod
    def graph(self, launches: Sequence[DriverLaunch]) -> Any:
        """Create a graph of kernels that run in sequence."""

    @abstractmethod
    def update(self, graph: Any, number: int, launch: DriverLaunch) -> None:
        """Set the arguments and workgroups of a kernel of a graph, by its number, for later launches."""

    @abstractmethod
    def launch(self, graph: Any) -> None:
        """Submit a graph."""

    @abstractmethod
    def release(self, graph: Any) -> None:
        """Free a graph that will not be launched again."""

    @abstractmethod
    def times(self, launches: Sequence[DriverLaunch]) -> list[int]:
        """Run kernels in sequence, and return the nanoseconds of each on the device."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until all submitted work is done."""
