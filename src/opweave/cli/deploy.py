"""The command `opweave deploy`: serve an ONNX model over HTTP."""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ..support.errors import OperationError
from ..support.names import count_of
from ..support.processors import processors
from .common import Operations, PrecisionName, Verbose, app, bytes_of, console, errors
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
    model: Annotated[Path, typer.Argument(help="An .onnx file.")],
    name: Annotated[str | None, typer.Option(help="The model's name in requests. Default: that of the file.")] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 for all addresses of the machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    batch: Annotated[
        int, typer.Option(min=1, help="Maximum rows of a batch of several requests; 1 disables batching.")
    ] = 8,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds that a request waits for others to form a batch.")
    ] = 0.005,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a replica. Default: processors divided by replicas.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to run; `opweave devices` lists them.")] = "cpu",
    precision: PrecisionName = "float32",
    replicas: Annotated[int, typer.Option(min=1, help="Number of processes that run the model.")] = 1,
    max_body: Annotated[
        str, typer.Option(help="The most bytes of a request, also uncompressed, such as 64M or 1G.")
    ] = "256M",
    max_json: Annotated[
        str, typer.Option(help="The most memory that the JSON of a request may take when it is read.")
    ] = "256M",
    operations: Operations = None,
    verbose: Verbose = False,
) -> None:
    """Serve an ONNX model over HTTP, for clients of the Open Inference Protocol v2 (KServe, Triton).

    Ray Serve runs on this machine until Ctrl-C, or SIGTERM. For a cluster, pass `opweave.scale.deployment` to `ray.serve.run`.
    """
    from ..context.context import ml
    from ..scale.predictor import gpus, is_gpu
    from ..scale.protocol import Interface

    limits = {"max_body": bytes_of(max_body), "max_json": bytes_of(max_json)}
    interface = Interface.load(model, name)
    _check_port(host, port)
    ml.create_context(device=device, precision=precision)  # type: ignore[arg-type]  # fails here rather than in a replica
    threads = threads or max(processors() // replicas, 1)
    gpu_count = max(len(gpus()), 1) if is_gpu(device) else 0
    os.environ.setdefault(*LOCAL_RAY)
    from ..scale import deployment  # loads Ray

    served = deployment(
        model,
        name=interface.name,
        batch=batch,
        wait=wait,
        threads=threads,
        device=device,
        precision=precision,  # type: ignore[arg-type]
        gpus=gpu_share(gpu_count, replicas),
        operations=operations,
        replicas=replicas,
        **limits,
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
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise OperationError(
            f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}; --port takes another"
        ) from None


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
            started = ray.init(  # which cannot be interrupted
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
