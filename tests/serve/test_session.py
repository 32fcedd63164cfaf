"""What messages do: contexts, tensors, graphs, and their errors."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from support.served_clients import ORIGIN, Client, ClosedError, PlainClient, desc, response_to

import opweave as ow
from opweave import memory
from opweave.backends.onnxruntime.sessions import SPIN_MICROSECONDS
from opweave.context.graph import program_of
from opweave.serve import ConnectionLimits, Server, served_context
from opweave.serve.handover import Handover
from opweave.serve.limits import GRAPH_BYTES, ServerBudget
from opweave.serve.served_context import ServedContext

ADD: list[Any] = [
    ["input", 1, ["x", desc("float32", 2, 3)], {}],
    ["constant", 2, [desc("float32", 3)], {}],
    ["add", 3, [{"$": 1}, {"$": 2}], {"label": "sum"}],
]


@pytest.fixture(params=[Client, PlainClient])
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Client]:
    with request.param(server) as made:
        made.hello()
        yield made


def add_one(client: Client, **more: Any) -> None:
    """Build x + [1, 2, 3] as graph 1, with tensor 1 for the input and 2 for the output."""
    client.post("const", np.float32([1, 2, 3]), b=1, id=2, **desc("float32", 3))
    answer = client.ask("build", b=1, g=1, log=ADD, outs={"y": 3})
    assert answer["inputs"] == {"x": desc("float32", 2, 3)}
    assert answer["outputs"] == {"y": desc("float32", 2, 3)}
    assert answer["devices"] == ["cpu"]
    client.ask("tensor", id=1, **desc("float32", 2, 3), writable=True, readable=False)
    client.ask("tensor", id=2, **desc("float32", 2, 3), readable=True, writable=False)


def test_dispatch_runs_graph(client: Client) -> None:
    add_one(client)
    x = np.arange(6, dtype="float32")
    client.post("write", x, id=1)
    client.post("dispatch", g=1, inputs={"x": 1}, outputs={"y": 2})
    assert client.read(2, "float32").tolist() == [1, 3, 5, 4, 6, 8]


def test_dispatch_copies_nothing(client: Client) -> None:
    add_one(client)
    memory.copies.reset()
    for k in range(3):
        client.post("write", np.full(6, k, "float32"), id=1)
        client.post("dispatch", g=1, inputs={"x": 1}, outputs={"y": 2})
        assert client.read(2, "float32")[0] == k + 1
    data = np.arange(2**20, dtype="float32")
    client.ask("tensor", data, id=3, **desc("float32", 2**20), constant=True)
    client.post("const", data, b=2, id=1, **desc("float32", 2**20))
    log = [
        ["constant", 1, [desc("float32", 2**20)], {}],
        ["constantTensor", 2, [3], {}],
        ["add", 3, [{"$": 1}, {"$": 2}], {}],
    ]
    client.ask("build", b=2, g=2, log=log, outs={"y": 3})
    client.ask("tensor", id=4, **desc("float32", 2**20), readable=True, writable=False)
    client.post("dispatch", g=2, inputs={}, outputs={"y": 4})
    assert np.array_equal(client.read(4, "float32"), data * 2)
    assert memory.copies.count == 0, memory.copies


def test_sync_adds_operations_and_returns_operands(client: Client) -> None:
    answer = client.sync(ADD[:2])
    assert answer["operands"] == [[desc("float32", 2, 3)], [desc("float32", 3)]]
    split = ["split", 4, [{"$": 3}, 3], {"axis": 1}]
    more = client.sync([*ADD[2:], split])
    assert more["operands"] == [[desc("float32", 2, 3)], [desc("float32", 2, 1)] * 3]
    wrong = client.sync([["relu", 7, [{"$": 4}], {}], ["softmax", 8, [{"$": 7}, 2], {"label": "head"}]])
    assert wrong["operands"] == [[desc("float32", 2, 1)]]
    assert (wrong["at"], wrong["error"]["name"]) == (1, "TypeError")
    assert wrong["error"]["message"].startswith("softmax 'head': axis must be")
    client.post("const", np.float32([1, 2, 3]), b=1, id=2, **desc("float32", 3))
    answer = client.ask("build", b=1, g=1, log=[], outs={"a": 5, "b": 7})
    assert list(answer["outputs"]) == ["a", "b"]


def test_sync_errors_have_names_of_javascript(client: Client) -> None:
    log = [
        ["input", 1, ["x", desc("float32", 1, 2, 4, 4)], {}],
        ["averagePool2d", 2, [{"$": 1}], {"windowDimensions": [2, 2], "outputShapeRounding": "ceil"}],
        ["convTranspose2d", 3, [{"$": 1}, {"$": 2}], {"outputSizes": [1], "label": "output_sizes"}],
    ]
    answer = client.sync(log)
    assert answer["at"] == 2
    assert answer["error"]["message"].startswith("convTranspose2d 'output_sizes': ")
    assert "_" not in answer["error"]["message"].partition(": ")[2]


def test_constant_number_accepts_numbers_that_json_lacks(client: Client) -> None:
    numbers = [{"n": "NaN"}, {"n": "Infinity"}, {"n": "-0"}, 2.5]
    log: list[Any] = [["constantNumber", k, ["float32", value], {}] for k, value in enumerate(numbers, 1)]
    log.append(["constantNumber", 5, ["int64", {"n": "9007199254740993n"}], {}])
    log.append(["constantNumber", 6, ["int64", 1152921504606847000], {}])  # as JSON.stringify writes 2 ** 60
    log += [["identity", 10 + k, [{"$": k}], {}] for k in range(1, 7)]
    client.ask("build", b=1, g=1, log=log, outs={str(k): 10 + k for k in range(1, 7)})
    types = ["float32"] * 4 + ["int64"] * 2
    for k, data_type in enumerate(types, 1):
        client.ask("tensor", id=k, **desc(data_type), readable=True, writable=False)
    client.post("dispatch", g=1, inputs={}, outputs={str(k): k for k in range(1, 7)})
    got = [client.read(k, data_type)[0] for k, data_type in enumerate(types, 1)]
    assert np.isnan(got[0])
    assert got[1] == np.inf
    assert np.signbit(got[2])
    assert got[3:] == [2.5, 9007199254740993, 2**60]


def test_hello_answer(server: Server) -> None:
    with Client(server) as client:
        answer = client.hello()
        assert answer["device"] == "cpu"
        assert answer["accelerated"] is False
        limits = answer["limits"]
        assert limits["preferredInputLayout"] == "nchw"
        assert limits["convTranspose2d"]["input"]["rankRange"] == {"min": 4, "max": 4}
        assert "isNaN" in limits
        assert client.hello(2)["session"] == answer["session"]


def test_errors_have_names_of_javascript(client: Client) -> None:
    add_one(client)
    assert client.ask("read", id=1)["error"]["name"] == "TypeError"
    assert client.ask("read", id=9)["error"]["name"] == "InvalidStateError"
    assert client.ask("tensor", id=5, **desc("float64", 1))["error"]["name"] == "TypeError"
    assert client.ask("tensor", id=5, **desc("float32", 2**20, 2**20))["error"]["name"] == "TypeError"
    assert client.ask("tensor", id=5, **desc("float32", 2**30 // 2))["error"]["name"] == "TypeError"
    assert client.ask("hello", c=2, options={"powerPreference": "turbo"})["error"]["name"] == "TypeError"
    assert "r" in client.ask("tensor", id=5, **desc("float32", 4))


def test_dispatch_failure_loses_context(client: Client) -> None:
    client.hello(2)
    add_one(client)
    client.post("dispatch", g=1, inputs={"x": 2}, outputs={"y": 2})
    lost = client.next()
    assert lost["c"] == 1
    assert "needs a tensor of its own" in lost["lost"]
    client.post("dispatch", g=1, inputs={"x": 1}, outputs={"y": 2})  # ignored
    client.post("write", np.zeros(6, "float32"), id=1)  # so is this, with its payload
    assert "r" in client.ask("tensor", c=2, id=1, **desc("float32", 4))
    assert client.sync([], c=1)["error"]["name"] == "InvalidStateError"


def test_destroy_then_hello_creates_context_again(client: Client) -> None:
    for c in range(2, 50):
        client.hello(c)
        client.ask("tensor", c=c, id=1, **desc("float32", 4))
        client.post("destroy", c=c)
        client.post("free", c=c, tensors=[1])  # late: ignored
    add_one(client)


def test_ended_context_gives_back_constant_tensors_on_their_way() -> None:
    """A payload may be received when the context is lost: its message is not handled any more."""
    budget = ServerBudget(2**20)
    served = ServedContext(ow.ml.create_context(device="cpu"), budget, ConnectionLimits())
    for number in (1, 2):
        message = {"m": "tensor", "id": number, **desc("float32", 100), "constant": True, "bin": 400}
        payload = served.memory_for(message)
        if number == 1:
            served.handle(message, payload)
    assert budget.used == 800
    served.destroy()
    assert budget.used == 0


def test_connection_limits_memory_until_freed() -> None:
    limits = ConnectionLimits(memory=20_000, contexts=2, operands=8)
    with Server(port=0, origins=[ORIGIN], device="cpu", limits=limits) as server, Client(server) as client:
        client.hello()
        for _ in range(3):
            client.ask("tensor", id=1, **desc("float32", 4000))
            error = client.ask("tensor", id=2, **desc("float32", 4000))["error"]
            assert error["name"] == "OperationError"
            assert "19.5 KiB, of which 15.6 KiB are in use" in error["message"]
            client.post("free", tensors=[1])
        client.hello(2)
        assert client.ask("hello", c=3, options={})["error"]["name"] == "NotSupportedError"
        log = [["input", 1, ["x", desc("float32", 2)], {}], *[["relu", k + 1, [{"$": k}], {}] for k in range(1, 9)]]
        error = client.ask("build", b=1, g=1, log=log, outs={"y": 9})["error"]
        assert error["name"] == "NotSupportedError"
        client.post("const", np.zeros(8000, "float32"), b=2, id=1, **desc("float32", 8000))
        assert "19.5 KiB" in client.next()["lost"]
        assert "error" not in client.ask("tensor", c=2, id=1, **desc("float32", 1000))


MIB = 2**20
BIG = [1024, 1024]  # 4 MiB of float32

# Entries of a log from operand 1, [1024, 1024], to operand 9, and the MiB of intermediates that are needed at the same time.
INTERMEDIATES: dict[str, tuple[list[Any], int]] = {
    "one": ([["sin", 2, [{"$": 1}], {}], ["reduceSum", 9, [{"$": 2}], {}]], 4),
    "a chain": (
        [
            ["sin", 2, [{"$": 1}], {}],
            ["cos", 3, [{"$": 2}], {}],
            ["tanh", 4, [{"$": 3}], {}],
            ["reduceSum", 9, [{"$": 4}], {}],
        ],
        8,
    ),
    "several at once": (
        [
            *[[name, k, [{"$": 1}], {}] for k, name in enumerate(("sin", "cos", "tanh", "exp"), 2)],
            ["concat", 6, [[{"$": k} for k in range(2, 6)], 0], {}],
            ["reduceSum", 9, [{"$": 6}], {}],
        ],
        32,
    ),
    "a product": (
        [["gemm", 2, [{"$": 1}, {"$": 1}], {}], ["relu", 3, [{"$": 2}], {}], ["reduceMax", 9, [{"$": 3}], {}]],
        8,
    ),
    "half": ([["cast", 2, [{"$": 1}, "float16"], {}], ["sin", 3, [{"$": 2}], {}], ["reduceSum", 9, [{"$": 3}], {}]], 8),
    "bytes": (
        [["greater", 2, [{"$": 1}, {"$": 1}], {}], ["logicalNot", 3, [{"$": 2}], {}], ["reduceMax", 9, [{"$": 3}], {}]],
        8,
    ),
    "grown": ([["tile", 2, [{"$": 1}, [4, 4]], {}], ["reduceMax", 9, [{"$": 2}], {}]], 64),
    "of constants": (
        [
            ["constantNumber", 2, ["float32", 1], {}],
            ["expand", 3, [{"$": 2}, BIG], {}],
            ["sin", 4, [{"$": 3}], {}],
            ["reduceSum", 5, [{"$": 4}], {}],
            ["reduceSum", 6, [{"$": 1}], {}],
            ["add", 9, [{"$": 5}, {"$": 6}], {}],
        ],
        8,
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", INTERMEDIATES)
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_build_counts_intermediates(name: str, device: str) -> None:
    entries, needed = INTERMEDIATES[name]
    log = [["input", 1, ["x", desc("float32", *BIG)], {}], *entries]

    def build(limit: int, graphs: int) -> list[dict[str, Any]]:
        limits = ConnectionLimits(memory=limit)
        with Server(port=0, origins=[ORIGIN], device=device, limits=limits) as server, Client(server) as client:
            client.hello()
            answers = [client.ask("build", b=g, g=g, log=log, outs={"y": 9}) for g in range(1, graphs + 1)]
            client.post("free", graphs=[*range(1, graphs + 1)], builders=[*range(1, graphs + 1)])
            answers.append(client.ask("build", b=9, g=9, log=log, outs={"y": 9}))  # in the memory that is free again
            return answers

    refused = build(needed * MIB, 1)
    for answer in refused:
        assert answer["error"]["name"] == "OperationError"
        assert (
            "for intermediates of the graph would exceed the memory that a page may take, "
            in answer["error"]["message"]
        )
    one, other, again = build(
        2 * needed * MIB + MIB // 2, 2
    )  # the two graphs themselves take 256 KiB each, and operands
    assert "error" not in one
    assert "for intermediates" in other["error"]["message"]
    assert "error" not in again
    assert not any("error" in answer for answer in build(2 * needed * MIB + MIB, 2))


def test_build_counts_states_of_recurrent_networks() -> None:
    x = ["input", 1, ["x", desc("float32", 64, 64, 64)], {}]
    weights = [["constantNumber", 2, ["float32", 1], {}], ["expand", 3, [{"$": 2}, [1, 192, 64]], {}]]
    log = [x, *weights, ["gru", 9, [{"$": 1}, {"$": 3}, {"$": 3}, 64, 64], {}]]
    limits = ConnectionLimits(memory=3 * MIB)
    with Server(port=0, origins=[ORIGIN], device="cpu", limits=limits) as server, Client(server) as client:
        client.hello()
        assert "for intermediates" in client.ask("build", b=1, g=1, log=log, outs={"y": 9})["error"]["message"]


@pytest.mark.long(rows=1)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read in /proc")
@pytest.mark.parametrize("megabytes", [128, 1024])
def test_dispatch_takes_no_more_memory_than_the_limit(megabytes: int) -> None:
    """A graph of a few bytes whose one intermediate is huge: it is refused, or fits, and the process does not grow beyond."""
    script = """
