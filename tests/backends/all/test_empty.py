"""Operands without elements, a draft: every operation against NumPy, and what engines get to see."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from samples import type_choices
from support.graphs import build_graph, outputs_of
from support.webgpu_device import adapter

import opweave as ow
from opweave.backends import Backend
from opweave.composites.convolve import deform_columns
from opweave.context.graph import state_of
from opweave.core.graph import Graph
from opweave.ops import Operations

OPS = Operations.listing()
CONTEXTS = {name: ow.ml.create_context(device=name, drafts=True) for name in ("reference", "cpu")}
PLAIN = ow.ml.create_context(device="reference")


@dataclass
class Call:
    """A call of an operation and its results by NumPy: arrays, or descriptors of results without elements."""

    name: str
    arrays: Sequence[Any]
    wanted: Any
    options: dict[str, Any] = field(default_factory=dict)

    def check(self, context: ow.MLContext) -> None:
        feeds, operands = dict[str, np.ndarray](), list[Any]()
        for value in self.arrays:
            many = value if isinstance(value, list) else [value]
            names = [f"x{len(feeds) + k}" for k in range(len(many))]
            feeds |= dict(zip(names, many, strict=True))
            operands.append(names if isinstance(value, list) else names[0])

        def build(builder: ow.MLGraphBuilder, **inputs: ow.MLOperand) -> Any:
            args = [[inputs[n] for n in names] if isinstance(names, list) else inputs[names] for names in operands]
            options = {k: builder.constant(v) if isinstance(v, np.ndarray) else v for k, v in self.options.items()}
            return getattr(builder, self.name)(*args, **options)

        results = list(outputs_of(context, build, feeds).values())
        wanted = self.wanted if isinstance(self.wanted, (list, tuple)) else [self.wanted]
        assert [(r.dtype, r.shape) for r in results] == [(w.dtype, w.shape) for w in wanted], self
        for result, array in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(result, array, err_msg=str(self))


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


def ones(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.ones(shape, dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Element-wise operations: all data types, and shapes that broadcast

TO_UINT8 = [
    "equal", "not_equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal", "logical_and", "logical_or",
    "logical_xor", "logical_not", "is_nan", "is_infinite",
]  # fmt: skip
UNARY = [
    "abs", "ceil", "clamp", "cos", "elu", "erf", "exp", "floor", "gelu", "hard_sigmoid", "hard_swish", "identity",
    "leaky_relu", "linear", "log", "logical_not", "is_infinite", "is_nan", "neg", "reciprocal", "relu", "round_even",
    "sigmoid", "sign", "sin", "softplus", "softsign", "sqrt", "tan", "tanh",
]  # fmt: skip
BINARY = [
    "add", "div", "equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal", "logical_and", "logical_or",
    "logical_xor", "max", "min", "mul", "not_equal", "pow", "prelu", "sub",
]  # fmt: skip
SHAPES = [(0,), (0, 3), (2, 0, 3), (1, 0), (0, 0)]
PAIRS = [
    ((0,), (0,)),
    ((0, 3), (3,)),
    ((0, 3), ()),
    ((1,), (0,)),
    ((2, 0), (1, 1)),
    ((0, 1), (1, 4)),
    ((2, 1, 3), (0, 1)),
]


def elementwise(name: str, limits: Any) -> Iterator[Call]:
    op = OPS[name]
    for types in type_choices(op, limits):
        if name == "where":
            shapes: Any = [((0,), (0,), (0,)), ((1,), (0, 3), (3,)), ((0, 1), (), (1, 2))]
        else:
            shapes = PAIRS if name in BINARY else [(shape,) for shape in SHAPES]
        for given in shapes:
            arrays = [ones(*s, dtype=types[operand]) for s, operand in zip(given, op.operands, strict=True)]
            data_type = "uint8" if name in TO_UINT8 else types["true_value" if name == "where" else op.operands[0]]
            yield Call(name, arrays, zeros(*np.broadcast_shapes(*given), dtype=data_type))


@pytest.mark.parametrize("device", CONTEXTS)
@pytest.mark.parametrize("name", [*UNARY, *[name for name in BINARY if name not in UNARY], "where"])
def test_elementwise_operations_of_nothing(name: str, device: str) -> None:
    context = CONTEXTS[device]
    calls = list(elementwise(name, context.backend.limits(OPS[name])))
    assert len(calls) >= 3
    for call in calls:
        call.check(context)


# ---------------------------------------------------------------------------------------------------------------------
# Reductions: all data types, axes and ranks


def extreme(dtype: str, sign: int) -> Any:
    if np.dtype(dtype).kind == "f":
        return sign * np.inf
    return np.iinfo(dtype).max if sign > 0 else np.iinfo(dtype).min


def log_sum(x: np.ndarray, **options: Any) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.sum(x, **options))


def mean(x: np.ndarray, **options: Any) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.divide(np.sum(x, **options), 0)


REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "reduce_l1": lambda x, **o: np.sum(np.abs(x), **o),
    "reduce_l2": lambda x, **o: np.sqrt(np.sum(x * x, **o)),
    "reduce_log_sum": log_sum,
    "reduce_log_sum_exp": lambda x, **o: log_sum(np.exp(x), **o),
    "reduce_max": lambda x, **o: np.max(x, initial=extreme(x.dtype.name, -1), **o),
    "reduce_mean": mean,
    "reduce_min": lambda x, **o: np.min(x, initial=extreme(x.dtype.name, 1), **o),
    "reduce_product": np.prod,
    "reduce_sum": np.sum,
    "reduce_sum_square": lambda x, **o: np.sum(x * x, **o),
}


@pytest.mark.parametrize("device", CONTEXTS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_nothing(name: str, device: str) -> None:
    context = CONTEXTS[device]
    function = REDUCTIONS[name]
    for types in type_choices(OPS[name], context.backend.limits(OPS[name])):
        for shape in ((0,), (0, 3), (2, 0), (2, 0, 3)):
            x = zeros(*shape, dtype=types["input"])
            subsets = (axes for n in range(x.ndim + 1) for axes in itertools.combinations(range(x.ndim), n))
            for axes, keep in itertools.product(subsets, (False, True)):
                wanted = np.asarray(function(x, axis=axes, keepdims=keep)).astype(x.dtype)
                Call(name, [x], wanted, {"axes": list(axes), "keep_dimensions": keep}).check(context)


# ---------------------------------------------------------------------------------------------------------------------
# All others

X, ROWS = zeros(0, 3), np.arange(6, dtype="float32").reshape(2, 3)
NONE, SOME = zeros(0, dtype="int32"), np.int32([[0], [1]])
WEIGHTS, BIAS = ones(2, 3, 1, 1), np.float32([5, 7])
GRU = {"steps": 2, "hidden_size": 2}
CELL = {"hidden_size": 2}


def gru_of_biases(steps: int, batches: int) -> np.ndarray:
    """The last hidden state of a GRU whose input has no features, with biases of 1 for the new gate alone."""
    h = zeros(batches, 2, dtype="float64")
    for _ in range(steps):
        h = 0.5 * h + 0.5 * np.tanh(1.0)
    return h.astype("float32")


OTHERS: list[Call] = [
    Call("arg_max", [zeros(0, 3)], zeros(0, dtype="int32"), {"axis": 1}),
    Call(
        "arg_min", [zeros(2, 0)], zeros(1, 0, dtype="int64"),
        {"axis": 0, "keep_dimensions": True, "output_data_type": "int64"},
    ),
    *(
        Call("average_pool2d", [zeros(*shape)], zeros(*shape[:2], 2, 2), {"window_dimensions": [3, 3]})
        for shape in ((0, 3, 4, 4), (2, 0, 4, 4))
    ),
    Call(
        "average_pool2d", [zeros(1, 2, 0, 3)], np.full((1, 2, 1, 1), np.nan, "float32"),
        {"window_dimensions": [2, 3], "padding": [1, 1, 0, 0]},
    ),
    Call("batch_normalization", [zeros(2, 0), zeros(0), zeros(0)], zeros(2, 0)),
    Call("batch_normalization", [zeros(0, 3), zeros(3), zeros(3)], zeros(0, 3)),
    Call("cast", [X], zeros(0, 3, dtype="int8"), {"data_type": "int8"}),
    Call("concat", [[X, X]], np.concatenate([X, X]), {"axis": 0}),
    Call("concat", [[X, ROWS]], np.concatenate([X, ROWS]), {"axis": 0}),
    Call("concat", [[ROWS, X, ROWS]], np.concatenate([ROWS, X, ROWS]), {"axis": 0}),
    Call("concat", [[X, X]], np.concatenate([X, X], 1), {"axis": 1}),
    Call("conv2d", [zeros(0, 3, 4, 4), WEIGHTS], zeros(0, 2, 4, 4)),
    Call("conv2d", [ones(1, 3, 4, 4), zeros(0, 3, 1, 1)], zeros(1, 0, 4, 4)),
    Call("conv2d", [zeros(1, 0, 4, 4), zeros(2, 0, 1, 1)], zeros(1, 2, 4, 4)),
    Call(
        "conv2d", [zeros(1, 4, 3, 0), zeros(2, 1, 1, 0)], np.broadcast_to(BIAS, (1, 4, 3, 2)).astype("float32"),
        {"bias": BIAS, "input_layout": "nhwc", "filter_layout": "ohwi"},
    ),
    Call(
        "conv2d", [zeros(1, 3, 0, 4), WEIGHTS], np.broadcast_to(BIAS[:, None, None], (1, 2, 2, 4)),
        {"bias": BIAS, "padding": [1, 1, 0, 0]},
    ),
    Call("conv_transpose2d", [zeros(0, 2, 4, 4), WEIGHTS], zeros(0, 3, 4, 4)),
    Call("conv_transpose2d", [zeros(1, 0, 2, 2), zeros(0, 2, 2, 2)], zeros(1, 2, 3, 3)),
    Call(
        "conv_transpose2d", [zeros(1, 0, 2, 2), zeros(0, 2, 2, 2)], np.broadcast_to(BIAS[:, None, None], (1, 2, 3, 3)),
        {"bias": BIAS},
    ),
    *(Call("cumulative_sum", [zeros(*s)], zeros(*s), {"axis": axis}) for s in ((0, 3), (2, 0)) for axis in (0, 1)),
    Call(
        "dequantize_linear", [zeros(0, 4, dtype="int8"), ones(1, 2), zeros(1, 2, dtype="int8")], zeros(0, 4)
    ),
    Call(
        "dequantize_linear", [zeros(4, 0, dtype="uint8"), ones(2, 0), zeros(2, 0, dtype="uint8")], zeros(4, 0)
    ),
    Call("expand", [ones(1, 3)], np.broadcast_to(ones(1, 3), (0, 3)), {"new_shape": [0, 3]}),
    Call("expand", [X], np.broadcast_to(X, (2, 0, 3)), {"new_shape": [2, 0, 3]}),
    Call("gather", [ROWS, NONE], np.take(ROWS, NONE, 0)),
    Call("gather", [ROWS, zeros(2, 0, dtype="int64")], np.take(ROWS, zeros(2, 0, dtype="int64"), 1), {"axis": 1}),
    Call("gather", [X, NONE], np.take(X, NONE, 0)),
    Call("gather", [X, np.int32([2, 0])], np.take(X, [2, 0], 1), {"axis": 1}),
    Call("gather_elements", [ROWS, zeros(0, 3, dtype="int32")], np.take_along_axis(ROWS, zeros(0, 3, dtype="int64"), 0)),
    Call("gather_elements", [X, zeros(0, 2, dtype="int32")], zeros(0, 2), {"axis": 1}),
    Call("gather_nd", [ROWS, zeros(0, 2, dtype="int32")], ROWS[tuple(zeros(2, 0, dtype="int64"))]),
    Call("gather_nd", [ROWS, zeros(4, 0, 1, dtype="int32")], ROWS[zeros(4, 0, dtype="int64")]),
    Call("gather_nd", [zeros(3, 0), SOME], zeros(3, 0)[SOME[:, 0]]),
    Call("gemm", [zeros(2, 0), zeros(0, 3)], zeros(2, 0) @ zeros(0, 3)),
    Call("gemm", [X, ROWS], X @ ROWS.T, {"b_transpose": True}),
    Call(
        "gemm", [zeros(0, 2), zeros(3, 0)], 3 * ROWS,
        {"a_transpose": True, "b_transpose": True, "c": ROWS, "beta": 3.0, "alpha": 2.0},
    ),
    Call(
        "gru", [zeros(2, 1, 0), zeros(1, 6, 0), zeros(1, 6, 2)], gru_of_biases(2, 1)[None],
        {**GRU, "bias": np.float32([[0, 0, 0, 0, 1, 1]])},
    ),
    Call(
        "gru", [zeros(2, 0, 3), ones(1, 6, 3), ones(1, 6, 2)], [zeros(1, 0, 2), zeros(2, 1, 0, 2)],
        {**GRU, "return_sequence": True},
    ),
    Call("gru_cell", [zeros(0, 3), ones(6, 3), ones(6, 2), zeros(0, 2)], zeros(0, 2), CELL),
    Call(
        "gru_cell", [zeros(1, 0), zeros(6, 0), zeros(6, 2), zeros(1, 2)], gru_of_biases(1, 1),
        {**CELL, "bias": np.float32([0, 0, 0, 0, 1, 1])},
    ),
    *(Call("instance_normalization", [zeros(*s)], zeros(*s)) for s in ((0, 3, 2, 2), (2, 0, 2, 2), (2, 3, 0, 2))),
    Call("instance_normalization", [zeros(2, 3, 0, 2)], zeros(2, 3, 0, 2), {"scale": ones(3), "bias": ones(3)}),
    Call("l2_pool2d", [zeros(0, 3, 4, 4)], zeros(0, 3, 1, 1)),
    Call("l2_pool2d", [zeros(1, 1, 3, 0)], zeros(1, 1, 3, 1), {"window_dimensions": [1, 2], "padding": [0, 0, 1, 1]}),
    Call("layer_normalization", [X], X, {"scale": ones(3), "bias": ones(3)}),
    Call("layer_normalization", [zeros(2, 0)], zeros(2, 0), {"scale": zeros(0), "bias": zeros(0)}),
    Call(
        "lstm", [zeros(2, 1, 0), zeros(1, 8, 0), zeros(1, 8, 2)], [zeros(1, 1, 2), zeros(1, 1, 2)], GRU
    ),
    Call(
        "lstm", [zeros(2, 0, 3), ones(2, 8, 3), ones(2, 8, 2)], [zeros(2, 0, 2)] * 2 + [zeros(2, 2, 0, 2)],
        {**GRU, "direction": "both", "return_sequence": True},
    ),
    Call("lstm_cell", [zeros(0, 3), ones(8, 3), ones(8, 2), zeros(0, 2), zeros(0, 2)], [zeros(0, 2)] * 2, CELL),
    Call("lstm_cell", [zeros(1, 0), zeros(8, 0), zeros(8, 2), zeros(1, 2), zeros(1, 2)], [zeros(1, 2)] * 2, CELL),
    Call("matmul", [zeros(2, 0), zeros(0, 3)], np.matmul(zeros(2, 0), zeros(0, 3))),
    Call("matmul", [X, ones(3, 2)], np.matmul(X, ones(3, 2))),
    Call("matmul", [ones(1, 2, 3), zeros(0, 3, 2)], np.matmul(ones(1, 2, 3), zeros(0, 3, 2))),
    Call("matmul", [zeros(4, 1, 2, 0), zeros(3, 0, 2)], np.matmul(zeros(4, 1, 2, 0), zeros(3, 0, 2))),
    Call("max_pool2d", [zeros(2, 0, 4, 4)], zeros(2, 0, 2, 2), {"strides": [2, 2], "window_dimensions": [2, 2]}),
    *(
        Call(
            "max_pool2d", [zeros(1, 2, 0, 2, dtype=t)], np.full((1, 2, 1, 2), extreme(t, -1), t),
            {"window_dimensions": [2, 1], "padding": [1, 1, 0, 0]},
        )
        for t in ("float32", "int8", "uint8", "int64")
    ),
    Call(
        "pad", [X], np.pad(X, ((1, 2), (0, 1)), constant_values=7),
        {"beginning_padding": [1, 0], "ending_padding": [2, 1], "value": 7},
    ),
    Call(
        "pad", [X], np.pad(X, ((0, 0), (1, 1)), mode="edge"),
        {"beginning_padding": [0, 1], "ending_padding": [0, 1], "mode": "edge"},
    ),
    Call(
        "pad", [X], np.pad(X, ((0, 0), (2, 1)), mode="reflect"),
        {"beginning_padding": [0, 2], "ending_padding": [0, 1], "mode": "reflection"},
    ),
    Call("quantize_linear", [zeros(0, 4), ones(1, 2), zeros(1, 2, dtype="int8")], zeros(0, 4, dtype="int8")),
    Call("resample2d", [zeros(0, 1, 2, 2)], zeros(0, 1, 4, 4), {"scales": [2.0, 2.0], "mode": "linear"}),
    Call("reshape", [X], X.reshape(3, 0, 5), {"new_shape": [3, 0, 5]}),
    Call("reverse", [X], X[::-1]),
    Call("scatter_elements", [ROWS, zeros(0, 3, dtype="int32"), X], ROWS),
    Call("scatter_elements", [X, zeros(0, 3, dtype="int32"), X], X),
    Call("scatter_nd", [ROWS, zeros(0, 1, dtype="int32"), X], ROWS),
    Call("scatter_nd", [zeros(3, 0), SOME, zeros(2, 0)], zeros(3, 0)),
    Call("slice", [ROWS], ROWS[1:1], {"starts": [1, 0], "sizes": [0, 3]}),
    Call("slice", [ROWS], ROWS[2:2, ::2], {"starts": [2, 0], "sizes": [0, 3], "strides": [2, 2]}),
    Call("slice", [X], X[:, 1:], {"starts": [0, 1], "sizes": [0, 2]}),
    *(Call("softmax", [zeros(*s)], zeros(*s), {"axis": axis}) for s in ((0, 3), (2, 0)) for axis in (0, 1)),
    Call("split", [X], np.split(X, 3, 1), {"splits": 3, "axis": 1}),
    Call("split", [X], np.split(X, 2), {"splits": 2}),
    Call("split", [ROWS], np.split(ROWS, [0, 2]), {"splits": [0, 2, 0]}),
    Call("split", [ROWS], np.split(ROWS, [1, 1]), {"splits": [1, 0, 1]}),
    Call("tile", [X], np.tile(X, (2, 2)), {"repetitions": [2, 2]}),
    Call("tile", [ROWS], np.tile(ROWS, (0, 2)), {"repetitions": [0, 2]}),
    Call("transpose", [X], X.T),
    Call("triangular", [zeros(2, 3, 0)], zeros(2, 3, 0)),
    Call("triangular", [X], np.triu(X)),
]  # fmt: skip


@pytest.mark.parametrize("device", CONTEXTS)
@pytest.mark.parametrize("name", dict.fromkeys(call.name for call in OTHERS))
def test_operations_of_nothing(name: str, device: str) -> None:
    for call in OTHERS:
        if call.name == name:
            call.check(CONTEXTS[device])


def test_every_operation_is_called_with_nothing() -> None:
    called = {*UNARY, *BINARY, *REDUCTIONS, "where", *(call.name for call in OTHERS)}
    assert called == set(OPS)


@pytest.mark.parametrize(
    ("name", "operands", "options", "message"),
    [
        ("add", [(0, 3), (2, 3)], {}, r"the shapes of a and b do not broadcast: \[0, 3\] and \[2, 3\]"),
        ("arg_max", [(2, 0)], {"axis": 1}, r"axis must have elements, got axis 1 of float32\[2, 0\]"),
        ("arg_min", [(0, 0)], {"axis": 0}, "axis must have elements"),
        ("average_pool2d", [(1, 1, 0, 2)], {}, r"window_dimensions must be 2 positive integers, got \[0, 2\]"),
        ("conv2d", [(1, 1, 0, 2), (1, 1, 1, 1)], {}, "the filter must fit into the padded input"),
        ("conv2d", [(1, 1, 2, 2), (1, 1, 0, 1)], {}, r"at least 1, got float32\[1, 1, 0, 1\]"),
        ("conv_transpose2d", [(1, 1, 0, 2), (1, 1, 3, 1)], {}, "the input must have a height and a width of at least 1"),
        ("conv_transpose2d", [(1, 1, 2, 2), (1, 1, 3, 0)], {}, "the filter must have a height and a width of at least 1"),
        ("dequantize_linear", ["int8[4]", (0,), "int8[0]"], {}, r"dimensions of scale must divide those of input, got \[0\]"),
        ("expand", [(2,)], {"new_shape": [0]}, r"float32\[2\] cannot be broadcast to new_shape \[0\]"),
        ("gather", [(0, 3), "int32[1]"], {}, r"indices must be empty where a dimension has no elements, got int32\[1\]"),
        ("gather_elements", [(2, 0), "int32[2, 1]"], {"axis": 1}, "indices must be empty"),
        ("gather_nd", [(2, 0), "int32[1, 2]"], {}, "indices must be empty"),
        ("gather_nd", [(2, 3), "int32[4, 0]"], {}, "the last dimension of indices must be at least 1"),
        ("scatter_elements", [(0,), "int32[2]", (2,)], {}, "indices must be empty"),
        ("scatter_nd", [(0,), "int32[2, 1]", (2,)], {}, "indices must be empty"),
        ("layer_normalization", [(2, 0)], {"scale": ones(3)}, r"scale must have shape \[0\]"),
        ("matmul", [(2, 0), (1, 2)], {}, "the last dimension of a must be the last but one of b"),
        ("pad", [(0,)], {"beginning_padding": [1], "ending_padding": [0], "mode": "edge"}, "no edge to repeat"),
        ("pad", [(0,)], {"beginning_padding": [0], "ending_padding": [1], "mode": "reflection"}, "must be smaller"),
        ("resample2d", [(1, 1, 0, 2)], {"sizes": [2, 2]}, "must have elements to sample"),
        ("resample2d", [(1, 1, 0, 2)], {"scales": [2.0, 2.0]}, "scales must give sizes of at least 1"),
        ("resample2d", [(1, 1, 2, 2)], {"sizes": [0, 2]}, "sizes must be 2 positive integers"),
        ("reshape", [(0, 3)], {"new_shape": [3]}, r"new_shape must have the 0 elements of float32\[0, 3\], got \[3\]: 3"),
        ("slice", [(0,)], {"starts": [0], "sizes": [1]}, "must be within"),
        ("slice", [(2,)], {"starts": [3], "sizes": [0]}, "must be within"),
        ("gru_cell", [(1, 2), (0, 2), (0, 0), (1, 0)], {"hidden_size": 0}, "hidden_size must be in"),
        ("gru", [(0, 1, 2), (1, 3, 2), (1, 3, 1)], {"hidden_size": 1, "steps": 0}, "steps must be greater than 0"),
    ],
)  # fmt: skip
def test_operations_that_need_elements(name: str, operands: Any, options: Any, message: str) -> None:
    builder = ow.MLGraphBuilder(CONTEXTS["reference"])
    inputs = []
    for k, operand in enumerate(operands):
        data_type, _, text = operand.partition("[") if isinstance(operand, str) else ("float32", "", "")
        shape = operand if not text else [int(size) for size in text.removesuffix("]").split(",")]
        inputs.append(builder.input(f"x{k}", data_type, shape))
    with pytest.raises(ow.ValidationError, match=f"^{name}: .*{message}"):
        getattr(builder, name)(*inputs, **options)


# ---------------------------------------------------------------------------------------------------------------------
# Graphs


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: b.input("x", "float32", [2, 0]), r"shape must have dimensions in \[1, 2147483647\], got \[2, 0\]"),
        (lambda b: b.constant(zeros(0)), r"constant: shape must have dimensions in \[1, 2147483647\], got \[0\]"),
        (lambda b: b.constant("int8", [0], b""), "constant: shape must have dimensions in"),
        (lambda b: b.input("x", "int8", [2])[1:1], "leaves nothing of axis 0 with 2 elements"),
        (lambda b: b.slice(b.input("x", "int8", [2]), [0], [0]), "sizes must be greater than 0"),
        (lambda b: b.split(b.input("x", "int8", [2]), [2, 0]), "splits must be sizes greater than 0"),
        (lambda b: b.tile(b.input("x", "int8", [2]), [0]), "repetitions must be greater than 0"),
        (lambda b: b.expand(b.input("x", "int8", [1]), [0]), r"the result must have dimensions in \[1, 2147483647\]"),
        (lambda b: b.context.create_tensor("int8", [0]), r"shape must have dimensions in \[1, 2147483647\], got \[0\]"),
        (lambda b: b.context.tensor_from(zeros(0)), "shape must have dimensions in"),
        (lambda b: b.context.create_constant_tensor("int8", [0], b""), "shape must have dimensions in"),
    ],
)  # fmt: skip
def test_dimensions_of_0_are_a_draft(build: Callable[[ow.MLGraphBuilder], Any], message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        build(ow.MLGraphBuilder(PLAIN))
    build(ow.MLGraphBuilder(CONTEXTS["reference"]))


def mixed(builder: ow.MLGraphBuilder, x: ow.MLOperand, y: ow.MLOperand) -> dict[str, ow.MLOperand]:
    """Results that are empty, are their operand, are constant, and depend on such."""
    return {
        "sum": builder.reduce_sum(x, axes=[0]) + 1,
        "same": builder.concat([x, y, y[2:2]], 0),
        "none": builder.softmax(x.neg(), 1),
        "product": builder.transpose(x) @ x + builder.transpose(y) @ y,
        "parts": builder.split(y, [0, 1, 1])[1].relu(),
    }


FEEDS = {"x": X, "y": ROWS}
MIXED = {"sum": ones(3), "same": ROWS, "none": X, "product": ROWS.T @ ROWS, "parts": ROWS[:1]}


def assert_mixed(results: Any) -> None:
    for name, wanted in MIXED.items():
        np.testing.assert_array_equal(results[name], wanted, err_msg=name, strict=True)


@pytest.mark.parametrize("name", ["reference", "cpu", "openvino", "gpu-software"])
def test_engines_see_no_dimension_of_0(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "openvino":
        pytest.importorskip("openvino", reason="OpenVINO is not installed")
    if name == "gpu-software":
        adapter()
    seen: list[Graph] = []
    chosen: Any = {"backend": name} if name == "openvino" else {"device": name}
    context = ow.ml.create_context(**chosen, drafts=True)
    original = type(context.backend).compile

    def compile(self: Backend, graph: Graph, **options: Any) -> Any:
        seen.append(graph)
        return original(self, graph, **options)

    monkeypatch.setattr(type(context.backend), "compile", compile)
    graph = build_graph(context, mixed, FEEDS)
    operands = [o for g in seen for node in g.nodes for o in (*node.operands, *node.outputs)]
    operands += [o for g in seen for o in (*g.inputs.values(), *g.outputs.values())]
    assert operands
    assert [o for o in operands if 0 in o.shape] == []
    assert_mixed(context.compute(graph, FEEDS))
    tensors = {key: context.create_tensor("float32", d.shape, writable=True) for key, d in graph.inputs.items()}
    outputs = {key: context.create_tensor("float32", d.shape, readable=True) for key, d in graph.outputs.items()}
    for key, tensor in tensors.items():
        context.write_tensor(tensor, FEEDS[key])
    for _ in range(2):
        context.dispatch(graph, tensors, outputs)
    assert_mixed({key: context.read_tensor(tensor) for key, tensor in outputs.items()})


def test_explain_says_what_has_no_elements() -> None:
    lines = build_graph(CONTEXTS["cpu"], mixed, FEEDS).explain().splitlines()
    assert "softmax" in next(line for line in lines if line.endswith("decomposed  empty results") and "softmax" in line)
    assert next(line for line in lines if "concat" in line and "decomposed" in line).endswith("its operand")


def test_graph_that_is_empty_in_the_end_runs_nothing() -> None:
    graph = build_graph(CONTEXTS["cpu"], lambda b, x: b.relu(x) + 1, {"x": X})
    program = state_of(graph).program
    assert program is not None
    assert program.steps == ()
    assert CONTEXTS["cpu"].compute(graph, {"x": X})["y"].shape == (0, 3)


def test_dispatch_of_nothing_overlaps_nothing() -> None:
    context = CONTEXTS["cpu"]
    graph = build_graph(context, lambda b, x, y: {"z": b.concat([x, y], 0), "e": x.neg()}, FEEDS)
    memory = np.arange(12, dtype="float32").reshape(4, 3)
    none = memory[1:][:0]  # begins within y
    arrays = {"x": none, "y": memory[:2], "z": memory[2:], "e": none}
    tensors = {name: context.tensor_from(array) for name, array in arrays.items()}
    context.dispatch(graph, {name: tensors[name] for name in "xy"}, {name: tensors[name] for name in "ze"})
    assert memory[2:].tolist() == memory[:2].tolist()


def test_deferred_dispatches_of_nothing() -> None:
    context = ow.ml.create_context(device="cpu", deferred=True, drafts=True)
    graph = build_graph(context, mixed, FEEDS)
    outputs = {key: context.create_tensor("float32", d.shape, readable=True) for key, d in graph.outputs.items()}
    inputs = {key: context.tensor_from(array) for key, array in FEEDS.items()}
    context.dispatch(graph, inputs, outputs)
    again = build_graph(context, lambda b, none: b.reduce_max(none, axes=[0]), {"none": X})
    largest = context.create_tensor("float32", [3], readable=True)
    context.dispatch(again, {"none": outputs["none"]}, {"y": largest})
    assert largest.numpy().tolist() == [-np.inf] * 3
    assert_mixed({key: tensor.numpy() for key, tensor in outputs.items()})


def halves(*shape: int) -> np.ndarray:
    return np.full(shape, 0.5, "float32")


def cells(steps: int, gates: int, **others: np.ndarray) -> dict[str, np.ndarray]:
    """Operands of a recurrent network."""
    weights = {"weight": halves(1, gates, 3), "recurrent_weight": halves(1, gates, 1)}
    return {"input": zeros(steps, 2, 3), **weights, "lengths": zeros(2, dtype="int32"), **others}


EMPTY_TABLE = {"cosines": zeros(0, 2), "sines": zeros(0, 2), "positions": zeros(0, 3, dtype="int64")}
NO_RATES = {"a": zeros(2, 0), "b": zeros(1, 3, 0), "c": zeros(1, 3, 0)}
NO_PIXELS = {"input": zeros(0, 3, 2), "indices": zeros(0, 3, 2, dtype="int64")}
COLUMN = np.int64([[1], [0]])

COMPOSITES: dict[str, tuple[Any, dict[str, np.ndarray], dict[str, Any], list[np.ndarray]]] = {
    "convolution without input": (
        ow.composites.causal_conv_with_state,
        {"input": zeros(1, 2, 0), "weight": ones(2, 1, 3), "past_state": halves(1, 2, 2)}, {},
        [zeros(1, 2, 0), halves(1, 2, 2)],
    ),
    "deformed columns without pixels": (
        deform_columns, {"input": zeros(1, 2, 1, 0), "offset": zeros(1, 4, 1, 1)},
        {"taps": [1, 2], "padding": [0, 0, 1, 1]}, [zeros(1, 4, 1, 1)],
    ),
    "gru without steps": (
        ow.composites.ragged_gru, cells(0, 3, initial_hidden_state=halves(1, 2, 1)), {},
        [zeros(1, 2, 1), zeros(0, 1, 2, 1)],
    ),
    "lstm without steps": (
        ow.composites.ragged_lstm, cells(0, 4), {"clip": 1.0}, [zeros(1, 2, 1), zeros(1, 2, 1), zeros(0, 1, 2, 1)],
    ),
    "linear attention without keys": (
        ow.composites.linear_attention, {"query": zeros(1, 3, 0), "key": zeros(1, 3, 0), "value": ones(1, 3, 2)},
        {"heads": 2, "groups": 1, "update_rule": "linear"}, [zeros(1, 3, 4), zeros(1, 1, 0, 2)],
    ),
    "rotary embedding without positions": (
        ow.composites.rotary_embedding, {"input": zeros(0, 2, 3, 4), **EMPTY_TABLE}, {}, [zeros(0, 2, 3, 4)],
    ),
    "scan without state": (
        ow.composites.selective_scan,
        {"input": ones(1, 3, 2), "delta": ones(1, 3, 2), **NO_RATES, "d": halves(2)}, {},
        [halves(1, 3, 2), zeros(1, 2, 0)],
    ),
    "scatter without columns": (
        ow.composites.scatter_reduce, {"input": ones(2, 3), "indices": COLUMN, "updates": zeros(2, 0)},
        {"reduction": "add"}, [ones(2, 3)],
    ),
    "unique rows without elements": (
        ow.composites.unique, {"input": zeros(3, 0)}, {"count": 2, "axis": 0},
        [zeros(2, 0), np.int64([0, -1]), zeros(3, dtype="int64"), np.int64([3, 0]), np.int64([1])],
    ),
    "unpooling without images": (ow.composites.max_unpool, NO_PIXELS, {"output_sizes": [4]}, [zeros(0, 3, 4)]),
}  # fmt: skip
"""Composites by what they lack: operands, attributes and results."""


@pytest.mark.parametrize("are_constants", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_of_nothing(name: str, are_constants: bool) -> None:
    op, operands, attributes, wanted = COMPOSITES[name]
    for context in CONTEXTS.values():
        b = ow.MLGraphBuilder(context)
        values = {
            key: b.constant(array) if are_constants and array.size else b.input(key, array.dtype.name, array.shape)
            for key, array in operands.items()
        }
        results = op(b, **values, **attributes)
        outputs = results if isinstance(results, tuple) else (results,)
        graph = b.build({f"y{k}": output for k, output in enumerate(outputs)})
        arrays = context.compute(graph, {key: operands[key] for key in graph.inputs}).values()
        for array, expected in zip(arrays, wanted, strict=True):
            np.testing.assert_allclose(array, expected, strict=True)


def test_selective_scan_refuses_no_groups() -> None:
    none = zeros(1, 3, 0, 2)
    with pytest.raises(ow.ValidationError, match=r"the groups of b must divide 2 heads, got float32\[1, 3, 0, 2\]"):
        ow.composites.selective_scan(ones(1, 3, 2, 4), ones(1, 3, 2), ones(2), none, none)


def test_custom_operations_of_nothing() -> None:
    @ow.composite
    def doubled_sum(b: Any, x: Any) -> Any:
        return b.reduce_sum(b.concat([x[:, :0], x.relu()], 1), axes=[0]) * 2 + 1

    @ow.expression
    def shares(x: Any) -> Any:
        return x / ow.expr.reduce_sum(x, [0])

    @ow.expression
    def total(x: Any) -> Any:
        return ow.expr.reduce_sum(x, [0])

    assert outputs_of(CONTEXTS["cpu"], lambda b, x: doubled_sum(b, x), {"x": X})["y"].tolist() == [1, 1, 1]
    assert outputs_of(CONTEXTS["cpu"], lambda b, x: shares(b, x), {"x": X})["y"].shape == (0, 3)
    assert outputs_of(CONTEXTS["cpu"], lambda b, x: total(b, x), {"x": X})["y"].tolist() == [0, 0, 0]

    q, none = ones(1, 2, 3, 4), zeros(1, 2, 0, 4)
    for device, context in CONTEXTS.items():
        for build, arrays, wanted in (
            (ow.composites.scaled_dot_product_attention, (q, none, none), zeros(1, 2, 3, 4)),
            (ow.composites.scaled_dot_product_attention, (none, q, q), none),
            (ow.composites.scaled_dot_product_attention, (zeros(1, 2, 3, 0), zeros(1, 2, 5, 0), ones(1, 2, 5, 4)), q),
            (ow.composites.scatter_reduce, (ROWS, zeros(0, 3, dtype="int64"), X), ROWS),
            (ow.composites.rms_normalization, (X, ones(3)), X),
        ):
            feeds = {f"x{k}": array for k, array in enumerate(arrays)}
            options = {"reduction": "add"} if build is ow.composites.scatter_reduce else {}
            call = partial(build, **options)
            result = outputs_of(context, lambda b, call=call, **x: call(b, *x.values()), feeds)["y"]
            np.testing.assert_allclose(result, wanted, rtol=1e-6, err_msg=f"{build} on {device}", strict=True)

    @ow.op(x=ow.Limits(("float32",)), y=ow.Limits(("float32",)))
    def count(self: Any, x: ow.MLOperand, y: ow.MLOperand) -> tuple[ow.Desc, ow.Desc]:
        return ow.Desc("float32", (2,)), x.desc

    @count.kernel("cpu")
    def _(x: np.ndarray, y: np.ndarray, out: Any) -> None:
        out[0][...] = x.size, y.shape[1]

    assert outputs_of(CONTEXTS["cpu"], lambda b, x: count(b, x, x)[0], {"x": X})["y"].tolist() == [0, 3]
    message = r"count: there are no elements in float32\[0, 3\]; only operations with a decomposition compute"
    with pytest.raises(ow.NotSupportedError, match=message):
        build_graph(CONTEXTS["cpu"], lambda b, x, y: count(b, x, y)[0], {"x": X, "y": ones(2, 3)})

    @ow.op
    def parts(self: Any, x: ow.MLOperand) -> tuple[ow.Desc, ow.Desc]:
        return ow.Desc("int32", (0,)), x.desc

    parts.kernel("cpu", lambda x, out: None)
    with pytest.raises(
        ow.NotSupportedError, match=r"parts: there are no elements in its result int32\[0\], but there are in others"
    ):
        build_graph(CONTEXTS["cpu"], lambda b, x: parts(b, x)[1], {"x": ones(3)})


def test_models_of_nothing(tmp_path: Any) -> None:
    graph = build_graph(CONTEXTS["cpu"], mixed, FEEDS)
    ow.onnx.save(graph, tmp_path / "m.onnx")
    names = list(graph.outputs)
    engine = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    for session in (ow.InferenceSession(tmp_path / "m.onnx"), engine.InferenceSession(tmp_path / "m.onnx")):
        assert_mixed(dict(zip(names, session.run(names, FEEDS), strict=True)))
    with pytest.raises(
        ow.ValidationError, match=r"WebNN in JavaScript has no dimensions of 0, got input 'x' float32\[0, 3\]"
    ):
        ow.js.save(graph, tmp_path / "m.js")
    inner = build_graph(CONTEXTS["cpu"], lambda b, y: b.reduce_sum(y[1:1], axes=[0]) + y, {"y": ROWS})
    ow.js.save(inner, tmp_path / "m.js")
    assert "shape: [0" not in (tmp_path / "m.js").read_text()


def test_tools_on_graphs_of_nothing() -> None:
    graph = build_graph(CONTEXTS["cpu"], mixed, FEEDS)
    assert all("within" in line for line in str(ow.diff(graph)).splitlines()[-1:])
    assert "empty results" in str(graph.profile())
    assert "<svg" in str(graph.draw())


@pytest.mark.long
def test_tune_a_graph_of_nothing() -> None:
    assert "a graph of" in str(build_graph(CONTEXTS["cpu"], mixed, FEEDS).tune())


@pytest.mark.parametrize("device", [*CONTEXTS, "gpu-software"])
def test_arrays_and_traced_functions_of_nothing(device: str) -> None:
    if device == "gpu-software":
        adapter()

    @ow.jit
    def total(x: Any, y: Any) -> Any:
        return x[:0], ow.ops.concat([x[:0], y], 0).reduce_sum(axes=[0]), x.relu().reduce_max(axes=[0])

    with ow.ml.create_context(device=device):
        nothing, rows = ow.array(X), ow.array(ROWS)
        results: Any = ow.read(
            nothing.relu(), rows[2:] + 1, ow.ops.transpose(nothing) @ nothing, ow.ops.concat([nothing, rows], 0)
        )
        for result, wanted in zip(results, [X, X, zeros(3, 3), ROWS], strict=True):
            np.testing.assert_array_equal(result, wanted, strict=True)
        assert (nothing.tolist(), repr(nothing), list(nothing)) == ([], "<Array [], float32[0, 3]>", [])
        assert ow.ops.relu(X).shape == (0, 3)
        none, column, largest = (np.asarray(result) for result in total(X, ROWS))
        assert none.shape == (0, 3)
        assert (column.tolist(), largest.tolist()) == (ROWS.sum(0).tolist(), [-np.inf] * 3)


@pytest.mark.parametrize("device", CONTEXTS)
def test_sizes_with_names_may_be_0(device: str) -> None:
    context = CONTEXTS[device]
    builder = ow.MLGraphBuilder(context)
    x, y = builder.input("x", "float32", ["n", 3]), builder.input("y", "float32", ["m", 3])
    rest: Any = x.shape[0] - 1
    graph = builder.build(
        {
            "sum": x.reduce_sum(axes=[0]),
            "both": builder.concat([x, y], 0),
            "square": builder.transpose(x) @ x,
            "rest": builder.slice(builder.concat([x, y], 0), [1, 0], [rest + y.shape[0], 3]),
        }
    )
    for n, m in ((2, 1), (0, 2), (3, 0), (1, 0), (0, 3), (4, 4)):
        a, b = np.arange(3 * n, dtype="float32").reshape(n, 3), ones(m, 3)
        results = context.compute(graph, {"x": a, "y": b})
        both = np.concatenate([a, b])
        for name, wanted in {"sum": a.sum(0), "both": both, "square": a.T @ a, "rest": both[1:]}.items():
            np.testing.assert_array_equal(results[name], wanted, err_msg=f"{name} of {n} and {m}", strict=True)
