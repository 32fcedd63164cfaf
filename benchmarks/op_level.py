"""Operations called one at a time, against one graph of the same; beside them what others do with the same calls."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from rich.progress import Progress

import opweave as ow

from .common import Row, at_most
from .interop.tfjs import MissingError, install

CHANNELS, SIZE = 100, 100
PADDED: dict[str, Any] = {"padding": [1, 1, 1, 1]}
ROUNDS = 25
"""So many turns are taken; the fastest of each way counts, since others work on the machine."""

SETTLE = 0.05
"""So many seconds are left to each way before what counts: what ran before leaves caches and threads in a state of its own."""

WARM = 4
"""After so many reads all has been compiled."""

Ways = dict[str, Callable[[], object]]


def rows() -> list[Row]:
    before = ow.ops.compile_now()
    try:
        return [*calls(), *chain(), *network(), *transformer()]
    finally:
        ow.ops.compile_now(before)


def fastest(ways: Mapping[str, Callable[[], object]], *, count: int = 1, title: str = "") -> dict[str, float]:
    """The best seconds a call of each way, in turns (A, B, A, B, …) after two turns to warm up."""
    best = dict.fromkeys(ways, float("inf"))
    with Progress(transient=True) as progress:
        task = progress.add_task(title, total=ROUNDS + 2)
        for turn in range(ROUNDS + 2):
            for name, function in ways.items():
                settled = time.perf_counter() + SETTLE
                while time.perf_counter() < settled:
                    function()
                start = time.perf_counter()
                for _ in range(count):
                    function()
                took = (time.perf_counter() - start) / count
                if turn > 1:
                    best[name] = min(best[name], took)
            progress.advance(task)
    return best


def random(*shape: int) -> np.ndarray:
    return (np.random.default_rng(len(shape)).standard_normal(shape) * 0.05).astype("float32")


# ---------------------------------------------------------------------------------------------------------------------
# What a call costs


def calls() -> list[Row]:
    array = np.linspace(-1, 1, 16, dtype="float32")
    x, square = ow.array(array), ow.array(array.reshape(4, 4))
    ways: dict[str, tuple[float, Callable[[], object]]] = {
        "note a call": (5, lambda: ow.ops.add(x, x)),
        "note a call with a number": (5, lambda: x * 0.5),
        "note a call that takes a NumPy array": (5, lambda: ow.ops.relu(array)),
        "note a slice, x[..., 1:]": (5, lambda: square[..., 1:]),
        "relu of 16 elements, NumPy to NumPy": (20, lambda: ow.ops.relu(array).numpy()),
        "the same of an opweave.Array": (20, lambda: ow.ops.relu(x).numpy()),
    }
    times = fastest({name: way for name, (_, way) in ways.items()}, count=2000, title="16 elements")
    return [
        Row(f"op-level: {name}", "us", took * 1e6, None, "", f"<= {ways[name][0]:g} us", took * 1e6 <= ways[name][0])
        for name, took in times.items()
    ]


# ---------------------------------------------------------------------------------------------------------------------
# c = conv2d(a, b); e = conv2d(c, d); h = conv2d(e, g); read h


def chain() -> list[Row]:
    data = {"a": random(1, CHANNELS, SIZE, SIZE), **{name: random(CHANNELS, CHANNELS, 3, 3) for name in "bdg"}}
    arrays = {name: ow.array(data[name]) for name in "bdg"}
    conv2d = ow.ops.conv2d

    def op_level() -> np.ndarray:
        x: Any = data["a"]
        for name in "bdg":
            x = conv2d(x, arrays[name], **PADDED)
        values: np.ndarray = x.numpy()
        return values

    def keeping() -> np.ndarray:
        c = conv2d(data["a"], arrays["b"], **PADDED)
        e = conv2d(c, arrays["d"], **PADDED)
        h = conv2d(e, arrays["g"], **PADDED)
        values: np.ndarray = h.numpy()  # which also computes c and e, since somebody could read them
        return values

    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    b, d, g = (builder.constant(data[name]) for name in "bdg")
    inner = builder.conv2d(builder.input("a", "float32", data["a"].shape), b, **PADDED)
    graph = builder.build({"h": builder.conv2d(builder.conv2d(inner, d, **PADDED), g, **PADDED)})
    one, three = "one graph", "one graph of three outputs"
    whole = keeping_graph(context, data)
    for _ in range(WARM):
        op_level()
        keeping()
    kept = fastest({"ours": keeping, three: lambda: context.compute(whole, {"a": data["a"]})}, title="keeping all")
    with ExitStack() as stack:
        ways: Ways = {"ours": op_level, one: lambda: context.compute(graph, {"a": data["a"]})}
        ways["three ONNX Runtime sessions"] = sessions(data)
        others(ways, stack, data)
        times = {name: value * 1e3 for name, value in fastest(ways, title="three convolutions").items()}
    ours = times.pop("ours")
    found = [
        Row(
            "op-level: conv2d three times", "ms", ours, times[one], one, "<= 1.05x", at_most(ours, times.pop(one), 1.05)
        )
    ]
    found += [Row("the same", "ms", ours, value, name, "", True) for name, value in times.items()]
    mine, theirs = kept["ours"] * 1e3, kept[three] * 1e3
    title = "the same, all three results in variables"
    return [*found, Row(title, "ms", mine, theirs, three, "<= 1.05x", at_most(mine, theirs, 1.05))]


def keeping_graph(context: ow.MLContext, data: Mapping[str, np.ndarray]) -> ow.MLGraph:
    """The three convolutions as a graph that yields all of their results."""
    builder = ow.MLGraphBuilder(context)
    x, outputs = builder.input("a", "float32", data["a"].shape), {}
    for name in "bdg":
        x = outputs[name] = builder.conv2d(x, builder.constant(data[name]), **PADDED)
    return builder.build(outputs)


def sessions(data: Mapping[str, np.ndarray]) -> Callable[[], object]:
    """A session for each convolution, called one after the other."""
    shapes = {"x": data["a"].shape, "w": data["b"].shape}
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shapes["x"])
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=PADDED["padding"])
    model = helper.make_model(
        helper.make_graph([node], "g", info, [result]), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    made = [
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]) for _ in range(3)
    ]

    def run() -> np.ndarray:
        x: Any = data["a"]
        for session, name in zip(made, "bdg", strict=True):
            (x,) = session.run(None, {"x": x, "w": data[name]})
        return np.asarray(x)

    return run


def others(ways: Ways, stack: ExitStack, data: Mapping[str, np.ndarray]) -> None:
    """Add the frameworks that are here; say why one is not."""
    try:
        import torch
    except ImportError:
        print("PyTorch is left out: it is not installed", file=sys.stderr)
    else:
        tensors = {name: torch.from_numpy(value) for name, value in data.items()}

        def eager() -> Any:
            with torch.inference_mode():
                x = tensors["a"]
                for name in "bdg":
                    x = torch.nn.functional.conv2d(x, tensors[name], padding=1)
                return x.numpy()

        ways[f"PyTorch {torch.__version__}, eager"] = eager
    try:
        node = stack.enter_context(TensorFlowJs(data))
        np.testing.assert_allclose(node.first, ways["ours"]()[0, : len(node.first), 0, 0], rtol=1e-3)  # type: ignore[index,arg-type]
        ways["TensorFlow.js, Wasm, one thread"] = node
    except MissingError as error:
        print(f"TensorFlow.js is left out: {error}", file=sys.stderr)


SCRIPT = """
const { readFileSync } = require("node:fs"), { join } = require("node:path"), { createInterface } = require("node:readline");
const [modules, folder, channels, size] = process.argv.slice(2);
const load = require("node:module").createRequire(join(modules, "package.json"));
const tf = load("@tensorflow/tfjs-core"), wasm = load("@tensorflow/tfjs-backend-wasm");
const c = Number(channels), n = Number(size);
const read = (name, shape) => tf.tensor(new Float32Array(new Uint8Array(readFileSync(join(folder, name))).buffer), shape);
(async () => {
  wasm.setWasmPaths(join(modules, "node_modules/@tensorflow/tfjs-backend-wasm/dist/"));
  if (!(await tf.setBackend("wasm"))) throw new Error("TensorFlow.js has no wasm back end here");
  const a = read("a", [1, n, n, c]), filters = ["b", "d", "g"].map((name) => read(name, [3, 3, c, c]));
  const run = () => {  // what a tidy returns it goes through, element by element
    let values;
    tf.tidy(() => { values = filters.reduce((x, filter) => tf.conv2d(x, filter, 1, "same"), a).dataSync(); });
    return values;
  };
  console.log(Array.from(run().slice(0, 8)).join(" "));
  for await (const _ of createInterface({ input: process.stdin })) { run(); console.log("done"); }
})();
"""


class TensorFlowJs:
    """A running Node; calling it runs the three convolutions once. A call costs one line each way more (some 30 us)."""

    def __init__(self, data: Mapping[str, np.ndarray]) -> None:
        modules = install()
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        for name, array in data.items():
            order = (0, 2, 3, 1) if name == "a" else (2, 3, 1, 0)
            (folder / name).write_bytes(np.ascontiguousarray(array.transpose(order)).tobytes())
        script = folder / "chain.cjs"
        script.write_text(SCRIPT)
        node = shutil.which("node") or "node"
        self._process = subprocess.Popen(
            [node, str(script), str(modules), str(folder), str(CHANNELS), str(SIZE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env={**os.environ},
        )  # fmt: skip
        self.first = [float(value) for value in self._line().split()]
        """The first 8 values of the result, by channel."""

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MissingError(f"it ended with status {self._process.wait()}")
        return line

    def __call__(self) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        return self._line()

    def __enter__(self) -> TensorFlowJs:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._stack.close()


# ---------------------------------------------------------------------------------------------------------------------
# Models written as one writes eager code: a loop, a branch on a shape, an expression of one's own


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
    before = ow.ops.statistics.specialised
    for way in list(ways.values())[1:] * WARM:
        np.testing.assert_allclose(op_level(), way(), rtol=1e-3, atol=1e-5)
    assert ow.ops.statistics.specialised == before + 1
    times = {name: value * 1e3 for name, value in fastest(ways, count=10, title=what).items()}
    ours, one, general = times.values()
    return [
        Row(f"op-level: {what}", "ms", ours, one, "one graph", "<= 1.1x", at_most(ours, one, 1.1)),
        Row("the same", "ms", ours, general, "one graph, weights as inputs", "", True),
    ]


__all__ = ["rows"]

if __name__ == "__main__":
    print(json.dumps([vars(row) for row in rows()], indent=1))
