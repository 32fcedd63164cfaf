"""Proofs that the rows of a batch are computed apart: each operation, random graphs, ordinary networks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from random_graphs import random_graph

import opweave as ow
from opweave import ops
from opweave.onnx.session.session import InferenceSession
from opweave.scale.batch_rules import RULES
from opweave.scale.proofs import Proofs

TRANSFORMERS = Path(__file__).parents[1] / "data" / "transformers"

# Nodes from x [n, 2, 4, 4] to y, and whether rows are computed apart. `{0}` is a constant of the name c0, and so on.
ROWS = {
    "softmax along channels": ("y = Softmax <axis = 1> (x)", True),
    "softmax along the batch": ("y = Softmax <axis = 0> (x)", False),
    "mean of a row": ("y = ReduceMean <axes = [1, 2, 3]> (x)", True),
    "mean of all": ("m = ReduceMean <keepdims = 1> (x) y = Sub (x, m)", False),
    "maximum of the batch": ("m = ReduceMax <axes = [0], keepdims = 1> (x) y = Div (x, m)", False),
    "arg max": ("y = ArgMax <axis = 2> (x)", True),
    "arg max of the batch": ("m = ArgMax <axis = 0, keepdims = 1> (x) i = Cast <to = 1> (m) y = Add (x, i)", False),
    "normalisation of a layer": ("y = LayerNormalization <axis = 3> (x, four)", True),
    "normalisation of the batch": ("m = ReduceMean <axes = [0], keepdims = 1> (x) y = Sub (x, m)", False),
    "normalisation of channels": ("y = BatchNormalization (x, two, two, two, two)", True),
    "normalisation of instances": ("y = InstanceNormalization (x, two, two)", True),
    "normalisation of groups": ("y = GroupNormalization <num_groups = 2> (x, two, two)", True),
    "convolution": ("y = Conv (x, filter)", True),
    "convolution over the batch": (
        "t = Transpose <perm = [1, 2, 0, 3]> (x) m = MaxPool <kernel_shape = [3, 1], pads = [1, 0, 1, 0]> (t) "
        "y = Transpose <perm = [2, 0, 1, 3]> (m)",
        False,
    ),
    "transposed convolution": ("y = ConvTranspose (x, filter)", True),
    "pooling": ("y = MaxPool <kernel_shape = [2, 2]> (x)", True),
    "pooling of rows as channels": (
        "t = Transpose <perm = [1, 0, 2, 3]> (x) m = AveragePool <kernel_shape = [2, 2]> (t) "
        "y = Transpose <perm = [1, 0, 2, 3]> (m)",
        True,
    ),
    "global pooling": ("y = GlobalAveragePool (x)", True),
    "product by weights": ("y = MatMul (x, square)", True),
    "product of a row with itself": ("t = Transpose <perm = [0, 1, 3, 2]> (x) y = MatMul (x, t)", True),
    "product of rows": ("f = Flatten (x) t = Transpose (f) y = MatMul (f, t)", False),
    "gemm": ("f = Flatten (x) y = Gemm <transB = 1> (f, wide)", True),
    "gemm with the batch inside": ("f = Flatten (x) t = Transpose (f) p = Gemm (t, f) y = MatMul (f, p)", False),
    "transpose and back": ("t = Transpose <perm = [3, 2, 1, 0]> (x) y = Transpose <perm = [3, 2, 1, 0]> (t)", True),
    "rows joined with an axis": (
        "r = Reshape (x, rows_of_four) q = MatMul (r, square) s = Shape (x) y = Reshape (q, s)",
        True,
    ),
    "softmax over joined rows": (
        "r = Reshape (x, rows_of_four) q = Softmax <axis = 0> (r) s = Shape (x) y = Reshape (q, s)",
        False,
    ),
    "rows joined behind an axis": (
        "t = Transpose <perm = [2, 0, 1, 3]> (x) r = Reshape (t, rows_of_four) q = MatMul (r, square) s = Shape (t) "
        "u = Reshape (q, s) y = Transpose <perm = [1, 2, 0, 3]> (u)",
        True,
    ),
    "rows cut in another way": (
        "f = Constant <value_ints = [-1, 8]> () r = Reshape (x, f) s = Shape (x) t = Transpose (r) y = Reshape (t, s)",
        False,
    ),
    "slice of a row": ("y = Slice (x, zeros, two_ints, threes)", True),
    "reversed batch": ("y = Slice (x, minus, far, zeros, minus)", False),
    "concat of channels": ("y = Concat <axis = 1> (x, x)", True),
    "concat of the batch": ("y = Concat <axis = 0> (x, x)", False),
    "split of channels": ("a, b = Split <axis = 1> (x, ones_twice) y = Add (a, b)", True),
    "gather of channels": ("y = Gather <axis = 1> (x, zeros)", True),
    "gather of a row": ("g = Gather <axis = 0> (x, zeros) y = Add (x, g)", False),
    "lookup": ("i = ArgMax <axis = 1> (x) y = Gather (square, i)", True),
    "elements by channels": ("i = ArgMax <axis = 1> (x) y = GatherElements <axis = 1> (x, i)", True),
    "elements by rows": (
        "i = ArgMax <axis = 0, keepdims = 1> (x) e = GatherElements <axis = 0> (x, i) y = Add (x, e)",
        False,
    ),
    "scatter by channels": (
        "i = ArgMax <axis = 1> (x) u = ReduceMax <axes = [1]> (x) y = ScatterElements <axis = 1> (x, i, u)",
        True,
    ),
    "scatter by rows": (
        "i = ArgMax <axis = 0, keepdims = 1> (x) u = ReduceMax <axes = [0], keepdims = 1> (x) "
        "y = ScatterElements <axis = 0> (x, i, u)",
        False,
    ),
    "largest channels": ("y, i = TopK <axis = 1> (x, ones)", True),
    "largest rows": ("v, i = TopK <axis = 0> (x, ones) y = Add (x, v)", False),
    "one hot": ("i = ArgMax <axis = 1> (x) y = OneHot (i, five, off_on)", True),
    "running sum of a row": ("a = Constant <value_int = 3> () y = CumSum (x, a)", True),
    "running sum of the batch": ("a = Constant <value_int = 0> () y = CumSum (x, a)", False),
    "padding of a row": ("p = Constant <value_ints = [0, 0, 1, 1, 0, 0, 1, 1]> () y = Pad (x, p)", True),
    "tiles of a row": ("t = Constant <value_ints = [1, 2, 1, 1]> () y = Tile (x, t)", True),
    "tiles of the batch": ("t = Constant <value_ints = [2, 1, 1, 1]> () y = Tile (x, t)", False),
    "expanded constant": ("s = Shape (x) e = Expand (one, s) y = Add (x, e)", True),
    "number of rows": ("s = Shape <end = 1> (x) f = Cast <to = 1> (s) y = Div (x, f)", False),
    "numbers of rows": (
        "s = Shape <end = 1> (x) n = Squeeze (s) z = Constant <value_int = 0> () o = Constant <value_int = 1> () "
        "r = Range (z, n, o) f = Cast <to = 1> (r) q = Constant <value_ints = [-1, 1, 1, 1]> () t = Reshape (f, q) "
        "y = Add (x, t)",
        False,
    ),
    "triangle": ("y = Trilu (x)", True),
    "triangle of rows": (
        "t = Transpose <perm = [1, 2, 3, 0]> (x) u = Trilu (t) y = Transpose <perm = [3, 0, 1, 2]> (u)",
        False,
    ),
    "resized images": ('y = Resize <mode = "linear"> (x, , scales)', True),
    "resized rows": (
        't = Transpose <perm = [1, 2, 0, 3]> (x) q = Resize <mode = "linear"> (t, , scales) '
        "y = Transpose <perm = [2, 0, 1, 3]> (q)",
        False,
    ),
    "interpolated vectors": (
        'r = Reshape (x, three_axes) y = Resize <mode = "linear"> (r, , scales_of_three)',
        False,
    ),
    "depth to space": ("c = Concat <axis = 1> (x, x) y = DepthToSpace <blocksize = 2> (c)", True),
    "fixed scale": ("q = QuantizeLinear (x, tenth, middle) y = DequantizeLinear (q, tenth, middle)", True),
    "scale of the batch": ("q, s, z = DynamicQuantizeLinear (x) y = DequantizeLinear (q, s, z)", False),
    "rows of a sequence": (
        "f = Flatten (x) t = Unsqueeze (f, zeros) h, l = GRU <hidden_size = 1> (t, gru_w, gru_r) "
        "y = Squeeze (h, zero_one)",
        True,
    ),
    "rows as a sequence": (
        "f = Flatten (x) t = Unsqueeze (f, ones) h, l = GRU <hidden_size = 1> (t, gru_w, gru_r) "
        "y = Squeeze (h, one_two)",
        False,
    ),
    "einsum of a row": ('y = Einsum <equation = "nchw,wk->nckh"> (x, square)', True),
    "einsum of the batch": ('s = Einsum <equation = "nchw->chw"> (x) y = Add (x, s)', False),
    "all as one vector": (
        "o = Constant <value_ints = [-1]> () r = Reshape (x, o) q = Softmax <axis = 0> (r) s = Shape (x) "
        "y = Reshape (q, s)",
        False,
    ),
    "dependence on non-zeros": (
        "i = NonZero (x) g = Transpose (i) v = GatherND (x, g) m = ReduceSum (v) y = Mul (x, m)",
        False,
    ),
    "loop over rows": (
        "s = Shape <end = 1> (x) n = Squeeze (s) t = Constant <value = bool {1}> () "
        "m = ReduceMean <axes = [0], keepdims = 1> (x) "
        "y = Loop (n, t, x) <body = b (int64 k, bool go, float[n, 2, 4, 4] v) => (bool on, float[n, 2, 4, 4] w) "
        "{ on = Identity (go) w = Add (v, m) }>",
        False,
    ),
    "a volume": ("v = Unsqueeze (x, ones) c = Conv (v, cube) y = MaxPool <kernel_shape = [1, 2, 2]> (c)", True),
    "places of maxima": (
        "v = Unsqueeze (x, ones) m, i = MaxPool <kernel_shape = [1, 2, 2]> (v) y = Cast <to = 1> (i)",
        False,
    ),
    "random numbers": ("r = RandomNormalLike (x) y = Add (x, r)", False),
}

CONSTANTS: dict[str, np.ndarray] = {
    "cube": np.ones((1, 1, 2, 2, 2), np.float32),
    "two": np.float32([1, 2]),
    "four": np.float32([1, 2, 3, 4]),
    "one": np.float32(1),
    "square": np.arange(16, dtype=np.float32).reshape(4, 4),
    "wide": np.ones((3, 32), np.float32),
    "filter": np.ones((2, 2, 3, 3), np.float32),
    "rows_of_four": np.int64([-1, 4]),
    "zeros": np.int64([0]),
    "ones": np.int64([1]),
    "two_ints": np.int64([2]),
    "threes": np.int64([3]),
    "minus": np.int64([-1]),
    "far": np.int64([-9999]),
    "far_up": np.int64([9999]),
    "ones_twice": np.int64([1, 1]),
    "zero_one": np.int64([0, 1]),
    "one_two": np.int64([1, 2]),
    "five": np.int64(5),
    "off_on": np.float32([0, 1]),
    "scales": np.float32([1, 1, 2, 2]),
    "three_axes": np.int64([0, 0, -1]),
    "scales_of_three": np.float32([1, 1, 2]),
    "tenth": np.float32(0.1),
    "middle": np.uint8(128),
    "gru_w": np.ones((1, 3, 32), np.float32),
    "gru_r": np.ones((1, 3, 1), np.float32),
}


def session_of(nodes: str, dims: str = "n, 2, 4, 4", opset: int = 17) -> InferenceSession:
    """A session for nodes from x to y, whose first dimension is that of x."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[{dims}] x) => (y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(CONSTANTS[name], name) for name in CONSTANTS if name in used)
    inferred = onnx.shape_inference.infer_shapes(model)
    return InferenceSession(inferred.SerializeToString(), specialise="never")


