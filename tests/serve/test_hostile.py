"""Clients that are wrong, hostile or dead, from tests/data/serve/hostile.jsonl, beside a page that must keep working."""

from __future__ import annotations

import gc
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.served_clients import (
    ORIGIN,
    Client,
    ClosedError,
    PlainClient,
    RefusedError,
    desc,
    request,
    response_to,
    sized,
)

from opweave.memory.host import trim
from opweave.serve import ConnectionLimits, Server
from opweave.serve.handover import Handover

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "serve" / "hostile.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
LIMITS = ConnectionLimits(memory=64 * 2**20, operands=1000, contexts=16, json=2**20)
PATIENCE = 60  # seconds until what a client had must be given back
MAX_GROWTH_BYTES = 128 * 2**20  # over all cases; up to 75 MiB were seen, 24 if nothing else ran in the process before

Case = dict[str, Any]


class Page:
    """A page that does nothing wrong."""

    def __init__(self, server: Server) -> None:
        self.client = Client(server)
        self.client.hello()
        self.client.sync([["input", 1, ["x", desc("float32", 4)], {}], ["relu", 2, [{"$": 1}], {}]])
        self.client.ask("build", b=1, g=1, log=[], outs={"y": 2})
        for number in (1, 2):
            self.client.ask("tensor", id=number, **desc("float32", 4), readable=True, writable=True)
        self.turns = 0

    def check(self) -> None:
        """Run a graph, and add an operation while JavaScript waits."""
        self.turns += 1
        self.client.post("write", np.float32([-1, 0, 1, self.turns]), id=1)
        self.client.post("dispatch", g=1, inputs={"x": 1}, outputs={"y": 2})
        assert self.client.read(2, "float32").tolist() == [0, 0, 1, self.turns]
        answer = self.client.sync([["input", 1, ["x", desc("int8", 2)], {}]], b=self.turns + 1)
        assert answer["operands"] == [[desc("int8", 2)]]
        self.client.post("free", builders=[self.turns + 1])


