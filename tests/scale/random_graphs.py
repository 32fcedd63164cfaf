"""Random small ONNX graphs over a batch, many of which mix its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SIZES = 3, 4
"""Numbers of rows for which each node is tried: the axes whose sizes differ depend on the batch."""

UNARY = ("Relu", "Sigmoid", "Neg", "Tanh", "Abs", "Softsign", "Erf", "Floor", "Exp")
BINARY = ("Add", "Sub", "Mul", "Max", "Min", "Div")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp")

Shapes = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass
class RandomGraph:
    """A graph that grows by random nodes.

    Attributes:
        random: chooses them.
        values: the names of float32 values, and their shapes for `SIZES`.
    """

    random: np.random.Generator
    values: dict[str, Shapes] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        rest = [(4,), (2, 3), (2, 4, 4)][self.random.integers(3)]
        self.rest = rest
        self.values["x"] = ((SIZES[0], *rest), (SIZES[1], *rest))

    def model(self, output: str) -> bytes:
        """The bytes of a model with one of the values as its output."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *self.rest])
        dims = [
            f"d{k}" if one != other else one for k, (one, other) in enumerate(zip(*self.values[output], strict=True))
        ]
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, dims)
        graph = helper.make_graph(self.nodes, "random", [x], [y], self.weights)
        opsets = [helper.make_opsetid("", 18)]
        data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        return data

    def grow(self) -> None:
        """Add one operation, if ONNX Runtime takes it for both numbers of rows."""
        count, names = (len(self.nodes), len(self.weights)), list(self.values)
        source = names[-1] if self.random.random() < 0.7 else str(self.random.choice(names))
        step = STEPS[self.random.integers(len(STEPS))]
        try:
            result = step(self, source)
            shapes = self._shapes(result)
        except (ValueError, IndexError):  # too few axes
            shapes = None
        if shapes is None or np.prod(shapes[1]) > 20_000 or len(shapes[0]) > 5:
            del self.nodes[count[0] :], self.weights[count[1] :]
        else:
            self.values[result] = shapes

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node, and return the name of its first result."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0]

    def weight(self, array: Any) -> str:
        """Add a constant, and return its name."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def floats(self, *shape: int) -> str:
        """Add a constant of random numbers."""
        return self.weight(self.random.standard_normal(shape).astype(np.float32))

    def axis(self, name: str) -> int:
        """One of the axes of a value."""
        return int(self.random.integers(len(self.values[name][0])))

    def rank(self, name: str) -> int:
        return len(self.values[name][0])

    def _shapes(self, output: str) -> Shapes | None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.values[output] = ((), ())
        try:
            session = onnxruntime.InferenceSession(self.model(output), options, providers=["CPUExecutionProvider"])
            found = [session.run(None, {"x": np.ones((size, *self.rest), np.float32)})[0].shape for size in SIZES]
        except Exception:  # what does not fit is not added
            return None
        finally:
            del self.values[output]
        return (found[0], found[1]) if len(found[0]) == len(found[1]) and 0 not in found[0] else None


def _unary(g: RandomGraph, x: str) -> str:
    return g.add(str(g.random.choice(UNARY)), x)


def _binary(g: RandomGraph, x: str) -> str:
    shapes = g.values[x]
    partners = [name for name, other in g.values.items() if other == shapes]
    kept = [size if g.random.random() < 0.5 else 1 for size in shapes[0]]
    other = str(g.random.choice(partners)) if g.random.random() < 0.6 else g.floats(*kept[g.random.integers(2) :])
    pair = (x, other) if g.random.random() < 0.5 else (other, x)
    return g.add(str(g.random.choice(BINARY)), *pair)


def _reduced(g: RandomGraph, x: str) -> str:
    axes = g.weight(np.int64([g.axis(x)]))
    return g.add(str(g.random.choice(REDUCTIONS)), x, axes, keepdims=int(g.random.integers(2)))


def _centred(g: RandomGraph, x: str) -> str:
    axes = g.weight(np.int64([g.axis(x)]))
    return g.add("Sub", x, g.add("ReduceMean", x, axes, keepdims=1))


def _softmax(g: RandomGraph, x: str) -> str:
    return g.add(str(g.random.choice(["Softmax", "LogSoftmax", "Hardmax"])), x, axis=g.axis(x))


def _running(g: RandomGraph, x: str) -> str:
    return g.add("CumSum", x, g.weight(np.int64(g.axis(x))), reverse=int(g.random.integers(2)))


def _transposed(g: RandomGraph, x: str) -> str:
    return g.add("Transpose", x, perm=[int(axis) for axis in g.random.permutation(g.rank(x))])


def _reshaped(g: RandomGraph, x: str) -> str:
    shape = g.values[x][0]
    choices = [
        [0, -1],
        [-1],
        [-1, shape[-1]],
        [-1, 2],
        [0, -1, 2],
        [2, -1],
        [shape[0], -1],
        [*[0] * (len(shape) - 1), 2, -1],
    ]
    if len(shape) > 2:
        choices += [[-1, *shape[2:]], [*shape[:1], -1, shape[-1]], [0, -1, shape[-1]]]
    return g.add("Reshape", x, g.weight(np.int64(choices[g.random.integers(len(choices))])))


def _reshaped_by_shape(g: RandomGraph, x: str) -> str:
    """Fold an axis into another one and back, as exporters write it."""
    shape = g.add("Shape", x)
    folded = g.add("Reshape", x, g.weight(np.int64([-1, g.values[x][0][-1]])))
    folded = (
        g.add("Tanh", folded) if g.random.random() < 0.5 else g.add("Softmax", folded, axis=int(g.random.integers(2)))
    )
    return g.add("Reshape", folded, shape)


def _flattened(g: RandomGraph, x: str) -> str:
    return g.add("Flatten", x, axis=int(g.random.integers(3)))


def _matmul(g: RandomGraph, x: str) -> str:
    last = g.values[x][0][-1]
    return g.add("MatMul", x, g.floats(last, int(g.random.integers(1, 5))))


def _matmul_left(g: RandomGraph, x: str) -> str:
    return g.add("MatMul", g.floats(2, g.values[x][0][-2] if g.rank(x) > 1 else 1), x)


def _products(g: RandomGraph, x: str) -> str:
    order = list(range(g.rank(x)))
    order[-1], order[-2:-1] = order[-2] if g.rank(x) > 1 else 0, [order[-1]][: max(g.rank(x) - 1, 0)]
    return g.add("MatMul", x, g.add("Transpose", x, perm=order))


def _gemm(g: RandomGraph, x: str) -> str:
    last = g.values[x][0][-1]
    return g.add("Gemm", x, g.floats(3, last), g.floats(3), transB=1)


def _gemm_transposed(g: RandomGraph, x: str) -> str:
    return g.add("Gemm", x, g.floats(g.values[x][0][0], 3), transA=1)


def _joined(g: RandomGraph, x: str) -> str:
    shapes = g.values[x]
    partners = [name for name, other in g.values.items() if other == shapes]
    return g.add("Concat", x, str(g.random.choice(partners)), axis=g.axis(x))


def _sliced(g: RandomGraph, x: str) -> str:
    axis, last = g.axis(x), [1, 2, 1000, -1][g.random.integers(4)]
    first, step = [(0, 1), (1, 1), (0, 2), (-1, -1)][g.random.integers(4)]
    end = last if step > 0 else -1000
    return g.add("Slice", x, *(g.weight(np.int64([value])) for value in (first, end, axis, step)))


def _split(g: RandomGraph, x: str) -> str:
    return g.add("Split", x, outputs=2, axis=g.axis(x), num_outputs=2)


def _picked(g: RandomGraph, x: str) -> str:
    axis = g.axis(x)
    index = g.random.integers(0, min(g.values[x][0][axis], 2), [(), (1,), (2,), (2, 2)][g.random.integers(4)])
    return g.add("Gather", x, g.weight(np.int64(index)), axis=axis)


def _looked_up(g: RandomGraph, x: str) -> str:
    best = g.add("ArgMax", x, axis=g.axis(x), keepdims=int(g.random.integers(2)))
    return g.add("Gather", g.floats(64, 2), best)


def _elements(g: RandomGraph, x: str) -> str:
    axis = g.axis(x)
    best = g.add("ArgMax", x, axis=axis, keepdims=1)
    return g.add("GatherElements", x, best, axis=axis if g.random.random() < 0.7 else g.axis(x))


def _scattered(g: RandomGraph, x: str) -> str:
    axis = g.axis(x)
    best = g.add("ArgMax", x, axis=axis, keepdims=1)
    updates = g.add("ReduceMax", x, g.weight(np.int64([axis])), keepdims=1)
    return g.add("ScatterElements", x, best, updates, axis=axis)


def _top(g: RandomGraph, x: str) -> str:
    return g.add("TopK", x, g.weight(np.int64([1 + int(g.random.integers(2))])), outputs=2, axis=g.axis(x))


def _padded(g: RandomGraph, x: str) -> str:
    pads = np.zeros((2, g.rank(x)), np.int64)
    pads[g.random.integers(2), g.axis(x)] = 1
    return g.add("Pad", x, g.weight(pads.ravel()), mode=str(g.random.choice(["constant", "edge", "reflect"])))


def _tiled(g: RandomGraph, x: str) -> str:
    times = np.ones(g.rank(x), np.int64)
    times[g.axis(x)] = 2
    return g.add("Tile", x, g.weight(times))


def _expanded(g: RandomGraph, x: str) -> str:
    if g.random.random() < 0.5:
        return g.add("Expand", x, g.weight(np.int64([2, *[1] * g.rank(x)])))
    rest = [1] * (g.rank(x) - 1)
    return g.add("Mul", x, g.add("Expand", g.floats(1, *rest), g.add("Shape", x)))


def _size(g: RandomGraph, x: str) -> str:
    """Divide by a size, or add the numbers of the rows."""
    axis = g.axis(x)
    size = g.add("Gather", g.add("Shape", x), g.weight(np.int64(axis)))
    if g.random.random() < 0.5:
        return g.add("Div", x, g.add("Cast", size, to=TensorProto.FLOAT))
    numbers = g.add("Cast", g.add("Range", g.weight(np.int64(0)), size, g.weight(np.int64(1))), to=TensorProto.FLOAT)
    shape = [1] * g.rank(x)
    shape[axis] = -1
    return g.add("Add", x, g.add("Reshape", numbers, g.weight(np.int64(shape))))


def _normalised(g: RandomGraph, x: str) -> str:
    axis = g.axis(x)
    shape = g.values[x][0][axis:]
    return g.add("LayerNormalization", x, g.floats(*shape), g.floats(*shape), axis=axis)


def _channels(g: RandomGraph, x: str) -> str:
    channels = g.values[x][0][1] if g.rank(x) > 1 else 1
    if g.random.random() < 0.5:
        return g.add("InstanceNormalization", x, g.floats(channels), g.floats(channels))
    variance = g.weight(np.ones(channels, np.float32))
    return g.add("BatchNormalization", x, *(g.floats(channels) for _ in range(3)), variance)


def _convolved(g: RandomGraph, x: str) -> str:
    channels = g.values[x][0][1] if g.rank(x) > 1 else 1
    taps = [2] * (g.rank(x) - 2)
    op, shape = ("Conv", (3, channels)) if g.random.random() < 0.7 else ("ConvTranspose", (channels, 3))
    return g.add(op, x, g.floats(*shape, *taps))


def _pooled(g: RandomGraph, x: str) -> str:
    return g.add(str(g.random.choice(["MaxPool", "AveragePool"])), x, kernel_shape=[2] * (g.rank(x) - 2))


def _resized(g: RandomGraph, x: str) -> str:
    scales = np.ones(g.rank(x), np.float32)
    scales[-2:] = 2
    return g.add("Resize", x, "", g.weight(scales), mode=str(g.random.choice(["nearest", "linear"])))


def _quantised(g: RandomGraph, x: str) -> str:
    y = g.add("DynamicQuantizeLinear", x, outputs=3)
    return g.add("DequantizeLinear", y, y.replace("_0", "_1"), y.replace("_0", "_2"))


def _chosen(g: RandomGraph, x: str) -> str:
    limit = g.add("ReduceMean", x, g.weight(np.int64([g.axis(x)])), keepdims=1)
    return g.add("Where", g.add("Greater", x, limit), x, g.weight(np.float32(0)))


def _recurrent(g: RandomGraph, x: str) -> str:
    last = g.values[x][0][-1]
    op, gates = [("GRU", 3), ("LSTM", 4), ("RNN", 1)][g.random.integers(3)]
    return g.add(op, x, g.floats(1, 2 * gates, last), g.floats(1, 2 * gates, 2), hidden_size=2, outputs=2)


def _attention(g: RandomGraph, x: str) -> str:
    """Scores between the elements of the axis before the last one."""
    scores = g.add("Softmax", _products(g, x), axis=-1)
    return g.add("MatMul", scores, x)


def _triangle(g: RandomGraph, x: str) -> str:
    return g.add("Trilu", x, upper=int(g.random.integers(2)))


def _einsum(g: RandomGraph, x: str) -> str:
    letters = "nabcd"[: g.rank(x)]
    last = g.values[x][0][-1]
    equations = [f"{letters},{letters[-1]}z->{letters[:-1]}z", f"{letters},{letters[-1]}z->z{letters[:-1]}"]
    equations += [f"{letters},{letters[-1]}z->z"]
    return g.add("Einsum", x, g.floats(last, 2), equation=equations[g.random.integers(3)])


STEPS: list[Callable[[RandomGraph, str], str]] = [
    *(_unary, _binary, _binary, _reduced, _centred, _softmax, _running, _transposed, _transposed, _reshaped, _reshaped),
    *(
        _reshaped_by_shape,
        _flattened,
        _matmul,
        _matmul_left,
        _products,
        _gemm,
        _gemm_transposed,
        _joined,
        _sliced,
        _split,
    ),
    *(
        _picked,
        _looked_up,
        _elements,
        _scattered,
        _top,
        _padded,
        _tiled,
        _expanded,
        _size,
        _normalised,
        _channels,
        _convolved,
    ),
    *(_pooled, _resized, _quantised, _chosen, _recurrent, _attention, _triangle, _einsum),
]


def random_graph(seed: int, length: int = 5) -> RandomGraph:
    """A graph of some nodes; the same one for the same seed."""
    graph = RandomGraph(np.random.default_rng(seed))
    for _ in range(3 * length):
        if len(graph.values) <= length:
            graph.grow()
    return graph


def is_checked(model: bytes) -> bool:
    """Whether ONNX finds nothing wrong with a model."""
    onnx.checker.check_model(onnx.load_from_string(model))
    return True
