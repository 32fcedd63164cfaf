"""Llama-type networks from GGUF files, against their definition; and what a decoder remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_models

import opweave as ow
from opweave import DataError, NotSupportedError, ValidationError
from opweave.chat import GGUF, Decoder, Model
from opweave.chat.decoder import CHUNK
from opweave.chat.model import MATRICES
from opweave.context.graph import program_of

CPU = ow.ml.create_context(device="cpu")
TEXT = [int(k) for k in np.random.default_rng(5).integers(0, len(tiny_models.TOKENS), 100)]
MIXED = {"attn_q": "Q4_0", "attn_v": "Q4_1", "attn_output": "F16", "ffn_gate": "Q8_0", "ffn_up": "Q4_1", "embd": "Q8_0"}
MIXED |= {"blk.0.ffn_down": "Q4_K", "blk.1.ffn_down": "Q6_K"}


def decoder(path: Path, room: int = 200, *, context: ow.MLContext = CPU, quantized: bool = True) -> Decoder:
    return Decoder(Model(GGUF(path), quantized=quantized), context, room)


def steps(each: Decoder, text: list[int]) -> np.ndarray:
    """The logits after each token, read one at a time."""
    return np.array([each.feed([token]).copy() for token in text])


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_decoder_equals_definition(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    weights = tiny_models.write(path, architecture=architecture, formats=MIXED)
    wanted = tiny_models.logits(weights, TEXT, interleaved=architecture == "llama")
    found = steps(decoder(path, quantized=False), TEXT)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_decoder_multiplies_small_integers(tmp_path: Path) -> None:
    """The inputs of these products are rounded to 8 bits: an error of a few percent of what logits vary by."""
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path, formats=MIXED), TEXT)
    each = decoder(path)
    found = steps(each, TEXT)
    assert 1e-4 < np.sqrt(((found - wanted) ** 2).mean()) < 0.05 * wanted.std()
    steps_of_it = [line.split()[:4] for line in each._graph(1).explain().splitlines()]
    for name in ("blk.0.attn_q", "blk.1.ffn_down", "token_embd"):
        assert ["matmul_n_bits", f"'{name}'", "cpu", "native"] in steps_of_it


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_decoder_merges_matrices_of_equal_format(architecture: str, tmp_path: Path) -> None:
    """Biases, which Qwen2 has, too."""
    path = tmp_path / "x.gguf"
    formats = {"attn_q": "Q4_1", "attn_k": "Q4_1", "attn_v": "Q4_1", "ffn_gate": "Q8_0", "ffn_up": "Q8_0"}
    weights = tiny_models.write(path, architecture=architecture, formats=formats)
    wanted = tiny_models.logits(weights, TEXT, interleaved=architecture == "llama")
    each = decoder(path)
    error = np.sqrt(((steps(each, TEXT) - wanted) ** 2).mean())
    assert 1e-4 < error < 0.05 * wanted.std()
    explained = each._graph(1).explain()
    assert "matmul_n_bits 'blk.0.attn_q, blk.0.attn_k, blk.0.attn_v'" in explained
    assert "matmul_n_bits 'blk.1.ffn_gate, blk.1.ffn_up'" in explained


def test_decoder_multiplies_minima_with_the_weights(tmp_path: Path) -> None:
    """So there is no product of their own, with sums of the input's blocks."""
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path, formats=dict.fromkeys(["embd", *MATRICES], "Q4_1")), TEXT)
    each = decoder(path)
    error = np.sqrt(((steps(each, TEXT) - wanted) ** 2).mean())
    assert error < 0.05 * wanted.std()
    assert "reduce_sum" not in each._graph(1).explain()


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("formats", [MIXED, dict.fromkeys(["embd", *MATRICES], "Q4_1")], ids=["mixed", "Q4_1"])
def test_prompts_and_single_tokens_share_the_packed_weights(
    formats: dict[str, str], quantized: bool, tmp_path: Path
) -> None:
    """Both graphs run in one session of the engine, which holds the weights once."""
    path = tmp_path / "x.gguf"
    tiny_models.write(path, formats=formats)
    each = decoder(path, quantized=quantized)
    each.build()
    one, many = (program_of(graph).steps for graph in each._graphs.values())
    for first, second in zip(one, many, strict=True):
        runners: list[Any] = [step.part.runner for step in (first, second) if step.part]
        assert runners[0]._session is runners[1]._session


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("count", [2, CHUNK, CHUNK + 1, 100])
def test_decoder_prompt_in_chunks(count: int, quantized: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    weights = tiny_models.write(path, formats=MIXED)
    wanted = tiny_models.logits(weights, TEXT)
    each = decoder(path, quantized=quantized)
    found = [each.feed(TEXT[:count]).copy()]
    assert each.tokens == TEXT[:count]
    rest = TEXT[count : count + 3]
    found += [each.feed([token]).copy() for token in rest]  # what filled up the last chunk is overwritten
    error = np.sqrt(((found - wanted[count - 1 : count + 3]) ** 2).mean(axis=1))
    assert error.max() < (0.15 if quantized else 1e-5) * wanted.std()


def test_decoder_forget(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path), TEXT)
    each = decoder(path, quantized=False)
    each.feed(TEXT[::-1])
    each.forget(0)
    each.feed([*TEXT[:30], 1, 2, 3])
    each.forget(30)
    np.testing.assert_allclose(each.feed(TEXT[30:]), wanted[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("room", [100, CHUNK, 20])
def test_decoder_uses_whole_context(room: int, tmp_path: Path) -> None:
    """It is used to the last token, also where no chunk fits any more."""
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path), TEXT)
    each = decoder(path, room, quantized=False)
    each.feed(TEXT[:10])
    np.testing.assert_allclose(each.feed(TEXT[10:room]), wanted[room - 1], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValidationError, match=rf"1 tokens do not fit into the 0 that are left of {room}"):
        each.feed([1])


