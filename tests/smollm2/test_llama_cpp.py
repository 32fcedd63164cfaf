"""SmolLM2 beside llama.cpp's own library, with adapters that are loaded, scaled, mixed and dropped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support import smollm2_file
from support.processes import run_python
from support.tiny_models import gguf

import opweave as ow
from benchmarks import llama_library
from opweave.chat import GGUF, Decoder, LoRA, Model

pytestmark = pytest.mark.skipif(
    not llama_library.is_installed(),
    reason="llama.cpp is not installed: npm install --prefix .llama @node-llama-cpp/linux-x64",
)

TOKENS = np.load(Path(__file__).parents[1] / "data" / "smollm2.npz")["tokens"].tolist()[:24]
MATRICES = ("attn_q", "attn_v", "attn_output", "ffn_gate", "ffn_down")
RANK = 4


def write_adapter(path: Path, file: GGUF, seed: int) -> None:
    """Random side products for the matrices of all layers, as llama.cpp's converter writes them."""
    random, writer = np.random.default_rng(seed), gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for name, weight in file.weights.items():
        if any(f".{matrix}.weight" in name for matrix in MATRICES):
            rows, columns = weight.shape
            writer.add_tensor(f"{name}.lora_a", random.standard_normal((RANK, columns)).astype("float32") / 100)
            writer.add_tensor(f"{name}.lora_b", random.standard_normal((rows, RANK)).astype("float32") / 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rms(difference: np.ndarray) -> float:
    return float(np.sqrt((difference.astype("float64") ** 2).mean()))


THEIRS = """
import json, sys
import numpy as np
from benchmarks.llama_library import Llama
model, adapters, calls, tokens, target = map(json.loads, sys.argv[1:])
results = []
for scales in calls:
    llama = Llama(model, 64, 2, adapters)
    llama.apply(scales)
    results.append(llama.feed(tokens).copy())
np.save(target, np.stack(results))
"""


def llama_cpp(calls: list[dict[str, float]], adapters: list[str], folder: Path) -> np.ndarray:
    """The logits of llama.cpp with adapters of these scales, computed in a process without other engines.

    On a processor with AMX, one MatMulInteger of ONNX Runtime changes what llama.cpp computes in the same thread from then on.
    """
    target = str(folder / "logits.npy")
    arguments = (str(smollm2_file.path()), adapters, calls, TOKENS, target)
    run_python(THEIRS, *map(json.dumps, arguments))
    logits: np.ndarray = np.load(target)
    return logits


def test_adapters_equal_llama_cpp(tmp_path: Path) -> None:
    """Both round inputs of products to 8 bits, so their logits differ a little; the adapters change them far more."""
    file = GGUF(smollm2_file.path())
    one, two = paths = [str(tmp_path / f"{name}.gguf") for name in ("one", "two")]
    for seed, path in enumerate(paths):
        write_adapter(Path(path), file, seed)
    calls: list[dict[str, float]] = [{}, {one: 1.0}, {one: 1.0, two: 0.5}, {two: -1.0}]
    plain, *expected = llama_cpp(calls, paths, tmp_path)
    context = ow.ml.create_context(device="cpu")
    ours = Decoder(Model(file), context, 64, adapters={"one": LoRA(one)}, adapter_rank=2 * RANK)

    def logits() -> np.ndarray:
        ours.forget(0)
        return ours.feed(TOKENS).copy()

    results = [logits()]
    ours.load_adapter("two", LoRA(two), scale=0.5)
    results.append(logits())
    ours.scale_adapters({"one": 0.0, "two": -1.0})
    results.append(logits())
    for result, theirs in zip(results, expected, strict=True):
        assert rms(result - theirs) < 0.3 < 0.6 < rms(theirs - plain)
    ours.drop_adapter("one")
    ours.drop_adapter("two")
    assert rms(logits() - plain) < 0.3
