"""A device through NVIDIA's driver.

Each method makes the device's primary context current and restores the previous context at its end, because other libraries
of the caller rely on the context that they have made current. Several threads may call functions of the driver; a graph may
be used by one thread at a time.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate, pairwise
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import finalize

import numpy as np

from ...expr.gpu import CompiledText, GpuKernel
from ...support.errors import ValidationError
from . import compiler
from .devices import DriverError, bindings, call, failure, has_early_starts, infos, is_done
from .driver import Argument, CudaFunction, Driver, DriverLaunch, free_unless_lost
from .staging import Staging

P = ParamSpec("P")
R = TypeVar("R")

MAX_DECLARED_SHARED = 48 << 10
"""Bytes of shared memory that a kernel may use without requesting it (CUDA programming guide, "Shared Memory")."""

LEGACY = 1


def _in_context(method: Callable[Concatenate[NvidiaDriver, P], R]) -> Callable[Concatenate[NvidiaDriver, P], R]:
    @wraps(method)
    def run(self: NvidiaDriver, /, *args: P.args, **kwargs: P.kwargs) -> R:
        cuda = bindings()
        (error,) = cuda.cuCtxPushCurrent(self._context)
        if error:
            raise failure(error)
        try:
            return method(self, *args, **kwargs)
        finally:
            cuda.cuCtxPopCurrent()

    return run


class NvidiaDriver(Driver):
    """A device through `cuda.bindings.driver`.

    Args:
        number: the number of the device.
        stream: the handle of the caller's stream; None creates one.
        owner: object that keeps the stream alive.

    Raises:
        ValidationError: the stream belongs to a context that a library has created for itself.
    """

    def __init__(self, number: int, stream: int | None = None, owner: Any = None) -> None:
        self.info, self.number, self._owner = infos()[number], number, owner
        # Load compilers now: loading takes as long as compiling a kernel, which the first build would wait for.
        compiler.load(for_tensor_cores=self.info.has_tensor_cores)
        self._has_early_starts = has_early_starts(self.info.architecture)
        device = call("cuDeviceGet", number)
        self._context = call("cuDevicePrimaryCtxRetain", device)
        self._retired: deque[_Retired] = deque()
        # Reentrant: finalizers call `_defer`, and the garbage collector may run one while the lock is held.
        self._lock = RLock()
        self._stream: Any = self._create_stream() if stream is None else bindings().CUstream(stream)
        self.stream = int(self._stream)
        self._staging = Staging(self._stream)
        held = (self._context, device, self._staging, self._retired)
        # At process exit the driver frees everything, and may be gone before the finalizer runs.
        finalize(self, _close, *held, self._stream if stream is None else None).atexit = False
        if stream is not None and stream > LEGACY:
            self._check_stream()

    @_in_context
    def _create_stream(self) -> Any:
        return call("cuStreamCreate", bindings().CUstream_flags.CU_STREAM_NON_BLOCKING)

    @_in_context
    def _check_stream(self) -> None:
        if int(call("cuStreamGetCtx", self._stream)) != int(self._context):
            raise ValidationError(
                "cuda_stream: the stream must be of the device's primary context, which the CUDA runtime and PyTorch use"
            )

    # Kernels ---------------------------------------------------------------------------------------------------------

    def begin(self, kernels: Sequence[GpuKernel]) -> list[Any]:
        return compiler.begin(kernels, self.info.architecture)

    @_in_context
    def functions(self, kernels: Sequence[GpuKernel]) -> list[CudaFunction]:
        compiled = compiler.compile_each(kernels, self.info.architecture)
        loaded = {key: self._load(one) for key, one in compiled}
        return [loaded[kernel.key] for kernel in kernels]

    def _load(self, compiled: CompiledText) -> CudaFunction:
        module = None
        if compiled.handle:
            handle = bindings().CUfunction(compiled.handle)
        else:
            module = _CudaModule(call("cuModuleLoadData", compiled.image))
            finalize(module, free_unless_lost, self._unload, module.handle).atexit = False
            handle = call("cuModuleGetFunction", module.handle, compiled.entry_point.encode())
        if compiled.shared > MAX_DECLARED_SHARED:
            attribute = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call("cuFuncSetAttribute", handle, attribute, compiled.shared)
        return CudaFunction(handle, compiled.invocations, compiled.shared, compiled.trailing, module)

    @_in_context
    def graph(self, launches: Sequence[DriverLaunch]) -> Any:
        """Return the executable graph, its nodes, and the graph that owns the nodes."""
        graph = call("cuGraphCreate", 0)
        nodes: list[Any] = []
        # The steps of a recurrence repeat few launches.
        parameters_of: dict[int, tuple[Any, Any]] = {}
        for launch in launches:
            if id(launch) not in parameters_of:
                parameters_of[id(launch)] = _node(launch)
            parameters, _ = parameters_of[id(launch)]
            is_early = launch.starts_early and self._has_early_starts
            before = [] if is_early else nodes[-1:]
            node = call("cuGraphAddKernelNode", graph, before, len(before), parameters)
            if is_early and nodes:
                call("cuGraphAddDependencies", graph, nodes[-1:], [node], [_early()], 1)
            nodes.append(node)
        return call("cuGraphInstantiate", graph, 0), nodes, graph

    @_in_context
    def update(self, graph: Any, number: int, launch: DriverLaunch) -> None:
        executable, nodes, _ = graph
        parameters, kept = _node(launch)
        call("cuGraphExecKernelNodeSetParams", executable, nodes[number], parameters)
        del kept

    @_in_context
    def launch(self, graph: Any) -> None:
        # Not through `call`, which adds a microsecond to each launch.
        (error,) = bindings().cuGraphLaunch(graph[0], self._stream)
        if error:
            raise failure(error)

    @_in_context
    def release(self, graph: Any) -> None:
        call("cuGraphExecDestroy", graph[0])
        call("cuGraphDestroy", graph[2])

    @_in_context
    def times(self, launches: Sequence[DriverLaunch]) -> list[int]:
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
                    pointers.buffer_info()[0],
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

    @_in_context
    def wait(self) -> None:
        call("cuStreamSynchronize", self._stream)

    # Memory ----------------------------------------------------------------------------------------------------------

    @_in_context
    def allocate(self, count: int) -> int:
        address = call("cuMemAllocAsync", count, self._stream)
        call("cuMemsetD8Async", address, 0, count, self._stream)
        return int(address)

    @_in_context
    def free(self, address: int) -> None:
        call("cuMemFreeAsync", address, self._stream)

    @_in_context
    def free_shared(self, address: int) -> None:
        call("cuCtxSynchronize")
        call("cuMemFreeAsync", address, self._stream)

    @_in_context
    def retire(self, owner: Any) -> None:
        """Keep an object until the work submitted so far is done. A later call drops the object."""
        self._defer(_Retired(self._event(), owner))

    @_in_context
    def _unload(self, module: Any) -> None:
        """Unload a module in a later call, once the launches in flight, which may run its kernels, are done."""
        self._defer(_Retired(self._event(), module=module))

    def _defer(self, retired: _Retired) -> None:
        with self._lock:
            self._retired.append(retired)
            while self._retired and is_done(self._retired[0].event):
                self._retired.popleft().end()

    @_in_context
    def device_of(self, address: int) -> int:
        kind = bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(call("cuPointerGetAttribute", kind, address))

    @_in_context
    def upload(self, address: int, source: np.ndarray) -> None:
        self._staging.upload(address, source)

    @_in_context
    def download(self, targets: Sequence[np.ndarray], addresses: Sequence[int]) -> None:
        self._staging.download(targets, addresses)

    @_in_context
    def copy(self, target: int, source: int, count: int) -> None:
        call("cuMemcpyDtoDAsync", target, source, count, self._stream)

    # Other streams ---------------------------------------------------------------------------------------------------

    @_in_context
    def follow(self, stream: int) -> None:
        self._wait(self._stream, bindings().CUstream(stream))

    @_in_context
    def precede(self, stream: int) -> None:
        self._wait(bindings().CUstream(stream), self._stream)

    def _wait(self, later: Any, earlier: Any) -> None:
        if (int(later) or LEGACY) == (int(earlier) or LEGACY):
            return
        event = self._event(earlier)
        try:
            call("cuStreamWaitEvent", later, event, 0)
        finally:
            # The driver keeps the event until the stream no longer waits for it.
            call("cuEventDestroy", event)

    def _event(self, stream: Any = None) -> Any:
        """Record an event after the work submitted to a stream, by default this one."""
        event = call("cuEventCreate", bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING)
        try:
            call("cuEventRecord", event, self._stream if stream is None else stream)
        except DriverError:
            call("cuEventDestroy", event)
            raise
        return event


def _early() -> Any:
    """Return the edge data of an early start.

    The kernel may start once all workgroups of the previous kernel have started, and itself waits for their end.
    """
    edge = bindings().CUgraphEdgeData()
    edge.type = bindings().CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
    edge.from_port = bindings().CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
    return edge


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _CudaModule:
    """A loaded module, which is unloaded after its functions are gone."""

    handle: Any


@dataclass(frozen=True, slots=True)
class _Retired:
    """A Python object or a loaded module that must live until `event`."""

    event: Any
    owner: Any = None
    module: Any = None

    def end(self) -> None:
        call("cuEventDestroy", self.event)
        if self.module is not None:
            call("cuModuleUnload", self.module)


def _close(context: Any, device: Any, staging: Staging, retired: deque[_Retired], stream: Any) -> None:
    """Free everything after the work in flight; a lost device has nothing left to free.

    `stream` is None for the caller's stream, which may be gone: so synchronise the context, not the stream.
    """
    try:
        call("cuCtxPushCurrent", context)
        try:
            call("cuCtxSynchronize")
            staging.close()
            for one in retired:
                one.end()
            if stream is not None:
                call("cuStreamDestroy", stream)
        finally:
            call("cuCtxPopCurrent")
            call("cuDevicePrimaryCtxRelease", device)
    except DriverError:
        pass


def _arguments(arguments: Sequence[Argument]) -> tuple[array[int], array[int]]:
    """Return the values of arguments, and a pointer to each, as the driver expects them.

    NumPy's arrays would take ten times as long, for each kernel that new sizes update.
    """
    parts = [value.to_bytes(8, sys.byteorder) if isinstance(value, int) else value for value in arguments]
    # Values start at multiples of 16 bytes, the largest alignment of a parameter type.
    padded = [part.ljust(-(-len(part) // 16) * 16, b"\0") for part in parts]
    block = array("B", b"".join(padded))
    values = array("B", bytes(len(block) + 16))
    address = values.buffer_info()[0]
    gap = -address % 16
    values[gap : gap + len(block)] = block
    starts = accumulate(map(len, padded[:-1]), initial=address + gap)
    return values, array("Q", starts if padded else ())


def _node(launch: DriverLaunch) -> tuple[Any, Any]:
    """Return the parameters of a kernel node, and the objects that must live until the driver has read them."""
    parameters = bindings().CUDA_KERNEL_NODE_PARAMS()
    values, pointers = _arguments(launch.parameters)
    parameters.func = launch.function.handle
    parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = launch.workgroups
    parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = launch.function.invocations
    parameters.sharedMemBytes = launch.function.shared
    parameters.kernelParams = pointers.buffer_info()[0]
    return parameters, (values, pointers)