import sys
import numpy as np
from support.served_clients import ORIGIN, Client, desc
from opweave.serve import ConnectionLimits, Server

def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024

megabytes, limit = int(sys.argv[1]), 64
log = [["input", 1, ["x", desc("float32", 1, 1024)], {}], ["expand", 2, [{"$": 1}, [megabytes * 256, 1024]], {}]]
log += [["sin", 3, [{"$": 2}], {}], ["reduceSum", 4, [{"$": 3}], {}]]
with Server(port=0, origins=[ORIGIN], device="cpu", limits=ConnectionLimits(memory=limit << 20)) as server:
    with Client(server) as client:
        client.hello()
        client.ask("build", b=1, g=1, log=[log[0], ["sin", 3, [{"$": 1}], {}]], outs={"y": 3})
        open("/proc/self/clear_refs", "w").write("5")
        before = peak()
        answer = client.ask("build", b=2, g=2, log=log, outs={"y": 4})
        print(answer["error"]["message"])
        assert peak() - before < limit, (before, peak())
"""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script, str(megabytes)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "for intermediates of the graph would exceed the memory that a page may take, 64.0 MiB" in done.stdout


@pytest.mark.parametrize("label", ["a" * 100_000, "\u202e\x1b[31m\r\n" * 5000])
def test_errors_have_a_limited_length(label: str, client: Client) -> None:
    log = [["input", 1, ["x", desc("float32", 2)], {}], ["softmax", 2, [{"$": 1}, 7], {"label": label}]]
    message = client.ask("build", b=1, g=1, log=log, outs={"y": 2})["error"]["message"]
    assert message.isprintable()
    assert len(message) < 4100


def test_server_collects_garbage_after_much_was_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    monkeypatch.setattr(served_context, "COLLECT_BYTES", 4 * GRAPH_BYTES)
    monkeypatch.setattr(served_context, "_garbage", served_context._Garbage())
    monkeypatch.setattr("opweave.serve.served_context.gc.collect", lambda: collected.append(1))
    with Server(port=0, origins=[ORIGIN], device="cpu") as server:
        for _ in range(9):  # also by connections that end
            with Client(server) as client:
                client.hello()
                add_one(client)
    assert len(collected) == 2


def test_malformed_message_ends_connection(client: Client) -> None:
    client.send_text("{")
    assert client.next()["lost"].startswith("not JSON")
    with pytest.raises(ClosedError, match="1002 not JSON"):
        client.next()


def test_server_statistics() -> None:
    with Server(port=0, origins=[ORIGIN], device="cpu") as server, Client(server) as client:
        client.hello()
        add_one(client)
        client.post("write", np.zeros(6, "float32"), id=1)
        client.post("dispatch", g=1, inputs={"x": 1}, outputs={"y": 2})
        client.read(2, "float32")
        client.post("destroy")
        client.hello(2)
        after = server.stats()
    assert after.messages == {
        "hello": 2, "const": 1, "build": 1, "tensor": 2, "write": 1, "dispatch": 1, "read": 1, "destroy": 1,
    }  # fmt: skip
    assert (after.connections, after.contexts, after.graphs, after.dispatches) == (1, 2, 1, 1)
    assert after.received_bytes == 12 + 24
    assert after.sent_bytes == 24


def test_server_stats_are_copies() -> None:
    with Server(port=0, origins=[ORIGIN], device="cpu") as server:
        before = [server.stats()]
        with Client(server) as client:
            client.hello()
            before.append(server.stats())
            client.post("destroy")
            client.ask("hello", c=2, options={})
            before.append(server.stats())
            connection = next(iter(server._connections.values()))
            before.append(connection.counts())
            for counts in before:
                counts.messages["read"] += 100
                counts.graphs += 100
            after = server.stats()
    assert after.messages == {"hello": 2, "destroy": 1}
    assert after.graphs == 0


@pytest.mark.parametrize(
    ("options", "entry", "value"),
    [
        ({}, "spin_duration_us", str(SPIN_MICROSECONDS["least"])),
        ({"powerPreference": "high-performance"}, "spin_duration_us", str(SPIN_MICROSECONDS["short"])),
        ({"powerPreference": "low-power"}, "allow_spinning", "0"),
    ],
)
def test_create_context_lets_threads_sleep_soon(options: dict[str, Any], entry: str, value: str) -> None:
    builder = ow.MLGraphBuilder(served_context.create_context(options, "cpu"))
    graph = builder.build({"y": builder.cumulative_sum(builder.input("x", "float32", [4, 8192]), 1)})
    runner: Any = program_of(graph).steps[0].part.runner  # type: ignore[union-attr]
    assert runner._session._sess.session_options.get_session_config_entry(f"session.intra_op.{entry}") == value


def test_read_apart_returns_earlier_contents(server: Server, client: Client) -> None:
    add_one(client)
    client.post("write", np.zeros(6, "f4"), id=1)
    client.post("dispatch", g=1, inputs={"x": 1}, outputs={"y": 2})
    client.post("read", id=2, r=100, apart=True)
    client.post("write", np.ones(6, "f4"), id=1)  # waits, as all later messages of the context do
    client.post("dispatch", g=1, inputs={"x": 1}, outputs={"y": 2})
    answer = client.next()
    assert len(answer["key"]) == 43
    assert np.frombuffer(answer["payload"], "f4").tolist() == [1, 2, 3, 1, 2, 3]
    assert client.read(2, "float32").tolist() == [2, 3, 4, 2, 3, 4]


def test_second_read_apart_comes_in_a_frame(server: Server) -> None:
    with Client(server) as first, Client(server) as second:
        for page in (first, second):
            page.hello()
            page.ask("tensor", id=1, **desc("float32", 4), readable=True)
        first.post("read", id=1, r=100, apart=True)
        _, data = first.receive()
        key = json.loads(data[4:])["key"]
        answer = second.ask("read", id=1, apart=True)
        assert "key" not in answer
        assert answer["payload"] == bytes(16)
        assert first.taken(key) == bytes(16)
        deadline = time.monotonic() + 60
        while "key" not in second.ask("read", id=1, apart=True):  # the server learns last that all was received
            assert time.monotonic() < deadline


@pytest.mark.long
def test_unrequested_contents_follow_in_a_frame(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Handover.wait
    monkeypatch.setattr(Handover, "wait", lambda handover, key, _: wait(handover, key, 1))
    with Client(server) as client:
        client.hello()
        client.ask("tensor", id=1, **desc("float32", 4), readable=True)
        client.post("read", id=1, r=100, apart=True)
        _, data = client.receive()
        key = json.loads(data[4:])["key"]
        answer = client.next()
        assert (answer["r"], answer["payload"]) == (100, bytes(16))
        assert response_to(server, "POST", "/payload", key, ORIGIN)[0] == 403
        assert client.read(1, "float32").tolist() == [0] * 4, "the context goes on"


def test_read_apart_drops_unwanted_contents(server: Server) -> None:
    with Client(server) as client:
        client.hello()
        client.ask("tensor", id=1, **desc("float32", 4), readable=True)
        client.post("read", id=1, r=100, apart=True)
        _, data = client.receive()
        unwanted = f"{json.loads(data[4:])['key']} unwanted"
        assert response_to(server, "POST", "/payload", unwanted, ORIGIN) == (204, b"")
        assert response_to(server, "POST", "/payload", unwanted, ORIGIN)[0] == 403, "it is over"
        assert client.read(1, "float32").tolist() == [0] * 4, "the next message is the answer to this read"


def test_contents_of_broken_response_follow_in_a_frame(server: Server) -> None:
    with Client(server) as client:
        client.hello()
        client.ask("tensor", id=1, **desc("float32", 2**23), readable=True)  # more than what sockets hold
        client.post("read", id=1, r=100, apart=True)
        _, data = client.receive()
        key = json.loads(data[4:])["key"]
        head = f"POST /payload HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nOrigin: {ORIGIN}\r\nContent-Type: text/plain\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as request:
            request.sendall(f"{head}Content-Length: {len(key)}\r\n\r\n{key}".encode())
            assert request.recv(16).startswith(b"HTTP/1.1 200")
        answer = client.next()
        assert (answer["r"], len(answer["payload"])) == (100, 2**25)


@pytest.mark.long
@pytest.mark.parametrize("type_of_client", [Client, PlainClient])
def test_abandoned_contents_are_dropped(type_of_client: type[Client], caplog: pytest.LogCaptureFixture) -> None:
    limits = ConnectionLimits(handshake=10_000)
    with Server(port=0, origins=[ORIGIN], device="cpu", limits=limits) as server, Client(server) as other:
        with type_of_client(server) as client:
            client.hello()
            client.ask("tensor", id=1, **desc("float32", 4), readable=True, writable=True)
            client.post("read", id=1, r=100, apart=True)
            client.post("write", np.ones(4, "f4"), id=1)  # the thread that receives waits for the context
            time.sleep(0.1)
        other.hello()
        other.ask("tensor", id=1, **desc("float32", 4), readable=True)
        deadline = time.monotonic() + 60
        while "key" not in other.ask("read", id=1, apart=True):
            assert time.monotonic() < deadline
    assert caplog.records == []


def test_server_stop_during_read_apart() -> None:
    server = Server(port=0, origins=[ORIGIN], device="cpu", limits=ConnectionLimits(handshake=10_000)).start()
    with Client(server) as client:
        client.hello()
        client.ask("tensor", id=1, **desc("float32", 4), readable=True, writable=True)
        client.post("read", id=1, r=100, apart=True)
        client.receive()
        client.post("write", np.ones(4, "f4"), id=1)  # the thread that receives waits for the context
        closing = Thread(target=server.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()


def test_failed_read_apart_has_no_key(client: Client) -> None:
    client.ask("tensor", id=1, **desc("float32", 4), writable=True)
    answer = client.ask("read", id=1, apart=True)
    assert "readable" in answer["error"]["message"]
    assert "key" not in answer


# ---------------------------------------------------------------------------------------------------------------------
# Sizes with names


def named(*shape: Any) -> dict[str, Any]:
    return {"dataType": "float32", "shape": list(shape)}


DOUBLE: list[Any] = [
    ["input", 1, ["x", named("n", {"name": "m", "minSize": 1, "maxSize": 9})], {}],
    ["concat", 2, [[{"$": 1}, {"$": 1}], 0], {}],
]


@pytest.fixture
def drafter(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of a server with drafts."""
    with Server(port=0, origins=[ORIGIN], device="cpu", drafts=True) as server, Client(server) as client:
        assert client.hello()["drafts"] is True
        yield client