def test_decoder_copies_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path, formats=MIXED)
    each = decoder(path)
    each.feed(TEXT[:70])
    ow.memory.copies.reset()
    each.feed([1])
    each.feed(TEXT[:70])
    assert ow.memory.copies.count == 0


def test_devices_of_floats(tmp_path: Path) -> None:
    """A back end without a kernel for small integers is given floats."""
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path, formats=MIXED), TEXT[:5])
    context = ow.ml.create_context(device="reference")
    each = decoder(path, 20, context=context, quantized=False)
    np.testing.assert_allclose(steps(each, TEXT[:5]), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "there must be a token to feed"),
        ([3, -1], r"tokens must be in \[0, 264\), got \[3, -1\]"),
        ([264], r"tokens must be in \[0, 264\), got \[264\]"),
    ],
)
def test_decoder_rejects_tokens_out_of_range(tokens: list[int], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path)
    with pytest.raises(ValidationError, match=message):
        decoder(path).feed(tokens)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"architecture": "mamba"}, NotSupportedError, "is a model of type mamba; llama, qwen2 are run"),
        (
            {"extra": ["blk.0.attn_q_norm.weight"]},
            NotSupportedError,
            r"has 1 weights that networks of this type do not have: blk\.0\.attn_q_norm\.weight",
        ),
        ({"without": ["blk.1.ffn_up.weight"]}, DataError, r"lacks 1 weights: blk\.1\.ffn_up\.weight"),
        (
            {"metadata": {"llama.attention.head_count": "4"}},
            DataError,
            r"head_count must be an integer in \[1, 2147483647\], got '4'",
        ),
        ({"metadata": {"llama.rope.scaling.type": "yarn"}}, NotSupportedError, r"rotary embedding is scaled \(yarn\)"),
    ],
)
def test_model_rejects_other_networks(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path, **options)
    with pytest.raises(error, match=message):
        Model(GGUF(path))


