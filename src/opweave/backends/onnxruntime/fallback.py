"""ONNX nodes that ONNX Runtime runs as they are, because WebNN cannot express them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ...errors import OperationError
from .emit import INLINE_BYTES
from .sessions import CPU, ENGINE_ERRORS, session_options


class FallbackSession:
    """A part of an ONNX model as a session of its own.

    Args:
        proto: the part, without the constants it uses.
        constants: these, by name; large ones are handed over by reference.
        names: what the caller calls the inputs and outputs of `proto`.

    Raises:
        OperationError: the engine refuses the nodes.
    """

    def __init__(self, proto: onnx.ModelProto, constants: Mapping[str, np.ndarray], names: Mapping[str, str]) -> None:
        options = session_options("default")
        self._constants: dict[str, Any] = {}
        for name, array in constants.items():
            if array.nbytes <= INLINE_BYTES or array.dtype.kind not in "fiub":
                proto.graph.initializer.append(numpy_helper.from_array(array, name))
                continue
            tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
            tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor.external_data.add(key="location", value=name)
            proto.graph.initializer.append(tensor)
            self._constants[name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
        if self._constants:
            options.add_external_initializers(list(self._constants), list(self._constants.values()))
        try:
            self._session = onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except ENGINE_ERRORS as error:
            what = ", ".join(dict.fromkeys(node.op_type for node in proto.graph.node))
            raise OperationError(f"ONNX Runtime does not take {what}: {error}") from error
        self._inputs = {value.name: names[value.name] for value in proto.graph.input}
        self._outputs = {value.name: names[value.name] for value in proto.graph.output}

    def run(self, inputs: Mapping[str, Any], known: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Run on arrays; outputs in `known` are written in place, the result holds the others."""
        if all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in inputs.values()):
            return self._run_bound(inputs, known)
        # Strings, sequences and optionals cannot be bound to memory.
        feed = {name: inputs[slot] for name, slot in self._inputs.items()}
        found = self._call(lambda: self._session.run(list(self._outputs), feed))
        results = dict(zip(self._outputs.values(), found, strict=True))
        for slot, target in known.items():
            np.copyto(target, results.pop(slot), casting="no")
        return results

    def _run_bound(self, inputs: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray]) -> dict[str, Any]:
        binding = engine.SessionIOBinding(self._session._sess)
        for name, slot in self._inputs.items():
            binding.bind_ortvalue_input(name, engine.OrtValue.ortvalue_from_numpy(inputs[slot], CPU))
        for name, slot in self._outputs.items():
            if slot in known:
                binding.bind_ortvalue_output(name, engine.OrtValue.ortvalue_from_numpy(known[slot], CPU))
            else:
                binding.bind_output(name, CPU)
        self._call(lambda: self._session._sess.run_with_iobinding(binding, None))
        results = {}
        for (_, slot), value in zip(self._outputs.items(), binding.get_outputs(), strict=True):
            if slot not in known:
                # A view of the engine's tensor, which the wrapper keeps alive.
                results[slot] = onnxruntime.OrtValue(value).numpy() if value.is_tensor() else value.to_python()
        return results

    @staticmethod
    def _call(function: Any) -> Any:
        try:
            return function()
        except ENGINE_ERRORS as error:
            raise OperationError(f"ONNX Runtime failed: {error}") from error


def evaluate(model: bytes, feed: Mapping[str, np.ndarray]) -> Sequence[Any] | None:
    """Run a model once; None where the engine cannot."""
    try:
        session = onnxruntime.InferenceSession(model, session_options("default"), providers=["CPUExecutionProvider"])
        found: list[Any] = session.run(None, dict(feed))
    except ENGINE_ERRORS:
        return None
    return found
