"""Messages over sockets: WebSocket (RFC 6455) for browsers, and frames without masks for Node.js.

Payloads go straight from the socket into the memory of the caller, and from there to the socket. The libraries that were
tried, `picows` 2.3 and `websockets` 17.4, give out their own buffers, from which the data must be copied: with messages of
64 MiB, both had less than two thirds of this module's throughput. They also need an event loop, while contexts run on threads.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from threading import Lock
from typing import TypeAlias

import numpy as np

TEXT, BINARY, CLOSE = 1, 2, 8
_CONTINUATION, _PING, _PONG = 0, 9, 10

NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED_DATA, INVALID_TEXT, TOO_LARGE, INTERNAL_ERROR = (
    1000,
    1001,
    1002,
    1003,
    1007,
    1009,
    1011,
)
"""Codes with which connections are closed (RFC 6455, 7.4.1)."""

CHUNK_BYTES = 2**20
"""How much is received, and then unmasked, at once. 64 MiB took 29 ms of processor time so, and 34 with 256 KiB."""

SHORT_BYTES = 4096
"""A text of at most this size passes through the stream's buffer, and through an integer: faster than through an array."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
_LINGER_SECONDS = 1.0

Buffer: TypeAlias = "bytes | memoryview"


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
        self._buffer = bytearray(16 * 1024)
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
        """Have at least `count` bytes in the buffer."""
        if self._end - self._start >= count:
            return
        if self._start:
            left = self._end - self._start
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        while self._end < count:
            self._end += self._receive(self._view[self._end :])

    def read(self, count: int) -> bytes:
        """The next `count` bytes; few, because they pass through the buffer."""
        self._fill(count)
        start = self._start
        self._start = start + count
        return self._view[start : start + count].tobytes()

    def read_head(self) -> bytes:
        """All up to and with an empty line.

        Raises:
            WireError: there is none in the first 16 KiB.
        """
        while (at := self._buffer.find(b"\r\n\r\n", self._start, self._end)) < 0:
            held = self._end - self._start
            if held == len(self._buffer):
                raise WireError(TOO_LARGE, f"the headers have more than {held} bytes")
            self._fill(held + 1)
        return self.read(at + 4 - self._start)

    def read_some(self, target: memoryview) -> int:
        """Read a piece, at least a byte, into the target; return how many bytes that were."""
        held = min(self._end - self._start, len(target))
        if held:
            target[:held] = self._view[self._start : self._start + held]
            self._start += held
            return held
        return self._receive(target[:CHUNK_BYTES])

    def read_into(self, target: np.ndarray) -> None:
        """Fill an array of bytes."""
        view, done = target.data, 0
        while done < len(view):
            done += self.read_some(view[done:])

    def wait(self) -> None:
        """Wait until there is something to read."""
        self._fill(1)

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
            deadline = time.monotonic() + _LINGER_SECONDS
            while (remaining := deadline - time.monotonic()) > 0:
                self.socket.settimeout(remaining)
                if not self.socket.recv_into(self._view):
                    break
        except OSError:
            pass
        self.socket.close()


def unmask(data: np.ndarray, key: bytes, offset: int = 0) -> None:
    """Combine bytes with the mask of a frame, in place (RFC 6455, 5.3).

    Args:
        data: the bytes, of one dimension.
        key: the four bytes of the mask.
        offset: the position of the first byte in the frame.

    >>> data = np.array([1, 2, 3, 4, 5], "uint8")
    >>> unmask(data, b"abcd")
    >>> data.tobytes()
    b'````d'
    """
    at = offset % 4
    key = key[at:] + key[:at]
    head = min(-data.ctypes.data % 8, data.size)  # whole words are aligned
    body = (data.size - head) // 8 * 8
    if head:
        data[:head] ^= np.frombuffer(key * 2, np.uint8, head)
    if body:
        at = head % 4
        words = data[head : head + body].view(np.uint64)
        np.bitwise_xor(words, np.frombuffer((key[at:] + key[:at]) * 2, np.uint64)[0], out=words)
    if head + body < data.size:
        at = (head + body) % 4
        data[head + body :] ^= np.frombuffer((key[at:] + key[:at]) * 2, np.uint8, data.size - head - body)