def halve(client: Client, graph: int = 1, size: int = 2, **more: Any) -> None:
    """Build 0.5 * x as a graph."""
    builder = 100 + graph
    client.post("const", np.full(size, 0.5, "f4"), b=builder, id=2, **desc("float32", size), **more)
    log: list[Any] = [
        ["input", 1, ["x", desc("float32", size)], {}],
        ["constant", 2, [desc("float32", size)], {}],
        ["mul", 3, [{"$": 1}, {"$": 2}], {}],
    ]
    assert "outputs" in client.ask("build", b=builder, g=graph, log=log, outs={"y": 3}, **more)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_graphs_are_kept_by_origin(cache: Path) -> None:
    origins = [ORIGIN, "http://localhost:81", "https://app.example"]
    with Server(port=0, origins=origins, device="cpu", drafts=True) as server:
        for origin in [*origins, None]:
            kind = Client if origin else PlainClient
            with kind(server, origin=origin) as client:
                client.hello()
                assert client.ask("list")["keys"] == []
                assert client.ask("load", g=1, key="half")["error"]["name"] == "DataError"
                halve(client)
                assert "error" not in client.ask("save", g=1, key="half")
                answer = client.ask("load", g=2, key="half")
                assert (answer["inputs"], answer["outputs"]) == ({"x": desc("float32", 2)}, {"y": desc("float32", 2)})
                client.ask("tensor", np.float32([4, 6]), id=1, **desc("float32", 2), constant=True)
                client.ask("tensor", id=2, **desc("float32", 2), readable=True, writable=True)
                client.ask("tensor", id=3, **desc("float32", 2), readable=True, writable=True)
                client.post("write", np.float32([4, 6]), id=3)
                client.post("dispatch", g=2, inputs={"x": 3}, outputs={"y": 2})
                assert client.read(2, "float32").tolist() == [2, 3]
        with Client(server) as client:
            client.hello()
            assert client.ask("list")["keys"] == ["half"]
            assert "error" not in client.ask("delete", key="half")
            assert client.ask("list")["keys"] == []
        with Client(server, origin=origins[1]) as client:
            client.hello()
            assert client.ask("list")["keys"] == ["half"]
        assert server.stats().graphs == 8
    context = ow.ml.create_context(device="reference", drafts=True)
    assert context.list_graphs() == []  # those of Python are apart
    assert len({*cache.rglob("*.opweave")}) == 3


