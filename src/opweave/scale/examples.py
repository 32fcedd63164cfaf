"""Example requests of zeros for a model."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np

from .protocol import Interface, datatype, protocol_shape


def example(interface: Interface, size: int = 1) -> tuple[bytes, int]:
    """A request of zeros and empty strings, as bytes, and the size of the JSON in it. Large inputs are binary."""
    shapes = example_shapes(interface, size)
    is_binary = sum(map(prod, shapes.values())) > 64
    entries, total = [], 0
    for argument in interface.inputs:
        shape = shapes[argument.name]
        entry: dict[str, Any] = {"name": argument.name, "shape": shape, "datatype": datatype(argument)}
        if is_binary:
            # The length of an empty string is four bytes.
            byte_size = prod(shape) * (4 if argument.dtype.kind == "O" else argument.dtype.itemsize)
            entry["parameters"] = {"binary_data_size": byte_size}
            total += byte_size
        else:
            zero = "" if argument.dtype.kind == "O" else np.zeros((), argument.dtype).tolist()
            entry["data"] = [zero] * prod(shape)
        entries.append(entry)
    header = json.dumps({"inputs": entries}).encode()
    return header + bytes(total), len(header)


def example_shapes(interface: Interface, size: int = 1) -> dict[str, list[int]]:
    """The shapes of the inputs of an example. Dynamic dimensions have `size`, but the first dimension 1."""
    return {
        a.name: [(1 if axis == 0 else size) if length < 0 else length for axis, length in enumerate(protocol_shape(a))]
        for a in interface.inputs
    }