def _unmasked(data: bytes, key: bytes) -> bytes:
    """A few bytes without their mask; faster than an array for them."""
    size = len(data)
    mask = int.from_bytes((key * (size // 4 + 1))[:size], "little")
    return (int.from_bytes(data, "little") ^ mask).to_bytes(size, "little")


class Messages(ABC):
    """Text and binary messages over a socket.

    One thread receives; several may send.

    Attributes:
        stream: what is read.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._sending = Lock()
        self._is_closed = False

    @abstractmethod
    def _frames(self, kind: int) -> Iterator[tuple[int, bytes]]:
        """The size and the mask of each frame of the next message, which must be of this kind."""

    @staticmethod
    @abstractmethod
    def header(kind: int, size: int) -> bytes:
        """What precedes a message to the client."""

    @abstractmethod
    def _closing(self, code: int, reason: str) -> bytes:
        """The last frame to the client."""

    def _read(self, target: np.ndarray, key: bytes) -> None:
        """Fill an array with the contents of a frame."""
        if not key:
            self.stream.read_into(target)
            return
        view, filled, done = target.data, 0, 0
        while filled < target.size:
            filled += self.stream.read_some(view[filled:])
            # Up to the end of a word: no word is in two pieces.
            end = filled if filled == target.size else filled - (target.ctypes.data + filled) % 8
            if end > done:
                unmask(target[done:end], key, done)
                done = end

    def text(self, limit: int) -> bytes:
        """The next message, which must be text, of at most `limit` bytes.

        Raises:
            WireError: it is not, or breaks the rules of its frames.
            DisconnectedError: there is none.
        """
        whole = bytearray()
        for count, key in self._frames(TEXT):
            if len(whole) + count > limit:
                raise WireError(TOO_LARGE, f"a text message has more than {limit} bytes")
            if count <= SHORT_BYTES:
                short = self.stream.read(count)
                whole += _unmasked(short, key) if key else short
                continue
            done = 0
            while done < count:  # in pieces: no memory is taken for what does not come
                piece = np.empty(min(count - done, CHUNK_BYTES), np.uint8)
                self.stream.read_into(piece)
                if key:
                    unmask(piece, key, done)
                whole += piece.data
                done += piece.size
        return bytes(whole)

    def payload(self, target: np.ndarray) -> None:
        """Receive the next message, which must be binary and as long as the target, into an array of bytes.

        Raises:
            WireError: it is not, or breaks the rules of its frames.
            DisconnectedError: there is none, or only a part of one.
        """
        done = 0
        for count, key in self._frames(BINARY):
            if done + count > target.size:
                raise WireError(PROTOCOL_ERROR, f"a payload has more than the announced {target.size} bytes")
            self._read(target[done : done + count], key)
            done += count
        if done != target.size:
            raise WireError(PROTOCOL_ERROR, f"a payload has {done} bytes, and {target.size} were announced")

    def skip(self, size: int) -> None:
        """Receive a payload of `size` bytes, and drop it."""
        done, scratch = 0, np.empty(min(size, CHUNK_BYTES), np.uint8)
        for count, _ in self._frames(BINARY):
            done += count
            if done > size:
                raise WireError(PROTOCOL_ERROR, f"a payload has more than the announced {size} bytes")
            while count:
                part = scratch[: min(count, scratch.size)]
                self.stream.read_into(part)
                count -= part.size
        if done != size:
            raise WireError(PROTOCOL_ERROR, f"a payload has {done} bytes, and {size} were announced")

    def send(self, *messages: tuple[int, Buffer]) -> None:
        """Send messages, one right after the other.

        Raises:
            DisconnectedError: the connection is closed.
        """
        parts: list[Buffer] = []
        for kind, data in messages:
            parts += (self.header(kind, len(data)), data)
        self._send(parts)

    def _send(self, parts: list[Buffer]) -> None:
        with self._sending:
            if self._is_closed:
                raise DisconnectedError
            try:
                sent = self.stream.socket.sendmsg(parts)
                for part in parts:
                    if sent < len(part):
                        self.stream.socket.sendall(memoryview(part)[sent:])
                    sent = max(sent - len(part), 0)
            except OSError as error:
                self._is_closed = True
                raise DisconnectedError from error

    def close(self, code: int, reason: str = "") -> None:
        """Tell the client why the connection ends, if it listens, and receive no more; in any thread."""
        if self._sending.acquire(timeout=_LINGER_SECONDS):
            try:
                if not self._is_closed:
                    self._is_closed = True
                    self.stream.socket.send(self._closing(code, reason), socket.MSG_DONTWAIT)
            except OSError:
                pass
            finally:
                self._sending.release()
        self.stream.stop_reading()

    def stop(self) -> None:
        """Let calls of `send` that wait for the client end; what was sent before still reaches it."""
        self._is_closed = True
        self.stream.stop()


class WebSocketMessages(Messages):
    """Messages in the frames of RFC 6455, at the server's side."""

    @staticmethod
    def accept(key: str) -> str:
        """The answer to the header `Sec-WebSocket-Key`.

        >>> WebSocketMessages.accept("dGhlIHNhbXBsZSBub25jZQ==")
        's3pPLMBiTxaQ9kYGzzhZRbK+xOo='
        """
        return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()

    @staticmethod
    def header(kind: int, size: int) -> bytes:
        """The header of a frame without a mask, which is a whole message."""
        if size < 126:
            return bytes((0x80 | kind, size))
        if size < 2**16:
            return struct.pack(">BBH", 0x80 | kind, 126, size)
        return struct.pack(">BBQ", 0x80 | kind, 127, size)

    def _closing(self, code: int, reason: str) -> bytes:
        data = struct.pack(">H", code) + _shortened(reason)
        return self.header(CLOSE, len(data)) + data

    def _frames(self, kind: int) -> Iterator[tuple[int, bytes]]:
        is_first = is_open = True
        while is_open:
            final, opcode, count = self._frame_header()
            key = self.stream.read(4)
            if opcode >= CLOSE:
                self._control(opcode, count, key)
                continue
            if opcode != (kind if is_first else _CONTINUATION):
                raise WireError(PROTOCOL_ERROR, _unexpected(kind, opcode, is_first))
            is_first, is_open = False, not final
            yield count, key

    def _frame_header(self) -> tuple[bool, int, int]:
        """Whether a frame is the last of its message, its opcode and its size."""
        first, second = self.stream.read(2)
        opcode, count = first & 0x0F, second & 0x7F
        if first & 0x70:
            raise WireError(PROTOCOL_ERROR, "a frame has reserved bits, and no extension was negotiated")
        if opcode not in (_CONTINUATION, TEXT, BINARY, CLOSE, _PING, _PONG):
            raise WireError(PROTOCOL_ERROR, f"there is no opcode {opcode}")
        if not second & 0x80:
            raise WireError(PROTOCOL_ERROR, "a frame has no mask")
        if opcode >= CLOSE and (not first & 0x80 or count > 125):
            raise WireError(PROTOCOL_ERROR, "a control frame has parts, or more than 125 bytes")
        if count >= 126:
            width, shortest = (2, 126) if count == 126 else (8, 2**16)
            count = int.from_bytes(self.stream.read(width), "big")
            if not shortest <= count < 2**63:
                raise WireError(PROTOCOL_ERROR, f"{count} is not a size in {width} bytes")
        return bool(first & 0x80), opcode, count

    def _control(self, opcode: int, count: int, key: bytes) -> None:
        """Answer a ping; end after a close frame."""
        data = np.frombuffer(bytearray(self.stream.read(count)), np.uint8)
        unmask(data, key)
        if opcode == _PING:
            self.send((_PONG, data.data))
        elif opcode == CLOSE:
            code = int.from_bytes(data[:2].tobytes(), "big") if count > 1 else NORMAL
            is_valid = count != 1 and (code in (*range(1000, 1004), *range(1007, 1012)) or 3000 <= code < 5000)
            if not is_valid:
                raise WireError(PROTOCOL_ERROR, "a close frame has no valid code")
            self.close(code)
            raise DisconnectedError


class PlainMessages(Messages):
    """Messages without masks, for Node.js: the size (4 bytes, little endian), the kind (1 byte), the contents."""

    @staticmethod
    def header(kind: int, size: int) -> bytes:
        """Size and kind."""
        return struct.pack("<IB", size, kind)

    def _closing(self, code: int, reason: str) -> bytes:
        data = struct.pack(">H", code) + _shortened(reason)
        return self.header(CLOSE, len(data)) + data

    def _frames(self, kind: int) -> Iterator[tuple[int, bytes]]:
        count, found = struct.unpack("<IB", self.stream.read(5))
        if found == CLOSE:
            self.stream.read(min(count, 125))
            self.close(NORMAL)
            raise DisconnectedError
        if found != kind:
            raise WireError(PROTOCOL_ERROR, _unexpected(kind, found, True))
        yield count, b""


def _shortened(reason: str) -> bytes:
    """The reason of a close frame, in at most 123 bytes of UTF-8."""
    return reason.encode("utf-8", "replace")[:123].decode("utf-8", "ignore").encode()


def _unexpected(kind: int, found: int, is_first: bool) -> str:
    names = {TEXT: "text", BINARY: "binary", _CONTINUATION: "a continuation"}
    wanted = names[kind] if is_first else "a continuation"
    return f"expected {wanted}, got {names.get(found, f'kind {found}')}"
