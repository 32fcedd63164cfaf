"""Origins of web pages, and names of hosts, as servers take them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .errors import require
from .names import short_repr

_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^/\s?#@]+")
_HOST = re.compile(r"[^\s/:\[\]]+|\[[0-9A-Fa-f:.]+\]")


def check_origins(origins: Iterable[str]) -> tuple[str, ...]:
    """Require origins as browsers send them.

    >>> check_origins(["http://localhost:5173", "null"])
    ('http://localhost:5173', 'null')
    """
    return _check(origins, "origins", _ORIGIN, "an origin is like 'http://localhost:5173', without a path")


def check_hosts(hosts: Iterable[str]) -> tuple[str, ...]:
    """Require names of hosts, which have no port.

    >>> check_hosts(["models.example", "[fe80::1]"])
    ('models.example', '[fe80::1]')
    """
    return _check(hosts, "hosts", _HOST, "a host is like 'models.example', without a port")


def _check(texts: Iterable[str], title: str, form: re.Pattern[str], rule: str) -> tuple[str, ...]:
    require(not isinstance(texts, str), f"{title} must be a sequence of strings, got {short_repr(texts)}")
    checked = tuple(texts)
    for text in checked:
        require(isinstance(text, str) and form.fullmatch(text) is not None, f"{rule}, got {short_repr(text)}")
    return checked


__all__ = ["check_hosts", "check_origins"]
