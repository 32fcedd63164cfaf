"""Llama-type networks from GGUF files, against their definition; and what a decoder remembers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_models, webgpu_device, webgpu_kernels

import opweave as ow
from opweave import DataError, NotSupportedError, ValidationError
from opweave.chat import GGUF, Decoder, Model, Sampler
from opweave.chat.architectures import ARCHITECTURES
from opweave.chat.model import MATRICES, network
from opweave.context import dynamic_graph_state
from opweave.context.builder import NamedBuilder
from opweave.context.dynamic_graph_state import DynamicGraphState
from opweave.context.graph import state_of
from opweave.core.graph import Graph

CPU = ow.ml.create_context(device="cpu")
TEXT = [int(k) for k in np.random.default_rng(5).integers(0, len(tiny_models.TOKENS), 100)]
MIXED = {"attn_q": "Q4_0", "attn_v": "Q4_1", "attn_output": "F16", "ffn_gate": "Q8_0", "ffn_up": "Q4_1", "embd": "Q8_0"}
MIXED |= {"blk.0.ffn_down": "Q4_K", "blk.1.ffn_down": "Q6_K"}


def decoder(
    path: Path, room: int = 200, *, context: ow.MLContext = CPU, quantized: bool = True, cache: Any = "float32"
) -> Decoder:
    return Decoder(Model(GGUF(path), quantized=quantized), context, room, cache=cache)


def dynamic_state(each: Decoder) -> DynamicGraphState:
    state = state_of(each.graph)
    assert isinstance(state, DynamicGraphState)
    return state


def steps(each: Decoder, text: list[int]) -> np.ndarray:
    """The logits after each token, read one at a time."""
    return np.array([each.feed([token]).copy() for token in text])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_decoder_equals_definition(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    weights = tiny_models.write(path, architecture=architecture, formats=MIXED)
    wanted = tiny_models.logits(weights, TEXT, architecture=architecture)
    each = decoder(path, quantized=False)
    np.testing.assert_allclose(steps(each, TEXT), wanted, rtol=1e-4, atol=2e-4)
    each.forget(3)
    np.testing.assert_allclose(each.feed(TEXT[3:]), wanted[-1], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("architecture", "metadata", "windows"),
    [
        ("gemma3", {"sliding_window_pattern": 0}, [True, True]),
        ("gemma3", {"sliding_window_pattern": 1}, [False, False]),
        ("gemma3", {"sliding_window_pattern": [False, True]}, [False, True]),
        ("gemma3", {"sliding_window": None}, [False, False]),
        ("phi3", {"sliding_window_pattern": 2}, [True, False]),
    ],
    ids=str,
)
def test_files_tell_which_layers_see_a_window(
    architecture: str, metadata: dict[str, Any], windows: list[bool], tmp_path: Path
) -> None:
    """As llama.cpp reads them: a period of 0 is that of windows alone, and a period of 1 that of no windows."""
    path = tmp_path / "x.gguf"
    about = {f"{architecture}.attention.{name}": value for name, value in metadata.items()}
    weights = tiny_models.write(path, architecture=architecture, metadata=about)
    wanted = tiny_models.logits(weights, TEXT, architecture=architecture, windows=windows)
    each = decoder(path, quantized=False)
    np.testing.assert_allclose(each.feed(TEXT), wanted[-1], rtol=1e-4, atol=2e-4)


def test_decoder_multiplies_small_integers(tmp_path: Path) -> None:
    """The inputs of these products are rounded to 8 bits: an error of a few percent of what logits vary by."""
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path, formats=MIXED), TEXT)
    each = decoder(path)
    found = steps(each, TEXT)
    assert 1e-4 < np.sqrt(((found - wanted) ** 2).mean()) < 0.05 * wanted.std()
    steps_of_it = [line.split()[:4] for line in each.graph.explain().splitlines()]
    for name in ("blk.0.attn_q", "blk.1.ffn_down", "token_embd"):
        assert ["matmul_n_bits", f"'{name}'", "cpu", "native"] in steps_of_it


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_decoder_merges_matrices_of_equal_format(architecture: str, tmp_path: Path) -> None:
    """Biases, which Qwen2 has, too."""
    path = tmp_path / "x.gguf"
    formats = {"attn_q": "Q4_1", "attn_k": "Q4_1", "attn_v": "Q4_1", "ffn_gate": "Q8_0", "ffn_up": "Q8_0"}
    weights = tiny_models.write(path, architecture=architecture, formats=formats)
    wanted = tiny_models.logits(weights, TEXT, architecture=architecture)
    each = decoder(path)
    error = np.sqrt(((steps(each, TEXT) - wanted) ** 2).mean())
    assert 1e-4 < error < 0.05 * wanted.std()
    explained = each.graph.explain()
    assert "matmul_n_bits 'blk.0.attn_q, blk.0.attn_k, blk.0.attn_v'" in explained
    assert "matmul_n_bits 'blk.1.ffn_gate, blk.1.ffn_up'" in explained


def test_decoder_multiplies_minima_with_the_weights(tmp_path: Path) -> None:
    """So there is no product of their own, with sums of the input's blocks."""
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path, formats=dict.fromkeys(["embd", *MATRICES], "Q4_1")), TEXT)
    each = decoder(path)
    error = np.sqrt(((steps(each, TEXT) - wanted) ** 2).mean())
    assert error < 0.05 * wanted.std()
    assert "reduce_sum" not in each.graph.explain()


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("formats", [MIXED, dict.fromkeys(["embd", *MATRICES], "Q4_1")], ids=["mixed", "Q4_1"])
def test_one_graph_reads_tokens_and_prompts_of_all_lengths(
    formats: dict[str, str], quantized: bool, tmp_path: Path
) -> None:
    """One program of the engine, which holds the weights once, and is compiled in the first pass."""
    path = tmp_path / "x.gguf"
    tiny_models.write(path, formats=formats)
    each = decoder(path, quantized=quantized)
    each.feed([1])
    state = dynamic_state(each)
    (program,) = state._open
    assert program.limits is not None
    for count in (2, 3, 1, 64, 17):
        each.feed(TEXT[:count])
        assert state._open == [program]
        assert state.numbers_needed == {}


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("count", [2, 32, 33, 97])
def test_decoder_prompt_in_chunks(count: int, quantized: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    weights = tiny_models.write(path, formats=MIXED)
    wanted = tiny_models.logits(weights, TEXT)
    each = decoder(path, quantized=quantized)
    each._chunk = 32
    found = [each.feed(TEXT[:count]).copy()]
    assert each.tokens == TEXT[:count]
    rest = TEXT[count : count + 3]
    found += [each.feed([token]).copy() for token in rest]
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


@pytest.mark.parametrize("room", [100, 64, 20])
def test_decoder_uses_whole_context(room: int, tmp_path: Path) -> None:
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
    for sampler in (Sampler(temperature=0), Sampler(seed=1, repetition_penalty=1.1)):
        each.choose([1], sampler)
    assert ow.memory.copies.count == 0


def test_gpu_compiles_nothing_for_new_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of prompts take all lengths; a single token has some of its own. Nothing is compiled in the background."""
    monkeypatch.setattr(dynamic_graph_state, "FAR", math.inf)
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path), TEXT[:40])
    context, titles = ow.ml.create_context(device=webgpu_device.gpu_context().device.name), list[str]()
    engine = webgpu_kernels.engine_of(context)
    compile_one = engine._compile

    def note(kernel: Any) -> Any:
        titles.append(kernel.title)
        return compile_one(kernel)

    monkeypatch.setattr(engine, "_compile", note)
    each = decoder(path, 40, context=context, quantized=False)
    each.feed([1])
    compiled = len(titles)
    assert compiled > 0
    for count in (5, 2, 1, 17, 40):
        each.forget(0)
        np.testing.assert_allclose(each.feed(TEXT[:count]), wanted[count - 1], rtol=1e-4, atol=2e-4)
        assert len(titles) == compiled


def test_build_compiles_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sampler = tmp_path / "x.gguf", Sampler(temperature=0)
    wanted = tiny_models.logits(tiny_models.write(path), TEXT[:5])
    each = decoder(path, 20, context=webgpu_device.gpu_context(), quantized=False)
    each.build(sampler)
    monkeypatch.setattr(sampler, "compile", None)
    assert each.choose(TEXT[:5], sampler) == wanted[-1].argmax()


def test_choice_reads_one_number_from_the_device(tmp_path: Path) -> None:
    """The next pass reads the token where the choice wrote it."""
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path), TEXT[:5])
    each = decoder(path, 20, context=webgpu_device.gpu_context(), quantized=False)
    sampler = Sampler(temperature=0)
    each.choose(TEXT[:4], sampler)
    each.forget(4)
    ow.memory.copies.reset()
    token = each.choose(TEXT[4:5], sampler)
    assert token == wanted[-1].argmax()
    assert ow.memory.copies.by_reason["read_tensor"].bytes == 4
    ow.memory.copies.reset()
    each.choose([token], sampler)
    assert ow.memory.copies.by_reason["read_tensor"].bytes == 4
    assert ow.memory.copies.by_reason["write_tensor"].bytes == 4  # the number of tokens in the cache


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_cache_of_float16_rounds_little(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path, architecture=architecture), TEXT, architecture=architecture)
    each = decoder(path, quantized=False, cache="float16")
    assert {tensor.data_type for tensor in each._past.values()} == {"float16"}
    error = np.sqrt(((steps(each, TEXT) - wanted) ** 2).mean())
    assert 1e-6 < error < 0.01 * wanted.std()
    each.forget(3)
    assert np.sqrt(((each.feed(TEXT[3:]) - wanted[-1]) ** 2).mean()) < 0.01 * wanted.std()


def test_gpu_keeps_a_cache_of_float16(tmp_path: Path) -> None:
    webgpu_device.need("shader-f16")
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path), TEXT[:40])
    each = decoder(path, 40, context=webgpu_device.gpu_context(), quantized=False, cache="float16")
    for logits, count in ((each.feed(TEXT[:30]), 30), (each.feed(TEXT[30:31]), 31), (each.feed(TEXT[31:40]), 40)):
        assert 1e-6 < np.sqrt(((logits - wanted[count - 1]) ** 2).mean()) < 0.01 * wanted.std()


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_cache_of_int8(architecture: str, device: str, tmp_path: Path) -> None:
    """Prompts and single tokens, also after `forget`; memory is a quarter, and a scale for each vector."""
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(
        tiny_models.write(path, architecture=architecture), TEXT[:40], architecture=architecture
    )
    context = CPU if device == "cpu" else webgpu_device.gpu_context()
    each = decoder(path, 40, context=context, quantized=False, cache="int8")
    for count in (30, 31, 40):
        logits = each.feed(TEXT[len(each.tokens) : count])
        assert 1e-5 < np.sqrt(((logits - wanted[count - 1]) ** 2).mean()) < 0.05 * wanted.std()
    each.forget(3)
    assert np.sqrt(((each.feed(TEXT[3:40]) - wanted[-1]) ** 2).mean()) < 0.05 * wanted.std()
    whole = decoder(path, 40, quantized=False)
    sizes = [sum(tensor.desc.byte_length for tensor in one._past.values()) for one in (each, whole)]
    size = each.model.sizes.size
    assert sizes[0] * 4 * size == sizes[1] * (size + 4)


def test_decoder_rejects_other_types_of_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path)
    with pytest.raises(ValidationError, match="cache must be 'float32', 'float16' or 'int8', got 'int4'"):
        decoder(path, cache="int4")


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
        ([3, 1.5], r"tokens must be integers, got \[3, 1\.5\]"),
        ("ab", r"tokens must be integers, got \['a', 'b'\]"),
    ],
)
def test_decoder_rejects_tokens_out_of_range(tokens: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path)
    with pytest.raises(ValidationError, match=message):
        decoder(path).feed(tokens)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"architecture": "mamba"},
            NotSupportedError,
            "type mamba; gemma2, gemma3, llama, phi3, qwen2, qwen3 are run",
        ),
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
        ({"metadata": {"llama.rope.scaling.type": "su"}}, NotSupportedError, r"rotary embedding is scaled \(su\)"),
        (
            {"metadata": {"llama.rope.scaling.yarn_ext_factor": 0.5}},
            NotSupportedError,
            r"x\.gguf: rope\.scaling\.yarn_ext_factor must be 0 with the scaling linear, got 0\.5",
        ),
        (
            {"metadata": {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_attn_factor": 1.5}},
            NotSupportedError,
            r"rope\.scaling\.yarn_attn_factor must be 1 unless yarn_ext_factor is 0, got 1\.5",
        ),
    ],
)
def test_model_rejects_other_networks(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path, **options)
    with pytest.raises(error, match=message):
        Model(GGUF(path))


@pytest.mark.parametrize("room", [101, 0, 1.5, True, None])
def test_decoder_rejects_room_out_of_range(room: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path, context=100)
    with pytest.raises(ValidationError, match=rf"room must be in \[1, 100\], got {room}"):
        decoder(path, room)


@pytest.mark.parametrize("length", [-1, 1.5, None])
def test_forget_rejects_other_lengths(length: Any, tmp_path: Path) -> None:
    tiny_models.write(tmp_path / "x.gguf")
    with pytest.raises(ValidationError, match=rf"length must be 0 or more, got {length}"):
        decoder(tmp_path / "x.gguf").forget(length)


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
        (
            {"llama.attention.sliding_window_pattern": [True]},
            r"sliding_window_pattern must be a list of 2 booleans, as many as there are layers, got",
        ),
        ({"llama.attention.sliding_window_pattern": ["x", "y"]}, "sliding_window_pattern must be a list of 2 booleans"),
        ({"llama.attention.sliding_window_pattern": [2, 0]}, "sliding_window_pattern must be a list of 2 booleans"),
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
def test_angles_are_scaled(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path)
    plain = Model(GGUF(path)).rotations(9)
    tiny_models.write(path, metadata={f"llama.{name}": 4.0})
    for scaled, whole in zip(Model(GGUF(path)).rotations(9), plain, strict=True):
        np.testing.assert_allclose(scaled[8], whole[2], rtol=1e-6)
    tiny_models.write(path, metadata={f"llama.{name}": 4.0, "llama.rope.scaling.type": "none"})
    np.testing.assert_array_equal(Model(GGUF(path)).rotations(9), plain)


def test_angles_are_mixed_by_factors_of_yarn(tmp_path: Path) -> None:
    def angles(**properties: Any) -> tuple[np.ndarray, np.ndarray]:
        """The angles at the position 1, and their magnitude."""
        path = tmp_path / "x.gguf"
        scaling = {"factor": 4.0, "original_context_length": 16, **properties}
        tiny_models.write(path, metadata={f"llama.rope.scaling.{name}": value for name, value in scaling.items()})
        cosines, sines = (table[1].astype("float64") for table in Model(GGUF(path)).rotations(2))
        return np.arctan2(sines, cosines), np.hypot(sines, cosines)

    scaled, _ = angles(type="linear")
    mixed, magnitude = angles(type="yarn")
    np.testing.assert_allclose(magnitude, 1 + 0.1 * np.log(4), rtol=1e-6)
    assert (mixed > scaled * 1.01).any()
    for share in (-1.0, 0.5, 1.0):
        other, others = angles(type="yarn", yarn_ext_factor=share)
        np.testing.assert_allclose(other, scaled + (mixed - scaled) * (share if share > 0 else 1), rtol=1e-6)
        np.testing.assert_allclose(others, magnitude, rtol=1e-6)
    other, others = angles(type="yarn", yarn_ext_factor=0.0, yarn_attn_factor=1.5, attn_factor=2.0)
    np.testing.assert_allclose(other, scaled, rtol=1e-6)
    np.testing.assert_allclose(others, 3, rtol=1e-6)


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


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_1", "Q8_0"])
def test_embeddings_have_the_arrays_of_the_product_with_them(name: str, tmp_path: Path) -> None:
    """A tied table is in memory once, also if its minima are further weights of the product."""
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path, formats={"embd": name}), TEXT)
    each = decoder(path)
    error = np.sqrt(((steps(each, TEXT) - wanted) ** 2).mean())
    assert error < 0.05 * wanted.std()
    nodes = Graph.reaching(network(NamedBuilder(CPU), each.model, 1, 60)).nodes
    lookup, product = (
        next(node for node in nodes if node.op is op and node.label == "token_embd")
        for op in (ow.composites.gather_n_bits, ow.composites.matmul_n_bits)
    )
    assert np.shares_memory(lookup.arguments["weight"].value, product.arguments["weight"].value)
