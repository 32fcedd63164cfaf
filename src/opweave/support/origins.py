"""Origins of web pages, and names of hosts, as servers take them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from urllib.parse import urlsplit

from .errors import require
from .names import short_repr

DEFAULT_PORTS = {"http": 80, "https": 443}
"""Ports that browsers leave out of an origin."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+\]")


def check_origins(origins: Iterable[str]) -> tuple[str, ...]:
    """Require origins as browsers send them.

    >>> check_origins(["http://localhost:5173", "null"])
    ('http://localhost:5173', 'null')
    """
    texts = _check(origins, "origins", origin_of, "an origin is like 'http://localhost:5173', without a path")
    for text in texts:
        sent = origin_of(text)
        require(text == sent, f"an origin must be as browsers send it, {short_repr(sent)}, got {short_repr(text)}")
    return texts


def check_hosts(hosts: Iterable[str]) -> tuple[str, ...]:
    """Require names of hosts, which have no port.

    >>> check_hosts(["models.example", "[fe80::1]"])
    ('models.example', '[fe80::1]')
    """
    return _check(hosts, "hosts", host_of, "a host is like 'models.example', without a port")


def origin_of(text: str) -> str:
    """The origin of a URL as browsers send it; empty if it has none.

    >>> origin_of("http://Models.Example:80/page"), origin_of("https://[::0:1]:8443"), origin_of("http://a,b")
    ('http://models.example', 'https://[::1]:8443', '')
    """
    if text == "null":
        return text
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return ""
    name = parts.netloc.rpartition("@")[2]
    host = host_of(name if port is None and not name.endswith(":") else name.rpartition(":")[0])
    if not (parts.scheme and host):
        return ""
    return f"{parts.scheme}://{host}" + (f":{port}" if port not in (None, DEFAULT_PORTS.get(parts.scheme)) else "")


def host_of(text: str) -> str:
    """The name of a host in lower case, or its address in the shortest form; empty if it is neither.

    >>> host_of("Models.Example"), host_of("[FE80::0:1]"), host_of("[abc]"), host_of("a,b")
    ('models.example', '[fe80::1]', '', '')
    """
    try:
        if _IPV6.fullmatch(text):
            return f"[{IPv6Address(text[1:-1])}]"
        if text.rpartition(".")[2].isdigit():
            return str(IPv4Address(text))
    except AddressValueError:
        return ""
    return text.lower() if _NAME.fullmatch(text) else ""


def _check(texts: Iterable[str], title: str, form: Callable[[str], str], rule: str) -> tuple[str, ...]:
    is_sequence = isinstance(texts, Iterable) and not isinstance(texts, (str, bytes))
    require(is_sequence, f"{title} must be a sequence of strings, got {short_repr(texts)}")
    checked = tuple(texts)
    for text in checked:
        require(isinstance(text, str) and bool(form(text)), f"{rule}, got {short_repr(text)}")
    return checked


__all__ = ["check_hosts", "check_origins", "host_of", "origin_of"]
