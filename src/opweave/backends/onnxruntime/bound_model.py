"""Bind a session of a whole model to memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ... import memory
from ...core.desc import OtherShapes
from ...memory.spaces import Cell, Memory
from ...support.errors import OperationError
from .in_place import count_copies
from .native import CPU, ENGINE_ERRORS
from .values import PLAIN_TYPES, from_engine, to_engine

_Binding, _value_of = engine.SessionIOBinding, engine.OrtValue.ortvalue_from_numpy


class BoundModel:
    """A `ModelSession` bound to memory. Each call, by one thread at a time, reads the current contents of cells."""

    __slots__ = ("_binding", "_changing", "_inputs", "_made", "_model", "_outputs", "_updates", "_values")

    def __init__(self, model: Any, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        self._model, self._binding = model, engine.SessionIOBinding(model.session)
        self._inputs, self._outputs = list(inputs), outputs
        # Keep the engine's values: the binding holds addresses only.
        self._values: list[Any] = [None] * len(inputs)
        types = [model.types[name] for name in model.inputs]
        # Inputs to bind at each run: cells, and types that are copied for the engine.
        self._changing = [k for k, i in enumerate(inputs) if isinstance(i, Cell) or types[k] not in PLAIN_TYPES]
        for k, source in enumerate(inputs):
            if k not in self._changing:
                self.read(k, source)
        copies = self._changing or any(update.copy_sizes(inputs, outputs) for update in model.updates)
        self._updates = model.updates if copies else ()
        # Outputs in new memory: (index in the binding, position).
        self._made: list[tuple[int, int]] = []
        place = 0
        for k, (name, target) in enumerate(zip(model.outputs, outputs, strict=True)):
            if isinstance(target, np.ndarray) and model.types[name] in PLAIN_TYPES:
                array = target.view(bool) if model.types[name] == "tensor(bool)" else target
                self._binding.bind_ortvalue_output(name, engine.OrtValue.ortvalue_from_numpy(array, CPU))
            elif target is not None:
                self._binding.bind_output(name, CPU)
                self._made.append((place, k))
            place += target is not None

    def read(self, position: int, source: Memory) -> None:
        """Bind an input to other memory of the same data type. No kernel may update this input in place."""
        self._inputs[position] = source
        value = self._values[position] = to_engine(self._model.value(position, source))
        self._binding.bind_ortvalue_input(self._model.inputs[position], value)

    def __call__(self) -> None:
        model = self._model
        try:
            for k in self._changing:
                self.read(k, self._inputs[k])
            model.session.run_with_iobinding(self._binding, None)
        except ENGINE_ERRORS as error:
            if not self._run_elsewhere():
                raise model.error_of(error) from error
            return
        if self._updates:
            values = [source.value if isinstance(source, Cell) else source for source in self._inputs]
            count_copies(self._updates, values, self._outputs)
        if self._made:
            values = self._binding.get_outputs()
            results = [(k, from_engine(values[place])) for place, k in self._made]
            for k, _ in results:
                # Bind again, else the next run would write into the same memory.
                self._binding.bind_output(model.outputs[k], CPU)
            fill(results, self._outputs, model.outputs, "an output of a type that NumPy does not have")

    def _run_elsewhere(self) -> bool:
        """Run in new memory and copy the results into the arrays; return whether the run succeeded.

        The engine's shape inference may expect other shapes than its kernels compute, and then refuse the arrays.
        """
        cells = {k: Cell() for k, target in enumerate(self._outputs) if isinstance(target, np.ndarray)}
        try:
            if cells:
                self._model.run(self._inputs, [cells.get(k, target) for k, target in enumerate(self._outputs)])
        except OperationError:
            return False
        results = [(k, cell.value) for k, cell in cells.items()]
        fill(results, self._outputs, self._model.outputs, "an output that the engine does not write into given memory")
        return bool(cells)


def run_on_arrays(model: Any, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> bool:
    """Run a `ModelSession` once on arrays of NumPy's own types, which takes a third of the time of `BoundModel`.

    Returns: Whether that was possible; if not, `BoundModel` knows what else to try.
    """
    for arrays in (outputs, inputs):
        for array in arrays:
            if type(array) is not np.ndarray or array.dtype.isbuiltin != 1:
                return False
    binding = _Binding(model.session)
    for name, array in zip(model.inputs, inputs):  # noqa: B905  (strict=True takes 0.1 us)
        binding.bind_input(name, array)
    for name, array in zip(model.outputs, outputs):  # noqa: B905
        binding.bind_ortvalue_output(name, _value_of(array, CPU))
    try:
        model.session.run_with_iobinding(binding, None)
    except ENGINE_ERRORS:
        return False
    if model.updates:
        count_copies(model.updates, inputs, outputs)
    return True


def fill(results: Sequence[tuple[int, Any]], outputs: Sequence[Memory], names: Sequence[str], reason: str) -> None:
    """Put (position, result) pairs into cells, or copy them into arrays, which must have the same shape."""
    arrays = [(k, value) for k, value in results if isinstance(outputs[k], np.ndarray)]
    shapes = {names[k]: value.shape for k, value in arrays if value.shape != outputs[k].shape}
    if shapes:
        raise OtherShapes(shapes)
    for k, value in results:
        if isinstance(target := outputs[k], Cell):
            target.value = value
        else:
            memory.copy(target.view(bool) if value.dtype == bool else target, value, reason)
