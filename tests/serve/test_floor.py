"""The benchmark of `navigator.ml`: the server that shows what a browser itself takes, and browsers that do not end."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from queue import Empty, Queue
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, cast

import pytest
from support import node_js
from support.served_clients import Client, request

from benchmarks import floor, serve
from benchmarks.floor import floor_server
from opweave.serve.http import respond

if TYPE_CHECKING:
    from opweave.serve import Server
    from opweave.serve.stream import Stream


class Address:
    """Where the clients of the tests shall connect."""

    token = None

    def __init__(self, port: int) -> None:
        self.port = port


def test_floor_server_answers_requested_bytes() -> None:
    with floor_server() as port:
        server = cast("Server", Address(port))
        assert request(server, "POST", "/", "5".zfill(200)) == (200, "\0" * 5)
        with Client(server) as client:
            for wanted, size in ((40, 0), (4000, 30_000), (2**20, 40), (40, 2**22)):
                client.send_bytes(struct.pack("<I", 1) + bytes(size))  # no answer
                client.send_bytes(struct.pack("<I", wanted) + bytes(size))
                assert client.receive() == (2, bytes(wanted))


@pytest.mark.long
def test_node_floor_reads_large_tensor_from_bare_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    node_js.need()
    sizes = []

    def answered(stream: Stream, status: int, body: Any, **others: Any) -> None:
        sizes.append(len(body))
        respond(stream, status, body, **others)

    monkeypatch.setattr(floor, "respond", answered)
    found = serve.node_floor()
    assert list(found) == ["new", "used"]
    assert min(found.values()) > 0
    assert set(sizes) == {serve.LARGE_BYTES}


@pytest.mark.long
def test_browser_floor_kills_browser_that_ignores_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "browser"
    program.write_text(f"#!/bin/sh\ntrap '' TERM\necho $$ > {tmp_path}/pid\nwhile :; do sleep 0.1; done\n")
    program.chmod(0o755)
    pid = tmp_path / "pid"

    class Posted(Queue[Any]):
        """What the page posts: nothing, until the browser runs."""

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            deadline = monotonic() + 60
            while not (pid.exists() and pid.read_text().endswith("\n")):
                assert monotonic() < deadline
                sleep(0.01)
            raise Empty

    monkeypatch.setattr(serve, "Queue", Posted)
    monkeypatch.setattr(serve, "END_SECONDS", 1)
    with pytest.raises(RuntimeError, match="the page did not answer"):
        serve.in_browser(str(program), "", "floor.mjs")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
