"""Bindings: inputs and outputs that a session reads and writes in place, like `onnxruntime.IOBinding`."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import memory
from ...core.desc import OtherShapes
from ...memory.spaces import Cell
from ...support.errors import NotSupportedError, OperationError, ValidationError, require
from ...support.records import record
from ..model.protobuf import TensorProto, dtype_of
from ..ort_api.ort_values import array_of_value, is_ort_value, ort_value
from .model_program import ModelProgram
from .parts import parts_of

if TYPE_CHECKING:
    from .methods import OnnxRuntimeMethods
    from .parts import SessionParts


@record
class _BoundValue:
    """ONNX Runtime's session of a model, bound to the memory of a successful call.

    A language model has an input and an output for the keys and the values of each layer, bound once. Each token rebinds a few
    inputs, and only these are checked again: `call.read` replaces the memory of an input. `outputs` has a cell for new memory
    at each run. `updated` are the inputs that share memory with an output, `written` the memory ranges that a run writes.
    """

    model: ModelProgram
    call: Any
    outputs: dict[str, Any]
    updated: frozenset[str]
    written: Sequence[tuple[int, int]]

    def run(self) -> dict[str, np.ndarray]:
        self.call()
        return {name: output.value if isinstance(output, Cell) else output for name, output in self.outputs.items()}


class IOBinding:
    """The inputs and outputs of a session's runs; made by `session.io_binding()`.

        binding = session.io_binding()
        binding.bind_cpu_input("image", pixels)
        binding.bind_output("features")
        session.run_with_iobinding(binding)
        (features,) = binding.copy_outputs_to_cpu()

    All memory is on the CPU, regardless of the session's device. Arrays are read when the session runs, not when they are
    bound. If ONNX Runtime runs all shapes, a reused binding checks only values that were bound again.
    """

    def __init__(self, session: OnnxRuntimeMethods) -> None:
        self._owner = session
        self._feeds: dict[str, Any] = {}
        self._targets: dict[str, np.ndarray | None] = {}
        self._input_values: dict[str, Any] = {}  # OrtValues that are bound as inputs
        self._values: dict[str, Any] = {}  # OrtValues that are bound as outputs
        self._results: dict[str, Any] = {}
        self._is_used = False  # whether it has run
        self._bound: _BoundValue | None = None  # the last run, valid while only inputs are rebound
        self._new: set[str] = set()  # inputs that were bound since the last run

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array, or to any other value that `run` takes."""
        # A view: the caller can still change the data type and the shape of the array object.
        self._bind_feed(name, arr_on_cpu.view() if type(arr_on_cpu) is np.ndarray else arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an input to an `onnxruntime.OrtValue` on the CPU."""
        require(is_ort_value(ortvalue), f"input {name!r} must be an OrtValue, got {type(ortvalue).__name__}")
        self._bind_feed(name, array_of_value(ortvalue, f"input {name!r}"))
        self._input_values[name] = ortvalue

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind an input to memory at an address, which must stay valid.

        Args:
            name: the input.
            device_type: "cpu".
            device_id: 0.
            element_type: a NumPy data type, or one of ONNX's `TensorProto.DataType`.
            shape: the shape of the tensor at the address.
            buffer_ptr: the address.
        """
        self.bind_cpu_input(name, _array_at(f"input {name!r}", device_type, element_type, shape, buffer_ptr))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to new memory, or to memory at an address, which must stay valid.

        Args:
            name: the output.
            device_type: "cpu".
            device_id: 0.
            element_type: with `buffer_ptr`, as for `bind_input`.
            shape: with `buffer_ptr`, the shape of the tensor at the address.
            buffer_ptr: the address; None for new memory at each run.
        """
        label = f"output {name!r}"
        _check_device(label, device_type)
        if buffer_ptr is None:
            self._bind_target(name, None)
            return
        if element_type is None or shape is None:
            raise ValidationError(f"{label}: memory at an address needs element_type and shape")
        self._bind_target(name, _array_at(label, device_type, element_type, shape, buffer_ptr))

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Bind an output to an `onnxruntime.OrtValue` on the CPU, whose memory is written."""
        label = f"output {name!r}"
        require(is_ort_value(ortvalue), f"{label} must be an OrtValue, got {type(ortvalue).__name__}")
        updated = parts_of(self._owner).in_place.get(name, "")
        is_in_place = self._input_values.get(updated) is ortvalue
        self._bind_target(name, self._feeds[updated] if is_in_place else array_of_value(ortvalue, label))
        self._values[name] = ortvalue

    def synchronize_inputs(self) -> None:
        """Do nothing: inputs on the CPU need no transfer."""

    def synchronize_outputs(self) -> None:
        """Do nothing: `run_with_iobinding` returns when the outputs are written."""

    def get_outputs(self) -> list[Any]:
        """The outputs of the last run as OrtValues that share their memory, in the order of binding."""
        return [
            self._values[name] if name in self._values else ort_value(array, f"output {name!r}")
            for name, array in self._results.items()
        ]

    def get_outputs_as_ortvaluevector(self) -> Any:
        """The outputs of the last run as ONNX Runtime's own vector of values."""
        from onnxruntime.capi import onnxruntime_pybind11_state as engine

        vector = engine.OrtValueVector()
        for value in self.get_outputs():
            vector.push_back(value._get_c_value())
        return vector

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as new arrays, in the order of binding."""
        return [memory.copied(result, "copy_outputs_to_cpu") for result in self._results.values()]

    def clear_binding_inputs(self) -> None:
        """Unbind all inputs."""
        self._feeds.clear()
        self._input_values.clear()
        self._bound = None

    def clear_binding_outputs(self) -> None:
        """Unbind all outputs, and drop the results of the last run."""
        for bound in (self._targets, self._values, self._results):
            bound.clear()
        self._bound = None

    def run(self, parameters: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Run the session on the bound inputs and outputs; at least one output must be bound.

        Args:
            parameters: further inputs, those of active adapters, for this run only.
        """
        require(bool(self._targets), "at least one output must be bound; see bind_output")
        bound, self._bound = self._bound, None
        parts = parts_of(self._owner)
        if parameters:
            from ..ort_api.adapters import join

            self._run_as_new(parts, join(self._feeds, parameters))
            return
        use = parts.use
        is_noted = use is None or not use.is_asked
        is_current = is_noted and bound is not None and parts.shape_cache.only_uncompiled is bound.model
        if bound is not None and is_current and all(self._rebind(parts, bound, name) for name in self._new):
            with suppress(OperationError, OtherShapes):  # the run below raises the error
                self._run_bound(parts, bound)
                self._bound = bound
                self._new.clear()
                return
        self._run_as_new(parts, self._feeds)
        if self._is_used:  # many bindings run only once
            self._bound = self._bind(parts)
        self._is_used = True
        self._new.clear()

    def _run_bound(self, parts: SessionParts, bound: _BoundValue) -> None:
        begin = monotonic_ns()
        parts.check_alive()
        for value_range in parts.ranges:
            value_range.check(self._feeds)
        self._results = bound.run()
        if parts.run_trace is not None:
            parts.run_trace.note("model_run", begin)

    def _bind(self, parts: SessionParts) -> _BoundValue | None:
        """Bind the model to the memory of the last run; None if later runs may need the full path."""
        feeds, model = self._feeds, parts.shape_cache.only_uncompiled
        if model is None or not parts.is_repeatable or feeds.keys() != parts.inputs_by_name.keys():
            return None
        if not all(map(_is_read_in_place, feeds.values())):
            return None
        targets = {name: target for name, target in self._targets.items() if target is not None}
        shared = memory.in_place(feeds, targets, parts.in_place)
        written = memory.merged_ranges(targets.values())
        if any(memory.meets(written, feeds[name]) for name in feeds.keys() - shared.values()):
            return None  # an output over an input is computed in new memory
        outputs = {name: Cell() if target is None else target for name, target in self._targets.items()}
        sources, buffers = [feeds[name] for name in model.inputs], [outputs.get(name) for name in model.outputs]
        call = model.program.bind(sources, buffers, model.pairs(shared))
        if not hasattr(call, "read"):
            return None
        return _BoundValue(model, call, outputs, frozenset(shared.values()), written)

    def _rebind(self, parts: SessionParts, bound: _BoundValue, name: str) -> bool:
        """Make a bound call read the array that is now bound to an input; False if the whole call must be checked."""
        value = self._feeds[name]
        if name in bound.updated or not _is_read_in_place(value):
            return False
        array = parts.inputs_by_name[name].as_input(value, parts.context)
        if memory.meets(bound.written, array):
            return False
        bound.call.read(bound.model.inputs.index(name), array)
        return True

    def _run_as_new(self, parts: SessionParts, feeds: Mapping[str, Any]) -> None:
        inputs = {name: array for name, array in feeds.items() if isinstance(array, np.ndarray)}
        targets = {name: array for name, array in self._targets.items() if array is not None}
        updated = memory.in_place(inputs, targets, parts.in_place)
        # ONNX Runtime allows an output to overlap any input; here such an output is computed in new memory, and copied.
        # Inputs that are not contiguous are copied before the run.
        apart = inputs.keys() - updated.values()
        read = memory.merged_ranges(inputs[name] for name in apart if inputs[name].flags.c_contiguous)
        shared = {name for name, array in targets.items() if memory.meets(read, array)}
        out = {name: array for name, array in targets.items() if name not in shared}
        results = self._owner.run(list(self._targets), feeds, out=out)
        self._results = dict(zip(self._targets, results, strict=True))
        for name in shared:
            target, result = targets[name], self._results[name]
            fits = target.dtype == result.dtype and target.shape == result.shape
            require(fits, f"output {name!r} must be {_description_of(result)}, got {_description_of(target)}")
            memory.copy(target, result, "an output bound to the memory of an input")
            self._results[name] = target

    def _bind_feed(self, name: str, value: Any) -> None:
        parts = parts_of(self._owner)
        if name not in parts.inputs_by_name:
            _check_name(name, "input", [argument.name for argument in (*parts.inputs, *parts.overridable())])
        self._input_values.pop(name, None)
        self._feeds[name] = value
        self._new.add(name)

    def _bind_target(self, name: str, target: np.ndarray | None) -> None:
        outputs = parts_of(self._owner).outputs
        if name not in outputs:
            _check_name(name, "output", outputs)
        self._values.pop(name, None)
        if name not in self._targets or not _are_same(self._targets[name], target):
            self._bound = None
        self._targets[name] = target


def _check_name(name: str, kind: str, names: Collection[str]) -> None:
    require(name in names, f"the model has the {kind}s {list(names)}; unknown: {name!r}")


def _is_read_in_place(value: Any) -> bool:
    return type(value) is np.ndarray and bool(value.flags.c_contiguous and value.flags.aligned)


def _are_same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Whether two targets have the same memory, data type and shape, or are both None."""
    if one is None or other is None:
        return one is other
    return memory.is_same(one, other) and (one.dtype, one.shape) == (other.dtype, other.shape)


def _description_of(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"


def _check_device(label: str, device_type: str) -> None:
    require(isinstance(device_type, str), f"{label}: device_type must be a name, got {device_type!r}")
    if device_type.lower() != "cpu":
        raise NotSupportedError(f"{label}: memory must be on the CPU, got device_type={device_type!r}")


def _array_at(label: str, device_type: str, element_type: Any, shape: Sequence[int], address: int) -> np.ndarray:
    _check_device(label, device_type)
    if isinstance(element_type, int) and not isinstance(element_type, bool):
        is_numeric = element_type in TensorProto.DataType.values() and element_type not in (0, TensorProto.STRING)
        require(is_numeric, f"{label}: element_type must be a TensorProto.DataType with numbers, got {element_type}")
        dtype = dtype_of(element_type)
    else:
        try:
            dtype = np.dtype(element_type)
        except TypeError:
            raise ValidationError(f"{label}: element_type must be a data type, got {element_type!r}") from None
        require(dtype.kind in "fiub", f"{label}: element_type must be a type of numbers, got {dtype}")
    sizes = tuple(int(size) for size in shape)
    require(all(size >= 0 for size in sizes), f"{label}: shape must have sizes from 0, got {list(sizes)}")
    count = int(np.prod(sizes, dtype=object))
    fits = isinstance(address, (int, np.integer)) and (address > 0 or count == 0)
    require(fits, f"{label}: buffer_ptr must be an address, got {address!r}")
    if count == 0:
        return np.empty(sizes, dtype)
    bytes_there = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(int(address))
    return np.frombuffer(memoryview(bytes_there), np.uint8).view(dtype).reshape(sizes)
