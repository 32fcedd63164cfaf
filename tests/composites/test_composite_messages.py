"""Messages of composites for operands and attributes that do not fit, and for positions out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from samples import Call
from support.arrays import floats
from support.cases import CPU, REFERENCE
from support.webgpu_device import gpu_context

import opweave as ow
from opweave import composites
from opweave.composites.control import loop
from opweave.core.bodies import make_body
from opweave.core.graph import Desc
from opweave.core.value_ranges import ValueRange
from opweave.lazy.custom_call import CustomOp
from opweave.ops.recorder import Recorder

X = floats(2, 4)
Q = floats(1, 4, 16)
HEADS = floats(1, 2, 3, 4)
PIXELS = np.ones((1, 1, 3, 3), "uint8")
ROWS = np.ones((2, 2), "uint8"), np.float32(0.5), np.uint8(0)


@pytest.mark.parametrize(
    ("op", "call", "message"),
    [
        (composites.rms_norm, Call(X, X, 2), "rms_normalization: axis must be in [0, 2), got 2"),
        (composites.rms_norm, Call(X, X), "scale must have shape [4], the sizes of the axes, got float32[2, 4]"),
        (composites.log_softmax, Call(X, -1), "log_softmax: axis must be in [0, 2), got -1"),
        (composites.skip_layer_norm, Call(X, X[:1], X[0]), "residual must have shape [2, 4], that of input"),
        (composites.skip_rms_norm, Call(X, X, X[0, :2]), "scale must have shape [4], the size of the last axis"),
        (
            composites.group_normalization,
            Call(X, groups=3),
            "groups must divide the channels, got 3 groups of 4 channels",
        ),
        (
            composites.group_normalization,
            Call(X, X[0, :2], groups=2),
            "scale must have shape [4], the number of channels",
        ),
        (composites.fast_gelu, Call(X, X[0, :3]), "bias must have shape [4], the size of the last axis"),
        (composites.swiglu, Call(X, X[:1]), "input must have shape [2, 4], that of gate, got float32[1, 4]"),
        (composites.geglu, Call(X, X, approximate="erf"), "approximate must be 'none' or 'tanh', got 'erf'"),
        (composites.depth_to_space, Call(HEADS, 2), "channels must be a multiple of 4, block_size squared"),
        (composites.depth_to_space, Call(HEADS, 0), "block_size must be greater than 0, got 0"),
        (composites.space_to_depth, Call(HEADS, 2), "height and width must be multiples of 2, the block_size"),
        (composites.top_k, Call(X, 5), "top_k: k must be in [1, 4], the size of axis 1, got 5"),
        (composites.top_k, Call(X, 1, index_type="int8"), "index_type must be 'int32' or 'int64', got 'int8'"),
        (composites.one_hot, Call(np.int64([1]), 0), "depth must be greater than 0, got 0"),
        (composites.one_hot, Call(np.int64([1]), 3, 2), "axis must be in [0, 1], got 2"),
        (
            composites.integer_conv2d,
            Call(PIXELS, np.ones((1, 1, 4, 4), "int8")),
            "the filter must fit into the padded",
        ),
        (
            composites.integer_conv2d,
            Call(PIXELS, np.ones((1, 1, 2, 2), "int8"), np.zeros(2, "uint8")),
            "input_zero_point must have one element, got",
        ),
        (
            composites.integer_conv2d,
            Call(PIXELS, np.ones((1, 1, 2, 2), "int8"), None, np.zeros(3, "int8")),
            "filter_zero_point must have one element, or one for each of 1 channels, got",
        ),
        (
            composites.quantized_matmul,
            Call(*ROWS, ROWS[0], np.ones((2, 1), "float32"), *ROWS[2:], *ROWS[1:]),
            "b_scale must have one element, or one for each column of",
        ),
        (
            composites.quantized_matmul,
            Call(*ROWS, *ROWS, np.ones(3, "float32"), ROWS[2]),
            "scale must broadcast to [2, 2]",
        ),
        (
            composites.quantized_add,
            Call(*ROWS, *ROWS, np.ones(3, "float32"), ROWS[2]),
            "scale must have one element, got",
        ),
        (
            composites.quantized_concat,
            Call([ROWS[0]] * 2, [ROWS[1]], [ROWS[2]] * 2, *ROWS[1:], 0),
            "takes 2 scales, one for each input, got 1",
        ),
        (
            composites.quantized_concat,
            Call([ROWS[0]], [np.ones(3, "float32")], [ROWS[2]], *ROWS[1:], 0),
            "input_scales[0] must have one element, got",
        ),
        (
            composites.quantized_concat,
            Call([], [ROWS[1]], [ROWS[2]], *ROWS[1:], 0),
            "inputs must have at least one operand, got none",
        ),
        (
            composites.dequantized_matmul,
            Call(*ROWS[:2], *ROWS[:2], bias=floats(3)),
            "bias must have shape [2], the number of",
        ),
        (composites.one_hot, Call(np.int64([1]), 3, data_type="complex64"), "data_type must be float32, float16"),
        (composites.scatter_reduce, Call(X, np.int64([[0]]), X, 2), "axis must be in [0, 2), got 2"),
        (
            composites.scatter_reduce,
            Call(X, np.int64([[0]]), X, reduction="mean"),
            "reduction must be 'add', 'mul', 'min'",
        ),
        (
            composites.scatter_reduce,
            Call(X[:, :2], np.int64([[0]]), X),
            "updates must be no larger than input, [2, 2], beside axis 0, got float32[2, 4]",
        ),
        (
            composites.scatter_reduce,
            Call(X, np.zeros((3, 4), "int64"), X),
            "indices must be broadcastable to the shape of updates, [2, 4], got int64[3, 4]",
        ),
        (
            composites.ragged_gru,
            Call(HEADS[0], HEADS[0], HEADS[0], np.int32([1])),
            "recurrent_weight must have shape [1, 12, 4], 3 gates for each direction, got float32[2, 3, 4]",
        ),
        (
            composites.ragged_lstm,
            Call(floats(3, 2, 4), floats(1, 8, 4), floats(1, 8, 2), np.int32([1])),
            "lengths must have shape [2], one for each batch, got int32[1]",
        ),
        (
            composites.ragged_lstm,
            Call(floats(3, 2, 4), floats(1, 8, 4), floats(1, 8, 2), np.int32([1, 2]), floats(1, 6)),
            "bias must have shape [1, 8], of these directions, gates and batches, got float32[1, 6]",
        ),
        (
            composites.ragged_lstm,
            Call(floats(3, 2, 4), floats(1, 8, 4), floats(1, 8, 2), np.int32([1, 2]), activations=["tanh"] * 3),
            "the activation of gates must be 'sigmoid', got 'tanh'",
        ),
        (
            composites.ragged_gru,
            Call(floats(3, 2, 4), floats(1, 6, 4), floats(1, 6, 2), np.int32([1, 2]), activations=["elu", "tanh"]),
            "activations must be 2 of 'relu', 'sigmoid', 'tanh', got ['elu', 'tanh']",
        ),
        (
            composites.ragged_lstm,
            Call(floats(3, 2, 4), floats(1, 8, 4), floats(1, 8, 2), np.int32([1, 2]), activations=5),
            "activations must be 3 of 'relu', 'sigmoid', 'tanh', got 5",
        ),
        (
            composites.rnn,
            Call(floats(3, 2, 4), floats(1, 2, 4), floats(1, 2, 2), activations=[["tanh"]]),
            "activations must be 1 of 'relu', 'sigmoid', 'tanh', got [['tanh']]",
        ),
        (
            composites.rnn,
            Call(floats(3, 2, 4), floats(1, 2, 4), floats(1, 2, 3)),
            "recurrent_weight must have shape [1, 3, 3], 1 gates for each direction, got float32[1, 2, 3]",
        ),
        (
            composites.rnn,
            Call(floats(3, 2, 4), floats(1, 2, 4), floats(1, 2, 2), activations=["tanh", "tanh"]),
            "activations must be 1 of 'relu', 'sigmoid', 'tanh', got ['tanh', 'tanh']",
        ),
        (
            composites.linear_attention,
            Call(floats(1, 3, 4), floats(1, 3, 4), floats(1, 3, 4), heads=2, groups=2),
            "'gated_delta' needs decay",
        ),
        (
            composites.linear_attention,
            Call(*[floats(1, 3, 4)] * 3, None, None, floats(1, 3, 2), heads=2, groups=2, update_rule="linear"),
            "'linear' takes no beta",
        ),
        (
            composites.linear_attention,
            Call(floats(1, 3, 4), floats(1, 3, 2), floats(1, 3, 4), heads=2, groups=2, update_rule="linear"),
            "key must be [batches, tokens, groups * size], [1, 3, 4], got float32[1, 3, 2]",
        ),
        (
            composites.linear_attention,
            Call(*[floats(1, 3, 4)] * 3, heads=4, groups=3, update_rule="linear"),
            "groups must divide heads, got 3 and 4",
        ),
        (
            composites.linear_attention,
            Call(*[floats(1, 3, 4)] * 3, heads=2, groups=2, update_rule="cubic"),
            "update_rule must be 'linear', 'gated'",
        ),
        (
            composites.selective_scan,
            Call(floats(1, 3, 4), floats(1, 3, 4), floats(4), floats(1, 3, 2), floats(1, 3, 2)),
            "a must have rank 2 for input of rank 3, got float32[4]",
        ),
        (
            composites.selective_scan,
            Call(floats(1, 3, 4), floats(1, 3, 4), floats(4, 2), floats(1, 2, 2), floats(1, 3, 2)),
            "b must be [batches, tokens, …, size], [1, 3, 2], got float32[1, 2, 2]",
        ),
        (
            composites.selective_scan,
            Call(floats(1, 3, 4, 2), floats(1, 3, 4), floats(4), floats(1, 3, 3, 2), floats(1, 3, 3, 2)),
            "the groups of b must divide 4 heads, got float32[1, 3, 3, 2]",
        ),
        (
            composites.causal_conv_with_state,
            Call(floats(1, 3, 4), floats(3, 1, 1)),
            "weight must have at least 2 taps, got float32[3, 1, 1]",
        ),
        (
            composites.causal_conv_with_state,
            Call(floats(1, 3, 4), floats(3, 1, 2), None, floats(1, 3, 2)),
            "past_state must be [batches, channels, (taps - 1) * dilation], [1, 3, 1], got float32[1, 3, 2]",
        ),
        (
            composites.causal_conv_with_state,
            Call(floats(1, 3, 4), floats(3, 1, 2), dilation=0),
            "dilation must be greater than 0, got 0",
        ),
        (composites.leaky_integrator, Call(X, decay=0.5, axis=2), "axis must be in [0, 2), got 2"),
        (composites.leaky_integrator, Call(X, X, decay=0.5), "initial_state must be of the shape of input without"),
        (composites.hard_max, Call(X, 7), "axis must be in [0, 2), got 7"),
        (
            composites.matmul_n_bits,
            Call(X, np.zeros((1, 1, 8), "uint8"), X[:1, :1], bits=3),
            "bits must be 2, 4 or 8, got 3",
        ),
        (
            composites.matmul_n_bits,
            Call(X, np.zeros((1, 1, 8), "uint8"), X[:1, :1], block_size=0),
            "block_size must be greater than 0, got 0",
        ),
        (
            composites.matmul_n_bits,
            Call(X, np.zeros((1, 1, 7), "uint8"), X[:1, :1], block_size=16),
            "weight must have shape [1, 1, 8], blocks of 16 numbers of 4 bits for the last axis of input",
        ),
        (
            composites.matmul_n_bits,
            Call(X, np.zeros((1, 1, 8), "uint8"), X[:1, :1], minimum=X[:1, :2], block_size=16),
            "minimum must have shape [1, 1], one for each block, got float32[1, 2]",
        ),
        (
            composites.matmul_n_bits,
            Call(X, np.zeros((1, 1, 8), "uint8"), X[:1, :1], np.zeros((1, 1), "uint8"), None, X[:1, :1], block_size=16),
            "zero_point and minimum must not be given together",
        ),
        (
            composites.matmul_n_bits,
            Call(X, np.zeros((1, 1, 1), "uint8"), X[:1, :1], block_size=3),
            "weight must have shape [1, 1, 2], numbers of 4 bits for the last axis of input",
        ),
        (
            composites.matmul_n_bits,
            Call(X, np.zeros((6, 1, 8), "uint8"), np.ones((4, 1), "float32"), block_size=16),
            "scale must have shape [6, 1], one for each block, got float32[4, 1]",
        ),
        (
            composites.gather_n_bits,
            Call(np.zeros((2, 1, 8), "uint8"), X[:, :1], np.int32([0]), width=17, block_size=16),
            "weight must have shape [2, 2, 8], blocks of 16 numbers of 4 bits for width",
        ),
        (
            composites.scaled_dot_product_attention,
            Call(HEADS, HEADS[..., :3], HEADS),
            "key must have shape [1, 2, 3, 4], of the batches and head size of query",
        ),
        (
            composites.scaled_dot_product_attention,
            Call(HEADS[:, :1], HEADS, HEADS),
            "the heads of query must be a multiple of those of key, got 1 and 2",
        ),
        (
            composites.scaled_dot_product_attention,
            Call(HEADS, HEADS, HEADS, np.zeros(2, "uint8")),
            "mask must broadcast to [1, 2, 3, 3], got uint8[2]",
        ),
        (
            composites.scaled_dot_product_attention,
            Call(HEADS, HEADS, HEADS, np.zeros(3, "float16")),
            "mask must be uint8 or float32, the data type of query, got float16[3]",
        ),
        (composites.multi_head_attention, Call(Q, Q, Q, heads=3), "the last axis of query must divide into 3 heads"),
        (composites.multi_head_attention, Call(Q, Q, Q, heads=0), "the last axis of query must divide into 0 heads"),
        (composites.group_query_attention, Call(Q, Q, Q, heads=4, groups=3), "groups must divide the 4 heads, got 3"),
        (
            composites.group_query_attention,
            Call(Q, Q, Q, HEADS, heads=4, groups=4),
            "past_key and past_value must be given together",
        ),
        (
            composites.group_query_attention,
            Call(Q, Q[..., :8], Q[..., :8], HEADS, HEADS, np.int32([1]), heads=4, groups=2),
            "past_key must have room for 4 new keys, got float32[1, 2, 3, 4]",
        ),
        (
            composites.group_query_attention,
            Call(Q, Q, Q, cosines=floats(4, 2), heads=2, groups=2),
            "cosines and sines must be given together",
        ),
        (
            composites.group_query_attention,
            Call(Q, Q, Q, cosines=floats(4, 5), sines=floats(4, 5), heads=2, groups=2),
            "cosines must be of at most 4 pairs, half of the size, got float32[4, 5]",
        ),
        (
            composites.group_query_attention,
            Call(Q, Q, Q, cosines=floats(3, 4), sines=floats(3, 4), heads=2, groups=2),
            "cosines must have a row for each of 4 positions, got float32[3, 4]",
        ),
        (
            composites.group_query_attention,
            Call(Q, Q, Q, bias=floats(3, 4), heads=2, groups=2),
            "bias must broadcast to [1, 2, 4, 4], got float32[3, 4]",
        ),
        (
            composites.group_query_attention,
            Call(Q, Q, Q, sinks=floats(3), heads=2, groups=2),
            "sinks must have shape [2], the number of heads, got float32[3]",
        ),
        (
            composites.group_query_attention,
            Call(Q, Q, Q, heads=2, groups=2, softcap=-1.0),
            "softcap must not be negative, got -1.0",
        ),
        (
            composites.group_query_attention,
            Call(Q, Q, Q, heads=2, groups=2, window=-1),
            "window must not be negative, got -1",
        ),
        (
            composites.rotary_embedding,
            Call(HEADS, floats(2, 2), floats(2, 2)),
            "cosines must have a row for each of 3 positions",
        ),
        (
            composites.rotary_embedding,
            Call(HEADS, floats(0, 2), floats(0, 2), np.zeros((1, 3), "int64")),
            "cosines must have rows for the positions, got float32[0, 2]",
        ),
        (composites.rotary_embedding, Call(Q, X, X), "the last axis of input must divide into 0 heads"),
        (composites.rotary_embedding, Call(HEADS, floats(3, 3), floats(3, 3)), "cosines must be of at most 2 pairs"),
    ],
)
def test_messages(op: CustomOp[Any], call: Call, message: str) -> None:
    with pytest.raises(ow.ValidationError) as raised:
        op(*call.args, **call.kwargs)
    assert str(raised.value).startswith(f"{op.name}: ")
    assert message in str(raised.value)
    assert ".py" not in str(raised.value)


def test_rotary_embedding_rejects_constant_positions_out_of_range() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x, table = builder.input("x", "float32", [1, 2, 3, 4]), floats(3, 2)
    message = r"rotary_embedding 'turn': positions must be in \[0, 2\], the rows of cosines, got 3"
    with pytest.raises(ow.ValidationError, match=message):
        composites.rotary_embedding(x, table, table, np.int64([[0, 3, 1]]), label="turn")


@pytest.mark.parametrize("context", [CPU, REFERENCE], ids=["cpu", "reference"])
@pytest.mark.parametrize("wrong", [-1, 3])
def test_rotary_embedding_checks_input_positions_before_run(context: ow.MLContext, wrong: int) -> None:
    message = f"rotary_embedding 'first': positions must be in [0, 2], the rows of cosines, got {wrong}"
    builder = ow.MLGraphBuilder(context)
    x, table = builder.input("x", "float32", [1, 2, 3, 4]), floats(3, 2)
    rows = builder.input("rows", "int64", [1, 3])
    turned = [composites.rotary_embedding(y, table, table, rows, label=name) for name, y in (("first", x), ("", -x))]
    graph = builder.build({"y": turned[0] + turned[1]})
    feed = {"x": floats(1, 2, 3, 4), "rows": np.int64([[0, 2, 1]])}
    context.compute(graph, feed)
    tensors = {name: context.create_tensor(d.data_type, d.shape, writable=True) for name, d in graph.inputs.items()}
    outputs = {"y": context.create_tensor("float32", [1, 2, 3, 4])}
    context.dispatch(graph, tensors, outputs)
    context.write_tensor(tensors["rows"], np.int64([[0, wrong, 1]]))
    feed["rows"][0, 1] = wrong
    calls: list[Callable[[], object]] = [
        lambda: context.compute(graph, feed),
        lambda: context.compute(graph, feed, {"y": np.empty((1, 2, 3, 4), "float32")}),
        lambda: context.dispatch(graph, tensors, outputs),
    ]
    for call in calls:
        with pytest.raises(ow.ValidationError) as raised:
            call()
        assert str(raised.value) == f"{message} in the input 'rows'"


def test_rotary_embedding_checks_positions_on_arrays() -> None:
    x, table = floats(1, 2, 3, 4), floats(3, 2)
    with pytest.raises(ow.ValidationError, match=r"positions must be in \[0, 2\], the rows of cosines, got 5"):
        np.asarray(composites.rotary_embedding(x, table, table, np.int64([[0, 5, 1]])))


def test_value_range_has_numbers_of_run() -> None:
    context = ow.ml.create_context(device="cpu", drafts=True)
    b = ow.MLGraphBuilder(context)
    weight, start = floats(1, 2, 2), np.int32([3])
    x, lengths = b.input("x", "float32", ["n", 1, 2]), b.input("lengths", "int32", [1])
    attention = composites.group_query_attention(
        b, b.input("q", "float32", [1, "new", 4]), *[b.input("k", "float32", [1, "new", 4])] * 2,
        *[b.input("past", "float32", [1, 1, "room", 4])] * 2, b.input("start", "int32", [1]), heads=1, groups=1,
    )[0]  # fmt: skip
    graph = b.build({"last": composites.rnn(b, x, weight, weight, lengths)[0], "y": attention})
    for steps in (4, 2):
        feeds = {"x": floats(steps, 1, 2), "lengths": np.int32([steps + 1]), "start": start}
        feeds |= {"q": floats(1, 2, 4), "k": floats(1, 2, 4), "past": floats(1, 1, 8, 4)}
        message = rf"rnn: lengths must be in \[0, {steps}\], as there are {steps} steps, got {steps + 1} in the input"
        with pytest.raises(ow.ValidationError, match=message):
            context.compute(graph, feeds)
    message = r"lengths must be in \[0, 1\], so that 2 new keys fit a past of 3, got 3 in the input 'start'"
    with pytest.raises(ow.ValidationError, match=message):
        context.compute(graph, {**feeds, "lengths": np.int32([1]), "past": floats(1, 1, 3, 4)})


@pytest.mark.parametrize("steps", [4, "n"])
@pytest.mark.parametrize("device", ["reference", "cpu", "gpu-software"])
def test_computed_values_are_clamped_to_range(device: str, steps: Any) -> None:
    """Results are those of the nearest values in the range, on all devices; also in a body."""
    if device == "gpu-software":
        gpu_context()  # skips without an adapter
    context = ow.ml.create_context(device=device, drafts=True)
    weights = {name: floats(1, 2 * gates, 2) for name, gates in {"lstm": 4, "rnn": 1}.items()}
    table, past = floats(6, 8), floats(1, 1, 6, 16)
    data = {"x": floats(4, 1, 2), "q": floats(1, 2, 32), "k": floats(1, 2, 16), "u": floats(1, 1, 2, 2)}
    shapes = {name: [*array.shape] for name, array in data.items()}
    shapes["x"][0] = steps
    indices: dict[str, np.ndarray] = {
        "length": np.int32([0]),
        "start": np.int32([0]),
        "row": np.int64([[0, 0]]),
        "index": np.int64([[[[0, 1], [2, 0]]]]),
    }

    def build(is_computed: bool) -> ow.MLGraph:
        b = ow.MLGraphBuilder(context)
        x, q, k, u = (b.input(name, "float32", shape) for name, shape in shapes.items())
        inputs = [b.input(name, array.dtype.name, array.shape) for name, array in indices.items()]  # type: ignore[arg-type]
        length, start, row, index = [b.neg(b.neg(value)) for value in inputs] if is_computed else inputs
        lstm = composites.ragged_lstm(b, x, weights["lstm"], weights["lstm"], length)
        rnn = composites.rnn(b, x, weights["rnn"], weights["rnn"], length)
        attention = composites.group_query_attention(
            b, q, k, k, b.constant(past), b.constant(past), start, table, table, heads=2, groups=1
        )
        rotary = composites.rotary_embedding(b, q, table, table, row, heads=2)
        body = make_body(
            Recorder(), [length.desc, x.desc, Desc("float32", (1, 1, 2))],
            lambda b, length, x, _: [length, x, composites.rnn(b, x, weights["rnn"], weights["rnn"], length)[0]],
        )  # fmt: skip
        looped = loop(b, [length, x, b.expand(b.constant("float32", 0), [1, 1, 2])], [], [], body=body, length=1)
        results = [lstm[2], rnn[1], attention[0], rotary, composites.max_unpool(b, u, index, [4, 4]), looped[2]]
        return b.build({str(number): b.identity(result) for number, result in enumerate(results)})

    computed, checked = build(True), build(False)
    for value in (-1, 99, 2**31 - 1, -(2**31)):
        feeds = {name: np.where(array == 0, value, array).astype(array.dtype) for name, array in indices.items()}
        results = context.compute(computed, data | feeds)
        for name, (low, high) in {"length": (0, 4), "start": (0, 4), "row": (0, 5), "index": (0, 15)}.items():
            feeds[name] = np.clip(feeds[name], low, high)
        witnesses = context.compute(checked, data | feeds)
        for name, witness in witnesses.items():
            np.testing.assert_allclose(results[name], witness, rtol=1e-4, atol=1e-5, err_msg=name)


def test_value_range_of_custom_operation_is_checked() -> None:
    @ow.op
    def rows(self: ow.MLGraphBuilder, table: ow.MLOperand, numbers: ow.MLOperand | None = None) -> ow.Desc:
        return table.desc

    @rows.decompose
    def _(b: Any, table: ow.MLOperand, numbers: ow.MLOperand | None) -> ow.MLOperand:
        return table if numbers is None else b.gather(table, numbers)

    @rows.value_range("numbers")
    def _(table: ow.MLOperand) -> ValueRange:
        return ValueRange(0, table.shape[0] - 1, "the rows of table")

    builder = ow.MLGraphBuilder(CPU)
    table = builder.input("table", "float32", [2, 3])
    builder.build({"y": rows(builder, table, np.int32([1, 0])), "same": rows(builder, table)})
    with pytest.raises(ow.ValidationError, match=r"rows: numbers must be in \[0, 1\], the rows of table, got -1"):
        np.asarray(rows(floats(2, 3), np.int32([0, -1])))
    for wrong in ("rows", "label"):
        with pytest.raises(ow.ValidationError, match=f"rows: value_range takes the name of an operand, got '{wrong}'"):
            rows.value_range(wrong)
