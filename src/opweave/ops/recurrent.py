"""Recurrent networks: gru and lstm over all time steps, gruCell and lstmCell for a single one.

A weight or bias contains one block of `hidden_size` rows for each gate, in the order of the letters of `layout`: the
update (z), reset (r) and new (n) gate of a GRU; the input (i), output (o), forget (f) and cell (g) gate of an LSTM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..dtypes import FLOATS
from ..errors import require
from ..graph import MAX_DIMENSION, Builder, Desc, Operand
from ..operation import Limits, call_with, op

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


def _check_sizes(gates: int, hidden_size: int, activations: Sequence[str], wanted: int) -> None:
    # Engines may join the two biases of all gates into one vector, so that must be a valid dimension.
    maximum = MAX_DIMENSION // (2 * gates)
    require(0 < hidden_size <= maximum, f"hidden_size must be in [1, {maximum}], got {hidden_size}")
    require(len(activations) == wanted, f"activations must have {wanted} values, got {list(activations)}")


def _check_shapes(**shapes: tuple[Operand | None, tuple[int, ...]]) -> None:
    """Check the shapes of the operands that are present."""
    for name, (operand, shape) in shapes.items():
        if operand is not None:
            require(operand.shape == shape, f"{name} must have shape {list(shape)}, got {operand.desc}")


def _check_steps(input: Operand, steps: int) -> None:
    require(steps > 0, f"steps must be greater than 0, got {steps}")
    require(input.shape[0] == steps, f"input must have {steps} steps in its first dimension, got {input.desc}")


def _limits(**ranks: int) -> dict[str, Limits]:
    """Limits of operands and results of the given ranks, all in the data type of `input`."""
    return {name: Limits(FLOATS if name == "input" else "input", ranks=(rank, rank)) for name, rank in ranks.items()}


@op(
    **_limits(
        input=3, weight=3, recurrent_weight=3, bias=2, recurrent_bias=2, initial_hidden_state=3, output0=3, output1=4
    )
)
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
    _check_sizes(3, hidden_size, activations, 2)
    _check_steps(input, steps)
    _, batches, input_size = input.shape
    directions = direction_count(direction)
    _check_shapes(
        weight=(weight, (directions, 3 * hidden_size, input_size)),
        recurrent_weight=(recurrent_weight, (directions, 3 * hidden_size, hidden_size)),
        bias=(bias, (directions, 3 * hidden_size)),
        recurrent_bias=(recurrent_bias, (directions, 3 * hidden_size)),
        initial_hidden_state=(initial_hidden_state, (directions, batches, hidden_size)),
    )
    state = Desc(input.data_type, (directions, batches, hidden_size))
    sequence = Desc(input.data_type, (steps, directions, batches, hidden_size))
    return (state, sequence) if return_sequence else (state,)


@op(**_limits(input=2, weight=2, recurrent_weight=2, hidden_state=2, bias=1, recurrent_bias=1, output=2))
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
    _check_sizes(3, hidden_size, activations, 2)
    batches, input_size = input.shape
    _check_shapes(
        weight=(weight, (3 * hidden_size, input_size)),
        recurrent_weight=(recurrent_weight, (3 * hidden_size, hidden_size)),
        hidden_state=(hidden_state, (batches, hidden_size)),
        bias=(bias, (3 * hidden_size,)),
        recurrent_bias=(recurrent_bias, (3 * hidden_size,)),
    )
    return Desc(input.data_type, (batches, hidden_size))


@op(
    **_limits(
        input=3,
        weight=3,
        recurrent_weight=3,
        bias=2,
        recurrent_bias=2,
        peephole_weight=2,
        initial_hidden_state=3,
        initial_cell_state=3,
        output0=3,
        output1=3,
        output2=4,
    )
)
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
    _check_sizes(4, hidden_size, activations, 3)
    _check_steps(input, steps)
    _, batches, input_size = input.shape
    directions = direction_count(direction)
    _check_shapes(
        weight=(weight, (directions, 4 * hidden_size, input_size)),
        recurrent_weight=(recurrent_weight, (directions, 4 * hidden_size, hidden_size)),
        bias=(bias, (directions, 4 * hidden_size)),
        recurrent_bias=(recurrent_bias, (directions, 4 * hidden_size)),
        peephole_weight=(peephole_weight, (directions, 3 * hidden_size)),
        initial_hidden_state=(initial_hidden_state, (directions, batches, hidden_size)),
        initial_cell_state=(initial_cell_state, (directions, batches, hidden_size)),
    )
    state = Desc(input.data_type, (directions, batches, hidden_size))
    sequence = Desc(input.data_type, (steps, directions, batches, hidden_size))
    return (state, state, sequence) if return_sequence else (state, state)


@op(
    **_limits(
        input=2,
        weight=2,
        recurrent_weight=2,
        hidden_state=2,
        cell_state=2,
        bias=1,
        recurrent_bias=1,
        peephole_weight=1,
        output0=2,
        output1=2,
    )
)
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
    _check_sizes(4, hidden_size, activations, 3)
    batches, input_size = input.shape
    _check_shapes(
        weight=(weight, (4 * hidden_size, input_size)),
        recurrent_weight=(recurrent_weight, (4 * hidden_size, hidden_size)),
        hidden_state=(hidden_state, (batches, hidden_size)),
        cell_state=(cell_state, (batches, hidden_size)),
        bias=(bias, (4 * hidden_size,)),
        recurrent_bias=(recurrent_bias, (4 * hidden_size,)),
        peephole_weight=(peephole_weight, (3 * hidden_size,)),
    )
    state = Desc(input.data_type, (batches, hidden_size))
    return state, state


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
