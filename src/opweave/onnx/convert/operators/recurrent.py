"""ONNX's recurrent networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from ....composites import ragged_gru, ragged_lstm, rnn
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ...model.registry import (
    Tensor,
    Unsupported,
    constant_or_same,
    converts,
    data_type_of,
    operand,
    shape_of,
    unsupported_if,
)

_DIRECTIONS = {"forward": "forward", "reverse": "backward", "bidirectional": "both"}
_ACTIVATIONS = ("relu", "sigmoid", "tanh")


@dataclass(frozen=True)
class CellAttributes:
    """The attributes that LSTM, GRU and RNN share."""

    activation_alpha: Sequence[float] | None = None
    activation_beta: Sequence[float] | None = None
    activations: Sequence[str] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None  # not read: the weights have this size
    layout: int = 0

    def functions(self, *defaults: str) -> list[str]:
        """WebNN's names of the activations, which must be the same in both directions; `defaults` if a node names none."""
        count = 2 if self.direction == "bidirectional" else 1
        names = [name.lower() for name in self.activations or defaults * count]
        functions = names[: len(defaults)]
        unsupported_if(names != functions * count, f"its activations differ between the directions: {names}")
        if any(name not in _ACTIVATIONS for name in functions):
            raise Unsupported(f"its activations are {functions}, and WebNN knows {', '.join(_ACTIVATIONS)}")
        unsupported_if(self.activation_alpha or self.activation_beta, "its activations have parameters")
        return functions

    def run(
        self,
        b: MLGraphBuilder,
        op: Callable[..., Sequence[MLOperand]],
        inputs: Sequence[Any],
        ragged: Callable[..., Sequence[MLOperand]],
        **options: Any,
    ) -> tuple[MLOperand, ...]:
        """Run a network over all steps, and return the hidden states of all steps, then the last states.

        `op` is `b.gru`, `b.lstm`, or a function with the same parameters; `ragged`, such as `ragged_gru`, takes sequences of
        different lengths. `inputs` are ONNX's: the sequence, the input weights, the recurrent weights, the bias, the lengths
        of sequences, and the initial states.
        """
        x, weight, recurrent, bias, lengths, *states = inputs
        unsupported_if(self.direction not in _DIRECTIONS, f"its direction is {self.direction!r}")
        unsupported_if(self.clip, "it clips the sums before the activations")

        def swap(value: Tensor | None) -> Tensor | None:
            """Swap the first two axes if the node has the batches first."""
            return b.transpose(value, permutation=[1, 0, 2]) if self.layout and value is not None else value

        x = operand(b, swap(x))
        steps, hidden_size = x.shape[0], shape_of(recurrent)[-1]
        lengths, count = _lengths(lengths, steps, x.shape[1])
        options["bias"], options["recurrent_bias"] = _halves(b, bias)
        options |= zip(("initial_hidden_state", "initial_cell_state"), map(swap, states), strict=False)
        options["direction"] = _DIRECTIONS[self.direction]
        if lengths is None:
            cut = x if count == steps else b.slice(x, [0, 0, 0], [count, *x.shape[1:]])
            *last, sequence = op(cut, weight, recurrent, count, hidden_size, return_sequence=True, **options)
            if count < steps:
                sequence = b.pad(sequence, [0, 0, 0, 0], [steps - count, 0, 0, 0])
        else:
            *last, sequence = ragged(b, x, weight, recurrent, lengths, **options)
        if self.layout:
            sequence = b.transpose(sequence, permutation=[2, 0, 1, 3])
        return (sequence, *(operand(b, swap(state)) for state in last))


def _lengths(lengths: Tensor | None, steps: int, batches: int) -> tuple[Tensor | None, int]:
    """The lengths of sequences if they differ or are computed, else None; and the number of steps to run."""
    if lengths is None:
        return None, steps
    unsupported_if(data_type_of(lengths) != "int32", f"sequence_lens is {data_type_of(lengths)}")
    unsupported_if(shape_of(lengths) != (batches,), f"sequence_lens has the shape {list(shape_of(lengths))}")
    values = constant_or_same(lengths)
    if not isinstance(values, np.ndarray):
        return values, steps
    unsupported_if(((values < 0) | (values > steps)).any(), f"sequence_lens has values that are not in [0, {steps}]")
    first = int(values[0])
    return (None, first) if first and (values == first).all() else (values, steps)


