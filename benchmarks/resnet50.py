"""ResNet-50 (batch 1, batch normalisation folded, random weights): a graph against ONNX Runtime on the graph's export."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import opweave as ow

from .measure import Way, alternate, processes
from .models import ENGINES, photograph
from .rows import Row, dispatched

SHAPE = (1, 3, 224, 224)


class Layers(Protocol):
    """The five operations that ResNet-50 is made of."""

    def conv(self, x: Any, weights: np.ndarray, bias: np.ndarray, stride: int, padding: int) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def add(self, a: Any, b: Any) -> Any: ...
    def max_pool(self, x: Any) -> Any: ...
    def classify(self, x: Any, weights: np.ndarray, bias: np.ndarray) -> Any: ...


def network(make: Layers, x: Any, weights: Iterator[np.ndarray]) -> Any:
    """ResNet-50 v1.5, https://arxiv.org/abs/1512.03385, table 1."""

    def conv(x: Any, stride: int = 1, padding: int = 0) -> Any:
        return make.conv(x, next(weights), next(weights), stride, padding)

    x = make.max_pool(make.relu(conv(x, stride=2, padding=3)))
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = make.relu(conv(x))
            y = make.relu(conv(y, stride=stride, padding=1))
            y = conv(y)
            x = make.relu(make.add(y, x if block else conv(x, stride=stride)))
    return make.classify(x, next(weights), next(weights))


def weight_shapes() -> list[tuple[int, ...]]:
    """The shapes of all weights and biases, in the order in which `network` takes them."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            for shape in ((width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, shape[:1]]
            if not block:
                shapes += [(4 * width, channels, 1, 1), (4 * width,)]
            channels = 4 * width
    return [*shapes, (channels, 1000), (1000,)]


def random_weights() -> Iterator[np.ndarray]:
    random = np.random.default_rng(0)
    for shape in weight_shapes():
        # Scaled so that values neither grow nor vanish over fifty layers.
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1e6
        yield random.standard_normal(shape, "float32") * np.float32(1 / np.sqrt(fan_in))


def stored_weights(path: Path) -> Iterator[np.ndarray]:
    """Memory-mapped views of all weights in a file."""
    data, at = np.load(path, mmap_mode="r"), 0
    for shape in weight_shapes():
        size = int(np.prod(shape))
        yield data[at : at + size].reshape(shape)
        at += size


class WithBuilder:
    """Layers as operations of an `MLGraphBuilder`."""

    def __init__(self, builder: Any) -> None:
        self.b = builder

    def conv(self, x: Any, weights: np.ndarray, bias: np.ndarray, stride: int, padding: int) -> Any:
        b = self.b
        pads, strides = (padding,) * 4, (stride, stride)
        return b.conv2d(x, b.constant(weights), padding=pads, strides=strides, bias=b.constant(bias))

    def relu(self, x: Any) -> Any:
        return self.b.relu(x)

    def add(self, a: Any, b: Any) -> Any:
        return self.b.add(a, b)

    def max_pool(self, x: Any) -> Any:
        return self.b.max_pool2d(x, window_dimensions=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))

    def classify(self, x: Any, weights: np.ndarray, bias: np.ndarray) -> Any:
        b = self.b
        pooled = b.reshape(b.average_pool2d(x), (x.shape[0], weights.shape[0]))
        return b.gemm(pooled, b.constant(weights), c=b.constant(bias))


def graph(context: ow.MLContext, weights: Iterator[np.ndarray]) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    return builder.build({"y": network(WithBuilder(builder), builder.input("x", "float32", SHAPE), weights)})


def built(path: Path) -> tuple[Way, list[np.ndarray]]:
    """A dispatch of the graph of stored weights, and the arrays that it writes."""
    context = ow.ml.create_context(device="cpu")
    run, outputs = dispatched(graph(context, stored_weights(path)), context, {"x": photograph(SHAPE)})
    return run, [tensor.numpy() for tensor in outputs.values()]


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "resnet50.onnx")
        np.save(path.with_suffix(".npy"), np.concatenate([w.reshape(-1) for w in random_weights()]))
        ow.onnx.save(graph(ow.ml.create_context(device="cpu"), random_weights()), path)
        made = {engine: ENGINES[engine](path) for engine in ("builder", "onnxruntime")}
        times = alternate({engine: run for engine, (run, _) in made.items()}, seconds=0.5)
        np.testing.assert_allclose(made["builder"][1][0], made["onnxruntime"][1][0], rtol=1e-3, atol=1e-4)
        del made
        found = processes("benchmarks.models", {engine: (engine, str(path)) for engine in ENGINES})
    ours, one_file, theirs = found["builder"], found["opweave"], found["onnxruntime"]
    what, ort = "ResNet-50 b1, ONNX with its weights in the file, peak memory", "ONNX Runtime"
    return [
        Row.of("ResNet-50 b1, run", "ms", times["builder"], times["onnxruntime"], f"{ort}, bound", "net"),
        Row.of("ResNet-50 b1, build", "ms", ours["seconds"], theirs["seconds"], "session creation", "build"),
        Row.of("ResNet-50 b1, peak memory", "MiB", ours["peak_mib"], theirs["peak_mib"], ort, "memory"),
        Row.of(what, "MiB", one_file["peak_mib"], theirs["peak_mib"], ort, "memory"),
    ]
