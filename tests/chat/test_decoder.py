"""Llama-type networks from GGUF files, against their definition; and what a decoder remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models

import opweave as ow
from opweave import DataError, NotSupportedError, ValidationError
from opweave.chat import GGUF, Decoder, Model
from opweave.chat.decoder import CHUNK
from opweave.chat.model import MATRICES

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
def test_the_network_is_that_of_the_definition(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    weights = tiny_models.write(path, architecture=architecture, formats=MIXED)
    wanted = tiny_models.logits(weights, TEXT, interleaved=architecture == "llama")
    found = steps(decoder(path, quantized=False), TEXT)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_small_integers_are_multiplied_as_such(tmp_path: Path) -> None:
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
def test_matrices_that_are_quantized_alike_are_one_product(architecture: str, tmp_path: Path) -> None:
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


def test_minima_are_part_of_the_products(tmp_path: Path) -> None:
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
    one, many = (graph._check_alive().steps for graph in each._graphs.values())
    for first, second in zip(one, many, strict=True):
        runners: list[Any] = [step.part.runner for step in (first, second) if step.part]
        assert runners[0]._session is runners[1]._session


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("count", [2, CHUNK, CHUNK + 1, 100])
def test_a_prompt_in_chunks_gives_the_same(count: int, quantized: bool, tmp_path: Path) -> None:
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


def test_what_is_forgotten_makes_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path), TEXT)
    each = decoder(path, quantized=False)
    each.feed(TEXT[::-1])
    each.forget(0)
    each.feed([*TEXT[:30], 1, 2, 3])
    each.forget(30)
    np.testing.assert_allclose(each.feed(TEXT[30:]), wanted[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("room", [100, CHUNK, 20])
def test_the_end_of_the_room(room: int, tmp_path: Path) -> None:
    """It is used to the last token, also where no chunk fits any more."""
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path), TEXT)
    each = decoder(path, room, quantized=False)
    each.feed(TEXT[:10])
    np.testing.assert_allclose(each.feed(TEXT[10:room]), wanted[room - 1], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValidationError, match=rf"1 tokens do not fit into the 0 that are left of {room}"):
        each.feed([1])


def test_no_copies_are_made(tmp_path: Path) -> None:
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
def test_tokens_out_of_range(tokens: list[int], message: str, tmp_path: Path) -> None:
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
            r"head_count must be a positive number, got '4'",
        ),
        ({"metadata": {"llama.rope.scaling.type": "yarn"}}, NotSupportedError, r"rotary embedding is scaled \(yarn\)"),
    ],
)
def test_other_networks_are_refused(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path, **options)
    with pytest.raises(error, match=message):
        Model(GGUF(path))


def test_room_out_of_range(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path, context=100)
    with pytest.raises(ValidationError, match=r"room must be in \[1, 100\], got 101"):
        decoder(path, 101)
