"""Random messages to a server of `navigator.ml`: it answers or hangs up, has no faults, and another page keeps working."""

from __future__ import annotations

import atexit
import http.client
import json
import logging
import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from samples import SAMPLES, type_choices
from support.served_clients import ORIGIN, Client, ClosedError, Message, PlainClient, desc, response_to, sized

from fuzz.builder import RandomMake
from fuzz.frame import Campaign, Finding
from opweave.core.dtypes import ANY
from opweave.core.graph import MLOperand
from opweave.ops import Operations
from opweave.serve import ConnectionLimits, Server
from opweave.serve.messages import REQUIRED
from opweave.serve.server import MAX_KEY_BYTES
from opweave.support.names import camel_case

LIMITS = ConnectionLimits(memory=2**24, operands=200, contexts=4, json=2**18, handshake=20, graphs=8, graph_bytes=2**20)
LARGEST_PAYLOAD = 2**16
PATIENCE_SECONDS = 5
"""After which a server that has not answered must be waiting for the rest of a message."""

HANDOVER_SECONDS = 60
"""In which contents that a client left behind must be given up, on a busy machine, too."""

WILD: list[Any] = [
    *(-1, 0, 1, 2, 3, 7, 2**31, 2**32, 2**53, 2**53 + 1, 10**30, 0.5, -0.0, 1e308, True, False, None),
    *("", "x", "float32", "int8", "nchw", "__class__", "\ud800", "x" * 5000, "{}", {}, [], [[]], [[[[]]]], {"$": 1}),
    *({"$": 2}, {"$": 10**30}, {"$": "1"}, {"n": "NaN"}, {"n": "1n"}, {"n": ""}, {"n": 1}, {"$": 1, "n": "1"}),
    *(
        [1],
        [2, 3],
        [0],
        [-1],
        [2**32],
        [1.5],
        ["1"],
        [None],
        [{"$": 1}],
        [1] * 9,
        {"dataType": "float32", "shape": [2]},
    ),
]


KEEPING = ["save", "save", "load", "list", "delete"]
ALL = ["write", "read", "const", "dispatch", "free", "hello", "destroy", *KEEPING]
BUILDING = ["tensor"] * 6 + ["build"] * 8 + ALL
READING = ["tensor"] * 6 + ["write"] * 4 + ["read"] * 12 + ALL
"""How often a client sends which messages: one that mostly builds graphs, and one that mostly reads tensors."""


