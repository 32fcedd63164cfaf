"""Recurrent networks. The inputs of all steps are multiplied at once; then workgroups go through the steps.

A workgroup computes one direction of one batch. It keeps the states in its own memory, and reads the recurrent weights in
every step: from the cache of the device, since all workgroups read the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....expr import Array, compute, ir, relu, sigmoid, tanh, where
from ....expr.gpu import Local, Workgroups
from ....expr.ir import Input
from ....expr.tracing import of_input
from ....ops import recurrent as ops
from ..contraction.problem import product
from ..table import gpu
from .reduction import dot, widened
from .results import Products, Staged, Stages, source_of

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {"relu": relu, "sigmoid": sigmoid, "tanh": tanh}

MAX_HIDDEN_SIZE = 768
"""Size of hidden states up to which those of a batch, and all products of a step, fit into the workgroup memory of every
device (16 KiB): 5 numbers and more for each element."""


@dataclass(frozen=True)
class _Network:
    """A recurrent network over a sequence.

    Attributes:
        stages: what computes it.
        input: [steps, batches, input size].
        weight: [directions, gates * hidden_size, input size].
        recurrent_weight: [directions, gates * hidden_size, hidden_size].
        hidden_size: number of features of the hidden state.
        direction: the order of the steps.
    """

    stages: Stages
    input: Array
    weight: Array
    recurrent_weight: Array
    hidden_size: int
    direction: str

    @classmethod
    def of(cls, stages: Stages, **given: Any) -> _Network:
        """The network of an operation with these arguments."""
        names = ("input", "weight", "recurrent_weight", "hidden_size", "direction")
        return cls(stages, *(given[name] for name in names))

    @property
    def steps(self) -> int:
        return self.input.shape[0]

    @property
    def batches(self) -> int:
        return self.input.shape[1]

    @property
    def directions(self) -> int:
        return self.weight.shape[0]

    @property
    def rows(self) -> int:
        """Rows of the weights: `hidden_size` for each gate."""
        return self.weight.shape[1]

    def weighted(self) -> Array:
        """The weighted inputs [directions, steps * batches, rows], float32: the products of all steps at once."""
        x = self.stages.viewed(self.input, [self.steps * self.batches, self.input.shape[2]])
        problem = product(source_of(x), source_of(self.weight), b_transpose=True)
        return self.stages.add(Products(problem), self.stages.array("float32", problem.layout.shape), "weighted inputs")

    def columns(self) -> Array:
        """The recurrent weights [directions, hidden_size, rows], in which adjacent invocations read adjacent elements."""
        w = self.recurrent_weight
        shape = [self.directions, self.hidden_size, self.rows]
        return self.stages.stored(compute(shape, lambda d, k, row: w[d, row, k]), "the recurrent weights")

    def time(self, direction: Array, step: Array) -> Array:
        """The position in the sequence of a step."""
        back = self.steps - 1 - step
        if self.direction == "both":
            return where(direction == 0, step, back)
        return back if self.direction == "backward" else step


_Step = Callable[[Callable[[Array], Array]], None]
"""Adds the statements of a step; takes what gives the weighted input of a row."""


class _Steps:
    """The program of some steps of a network: a workgroup for each direction and batch goes through them.

    Args:
        network: the network.
        states: the states before these steps; None for zeros.
        weighted: what `network.weighted` returns.
        columns: what `network.columns` returns.
    """

    def __init__(self, network: _Network, states: Sequence[Array | None], weighted: Array, columns: Array) -> None:
        self.network, self.size = network, network.hidden_size
        self.weighted, self.columns = weighted, columns
        self.program = Workgroups([network.directions, network.batches], width=max(32, network.rows))
        self.direction, self.batch = self.program.positions
        self.states = [self.program.shared([self.size]) for _ in states]
        for state, given in zip(self.states, states, strict=True):
            self.program.fill(state, lambda j, given=given: 0 if given is None else self.of(given, self.batch, j))

    def of(self, array: Array, *position: Array) -> Array:
        """An element of an operand for the direction of the workgroup."""
        return widened(array)[(self.direction, *position)]

    def state(self, number: int, j: Array) -> Array:
        """An element of a state."""
        return self.program[self.states[number]][j]

    def product(self, row: Array, of: Local) -> Array:
        """An element of the product of the recurrent weights and a vector."""
        return dot(self.size, lambda k: self.of(self.columns, k, row) * self.program[of][k])

    def add(self, step: _Step, start: int, end: int, last: Sequence[Input], all: Input | None) -> None:
        """Add the loop over the steps from `start` to before `end`, and write the results."""
        network, program, place = self.network, self.program, (self.direction, self.batch)
        with program.repeat(end - start) as number:
            time = network.time(self.direction, number + start)
            step(lambda row: self.of(self.weighted, time * network.batches + self.batch, row))
            if all is not None:
                program.write(all, [self.size], lambda j: (time, *place, j), lambda j: self.state(0, j))
        for k, target in enumerate(last):
            program.write(target, [self.size], lambda j: (*place, j), lambda j, k=k: self.state(k, j))


def _in_steps(
    network: _Network, states: Sequence[Array | None], return_sequence: bool, step_of: Callable[[_Steps], _Step]
) -> list[Array]:
    """Add the kernels of a network, and return all results: one kernel, or several where it would repeat loops too often."""
    stages, steps, weighted, columns = network.stages, network.steps, network.weighted(), network.columns()
    shape = [network.directions, network.batches, network.hidden_size]
    data_type = ir.storage(network.input.data_type)
    results = [stages.array(data_type, shape) for _ in states]
    all_states = stages.array(data_type, [steps, *shape]) if return_sequence else None

    def program_of(start: int, end: int, last: Sequence[Input]) -> Workgroups:
        made = _Steps(network, states, weighted, columns)
        made.add(step_of(made), start, end, last, all_states)
        return made.program

    whole, most = program_of(0, steps, results), stages.features.max_iterations
    iterations = whole.iterations(stages.features)
    if iterations <= most:
        stages.add(whole, results[0], "the steps")
    else:
        count = max(1, steps * most // iterations - 1)  # one less for what comes before and after the steps
        for start in range(0, steps, count):
            end = min(start + count, steps)
            last = results if end == steps else [stages.array("float32", shape) for _ in states]
            stages.add(program_of(start, end, last), last[0], f"steps {start} to {end}")
            states = list(map(of_input, last))
    return [of_input(result) for result in (*results, *([] if all_states is None else [all_states]))]


def _fits(hidden_size: int) -> bool:
    return hidden_size <= MAX_HIDDEN_SIZE


@gpu.lower(ops.gru, when=_fits)
def _(
    bias: Array | None,
    recurrent_bias: Array | None,
    initial_hidden_state: Array | None,
    reset_after: bool,
    return_sequence: bool,
    layout: str,
    activations: Sequence[str],
    **given: Any,
) -> Staged:
    f, g = (_FUNCTIONS[name] for name in activations)

    def plan(stages: Stages) -> list[Array]:
        return _in_steps(_Network.of(stages, **given), [initial_hidden_state], return_sequence, step_of)

    def step_of(made: _Steps) -> _Step:
        program, size, (h,) = made.program, made.size, made.states
        products = program.shared([3 * size if reset_after else 2 * size])
        reset = None if reset_after else program.shared([size])

        def row(gate: str, j: Array) -> Array:
            return j + layout.index(gate) * size

        def plus(total: Array, vector: Array | None, at: Array) -> Array:
            return total if vector is None else total + made.of(vector, at)

        def step(weighted: Callable[[Array], Array]) -> None:
            def gate(name: str, j: Array) -> Array:
                return f(plus(weighted(row(name, j)), bias, row(name, j)) + program[products][row(name, j)])

            def new(j: Array) -> Array:
                n = row("n", j)
                if reset is None:
                    recurrent = gate("r", j) * program[products][n]
                else:
                    recurrent = plus(made.product(n, reset), recurrent_bias, n)
                return g(plus(weighted(n), bias, n) + recurrent)

            def next_state(j: Array) -> Array:
                z = gate("z", j)
                return z * made.state(0, j) + new(j) * (1 - z)

            program.fill(products, lambda r: plus(made.product(r, h), recurrent_bias, r))
            if reset is not None:
                program.fill(reset, lambda j: gate("r", j) * made.state(0, j))
            program.fill(h, next_state)

        return step

    return Staged(plan)


@gpu.lower(ops.lstm, when=_fits)
def _(
    bias: Array | None,
    recurrent_bias: Array | None,
    peephole_weight: Array | None,
    initial_hidden_state: Array | None,
    initial_cell_state: Array | None,
    return_sequence: bool,
    layout: str,
    activations: Sequence[str],
    **given: Any,
) -> Staged:
    f, g, k = (_FUNCTIONS[name] for name in activations)

    def plan(stages: Stages) -> list[Array]:
        return _in_steps(
            _Network.of(stages, **given), [initial_hidden_state, initial_cell_state], return_sequence, step_of
        )

    def step_of(made: _Steps) -> _Step:
        program, size, (h, c) = made.program, made.size, made.states
        products, out = program.shared([4 * size]), program.private([size])

        def step(weighted: Callable[[Array], Array]) -> None:
            def total(row: Array) -> Array:
                result = weighted(row) + made.product(row, h)
                for vector in (bias, recurrent_bias):
                    result = result if vector is None else result + made.of(vector, row)
                return result

            def gate(name: str, j: Array) -> Array:
                value = program[products][j + layout.index(name) * size]
                if peephole_weight is None:
                    return f(value)
                at = j + ops.PEEPHOLES.index(name) * size
                return f(value + made.of(peephole_weight, at) * made.state(1, j))

            def next_cell(j: Array) -> Array:
                new = g(program[products][j + layout.index("g") * size])
                return gate("f", j) * made.state(1, j) + gate("i", j) * new

            program.fill(products, total)
            program.fill(out, lambda j: gate("o", j))  # before the cell state changes, which peepholes read
            program.fill(c, next_cell)
            program.fill(h, lambda j: program[out][j] * k(made.state(1, j)))

        return step

    return Staged(plan)
