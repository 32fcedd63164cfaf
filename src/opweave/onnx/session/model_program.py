"""Compiled models. They run the calls of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ... import memory
from ...core.desc import Desc, OtherShapes
from ...memory.spaces import Cell
from ..model.arguments import check_target
from ..model.booleans import bool_as_uint8

if TYPE_CHECKING:
    from ...backends import Aliases, Returning, TakingFeeds
    from ...run.program import Program

NOTHING_SHARED: Mapping[str, str] = MappingProxyType({})

Fallback = Literal["auto", "error"]
"""Treatment of nodes that WebNN cannot express: "auto" runs them in ONNX Runtime, "error" refuses the model."""

Wrapper = Callable[[Any], Any] | None
"""Converts the value of an input for the program; None to pass it unchanged."""

Result = tuple[Desc, np.dtype[Any]] | None
"""The `Desc` of an output, and the data type of its array; None if they are unknown before a run."""


class ModelProgram:
    """A model compiled for certain input shapes, or for all shapes if `is_open`. Several threads may run it at the same time.

    Attributes:
        inputs: names of the inputs that the program reads, in the program's order.
        results: descriptor and array data type of each output for which they are known, by name.
    """

    def __init__(
        self, program: Program, wrappers: Sequence[Wrapper], results: Sequence[Result], is_open: bool = False
    ) -> None:
        self.is_open = is_open
        self.set_program(program, wrappers, results)

    def set_program(self, program: Program, wrappers: Sequence[Wrapper], results: Sequence[Result]) -> None:
        """Let it run a program, which has a wrapper for each input and a result for each output."""
        self.program = program
        self._set_values(list(program.graph.inputs), list(program.graph.outputs), wrappers, results)

    def _set_values(
        self, inputs: list[str], outputs: list[str], wrappers: Sequence[Wrapper], results: Sequence[Result]
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.results = {name: result for name, result in zip(self.outputs, results, strict=True) if result is not None}
        self._wrappers, self._results = wrappers, results
        self._takes_values_as_is = not any(wrappers)
        self._gives_values_as_is = all(result is None or result[1].kind != "b" for result in results)

    @property
    def gives_values_as_is(self) -> bool:
        """Whether the values of inputs and outputs are those of the program."""
        return self._takes_values_as_is and self._gives_values_as_is

    def returning(self, wanted: Sequence[int]) -> Returning:
        """A function that runs the model on checked values, and returns outputs in new memory: those at positions `wanted`."""
        call = self._returning(wanted) if self.gives_values_as_is else None
        return call or partial(self.run, outputs=[None] * len(self.outputs), wanted=wanted)

    def taking_feeds(self, wanted: Sequence[int]) -> TakingFeeds | None:
        """`returning` for arrays by name, whose shapes the engine checks; None if the engine does not do that."""
        return self.program.taking_feeds(wanted)

    def _returning(self, wanted: Sequence[int]) -> Returning | None:
        return self.program.returning(wanted)

    def _run_program(self, inputs: Sequence[Any], outputs: Sequence[Any], shared: Aliases) -> None:
        self.program.run(inputs, outputs, shared)

    def ordered_run(self) -> Callable[[Mapping[str, Any]], Callable[[], list[Any]]]:
        """A function that binds the model to a feed. Runs return outputs in the order of their names, as on all engines."""
        run = self.returning(sorted(range(len(self.outputs)), key=lambda k: self.outputs[k]))
        return lambda feed: partial(run, [feed[name] for name in self.inputs])

    def run(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        wanted: Sequence[int],
        shared: Mapping[str, str] = NOTHING_SHARED,
    ) -> list[Any]:
        """Run on checked arrays, or checked memory of the context's device, and return the outputs at the positions `wanted`.

        `outputs` has the memory to write each output into, None for new memory. `shared` maps the name of an output to the
        name of the input whose memory the output reuses.

        Raises:
            ValidationError: memory in `outputs` does not have the shape of its output, which was unknown in advance.
            OtherShapes: ONNX's inference was wrong about a shape.
            OperationError: an engine failed.
        """
        if not self._takes_values_as_is:
            inputs = [v if wrap is None else wrap(v) for v, wrap in zip(inputs, self._wrappers, strict=True)]
        buffers = [self._new(k, k in wanted) if output is None else output for k, output in enumerate(outputs)]
        targets = buffers
        if not self._gives_values_as_is:
            targets = [
                m if declared is None else bool_as_uint8(m) for declared, m in zip(self._results, buffers, strict=True)
            ]
        try:
            self._run_program(inputs, targets, self.pairs(shared) if shared else ())
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
        """The memory of checked inputs, and new memory for the outputs, both in the order of the program."""
        values = [feed[name] for name in self.inputs]
        sources = [v if wrap is None else wrap(v) for v, wrap in zip(values, self._wrappers, strict=True)]
        targets = [self._new(k, True) for k in range(len(self.outputs))]
        return sources, [t if isinstance(t, Cell) else bool_as_uint8(t) for t in targets]

    def pairs(self, shared: Mapping[str, str]) -> Aliases:
        """Positions of the input and the output of each pair in `shared`."""
        places = {name: k for k, name in enumerate(self.inputs)}
        return tuple((places[shared[name]], k) for k, name in enumerate(self.outputs) if shared.get(name) in places)

    def _new(self, position: int, is_wanted: bool) -> Any:
        """Allocate an output: a cell if its size is unknown, None if nothing reads it."""
        if (result := self._results[position]) is None:
            return Cell() if is_wanted or not self.is_open else None
        desc, dtype = result
        if is_wanted or self.program.space.is_host:
            return memory.empty(desc).view(dtype)
        return self.program.space.allocate(desc)
