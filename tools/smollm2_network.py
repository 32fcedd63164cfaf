"""SmolLM2 as a network of PyTorch, which `make_smollm2` exports, and whose results the tests compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (PyTorch's word)

if TYPE_CHECKING:
    from make_smollm2 import Sizes


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


def network_of(s: Sizes, weights: Mapping[str, np.ndarray]) -> Network:
    """The network with its weights."""
    network = Network(s)
    state = {name: torch.tensor(array) for name, array in weights.items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    if missing != ["frequencies"] or unexpected:
        raise SystemExit(f"the weights do not fit: {missing} missing, {unexpected} unexpected")
    network.eval()
    return network
