"""Small language models as GGUF files, with random weights, written by the package `gguf`; and what they must compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="gguf, which writes the files, is not installed")

WIDTH, HIDDEN, LAYERS, HEADS, GROUPS, THETA, EPSILON = 64, 256, 2, 4, 2, 1000.0, 1e-5
WINDOW, SOFTCAP, FINAL_SOFTCAP, LOCAL_THETA = 9, 4.0, 3.0, 10000.0
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def bytes_as_tokens() -> list[str]:
    """The characters that stand for bytes in vocabularies like GPT-2's."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    names = {byte: chr(byte) for byte in shown} | {byte: chr(256 + k) for k, byte in enumerate(hidden)}
    return [names[byte] for byte in range(256)]


TOKENS = [*bytes_as_tokens(), "he", "ll", "hell", "hello", "Ġhello", "<|start|>", "<|end|>", "<tool>"]
TYPES = [*[1] * 261, 3, 3, 4]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello"]
END = TOKENS.index("<|end|>")


def random_blocks(name: str, rows: int, columns: int, random: np.random.Generator) -> np.ndarray:
    """Random blocks of a format, as bytes [rows, bytes in a row]; their elements are small."""
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    data = random.integers(0, 256, (rows, columns // elements, size)).astype(np.uint8)
    # Those of K are scales of scales.
    largest = {"Q2_K": 3e-3, "Q3_K": 1e-3, "IQ4_NL": 1e-3}.get(name, 1e-4 if name.endswith("K") else 0.01)
    scales = random.uniform(largest / 10, largest, (*data.shape[:2], 2)).astype("<f2").view(np.uint8)
    count = 4 if name in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K") else 2
    data[..., slice(-count, None) if name in ("Q2_K", "Q3_K", "Q6_K") else slice(count)] = scales[..., :count]
    return data.reshape(rows, -1)


def write(
    path: Path,
    *,
    architecture: str = "llama",
    formats: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    extra: Sequence[str] = (),
    without: Sequence[str] = (),
    context: int = 256,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, np.ndarray]:
    """Write a model, and return its weights as float64.

    Args:
        path: the file.
        architecture: of the network.
        formats: the types of matrices by the ends of their names; others are F32. `ffn_down` alone is wide enough for K
            formats.
        metadata: strings, numbers, booleans and lists to add, or to replace; None leaves one out.
        extra: names of vectors to add.
        without: weights to leave out.
        context: the longest text.
        shapes: other shapes of weights, by name.
    """
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(EPSILON)
    if architecture in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(WINDOW)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(SOFTCAP)
        writer.add_final_logit_softcapping(FINAL_SOFTCAP)
    if architecture == "gemma3":
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(END)
    writer.add_chat_template(TEMPLATE)
    for name, value in (metadata or {}).items():
        writer.kv_data[0].pop(name, None)
        adders = {bool: writer.add_bool, str: writer.add_string, float: writer.add_float32, list: writer.add_array}
        if value is not None:
            adders.get(type(value), writer.add_uint32)(name, value)
    size = WIDTH // HEADS
    all_shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), WIDTH),
        "output_norm.weight": (WIDTH,),
        **dict.fromkeys(extra, (WIDTH,)),
    }
    for layer in range(LAYERS):
        parts = {
            "attn_norm": (WIDTH,),
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (GROUPS * size, WIDTH),
            "attn_v": (GROUPS * size, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }
        if architecture == "phi3":
            parts = {
                name: shape for name, shape in parts.items() if name not in ("attn_q", "attn_k", "attn_v", "ffn_gate")
            }
            parts |= {"attn_qkv": (WIDTH + 2 * GROUPS * size, WIDTH), "ffn_up": (2 * HIDDEN, WIDTH)}
        if architecture in ("qwen3", "gemma3"):
            parts |= {"attn_q_norm": (size,), "attn_k_norm": (size,)}
        if architecture in ("gemma2", "gemma3"):
            parts |= {"post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,)}
        all_shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
        if architecture == "qwen2":
            all_shapes |= {f"blk.{layer}.attn_{name}.bias": parts[f"attn_{name}"][:1] for name in "qkv"}
    weights = {}
    for name, shape in (all_shapes | dict(shapes or {})).items():
        if name in without:
            continue
        array = random.standard_normal(shape) / np.sqrt(shape[-1]) * 2 + (1 if "norm" in name else 0)
        endings = [kind for end, kind in (formats or {}).items() if name.endswith(f"{end}.weight")]
        kind = gguf.GGMLQuantizationType[endings[0] if endings else "F32"]
        if kind.name.endswith(("K", "NL")):  # which gguf reads only
            stored = random_blocks(kind.name, shape[0], shape[-1], random)
        else:
            stored = gguf.quantize(array.astype(np.float32), kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
        weights[name] = gguf.dequantize(stored, kind).astype(np.float64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def logits(
    weights: Mapping[str, np.ndarray],
    tokens: Sequence[int],
    *,
    architecture: str = "llama",
    windows: Sequence[bool] | None = None,
) -> np.ndarray:
    """The logits after each token of a text, by the definition, [tokens, words].

    `windows` tells which layers see a window, for models whose files have another pattern.
    """
    interleaved, is_gemma = architecture == "llama", architecture.startswith("gemma")
    count, size = len(tokens), WIDTH // HEADS
    places = np.arange(count)
    distances = places[:, None] - places

    def normalized(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * weights[f"{name}.weight"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def split(x: np.ndarray) -> np.ndarray:
        """[tokens, heads * size] -> [heads, tokens, size]."""
        return x.reshape(count, -1, size).swapaxes(0, 1)

    def rotated(x: np.ndarray, theta: float) -> np.ndarray:
        angles = places[:, None] * theta ** (-np.arange(0, size, 2) / size)
        halves = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., : size // 2], x[..., size // 2 :])
        turned = (halves[0] + 1j * halves[1]) * np.exp(1j * angles)
        if interleaved:
            return np.stack([turned.real, turned.imag], -1).reshape(x.shape)
        return np.concatenate([turned.real, turned.imag], -1)

    def gated(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        if is_gemma:
            return gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
        return gate / (1 + np.exp(-gate)) * up

    x = weights["token_embd.weight"][list(tokens)] * (np.sqrt(WIDTH) if is_gemma else 1)
    for layer in range(LAYERS):
        name = f"blk.{layer}"
        h = normalized(x, f"{name}.attn_norm")
        if architecture == "phi3":
            q, k, v = map(split, np.split(linear(h, f"{name}.attn_qkv"), [WIDTH, WIDTH + GROUPS * size], axis=1))
        else:
            q, k, v = (split(linear(h, f"{name}.attn_{part}")) for part in "qkv")
        if architecture in ("qwen3", "gemma3"):
            q, k = normalized(q, f"{name}.attn_q_norm"), normalized(k, f"{name}.attn_k_norm")
        sees_window = architecture == "phi3" or (is_gemma and layer % 2 == 0)
        sees_window = sees_window if windows is None else windows[layer]
        theta = LOCAL_THETA if architecture == "gemma3" and sees_window else THETA
        k, v = rotated(k, theta).repeat(HEADS // GROUPS, 0), v.repeat(HEADS // GROUPS, 0)
        scores = rotated(q, theta) @ k.swapaxes(1, 2) / np.sqrt(size)
        if architecture == "gemma2":
            scores = np.tanh(scores / SOFTCAP) * SOFTCAP
        visible = (distances >= 0) & (distances < (WINDOW if sees_window else count))
        scores = np.where(visible, scores, -np.inf)
        seen = np.exp(scores - scores.max(-1, keepdims=True))
        y = (seen / seen.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(count, -1)
        y = linear(y, f"{name}.attn_output")
        x = x + (normalized(y, f"{name}.post_attention_norm") if is_gemma else y)
        h = normalized(x, f"{name}.ffn_norm")
        up = linear(h, f"{name}.ffn_up")
        gate, up = np.split(up, 2, axis=1) if architecture == "phi3" else (linear(h, f"{name}.ffn_gate"), up)
        y = linear(gated(gate, up), f"{name}.ffn_down")
        x = x + (normalized(y, f"{name}.post_ffw_norm") if is_gemma else y)
    y = normalized(x, "output_norm") @ weights.get("output.weight", weights["token_embd.weight"]).T
    return np.tanh(y / FINAL_SOFTCAP) * FINAL_SOFTCAP if architecture == "gemma2" else y