def test_decoder_rejects_room_out_of_range(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path, context=100)
    with pytest.raises(ValidationError, match=r"room must be in \[1, 100\], got 101"):
        decoder(path, 101)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"llama.block_count": 2**32 - 1},
            r"x\.gguf: llama\.block_count must be an integer in \[1, 20\], got 4294967295",
        ),
        ({"llama.block_count": 2.0}, r"llama\.block_count must be an integer in \[1, 20\], got 2\.0"),
        ({"llama.block_count": True}, "block_count must be an integer"),
        ({"llama.block_count": 0}, "block_count must be an integer"),
        ({"llama.block_count": [2]}, "block_count must be an integer"),
        ({"llama.block_count": None}, r"x\.gguf lacks llama\.block_count"),
        ({"llama.attention.head_count": 0}, "head_count must be an integer"),
        ({"llama.attention.head_count": 4.0}, "head_count must be an integer"),
        ({"llama.attention.head_count": [4, 4]}, "head_count must be an integer"),
        ({"llama.attention.head_count": 2**31}, "head_count must be an integer"),
        (
            {"llama.attention.head_count": 200},
            "head_count_kv must be a divisor of the 200 heads|head_count must be at most",
        ),
        ({"llama.attention.head_count": 8}, r"blk\.0\.attn_k\.weight must have the shape \[16, 64\], got \[32, 64\]"),
        ({"llama.attention.head_count_kv": 3}, "head_count_kv must be a divisor of the 4 heads, got 3"),
        ({"llama.attention.head_count_kv": 8}, "head_count_kv must be a divisor of the 4 heads, got 8"),
        ({"llama.attention.head_count_kv": 0}, "head_count_kv must be an integer"),
        ({"llama.attention.head_count_kv": 1}, r"attn_k\.weight must have the shape \[16, 64\], got \[32, 64\]"),
        ({"llama.attention.key_length": 8}, r"attn_q\.weight must have the shape \[32, 64\], got \[64, 64\]"),
        ({"llama.attention.key_length": "16"}, "key_length must be an integer"),
        ({"llama.embedding_length": 65}, "embedding_length must be 64, as the weights have it, got 65"),
        ({"llama.feed_forward_length": 7}, "feed_forward_length must be 256, as the weights have it, got 7"),
        ({"llama.context_length": 0}, "context_length must be an integer"),
        ({"llama.context_length": 1e9}, "context_length must be an integer"),
        ({"llama.context_length": None}, r"lacks llama\.context_length"),
        (
            {"llama.attention.layer_norm_rms_epsilon": float("nan")},
            "epsilon must be a finite number greater than 0, got nan",
        ),
        (
            {"llama.attention.layer_norm_rms_epsilon": float("inf")},
            "epsilon must be a finite number greater than 0, got inf",
        ),
        ({"llama.attention.layer_norm_rms_epsilon": -1e-5}, "epsilon must be a finite number greater than 0, got -"),
        ({"llama.attention.layer_norm_rms_epsilon": "x"}, "epsilon must be a finite number greater than 0, got 'x'"),
        ({"llama.attention.layer_norm_rms_epsilon": True}, "epsilon must be a finite number greater than 0, got True"),
        ({"llama.rope.freq_base": 0.0}, "freq_base must be a finite number greater than 0"),
        ({"llama.rope.freq_base": float("nan")}, "freq_base must be a finite number greater than 0"),
        ({"llama.rope.freq_base": [1.0]}, "freq_base must be a finite number greater than 0"),
        ({"llama.rope.dimension_count": 3}, "dimension_count must be an even number of at most 16, the size of a head"),
        ({"llama.rope.dimension_count": 18}, "dimension_count must be an even number of at most 16"),
        ({"llama.rope.dimension_count": 2**31 - 2}, "dimension_count must be an even number of at most 16"),
        ({"llama.rope.dimension_count": 16.0}, "dimension_count must be an integer"),
        ({"llama.rope.scaling.type": 3}, r"rope\.scaling\.type must be text, got 3"),
        ({"llama.rope.scaling.factor": "x"}, r"rope\.scaling\.factor must be a finite number"),
        ({"general.architecture": 7}, r"general\.architecture must be text, got 7"),
        ({"general.architecture": ["llama"]}, r"general\.architecture must be text, got \['llama'\]"),
        ({"general.architecture": None}, r"x\.gguf lacks general\.architecture"),
    ],
)
def test_model_rejects_sizes_of_other_types_and_ranges(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path, metadata=metadata)
    with pytest.raises(DataError, match=message):
        Model(GGUF(path))


