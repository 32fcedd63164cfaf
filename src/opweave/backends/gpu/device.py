"""Base class of devices that run kernels."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import RLock
from typing import Any
from weakref import WeakSet, WeakValueDictionary, finalize

import numpy as np

from ...core.graph import Desc
from ...memory.spaces import DeviceSpace
from ...support.errors import InvalidStateError
from .arrays import DeviceArray
from .constants import GpuConstant, make_each


class Calls:
    """A reentrant, thread-safe context for device calls.

    Each dispatch enters the context. `contextlib.contextmanager` would allocate two objects and call three more functions.
    """

    __slots__ = ("_device", "_explain", "_subject")

    def __init__(self, device: GpuDevice, subject: str, explain: Callable[[str], str] | None) -> None:
        self._device, self._subject, self._explain = device, subject, explain

    def __enter__(self) -> None:
        # Drivers do not work in a forked process: no thread polls the device, and waiting would never end.
        if os.getpid() != self._device.process:
            raise InvalidStateError(
                f"{self._subject}: the {self._device.title} device belongs to another process, from which this one "
                "was forked; start processes with multiprocessing's 'spawn' method"
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._device.raise_error(self._subject, self._explain, error)


class GpuDevice(DeviceSpace):
    """A device that runs kernels: the space of its tensors. All methods may be called from several threads.

    Attributes:
        title: kind of the device, as messages name it.
        description: names of the hardware and of the interface, as messages show them.
        process: id of the process that has opened the device.
        uploaded: buffers of constants by `GpuConstant.key`; an entry ends with its array or its buffer.
    """

    title: str
    description: str
    max_byte_length: int
    is_host = False
    device: Any = None

    def __init__(self) -> None:
        self.uploaded: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._contexts: WeakSet[Any] = WeakSet()
        self.process, self._lock = os.getpid(), RLock()

    # Errors ----------------------------------------------------------------------------------------------------------

    def calls(self, subject: str, explain: Callable[[str], str] | None = None) -> Calls:
        """Return a context that converts the device's errors to Opweave's.

        Args:
            subject: first words of each message.
            explain: converts the device's message to the text after the subject; None keeps the device's message.

        Raises:
            InvalidStateError: the device is lost, or belongs to the process that this one was forked from.
            OperationError: the device rejects the call, or memory is exhausted.
        """
        return Calls(self, subject, explain)

    @abstractmethod
    def raise_error(self, subject: str, explain: Callable[[str], str] | None, error: BaseException) -> None:
        """Raise Opweave's error for an error of the device; return for any other error."""

    def lose_contexts(self, subject: str, cause: str = "") -> InvalidStateError:
        """Invalidate all contexts of the device, and return the error to raise."""
        suffix = f": {cause}" if cause else ""
        for context in list(self._contexts):
            context.lose(f"its {self.title} device is lost ({self.description}){suffix}")
        return InvalidStateError(f"{subject}: the {self.title} device is lost{suffix}")

    def attach(self, context: Any) -> None:
        self._contexts.add(context)
        # A context may be dropped without `destroy`.
        finalize(context, self.detach).atexit = False

    def detach(self, context: Any = None) -> None:
        with self._lock:
            if context is not None:
                self._contexts.discard(context)
            if not list(self._contexts):  # its length counts contexts that are being freed
                self.uploaded.clear()
                self.free_caches()

    @abstractmethod
    def free_caches(self) -> None:
        """Free kernels and idle memory: the last context has ended."""

    # Memory ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def buffer(self, count: int, label: str) -> Any:
        """Allocate `count` bytes of zeros that kernels read and write."""

    @abstractmethod
    def write_buffer(self, buffer: Any, source: np.ndarray, reason: str) -> None:
        """Copy an array into a buffer, in order with other work, and count the copy."""

    def allocate(self, desc: Desc) -> DeviceArray:
        return DeviceArray(desc, self.buffer(desc.byte_length, f"a tensor {desc}"))

    def owns(self, given: Any) -> bool:
        return isinstance(given, DeviceArray)

    def carve(self, sizes: Sequence[int], homes: Sequence[int], descs: Sequence[Desc]) -> list[DeviceArray]:
        buffers = [self.buffer(size, "intermediates") for size in sizes]
        return [DeviceArray(desc, buffers[home]) for desc, home in zip(descs, homes, strict=True)]

    def arenas(self) -> Any:
        from .arenas import Arenas  # which imports this class

        return Arenas(self)

    def write(self, target: DeviceArray, source: np.ndarray, reason: str) -> None:
        self.write_buffer(target.buffer, source, reason)

    def check_lent(self, arrays: Iterable[DeviceArray]) -> None:
        """Raise `ValidationError` for a user's memory that is known to be freed."""
        return

    def upload(self, constants: Sequence[GpuConstant]) -> list[Any]:
        """Return the buffers of constants, uploaded on first use; graphs share the buffers of equal constants."""
        keys = [constant.key for constant in constants]
        with self._lock:
            buffers = {key: buffer for key in keys if (buffer := self.uploaded.get(key)) is not None}
        fresh = {key: constant for key, constant in zip(keys, constants, strict=True) if key not in buffers}
        for (key, constant), array in zip(fresh.items(), make_each([*fresh.values()]), strict=True):
            buffers[key] = self._upload(key, constant, array)
        return [buffers[key] for key in keys]

    def _upload(self, key: Hashable, constant: GpuConstant, array: np.ndarray) -> Any:
        buffer = self.buffer(array.nbytes, "a constant")
        self.write_buffer(buffer, array, "a constant to the device")
        with self._lock:
            self.uploaded[key] = buffer
        end = finalize(constant.owner, self.uploaded.pop, key, None)  # a new array may reuse the address
        end.atexit = False
        finalize(buffer, end.detach).atexit = False
        return buffer
