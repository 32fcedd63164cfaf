"""Recurrent networks: gru and lstm over all time steps, gruCell and lstmCell for a single one.

A weight or bias contains one block of `hidden_size` rows for each gate, in the order of the letters of `layout`: the
update (z), reset (r) and new (n) gate of a GRU; the input (i), output (o), forget (f) and cell (g) gate of an LSTM.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..dtypes import FLOATS
from ..errors import require
from ..graph import MAX_DIMENSION, Builder, Desc, Operand, check_shape
from ..operation import Limits, Op, call_with, op

if TYPE_CHECKING:
    from . import Operations

GruWeightLayout = Literal["zrn", "rzn"]
LstmWeightLayout = Literal["iofg", "ifgo"]
RecurrentNetworkActivation = Literal["relu", "sigmoid", "tanh"]
RecurrentNetworkDirection = Literal["forward", "backward", "both"]

PEEPHOLES = "iof"
"""The gates that read the cell state, in the order of the peephole weights for all layouts."""


def direction_count(direction: str) -> int:
    """The number of directions, which is the first dimension of weights, biases and states."""
    return 2 if direction == "both" else 1


# The axes of operands and results: steps (s), batches (b), input size (i), directions (d), hidden size (h), and the blocks of
# `hidden_size` rows for all gates (g) or all peepholes (p).
_GRU = {"input": "sbi", "weight": "dgi", "recurrent_weight": "dgh", "bias": "dg", "recurrent_bias": "dg"}
_GRU_CELL = {"input": "bi", "weight": "gi", "recurrent_weight": "gh", "bias": "g", "recurrent_bias": "g"}
_LSTM = {**_GRU, "peephole_weight": "dp"}
_LSTM_CELL = {**_GRU_CELL, "peephole_weight": "p"}


def _network(weighted: Mapping[str, str], **others: str) -> Callable[[Callable[..., Any]], Op[..., Any]]:
    """Declare an operation by the axes of its operands and results; its rule follows from these.

    The function has a signature and a docstring only. The defaults of its layout and activations tell how many gates and
    activations there are.
    """
    axes = {**weighted, **others}
    outputs = [name for name in axes if name.startswith("output")]

    def declare(function: Callable[..., Any]) -> Op[..., Any]:
        parameters = inspect.signature(function).parameters
        operands = [name for name in parameters if name in axes]
        gates, functions = (len(parameters[name].default) for name in ("layout", "activations"))

        @functools.wraps(function)
        def rule(builder: Builder, **given: Any) -> Any:
            sizes = _sizes(axes["input"], gates, functions, **given)
            shapes = {name: tuple(sizes[axis] for axis in letters) for name, letters in axes.items()}
            for name in operands:
                check_shape(shapes[name], **{name: given[name]})
            results = [Desc(given["input"].data_type, shapes[name]) for name in outputs]
            if not given.get("return_sequence", True):
                results.pop()
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
    """The size of each axis by its letter; the attributes are checked."""
    # Engines may join the two biases of all gates into one vector, so that must be a valid dimension.
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
    """Run a gated recurrent unit over a sequence.

    Args:
        input: float32 or float16 [steps, batches, input size].
        weight: of the inputs, [directions, 3 * hidden_size, input size]; directions is 2 for "both", else 1.
        recurrent_weight: of the hidden state, [directions, 3 * hidden_size, hidden_size].
        steps: number of time steps, the first dimension of `input`.
        hidden_size: number of features of the hidden state.
        bias: added to the weighted inputs, [directions, 3 * hidden_size].
        recurrent_bias: added to the weighted hidden state, [directions, 3 * hidden_size].
        initial_hidden_state: [directions, batches, hidden_size]; default: zeros.
        reset_after: whether the reset gate is applied after the product with `recurrent_weight`, or before.
        return_sequence: whether to also return the hidden state of every step.
        direction: in which order steps are processed: "forward", "backward", or "both".
        layout: the order of the update (z), reset (r) and new (n) gate in weights and biases.
        activations: two functions: for the update and reset gates, and for the new gate.
        label: a name for messages and tables.

    Returns:
        The last hidden state, [directions, batches, hidden_size], and with `return_sequence` that of every step of the
        input, [steps, directions, batches, hidden_size], in the data type of `input`.

    Raises:
        ValidationError: inconsistent sizes, or not two activations.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gru
    """
    raise NotImplementedError  # `_network` makes the rule


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
    """Run a gated recurrent unit for one time step.

    Args:
        input: float32 or float16 [batches, input size].
        weight: of the inputs, [3 * hidden_size, input size].
        recurrent_weight: of the hidden state, [3 * hidden_size, hidden_size].
        hidden_state: [batches, hidden_size].
        hidden_size: number of features of the hidden state.
        bias: added to the weighted inputs, [3 * hidden_size].
        recurrent_bias: added to the weighted hidden state, [3 * hidden_size].
        reset_after: whether the reset gate is applied after the product with `recurrent_weight`, or before.
        layout: the order of the update (z), reset (r) and new (n) gate in weights and biases.
        activations: two functions: for the update and reset gates, and for the new gate.
        label: a name for messages and tables.

    Returns:
        The next hidden state, [batches, hidden_size], in the data type of `input`.

    Raises:
        ValidationError: inconsistent sizes, or not two activations.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-grucell
    """
    raise NotImplementedError  # `_network` makes the rule


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
    """Run a long short-term memory over a sequence.

    Args:
        input: float32 or float16 [steps, batches, input size].
        weight: of the inputs, [directions, 4 * hidden_size, input size]; directions is 2 for "both", else 1.
        recurrent_weight: of the hidden state, [directions, 4 * hidden_size, hidden_size].
        steps: number of time steps, the first dimension of `input`.
        hidden_size: number of features of the hidden state and of the cell state.
        bias: added to the weighted inputs, [directions, 4 * hidden_size].
        recurrent_bias: added to the weighted hidden state, [directions, 4 * hidden_size].
        peephole_weight: of the cell state, [directions, 3 * hidden_size]: of the input, output and forget gate, in any
            layout.
        initial_hidden_state: [directions, batches, hidden_size]; default: zeros.
        initial_cell_state: [directions, batches, hidden_size]; default: zeros.
        return_sequence: whether to also return the hidden state of every step.
        direction: in which order steps are processed: "forward", "backward", or "both".
        layout: the order of the input (i), output (o), forget (f) and cell (g) gate in weights and biases.
        activations: three functions: for the input, forget and output gates, for the cell gate, and for the cell state
            in the hidden state.
        label: a name for messages and tables.

    Returns:
        The last hidden state and the last cell state, both [directions, batches, hidden_size], and with
        `return_sequence` the hidden state of every step of the input, [steps, directions, batches, hidden_size], in the
        data type of `input`.

    Raises:
        ValidationError: inconsistent sizes, or not three activations.

    All three peepholes use the cell state of the previous step (in ONNX, that of the output gate uses the new one).
    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstm
    """
    raise NotImplementedError  # `_network` makes the rule


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
    """Run a long short-term memory for one time step.

    Args:
        input: float32 or float16 [batches, input size].
        weight: of the inputs, [4 * hidden_size, input size].
        recurrent_weight: of the hidden state, [4 * hidden_size, hidden_size].
        hidden_state: [batches, hidden_size].
        cell_state: [batches, hidden_size].
        hidden_size: number of features of the hidden state and of the cell state.
        bias: added to the weighted inputs, [4 * hidden_size].
        recurrent_bias: added to the weighted hidden state, [4 * hidden_size].
        peephole_weight: of the cell state, [3 * hidden_size]: of the input, output and forget gate, in any layout.
        layout: the order of the input (i), output (o), forget (f) and cell (g) gate in weights and biases.
        activations: three functions: for the input, forget and output gates, for the cell gate, and for the cell state
            in the hidden state.
        label: a name for messages and tables.

    Returns:
        The next hidden state and the next cell state, both [batches, hidden_size], in the data type of `input`.

    Raises:
        ValidationError: inconsistent sizes, or not three activations.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-lstmcell
    """
    raise NotImplementedError  # `_network` makes the rule


# ---------------------------------------------------------------------------------------------------------------------
# Decompositions


def _pick(b: Operations, operand: Operand, index: int) -> Operand:
    """`operand[index]`."""
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
    """The next hidden state; `weighted` are the weighted inputs of all gates, [batches, 3 * hidden_size]."""
    f, g = (getattr(b, name) for name in activations)
    h, blocks = hidden_state, (2 * hidden_size, hidden_size)  # the update and reset gate, in any order; the new gate
    x_zr, x_n = b.split(weighted, blocks, axis=1)
    if reset_after:
        h_zr, h_n = b.split(b.gemm(h, recurrent_weight, c=recurrent_bias, b_transpose=True), blocks, axis=1)
    else:
        u_zr, u_n = b.split(recurrent_weight, blocks)
        c_zr, c_n = (None, None) if recurrent_bias is None else b.split(recurrent_bias, blocks)
        h_zr = b.gemm(h, u_zr, c=c_zr, b_transpose=True)
    gates = dict(zip(layout, b.split(f(x_zr + h_zr), 2, axis=1), strict=False))
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
    """The next hidden and cell state; `weighted` are the weighted inputs of all gates, [batches, 4 * hidden_size]."""
    f, g, k = (getattr(b, name) for name in activations)
    sums = b.gemm(hidden_state, recurrent_weight, c=weighted, b_transpose=True)
    # One function of three gates is faster than three functions.
    if layout == "iofg":
        gates, new = b.split(sums, (3 * hidden_size, hidden_size), axis=1)
    else:
        i, forget, new, o = b.split(sums, 4, axis=1)
        gates = b.concat([i, o, forget], 1)
    if peephole_weight is not None:
        gates += b.tile(cell_state, [1, 3]) * peephole_weight
    i, o, forget = b.split(f(gates), 3, axis=1)
    cell: Operand = forget * cell_state + i * g(new)
    return o * k(cell), cell


def _sum(bias: Operand | None, recurrent_bias: Operand | None) -> Operand | None:
    """The biases of a network that only uses their sum."""
    return recurrent_bias if bias is None else bias if recurrent_bias is None else bias + recurrent_bias


@gru_cell.decompose
def _(
    b: Operations, input: Operand, weight: Operand, hidden_state: Operand, bias: Operand | None, **given: Any
) -> Operand:
    weighted = b.gemm(input, weight, c=bias, b_transpose=True)
    output: Operand = call_with(_gru_step, given, b, weighted, hidden_state)[0]
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
    **given: Any,
) -> tuple[Operand, ...]:
    weighted = b.gemm(input, weight, c=_sum(bias, recurrent_bias), b_transpose=True)
    hidden, cell = call_with(_lstm_step, given, b, weighted, hidden_state, cell_state)
    return hidden, cell


def _over_time(
    b: Operations,
    step: Callable[..., tuple[Operand, ...]],
    initial_states: Sequence[Operand | None],
    input: Operand,
    direction: RecurrentNetworkDirection,
    return_sequence: bool,
    **given: Any,
) -> tuple[Operand, ...]:
    """Run `step` for each direction and time step; one product weights the inputs of all steps.

    Args:
        b: the builder.
        step: computes the next states, the hidden state first, from the weighted inputs, the states, and those of `given`
            that it names.
        initial_states: the states before the first step, [directions, batches, hidden_size]; None for zeros.
        input: [steps, batches, input size].
        direction: in which order steps are processed.
        return_sequence: whether to also return the hidden state of every step.
        given: the network's other arguments; operands have directions as their first dimension.
    """
    steps, batches, input_size = input.shape
    rows, state = b.reshape(input, [steps * batches, input_size]), [batches, given["hidden_size"]]
    zeros = b.expand(b.as_operand(0, input.data_type), state)
    last, sequences = [], []
    for k in range(direction_count(direction)):
        own = {name: _pick(b, value, k) if isinstance(value, Operand) else value for name, value in given.items()}
        weighted = b.gemm(rows, own["weight"], c=own["bias"], b_transpose=True)
        of_step = b.split(weighted, steps)
        states = tuple(zeros if initial is None else _pick(b, initial, k) for initial in initial_states)
        order = -1 if k == 1 or direction == "backward" else 1
        hidden = []
        for x in of_step[::order]:
            states = call_with(step, own, b, x, *states)
            hidden.append(states[0])
        last.append([b.reshape(value, [1, *state]) for value in states])
        sequences.append(b.reshape(b.concat(hidden[::order], 0), [steps, 1, *state]))
    final = tuple(b.concat(parts, 0) for parts in zip(*last, strict=True))
    return (*final, b.concat(sequences, 1)) if return_sequence else final


@gru.decompose
def _(b: Operations, initial_hidden_state: Operand | None, **given: Any) -> tuple[Operand, ...]:
    return _over_time(b, _gru_step, [initial_hidden_state], **given)


@lstm.decompose
def _(
    b: Operations,
    initial_hidden_state: Operand | None,
    initial_cell_state: Operand | None,
    bias: Operand | None,
    recurrent_bias: Operand | None,
    **given: Any,
) -> tuple[Operand, ...]:
    states = [initial_hidden_state, initial_cell_state]
    return _over_time(b, _lstm_step, states, bias=_sum(bias, recurrent_bias), **given)
