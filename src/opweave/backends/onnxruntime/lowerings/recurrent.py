"""ONNX Runtime rules: recurrent networks.

Sequences use the engine's GRU and LSTM kernels; unrolled graphs take up to 18 times as long for small sizes. A single
step is composed of two products and a few element-wise kernels, which takes as long as LSTM with one step, and half as
long as GRU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....graph import Operand
from ....ops import recurrent as ops
from ..backend import ort
from ..emit import Emitter, Value

_FUNCTIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}
_DIRECTIONS = {"forward": "forward", "backward": "reverse", "both": "bidirectional"}
_GRU_LAYOUT, _LSTM_LAYOUT = "zrn", "iofg"
"""The order of the gates in ONNX (which calls n "h" and g "c")."""


def _concat(ctx: Emitter, values: Sequence[Value], axis: int) -> Value:
    """Concatenate values; constants are folded."""
    if len(values) == 1:
        return values[0]
    arrays = [ctx.array_of(value) for value in values]
    if all(array is not None for array in arrays):
        return ctx.add_constant(np.concatenate(arrays, axis))  # type: ignore[arg-type]
    return ctx.emit("Concat", *values, axis=axis)


def _split(ctx: Emitter, value: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    """Split a value along an axis; constants are folded."""
    if len(sizes) == 1:
        return [value]
    array = ctx.array_of(value)
    if array is not None:
        ends = np.cumsum(sizes)[:-1]
        return [ctx.add_constant(np.ascontiguousarray(piece)) for piece in np.split(array, ends, axis)]
    pieces: list[Value] = ctx.emit("Split", value, ctx.constant(list(sizes)), axis=axis, outputs=len(sizes))
    rest = list(value.dims)
    return [
        Value(piece.name, piece.data_type, (*rest[:axis], size, *rest[axis + 1 :]))
        for piece, size in zip(pieces, sizes, strict=True)
    ]


def _weights(
    ctx: Emitter,
    weight: Value,
    recurrent_weight: Value,
    bias: Value | None,
    recurrent_bias: Value | None,
    layout: str,
    wanted: str,
) -> tuple[Value, Value, Value | None]:
    """Both weights and the joined biases, with their gates in ONNX's order along axis 1."""

    def ordered(value: Value) -> Value:
        if layout == wanted:
            return value
        blocks = _split(ctx, value, [value.dims[1] // len(layout)] * len(layout), axis=1)
        return _concat(ctx, [blocks[layout.index(gate)] for gate in wanted], axis=1)

    if bias is None and recurrent_bias is None:
        return ordered(weight), ordered(recurrent_weight), None
    zeros = ctx.constant(np.zeros(weight.dims[:2]), weight.data_type)
    biases = [zeros if value is None else ordered(value) for value in (bias, recurrent_bias)]
    return ordered(weight), ordered(recurrent_weight), _concat(ctx, biases, axis=1)


@ort.lower(ops.gru)
def _(
    ctx: Emitter,
    input: Value,
    weight: Value,
    recurrent_weight: Value,
    hidden_size: int,
    bias: Value | None,
    recurrent_bias: Value | None,
    initial_hidden_state: Value | None,
    reset_after: bool,
    return_sequence: bool,
    direction: str,
    layout: str,
    activations: Sequence[str],
) -> tuple[Value, ...]:
    w, r, b = _weights(ctx, weight, recurrent_weight, bias, recurrent_bias, layout, _GRU_LAYOUT)
    sequence, hidden = ctx.emit(
        "GRU",
        *(input, w, r, b, None, initial_hidden_state),
        outputs=2,
        hidden_size=hidden_size,
        linear_before_reset=int(reset_after),
        direction=_DIRECTIONS[direction],
        activations=[_FUNCTIONS[name] for name in activations] * ops.direction_count(direction),
    )
    return (hidden, sequence) if return_sequence else (hidden,)


def _is_native(peephole_weight: Operand | None, hidden_size: int) -> bool:
    # ONNX's output gate reads the new cell state, the specification's the old one; without weights it does not matter.
    if peephole_weight is None:
        return True
    output = slice(hidden_size, 2 * hidden_size)
    return peephole_weight.is_constant and not peephole_weight.value[:, output].any()


@ort.lower(ops.lstm, when=_is_native)
def _(
    ctx: Emitter,
    input: Value,
    weight: Value,
    recurrent_weight: Value,
    hidden_size: int,
    bias: Value | None,
    recurrent_bias: Value | None,
    peephole_weight: Value | None,
    initial_hidden_state: Value | None,
    initial_cell_state: Value | None,
    return_sequence: bool,
    direction: str,
    layout: str,
    activations: Sequence[str],
) -> tuple[Value, ...]:
    w, r, b = _weights(ctx, weight, recurrent_weight, bias, recurrent_bias, layout, _LSTM_LAYOUT)
    sequence, hidden, cell = ctx.emit(
        "LSTM",
        *(input, w, r, b, None, initial_hidden_state, initial_cell_state, peephole_weight),
        outputs=3,
        hidden_size=hidden_size,
        direction=_DIRECTIONS[direction],
        activations=[_FUNCTIONS[name] for name in activations] * ops.direction_count(direction),
    )
    return (hidden, cell, sequence) if return_sequence else (hidden, cell)


@ort.lower(ops.gru_cell)
def _(
    ctx: Emitter,
    input: Value,
    weight: Value,
    recurrent_weight: Value,
    hidden_state: Value,
    hidden_size: int,
    bias: Value | None,
    recurrent_bias: Value | None,
    reset_after: bool,
    layout: str,
    activations: Sequence[str],
) -> Value:
    f, g = (_FUNCTIONS[name] for name in activations)
    h, halves = hidden_state, [2 * hidden_size, hidden_size]  # z and r, in the order of the layout, and n
    batches = h.dims[0]
    from_input = ctx.emit("Gemm", input, weight, bias, transB=1, shape=(batches, 3 * hidden_size))
    x_zr, x_n = _split(ctx, from_input, halves, axis=1)

    def opened(h_zr: Value) -> tuple[Value, Value]:
        gates = ctx.emit(f, ctx.emit("Add", x_zr, h_zr), shape=x_zr.dims)
        both = dict(zip(layout, _split(ctx, gates, [hidden_size] * 2, axis=1), strict=False))
        return both["z"], both["r"]

    if reset_after:
        from_state = ctx.emit("Gemm", h, recurrent_weight, recurrent_bias, transB=1, shape=from_input.dims)
        h_zr, h_n = _split(ctx, from_state, halves, axis=1)
        z, r = opened(h_zr)
        n = ctx.emit(g, ctx.emit("Add", x_n, ctx.emit("Mul", r, h_n)))
    else:
        r_zr, r_n = _split(ctx, recurrent_weight, halves, axis=0)
        b_zr, b_n = (None, None) if recurrent_bias is None else _split(ctx, recurrent_bias, halves, axis=0)
        z, r = opened(ctx.emit("Gemm", h, r_zr, b_zr, transB=1))
        n = ctx.emit(g, ctx.emit("Add", x_n, ctx.emit("Gemm", ctx.emit("Mul", r, h), r_n, b_n, transB=1)))
    rest = ctx.emit("Sub", ctx.scalar(1, h), z)
    return ctx.emit("Add", ctx.emit("Mul", z, h), ctx.emit("Mul", rest, n))


def _lstm_step(
    ctx: Emitter,
    sums: Value,
    cell: Value,
    peepholes: Sequence[Value] | None,
    layout: str,
    activations: Sequence[str],
) -> tuple[Value, Value]:
    """The next hidden and cell state, given the weighted inputs of all gates in the order of `layout`."""
    f, g, k = (_FUNCTIONS[name] for name in activations)
    sizes = [sums.dims[1] // 4] * 4
    gates = dict(zip(layout, _split(ctx, sums, sizes, axis=1), strict=True))
    if peepholes is not None:
        for gate, weight in zip(ops.PEEPHOLES, peepholes, strict=True):
            gates[gate] = ctx.emit("Add", gates[gate], ctx.emit("Mul", cell, weight))
    i, o, forget = (ctx.emit(f, gates[gate]) for gate in "iof")
    kept, added = ctx.emit("Mul", forget, cell), ctx.emit("Mul", i, ctx.emit(g, gates["g"]))
    new = ctx.emit("Add", kept, added, shape=cell.dims)
    return ctx.emit("Mul", o, ctx.emit(k, new), shape=cell.dims), new


def _bias_sum(ctx: Emitter, *biases: Value | None) -> Value | None:
    present = [bias for bias in biases if bias is not None]
    return ctx.emit("Add", *present) if len(present) == 2 else next(iter(present), None)


@ort.lower(ops.lstm_cell)
def _(
    ctx: Emitter,
    input: Value,
    weight: Value,
    recurrent_weight: Value,
    hidden_state: Value,
    cell_state: Value,
    hidden_size: int,
    bias: Value | None,
    recurrent_bias: Value | None,
    peephole_weight: Value | None,
    layout: str,
    activations: Sequence[str],
) -> tuple[Value, Value]:
    from_input = ctx.emit("Gemm", input, weight, _bias_sum(ctx, bias, recurrent_bias), transB=1)
    shape = (cell_state.dims[0], 4 * hidden_size)
    sums = ctx.emit("Gemm", hidden_state, recurrent_weight, from_input, transB=1, shape=shape)
    peepholes = None if peephole_weight is None else _split(ctx, peephole_weight, [hidden_size] * 3, axis=0)
    return _lstm_step(ctx, sums, cell_state, peepholes, layout, activations)


@ort.lower(ops.lstm)
def _(
    ctx: Emitter,
    input: Value,
    weight: Value,
    recurrent_weight: Value,
    steps: int,
    hidden_size: int,
    bias: Value | None,
    recurrent_bias: Value | None,
    peephole_weight: Value,
    initial_hidden_state: Value | None,
    initial_cell_state: Value | None,
    return_sequence: bool,
    direction: str,
    layout: str,
    activations: Sequence[str],
) -> tuple[Value, ...]:
    """Unroll an LSTM with peepholes that ONNX does not support; one product weights the inputs of all steps."""
    _, batches, input_size = input.dims
    gates, state = 4 * hidden_size, (batches, hidden_size)
    directions = ops.direction_count(direction)
    rows = ctx.reshape(input, (steps * batches, input_size))
    zeros = ctx.constant(np.zeros((directions, *state)), input.data_type)

    def of(k: int, value: Value | None, shape: Sequence[int]) -> Any:
        """The part for direction `k`; None if the operand is absent."""
        return None if value is None else ctx.reshape(_split(ctx, value, [1] * directions, axis=0)[k], shape)

    hidden, cells, sequences = [], [], []
    for k in range(directions):
        w, r = of(k, weight, (gates, input_size)), of(k, recurrent_weight, (gates, hidden_size))
        b = _bias_sum(ctx, of(k, bias, (gates,)), of(k, recurrent_bias, (gates,)))
        h, c = (of(k, value or zeros, state) for value in (initial_hidden_state, initial_cell_state))
        p = of(k, peephole_weight, (3 * hidden_size,))
        peepholes = _split(ctx, p, [hidden_size] * 3, axis=0)
        from_input = ctx.emit("Gemm", rows, w, b, transB=1, shape=(steps * batches, gates))
        of_step = _split(ctx, from_input, [batches] * steps, axis=0)
        order = -1 if k == 1 or direction == "backward" else 1
        made = []
        for x in of_step[::order]:
            sums = ctx.emit("Gemm", h, r, x, transB=1, shape=(batches, gates))
            h, c = _lstm_step(ctx, sums, c, peepholes, layout, activations)
            made.append(h)
        hidden.append(ctx.reshape(h, (1, *state)))
        cells.append(ctx.reshape(c, (1, *state)))
        sequences.append(ctx.reshape(_concat(ctx, made[::order], axis=0), (steps, 1, *state)))
    last = _concat(ctx, hidden, axis=0), _concat(ctx, cells, axis=0)
    return (*last, _concat(ctx, sequences, axis=1)) if return_sequence else last
