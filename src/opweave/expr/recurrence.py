"""Recurrences: a formula that is repeated along an axis of time.

    h, y = step(h, x[0], a)
    h, y = step(h, x[1], a)    # and so on

The step is an ordinary formula. Its first inputs are the states, and its first outputs the states after the step. Each of the
other inputs is a slice of a sequence, or an array that all steps read whole; each of the other outputs becomes a slice of a
sequence. `evaluate_recurrence` is the reference. `divide_step` divides a step into the arrays that compiled loops and GPU
kernels compute one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from ..core.dtypes import FLOATS
from ..core.graph import Desc
from ..core.size_values import HasSizes
from ..core.sizes import Dimension
from ..support.errors import MissingExtraError, OperationError, ValidationError, require
from ..support.records import record
from .elements import Array, Precision
from .evaluate import Evaluator
from .ir import Formula
from .specialise import formula_at


@record(eq=True, slots=False)
class Along:
    """The axis of time of a sequence, which its slices lack, and whether the first step takes the last slice."""

    axis: int
    backward: bool = False

    def desc_of(self, slice: Desc, length: Dimension) -> Desc:
        """The descriptor of a sequence of slices.

        >>> print(Along(1).desc_of(Desc("float32", (2, 3)), 7))
        float32[2, 7, 3]
        """
        shape: Any = (*slice.shape[: self.axis], length, *slice.shape[self.axis :])
        return Desc(slice.data_type, shape)

    def slice_of(self, sequence: Desc) -> Desc:
        """The descriptor of a slice of a sequence."""
        return Desc(sequence.data_type, (*sequence.shape[: self.axis], *sequence.shape[self.axis + 1 :]))

    def position(self, step: int, length: int) -> int:
        """The position of a step in the sequence."""
        return length - 1 - step if self.backward else step


@record(slots=False)
class Recurrence(HasSizes):
    """A step that is repeated for all slices of sequences.

    Attributes:
        step: the formula of a step. Its inputs are `states` states, then one for each of `inputs`; its outputs the states
            after the step, then one for each of `outputs`.
        states: the number of states.
        inputs: for each further input, the axis of time of the sequence whose slices it takes; None for an array that all
            steps read whole.
        outputs: for each further output, the axis of time of the sequence that collects it.

    >>> from opweave.expr import trace
    >>> step = trace(lambda h, x: (h + x, h * x), "sums", [Desc("float32", (2,)), Desc("float32", (2,))])
    >>> sums = Recurrence(step, 1, (Along(0),), (Along(0),))
    >>> print(*sums.results_for([Desc("float32", (2,)), Desc("float32", (5, 2))]))
    float32[2] float32[5, 2]
    """

    step: Formula
    states: int
    inputs: tuple[Along | None, ...]
    outputs: tuple[Along, ...]

    def __post_init__(self) -> None:
        step, count = self.step, self.states
        require(
            len(step.inputs) == count + len(self.inputs) and len(step.outputs) == count + len(self.outputs),
            f"{step.name}: a step of {count} states, {len(self.inputs)} inputs and {len(self.outputs)} outputs has "
            f"{len(step.inputs)} inputs and {len(step.outputs)} outputs",
        )
        for number in range(count):
            before, after = step.inputs[number].desc, step.outputs[number].desc
            name = step.inputs[number].name or f"state {number}"
            require(before == after, f"the step must return {name} as {before}, which it takes, got {after}")
        require(any(along is not None for along in self.inputs), "a step must read a slice of at least one sequence")
        for along, source in zip(self.inputs, step.inputs[count:], strict=True):
            if along is not None:
                _check_axis(along.axis, source.desc.rank, source.name or f"input {source.number}")
        for number, (along, output) in enumerate(zip(self.outputs, step.outputs[count:], strict=True)):
            _check_axis(along.axis, output.desc.rank, f"output {number}")

    def __repr__(self) -> str:
        return f"<Recurrence {self.name}: {', '.join(str(source.desc) for source in self.step.inputs[: self.states])}>"

    @property
    def name(self) -> str:
        return self.step.name

    def length_for(self, operands: Sequence[Desc]) -> Dimension:
        """The number of steps for operands: states, then sequences and arrays. All sequences must have this length."""
        lengths = {
            source.name or f"input {source.number}": desc.shape[along.axis]
            for along, source, desc in zip(
                self.inputs, self.step.inputs[self.states :], operands[self.states :], strict=True
            )
            if along is not None
        }
        first, length = next(iter(lengths.items()))
        for name, other in lengths.items():
            require(other == length, f"all sequences must have as many steps: {first} has {length}, {name} has {other}")
        return length

    def results_for(self, operands: Sequence[Desc]) -> tuple[Desc, ...]:
        """The final states, and the sequences of the other outputs."""
        length = self.length_for(operands)
        descs = [output.desc for output in self.step.outputs]
        pairs = zip(self.outputs, descs[self.states :], strict=True)
        return *descs[: self.states], *(along.desc_of(desc, length) for along, desc in pairs)

    @property
    def shapes(self) -> tuple[Any, ...]:
        return tuple(source.desc.shape for source in self.step.inputs)

    def at(self, sizes: Mapping[str, int]) -> Recurrence:
        """The recurrence with numbers in place of sizes."""
        return Recurrence(formula_at(self.step, sizes), self.states, self.inputs, self.outputs)


def _check_axis(axis: int, rank: int, name: str) -> None:
    require(
        0 <= axis <= rank,
        f"the axis of time must be in [0, {rank}] for {name}, which has {rank} axes in each step, got {axis}",
    )


def evaluate_recurrence(
    recurrence: Recurrence, inputs: Sequence[Array], outputs: Sequence[Array], *, precision: Precision = "float32"
) -> None:
    """Compute a recurrence step by step with NumPy. States have their data types between steps.

    With precision "float64", floats are float64 also between steps; float outputs must then be float64, and inputs may be.
    """
    bind_recurrence(recurrence, precision)(inputs, outputs)


def bind_recurrence(recurrence: Recurrence, precision: Precision = "float32") -> Any:
    """Return a function `run(inputs, outputs)` that evaluates a recurrence."""
    step, count = recurrence.step, recurrence.states
    evaluator = Evaluator(step, precision)

    def type_of(desc: Desc) -> str:
        return precision if precision == "float64" and desc.data_type in FLOATS else desc.data_type

    def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        # The evaluator writes states into new memory, as it does all its intermediates.
        pairs = zip(inputs[:count], step.inputs[:count], strict=True)
        states = [np.array(state, type_of(source.desc)) for state, source in pairs]
        sequences = list(zip(recurrence.inputs, inputs[count:], strict=True))
        length = next(array.shape[along.axis] for along, array in sequences if along is not None)
        results = [np.empty(output.desc.shape, type_of(output.desc)) for output in step.outputs]
        for number in range(length):
            slices = [
                array if along is None else np.take(array, along.position(number, length), along.axis)
                for along, array in sequences
            ]
            evaluator.bind([*states, *slices], results)()
            states, results[:count] = results[:count], states
            for along, array, result in zip(recurrence.outputs, outputs[count:], results[count:], strict=True):
                array[(slice(None),) * along.axis + (along.position(number, length),)] = result
        for state, output in zip(states, outputs, strict=False):
            np.copyto(output, state)

    return run


# ---------------------------------------------------------------------------------------------------------------------
# Loops


class RecurrentLoop(Protocol):
    """A recurrence that is ready to run."""

    @property
    def detail(self) -> str:
        """The engine and its options, for tables."""

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        """Key and kind of the files in the cache on disk with its code."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Return a function that runs all steps, on C-contiguous arrays of the declared data types and shapes."""


