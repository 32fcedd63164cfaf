"""Recurrent networks of several layers, in one or both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from ...composites import rnn
from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ...core.sizes import Size
from ..registry import converts, refuse_if


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
    activations: list[Literal["tanh", "relu"]] = ["tanh" if "tanh" in call.name else "relu"]
    direction: Literal["forward", "both"] = "both" if bidirectional else "forward"

    def run(x: MLOperand, weight: Any, recurrent: Any, bias: Any, recurrent_bias: Any, states: Any) -> Any:
        hidden, sequence = rnn(
            b, x, weight, recurrent, None, bias, recurrent_bias, states[0], direction=direction, activations=activations
        )
        return sequence, hidden

    return _layers(b, input, [hx], params, has_biases, num_layers, bidirectional, batch_first, run)
