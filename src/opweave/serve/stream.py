"""Reading from a socket into a small buffer, or straight into the memory of the caller."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import TypeAlias

import numpy as np

NORMAL, GOING_AWAY, PROTOCOL_ERROR, TOO_LARGE, INTERNAL_ERROR = 1000, 1001, 1002, 1009, 1011
"""Codes with which connections are closed (RFC 6455, 7.4.1)."""

BUFFER_BYTES = 2**15
"""What is received at once before it is known where it belongs. More would copy more of large payloads, less would take more
calls of the system for small ones. An estimate."""

MAX_HEAD_BYTES = 16 * 1024
"""The size of the headers of a request, at most."""

LINGER_SECONDS = 1.0
"""How long the end of a connection may take."""

_ENDED = getattr(select, "POLLRDHUP", 0)  # of Linux; elsewhere only a reset is seen before all was read


Buffer: TypeAlias = "bytes | memoryview"
"""What is sent."""


class DisconnectedError(Exception):
    """The other side has closed the connection."""


class WireError(Exception):
    """The other side broke the rules.

    Attributes:
        code: the code to close the connection with.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Stream:
    """Reads from a socket: small pieces from a buffer, large ones straight into the memory of the caller.

    Attributes:
        socket: the socket.
        is_trusted: whether the other side has shown a token or key, where one is needed.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.is_trusted = False
        self._deadline: float | None = None
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def set_deadline(self, seconds: float | None) -> None:
        """Let what is received from now on take at most so long, however slowly it comes; None for no limit."""
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
        """Have at least `count` bytes in the buffer, which has room for so many."""
        if self._end - self._start >= count:
            return
        if self._start:
            left = self._end - self._start
            self._view[:left] = self._view[self._start : self._end]
            self._start, self._end = 0, left
        while self._end < count:
            self._end += self._receive(self._view[self._end :])

    def ahead(self, most: int) -> memoryview:
        """The next bytes where they lie in the buffer, at least one and at most `most`; they are still to be read."""
        self._fill(1)
        return self._view[self._start : min(self._end, self._start + most)]

    def read(self, count: int) -> bytes:
        """The next `count` bytes; few, because they pass through the buffer."""
        if self._end - self._start < count:
            self._fill(count)
        start = self._start
        self._start = start + count
        return self._view[start : start + count].tobytes()

    def read_head(self) -> bytes:
        """All up to and with an empty line.

        Raises:
            WireError: there is none in the first 16 KiB.
        """
        while (at := self._buffer.find(b"\r\n\r\n", self._start, min(self._end, self._start + MAX_HEAD_BYTES))) < 0:
            held = self._end - self._start
            if held >= MAX_HEAD_BYTES:
                raise WireError(TOO_LARGE, f"the headers have more than {MAX_HEAD_BYTES} bytes")
            self._fill(held + 1)
        return self.read(at + 4 - self._start)

    def read_some(self, target: memoryview) -> int:
        """Read a piece, at least a byte, into the target; return how many bytes that were."""
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
        """Send buffers, one after the other, with as few calls of the system as possible; may raise OSError."""
        sent = self.socket.sendmsg(parts)
        for part in parts:
            if sent < len(part):
                self.socket.sendall(memoryview(part)[sent:])
            sent = max(sent - len(part), 0)

    def wait(self) -> None:
        """Wait until there is something to read."""
        self._fill(1)

    def has_ended(self) -> bool:
        """Whether the other side sends no more; what it sent before may not be read yet."""
        poll = select.poll()
        poll.register(self.socket, _ENDED)
        return bool(poll.poll(0))

    def stop_reading(self) -> None:
        """Let calls that wait for data end; in any thread."""
        self._shut(socket.SHUT_RD)

    def stop(self) -> None:
        """Let calls that wait for the other side end; in any thread."""
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):  # it may be closed
            self.socket.shutdown(how)

    def close(self) -> None:
        """Close the socket, after what was sent has reached the other side.

        A socket that is closed while there is something to read resets the connection, and the other side may lose what it
        has not read yet.
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