def test_graphs_by_key_need_drafts_and_an_origin(cache: Path) -> None:
    requests = {"save": {"g": 1, "key": "a"}, "load": {"g": 2, "key": "a"}, "list": {}, "delete": {"key": "a"}}
    for drafts, origin, reason in ((False, ORIGIN, "a draft, which"), (True, "null", "the page has none of its own")):
        with (
            Server(port=0, origins=[origin], device="cpu", drafts=drafts) as server,
            Client(server, origin=origin) as client,
        ):
            client.hello()
            halve(client)
            for kind, fields in requests.items():
                error = client.ask(kind, **fields)["error"]
                assert error["name"] == "NotSupportedError"
                assert error["message"].startswith(f"{kind}Graph{'s' if kind == 'list' else ''}: ")
                assert reason in error["message"]
    assert not cache.exists()


def test_loading_a_graph_stays_within_the_budget(cache: Path) -> None:
    """Weights, operands and intermediates of a loaded graph count, and are given back."""
    size = 2**20  # 4 MiB of weights, and as much for the result
    with Server(port=0, origins=[ORIGIN], device="cpu", drafts=True) as server, Client(server) as client:
        client.hello()
        halve(client, size=size)
        client.ask("save", g=1, key="large")
    limits = ConnectionLimits(memory=6 * MIB)
    with (
        Server(port=0, origins=[ORIGIN], device="cpu", drafts=True, limits=limits) as server,
        Client(server) as client,
    ):
        client.hello()
        for graph in (1, 2, 3):
            assert "error" not in client.ask("load", g=graph, key="large")
            error = client.ask("load", g=9, key="large")["error"]
            assert error["name"] == "OperationError"
            assert "would exceed the memory that a page may take, 6.0 MiB" in error["message"]
            client.post("free", graphs=[graph])
    for few in (ConnectionLimits(operands=2), ConnectionLimits(graphs=1)):
        with (
            Server(port=0, origins=[ORIGIN], device="cpu", drafts=True, limits=few) as server,
            Client(server) as client,
        ):
            client.hello()
            if few.operands == 2:
                assert "may have 2 operands" in client.ask("load", g=1, key="large")["error"]["message"]
            else:
                halve(client)
                message = "saveGraph: an origin may keep 1 graph here; deleteGraph(key) makes room"
                assert client.ask("save", g=1, key="small")["error"]["message"] == message
                assert "error" not in client.ask("save", g=1, key="large")


