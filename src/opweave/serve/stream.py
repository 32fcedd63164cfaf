"""Read from a socket into a small buffer, or directly into the memory of the caller."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import TypeAlias

import numpy as np

from ..support.formatting import size

NORMAL, GOING_AWAY, PROTOCOL_ERROR, TOO_LARGE, INTERNAL_ERROR = 1000, 1001, 1002, 1009, 1011
"""Codes of close frames (RFC 6455, 7.4.1)."""

BUFFER_BYTES = 2**15
"""Size of the buffer, for bytes whose destination is not known yet. A larger one copies more of large payloads; a smaller one
takes more system calls for small payloads. An estimate."""

MAX_HEAD_BYTES = 16 * 1024
"""Maximum size of the headers of a request."""

LINGER_SECONDS = 1.0
"""Maximum time to close a connection."""

# POLLRDHUP is Linux's; elsewhere only a reset is seen before all was read.
_ENDED = getattr(select, "POLLRDHUP", 0)


Buffer: TypeAlias = "bytes | memoryview"


class DisconnectedError(Exception):
    """The other side has closed the connection."""


class WireError(Exception):
    """The other side broke the rules; the connection closes with `code`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Stream:
    """Reads from a socket: small pieces through a buffer, large ones directly into the memory of the caller.

    `is_trusted` says whether the other side has sent a valid token or key, where one is needed.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.is_trusted = False
        self._deadline: float | None = None
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def set_deadline(self, seconds: float | None) -> None:
        """Limit the total time of receiving from now on, however slowly data comes; None for no limit."""
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self.socket.settimeout(seconds)

    def _receive(self, target: memoryview) -> int:
        if self._deadline is not None:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self.socket.settimeout(remaining)
        try:
            count = self.socket.recv_into(target)
        except TimeoutError:
            raise
        except OSError as error:
            raise DisconnectedError from error
        if count == 0:
            raise DisconnectedError
        return count

    def _fill(self, count: int) -> None:
        """Receive until the buffer holds at least `count` bytes; `count` must not exceed its size."""
        if self._end - self._start >= count:
            return
        if self._start:
            left = self._end - self._start
            self._view[:left] = self._view[self._start : self._end]
            self._start, self._end = 0, left
        while self._end < count:
            self._end += self._receive(self._view[self._end :])

    def peek(self, most: int) -> memoryview:
        """A view of the next bytes in the buffer, 1 to `most`, without consuming them."""
        self._fill(1)
        return self._view[self._start : min(self._end, self._start + most)]

    def read(self, count: int) -> bytes:
        """Read `count` bytes through the buffer; `count` must be small."""
        if self._end - self._start < count:
            self._fill(count)
        start = self._start
        self._start = start + count
        return self._view[start : start + count].tobytes()

    def read_head(self) -> bytes:
        """Read up to the first empty line, inclusive; at most 16 KiB."""
        while (end := self._buffer.find(b"\r\n\r\n", self._start, min(self._end, self._start + MAX_HEAD_BYTES))) < 0:
            held = self._end - self._start
            if held >= MAX_HEAD_BYTES:
                raise WireError(TOO_LARGE, f"the headers are larger than the limit of {size(MAX_HEAD_BYTES)}")
            self._fill(held + 1)
        return self.read(end + 4 - self._start)

    def read_some(self, target: memoryview) -> int:
        """Read at least one byte into the target; return the number of bytes."""
        held = min(self._end - self._start, len(target))
        if held:
            target[:held] = self._view[self._start : self._start + held]
            self._start += held
            return held
        return self._receive(target)

    def read_into(self, target: np.ndarray) -> None:
        """Fill an array of bytes."""
        view, done = target.data, 0
        while done < len(view):
            done += self.read_some(view[done:])

    def send(self, parts: list[Buffer]) -> None:
        """Send buffers in order, with as few system calls as possible; may raise OSError."""
        sent = self.socket.sendmsg(parts)
        for part in parts:
            if sent < len(part):
                self.socket.sendall(memoryview(part)[sent:])
            sent = max(sent - len(part), 0)

    def wait(self) -> None:
        """Wait until there is something to read."""
        self._fill(1)

    def has_ended(self) -> bool:
        """Whether the other side sends no more; earlier bytes may still be unread."""
        poll = select.poll()
        poll.register(self.socket, _ENDED)
        return bool(poll.poll(0))

    def stop_reading(self) -> None:
        """Wake calls that wait for data; callable from any thread."""
        self._shut(socket.SHUT_RD)

    def stop(self) -> None:
        """Wake calls that wait for the other side; callable from any thread."""
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):  # it may be closed
            self.socket.shutdown(how)

    def close(self) -> None:
        """Close the socket once the other side has received all data.

        Closing a socket with unread data resets the connection, and the other side may lose data that it has not read yet.
        """
        try:
            self.socket.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + LINGER_SECONDS
            while (remaining := deadline - time.monotonic()) > 0:
                self.socket.settimeout(remaining)
                if not self.socket.recv_into(self._view):
                    break
        except OSError:
            pass
        self.socket.close()
