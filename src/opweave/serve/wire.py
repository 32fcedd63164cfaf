"""Messages over sockets: in WebSocket frames (RFC 6455) for browsers, and without frames for Node.js.

Large payloads move directly between the socket and the memory of the caller. Servers of libraries accept GET alone
(`websockets`), but `/sync` and `/payload` are POST requests to the same port. They also return payloads in buffers of their
own, which must be copied: with messages of 64 MiB, `picows` 2.3 and `websockets` 17.4 had less than two thirds of this
module's throughput.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from abc import ABC, abstractmethod
from socket import MSG_DONTWAIT
from threading import Lock

import numpy as np

from ..support import formatting
from .stream import (
    BUFFER_BYTES,
    LINGER_SECONDS,
    NORMAL,
    PROTOCOL_ERROR,
    TOO_LARGE,
    Buffer,
    DisconnectedError,
    Stream,
    WireError,
)

_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_ENDLESS = 2**63

SHORT_BYTES = 2048
"""Up to this size, a text or the contents of a frame is handled as one integer or string, which is faster than an array."""

PIECE_BYTES = 2**20
"""Size of the pieces that are received, then unmasked: larger ones fall out of the cache in between, smaller ones take more
calls. An estimate."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455

MAX_JOINED_BYTES = 2**16
"""Payloads up to this size share a frame with their text: a copy in JavaScript takes less time than an event."""


