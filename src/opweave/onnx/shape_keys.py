"""Keys of compiled shapes: the shapes of inputs, and the values of inputs that determine shapes."""

from __future__ import annotations

from typing import Any

Key = tuple[Any, ...]
"""Pairs of an input's name and its shape, then pairs of a name and the bytes of an input whose value determines shapes."""


def text_of(key: Key) -> str:
    """Shapes and deciding values as text.

    >>> text_of((("x", (1, 3)), ("n", b"\\x02\\x00")))
    'x [1, 3], n = 0200'
    """
    parts = []
    for name, what in key:
        if isinstance(what, bytes):
            parts.append(f"{name} = {what.hex()}")
        else:
            parts.append(f"{name} {list(what)}" if what is not None else name)
    return ", ".join(parts)
