"""Recurrent networks: gru and lstm run over all time steps, gru_cell and lstm_cell compute a single one.

A weight or bias contains one block of `hidden_size` rows for each gate, in the order of the letters of `layout`: the
update (z), reset (r) and new (n) gate of a GRU; the input (i), output (o), forget (f) and cell (g) gate of an LSTM.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..core.dtypes import FLOATS
from ..core.graph import MAX_DIMENSION, Builder, Desc, Operand, check_shape
from ..core.operation import Limits, Op, call_with, op
from ..support.errors import require
from .constants import constant

if TYPE_CHECKING:
    from .operations import Operations

GruWeightLayout = Literal["zrn", "rzn"]
LstmWeightLayout = Literal["iofg", "ifgo"]
RecurrentNetworkActivation = Literal["relu", "sigmoid", "tanh"]
RecurrentNetworkDirection = Literal["forward", "backward", "both"]

PEEPHOLES = "iof"
"""The gates that read the cell state. Their peephole weights have this order in every layout."""


def direction_count(direction: str) -> int:
    """The first dimension of weights, biases and states."""
    return 2 if direction == "both" else 1


# The axes of operands and results: steps (s), batches (b), input size (i), directions (d), hidden size (h), and the blocks of
# `hidden_size` rows for all gates (g) or all peepholes (p).
_GRU = {"input": "sbi", "weight": "dgi", "recurrent_weight": "dgh", "bias": "dg", "recurrent_bias": "dg"}
_GRU_CELL = {"input": "bi", "weight": "gi", "recurrent_weight": "gh", "bias": "g", "recurrent_bias": "g"}
_LSTM = {**_GRU, "peephole_weight": "dp"}
_LSTM_CELL = {**_GRU_CELL, "peephole_weight": "p"}


def _network(shared: Mapping[str, str], **others: str) -> Callable[[Callable[..., Any]], Op[..., Any]]:
    """Decorator: declare an operation by the axes of its operands and results, which define the shape rule.

    The decorated function has only a signature and a docstring, and is never called. The numbers of gates and of activations
    are the lengths of the defaults of `layout` and `activations`. Names of results begin with "output".
    """
    axes = {**shared, **others}
    outputs = [name for name in axes if name.startswith("output")]

    def declare(function: Callable[..., Any]) -> Op[..., Any]:
        parameters = inspect.signature(function).parameters
        operands = [name for name in parameters if name in axes]
        gates, functions = (len(parameters[name].default) for name in ("layout", "activations"))

        @functools.wraps(function)
        def rule(builder: Builder, **arguments: Any) -> Any:
            sizes = _sizes(axes["input"], gates, functions, **arguments)
            shapes = {name: tuple(sizes[axis] for axis in letters) for name, letters in axes.items()}
            for name in operands:
                check_shape(shapes[name], **{name: arguments[name]})
            results = [Desc(arguments["input"].data_type, shapes[name]) for name in outputs]
            if not arguments.get("return_sequence", True):
                results.pop()  # the sequence is the last result
            return results[0] if "output" in axes else tuple(results)

        ranks = {name: (len(axes[name]), len(axes[name])) for name in (*operands, *outputs)}
        limits = {name: Limits(FLOATS if name == "input" else "input", ranks=rank) for name, rank in ranks.items()}
        return op(**limits)(rule)

    return declare


def _sizes(
    axes: str,
    gates: int,
    functions: int,
    *,
    input: Operand,
    hidden_size: int,
    activations: Sequence[str],
    steps: int | None = None,
    direction: str = "forward",
    **_: Any,
) -> dict[str, int]:
    """Check the attributes of a network, and return the size of each axis by letter."""
    # Engines may concatenate the two biases of all gates, so their total size must be a valid dimension.
    maximum = MAX_DIMENSION // (2 * gates)
    require(0 < hidden_size <= maximum, f"hidden_size must be in [1, {maximum}], got {hidden_size}")
    require(len(activations) == functions, f"activations must have {functions} values, got {list(activations)}")
    if steps is not None:
        require(steps > 0, f"steps must be greater than 0, got {steps}")
        require(input.shape[0] == steps, f"input must have {steps} steps in its first dimension, got {input.desc}")
    rows = {"h": hidden_size, "g": gates * hidden_size, "p": len(PEEPHOLES) * hidden_size}
    return {**rows, "d": direction_count(direction), **dict(zip(axes, input.shape, strict=True))}


@_network(_GRU, initial_hidden_state="dbh", output0="dbh", output1="sdbh")
def gru(
    self: Builder,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    steps: int,
    hidden_size: int,
    *,
    bias: Operand | None = None,
    recurrent_bias: Operand | None = None,
    initial_hidden_state: Operand | None = None,
    reset_after: bool = True,
    return_sequence: bool = False,
    direction: RecurrentNetworkDirection = "forward",
    layout: GruWeightLayout = "zrn",
    activations: Sequence[RecurrentNetworkActivation] = ("sigmoid", "tanh"),
    label: str = "",
) -> tuple[Desc, ...]:
    """Run a gated recurrent unit (GRU) over a sequence.

    Args:
        input: float32 or float16 [steps, batches, input size].
        weight: weights of the input, [directions, 3 * hidden_size, input size]; directions is 2 for "both", else 1.
        recurrent_weight: weights of the hidden state, [directions, 3 * hidden_size, hidden_size].
        steps: number of time steps, the first dimension of `input`.
        bias: added to the weighted input, [directions, 3 * hidden_size].
        recurrent_bias: added to the weighted hidden state, [directions, 3 * hidden_size].
        layout: "zrn" or "rzn", the order of the update (z), reset (r) and new (n) gate in weights and biases.
        activations: two of "relu", "sigmoid" and "tanh": for the update and reset gates, and for the new gate.

    Returns: The last hidden state, [directions, batches, hidden_size]. With `return_sequence`, also the hidden state of
        every step of the input, [steps, directions, batches, hidden_size]. All have the data type of `input`.
    Raises: inconsistent sizes, or not two activations.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gru

    >>> x, weight, recurrent_weight = (np.zeros(shape, "float32") for shape in ([2, 1, 3], [1, 3, 3], [1, 3, 1]))
    >>> (last,) = ow.ops.gru(x, weight, recurrent_weight, 2, 1, initial_hidden_state=np.float32([[[8]]]))
    >>> last.tolist()  # weights of 0 make all gates 0.5: each of the 2 steps halves the state
    [[[2.0]]]
    """
    raise NotImplementedError  # not called: `_network` makes the shape rule from the signature


@_network(_GRU_CELL, hidden_state="bh", output="bh")
def gru_cell(
    self: Builder,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    hidden_state: Operand,
    hidden_size: int,
    *,
    bias: Operand | None = None,
    recurrent_bias: Operand | None = None,
    reset_after: bool = True,
    layout: GruWeightLayout = "zrn",
    activations: Sequence[RecurrentNetworkActivation] = ("sigmoid", "tanh"),
    label: str = "",
) -> Desc:
    """Run a gated recurrent unit (GRU) for one time step.

    Args:
        input: float32 or float16 [batches, input size].
        weight: weights of the input, [3 * hidden_size, input size].
        recurrent_weight: weights of the hidden state, [3 * hidden_size, hidden_size].
        hidden_state: [batches, hidden_size].
        bias: added to the weighted input, [3 * hidden_size].
        recurrent_bias: added to the weighted hidden state, [3 * hidden_size].
        layout: "zrn" or "rzn", the order of the update (z), reset (r) and new (n) gate in weights and biases.
        activations: two of "relu", "sigmoid" and "tanh": for the update and reset gates, and for the new gate.

    Returns: The next hidden state, [batches, hidden_size], in the data type of `input`.
    Raises: inconsistent sizes, or not two activations.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-grucell

    >>> x, weight, recurrent_weight = (np.zeros(shape, "float32") for shape in ([1, 3], [3, 3], [3, 1]))
    >>> ow.ops.gru_cell(x, weight, recurrent_weight, np.float32([[8]]), 1).tolist()  # gates of 0.5 halve the state
    [[4.0]]
    """
    raise NotImplementedError  # not called: `_network` makes the shape rule from the signature


@_network(_LSTM, initial_hidden_state="dbh", initial_cell_state="dbh", output0="dbh", output1="dbh", output2="sdbh")
def lstm(
    self: Builder,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    steps: int,
    hidden_size: int,
    *,
    bias: Operand | None = None,
    recurrent_bias: Operand | None = None,
    peephole_weight: Operand | None = None,
    initial_hidden_state: Operand | None = None,
    initial_cell_state: Operand | None = None,
    return_sequence: bool = False,
    direction: RecurrentNetworkDirection = "forward",
    layout: LstmWeightLayout = "iofg",
    activations: Sequence[RecurrentNetworkActivation] = ("sigmoid", "tanh", "tanh"),
    label: str = "",
) -> tuple[Desc, ...]:
    """Run a long short-term memory (LSTM) over a sequence.

    Args:
        input: float32 or float16 [steps, batches, input size].
        weight: weights of the input, [directions, 4 * hidden_size, input size]; directions is 2 for "both", else 1.
        recurrent_weight: weights of the hidden state, [directions, 4 * hidden_size, hidden_size].
        steps: number of time steps, the first dimension of `input`.
        hidden_size: number of features of the hidden state and of the cell state.
        bias: added to the weighted input, [directions, 4 * hidden_size].
        recurrent_bias: added to the weighted hidden state, [directions, 4 * hidden_size].
        peephole_weight: weights of the cell state for the input, output and forget gate, in this order in every layout,
            [directions, 3 * hidden_size].
        layout: "iofg" or "ifgo", the order of the input (i), output (o), forget (f) and cell (g) gate in weights and biases.
        activations: three of "relu", "sigmoid" and "tanh": for the input, forget and output gates; for the cell gate; and for
            the new cell state, from which the hidden state is computed.

    Returns: The last hidden state and the last cell state, both [directions, batches, hidden_size]. With
        `return_sequence`, also the hidden state of every step of the input, [steps, directions, batches, hidden_size].
        All have the data type of `input`.
    Raises: inconsistent sizes, or not three activations.

    The peepholes of all three gates read the cell state of the previous step. (In ONNX, the output gate reads the new one.)
    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstm

    >>> x, weight, recurrent_weight = (np.zeros(shape, "float32") for shape in ([2, 1, 3], [1, 4, 3], [1, 4, 1]))
    >>> hidden, cell = ow.ops.lstm(x, weight, recurrent_weight, 2, 1, initial_cell_state=np.float32([[[8]]]))
    >>> cell.tolist()
    [[[2.0]]]
    """
    raise NotImplementedError  # not called: `_network` makes the shape rule from the signature


@_network(_LSTM_CELL, hidden_state="bh", cell_state="bh", output0="bh", output1="bh")
def lstm_cell(
    self: Builder,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    hidden_state: Operand,
    cell_state: Operand,
    hidden_size: int,
    *,
    bias: Operand | None = None,
    recurrent_bias: Operand | None = None,
    peephole_weight: Operand | None = None,
    layout: LstmWeightLayout = "iofg",
    activations: Sequence[RecurrentNetworkActivation] = ("sigmoid", "tanh", "tanh"),
    label: str = "",
) -> tuple[Desc, ...]:
    """Run a long short-term memory (LSTM) for one time step.

    Args:
        input: float32 or float16 [batches, input size].
        weight: weights of the input, [4 * hidden_size, input size].
        recurrent_weight: weights of the hidden state, [4 * hidden_size, hidden_size].
        hidden_state: [batches, hidden_size].
        cell_state: [batches, hidden_size].
        hidden_size: number of features of the hidden state and of the cell state.
        bias: added to the weighted input, [4 * hidden_size].
        recurrent_bias: added to the weighted hidden state, [4 * hidden_size].
        peephole_weight: weights of the cell state for the input, output and forget gate, in this order in every layout,
            [3 * hidden_size].
        layout: "iofg" or "ifgo", the order of the input (i), output (o), forget (f) and cell (g) gate in weights and biases.
        activations: three of "relu", "sigmoid" and "tanh": for the input, forget and output gates; for the cell gate; and for
            the new cell state, from which the hidden state is computed.

    Returns: The next hidden state and the next cell state, both [batches, hidden_size], in the data type of `input`.
    Raises: inconsistent sizes, or not three activations.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstmcell

    >>> x, weight, recurrent_weight = (np.zeros(shape, "float32") for shape in ([1, 3], [4, 3], [4, 1]))
    >>> hidden, cell = ow.ops.lstm_cell(x, weight, recurrent_weight, np.float32([[0]]), np.float32([[8]]), 1)
    >>> cell.tolist()
    [[4.0]]
    """
    raise NotImplementedError  # not called: `_network` makes the shape rule from the signature


# Decompositions ------------------------------------------------------------------------------------------------------


def _pick(b: Operations, operand: Operand, index: int) -> Operand:
    rest = operand.shape[1:]
    return b.reshape(b.slice(operand, [index, *[0] * len(rest)], [1, *rest]), rest)


def _gru_step(
    b: Operations,
    weighted: Operand,
    hidden_state: Operand,
    recurrent_weight: Operand,
    recurrent_bias: Operand | None,
    hidden_size: int,
    reset_after: bool,
    layout: GruWeightLayout,
    activations: Sequence[RecurrentNetworkActivation],
) -> tuple[Operand]:
    """The next hidden state; `weighted` is the weighted input of all gates, [batches, 3 * hidden_size].

    Names begin with x for the weighted input, h for the weighted hidden state, u for recurrent weights and c for recurrent
    biases; they end with the letters of the gates: update (z) and reset (r), in the order of `layout`, and new (n).
    """
    f, g = (getattr(b, name) for name in activations)  # f for the gates z and r, g for n
    h, blocks = hidden_state, (2 * hidden_size, hidden_size)  # the new gate is last in both layouts
    x_zr, x_n = b.split(weighted, blocks, axis=1)
    if reset_after:
        h_zr, h_n = b.split(b.gemm(h, recurrent_weight, c=recurrent_bias, b_transpose=True), blocks, axis=1)
    else:
        u_zr, u_n = b.split(recurrent_weight, blocks)
        c_zr, c_n = (None, None) if recurrent_bias is None else b.split(recurrent_bias, blocks)
        h_zr = b.gemm(h, u_zr, c=c_zr, b_transpose=True)
    gates = dict(zip(layout[:2], b.split(f(x_zr + h_zr), 2, axis=1), strict=True))
    z, r = gates["z"], gates["r"]
    n = g(x_n + (r * h_n if reset_after else b.gemm(r * h, u_n, c=c_n, b_transpose=True)))
    return (z * h + n * (1 - z),)


def _lstm_step(
    b: Operations,
    weighted: Operand,
    hidden_state: Operand,
    cell_state: Operand,
    recurrent_weight: Operand,
    peephole_weight: Operand | None,
    hidden_size: int,
    layout: LstmWeightLayout,
    activations: Sequence[RecurrentNetworkActivation],
) -> tuple[Operand, Operand]:
    """The next hidden and cell state; `weighted` is the weighted input of all gates, [batches, 4 * hidden_size]."""
    f, g, k = (getattr(b, name) for name in activations)  # f for the gates i, o and f, g for the cell, k for the result
    sums = b.gemm(hidden_state, recurrent_weight, c=weighted, b_transpose=True)
    # Join the gates that have the same activation, because one call of it is faster than three.
    if layout == "iofg":
        gates, cell_gate = b.split(sums, (3 * hidden_size, hidden_size), axis=1)
    else:
        i, forget, cell_gate, o = b.split(sums, 4, axis=1)
        gates = b.concat([i, o, forget], 1)
    if peephole_weight is not None:
        gates += b.tile(cell_state, [1, 3]) * peephole_weight
    i, o, forget = b.split(f(gates), 3, axis=1)
    cell: Operand = forget * cell_state + i * g(cell_gate)
    return o * k(cell), cell


def _sum_of_biases(bias: Operand | None, recurrent_bias: Operand | None) -> Operand | None:
    if bias is None or recurrent_bias is None:
        return bias if recurrent_bias is None else recurrent_bias
    total: Operand = bias + recurrent_bias
    return total


@gru_cell.decompose
def _(
    b: Operations, input: Operand, weight: Operand, hidden_state: Operand, bias: Operand | None, **others: Any
) -> Operand:
    weighted = b.gemm(input, weight, c=bias, b_transpose=True)
    output: Operand = call_with(_gru_step, others, b, weighted, hidden_state)[0]
    return output


@lstm_cell.decompose
def _(
    b: Operations,
    input: Operand,
    weight: Operand,
    hidden_state: Operand,
    cell_state: Operand,
    bias: Operand | None,
    recurrent_bias: Operand | None,
    **others: Any,
) -> tuple[Operand, ...]:
    weighted = b.gemm(input, weight, c=_sum_of_biases(bias, recurrent_bias), b_transpose=True)
    hidden, cell = call_with(_lstm_step, others, b, weighted, hidden_state, cell_state)
    return hidden, cell


def _over_time(
    b: Operations,
    step: Callable[..., tuple[Operand, ...]],
    initial_states: Sequence[Operand | None],
    input: Operand,
    direction: RecurrentNetworkDirection,
    return_sequence: bool,
    **others: Any,
) -> tuple[Operand, ...]:
    """Run `step` for each direction and time step. One matrix product computes the weighted inputs of all steps.

    The input is [steps, batches, input size]. `step` computes the next states, the hidden state first, from the builder, the
    weighted input, the states ([directions, batches, hidden_size], None for zeros), and arguments in `others` by name.
    """
    steps, batches, input_size = input.shape
    rows, state_shape = b.reshape(input, [steps * batches, input_size]), [batches, others["hidden_size"]]
    zeros = b.expand(constant(b, 0, input.data_type), state_shape)
    last, sequences = [], []
    for k in range(direction_count(direction)):
        picked = {name: _pick(b, value, k) if isinstance(value, Operand) else value for name, value in others.items()}
        weighted = b.split(b.gemm(rows, picked["weight"], c=picked["bias"], b_transpose=True), steps)
        states = tuple(zeros if initial is None else _pick(b, initial, k) for initial in initial_states)
        order = -1 if k == 1 or direction == "backward" else 1
        hidden = []
        for x in weighted[::order]:
            states = call_with(step, picked, b, x, *states)
            hidden.append(states[0])
        last.append([b.reshape(value, [1, *state_shape]) for value in states])
        sequences.append(b.reshape(b.concat(hidden[::order], 0), [steps, 1, *state_shape]))
    final = tuple(b.concat(parts, 0) for parts in zip(*last, strict=True))
    return (*final, b.concat(sequences, 1)) if return_sequence else final


@gru.decompose
def _(b: Operations, initial_hidden_state: Operand | None, **others: Any) -> tuple[Operand, ...]:
    return _over_time(b, _gru_step, [initial_hidden_state], **others)


@lstm.decompose
def _(
    b: Operations,
    initial_hidden_state: Operand | None,
    initial_cell_state: Operand | None,
    bias: Operand | None,
    recurrent_bias: Operand | None,
    **others: Any,
) -> tuple[Operand, ...]:
    states = [initial_hidden_state, initial_cell_state]
    return _over_time(b, _lstm_step, states, bias=_sum_of_biases(bias, recurrent_bias), **others)
