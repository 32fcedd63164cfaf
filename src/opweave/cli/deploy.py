"""The command `opweave deploy`: serve ONNX models over HTTP."""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ..support.errors import OperationError, require
from ..support.names import count_of, short_repr
from ..support.processors import processors
from ..support.sockets import listen_on
from .common import Operations, PrecisionName, Verbose, app, bytes_of, console, errors, options_set
from .supervision import Stop, continue_in_child

if TYPE_CHECKING:
    from ..scale.protocol import Interface

APPLICATION = "opweave"
"""The name of the application in Ray Serve."""

LOCAL_RAY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
"""With this setting, read when Ray is imported, Ray listens on 127.0.0.1 alone, as it does on macOS and Windows. Otherwise it
listens on all interfaces, and runs code for everyone who has the token (`get_node_ip_address` in `ray._private.services`).
Serve's gRPC port of each replica stays on all interfaces (`Replica._on_initialized` in `ray.serve._private.replica`)."""

EXAMPLE_SIZES = (1, 8, 64, 224)
"""Sizes of dynamic dimensions to try for the example: most models take 1, image models need more."""


@app.command()
def deploy(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="An .onnx file, or NAME=FILE, or NAME:VERSION=FILE; or a folder with NAME.onnx and NAME/VERSION/model.onnx.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The model's name in requests, if there is one. Default: that of the file.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 for all addresses of the machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    batch: Annotated[
        int, typer.Option(min=1, help="Maximum rows of a batch of several requests; 1 disables batching.")
    ] = 8,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds that a request waits for others to form a batch. Default: 0, which joins those that come while "
            "others run; with --ray 0.005.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of an operation. Default: processors, divided by replicas.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to run; `opweave devices` lists them.")] = "cpu",
    precision: PrecisionName = "float32",
    max_body: Annotated[
        str, typer.Option(help="The most bytes of a request, also uncompressed, such as 64M or 1G.")
    ] = "256M",
    max_json: Annotated[
        str, typer.Option(help="The most memory that the JSON of a request may take when it is read.")
    ] = "256M",
    max_requests: Annotated[
        int, typer.Option(min=1, help="The most requests of a model at a time; further ones get the status 503.")
    ] = 1000,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", help="The origin of web pages that may send requests. May be repeated."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", help="A further name of this machine in requests, such as a proxy's. May be repeated."
        ),
    ] = None,
    grace: Annotated[float, typer.Option(min=1, help="Seconds that requests may take after a signal to stop.")] = 30.0,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run on Ray Serve, in several processes; needs the extra scale.")
    ] = False,
    replicas: Annotated[int, typer.Option(min=1, help="Number of processes that run the model, with --ray.")] = 1,
    operations: Operations = None,
    verbose: Verbose = False,
) -> None:
    """Serve ONNX models over HTTP, for clients of the Open Inference Protocol v2 (KServe, Triton), and for browsers.

    The server runs on this machine until Ctrl-C, or SIGTERM, and then answers what it has accepted. With --ray, it runs on Ray
    Serve. For a cluster, pass `opweave.scale.deployment` to `ray.serve.run`.
    """
    files = files_of(models, name)
    limits = {"max_body": bytes_of(max_body, "--max-body"), "max_json": bytes_of(max_json, "--max-json")}
    shared: dict[str, Any] = {
        "batch": batch,
        "device": device,
        "precision": precision,
        "operations": operations,
        **limits,
    }
    if ray:
        require(len(files) == 1 and len(next(iter(files.values()))) == 1, "--ray serves one model")
        unused = options_set(context, "origin", "allow_host", "max_requests", "grace")
        require(not unused, f"--ray takes no {', '.join(unused)}")
        ((served_name, versions),) = files.items()
        wait = 0.005 if wait is None else wait
        _deploy_on_ray(next(iter(versions.values())), served_name, host, port, threads, replicas, wait=wait, **shared)
        return
    require(replicas == 1, "--replicas needs --ray: without it, one process runs all models")
    from ..deploy import ModelServer

    server = ModelServer(
        files,
        host=host,
        port=port,
        wait=wait or 0.0,
        threads=threads,
        max_requests=max_requests,
        origins=origin or [],
        hosts=allow_host or [],
        grace=grace,
        **shared,
    )
    server.run(lambda: _print_server(server.url, files, device))
    errors.print("stopped")


