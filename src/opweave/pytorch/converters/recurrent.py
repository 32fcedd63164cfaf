"""Recurrent networks of several layers, in one or both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ...core.sizes import Size
from ..registry import converts, refuse_if

MAX_UNROLLED_STEPS = 64
"""The largest number of steps of an RNN that is unrolled, in all layers and directions together: an estimate, graphs grow
with each step."""


def _layers(
    b: MLGraphBuilder,
    input: MLOperand,
    states: Sequence[MLOperand],
    params: Sequence[MLOperand],
    has_biases: bool,
    num_layers: int,
    is_bidirectional: bool,
    batch_first: bool,
    run: Callable[..., tuple[MLOperand, ...]],
) -> tuple[MLOperand, ...]:
    """Run one network for each layer: return the hidden states of all steps, then the last states of all layers.

    `states` are [layers * directions, batches, size]; `params` are PyTorch's for each layer and direction: the weights of the
    input and of the state, and their biases. `run` gets the sequence [steps, batches, size], and the weights, biases and
    states with an axis of directions; it returns the hidden states [steps, directions, batches, size], and the last states.
    """
    directions = 2 if is_bidirectional else 1
    count = 4 if has_biases else 2
    refuse_if(len(params) != count * num_layers * directions, "its states have projections")
    x = b.transpose(input, permutation=[1, 0, 2]) if batch_first else input
    refuse_if(x.rank != 3, f"its input has rank {x.rank}")
    steps, batches = x.shape[:2]
    last: list[list[MLOperand]] = [[] for _ in states]
    for layer in range(num_layers):
        first = layer * directions
        own = [params[(first + d) * count : (first + d + 1) * count] for d in range(directions)]
        weights: list[MLOperand | None] = [_stack(b, parts) for parts in zip(*own, strict=True)]
        weights += [None] * (4 - count)
        initial = [b.slice(s, [first, 0, 0], [directions, *s.shape[1:]]) if num_layers > 1 else s for s in states]
        sequence, *ends = run(x, *weights, initial)
        for own_ends, end in zip(last, ends, strict=True):
            own_ends.append(end)
        # [steps, directions, batches, size] -> [steps, batches, directions * size]
        size = sequence.shape[3]
        if directions > 1:
            sequence = b.transpose(sequence, permutation=[0, 2, 1, 3])
        x = b.reshape(sequence, [steps, batches, directions * size])
    result = b.transpose(x, permutation=[1, 0, 2]) if batch_first else x
    return result, *(ends[0] if len(ends) == 1 else b.concat(ends, 0) for ends in last)


def _stack(b: MLGraphBuilder, parts: Sequence[MLOperand]) -> MLOperand:
    rows = [b.reshape(part, [1, *part.shape]) for part in parts]
    return rows[0] if len(rows) == 1 else b.concat(rows, 0)


def _known_steps(x: MLOperand) -> int:
    steps = x.shape[0]
    refuse_if(isinstance(steps, Size), "the number of steps is not known")
    return steps


@converts("aten.lstm.input")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    hx: Sequence[MLOperand],
    params: Sequence[MLOperand],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[MLOperand, ...]:
    refuse_if(train and dropout > 0 and num_layers > 1, "it is in training mode; call eval() before")
    direction: Literal["forward", "both"] = "both" if bidirectional else "forward"

    def run(x: MLOperand, weight: Any, recurrent: Any, bias: Any, recurrent_bias: Any, states: Any) -> Any:
        hidden, cell, sequence = b.lstm(
            x, weight, recurrent, _known_steps(x), recurrent.shape[2], bias=bias, recurrent_bias=recurrent_bias,
            initial_hidden_state=states[0], initial_cell_state=states[1], return_sequence=True, direction=direction,
            layout="ifgo",
        )  # fmt: skip
        return sequence, hidden, cell

    return _layers(b, input, hx, params, has_biases, num_layers, bidirectional, batch_first, run)


@converts("aten.gru.input")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    hx: MLOperand,
    params: Sequence[MLOperand],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[MLOperand, ...]:
    refuse_if(train and dropout > 0 and num_layers > 1, "it is in training mode; call eval() before")
    direction: Literal["forward", "both"] = "both" if bidirectional else "forward"

    def run(x: MLOperand, weight: Any, recurrent: Any, bias: Any, recurrent_bias: Any, states: Any) -> Any:
        hidden, sequence = b.gru(
            x, weight, recurrent, _known_steps(x), recurrent.shape[2], bias=bias, recurrent_bias=recurrent_bias,
            initial_hidden_state=states[0], return_sequence=True, direction=direction, layout="rzn", reset_after=True,
        )  # fmt: skip
        return sequence, hidden

    return _layers(b, input, [hx], params, has_biases, num_layers, bidirectional, batch_first, run)


@converts("aten.rnn_tanh.input", "aten.rnn_relu.input")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    hx: MLOperand,
    params: Sequence[MLOperand],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    call: Any,
) -> tuple[MLOperand, ...]:
    refuse_if(train and dropout > 0 and num_layers > 1, "it is in training mode; call eval() before")
    activate = b.tanh if "tanh" in call.name else b.relu
    total = input.shape[1 if batch_first else 0] * num_layers * (2 if bidirectional else 1)
    refuse_if(isinstance(total, Size), "the number of steps is not known")
    refuse_if(total > MAX_UNROLLED_STEPS, f"it has {total} steps, more than {MAX_UNROLLED_STEPS}")

    def run(x: MLOperand, weight: Any, recurrent: Any, bias: Any, recurrent_bias: Any, states: Any) -> Any:
        sequences, ends = [], []
        for direction in range(weight.shape[0]):
            rows = [_row(b, operand, direction) for operand in (weight, recurrent, bias, recurrent_bias)]
            sequence, end = steps_of(x, rows, _row(b, states[0], direction), bool(direction))
            sequences.append(sequence)
            ends.append(end)
        return (_join(b, sequences, 1), _join(b, ends, 0))

    def steps_of(x: MLOperand, rows: Sequence[Any], state: Any, is_backward: bool) -> tuple[MLOperand, MLOperand]:
        weight, recurrent, bias, recurrent_bias = rows
        sums = b.matmul(x, b.transpose(weight))
        for more in (bias, recurrent_bias):
            sums = sums if more is None else b.add(sums, more)
        across, (steps, batches, size) = b.transpose(recurrent), sums.shape
        parts: list[MLOperand] = []
        for step in reversed(range(steps)) if is_backward else range(steps):
            own = b.reshape(b.slice(sums, [step, 0, 0], [1, batches, size]), [batches, size])
            state = activate(b.add(own, b.matmul(state, across)))
            parts.append(b.reshape(state, [1, 1, batches, size]))
        sequence = _join(b, parts[::-1] if is_backward else parts, 0)
        return sequence, b.reshape(state, [1, batches, size])

    return _layers(b, input, [hx], params, has_biases, num_layers, bidirectional, batch_first, run)


def _row(b: MLGraphBuilder, operand: MLOperand | None, row: int) -> MLOperand | None:
    if operand is None:
        return None
    shape = operand.shape[1:]
    return b.reshape(b.slice(operand, [row, *[0] * len(shape)], [1, *shape]), shape)


def _join(b: MLGraphBuilder, parts: Sequence[MLOperand], axis: int) -> MLOperand:
    return parts[0] if len(parts) == 1 else b.concat(list(parts), axis)
