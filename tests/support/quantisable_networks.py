"""Small networks of several kinds, to quantise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto

from .onnx import model, node

RANDOM = np.random.default_rng(5)


def normal(*shape: int, scale: float | None = None) -> np.ndarray:
    """Weights of a layer whose results have the size of its inputs."""
    terms = int(np.prod(shape[1:])) if len(shape) != 2 else shape[0]
    factor = 1 / np.sqrt(terms) if scale is None else scale
    return (RANDOM.standard_normal(shape) * factor).astype(np.float32)


def convolutions(opset: int = 17) -> ModelProto:
    """A classifier as MobileNet is one: a dense, a depthwise and a pointwise convolution, and a product."""
    nodes = [
        node("Conv", "image stem stem_bias", "a", pads=[1, 1, 1, 1], name="stem"),
        node("Relu", "a", "b", name="stem/relu"),
        node("Conv", "b depthwise", "c", pads=[1, 1, 1, 1], group=32, name="depthwise"),
        node("BatchNormalization", "c scale shift mean variance", "d", name="norm"),
        node("Relu", "d", "e", name="norm/relu"),
        node("Conv", "e pointwise", "f", name="pointwise"),
        node("Relu", "f", "g", name="pointwise/relu"),
        node("GlobalAveragePool", "g", "h", name="pool"),
        node("Flatten", "h", "i", name="flatten"),
        node("Gemm", "i classes classes_bias", "scores", transB=1, name="classify"),
    ]
    constants = {
        "stem": normal(32, 3, 3, 3),
        "stem_bias": normal(32, scale=0.1),
        "depthwise": normal(32, 1, 3, 3),
        "scale": np.abs(normal(32, scale=1.0)) + 0.5,
        "shift": normal(32, scale=0.1),
        "mean": normal(32, scale=0.1),
        "variance": np.abs(normal(32, scale=1.0)) + 0.5,
        "pointwise": normal(96, 32, 1, 1),
        "classes": normal(80, 96, scale=0.1),
        "classes_bias": normal(80, scale=0.1),
    }
    return model(nodes, {"image": "float32[n, 3, 12, 12]"}, {"scores": "float32[n, 80]"}, constants, opset=opset)


def transformer(opset: int = 17) -> ModelProto:
    """A table of tokens, attention with one head, and a product with the transposed table."""
    nodes = [
        node("Gather", "table ids", "x", name="embed"),
        node("MatMul", "x query", "q", name="query"),
        node("MatMul", "x key", "k", name="key"),
        node("MatMul", "x value", "v", name="value"),
        node("Transpose", "k", "kt", perm=[0, 2, 1], name="turn"),
        node("MatMul", "q kt", "s", name="scores"),
        node("Softmax", "s", "p", axis=-1, name="softmax"),
        node("MatMul", "p v", "o", name="mix"),
        node("Add", "o x", "r", name="residual"),
        node("MatMul", "r up", "u", name="up"),
        node("Relu", "u", "w", name="relu"),
        node("MatMul", "w down", "y", name="down"),
    ]
    constants = {name: normal(64, 64, scale=0.02) for name in ("query", "key")}
    constants |= {
        "value": normal(64, 64),
        "table": normal(500, 64, scale=1.0),
        "up": normal(64, 256),
        "down": normal(256, 64),
    }
    return model(nodes, {"ids": "int64[1, n]"}, {"y": "float32[1, n, 64]"}, constants, opset=opset)


def recurrent(opset: int = 17) -> ModelProto:
    """A recurrent layer, and a transposed convolution behind it."""
    nodes = [
        node("LSTM", "x w r", "all", hidden_size=32, name="lstm"),
        node("Squeeze", "all axis", "s", name="squeeze"),
        node("Transpose", "s", "t", perm=[1, 2, 0], name="turn"),
        node("ConvTranspose", "t up", "y", strides=[2], name="grow"),
    ]
    constants: dict[str, Any] = {"w": normal(1, 128, 48, scale=0.2), "r": normal(1, 128, 32, scale=0.2)}
    constants |= {"up": normal(32, 16, 2, scale=0.2), "axis": np.array([1])}
    return model(nodes, {"x": "float32[n, 1, 48]"}, {"y": "float32[1, 16, m]"}, constants, opset=opset)


NETWORKS: dict[str, Callable[..., ModelProto]] = {
    "convolutions": convolutions,
    "transformer": transformer,
    "recurrent": recurrent,
}


def samples(name: str, count: int = 4) -> list[Mapping[str, np.ndarray]]:
    """Sample inputs of a network."""
    generator = np.random.default_rng(11)
    match name:
        case "convolutions":
            return [{"image": generator.standard_normal((2, 3, 12, 12)).astype(np.float32)} for _ in range(count)]
        case "transformer":
            return [{"ids": generator.integers(0, 500, (1, 9))} for _ in range(count)]
    return [{"x": generator.standard_normal((7, 1, 48)).astype(np.float32)} for _ in range(count)]
