"""Random and hostile HTTP requests to deployed models: each gets its own result, or an error with the right status.

Models run in a server of `opweave deploy`, or in replicas of Ray Serve. These must be the same processes in the end, with as
much memory as before.
"""

from __future__ import annotations

import atexit
import gzip
import io
import json
import os
import random
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import numpy as np
from support.ray_processes import NAME, marked, new_mark, private_bytes

from fuzz.frame import Campaign, Finding

REQUESTS = 25
"""Requests of a case."""
CLIENTS = 6
"""Connections at a time, if a case has several."""
MEASURED_CASES = 40
"""After how many cases the memory of the replicas is measured."""
MEASUREMENTS = 3
"""A replica must come back to its size within so many measurements: meanwhile it holds programs for shapes that came twice."""
MAX_GROWTH = 32 << 20
"""How many bytes of growth do not count, above all of programs for shapes, which are bounded: an estimate."""
LARGE = "fixed"
"""The model that gets bodies beyond the limit."""
KEPT_BYTES = 64 << 20
"""What glibc keeps at the top of a heap once large blocks have been freed: twice its largest threshold for mapping them."""
MAX_BODY_BYTES = 256 << 20
"""What docs/serving.md says that a body may have."""
TIMEOUT_SECONDS = 60


@dataclass
class Served:
    """The deployed models of this process.

    Attributes:
        port: where they answer.
        replicas: the processes of the replicas by model.
        cases: how many cases have run.
        sizes: the memory of the replicas each time that it was measured.
    """

    port: int = 0
    replicas: dict[str, int] = field(default_factory=dict)
    cases: int = 0
    sizes: list[dict[str, int]] = field(default_factory=list)


SERVED = Served()


