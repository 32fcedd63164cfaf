"""Language models of each architecture, as GGUF files with random weights, against the modules of Transformers.

The package `gguf` names the weights and the metadata: a witness of the format, as the modules are one of the networks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave.chat import GGUF, Decoder, Model

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test-torch` installs it")
transformers = pytest.importorskip(
    "transformers", reason="Transformers is not installed; `make test-torch` installs it"
)
gguf = pytest.importorskip(
    "gguf", reason="gguf, which writes the files, is not installed; `make test-torch` installs it"
)

WORDS, WIDTH, HIDDEN, LAYERS, HEADS, GROUPS, ROOM, FIRST = 60, 64, 96, 3, 4, 2, 64, 16
BASE = 5000.0
TEXT = [int(k) for k in np.random.default_rng(3).integers(0, WORDS, 40)]
LONG, SHORT = [1.0, 2.0, 2.5, 3.0, 4.0, 4.0, 5.0, 6.0], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": FIRST}


@dataclass
class Case:
    """A model of Transformers, and what its file says besides the sizes.

    Attributes:
        kind: the type of the model's configuration.
        architecture: of the file.
        options: of the configuration.
        metadata: of the file, without the name of the architecture.
        size: elements of a head.
        tensors: more weights of the file.
        room: the length of the cache, and of the text if that is longer.
    """

    kind: str
    architecture: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    size: int = 16
    tensors: dict[str, list[float]] = field(default_factory=dict)
    room: int = ROOM


def llama3_factors(size: int) -> list[float]:
    """What Llama 3 divides frequencies by, as the converter of llama.cpp writes it."""
    factors = []
    for k in range(size // 2):
        length = 2 * pi * BASE ** (2 * k / size)
        smooth = (FIRST / length - LLAMA3["low_freq_factor"]) / (LLAMA3["high_freq_factor"] - LLAMA3["low_freq_factor"])
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / LLAMA3["factor"] + smooth))
    return factors


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": BASE, **parameters}}


GEMMA2 = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8}
GEMMA3 = {**GEMMA, "sliding_window_pattern": 3, "final_logit_softcapping": None}
PHI3 = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
FACTORS = {"rope_factors_long.weight": LONG, "rope_factors_short.weight": SHORT}
LONG_ROPE = {
    **PHI3,
    **rope(rope_type="longrope", long_factor=LONG, short_factor=SHORT, original_max_position_embeddings=FIRST),
    "original_max_position_embeddings": FIRST,
}
ATTENTION_FACTOR = sqrt(1 + log(ROOM / FIRST) / log(FIRST))

CASES = {
    "llama": Case("llama", options=rope(rope_type="default")),
    "llama, tied": Case("llama", options={**rope(rope_type="default"), "tie_word_embeddings": True}),
    "llama, linear": Case(
        "llama",
        options=rope(rope_type="linear", factor=4.0),
        metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "llama, YaRN": Case(
        "llama",
        options=rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=FIRST),
        metadata={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": FIRST,
        },
    ),
    "llama 3": Case(
        "llama", options=rope(rope_type="llama3", **LLAMA3), tensors={"rope_freqs.weight": llama3_factors(16)}
    ),
    "mistral": Case("mistral", "llama", {**rope(rope_type="default"), "sliding_window": None, "head_dim": 16}),
    "qwen2": Case("qwen2", options=rope(rope_type="default")),
    "qwen3": Case("qwen3", options={**rope(rope_type="default"), "head_dim": 32}, size=32),
    "gemma2": Case(
        "gemma2",
        options={**rope(rope_type="default"), **GEMMA, **GEMMA2},
        metadata={**GEMMA2, "attention.sliding_window": 8},
        size=32,
    ),
    "gemma3": Case(
        "gemma3_text",
        "gemma3",
        {
            **GEMMA3,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": BASE},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        {"attention.sliding_window": 8, "attention.sliding_window_pattern": 3},
        size=32,
    ),
    "gemma3, linear": Case(
        "gemma3_text",
        "gemma3",
        {
            **GEMMA3,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": BASE},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        {
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": 3,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        size=32,
    ),
    "phi3": Case("phi3", options={**PHI3, **rope(rope_type="default")}),
    "phi3, window": Case(
        "phi3",
        options={**PHI3, **rope(rope_type="default"), "sliding_window": 9},
        metadata={"attention.sliding_window": 9},
    ),
    "phi3, a part rotated": Case(
        "phi3",
        options={**PHI3, **rope(rope_type="default", partial_rotary_factor=0.5)},
        metadata={"rope.dimension_count": 16},
        size=32,
    ),
    "phi3, long": Case(
        "phi3",
        options=LONG_ROPE,
        metadata={"rope.scaling.attn_factor": ATTENTION_FACTOR, "rope.scaling.original_context_length": FIRST},
        tensors=FACTORS,
    ),
    "phi3, short": Case(
        "phi3",
        options=LONG_ROPE,
        metadata={"rope.scaling.attn_factor": ATTENTION_FACTOR, "rope.scaling.original_context_length": FIRST},
        tensors=FACTORS,
        room=FIRST,
    ),
}


def module_of(case: Case) -> Any:
    """The module, with random weights that matter."""
    heads = 2 if case.size == 32 and case.kind == "phi3" else HEADS
    config = transformers.AutoConfig.for_model(
        case.kind,
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=GROUPS,
        max_position_embeddings=ROOM,
        **({"tie_word_embeddings": False} if "gemma" not in case.kind else {}) | case.options,
    )
    module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(0, 0.3)
                if "norm" in name and "gemma" not in case.kind:
                    parameter.add_(1)
            else:
                parameter.normal_(0, 1.5 / sqrt(parameter.shape[1]))
    return module


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a matrix whose rotated pairs were one in each half of a head, for pairs of neighbours."""
    parts = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return parts.swapaxes(1, 2).reshape(rows.shape)


def write(path: Path, case: Case, module: Any) -> None:
    """Write the weights of a module as a GGUF file."""
    config, architecture = module.config, case.architecture or case.kind
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(ROOM)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(GROUPS)
    writer.add_key_length(case.size)
    writer.add_value_length(case.size)
    writer.add_rope_freq_base(BASE)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name, value in case.metadata.items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(f"{architecture}.{name}", value)
    numbers = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[architecture], LAYERS)
    for name, tensor in module.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if architecture == "llama" and ".q_proj." in name:
            array = interleave(array, HEADS)
        if architecture == "llama" and ".k_proj." in name:
            array = interleave(array, GROUPS)
        if "gemma" in architecture and "norm" in name:
            array = array + 1
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        writer.add_tensor(target, np.ascontiguousarray(array, np.float32))
    for name, values in case.tensors.items():
        writer.add_tensor(name, np.array(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", CASES)
def test_logits_agree_with_transformers(name: str, tmp_path: Path) -> None:
    """Of a prompt, and of tokens that are read one at a time."""
    case = CASES[name]
    module, path = module_of(case), tmp_path / "x.gguf"
    write(path, case, module)
    text = TEXT[: case.room]
    with torch.no_grad():
        expected = module(torch.tensor([text])).logits[0].numpy()
    assert expected.std() > 0.3
    decoder = Decoder(Model(GGUF(path)), ow.ml.create_context(device="cpu"), case.room)
    first = len(text) - 6
    logits = [decoder.feed(text[:first]).copy(), *(decoder.feed([token]).copy() for token in text[first:])]
    np.testing.assert_allclose(logits, expected[first - 1 :], atol=5e-4)