def files_of(texts: Sequence[str], name: str | None = None) -> dict[str, dict[str, Path]]:
    """The files of models by name and version, from arguments FILE, NAME=FILE, NAME:VERSION=FILE and folders.

    >>> files_of(["a b.onnx", "other=x.onnx", "other:2=y.onnx"])
    {'a-b': {'1': PosixPath('a b.onnx')}, 'other': {'1': PosixPath('x.onnx'), '2': PosixPath('y.onnx')}}
    """
    from ..scale.protocol import VERSION, default_name

    entries: list[tuple[str, str, Path]] = []
    for text in texts:
        title, separator, file = text.partition("=")
        is_named = bool(separator) and not Path(text).exists()
        if is_named:
            has_all = all(title.split(":", 1)) and bool(file)
            require(has_all, f"a name, a version and a file have characters: NAME:VERSION=FILE, got {short_repr(text)}")
        else:
            require(bool(text), "a file has characters: FILE or NAME=FILE, got ''")  # Path("") is this folder
            title, file = "", text
        path = Path(file)
        if path.is_dir() and not title:
            entries += _files_in(path)
            continue
        title, _, version = title.partition(":")
        entries.append((title or default_name(path), version or VERSION, path))
    if name is not None:
        require(len(entries) == 1, f"--name is for one model; NAME=FILE names each of several, got {len(entries)}")
        entries = [(name, *entries[0][1:])]
    files: dict[str, dict[str, Path]] = {}
    for title, version, path in entries:
        versions = files.setdefault(title, {})
        require(version not in versions, f"the model {title!r} has version {version!r} twice: NAME:VERSION=FILE")
        versions[version] = path
    return files


