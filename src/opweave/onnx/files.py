"""Write ONNX models to files, with their weights inside or in a second file."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ..support.errors import require
from ..support.files import atomic_writer, resolve_links
from ..support.formatting import size
from .model.protobuf import ModelProto, TensorProto

MAX_EMBEDDED_BYTES = 1_500_000_000
"""Weights up to this size are written into the model itself; a protocol buffer can hold at most 2 GB."""

_ALIGNMENT = 4096  # so that every tensor of a data file can be mapped into memory on its own


def write_model(
    model: ModelProto,
    weights: Mapping[str, np.ndarray],
    path: str | Path,
    subject: str,
    is_external: bool,
    external_bytes: int = 0,
) -> list[Path]:
    """Write a model, whose initializers named in `weights` get their data from there; return the files.

    An existing file is replaced once the new one is complete. The target of a symbolic link is replaced; a pipe or a device is
    written directly.

    Args:
        model: changed: its initializers hold the data, or refer to them.
        weights: arrays whose bytes are the raw data of the initializers.
        path: the file to write.
        subject: the function's name in errors.
        is_external: whether a second file `NAME.data` in the same folder holds the weights.
        external_bytes: weights of fewer bytes are inside the model in any case.

    Raises:
        ValidationError: `path` is not a regular file, and a second file is needed.
        DataError: a file cannot be written.
    """
    # The data file goes beside the target of a link, not beside the link.
    (target, mode), requested = resolve_links(path), path
    written = [target]
    if is_external:
        replaceable = mode is None or stat.S_ISREG(mode)
        total = size(sum(array.nbytes for array in weights.values()))
        rule = f"{total} of weights need a second file, so the path must be a regular file"
        require(replaceable, f"{subject}: {rule}, got {requested}")
    with ExitStack() as stack:
        # Files are renamed in reverse order: the data file is in place before the model that refers to it.
        file = stack.enter_context(atomic_writer(requested))
        if is_external:
            location, end = f"{target.name}.data", 0
            data = stack.enter_context(atomic_writer(target.with_name(location)))
            written.append(target.with_name(location))
        for tensor in model.graph.initializer:
            array = weights.get(tensor.name)
            if array is None:
                continue
            tensor.ClearField("external_data")
            if not is_external or array.nbytes < external_bytes:
                tensor.ClearField("data_location")
                tensor.raw_data = bytes(_bytes(array))
                continue
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            data.write(bytes(start - end))
            data.write(_bytes(array))
            end = start + array.nbytes
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in {"location": location, "offset": start, "length": array.nbytes}.items():
                tensor.external_data.add(key=key, value=str(value))
        file.write(model.SerializeToString())
    return written


def _bytes(array: np.ndarray) -> Any:
    """The bytes of an array; copied only if it is not C-contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
