"""Convert errors of device calls to Opweave's errors."""

from __future__ import annotations

from collections.abc import Callable
from os import getpid

from ...support.errors import InvalidStateError


class Calls:
    """A reentrant, thread-safe context for device calls.

    Each dispatch enters the context. `contextlib.contextmanager` would allocate two objects and call three more functions.
    `raise_error` raises Opweave's error for a device error; it returns for any other error.

    Raises:
        InvalidStateError: on entry, if this process was forked from the process that opened the device.
    """

    __slots__ = ("_process", "_raise_error", "_subject", "_title")

    def __init__(self, subject: str, title: str, process: int, raise_error: Callable[[BaseException], None]) -> None:
        self._subject, self._title, self._process, self._raise_error = subject, title, process, raise_error

    def __enter__(self) -> None:
        # Drivers do not work in a forked process: no thread polls the device, and waiting would never end.
        if getpid() != self._process:
            raise InvalidStateError(
                f"{self._subject}: the {self._title} device belongs to another process, which this one was forked from; "
                "multiprocessing starts others by 'spawn'"
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._raise_error(error)