def held() -> tuple[int, int]:
    """How many threads and files the process has."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("opweave.serve")]
    files = sum(os.path.exists(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))
    return len(threads), files


def is_slow(case: Case) -> bool:
    """Whether the client never completes its request."""
    return case["expect"].get("status", 0) is None


def is_more(now: tuple[int, int], before: tuple[int, int]) -> bool:
    """Whether there are more threads, or more files."""
    return any(a > b for a, b in zip(now, before, strict=True))


def resident() -> int:
    """Bytes of the process in memory, without those that allocators keep after they were freed."""
    gc.collect()
    trim()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(port=0, origins=[ORIGIN], device="cpu", limits=LIMITS) as served:
        yield served


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    """A server that hangs up after a second on clients whose request is incomplete; the other one gives them 30 seconds."""
    with Server(port=0, origins=[ORIGIN], device="cpu", limits=replace(LIMITS, handshake=1)) as served:
        yield served


@pytest.fixture(scope="module")
def page(server: Server) -> Iterator[Page]:
    made = Page(server)
    made.check()
    before = resident()
    with made.client:
        yield made
        assert resident() - before < MAX_GROWTH_BYTES


@pytest.mark.long(rows=1)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="threads, files and memory are counted in /proc")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_hostile_client_does_not_disturb_others(
    server: Server, impatient: Server, page: Page, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = held()
    if case.get("waits"):  # it never asks for its payload; the server waits a second for that
        wait = Handover.wait
        monkeypatch.setattr(Handover, "wait", lambda handover, key, _: wait(handover, key, 1))
    Attack(impatient if is_slow(case) else server, page, case).run()
    page.check()
    deadline = time.monotonic() + PATIENCE
    while is_more(now := held(), before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_more(now, before), f"{now} threads and files, before {before}"


@pytest.mark.long
def test_hostile_case_count() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES) >= 40


class Attack:
    """One case."""

    def __init__(self, server: Server, page: Page, case: Case) -> None:
        self.server, self.page, self.case = server, page, case
        self.expected: Case = case["expect"]
        self.others: list[socket.socket] = []

    def run(self) -> None:
        """Do what the case says, and check what comes of it."""
        if "request" in self.case:
            assert self.status_of(self.case["request"]) == self.expected["status"]
        elif "upgrade" in self.case:
            with pytest.raises(RefusedError) as found:
                Client(self.server, headers=self.case["upgrade"])
            assert found.value.status == self.expected["status"]
        else:
            with (PlainClient if self.case.get("plain") else Client)(self.server) as client:
                self.steps(client)
            for other in self.others:
                other.close()

    def status_of(self, text: str) -> int | None:
        """The status of the response to a request; None if the server says nothing and hangs up."""
        data = text.replace("{fill}", "x" * self.case.get("fill", 0)).encode("latin-1")
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE) as client:
            try:
                for byte in data if "pause" in self.case else ():
                    client.sendall(bytes([byte]))
                    time.sleep(self.case["pause"])
                if "pause" not in self.case:
                    client.sendall(data)
                got = client.recv(65536)
            except (BrokenPipeError, ConnectionResetError):
                return None
            return int(got.split()[1]) if got else None

    def steps(self, client: Client) -> None:
        """Do the steps, and check how it ends."""
        answer: Case | None = None
        try:
            for step in self.case["steps"]:
                answer = self.step(client, step) or answer
        except (BrokenPipeError, ConnectionResetError):  # the server has hung up before it had read all
            assert "closed" in self.expected
        if self.expected.get("open"):
            self.page.check()
            if not any("leave" in step for step in self.case["steps"]):
                client.post("hello", c=1000, r=77, options={})
                while (answer := client.next()).get("r") != 77:
                    pass
        elif self.expected.get("lost"):
            while "lost" not in (answer := client.next()):
                pass
            assert answer["c"] == 1
        elif "error" in self.expected:
            while "error" not in (answer or {}):
                answer = client.next()
            assert answer is not None
            assert answer["error"]["name"] == self.expected["error"], answer
            assert len(answer["error"]["message"]) < 4000
        elif "closed" in self.expected:
            self.expect_close(client)

    def expect_close(self, client: Client) -> None:
        """The connection ends with this code, and all of its contexts are lost before."""
        seen: list[Case] = []
        with pytest.raises(ClosedError) as found:
            seen.extend(iter(client.next, None))
        assert found.value.code == self.expected["closed"], found.value
        assert found.value.reason
        assert not client.contexts or "lost" in seen[-1]

    def step(self, client: Client, step: Case) -> Case | None:
        """One step; returns an answer where it read one."""
        times = step.get("repeat", 1)
        match step:
            case {"hello": c}:
                client.post("hello", c=c, r=c, options={})
                if c not in client.contexts:
                    answer = client.next()
                    assert "session" in answer, answer
                    client.session = answer["session"]
                client.contexts.add(c)
            case {"message": message}:
                client.socket.sendall(client.frame(2, sized(json.dumps(message).encode())) * times)
            case {"text": text, **more}:
                middle = more.get("then", text) * more["times"] if "times" in more else ""
                begin = text if "then" in more or not middle else ""
                client.send_text(begin + middle + more.get("end", "") * more.get("times", 0) + more.get("finally", ""))
            case {"binary": count}:
                client.send_bytes(bytes(count))
            case {"raw": digits}:
                client.socket.sendall(bytes.fromhex(digits) * times)
            case {"fill": count}:
                client.socket.sendall(bytes(count))
            case {"answer": True}:
                answer = client.next()
                assert "error" not in answer, answer
            case {"lost": True}:
                assert "lost" in client.next()
            case {"sync": fields, "status": status}:
                body = {"session": client.session, "c": 1, "b": 1, **fields}
                if step.get("wrong_key"):
                    body["session"] = client.session[:-1] + ("A" if client.session[-1] != "A" else "B")
                origin = step.get("origin", ORIGIN)
                got, _ = request(self.server, "POST", "/sync", json.dumps(body), origin)
                assert got in (status if isinstance(status, list) else [status])
            case {"offered": True}:
                assert "key" in json.loads(client.receive()[1][4:])
            case {"take": key, "status": status}:
                answer = json.loads(client.receive()[1][4:])
                origin = step.get("origin", ORIGIN)
                for expected in status:
                    got, _ = response_to(self.server, "POST", "/payload", key or answer["key"], origin)
                    assert got == expected
            case {"stall": True}:
                key = json.loads(client.receive()[1][4:])["key"]
                lines = [
                    f"Host: 127.0.0.1\r\nOrigin: {ORIGIN}",
                    f"Content-Type: text/plain\r\nContent-Length: {len(key)}",
                ]
                self.others.append(socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE))
                self.others[-1].sendall("\r\n".join(["POST /payload HTTP/1.1", *lines, "", key]).encode())
                assert self.others[-1].recv(12) == b"HTTP/1.1 200"
            case {"tensors": count, "elements": elements}:
                for number in range(1, count + 1):
                    answer = client.ask("tensor", id=number, **desc("float32", elements), readable=True, writable=True)
                    if "error" in answer:
                        return answer
            case {"constants": count, "elements": elements}:
                for number in range(1, count + 1):
                    client.post("const", np.zeros(elements, "f4"), b=1, id=number, **desc("float32", elements))
            case {"chain": count}:
                log: list[Any] = [["input", 1, ["x", desc("float32", 4)], {}]]
                log += [["relu", k + 1, [{"$": k}], {}] for k in range(1, count)]
                client.post("build", r=9, b=1, g=1, log=log, outs={"y": count})
            case {"contexts": count, **more}:
                for c in range(1, count + 1):
                    answer = client.hello(c)
                    if "error" in answer:
                        assert c == LIMITS.contexts + 1
                        return answer
                    client.contexts.add(c)
                    if more.get("destroy") and c < count:
                        client.post("destroy", c=c)
                        client.contexts.remove(c)
            case {"clients": count}:
                for _ in range(count):
                    self.others.append(socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE))
            case {"reset": True}:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.socket.close()
            case {"half": True}:
                client.socket.shutdown(socket.SHUT_WR)
                assert client.socket.recv(1) == b""
            case {"leave": True}:
                time.sleep(0.3)  # until the server waits for the client
            case _:
                raise AssertionError(step)
        return None
