"""What the back end needs of a device: `nvidia` has it of NVIDIA's driver, and tests have it of the processor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ...expr.gpu import Kernel
from .devices import DriverError, Info

Argument: TypeAlias = int | bytes
"""An argument of a kernel: an address, or a value as it lies in memory."""


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel that is loaded.

    Attributes:
        handle: the driver's.
        invocations: threads of a block in each dimension.
        shared: bytes of shared memory that a launch adds to those which the kernel declares.
        trailing: null pointers after the arguments.
        module: what keeps it loaded.
    """

    handle: Any
    invocations: tuple[int, int, int]
    shared: int = 0
    trailing: int = 0
    module: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel tied to memory.

    Attributes:
        function: the kernel.
        workgroups: blocks in each dimension.
        arguments: addresses and values, in the order of the kernel's parameters.
        starts_early: whether the kernel may start while the one before ends, and waits for that itself.
    """

    function: Function
    workgroups: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    starts_early: bool

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """The arguments, and the null pointers after them."""
        return *self.arguments, *[0] * self.function.trailing


def given_back(free: Callable[[Any], None], held: Any) -> None:
    """Free something on the device; where the device is lost, it is gone already."""
    with suppress(DriverError):
        free(held)


class Driver(ABC):
    """A device and a stream of it, whose work runs in order. All methods may be called from several threads.

    It gives back its stream, kernels and staging memory with the last reference to it, which memory and graphs hold, too.

    Attributes:
        info: what the device is.
        number: of the device, as CUDA counts them.
        stream: the handle of the stream.
    """

    info: Info
    number: int
    stream: int

    def begin(self, kernels: Sequence[Kernel]) -> list[Any]:
        """Begin to compile kernels. While what this returns is held, `functions` need not compile them again."""
        return []

    @abstractmethod
    def functions(self, kernels: Sequence[Kernel]) -> list[Function]:
        """Compile and load kernels; new ones in parallel."""

    @abstractmethod
    def allocate(self, count: int) -> int:
        """The address of `count` bytes of zeros, in the order of the stream."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Free memory once the work that was submitted to the stream before is done."""

    @abstractmethod
    def free_shared(self, address: int) -> None:
        """Free memory that other libraries have used: once the work of all streams is done."""

    @abstractmethod
    def retire(self, owner: Any) -> None:
        """Keep an object, whose memory kernels use, until the work that was submitted before is done."""

    @abstractmethod
    def device_of(self, address: int) -> int:
        """The number of the device whose memory an address is in; `DriverError` if it is in none's."""

    @abstractmethod
    def follow(self, stream: int) -> None:
        """Let work that is submitted from now on wait for what has been submitted to another stream."""

    @abstractmethod
    def precede(self, stream: int) -> None:
        """Let what is submitted to another stream from now on wait for the work of this one until now."""

    @abstractmethod
    def upload(self, address: int, source: np.ndarray) -> None:
        """Copy a contiguous array to the device; the array may change as soon as this returns."""

    @abstractmethod
    def download(self, targets: Sequence[np.ndarray], addresses: Sequence[int]) -> None:
        """Copy to contiguous arrays, and wait for it; the copies start before the wait, in which other threads may work."""

    @abstractmethod
    def copy(self, target: int, source: int, count: int) -> None:
        """Copy on the device."""

    @abstractmethod
    def graph(self, launches: Sequence[Launch]) -> Any:
        """A graph of kernels that run one after the other."""

    @abstractmethod
    def update(self, graph: Any, number: int, launch: Launch) -> None:
        """Give a kernel of a graph, by its number, other arguments, for launches to come."""

    @abstractmethod
    def launch(self, graph: Any) -> None:
        """Submit a graph."""

    @abstractmethod
    def release(self, graph: Any) -> None:
        """Free a graph that will not be launched any more."""

    @abstractmethod
    def times(self, launches: Sequence[Launch]) -> list[int]:
        """Run kernels one after the other, and return the nanoseconds that each takes on the device."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until all submitted work is done."""


__all__ = ["Argument", "Driver", "Function", "Launch", "given_back"]
