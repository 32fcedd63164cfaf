"""Read the JSON of a request in bounded memory, in pieces, so that other threads can run in between."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from secrets import token_hex
from typing import Any

import numpy as np

from ..support.errors import ValidationError, require
from ..support.formatting import size

MAX_DEPTH = 64
"""Maximum depth of nested lists and objects; NumPy's arrays have at most 64 dimensions."""

LONG_BYTES = 1 << 16
"""Bytes of a piece of text: longer lists of numbers are read in pieces, each of which takes about a millisecond."""

COUNTED_BYTES = 1 << 20

NUMBER_BYTES = 16
"""Estimated bytes of a number in a long list: 8 in an array, and 8 in a copy of a different type."""

WEIGHTS = {ord(","): 40, ord(":"): 100, ord("["): 96, ord("{"): 240, ord('"'): 28}
"""Estimated bytes by character of the text: a Python object, and the pointer to it in a list or dictionary."""

MAX_BYTE_WEIGHT = max(WEIGHTS.values()) + 4
"""Maximum estimated bytes of memory for a byte of the text."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NUMERIC = b"0123456789+-.eE, \t\n\r"
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_RISES = np.zeros(256, np.int8)
_RISES[list(b"[{")], _RISES[list(b"]}")] = 1, -1


class Numbers:
    """A long list of numbers, as an array. Integers are exact if one data type holds all of them."""

    def __init__(self, parts: list[np.ndarray]) -> None:
        kinds = {part.dtype.kind for part in parts}
        if kinds == {"i", "u"} and all(part.min() >= 0 for part in parts):
            parts = [part.astype(np.uint64) for part in parts]
        self.array = np.concatenate(parts)

    def __len__(self) -> int:
        return len(self.array)

    def __repr__(self) -> str:
        return f"a list of {len(self):,} numbers"


def loads(data: bytes, max_bytes: int) -> Any:
    """Parse a JSON text; long lists of numbers become `Numbers`.

    Raises:
        ValidationError: the value would take more than `max_bytes` of memory, as estimated before parsing.
        RecursionError: the text is nested more than `MAX_DEPTH` deep.
        ValueError: the text is not JSON.
    """
    if len(data) <= LONG_BYTES and len(data) * MAX_BYTE_WEIGHT <= max_bytes:  # no text of this length can take too much
        if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
            _check_depth(data)
        return json.loads(data)
    counts = _counts(data)
    _check_memory(_memory(counts | {ord(","): 0}) + NUMBER_BYTES * counts[ord(",")], max_bytes)
    lists: list[Numbers] = []
    parts, position, key = [], 0, token_hex(16)
    for start, end, numbers in _long_lists(data) if len(data) > LONG_BYTES else ():
        parts += [data[position:start], f'{{"{key}":{len(lists)}}}'.encode()]
        position = end
        lists.append(numbers)
    text = b"".join([*parts, data[position:]]) if lists else data
    taken = NUMBER_BYTES * sum(map(len, lists)) + len(text) * (1 if text.isascii() else 4)
    counts = _counts(text) if lists else counts
    _check_memory(taken + _memory(counts), max_bytes)
    if counts[ord("[")] + counts[ord("{")] > MAX_DEPTH:
        _check_depth(text)
    if not lists:
        return json.loads(text)
    return json.loads(text, object_hook=lambda item: lists[item[key]] if key in item else item)


def _check_depth(text: bytes) -> None:
    brackets = np.frombuffer(_STRING.sub(b"", text).translate(None, _NO_BRACKETS), np.uint8)
    depth = int(np.cumsum(_RISES[brackets], dtype=np.int32).max(initial=0))
    if depth > MAX_DEPTH:
        raise RecursionError(f"lists and objects must be nested at most {MAX_DEPTH} deep, got {depth:,}")


def _memory(counts: Mapping[int, int]) -> int:
    return sum(weight * counts[character] for character, weight in WEIGHTS.items())


def _check_memory(needed: int, max_bytes: int) -> None:
    if needed > max_bytes:
        rule = f"more than the limit of {size(max_bytes)}; send tensors as binary data"
        raise ValidationError(f"the JSON of the request would take about {size(needed)} of memory, {rule}")


def _counts(data: bytes) -> dict[int, int]:
    if len(data) <= LONG_BYTES:
        return {character: data.count(character) for character in WEIGHTS}
    # `bytes.count` is slow for frequent characters, and holds the GIL.
    counts = dict.fromkeys(WEIGHTS, 0)
    for start in range(0, len(data), COUNTED_BYTES):
        piece = np.frombuffer(data, np.uint8, min(COUNTED_BYTES, len(data) - start), start)
        for character in counts:
            counts[character] += int(np.count_nonzero(piece == character))
    return counts


def _long_lists(data: bytes) -> Iterator[tuple[int, int, Numbers]]:
    """Yield start, end and numbers of each list of numbers whose text is long."""
    characters, position = np.frombuffer(data, np.uint8), 0
    brackets = np.concatenate(
        [
            start + np.flatnonzero(_RISES[characters[start : start + COUNTED_BYTES]])
            for start in range(0, len(data), COUNTED_BYTES)
        ]
    )
    for place in np.flatnonzero(np.diff(brackets) > LONG_BYTES).tolist():
        start, end = int(brackets[place]), int(brackets[place + 1])
        if start < position or data[start : start + 1] + data[end : end + 1] != b"[]":
            continue
        for match in _STRING.finditer(data, position, start):
            position = match.end()
        if (quote := data.find(b'"', position, start)) >= 0:  # the list is in a string
            if (around := _STRING.match(data, quote)) is None:
                return  # it is not JSON
            position = around.end()
            continue
        position = start
        if parts := _numbers(data, start + 1, end):
            position = end + 1
            yield start, position, Numbers(parts)


def _numbers(data: bytes, start: int, end: int) -> list[np.ndarray]:
    """Read the numbers in `data[start:end]` in pieces; empty if there are other values."""
    parts: list[np.ndarray] = []
    if data[start:end].isspace():
        return parts
    while start <= end:
        comma = data.find(b",", start + LONG_BYTES, end)
        stop = comma if comma >= 0 else end
        piece = data[start:stop]
        if piece.translate(None, _NUMERIC):
            return []
        numbers = json.loads(b"[%b]" % piece)
        if not numbers:
            raise ValueError("a number is missing in a list")
        part = np.array(numbers)
        if part.dtype.kind == "f" and not any(character in piece for character in b".eE"):
            # NumPy makes floats of integers from 2**63 on, if there are smaller ones beside them.
            with suppress(OverflowError):
                part = np.array(numbers, np.uint64)
        if part.dtype.kind not in "iuf":
            return []
        parts.append(part)
        start = stop + 1
    return parts


def flatten(data: list[Any] | Numbers, label: str) -> tuple[list[int], list[Any] | np.ndarray]:
    """Flatten nested lists; return the shape and the elements, as an array if some lists are `Numbers`."""
    shape, lists = [len(data)], (list, Numbers)
    while isinstance(data, list) and data and isinstance(data[0], lists):
        lengths = set(map(len, data)) if set(map(type, data)) <= {*lists} else set()
        require(len(lengths) == 1, f"{label}: the lists in 'data' must have equal lengths")
        shape += lengths
        if any(isinstance(item, Numbers) for item in data):
            kinds = {type(value) for item in data if isinstance(item, list) for value in item}
            require(
                kinds <= {bool, int, float}, f"{label}: the lists in 'data' must have equal lengths, and hold numbers"
            )
            data = Numbers([item.array if isinstance(item, Numbers) else np.array(item) for item in data])
        else:
            data = list(chain.from_iterable(data))
    if isinstance(data, Numbers):
        return shape, data.array
    require(not {*lists} & set(map(type, data)), f"{label}: the lists in 'data' must have equal lengths")
    return shape, data
