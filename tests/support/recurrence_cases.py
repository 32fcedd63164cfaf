"""Made-up calls of the composites that compute step by step: recurrences and recurrent networks of ragged sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from samples import Call, Make

import opweave as ow
from opweave import composites
from support import witness
from support.cases import REFERENCE, case
from support.linear_attention import loop
from support.witness import wide


def _network(make: Make, gates: int) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """The operands of a network over sequences of different lengths, its optional operands, and its direction."""
    steps, batches, size, hidden = (make.integer(1, most) for most in (5, 3, 3, 3))
    direction = make.choice(("forward", "backward", "both"))
    directions, rows = 1 + (direction == "both"), gates * hidden
    operands = [make.array("x", shape) / 4 for shape in ([directions, rows, size], [directions, rows, hidden])]
    lengths = make.random.integers(0, steps, batches, endpoint=True).astype("int32")
    x = make.array("x", [steps, batches, size])
    shapes = {
        "bias": (directions, rows),
        "recurrent_bias": (directions, rows),
        "initial_hidden_state": (directions, batches, hidden),
    }
    if gates == 4:
        shapes |= {"peephole_weight": (directions, 3 * hidden), "initial_cell_state": (directions, batches, hidden)}
    others = {name: make.array("x", shape) / 4 for name, shape in shapes.items() if make.boolean()}
    beyond = np.arange(steps)[:, None] >= lengths
    x[beyond] = np.nan  # nothing reads it
    return [x, *(each.astype(x.dtype) for each in operands), lengths], others, {"direction": direction}


def _ragged(op: Any, operands: Sequence[Any], others: Mapping[str, Any], direction: str, **options: Any) -> list[Any]:
    """The results of an operation on single sequences, put together."""
    x, weight, recurrent_weight, lengths = operands
    steps, hidden, count = len(x), recurrent_weight.shape[2], 3 if op is ow.ops.lstm else 2
    shape = (len(weight), len(lengths), hidden)
    results = [np.zeros(shape) for _ in range(count - 1)] + [np.zeros((steps, *shape))]
    for row, length in enumerate(lengths):
        if not length:
            continue
        given = {name: value[:, row : row + 1] if "state" in name else value for name, value in others.items()}
        parts = [x[:length, row : row + 1], weight, recurrent_weight, int(length), hidden]
        made = outputs_of_call(op, *parts, return_sequence=True, direction=direction, **given, **options)
        for result, part in zip(results[:-1], made, strict=False):
            result[:, row] = part[:, 0]
        results[-1][:length, :, row] = made[-1][:, :, 0]
    return results


def outputs_of_call(op: Any, *args: Any, **kwargs: Any) -> list[np.ndarray]:
    """What an operation computes on the reference."""
    with REFERENCE:
        return [np.asarray(each) for each in op(*args, **kwargs)]


@case(composites.causal_conv_with_state, rtol=2e-5, atol=2e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    batches, channels, length, dilation = (make.integer(1, 3) for _ in range(4))
    taps = make.integer(2, 4)
    before = (taps - 1) * dilation
    x, weight = make.array("x", (batches, channels, length), -1, 1), make.array("x", (channels, 1, taps), -1, 1)
    bias = make.array("x", (channels,), -1, 1) if make.boolean() else None
    past = make.array("x", (batches, channels, before), -1, 1) if make.boolean() else None
    activation = make.choice(("none", "silu"))
    whole = np.concatenate([np.zeros((batches, channels, before)) if past is None else wide(past), wide(x)], 2)
    y = np.zeros(x.shape)
    for tap in range(taps):
        y += wide(weight)[:, 0, tap, None] * whole[:, :, tap * dilation : tap * dilation + length]
    y += 0 if bias is None else wide(bias)[:, None]
    y = y / (1 + np.exp(-y)) if activation == "silu" else y
    call = Call(x, weight, bias, past, activation=activation, dilation=dilation)
    return call, [y, whole[:, :, length:]]


@case(composites.leaky_integrator, rtol=2e-5, atol=2e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    shape = make.shape(1, 3)
    axis, decay, is_reversed = make.integer(0, len(shape) - 1), make.choice((0.5, 1.0, -0.25, 0.0)), make.boolean()
    x = make.array("x", shape, -1, 1)
    initial = make.array("x", (*shape[:axis], *shape[axis + 1 :]), -1, 1) if make.boolean() else None
    rows = np.moveaxis(wide(x), axis, 0)[:: -1 if is_reversed else 1]
    total, sums = np.zeros(rows.shape[1:]) if initial is None else wide(initial), []
    for row in rows:
        total = decay * total + row
        sums.append(total)
    whole = np.moveaxis(np.stack(sums)[:: -1 if is_reversed else 1], 0, axis)
    return Call(x, initial, decay=decay, axis=axis, reversed=is_reversed), [whole, total]


@case(composites.linear_attention, rtol=2e-5, atol=2e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    batches, groups, queries, size, values = (make.integer(1, 3) for _ in range(5))
    tokens = make.tokens()
    heads, rule = groups * queries, make.choice(("linear", "gated", "delta", "gated_delta"))
    query = make.array("x", (batches, tokens, heads * size), -1, 1)
    key = make.array("x", (batches, tokens, groups * size), -0.5, 0.5)
    value = make.array("x", (batches, tokens, groups * values), -1, 1)
    past = make.array("x", (batches, groups, size, values), -1, 1) if make.boolean() else None
    columns = (groups, groups * size)[make.integer(0, 1)]
    decay = make.array("x", (batches, tokens, columns), -1, 0) if "gated" in rule else None
    beta = make.array("x", (batches, tokens, make.choice((1, groups))), 0, 1) if "delta" in rule else None
    scale = make.choice((None, 0.5))
    call = Call(query, key, value, past, decay, beta, heads=heads, groups=groups, update_rule=rule, scale=scale)
    return call, loop(query, key, value, past, decay, beta, heads=heads, groups=groups, scale=scale)


@case(composites.selective_scan, rtol=2e-5, atol=2e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    batches, groups, count, width, size = (make.integer(1, 3) for _ in range(5))
    tokens = make.tokens()
    heads, is_second = groups * count, make.boolean()
    if not is_second:
        groups = width = 1
    x = make.array("x", (batches, tokens, heads, width)[: 4 if is_second else 3], -1, 1)
    delta = make.array("x", (batches, tokens, heads), 0, 1)
    a = make.array("x", (heads,) if is_second else (heads, size), -2, 0)
    middle = (groups,) if is_second else ()
    b, c = (make.array("x", (batches, tokens, *middle, size), -1, 1) for _ in range(2))
    d = make.array("x", (heads,), -1, 1) if make.boolean() else None
    shape = (batches, heads, width, size) if is_second else (batches, heads, size)
    initial = make.array("x", shape, -1, 1) if make.boolean() else None
    state = (np.zeros(shape) if initial is None else wide(initial)).reshape(batches, heads, width, size)
    y = np.zeros((batches, tokens, heads, width))
    rates = wide(a).reshape(heads, -1)
    for n, h in np.ndindex(batches, heads):
        for t in range(tokens):
            step, group = wide(delta)[n, t, h], h // (heads // groups)
            own_b, own_c = (wide(value)[n, t].reshape(-1, size)[group if is_second else 0] for value in (b, c))
            own_x = wide(x)[n, t].reshape(heads, width)[h]
            state[n, h] = np.exp(step * rates[h]) * state[n, h] + step * np.outer(own_x, own_b)
            y[n, t, h] = state[n, h] @ own_c + (0 if d is None else wide(d)[h] * own_x)
    return Call(x, delta, a, b, c, d, initial), [y.reshape(x.shape), state.reshape(shape)]


@case(composites.ragged_gru, rtol=2e-5, atol=2e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    operands, others, options = _network(make, 3)
    options["reset_after"] = make.boolean()
    return Call(*operands, **others, **options), _ragged(ow.ops.gru, operands, others, **options)


@case(composites.ragged_lstm, rtol=2e-5, atol=2e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    operands, others, options = _network(make, 4)
    if not make.boolean():
        return Call(*operands, **others, **options), _ragged(ow.ops.lstm, operands, others, **options)
    forms = {"output_peephole": make.choice(("previous", "new")), "coupled": make.boolean()}
    clip = make.choice((np.inf, 0.5))
    wanted = _lstm_in_numpy(operands, others, **options, **forms, clip=clip)
    return Call(*operands, **others, **options, **forms, clip=clip), wanted


@case(composites.rnn, rtol=2e-5, atol=2e-5, half=2e-2)
def _(make: Make) -> tuple[Call, Sequence[Any]]:
    (x, weight, recurrent_weight, lengths), others, options = _network(make, 1)
    name = make.choice(("tanh", "relu", "sigmoid"))
    functions: dict[str, Any] = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0), "sigmoid": witness.sigmoid}
    function = functions[name]
    given = lengths if make.boolean() else None
    if given is None:
        x, lengths = np.nan_to_num(x), np.full(len(lengths), len(x))
    directions, hidden_size, _ = recurrent_weight.shape
    last, sequence = (np.zeros((*lead, directions, len(lengths), hidden_size)) for lead in ((), (len(x),)))
    for k, row in np.ndindex(directions, len(lengths)):
        if not lengths[row]:
            continue
        h = wide(others["initial_hidden_state"][k, row]) if "initial_hidden_state" in others else np.zeros(hidden_size)
        bias = sum((wide(others[name][k]) for name in ("bias", "recurrent_bias") if name in others), np.zeros(1))
        steps = range(int(lengths[row]))
        for step in reversed(steps) if k == 1 or options["direction"] == "backward" else steps:
            h = function(wide(weight[k]) @ wide(x[step, row]) + wide(recurrent_weight[k]) @ h + bias)
            sequence[step, k, row] = h
        last[k, row] = h
    call = Call(x, weight, recurrent_weight, given, **others, **options, activations=[name])
    return call, [last, sequence]


def _lstm_in_numpy(
    operands: Sequence[np.ndarray],
    others: Mapping[str, np.ndarray],
    direction: str,
    output_peephole: str,
    coupled: bool,
    clip: float,
) -> list[np.ndarray]:
    """The results of an LSTM in float64, step by step and sequence by sequence."""
    x, weight, recurrent_weight, lengths = operands
    directions, _, hidden_size = recurrent_weight.shape
    shape = (directions, len(lengths), hidden_size)
    last_hidden, last_cell, sequence = np.zeros(shape), np.zeros(shape), np.zeros((len(x), *shape))
    for k, row in np.ndindex(directions, len(lengths)):
        if not lengths[row]:
            continue
        h, c = (
            wide(others[name][k, row]) if name in others else np.zeros(hidden_size)
            for name in ("initial_hidden_state", "initial_cell_state")
        )
        bias = sum((wide(others[name][k]) for name in ("bias", "recurrent_bias") if name in others), np.zeros(1))
        peephole = wide(others["peephole_weight"][k]) if "peephole_weight" in others else np.zeros(3 * hidden_size)
        p_i, p_o, p_f = np.split(peephole, 3)
        steps = range(int(lengths[row]))
        for step in reversed(steps) if k == 1 or direction == "backward" else steps:
            sums = wide(weight[k]) @ wide(x[step, row]) + wide(recurrent_weight[k]) @ h + bias
            i, o, f, g = np.split(sums, 4)
            i = witness.sigmoid(np.clip(i + p_i * c, -clip, clip))
            f = 1 - i if coupled else witness.sigmoid(np.clip(f + p_f * c, -clip, clip))
            following = f * c + i * np.tanh(np.clip(g, -clip, clip))
            o = o + p_o * (following if output_peephole == "new" else c)
            c = following
            h = witness.sigmoid(np.clip(o, -clip, clip)) * np.tanh(c)
            sequence[step, k, row] = h
        last_hidden[k, row], last_cell[k, row] = h, c
    return [last_hidden, last_cell, sequence]
