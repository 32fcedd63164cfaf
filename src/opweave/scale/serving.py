"""An ONNX model as a Ray Serve application that implements the Open Inference Protocol v2 over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from typing import Any

from ray import serve
from ray.serve import Application
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .. import __version__
from ..backends import PRECISIONS, Precision
from ..onnx.model.protobuf import ModelProto
from ..onnx.session.parts import parts_of
from ..support import formatting
from ..support.errors import MLError, require
from ..support.names import short_repr
from . import protocol, statistics
from .batches import BatchAnswer, BatchedModel
from .predictor import is_gpu, open_session
from .protocol import VERSION, InferenceRequest, Interface, ModelFile

INLINE_BYTES = 1 << 16
"""Uncompressed bodies up to this size are parsed in the event loop: that takes a millisecond at most."""

MAX_ERROR = 4000

MIN_COMPRESSED_BYTES = 1024

MAX_ONGOING = 100
"""Maximum number of requests in a replica, unless two batches have more; further requests wait in Ray's proxy."""


def deployment(
    model: ModelFile,
    *,
    name: str | None = None,
    batch: int = 8,
    wait: float = 0.005,
    threads: int = 1,
    device: str = "cpu",
    precision: Precision = "float32",
    gpus: float = 1,
    operations: str | Callable[[], object] | None = None,
    replicas: int = 1,
    max_body: int = protocol.MAX_BODY_BYTES,
    max_json: int = protocol.MAX_JSON_BYTES,
) -> Application:
    """Create a Ray Serve application that runs an ONNX model for clients of the Open Inference Protocol v2.

    Args:
        model: the path of an `.onnx` file, which each node of the cluster must have, or the bytes of one, or a ModelProto.
        name: the model's name in requests: letters, digits, ".", "_" and "-". Default: that of the file.
        batch: maximum number of rows of a batch of several requests; 1 runs each request alone. Requests for models whose
            first dimension is fixed always run alone.
        wait: seconds that a request waits for others to form a batch.
        threads: threads of each replica; Ray reserves as many CPUs.
        device: where to run, as in `create_context`. With "gpu", a replica runs on the GPU that Ray has reserved for it.
        precision: how engines compute float32 operations, as in `create_context`.
        gpus: the share of a GPU that Ray reserves for each replica on a GPU; two replicas with 0.5 share a GPU.
        operations: declares custom operations in each replica: the name of a module to import, or a function to call, as for
            `Predictor`.
        replicas: number of processes that run the model.
        max_body: maximum bytes of the body of a request, both compressed and uncompressed.
        max_json: maximum bytes of memory for reading the JSON and the strings of a request.

    Returns:
        An application for `ray.serve.run`.

    Raises:
        DataError: the model cannot be read.
        ValidationError: an argument is wrong.
        NotSupportedError: the protocol has no type for an input or output of the model.
    """
    counts = {"batch": batch, "threads": threads, "replicas": replicas, "max_body": max_body, "max_json": max_json}
    for option, value in counts.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        require(is_count, f"{option} must be a positive integer, got {short_repr(value)}")
    is_time = isinstance(wait, (int, float)) and not isinstance(wait, bool) and 0 <= wait < float("inf")
    require(is_time, f"wait must be a number of seconds, got {short_repr(wait)}")
    require(isinstance(device, str), f"device must be a name, got {short_repr(device)}")
    choices = ", ".join(map(repr, PRECISIONS))
    require(precision in PRECISIONS, f"precision must be one of {choices}, got {short_repr(precision)}")
    is_share = (
        isinstance(gpus, (int, float))
        and not isinstance(gpus, bool)
        and (0 < gpus <= 1 or (gpus > 1 and float(gpus).is_integer()))
    )
    require(is_share, f"gpus must be a part of 1, or a number of whole GPUs, got {short_repr(gpus)}")
    interface = Interface.load(model, name)
    ray_deployment = serve.deployment(
        Replica,
        name=interface.name,
        num_replicas=replicas,
        ray_actor_options={"num_cpus": threads, "num_gpus": gpus if is_gpu(device) else 0},
        max_ongoing_requests=max(MAX_ONGOING, 2 * batch),
        max_constructor_retry_count=3,
    )
    limits = max_body, max_json
    return ray_deployment.bind(
        _portable(model), interface.name, batch, float(wait), threads, device, precision, operations, replicas, limits
    )


def _portable(model: ModelFile) -> str | bytes:
    """Convert a model for replicas: to an absolute path, or to bytes."""
    if isinstance(model, (str, os.PathLike)):
        return os.path.abspath(model)
    return model.SerializeToString() if isinstance(model, ModelProto) else bytes(model)


