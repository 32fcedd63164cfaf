"""Reference rules: recurrent networks. States are carried between steps in float64, without rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....core.operation import Op, call_with
from ....ops import recurrent as ops
from ..backend import Array, reference

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
    "tanh": np.tanh,
}


def _gates(operand: Array | None, layout: str, like: Array) -> dict[str, Array]:
    """Split an operand into the block of each gate, by letter; zeros for an absent bias or peephole weight."""
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


def _network(op: Op[..., Any], cell: Callable[..., Any], *states: str) -> None:
    """Register the rule of a network, which runs the rule of a cell for each direction and step.

    The cell returns the next states, the hidden state first; `states` are its parameters.
    """

    @reference.lower(op)
    def _(
        input: Array, hidden_size: int, return_sequence: bool, direction: str, **parameters: Any
    ) -> tuple[Array, ...]:
        steps, batches, _ = input.shape
        orders = {"forward": (1,), "backward": (-1,), "both": (1, -1)}[direction]
        last, sequence = [], np.empty((steps, len(orders), batches, hidden_size))
        for k, order in enumerate(orders):
            own = {name: value[k] if isinstance(value, Array) else value for name, value in parameters.items()}
            for name in states:
                initial = own[f"initial_{name}"]
                own[name] = np.zeros((batches, hidden_size)) if initial is None else initial
            for step in range(steps)[::order]:
                result = call_with(cell, {**own, "input": input[step]})
                own.update(zip(states, result if isinstance(result, tuple) else (result,), strict=True))
                sequence[step, k] = own[states[0]]
            last.append([own[name] for name in states])
        final = tuple(np.stack(parts) for parts in zip(*last, strict=True))
        return (*final, sequence) if return_sequence else final


_network(ops.gru, _gru_cell, "hidden_state")
_network(ops.lstm, _lstm_cell, "hidden_state", "cell_state")
