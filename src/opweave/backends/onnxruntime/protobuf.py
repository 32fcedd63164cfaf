"""Read serialised protocol buffers: messages are sequences of fields with lengths, so that fields can be skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ...support.varint import read_varint
from .records import field

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int, int]
"""(number, start, value, end): number of a field, negative if the value is not bytes, and three positions in the data."""

Change = Callable[[memoryview, int, int], bytes | None]
"""Returns the new value of the field between two positions; None to keep the field."""


def replace_fields(data: memoryview, start: int, end: int, changes: Mapping[int, Change]) -> bytes | None:
    """Replace fields of a message, by number; None if all fields stay."""
    kept: list[memoryview | bytes] = []
    done = start
    for number, first, value, last in fields(data, start, end):
        if number in changes and (new := changes[number](data, value, last)) is not None:
            kept += [data[done:first], field(number, new)]
            done = last
    return b"".join([*kept, data[done:end]]) if kept else None


def fields(data: memoryview, position: int, end: int) -> Iterator[Field]:
    """Iterate over the fields between two positions; `IndexError` if the last one does not end at `end`."""
    while position < end:
        start = position
        key, position = data[position], position + 1  # nearly all keys and most lengths are one byte
        if key >= 0x80:
            key, position = read_varint(data, start)
        number, kind = key >> 3, key & 7
        if kind == _BYTES:
            length, position = data[position], position + 1
            if length >= 0x80:
                length, position = read_varint(data, position - 1)
        elif kind == _VARINT:
            _, last = read_varint(data, position)
            number, length = -number, last - position
        elif kind in (_FIXED32, _FIXED64):
            number, length = -number, 4 if kind == _FIXED32 else 8
        else:
            raise IndexError(f"wire type {kind}")
        if position + length > end:
            raise IndexError(f"a field of {length} bytes")
        yield number, start, position, position + length
        position += length
