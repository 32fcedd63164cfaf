"""ResNet-50 (batch 1, batch normalisation folded, random weights): our builder against ONNX Runtime on the same as ONNX.

`python -m benchmarks.resnet50 build opweave FOLDER` builds and runs it once in a process of its own, and prints its times
and peak memory as JSON; likewise with `onnxruntime`, and with `session`, our session on the ONNX file, which holds the
weights. FOLDER holds weights and model, which `python -m benchmarks.resnet50 prepare opweave FOLDER` writes.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .common import Row, alternate, at_most, in_process, peak_mib


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


def stored_weights(folder: Path) -> Iterator[np.ndarray]:
    """Memory-mapped views of the weights that `prepare` wrote."""
    data, at = np.load(folder / "weights.npy", mmap_mode="r"), 0
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
        pooled = b.reshape(b.average_pool2d(x), (1, weights.shape[0]))
        return b.gemm(pooled, b.constant(weights), c=b.constant(bias))


class WithOnnx:
    """Layers as ONNX nodes, as an exporter writes them."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def initializer(self, array: np.ndarray) -> str:
        from onnx import numpy_helper

        name = f"w{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def conv(self, x: Any, weights: np.ndarray, bias: np.ndarray, stride: int, padding: int) -> Any:
        w, b = self.initializer(weights), self.initializer(bias)
        return self.node(
            "Conv", x, w, b, pads=[padding] * 4, strides=[stride] * 2, kernel_shape=list(weights.shape[2:])
        )

    def relu(self, x: Any) -> Any:
        return self.node("Relu", x)

    def add(self, a: Any, b: Any) -> Any:
        return self.node("Add", a, b)

    def max_pool(self, x: Any) -> Any:
        return self.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def classify(self, x: Any, weights: np.ndarray, bias: np.ndarray) -> Any:
        pooled = self.node("Flatten", self.node("GlobalAveragePool", x))
        return self.node("Gemm", pooled, self.initializer(weights), self.initializer(bias))


SHAPE = (1, 3, 224, 224)


def prepare(folder: Path) -> None:
    """Write the weights, and the network as ONNX."""
    import onnx
    from onnx import helper

    np.save(folder / "weights.npy", np.concatenate([w.reshape(-1) for w in random_weights()]))
    make = WithOnnx()
    result = network(make, "x", random_weights())
    graph = helper.make_graph(
        make.nodes,
        "resnet50",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(SHAPE))],
        [helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, [1, 1000])],
        make.initializers,
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "resnet50.onnx"
    )


def with_opweave(folder: Path, image: np.ndarray) -> tuple[float, Callable[[], object], np.ndarray]:
    """Seconds to build, a function that runs it, and the array it writes."""
    import opweave as ow

    context = ow.ml.create_context(device="cpu")
    weights = list(stored_weights(folder))
    start = time.perf_counter()
    builder = ow.MLGraphBuilder(context)
    result = network(WithBuilder(builder), builder.input("x", "float32", SHAPE), iter(weights))
    graph = builder.build({"y": result})
    took = time.perf_counter() - start
    x, y = context.tensor_from(image), context.create_tensor("float32", (1, 1000), readable=True)
    return took, lambda: context.dispatch(graph, {"x": x}, {"y": y}), y.numpy()


def with_onnxruntime(folder: Path, image: np.ndarray) -> tuple[float, Callable[[], object], np.ndarray]:
    """The same with ONNX Runtime and IO binding."""
    import onnxruntime

    start = time.perf_counter()
    session = onnxruntime.InferenceSession(folder / "resnet50.onnx", providers=["CPUExecutionProvider"])
    took = time.perf_counter() - start
    binding, output = session.io_binding(), np.zeros((1, 1000), "float32")
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(image))
    binding.bind_ortvalue_output(session.get_outputs()[0].name, onnxruntime.OrtValue.ortvalue_from_numpy(output))
    return took, lambda: session.run_with_iobinding(binding), output


def with_session(folder: Path, image: np.ndarray) -> tuple[float, Callable[[], object], np.ndarray]:
    """The same with our session on the file that ONNX Runtime reads."""
    import opweave as ow

    start = time.perf_counter()
    session = ow.InferenceSession(folder / "resnet50.onnx", fallback="error")
    took = time.perf_counter() - start
    output = np.zeros((1, 1000), "float32")
    name = session.get_outputs()[0].name
    return took, lambda: session.run(None, {"x": image}, out={name: output}), output


ENGINES = {"opweave": with_opweave, "onnxruntime": with_onnxruntime, "session": with_session}


def photograph() -> np.ndarray:
    return np.random.default_rng(1).standard_normal(SHAPE, "float32")


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        image = photograph()
        _, ours, our_output = with_opweave(folder, image)
        _, theirs, their_output = with_onnxruntime(folder, image)
        times = alternate({"opweave": ours, "onnxruntime": theirs}, seconds=1.0, title="ResNet-50")
        assert np.allclose(our_output, their_output, rtol=1e-3, atol=1e-4)
        reports: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
        for _ in range(5):
            for engine, found in reports.items():
                found.append(in_process("benchmarks.resnet50", "build", engine, name))

        def median(engine: str, key: str) -> float:
            values: list[float] = [report[key] for report in reports[engine]]
            return statistics.median(values)

    run = times["opweave"] * 1e3, times["onnxruntime"] * 1e3
    build = median("opweave", "build_ms"), median("onnxruntime", "build_ms")
    peak = median("opweave", "peak_mib"), median("onnxruntime", "peak_mib")
    one_file = median("session", "peak_mib"), peak[1]
    what = "ResNet-50 b1, ONNX with its weights in the file, peak memory"
    return [
        Row("ResNet-50 b1, run", "ms", *run, "ONNX Runtime, bound", "<= 1.01x", at_most(*run, 1.01)),
        Row("ResNet-50 b1, build", "ms", *build, "session creation", "<= 1.3x", at_most(*build, 1.3)),
        Row("ResNet-50 b1, peak memory", "MiB", *peak, "ONNX Runtime", "<= 1.15x", at_most(*peak, 1.15)),
        Row(what, "MiB", *one_file, "ONNX Runtime", "<= 1.15x", at_most(*one_file, 1.15)),
    ]


def main(command: str, engine: str, folder: str) -> None:
    if command == "prepare":
        prepare(Path(folder))
        return
    assert command == "build", command
    took, run, _ = ENGINES[engine](Path(folder), photograph())
    run()
    print(json.dumps({"build_ms": took * 1e3, "peak_mib": peak_mib()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
