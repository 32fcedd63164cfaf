"""Keys of kept measurements, which sessions need before they load the module that reads measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import __version__
from ..support import digests, disk_cache
from ..support.processors import processor_name, processors

if TYPE_CHECKING:
    from ..backends import Backend

FORMAT = 7
"""The format of kept measurements; others are not read."""

KIND = disk_cache.TUNING


def key_of(digest: str, machine: str, versions: str) -> str:
    """The key of a graph or model in the cache on disk; its first digits depend on the graph or model alone."""
    prefix = digests.prefix_of(digest)
    return prefix + digests.digest(f"{FORMAT} {digest} {machine} {versions}".encode()).hexdigest()[len(prefix) :]


def machine(ways: Mapping[str, Backend]) -> str:
    """The processor, and the number of threads of an operation."""
    threads = next(iter(ways.values())).threads or processors()
    return f"{processor_name()}, {threads} threads"


def versions(ways: Mapping[str, Backend]) -> str:
    """The versions of Opweave and of the engines."""
    return ", ".join([f"opweave {__version__}", *(f"{name} {way.version()}" for name, way in ways.items())])
