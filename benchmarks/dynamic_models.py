"""Models with dynamic dimensions, written as exporters write them, with random weights: what `benchmarks.traffic` runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from .networks import Declared, Feed, Network

Sizes = dict[str, int]
"""The size of each dynamic dimension by name."""

Generator = np.random.Generator

TAIL = 1.4
"""The exponent of Zipf's law, by which calls draw shapes. Of 60 calls, the most frequent shape has 16 to 20, and 15 to 25
shapes come once."""

DOMAIN = "com.example.benchmark"
"""Of the operator that `swish` computes."""


@dataclass(frozen=True)
class DynamicModel:
    """A model, and the sizes of its dimensions in traffic.

    Attributes:
        title: for tables.
        write: writes it to a path.
        inputs: the data type and the shape of each input by name.
        axes: the sizes of each dynamic dimension; none for a decoder, whose texts grow by one token at each call.
        beside: writes what ONNX Runtime runs, if that is another file.
        values: gives the inputs that are no random numbers from a normal distribution.
    """

    title: str
    write: Callable[[Path], Path]
    inputs: Mapping[str, Declared]
    axes: Mapping[str, range]
    beside: Callable[[Path], Path] | None = None
    values: Callable[[Sizes, Generator], Feed] | None = None

    def sizes(self, seed: int, calls: int) -> list[Sizes]:
        """The sizes of each call, the same for the same seed: frequent ones recur, and many come once."""
        random = np.random.default_rng(seed)
        if not self.axes:
            return list(islice(_texts(random), calls))
        ranks = random.zipf(TAIL, calls)
        # A rank always has the same sizes, of which each is as likely: what is frequent need not be small.
        return [_drawn(self.axes, np.random.default_rng([seed, int(rank)])) for rank in ranks]

    def feeds(self, seed: int, calls: int) -> list[Feed]:
        """New arrays for each call."""
        random = np.random.default_rng(seed)
        return [self._feed(sizes, random) for sizes in self.sizes(seed, calls)]

    def _feed(self, sizes: Sizes, random: Generator) -> Feed:
        values = self.values(sizes, random) if self.values else {}
        for name, (dtype, shape) in self.inputs.items():
            if name not in values:
                extents = [size if isinstance(size, int) else sizes[size] for size in shape]
                values[name] = random.standard_normal(extents).astype(dtype)
        return values


def _drawn(axes: Mapping[str, range], random: Generator) -> Sizes:
    return {name: int(random.choice(each)) for name, each in axes.items()}


def _texts(random: Generator) -> Any:
    """The sizes of a decoder's calls: a prompt at once, then token by token, text after text. Short texts are frequent."""
    while True:
        prompt, tokens = int(random.integers(4, 24)), min(int(random.zipf(TAIL)) + 4, 40)
        yield {"tokens": prompt, "past": 0, "all": prompt}
        for past in islice(count(prompt), tokens):
            yield {"tokens": 1, "past": past, "all": past + 1}


# Networks -------------------------------------------------------------------------------------------------------------


def _linear(net: Network, x: str, inputs: int, outputs: int) -> str:
    return net.linear(x, net.weights(inputs, outputs), net.constant(np.zeros(outputs)))


def _normalised(net: Network, x: str, features: int) -> str:
    ones, zeros = net.constant(np.ones(features)), net.constant(np.zeros(features))
    return net("LayerNormalization", x, ones, zeros, axis=-1)


def _swish(net: Network, x: str) -> str:
    return net("Mul", x, net("Sigmoid", x))


def _heads(net: Network, x: str, heads: int, size: int, order: tuple[int, ...] = (0, 2, 1, 3)) -> str:
    """Split [batch, places, features] into heads; batch and places are dynamic."""
    return net("Transpose", net("Reshape", x, net.constant([0, -1, heads, size], np.int64)), perm=order)