def unmask(data: memoryview, key: bytes, offset: int = 0) -> None:
    """Combine bytes with the four bytes of a frame's mask, in place (RFC 6455, 5.3); `offset` is the position in the frame.

    >>> data = bytearray([1, 2, 3, 4, 5])
    >>> unmask(memoryview(data), b"abcd")
    >>> data
    bytearray(b'````d')
    """
    size, shift = len(data), offset % 4
    key = key[shift:] + key[:shift]
    if size <= SHORT_BYTES:
        mask = int.from_bytes((key * (size // 4 + 1))[:size], "little")
        data[:] = (int.from_bytes(data, "little") ^ mask).to_bytes(size, "little")
        return
    array = np.frombuffer(data, np.uint8)
    start = -array.ctypes.data % 8  # whole words are aligned
    end = size - (size - start) % 8
    words = array[start:end].view(np.uint64)
    words ^= np.frombuffer((key * 3)[start % 4 : start % 4 + 8], np.uint64)
    if start:
        unmask(data[:start], key)
    if end < size:
        unmask(data[end:], key, end)


class Messages(ABC):
    """Messages over a socket: texts, each with an optional payload, which the text announces.

    The client sends a stream of bytes. For each message: the size of the text (4 bytes, little endian), the text, the payload.
    Frames may divide this stream anywhere, so a client can send several small messages in one frame, and need not copy a
    large payload behind its text. One thread receives; several may send.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._sending = Lock()
        self._is_closed = False
        self._left = 0  # number of unmasked bytes of messages that can be read before the next frame header

    @abstractmethod
    def _next_part(self) -> None:
        """Receive the next bytes of a frame, or only a header: `_left` may still be 0."""

    @abstractmethod
    def _frame(self, text: bytes, payload: Buffer) -> list[Buffer]:
        """Encode a message to the client."""

    @abstractmethod
    def _close_message(self, code: int, reason: str) -> bytes:
        """Encode the last message to the client."""

    def _take(self, wanted: int) -> int:
        """Reserve up to `wanted` bytes that may be read from the stream now; return their number, at least 1."""
        while not self._left:
            self._next_part()
        count = min(wanted, self._left)
        self._left -= count
        return count

    def _read_few(self, count: int) -> bytes:
        """Read `count` bytes; `count` must be small, since pieces are joined."""
        if count <= self._left:  # the common case
            self._left -= count
            return self.stream.read(count)
        data = b""
        while len(data) < count:
            data += self.stream.read(self._take(count - len(data)))
        return data

    def text(self, limit: int) -> bytes:
        """Receive the text of the next message; `WireError` beyond `limit` bytes."""
        size = int.from_bytes(self._read_few(4), "little")
        if size > limit:
            raise WireError(
                TOO_LARGE, f"a text has {formatting.size(size)}, more than the limit of {formatting.size(limit)}"
            )
        if size <= SHORT_BYTES:
            return self._read_few(size)
        whole = bytearray()
        while len(whole) < size:  # in pieces, so that an announced size alone allocates no memory
            piece = np.empty(min(size - len(whole), PIECE_BYTES), np.uint8)
            self.payload(piece)
            whole += piece.data
        return bytes(whole)

    def payload(self, target: np.ndarray) -> None:
        """Receive the payload of the current message into an array of bytes of the same length."""
        done = 0
        while done < target.size:
            done += self._read_part(target[done:])

    def _read_part(self, target: np.ndarray) -> int:
        return self._read_left(target)

    def _read_left(self, target: np.ndarray) -> int:
        count = self._take(target.size)
        self.stream.read_into(target[:count])
        return count

    def skip(self, size: int) -> None:
        """Receive and drop a payload of `size` bytes."""
        scratch = np.empty(min(size, PIECE_BYTES), np.uint8)
        while size:
            part = scratch[: min(size, scratch.size)]
            self.payload(part)
            size -= part.size

    def send(self, text: bytes, payload: Buffer = b"") -> None:
        """Send a message."""
        self._send(self._frame(text, payload))

    def _send(self, parts: list[Buffer]) -> None:
        with self._sending:
            if self._is_closed:
                raise DisconnectedError
            try:
                self.stream.send(parts)
            except OSError as error:
                self._is_closed = True
                raise DisconnectedError from error

    def close(self, code: int, reason: str = "") -> None:
        """Send the reason to the client if possible, and receive no more; callable from any thread."""
        if self._sending.acquire(timeout=LINGER_SECONDS):
            try:
                if not self._is_closed:
                    self._is_closed = True
                    self.stream.socket.send(self._close_message(code, reason), MSG_DONTWAIT)
            except OSError:
                pass
            finally:
                self._sending.release()
        self.stream.stop_reading()

    def stop(self) -> None:
        """Wake calls of `send` that wait for the client; earlier messages still arrive."""
        self._is_closed = True
        self.stream.stop()


class WebSocketMessages(Messages):
    """Messages in the binary frames of RFC 6455, at the server's side."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._is_whole = True  # whether the last frame had the FIN bit
        # The current frame: number of bytes unmasked, number of bytes left, and mask.
        self._at, self._rest, self._key = 0, 0, b""

    @staticmethod
    def accept(key: str) -> str:
        """The answer to the header `Sec-WebSocket-Key`.

        >>> WebSocketMessages.accept("dGhlIHNhbXBsZSBub25jZQ==")
        's3pPLMBiTxaQ9kYGzzhZRbK+xOo='
        """
        return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()

    @staticmethod
    def header(opcode: int, size: int) -> bytes:
        """The header of an unmasked frame with the FIN bit."""
        if size < 126:
            return bytes((0x80 | opcode, size))
        if size < 2**16:
            return struct.pack(">BBH", 0x80 | opcode, 126, size)
        return struct.pack(">BBQ", 0x80 | opcode, 127, size)

    def _frame(self, text: bytes, payload: Buffer) -> list[Buffer]:
        size = 4 + len(text)
        length = len(text).to_bytes(4, "little")
        if len(payload) <= MAX_JOINED_BYTES:
            return [self.header(_BINARY, size + len(payload)) + length + text, payload]
        # JavaScript gets one buffer per frame, so a separate frame saves a copy there.
        return [self.header(_BINARY, size) + length + text + self.header(_BINARY, len(payload)), payload]

    def _close_message(self, code: int, reason: str) -> bytes:
        data = struct.pack(">H", code) + _truncate(reason)
        return self.header(_CLOSE, len(data)) + data

    def _next_part(self) -> None:
        if not self._rest:
            self._next_frame()
        if self._rest:
            part = self.stream.peek(self._rest)
            self._unmask(part)
            self._left = len(part)

    def _read_part(self, target: np.ndarray) -> int:
        if self._left or min(self._rest, target.size) <= BUFFER_BYTES:
            return self._read_left(target)
        piece = target[: min(self._rest, PIECE_BYTES)]
        self.stream.read_into(piece)
        self._unmask(piece.data)
        return piece.size

    def _unmask(self, part: memoryview) -> None:
        unmask(part, self._key, self._at)
        self._at += len(part)
        self._rest -= len(part)

    def _next_frame(self) -> None:
        """Receive the header of the next frame; answer control frames."""
        final, opcode, count = self._frame_header()
        key = self.stream.read(4)
        if opcode >= _CLOSE:
            self._control(opcode, count, key)
            return
        if opcode != (_BINARY if self._is_whole else _CONTINUATION):
            names = {_TEXT: "text", _BINARY: "a binary frame", _CONTINUATION: "a continuation"}
            wanted = _BINARY if self._is_whole else _CONTINUATION
            raise WireError(PROTOCOL_ERROR, f"expected {names[wanted]}, got {names[opcode]}")
        self._is_whole, self._at, self._rest, self._key = final, 0, count, key

    def _frame_header(self) -> tuple[bool, int, int]:
        """Return the FIN bit, the opcode and the size."""
        first, second = self.stream.read(2)
        opcode, count = first & 0x0F, second & 0x7F
        if first & 0x70:
            raise WireError(PROTOCOL_ERROR, "a frame has reserved bits, and no extension was negotiated")
        if opcode not in (_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG):
            raise WireError(PROTOCOL_ERROR, f"there is no opcode {opcode}")
        if not second & 0x80:
            raise WireError(PROTOCOL_ERROR, "a frame has no mask")
        if opcode >= _CLOSE and (not first & 0x80 or count > 125):
            raise WireError(PROTOCOL_ERROR, "a control frame has parts, or more than 125 bytes")
        if count >= 126:
            width, shortest = (2, 126) if count == 126 else (8, 2**16)
            count = int.from_bytes(self.stream.read(width), "big")
            if not shortest <= count < 2**63:
                raise WireError(PROTOCOL_ERROR, f"{count} is not a size in {width} bytes")
        return bool(first & 0x80), opcode, count

    def _control(self, opcode: int, count: int, key: bytes) -> None:
        data = bytearray(self.stream.read(count))
        unmask(memoryview(data), key)
        if opcode == _PING:
            self._send([self.header(_PONG, count), bytes(data)])
        elif opcode == _CLOSE:
            code = int.from_bytes(data[:2], "big") if count > 1 else NORMAL
            is_valid = count != 1 and (code in (*range(1000, 1004), *range(1007, 1012)) or 3000 <= code < 5000)
            if not is_valid:
                raise WireError(PROTOCOL_ERROR, "a close frame has no valid code")
            self.close(code)
            raise DisconnectedError


class PlainMessages(Messages):
    """Messages without frames, for Node.js. The last message to the client is `{"end": code, "reason": reason}`."""

    def _frame(self, text: bytes, payload: Buffer) -> list[Buffer]:
        return [len(text).to_bytes(4, "little") + text, payload]

    def _close_message(self, code: int, reason: str) -> bytes:
        text = json.dumps({"end": code, "reason": reason}).encode()
        return len(text).to_bytes(4, "little") + text

    def _next_part(self) -> None:
        self._left = _ENDLESS


def _truncate(reason: str) -> bytes:
    """Truncate the reason of a close frame to 123 bytes of UTF-8."""
    return reason.encode("utf-8", "replace")[:123].decode("utf-8", "ignore").encode()
