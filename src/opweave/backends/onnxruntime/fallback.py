"""ONNX nodes that ONNX Runtime runs as they are, because WebNN cannot express them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ... import memory
from ...errors import MLError, OperationError
from ...graph import Node
from ...memory.spaces import Cell, Memory
from ...shapes import OtherShapes
from .. import How, PowerPreference, Runner
from . import opsets
from .constants import add_constants
from .native import NativeSession
from .quotients import guard_quotients
from .sessions import CPU, ENGINE_ERRORS, session_options
from .values import from_engine, to_engine

_FAILURES: tuple[type[Exception], ...] = (MLError, *ENGINE_ERRORS)


class FallbackSession(Runner):
    """A part of an ONNX model as a session of its own; it reads and writes arrays, and cells.

    Tensors of bool are given as uint8.

    Args:
        proto: the part, without the constants it uses.
        constants: these, by name; large ones are handed over by reference, those in mapped files by their place there.
        power_preference: that of the context.
        threads: how many threads an operation may use; None for as many as there are processors.

    Attributes:
        types: the type of each output, by name.

    Raises:
        OperationError: the engine refuses the nodes.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        constants: Mapping[str, np.ndarray],
        power_preference: PowerPreference,
        threads: int | None = None,
    ) -> None:
        options = session_options(power_preference, alone=False, threads=threads)
        self._constants = add_constants(proto.graph, constants, options)
        self.title = ", ".join(dict.fromkeys(node.op_type for node in proto.graph.node))
        try:
            opsets.lower(proto)
            guard_quotients(proto, constants)
            self._session = NativeSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except ENGINE_ERRORS as error:
            raise OperationError(f"ONNX Runtime does not take {self.title}: {error}{opsets.advice(proto)}") from error
        types = {value.name: value.type for value in [*self._session.get_inputs(), *self._session.get_outputs()]}
        self._inputs = [(value.name, types[value.name] == "tensor(bool)") for value in proto.graph.input]
        self._outputs = [(value.name, types[value.name] == "tensor(bool)") for value in proto.graph.output]
        self.types: dict[str, onnx.TypeProto] = {name: type_of(types[name]) for name, _ in self._outputs}
        # Strings, sequences and optionals cannot be bound to memory.
        self._bound = all(type.startswith("tensor(") and type != "tensor(string)" for type in types.values())

    def bind(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> Callable[[], None]:
        """Tie it to arrays and cells."""
        return lambda: self.run(inputs, outputs)

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        """Run it once: arrays are written in place, cells get what the engine makes.

        Raises:
            OtherShapes: arrays have not the shapes that came.
            OperationError: the engine failed.
        """
        feed = {
            name: given.value if isinstance(given, Cell) else _declared(given, is_bool)
            for (name, is_bool), given in zip(self._inputs, inputs, strict=True)
        }
        targets = {
            name: _declared(target, is_bool)
            for (name, is_bool), target in zip(self._outputs, outputs, strict=True)
            if not isinstance(target, Cell)
        }
        found = self._run(feed, targets)
        for (name, _), target in zip(self._outputs, outputs, strict=True):
            if isinstance(target, Cell):
                target.value = found[name]

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        """It computes nodes of an ONNX model, none of a graph."""
        return "native", self.title

    def _run(self, feed: Mapping[str, Any], targets: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Run on arrays; outputs in `targets` are written in place, the result holds the others."""
        try:
            if self._bound:
                return self._run_bound(feed, targets)
            results = dict(zip(self.types, self._session.run(list(self.types), feed), strict=True))
        except ENGINE_ERRORS as error:
            if self._bound and targets:
                # The engine may have found its results, and only no room for them.
                with suppress(*ENGINE_ERRORS):
                    _compare_shapes(self._run_bound(feed, {}), targets)
            raise OperationError(f"ONNX Runtime failed to run {self.title}: {error}") from error
        _compare_shapes(results, targets)
        for name, target in targets.items():
            memory.copy(target, results.pop(name), "an output beside strings or sequences")
        return results

    def _run_bound(self, feed: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray]) -> dict[str, Any]:
        binding = engine.SessionIOBinding(self._session._sess)
        held = {name: to_engine(array) for name, array in feed.items()}  # the binding holds addresses only
        for name, value in held.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.types:
            if name in targets:
                binding.bind_ortvalue_output(name, engine.OrtValue.ortvalue_from_numpy(targets[name], CPU))
            else:
                binding.bind_output(name, CPU)
        self._session._sess.run_with_iobinding(binding, None)
        found = zip(self.types, binding.get_outputs(), strict=True)
        return {name: from_engine(value) for name, value in found if name not in targets}


def _declared(array: np.ndarray, is_bool: bool) -> np.ndarray:
    """An array in the type that the engine has for it."""
    return array.view(bool) if is_bool and array.dtype == np.uint8 else array


def _compare_shapes(found: Mapping[str, Any], targets: Mapping[str, np.ndarray]) -> None:
    if others := [name for name, target in targets.items() if found[name].shape != target.shape]:
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
        guard_quotients(proto, {})
        session = NativeSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found: list[Any] = session.run(None, dict(feed))
    except _FAILURES:
        return None
    return found
