"""Graphs by key, a draft: `MLContext.save_graph`, `load_graph`, `list_graphs` and `delete_graph`.

https://github.com/webmachinelearning/webnn/issues/862. A graph is a file (`saved.api`) in a folder of the cache directory. The
name of the file is a digest of the key, which the file has, too. `opweave cache clear` keeps these files. Graphs of web pages
are in a folder of each origin, whose name is a digest, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock

from ..context.context import MLContext
from ..context.graph import MLGraph
from ..context.tensors import check_alive
from ..core.graph import Operand
from ..support import disk_cache, lazy_imports, settings
from ..support.digests import digest
from ..support.errors import DataError, MLError, OperationError, ValidationError, require
from ..support.formatting import size
from ..support.names import count_of, short_repr
from ..support.records import record
from .api import KEY, load_file, writer_of
from .container import Container

FOLDER = "graphs"

LIMIT_VARIABLE = "OPWEAVE_GRAPHS_BYTES"

DEFAULT_LIMIT = 2**32
"""The default of `$OPWEAVE_GRAPHS_BYTES`: some language models of a billion parameters in four bits."""

MAX_KEY = 1024
"""Maximum number of characters of a key."""

SUFFIX = ".opweave"

_writing = Lock()
"""Held while the free space is checked and the graph is written, by threads of this process only."""


@record
class OriginLimits:
    """The most graphs, and the most bytes of them, that pages of an origin may keep."""

    graphs: int
    bytes: int


@lazy_imports.keyed_graphs.provide
def keyed_graphs(context: MLContext) -> KeyedGraphs:
    """The graphs of this user, for a context."""
    return KeyedGraphs(context)


class KeyedGraphs:
    """The graphs in a folder, by key.

    Args:
        context: for which graphs are loaded.
        origin: whose graphs; None for those of programs in Python.
        limits: of the origin, besides the limit of all graphs together.
    """

    def __init__(self, context: MLContext, origin: str | None = None, limits: OriginLimits | None = None) -> None:
        check_alive(context)
        self._context, self._limits = context, limits
        self._folders = (FOLDER,) if origin is None else (FOLDER, digest(origin.encode()).hexdigest())

    def save(self, key: str, graph: MLGraph) -> None:
        """Write a graph; see `MLContext.save_graph`."""
        path = self._path("save_graph", key, create=True)
        require(isinstance(graph, MLGraph), f"save_graph: graph must be an MLGraph, got {type(graph).__name__}")
        require(graph.context is self._context, "save_graph: the graph belongs to another context")
        writer = writer_of(graph, key)
        with _writing:
            _delete_remains(path.parent)
            self._check_room(key, path, writer.size)
            writer.write(path)

    def _check_room(self, key: str, path: Path, new: int) -> None:
        """Require that a graph of `new` bytes fits beside all others."""
        all_bytes = sum(_size(file) for file in _all_files() if file != path)
        limit = bytes_limit()
        taken, rule = all_bytes, f"${LIMIT_VARIABLE} sets the limit"
        if self._limits is not None:
            others = [file for file in self._files() if file != path]
            if len(others) >= self._limits.graphs:
                most = count_of(self._limits.graphs, "graph")
                raise OperationError(f"save_graph: an origin may keep {most} here; delete_graph(key) makes room")
            own_bytes = sum(map(_size, others))
            if self._limits.bytes - own_bytes < limit - all_bytes:
                limit, taken, rule = self._limits.bytes, own_bytes, "this is the limit of an origin"
        if taken + new > limit:
            free = f"{size(max(limit - taken, 0))} of {size(limit)} are free; delete_graph(key) makes room"
            raise OperationError(f"save_graph: the graph {short_repr(key)} takes {size(new)}, and {free}, and {rule}")

    def load(self, key: str, check: Callable[[Mapping[str, Operand]], object] = lambda outputs: None) -> MLGraph:
        """Load a graph; see `MLContext.load_graph`. `check` gets the outputs before they are compiled."""
        path = self._path("load_graph", key)
        if not path.exists():
            raise DataError(f"load_graph: there is no graph {short_repr(key)}")
        return load_file(self._context, path, False, check)

    def keys(self) -> list[str]:
        """The keys of all graphs, sorted."""
        return sorted(filter(None, map(_key_of, self._files())))

    def delete(self, key: str) -> None:
        """Delete a graph, if there is one; see `MLContext.delete_graph`."""
        path = self._path("delete_graph", key)
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):  # there is no such graph, or none was ever saved
            pass
        except OSError as error:
            raise OperationError(f"delete_graph: {path} cannot be deleted: {error.strerror or error}") from None

    def _path(self, subject: str, key: str, create: bool = False) -> Path:
        require(isinstance(key, str), f"{subject}: key must be a string, got {short_repr(key)}")
        fits = 0 < len(key) <= MAX_KEY
        require(fits, f"{subject}: key must have 1 to {MAX_KEY} characters, got {len(key)}")
        try:
            name = digest(key.encode()).hexdigest()
        except UnicodeEncodeError:
            raise ValidationError(f"{subject}: key must be encodable in UTF-8, got {short_repr(key)}") from None
        try:
            return disk_cache.folder(*self._folders, create=create) / f"{name}{SUFFIX}"
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not create:
                return Path(os.devnull, name)  # nothing was saved yet
            place = disk_cache.directory() or "the cache directory"
            raise OperationError(f"{subject}: {place} cannot be used: {error.strerror or error}") from None

    def _files(self) -> list[Path]:
        try:
            return [file for file in disk_cache.folder(*self._folders).iterdir() if file.suffix == SUFFIX]
        except OSError:
            return []


def _delete_remains(folder: Path) -> None:
    """Delete the temporary files of processes that ended while they wrote."""
    for file in folder.glob(f".*{SUFFIX}.*"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > disk_cache.STALE_SECONDS:
                file.unlink()


@record
class KeptGraph:
    """A graph of this user: its key, "" if the file is damaged; of a program, or of the pages of an origin."""

    path: Path
    key: str
    bytes: int
    is_of_page: bool


def kept_graphs() -> list[KeptGraph]:
    """The graphs of programs and of all origins, by key."""
    graphs = [KeptGraph(file, _key_of(file), _size(file), file.parent.name != FOLDER) for file in _all_files()]
    return sorted(graphs, key=lambda graph: (graph.is_of_page, graph.key))


def clear_graphs() -> list[KeptGraph]:
    """Delete the graphs of programs and of all origins, and return them."""
    graphs = kept_graphs()
    for graph in graphs:
        with suppress(OSError):
            graph.path.unlink()
            if graph.is_of_page:
                graph.path.parent.rmdir()
    return graphs


def bytes_limit() -> int:
    """The most bytes that all graphs may take: `$OPWEAVE_GRAPHS_BYTES`."""
    return settings.number(LIMIT_VARIABLE, DEFAULT_LIMIT, least=0, subject="a number of bytes")


def _key_of(file: Path) -> str:
    with suppress(MLError, UnicodeError):  # another process deletes it now, or it is damaged
        return Container.open(file).section(KEY).tobytes().decode()
    return ""


def _all_files() -> list[Path]:
    """The graphs of programs and of all origins."""
    try:
        return [*disk_cache.folder(FOLDER).rglob(f"*{SUFFIX}")]
    except OSError:
        return []


def _size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0