@serve.ingress()
class Replica:
    """One process of a deployment: the model, and the HTTP routes of the protocol."""

    def __init__(
        self,
        model: str | bytes,
        name: str,
        batch: int,
        wait: float,
        threads: int,
        device: str,
        precision: Precision,
        operations: str | Callable[[], object] | None,
        replicas: int,
        limits: tuple[int, int],
    ) -> None:
        for handler in logging.getLogger("ray.serve").handlers:  # so that our warnings are in the replica's log
            logging.getLogger("opweave").addHandler(handler)
        session = open_session(model, threads, device, precision, operations)
        self._max_body, max_json = limits
        parts = parts_of(session)
        self._interface = Interface(name, parts.inputs, list(parts.outputs.values()), max_json)
        self._model = BatchedModel(session, self._interface, batch)
        self._statistics, self._replicas = statistics.ServingStatistics(), replicas
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="opweave-serving")  # engines use their own threads
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="opweave-reading")  # one large body at a time
        self._join = serve.batch(max_batch_size=batch, batch_wait_timeout_s=wait)(self._run)

    def __serve_build_asgi_app__(self) -> Starlette:
        """The HTTP routes; Ray calls this when the replica starts."""
        prefixes = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
        routes = [
            # Routes are searched in order, so the most frequent ones come first.
            *(Route(f"{prefix}/infer", self._infer, methods=["POST"]) for prefix in prefixes),
            Route("/v2", self._server),
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._ready),
            Route("/v2/models/stats", self._stats),
        ]
        for prefix in prefixes:
            routes += [
                Route(prefix, self._metadata),
                Route(f"{prefix}/ready", self._model_ready),
                Route(f"{prefix}/stats", self._stats),
            ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=1)],
            exception_handlers={MLError: _bad_request, HTTPException: _http_error, Exception: _failure},
        )

    async def state(self) -> dict[str, Any]:
        """The statistics of this replica, for the replica that answers a client."""
        return self._statistics.state()

    async def _server(self, http: HTTPRequest) -> Response:
        extensions = protocol.EXTENSIONS
        return JSONResponse({"name": "opweave", "version": __version__, "extensions": extensions})

    async def _live(self, http: HTTPRequest) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, http: HTTPRequest) -> Response:
        return JSONResponse({"ready": True})

    async def _model_ready(self, http: HTTPRequest) -> Response:
        self._check_model(http)
        return JSONResponse({"name": self._interface.name, "ready": True})

    async def _metadata(self, http: HTTPRequest) -> Response:
        self._check_model(http)
        return JSONResponse(self._interface.metadata())

    async def _stats(self, http: HTTPRequest) -> Response:
        if "name" in http.path_params:
            self._check_model(http)
        states = [self._statistics.state()]
        if self._replicas > 1:
            place = serve.get_replica_context()
            handle = serve.get_deployment_handle(place.deployment, place.app_name)
            states = await handle.broadcast("state").results_async()
        model_stats = statistics.report(self._interface.name, VERSION, states)
        return JSONResponse({"model_stats": [model_stats]})

    async def _infer(self, http: HTTPRequest) -> Response:
        arrived = perf_counter_ns()
        self._check_model(http)
        try:
            request = self._model.check(await self._read(http))
            answer: BatchAnswer
            if self._model.runs_alone(request):  # nothing to wait for
                (answer,) = await self._run([request])
            else:
                answer = await self._join(request)
            if isinstance(answer.outcome, MLError):
                raise answer.outcome
            content, headers = self._interface.respond(request, answer.outcome)
        except Exception:
            self._statistics.add_failure(perf_counter_ns() - arrived)
            raise
        if answer.execution is not None:
            waited, durations = answer.execution.started - arrived, answer.execution.durations
            self._statistics.add_success(answer.rows, perf_counter_ns() - arrived, waited, durations)
        return Response(content, headers=headers)

    async def _read(self, http: HTTPRequest) -> InferenceRequest:
        """Read a request. Large and compressed bodies are parsed in a thread, so that other clients need not wait."""
        body = await _body(http, self._max_body)
        encoding = ", ".join(http.headers.getlist("content-encoding")) or None
        header_length = http.headers.get(protocol.HEADER_LENGTH)
        if encoding is None and len(body) <= INLINE_BYTES:
            return self._interface.parse(body, header_length)

        def read() -> InferenceRequest:
            return self._interface.parse(protocol.decompress(body, encoding, self._max_body), header_length)

        return await asyncio.get_running_loop().run_in_executor(self._reader, read)

    async def _run(self, requests: Sequence[InferenceRequest]) -> list[BatchAnswer]:
        """Run a batch of requests on the model's thread."""
        answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._model.run, requests)
        for execution in {id(a.execution): a.execution for a in answers}.values():
            if execution is not None:
                self._statistics.add_execution(execution.rows, execution.durations)
        return answers

    def _check_model(self, http: HTTPRequest) -> None:
        name, version = http.path_params["name"], http.path_params.get("version", VERSION)
        if name != self._interface.name:
            place = f"{http.scope.get('root_path', '')}/v2/models/{self._interface.name}"
            raise HTTPException(404, f"there is no model {short_repr(name)} here; the model is at {place}")
        if version != VERSION:
            raise HTTPException(404, f"the model {name!r} has no version {short_repr(version)}, only {VERSION!r}")


async def _body(http: HTTPRequest, max_bytes: int) -> bytes:
    """Receive the body of a request, at most `max_bytes`."""
    announced = http.headers.get("content-length", "0")
    size = int(announced) if announced.isdecimal() and len(announced) <= protocol.MAX_DIGITS else 0
    too_large = HTTPException(413, f"the body is larger than the limit of {formatting.size(max_bytes)}")
    if size > max_bytes:
        raise too_large
    parts, size = [], 0
    async for part in http.stream():
        size += len(part)
        if size > max_bytes:
            raise too_large
        if part:
            parts.append(part)
    return b"".join(parts)


def _error(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """The response for an error, in ASCII and of limited length, since names in the text may come from the client."""
    text = text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]}… ({len(text):,} characters)"
    return Response(json.dumps({"error": text}), status, headers, "application/json")


def _bad_request(http: HTTPRequest, error: Exception) -> Response:
    return _error(str(error), 400)


def _http_error(http: HTTPRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = error.detail if error.detail != "Not Found" else f"there is nothing at {short_repr(http.url.path)}"
    return _error(text, error.status_code, error.headers)


def _failure(http: HTTPRequest, error: Exception) -> Response:
    return _error(f"{type(error).__name__}: {error}", 500)
