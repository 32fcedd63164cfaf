"""Clients of servers of models, for benchmarks: requests, and what they take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from time import perf_counter

import numpy as np

from opweave.scale.protocol import HEADER_LENGTH, Interface, datatype

from .page import Table

SOAK_CLIENTS, SOAK_PARTS = 8, 20
"""Clients of each server that send many requests, and how often memory is read meanwhile."""

SOAK_SHOWN = (1, 4, 9, 14, 19)
"""The readings that tables have; the first parts fill caches."""

SOAK_MIB = 3
"""Maximum growth of a process of Opweave beyond that of the bare server, in MiB."""

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


def soak_table(used: Mapping[str, Sequence[float]], titles: Mapping[str, str], each: int) -> Table:
    """The table of memory while servers get many requests.

    Args:
        used: MiB of each process after each part, by name: "opweave", "bare" and others.
        titles: the processes in words, by name.
        each: the number of requests of a client in a part.

    Raises:
        SystemExit: the process of Opweave has grown by more than `SOAK_MIB` beyond the bare one.
    """
    rows, grown = [], {}
    for name, title in titles.items():
        sizes = [used[name][part] for part in SOAK_SHOWN]
        grown[name] = sizes[-1] - sizes[0]
        rows.append([title, *(f"{size:.1f}" for size in sizes), f"{grown[name]:+.1f}"])
    if grown["opweave"] - grown["bare"] > SOAK_MIB:
        raise SystemExit(f"the memory of Opweave's process grows: {grown} MiB")
    counts = [f"{(part + 1) * each * SOAK_CLIENTS:,}" for part in SOAK_SHOWN]
    return Table(["MiB after requests", *counts, f"since {counts[0]}"], rows, right=range(1, 7))
