"""Direct calls: pass arrays to the engine, which checks shapes, if ONNX Runtime runs all calls.

Running the network, or a pause, evicts Python's code and objects from the CPU caches, so every object on the way to the engine
costs time. A direct call only checks the names, types and memory of the arrays. For any other call it returns None: the full
path of `InferenceSession.run` runs that call, and has the error messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model.arguments import Argument
from ..model.protobuf import TensorProto
from .model_program import ModelProgram

if TYPE_CHECKING:
    from .index_ranges import Range

Direct = Callable[[Any], list[Any] | None]
"""Runs a feed and returns the outputs; returns None if the call needs the full path."""

_Check = Callable[[np.ndarray], bool]


def direct_call(
    model: ModelProgram, inputs: Sequence[Argument], names: Sequence[str], ranges: Sequence[Range]
) -> Direct | None:
    """A function that runs a model on feeds; None if some input is no tensor, or calls need the full path."""
    if not all(info.element_type for info in inputs) or set(model.inputs) != {info.name for info in inputs}:
        return None
    run = model.taking_feeds([model.outputs.index(name) for name in names])
    if run is None:
        return None
    expected = tuple([(info.name, info.dtype, _CHECKS.get(info.element_type)) for info in inputs])
    count = len(expected)

    def call(feed: Any) -> list[Any] | None:
        if type(feed) is not dict or len(feed) != count:
            return None
        for name, dtype, check in expected:
            value = feed.get(name)
            if type(value) is not np.ndarray:
                return None
            if check is not None:
                if not check(value):
                    return None
                continue
            if value.dtype != dtype:
                return None
            flags = value.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
        for value_range in ranges:
            if not value_range.fits(feed):
                return None
        try:
            return run(feed)
        except Exception:  # the full path raises the error, or runs the call in another way
            return None

    return call


def _is_bool(array: np.ndarray) -> bool:
    return array.dtype == bool and array.flags.c_contiguous and (not array.size or bool(array.view(np.uint8).max() < 2))


def _is_text(array: np.ndarray) -> bool:
    return array.dtype.kind == "U" or (array.dtype.kind == "O" and all(type(item) is str for item in array.flat))


_CHECKS: dict[int, _Check] = {TensorProto.BOOL: _is_bool, TensorProto.STRING: _is_text}
"""Checks by ONNX element type, for types with invalid elements."""
