"""The cells of recurrent networks; `sequences` runs the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....expr import Traced, relu, sigmoid, tanh
from ....ops import recurrent as ops
from ..table import gpu
from .results import Staged, Stages
from .sequences import RecurrentCell, RecurrentNetwork, run_steps

_FUNCTIONS: dict[str, Callable[[Traced], Traced]] = {"relu": relu, "sigmoid": sigmoid, "tanh": tanh}


@gpu.lower(ops.gru)
def _(initial_hidden_state: Traced | None, reset_after: bool, activations: Sequence[str], **options: Any) -> Staged:
    f, g = (_FUNCTIONS[name] for name in activations)
    state, reset, update = range(3)

    def step(cell: RecurrentCell) -> None:
        """A step with the reset gate applied after the product."""
        total = cell.products("rzn", state)

        def gate(name: str, i: Traced, j: Traced) -> Traced:
            return f(cell.weighted_input(name, i, j) + total(name, i, j))

        def next_state(i: Traced, j: Traced) -> Traced:
            new = g(cell.weighted_input("n", i, j) + gate("r", i, j) * total("n", i, j))
            z = gate("z", i, j)
            return z * cell.own(state, i, j) + new * (1 - z)

        cell.keep(state, next_state)

    def gates(cell: RecurrentCell) -> None:
        """Keep reset gate * state, and the update gate."""
        total = cell.products("rz", state)

        def gate(name: str, i: Traced, j: Traced) -> Traced:
            return f(cell.weighted_input(name, i, j) + total(name, i, j))

        cell.keep(reset, lambda i, j: gate("r", i, j) * cell.own(state, i, j))
        cell.keep(update, lambda i, j: gate("z", i, j))

    def next_state_of_gates(cell: RecurrentCell) -> None:
        total = cell.products("n", reset)

        def next_state(i: Traced, j: Traced) -> Traced:
            new, z = g(cell.weighted_input("n", i, j) + total("n", i, j)), cell.own(update, i, j)
            return z * cell.own(state, i, j) + new * (1 - z)

        cell.keep(state, next_state)

    def plan(stages: Stages) -> list[Traced]:
        network = RecurrentNetwork.of(stages, options)
        if reset_after:
            return run_steps(network, [initial_hidden_state], [step])
        return run_steps(network, [initial_hidden_state], [gates, next_state_of_gates], extra_vectors=2)

    return Staged(plan, lambda _: RecurrentNetwork.names_needed(**options))


@gpu.lower(ops.lstm)
def _(
    peephole_weight: Traced | None,
    initial_hidden_state: Traced | None,
    initial_cell_state: Traced | None,
    activations: Sequence[str],
    **options: Any,
) -> Staged:
    f, g, k = (_FUNCTIONS[name] for name in activations)
    hidden, cells = range(2)

    def step(cell: RecurrentCell) -> None:
        products = cell.products("iofg", hidden)

        def total(name: str, i: Traced, j: Traced) -> Traced:
            return cell.weighted_input(name, i, j) + products(name, i, j)

        def gate(name: str, i: Traced, j: Traced) -> Traced:
            value = total(name, i, j)
            if peephole_weight is None:
                return f(value)
            at = cell.unit(j) + ops.PEEPHOLES.index(name) * cell.network.hidden_size
            return f(value + cell.of(peephole_weight, at) * cell.own(cells, i, j))

        def next_cell(i: Traced, j: Traced) -> Traced:
            return gate("f", i, j) * cell.own(cells, i, j) + gate("i", i, j) * g(total("g", i, j))

        out = cell.private(lambda i, j: gate("o", i, j))  # peepholes read the old cell state
        new = cell.private(next_cell)
        cell.keep(cells, new)
        cell.keep(hidden, lambda i, j: out(i, j) * k(new(i, j)))

    def plan(stages: Stages) -> list[Traced]:
        return run_steps(RecurrentNetwork.of(stages, options), [initial_hidden_state, initial_cell_state], [step])

    return Staged(plan, lambda _: RecurrentNetwork.names_needed(**options))
