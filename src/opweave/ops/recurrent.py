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
from ..operation import Limits, op

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


def _pick(b: Operations, operand: Operand | None, index: int) -> Any:
    """`operand[index]`; None if the operand is absent."""
    if operand is None:
        return None
    rest = operand.shape[1:]
    return b.reshape(b.slice(operand, [index, *[0] * len(rest)], [1, *rest]), rest)


def _rows(b: Operations, operand: Operand | None, order: str, gate: str, hidden_size: int) -> Any:
    """The rows of one gate in a weight or bias whose gates are in the given order; None if the operand is absent."""
    if operand is None:
        return None
    rest = operand.shape[1:]
    return b.slice(operand, [order.index(gate) * hidden_size, *[0] * len(rest)], [hidden_size, *rest])


def _unroll(
    b: Operations, input: Operand, direction: str, states: Sequence[Operand], cell: Callable[..., Sequence[Operand]]
) -> tuple[list[Operand], Operand]:
    """The last states, each [directions, batches, hidden size], and the hidden states of all steps.

    `cell(k, x, *states)` computes the next states in direction `k`, the hidden state first.
    """
    steps, state = input.shape[0], states[0].shape[1:]
    last, sequences = [], []
    for k in range(direction_count(direction)):
        order = -1 if k == 1 or direction == "backward" else 1
        current: Sequence[Operand] = [_pick(b, operand, k) for operand in states]
        made = []
        for step in range(steps)[::order]:
            current = cell(k, _pick(b, input, step), *current)
            made.append(b.reshape(current[0], [1, 1, *state]))
        last.append([b.reshape(operand, [1, *state]) for operand in current])
        sequences.append(b.concat(made[::order], 0))
    return [b.concat(parts, 0) for parts in zip(*last, strict=True)], b.concat(sequences, 1)


def _initial(b: Operations, state: Operand | None, input: Operand, direction: str, hidden_size: int) -> Operand:
    """The initial state; zeros if it is absent."""
    shape = [direction_count(direction), input.shape[1], hidden_size]
    return b.expand(b.as_operand(0, input.data_type), shape) if state is None else state