def test_errors_of_kept_graphs_have_no_paths(cache: Path) -> None:
    with Server(port=0, origins=[ORIGIN], device="cpu", drafts=True) as server, Client(server) as client:
        client.hello()
        halve(client)
        client.ask("save", g=1, key="a")
        path = next(cache.rglob("*.opweave"))
        content = path.read_bytes()
        for change in (b"", content[:100], content[:300] + b"~" + content[301:]):
            path.write_bytes(change)
            error = client.ask("load", g=2, key="a")["error"]
            assert error["name"] == "DataError"
            assert error["message"].startswith("loadGraph: the cache directory of the server: ")
            assert str(cache) not in error["message"]
        path.write_bytes(content)
        os.chmod(path.parent, 0o777)
        error = client.ask("save", g=1, key="a")["error"]
        assert error["name"] == "OperationError"
        assert "can be written to by other users" in error["message"]
        assert str(cache) not in error["message"]
        os.chmod(path.parent, 0o700)
        assert "error" not in client.ask("load", g=2, key="a")


def shapes_of(client: Client, graph: int, shapes: Any) -> dict[str, Any]:
    body = {"session": client.session, "c": 1, "g": graph, "shapes": shapes}
    status, text = response_to(client.server, "POST", "/sync", json.dumps(body), ORIGIN)
    return json.loads(text) if status == 200 else {"status": status, "text": text}  # type: ignore[no-any-return]