def why_mixed(session: InferenceSession, *shapes: tuple[int, ...], rows: int = 3, part: int = 1) -> str:
    return Proofs(session).why_mixed(shapes, rows, part)


@pytest.mark.parametrize("name", ROWS)
def test_batch_axis_of_operations(name: str) -> None:
    nodes, is_apart = ROWS[name]
    session = session_of(nodes, opset=18 if "GroupNormalization" in nodes else 17)
    reasons = [why_mixed(session, (2, 4, 4), rows=rows, part=part) for rows, part in ((3, 1), (5, 2), (2, 3))]
    assert [not reason for reason in reasons] == [is_apart] * 3, reasons
    x = np.random.default_rng(2).standard_normal((3, 2, 4, 4)).astype(np.float32)
    for other in (np.nan, np.inf, 1e30) if is_apart else ():
        changed = x.copy()
        changed[[0, 2]] = other
        one, same = (session.run(None, {"x": array})[0] for array in (x, changed))
        np.testing.assert_array_equal(one[1], same[1])


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_batch_axis_of_softmax_axes(rank: int) -> None:
    """Softmax along each axis of a tensor: all but the first one are apart, counted from either end."""
    dims = ", ".join(["n", *map(str, range(2, rank + 1))])
    for axis in range(-rank, rank):
        session = session_of(f"y = Softmax <axis = {axis}> (x)", dims)
        assert bool(why_mixed(session, tuple(range(2, rank + 1)))) == (axis % rank == 0)


