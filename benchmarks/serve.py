"""`navigator.ml` in Node.js and in Chromium: round trips, throughput, constants; writes the table of docs/web.md.

    python -m benchmarks serve                            # takes a minute; Node.js, and Chromium where it is installed
    python -m benchmarks serve --browser /usr/bin/chromium

Each client runs benchmarks/serve.mjs, three times in turn; a figure is the median. Chromium runs without a debugger, which
would slow it down. The floor is what Chromium takes for the same bytes with a server that does nothing (benchmarks/floor.py);
for Node.js, the text below the table tells what a bare socket takes to receive them (benchmarks/floor_node.mjs).
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Annotated, Any

import numpy as np
import typer

import opweave as ow
from opweave import memory
from opweave.serve import Server
from opweave.serve.client_files import write_clients

from .floor import floor_server
from .measure import ROOT, Parts, per_call, tell
from .page import DOCS, Table, machine, replace_part, yes

PAGE = DOCS / "web.md"
TURNS = 3
PAGE_SECONDS = 120
"""A page that takes longer has failed."""
END_SECONDS = 10
"""A browser that takes longer to end is killed: on a busy machine, Chromium may never end by itself."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = """
--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync
"""

FLOOR = "floor of Chromium"
GRAPHS, LAYERS = 100, 20
"""What is alive while garbage is collected."""

LARGE_BYTES = 64 * 2**20

Results = dict[str, float]

ROWS: list[tuple[str, Callable[[Results], float], str, float, float]] = [
    ("empty round trip, ms", lambda r: r["roundTrip"], "at most", 0.15, 0.2),
    ("an operation of a builder (synchronous), ms", lambda r: r["operation"], "at most", 1.5, 1.5),
    ("a run beyond its dispatch, 30 KB in, 4 KB out, ms", lambda r: r["run30"] - r["dispatch30"], "at most", 0.4, 0.4),
    ("a run beyond its dispatch, 602 KB in, 4 KB out, ms", lambda r: r["run602"] - r["dispatch602"], "at most", 1, 1),
    ("writing 64 MiB, GB/s", lambda r: LARGE_BYTES / r["write"] / 1e6, "at least", 1.2, 2),
    ("reading 64 MiB, GB/s", lambda r: LARGE_BYTES / r["read"] / 1e6, "at least", 1.2, 2),
    (
        "reading 64 MiB into an array of the program, GB/s",
        lambda r: LARGE_BYTES / r["readInto"] / 1e6,
        "at least",
        1.2,
        2,
    ),
    ("100 MB of constants in 100 calls, s", lambda r: r["constants"] / 1e3, "at most", 0.2, 0.2),
    ("copies by the server", lambda r: r["copies"], "at most", 0, 0),
]
"""What is shown, how it follows from the results, and its budgets in Chromium and in Node.js."""


def main(
    browser: Annotated[
        str | None, typer.Option(help="The program of a browser. Default: Chromium, if installed.")
    ] = None,
) -> None:
    """Measure `navigator.ml` in Node.js and Chromium, and write the table of docs/web.md."""
    browser = browser or next(filter(None, map(shutil.which, BROWSERS)), None)
    clients: dict[str, Callable[[Server], Results]] = {"Node.js": in_node}
    if browser is None:
        tell("there is no Chromium; --browser names another")
    else:
        clients["Chromium"] = lambda server: in_browser(browser, server.script, "serve.mjs")
    runs: dict[str, Callable[[], Results]] = {name: partial(measured, run) for name, run in clients.items()}
    if browser is not None:
        runs[FLOOR] = partial(floor, browser)
    parts = Parts()
    found: dict[str, list[Results]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            result = parts.run(name, run)
            if result is not None:
                found[name].append(result)
    parts.end()
    medians = {name: {key: median(r[key] for r in results) for key in results[0]} for name, results in found.items()}
    text = markdown(medians)
    print(text)
    if len(medians) == 3:
        replace_part(PAGE, text, "figures")


def markdown(medians: dict[str, Results]) -> str:
    """The table, how long the server stands still for its garbage, and what it was measured on."""
    clients = {name: results for name, results in medians.items() if name != FLOOR}
    header = ["what", *(column for name in clients for column in (name, "budget", "holds")), *medians.keys() & {FLOOR}]
    rows = []
    for what, value, kind, chromium, node in ROWS:
        cells = [what]
        for name, results in clients.items():
            budget = chromium if name == "Chromium" else node
            got = value(results)
            cells += [f"{got:.3g}", f"{kind} {budget:g}", yes(got <= budget if kind == "at most" else got >= budget)]
        if FLOOR in medians:
            cells.append(f"{value(medians[FLOOR]):.3g}")
        rows.append(cells)
    pause = f"A garbage collection of the server with {GRAPHS} graphs of {LAYERS} layers took {collection_ms():.0f} ms."
    new, used = (LARGE_BYTES / ms / 1e6 for ms in node_floor().values())
    socket = (
        f"From a bare socket, Node.js reads 64 MiB into new memory at {new:.3g} GB/s, into an array at {used:.3g} GB/s."
    )
    return f"{Table(header, rows)}\n\n{socket} {pause} Made by `python -m benchmarks serve` on: {machine()}."


def measured(run: Callable[[Server], Results]) -> Results:
    """The results of one client, with what Python alone takes for the same dispatches, and the copies."""
    with Server(port=0, any_origin=True, device="cpu") as server:
        memory.copies.reset()
        results = run(server)
        results["copies"] = memory.copies.count
    return {**results, "dispatch30": dispatch_ms(7500), "dispatch602": dispatch_ms(150528)}


def floor(browser: str) -> Results:
    """What the browser takes for the same bytes with a server that does nothing."""
    with floor_server() as port:
        results = in_browser(browser, f"globalThis.floorPort = {port};", "floor.mjs")
    return {**results, "dispatch30": 0, "dispatch602": 0, "copies": 0}


def collection_ms() -> float:
    """Milliseconds of a garbage collection with many graphs alive, while which all threads of the server wait."""
    context = ow.ml.create_context(device="cpu", power_preference="low-power")
    graphs = []
    for _ in range(GRAPHS):
        builder = ow.MLGraphBuilder(context)
        x = builder.input("x", "float32", [1, 16])
        for _ in range(LAYERS):
            x = builder.relu(builder.matmul(x, builder.constant(np.ones((16, 16), np.float32))))
        graphs.append(builder.build({"y": x}))
    return 1e3 * median(per_call(gc.collect, 1) for _ in range(9))


def dispatch_ms(length: int) -> float:
    """Milliseconds of the dispatch that benchmarks/serve.mjs sends, in Python."""
    context = ow.ml.create_context(device="cpu", power_preference="low-power")
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.slice(builder.input("x", "float32", [length]), [0], [1000])})
    x, y = (context.tensor_from(np.zeros(size, np.float32)) for size in (length, 1000))
    run = partial(context.dispatch, graph, {"x": x}, {"y": y})
    per_call(run, 100)
    return 1e3 * median(per_call(run, 100) for _ in range(9))


def in_node(server: Server) -> Results:
    """The results in Node.js, over a connection without masks."""
    with TemporaryDirectory() as folder:
        package = (write_clients(Path(folder))[0] / "node.mjs").as_uri()
        before = f"await import({package!r});"
        return _node("serve.mjs", before=before, OPWEAVE_URL=server.url, OPWEAVE_TOKEN=server.token or "")


def node_floor() -> Results:
    """What Node.js takes to receive the large tensor from a bare socket: into new memory, and into memory that was used."""
    with floor_server() as port:
        return _node("floor_node.mjs", str(port))


def _node(name: str, arguments: str = "", *, before: str = "", **environment: str) -> Results:
    """The results of a module beside this one in Node.js, after some code."""
    module = (ROOT / "benchmarks" / name).as_uri()
    done = subprocess.run(
        [
            "node",
            "--input-type=module",
            "-e",
            f"{before} console.log(JSON.stringify(await (await import({module!r})).measure({arguments})))",
        ],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PAGE_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    results: Results = json.loads(done.stdout)
    return results


def in_browser(program: str, script: str, module: str) -> Results:
    """The results of a module beside this one in a page of a browser, after a script."""
    with site(script, module) as (url, posted), TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        with subprocess.Popen(
            [program, *FLAGS.split(), f"--user-data-dir={profile}", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                answer = posted.get(timeout=PAGE_SECONDS)
            except Empty:
                raise RuntimeError("the page did not answer") from None
            finally:
                _end(process)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        results: Results = answer
        return results


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def site(script: str, module: str) -> Iterator[tuple[str, Queue[Any]]]:
    """A site with a page that measures, and posts what it found; the address, and what was posted."""
    posted: Queue[Any] = Queue()
    page = f"""<!doctype html><meta charset="utf-8"><script>{script}</script><script type="module">
const post = (found) => fetch("/", {{ method: "POST", body: JSON.stringify(found) }});
const failed = (error) => post({{ error: String(error?.stack ?? error) }});
import("/{module}").then((module) => module.measure()).then(post, failed);
</script>"""
    modules = {
        f"/{name}": (ROOT / "benchmarks" / name).read_text(encoding="utf-8") for name in ("serve.mjs", "floor.mjs")
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind = "text/javascript" if self.path in modules else "text/html"
            body = modules.get(self.path, page)
            self.send_response(200)
            self.send_header("Content-Type", kind)
            # With these headers, clocks in the page have microseconds.
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            self.end_headers()
            self.wfile.write(body.encode())

        def do_POST(self) -> None:
            posted.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", posted
    finally:
        server.shutdown()
        server.server_close()