def test_sync_and_build_return_names_and_formulas(drafter: Client) -> None:
    assert drafter.sync(DOUBLE)["operands"] == [[named("n", "m")], [named("2*n", "m")]]
    answer = drafter.ask("build", b=1, g=1, log=[], outs={"y": 2})
    assert (answer["inputs"], answer["outputs"]) == ({"x": named("n", "m")}, {"y": named("2*n", "m")})
    assert answer["devices"] == ["cpu"]
    wrong = drafter.sync([["input", 1, ["x", named({"name": "n", "least": 1})], {}]], b=2)
    assert wrong["error"]["message"].startswith("input 'x': shape[0] must have name, and may have min")


def test_names_are_an_error_without_drafts(client: Client) -> None:
    wrong = client.sync(DOUBLE)
    assert (wrong["at"], wrong["error"]["name"]) == (0, "TypeError")
    assert wrong["error"]["message"].startswith("input 'x': shape must be a sequence of integers, got ['n', ")


def test_sync_computes_shapes(drafter: Client) -> None:
    drafter.ask("build", b=1, g=1, log=DOUBLE, outs={"y": 2})
    assert shapes_of(drafter, 1, {"x": [3, 2]}) == {"shapes": {"y": [6, 2]}}
    for shapes, message in (
        ({}, "computeShapes: inputShapes must hold ['x']; got none"),
        ({"x": [2**40, 2]}, "computeShapes: concat: the result must have dimensions in"),
        ({"x": [1.5, 2]}, "computeShapes: inputShapes['x'] must be a sequence of integers, got [1.5, 2]"),
        ({"x": "ab"}, "computeShapes: inputShapes['x'] must be a sequence of integers, got 'ab'"),
    ):
        error = shapes_of(drafter, 1, shapes)["error"]
        assert error["name"] == "TypeError"
        assert error["message"].startswith(message)
    assert shapes_of(drafter, 2, {"x": [3, 2]})["error"]["name"] == "InvalidStateError"
    assert shapes_of(drafter, 1, [])["status"] == 400


