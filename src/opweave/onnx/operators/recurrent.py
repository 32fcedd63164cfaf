"""ONNX's recurrent networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...builder import MLGraphBuilder
from ...graph import MLOperand
from ..registry import Tensor, Unsupported, constant_or_same, converts, operand, shape_of
from .windows import reshaped

UNROLLED = 64
"""The most steps, in all directions together, that are unrolled where WebNN has no operation for the network."""

Direction = Literal["forward", "backward", "both"]
_DIRECTIONS: dict[str, Direction] = {"forward": "forward", "reverse": "backward", "bidirectional": "both"}
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

    def network(
        self, b: MLGraphBuilder, x: MLOperand, recurrent: Tensor, lengths: Tensor | None, defaults: Sequence[str]
    ) -> Network:
        """The network of a node; `defaults` are the activations of each direction if it names none.

        Raises:
            Unsupported: WebNN has no such network.
        """
        if self.direction not in _DIRECTIONS:
            raise Unsupported(f"its direction is {self.direction!r}")
        if self.clip:
            raise Unsupported("it clips the sums before the activations")
        count = 2 if self.direction == "bidirectional" else 1
        names = [name.lower() for name in self.activations or list(defaults) * count]
        functions = names[: len(defaults)]
        if names != functions * count:
            raise Unsupported(f"its activations differ between the directions: {names}")
        if any(name not in _ACTIVATIONS for name in functions):
            raise Unsupported(f"its activations are {functions}, and WebNN knows {', '.join(_ACTIVATIONS)}")
        if self.activation_alpha or self.activation_beta:
            raise Unsupported("its activations have parameters")
        input = b.transpose(x, permutation=[1, 0, 2]) if self.layout else x
        if lengths is not None:
            found = constant_or_same(lengths)
            if not isinstance(found, np.ndarray) or (found != input.shape[0]).any():
                raise Unsupported("sequence_lens cuts sequences short, or is not constant")
        size = shape_of(recurrent)[-1]
        return Network(b, input, count, _DIRECTIONS[self.direction], size, functions, bool(self.layout))


FORWARD = CellAttributes()


@dataclass
class Network:
    """A recurrent network in WebNN's terms.

    Attributes:
        input: [steps, batches, input size].
        directions: the number of directions.
        functions: the names of the activations, the same for both directions.
        batch_first: whether the batch comes first in the node's inputs and outputs (`layout=1`).
    """

    b: MLGraphBuilder
    input: MLOperand
    directions: int
    direction: Direction
    hidden_size: int
    functions: Sequence[Any]
    batch_first: bool

    def arguments(self, weight: Tensor, recurrent: Tensor) -> tuple[Any, ...]:
        """The positional arguments of `gru` and `lstm`."""
        return self.input, weight, recurrent, self.input.shape[0], self.hidden_size

    def options(self, bias: Tensor | None, hidden: Tensor | None) -> dict[str, Any]:
        """The keyword arguments that `gru` and `lstm` share."""
        of_input, recurrent = self.halves(bias)
        return {
            "bias": of_input,
            "recurrent_bias": recurrent,
            "initial_hidden_state": self.state(hidden),
            "return_sequence": True,
            "direction": self.direction,
            "activations": self.functions,
        }

    def state(self, value: Tensor | None) -> Tensor | None:
        """An initial state in WebNN's layout."""
        if value is None or not self.batch_first:
            return value
        return self.b.transpose(operand(self.b, value), permutation=[1, 0, 2])

    def halves(self, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Split ONNX's bias along axis 1 into those of the inputs and of the hidden state."""
        if bias is None:
            return None, None
        if len(shape_of(bias)) != 2:
            raise Unsupported(f"the bias has shape {list(shape_of(bias))}")
        rows, columns = shape_of(bias)
        half = columns // 2
        bias = constant_or_same(bias)
        if isinstance(bias, np.ndarray):
            return np.ascontiguousarray(bias[:, :half]), np.ascontiguousarray(bias[:, half:])
        return self.b.slice(bias, [0, 0], [rows, half]), self.b.slice(bias, [0, half], [rows, half])

    def total(self, bias: Tensor | None) -> MLOperand | None:
        """The sum of both biases."""
        of_input, recurrent = self.halves(bias)
        return None if of_input is None or recurrent is None else self.b.add(operand(self.b, of_input), recurrent)

    def outputs(self, sequence: MLOperand, *last: MLOperand) -> tuple[MLOperand, ...]:
        """The outputs in the node's layout."""
        if not self.batch_first:
            return (sequence, *last)
        swapped = [self.b.transpose(state, permutation=[1, 0, 2]) for state in last]
        return (self.b.transpose(sequence, permutation=[2, 0, 1, 3]), *swapped)

    def unrolled(
        self,
        weight: Tensor,
        bias: Tensor | None,
        states: Sequence[Tensor | None],
        cell: Callable[..., Sequence[MLOperand]],
    ) -> tuple[MLOperand, ...]:
        """The sequence and the last states, unrolled.

        `cell(direction, sums, *states)` returns the next states, the hidden one first; `sums` are the weighted inputs of a
        step.
        """
        b, hidden = self.b, self.hidden_size
        steps, batches, size = self.input.shape
        if steps * self.directions > UNROLLED:
            raise Unsupported(f"WebNN has no operation for it, and {steps} steps are too many to write out")
        initial = [self.state(state) for state in states]
        columns = shape_of(weight)[1]
        rows = b.reshape(self.input, [steps * batches, size])
        ends: list[list[MLOperand]] = []
        sequences = []
        zeros = b.constant(np.zeros([batches, hidden], self.input.data_type))
        for k in range(self.directions):
            w = part(b, weight, k, [columns, size])
            c = None if bias is None else part(b, bias, k, [columns])
            sums = b.reshape(b.gemm(rows, w, c=c, b_transpose=True), [steps, batches, columns])
            current = [zeros if s is None else operand(b, part(b, s, k, [batches, hidden])) for s in initial]
            order = -1 if k == 1 or self.direction == "backward" else 1
            made = []
            for step in range(steps)[::order]:
                x = b.reshape(b.slice(sums, [step, 0, 0], [1, batches, columns]), [batches, columns])
                current = list(cell(k, x, *current))
                made.append(b.reshape(current[0], [1, 1, batches, hidden]))
            sequences.append(b.concat(made[::order], 0))
            ends.append([b.reshape(state, [1, batches, hidden]) for state in current])
        last = [b.concat(parts, 0) for parts in zip(*ends, strict=True)]
        return self.outputs(b.concat(sequences, 1), *last)


def part(b: MLGraphBuilder, value: Tensor, index: int, shape: Sequence[int]) -> Tensor:
    """The element at `index` of the first axis, reshaped."""
    value = constant_or_same(value)
    if isinstance(value, np.ndarray):
        return reshaped(b, value[index], shape)
    if value.shape[0] > 1:
        value = b.slice(value, [index, *[0] * (value.rank - 1)], [1, *value.shape[1:]])
    return b.reshape(value, shape)


@converts("GRU")
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    cells: CellAttributes = FORWARD,
    linear_before_reset: int = 0,
) -> tuple[MLOperand, ...]:
    net = cells.network(b, X, R, sequence_lens, ("Sigmoid", "Tanh"))
    last, sequence = b.gru(
        *net.arguments(W, R), **net.options(B, initial_h), reset_after=bool(linear_before_reset), layout="zrn"
    )
    return net.outputs(sequence, last)


