"""Networks as ONNX models, operator by operator, as exporters write them: a vision transformer, and a U-Net of diffusion."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Network:
    """An ONNX model under construction; values are names.

    Args:
        seed: of random weights.
    """

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self._random = np.random.default_rng(seed)

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    def integers(self, *values: int) -> str:
        return self.constant("integers_" + "_".join(map(str, values)), np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self.constant(f"number_{value}", np.float32(value))

    def weight(self, *shape: int, fan: int, mean: float = 0) -> str:
        """Random weights, each a part of a sum of `fan` products."""
        array = self._random.normal(mean, fan**-0.5, shape).astype(np.float32)
        return self.constant(f"weight_{len(self.constants)}", array)

    def emit(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def linear(self, x: str, weight: str, bias: str) -> str:
        return self.emit("Add", self.emit("MatMul", x, weight), bias)

    def gelu(self, x: str) -> str:
        erf = self.emit("Add", self.emit("Erf", self.emit("Div", x, self.number(2**0.5))), self.number(1))
        return self.emit("Mul", self.emit("Mul", x, erf), self.number(0.5))

    def save(
        self, path: Path, inputs: Sequence[onnx.ValueInfoProto], output: str, shape: Sequence[int | str], name: str
    ) -> Path:
        """Write the model, whose output gets the name; the path."""
        last = next(node for node in self.nodes if output in node.output)
        last.output[0] = name
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, path.stem, inputs, [result], list(self.constants.values()))
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def vit(path: Path) -> Path:
    """A vision transformer (Dosovitskiy et al., 2021): patches of 16 x 16, 4 layers of 3 heads, 100 classes."""
    size, patch, width, heads, layers, classes = 224, 16, 192, 3, 4, 100
    count = (size // patch) ** 2
    net = Network()

    def linear(x: str, inner: int, outer: int) -> str:
        return net.linear(x, net.weight(inner, outer, fan=inner), net.weight(outer, fan=100))

    def normalised(x: str) -> str:
        scale, bias = net.weight(width, fan=100, mean=1), net.weight(width, fan=100)
        return net.emit("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-6)

    def split(x: str, perm: Sequence[int]) -> str:
        divided = net.emit("Reshape", x, net.integers(0, 0, heads, width // heads))
        return net.emit("Transpose", divided, perm=perm)

    filter = net.weight(width, 3, patch, patch, fan=3 * patch * patch)
    x = net.emit("Conv", "image", filter, net.weight(width, fan=100), strides=[patch, patch])
    x = net.emit("Transpose", net.emit("Reshape", x, net.integers(0, width, count)), perm=[0, 2, 1])
    x = net.emit("Concat", net.weight(1, 1, width, fan=1), x, axis=1)
    x = net.emit("Add", x, net.weight(1, count + 1, width, fan=4))
    for _ in range(layers):
        y = normalised(x)
        q, k, v = (split(linear(y, width, width), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = net.emit("Softmax", net.emit("Mul", net.emit("MatMul", q, k), net.number(0.125)), axis=-1)
        seen = net.emit("Transpose", net.emit("MatMul", scores, v), perm=[0, 2, 1, 3])
        x = net.emit("Add", x, linear(net.emit("Reshape", seen, net.integers(0, 0, width)), width, width))
        x = net.emit("Add", x, linear(net.gelu(linear(normalised(x), width, 4 * width)), 4 * width, width))
    first = net.emit("Gather", normalised(x), net.constant("first", np.int64(0)), axis=1)
    logits = linear(first, width, classes)
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, size, size])
    return net.save(path, [image], logits, [1, classes], "logits")


def unet(path: Path) -> Path:
    """A U-Net as diffusion models have it (Rombach et al., 2022): group normalisation, SiLU, residuals, attention, skips."""
    size, widths, groups = 64, (32, 64, 96), 8
    net = Network()

    def conv(x: str, inner: int, outer: int, taps: int = 3, stride: int = 1) -> str:
        filter = net.weight(outer, inner, taps, taps, fan=inner * taps * taps)
        around = [taps // 2] * 4
        return net.emit("Conv", x, filter, net.weight(outer, fan=100), pads=around, strides=[stride, stride])

    def normalised(x: str, width: int) -> str:
        """Group normalisation, as opset 17 writes it."""
        flat = net.emit("Reshape", x, net.integers(0, groups, -1))
        ones, zeros = (
            net.constant(f"{name}_{groups}", np.full(groups, name == "one", np.float32)) for name in ("one", "zero")
        )
        flat = net.emit("InstanceNormalization", flat, ones, zeros, epsilon=1e-5)
        x = net.emit("Reshape", flat, net.emit("Shape", x))
        scaled = net.emit("Mul", x, net.weight(width, 1, 1, fan=100, mean=1))
        return net.emit("Add", scaled, net.weight(width, 1, 1, fan=100))

    def activated(x: str, width: int) -> str:
        x = normalised(x, width)
        return net.emit("Mul", x, net.emit("Sigmoid", x))

    def residual(x: str, inner: int, outer: int) -> str:
        y = conv(activated(x, inner), inner, outer)
        y = conv(activated(y, outer), outer, outer)
        return net.emit("Add", y, x if inner == outer else conv(x, inner, outer, taps=1))

    def attended(x: str, width: int) -> str:
        y = net.emit("Reshape", normalised(x, width), net.integers(0, width, -1))
        y = net.emit("Transpose", y, perm=[0, 2, 1])
        q, k, v = (net.emit("MatMul", y, net.weight(width, width, fan=width)) for _ in "qkv")
        scores = net.emit("MatMul", q, net.emit("Transpose", k, perm=[0, 2, 1]))
        scores = net.emit("Softmax", net.emit("Mul", scores, net.number(width**-0.5)), axis=-1)
        y = net.emit("MatMul", net.emit("MatMul", scores, v), net.weight(width, width, fan=width))
        return net.emit("Add", x, net.emit("Reshape", net.emit("Transpose", y, perm=[0, 2, 1]), net.emit("Shape", x)))

    x = conv("latent", 4, widths[0])
    skips: list[str] = []
    for inner, outer in itertools.pairwise(widths):
        x = residual(x, inner, inner)
        skips.append(x)
        x = conv(x, inner, outer, stride=2)
    x = residual(attended(residual(x, widths[-1], widths[-1]), widths[-1]), widths[-1], widths[-1])
    for outer, inner in itertools.pairwise(reversed(widths)):
        scales = net.constant("scales", np.float32([1, 1, 2, 2]))
        modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        x = net.emit("Concat", net.emit("Resize", x, "", scales, **modes), skips.pop(), axis=1)
        x = residual(x, outer + inner, inner)
    noise = conv(activated(x, widths[0]), widths[0], 4)
    latent = helper.make_tensor_value_info("latent", TensorProto.FLOAT, [1, 4, size, size])
    return net.save(path, [latent], noise, [1, 4, size, size], "noise")