def _attention(net: Network, q: str, k: str, v: str, features: int) -> str:
    """Attention between [batch, heads, places, size] queries, [batch, heads, size, places] keys, and values."""
    scores = net("Mul", net("MatMul", q, k), net.constant((features // HEADS) ** -0.5))
    seen = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    return net("Reshape", seen, net.constant([0, -1, features], np.int64))


FRAMES, FEATURES, HEADS = 80, 144, 4
"""Of the conformer: features of a frame of sound, inside, and heads."""


def conformer(path: Path) -> Path:
    """A block of a conformer: half a feed-forward network, attention, convolution, the other half."""
    net = Network()

    def fed_forward(x: str) -> str:
        inner = _swish(net, _linear(net, _normalised(net, x, FEATURES), FEATURES, 4 * FEATURES))
        return net("Add", x, net("Mul", _linear(net, inner, 4 * FEATURES, FEATURES), net.constant(0.5)))

    x = fed_forward(_linear(net, "sound", FRAMES, FEATURES))
    normal, size = _normalised(net, x, FEATURES), FEATURES // HEADS
    q, k, v = (
        _heads(net, _linear(net, normal, FEATURES, FEATURES), HEADS, size, order)
        for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    )
    x = net("Add", x, _linear(net, _attention(net, q, k, v, FEATURES), FEATURES, FEATURES))
    turned = net("Transpose", _normalised(net, x, FEATURES), perm=[0, 2, 1])
    both = net("Conv", turned, net.weights(2 * FEATURES, FEATURES, 1))
    halves = [f"half_{len(net.nodes)}_{k}" for k in range(2)]
    net.nodes.append(_split(both, halves))
    gated = net("Mul", halves[0], net("Sigmoid", halves[1]))
    deep = net("Conv", gated, net.weights(FEATURES, 1, 15), group=FEATURES, pads=[7, 7])
    last = net("Conv", _swish(net, deep), net.weights(FEATURES, FEATURES, 1))
    x = fed_forward(net("Add", x, net("Transpose", last, perm=[0, 2, 1])))
    return net.write(path, CONFORMER, {_normalised(net, x, FEATURES): (np.float32, ["batch", "time", FEATURES])})


def _split(x: str, outputs: list[str]) -> Any:
    from onnx import helper

    return helper.make_node("Split", [x], outputs, axis=1)


CONFORMER: dict[str, Declared] = {"sound": (np.float32, ["batch", "time", FRAMES])}

MLP: dict[str, Declared] = {"x": (np.float32, ["batch", 256])}


def mlp(path: Path) -> Path:
    """Four dense layers."""
    net, x = Network(), "x"
    for inputs, outputs in ((256, 512), (512, 512), (512, 256)):
        x = net("Relu", _linear(net, x, inputs, outputs))
    return net.write(path, MLP, {_linear(net, x, 256, 10): (np.float32, ["batch", 10])})


SMALL: dict[str, Declared] = {"x": (np.float32, ["batch", 16])}


def small(path: Path) -> Path:
    """Two dense layers."""
    net = Network()
    hidden = net("Relu", _linear(net, "x", 16, 32))
    return net.write(path, SMALL, {_linear(net, hidden, 32, 4): (np.float32, ["batch", 4])})


CRNN: dict[str, Declared] = {"image": (np.float32, ["batch", 1, 32, "width"])}
UNITS = 48
"""Of recurrent layers."""


def _lstm(net: Network, x: str, inputs: int, lengths: str = "") -> str:
    """An LSTM in both directions: [places, batch, 2 UNITS] from [places, batch, inputs]."""
    weights, recurrent = net.weights(2, 4 * UNITS, inputs), net.weights(2, 4 * UNITS, UNITS)
    both = net(
        "LSTM", x, weights, recurrent, net.constant(np.zeros((2, 8 * UNITS))), *filter(None, [lengths]),
        hidden_size=UNITS, direction="bidirectional",
    )  # fmt: skip
    return net("Reshape", net("Transpose", both, perm=[0, 2, 1, 3]), net.constant([0, 0, 2 * UNITS], np.int64))


def crnn(path: Path) -> Path:
    """A reader of lines of text: convolutions, a recurrent layer over the columns, a classifier."""
    net, x = Network(), "image"
    for inputs, outputs, stride in ((1, 16, 2), (16, 32, 2), (32, 64, 1)):
        x = net("Relu", net("Conv", x, net.weights(outputs, inputs, 3, 3), pads=[1, 1, 1, 1]))
        x = net("MaxPool", x, kernel_shape=[2, stride], strides=[2, stride])
    rows = net("ReduceMean", x, axes=[2], keepdims=0)
    columns = _lstm(net, net("Transpose", rows, perm=[2, 0, 1]), 64)
    return net.write(path, CRNN, {_linear(net, columns, 2 * UNITS, 40): (np.float32, ["columns", "batch", 40])})


PACKED: dict[str, Declared] = {"x": (np.float32, ["batch", "time", 32]), "lengths": (np.int64, ["batch"])}


def packed_lstm(path: Path) -> Path:
    """A recurrent layer on sequences of several lengths, padded to the longest."""
    net = Network()
    lengths = net("Cast", "lengths", to=TensorProto.INT32)
    seen = _lstm(net, net("Transpose", "x", perm=[1, 0, 2]), 32, lengths)
    outputs: dict[str, Declared] = {
        _linear(net, net("Transpose", seen, perm=[1, 0, 2]), 2 * UNITS, 10): (np.float32, ["batch", "time", 10])
    }
    return net.write(path, PACKED, outputs)


def _lengths(sizes: Sizes, random: Generator) -> Feed:
    """Lengths of sequences, the longest first, which has no padding."""
    lengths = random.integers(1, sizes["time"] + 1, sizes["batch"])
    lengths[0] = sizes["time"]
    return {"lengths": np.sort(lengths)[::-1].copy()}


UNET: dict[str, Declared] = {"image": (np.float32, [1, 3, "height", "width"])}


def unet(path: Path) -> Path:
    """A U-Net of three levels."""
    net = Network()

    def convolved(x: str, inputs: int, outputs: int) -> str:
        for channels in (inputs, outputs):
            x = net("Relu", net("Conv", x, net.weights(outputs, channels, 3, 3), pads=[1, 1, 1, 1]))
        return x

    x, inputs, skipped = "image", 3, []
    for width in (8, 16, 32):
        x = convolved(x, inputs, width)
        skipped.append(x)
        inputs = width
        if width != 32:
            x = net("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for width, skip in zip((16, 8), skipped[1::-1], strict=True):
        x = net("ConvTranspose", x, net.weights(inputs, width, 2, 2), kernel_shape=[2, 2], strides=[2, 2])
        x = convolved(net("Concat", skip, x, axis=1), 2 * width, width)
        inputs = width
    outputs: dict[str, Declared] = {net("Conv", x, net.weights(2, 8, 1, 1)): (np.float32, [1, 2, "height", "width"])}
    return net.write(path, UNET, outputs)


WORDS, LAYERS, WIDTH = 500, 2, 64
PAST: Declared = (np.float32, [1, HEADS, "past", WIDTH // HEADS])
DECODER: dict[str, Declared] = {"ids": (np.int64, [1, "tokens"]), **{f"past_{n}": PAST for n in range(2 * LAYERS)}}


def decoder(path: Path) -> Path:
    """A language model of two layers, whose keys and values come back longer."""
    net, size = Network(), WIDTH // HEADS
    x = net("Gather", net.weights(WORDS, WIDTH), "ids")
    outputs: dict[str, Declared] = {}
    for layer in range(LAYERS):
        normal = _normalised(net, x, WIDTH)
        q, k, v = (_heads(net, _linear(net, normal, WIDTH, WIDTH), HEADS, size) for _ in range(3))
        keys, values = (net("Concat", f"past_{2 * layer + n}", new, axis=2) for n, new in enumerate((k, v)))
        outputs |= dict.fromkeys((keys, values), (np.float32, [1, HEADS, "all", size]))
        seen = _attention(net, q, net("Transpose", keys, perm=[0, 1, 3, 2]), values, WIDTH)
        x = net("Add", x, _linear(net, seen, WIDTH, WIDTH))
        inner = net.gelu(_linear(net, _normalised(net, x, WIDTH), WIDTH, 4 * WIDTH))
        x = net("Add", x, _linear(net, inner, 4 * WIDTH, WIDTH))
    logits = _linear(net, _normalised(net, x, WIDTH), WIDTH, WORDS)
    return net.write(path, DECODER, {logits: (np.float32, [1, "tokens", WORDS]), **outputs})


def _ids(sizes: Sizes, random: Generator) -> Feed:
    return {"ids": random.integers(0, WORDS, (1, sizes["tokens"]))}


def _activated(path: Path, is_custom: bool) -> Path:
    net, x = Network(), "x"
    for inputs, outputs in ((256, 512), (512, 512), (512, 256)):
        x = _linear(net, x, inputs, outputs)
        x = net("Swish", x, domain=DOMAIN) if is_custom else _swish(net, x)
    outputs_: dict[str, Declared] = {_linear(net, x, 256, 10): (np.float32, ["batch", 10])}
    return net.write(path, MLP, outputs_, {DOMAIN: 1} if is_custom else None)


def register() -> None:
    """Register the custom operation of `DOMAIN`."""
    import opweave as ow

    @ow.expression
    def swish(x: Any) -> Any:
        return x / (1 + ow.expr.exp(-x))

    ow.register_onnx(DOMAIN, "Swish", swish)


MODELS = {
    "conformer": DynamicModel("conformer block", conformer, CONFORMER, {"batch": range(1, 3), "time": range(40, 240)}),
    "mlp": DynamicModel("MLP, 4 layers", mlp, MLP, {"batch": range(1, 129)}),
    "crnn": DynamicModel("CRNN", crnn, CRNN, {"batch": range(1, 3), "width": range(64, 384, 4)}),
    "packed_lstm": DynamicModel(
        "packed LSTM", packed_lstm, PACKED, {"batch": range(1, 9), "time": range(8, 80)}, values=_lengths
    ),
    "unet": DynamicModel("U-Net", unet, UNET, {"height": range(32, 160, 4), "width": range(32, 160, 4)}),
    "decoder": DynamicModel("decoder with past", decoder, DECODER, {}, values=_ids),
    "small": DynamicModel("two dense layers", small, SMALL, {"batch": range(1, 65)}),
    "custom": DynamicModel(
        "MLP with a custom operation",
        partial(_activated, is_custom=True),
        MLP,
        {"batch": range(1, 129)},
        beside=partial(_activated, is_custom=False),
    ),
}
"""By name."""
