"""ONNX Runtime's own session class, even if a program has replaced `InferenceSession`; its errors and calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as engine

# Import from the defining module: programs replace `onnxruntime.InferenceSession`.
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

from ...support.errors import OperationError
from .. import Returning

if TYPE_CHECKING:
    from .. import Update

# All exceptions of the engine, which have no common base class.
ENGINE_ERRORS: tuple[type[Exception], ...] = (
    *(value for value in vars(engine).values() if isinstance(value, type) and issubclass(value, Exception)),
    RuntimeError,
    UnicodeError,  # messages that quote invalid UTF-8; strings with lone surrogates
    MemoryError,
)

CPU = engine.OrtDevice(engine.OrtDevice.cpu(), engine.OrtDevice.default_memory(), 0)


class NativeSession(InferenceSession):  # type: ignore[misc]
    """ONNX Runtime's session, even while `replacing_onnxruntime` replaces `InferenceSession.__init__`."""

    # While it is replaced, the replacement has the original as an attribute.
    __init__ = getattr(InferenceSession.__init__, "original", InferenceSession.__init__)

    @property
    def native(self) -> Any:
        """The engine's session without the Python wrapper, which costs several microseconds."""
        return self._sess


def engine_call(
    session: Any,
    inputs: Sequence[str],
    outputs: Sequence[str],
    parameters: dict[str, np.ndarray],
    updates: Sequence[Update],
    error_of: Callable[[Exception], OperationError],
) -> Returning:
    """Return a function that runs a session on values of `inputs`, and returns `outputs` in the engine's memory.

    `parameters` are the values of the other inputs.
    """
    run = session.run
    if updates:
        from .in_place import count_copies

    def call(values: Sequence[Any]) -> list[Any]:
        feed = dict(zip(inputs, values))  # noqa: B905  (strict=True takes 0.1 us)
        if parameters:
            feed |= parameters
        try:
            results: list[Any] = run(outputs, feed, None)
        except ENGINE_ERRORS as error:
            raise error_of(error) from error
        if updates:
            count_copies(updates, values)
        return results

    return call
