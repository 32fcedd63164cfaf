"""`ModelServer`: models over HTTP on one machine."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeAlias

import uvicorn

from ..backends import Precision
from ..scale import protocol
from ..scale.http import ServedModel
from ..scale.predictor import open_session
from ..scale.protocol import VERSION, Interface, ModelFile
from ..support.errors import InvalidStateError, require
from ..support.names import short_repr
from ..support.origins import check_hosts, check_origins
from ..support.processors import processors
from ..support.sockets import listen_on
from .application import ServerRoutes
from .guard import SiteGuard
from .joining import Batcher
from .listening import BACKLOG, BoundedProtocol, GracefulServer
from .metrics import ServerMetrics

if TYPE_CHECKING:
    from .completions import ChatRoutes, LanguageModels

Models: TypeAlias = "Mapping[str, ModelFile | Mapping[str, ModelFile]]"

KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle connection stays open, as in nginx."""

START_SECONDS = 60

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that stop a server."""


class ModelServer:
    """Serves ONNX models over HTTP, by the Open Inference Protocol v2, in this process.

    A context manager that serves in a thread, as `start` and `close` do; `run` serves in this thread, until a signal comes.

    Args:
        models: the model of each name: the path of an `.onnx` file, or bytes, or a ModelProto; or such models by version.
        language_models: the decoder and the vocabulary of language models by name, for clients of OpenAI's API.
        defaults: options of requests for language models that do not name them: `temperature`, `top_p`, `top_k`, `min_p`,
            `repetition_penalty`, and `max_tokens` of a chat.
        host: the address to listen on; "0.0.0.0" for all addresses of the machine.
        port: the port to listen on; 0 for any free one.
        batch: maximum number of rows of a batch of several requests; 1 runs each request alone.
        wait: seconds that a request waits for others to form a batch. With 0, batches consist of what has come while the
            previous one ran.
        threads: maximum number of threads of an operation on the CPU. With n threads, as many batches run at the same time as
            there are n processors for each; by default, one with all of them.
        device: where to run, as in `create_context`.
        precision: how engines compute float32 operations, as in `create_context`.
        operations: declares custom operations: the name of a module to import, or a function to call.
        max_body: maximum bytes of the body of a request, both compressed and uncompressed.
        max_json: maximum bytes of memory for reading the JSON and the strings of a request.
        max_requests: maximum number of requests at a time for each model; further ones get the status 503.
        hosts: further names that the header `Host` may have, if the server listens on this machine alone.
        origins: origins of web pages that may send requests, such as "http://localhost:3000".
        grace: seconds that requests may take after the server was told to stop.

    Raises:
        DataError: a model cannot be read.
        ValidationError: an argument is wrong.
        NotSupportedError: the protocol has no type for an input or output of a model, or there is no such device.
        OperationError: the server cannot listen on the address.

    Attributes:
        url: the address for clients, once the server listens.
        application: the ASGI application, for other servers and for tests.

    >>> import json, onnx.parser
    >>> from urllib.request import urlopen
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     g (float[batch, 2] x) => (float[batch, 2] y) { y = Relu(x) }''')
    >>> tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [-1, 2]}
    >>> with ModelServer({"relu": model}) as server:
    ...     response = urlopen(f"{server.url}/v2/models/relu/infer", json.dumps({"inputs": [tensor]}).encode())
    ...     json.load(response)["outputs"][0]["data"]
    [0.0, 2.0]
    """

    def __init__(
        self,
        models: Models,
        *,
        language_models: LanguageModels | None = None,
        defaults: Mapping[str, Any] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        batch: int = 8,
        wait: float = 0.0,
        threads: int | None = None,
        device: str = "cpu",
        precision: Precision = "float32",
        operations: str | Callable[[], object] | None = None,
        max_body: int = protocol.MAX_BODY_BYTES,
        max_json: int = protocol.MAX_JSON_BYTES,
        max_requests: int = 1000,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        grace: float = 30.0,
    ) -> None:
        counts = {"batch": batch, "max_body": max_body, "max_json": max_json, "max_requests": max_requests}
        for option, value in counts.items():
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            require(is_count, f"{option} must be a positive integer, got {short_repr(value)}")
        for option, seconds in {"wait": wait, "grace": grace}.items():
            is_time = (
                isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < float("inf")
            )
            require(is_time, f"{option} must be a number of seconds, got {short_repr(seconds)}")
        is_port = isinstance(port, int) and not isinstance(port, bool) and 0 <= port < 1 << 16
        require(is_port, f"port must be in [0, 65535], got {short_repr(port)}")
        require(isinstance(models, Mapping), f"models must map names to models, got {short_repr(models)}")
        require(bool(models or language_models), "a server must have a model")
        origins, hosts = check_origins(origins), check_hosts(hosts)
        # Operations of small models do not fill many processors: with fewer threads each, runs fill them together.
        has_own_code = operations is not None
        parallel = 1 if threads is None else max(1, processors() // threads)
        self._listener = _listen(host, port)
        try:
            self.metrics = ServerMetrics()
            served: dict[str, dict[str, ServedModel]] = {}
            for name, versions in models.items():
                served[name] = {}
                files = versions if isinstance(versions, Mapping) else {VERSION: versions}
                require(bool(files), f"model {name!r} must have a version")
                for version, file in files.items():
                    is_version = isinstance(version, str) and re.fullmatch(r"[\w.-]+", version, re.ASCII)
                    rule = f"versions must be letters, digits, '.', '_' and '-', got {short_repr(version)}"
                    require(bool(is_version), rule)
                    Interface.load(file, name)  # a wrong name or type fails before the model is compiled
                    session = open_session(file, threads, device, precision, operations)
                    operations = operations if isinstance(operations, str) else None  # a function declares once
                    model = ServedModel(
                        session,
                        name,
                        version,
                        batch=batch,
                        max_body=max_body,
                        max_json=max_json,
                        max_requests=max_requests,
                        parallel=parallel,
                        has_own_code=has_own_code,
                    )
                    model.join = Batcher(model.run, batch, float(wait), parallel).submit
                    served[name][version] = model
            chats: ChatRoutes | None = None
            if language_models:
                from .completions import ChatRoutes

                chats = ChatRoutes(language_models, self.metrics, max_body, max_requests, defaults or {})
            self._routes = ServerRoutes(served, self.metrics, chats)
        except BaseException:
            self._listener.close()
            raise
        self.application = SiteGuard(self._routes.application(origins), host, hosts, origins)
        address = self._listener.getsockname()
        shown = f"[{address[0]}]" if ":" in address[0] else "127.0.0.1" if address[0] == "0.0.0.0" else address[0]
        self.url = f"http://{shown}:{address[1]}"
        config = uvicorn.Config(
            self.application,
            http=BoundedProtocol,
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_level="error",
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(grace)),
        )
        self._server = GracefulServer(config, self._begin_stop)
        self._models, self._chats = served, chats
        self._thread: Thread | None = None
        self._is_used = False

    def __repr__(self) -> str:
        names = [*self._models, *(self._chats.names if self._chats is not None else ())]
        return f"<ModelServer {self.url}: {', '.join(names)}>"

    def _use(self) -> None:
        """Require that the server has neither served nor been closed: its socket and models are there for one time."""
        if self._is_used:
            raise InvalidStateError("a ModelServer serves once, and this one has been started or closed already")
        self._is_used = True

    def _begin_stop(self) -> None:
        self._routes.is_ready = False
        self.application.is_stopping = True

    def stop(self) -> None:
        """Let the server answer the requests that it has accepted, and end. A signal handler may call this.

        >>> import onnx.parser
        >>> model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float x) => (float y) { y = Abs(x) }')
        >>> with ModelServer({"abs": model}) as server:
        ...     server.stop()
        """
        self._server.should_exit = True

    def run(self, on_start: Callable[[], object] = lambda: None) -> None:
        """Serve until SIGINT, SIGTERM or SIGHUP, or `stop`. Requests that were accepted are answered; then this returns.

        Args:
            on_start: called in another thread once the server answers.

        >>> import onnx.parser
        >>> model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float x) => (float y) { y = Abs(x) }')
        >>> server = ModelServer({"abs": model})
        >>> server.run(on_start=server.stop)
        """
        self._use()
        # A process that was started to ignore a signal, as by `nohup`, ignores it. Shells ignore SIGINT for jobs.
        handled = [n for n in STOPPING if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]
        handled = handled if current_thread() is main_thread() else []  # other threads cannot handle signals
        before = {number: signal.signal(number, lambda *_: self.stop()) for number in handled}
        try:
            asyncio.run(self._serve(on_start))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._close()

    def start(self) -> ModelServer:
        """Serve in another thread, and return this server once it answers. `close` ends it; `with` calls both.

        >>> import onnx.parser
        >>> model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float x) => (float y) { y = Abs(x) }')
        >>> server = ModelServer({"abs": model}).start()
        >>> server.url.startswith("http://127.0.0.1:")
        True
        >>> server.close()
        """
        if self._server.should_exit and not self._is_used:
            raise InvalidStateError("a ModelServer that has been stopped cannot be started")
        self._use()
        started: Future[None] = Future()

        def serve() -> None:
            try:
                asyncio.run(self._serve(lambda: started.set_result(None)))
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)

        self._thread = Thread(target=serve, name="opweave-server", daemon=True)
        self._thread.start()
        started.result(START_SECONDS)
        return self

    def close(self) -> None:
        """Answer the requests that were accepted, and end the server.

        >>> import onnx.parser
        >>> model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float x) => (float y) { y = Abs(x) }')
        >>> server = ModelServer({"abs": model}).start()
        >>> server.close()
        """
        self._is_used = True
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._close()

    def __enter__(self) -> ModelServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _serve(self, on_start: Callable[[], object]) -> None:
        serving = asyncio.get_running_loop().create_task(self._server.serve([self._listener]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.001)
        if self._server.started:
            await asyncio.to_thread(on_start)
        await serving

    def _close(self) -> None:
        self._listener.close()
        for versions in self._models.values():
            for model in versions.values():
                model.close()
        if self._chats is not None:
            self._chats.close()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens on an address."""
    require(isinstance(host, str) and bool(host), f"host must be an address, got {short_repr(host)}")
    listener = listen_on(host, port, BACKLOG, "--host and --port take others")
    with suppress(OSError):
        listener.setblocking(False)
    return listener