@pytest.mark.parametrize("name", ["rope.scaling.factor", "rope.scale_linear"])
def test_model_refuses_scaled_angles(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path, metadata={f"llama.{name}": 1.0})
    Model(GGUF(path))
    tiny_models.write(path, metadata={f"llama.{name}": 4.0})
    with pytest.raises(NotSupportedError, match=r"its rotary embedding is scaled \(linear by 4\)"):
        Model(GGUF(path))
    tiny_models.write(path, metadata={f"llama.{name}": 4.0, "llama.rope.scaling.type": "none"})
    Model(GGUF(path))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"token_embd.weight": (264, 32)}, r"must have the shape|must be 32"),
        ({"token_embd.weight": (64,)}, r"token_embd\.weight must have a rank of 2, got \[64\]"),
        ({"token_embd.weight": (2, 132, 64)}, r"token_embd\.weight must have a rank of 2, got \[2, 132, 64\]"),
        ({"output_norm.weight": (63,)}, r"output_norm\.weight must have the shape \[64\], got \[63\]"),
        ({"output_norm.weight": (1, 64)}, r"output_norm\.weight must have the shape \[64\], got \[1, 64\]"),
        ({"output.weight": (264, 63)}, r"output\.weight must have the shape \[264, 64\], got \[264, 63\]"),
        ({"output.weight": (7, 64)}, r"output\.weight must have the shape \[264, 64\], got \[7, 64\]"),
        ({"rope_freqs.weight": (9,)}, r"rope_freqs\.weight must have the shape \[8\], got \[9\]"),
        ({"blk.1.attn_norm.weight": (1,)}, r"blk\.1\.attn_norm\.weight must have the shape \[64\], got \[1\]"),
        ({"blk.1.attn_q.weight": (32, 64)}, r"blk\.1\.attn_q\.weight must have the shape \[64, 64\], got \[32, 64\]"),
        ({"blk.1.attn_v.weight": (64, 64)}, r"blk\.1\.attn_v\.weight must have the shape \[32, 64\], got \[64, 64\]"),
        ({"blk.1.attn_output.weight": (64, 32)}, r"attn_output\.weight must have the shape \[64, 64\]"),
        ({"blk.0.ffn_up.weight": (64, 64)}, "feed_forward_length must be 64, as the weights have it, got 256"),
        ({"blk.0.ffn_up.weight": (256,)}, r"blk\.0\.ffn_up\.weight must have a rank of 2"),
        ({"blk.1.ffn_gate.weight": (128, 64)}, r"blk\.1\.ffn_gate\.weight must have the shape \[256, 64\]"),
        ({"blk.1.ffn_down.weight": (64, 64)}, r"blk\.1\.ffn_down\.weight must have the shape \[64, 256\]"),
        ({"blk.1.attn_k.bias": (64,)}, r"blk\.1\.attn_k\.bias must have the shape \[32\], got \[64\]"),
    ],
)
def test_model_rejects_weights_of_other_shapes(
    shapes: dict[str, tuple[int, ...]], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path, shapes=shapes)
    with pytest.raises(DataError, match=message):
        Model(GGUF(path))