def _files_in(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield names, versions and files of a folder: NAME.onnx, and NAME/VERSION/model.onnx as in Triton's repositories."""
    from ..scale.protocol import VERSION, default_name

    paths = sorted(folder.glob("*.onnx"))
    nested = sorted(folder.glob("*/*/model.onnx"), key=lambda path: (path.parts[-3], _order_of(path.parts[-2])))
    require(bool(paths or nested), f"{folder} has no NAME.onnx and no NAME/VERSION/model.onnx")
    yield from ((default_name(path), VERSION, path) for path in paths)
    yield from ((path.parts[-3], path.parts[-2], path) for path in nested)


def _order_of(version: str) -> tuple[int, str]:
    """The place of a version among others: numbers by their size, behind all other versions."""
    return int(version) if version.isdecimal() else -1, version


def _print_server(url: str, files: Mapping[str, Mapping[str, Path]], device: str) -> None:
    """Print the addresses of models, and an example of the first one."""
    from ..deploy.application import latest
    from ..scale.protocol import Interface

    for title, versions in files.items():
        sources = ", ".join(
            path.name if len(versions) == 1 else f"{path.name} (version {version})"
            for version, path in versions.items()
        )
        verb = "is" if len(versions) == 1 else "are"
        console.print(f"{sources} {verb} served on {device}:", f"{url}/v2/models/{title}", sep="\n", soft_wrap=True)
    title, versions = next(iter(files.items()))
    _print_example(Interface.load(versions[latest(versions)], title), f"{url}/v2/models/{title}/infer")
    console.print(f"The page {url}/ tries models, {url}/metrics is for Prometheus", soft_wrap=True)
    console.print("Ctrl-C stops it", soft_wrap=True)
    console.file.flush()


def _deploy_on_ray(
    model: Path,
    name: str,
    host: str,
    port: int,
    threads: int | None,
    replicas: int,
    *,
    device: str,
    precision: Any,
    **options: Any,
) -> None:
    """Serve a model on Ray Serve until a signal comes."""
    from ..context.context import ml
    from ..scale.predictor import gpus, is_gpu
    from ..scale.protocol import Interface

    interface = Interface.load(model, name)
    _check_port(host, port)
    ml.create_context(device=device, precision=precision)  # fails here rather than in a replica
    threads = threads or max(processors() // replicas, 1)
    gpu_count = max(len(gpus(device)), 1) if is_gpu(device) else 0
    os.environ.setdefault(*LOCAL_RAY)
    from ..scale import deployment  # loads Ray

    served = deployment(
        model,
        name=interface.name,
        threads=threads,
        device=device,
        precision=precision,
        gpus=gpu_share(gpu_count, replicas),
        replicas=replicas,
        **options,
    )
    continue_in_child()
    try:
        with _run_on_ray(served, host, port, threads * replicas, gpu_count) as (logs, stop):
            url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}/v2/models/{interface.name}"
            count = f"{count_of(replicas, 'replica')} of {count_of(threads, 'thread')}"
            console.print(f"{model.name} is served on {device} by {count}:", url, sep="\n", soft_wrap=True)
            _print_example(interface, f"{url}/infer")
            if threads * replicas > processors():
                text = f"{threads * replicas} threads on {count_of(processors(), 'processor')} wait for each other"
                errors.print(f"warning: {text}: --threads and --replicas set their number", soft_wrap=True)
            console.print(f"Ctrl-C stops it. Its logs are in {logs}", soft_wrap=True)
            console.file.flush()
            while not stop.is_asked:  # an exception that the signal raises may be lost in a callback
                sleep(1)
    except KeyboardInterrupt:
        pass


def gpu_share(count: int, replicas: int) -> float:
    """The share of a GPU for each replica, so that all replicas fit; 1 without a GPU.

    >>> gpu_share(4, 4), gpu_share(4, 6), gpu_share(1, 3)
    (1, 0.5, 0.3333)
    """
    sharing = math.ceil(replicas / count) if count else 1
    return 1 if sharing == 1 else 10_000 // sharing / 10_000  # Ray counts ten-thousandths


def _check_port(host: str, port: int) -> None:
    """Require that nothing listens on the port."""
    listen_on(host, port, 1, "--host and --port take others").close()


@contextmanager
def _run_on_ray(served: Any, host: str, port: int, cpus: int, gpus: int) -> Iterator[tuple[str, Stop]]:
    """Run an application on a new Ray, which ends with the block; yield the folder of the logs, and whether a signal came.

    Raises `KeyboardInterrupt` after the end of Ray if a signal of `STOPPING` came.
    """
    import ray
    from ray import serve

    stop, is_served = Stop(), False
    for noisy in ("ray", "ray.serve"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # by default, Ray sends usage statistics
    try:
        with errors.status(Text("starting Ray")):
            # Signals are handled afterwards: `init` cannot be interrupted.
            started = ray.init(
                "local",
                num_cpus=max(cpus, processors()),
                num_gpus=gpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            stop.install()  # Ray has replaced the handler of SIGTERM
            stop.check()
            serve.start(http_options={"host": host, "port": port}, logging_config={"log_level": "ERROR"})
            is_served = True
            stop.check()
            try:
                serve.run(served, name=APPLICATION)
            except RuntimeError as error:
                stop.check()
                raise OperationError(f"the model cannot be served: {_why_not_started() or error}") from error
            stop.check()
        yield os.path.join(started["session_dir"], "logs", "serve"), stop
        stop.check()
    except KeyboardInterrupt:
        errors.print("stopping")
        raise
    finally:
        stop.is_asked = True  # nothing may interrupt the end of Ray's processes
        if ray.is_initialized():
            if is_served:
                serve.delete(APPLICATION)  # lets requests finish
            ray.shutdown()
        stop.restore()


def _why_not_started() -> str:
    """The error with which a replica of the application ended; empty if Ray does not report it."""
    from ray import serve

    application = serve.status().applications.get(APPLICATION)
    messages = (
        [deployment.message for deployment in application.deployments.values()] if application is not None else []
    )
    # The message of the last exception: a separate line after the traceback, maybe coloured.
    plain = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(messages))
    errors = re.findall(r"^(?:\w+\.)*(\w+): (.+)$", plain, re.MULTILINE)
    if not errors:
        return plain.strip()
    kind, text = errors[-1]
    return text if f"opweave.support.errors.{kind}: " in plain else f"{kind}: {text}"


def _print_example(interface: Interface, url: str) -> None:
    """Print a shell command that sends a request, after testing it."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from ..onnx.model.arguments import shape_text
    from ..scale.examples import example, example_shapes
    from ..scale.protocol import HEADER_LENGTH

    problem = ""
    for size in EXAMPLE_SIZES:
        body, header_length = example(interface, size)
        headers = {HEADER_LENGTH: str(header_length)} if header_length < len(body) else {}
        try:
            with urlopen(Request(url, body, headers)):
                break
        except HTTPError as error:
            problem = error.read().decode(errors="replace")
    else:
        console.print(f"No example of zeros fits this model: {problem}", soft_wrap=True)
        return
    shapes = example_shapes(interface, size)
    dynamic = [a for a in interface.inputs if a.static_shape() is None]
    if dynamic:
        listed = ", ".join(f"{a.name} {shape_text(a.dims or ())} as {shapes[a.name]}" for a in dynamic)
        console.print(f"The example has zeros, and sizes for dynamic dimensions: {listed}", soft_wrap=True)
    text = shlex.quote(body[:header_length].decode())
    if headers:
        zeros = f"head -c {len(body) - header_length} /dev/zero"
        sent = f"(printf %s {text}; {zeros}) | curl -sS --data-binary @- -H '{HEADER_LENGTH}: {header_length}'"
    else:
        sent = f"curl -sS -d {text}"
    console.print(f"{sent} {url}", soft_wrap=True)
