"""The server of the benchmark that shows what a browser itself takes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, cast

from served_clients import Client, request

from benchmarks.floor import floor_server

if TYPE_CHECKING:
    from opweave.serve import Server


class Address:
    """Where the clients of the tests shall connect."""

    token = None

    def __init__(self, port: int) -> None:
        self.port = port


def test_it_answers_as_many_bytes_as_a_message_says() -> None:
    with floor_server() as port:
        server = cast("Server", Address(port))
        assert request(server, "POST", "/", "x" * 200) == (200, "{}")
        with Client(server) as client:
            for wanted, size in ((40, 0), (4000, 30_000), (2**20, 40), (40, 2**22)):
                client.send_bytes(struct.pack("<I", 1) + bytes(size))  # no answer
                client.send_bytes(struct.pack("<I", wanted) + bytes(size))
                assert client.receive() == (2, bytes(wanted))
