"""OpenVINO rules: recurrent networks with the usual activations, by the engine's kernels for sequences.

Single steps have no rule: the engine's cell consists of the same operations as the decomposition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....composites.single_gate import rnn
from ....core.graph import Operand
from ....ops import recurrent as ops
from ..backend import openvino
from ..emit import Emitter, Value

_DIRECTIONS = {"forward": "forward", "backward": "reverse", "both": "bidirectional"}


def _order_gates(ctx: Emitter, value: Value, layout: str, target: str) -> Value:
    if layout == target:
        return value
    places = [layout.index(gate) for gate in target]
    directions, rows, *rest = value.shape
    blocks = [directions, len(layout), rows // len(layout), *rest]
    if value.array is not None:
        return ctx.add_constant(value.array.reshape(blocks)[:, places].reshape(value.shape))
    moved = ctx.emit("gather", ctx.reshape(value, blocks), ctx.constant(places), ctx.constant(1))
    return ctx.reshape(moved, value.shape)


def _sum(ctx: Emitter, values: Sequence[Value | None], like: Value) -> Value:
    total = None
    for value in values:
        if value is not None:
            total = value if total is None else ctx.emit("add", total, value)
    return ctx.constant(np.zeros(like.shape[:2]), like.data_type) if total is None else total


def _sequence(
    ctx: Emitter, name: str, states: Sequence[Value | None], weights: Sequence[Value], arguments: Any
) -> list[Value]:
    """Return the last states, and the sequence if requested, in WebNN's order of axes; the engine has batches first."""
    x: Value = arguments["input"]
    steps, batches, _ = x.shape
    directions, size = weights[0].shape[0], arguments["hidden_size"]
    zeros = np.zeros((batches, directions, size))
    starts = [
        ctx.constant(zeros, x.data_type) if state is None else ctx.transpose(state, [1, 0, 2]) for state in states
    ]
    operands = [ctx.transpose(x, [1, 0, 2]), *starts, ctx.constant([steps] * batches), *weights]
    options = {"linear_before_reset": arguments["reset_after"]} if "reset_after" in arguments else {}
    if "activations" in arguments:
        options["activations"] = list(arguments["activations"])
    sequence, *last = ctx.emit_all(name, *operands, size, _DIRECTIONS[arguments["direction"]], **options)
    results = [ctx.transpose(state, [1, 0, 2]) for state in last]
    return [*results, ctx.transpose(sequence, [2, 1, 0, 3])] if arguments["return_sequence"] else results


def _is_usual_gru(activations: Sequence[str]) -> bool:
    return tuple(activations) == ("sigmoid", "tanh")


@openvino.lower(ops.gru, when=_is_usual_gru)
def _(
    ctx: Emitter,
    weight: Value,
    recurrent_weight: Value,
    bias: Value | None,
    recurrent_bias: Value | None,
    initial_hidden_state: Value | None,
    layout: str,
    **arguments: Any,
) -> list[Value]:
    w, r = (_order_gates(ctx, value, layout, "zrn") for value in (weight, recurrent_weight))
    b, c = (value and _order_gates(ctx, value, layout, "zrn") for value in (bias, recurrent_bias))
    if not arguments["reset_after"]:
        total = _sum(ctx, [b, c], w)
    else:
        # Keep the two biases of the new gate separate: the reset gate is multiplied by one of them.
        both = [_split_bias(ctx, value, w) for value in (b, c)]
        gates = ctx.emit("add", both[0][0], both[1][0])
        total = ctx.emit("concat", [gates, both[0][1], both[1][1]], 1)
    return _sequence(ctx, "gru_sequence", [initial_hidden_state], [w, r, total], arguments)


def _split_bias(ctx: Emitter, bias: Value | None, like: Value) -> list[Value]:
    """Split a bias into one for the update and reset gates and one for the new gate; None means zeros."""
    rows = like.shape[1] // 3
    value = _sum(ctx, [bias], like)
    return ctx.emit_all("variadic_split", value, ctx.constant(1), ctx.constant([2 * rows, rows]))


def _is_usual_lstm(activations: Sequence[str], peephole_weight: Operand | None) -> bool:
    return tuple(activations) == ("sigmoid", "tanh", "tanh") and peephole_weight is None


@openvino.lower(ops.lstm, when=_is_usual_lstm)
def _(
    ctx: Emitter,
    weight: Value,
    recurrent_weight: Value,
    bias: Value | None,
    recurrent_bias: Value | None,
    initial_hidden_state: Value | None,
    initial_cell_state: Value | None,
    layout: str,
    **arguments: Any,
) -> list[Value]:
    w, r = (_order_gates(ctx, value, layout, "figo") for value in (weight, recurrent_weight))
    b, c = (value and _order_gates(ctx, value, layout, "figo") for value in (bias, recurrent_bias))
    weights = [w, r, _sum(ctx, [b, c], w)]
    return _sequence(ctx, "lstm_sequence", [initial_hidden_state, initial_cell_state], weights, arguments)


@openvino.lower(rnn, when=lambda lengths: lengths is None)
def _(
    ctx: Emitter,
    weight: Value,
    recurrent_weight: Value,
    bias: Value | None,
    recurrent_bias: Value | None,
    initial_hidden_state: Value | None,
    activations: Sequence[str],
    **arguments: Any,
) -> list[Value]:
    weights = [weight, recurrent_weight, _sum(ctx, [bias, recurrent_bias], weight)]
    options = {"hidden_size": recurrent_weight.shape[2], "return_sequence": True, "activations": activations}
    return _sequence(ctx, "rnn_sequence", [initial_hidden_state], weights, arguments | options)
