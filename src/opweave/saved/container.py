"""The container of saved graphs: a safetensors file, whose sections are mapped.

https://github.com/huggingface/safetensors#format: the length of a header in JSON, the header, and the sections that it lists,
without gaps. Any reader of safetensors can read the weights. Sections begin at multiples of 64 bytes, so that engines use the
mapped memory as it is; sections of padding are between them.

Files may be untrusted: lengths, offsets and types are checked before a section is used, and nothing is unpickled.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..core.desc import MAX_RANK
from ..memory.host import ALIGNMENT
from ..support.errors import DataError
from ..support.files import atomic_writer
from ..support.names import short_repr

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = "opweave"

VERSION = 1
"""The version of the format. Readers refuse later ones."""

MAX_HEADER_BYTES = 2**26
"""Maximum size of the header: half a million sections."""

PADDING = "opweave.padding."

TYPES: Mapping[str, str] = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "uint64": "U64", "int32": "I32", "uint32": "U32", "int16": "I16",
    "uint16": "U16", "int8": "I8", "uint8": "U8",
}  # fmt: skip
"""Names of safetensors for data types; other types are bytes."""

_BYTE_LENGTHS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2,
    "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


class ContainerWriter:
    """Collects sections, and writes them as one file.

    >>> import tempfile
    >>> writer = ContainerWriter()
    >>> writer.add("weights", "float32", (2,), np.float32([1, 2]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer.write(f"{folder}/file")
    ...     container = Container.open(f"{folder}/file")
    >>> container.section("weights").view("float32").tolist()
    [1.0, 2.0]
    """

    def __init__(self) -> None:
        self._header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "version": str(VERSION)}}
        self._data: list[Any] = []
        self._end = 0

    def add(self, name: str, data_type: str, shape: Iterable[int], data: Any) -> None:
        """Add a section; `data` is a contiguous array or bytes, which are written later."""
        if gap := -self._end % ALIGNMENT:
            self._add(f"{PADDING}{len(self._data)}", "U8", [gap], bytes(gap), gap)
        size = data.nbytes if isinstance(data, np.ndarray) else len(data)
        if data_type in TYPES:
            self._add(name, TYPES[data_type], list(shape), data, size)
        else:
            self._add(name, "U8", [size], data, size)

    def _add(self, name: str, data_type: str, shape: list[int], data: Any, size: int) -> None:
        start, self._end = self._end, self._end + size
        self._header[name] = {"dtype": data_type, "shape": shape, "data_offsets": [start, self._end]}
        self._data.append(data)

    def header(self) -> bytes:
        """The header, padded so that the first section is aligned."""
        text = json.dumps(self._header, separators=(",", ":")).encode()
        return text + b" " * (-(len(text) + 8) % ALIGNMENT)

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return 8 + len(self.header()) + self._end

    def replace(self, name: str, data: bytes) -> None:
        """Replace the content of a section by another one of its size."""
        place = [*self._header][1:].index(name)
        assert len(self._data[place]) == len(data)
        self._data[place] = data

    def sections(self) -> dict[str, Any]:
        """The contents by name, in the order of the file."""
        return dict(zip([*self._header][1:], self._data, strict=True))

    def write(self, path: str | Path) -> None:
        """Write the file; an existing one is replaced once the new one is complete.

        Raises:
            DataError: the file cannot be written.
        """
        with atomic_writer(path) as file:
            self._write(file)

    def _write(self, file: BinaryIO) -> None:
        header = self.header()
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for data in self._data:
            if isinstance(data, np.ndarray):
                little = data.astype(data.dtype.newbyteorder("<"), copy=False) if data.dtype.kind in "fiu" else data
                data = little.reshape(-1).view(np.uint8).data
            file.write(data)


class Container:
    """An open file: its sections are views of mapped memory.

    Attributes:
        path: as it was opened.
        header: its header, as bytes.
    """

    def __init__(self, path: str, header: bytes, data: np.ndarray, places: Mapping[str, tuple[int, int]]) -> None:
        self.path, self.header = path, header
        self._data, self._places = data, places

    @classmethod
    def open(cls, path: str | Path) -> Container:
        """Map a file, and check its header.

        Raises:
            DataError: there is no such file; it is of another format, a later version, truncated or damaged.
        """
        name = os.fsdecode(path)
        whole = _map(name)
        if whole.nbytes < 8:
            raise DataError(f"{name}: a saved graph has at least 8 bytes, got {whole.nbytes}")
        length = int.from_bytes(whole[:8].tobytes(), "little")
        if length > MAX_HEADER_BYTES or whole[8:9].tobytes() != b"{":
            raise DataError(f"{name}: this is no saved graph of Opweave (MLGraph.save writes such files)")
        if length > whole.nbytes - 8:
            raise DataError(f"{name}: the file is truncated: its header has {length} bytes, got {whole.nbytes - 8}")
        header = whole[8 : 8 + length].tobytes()
        data = whole[8 + length :]
        try:
            entries = read_json(header)
            places = _places(entries, data.nbytes)
        except ValueError as error:
            raise DataError(f"{name}: {error}") from None
        return cls(name, header, data, places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    @property
    def all_names(self) -> list[str]:
        """The names of all sections, in the order of the file."""
        return list(self._places)

    @property
    def names(self) -> list[str]:
        """The names of the sections, without padding."""
        return [name for name in self._places if not name.startswith(PADDING)]

    def size(self, name: str) -> int:
        """The bytes of a section."""
        start, stop = self._places[name]
        return stop - start

    def section(self, name: str) -> np.ndarray:
        """A section as bytes, without a copy.

        Raises:
            DataError: there is no such section.
        """
        if name not in self._places:
            raise DataError(f"{self.path}: the section {short_repr(name)} is missing")
        start, stop = self._places[name]
        return self._data[start:stop]


def read_json(text: bytes) -> Any:
    """Read untrusted JSON; `ValueError` if it is invalid, too deep, or has a name twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            raise ValueError("an object has a name twice")
        return entries

    def refuse(text: str) -> float:
        raise ValueError(f"{text} is no number of JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is damaged: {error}") from None


def _map(path: str) -> np.ndarray:
    """The bytes of a file, mapped and read-only."""
    try:
        # Without waiting for the writer of a pipe.
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(path, flags)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{path}: a saved graph is a regular file")
            if status.st_size == 0:
                return np.empty(0, np.uint8)
            mapped = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # the path contains a null character
        raise DataError(f"{path!r}: {error}") from None
    return np.frombuffer(mapped, np.uint8)


def _places(entries: Any, size: int) -> dict[str, tuple[int, int]]:
    """The begin and the end of each section; `ValueError` for a header that does not fit the file."""
    metadata = entries.pop("__metadata__", None) if isinstance(entries, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise ValueError("this is no saved graph of Opweave (MLGraph.save writes such files)")
    version = metadata.get("version")
    if not isinstance(version, str) or not version.isascii() or not version.isdigit() or len(version) > 9:
        raise ValueError(f"the version of its format must be a number, got {short_repr(version)}")
    if int(version) > VERSION:
        raise ValueError(
            f"a later version of Opweave has written it, in format {version}; this one reads format {VERSION}"
        )
    places: dict[str, tuple[int, int]] = {}
    for name, entry in entries.items():
        fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
        data_type, shape, offsets = (fields.get(field) for field in ("dtype", "shape", "data_offsets"))
        width = _BYTE_LENGTHS.get(data_type, 0) if isinstance(data_type, str) else 0
        if not (width and _are_lengths(shape, range(MAX_RANK + 1)) and _are_lengths(offsets, (2,))):
            raise ValueError(f"the section {short_repr(name)} is damaged: {short_repr(entry)}")
        start, stop = offsets or (0, 0)
        if start > stop or stop - start != prod(shape or ()) * width:
            raise ValueError(f"the section {short_repr(name)} has {stop - start} bytes, which are not {shape}")
        places[name] = start, stop
    end = 0
    for name, (start, stop) in sorted(places.items(), key=lambda item: item[1]):
        if start != end:
            raise ValueError(f"the section {short_repr(name)} begins at {start}, and the one before ends at {end}")
        end = stop
    if end > size:
        raise ValueError(f"the file is truncated: its sections have {end} bytes, got {size}")
    if end < size:
        raise ValueError(f"{size - end} bytes follow its sections")
    return places


def _are_lengths(value: Any, counts: Sequence[int]) -> bool:
    is_list = isinstance(value, list) and len(value) in counts
    return is_list and all(type(item) is int and 0 <= item < 2**63 for item in value)
