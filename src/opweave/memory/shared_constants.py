"""Constants that all programs of a graph share, in orders that suit all of their kernels."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_keys: ContextVar[set[Hashable] | None] = ContextVar("keys", default=None)


@contextmanager
def shared_constants(keys: set[Hashable] | None) -> Iterator[None]:
    """A scope that compiles one of several programs of a graph; None for the only program.

    `keys` identify the constants of all programs in the orders in which kernels read them. Back ends add new ones.
    """
    token = _keys.set(keys)
    try:
        yield
    finally:
        _keys.reset(token)


def keys_of_shared() -> set[Hashable] | None:
    """The keys of the constants that programs of the graph share so far; None if the graph has one program."""
    return _keys.get()
