"""Language models on GPUs: the weights of a file stay as narrow in device memory as they are in the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Thread, current_thread

import numpy as np
import pytest
from support import tiny_models
from support.webgpu_device import gpu_context, need

from opweave.chat import GGUF, Decoder, Model
from opweave.chat.gguf import Weight
from opweave.chat.model import MATRICES, Matrix
from opweave.context.graph import program_of

TEXT = [int(k) for k in np.random.default_rng(5).integers(0, len(tiny_models.TOKENS), 70)]
MIXED = {"attn_q": "Q4_0", "attn_v": "Q4_1", "attn_output": "F16", "ffn_gate": "Q8_0", "ffn_up": "Q4_1", "embd": "Q8_0"}
MIXED |= {"blk.0.ffn_down": "Q4_K", "blk.1.ffn_down": "Q6_K"}
SMALL = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "F16", "BF16")
FORMATS = {"mixed": MIXED} | {name: dict.fromkeys(["embd", *MATRICES], name) for name in SMALL}
FORMATS |= {name: {"ffn_down": name} for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")}


def decoder_of(path: Path) -> Decoder:
    return Decoder(Model(GGUF(path), for_cpu=False), gpu_context(), 100)


@pytest.mark.parametrize("formats", FORMATS.values(), ids=FORMATS)
def test_logits_equal_definition(formats: dict[str, str], tmp_path: Path) -> None:
    """No input is rounded. A prompt, then tokens one by one."""
    path = tmp_path / "x.gguf"
    wanted = tiny_models.logits(tiny_models.write(path, formats=formats), TEXT)
    each = decoder_of(path)
    np.testing.assert_allclose(each.feed(TEXT[:66]), wanted[65], rtol=1e-4, atol=1e-4)
    for k in (66, 67):
        np.testing.assert_allclose(each.feed(TEXT[k : k + 1]), wanted[k], rtol=1e-4, atol=1e-4)


def test_matrices_are_packed_before_operations_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, threads, pack = tmp_path / "x.gguf", list[Thread](), Model._pack
    tiny_models.write(path, formats=MIXED)

    def note(model: Model, weights: Sequence[Weight]) -> Matrix:
        threads.append(current_thread())
        return pack(model, weights)

    monkeypatch.setattr(Model, "_pack", note)
    each = decoder_of(path)
    assert each.graph
    assert len(threads) == sum(weight.format.blocks is not None for weight in each.model.file.weights.values())
    assert current_thread() not in threads


BITS = {"Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5, "Q5_1": 6.0, "Q8_0": 8.5, "F16": 16.0, "BF16": 16.0}


@pytest.mark.parametrize(("name", "most"), BITS.items())
def test_weights_keep_their_bits(name: str, most: float, tmp_path: Path) -> None:
    """Products read no more than the bits of the file: the scales are float16 there, and in device memory."""
    need("shader-f16")
    path = tmp_path / "x.gguf"
    tiny_models.write(path, formats=FORMATS[name])
    file = GGUF(path)
    each = Decoder(Model(file, for_cpu=False), gpu_context(), 100)
    each.build()
    matrices = sum(
        weight.data.size * weight.format.elements for n, weight in file.weights.items() if len(weight.shape) == 2
    )
    runners = [step.part.runner for step in program_of(each.graph).steps if step.part]
    steps = [step for runner in runners for step in runner.steps]  # type: ignore[attr-defined]
    products = [step for step in steps if any(node.op.name in ("matmul_n_bits", "gemm") for node in step.nodes)]
    assert len(products) >= 9
    places = {p for step in products for p in step.places if p.kind == "constant" and len(p.desc.shape) > 1}
    assert sum(place.desc.byte_length for place in places) * 8 <= most * matrices
    assert not any(
        place.desc.element_count > 2**16 for step in steps for place in step.places if place.kind == "between"
    )


def test_products_are_merged_where_they_run(tmp_path: Path) -> None:
    """The products before a gate have one epilogue, with the normalisation before them; a residual is part of another one."""
    path = tmp_path / "x.gguf"
    tiny_models.write(path, formats=FORMATS["Q4_0"])
    each = decoder_of(path)
    each.build()
    runners = [step.part.runner for step in program_of(each.graph).steps if step.part]
    kernels = [{node.op.name for node in step.nodes} for runner in runners for step in runner.steps]  # type: ignore[attr-defined]
    products = [names for names in kernels if "matmul_n_bits" in names]
    assert sum("mul" in names and "rms_normalization" in names for names in products) == 2  # one in each layer
    assert sum("add" in names for names in products) == 4
    assert not any("split" in names for names in kernels)