class Faults(logging.Handler):
    """Keeps what the server reports as faults of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))


@cache
def served() -> tuple[Server, Client, Faults]:
    """A server, a page that does nothing wrong, and the faults."""
    faults = Faults()
    logging.getLogger("opweave.serve").addHandler(faults)
    folder = tempfile.mkdtemp(prefix="opweave-fuzz-")  # for graphs by key
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["OPWEAVE_CACHE"] = folder
    server = Server(port=0, origins=[ORIGIN], device="reference", limits=LIMITS, drafts=True).start()
    page = Client(server)
    page.hello()
    page.ask("tensor", id=1, **desc("float32", 4), readable=True, writable=True)
    return server, page, faults


class UntakenError(Exception):
    """The server has given up contents that were to be asked for: they follow in a frame, or the connection ends."""


class Asker(Client):
    """A client that asks for contents by `POST /payload`; rarely also in wrong ways, or it leaves instead."""

    rng: random.Random

    def taken(self, key: str) -> bytes:
        rng = self.rng
        while rng.random() < 0.2:
            self.ask_wrongly(key)
        if rng.random() < 0.05:
            self.request(key, len(key))
            raise ClosedError(1001, "the client has left, perhaps while it was answered")
        try:
            status, payload = response_to(self.server, "POST", "/payload", key, self.origin)
        except (http.client.HTTPException, ConnectionError) as error:
            raise UntakenError from error
        if status == 403:
            raise UntakenError
        if status != 200:
            raise Finding(f"contents that were offered: {status} {payload!r}")
        return payload

    def ask_wrongly(self, key: str) -> None:
        """Ask for contents as no page does; it must be refused, and not change what the right request gets."""
        rng = self.rng
        spoiled = list(key)
        spoiled[rng.randrange(len(key))] = rng.choice("\0 ~é")
        body, origin, wanted = rng.choice(
            [
                ("".join(spoiled), self.origin, 403),
                ("", self.origin, 403),
                (f"{key} wanted", self.origin, 403),
                (f"{key} unwanted", "null", 403),
                (key, "null", 403),
                (key, None, 403),
                (key * MAX_KEY_BYTES, self.origin, 413),
                (None, self.origin, None),
            ]
        )
        if body is None:
            self.request(key, len(key) + rng.randint(1, 50))
            return
        status, _ = response_to(self.server, "POST", "/payload", body, origin)
        if status != wanted:
            raise Finding(f"a wrong request for contents: {status} instead of {wanted}")

    def request(self, key: str, size: int) -> None:
        """Send a request for contents that says it has a key of another size, perhaps; and hang up."""
        fields = f"Host: 127.0.0.1\r\nOrigin: {self.origin}\r\nContent-Type: text/plain\r\nContent-Length: {size}"
        with socket.create_connection(("127.0.0.1", self.server.port)) as connection:
            connection.sendall(f"POST /payload HTTP/1.1\r\n{fields}\r\n\r\n{key}".encode())

    def answer(self) -> Message:
        """The next message, with its contents."""
        while True:
            try:
                return self.next()
            except UntakenError:
                continue


class PlainAsker(Asker, PlainClient):
    """The same, as a program of Node.js."""


class Page:
    """What a client has made so far, from which its messages are mostly right."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kinds = rng.choice([BUILDING, READING])
        self.last = 1
        self.contexts = [1]
        self.tensors: dict[int, tuple[int, str, list[int]]] = {}  # context, data type, shape
        self.graphs: list[int] = []

    def fresh(self) -> int:
        """A number that is not in use."""
        self.last += 1
        return self.last

    def some(self, numbers: Sequence[int]) -> int:
        """A number of something that there is, mostly."""
        return self.rng.choice(list(numbers)) if numbers and self.rng.random() < 0.97 else self.rng.choice([1, 2, 999])

    def shape(self) -> list[int]:
        return [self.rng.randint(1, 4) for _ in range(self.rng.randint(0, 4))]

    def log(self) -> tuple[list[Any], dict[str, int]]:
        """Sources, some operations on them, and outputs."""
        rng, log, sources, results = self.rng, [], [], []
        for _ in range(rng.randint(1, 4)):
            sources.append(self.fresh())
            log.append(self.source(sources[-1]))
        for _ in range(rng.randint(0, 5)):
            results.append(self.fresh())
            self.last += 4  # of operations with several results
            log.append(self.call(results[-1], sources))
        return log, {"y": self.some(results or sources)}

    def source(self, number: int) -> list[Any]:
        rng = self.rng
        match rng.randrange(8):
            case 0:
                data_type, value = rng.choice(ANY), rng.choice([1, 2.5, {"n": "NaN"}, {"n": "-12n"}, {"n": "1e300"}])
                return ["constantNumber", number, [data_type, value], {}]
            case 1 if self.tensors:
                return ["constantTensor", number, [self.some(list(self.tensors))], {}]
        return ["input", number, [f"x{number}", desc(rng.choice(ANY), *self.shape())], {}]

    def call(self, number: int, sources: list[int]) -> list[Any]:
        """A call of a random operation; data types and shapes rarely fit."""
        rng = self.rng
        name = rng.choice(list(Operations.listing()))
        op = Operations.listing()[name]
        call = SAMPLES[op].make(RandomMake(rng, rng.choice(list(type_choices(op, op.limits)))))
        arguments = [self.argument(value, sources) for value in call.args]
        options = {camel_case(key): self.argument(value, sources) for key, value in call.kwargs.items()}
        if rng.random() < 0.2 and arguments:
            arguments[rng.randrange(len(arguments))] = rng.choice(WILD)
        if rng.random() < 0.2 and options:
            options[rng.choice(list(options))] = rng.choice(WILD)
        return [camel_case(name), number, arguments, options]

    def argument(self, value: Any, sources: list[int]) -> Any:
        """An argument of a sample as JavaScript sends it; for arrays, an operand."""
        if isinstance(value, (np.ndarray, MLOperand)):
            return {"$": self.rng.choice(sources)}
        if isinstance(value, (list, tuple)):
            return [self.argument(item, sources) for item in value]
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and (value != value or abs(value) == float("inf")):
            return {"n": {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]}
        return value

    def message(self) -> dict[str, Any]:
        """A message, in which mostly all is as it should be."""
        rng = self.rng
        made: dict[str, Any] = {"c": self.some(self.contexts), "r": rng.randint(1, 1000)}
        kind = rng.choice(self.kinds)
        data_type: str = rng.choice(ANY)
        shape = self.shape()
        if kind in ("write", "read") and not self.tensors and rng.random() < 0.9:
            kind = "tensor"
        match kind:
            case "hello":
                options: Message = rng.choice(
                    [{}, {"powerPreference": "low-power"}, {"deviceType": "gpu"}, {"deviceType": 1}]
                )
                made |= {"c": self.fresh(), "options": options}
                if options.get("deviceType") != 1:
                    self.contexts.append(self.last)
            case "tensor":
                made |= {
                    "id": self.fresh(),
                    **desc(data_type, *shape),
                    "readable": True,
                    "writable": rng.random() < 0.9,
                }
                self.tensors[self.last] = made["c"], data_type, shape
                if rng.random() < 0.3:
                    made |= {"constant": True, "bin": bytes_of(data_type, shape)}
            case "write" | "read" | "const":
                made["id"] = self.some(list(self.tensors))
                made["c"], data_type, shape = self.tensors.get(made["id"], (made["c"], "float32", [4]))
                if kind == "const":
                    made |= {"b": self.fresh(), "id": self.fresh(), **desc(data_type, *shape)}
                if kind != "read":
                    made["bin"] = bytes_of(data_type, shape)
                elif rng.random() < 0.7:
                    made["apart"] = rng.random() < 0.9
            case "build":
                log, outputs = self.log()
                made |= {"b": self.fresh(), "g": self.fresh(), "log": log, "outs": outputs}
                self.graphs.append(self.last)
            case "save" | "load" | "delete":
                made |= {"key": rng.choice(["a", "b", "c", "a/b", "\ud800", "", "k" * 1025])}
                if kind == "load":
                    made["g"] = self.fresh()
                    self.graphs.append(self.last)
                elif kind == "save":
                    made["g"] = self.some(self.graphs)
            case "dispatch":
                sides = ({name: self.some(list(self.tensors))} for name in (rng.choice("xyz"), "y"))
                made |= {"g": self.some(self.graphs), **dict(zip(("inputs", "outputs"), sides, strict=True))}
            case "free":
                made |= {
                    "tensors": [self.some(list(self.tensors))],
                    "graphs": [self.some(self.graphs)],
                    "builders": [1],
                }
        if "r" not in REQUIRED[kind]:
            del made["r"]
        made["m"] = kind
        if rng.random() < 0.03:
            made[rng.choice(list(made))] = rng.choice(WILD)
        if rng.random() < 0.01:
            del made[rng.choice(list(made))]
        return made


