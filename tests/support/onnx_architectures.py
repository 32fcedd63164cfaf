"""The nine image classifiers of the `onnx` package, with random weights in place of the constants that it ships."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

PERIOD = 2**20 + 7
"""The number of random numbers; larger weights repeat them, so that they are quickly made."""


def light(name: str) -> Path:
    """The file of an architecture, whose weights are all one number."""
    return LIGHT / f"light_{name}.onnx"


def randomise(name: str, folder: Path) -> Path:
    """Write an architecture with random weights that keep the activations in range, as external data; the path of the model.

    What goes into a last softmax is an output, too: after it, differences are hard to see.
    """
    model = onnx.load(light(name))
    rng = np.random.default_rng(7)
    noise = rng.standard_normal(PERIOD, np.float32)
    graph = model.graph
    shapes = {i.name: numpy_helper.to_array(i).tolist() for i in graph.initializer if i.data_type == TensorProto.INT64}
    uses = {use: (node, at) for node in graph.node for at, use in enumerate(node.input)}
    kept = []
    with (folder / f"{name}.data").open("wb") as file:
        for node in graph.node:
            if node.op_type != "ConstantOfShape":
                kept.append(node)
                continue
            shape = shapes[node.input[0]]
            array = _weight(node.output[0], shape, uses, noise)
            tensor = TensorProto(name=node.output[0], dims=shape, data_type=TensorProto.FLOAT)
            tensor.data_location = TensorProto.EXTERNAL
            file.write(bytes(-file.tell() % 4096))
            for key, value in (("location", f"{name}.data"), ("offset", file.tell()), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            file.write(array.data)
            graph.initializer.append(tensor)
    used = {name for node in kept for name in node.input}
    for field in (graph.input, graph.initializer):  # the shapes of the weights are both
        needed = [value for value in field if value.name in used]
        del field[:]
        field.extend(needed)
    if kept[-1].op_type == "Softmax":
        graph.output.append(onnx.ValueInfoProto(name=kept[-1].input[0]))
        graph.output[-1].type.tensor_type.elem_type = TensorProto.FLOAT
    del graph.node[:]
    graph.node.extend(kept)
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _weight(name: str, shape: list[int], uses: dict[str, tuple[onnx.NodeProto, int]], noise: np.ndarray) -> np.ndarray:
    node, at = uses[name]
    random: np.ndarray = np.resize(np.roll(noise, sum(shape)), shape)
    scale, offset = 0.1, 0.0
    match node.op_type:
        case "Conv" | "Gemm" if at == 1:  # the variance of the activations stays as it is
            scale = float(np.sqrt(2 / np.prod(shape[1:])))
        case "BatchNormalization" if at in (1, 4):
            random, scale, offset = np.abs(random), 0.5, 1.0
        case "Unsqueeze" if uses[node.output[0]][0].op_type == "Mul":
            offset = 1.0
    random *= np.float32(scale)
    random += np.float32(offset)
    return random
