"""A device through NVIDIA's driver. `Driver` says what the back end needs of it; tests have one that runs on the processor.

Nothing here has been run by tests without a GPU, but for what they say of a machine that has none.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from ...expr.gpu import Compiled, Kernel
from . import compiler
from .devices import Info, bindings, call, infos

Argument: TypeAlias = int | bytes
"""An argument of a kernel: an address, or a value as it lies in memory."""

MAX_DECLARED_SHARED = 48 << 10
"""Bytes of shared memory that a kernel may have without asking for it (CUDA programming guide, "Shared Memory")."""


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel that is loaded.

    Attributes:
        handle: the driver's.
        invocations: threads of a block in each dimension.
        shared: bytes of shared memory that a launch adds to those which the kernel declares.
        trailing: null pointers after the arguments.
    """

    handle: Any
    invocations: tuple[int, int, int]
    shared: int = 0
    trailing: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel tied to memory.

    Attributes:
        function: the kernel.
        workgroups: blocks in each dimension.
        arguments: addresses and values, in the order of the kernel's parameters.
    """

    function: Function
    workgroups: tuple[int, int, int]
    arguments: tuple[Argument, ...]

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """The arguments, and the null pointers after them."""
        return *self.arguments, *[0] * self.function.trailing


class Driver(ABC):
    """A device and a stream of it, whose work runs in order. All methods may be called from several threads.

    Attributes:
        info: what the device is.
        stream: the handle of the stream.
    """

    info: Info
    stream: int

    @abstractmethod
    def functions(self, kernels: Sequence[Kernel]) -> list[Function]:
        """Compile and load kernels; new ones in parallel."""

    @abstractmethod
    def allocate(self, count: int) -> int:
        """The address of `count` bytes of zeros, in the order of the stream."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Free memory once the work that was submitted before is done."""

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

    @abstractmethod
    def close(self) -> None:
        """Give back the stream, kernels and staging memory. Memory of tensors is freed on its own."""


