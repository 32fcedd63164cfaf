"""The differences between the networks of architectures, and the weights that they have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """The differences between the network of an architecture and that of Llama.

    Attributes:
        interleaved: whether rotated pairs are adjacent elements; otherwise one element is in each half of a head.
        is_joined: whether the matrices of queries, keys and values are one, and those of the gate and its input, too.
        norms_heads: whether the heads of queries and keys are normalised before they are rotated.
        norms_results: whether results of attention and of the feed-forward network are normalised before they are added.
        is_gelu: whether the gate is a GELU, approximated by tanh, rather than a SiLU.
        scales_embeddings: whether embeddings are multiplied by the square root of the width.
        period: of each `period` layers, the last sees all tokens, and the others see a window. 0: all layers see a window;
            None: there are no windows. Files count in the same way, as "attention.sliding_window_pattern".
        window: tokens in a window, unless the file says another number; 0 for all.
        local_base: base of the rotation in layers that see a window, which is never scaled; 0: as in other layers.
        layers_of_width: number of layers of the model whose queries are scaled by sqrt(heads / width), rather than by the size
            of a head.
    """

    interleaved: bool = False
    is_joined: bool = False
    norms_heads: bool = False
    norms_results: bool = False
    is_gelu: bool = False
    scales_embeddings: bool = False
    period: int | None = None
    window: int = 0
    local_base: float = 0.0
    layers_of_width: int = 0

    def shapes(self, width: int, hidden: int, queries: int, keys: int, size: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights of a layer, by name. `queries` and `keys` are the elements of all heads of each."""
        shapes: dict[str, tuple[int, ...]] = {"attn_norm.weight": (width,), "ffn_norm.weight": (width,)}
        if self.is_joined:
            shapes |= {"attn_qkv.weight": (queries + 2 * keys, width), "ffn_up.weight": (2 * hidden, width)}
        else:
            shapes |= {
                "attn_q.weight": (queries, width),
                "attn_k.weight": (keys, width),
                "attn_v.weight": (keys, width),
            }
            shapes |= {"ffn_gate.weight": (hidden, width), "ffn_up.weight": (hidden, width)}
        shapes |= {"attn_output.weight": (width, queries), "ffn_down.weight": (width, hidden)}
        if self.norms_heads:
            shapes |= {"attn_q_norm.weight": (size,), "attn_k_norm.weight": (size,)}
        if self.norms_results:
            shapes |= {"post_attention_norm.weight": (width,), "post_ffw_norm.weight": (width,)}
        return shapes

    def optional_shapes(self, queries: int, keys: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights that a layer may lack."""
        return {} if self.is_joined else {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}


_GEMMA = {"norms_results": True, "is_gelu": True, "scales_embeddings": True}

ARCHITECTURES = {
    "gemma2": Architecture(**_GEMMA, period=2, window=4096, layers_of_width=46),
    "gemma3": Architecture(**_GEMMA, norms_heads=True, period=6, local_base=10000.0, layers_of_width=62),
    "llama": Architecture(interleaved=True),
    "phi3": Architecture(is_joined=True, period=0),
    "qwen2": Architecture(),
    "qwen3": Architecture(norms_heads=True),
}
"""Supported architectures. Files of Mistral models have the architecture "llama"."""
