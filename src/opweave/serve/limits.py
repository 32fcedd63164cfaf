"""Limits of one connection, and the budget that enforces its memory limit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from threading import Lock

from ..support.errors import OperationError, require
from ..support.formatting import size
from ..support.names import short_repr


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection (a page, a worker, a process of Node.js).

    Attributes:
        memory: bytes of tensors, constants and intermediates of graphs together; each graph adds 256 KiB, each operand 1 KiB.
        operands: operands of one graph.
        contexts: contexts that exist at the same time. Pages leave contexts to the garbage collector: the W3C's tests create
            more than 200 in a page. A page that creates too many gets errors; other pages are not affected.
        json: bytes of one message in JSON.
        handshake: seconds that a request may take, from the connection to its last byte.
        graphs: graphs that an origin may keep by key; with drafts.
        graph_bytes: bytes of these graphs together.

    Raises:
        ValidationError: a limit is not a positive integer.

    >>> ConnectionLimits(memory=2**20).contexts
    256
    >>> ConnectionLimits(memory=0)
    Traceback (most recent call last):
    opweave.support.errors.ValidationError: memory must be a positive integer, got 0
    """

    memory: int = 2 * 2**30
    operands: int = 65_536
    contexts: int = 256
    json: int = 64 * 2**20
    handshake: int = 30
    graphs: int = 256
    graph_bytes: int = 2**30

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            valid = isinstance(value, int) and not isinstance(value, bool) and value > 0
            require(valid, f"{field.name} must be a positive integer, got {short_repr(value)}")


OPERAND_BYTES = 1024
"""Bytes that an operand counts as, besides the data of a constant: roughly the size of its Python objects."""

GRAPH_BYTES = 256 * 1024
"""Bytes that a graph counts as, besides constants: roughly an ONNX Runtime session with one operation."""


class ServerBudget:
    """The memory of a connection's tensors, constants and intermediates, in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, Lock()
        self.used = 0

    def reserve(self, count: int, purpose: str = "") -> None:
        """Add bytes to the memory in use; an error names their purpose (" for intermediates")."""
        with self._lock:
            if self.used + count > self._limit:
                raise OperationError(
                    f"{size(count)} more{purpose} would exceed the memory that a page may take, {size(self._limit)}, of which "
                    f"{size(self.used)} are in use; destroy() of tensors and graphs frees it"
                )
            self.used += count

    def release(self, count: int) -> None:
        """Subtract from the memory in use."""
        with self._lock:
            self.used -= count