def test_dispatch_counts_each_combination_of_sizes() -> None:
    log = [["input", 1, ["x", named("n")], {}], ["sin", 2, [{"$": 1}], {}], ["reduceSum", 3, [{"$": 2}], {}]]
    limits = ConnectionLimits(memory=GRAPH_BYTES * 6)
    with Server(port=0, origins=[ORIGIN], device="cpu", limits=limits, drafts=True) as server, Client(server) as client:
        client.hello()
        client.ask("build", b=1, g=1, log=log, outs={"y": 3})
        client.ask("tensor", id=9, **desc("float32"), readable=True, writable=False)
        for n in (1, 2, 1, 3, 4, 1):
            client.ask("tensor", id=n + 10 * n, **desc("float32", n), readable=False, writable=True)
            client.post("write", np.ones(n, "float32"), id=n + 10 * n)
            client.post("dispatch", g=1, inputs={"x": n + 10 * n}, outputs={"y": 9})
            assert client.read(9, "float32")[0] == pytest.approx(n * np.sin(1))
            client.post("free", tensors=[n + 10 * n])
        client.post("free", graphs=[1])
        client.ask("build", b=2, g=2, log=log, outs={"y": 3})
        for n in range(1, 6):
            client.ask("tensor", id=n, **desc("float32", n), readable=False, writable=True)
            client.post("dispatch", g=2, inputs={"x": n}, outputs={"y": 9})
        lost = client.next()["lost"]
        assert "more for intermediates of the graph would exceed the memory that a page may take" in lost


