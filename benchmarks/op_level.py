"""Operations called one at a time, against one graph of the same; beside them what others do with the same calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

import opweave as ow

from .interop.operations import Data
from .interop.tfjs import MissingError, TensorFlowJs
from .measure import Way, alternate
from .rows import Row, onnxruntime_session

CHANNELS, SIZE = 100, 100
PADDED: dict[str, Any] = {"padding": [1, 1, 1, 1]}

WARM = 4
"""After this many reads all has been compiled."""


def rows() -> list[Row]:
    before = ow.lazy.compile_now()
    try:
        return [*calls(), *chain(), *network(), *transformer()]
    finally:
        ow.lazy.compile_now(before)


def random(*shape: int) -> np.ndarray:
    return (np.random.default_rng(len(shape)).standard_normal(shape) * 0.05).astype("float32")


# What a call costs ----------------------------------------------------------------------------------------------------


def calls() -> list[Row]:
    array = np.linspace(-1, 1, 16, dtype="float32")
    x, square = ow.array(array), ow.array(array.reshape(4, 4))
    ways: dict[str, tuple[str, Way]] = {
        "note a call": ("note", lambda: ow.ops.add(x, x)),
        "note a call with a number": ("note", lambda: x * 0.5),
        "note a call that takes a NumPy array": ("note", lambda: ow.ops.relu(array)),
        "note a slice, x[..., 1:]": ("note", lambda: square[..., 1:]),
        "relu of 16 elements, NumPy to NumPy": ("op", lambda: ow.ops.relu(array).numpy()),
        "the same of an opweave.Array": ("op", lambda: ow.ops.relu(x).numpy()),
    }
    times = alternate({name: way for name, (_, way) in ways.items()}, seconds=0.02, pause=0)
    return [Row.of(f"op-level: {name}", "us", took, budget=ways[name][0]) for name, took in times.items()]


# c = conv2d(a, b); e = conv2d(c, d); h = conv2d(e, g); read h ---------------------------------------------------------


def chain() -> list[Row]:
    data = Data.random(CHANNELS, SIZE)
    image, filters = data.image, [data.weights] * 3
    arrays = [ow.array(weights.copy()) for weights in filters]

    def convolved(f: Any, x: Any, weights: list[Any]) -> list[Any]:
        found = []
        for filter in weights:
            x = f.conv2d(x, filter, **PADDED)
            found.append(x)
        return found

    def op_level() -> np.ndarray:
        values: np.ndarray = convolved(ow.ops, image, arrays)[-1].numpy()
        return values

    def keeping() -> np.ndarray:
        c, e, h = convolved(ow.ops, image, arrays)
        values: np.ndarray = h.numpy()  # which also computes c and e: they can be read later
        del c, e
        return values

    context = ow.ml.create_context(device="cpu")

    def graph(kept: int) -> Way:
        builder = ow.MLGraphBuilder(context)
        x = builder.input("a", "float32", image.shape)
        results = convolved(builder, x, [builder.constant(weights) for weights in filters])
        built = builder.build({f"y{number}": result for number, result in enumerate(results[-kept:])})
        return lambda: context.compute(built, {"a": image})

    one, three = "one graph", "one graph of three outputs"
    for _ in range(WARM):
        op_level()
        keeping()
    kept = alternate({"ours": keeping, three: graph(3)})
    with ExitStack() as stack:
        ways: dict[str, Way] = {"ours": op_level, one: graph(1), "three ONNX Runtime sessions": sessions(data)}
        others(ways, stack, data)
        times = alternate(ways)
    ours = times.pop("ours")
    return [
        Row.of("op-level: conv2d three times", "ms", ours, times.pop(one), one, "op-level chain"),
        *(Row.of("the same", "ms", ours, value, name) for name, value in times.items()),
        Row.of("the same, all three results in variables", "ms", kept["ours"], kept[three], three, "op-level chain"),
    ]


def sessions(data: Data) -> Way:
    """A session for each convolution, called one after the other."""
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    x, w = (builder.input(name, "float32", array.shape) for name, array in {"x": data.image, "w": data.weights}.items())
    convolution = builder.build({"y": builder.conv2d(x, w, **PADDED)})
    made = [onnxruntime_session(convolution) for _ in range(3)]

    def run() -> np.ndarray:
        x: Any = data.image
        for session in made:
            (x,) = session.run(None, {"x": x, "w": data.weights})
        return np.asarray(x)

    return run


def others(ways: dict[str, Way], stack: ExitStack, data: Data) -> None:
    """Add the frameworks that are here; say why one is not."""
    try:
        import torch
    except ImportError:
        print("PyTorch is left out: it is not installed", file=sys.stderr)
    else:
        image, weights = torch.from_numpy(data.image), torch.from_numpy(data.weights)

        def eager() -> Any:
            with torch.inference_mode():
                x = image
                for _ in range(3):
                    x = torch.nn.functional.conv2d(x, weights, padding=1)
                return x.numpy()

        ways[f"PyTorch {torch.__version__}, eager"] = eager
    try:
        node = stack.enter_context(TensorFlowJs(data))
    except MissingError as error:
        print(f"TensorFlow.js is left out: {error}", file=sys.stderr)
    else:
        ways["TensorFlow.js, Wasm, one thread"] = lambda: node.seconds("chain", 0)  # one call


# Models written as one writes eager code: a loop, a branch on a shape, a custom expression ---------------------------


@ow.expression
def squashed(x: Any, *, slope: float = 0.25) -> Any:
    return ow.expr.tanh(x) + slope * x


def convolutions(f: Any, x: Any, filters: list[Any], weights: Any) -> Any:
    """A small CNN."""
    for filter in filters:
        x = f.relu(f.conv2d(x, filter, **PADDED))
        if x.shape[2] > 16:
            x = f.max_pool2d(x, window_dimensions=[2, 2], strides=[2, 2])
    x = squashed(x)
    x = f.reduce_mean(x, axes=[2, 3])
    return f.softmax(f.matmul(x, weights), 1)


def block(f: Any, x: Any, w: Mapping[str, Any], heads: int) -> Any:
    """A transformer block: [tokens, width]."""
    tokens, width = x.shape
    size = width // heads

    def split(y: Any) -> Any:
        return f.transpose(f.reshape(y, [tokens, heads, size]), permutation=[1, 0, 2])

    y = f.layer_normalization(x, scale=w["scale"], bias=w["bias"])
    q, k, v = (split(f.matmul(y, w[name])) for name in "qkv")
    scores = f.matmul(q, f.transpose(k, permutation=[0, 2, 1])) * size**-0.5
    mixed = f.matmul(f.softmax(scores, 2), v)
    x = x + f.matmul(f.reshape(f.transpose(mixed, permutation=[1, 0, 2]), [tokens, width]), w["o"])
    y = f.layer_normalization(x, scale=w["scale"], bias=w["bias"])
    y = f.gelu(f.matmul(y, w["up"])) if tokens > 1 else f.relu(f.matmul(y, w["up"]))
    return x + f.matmul(squashed(y), w["down"])


def network() -> list[Row]:
    x = random(1, 3, 128, 128)
    filters = [random(32, 3, 3, 3), random(64, 32, 3, 3), random(128, 64, 3, 3), random(128, 128, 3, 3)]
    weights = random(128, 10)
    return compared(
        "a small CNN", {"x": x}, lambda f, given, w: convolutions(f, given["x"], w[:-1], w[-1]), [*filters, weights]
    )


def transformer() -> list[Row]:
    width, heads = 768, 12  # those of BERT
    w = {
        "scale": random(width),
        "bias": random(width),
        "up": random(width, 4 * width),
        "down": random(4 * width, width),
    }
    w |= {name: random(width, width) for name in "qkvo"}
    names, values = list(w), list(w.values())
    return compared(
        "a transformer block", {"x": random(128, width)},
        lambda f, given, values: block(f, given["x"], dict(zip(names, values, strict=True)), heads), values,
    )  # fmt: skip


def compared(
    what: str, inputs: dict[str, np.ndarray], model: Callable[..., Any], weights: list[np.ndarray]
) -> list[Row]:
    """A model called op by op, against one graph of it whose weights are constants, and one whose weights are inputs.

    Inputs are NumPy arrays for all of them, as they would come; weights are arrays of ours.
    """
    arrays = [ow.array(value) for value in weights]

    def op_level() -> np.ndarray:
        values: np.ndarray = model(ow.ops, inputs, arrays).numpy()
        return values

    context = ow.ml.create_context(device="cpu")

    def graph(constants: bool) -> Callable[[], np.ndarray]:
        builder = ow.MLGraphBuilder(context)
        declared = {name: builder.input(name, "float32", value.shape) for name, value in inputs.items()}
        feed = dict(inputs)
        operands = []
        for number, value in enumerate(weights):
            name = f"w{number}"
            operands.append(builder.constant(value) if constants else builder.input(name, "float32", value.shape))
            if not constants:
                feed[name] = value
        built = builder.build({"y": model(builder, declared, operands)})
        return lambda: context.compute(built, feed)["y"]

    ways = {"ours": op_level, "one graph": graph(True), "one graph, weights as inputs": graph(False)}
    before = ow.lazy.statistics.specialised
    for way in list(ways.values())[1:] * WARM:
        np.testing.assert_allclose(op_level(), way(), rtol=1e-3, atol=1e-5)
    assert ow.lazy.statistics.specialised == before + 1
    times = alternate(ways)
    ours = times.pop("ours")
    budgets = "op-level model", ""
    return [
        Row.of(f"op-level: {what}" if budget else "the same", "ms", ours, theirs, name, budget)
        for (name, theirs), budget in zip(times.items(), budgets, strict=True)
    ]