def compile_recurrence(recurrence: Recurrence) -> RecurrentLoop:
    """Compile a recurrence: with Halide if it is installed, else for evaluation with NumPy.

    NumPy also evaluates recurrences that Halide cannot compile; `detail` contains the reason.
    """
    from .kernels import is_compiled

    if recurrence.step.has_sizes:
        return SizedLoop(recurrence)
    if not is_compiled():
        return NumpyLoop(recurrence, "NumPy, step by step")
    if recurrence.step.checks:
        return NumpyLoop(recurrence, "NumPy, step by step: it checks indices")
    from .halide.repetition import HalideLoop

    try:
        return HalideLoop(recurrence)
    except (OperationError, MissingExtraError) as error:
        return NumpyLoop(recurrence, f"NumPy, step by step; {error}")


class _LoopWithoutCode:
    """A recurrence without compiled code."""

    def cache_keys(self) -> Iterable[tuple[str, str]]:
        return ()


class SizedLoop(_LoopWithoutCode):
    """A recurrence that is compiled for the sizes of each run."""

    detail = "compiled for each size"

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence = recurrence

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        raise ValidationError(f"{self.recurrence.name}: the sizes of this recurrence are known only at a run")


class NumpyLoop(_LoopWithoutCode):
    """A recurrence that NumPy evaluates."""

    def __init__(self, recurrence: Recurrence, detail: str) -> None:
        self.recurrence, self.detail = recurrence, detail

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        return partial(bind_recurrence(self.recurrence), inputs, outputs)
