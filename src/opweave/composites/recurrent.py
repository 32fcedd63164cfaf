"""Recurrent networks for batches of sequences of different lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits
from ..core.value_ranges import ValueRange
from ..ops.constants import constant, line
from ..ops.recurrent import RecurrentNetworkActivation, RecurrentNetworkDirection, direction_count
from ..support.errors import require
from ..support.names import short_repr
from .declare import declare

if TYPE_CHECKING:
    from ..ops import Operations

MAX_WRITTEN_STEPS = 1024
"""Maximum number of steps of a network whose steps are written out. An estimate."""

CLOSED = 80.0
"""Opens or closes a gate when added to or subtracted from its input: sigmoid(-80) = 2e-35, exp(80) is finite in float32."""

SEQUENCE, MATRICES, ROWS = Limits(FLOATS, ranks=(3, 3)), Limits("input", ranks=(3, 3)), Limits("input", ranks=(2, 2))
LENGTHS = Limits(("int32",), ranks=(1, 1))


def check_activations(activations: Sequence[str], count: int) -> None:
    """Check the activation functions of a network with `count` of them."""
    names = list(activations) if isinstance(activations, (list, tuple)) else []
    fits = all(isinstance(name, str) and name in get_args(RecurrentNetworkActivation) for name in names)
    message = f"activations must be {count} of 'relu', 'sigmoid', 'tanh', got {short_repr(names or activations)}"
    require(fits and len(names) == count, message)


def shapes_of_results(
    gates: int,
    input: Operand,
    recurrent_weight: Operand,
    direction: str,
    lengths: Operand | None,
    **others: Operand | None,
) -> tuple[Desc, Desc]:
    """Check the operands of a network; return the descriptors of its last states, and of the states of all steps."""
    steps, batches, size = input.shape
    directions, hidden = direction_count(direction), recurrent_weight.shape[2]
    rows = gates * hidden
    check_shape([directions, rows, hidden], f"{gates} gates for each direction", recurrent_weight=recurrent_weight)
    check_shape([batches], "one for each batch", lengths=lengths)
    shapes = {
        "weight": [directions, rows, size],
        "bias": [directions, rows],
        "recurrent_bias": [directions, rows],
        "peephole_weight": [directions, 3 * hidden],
        "initial_hidden_state": [directions, batches, hidden],
        "initial_cell_state": [directions, batches, hidden],
    }
    for name, operand in others.items():
        check_shape(shapes[name], "of these directions, gates and batches", **{name: operand})
    state = Desc(input.data_type, (directions, batches, hidden))
    return state, Desc(input.data_type, (steps, *state.shape))


@declare(
    input=SEQUENCE,
    weight=MATRICES,
    recurrent_weight=MATRICES,
    lengths=LENGTHS,
    bias=ROWS,
    recurrent_bias=ROWS,
    initial_hidden_state=MATRICES,
)
def ragged_gru(
    self: Builder,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    lengths: Operand,
    bias: Operand | None = None,
    recurrent_bias: Operand | None = None,
    initial_hidden_state: Operand | None = None,
    *,
    reset_after: bool = True,
    direction: Literal["forward", "backward", "both"] = "forward",
    activations: Sequence[RecurrentNetworkActivation] = ("sigmoid", "tanh"),
    label: str = "",
) -> tuple[Desc, Desc]:
    """Run a gated recurrent unit (GRU) over sequences of different lengths; see `MLGraphBuilder.gru`.

    Args:
        input: float32 or float16 [steps, batches, input size]; elements beyond the length of a sequence are not used.
        weight: [directions, 3 * hidden size, input size], gates in the order "zrn"; directions is 2 for "both", else 1.
        recurrent_weight: [directions, 3 * hidden size, hidden size].
        lengths: int32 [batches], each from 0 to the number of steps.
        bias: [directions, 3 * hidden size].
        recurrent_bias: [directions, 3 * hidden size].
        initial_hidden_state: [directions, batches, hidden size]; default: zeros.
        reset_after: whether the reset gate is applied after the product with `recurrent_weight`.
        direction: the order in which steps are processed: "forward", "backward", which begins at the last step of each
            sequence, or "both".
        activations: two of "relu", "sigmoid" and "tanh": for the update and reset gates, and for the new gate.

    Returns: The hidden state after the last step of each sequence that was processed, [directions, batches, hidden
        size], and that of every step, [steps, directions, batches, hidden size]; zeros beyond the length, and for a
        length of 0.
    Raises: inconsistent shapes, or not two activations.

    ONNX's GRU with `sequence_lens`; PyTorch's packed sequences.

    >>> x, weight, recurrent_weight = (np.zeros(shape, "float32") for shape in ([2, 2, 3], [1, 3, 3], [1, 3, 1]))
    >>> start = np.float32([[[8], [8]]])
    >>> last, _ = ragged_gru(x, weight, recurrent_weight, np.int32([1, 2]), initial_hidden_state=start)
    >>> last.tolist()  # each step halves the state
    [[[4.0], [2.0]]]
    """
    check_activations(activations, 2)
    others = {"weight": weight, "bias": bias, "recurrent_bias": recurrent_bias}
    others["initial_hidden_state"] = initial_hidden_state
    return shapes_of_results(3, input, recurrent_weight, direction, lengths, **others)


@declare(
    input=SEQUENCE,
    weight=MATRICES,
    recurrent_weight=MATRICES,
    lengths=LENGTHS,
    bias=ROWS,
    recurrent_bias=ROWS,
    peephole_weight=ROWS,
    initial_hidden_state=MATRICES,
    initial_cell_state=MATRICES,
)
def ragged_lstm(
    self: Builder,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    lengths: Operand,
    bias: Operand | None = None,
    recurrent_bias: Operand | None = None,
    peephole_weight: Operand | None = None,
    initial_hidden_state: Operand | None = None,
    initial_cell_state: Operand | None = None,
    *,
    direction: Literal["forward", "backward", "both"] = "forward",
    activations: Sequence[RecurrentNetworkActivation] = ("sigmoid", "tanh", "tanh"),
    output_peephole: Literal["previous", "new"] = "previous",
    coupled: bool = False,
    clip: float = math.inf,
    label: str = "",
) -> tuple[Desc, Desc, Desc]:
    """Run a long short-term memory (LSTM) over sequences of different lengths; see `MLGraphBuilder.lstm`.

    Args:
        input: float32 or float16 [steps, batches, input size]; elements beyond the length of a sequence are not used.
        weight: [directions, 4 * hidden size, input size], gates in the order "iofg"; directions is 2 for "both", else 1.
        recurrent_weight: [directions, 4 * hidden size, hidden size].
        lengths: int32 [batches], each from 0 to the number of steps.
        bias: [directions, 4 * hidden size].
        recurrent_bias: [directions, 4 * hidden size].
        peephole_weight: [directions, 3 * hidden size], gates in the order "iof".
        initial_hidden_state: [directions, batches, hidden size]; default: zeros.
        initial_cell_state: [directions, batches, hidden size]; default: zeros.
        direction: the order in which steps are processed: "forward", "backward", which begins at the last step of each
            sequence, or "both".
        activations: three of "relu", "sigmoid" and "tanh": for the input, forget and output gates, "sigmoid"; for the cell
            gate; and for the new cell state.
        output_peephole: the cell state that the output gate reads by its peephole: "previous" for that of the previous
            step, as in `MLGraphBuilder.lstm`, or "new" for the new one, as in ONNX.
        coupled: whether the forget gate is 1 - the input gate; its own weights are not used.
        clip: bound of the values that the gates' activations read, greater than 0; default: none.

    Returns: The hidden and the cell state after the last step of each sequence that was processed, both
        [directions, batches, hidden size], and the hidden state of every step, [steps, directions, batches, hidden size];
        zeros beyond the length, and for a length of 0.
    Raises: inconsistent shapes, or other activations.

    ONNX's LSTM with `sequence_lens`; PyTorch's packed sequences.

    >>> x, weight, recurrent_weight = (np.zeros(shape, "float32") for shape in ([2, 2, 3], [1, 4, 3], [1, 4, 1]))
    >>> start = np.float32([[[8], [8]]])
    >>> _, cell, _ = ragged_lstm(x, weight, recurrent_weight, np.int32([1, 2]), initial_cell_state=start)
    >>> cell.tolist()  # each step halves the state
    [[[4.0], [2.0]]]
    """
    check_activations(activations, 3)
    require(activations[0] == "sigmoid", f"the activation of gates must be 'sigmoid', got {activations[0]!r}")
    require(clip > 0, f"clip must be greater than 0, got {clip}")
    if _is_special(peephole_weight, output_peephole, coupled, clip):
        fits = input.shape[0] <= MAX_WRITTEN_STEPS
        form = "with a new output_peephole, coupled gates, or a clip, "
        require(fits, f"{form}there may be at most {MAX_WRITTEN_STEPS} steps, got {input.desc}")
    others = {"weight": weight, "bias": bias, "recurrent_bias": recurrent_bias, "peephole_weight": peephole_weight}
    states = {"initial_hidden_state": initial_hidden_state, "initial_cell_state": initial_cell_state}
    state, sequence = shapes_of_results(4, input, recurrent_weight, direction, lengths, **others, **states)
    return state, state, sequence


@ragged_gru.value_range("lengths")
@ragged_lstm.value_range("lengths")
def _(input: Operand) -> ValueRange:
    steps = input.shape[0]
    return ValueRange(0, steps, ("as there are ", steps, " steps"))


def clamp_lengths(b: Operations, lengths: Operand, steps: int) -> Operand:
    """Lengths from 0 to the number of steps, which may have a name."""
    return b.min(b.max(lengths, constant(b, 0, "int32")), constant(b, steps, "int32"))


class _Batch:
    """Masks of the steps of a batch of sequences, and the reverse order of steps; input [steps, batches, input size]."""

    def __init__(self, b: Operations, input: Operand, lengths: Operand) -> None:
        self._b, self.input = b, input
        steps, batches, _ = input.shape
        numbers = line(b, 0, steps, "int32", [steps, 1])
        counts = b.reshape(clamp_lengths(b, lengths, steps), [1, batches])
        self._last = b.max(counts - 1, constant(b, 0, "int32"))
        self._is_within = b.lesser(numbers, counts)
        self._has_steps = b.reshape(b.greater(counts, constant(b, 0, "int32")), [1, batches, 1])
        self._from_end = b.where(self._is_within, counts - 1 - numbers, numbers)

    def within(self, value: Operand) -> Operand:
        """Return [steps, …, batches, size] with zeros beyond the lengths."""
        shape = [value.shape[0], *[1] * (value.rank - 3), value.shape[-2], 1]
        zero = constant(self._b, 0, value.data_type)
        return self._b.where(self._b.reshape(self._is_within, shape), value, zero)

    def beyond(self) -> Operand:
        """Return [steps, batches, 1] in the input's data type: 1 beyond the lengths, else 0."""
        flags = self._b.cast(self._b.logical_not(self._is_within), self.input.data_type)
        return self._b.reshape(flags, [*self._is_within.shape, 1])

    def reverse(self, value: Operand) -> Operand:
        """Reverse the steps of each sequence: [steps, …, batches, size]."""
        return self._pick(value, self._from_end)

    def has_step(self, step: int) -> Operand:
        """Whether sequences have a step: uint8 [batches, 1]."""
        batches = self._is_within.shape[1]
        flags = self._b.slice(self._is_within, [step, 0], [1, batches])
        return self._b.reshape(flags, [batches, 1])

    def last(self, sequence: Operand) -> Operand:
        """Return the last steps of [steps, 1, batches, size] as [1, batches, size]; zeros for sequences without steps."""
        _, _, batches, size = sequence.shape
        return self.not_empty(self._b.reshape(self._pick(sequence, self._last), [1, batches, size]))

    def not_empty(self, state: Operand) -> Operand:
        """Return a state [1, batches, size] with zeros for sequences without steps."""
        return self._b.where(self._has_steps, state, constant(self._b, 0, state.data_type))

    def _pick(self, value: Operand, places: Operand) -> Operand:
        steps, batches = places.shape
        shape = [steps, *[1] * (value.rank - 3), batches, 1]
        indices = self._b.expand(self._b.reshape(places, shape), [*shape[:-1], value.shape[-1]])
        return self._b.gather_elements(value, indices, axis=0)


