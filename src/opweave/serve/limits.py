"""What one connection may take, and how errors are reported to a client that exceeds it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from threading import Lock

from ..support.errors import OperationError, require
from ..support.names import shown
from ..support.words import size


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection (a page, a worker, a process of Node.js) may take.

    Attributes:
        memory: bytes of its tensors and constants, and of the intermediates of its graphs, together; a graph counts as 256 KiB
            more, an operand as 1 KiB.
        operands: operands of one graph.
        contexts: contexts that exist at the same time. Pages leave contexts to the garbage collector: the W3C's own tests
            create more than 200 in a page. One that creates them without end gets errors, and others are not disturbed.
        json: bytes of one message in JSON.
        handshake: seconds that a request may take, from the connection to its last byte.

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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            valid = isinstance(value, int) and not isinstance(value, bool) and value > 0
            require(valid, f"{field.name} must be a positive integer, got {shown(value)}")


OPERAND_BYTES = 1024
"""What an operand counts as, besides a constant's contents: about what its objects take in Python."""

GRAPH_BYTES = 256 * 1024
"""What a graph counts as, besides constants: about what ONNX Runtime's session takes for one operation."""


class Budget:
    """The memory of a connection's tensors, constants and intermediates, in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, Lock()
        self.used = 0

    def reserve(self, count: int, purpose: str = "") -> None:
        """Add to the memory in use.

        Args:
            count: bytes.
            purpose: what they are for, in the message of an error: " for intermediates".

        Raises:
            OperationError: it would be more than the limit.
        """
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