def test_batch_axis_rules_are_complete() -> None:
    """An operation of the specification without a rule is never batched, which is right, and needs a reason."""
    assert set(ops.Operations.listing().values()) <= RULES.keys()


def test_batch_axis_stops_at_custom_operation() -> None:
    """A kernel may do what it likes with the rows, whatever its decomposition says."""

    @ow.op(input=ow.Limits(("float32",)))
    def sum_of_rows(self: Any, input: ow.MLOperand, *, label: str = "") -> Any:
        return input.desc

    @sum_of_rows.decompose
    def _(b: Any, input: ow.MLOperand) -> Any:
        return b.relu(input)

    text = '<ir_version: 8, opset_import: ["": 17, "test.rows": 1]> g (float[n, 2] x) => (float[n, 2] y) {'
    text += "y = test.rows.S (x) }"
    ow.onnx.register_onnx("test.rows", "S", sum_of_rows)
    session = InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    assert why_mixed(session, (2,)) == ""
    sum_of_rows.kernels["cpu"] = object()
    assert "sum_of_rows 'y' may mix the rows of a batch" in why_mixed(session, (2,))


def _less_mean_of_batch(x: Any) -> Any:
    return x - ow.expr.reduce_mean(x, axes=[0], keep_dimensions=True)


def _less_mean_of_row(x: Any) -> Any:
    return x - ow.expr.reduce_mean(x, axes=[1], keep_dimensions=True)


