"""Requests and responses of HTTP/1.1, as far as browsers and Node.js need them here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

import numpy as np

from ..support.formatting import size
from ..support.names import short_repr
from .stream import DisconnectedError, Stream, WireError

MAX_HEADERS = 100
"""Maximum number of header fields of a request, as in Python's `http.client`."""

MAX_SHOWN = 200
"""Maximum characters of an origin in messages; longer ones are truncated."""

_PLAIN_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[a-zA-Z0-9._:\[\]-]+")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_FIRST = re.compile(r"([A-Z]{3,10}) (/[\x21-\x7e]*) HTTP/1\.([01])")
_LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)


def shown_origin(origin: str | None) -> str:
    r"""An origin for logs and messages, escaped if it is not plain: the client chooses the text.

    >>> shown_origin("http://localhost:5173"), shown_origin(None), shown_origin("http://a\x9b31m")
    ('http://localhost:5173', 'a program', "'http://a\\x9b31m'")
    """
    if origin is None:
        return "a program"
    return origin if len(origin) <= MAX_SHOWN and _PLAIN_ORIGIN.fullmatch(origin) else short_repr(origin)


class HttpError(Exception):
    """A request that is refused, with the status and the headers of the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers: dict[str, str] = {}


@dataclass(frozen=True)
class Request:
    """The head of a request; `headers` by name in lower case, several of one name joined by commas."""

    method: str
    path: str
    headers: Mapping[str, str]
    keeps_alive: bool

    @property
    def origin(self) -> str | None:
        """The origin of the page; None for programs other than browsers."""
        return self.headers.get("origin")

    @property
    def shown_origin(self) -> str:
        """The origin for logs and messages."""
        return shown_origin(self.origin)

    def is_for_this_machine(self) -> bool:
        """Whether the Host header names this machine. With DNS rebinding, another site's name resolves to this machine."""
        return _LOOPBACK.fullmatch(self.headers.get("host", "")) is not None

    def upgrades(self) -> str:
        """The protocol that the client wants to change to, in lower case; empty for none."""
        tokens = [token.strip().lower() for token in self.headers.get("connection", "").split(",")]
        return self.headers.get("upgrade", "").lower() if "upgrade" in tokens else ""

    def tokens(self, header: str) -> list[str]:
        """The values of a header that is a list."""
        return [token.strip() for token in self.headers.get(header, "").split(",") if token.strip()]


def read_request(stream: Stream) -> Request:
    """Read the head of a request; `HttpError` if it is malformed or too large."""
    try:
        head = stream.read_head().decode("latin-1")
    except WireError as error:
        raise HttpError(431, str(error)) from None
    first, *lines = head[:-4].split("\r\n")
    match = _FIRST.fullmatch(first)
    if match is None:
        raise HttpError(400, "the first line is not one of HTTP/1.1")
    if len(lines) > MAX_HEADERS:
        raise HttpError(431, f"there are more than {MAX_HEADERS} headers")
    headers: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise HttpError(400, "a header is malformed")
        name, value = field[1].lower(), field[2].strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    is_last = "close" in headers.get("connection", "").lower() or match[3] == "0"
    return Request(match[1], urlsplit(match[2]).path, headers, not is_last)


def read_body(stream: Stream, request: Request, limit: int) -> bytes:
    """Read the body of a request; `HttpError` beyond `limit` bytes."""
    if "transfer-encoding" in request.headers:
        raise HttpError(501, "a body must have a Content-Length, and no Transfer-Encoding")
    text = request.headers.get("content-length", "0")
    if re.fullmatch(r"[0-9]{1,15}", text) is None:
        raise HttpError(400, "Content-Length is not a number")
    if int(text) > limit:
        raise HttpError(413, f"the body has {size(int(text))}, more than the limit of {size(limit)}")
    body = np.empty(int(text), np.uint8)
    stream.read_into(body)
    return body.tobytes()


def respond(
    stream: Stream,
    status: int,
    body: str | bytes | memoryview = b"",
    *,
    keeps_alive: bool = False,
    headers: Mapping[str, str],
) -> None:
    """Send a response."""
    data = body.encode() if isinstance(body, str) else body
    fields = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **headers}
    if status >= 200 and status != 204:
        fields["Content-Length"] = str(len(data))
    if status != 101:
        fields["Connection"] = "keep-alive" if keeps_alive else "close"
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    try:
        first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode("latin-1")
        stream.send([first, data])
    except OSError as error:
        raise DisconnectedError from error
