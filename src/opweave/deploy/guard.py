"""Refuse requests that come from other sites' web pages, and end connections while the server stops."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from ..scale.http import error_response
from ..support.origins import host_of

Message = MutableMapping[str, Any]
Application = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
                       Awaitable[None]]  # fmt: skip


class SiteGuard:
    """An ASGI application around another one.

    A server without authentication that listens on this machine alone is within reach of each page that a browser here opens.
    Requests with the header `Origin` of another site are refused, and on a loopback address also those with a name in `Host`
    that is not of this machine: a site may let its name mean 127.0.0.1 (DNS rebinding).

    Args:
        application: gets the other requests.
        host: the address on which the server listens.
        hosts: further names that `Host` may have, such as that of a proxy.
        origins: origins of pages that may send requests, such as "http://localhost:3000".

    Attributes:
        is_stopping: whether responses end their connections.
    """

    def __init__(self, application: Application, host: str, hosts: Collection[str], origins: Collection[str]) -> None:
        self._application = application
        self._hosts = frozenset(_relative(name) for name in hosts) - {""} if is_loopback(host) else None
        self._origins = frozenset(origins)
        self.is_stopping = False

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        sender = send_last if self.is_stopping else send
        # Browsers send each of them once; the parser has refused control characters.
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"origin")}
        if reason := self._why_refused(headers):
            await error_response(reason, 403)(scope, receive, sender)
        else:
            await self._application(scope, receive, sender)

    def _why_refused(self, headers: Mapping[bytes, str]) -> str:
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if self._hosts is not None and host:
            name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
            if not is_loopback(name.strip("[]")) and _relative(name) not in self._hosts:
                return f"the header Host must name this machine, as the server listens on it alone, got {name[:200]!r}"
        if origin is not None and origin not in self._origins:
            try:
                own = urlsplit(origin).netloc.lower() == host.lower()
            except ValueError:
                own = False
            if not own:
                return f"pages of {origin[:200]!r} may not send requests; --origin allows them"
        return ""


@lru_cache(64)  # each client sends the same name with each request
def _relative(name: str) -> str:
    """A host's name in one spelling, without the dot at the end of absolute names; empty for what is no name."""
    return host_of(name.removesuffix("."))


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine alone.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
