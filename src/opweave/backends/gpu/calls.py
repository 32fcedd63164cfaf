"""Convert errors of device calls to Opweave's errors."""

from __future__ import annotations

from collections.abc import Callable
from os import getpid

from ...support.errors import InvalidStateError


class Calls:
    """A reentrant, thread-safe context for device calls.

    Each dispatch enters the context. `contextlib.contextmanager` would allocate two objects and call three more functions.
    `failed` raises Opweave's error for a device error; it returns for any other error.

    Raises:
        InvalidStateError: on entry, if this process was forked from the process that opened the device.
    """

    __slots__ = ("_device", "_failed", "_process", "_what")

    def __init__(self, what: str, device: str, process: int, failed: Callable[[BaseException], None]) -> None:
        self._what, self._device, self._process, self._failed = what, device, process, failed

    def __enter__(self) -> None:
        # Drivers do not work in a forked process: no thread polls the device, and waiting would never end.
        if getpid() != self._process:
            raise InvalidStateError(
                f"{self._what}: the {self._device} device belongs to another process, which this one was forked from; "
                "multiprocessing starts others by 'spawn'"
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._failed(error)


__all__ = ["Calls"]