def _turned(x: Any) -> Any:
    rows, columns = x.shape
    return ow.expr.compute((rows, columns), lambda i, k: x[rows - 1 - i, k])


def _numbered(x: Any) -> Any:
    return ow.expr.compute(x.shape, lambda i, k: x[i, k] * ow.expr.cast(i, "float32"))


def _divided(x: Any) -> Any:
    return x / x.shape[0]


@pytest.mark.parametrize(
    ("formula", "is_apart"),
    [(_less_mean_of_batch, False), (_less_mean_of_row, True), (_turned, False), (_numbered, False), (_divided, False)],
)
def test_batch_axis_of_expressions_follows_decomposition(formula: Any, is_apart: bool) -> None:
    ow.onnx.register_onnx("test.formulas", formula.__name__[1:], ow.expression(formula))
    text = '<ir_version: 8, opset_import: ["": 17, "test.formulas": 1]> g (float[n, 2] x) => (float[n, 2] y)'
    text += f"{{ y = test.formulas.{formula.__name__[1:]} (x) }}"
    session = InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    assert (why_mixed(session, (2,)) == "") == is_apart


@pytest.mark.long(rows=3)
@pytest.mark.parametrize("specialise", ["never", "always"])
@pytest.mark.parametrize("first", range(0, 160, 20))
def test_rows_of_random_graphs_stay_apart(first: int, specialise: Any) -> None:
    proved = 0
    for seed in range(first, first + (20 if specialise == "never" else 4)):
        graph = random_graph(seed)
        outputs = [name for name, (one, other) in graph.values.items() if (*one, 0)[0] == 3 and (*other, 0)[0] == 4]
        session = InferenceSession(graph.model(outputs[-1]), specialise=specialise)
        if any(why_mixed(session, graph.rest, rows=4, part=part) for part in (1, 3)):
            continue
        proved += 1
        random = np.random.default_rng(seed)
        x = random.standard_normal((4, *graph.rest)).astype(np.float32)
        (whole,) = session.run(None, {"x": x})
        for row, fill in zip((0, 1, 2, 3, 0), (1e30, np.nan, np.inf, -7, -np.inf), strict=True):
            others = np.where(np.arange(4).reshape(4, *[1] * len(graph.rest)) == row, x, np.float32(fill))
            (changed,) = session.run(None, {"x": others})
            np.testing.assert_array_equal(changed[row], whole[row], err_msg=f"seed {seed}: {graph.nodes}")
            (alone,) = session.run(None, {"x": x[row : row + 1]})
            np.testing.assert_allclose(
                alone[0], whole[row], rtol=1e-3, atol=1e-4, err_msg=f"seed {seed}: {graph.nodes}"
            )
    assert proved >= (8 if specialise == "never" else 1)


