"""Runs of a session in a context on a device, whose tensors the host does not see.

Where all of the model is one graph, tensors stay where they are, and what goes back to the host is read at once. Where a
part of it falls back to the host, tensors are copied, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import memory
from ..context import MLContext
from ..errors import ValidationError, require
from ..graph import Desc
from ..tensor import MLTensor
from .arguments import Argument
from .booleans import as_declared, as_stored
from .plan import Plan

FEW = 64
"""Integer tensors of up to so many elements may decide about shapes: they are read before a model is compiled."""


class DeviceRun:
    """One call of a session.

    Args:
        context: on the device.
        inputs: what the model declares of the inputs that are given.
        given: arrays and tensors for them, by name.
        known: what the model declares of its outputs, by name.
        out: arrays and tensors to write outputs into, by name.
        places: where the other outputs are wanted, by name.
    """

    def __init__(
        self,
        context: MLContext,
        inputs: Sequence[Argument],
        given: Mapping[str, Any],
        known: Mapping[str, Argument],
        out: Mapping[str, Any],
        places: Mapping[str, str],
    ) -> None:
        self._context, self._device, self._known, self._places = context, context._space, known, places
        self._there: dict[str, Any] = {}
        self.here: dict[str, Any] = {}
        for argument in inputs:
            value = given[argument.name]
            if isinstance(value, MLTensor):
                self._there[argument.name] = context._own(value, f"input {argument.name!r}")
            else:
                self.here[argument.name] = argument.array(value)
        shaped = {a.name: _stand_in(given[a.name], a) for a in inputs if a.name in self._there}
        for argument in inputs:
            if argument.name in shaped:
                argument.check(shaped[argument.name], f"input {argument.name!r}")
        self.shapes = {
            name: value.shape if isinstance(value, np.ndarray) else None
            for name, value in ((a.name, shaped.get(a.name, self.here.get(a.name))) for a in inputs)
        }
        self._out = {name: self._target(known[name], value) for name, value in out.items()}
        arrays = {name: a for name, a in self.here.items() if isinstance(a, np.ndarray) and a.dtype.kind not in "OUS"}
        here = {name: array for name, array in self._out.items() if isinstance(array, np.ndarray)}
        memory.check_overlap(arrays, here)
        self._device.check_overlap(self._there, {name: a for name, a in self._out.items() if name not in here})

    def _target(self, argument: Argument, value: Any) -> Any:
        if not isinstance(value, MLTensor):
            return argument.target(value)
        what = f"out[{argument.name!r}]"
        array = self._context._own(value, what)
        argument.check(_stand_in(value, argument), what)
        return array

    def values(self, wanted: Callable[[str], bool]) -> dict[str, Any]:
        """Inputs whose values may decide about shapes: those on the host, and small ones of the device that are `wanted`."""
        small = [
            name
            for name, array in self._there.items()
            if "int" in array.desc.data_type and array.desc.element_count <= FEW and wanted(name)
        ]
        return {**self.here, **self._read(small, "an input that decides about shapes")}

    def run(self, plan: Plan, names: Sequence[str]) -> list[Any]:
        """Run the plan; the outputs `names`, where they are wanted.

        Raises:
            ValidationError: an `out` that does not have the shape of its output; an output that no tensor can hold.
            OperationError: the engine failed.
        """
        alone = plan.alone()
        if alone is None:
            return self._run_here(plan, names)
        sources = {plan.slot(name): as_stored(array) for name, array in self.here.items()}
        sources.update((plan.slot(name), array) for name, array in self._there.items())
        targets: dict[str, Any] = {}
        results: dict[str, Any] = {}
        for name in plan.outputs:
            desc = plan.desc(name)
            assert desc is not None, name
            if name in self._out:
                targets[plan.slot(name)] = self._fitting(name, desc)
            elif name not in names:
                targets[plan.slot(name)] = self._device.allocate(desc)  # nobody will read it
            elif self._places[name] == "cpu":
                results[name] = targets[plan.slot(name)] = memory.empty(desc)
            else:
                results[name] = self._tensor(desc)
                targets[plan.slot(name)] = results[name].memory()
        alone.run(sources | targets)
        return [results.get(name) for name in names]

    def _run_here(self, plan: Plan, names: Sequence[str]) -> list[Any]:
        """Run a plan whose parts meet on the host."""
        read = self._read(list(self._there), "an input of a model that runs in parts")
        types = {name: plan.trace.values[name] for name in read}
        feed = {**self.here, **{n: as_declared(a, getattr(types[n], "element_type", 0)) for n, a in read.items()}}
        targets = {name: array for name, array in self._out.items() if isinstance(array, np.ndarray)}
        asked = list(dict.fromkeys([*names, *self._out]))
        found = dict(zip(asked, plan.run(feed, asked, targets), strict=True))
        reason = "an output of a model that runs in parts"
        results: dict[str, Any] = {}
        for name, array in found.items():
            if name in self._out:
                if name not in targets:
                    desc = Desc(self._out[name].desc.data_type, array.shape)
                    self._device.write(self._fitting(name, desc), as_stored(array), reason)
            elif self._places[name] == "cpu":
                results[name] = array
            else:
                stored = as_stored(array)
                results[name] = self._tensor(Desc(str(stored.dtype), stored.shape))  # type: ignore[arg-type]
                self._device.write(results[name].memory(), stored, reason)
        return [results.get(name) for name in names]

    def _fitting(self, name: str, desc: Desc) -> Any:
        target = self._out[name]
        got = list(target.shape)
        require(got == list(desc.shape), f"out[{name!r}] must have shape {list(desc.shape)}, got {got}")
        return target if not isinstance(target, np.ndarray) else as_stored(target)

    def _tensor(self, desc: Desc) -> MLTensor:
        return self._context.create_tensor(desc.data_type, desc.shape, readable=True, writable=True)

    def _read(self, names: Sequence[str], reason: str) -> dict[str, np.ndarray]:
        """Inputs of the device, on the host; all of them are read at once."""
        arrays = [memory.empty(self._there[name].desc) for name in names]
        if names:
            self._device.read([self._there[name] for name in names], arrays, reason)
        return dict(zip(names, arrays, strict=True))


def _stand_in(tensor: MLTensor, argument: Argument) -> np.ndarray:
    """An array of a tensor's data type and shape, to be checked; it has no memory to speak of."""
    array = np.empty((), tensor.data_type)
    try:
        array = as_declared(array, argument.element_type)
    except (TypeError, ValueError) as error:
        raise ValidationError(f"input {argument.name!r}: {error}") from None
    return np.broadcast_to(array, tensor.shape)


__all__ = ["DeviceRun"]
