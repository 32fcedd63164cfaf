"""A whole ONNX model as one session of the engine, which runs it with any sizes of its dynamic dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ...errors import OperationError
from .. import PowerPreference
from .constants import add_constants
from .native import NativeSession
from .quotients import guard_quotients
from .sessions import CPU, ENGINE_ERRORS, session_options


class ModelSession:
    """An ONNX model that the engine runs as it is. Several threads may run it at once.

    Args:
        proto: the ModelProto, without the constants that it uses; it gets those.
        constants: their arrays, by name.
        power_preference: that of the context.
        threads: how many threads an operation may use; None for as many as there are processors.

    Raises:
        OperationError: the engine refuses the model.
    """

    def __init__(
        self,
        proto: Any,
        constants: Mapping[str, np.ndarray],
        power_preference: PowerPreference,
        threads: int | None = None,
    ) -> None:
        options = session_options(power_preference, threads=threads)
        guard_quotients(proto, constants)
        self._constants = add_constants(proto.graph, constants, options)  # kept: the engine reads their memory
        try:
            session = NativeSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except ENGINE_ERRORS as error:
            raise OperationError(f"ONNX Runtime does not take the model: {error}") from error
        self.types = {value.name: value.type for value in (*session.get_inputs(), *session.get_outputs())}
        # The Python wrapper costs microseconds; the engine's own session is called.
        self._session = session._sess

    def run(self, feed: Mapping[str, Any], names: Sequence[str], out: Mapping[str, np.ndarray]) -> list[Any]:
        """Run on a feed that has been checked.

        Args:
            feed: an array for each input, by name; a list of arrays for a sequence.
            names: the outputs to return, each once.
            out: C-contiguous arrays for some of them, which are written in place.

        Returns:
            The outputs in order: those of `out`, and new arrays in memory of their own.

        Raises:
            OperationError: the engine failed; or an array of `out` has another shape than its output.
        """
        try:
            if not out:
                found: list[Any] = self._session.run(names, feed, None)
                return found
            binding = engine.SessionIOBinding(self._session)
            for name, value in feed.items():
                binding.bind_ortvalue_input(name, engine.OrtValue.ortvalue_from_numpy(value, CPU))
            for name in names:
                if name in out:
                    binding.bind_ortvalue_output(name, engine.OrtValue.ortvalue_from_numpy(out[name], CPU))
                else:
                    binding.bind_output(name, CPU)
            self._session.run_with_iobinding(binding, None)
            values = binding.get_outputs()
            return [out[n] if n in out else onnxruntime.OrtValue(v).numpy() for n, v in zip(names, values, strict=True)]
        except ENGINE_ERRORS as error:
            raise OperationError(f"ONNX Runtime failed: {error}") from error