FORWARD = CellAttributes()


def _halves(b: MLGraphBuilder, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The biases of the inputs and of the hidden state, which ONNX joins along axis 1."""
    if bias is None:
        return None, None
    unsupported_if(len(shape_of(bias)) != 2, f"the bias has shape {list(shape_of(bias))}")
    rows, columns = shape_of(bias)
    half = columns // 2
    bias = constant_or_same(bias)
    if isinstance(bias, np.ndarray):
        return np.ascontiguousarray(bias[:, :half]), np.ascontiguousarray(bias[:, half:])
    return b.slice(bias, [0, 0], [rows, half]), b.slice(bias, [0, half], [rows, half])


def _extend(inputs: Sequence[Tensor | None], count: int) -> list[Any]:
    unsupported_if(not 3 <= len(inputs) <= count, f"it has {len(inputs)} inputs")
    return [*inputs, *[None] * (count - len(inputs))]


@converts("GRU")
def _(
    b: MLGraphBuilder, *inputs: Tensor | None, cells: CellAttributes = FORWARD, linear_before_reset: int = 0
) -> tuple[MLOperand, ...]:
    functions = cells.functions("Sigmoid", "Tanh")
    reset_after = bool(linear_before_reset)
    return cells.run(b, b.gru, _extend(inputs, 6), ragged_gru, activations=functions, reset_after=reset_after)


@converts("LSTM")
def lstm(
    b: MLGraphBuilder, *inputs: Tensor | None, cells: CellAttributes = FORWARD, input_forget: int = 0
) -> tuple[MLOperand, ...]:
    *others, peepholes = _extend(inputs, 8)
    functions = cells.functions("Sigmoid", "Tanh", "Tanh")
    options: dict[str, Any] = {"activations": functions, "peephole_weight": peepholes}
    if input_forget or cells.clip or _reads_new_cell(peepholes):
        options |= {"output_peephole": "new", "coupled": bool(input_forget), "clip": float(cells.clip or inf)}
        plain = replace(cells, clip=None)
        return plain.run(b, partial(_of_full_length, b), others, ragged_lstm, **options)
    return cells.run(b, b.lstm, others, ragged_lstm, **options)


def _reads_new_cell(peepholes: Tensor | None) -> bool:
    """Whether the output gate reads the new cell state. WebNN's reads the state before; without weights both agree."""
    if peepholes is None:
        return False
    values, size = constant_or_same(peepholes), shape_of(peepholes)[-1] // 3
    return not isinstance(values, np.ndarray) or bool(values[:, size : 2 * size].any())


def _of_full_length(
    b: MLGraphBuilder,
    x: MLOperand,
    weight: Tensor,
    recurrent: Tensor,
    steps: int,
    hidden_size: int,
    *,
    return_sequence: bool,
    **options: Any,
) -> Sequence[MLOperand]:
    """A composite for sequences of different lengths, called like `b.lstm`."""
    lengths = np.full(x.shape[1], steps, np.int32)
    last: Sequence[MLOperand] = ragged_lstm(b, x, weight, recurrent, lengths, **options)
    return last


@converts("RNN")
def _(b: MLGraphBuilder, *inputs: Tensor | None, cells: CellAttributes = FORWARD) -> tuple[MLOperand, ...]:
    functions = cells.functions("Tanh")
    return cells.run(b, partial(_all_steps, b), _extend(inputs, 6), rnn, activations=functions)


def _all_steps(
    b: MLGraphBuilder,
    x: MLOperand,
    weight: Tensor,
    recurrent: Tensor,
    steps: int,
    hidden_size: int,
    *,
    return_sequence: bool,
    **options: Any,
) -> Sequence[MLOperand]:
    """A network with a single gate, called like `b.gru`."""
    results: Sequence[MLOperand] = rnn(b, x, weight, recurrent, **options)
    return results
