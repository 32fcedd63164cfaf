"""The shortest way of a call: where the model's own session runs all calls, the engine checks shapes, and little else is left.

After a network has run, or a pause, nothing of Python is in the processor's caches, and each object on the way to the engine
counts. So a direct call checks names, types and memory of the arrays, and passes them on. For whatever else comes it returns
None, and the full path of `InferenceSession.run` runs the call, or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..model.arguments import Argument
from ..model.protobuf import TensorProto
from .index_ranges import Range
from .model_program import ModelProgram

Direct = Callable[[Any], list[Any] | None]
"""The outputs for a feed; None where it does not run the call."""

_Check = Callable[[np.ndarray], bool]
"""Whether an array can be passed on."""


def direct_call(
    model: ModelProgram, inputs: Sequence[Argument], names: Sequence[str], ranges: Sequence[Range]
) -> Direct | None:
    """A function that runs a model on feeds; None if the model takes other things than tensors, or there is more to do.

    Args:
        model: the model's own session.
        inputs: those that the model declares.
        names: of the outputs to return.
        ranges: of the values of inputs.
    """
    if not all(each.element_type for each in inputs) or set(model.inputs) != {each.name for each in inputs}:
        return None
    run = model.program.taking_feeds([model.outputs.index(name) for name in names])
    if run is None:
        return None
    expected = tuple([(each.name, each.dtype, _CHECKS.get(each.element_type)) for each in inputs])
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
        for each in ranges:
            if not each.fits(feed):
                return None
        try:
            return run(feed)
        except Exception:  # the full path finds out more
            return None

    return call


def _is_bool(array: np.ndarray) -> bool:
    """Whether an array holds bools, each of which is 0 or 1, where they lie."""
    return array.dtype == bool and array.flags.c_contiguous and (not array.size or bool(array.view(np.uint8).max() < 2))


def _is_text(array: np.ndarray) -> bool:
    """Whether an array holds texts."""
    return array.dtype.kind == "U" or (array.dtype.kind == "O" and all(type(item) is str for item in array.flat))


_CHECKS: dict[int, _Check] = {TensorProto.BOOL: _is_bool, TensorProto.STRING: _is_text}
"""Checks of types whose elements may be wrong, by ONNX's number."""
