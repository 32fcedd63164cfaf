"""Reference rules: recurrent networks. States are carried between steps in float64, without rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...ops import recurrent as ops
from .backend import Array, reference

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
    "tanh": np.tanh,
}


def _gates(operand: Array | None, layout: str, like: Array) -> dict[str, Array]:
    """The block of each gate, by its letter; zeros for an absent bias or peephole weight."""
    if operand is None:
        return dict.fromkeys(layout, np.zeros(like.shape[-1]))
    return dict(zip(layout, np.split(operand, len(layout)), strict=True))


@reference.lower(ops.gru_cell)
def _gru_cell(
    input: Array,
    weight: Array,
    recurrent_weight: Array,
    hidden_state: Array,
    bias: Array | None,
    recurrent_bias: Array | None,
    reset_after: bool,
    layout: str,
    activations: Sequence[str],
) -> Array:
    f, g = (_FUNCTIONS[name] for name in activations)
    x, h = input, hidden_state
    w, u = _gates(weight, layout, h), _gates(recurrent_weight, layout, h)
    b, c = _gates(bias, layout, h), _gates(recurrent_bias, layout, h)
    z = f(x @ w["z"].T + b["z"] + h @ u["z"].T + c["z"])
    r = f(x @ w["r"].T + b["r"] + h @ u["r"].T + c["r"])
    reset = r * (h @ u["n"].T + c["n"]) if reset_after else (r * h) @ u["n"].T + c["n"]
    n = g(x @ w["n"].T + b["n"] + reset)
    return z * h + (1 - z) * n


@reference.lower(ops.lstm_cell)
def _lstm_cell(
    input: Array,
    weight: Array,
    recurrent_weight: Array,
    hidden_state: Array,
    cell_state: Array,
    bias: Array | None,
    recurrent_bias: Array | None,
    peephole_weight: Array | None,
    layout: str,
    activations: Sequence[str],
) -> tuple[Array, Array]:
    f, g, k = (_FUNCTIONS[name] for name in activations)
    x, h, c = input, hidden_state, cell_state
    w, u = _gates(weight, layout, h), _gates(recurrent_weight, layout, h)
    b, d = _gates(bias, layout, h), _gates(recurrent_bias, layout, h)
    p = {**_gates(peephole_weight, ops.PEEPHOLES, h), "g": 0.0}
    sums = {gate: x @ w[gate].T + b[gate] + h @ u[gate].T + d[gate] + p[gate] * c for gate in layout}
    new = f(sums["f"]) * c + f(sums["i"]) * g(sums["g"])
    return f(sums["o"]) * k(new), new


def _run(
    input: Array, direction: str, states: Sequence[Array], cell: Callable[..., Sequence[Array]]
) -> tuple[list[Array], Array]:
    """The last states, each [directions, batches, hidden size], and the hidden states of all steps.

    `cell(k, x, *states)` computes the next states in direction `k`, the hidden state first.
    """
    orders = {"forward": (1,), "backward": (-1,), "both": (1, -1)}[direction]
    last, sequence = [], np.empty((len(input), *states[0].shape))
    for k, order in enumerate(orders):
        current: Sequence[Array] = [state[k] for state in states]
        for step in range(len(input))[::order]:
            current = cell(k, input[step], *current)
            sequence[step, k] = current[0]
        last.append(current)
    return [np.stack(state) for state in zip(*last, strict=True)], sequence


def _direction(k: int, *operands: Array | None) -> list[Array | None]:
    return [None if operand is None else operand[k] for operand in operands]


def _initial(state: Array | None, input: Array, direction: str, hidden_size: int) -> Array:
    return np.zeros((ops.direction_count(direction), input.shape[1], hidden_size)) if state is None else state


@reference.lower(ops.gru)
def _(
    input: Array,
    weight: Array,
    recurrent_weight: Array,
    hidden_size: int,
    bias: Array | None,
    recurrent_bias: Array | None,
    initial_hidden_state: Array | None,
    reset_after: bool,
    return_sequence: bool,
    direction: str,
    layout: str,
    activations: Sequence[str],
) -> tuple[Array, ...]:
    def cell(k: int, x: Array, h: Array) -> list[Array]:
        w, u, b, c = _direction(k, weight, recurrent_weight, bias, recurrent_bias)
        return [_gru_cell(x, w, u, h, b, c, reset_after, layout, activations)]

    last, sequence = _run(input, direction, [_initial(initial_hidden_state, input, direction, hidden_size)], cell)
    return (*last, sequence) if return_sequence else tuple(last)


@reference.lower(ops.lstm)
def _(
    input: Array,
    weight: Array,
    recurrent_weight: Array,
    hidden_size: int,
    bias: Array | None,
    recurrent_bias: Array | None,
    peephole_weight: Array | None,
    initial_hidden_state: Array | None,
    initial_cell_state: Array | None,
    return_sequence: bool,
    direction: str,
    layout: str,
    activations: Sequence[str],
) -> tuple[Array, ...]:
    def cell(k: int, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        w, u, b, d, p = _direction(k, weight, recurrent_weight, bias, recurrent_bias, peephole_weight)
        return _lstm_cell(x, w, u, h, c, b, d, p, layout, activations)

    states = [_initial(state, input, direction, hidden_size) for state in (initial_hidden_state, initial_cell_state)]
    last, sequence = _run(input, direction, states, cell)
    return (*last, sequence) if return_sequence else tuple(last)
