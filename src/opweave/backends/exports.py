"""Compiled parts that engines export into saved graphs: their format, and inputs and keys for checking them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..support.processors import processor_lines, processor_name
from ..support.records import field, record

COMPILED, OPTIMISED, REPLACED = "blob", "optimised", "replaced"
"""Kinds of parts: a model that OpenVINO has compiled; a graph that ONNX Runtime has optimised; the names of the constants that
ONNX Runtime has replaced in this graph. Engines do not check such parts, so they need files as trusted as native code does."""

RUNS = 3
"""Number of runs that compare an exported part with the engine: a first run may overwrite values computed while loading."""

HEADER_BYTES = 8


@record
class Exported:
    """Compiled parts of a runner for a saved graph, or the reason why there are none.

    Attributes:
        parts: contents by key and kind.
        tensors: weights in the order of the engine's kernels, by name. Files map them, and do not check their contents.
        reason: empty if there are parts.
    """

    parts: Mapping[tuple[str, str], bytes] = field(default_factory=dict)
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    reason: str = ""


def pack(header: Mapping[str, Any], content: bytes) -> bytes:
    """The content of a part with a header; `unpack` returns both."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(HEADER_BYTES, "little") + text + content


def unpack(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """The header and the content of a part.

    >>> header, content = unpack(pack({"threads": 2}, b"model"))
    >>> header, bytes(content)
    ({'threads': 2}, b'model')
    """
    end = HEADER_BYTES + int.from_bytes(data[:HEADER_BYTES], "little")
    return json.loads(data[HEADER_BYTES:end]), memoryview(data)[end:]


def random_inputs(types: Iterable[tuple[np.dtype[Any], Sequence[int]]], run: int) -> list[np.ndarray]:
    """Inputs of these data types and shapes for one of `RUNS` comparisons."""
    generator = np.random.default_rng(run)
    inputs = []
    for data_type, shape in types:
        if "float" in data_type.name:
            inputs.append(np.asarray(generator.normal(size=shape) * 4.0**run / 4).astype(data_type))
        else:  # they may be indices
            inputs.append(np.asarray(generator.integers(0, 2, shape)).astype(data_type))
    return inputs


def checksum(array: np.ndarray) -> int:
    """A checksum of a constant, for keys of parts that have it in another form.

    CRC-32 takes less than half the time of SHA-256. It is no protection: anyone who can change weights can change results.

    >>> checksum(np.float32([1, 2])) == checksum(np.float32([2, 1]))
    False
    """
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


@cache
def machine() -> str:
    """The processor and its instructions."""
    return f"{processor_name()} {next(processor_lines('flags'), '')}"
