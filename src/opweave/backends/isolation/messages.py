"""Messages between a process and its child that runs an engine: pickled objects, then their arrays, which are not copied."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from ...core.bodies import GraphMessage as GraphMessage, NodeMessage as NodeMessage
from .. import Backend, Precision, discover

PROTOCOL = 5
"""First version of pickle that transfers array buffers separately."""

OWN_STATE = frozenset({"threads", "precision", "variants", "find_rivals", "without_rivals"})
"""Attributes of a back end that are not sent as `BackendMessage.state`."""

SIZE = struct.Struct("<Q")
"""Format of a number in the header of a message: the number of buffers, then the size of each in bytes."""


START = b"\0opweave messages\0"
"""Bytes before the first message of a child: startup files of Python, as `sitecustomize`, may print to the same stream."""


def find_start(stream: BinaryIO) -> None:
    """Skip what was printed before the first message; raise EOFError if the other process has ended."""
    window = b""
    while window != START:
        window = window[-len(START) + 1 :] + _read(stream, 1)


def send(stream: BinaryIO, message: Any) -> None:
    """Write a message. If a part of it cannot be pickled, raise the error before anything is written."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, PROTOCOL, buffer_callback=buffers.append)
    views = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    stream.write(SIZE.pack(len(views)) + b"".join(SIZE.pack(view.nbytes) for view in views))
    for view in views:
        stream.write(view)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read a message; raise EOFError if the other process has ended."""
    (count,) = SIZE.unpack(_read(stream, SIZE.size))
    sizes = [SIZE.unpack(_read(stream, SIZE.size))[0] for _ in range(count)]
    body, *buffers = [_read(stream, size) for size in sizes]
    return pickle.loads(body, buffers=buffers)


def _read(stream: BinaryIO, size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        done += count
    return data


@dataclass(frozen=True, slots=True)
class BackendMessage:
    """A back end, as the child finds or creates it.

    If `discover` lists no back end of this name and class, the child creates one, and sets the attributes in `state`.
    """

    kind: type[Backend]
    name: str
    threads: int | None
    precision: Precision
    state: Mapping[str, Any]

    @classmethod
    def of(cls, backend: Backend) -> BackendMessage:
        state = {name: value for name, value in vars(backend).items() if name[0] != "_" and name not in OWN_STATE}
        return cls(type(backend), backend.name, backend.threads, backend.precision, state)

    def backend(self) -> Backend:
        backend = discover().get(self.name)
        if type(backend) is not self.kind:
            backend = self.kind()
            vars(backend).update(self.state)
        assert backend is not None
        threads = self.threads
        return (backend if threads is None else backend.with_threads(threads)).with_precision(self.precision)


@dataclass(frozen=True, slots=True)
class Compile:
    """Request to compile a legal graph as runner number `runner`; the answer is None."""

    runner: int
    backend: BackendMessage
    graph: GraphMessage
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """Request to run a compiled graph; the answer is a list of its outputs."""

    runner: int
    inputs: list[np.ndarray]


@dataclass(frozen=True, slots=True)
class Free:
    """Request to free a compiled graph; the answer is None."""

    runner: int


@dataclass(frozen=True, slots=True)
class Close:
    """Request to free all compiled graphs and to exit; the answer is None."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer if the engine raised an error."""

    kind: type[Exception]
    text: str
