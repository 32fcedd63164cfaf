"""Calls of the recurrent networks.

Numbers are small, because ReLU does not bound the states, which then grow from step to step. NaN and infinities are left
out: they reach all later steps, so that such a case shows little, and ONNX Runtime clips infinite sums to the largest
float, which sigmoid and tanh do not tell apart, but ReLU does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opweave.ops import recurrent as ops

from . import Call, Make, sample

GRU_LAYOUTS, LSTM_LAYOUTS = ("zrn", "rzn"), ("iofg", "ifgo")


def small(make: Make, operand: str, *shape: int) -> np.ndarray:
    return make.array(operand, shape, -0.5, 0.5)


def options(make: Make, layouts: tuple[str, ...], activations: int, **operands: tuple[int, ...]) -> dict[str, Any]:
    """Options, each given or left out: operands of these shapes, the order of the gates, activation functions."""
    given: dict[str, Any] = {name: small(make, name, *shape) for name, shape in operands.items() if make.boolean()}
    if make.boolean():
        given["layout"] = make.choice(layouts)
    if make.boolean():
        given["activations"] = [make.choice(("relu", "sigmoid", "tanh")) for _ in range(activations)]
    return given


def sequence(make: Make, layouts: tuple[str, ...], activations: int, states: list[str], peepholes: list[str]) -> Call:
    steps, batches, inputs, hidden = (make.integer(1, 3) for _ in range(4))
    direction = make.choice(("forward", "backward", "both"))
    directions, rows = 2 if direction == "both" else 1, len(layouts[0]) * hidden
    operands = {
        **dict.fromkeys(["bias", "recurrent_bias"], (directions, rows)),
        **dict.fromkeys(peepholes, (directions, 3 * hidden)),
        **dict.fromkeys(states, (directions, batches, hidden)),
    }
    return Call(
        small(make, "input", steps, batches, inputs),
        small(make, "weight", directions, rows, inputs),
        small(make, "recurrent_weight", directions, rows, hidden),
        steps,
        hidden,
        direction=direction,
        return_sequence=make.boolean(),
        **options(make, layouts, activations, **operands),
    )


def cell(make: Make, layouts: tuple[str, ...], activations: int, states: list[str], peepholes: list[str]) -> Call:
    batches, inputs, hidden = (make.integer(1, 4) for _ in range(3))
    rows = len(layouts[0]) * hidden
    operands = {**dict.fromkeys(["bias", "recurrent_bias"], (rows,)), **dict.fromkeys(peepholes, (3 * hidden,))}
    return Call(
        small(make, "input", batches, inputs),
        small(make, "weight", rows, inputs),
        small(make, "recurrent_weight", rows, hidden),
        *(small(make, state, batches, hidden) for state in states),
        hidden,
        **options(make, layouts, activations, **operands),
    )


@sample(ops.gru, rtol=1e-5)
def _(make: Make) -> Call:
    call = sequence(make, GRU_LAYOUTS, 2, ["initial_hidden_state"], [])
    call.kwargs["reset_after"] = make.boolean()
    return call


@sample(ops.gru_cell, rtol=1e-5)
def _(make: Make) -> Call:
    call = cell(make, GRU_LAYOUTS, 2, ["hidden_state"], [])
    call.kwargs["reset_after"] = make.boolean()
    return call


@sample(ops.lstm, rtol=1e-5)
def _(make: Make) -> Call:
    return sequence(make, LSTM_LAYOUTS, 3, ["initial_hidden_state", "initial_cell_state"], ["peephole_weight"])


@sample(ops.lstm_cell, rtol=1e-5)
def _(make: Make) -> Call:
    return cell(make, LSTM_LAYOUTS, 3, ["hidden_state", "cell_state"], ["peephole_weight"])