class NvidiaDriver(Driver):
    """A device through `cuda.bindings.driver`.

    Args:
        number: of the device.
        stream: the handle of the caller's stream; None for one of its own.
        owner: what must live as long as that stream is used.
    """

    def __init__(self, number: int, stream: int | None = None, owner: Any = None) -> None:
        self.info, self._owner = infos()[number], owner
        self._device = call("cuDeviceGet", number)
        self._context = call("cuDevicePrimaryCtxRetain", self._device)
        self._enter()
        cuda = bindings()
        self._owns_stream = stream is None
        self._stream: Any = (
            call("cuStreamCreate", cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
            if stream is None
            else cuda.CUstream(stream)
        )
        self.stream = int(self._stream)
        self._modules: list[Any] = []
        self._pinned: list[tuple[int, int]] = []  # address and bytes of idle memory that the device can write to
        self._lock = threading.Lock()
        self._is_closed = False

    def _enter(self) -> None:
        """Make the device's context that of this thread."""
        # Other libraries may have set another one since; setting is cheap, and asking takes as long.
        call("cuCtxSetCurrent", self._context)

    def functions(self, kernels: Sequence[Kernel]) -> list[Function]:
        """Compile and load kernels."""
        self._enter()
        return [self._loaded(compiled) for compiled in compiler.binaries(kernels, self.info.architecture)]

    def _loaded(self, compiled: Compiled) -> Function:
        module = call("cuModuleLoadData", compiled.image)
        self._modules.append(module)
        handle = call("cuModuleGetFunction", module, compiled.entry_point.encode())
        if compiled.shared > MAX_DECLARED_SHARED:
            attribute = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call("cuFuncSetAttribute", handle, attribute, compiled.shared)
        return Function(handle, compiled.invocations, compiled.shared, compiled.trailing)

    def allocate(self, count: int) -> int:
        """The address of zeros, from the device's pool."""
        self._enter()
        address = call("cuMemAllocAsync", count, self._stream)
        call("cuMemsetD8Async", address, 0, count, self._stream)
        return int(address)

    def free(self, address: int) -> None:
        """Give memory back to the pool."""
        if not self._is_closed:
            self._enter()
            call("cuMemFreeAsync", address, self._stream)

    def upload(self, address: int, source: np.ndarray) -> None:
        """Copy to the device; the driver stages what is not page-locked before it returns."""
        self._enter()
        call("cuMemcpyHtoDAsync", address, source.ctypes.data, source.nbytes, self._stream)

    def download(self, targets: Sequence[np.ndarray], addresses: Sequence[int]) -> None:
        """Copy through page-locked memory, so that only an event is waited for."""
        self._enter()
        total = sum(-(-target.nbytes // 16) * 16 for target in targets)
        staging = self._take(max(16, total))
        try:
            at = staging[0]
            for target, address in zip(targets, addresses, strict=True):
                call("cuMemcpyDtoHAsync", at, address, target.nbytes, self._stream)
                at += -(-target.nbytes // 16) * 16
            event = call("cuEventCreate", bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING)
            try:
                call("cuEventRecord", event, self._stream)
                call("cuEventSynchronize", event)
            finally:
                call("cuEventDestroy", event)
            at = staging[0]
            for target in targets:
                ctypes.memmove(target.ctypes.data, at, target.nbytes)
                at += -(-target.nbytes // 16) * 16
        finally:
            with self._lock:
                self._pinned.append(staging)

    def _take(self, count: int) -> tuple[int, int]:
        """Page-locked memory of at least `count` bytes."""
        with self._lock:
            fitting = [found for found in self._pinned if found[1] >= count]
            if fitting:
                best = min(fitting, key=lambda found: found[1])
                self._pinned.remove(best)
                return best
        size = 1 << (count - 1).bit_length()
        return int(call("cuMemHostAlloc", size, 0)), size

    def copy(self, target: int, source: int, count: int) -> None:
        """Copy on the device."""
        self._enter()
        call("cuMemcpyDtoDAsync", target, source, count, self._stream)

    def graph(self, launches: Sequence[Launch]) -> Any:
        """A chain of kernel nodes, instantiated: the executable graph, its nodes, and the graph that these belong to."""
        self._enter()
        graph = call("cuGraphCreate", 0)
        nodes: list[Any] = []
        for launch in launches:
            parameters, kept = _node(launch)
            before = nodes[-1:]
            nodes.append(call("cuGraphAddKernelNode", graph, before, len(before), parameters))
            del kept  # the driver has copied the arguments
        return call("cuGraphInstantiate", graph, 0), nodes, graph

    def update(self, graph: Any, number: int, launch: Launch) -> None:
        """Set the arguments of a node; launches before keep theirs."""
        self._enter()
        executable, nodes, _ = graph
        parameters, kept = _node(launch)
        call("cuGraphExecKernelNodeSetParams", executable, nodes[number], parameters)
        del kept

    def launch(self, graph: Any) -> None:
        """Submit a graph."""
        self._enter()
        call("cuGraphLaunch", graph[0], self._stream)

    def release(self, graph: Any) -> None:
        """Destroy a graph; launches that are under way finish."""
        if not self._is_closed:
            self._enter()
            call("cuGraphExecDestroy", graph[0])
            call("cuGraphDestroy", graph[2])

    def times(self, launches: Sequence[Launch]) -> list[int]:
        """Launch kernels with an event between each two."""
        self._enter()
        events = [call("cuEventCreate", 0) for _ in range(len(launches) + 1)]
        try:
            call("cuEventRecord", events[0], self._stream)
            for launch, event in zip(launches, events[1:], strict=True):
                values, pointers = _arguments(launch.parameters)
                call(
                    "cuLaunchKernel",
                    launch.function.handle,
                    *launch.workgroups,
                    *launch.function.invocations,
                    launch.function.shared,
                    self._stream,
                    pointers.ctypes.data,
                    0,
                )
                del values
                call("cuEventRecord", event, self._stream)
            call("cuEventSynchronize", events[-1])
            pairs = pairwise(events)
            return [round(call("cuEventElapsedTime", start, end) * 1e6) for start, end in pairs]
        finally:
            for event in events:
                call("cuEventDestroy", event)

    def wait(self) -> None:
        """Wait for the stream."""
        self._enter()
        call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Give everything back, after what is under way."""
        if self._is_closed:
            return
        self.wait()
        self._is_closed = True
        for module in self._modules:
            call("cuModuleUnload", module)
        for address, _ in self._pinned:
            call("cuMemFreeHost", address)
        if self._owns_stream:
            call("cuStreamDestroy", self._stream)
        call("cuDevicePrimaryCtxRelease", self._device)


def _arguments(given: Sequence[Argument]) -> tuple[np.ndarray, np.ndarray]:
    """Arguments as the driver takes them: their values, and a pointer to each."""
    parts = [value.to_bytes(8, sys.byteorder) if isinstance(value, int) else value for value in given]
    starts = np.cumsum([0, *(-(-len(part) // 16) * 16 for part in parts)], dtype=np.uint64)
    values = np.zeros(int(starts[-1]) + 16, np.uint8)
    values = values[-values.ctypes.data % 16 :]  # no type of a parameter is aligned to more
    for start, part in zip(starts, parts, strict=False):
        values[int(start) : int(start) + len(part)] = np.frombuffer(part, np.uint8)
    return values, values.ctypes.data + starts[:-1]


def _node(launch: Launch) -> tuple[Any, Any]:
    """The parameters of a kernel node, and what must live until the driver has read them."""
    parameters = bindings().CUDA_KERNEL_NODE_PARAMS()
    values, pointers = _arguments(launch.parameters)
    parameters.func = launch.function.handle
    parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = launch.workgroups
    parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = launch.function.invocations
    parameters.sharedMemBytes = launch.function.shared
    parameters.kernelParams = pointers.ctypes.data
    return parameters, (values, pointers)


__all__ = ["Driver", "Function", "Launch", "NvidiaDriver"]