def test_formulas_have_a_limited_number_of_names(drafter: Client) -> None:
    log: list[Any] = []
    sums = []
    for side in "abc":  # three matrices with sums of 22 names as rows
        first = len(log) + 1
        log += [["input", first + k, [f"{side}{k}", named(f"{side}{k}", "k")], {}] for k in range(22)]
        sums.append(first + 22)
        log.append(["concat", first + 22, [[{"$": first + k} for k in range(22)], 0], {}])
    number = len(log)
    log += [
        ["transpose", number + 1, [{"$": sums[1]}], {}],
        ["matmul", number + 2, [{"$": sums[0]}, {"$": number + 1}], {}],
        ["cast", number + 3, [{"$": number + 2}, "int32"], {}],
        ["transpose", number + 4, [{"$": sums[2]}], {}],
        ["gather", number + 5, [{"$": number + 4}, {"$": number + 3}], {}],
    ]
    start = time.monotonic()
    error = drafter.sync(log)["error"]
    assert "a formula of sizes must have at most 4096 names and calls, got 31944" in error["message"]
    assert time.monotonic() - start < 60


def test_constant_bytes_are_read_before_the_payload(drafter: Client) -> None:
    log: list[Any] = [
        ["input", 1, ["x", named("n", 4)], {}],
        ["constant", 2, [{"dataType": "uint32", "shape": [2], "bytes": [1, 0, 0, 0, 3, 0, 0, 0]}], {}],
        ["splitDynamic", 3, [{"$": 1}, {"$": 2}], {"axis": 1}],
    ]
    assert drafter.sync(log)["operands"][2] == [named("n", 1), named("n", 3)]


@pytest.mark.parametrize("numbers", [[1], [256] * 8, [1.5] * 8, "12345678"], ids=str)
def test_constant_rejects_wrong_bytes(numbers: Any, drafter: Client) -> None:
    answer = drafter.sync([["constant", 9, [{"dataType": "uint32", "shape": [2], "bytes": numbers}], {}]])
    assert answer["status"] == 400
    assert "the bytes of a constant must not be" in answer["text"]
