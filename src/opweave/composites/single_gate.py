"""Recurrent networks with a single gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..core.graph import Builder, Desc, Operand
from ..core.value_ranges import ValueRange
from ..custom.operation import forget
from ..custom.recurrence import recurrence
from ..expr import cast, compute, pointwise, sum_over, where
from ..ops.constants import constant, line
from ..ops.recurrent import RecurrentNetworkActivation, RecurrentNetworkDirection
from .declare import declare
from .recurrences import operands_of_steps
from .recurrent import (
    LENGTHS,
    MATRICES,
    ROWS,
    SEQUENCE,
    by_direction,
    check_activations,
    clamp_lengths,
    join_directions,
    shapes_of_results,
)

if TYPE_CHECKING:
    from ..ops import Operations


@recurrence(states="state", constants=("weight", "lengths"))
def _advance(state: Any, sums: Any, weight: Any, position: Any = None, lengths: Any = None, *, function: str) -> Any:
    """One step: state and sums [batches, hidden size], weight [hidden size, hidden size], lengths [batches].

    Sequences that have ended keep their state; their output is 0.
    """
    size = state.shape[1]
    total = compute(
        state.shape,
        lambda i, j: (
            sum_over(size, lambda k: state[i, k] * cast(weight[j, k], "float32")) + cast(sums[i, j], "float32")
        ),
    )
    new = getattr(pointwise, function)(total)
    if lengths is None:
        return new, cast(new, sums.data_type)
    kept = compute(state.shape, lambda i, j: where(position < lengths[i], new[i, j], state[i, j]))
    output = compute(state.shape, lambda i, j: where(position < lengths[i], new[i, j], 0))
    return kept, cast(output, sums.data_type)


forget(_advance)


@declare(
    input=SEQUENCE,
    weight=MATRICES,
    recurrent_weight=MATRICES,
    lengths=LENGTHS,
    bias=ROWS,
    recurrent_bias=ROWS,
    initial_hidden_state=MATRICES,
)
def rnn(
    self: Builder,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    lengths: Operand | None = None,
    bias: Operand | None = None,
    recurrent_bias: Operand | None = None,
    initial_hidden_state: Operand | None = None,
    *,
    direction: Literal["forward", "backward", "both"] = "forward",
    activations: Sequence[RecurrentNetworkActivation] = ("tanh",),
    label: str = "",
) -> tuple[Desc, Desc]:
    """Run a recurrent network with a single gate over sequences: state = tanh(weight @ x + recurrent_weight @ state + biases).

    Args:
        input: float32 or float16 [steps, batches, input size]; elements beyond the length of a sequence are not used.
        weight: [directions, hidden size, input size]; directions is 2 for "both", else 1.
        recurrent_weight: [directions, hidden size, hidden size].
        lengths: int32 [batches], each from 0 to the number of steps; default: all sequences have all steps.
        bias: [directions, hidden size].
        recurrent_bias: [directions, hidden size].
        initial_hidden_state: [directions, batches, hidden size]; default: zeros.
        direction: the order in which steps are processed: "forward", "backward", which begins at the last step of each
            sequence, or "both".
        activations: one of "relu", "sigmoid" and "tanh".

    Returns: The hidden state after the last step of each sequence that was processed, [directions, batches, hidden
        size], and that of every step, [steps, directions, batches, hidden size]; zeros beyond the length, and for a
        length of 0. Between steps, states are float32.
    Raises: inconsistent shapes, or not one activation.

    ONNX's RNN; PyTorch's `RNN`.

    >>> ones = np.ones((1, 1, 1), "float32")
    >>> last, states = rnn(np.float32([[[1]], [[2]], [[-9]]]), ones, ones, activations=["relu"])
    >>> states.ravel().tolist(), last.tolist()
    ([1.0, 3.0, 0.0], [[[0.0]]])
    """
    check_activations(activations, 1)
    others = {"weight": weight, "bias": bias, "recurrent_bias": recurrent_bias}
    others["initial_hidden_state"] = initial_hidden_state
    return shapes_of_results(1, input, recurrent_weight, direction, lengths, **others)


@rnn.value_range("lengths")
def _(input: Operand) -> ValueRange:
    steps = input.shape[0]
    return ValueRange(0, steps, ("as there are ", steps, " steps"))


@rnn.decompose
def _(
    b: Operations,
    input: Operand,
    weight: Operand,
    recurrent_weight: Operand,
    lengths: Operand | None,
    bias: Operand | None,
    recurrent_bias: Operand | None,
    initial_hidden_state: Operand | None,
    direction: RecurrentNetworkDirection,
    activations: Sequence[RecurrentNetworkActivation],
) -> tuple[Operand, ...]:
    (steps, batches, size), hidden = input.shape, recurrent_weight.shape[2]
    rows = b.reshape(input, [steps * batches, size])
    position = None
    if lengths is not None:
        lengths = clamp_lengths(b, lengths, steps)
        position = line(b, 0, steps, "int32", [steps])
    operands = {"weight": weight, "recurrent_weight": recurrent_weight, "bias": bias, "recurrent_bias": recurrent_bias}
    parts = []
    for is_backward, own in by_direction(b, direction, **operands, initial_hidden_state=initial_hidden_state):
        biases = [b.reshape(own[name], [hidden]) for name in ("bias", "recurrent_bias") if own[name] is not None]
        matrix = b.reshape(own["weight"], [hidden, size])
        added = None if not biases else biases[0] if len(biases) == 1 else b.add(*biases)
        sums = b.gemm(rows, matrix, c=added, b_transpose=True)
        state = own["initial_hidden_state"]
        first = b.expand(constant(b, 0, "float32"), [batches, hidden])
        if state is not None:
            first = b.cast(b.reshape(state, [batches, hidden]), "float32")
        sums, recurrent = operands_of_steps(b, sums, own["recurrent_weight"])
        last, sequence = _advance(
            b,
            first,
            b.reshape(sums, [steps, batches, hidden]),
            b.reshape(recurrent, [hidden, hidden]),
            position,
            lengths,
            function=activations[0],
            direction="backward" if is_backward else "forward",
        )
        if lengths is not None:
            has_steps = b.reshape(b.greater(lengths, constant(b, 0, "int32")), [batches, 1])
            last = b.where(has_steps, last, constant(b, 0, "float32"))
        last, sequence = b.cast(last, input.data_type), b.cast(sequence, input.data_type)
        parts.append([b.reshape(last, [1, batches, hidden]), b.reshape(sequence, [steps, 1, batches, hidden])])
    return join_directions(b, parts)
