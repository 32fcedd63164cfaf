"""Compiled parts in a file: native code and step plans for processors and devices, by the keys of the cache on disk.

Code of a file runs only if the caller trusts the file, or if the file has an authentication code under the key of this user.
Then compilers find the parts as if they were in the cache. A part for another processor, device or version has another key,
and is not found: the graph has everything to compile it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..backends.exports import COMPILED, OPTIMISED, REPLACED
from ..context.graph_state import GraphState
from ..support import disk_cache
from ..support.digests import DIGEST_BYTES, blake2b, digest_of_file
from ..support.errors import DataError
from ..support.names import count_of
from .container import Container, ContainerWriter

if TYPE_CHECKING:
    import numpy as np

    from ..backends.exports import Exported

PREFIX = "opweave."
"""Names of sections begin so, unless they are constants."""

PART = "opweave.part."

DIGEST, AUTHENTICATION = "opweave.digest", "opweave.authentication"
"""Sections with the digest of everything but weights, and the authentication code: a keyed digest of the first digest."""

NATIVE = ("o", "cubin")
"""Kinds of files in the cache on disk that are native code."""

PLANNED = ("plan",)
"""Kinds of parts that say which kernels run. They have sources of kernels, and need as much trust as native code."""

EXPORTED = (COMPILED, OPTIMISED, REPLACED)
"""Kinds of parts that engines export; only `layout="device"` writes them."""

TENSOR = "engine."
"""Names of sections with weights in the order of an engine's kernels. Like constants, they are mapped, and have no digest:
anyone who can change a file can change results."""

MAX_GROWTH = 1.2
"""Largest total size of weights from engines, as a multiple of the size of the file without these weights. An estimate."""


def add_parts(writer: ContainerWriter, keys: Iterable[tuple[str, str]]) -> None:
    """Add the compiled parts that the cache on disk has; files without the others are compiled again when they are loaded."""
    for key, kind in sorted(keys):
        if kind in NATIVE and (data := disk_cache.load(key, kind)) is not None:
            writer.add(f"{PART}{key}.{kind}", "uint8", (len(data),), data)


def add_contents(writer: ContainerWriter, parts: Mapping[tuple[str, str], bytes]) -> None:
    """Add parts that no cache has, by key and kind."""
    for (key, kind), content in sorted(parts.items()):
        writer.add(f"{PART}{key}.{kind}", "uint8", (len(content),), content)


def add_exported(writer: ContainerWriter, exports: Iterable[Exported]) -> list[str]:
    """Add parts that engines export; return the reasons why some are left out."""
    contents: dict[str, bytes] = {}
    tensors: dict[str, np.ndarray] = {}
    reasons: list[str] = []
    room = MAX_GROWTH * writer.size
    for export in exports:
        added = {f"{TENSOR}{name}": array for name, array in export.tensors.items()}
        if sum(array.nbytes for array in (tensors | added).values()) > room:
            reasons.append(f"the engine's weights would make the file more than {1 + MAX_GROWTH} times as large")
            continue
        tensors |= added
        contents |= {f"{PART}{key}.{kind}": content for (key, kind), content in export.parts.items()}
        reasons += [export.reason] if export.reason else []
    for name, array in tensors.items():
        writer.add(name, array.dtype.name, array.shape, array)
    for name, content in contents.items():
        writer.add(name, "uint8", (len(content),), content)
    return list(dict.fromkeys(reasons))


def seal(writer: ContainerWriter) -> None:
    """Add the digests, after all other sections."""
    for name in (DIGEST, AUTHENTICATION):
        writer.add(name, "uint8", (DIGEST_BYTES,), bytes(DIGEST_BYTES))
    contents = [data for name, data in writer.sections().items() if _is_covered(name)]
    digest = digest_of_file([writer.header(), *contents])
    writer.replace(DIGEST, digest)
    if (key := disk_cache.secret()) is not None:
        writer.replace(AUTHENTICATION, _authenticate(digest, key))


def _is_covered(name: str) -> bool:
    return name.startswith(PREFIX) and name not in (DIGEST, AUTHENTICATION)


def _authenticate(digest: bytes, key: bytes) -> bytes:
    """The authentication code of a file. It covers the digest alone: finding other contents with this digest is infeasible."""
    return blake2b(digest, digest_size=DIGEST_BYTES, key=key).digest()


class FileParts:
    """The compiled parts of an open file.

    Attributes:
        is_trusted: whether the parts may run.
        left_out: the reasons why the file lacks parts that engines export.

    Raises:
        DataError: the digest of the file is wrong.
    """

    def __init__(self, container: Container, trusted: bool) -> None:
        self._container = container
        self.left_out: list[str] = []
        contents = {name: container.section(name).tobytes() for name in container.all_names if _is_covered(name)}
        self._digest = digest_of_file([container.header, *contents.values()])
        if container.section(DIGEST).tobytes() != self._digest:
            raise DataError(f"{container.path}: it is damaged: its digest is another one")
        names = re.compile(
            rf"{re.escape(PART)}(runtime-)?[0-9a-f]{{32,64}}\.({'|'.join((*NATIVE, *PLANNED, *EXPORTED))})"
        )
        self._names = {name.removeprefix(PART) for name in container.names if names.fullmatch(name)}
        self.is_trusted = trusted or (bool(self._names) and self._is_own())
        # The bytes that were checked: the file behind the mapping may change afterwards.
        self._parts = {name: contents[f"{PART}{name}"] for name in self._names} if self.is_trusted else {}
        if self.is_trusted and self._names:
            disk_cache.add_layer(self)

    def _is_own(self) -> bool:
        """Whether this user has written the file on this machine."""
        key = disk_cache.secret()
        code = self._container.section(AUTHENTICATION).tobytes()
        return key is not None and code == _authenticate(self._digest, key)

    def load(self, key: str, kind: str) -> bytes | None:
        """The content of a part; see `disk_cache.Layer`."""
        return self._parts.get(f"{key}.{kind}")

    def has(self, kind: str) -> bool:
        """Whether there are parts of a kind."""
        return any(name.endswith(f".{kind}") for name in self._parts)

    def tensor(self, name: str) -> np.ndarray | None:
        """The bytes of weights that belong to a part; see `disk_cache.Layer`."""
        section = f"{TENSOR}{name}"
        return self._container.section(section) if section in self._container else None

    def describe(self, state: GraphState) -> str:
        """Describe the origin of the graph, and the reason why compiled parts are used or not, for `explain`."""
        kinds = {*NATIVE, *(name.rpartition(".")[2] for name in self._names)}
        needed = {f"{key}.{kind}" for program in state.programs for key, kind in program.cache_keys() if kind in kinds}
        origin = f"loaded from {self._container.path}"
        if self.left_out:
            origin += f" (without parts that the engine compiled: {'; '.join(self.left_out)})"
        has_models = any(name.endswith(tuple(f".{kind}" for kind in EXPORTED)) for name in self._names)
        if not needed and (self.is_trusted or not has_models):  # keys of models are computed for trusted files alone
            return origin
        if not self.is_trusted:
            reason = "this user has not written the file on this machine, and it was not loaded with trusted=True"
            return f"{origin}, compiled again: {reason}" if self._names else f"{origin}, which has no compiled parts"
        used = f"{origin}, with {len(needed & self._names)} of {count_of(len(needed), 'compiled part')}"
        is_complete = needed <= self._names
        return used if is_complete else f"{used}; the file has others, if any, for another processor, device or version"