def by_direction(
    b: Operations, direction: RecurrentNetworkDirection, **operands: Operand | None
) -> Iterable[tuple[bool, dict[str, Any]]]:
    """Yield for each direction whether it is backward, and the operands, whose first axis is that of directions."""
    count = direction_count(direction)
    for k in range(count):
        yield (
            k == 1 or direction == "backward",
            {
                name: value
                if value is None or count == 1
                else b.slice(value, [k, *[0] * (value.rank - 1)], [1, *value.shape[1:]])
                for name, value in operands.items()
            },
        )


def join_directions(b: Operations, parts: Sequence[Sequence[Operand]]) -> tuple[Operand, ...]:
    """Join the results of all directions: last states along axis 0, sequences (the last result) along axis 1."""
    if len(parts) == 1:
        return tuple(parts[0])
    *states, sequences = zip(*parts, strict=True)
    return *(b.concat(state, 0) for state in states), b.concat(sequences, 1)


def _without_steps(
    b: Operations, input: Operand, direction: RecurrentNetworkDirection, hidden_size: int, states: int
) -> tuple[Operand, ...]:
    """Return the results of no steps: last states of zeros, as for each length of 0, and an empty sequence."""
    shape = [direction_count(direction), input.shape[1], hidden_size]
    zero = constant(b, 0, input.data_type)
    return *[b.expand(zero, shape)] * states, b.expand(zero, [0, *shape])


