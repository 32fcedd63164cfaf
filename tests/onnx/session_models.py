"""Small models, sessions of them, and the messages of what they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import opweave as ow

CONTEXT = ow.ml.create_context(device="cpu")
FLOAT, BOOL, STRING, DOUBLE = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.STRING, TensorProto.DOUBLE

Value = tuple[str, int, Sequence[Any] | None]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value | onnx.ValueInfoProto],
    outputs: Sequence[Value | onnx.ValueInfoProto],
    **initializers: np.ndarray,
) -> onnx.ModelProto:
    def info(value: Value | onnx.ValueInfoProto) -> onnx.ValueInfoProto:
        return value if isinstance(value, onnx.ValueInfoProto) else helper.make_tensor_value_info(*value)

    graph = helper.make_graph(
        nodes,
        "test",
        [info(value) for value in inputs],
        [info(value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def session(proto: onnx.ModelProto, **options: Any) -> ow.InferenceSession:
    return ow.InferenceSession(proto, CONTEXT, **options)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def sum_model(shape: Sequence[Any] = ("batch", 3)) -> onnx.ModelProto:
    """One output, z = relu(x + y)."""
    nodes = [node("Add", "x y", "s"), node("Relu", "s", "z")]
    return model(nodes, [("x", FLOAT, shape), ("y", FLOAT, shape)], [("z", FLOAT, shape)])


def mixed_model(shape: Sequence[Any] = (4, 64)) -> onnx.ModelProto:
    """WebNN, then fallback (WebNN has no float64), and that twice."""
    nodes = [node("Relu", "x", "a"), node("Cast", "a", "d", to=DOUBLE), node("Cast", "d", "b", to=FLOAT)]
    nodes += [node("Add", "b x", "c"), node("Cast", "c", "e", to=DOUBLE), node("Cast", "e", "f", to=FLOAT)]
    nodes += [node("Neg", "f", "z")]
    return model(nodes, [("x", FLOAT, shape)], [("z", FLOAT, shape)])


X: np.ndarray = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
Y: np.ndarray = np.array([[-1, 1, 1], [1, -9, 1]], np.float32)


def message(run: Any, error: type[ow.MLError] = ow.ValidationError) -> str:
    with pytest.raises(error) as raised:
        run()
    return str(raised.value)
