"""An ONNX model as one session of the engine, which runs it with any sizes of its dynamic dimensions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ... import memory
from ...errors import MLError, OperationError
from ...shapes import OtherShapes
from .. import PowerPreference, Precision
from .constants import add_constants, all_graphs, readers
from .in_place import find_updates
from .native import NativeSession
from .quotients import guard_quotients
from .rounding import FLOAT_LEVEL
from .sessions import CPU, ENGINE_ERRORS, session_options
from .values import PLAIN_TYPES, from_engine, to_engine

KNOWN_IR, KNOWN_OPSET = 10, 21
"""Models up to this version of the file format and of ONNX's operators need not be lowered for the engine."""

FAILURES: tuple[type[Exception], ...] = (OperationError, *ENGINE_ERRORS)


class ModelSession:
    """An ONNX model that the engine runs as it is. Several threads may run it at the same time.

    Args:
        proto: the ModelProto, without the constants that it uses; it gets those.
        constants: their arrays, by name; large ones are handed over by reference, those in mapped files by their place there.
        power_preference: that of the context.
        threads: how many threads an operation may use; None for as many as there are processors.
        alone: whether it does not take turns with other sessions.
        title: what it computes, for messages.
        precision: that of the context.

    Attributes:
        inputs: the names of its inputs, in order.
        outputs: likewise of its outputs.
        types: the type of each input and output, by name.
        updates: the inputs that its nodes update.

    Raises:
        OperationError: the engine refuses the model.
    """

    def __init__(
        self,
        proto: Any,
        constants: Mapping[str, np.ndarray],
        power_preference: PowerPreference,
        threads: int | None = None,
        alone: bool = True,
        title: str = "the model",
        precision: Precision = "float32",
    ) -> None:
        self._title = title
        options = session_options(power_preference, alone, threads, precision)
        try:
            if proto.ir_version > KNOWN_IR or any(entry.version > KNOWN_OPSET for entry in proto.opset_import):
                from .opsets import lower

                lower(proto)
            if precision == "ieee":
                _forbid_rounding(proto)
            guard_quotients(proto, constants)
            self._constants = add_constants(proto.graph, constants, options)  # kept: the engine reads their memory
            session = NativeSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except ENGINE_ERRORS as error:
            from .opsets import advice

            raise OperationError(f"ONNX Runtime does not take {title}: {error}{advice(proto)}") from error
        self.inputs = [value.name for value in session.get_inputs()]
        self.outputs = [value.name for value in session.get_outputs()]
        self.types = {value.name: value.type for value in (*session.get_inputs(), *session.get_outputs())}
        self.updates = find_updates(readers(proto.graph.node), self.inputs, self.outputs)
        # What nodes write in the memory of inputs, so that nothing is copied; None where some always copy.
        updated = [{output for _, output in pairs} for pairs, _ in self.updates]
        self._in_place = set().union(*updated) if all(updated) else None
        found = set(self.types.values())
        self._is_plain = found <= PLAIN_TYPES
        # Strings, sequences and optionals cannot be bound to memory.
        self._can_bind = all(type.startswith("tensor(") and type != "tensor(string)" for type in found)
        # The Python wrapper costs microseconds; the engine's own session is called.
        self._session = session._sess

    def run(
        self,
        feed: Mapping[str, Any],
        names: Sequence[str],
        out: Mapping[str, np.ndarray],
        shared: Collection[str] = (),
    ) -> list[Any]:
        """Run on a feed that has been checked.

        Args:
            feed: an array for each input, by name; a list of arrays for a sequence.
            names: the outputs to return, each once.
            out: C-contiguous arrays for some of the model's outputs, which are written in place.
            shared: those of `out` that lie in the memory of the input that they update.

        Returns:
            The outputs in order: those of `out`, and new arrays in memory of their own.

        Raises:
            OtherShapes: arrays of `out` have other shapes than their outputs.
            OperationError: the engine failed.
        """
        if set(shared) == self._in_place:
            return self._run(feed, names, out)
        in_place: set[str] = set()
        copied: list[int] = []
        for pairs, inputs in self.updates:
            targets = {output for _, output in pairs}
            if targets and targets.issubset(shared):
                in_place |= targets
            else:
                copied += [feed[name].nbytes for name in inputs if name in feed]
        apart = {name: out[name] for name in shared if name not in in_place}
        asked = list(dict.fromkeys([*names, *apart]))
        found = self._run(feed, asked, {name: array for name, array in out.items() if name not in apart})
        results = dict(zip(asked, found, strict=True))
        _compare_shapes(apart, results)
        for name, target in apart.items():
            memory.copy(target, results[name], memory.OVER_INPUT)
            results[name] = target
        if copied:
            memory.copies.add(sum(copied), memory.NOT_IN_PLACE, len(copied))
        return [results[name] for name in names]

    def _run(self, feed: Mapping[str, Any], names: Sequence[str], out: Mapping[str, np.ndarray]) -> list[Any]:
        try:
            if self._can_bind and (out or not self._is_plain):
                return self._run_bound(feed, names, out)
            asked = list(dict.fromkeys([*names, *out])) if out else names
            found: list[Any] = self._session.run(asked, feed, None)
        except FAILURES as error:
            if self._can_bind and out:
                # The engine may have found its results, and only no room for them.
                with suppress(*FAILURES):
                    _compare_shapes(out, dict(zip(out, self._run_bound(feed, list(out), {}), strict=True)))
            if isinstance(error, OperationError):
                raise
            raise _failed(self._title, error) from error
        if out:
            results = dict(zip(asked, found, strict=True))
            _compare_shapes(out, results)
            for name, target in out.items():
                memory.copy(target, results[name], "an output of a model with strings or sequences")
            found = [out.get(name, results[name]) for name in names]
        return found

    def _run_bound(
        self, feed: Mapping[str, np.ndarray], names: Sequence[str], out: Mapping[str, np.ndarray]
    ) -> list[Any]:
        targets = {**out, **{name: None for name in names if name not in out}}
        found = BoundModel(self._session, self._title, feed, targets).run()
        return [found[name] for name in names]

    def bind(
        self, feed: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray | None], shared: Collection[str] = ()
    ) -> BoundModel | None:
        """Tie the model to memory of all inputs and of some outputs; None where a run would copy, or values are no arrays.

        Args:
            feed: as for `run`.
            out: likewise; None for new memory at each run.
            shared: those of `out` that lie in the memory of the input that they update.
        """
        copies_nothing = self._is_plain and set(shared) == self._in_place
        return BoundModel(self._session, self._title, feed, out) if copies_nothing else None


