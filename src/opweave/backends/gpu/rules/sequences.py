"""Recurrent networks over sequences, for any kind of cell.

One product multiplies the inputs of all steps. For small hidden states, a single kernel then runs all steps, with a workgroup
for each direction and batch that keeps the states in workgroup memory. For large hidden states, a single workgroup would read
the recurrent weights too slowly. A step is a kernel then, compiled once, whose workgroups compute some units each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from ....core.guards import estimate
from ....core.size_bounds import names_in_empty
from ....core.size_values import variables_in
from ....core.sizes import Size
from ....expr import Traced, clamp, compute, ir, sum_over, where
from ....expr.array import as_array
from ....expr.gpu import Local, Workgroups
from ....expr.ir import Cast, Input
from ....expr.tracing import of_input
from ..contraction.problem import View, product
from .reduction import dot, narrow, widen
from .results import Products, ResultStage, Stages, source_of

MAX_HIDDEN_SIZE = 256
"""Largest hidden state for which one kernel runs all steps. With 256 units, a workgroup reads 0.8 to 1 MiB of recurrent
weights from the cache in each step. A kernel per step divides these reads among workgroups, but costs a launch per step."""

BLOCK = 8
"""Hidden units per workgroup of a kernel for one step: their weights in a row of the matrix fill a cache sector."""
PARTS = 8
"""Parts of a product of recurrent weights and a vector, with an invocation each."""
MAX_TILE = 4
"""The largest number of batches per workgroup of a kernel for one step, which share the weights."""

Values: TypeAlias = Callable[[Traced, Traced], Traced]
"""`values(i, j)`: a value for unit `j` of batch `i`, by indices within the workgroup."""


@dataclass
class RecurrentNetwork:
    """A recurrent network over a sequence.

    Attributes:
        input: [steps, batches, input size].
        weight: [directions, gates * hidden_size, input size].
        recurrent_weight: [directions, gates * hidden_size, hidden_size].
        bias: [directions, gates * hidden_size].
        recurrent_bias: [directions, gates * hidden_size].
        weighted: weight * input for all steps [directions, steps * batches, rows], float32.
        columns: the recurrent weights [directions, hidden_size, rows], transposed so that adjacent invocations read adjacent
            elements.
        all_states: the hidden states of all steps, if `return_sequence`.
    """

    stages: Stages
    input: Traced
    weight: Traced
    recurrent_weight: Traced
    bias: Traced | None
    recurrent_bias: Traced | None
    hidden_size: int
    direction: str
    layout: str
    return_sequence: bool

    @classmethod
    def of(cls, stages: Stages, arguments: dict[str, Any]) -> RecurrentNetwork:
        return cls(stages, **{field.name: arguments[field.name] for field in fields(cls) if field.name != "stages"})

    @classmethod
    def names_needed(cls, input: Traced, weight: Traced, hidden_size: int, **_: Any) -> tuple[set[str], set[str]]:
        """The names that need numbers for all sizes, and those that need numbers for the sizes of this run only.

        Kernels take names of steps and batches.
        """
        steps, batches, size = input.shape
        needed = variables_in((*weight.shape, size, hidden_size))
        return needed, names_in_empty((steps, batches)) - needed

    @property
    def steps(self) -> int:
        return self.input.shape[0]

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.weight.shape[0], self.input.shape[1], self.hidden_size

    def __post_init__(self) -> None:
        steps, batches, size = self.input.shape
        x = self.stages.view(self.input, [steps * batches, size])
        problem = product(View.of(source_of(x)), View.of(source_of(self.weight)), b_transpose=True)
        target = self.stages.array("float32", problem.layout.shape)
        self.weighted = self.stages.add(Products(problem), target, "weighted inputs")
        w = self.recurrent_weight
        directions, rows, size = w.shape
        columns = compute([directions, size, rows], lambda d, k, row: w[d, row, k])
        self.columns = self.stages.store(columns, "the recurrent weights")
        self.all_states = None
        if self.return_sequence:
            self.all_states = self.stages.array(ir.storage(self.input.data_type), [steps, *self.state_shape])


class RecurrentCell(ABC):
    """The share of a step that a workgroup computes: some hidden units of some batches of a direction.

    Vectors are numbered: the hidden state, the other states, then the vectors that a phase of a step passes to the next.
    The first axis of the program is the direction. `parts` invocations share a product.
    """

    def __init__(self, network: RecurrentNetwork, program: Workgroups, tile: int, count: int, parts: int) -> None:
        self.network, self.program, self.direction = network, program, program.positions[0]
        self.shape, self.parts = [tile, count], parts
        self.step: Traced | int = 0

    @abstractmethod
    def batch(self, i: Traced) -> Traced:
        """The index of a batch in the network."""

    @abstractmethod
    def unit(self, j: Traced) -> Traced:
        """The index of a unit in the network."""

    @abstractmethod
    def element(self, vector: int, i: Traced, k: Traced) -> Traced:
        """The element of any unit of a vector, before this phase."""

    @abstractmethod
    def keep(self, vector: int, values: Values) -> None:
        """Replace the elements of a vector."""

    def own(self, vector: int, i: Traced, j: Traced) -> Traced:
        return self.element(vector, i, self.unit(j))

    def of(self, array: Traced, *position: Traced) -> Traced:
        return widen(array)[(self.direction, *position)]

    def private(self, values: Values) -> Values:
        """Compute values now, and keep them in registers."""
        local = self.program.private_array(self.shape)
        self.program.fill(local, values)
        return lambda i, j: self.program[local][i, j]

    @property
    def time(self) -> Traced:
        """The position of the step in the sequence."""
        forward = self.step + self.direction * 0
        back, direction = self.network.steps - 1 - forward, self.network.direction
        if direction == "both":
            return where(self.direction == 0, forward, back)
        return back if direction == "backward" else forward

    def weighted_input(self, gate: str, i: Traced, j: Traced) -> Traced:
        network = self.network
        row = network.layout.index(gate) * network.hidden_size + self.unit(j)
        total = self.of(network.weighted, self.time * network.state_shape[1] + self.batch(i), row)
        return total if network.bias is None else total + self.of(network.bias, row)

    def products(self, gates: str, vector: int) -> Callable[[str, Traced, Traced], Traced]:
        """Multiply the recurrent weights of adjacent gates by a vector.

        Returns `total(gate, i, j)`: recurrent_weight * vector + recurrent_bias for a gate.
        """
        network, size = self.network, self.network.hidden_size
        first, length = min(map(network.layout.index, gates)), -(-size // self.parts)
        partial = self.program.shared_array([self.parts, self.shape[0], len(gates), self.shape[1]])

        def part_of(part: Traced, i: Traced, gate: Traced, j: Traced) -> Traced:
            row = (gate + first) * size + self.unit(j)

            def term(k: Traced) -> Traced:
                at = part * length + k
                if size % self.parts == 0:
                    return self.of(network.columns, at, row) * self.element(vector, i, at)
                inside = clamp(at, 0, size - 1)
                return where(at < size, self.of(network.columns, inside, row) * self.element(vector, i, inside), 0)

            return dot(length, term)

        self.program.fill(partial, part_of)

        def total(gate: str, i: Traced, j: Traced) -> Traced:
            number = network.layout.index(gate)
            result = sum_over(self.parts, lambda part: self.program[partial][part, i, number - first, j])
            bias = network.recurrent_bias
            return result if bias is None else result + self.of(bias, number * size + self.unit(j))

        return total


Phase: TypeAlias = Callable[[RecurrentCell], None]
"""A part of a step. It may read all units of the vectors that earlier phases keep."""


def run_steps(
    network: RecurrentNetwork, states: Sequence[Traced | None], phases: Sequence[Phase], extra_vectors: int = 0
) -> list[Traced]:
    """Add the kernels of a network, and return all results.

    `states` are those before the first step, [directions, batches, hidden_size]; None for zeros. A phase passes
    `extra_vectors` to the next.
    """
    form = _in_one_kernel if network.hidden_size <= MAX_HIDDEN_SIZE else _in_a_kernel_a_step
    results = [of_input(result) for result in form(network, states, phases, extra_vectors)]
    return results if network.all_states is None else [*results, of_input(network.all_states)]


# One kernel ----------------------------------------------------------------------------------------------------------


class _WholeSequence(RecurrentCell):
    """All units of a batch, in a workgroup that loops over steps."""

    def __init__(self, network: RecurrentNetwork, states: Sequence[Traced | None], extra_vectors: int) -> None:
        directions, batches, size = network.state_shape
        program = Workgroups([directions, batches], width=max(32, len(network.layout) * size))
        super().__init__(network, program, 1, size, 1)
        self._locals: list[Local] = [program.shared_array([1, size]) for _ in range(len(states) + extra_vectors)]
        for local, initial in zip(self._locals, states, strict=False):
            start = lambda i, j, initial=initial: 0 if initial is None else self.of(initial, self.batch(i), j)  # noqa: E731
            program.fill(local, start)

    def batch(self, i: Traced) -> Traced:
        return self.program.positions[1] + i

    def unit(self, j: Traced) -> Traced:
        return j

    def element(self, vector: int, i: Traced, k: Traced) -> Traced:
        return self.program[self._locals[vector]][i, k]

    def keep(self, vector: int, values: Values) -> None:
        self.program.fill(self._locals[vector], values)

    def write(self, target: Input, vector: int, *leading: Traced) -> None:
        def at(i: Traced, j: Traced) -> Sequence[Traced]:
            return *leading, self.direction, self.batch(i), j

        self.program.write(target, self.shape, at, lambda i, j: self.element(vector, i, j))


def _in_one_kernel(
    network: RecurrentNetwork, states: Sequence[Traced | None], phases: Sequence[Phase], extra_vectors: int
) -> list[Input]:
    """Run all steps in one kernel, or in several if one would exceed `max_iterations`."""
    stages, steps = network.stages, network.steps
    results = [stages.array(ir.storage(network.input.data_type), network.state_shape) for _ in states]

    def program_of(start: int, end: int, last: Sequence[Input]) -> Workgroups:
        cell = _WholeSequence(network, states, extra_vectors)
        with cell.program.repeat(end - start) as number:
            cell.step = number + start
            for phase in phases:
                phase(cell)
            if network.all_states is not None:
                cell.write(network.all_states, 0, cell.time)
        for vector, target in enumerate(last):
            cell.write(target, vector)
        return cell.program

    whole, most = program_of(0, steps, results), stages.features.max_iterations
    iterations = whole.iterations(stages.features)
    if iterations <= most:
        stages.add(whole, results[0], "the steps")
        return results
    if isinstance(steps, Size):  # the number of kernels depends on it
        steps = int(steps)
    count = max(1, int(steps * most // iterations) - 1)  # one less, for the code around the loop
    for start in range(0, steps, count):
        end = min(start + count, steps)
        last = results if end == steps else [stages.array("float32", network.state_shape) for _ in states]
        stages.add(program_of(start, end, last), last[0], f"steps {start} to {end}")
        states = list(map(of_input, last))
    return results


# A kernel a step -----------------------------------------------------------------------------------------------------


class _UnitBlock(RecurrentCell):
    """Some units of some batches, for a phase of a step. It reads and writes states in memory.

    The old states are [states + 1, directions, batches, hidden_size]; the last holds the index of the step. The vectors
    that phases pass on are [vectors, directions, batches, hidden_size].
    """

    def __init__(self, network: RecurrentNetwork, old: Input, new: Input, extra: Input) -> None:
        directions, batches, size = network.state_shape
        tile = min(estimate(batches), MAX_TILE)
        sizes = [directions, -(-batches // tile), -(-size // BLOCK)]
        program = Workgroups(sizes, width=PARTS * tile * len(network.layout) * BLOCK)
        super().__init__(network, program, tile, BLOCK, PARTS)
        self._old, self._new, self._extra = of_input(old), new, extra
        self._states = old.desc.shape[0] - 1
        number = Traced((), Cast(self._old[self._states, 0, 0, 0].body, "index"))
        self.step = clamp(number, 0, network.steps - 1)  # bounds the positions, whatever the memory holds

    def batch(self, i: Traced) -> Traced:
        return clamp(self.program.positions[1] * self.shape[0] + i, 0, self.network.state_shape[1] - 1)

    def unit(self, j: Traced) -> Traced:
        return clamp(self.program.positions[2] * BLOCK + j, 0, self.network.hidden_size - 1)

    def element(self, vector: int, i: Traced, k: Traced) -> Traced:
        vectors, number = self._old, vector
        if vector >= self._states:
            vectors, number = of_input(self._extra), vector - self._states
        return vectors[number, self.direction, self.batch(i), k]

    def keep(self, vector: int, values: Values) -> None:
        values = self.private(values)
        target, number = self._new, vector
        if vector >= self._states:
            target, number = self._extra, vector - self._states

        def at(i: Traced, j: Traced) -> tuple[Traced, ...]:
            return self.direction, self.batch(i), self.unit(j)

        self.program.write(target, self.shape, lambda i, j: (number, *at(i, j)), values)
        all_states = self.network.all_states
        if vector == 0 and all_states is not None:
            self.program.write(all_states, self.shape, lambda i, j: (self.time, *at(i, j)), values)

    def count(self) -> None:
        """Write the number of the next step. All workgroups write the same value."""
        after = self._old[self._states, 0, 0, 0] + 1
        self.program.write(self._new, [1], lambda i: (self._states, i, 0, 0), lambda i: after)


def _in_a_kernel_a_step(
    network: RecurrentNetwork, states: Sequence[Traced | None], phases: Sequence[Phase], extra_vectors: int
) -> list[Input]:
    """Run each phase as a kernel. All steps repeat these kernels, and swap the arrays of old and new states."""
    stages, steps, shape = network.stages, network.steps, [len(states) + 1, *network.state_shape]

    def start(number: Traced, *position: Traced) -> Traced:
        value = as_array(0.0, "float32")
        for k, initial in enumerate(states):
            if initial is not None:
                value = where(number == k, widen(initial)[position], value)
        return value

    old = source_of(stages.store(compute(shape, start), "the states"))
    new, vectors = (
        stages.array("float32", shape),
        stages.array("float32", [max(1, extra_vectors), *network.state_shape]),
    )
    step = []
    for number, phase in enumerate(phases):
        cell = _UnitBlock(network, old, new, vectors)
        phase(cell)
        is_last = number == len(phases) - 1
        if is_last:
            cell.count()
        step.append(ResultStage(new if is_last else vectors, cell.program, "a step"))
    stages.repeat(step, steps, (old, new))
    last = of_input(new if isinstance(steps, Size) or steps % 2 else old)
    results = []
    for number in range(len(states)):
        state = compute(network.state_shape, lambda *p, number=number: last[(number, *p)])
        results.append(source_of(stages.store(narrow(state, network.input), "the last state")))
    return results
