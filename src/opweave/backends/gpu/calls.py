"""Calls of a device, whose errors become Opweave's."""

from __future__ import annotations

from collections.abc import Callable
from os import getpid

from ...support.errors import InvalidStateError


class Calls:
    """A context for calls of a device; it can be entered again, and by several threads.

    It is a class, because each dispatch enters it, and `contextlib.contextmanager` makes two objects and calls three more
    functions.

    Args:
        what: leads messages.
        device: the kind of device, for messages.
        process: the process that has opened the device.
        failed: raises Opweave's error for one of the device, and returns for other errors.

    Raises:
        InvalidStateError: on entry, if this process was forked from the one that has opened the device.
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