class BoundModel:
    """A session that is tied to memory, which can be exchanged between runs. One thread at a time may run it.

    Args:
        session: the engine's session.
        title: what it computes, for messages.
        feed: a contiguous array for each input, by name. The caller keeps them.
        out: likewise for outputs; None for new memory at each run.
    """

    __slots__ = ("_binding", "_session", "_targets", "_title", "_values")

    def __init__(
        self, session: Any, title: str, feed: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray | None]
    ) -> None:
        self._session, self._title, self._binding = session, title, engine.SessionIOBinding(session)
        self._values: dict[str, Any] = {}  # the engine's values of inputs: the binding holds addresses only
        self._targets: dict[str, np.ndarray | None] = {}
        for name, array in feed.items():
            self.read(name, array)
        for name, target in out.items():
            self.write(name, target)

    def read(self, name: str, array: np.ndarray) -> None:
        """Take an input from an array from now on."""
        value = self._values[name] = to_engine(array)
        self._binding.bind_ortvalue_input(name, value)

    def write(self, name: str, target: np.ndarray | None) -> None:
        """Write an output into an array from now on, or into new memory at each run."""
        self._targets[name] = target
        if target is None:
            self._binding.bind_output(name, CPU)
        else:
            self._binding.bind_ortvalue_output(name, engine.OrtValue.ortvalue_from_numpy(target, CPU))

    def run(self) -> dict[str, np.ndarray]:
        """Run the model once; the outputs by name, in the order of `out`.

        Raises:
            OperationError: the engine failed.
        """
        try:
            self._session.run_with_iobinding(self._binding, None)
        except ENGINE_ERRORS as error:
            raise _failed(self._title, error) from error
        made = self._binding.get_outputs()
        found: dict[str, np.ndarray] = {}
        for k, (name, target) in enumerate(self._targets.items()):
            if target is None:
                target = from_engine(made[k])
                self._binding.bind_output(name, CPU)  # the next run would write into the same memory
            found[name] = target
        return found


def _failed(title: str, error: Exception) -> OperationError:
    return OperationError(f"ONNX Runtime failed to run {title}: {error}")


def _compare_shapes(targets: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> None:
    shapes = {name: found[name].shape for name, target in targets.items() if found[name].shape != target.shape}
    if shapes:
        raise OtherShapes(shapes)


def _forbid_rounding(proto: Any) -> None:
    """Let the products of a ModelProto keep their operands as float32."""
    for graph in all_graphs(proto.graph):
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
                    attribute.i = FLOAT_LEVEL


def evaluate(proto: Any, feed: Mapping[str, np.ndarray]) -> list[Any] | None:
    """The outputs of a model that is run once; None where the engine cannot."""
    try:
        session = ModelSession(proto, {}, "default", threads=1)  # to start threads would take longer
        return session.run(feed, session.outputs, {})
    except MLError:
        return None