# Ordinary networks ----------------------------------------------------------------------------------------------------


class Network:
    """An ONNX model in the making: exporters compute shapes in the graph, as it does."""

    def __init__(self, **inputs: tuple[int, list[Any]]) -> None:
        self.inputs = [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()]
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._random, self._numbers = np.random.default_rng(6), count()

    def add(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        name = f"v{next(self._numbers)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, domain=domain, **attributes))
        return name

    def constant(self, array: Any) -> str:
        """Add a constant, and return its name."""
        name = f"c{next(self._numbers)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def random(self, *shape: int) -> str:
        """Add random weights, and return their name."""
        return self.constant((self._random.standard_normal(shape) / 4).astype(np.float32))

    def size(self, value: str, axis: int) -> str:
        """The size of an axis, as a vector."""
        gathered = self.add("Gather", self.add("Shape", value), self.constant(np.int64(axis)))
        return self.add("Unsqueeze", gathered, self.constant(np.int64([0])))

    def reshape(self, value: str, *sizes: str | int) -> str:
        """A reshape to sizes that are numbers, or computed."""
        parts = [size if isinstance(size, str) else self.constant(np.int64([size])) for size in sizes]
        return self.add("Reshape", value, self.add("Concat", *parts, axis=0))

    def dense(self, value: str, taken: int, given: int) -> str:
        """A product by weights, and a bias."""
        return self.add("Add", self.add("MatMul", value, self.random(taken, given)), self.random(given))

    def convolution(self, value: str, taken: int, given: int, **attributes: Any) -> str:
        """A convolution, normalised, with an activation as YOLO has it."""
        made = self.add("Conv", value, self.random(given, taken, 3, 3), pads=[1, 1, 1, 1], **attributes)
        ones = self.constant(np.ones(given, np.float32))
        made = self.add("BatchNormalization", made, ones, self.random(given), self.random(given), ones)
        return self.add("Mul", made, self.add("Sigmoid", made))

    def session(self, *outputs: str, **options: Any) -> InferenceSession:
        """A session for the network."""
        infos = [helper.make_empty_tensor_value_info(output) for output in outputs]
        graph = helper.make_graph(self.nodes, "network", self.inputs, infos, self.weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8))
        return InferenceSession(model.SerializeToString(), **options)


def bert() -> InferenceSession:
    """A sentence encoder: embeddings, attention with a mask, a feed-forward network, and mean of the words."""
    n = Network(ids=(TensorProto.INT64, ["batch", "length"]), mask=(TensorProto.INT64, ["batch", "length"]))
    x = n.add("Gather", n.random(30, 16), "ids")
    last = n.size("ids", 1)
    places = n.add("Slice", n.constant(np.arange(64)[None]), n.constant([0]), last, n.constant([1]))
    x = n.add("Add", x, n.add("Gather", n.random(64, 16), places))
    wide = n.add("Unsqueeze", "mask", n.constant([1, 2]))
    bias = n.add(
        "Mul", n.add("Sub", n.constant(np.float32(1)), n.add("Cast", wide, to=1)), n.constant(np.float32(-1e4))
    )
    for _ in range(2):
        heads = []
        for _ in range(3):
            split = n.reshape(n.dense(x, 16, 16), n.size(x, 0), n.size(x, 1), 4, 4)
            heads.append(n.add("Transpose", split, perm=[0, 2, 1, 3]))
        scores = n.add("MatMul", heads[0], n.add("Transpose", heads[1], perm=[0, 1, 3, 2]))
        scores = n.add("Softmax", n.add("Add", scores, bias), axis=-1)
        joined = n.add("Transpose", n.add("MatMul", scores, heads[2]), perm=[0, 2, 1, 3])
        x = n.add("Add", x, n.dense(n.reshape(joined, n.size(joined, 0), n.size(joined, 1), 16), 16, 16))
        x = n.add("LayerNormalization", x, n.random(16), n.random(16), axis=-1)
        half = n.add("Erf", n.dense(x, 16, 32))
        x = n.add("Add", x, n.dense(half, 32, 16))
    weights = n.add("Cast", n.add("Expand", n.add("Unsqueeze", "mask", n.constant([2])), n.add("Shape", x)), to=1)
    total = n.add("ReduceSum", n.add("Mul", x, weights), n.constant([1]), keepdims=0)
    mean = n.add(
        "Div",
        total,
        n.add("Clip", n.add("ReduceSum", weights, n.constant([1]), keepdims=0), n.constant(np.float32(1e-9))),
    )
    return n.session(
        n.add("Div", mean, n.add("Expand", n.add("ReduceL2", mean, axes=[1], keepdims=1), n.add("Shape", mean)))
    )