@converts("LSTM")
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    P: Tensor | None = None,
    *,
    cells: CellAttributes = FORWARD,
    input_forget: int = 0,
) -> tuple[MLOperand, ...]:
    net = cells.network(b, X, R, sequence_lens, ("Sigmoid", "Tanh", "Tanh"))
    if input_forget:
        raise Unsupported("it couples the input and the forget gate")
    if P is not None and not _ignores_cell(P, net.hidden_size):
        return _with_peepholes(net, W, R, B, initial_h, initial_c, P)
    hidden, cell, sequence = b.lstm(
        *net.arguments(W, R),
        **net.options(B, initial_h),
        peephole_weight=P,
        initial_cell_state=net.state(initial_c),
        layout="iofg",
    )
    return net.outputs(sequence, hidden, cell)


def _ignores_cell(peepholes: Tensor, hidden_size: int) -> bool:
    """Whether the output gate has peephole weights of 0.

    In ONNX it reads the new cell state, in WebNN that of the step before.
    """
    known = constant_or_same(peepholes)
    return isinstance(known, np.ndarray) and not known[:, hidden_size : 2 * hidden_size].any()


def _with_peepholes(
    net: Network,
    W: Tensor,
    R: Tensor,
    B: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    P: Tensor,
) -> tuple[MLOperand, ...]:
    """An unrolled LSTM whose output gate reads the new cell state."""
    b, size = net.b, net.hidden_size
    f, g, k = (getattr(b, name) for name in net.functions)
    total = net.total(B)

    def step(number: int, sums: MLOperand, h: MLOperand, c: MLOperand) -> Sequence[MLOperand]:
        r = part(b, R, number, [4 * size, size])
        i, o, forget, new = b.split(b.add(sums, b.gemm(h, r, b_transpose=True)), 4, axis=1)
        p = operand(b, part(b, P, number, [3 * size]))
        p_i, p_o, p_f = b.split(p, 3, axis=0)
        i, forget = f(b.add(i, b.mul(p_i, c))), f(b.add(forget, b.mul(p_f, c)))
        c = b.add(b.mul(forget, c), b.mul(i, g(new)))
        return b.mul(f(b.add(o, b.mul(p_o, c))), k(c)), c

    return net.unrolled(W, total, [initial_h, initial_c], step)


@converts("RNN")
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    cells: CellAttributes = FORWARD,
) -> tuple[MLOperand, ...]:
    net = cells.network(b, X, R, sequence_lens, ("Tanh",))
    total = net.total(B)
    f = getattr(b, net.functions[0])

    def step(number: int, sums: MLOperand, h: MLOperand) -> Sequence[MLOperand]:
        r = part(b, R, number, [net.hidden_size, net.hidden_size])
        return (f(b.gemm(h, r, c=sums, b_transpose=True)),)

    return net.unrolled(W, total, [initial_h], step)
