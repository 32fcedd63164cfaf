"""Write arrays as safetensors (https://github.com/huggingface/safetensors#format)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

TYPES: Mapping[str, str] = {
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "uint64": "U64",
    "int32": "I32",
    "uint32": "U32",
    "int8": "I8",
    "uint8": "U8",
}

ALIGNMENT = 8
"""Alignment of tensors in bytes: the largest element size, so that readers need no copy."""


def write(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name, large elements first, which keeps all arrays aligned."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, object] = {}
    end = 0
    for name, array in ordered:
        start, end = end, end + array.nbytes
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for _, array in ordered:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        file.write(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
