"""ONNX nodes that ONNX Runtime runs as they are, because WebNN cannot express them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ... import memory
from ...errors import MLError, OperationError
from ...shapes import OtherShapes
from .. import PowerPreference
from . import opsets
from .constants import add_constants
from .native import NativeSession
from .sessions import CPU, ENGINE_ERRORS, session_options
from .values import from_engine, to_engine

T = TypeVar("T")

_FAILURES: tuple[type[Exception], ...] = (MLError, *ENGINE_ERRORS)


class FallbackSession:
    """A part of an ONNX model as a session of its own.

    Args:
        proto: the part, without the constants it uses.
        constants: these, by name; large ones are handed over by reference, those in mapped files by their place there.
        names: what the caller calls the inputs and outputs of `proto`.
        power_preference: that of the context.
        threads: how many threads an operation may use; None for as many as there are processors.

    Attributes:
        types: the type of each output, by the caller's name.

    Raises:
        OperationError: the engine refuses the nodes.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        constants: Mapping[str, np.ndarray],
        names: Mapping[str, str],
        power_preference: PowerPreference,
        threads: int | None = None,
    ) -> None:
        options = session_options(power_preference, alone=False, threads=threads)
        self._constants = add_constants(proto.graph, constants, options)
        what = ", ".join(dict.fromkeys(node.op_type for node in proto.graph.node))
        try:
            opsets.lower(proto)
            self._session = NativeSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except ENGINE_ERRORS as error:
            raise OperationError(f"ONNX Runtime does not take {what}: {error}{opsets.advice(proto)}") from error
        self._what = what
        self._inputs = {value.name: names[value.name] for value in proto.graph.input}
        self._outputs = {value.name: names[value.name] for value in proto.graph.output}
        arguments = {value.name: value.type for value in [*self._session.get_inputs(), *self._session.get_outputs()]}
        self.types: dict[str, onnx.TypeProto] = {slot: type_of(arguments[n]) for n, slot in self._outputs.items()}
        # Strings, sequences and optionals cannot be bound to memory.
        self._bound = all(type.startswith("tensor(") and type != "tensor(string)" for type in arguments.values())

    def run(self, inputs: Mapping[str, Any], known: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Run on arrays; outputs in `known` are written in place, the result holds the others.

        Raises:
            OtherShapes: arrays in `known` have not the shapes that came.
            OperationError: the engine failed.
        """
        if self._bound:
            try:
                return self._run_bound(inputs, known)
            except ENGINE_ERRORS as error:
                self._check_shapes(inputs, known)
                raise OperationError(f"ONNX Runtime failed to run {self._what}: {error}") from error
        feed = {name: inputs[slot] for name, slot in self._inputs.items()}
        found = self._call(lambda: self._session.run(list(self._outputs), feed))
        results = dict(zip(self._outputs.values(), found, strict=True))
        _compare_shapes(results, known)
        for slot, target in known.items():
            memory.copy(target, results.pop(slot), "an output beside strings or sequences")
        return results

    def _run_bound(self, inputs: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray]) -> dict[str, Any]:
        binding = engine.SessionIOBinding(self._session._sess)
        held = {slot: to_engine(inputs[slot]) for slot in self._inputs.values()}  # the binding holds addresses only
        for name, slot in self._inputs.items():
            binding.bind_ortvalue_input(name, held[slot])
        for name, slot in self._outputs.items():
            if slot in known:
                binding.bind_ortvalue_output(name, engine.OrtValue.ortvalue_from_numpy(known[slot], CPU))
            else:
                binding.bind_output(name, CPU)
        self._session._sess.run_with_iobinding(binding, None)
        found = zip(self._outputs.values(), binding.get_outputs(), strict=True)
        return {slot: from_engine(value) for slot, value in found if slot not in known}

    def _check_shapes(self, inputs: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray]) -> None:
        """After a failure: whether the engine had found its results, and only no room for them."""
        if known:
            with suppress(*ENGINE_ERRORS):
                _compare_shapes(self._run_bound(inputs, {}), known)

    def _call(self, function: Callable[[], T]) -> T:
        try:
            return function()
        except ENGINE_ERRORS as error:
            raise OperationError(f"ONNX Runtime failed to run {self._what}: {error}") from error


def _compare_shapes(found: Mapping[str, Any], known: Mapping[str, np.ndarray]) -> None:
    if others := [slot for slot, target in known.items() if found[slot].shape != target.shape]:
        raise OtherShapes(others)


def type_of(name: str) -> onnx.TypeProto:
    """The type that the engine writes as `name`, without a shape.

    >>> type_of("seq(tensor(int64))").sequence_type.elem_type.tensor_type.elem_type == TensorProto.INT64
    True
    """
    outer, _, rest = name.partition("(")
    inner = rest[:-1]
    match outer:
        case "seq":
            return helper.make_sequence_type_proto(type_of(inner))
        case "optional":
            return helper.make_optional_type_proto(type_of(inner))
        case "tensor":
            if inner.upper() in dict(TensorProto.DataType.items()):  # else it is one that only the engine has
                return helper.make_tensor_type_proto(TensorProto.DataType.Value(inner.upper()), None)
    return onnx.TypeProto()


def evaluate(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> Sequence[Any] | None:
    """Run a model once; None where the engine cannot."""
    options = session_options("default", threads=1)  # small, and run once: to start threads would take longer
    try:
        opsets.lower(proto)
        session = NativeSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found: list[Any] = session.run(None, dict(feed))
    except _FAILURES:
        return None
    return found