def bytes_of(data_type: str, shape: list[int]) -> int:
    return int(np.dtype(data_type).itemsize * np.prod(shape, dtype=np.int64))


def send(rng: random.Random, client: Client, page: Page) -> None:
    """Send a message, with its payload; rarely in parts, spoiled, or something else."""
    made = page.message()
    text = json.dumps(made).encode()
    if rng.random() < 0.005:
        at = rng.randrange(len(text))
        text = text[:at] + rng.randbytes(rng.randint(0, 3)) + text[at + rng.randint(0, 3) :]
    if rng.random() < 0.003:
        client.socket.sendall(rng.randbytes(rng.randint(1, 40)))
    data, size = sized(text), made.get("bin")
    if isinstance(size, int) and 0 < size <= LARGEST_PAYLOAD and rng.random() < 0.995:
        data += rng.randbytes(size)
    cut = rng.randint(0, len(data)) if rng.random() < 0.5 else len(data)
    final = rng.random() < 0.5  # whether the parts are messages of WebSocket of their own
    client.socket.sendall(client.frame(2, data[:cut], final=final) + client.frame(2 if final else 0, data[cut:]))


def case(rng: random.Random, number: int) -> tuple[str, int]:
    """Random messages, which are counted; then another page must work."""
    server, page, faults = served()
    word, sent = "answered", 0
    with rng.choice([Asker, PlainAsker])(server) as client:
        client.rng = rng
        try:
            client.hello()
            client.socket.settimeout(PATIENCE_SECONDS)
            sender = Page(rng)
            for _ in range(rng.randint(1, 25)):
                send(rng, client, sender)
                sent += 1
            client.post("hello", c=10**6, r=10**6, options={})
            while (answer := client.answer()).get("r") != 10**6:
                word = "lost" if "lost" in answer else word
                if answer.get("error", {}).get("name") == "UnknownError":
                    raise Finding(f"{answer['error']['message']}")
        except (ClosedError, ConnectionResetError, BrokenPipeError):
            word = "closed"
        except TimeoutError:
            word = check_that_it_waits(client)
    page.post("write", np.arange(4, dtype="float32"), id=1)
    if any(data.tolist() != [0, 1, 2, 3] for data in (page.read(1, "float32"), read_apart(page))):
        raise Finding("another page reads something else than it wrote")
    if faults.found:
        found, faults.found = faults.found, []
        raise Finding("\n".join(found))
    return word, sent


def read_apart(page: Client) -> np.ndarray:
    """The contents of tensor 1, asked for by a request, as soon as those that other clients left are given up."""
    deadline = time.monotonic() + HANDOVER_SECONDS
    while "key" not in (answer := page.ask("read", id=1, apart=True)):
        if time.monotonic() > deadline:
            raise Finding("contents that a client left behind are not given up")
    return np.frombuffer(answer["payload"], "float32")


def check_that_it_waits(client: Asker) -> str:
    """The server waits for the rest of a payload: it must end when the client does."""
    client.socket.shutdown(socket.SHUT_WR)
    client.socket.settimeout(300)  # on a busy machine, it may not have waited, but worked
    try:
        while True:
            client.answer()
    except (ClosedError, ConnectionResetError):
        return "waited"


CAMPAIGNS = {
    "serve": Campaign(
        "serve",
        "random messages to a server of navigator.ml, while another page uses it",
        case,
        20_000,
        60,
        memory=None,
        unit="messages",
        outcomes=frozenset({"answered", "lost", "closed", "waited"}),
    )
}