@ragged_gru.decompose
def _(
    b: Operations,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    lengths: Operand,
    bias: Operand | None,
    recurrent_bias: Operand | None,
    initial_hidden_state: Operand | None,
    reset_after: bool,
    direction: RecurrentNetworkDirection,
    activations: Sequence[RecurrentNetworkActivation],
) -> tuple[Operand, ...]:
    steps, hidden_size = input.shape[0], recurrent_weight.shape[2]
    if steps == 0:
        return _without_steps(b, input, direction, hidden_size, states=1)
    batch, parts = _Batch(b, input, lengths), []
    operands = {"weight": weight, "recurrent_weight": recurrent_weight, "bias": bias, "recurrent_bias": recurrent_bias}
    for is_backward, arguments in by_direction(b, direction, **operands, initial_hidden_state=initial_hidden_state):
        x = batch.reverse(input) if is_backward else input
        _, sequence = b.gru(
            *(x, arguments.pop("weight"), arguments.pop("recurrent_weight"), steps, hidden_size),
            reset_after=reset_after,
            return_sequence=True,
            activations=activations,
            **arguments,
        )
        within = batch.within(sequence)
        parts.append([batch.last(sequence), batch.reverse(within) if is_backward else within])
    return join_directions(b, parts)


@ragged_lstm.decompose
def _(
    b: Operations,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    lengths: Operand,
    bias: Operand | None,
    recurrent_bias: Operand | None,
    peephole_weight: Operand | None,
    initial_hidden_state: Operand | None,
    initial_cell_state: Operand | None,
    direction: RecurrentNetworkDirection,
    activations: Sequence[RecurrentNetworkActivation],
    output_peephole: str,
    coupled: bool,
    clip: float,
) -> tuple[Operand, ...]:
    # An additional input feature is 1 beyond the length: it closes the input gate and opens the forget gate, which keeps the
    # cell state.
    steps, hidden_size = input.shape[0], recurrent_weight.shape[2]
    if steps == 0:
        return _without_steps(b, input, direction, hidden_size, states=2)
    batch, parts = _Batch(b, input, lengths), []
    column = np.repeat([-CLOSED, 0, CLOSED, 0], hidden_size)[None, :, None]
    operands = {
        "weight": weight,
        "recurrent_weight": recurrent_weight,
        "bias": bias,
        "recurrent_bias": recurrent_bias,
        "peephole_weight": peephole_weight,
        "initial_hidden_state": initial_hidden_state,
        "initial_cell_state": initial_cell_state,
    }
    is_special = _is_special(peephole_weight, output_peephole, coupled, clip)
    for is_backward, arguments in by_direction(b, direction, **operands):
        if is_special:
            variant = _LstmVariant(activations, output_peephole == "new", coupled, clip)
            parts.append(_written_out(b, batch, is_backward, variant, **arguments))
            continue
        x = batch.within(batch.reverse(input) if is_backward else input)
        wide = b.concat([arguments.pop("weight"), constant(b, column, input.data_type)], 2)
        _, cell, sequence = b.lstm(
            *(b.concat([x, batch.beyond()], 2), wide, arguments.pop("recurrent_weight"), steps, hidden_size),
            return_sequence=True,
            activations=activations,
            **arguments,
        )
        within = batch.within(sequence)
        ordered = batch.reverse(within) if is_backward else within
        parts.append([batch.last(sequence), batch.not_empty(cell), ordered])
    return join_directions(b, parts)