def vision_transformer() -> InferenceSession:
    """Patches, a token that is copied for each image, one layer of attention, and a classifier."""
    n = Network(x=(TensorProto.FLOAT, ["n", 3, 16, 16]))
    patches = n.add("Conv", "x", n.random(8, 3, 4, 4), strides=[4, 4])
    patches = n.add("Transpose", n.reshape(patches, n.size(patches, 0), 8, -1), perm=[0, 2, 1])
    shape = n.add("Concat", n.size("x", 0), n.constant([-1]), n.constant([-1]), axis=0)
    ones = n.add("ConstantOfShape", n.constant([3]), value=numpy_helper.from_array(np.int64([1])))
    chosen = n.add("Where", n.add("Equal", shape, n.constant([-1])), ones, shape)
    x = n.add("Concat", n.add("Expand", n.random(1, 1, 8), chosen), patches, axis=1)
    x = n.add("Add", x, n.random(1, 17, 8))
    flat = n.reshape(x, -1, 8)  # as a layer of all words of all images
    keys = n.reshape(n.add("Gemm", flat, n.random(8, 8), n.random(8)), n.size(x, 0), n.size(x, 1), 8)
    scores = n.add("Softmax", n.add("MatMul", keys, n.add("Transpose", keys, perm=[0, 2, 1])), axis=-1)
    x = n.add("MatMul", scores, x)
    return n.session(n.dense(n.add("Gather", x, n.constant(np.int64(0)), axis=1), 8, 5))


def yolo() -> InferenceSession:
    """Two scales, of which the coarse one is enlarged and joined, and boxes of both in one list."""
    n = Network(images=(TensorProto.FLOAT, ["batch", 3, "height", "width"]))
    fine = n.convolution(n.convolution("images", 3, 4, strides=[2, 2]), 4, 4)
    one, other = (
        n.add("Slice", fine, *map(n.constant, ([0], [2], [1]))),
        n.add("Slice", fine, *map(n.constant, ([2], [4], [1]))),
    )
    fine = n.add("Concat", one, n.convolution(other, 2, 2), axis=1)
    coarse = n.convolution(fine, 4, 4, strides=[2, 2])
    pooled = n.add("MaxPool", coarse, kernel_shape=[5, 5], pads=[2, 2, 2, 2])
    coarse = n.convolution(n.add("Concat", coarse, pooled, axis=1), 8, 4)
    scales = n.constant(np.float32([1, 1, 2, 2]))
    fine = n.add("Concat", n.add("Resize", coarse, "", scales, mode="nearest"), fine, axis=1)
    lists = [n.reshape(n.convolution(v, size, 20), n.size(v, 0), 20, -1) for v, size in ((fine, 8), (coarse, 4))]
    boxes = n.add("Concat", *lists, axis=2)
    spread = n.reshape(n.add("Slice", boxes, *map(n.constant, ([0], [16], [1]))), n.size(boxes, 0), 4, 4, -1)
    spread = n.add("Softmax", n.add("Transpose", spread, perm=[0, 2, 1, 3]), axis=1)
    weights = n.constant(np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1))
    places = n.reshape(n.add("Conv", spread, weights), n.size(boxes, 0), 4, -1)
    classes = n.add("Sigmoid", n.add("Slice", boxes, *map(n.constant, ([16], [20], [1]))))
    return n.session(n.add("Concat", places, classes, axis=1))


