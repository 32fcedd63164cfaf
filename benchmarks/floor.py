"""A server that does nothing with what it gets: the floor of `navigator.ml` in a browser.

It speaks WebSocket, and answers requests, as `opweave serve` does. The first four bytes of a message, or the body of a
request, say how many bytes shall come back; the rest is received and dropped, and not even unmasked. What a page takes for
the same bytes with this server is what the browser itself takes, and the sockets of the system.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from threading import Thread

from opweave.serve.http import read_body, read_request, respond
from opweave.serve.stream import DisconnectedError, Stream
from opweave.serve.wire import WebSocketMessages

LARGEST_ANSWER = 64 * 2**20
PIECE_BYTES = 2**20


@contextmanager
def floor_server() -> Iterator[int]:
    """The port of such a server, which runs in threads."""
    answer = memoryview(bytes(LARGEST_ANSWER))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client = listener.accept()[0]
                    Thread(target=_serve, args=(client, answer), daemon=True).start()

        Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _serve(client: socket.socket, answer: memoryview) -> None:
    """Answer requests, then the messages of a WebSocket."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = Stream(client)
    shared = {"Access-Control-Allow-Origin": "*", "Content-Type": "application/json"}
    with client, suppress(DisconnectedError, OSError, EOFError):
        while not (request := read_request(stream)).upgrades():
            size = int(read_body(stream, request, PIECE_BYTES))
            respond(stream, 200, answer[:size], keeps_alive=True, headers=shared)
            stream.wait()
        accepted = WebSocketMessages.accept(request.headers["sec-websocket-key"])
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accepted}
        respond(stream, 101, headers=upgrade)
        with client.makefile("rb") as file:
            while wanted := _message(file):
                if wanted > 1:
                    client.sendmsg([WebSocketMessages.header(2, wanted), answer[:wanted]])


def _message(file: BufferedReader) -> int:
    """Receive a message; what its first four bytes say: the size of the answer, 1 for none. 0 at the end."""
    scratch = bytearray(PIECE_BYTES)
    wanted, is_last = 0, False
    while not is_last:
        header = file.read(2)
        if len(header) < 2 or header[0] & 8:  # the end
            return 0
        first, second = header
        is_last, size = bool(first & 0x80), second & 0x7F
        if size > 125:
            width = 2 if size == 126 else 8
            size = int.from_bytes(file.read(width), "big")
        key = file.read(4)
        if not wanted:
            (wanted,) = struct.unpack("<I", bytes(a ^ b for a, b in zip(file.read(4), key, strict=True)))
            size -= 4
        while size:
            size -= file.readinto1(memoryview(scratch)[: min(size, PIECE_BYTES)])
    return wanted
