"""ONNX Runtime's own session class, even if a program has replaced `InferenceSession`; its errors, and calls of sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as engine

# Taken from the module that defines it: programs replace `onnxruntime.InferenceSession`.
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

from ...support.errors import OperationError
from .. import Returning, Update
from .in_place import count_copies

# Whatever the engine raises; its classes have no base of their own.
ENGINE_ERRORS: tuple[type[Exception], ...] = (
    *(value for value in vars(engine).values() if isinstance(value, type) and issubclass(value, Exception)),
    RuntimeError,
    UnicodeError,  # its messages may quote what is no UTF-8, and it cannot take strings with lone surrogates
    MemoryError,
)

CPU = engine.OrtDevice(engine.OrtDevice.cpu(), engine.OrtDevice.default_memory(), 0)


class NativeSession(InferenceSession):  # type: ignore[misc]
    """A session of ONNX Runtime itself, also while `opweave.onnx.replacing_onnxruntime` is active.

    `replacing_onnxruntime` changes `InferenceSession.__init__`; this class keeps the one that was there before.
    """

    __init__ = InferenceSession.__init__


def engine_call(
    session: Any,
    inputs: Sequence[str],
    outputs: Sequence[str],
    parameters: dict[str, np.ndarray],
    updates: Sequence[Update],
    failed: Callable[[Exception], OperationError],
) -> Returning:
    """A function that runs a session of the engine on values of its inputs, and returns outputs in memory of the engine.

    Args:
        session: the session.
        inputs: the names of the inputs that are given.
        outputs: the names of the outputs to return.
        parameters: the values of the other inputs, by name.
        updates: what its kernels copy.
        failed: makes the error for one of the engine's.
    """
    run = session.run

    def call(values: Sequence[Any]) -> list[Any]:
        feed = dict(zip(inputs, values))  # noqa: B905  (strict=True takes 0.1 us)
        if parameters:
            feed |= parameters
        try:
            results: list[Any] = run(outputs, feed, None)
        except ENGINE_ERRORS as error:
            raise failed(error) from error
        if updates:
            count_copies(updates, values)
        return results

    return call
