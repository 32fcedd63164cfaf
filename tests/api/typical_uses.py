"""What people write, with the types that their editors are to know. Checked by mypy and basedpyright, and run as it is."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal, assert_type

import numpy as np

import opweave as ow
import opweave.onnxruntime as ort
from opweave.inspect.drawing import Drawing
from opweave.inspect.profile import Profile
from opweave.onnxruntime.capi.onnxruntime_pybind11_state import NoSuchFile

NumPy = np.ndarray

context = ow.ml.create_context(device="cpu")
weights = np.ones((2, 3, 3, 3), "float32")
image = np.ones((1, 3, 8, 8), "float32")

# Graphs: arrays and numbers are constants.
builder = ow.MLGraphBuilder(context)
x = builder.input("x", "float32", [1, 3, 8, 8])
assert_type(x, ow.MLOperand)
assert_type(builder.max(x, 0), ow.MLOperand)
assert_type(builder.conv2d(x, weights, padding=[1, 1, 1, 1], bias=np.zeros(2, "float32")), ow.MLOperand)
assert_type(builder.split(x, [1, 2], axis=1), tuple[ow.MLOperand, ...])
assert_type(builder.concat([x, image], 1), ow.MLOperand)
assert_type(x.relu(), ow.MLOperand)
assert_type(x.relu().reshape([3, 64]).softmax(1), ow.MLOperand)
assert_type(x.split(3, axis=1)[0], ow.MLOperand)
assert_type(x + 1, ow.MLOperand)
assert_type(2.0 * x[:, :1], ow.MLOperand)
assert_type(-x @ x, ow.MLOperand)
assert_type(ow.ops.relu(x), ow.MLOperand)
assert_type(ow.ops.add(builder, x, 1.0), ow.MLOperand)
assert_type(ow.ops.add(image, x), ow.MLOperand)
assert_type(x.shape, tuple[int, ...])
assert_type(x.data_type, Literal["float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8"])
assert_type(ow.ops.conv2d.name, str)
y = builder.conv2d(x, weights).relu()
graph = builder.build({"y": y})
assert_type(graph, ow.MLGraph)

# Running.
assert_type(context.compute(graph, {"x": image}), dict[str, NumPy])
tensor = context.create_tensor("float32", [1, 3, 8, 8], readable=True, writable=True)
assert_type(tensor, ow.MLTensor)
context.write_tensor(tensor, image)
assert_type(tensor.numpy(), NumPy)
assert_type(graph.profile(repeat=1), Profile)
assert_type(graph.draw(), Drawing)

# Arrays.
a = ow.array([[1.0, 2.0], [3.0, 4.0]])
assert_type(a, ow.Array)
assert_type(a @ a + 1, ow.Array)
assert_type(a.softmax(1).transpose(), ow.Array)
assert_type(ow.ops.matmul(a, np.ones((2, 2), "float32")), ow.Array)
assert_type(ow.ops.relu(np.ones(3, "float32")), ow.Array)
assert_type(ow.ops.softmax(ow.ops.relu(tensor), 1), ow.Array)
assert_type(ow.ops.split(a, 2), tuple[ow.Array, ...])
assert_type(a.numpy(), NumPy)


@ow.jit
def dense(x: ow.Array, weight: ow.Array, *, scale: float = 1.0) -> ow.Array:
    return (x @ weight * scale).relu()


assert_type(dense(a, a), ow.Array)
assert_type(dense(np.ones((1, 2), "float32"), np.ones((2, 2), "float32"), scale=2.0), ow.Array)


class Layer:
    @ow.jit
    def forward(self, x: ow.Array) -> ow.Array:
        return x.relu()


assert_type(Layer().forward(np.ones(2, "float32")), ow.Array)


# Operations of one's own.
@ow.expression
def swiglu(x: ow.expr.Traced, gate: ow.expr.Traced, *, scale: float = 1.0) -> ow.expr.Traced:
    return x * gate * ow.expr.sigmoid(gate) * scale


@ow.composite
def rms_norm(b: ow.MLGraphBuilder, x: ow.MLOperand, weight: ow.MLOperand, *, epsilon: float = 1e-6) -> ow.MLOperand:
    mean = b.reduce_mean(x * x, axes=[x.rank - 1], keep_dimensions=True)
    return x / b.sqrt(mean + epsilon) * weight


@ow.composite
def halves(b: ow.MLGraphBuilder, x: ow.MLOperand) -> tuple[ow.MLOperand, ...]:
    return b.split(x, 2)


@ow.op
def doubled(self: Any, x: ow.MLOperand, factor: int = 2) -> ow.Desc:
    return x.desc


@doubled.kernel("cpu")
def _(x: NumPy, factor: int, out: NumPy) -> None:
    np.multiply(x, factor, out=out)


row = np.ones(2, "float32")
assert_type(swiglu(row, row), NumPy)
assert_type(swiglu(a, row), ow.Array)
assert_type(swiglu(tensor, tensor), ow.MLTensor)
other = ow.MLGraphBuilder(context)
z = other.input("z", "float32", [2])
assert_type(swiglu(z, row, scale=2.0), ow.MLOperand)
assert_type(rms_norm(a, row), ow.Array)
assert_type(rms_norm(z, row, label="norm"), ow.MLOperand)
assert_type(rms_norm(row, row, epsilon=1e-5), NumPy)
assert_type(halves(row), tuple[NumPy, ...])
assert_type(halves(z), tuple[ow.MLOperand, ...])
assert_type(doubled(row, 3), NumPy)
assert_type(doubled(z), ow.MLOperand)
assert_type(doubled(ow.array(row)), ow.Array)

# ONNX Runtime's names.
options = ort.SessionOptions()
options.intra_op_num_threads = 1
with suppress(NoSuchFile):
    ort.InferenceSession("no.onnx", options, providers=ort.get_available_providers()).run(None, {"x": image})
