"""A model as a program: what runs the calls of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from ... import memory
from ...backends import Pairs, Returning
from ...core.graph import Desc
from ...core.shapes import OtherShapes
from ...memory.spaces import Cell
from ...run.program import Program
from ..model.arguments import check_target
from ..model.booleans import bool_as_uint8

NOTHING_SHARED: Mapping[str, str] = MappingProxyType({})
"""No output lies in the memory of an input."""

Fallback = Literal["auto", "error"]
"""How nodes that WebNN cannot express are handled: "auto" runs them in ONNX Runtime, "error" refuses the model."""

Wrapper = Callable[[Any], Any] | None
"""How the value of an input is passed to the program; None for as it is."""

Result = tuple[Desc, np.dtype[Any]] | None
"""The data type and shape of an output, as an operand and as an array; None if they are not known before a run."""


class ModelProgram:
    """A model as a program, for given shapes of its inputs or for all. Several threads may run it at the same time.

    Args:
        program: runs it; its inputs and outputs have the names of the model's.
        wrappers: how inputs are passed to the program.
        results: what is known of its outputs.
        is_open: whether it takes inputs of any shape.

    Attributes:
        program: the same.
        is_open: likewise.
        inputs: the names of the inputs that it needs.
        outputs: the names of its outputs, in the order of the program.
        results: the data type and shape of each output, as an operand and as an array, where they are known in advance.
    """

    def __init__(
        self, program: Program, wrappers: Sequence[Wrapper], results: Sequence[Result], is_open: bool = False
    ) -> None:
        self.program, self.is_open = program, is_open
        self.inputs, self.outputs = list(program.graph.inputs), list(program.graph.outputs)
        self.results = {name: result for name, result in zip(self.outputs, results, strict=True) if result is not None}
        self._wrappers, self._results = wrappers, results
        self._takes_values = not any(wrappers)
        self._gives_values = all(result is None or result[1].kind != "b" for result in results)

    def returning(self, wanted: Sequence[int]) -> Returning:
        """A function that runs it on checked values, and returns the outputs at the positions `wanted` in new memory."""
        call = self.program.returning(wanted) if self._takes_values and self._gives_values else None
        return call or partial(self.run, outputs=[None] * len(self.outputs), wanted=wanted)

    def run(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        wanted: Sequence[int],
        shared: Mapping[str, str] = NOTHING_SHARED,
    ) -> list[Any]:
        """Run on arrays, or memory of the context's device, that have been checked.

        Args:
            inputs: the values of `self.inputs`.
            outputs: for each of `self.outputs`, the memory that it is written into, None for new memory.
            wanted: the positions of the outputs to return.
            shared: the outputs that use the memory of the input which they update, and that input, by name.

        Raises:
            ValidationError: memory in `outputs` does not have the shape of its output, which was not known in advance.
            OtherShapes: ONNX's inference was wrong about a shape.
            OperationError: an engine failed.
        """
        if not self._takes_values:
            inputs = [v if wrap is None else wrap(v) for v, wrap in zip(inputs, self._wrappers, strict=True)]
        buffers = [self._new(k, k in wanted) if output is None else output for k, output in enumerate(outputs)]
        passed = buffers
        if not self._gives_values:
            passed = [
                m if declared is None else bool_as_uint8(m) for declared, m in zip(self._results, buffers, strict=True)
            ]
        try:
            self.program.run(inputs, passed, self.pairs(shared) if shared else ())
        except OtherShapes as error:
            for name, target in zip(self.outputs, outputs, strict=True):
                if target is not None and name in error.shapes and name not in self.results:
                    check_target(name, target, error.shapes[name])
            raise
        results = [buffers[k] for k in wanted]
        if len(self.results) < len(buffers):
            results = [result.value if isinstance(result, Cell) else result for result in results]
        return results

    def memory(self, feed: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        """The memory of the program's inputs, of checked values by name, and new memory for its outputs."""
        values = [feed[name] for name in self.inputs]
        sources = [v if wrap is None else wrap(v) for v, wrap in zip(values, self._wrappers, strict=True)]
        targets = [self._new(k, True) for k in range(len(self.outputs))]
        return sources, [t if isinstance(t, Cell) else bool_as_uint8(t) for t in targets]

    def pairs(self, shared: Mapping[str, str]) -> Pairs:
        """The positions of the inputs, and of the outputs in their memory, that `shared` names."""
        places = {name: k for k, name in enumerate(self.inputs)}
        return tuple((places[shared[name]], k) for k, name in enumerate(self.outputs) if shared.get(name) in places)

    def _new(self, position: int, is_wanted: bool) -> Any:
        """New memory for an output: a cell where its size is not known, None where nothing reads it."""
        if (result := self._results[position]) is None:
            return Cell() if is_wanted or not self.is_open else None
        desc, dtype = result
        if is_wanted or self.program.space.is_host:
            return memory.empty(desc).view(dtype)
        return self.program.space.allocate(desc)
