"""Clients of `opweave.serve` in Python: what a browser and what Node.js send, and what none of them would."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
from typing import Any, Self

import numpy as np

from opweave.serve import Server

PROTOCOL = "opweave.webnn.1"
ORIGIN = "http://localhost:5173"

Message = dict[str, Any]


class RefusedError(Exception):
    """The server did not change the protocol."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status} {body}")
        self.status = status


class ClosedError(Exception):
    """The server has ended the connection."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code, self.reason = code, reason


class Client:
    """A client over WebSocket, as a page has it.

    Args:
        server: the server.
        origin: the page's origin; None for a program.
        headers: headers that replace or, with None, remove those that a browser sends.
    """

    upgrade, protocols = "websocket", "Sec-WebSocket-Protocol"

    def __init__(
        self,
        server: Server,
        *,
        origin: str | None = ORIGIN,
        headers: dict[str, str | None] | None = None,
        timeout: float = 300,
    ) -> None:
        self.server, self.origin = server, origin
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        token = "" if server.token is None else f", token.{server.token}"
        fields: dict[str, str | None] = {
            "Host": f"127.0.0.1:{server.port}",
            "Upgrade": self.upgrade,
            "Connection": "keep-alive, Upgrade",
            "Origin": origin,
            self.protocols: f"{PROTOCOL}{token}",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version": "13",
        }
        fields |= headers or {}
        lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
        self.socket.sendall("\r\n".join(["GET / HTTP/1.1", *lines, "", ""]).encode())
        self._left = b""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._read(1)
        status = int(head.split()[1])
        if status != 101:
            self.socket.settimeout(300)
            rest = b""
            while piece := self.socket.recv(4096):
                rest += piece
            self.socket.close()
            raise RefusedError(status, rest.decode())
        self.head = head.decode()
        self.session = ""
        self.contexts: set[int] = set()
        self._request = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def _read(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            piece = self.socket.recv(count - len(found))
            if not piece:
                raise ClosedError(1006, "no close frame")
            found += piece
        return bytes(found)

    # Frames ----------------------------------------------------------------------------------------------------------

    def frame(self, kind: int, data: bytes, *, final: bool = True) -> bytes:
        """A masked frame."""
        key = os.urandom(4)
        size = len(data)
        head = bytes([final << 7 | kind])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 2**16:
            head += struct.pack(">BH", 0x80 | 126, size)
        else:
            head += struct.pack(">BQ", 0x80 | 127, size)
        mask = np.tile(np.frombuffer(key, np.uint8), -(-size // 4))[:size]
        return head + key + (np.frombuffer(data, np.uint8) ^ mask).tobytes()

    def receive(self) -> tuple[int, bytes]:
        """The opcode and the contents of the next frame."""
        first, second = self._read(2)
        assert first & 0xF0 == 0x80
        assert second < 128, "a server must not mask"
        size = second
        if size == 126:
            (size,) = struct.unpack(">H", self._read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._read(8))
        return first & 0x0F, self._read(size)

    # Messages --------------------------------------------------------------------------------------------------------

    def send_text(self, text: str | bytes) -> None:
        self.send_bytes(sized(text.encode() if isinstance(text, str) else text))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(self.frame(2, data))

    def post(self, m: str, payload: np.ndarray | None = None, *, c: int = 1, **fields: Any) -> None:
        """Send a message that has no answer."""
        message: Message = {"m": m, "c": c, **fields}
        data = b"" if payload is None else np.ascontiguousarray(payload).tobytes()
        if data:
            message["bin"] = len(data)
        self.send_text(json.dumps(message))
        if data:
            self.send_bytes(data)

    def next(self) -> Message:
        """The next message; its payload, if it has one, is `payload`."""
        kind, data = self.receive()
        while kind == 10:  # a pong
            kind, data = self.receive()
        if kind == 8:
            code = struct.unpack(">H", data[:2])[0] if data else 1005
            raise ClosedError(code, data[2:].decode())
        assert kind == 2
        end = 4 + int.from_bytes(data[:4], "little")
        message: Message = json.loads(data[4:end])
        message["payload"] = data[end:]
        if "key" in message:
            message["payload"] = self.taken(message["key"])
        elif message.get("bin", 0) and not message["payload"]:
            kind, message["payload"] = self.receive()
            assert kind == 2
        return checked(message)

    def ask(self, m: str, payload: np.ndarray | None = None, *, c: int = 1, **fields: Any) -> Message:
        """Send a request, and return its answer; `ClosedError` if the connection ends."""
        self._request += 1
        self.post(m, payload, c=c, r=self._request, **fields)
        answer = self.next()
        assert answer["r"] == self._request, answer
        return answer

    def hello(self, c: int = 1, **options: Any) -> Message:
        """Create a context."""
        answer = self.ask("hello", c=c, options=options)
        self.session = answer.get("session", self.session)
        return answer

    def read(self, number: int, data_type: str, *, c: int = 1) -> np.ndarray:
        """The contents of a tensor, flat."""
        return np.frombuffer(self.ask("read", c=c, id=number)["payload"], data_type)

    def taken(self, key: str) -> bytes:
        """A payload that is apart from its message."""
        status, payload = response_to(self.server, "POST", "/payload", key, self.origin)
        assert status == 200, payload
        return payload

    def sync(self, log: list[Any], *, b: int = 1, c: int = 1, **replaced: Any) -> Message:
        """Add operations while JavaScript waits; the status is `status`."""
        body = {"session": self.session, "c": c, "b": b, "log": log, **replaced}
        status, text = request(self.server, "POST", "/sync", json.dumps(body), self.origin)
        return {**json.loads(text), "status": status} if status == 200 else {"status": status, "text": text}


class PlainClient(Client):
    """A client as Node.js has it: no frames."""

    upgrade, protocols = "opweave", "Sec-Opweave-Protocol"

    def frame(self, kind: int, data: bytes, *, final: bool = True) -> bytes:
        return data

    def next(self) -> Message:
        message: Message = json.loads(self._read(int.from_bytes(self._read(4), "little")))
        if "end" in message:
            raise ClosedError(message["end"], message["reason"])
        message["payload"] = self.taken(message["key"]) if "key" in message else self._read(message.get("bin", 0))
        return checked(message)


def sized(text: bytes) -> bytes:
    """A text as it is sent, with its size."""
    return len(text).to_bytes(4, "little") + text


def checked(message: Message) -> Message:
    """A message whose payload is as long as announced; without `payload` if it has none."""
    assert len(message["payload"]) == message.get("bin", 0)
    if not message["payload"]:
        del message["payload"]
    return message


def request(
    server: Server, method: str, path: str, body: str = "", origin: str | None = ORIGIN, **headers: str
) -> tuple[int, str]:
    """The status and the text of a response to a request."""
    status, answer = response_to(server, method, path, body, origin, **headers)
    return status, answer.decode()


def response_to(
    server: Server, method: str, path: str, body: str = "", origin: str | None = ORIGIN, **headers: str
) -> tuple[int, bytes]:
    """The status and the body of a response to a request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    fields = {"Content-Type": "text/plain", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if origin is not None:
        fields["Origin"] = origin
    try:
        connection.request(method, path, body or None, fields)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def desc(data_type: str, *shape: int) -> Message:
    """A descriptor as JavaScript has it."""
    return {"dataType": data_type, "shape": list(shape)}
