"""Keys of step plans in saved graphs, and saved refusals: the reasons why a device cannot run nodes."""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ... import __version__
from ...core.graph import Graph, Node, Operand
from ...core.graph_digest import digest_graph
from ...memory.shared_constants import keys_of_shared
from ...support import disk_cache
from ...support.digests import SMALL_BYTES, digest
from .forms import is_users_kernel

if TYPE_CHECKING:
    from .backend import GpuBackend

T = TypeVar("T")

KIND = "plan"
"""Kind of the parts of a saved graph that are plans and refusals."""

ROOMS = ("core", "expr", "ops", "kernels", "composites", "backends/gpu", "backends/cuda")
"""Folders with the sources that decide what is scheduled."""

PACKAGE = __name__.partition(".")[0]


class NoPlanError(Exception):
    """A plan cannot express a step, is damaged, or does not fit the constants of the graph."""


def key_of(graph: Graph, backend: GpuBackend) -> str:
    """The key of the plan of a graph; empty if the plan depends on more than a key covers."""
    if graph.has_names or keys_of_shared() is not None or not all(_is_own(node, backend) for node in graph.nodes):
        return ""

    def contents_of(operand: Operand) -> bytes:
        array = operand.value
        return array.tobytes() if array.nbytes <= SMALL_BYTES else b""

    features = replace(backend.features, dialect=None)  # type: ignore[arg-type]
    tiles = backend.tiles_in_use()
    names, shared = [node.label for node in graph.nodes], _shared_memory([o.value for o in constants_of(graph)])
    parts = _sources(), backend.name, backend.precision, features, tiles, names, shared
    return digest(f"{parts} {digest_graph(graph, contents_of)}".encode()).hexdigest()


def constants_of(graph: Graph) -> list[Operand]:
    """The constants that the nodes of a graph read, in order."""
    return list(dict.fromkeys(o for node in graph.nodes for o in node.operands if o.is_constant))


def _shared_memory(arrays: Sequence[np.ndarray]) -> list[list[tuple[int, int]]]:
    """Groups of arrays that overlap in memory, as numbers and offsets: a plan reads an array from the first that holds it.

    Arrays whose elements are in the key matter only beside others.
    """
    groups: list[list[tuple[int, int]]] = []
    end = 0
    bounds = [(*np.lib.array_utils.byte_bounds(array), number) for number, array in enumerate(arrays) if array.size]
    for low, high, number in sorted(bounds):
        if not groups or low >= end:
            groups.append([])
        groups[-1].append((number, low))
        end = max(end, high)
    return [
        sorted((number, low - group[0][1]) for number, low in group)
        for group in groups
        if len(group) > 1 and any(arrays[number].nbytes > SMALL_BYTES for number, _ in group)
    ]


def _is_own(node: Node, backend: GpuBackend) -> bool:
    """Whether the operation of a node, its rule and its kernels are Opweave's, whose sources are in the key."""
    op, module, rule = node.op, sys.modules.get(node.op.__module__), backend.rule(node)
    homes = [op.__module__, *([] if rule is None else [rule.function.__module__])]
    is_named = module is not None and getattr(module, op.__qualname__, None) is op
    is_own = is_named and all(home.startswith(f"{PACKAGE}.") for home in homes)
    return is_own and not op.bodies and not is_users_kernel(node, backend)


@cache
def _sources() -> str:
    """A digest of the version, and of the names, sizes and times of the files in `ROOMS`: reading these would take 10 ms."""
    package, files = Path(__file__).parents[2], list[str]()
    folders = [f"{package}/{room}" for room in ROOMS]
    while folders:
        for entry in os.scandir(folder := folders.pop()):
            if entry.is_dir():
                folders.append(f"{folder}/{entry.name}")
            elif entry.name.endswith(".py"):
                status = entry.stat()
                files.append(f"{folder.removeprefix(str(package))}/{entry.name} {status.st_size} {status.st_mtime_ns}")
    return digest(f"{__version__} {sorted(files)}".encode()).hexdigest()


def saved_refusals(graph: Graph, backend: GpuBackend) -> dict[Node, str | None]:
    """Saved results of `GpuBackend.why_not` for the nodes of a graph; empty if there are none."""
    if disk_cache.has_layers(KIND) and (key := key_of(graph, backend)):
        data = disk_cache.load(_key_of_refusals(key), KIND)
        answers = (
            None if data is None else try_decode(lambda: {graph.nodes[k]: answer for k, answer in json.loads(data)})
        )
        if answers is not None:
            return answers
    return {}


def refusals_part(
    graph: Graph, backend: GpuBackend, refusals: Mapping[Node, str | None]
) -> dict[tuple[str, str], bytes]:
    """The part that `saved_refusals` reads; empty if the graph has no key, or no refusals."""
    answers = [(number, refusals[node]) for number, node in enumerate(graph.nodes) if node in refusals]
    key = key_of(graph, backend) if answers else ""
    return {(_key_of_refusals(key), KIND): json.dumps(answers).encode()} if key else {}


def _key_of_refusals(key: str) -> str:
    return digest(f"refusals {key}".encode()).hexdigest()


def try_decode(decode: Callable[[], T]) -> T | None:
    """The result of `decode`; None if the data are damaged, or do not fit."""
    try:
        return decode()
    except (
        NoPlanError,
        zlib.error,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ):
        return None
