"""ONNX Runtime rules: recurrent networks, by the engine's kernels for sequences.

For small sizes, unrolled graphs take up to 18 times as long. Single steps have no rule: the decomposition takes as long as
LSTM with one step, and half as long as GRU with one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....composites import recurrent as composites
from ....composites.single_gate import rnn
from ....core.dtypes import FLOAT64
from ....core.graph import Operand
from ....core.operation import Op
from ....ops import recurrent as ops
from ..backend import ort
from ..emit import Emitter, Value

_FUNCTIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}
_DIRECTIONS = {"forward": "forward", "backward": "reverse", "both": "bidirectional"}


def _concat(ctx: Emitter, values: Sequence[Value]) -> Value:
    arrays = [array for array in map(ctx.array_of, values) if array is not None]
    if len(arrays) == len(values):
        return ctx.add_constant(np.concatenate(arrays, axis=1))
    return ctx.emit("Concat", *values, axis=1)


def _order_gates(ctx: Emitter, value: Value, layout: str, target: str) -> Value:
    """Put the gates along axis 1 into the order `target`."""
    if layout == target:
        return value
    array, count = ctx.array_of(value), len(layout)
    if array is None:
        sizes = ctx.constant([value.dims[1] // count] * count)
        blocks = ctx.emit("Split", value, sizes, axis=1, outputs=count)
    else:
        blocks = [ctx.add_constant(np.ascontiguousarray(block)) for block in np.split(array, count, axis=1)]
    return _concat(ctx, [blocks[layout.index(gate)] for gate in target])


def _lower(
    both: Sequence[Op[..., Any]],
    op_type: str,
    order: str,
    states: Sequence[str],
    when: Callable[..., bool] | None = None,
) -> None:
    """Register the rule of `both` an operation and its composite for sequences of different lengths.

    `order` is ONNX's order of gates, with WebNN's names: ONNX calls n "h" and g "c"; RNN has one gate.
    `states` are operands.
    """

    @ort.lower(*both, when=when)
    def _(
        ctx: Emitter,
        input: Value,
        weight: Value,
        recurrent_weight: Value,
        bias: Value | None,
        recurrent_bias: Value | None,
        direction: str,
        activations: Sequence[str],
        layout: str = order,  # composites have this order, and always return the sequence
        return_sequence: bool = True,
        **attributes: Any,
    ) -> tuple[Value, ...]:
        w, r = (_order_gates(ctx, value, layout, order) for value in (weight, recurrent_weight))
        b = None
        if bias is not None or recurrent_bias is not None:
            zeros = ctx.constant(np.zeros(weight.dims[:2]), weight.data_type)
            b = _concat(ctx, [_order_gates(ctx, value or zeros, layout, order) for value in (bias, recurrent_bias)])
        sequence, *last = ctx.emit(
            op_type,
            *(
                input,
                w,
                r,
                b,
                attributes.get("lengths"),
                *map(attributes.get, states),
                attributes.get("peephole_weight"),
            ),
            outputs=1 + len(states),
            hidden_size=recurrent_weight.dims[2],
            linear_before_reset=attributes.get("reset_after"),
            direction=_DIRECTIONS[direction],
            clip=attributes["clip"] if attributes.get("clip", math.inf) < math.inf else None,
            input_forget=1 if attributes.get("coupled") else None,
            activations=[_FUNCTIONS[name] for name in activations] * ops.direction_count(direction),
        )
        return (*last, sequence) if return_sequence else tuple(last)


def _has_kernel(input: Operand) -> bool:
    return input.data_type != FLOAT64  # the engine has kernels, which raise an error


def _is_native(input: Operand, peephole_weight: Operand | None, **attributes: Any) -> bool:
    if not _has_kernel(input):
        return False
    # ONNX's output gate reads the new cell state, the specification's reads the old one; without weights both agree.
    if peephole_weight is None or attributes.get("output_peephole") == "new":
        return True
    hidden_size = peephole_weight.shape[1] // 3
    output = slice(hidden_size, 2 * hidden_size)
    return peephole_weight.is_constant and not peephole_weight.value[:, output].any()


_lower([ops.gru, composites.ragged_gru], "GRU", "zrn", ["initial_hidden_state"], when=_has_kernel)
_lower(
    [ops.lstm, composites.ragged_lstm], "LSTM", "iofg", ["initial_hidden_state", "initial_cell_state"], when=_is_native
)
_lower([rnn], "RNN", "h", ["initial_hidden_state"], when=_has_kernel)
