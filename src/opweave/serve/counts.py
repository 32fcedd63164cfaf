"""Counts of the messages and data of a server's clients."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields

from ..support.formatting import size
from ..support.names import camel_case, count_of


@dataclass
class Counts:
    """Counts of one context, of one connection, or of the whole server.

    Attributes:
        messages: number of messages by kind: "hello", "tensor", "write", "read", "const", "build", "save", "load", "list",
            "delete", "dispatch", "free", "destroy", and "sync" (a request that adds operations, for whose answer JavaScript
            waits).
        connections: number of connected pages, workers and processes.
        contexts: number of contexts created.
        graphs: number of graphs built or loaded.
        dispatches: number of dispatches run.
        received_bytes: bytes of tensors and constants received.
        sent_bytes: bytes of tensors sent.

    >>> both = Counts(graphs=1, dispatches=8) + Counts(graphs=2)
    >>> both.graphs, both.dispatches
    (3, 8)
    """

    messages: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    contexts: int = 0
    graphs: int = 0
    dispatches: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def to_json(self) -> str:
        """Write the counts as a JSON object.

        >>> json.loads(Counts(Counter(read=8), sent_bytes=96).to_json())["sentBytes"]
        96
        """
        return json.dumps({camel_case(name): value for name, value in vars(self).items()})

    def __str__(self) -> str:
        """Describe the counts in words.

        >>> print(Counts(Counter(sync=3, dispatch=8), graphs=1, dispatches=8, received_bytes=4096))
        1 graph, 8 dispatches, 11 messages, 4.0 KiB received, 0 B sent
        """
        dispatches = f"{self.dispatches:,} dispatch{'' if self.dispatches == 1 else 'es'}"
        messages = count_of(self.messages.total(), "message")
        data = f"{size(self.received_bytes)} received, {size(self.sent_bytes)} sent"
        return f"{count_of(self.graphs, 'graph')}, {dispatches}, {messages}, {data}"