def recurrent() -> InferenceSession:
    """A bidirectional LSTM whose states are zeros for each row, over words, and the last word."""
    n = Network(x=(TensorProto.FLOAT, ["n", "length", 3]))
    words = n.add("Transpose", "x", perm=[1, 0, 2])
    sizes = n.add("Concat", n.constant([2]), n.size("x", 0), n.constant([4]), axis=0)
    zeros = n.add("ConstantOfShape", sizes)
    y = n.add(
        "LSTM",
        words,
        n.random(2, 16, 3),
        n.random(2, 16, 4),
        n.random(2, 32),
        "",
        zeros,
        zeros,
        hidden_size=4,
        direction="bidirectional",
    )
    y = n.add("Transpose", y, perm=[2, 0, 1, 3])
    return n.session(n.dense(n.reshape(y, n.size(y, 0), n.size(y, 1), 8), 8, 2))


def perceptron() -> InferenceSession:
    n = Network(x=(TensorProto.FLOAT, ["n", 6]))
    hidden = n.add("Relu", n.add("Gemm", "x", n.random(5, 6), n.random(5), transB=1))
    return n.session(n.add("Softmax", n.dense(hidden, 5, 3), axis=1), n.add("ArgMax", hidden, axis=1, keepdims=0))


def trees() -> InferenceSession:
    """What scikit-learn's converter makes of a scaler and a forest, which runs on the engine."""
    n = Network(x=(TensorProto.FLOAT, ["n", 2]))
    scaled = n.add("Scaler", "x", domain="ai.onnx.ml", offset=[0.0, 1.0], scale=[1.0, 0.5])
    of_nodes = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3}
    of_nodes |= {
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
    }
    of_leaves = {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0]}
    made = n.add(
        "TreeEnsembleRegressor",
        scaled,
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_values=[0.1, 0.0, 0.0],
        **of_nodes,
        **of_leaves,
    )
    return n.session(made)


def pytorch() -> Iterator[InferenceSession]:
    """Encoders that PyTorch has exported, whose words come before the batch inside."""
    for path in sorted(TRANSFORMERS.glob("encoder-*.onnx")):
        yield InferenceSession(str(path))


@pytest.mark.parametrize(
    ("made", "shapes"),
    [
        (bert, [(5,), (5,)]),
        (bert, [(1,), (1,)]),
        (vision_transformer, [(3, 16, 16)]),
        (yolo, [(3, 32, 64)]),
        (yolo, [(3, 8, 8)]),
        (recurrent, [(4, 3)]),
        (recurrent, [(1, 3)]),
        (perceptron, [(6,)]),
        (trees, [(2,)]),
    ],
)
def test_ordinary_networks_are_proved(made: Any, shapes: list[tuple[int, ...]]) -> None:
    session = made()
    for rows, part in ((2, 1), (8, 1), (5, 2)):
        assert why_mixed(session, *shapes, rows=rows, part=part) == ""
    random = np.random.default_rng(8)
    types = [np.int64 if argument.dtype.kind == "i" else np.float32 for argument in session._parts.inputs]
    feed = {
        argument.name: random.integers(0, 2, (3, *shape)).astype(dtype)
        for argument, shape, dtype in zip(session._parts.inputs, shapes, types, strict=True)
    }
    for whole, alone in zip(
        session.run(None, feed), session.run(None, {n: a[1:2] for n, a in feed.items()}), strict=True
    ):
        np.testing.assert_allclose(whole[1:2], alone, rtol=1e-4, atol=1e-5)


def test_encoders_of_pytorch_are_proved() -> None:
    for session in pytorch():
        assert why_mixed(session, (7,), (7,)) == ""


def test_batch_axis_rejects_fixed_batch_size() -> None:
    """A table with an entry for each row: the model takes one size of a batch, although its input says otherwise."""
    n = Network(x=(TensorProto.FLOAT, ["n", 3]))
    session = n.session(n.add("Add", "x", n.constant(np.ones((4, 3), np.float32))), specialise="never")
    assert "has a value for each row of the batch" in why_mixed(session, (3,), rows=4, part=1)
    n = Network(x=(TensorProto.FLOAT, ["n", 3]))
    session = n.session(n.add("Reshape", "x", n.constant([1, -1])), specialise="never")
    assert why_mixed(session, (3,), rows=4, part=2)
