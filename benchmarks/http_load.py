"""Clients of servers of models, for benchmarks: requests, and what they take."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from time import perf_counter

import numpy as np

from opweave.scale.protocol import HEADER_LENGTH, Interface, datatype

ANSWER_SECONDS = 60
"""A request that takes longer has failed."""


@dataclass(frozen=True)
class Target:
    """Where requests go, and what they are."""

    port: int
    path: str
    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True)
class Load:
    """How many requests a second were answered, and the seconds that each took."""

    rate: float
    times: list[float]


def load(target: Target, clients: int, seconds: float) -> Load:
    """Send requests for some seconds from this number of clients at once, each over its own connection."""
    start = perf_counter()

    def client(_: int) -> list[float]:
        connection, times = HTTPConnection("127.0.0.1", target.port, timeout=ANSWER_SECONDS), []
        while (begin := perf_counter()) < start + seconds:
            connection.request("POST", target.path, target.body, target.headers)
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                raise RuntimeError(content.decode(errors="replace"))
            times.append(perf_counter() - begin)
        connection.close()
        return times

    with ThreadPoolExecutor(clients) as pool:
        times = [each for found in pool.map(client, range(clients)) for each in found]
    return Load(len(times) / (perf_counter() - start), times)


def request(interface: Interface, feed: dict[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
    """A binary request, and its headers."""
    inputs = [
        {
            "name": argument.name,
            "shape": feed[argument.name].shape,
            "datatype": datatype(argument),
            "parameters": {"binary_data_size": feed[argument.name].nbytes},
        }
        for argument in interface.inputs
    ]
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return header + b"".join(array.tobytes() for array in feed.values()), {HEADER_LENGTH: str(len(header))}