@dataclass(frozen=True)
class _LstmVariant:
    """The attributes of a network that `MLGraphBuilder.lstm` lacks, and its activations."""

    activations: Sequence[str]
    reads_new_cell: bool
    is_coupled: bool
    clip: float


def _is_special(peephole_weight: Operand | None, output_peephole: str, coupled: bool, clip: float) -> bool:
    """Whether `MLGraphBuilder.lstm` lacks a form."""
    return coupled or clip < math.inf or (peephole_weight is not None and output_peephole == "new")


def _written_out(
    b: Operations,
    batch: _Batch,
    is_backward: bool,
    variant: _LstmVariant,
    weight: Operand,
    recurrent_weight: Operand,
    bias: Operand | None,
    recurrent_bias: Operand | None,
    peephole_weight: Operand | None,
    initial_hidden_state: Operand | None,
    initial_cell_state: Operand | None,
) -> list[Operand]:
    """Run one direction step by step: the last hidden state, the last cell state, and the hidden states of all steps."""
    steps, batches, size = batch.input.shape
    hidden_size = recurrent_weight.shape[2]
    x = batch.within(batch.reverse(batch.input) if is_backward else batch.input)
    rows, columns = b.reshape(x, [steps * batches, size]), 4 * hidden_size
    biases = [b.reshape(value, [columns]) for value in (bias, recurrent_bias) if value is not None]
    total = biases[0] + biases[1] if len(biases) == 2 else biases[0] if biases else None
    weighted = b.gemm(rows, b.reshape(weight, [columns, size]), c=total, b_transpose=True)
    zeros = b.expand(constant(b, 0, x.data_type), [batches, hidden_size])
    hidden, cell = (
        zeros if state is None else b.reshape(state, [batches, hidden_size])
        for state in (initial_hidden_state, initial_cell_state)
    )
    factor = b.reshape(recurrent_weight, [columns, hidden_size])
    peepholes = None if peephole_weight is None else b.split(b.reshape(peephole_weight, [3 * hidden_size]), 3)
    states = []
    for step, sums in enumerate(b.split(weighted, steps)):
        following = _step(b, b.gemm(hidden, factor, c=sums, b_transpose=True), cell, peepholes, variant)
        is_within = batch.has_step(step)
        hidden, cell = (b.where(is_within, new, old) for new, old in zip(following, (hidden, cell), strict=True))
        states.append(b.reshape(hidden, [1, 1, batches, hidden_size]))
    sequence = batch.within(b.concat(states, 0))
    last = [batch.not_empty(b.reshape(state, [1, batches, hidden_size])) for state in (hidden, cell)]
    return [*last, batch.reverse(sequence) if is_backward else sequence]


def _step(
    b: Operations, sums: Operand, cell: Operand, peepholes: Sequence[Operand] | None, variant: _LstmVariant
) -> tuple[Operand, Operand]:
    """Compute the next hidden and cell state; `sums` are those of the gates "iofg", `peepholes` of "iof"."""
    of_gates, of_cell, of_result = (getattr(b, name) for name in variant.activations)

    def clip(x: Operand) -> Operand:
        return b.clamp(x, min_value=-variant.clip, max_value=variant.clip) if variant.clip < math.inf else x

    i, o, forget, g = b.split(sums, 4, axis=1)
    if peepholes is not None:
        i, forget = i + peepholes[0] * cell, forget + peepholes[2] * cell
        o = o if variant.reads_new_cell else o + peepholes[1] * cell
    opened = of_gates(clip(i))
    kept = 1 - opened if variant.is_coupled else of_gates(clip(forget))
    following = kept * cell + opened * of_cell(clip(g))
    if peepholes is not None and variant.reads_new_cell:
        o = o + peepholes[1] * following
    return of_gates(clip(o)) * of_result(following), following