def setup(folder: Path) -> None:
    """Deploy the models, each under its name as a path."""
    os.environ |= {NAME: new_mark(), "RAY_USAGE_STATS_ENABLED": "0"}
    import ray
    from ray import serve

    from fuzz.requests import models
    from opweave.scale import deployment

    with socket.create_server(("127.0.0.1", 0)) as free:
        SERVED.port = free.getsockname()[1]
    count = len(models())
    ray.init("local", num_cpus=count + 1, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    serve.start(http_options={"port": SERVED.port}, logging_config={"log_level": "ERROR", "enable_access_log": False})
    targets = [serve.RunTarget(deployment(data, name=name), name, f"/{name}") for name, data in models().items()]
    serve.run_many(targets)
    processes = marked(os.environ[NAME])
    for name in models():
        (SERVED.replicas[name],) = [
            number for number, command in processes.items() if f"ServeReplica:{name}" in command
        ]


def setup_server(folder: Path) -> None:
    """Serve the models by `opweave deploy` on this machine, in one process that ends with this one."""
    from fuzz import requests

    requests.HAS_PREFIX = False
    files = folder / "models"
    files.mkdir(exist_ok=True)
    for name, data in requests.models().items():
        (files / f"{name}.onnx").write_bytes(data)
    with socket.create_server(("127.0.0.1", 0)) as free:
        SERVED.port = free.getsockname()[1]
    # All requests have the name x.
    options = ["--port", str(SERVED.port), "--allow-host", "x", "--threads", "1", "--wait", "0.002"]
    server = subprocess.Popen([sys.executable, "-m", "opweave", "deploy", str(files), *options], stdout=subprocess.PIPE)
    atexit.register(server.kill)
    assert server.stdout is not None
    while b"Ctrl-C" not in (line := server.stdout.readline()):
        assert line, "the server has ended"
    SERVED.replicas = dict.fromkeys([LARGE], server.pid)


class Reader(io.BufferedReader):
    """What comes on a connection, also after an `HTTPResponse`, which closes what it reads: it may hold the next response."""

    def makefile(self, mode: str) -> Reader:
        return self

    def close(self) -> None:
        pass


class Client:
    """A connection, which is made again after the server has closed it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def open(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", SERVED.port), TIMEOUT_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reader = Reader(socket.SocketIO(self._socket, "r"))
        return self._socket

    def answer(self, method: str = "POST") -> tuple[int, dict[str, str], bytes]:
        """Read a response: its status, its headers in lower case, its body.

        Raises:
            ConnectionError: the server hung up.
        """
        response = HTTPResponse(self._reader, method=method)  # type: ignore[arg-type]  # it only calls makefile
        try:
            response.begin()
            body = response.read()
        except HTTPException as error:
            self.close()
            raise ConnectionResetError(f"{type(error).__name__}: {error}") from None
        except OSError:
            self.close()
            raise
        if response.will_close:
            self.close()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return response.status, headers, gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body

    def ask(self, data: bytes, method: str = "POST") -> tuple[int, dict[str, str], bytes]:
        """Send a request, and read its response."""
        with suppress(BrokenPipeError, ConnectionResetError):  # it answers early
            self.open().sendall(data)
        return self.answer(method)


def agree(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    """Whether outputs are those of the session, but for the rounding of batches."""
    if list(got) != list(wanted):
        return False
    for name, array in wanted.items():
        other = got[name]
        if (other.dtype, other.shape) != (array.dtype, array.shape):
            return False
        if array.dtype.kind in "fV":
            a, b = (each.astype(np.float64) for each in (array, other))
            if not np.allclose(b, a, rtol=1e-4, atol=1e-6, equal_nan=True):
                return False
        elif not np.array_equal(array, other):
            return False
    return True


def check(draft: Any, answer: tuple[int, dict[str, str], bytes]) -> None:
    """Compare a response with what must come of the request.

    Raises:
        Finding: it is another.
    """
    from fuzz import requests

    status, headers, body = answer
    what = f"{draft.method} {draft.path[:200]} {str(draft.headers)[:300]} {str(draft.message)[:1000]} {str(draft.body)[:300]}"
    if status not in draft.statuses:
        raise Finding(f"status {status} instead of {draft.statuses}: {body[:500]!r}\n{what}")
    if status != 200:
        if headers.get("content-type") == "application/json" and not error_of(body):
            raise Finding(f"the body of status {status} is {body[:500]!r}\n{what}")
        return
    if draft.method == "GET":
        return
    found = requests.answered(headers, body)
    results = requests.results(draft.model, requests.sent_feed(draft))
    wanted = {name: results[name] for name in requests.wanted_of(draft)}
    if not agree(found, wanted):
        raise Finding(f"the result is {found}, and should be {wanted}\n{what}")


def error_of(body: bytes) -> str:
    """The message of an error."""
    found = json.loads(body)
    return str(found["error"]) if isinstance(found, dict) and list(found) == ["error"] else ""


# What is sent --------------------------------------------------------------------------------------------------------


def ordinary(rng: random.Random) -> Callable[[Client], None]:
    """A request in HTTP as it should be."""
    from fuzz import requests

    kind = rng.random()
    if kind < 0.3:
        draft = requests.right(rng)[0]
    elif kind < 0.35:
        draft = requests.alone(rng)[0]
    elif kind < 0.4:
        draft = requests.asking(rng)
    elif kind < 0.65:
        draft = requests.wrong(rng)
    else:
        draft = requests.mutant(rng)
    raw = draft.raw(close=rng.random() < 0.05)
    return lambda client: check(draft, client.ask(raw, draft.method))


def slow(rng: random.Random) -> Callable[[Client], None]:
    """A right request that comes in pieces."""
    from fuzz import requests

    draft, _ = requests.right(rng)
    raw = draft.raw()
    ends = sorted(rng.randrange(len(raw)) for _ in range(3))

    def send(client: Client) -> None:
        client.close()  # a server may close an idle connection meanwhile
        for start, end in zip([0, *ends], [*ends, len(raw)], strict=True):
            client.open().sendall(raw[start:end])
            time.sleep(0.01)
        check(draft, client.answer())

    return send


def given_up(rng: random.Random) -> Callable[[Client], None]:
    """A request whose client leaves: in the middle of it, or before the answer."""
    from fuzz import requests

    raw = requests.right(rng)[0].raw()
    end = rng.choice([len(raw), rng.randrange(len(raw))])

    def send(client: Client) -> None:
        client.close()
        client.open().sendall(raw[:end])
        if rng.random() < 0.5:
            time.sleep(0.005)
        client.close()

    return send


def twice(rng: random.Random) -> Callable[[Client], None]:
    """Two right requests at once on a connection; the answers come in order."""
    from fuzz import requests

    drafts = [requests.right(rng)[0] for _ in range(2)]
    raw = b"".join(draft.raw() for draft in drafts)

    def send(client: Client) -> None:
        client.close()
        client.open().sendall(raw)
        for draft in drafts:
            check(draft, client.answer())

    return send


@cache
def bombs() -> list[bytes]:
    """A small body that is large when it is not compressed; and the head of a request that announces a large body."""
    from fuzz import requests

    path = requests.prefix(LARGE).encode() + b"/v2/models/fixed/infer"
    head = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
    body = gzip.compress(bytes(MAX_BODY_BYTES + 1))
    return [
        head % len(body) + b"Content-Encoding: gzip\r\n\r\n" + body,
        head % (MAX_BODY_BYTES + 1) + b"\r\n" + bytes(99),
    ]


def large(rng: random.Random) -> Callable[[Client], None]:
    """A body beyond the limit, which is refused."""
    from fuzz import requests

    number = rng.randrange(2)
    draft = requests.Draft(LARGE, None, body=b"the bomb %d" % number, statuses=((400, 413)[number],))

    def send(client: Client) -> None:
        client.close()
        check(draft, client.ask(bombs()[number]))
        client.close()  # the rest of the body has not come

    return send


def broken(rng: random.Random) -> Callable[[Client], None]:
    """What is no HTTP, or hardly: the server refuses it, hangs up, or ignores what is odd."""
    from fuzz import requests

    draft, _ = requests.right(rng)
    whole = draft.raw(close=True)
    head, _, body = whole.partition(b"\r\n\r\n")
    line, _, fields = head.partition(b"\r\n")
    odd = [
        *(b"Content-Length: 1", b"Content-Length: -1", b"Content-Length: x", b"Content-Length: 1, 2", b": x", b"x"),
        *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Expect: 100-continue", b"Expect: x", b" folded"),
        *(b"a" * 70_000 + b": b", b"a: " + b"b" * 70_000, b"Upgrade: websocket\r\nConnection: Upgrade", b"a: \x00\x01"),
        *(b"\r\n".join(b"h%d: %d" % (k, k) for k in range(500)), b"Content-Length: " + b"9" * 30),
    ]
    lines = [
        *(
            b"",
            b"POST",
            b"POST /",
            b"POST / HTTP/9.9",
            b"post / HTTP/1.1",
            b"\x16\x03\x01\x02",
            b"GET http://x/ HTTP/1.1",
        ),
        *(b"PRI * HTTP/2.0", b"OPTIONS * HTTP/1.1", b"GET /" + b"a" * 70_000 + b" HTTP/1.1", b"GET /\xff\x00 HTTP/1.1"),
        *(b"CONNECT x:1 HTTP/1.1", b"BREW /layer/v2 HTTP/1.1", b"GET /layer/v2?" + b"a" * 60_000 + b" HTTP/1.0"),
    ]
    at = rng.randrange(len(whole))
    data = rng.choice(
        [
            b"\r\n".join([line, rng.choice(odd), fields]) + b"\r\n\r\n" + body,
            b"\r\n".join([rng.choice(lines), fields]) + b"\r\n\r\n" + body,
            whole[:at] + rng.randbytes(rng.randint(1, 4)) + whole[at + rng.randint(0, 4) :],
            rng.randbytes(rng.randint(1, 2000)),
        ]
    )

    def send(client: Client) -> None:
        client.close()
        try:
            client.open().sendall(data)
            client.open().shutdown(socket.SHUT_WR)  # so that no server waits for the rest
            status, _, text = client.answer()
        except OSError:
            return  # it hung up
        finally:
            client.close()
        if status >= 500 and status not in (501, 505):
            raise Finding(f"status {status} for {data[:500]!r}: {text[:500]!r}")

    return send


def of_file(rng: random.Random) -> Callable[[Client], None]:
    """A file of NumPy, or a picture, right or damaged: its result, or the status 400."""
    from fuzz import requests

    model = rng.choice(["fixed", "layer", "lookup", "every", "mixed"])
    feed = {
        name: requests.array(rng, model, kind, tuple(rng.choice([1, 1, 2, 9]) if d is None else d for d in shape))
        for name, (kind, shape) in requests.INPUTS[model].items()
    }
    kind = rng.choice(["npz", "npy", "png", "jpeg"])
    if len(feed) > 1:
        kind = "npz"
    file, is_right = io.BytesIO(), kind in ("npy", "npz") and len({len(array) for array in feed.values()}) == 1
    if kind == "npz":
        np.savez(file, **feed)
    elif kind == "npy":
        np.save(file, next(iter(feed.values())))
    else:
        import PIL.Image

        image = PIL.Image.fromarray(np.frombuffer(rng.randbytes(27), np.uint8).reshape(3, 3, 3))
        image.save(file, kind.upper())
    body = file.getvalue()
    if rng.random() < 0.6:
        is_right, at = False, rng.randrange(len(body))
        change = rng.randrange(4)
        if change == 0:
            body = body[:at]
        elif change == 1:
            body = body[:at] + rng.randbytes(rng.randint(1, 6)) + body[at + rng.randint(0, 6) :]
        elif change == 2:
            descr = rng.choice(["<f4", ">f4", "|O", "<f8", "|V2", "<i8", "<U9", "<M8[s]", "|V0", "f", "x" * 900])
            order = rng.choice(["False", "True", "None", "1"])
            sizes = ["2, 3", "-1, -6", "9" * 4000 + ",", "6,", "", "1," * 70, f"{2**62}, 4", "0, 16", "2.0, 3"]
            text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({rng.choice(sizes)})}}"
            encoded = text.encode().ljust(rng.choice([118, 5000]))[:65000]
            data = rng.randbytes(rng.choice([0, 24, 64]))
            body = (
                b"\x93NUMPY"
                + bytes(rng.choice([[1, 0], [2, 0], [3, 0], [9, 9]]))
                + len(encoded).to_bytes(2, "little")
                + encoded
                + data
            )
            kind = "npy"
        else:
            with zipfile.ZipFile(file := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
                for name in rng.choice([["x.npy"], ["x"], ["x.npy", "y.npy"], ["../x.npy"], []]):
                    archive.writestr(name, bytes(rng.choice([0, 99, 1 << 22])))
            body, kind = file.getvalue(), "npz"
    media = {"npy": "application/x-npy", "npz": "application/x-npz"}.get(kind, f"image/{kind}")
    accept = rng.choice(["*/*", "application/x-npz", "application/x-npy", "image/png"])
    options = rng.choice(
        ["", "", "?output=y", "?output=z", "?scale=0", "?mean=1,2", "?width=99999999", "?fit=crop", "?x"]
    )
    path = f"{requests.prefix(model)}/v2/models/{model}/infer{options}"
    fields = f"Host: x\r\nContent-Type: {media}\r\nAccept: {accept}\r\nContent-Length: {len(body)}\r\n"
    head = f"POST {path} HTTP/1.1\r\n{fields}"
    raw = head.encode() + b"\r\n" + body

    def send(client: Client) -> None:
        status, headers, text = client.ask(raw)
        if status not in (
            (200,) if is_right and accept in ("*/*", "application/x-npz") and not options else (200, 400)
        ):
            raise Finding(f"status {status}: {text[:500]!r}\n{head} {body[:300]!r}")
        if status == 400 and not error_of(text):
            raise Finding(f"the body of status 400 is {text[:500]!r}\n{head}")
        if is_right and status == 200 and headers["content-type"] == "application/x-npz":
            with np.load(io.BytesIO(text)) as arrays:
                found = dict(arrays)
            wanted = {name: requests.results(model, feed)[name] for name in found}
            raw_bits = {n: a.view(f"V{a.dtype.itemsize}") if a.dtype.kind == "V" else a for n, a in wanted.items()}
            if not all(
                np.array_equal(found[n], a) or agree({n: found[n]}, {n: wanted[n]}) for n, a in raw_bits.items()
            ):
                raise Finding(f"the result is {found}, and should be {wanted}\n{head}")

    return send


KINDS = {ordinary: 160, slow: 10, given_up: 20, twice: 10, broken: 20, large: 1}
"""What is sent, and how often."""
SERVER_KINDS = {**KINDS, of_file: 30}
"""The same for a server on one machine."""


def case(rng: random.Random, number: int) -> tuple[str, int]:
    """Requests on one connection, or on several at a time; afterwards a right one must be answered, by the same process."""
    from fuzz import requests

    kinds = KINDS if requests.HAS_PREFIX else SERVER_KINDS
    sent = [kind(rng) for kind in rng.choices([*kinds], [*kinds.values()], k=REQUESTS)]
    clients = rng.choice([1, CLIENTS])

    def run(first: int) -> None:
        with Client() as client:
            for send in sent[first::clients]:
                send(client)

    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(run, first) for first in range(clients)]:
            done.result()
    check_that_it_lives(rng)
    return "one by one" if clients == 1 else "at once", REQUESTS


def check_that_it_lives(rng: random.Random) -> None:
    """Require a right answer, the processes of the beginning, and now and then their memory."""
    from fuzz import requests

    draft, _ = requests.right(rng)
    with Client() as client:
        check(draft, client.ask(draft.raw()))
    for name, process in SERVED.replicas.items():
        if not Path(f"/proc/{process}/smaps_rollup").exists():
            raise Finding(f"the replica of {name!r} has ended")
    SERVED.cases += 1
    if SERVED.cases % MEASURED_CASES == 0:
        SERVED.sizes.append({name: private_bytes(process) for name, process in SERVED.replicas.items()})
        first, latest = SERVED.sizes[0], SERVED.sizes[1:][-MEASUREMENTS:]
        grown = {
            name: min(sizes[name] for sizes in latest) - first[name] for name in first if len(latest) == MEASUREMENTS
        }
        if any(growth > MAX_GROWTH + KEPT_BYTES * (name == LARGE) for name, growth in grown.items()):
            raise Finding(f"after {SERVED.cases * REQUESTS} requests, replicas have grown by {grown} bytes")


CAMPAIGNS = {
    "deployment": Campaign(
        "deployment",
        "random and hostile HTTP requests to deployed models: each gets the result of the session, or its error",
        case,
        count=4000,
        short=8,
        batch=800,
        memory=None,  # of Ray's many threads
        seconds=120,
        patience=300,  # it waits for Ray
        unit="requests",
        outcomes=frozenset({"one by one", "at once"}),
        setup=setup,
        needs=("ray", "fastapi", "ml_dtypes"),
    ),
    "server": Campaign(
        "server",
        "the same for a server of `opweave deploy` on one machine",
        case,
        count=400,
        short=8,
        batch=200,
        memory=None,
        seconds=120,
        patience=300,
        unit="requests",
        outcomes=frozenset({"one by one", "at once"}),
        setup=setup_server,
        needs=("uvicorn", "starlette", "prometheus_client", "httptools", "ml_dtypes"),
    ),
}
