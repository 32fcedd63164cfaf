"""The routes of the Open Inference Protocol v2 on Starlette, for replicas of Ray Serve and for a server on one machine."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from typing import Any

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .. import __version__
from ..onnx.session.parts import parts_of
from ..onnx.session.session import InferenceSession
from ..support import formatting
from ..support.errors import MLError
from ..support.names import short_repr
from . import bodies, protocol, statistics
from .batches import BatchAnswer, BatchedModel
from .protocol import VERSION, InferenceRequest, Interface
from .statistics import Observer, ServingStatistics

INLINE_BYTES = 1 << 16
"""Uncompressed bodies up to this size are parsed in the event loop: that takes a millisecond at most."""

QUICK_NANOSECONDS = 300_000
"""A model whose runs take less runs in the event loop: passing a request to a thread and back takes about as long."""

QUICK_RUNS = 32
"""Number of the latest runs for about as many elements of which more than half must have been so quick.

Waiting for the interpreter's lock, and other processes, lengthen single runs: with 16 clients, a tenth of the runs of 60 us
took 340 us and more, so few sequences of 32 runs had only quick ones, but in each sequence most runs were quick."""

LONG_NANOSECONDS = 10_000_000
"""A run that takes so long lets the next ones run in a thread, for other clients' sake. An estimate."""

MAX_ERROR = 4000

MIN_COMPRESSED_BYTES = 1024


class RunTimes:
    """The latest times of runs: they tell which runs are quick enough for the event loop.

    Runs whose arrays have about as many elements are kept together: as many binary digits.
    """

    def __init__(self) -> None:
        self._latest = defaultdict[int, deque[bool]](lambda: deque(maxlen=QUICK_RUNS))

    def is_quick(self, count: int) -> bool:
        """Whether more than half of the latest runs for about as many elements were quick."""
        latest = self._latest[count.bit_length()]
        return len(latest) >= QUICK_RUNS and 2 * sum(latest) > len(latest)

    def add(self, count: int, nanoseconds: int) -> None:
        """Note the time of a run for so many elements."""
        latest = self._latest[count.bit_length()]
        if nanoseconds >= LONG_NANOSECONDS:
            latest.clear()
        latest.append(nanoseconds < QUICK_NANOSECONDS)


