"""Operators that read or replace elements by index, with random types, shapes and attributes, against ONNX Runtime.

Where the engine has no kernel, ONNX's reference is the witness.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from support.every_device import DEVICES, context_on
from support.onnx_nodes import node_model

import opweave as ow

TYPES = ("float32", "float16", "int32", "int64", "int8", "uint8", "uint32", "uint64", "bool")
BLOCKS, BLOCK = 20, 10

Form = tuple[list[np.ndarray], dict[str, Any], int, tuple[int, ...]]
"""Inputs, attributes, the operator set, and which inputs are not constant."""


class Draw:
    """Random parts of a node."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape = [int(size) for size in self.rng.choice([1, 2, 3, 5, 7], self.integer(2, 4))]
        self.axis = self.integer(0, len(self.shape) - 1)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high, endpoint=True))

    def choice(self, *options: str) -> str:
        return options[self.integer(0, len(options) - 1)]

    def signed_axis(self) -> int:
        return self.axis - self.integer(0, 1) * len(self.shape)

    def array(self, data_type: str, shape: Any) -> np.ndarray:
        if data_type.startswith("float"):
            return self.rng.normal(size=shape).astype(data_type)
        low, high = (0, 2) if data_type == "bool" else (0 if data_type.startswith("u") else -9, 10)
        return self.rng.integers(low, high, shape).astype(data_type)

    def data(self) -> np.ndarray:
        return self.array(self.choice(*TYPES), self.shape)


def reverse_sequence(draw: Draw) -> Form:
    batch = draw.integer(0, 1)
    lengths = draw.rng.integers(1, draw.shape[1 - batch] + 1, draw.shape[batch])
    return [draw.data(), lengths], {"batch_axis": batch, "time_axis": 1 - batch}, 10, (0, 1)


def one_hot(draw: Draw) -> Form:
    depth, (index_type, depth_type) = draw.integer(1, 7), (("int64", "int64"), ("int32", "int32"))[draw.integer(0, 1)]
    # The engine has no kernel for some of int32, and ONNX's reference wraps around what is out of range.
    beyond = 2 if index_type == "int64" else 0
    indices = draw.rng.integers(-depth - beyond, depth + beyond, draw.shape[: draw.integer(1, 2)]).astype(index_type)
    values = draw.rng.integers(0, 9, 2).astype(draw.choice("float32", "int32", "int64"))
    inputs = [indices, np.array(depth, depth_type), values]
    return inputs, {"axis": draw.integer(-2, 1)}, 11, (0,) if draw.integer(0, 1) else (0, 2)


def hardmax(draw: Draw) -> Form:
    data = draw.rng.integers(-3, 3, draw.shape).astype("float32")
    return [data], {"axis": draw.axis}, (1, 11, 13)[draw.integer(0, 2)], (0,)


def gather(draw: Draw) -> Form:
    size = draw.shape[draw.axis]
    indices = draw.rng.integers(-size, size, (2, 3)).astype(draw.choice("int32", "int64"))
    return [draw.data(), indices], {"axis": draw.signed_axis()}, 13, (0, 1)


def gather_elements(draw: Draw) -> Form:
    counts = [6 if d == draw.axis else draw.integer(1, size) for d, size in enumerate(draw.shape)]
    size = draw.shape[draw.axis]
    return [draw.data(), draw.rng.integers(-size, size, counts)], {"axis": draw.signed_axis()}, 13, (0, 1)


def gather_nd(draw: Draw) -> Form:
    batches = draw.integer(0, len(draw.shape) - 1)
    sizes = draw.shape[batches : batches + draw.integer(1, len(draw.shape) - batches)]
    columns = [draw.rng.integers(-size, size, [*draw.shape[:batches], 3]) for size in sizes]
    return [draw.data(), np.stack(columns, -1)], {"batch_dims": batches}, 13, (0, 1)


def scatter_elements(draw: Draw) -> Form:
    data, size = draw.data(), draw.shape[draw.axis]
    places = draw.rng.permutation(size)[: draw.integer(1, size)]
    counts = [len(places) if d == draw.axis else draw.integer(1, size) for d, size in enumerate(draw.shape)]
    line = places.reshape([-1 if d == draw.axis else 1 for d in range(len(draw.shape))])
    updates = draw.array(data.dtype.name, counts)
    return (
        [data, np.ascontiguousarray(np.broadcast_to(line, counts)), updates],
        {"axis": draw.signed_axis()},
        18,
        (0, 1, 2),
    )


def tensor_scatter(draw: Draw) -> Form:
    data = draw.data()
    axis = max(draw.axis, 1)
    size, count = draw.shape[axis], draw.integer(1, draw.shape[axis])
    mode = draw.choice("linear", "circular")
    start = draw.rng.integers(0, size - count + 1 if mode == "linear" else size, draw.shape[0])
    update = draw.array(data.dtype.name, [*draw.shape[:axis], count, *draw.shape[axis + 1 :]])
    return [data, update, start], {"mode": mode, "axis": axis - draw.integer(0, 1) * len(draw.shape)}, 24, (0, 1, 2)


def compress(draw: Draw) -> Form:
    marks = draw.rng.integers(0, 2, draw.shape[draw.axis]).astype(bool)
    marks[draw.integer(0, len(marks) - 1)] = True
    return [draw.data(), marks], {"axis": draw.signed_axis()}, 11, (0,)


FORMS: dict[str, Callable[[Draw], Form]] = {
    "Compress": compress,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Hardmax": hardmax,
    "OneHot": one_hot,
    "ReverseSequence": reverse_sequence,
    "ScatterElements": scatter_elements,
    "TensorScatter": tensor_scatter,
}


def expected_of(model: Any, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        engine = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return list(ReferenceEvaluator(model).run(None, feed))
    return list(engine.run(None, feed))


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op_type", FORMS)
def test_nodes_equal_their_witness(op_type: str, device: str, block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        inputs, attributes, opset, dynamic = FORMS[op_type](Draw(seed))
        model, feed = node_model(op_type, inputs, attributes, opset=opset, dynamic=dynamic)
        results = ow.InferenceSession(model, context_on(device), fallback="error").run(None, feed)
        for result, expected in zip(results, expected_of(model, feed), strict=True):
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected, err_msg=f"{op_type} {seed}: {attributes}")
