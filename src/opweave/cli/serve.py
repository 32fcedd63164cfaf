"""The command `opweave serve`: `navigator.ml` for browsers and Node.js on this machine."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote
from threading import Event
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from ..support.names import count_of
from .common import BadParameter, PlainConsole, Verbose, app, bytes_of, console, errors

if TYPE_CHECKING:
    from ..serve import Server

PORT = 8801
"""The default port of `opweave.serve.Server`, repeated here so that `--help` does not import it."""


@app.command(context_settings={"allow_extra_args": True})
def serve(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 for any free port.")] = PORT,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin", help="The origin of pages that may connect, such as http://localhost:5173. May be repeated."
        ),
    ] = None,
    any_origin: Annotated[
        bool, typer.Option("--any-origin", help="Let pages of any origin connect if they have the token.")
    ] = False,
    token: Annotated[
        str | None, typer.Option(envvar="OPWEAVE_TOKEN", help="The token that clients must send. Default: a new one.")
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let pages of the named origins connect without a token.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="Where all graphs run; default: what suits a page's options.")
    ] = None,
    ipv6: Annotated[bool, typer.Option("--ipv6", help="Listen on ::1 instead of 127.0.0.1.")] = False,
    socket: Annotated[Path | None, typer.Option(help="Listen on a Unix socket instead of a port, for Node.js.")] = None,
    max_memory: Annotated[
        str, typer.Option(help="The most memory of a page's tensors, constants and intermediates, such as 2G.")
    ] = "2G",
    max_contexts: Annotated[int, typer.Option(min=1, help="The most contexts of a page at the same time.")] = 256,
    max_graphs: Annotated[
        str, typer.Option(help="With --drafts: the most bytes of the graphs that an origin keeps by key, such as 1G.")
    ] = "1G",
    stats: Annotated[
        bool,
        typer.Option(
            "--stats", help="Print to standard error what each context has done when it ends, and all at the end."
        ),
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(help="Write the package for Node.js and the extension for browsers into this folder."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write each graph that is built into this folder, as ONNX and as text; names go to standard error.",
        ),
    ] = None,
    drafts: Annotated[
        bool,
        typer.Option(
            "--drafts",
            help="Also offer what only drafts of the specification contain: sizes with names, graphs by key.",
        ),
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Let web code that uses WebNN (navigator.ml) run on Opweave, in pages and in Node.js on this machine.

    Other machines cannot connect. Pages need a token, and must be of an origin that --origin names. Runs until Ctrl-C.
    """
    from ..serve import ConnectionLimits, Server
    from ..serve.client_files import write_clients

    if context.args:
        purpose = "serve is for web pages (navigator.ml)"
        raise BadParameter(f"{purpose}; to serve a model over HTTP: opweave deploy {' '.join(context.args)}")
    if no_token and token is not None:
        source = context.get_parameter_source("token")  # an enumeration of Click, or of Typer's copy of Click
        name = "OPWEAVE_TOKEN" if source is not None and source.name == "ENVIRONMENT" else "--token"
        raise BadParameter(f"--no-token and {name} exclude each other")
    host: Literal["127.0.0.1", "::1"] = "::1" if ipv6 else "127.0.0.1"
    server = Server(
        port,
        origins=origin or (),
        any_origin=any_origin,
        token=None if no_token else True if token is None else token,
        device=device,
        host=host,
        path=socket,
        limits=ConnectionLimits(
            memory=bytes_of(max_memory, "--max-memory"),
            contexts=max_contexts,
            graph_bytes=bytes_of(max_graphs, "--max-graphs"),
        ),
        record=record,
        drafts=drafts,
    )
    with _log_to_errors(stats, record is not None), _stop_event() as stopped:
        with closing(server):
            options = {"url": server.url} if server.token is None else {"url": server.url, "token": server.token}
            # Before the server starts: a program that waits for /health needs them.
            folders = [] if write is None else write_clients(write, **options)
            server.start()
            console.print(f"navigator.ml is served at {server.url}", soft_wrap=True)
            _print_uses(server, folders)
            console.print("Ctrl-C stops it.")
            console.file.flush()
            stopped.wait()
        if stats:
            total = server.stats()
            clients = f"{count_of(total.connections, 'connection')}, {count_of(total.contexts, 'context')}"
            errors.print(f"all: {clients}, {total}", soft_wrap=True)


def _print_uses(server: Server, folders: list[Path]) -> None:
    if server.path is None:
        query = "" if server.token is None else f"?token={server.token}"
        console.print("\nIn a page, before its other scripts:")
        console.print(f'  <script src="{server.url}/webnn.js{query}"></script>', soft_wrap=True)
        if not server.origins and not server.allows_any_origin:
            note = "No page may connect yet: --origin http://localhost:5173 allows those of this origin."
            console.print(Text(note, "yellow"), soft_wrap=True)
    secret = "" if server.token is None else f" OPWEAVE_TOKEN={server.token}"
    package = folders[0] if folders else Path("DIR", "opweave-webnn")
    module = package / "node.mjs"
    # Node.js takes "clients/node.mjs" for a package of that name.
    imported = module.as_posix() if module.is_absolute() else f"./{module.as_posix()}"
    command = f"OPWEAVE_URL={quote(server.url)}{secret} node --import {quote(imported)} program.mjs"
    console.print(f"\nIn Node.js:\n  {command}", soft_wrap=True)
    if folders:
        console.print(f"\nThe extension for Chromium (load unpacked) is in {folders[1]}", soft_wrap=True)
    else:
        console.print("\n--write DIR writes the package for Node.js and an extension for Chromium.")


class _Printed(logging.Handler):
    def __init__(self, target: PlainConsole) -> None:
        super().__init__()
        self._target = target

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line, and the traceback of a fault."""
        self._target.print(self.format(record), soft_wrap=True)


@contextmanager
def _log_to_errors(stats: bool, record: bool) -> Iterator[None]:
    """Print refusals of the server on standard error; with `stats` also the work of contexts, with `record` each graph."""
    logger, handler = logging.getLogger("opweave.serve"), _Printed(errors)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if stats else logging.WARNING)
    recording = logging.getLogger("opweave.serve.recording")
    recording.setLevel(logging.INFO if record else logging.NOTSET)
    try:
        yield
    finally:
        logger.setLevel(before)
        recording.setLevel(logging.NOTSET)
        logger.removeHandler(handler)


@contextmanager
def _stop_event() -> Iterator[Event]:
    """An event that SIGINT and SIGTERM set."""
    stopped = Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def state_of_port(port: int = PORT) -> str:
    """The state of a port of this machine: answered by `opweave serve`, by another program, or not at all."""
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=0.5) as response:
            fields = json.load(response)
        return f"port {port} answers: opweave {fields['opweave']}, protocol {fields['protocol']}"
    except (URLError, ConnectionError, TimeoutError) as error:
        if isinstance(getattr(error, "reason", error), ConnectionRefusedError):
            return f"nothing listens on port {port}: `opweave serve`"
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return f"something else listens on port {port}: `opweave serve --port 0`"
