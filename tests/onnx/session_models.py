"""Small models, sessions of them, and the messages of what they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from support.onnx import FLOAT, STRING, model, node

import opweave as ow

CONTEXT = ow.ml.create_context(device="cpu")


def session(proto: onnx.ModelProto, **options: Any) -> ow.InferenceSession:
    return ow.InferenceSession(proto, CONTEXT, **options)


def sum_model(shape: Sequence[Any] = ("batch", 3)) -> onnx.ModelProto:
    """One output, z = relu(x + y)."""
    nodes = [node("Add", "x y", "s"), node("Relu", "s", "z")]
    return model(nodes, [("x", FLOAT, shape), ("y", FLOAT, shape)], [("z", FLOAT, shape)])


def mixed_model(shape: Sequence[Any] = (4, 64)) -> onnx.ModelProto:
    """WebNN, then fallback (WebNN has no strings), and that twice."""
    nodes = [node("Relu", "x", "a"), node("Cast", "a", "d", to=STRING), node("Cast", "d", "b", to=FLOAT)]
    nodes += [node("Add", "b x", "c"), node("Cast", "c", "e", to=STRING), node("Cast", "e", "f", to=FLOAT)]
    nodes += [node("Neg", "f", "z")]
    return model(nodes, [("x", FLOAT, shape)], [("z", FLOAT, shape)])


X: np.ndarray = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
Y: np.ndarray = np.array([[-1, 1, 1], [1, -9, 1]], np.float32)


def message(run: Any, error: type[ow.MLError] = ow.ValidationError) -> str:
    with pytest.raises(error) as raised:
        run()
    return str(raised.value)