class ServedModel:
    """One version of a model behind the protocol: reads requests, runs them in batches, writes responses, counts.

    Args:
        session: the model.
        name: the model's name in requests.
        version: its version.
        batch: maximum number of rows of a batch.
        max_body: maximum bytes of a body, both compressed and uncompressed.
        max_json: maximum bytes of memory for reading the JSON and the strings of a request.
        max_requests: maximum number of requests at a time; further ones get the status 503. 0: no maximum.
        parallel: number of batches that run at the same time.
        has_own_code: whether the model may have operations of users, which may wait for something.

    Attributes:
        join: runs a request in a batch with others. The owner sets it; by default, each request runs alone.
        observers: what counts requests and executions.
        count: the number of requests that are read, wait, or run.
    """

    def __init__(
        self,
        session: InferenceSession,
        name: str,
        version: str = VERSION,
        *,
        batch: int,
        max_body: int,
        max_json: int,
        max_requests: int = 0,
        parallel: int = 1,
        has_own_code: bool = False,
    ) -> None:
        parts = parts_of(session)
        self.session, self.version = session, version
        self.interface = Interface(name, parts.inputs, list(parts.outputs.values()), max_json, version)
        self.statistics = ServingStatistics()
        self.observers: list[Observer] = [self.statistics]
        self.join: Callable[[InferenceRequest], Awaitable[BatchAnswer]] = self._run_alone
        self.count = 0
        self._run_times = RunTimes()
        self._has_own_code = has_own_code
        self._max_body, self._max_requests = max_body, max_requests
        self._model = BatchedModel(session, self.interface, batch)
        # These threads wait for engines, which compute with threads of their own.
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="opweave-serving")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="opweave-reading")  # one large body at a time

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return self.interface.name

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False)
        self._reader.shutdown(wait=False)

    async def in_reader(self, function: Callable[[], Any]) -> Any:
        """Run a function that takes long in the thread that reads large bodies."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, function)

    async def answer(self, http: HTTPRequest) -> Response:
        """Answer an inference request."""
        arrived = perf_counter_ns()
        self.count += 1
        try:
            if self._max_requests and self.count > self._max_requests:
                text = f"the model {self.name!r} has {self._max_requests} requests already; try again later"
                raise HTTPException(503, text, {"Retry-After": "1"})
            request = self._model.check(await self._read(http))
            answer: BatchAnswer
            if self._model.runs_alone(request):  # nothing to wait for
                answer = await self._run_alone(request)
            else:
                answer = await self.join(request)
            if isinstance(answer.outcome, MLError):
                raise answer.outcome
            content, headers = self._respond(http, request, answer.outcome)
        except Exception as error:
            for observer in self.observers:
                observer.add_failure(perf_counter_ns() - arrived, kind_of(error))
            raise
        finally:
            self.count -= 1
        if answer.execution is not None:
            waited, durations = answer.execution.started - arrived, answer.execution.durations
            for observer in self.observers:
                observer.add_success(answer.rows, perf_counter_ns() - arrived, waited, durations)
        return Response(content, headers=headers)

    async def run(self, requests: Sequence[InferenceRequest]) -> list[BatchAnswer]:
        """Run a batch of requests: on a thread of the model, or here if it takes almost no time."""
        count = sum([array.size for request in requests for array in request.feed.values()])
        if not self._has_own_code and self._run_times.is_quick(count):
            answers = self._model.run(requests)
        else:
            answers = await asyncio.get_running_loop().run_in_executor(self._threads, self._model.run, requests)
        total = 0
        for execution in {id(a.execution): a.execution for a in answers}.values():
            if execution is not None:
                total += sum(execution.durations)
                for observer in self.observers:
                    observer.add_execution(execution.rows, execution.durations)
        if total:
            self._run_times.add(count, total)
        return answers

    async def _run_alone(self, request: InferenceRequest) -> BatchAnswer:
        (answer,) = await self.run([request])
        return answer

    async def _read(self, http: HTTPRequest) -> InferenceRequest:
        """Read a request. Large and compressed bodies are parsed in a thread, so that other clients need not wait."""
        body = await body_of(http, self._max_body)
        encoding = ", ".join(http.headers.getlist("content-encoding")) or None
        kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in bodies.KINDS:
            options = http.query_params.multi_items()

            def read_file() -> InferenceRequest:
                data = protocol.decompress(body, encoding, self._max_body)
                return bodies.parse(kind, data, self.interface, options, self._max_body)

            is_short = encoding is None and len(body) <= INLINE_BYTES and kind == bodies.NPY
            request: InferenceRequest = read_file() if is_short else await self.in_reader(read_file)
            return request
        header_length = http.headers.get(protocol.HEADER_LENGTH)
        if header_length is None:
            bodies.refuse_files(kind, body)
        if encoding is None and len(body) <= INLINE_BYTES:
            return self.interface.parse(body, header_length)

        def read() -> InferenceRequest:
            return self.interface.parse(protocol.decompress(body, encoding, self._max_body), header_length)

        return await self.in_reader(read)  # type: ignore[no-any-return]

    def _respond(
        self, http: HTTPRequest, request: InferenceRequest, results: Mapping[str, Any]
    ) -> tuple[bytes, dict[str, str]]:
        kind = bodies.accepted_kind(http.headers.get("accept", ""))
        return (
            bodies.respond(kind, request, results, self.interface) if kind else self.interface.respond(request, results)
        )


class ProtocolRoutes:
    """The routes of the protocol. Subclasses say which models there are."""

    is_ready = True
    """Whether clients should send requests."""

    def find(self, http: HTTPRequest) -> ServedModel:
        """The model and version that a URL names.

        Raises:
            HTTPException: there is no such model or version, with the status 404.
        """
        raise NotImplementedError

    def versions_of(self, model: ServedModel) -> list[str]:
        """All versions of a model."""
        return [model.version]

    async def states_of(self, http: HTTPRequest) -> list[tuple[ServedModel, list[dict[str, Any]]]]:
        """The statistics of the models that a URL is about, or of all; one state of each replica."""
        raise NotImplementedError

    def routes(self) -> list[Route]:
        """The routes, the most frequent ones first, as they are searched in order."""
        prefixes = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
        routes = [
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
        return routes

    async def _infer(self, http: HTTPRequest) -> Response:
        return await self.find(http).answer(http)

    async def _server(self, http: HTTPRequest) -> Response:
        return JSONResponse({"name": "opweave", "version": __version__, "extensions": protocol.EXTENSIONS})

    async def _live(self, http: HTTPRequest) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, http: HTTPRequest) -> Response:
        return JSONResponse({"ready": self.is_ready}, 200 if self.is_ready else 503)

    async def _model_ready(self, http: HTTPRequest) -> Response:
        model = self.find(http)
        return JSONResponse({"name": model.name, "ready": self.is_ready}, 200 if self.is_ready else 503)

    async def _metadata(self, http: HTTPRequest) -> Response:
        model = self.find(http)
        return JSONResponse(model.interface.metadata(self.versions_of(model)))

    async def _stats(self, http: HTTPRequest) -> Response:
        models = await self.states_of(http)
        reports = [statistics.report(model.name, model.version, states) for model, states in models]
        return JSONResponse({"model_stats": reports})


def compression() -> Middleware:
    """The middleware that compresses responses for clients that accept it."""
    return Middleware(Compression)


_GZIP = re.compile(rb"gzip(?!\s*;\s*q=0(\.0*)?\s*(,|$))")
"""A client accepts gzip, unless its weight is 0."""


class Compression:
    """Compresses responses for clients that accept gzip.

    Others get responses to GET with the header Vary, which caches need, and those to POST, which are not cached, as they are.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._compressing = GZipMiddleware(app, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=1)

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request."""
        is_plain = scope["type"] == "http" and scope["method"] == "POST" and not _accepts_gzip(scope["headers"])
        await (self._app if is_plain else self._compressing)(scope, receive, send)


def _accepts_gzip(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"accept-encoding" and _GZIP.search(value) is not None for name, value in headers)


async def body_of(http: HTTPRequest, max_bytes: int) -> bytes:
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
    return parts[0] if len(parts) == 1 else b"".join(parts)


def kind_of(error: Exception) -> str:
    """The kind of an error, for counters: a class of `MLError`, "HTTP" and a status, "disconnect", or "internal"."""
    if isinstance(error, HTTPException):
        return f"HTTP{error.status_code}"
    if isinstance(error, ClientDisconnect):
        return "disconnect"
    return type(error).__name__ if isinstance(error, MLError) else "internal"


def error_response(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """The response for an error, in ASCII and of limited length, since names in the text may come from the client."""
    text = text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]}… ({len(text):,} characters)"
    return Response(json.dumps({"error": text}), status, headers, "application/json")


def _bad_request(http: HTTPRequest, error: Exception) -> Response:
    return error_response(str(error), 400)


def _http_error(http: HTTPRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = error.detail
    if text == "Not Found":
        text = f"there is nothing at {short_repr(http.url.path)}"
    elif text == "Method Not Allowed":
        allowed = (error.headers or {}).get("Allow", "")
        text = f"{short_repr(http.url.path)} takes {allowed or 'other methods'}, got {short_repr(http.method)}"
    return error_response(text, error.status_code, error.headers)


def _answer_disconnect(http: HTTPRequest, error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it


def _failure(http: HTTPRequest, error: Exception) -> Response:
    return error_response(f"{type(error).__name__}: {error}", 500)


EXCEPTION_HANDLERS: dict[Any, Any] = {
    MLError: _bad_request,
    HTTPException: _http_error,
    ClientDisconnect: _answer_disconnect,
    Exception: _failure,
}
"""Responses by the class of an error."""
