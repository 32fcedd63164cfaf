"""What the clients of a server have done."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from ..support.names import camel_case, counted
from ..support.words import size


@dataclass
class Counts:
    """What a context, a connection or all of them have done.

    Attributes:
        messages: how many messages of each kind came: "hello", "tensor", "write", "read", "const", "build", "dispatch",
            "free", "destroy"; and "sync", the requests that add operations while JavaScript waits.
        connections: pages, workers and processes that were connected.
        contexts: contexts that were created.
        graphs: graphs that were built.
        dispatches: dispatches that ran.
        received_bytes: contents of tensors and constants that were received.
        sent_bytes: contents of tensors that were sent.

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
        return Counts(
            self.messages + other.messages,
            self.connections + other.connections,
            self.contexts + other.contexts,
            self.graphs + other.graphs,
            self.dispatches + other.dispatches,
            self.received_bytes + other.received_bytes,
            self.sent_bytes + other.sent_bytes,
        )

    def to_json(self) -> str:
        """As an object of JavaScript.

        >>> json.loads(Counts(Counter(read=8), sent_bytes=96).to_json())["sentBytes"]
        96
        """
        return json.dumps({camel_case(name): value for name, value in vars(self).items()})

    def __str__(self) -> str:
        """In words.

        >>> print(Counts(Counter(sync=3, dispatch=8), graphs=1, dispatches=8, received_bytes=4096))
        1 graph, 8 dispatches, 11 messages, 4.0 KiB received, 0 B sent
        """
        dispatches = f"{self.dispatches:,} dispatch{'' if self.dispatches == 1 else 'es'}"
        messages = counted(self.messages.total(), "message")
        data = f"{size(self.received_bytes)} received, {size(self.sent_bytes)} sent"
        return f"{counted(self.graphs, 'graph')}, {dispatches}, {messages}, {data}"
