"""The server: accepts connections from this machine, checks origins and tokens, and runs a thread for each connection."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import Literal

from .. import __version__
from ..support.errors import InvalidStateError, require
from ..support.names import short_repr
from ..support.origins import check_origins
from .client_files import options_script, webnn_js
from .connection import Connection
from .counts import Counts
from .handover import Handover
from .http import HttpError, Request, read_body, read_request, respond
from .limits import ConnectionLimits
from .listener import listen_on_path, listen_on_port
from .messages import COMPUTE_SHAPES, PROTOCOL, SYNC, VERSION, ProtocolError, check_fields, parse, text_of
from .recording import Recording
from .stream import GOING_AWAY, DisconnectedError, Stream
from .wire import Messages, PlainMessages, WebSocketMessages

logger = logging.getLogger("opweave.serve")

PORT = 8801

MAX_CLIENTS = 256
"""Maximum number of simultaneous connections: pages, and their requests, for which a browser opens up to six each."""

MAX_KEY_BYTES = 256
"""Maximum size of the body of a request for a payload; the key has 43 bytes."""

IDLE_SECONDS = 300
"""Time that a connection stays open between requests: browsers reuse it for the next operation of a builder."""

_TOKEN = re.compile(r"[A-Za-z0-9_.~-]+")


class Server:
    """Serves `navigator.ml` to pages, workers and programs of Node.js on this machine.

    It listens once created, and answers inside the `with` block, or from `start` to `close`:

        with Server(port=0, origins=["http://localhost:5173"]) as server:
            page.add_init_script(server.script)

    Args:
        port: the port; 0 for any free port.
        origins: the origins of the pages that may connect, as browsers send them: "http://localhost:5173". Programs other
            than browsers send no origin, and need the token only.
        any_origin: whether pages of any origin may connect if they have the token.
        token: the token that clients must send: True for a new one, a string, or None for no token.
        device: the device of all contexts; default: chosen by the options of each page.
        host: the address: "127.0.0.1" or "::1", which other machines cannot reach.
        path: a Unix socket to listen on instead of a port, for Node.js; other users cannot open it.
        limits: the limits of a connection.
        record: a folder for the graphs that clients build, each as an ONNX model and as text.
        drafts: whether contexts have what only drafts of the specification contain, such as sizes with names.

    Raises:
        ValidationError: an argument is invalid, or pages may connect from anywhere without a token.
        NotSupportedError: there is no such device.
        DataError: the folder for graphs cannot be made.
        OperationError: the port or the path is taken.

    Attributes:
        port: the port; None for a Unix socket.
        path: the Unix socket; None for a port.
        origins: the origins of the pages that may connect.
        token: the token that clients must send; None for no token.

    >>> from opweave.serve import Server
    >>> server = Server(port=0, origins=["http://localhost:5173"])
    >>> server.url == f"http://127.0.0.1:{server.port}", server.allows_any_origin
    (True, False)
    >>> server.url in server.script, server.token in server.script
    (True, True)
    >>> server = server.start()
    >>> print(server.stats())
    0 graphs, 0 dispatches, 0 messages, 0 B received, 0 B sent
    >>> server.close()
    """

    def __init__(
        self,
        port: int = PORT,
        *,
        origins: Iterable[str] = (),
        any_origin: bool = False,
        token: str | Literal[True] | None = True,
        device: str | None = None,
        host: Literal["127.0.0.1", "::1"] = "127.0.0.1",
        path: str | Path | None = None,
        limits: ConnectionLimits | None = None,
        record: str | Path | None = None,
        drafts: bool = False,
    ) -> None:
        require(type(port) is int and 0 <= port < 65536, f"port must be in [0, 65535], got {short_repr(port)}")
        require(host in ("127.0.0.1", "::1"), f"host must be '127.0.0.1' or '::1', got {short_repr(host)}")
        self.origins = check_origins(origins)
        secret = secrets.token_urlsafe(24) if token is True else token
        require(
            secret is None or (isinstance(secret, str) and _TOKEN.fullmatch(secret) is not None),
            f"token must be True, None or letters, digits and . _ ~ -, got {short_repr(secret)}",
        )
        require(secret is not None or not any_origin, "any_origin needs a token: any page could connect without one")
        self.token: str | None = secret
        require(isinstance(drafts, bool), f"drafts must be True or False, got {short_repr(drafts)}")
        self._any_origin, self._device, self._drafts = any_origin, device, drafts
        self._limits = limits or ConnectionLimits()
        if device is not None:
            from ..backends import find_device

            find_device(device, None)
        self._recording = None if record is None else Recording(record)
        self._handover = Handover()
        # The lock guards the four attributes below.
        self._lock = Lock()
        self._clients: dict[Stream, Thread] = {}
        self._connections: dict[bytes, Connection] = {}  # by the hash of the session key
        self._past = Counts()
        self._is_closed = False
        self.path = None if path is None else Path(path)
        self._listener = listen_on_port(host, port) if self.path is None else listen_on_path(self.path)
        name = self._listener.getsockname()
        self.port: int | None = name[1] if self.path is None else None
        self._address = f"[{host}]" if ":" in host else host
        self._thread = Thread(target=self._accept, name="opweave.serve", daemon=True)

    # Use -------------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The address: `http://127.0.0.1:8801`, or `unix:` and the path of a socket."""
        return f"http://{self._address}:{self.port}" if self.path is None else f"unix:{self.path.absolute()}"

    @property
    def script(self) -> str:
        """A script that defines `navigator.ml` with address and token, for Playwright's `page.addInitScript`."""
        options = {"url": self.url} if self.token is None else {"url": self.url, "token": self.token}
        return options_script(**options) + webnn_js()

    @property
    def recorded(self) -> list[str]:
        """The texts of the different graphs that clients have built, in order; none without `record`.

        >>> Server(port=0).recorded
        []
        """
        return [] if self._recording is None else list(self._recording.texts)

    @property
    def allows_any_origin(self) -> bool:
        """Whether pages of any origin may connect if they have the token."""
        return self._any_origin

    def stats(self) -> Counts:
        """Return the counts of all clients so far."""
        with self._lock:
            live = list(self._connections.values())
            past = self._past
        total = sum([past, *(connection.counts() for connection in live)], Counts())
        return replace(total, connections=past.connections + len(live))

    def start(self) -> Server:
        """Begin to answer.

        Raises:
            InvalidStateError: the server is closed.
        """
        if self._is_closed:
            raise InvalidStateError(f"the server at {self.url} is closed; make another one")
        self._thread.start()
        return self

    def close(self) -> None:
        """End all connections, and free their memory."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            connections, clients = list(self._connections.values()), dict(self._clients)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        for connection in connections:
            connection.close(GOING_AWAY, "the server ends")
        for stream in clients:
            stream.stop()
        if self._thread.is_alive():
            self._thread.join()  # before those of clients, which it starts
        for thread in clients.values():
            if thread.ident is not None:  # None if the system had no thread left
                thread.join()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server {self.url}{', closed' if self._is_closed else ''}>"

    # Connections -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.05)  # the client has already disconnected, or there are no more descriptors
                continue
            if self.path is None:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = Stream(client)
            thread = Thread(target=self._serve, args=(stream,), name="opweave.serve client", daemon=True)
            with self._lock:
                has_room = not self._is_closed and self._make_room()
                if has_room:
                    self._clients[stream] = thread
            try:
                if has_room:
                    thread.start()
            except RuntimeError:  # the system has no more threads
                with self._lock:
                    self._clients.pop(stream, None)
                has_room = False
            if not has_room:
                client.close()

    def _make_room(self) -> bool:
        """Make room for a new client, if needed by disconnecting the oldest untrusted one; False if all are trusted."""
        if len(self._clients) < MAX_CLIENTS:
            return True
        untrusted = next((stream for stream in self._clients if not stream.is_trusted), None)
        if untrusted is None:
            return False
        del self._clients[untrusted]
        untrusted.stop()
        return True

    def _serve(self, stream: Stream) -> None:
        try:
            stream.set_deadline(self._limits.handshake)
            while self._answer(stream):
                stream.set_deadline(IDLE_SECONDS)
                stream.wait()
                stream.set_deadline(self._limits.handshake)
        except (DisconnectedError, TimeoutError):
            pass
        except HttpError as error:
            with suppress(DisconnectedError):
                respond(stream, error.status, str(error), headers=error.headers | {"Content-Type": "text/plain"})
        except Exception:
            logger.exception("a fault of the server ends a connection")
        finally:
            stream.close()
            with self._lock:
                self._clients.pop(stream, None)

    def _answer(self, stream: Stream) -> bool:
        """Answer one request; return whether the client may send another."""
        request = read_request(stream)
        if not request.is_for_this_machine():
            raise HttpError(403, "the Host is not this machine")
        if upgrade := request.upgrades():
            self._upgrade(stream, request, upgrade)
            return False
        limit = {"/sync": self._limits.json, "/payload": MAX_KEY_BYTES}.get(request.path, 0)
        headers = self._cors_headers(request)
        try:
            return self._respond(stream, request, read_body(stream, request, limit), headers)
        except HttpError as error:
            error.headers |= headers
            raise

    def _respond(self, stream: Stream, request: Request, body: bytes, headers: dict[str, str]) -> bool:
        """Answer a request other than an upgrade; `headers` let the page read the response."""
        match request.method, request.path:
            case "POST", "/sync":
                return self._sync(stream, request, body, headers)
            case "POST", "/payload":
                return self._payload(stream, request, body, headers)
            case "OPTIONS", _ if request.origin is not None and self._allows(request.origin):
                return _reply(stream, request, headers | _preflight(request), status=204)
            case "GET" | "HEAD", "/webnn.js":
                headers |= {"Cross-Origin-Resource-Policy": "cross-origin"}
                return _reply(stream, request, headers, webnn_js(), "text/javascript; charset=utf-8")
            case "GET", "/stats":
                self._check_origin(request)
                self._check_token(request, request.headers.get("authorization", "").removeprefix("Bearer "))
                return _reply(stream, request, headers, self.stats().to_json())
            case "GET", "/health":
                return _reply(stream, request, headers, json.dumps({"opweave": __version__, "protocol": VERSION}))
        raise HttpError(404, "there is nothing here")

    def _allows(self, origin: str | None) -> bool:
        """Whether a page of this origin may connect; None stands for programs other than browsers."""
        return origin is None or self._any_origin or origin in self.origins

    def _check_origin(self, request: Request) -> None:
        if not self._allows(request.origin):
            origin = request.shown_origin
            hint = f"; --origin {origin} allows it" if origin == request.origin else ""
            logger.warning("a page of %s was refused%s", origin, hint)
            raise HttpError(403, f"pages of {origin} may not connect; `opweave serve --origin` allows them")

    def _check_token(self, request: Request, client_token: str) -> None:
        if self.token is None or hmac.compare_digest(client_token.encode(), self.token.encode()):
            return
        client = request.shown_origin if request.origin else "this machine"
        logger.warning("a client of %s has %s", client, "a wrong token" if client_token else "sent no token")
        raise HttpError(401, "the token is wrong" if client_token else "no token was sent; set OPWEAVE_TOKEN")

    def _cors_headers(self, request: Request) -> dict[str, str]:
        if request.origin is None:
            return {}
        if not self._allows(request.origin):
            return {"Vary": "Origin"}
        return {"Vary": "Origin", "Access-Control-Allow-Origin": request.origin}

    def _upgrade(self, stream: Stream, request: Request, upgrade: str) -> None:
        """Check origin and token, switch the protocol, and serve the connection until it ends."""
        if request.method != "GET" or request.path != "/":
            raise HttpError(404, "an upgrade must be requested by GET /")
        self._check_origin(request)
        is_plain = upgrade == "opweave"
        if not is_plain and upgrade != "websocket":
            raise HttpError(400, "Upgrade must be websocket or opweave")
        offered = request.tokens("sec-opweave-protocol" if is_plain else "sec-websocket-protocol")
        if PROTOCOL not in offered:
            raise HttpError(400, f"the protocol must be {PROTOCOL}")
        client_token = next((name.removeprefix("token.") for name in offered if name.startswith("token.")), "")
        self._check_token(request, client_token)
        headers = {"Upgrade": upgrade, "Connection": "Upgrade"}
        messages: Messages
        if is_plain:
            headers["Sec-Opweave-Protocol"] = PROTOCOL
            messages = PlainMessages(stream)
        else:
            key = request.headers.get("sec-websocket-key", "")
            if request.headers.get("sec-websocket-version") != "13" or not re.fullmatch(r"[A-Za-z0-9+/]{22}==", key):
                raise HttpError(400, "Sec-WebSocket-Version must be 13, and Sec-WebSocket-Key 16 bytes in base64")
            headers |= {"Sec-WebSocket-Accept": WebSocketMessages.accept(key), "Sec-WebSocket-Protocol": PROTOCOL}
            messages = WebSocketMessages(stream)
        stream.is_trusted = True
        respond(stream, 101, headers=headers)
        stream.set_deadline(None)
        connection = Connection(
            messages, self._limits, request.origin, self._device, self._handover, self._recording, self._drafts
        )
        with self._lock:
            if self._is_closed:
                return
            self._connections[_hash(connection.key)] = connection
        try:
            connection.run()
        finally:
            with self._lock:
                del self._connections[_hash(connection.key)]
                self._past += replace(connection.counts(), connections=1)

    def _payload(self, stream: Stream, request: Request, body: bytes, headers: dict[str, str]) -> bool:
        """`POST /payload`: send the tensor data that a page was offered, unless the page declines it."""
        _check_type(request)
        text = body.decode("latin-1")
        key = text.removesuffix(" unwanted")
        with self._handover.take(key, request.origin, stream) as payload:
            if payload is None:
                raise HttpError(403, "there is no such payload for this origin")
            stream.is_trusted = True
            stream.set_deadline(None)
            if key != text:
                return _reply(stream, request, headers, status=204)
            return _reply(stream, request, headers, payload.data, "application/octet-stream")

    def _sync(self, stream: Stream, request: Request, body: bytes, headers: dict[str, str]) -> bool:
        """`POST /sync`: add operations to a builder, or compute the shapes of a graph, while JavaScript waits."""
        _check_type(request)
        try:
            message = parse(body)
            if not isinstance(message, dict):
                raise ProtocolError("the body must be an object")
            check_fields("sync", message, COMPUTE_SHAPES if "g" in message else SYNC, {})
        except ProtocolError as error:
            raise HttpError(400, str(error)) from None
        with self._lock:
            connection = self._connections.get(_hash(message["session"]))
        if connection is None or connection.origin != request.origin:
            raise HttpError(403, "there is no such session of this origin")
        stream.is_trusted = True
        try:
            answer = connection.sync(message)
        except ProtocolError as error:
            raise HttpError(400, str(error)) from None
        return _reply(stream, request, headers, text_of(answer))


def _reply(
    stream: Stream,
    request: Request,
    headers: Mapping[str, str],
    body: str | bytes | memoryview = b"",
    content_type: str = "application/json",
    status: int = 200,
) -> bool:
    """Respond to a request; return whether the client may send another."""
    fields = {**headers, "Content-Type": content_type} if status == 200 else headers
    respond(stream, status, body, keeps_alive=request.keeps_alive, headers=fields)
    return request.keeps_alive


def _check_type(request: Request) -> None:
    """Refuse content types that our clients never send."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("text/plain", "application/json"):
        raise HttpError(415, "the Content-Type must be text/plain or application/json")


def _preflight(request: Request) -> dict[str, str]:
    """Headers that allow requests of a page (https://fetch.spec.whatwg.org/#cors-preflight-fetch)."""
    headers = {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": "content-type",
        "Access-Control-Max-Age": "600",
    }
    if request.headers.get("access-control-request-private-network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return headers


def _hash(key: str) -> bytes:
    """Hash a session key, so that the time of a look-up reveals nothing about existing keys."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
