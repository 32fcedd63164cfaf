"""The scope in which programs of a graph share constants in the same order."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_keys: ContextVar[set[Hashable] | None] = ContextVar("keys", default=None)


@contextmanager
def shared_constants(keys: set[Hashable] | None) -> Iterator[None]:
    """Compile a program in this scope: one of several programs of a graph, or the only one if `keys` is None.

    `keys` identify constants of all programs, each in the order in which kernels read it. Back ends add keys of new constants.
    """
    token = _keys.set(keys)
    try:
        yield
    finally:
        _keys.reset(token)


def keys_of_shared() -> set[Hashable] | None:
    """The keys of the constants that programs of the graph share so far; None if the graph has one program."""
    return _keys.get()