@op(
    input=Limits(FLOATS, ranks=(3, 3)),
    weight=Limits("input", ranks=(3, 3)),
    recurrent_weight=Limits("input", ranks=(3, 3)),
    bias=Limits("input", ranks=(2, 2)),
    recurrent_bias=Limits("input", ranks=(2, 2)),
    initial_hidden_state=Limits("input", ranks=(3, 3)),
    output0=Limits("input", ranks=(3, 3)),
    output1=Limits("input", ranks=(4, 4)),
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


@gru.decompose
def _(
    b: Operations,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    hidden_size: int,
    bias: Operand | None,
    recurrent_bias: Operand | None,
    initial_hidden_state: Operand | None,
    reset_after: bool,
    return_sequence: bool,
    direction: RecurrentNetworkDirection,
    layout: GruWeightLayout,
    activations: Sequence[RecurrentNetworkActivation],
) -> tuple[Operand, ...]:
    def cell(k: int, x: Operand, h: Operand) -> list[Operand]:
        w, u, v, c = (_pick(b, operand, k) for operand in (weight, recurrent_weight, bias, recurrent_bias))
        options: dict[str, Any] = {"reset_after": reset_after, "layout": layout, "activations": activations}
        return [b.gru_cell(x, w, u, h, hidden_size, bias=v, recurrent_bias=c, **options)]

    states = [_initial(b, initial_hidden_state, input, direction, hidden_size)]
    last, sequence = _unroll(b, input, direction, states, cell)
    return (*last, sequence) if return_sequence else tuple(last)


@op(
    input=Limits(FLOATS, ranks=(2, 2)),
    weight=Limits("input", ranks=(2, 2)),
    recurrent_weight=Limits("input", ranks=(2, 2)),
    hidden_state=Limits("input", ranks=(2, 2)),
    bias=Limits("input", ranks=(1, 1)),
    recurrent_bias=Limits("input", ranks=(1, 1)),
    output=Limits("input", ranks=(2, 2)),
)
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


@gru_cell.decompose
def _(
    b: Operations,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    hidden_state: Operand,
    hidden_size: int,
    bias: Operand | None,
    recurrent_bias: Operand | None,
    reset_after: bool,
    layout: GruWeightLayout,
    activations: Sequence[RecurrentNetworkActivation],
) -> Operand:
    f, g = (getattr(b, name) for name in activations)
    h = hidden_state

    def product(x: Operand, weights: Operand, biases: Operand | None, gate: str) -> Operand:
        rows = _rows(b, weights, layout, gate, hidden_size)
        return b.gemm(x, rows, c=_rows(b, biases, layout, gate, hidden_size), b_transpose=True)

    def from_input(gate: str) -> Operand:
        return product(input, weight, bias, gate)

    def from_state(state: Operand, gate: str) -> Operand:
        return product(state, recurrent_weight, recurrent_bias, gate)

    z: Operand = f(from_input("z") + from_state(h, "z"))
    r: Operand = f(from_input("r") + from_state(h, "r"))
    n: Operand = g(from_input("n") + (r * from_state(h, "n") if reset_after else from_state(r * h, "n")))
    return z * h + n * (1 - z)


@op(
    input=Limits(FLOATS, ranks=(3, 3)),
    weight=Limits("input", ranks=(3, 3)),
    recurrent_weight=Limits("input", ranks=(3, 3)),
    bias=Limits("input", ranks=(2, 2)),
    recurrent_bias=Limits("input", ranks=(2, 2)),
    peephole_weight=Limits("input", ranks=(2, 2)),
    initial_hidden_state=Limits("input", ranks=(3, 3)),
    initial_cell_state=Limits("input", ranks=(3, 3)),
    output0=Limits("input", ranks=(3, 3)),
    output1=Limits("input", ranks=(3, 3)),
    output2=Limits("input", ranks=(4, 4)),
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


@lstm.decompose
def _(
    b: Operations,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    hidden_size: int,
    bias: Operand | None,
    recurrent_bias: Operand | None,
    peephole_weight: Operand | None,
    initial_hidden_state: Operand | None,
    initial_cell_state: Operand | None,
    return_sequence: bool,
    direction: RecurrentNetworkDirection,
    layout: LstmWeightLayout,
    activations: Sequence[RecurrentNetworkActivation],
) -> tuple[Operand, ...]:
    def cell(k: int, x: Operand, h: Operand, c: Operand) -> tuple[Operand, ...]:
        parts = (weight, recurrent_weight, bias, recurrent_bias, peephole_weight)
        w, u, v, d, p = (_pick(b, operand, k) for operand in parts)
        options: dict[str, Any] = {"peephole_weight": p, "layout": layout, "activations": activations}
        return b.lstm_cell(x, w, u, h, c, hidden_size, bias=v, recurrent_bias=d, **options)

    states = [_initial(b, s, input, direction, hidden_size) for s in (initial_hidden_state, initial_cell_state)]
    last, sequence = _unroll(b, input, direction, states, cell)
    return (*last, sequence) if return_sequence else tuple(last)


@op(
    input=Limits(FLOATS, ranks=(2, 2)),
    weight=Limits("input", ranks=(2, 2)),
    recurrent_weight=Limits("input", ranks=(2, 2)),
    hidden_state=Limits("input", ranks=(2, 2)),
    cell_state=Limits("input", ranks=(2, 2)),
    bias=Limits("input", ranks=(1, 1)),
    recurrent_bias=Limits("input", ranks=(1, 1)),
    peephole_weight=Limits("input", ranks=(1, 1)),
    output0=Limits("input", ranks=(2, 2)),
    output1=Limits("input", ranks=(2, 2)),
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


@lstm_cell.decompose
def _(
    b: Operations,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    hidden_state: Operand,
    cell_state: Operand,
    hidden_size: int,
    bias: Operand | None,
    recurrent_bias: Operand | None,
    peephole_weight: Operand | None,
    layout: LstmWeightLayout,
    activations: Sequence[RecurrentNetworkActivation],
) -> tuple[Operand, ...]:
    f, g, k = (getattr(b, name) for name in activations)

    def product(x: Operand, weights: Operand, biases: Operand | None, gate: str) -> Operand:
        rows = _rows(b, weights, layout, gate, hidden_size)
        return b.gemm(x, rows, c=_rows(b, biases, layout, gate, hidden_size), b_transpose=True)

    def total(gate: str) -> Operand:
        seen: Operand = product(input, weight, bias, gate) + product(
            hidden_state, recurrent_weight, recurrent_bias, gate
        )
        if peephole_weight is None or gate not in PEEPHOLES:
            return seen
        peepholes: Operand = _rows(b, peephole_weight, PEEPHOLES, gate, hidden_size)
        return seen + cell_state * peepholes

    new = f(total("f")) * cell_state + f(total("i")) * g(total("g"))
    return f(total("o")) * k(new), new
