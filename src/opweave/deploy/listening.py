"""uvicorn, with limits for what comes before a body, and an end that loses no request."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 16
"""Maximum bytes of the first line and the headers of a request. llhttp, the parser, has no limit."""

HEAD_SECONDS = 30
"""Seconds in which a client must send the first line and the headers."""

BODY_SECONDS = 30
"""Seconds in which a client must send `MIN_BODY_BYTES` of a body, or the rest of it."""

MIN_BODY_BYTES = 1 << 14
"""A client that sends less in `BODY_SECONDS` occupies a place of `max_requests` for nothing: slower than any modem."""

LAST_SECONDS = 0.5
"""Seconds that idle connections stay open while the server stops, for requests on their way: longer than a round trip."""

MAX_HELD_BYTES = 1 << 16
"""Maximum bytes of a body that is copied behind its head, to send both by one system call. An estimate."""

BACKLOG = 1024
"""Number of connections that the system keeps until they are accepted."""


class WholeResponses:
    """A transport that sends the head of a response together with the body, if both come in the same step of the loop.

    Each system call wakes the client, which then may take the processor of the server.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info

    def write(self, data: bytes) -> None:
        """Hold the head of a response; send anything else, behind the head."""
        if not self._head and data[:5] == b"HTTP/":
            self._head = data
            self._loop.call_soon(self._send_head)
        elif self._head and len(data) <= MAX_HELD_BYTES:
            data, self._head = self._head + data, b""
            self._transport.write(data)
        else:
            self._send_head()
            self._transport.write(data)

    def _send_head(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        """Close the connection, once all data are sent."""
        self._send_head()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._head = b""
        self._transport.abort()


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose heads, trailers and extensions of chunks have a limit, and that ends if its client is too slow.

    One timer of a connection serves all its requests: a timer for each request would cost more than its bounds are worth.
    """

    _uncounted = _body_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _deadline: float | None = None
    _is_in_body = False

    def connection_made(self, transport: Any) -> None:
        """Start the clock of the first head."""
        super().connection_made(transport)
        # asyncio does so only for sockets that were made with the number of the protocol. Without it, a response of two parts
        # waits 40 ms for the client's acknowledgement of the first.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport: Any = WholeResponses(transport, self.loop)
        self._start_clock(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, and refuse a head that does not end."""
        self._uncounted += len(data)
        super().data_received(data)
        if self._uncounted > MAX_HEAD_BYTES and self.parser is not None and not self.transport.is_closing():
            self._refuse("the head of the request is too large")

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not understand, with its reason."""
        self._refuse(f"the request is not HTTP/1.1: {sys.exc_info()[1] or msg}")

    def on_message_begin(self) -> None:
        """Start the clock of the next head."""
        super().on_message_begin()
        if self._deadline is None:
            self._start_clock(HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        """Start the clock of the body, and let the application begin."""
        self._uncounted = self._body_bytes = 0
        self._is_in_body = True
        self._start_clock(BODY_SECONDS)
        super().on_headers_complete()
        if self.flow.read_paused:  # a request before it is being answered
            self._body_bytes = MIN_BODY_BYTES

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body, whose size is limited elsewhere."""
        self._uncounted = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the clock, and pass on the end of the body."""
        self._deadline, self._is_in_body = None, False
        self._uncounted = 0
        super().on_message_complete()

    def _start_clock(self, seconds: float) -> None:
        """Give the client this time. A timer that is due earlier stays, and is started again for the remaining time."""
        self._deadline = self.loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            self._stop_timer()
            self._timer = self.loop.call_at(self._deadline, self._check_clock)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_clock(self) -> None:
        """End the connection of a client that is too slow."""
        self._timer = None
        if self._deadline is None:
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._check_clock)
            return
        is_paused = self.flow.read_paused  # the server is too slow, not the client
        if not self._is_in_body or (self._body_bytes < MIN_BODY_BYTES and not is_paused):
            self.transport.abort()
            return
        self._body_bytes = MIN_BODY_BYTES if is_paused else 0
        self._start_clock(BODY_SECONDS)

    def _refuse(self, text: str) -> None:
        """Send an error in the form of all others, and close the connection."""
        content = json.dumps({"error": text}).encode()
        head = (
            f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self.transport.close()


class GracefulServer(uvicorn.Server):
    """Answers, when it stops, all requests of connections that clients have made, and those on their way.

    Args:
        config: the options of uvicorn.
        on_stop: called when the server begins to stop: from then on, responses must end their connections.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer what has come, and close all connections."""
        self._on_stop()
        await self._close_listeners(sockets or [])
        loop = asyncio.get_running_loop()
        end = loop.time() + LAST_SECONDS
        while self.server_state.connections and loop.time() < end:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    async def _close_listeners(self, sockets: list[socket.socket]) -> None:
        """Accept the connections that wait in the system, and stop listening."""
        loop = asyncio.get_running_loop()
        accepted: list[socket.socket] = []
        for listener, server in zip(sockets, self.servers, strict=True):
            while True:
                try:
                    accepted.append(listener.accept()[0])
                except OSError:  # none is left
                    break
            # At once: a connection that is made between the last `accept` and this line is lost.
            server.close()
        for connection in accepted:
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        state, config = self.lifespan.state, self.config
        return BoundedProtocol(config, self.server_state, state, _loop=asyncio.get_running_loop())
