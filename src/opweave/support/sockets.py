"""Sockets that listen on an address."""

from __future__ import annotations

import socket

from .errors import OperationError
from .names import short_repr

MAX_SHOWN = 253
"""Maximum characters of a name in a message as it is: the longest name of DNS."""


def listen_on(host: str, port: int, backlog: int, remedy: str) -> socket.socket:
    """Listen on an address of IPv4 or IPv6; `OperationError` with the reason and a remedy if that is impossible."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=backlog)
    except (
        OSError,
        UnicodeError,
        TypeError,
    ) as error:  # `socket` raises TypeError for names with NUL, or too long for IDNA
        text = getattr(error, "strerror", None) or str(error)
        # `create_server` appends the address. `os.strerror` has no texts for the numbers of names that cannot be resolved.
        reason = text.partition(" (while attempting to bind")[0]
        shown = f"{host}:{port}" if host.isprintable() and len(host) <= MAX_SHOWN else short_repr(f"{host}:{port}")
        raise OperationError(f"cannot listen on {shown}: {reason}; {remedy}") from None


__all__ = ["listen_on"]
