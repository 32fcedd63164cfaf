"""Every example runs, in a process of its own; and what it computes is right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import smollm2_file, webgpu_device, witness

import opweave as ow
from opweave.demo.enlarger import Enlarger

pytestmark = pytest.mark.default_choice  # what readers run

EXAMPLES = sorted(Path(__file__).parents[2].joinpath("examples").glob("*.py"))


def loaded(name: str) -> ModuleType:
    (path,) = (path for path in EXAMPLES if path.stem == name)
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_neighbours(printed: str) -> None:
    """Similar sentences find each other, and a graph written as ONNX gives the same vectors."""
    example = loaded("sentence_embeddings")
    *lines, last = printed.strip().splitlines()
    nearest = [line[4:].strip().split("  ~  ") for line in lines]
    assert [pair[1] for pair in nearest[:4]] == [example.SENTENCES[k] for k in (1, 0, 3, 2)]
    assert float(lines[2][:4]) > 0.5 > float(lines[4][:4])
    assert float(last.split()[-1]) < 1e-5


OPTIONS = {"camera": ["--width", "64", "--frames", "2"], "frame_loop": ["--width", "48", "--frames", "1"]}
"""Arguments of examples: fewer and smaller frames than they make by themselves."""


def check_text(printed: str) -> None:
    """The text goes on as all that know the model say."""
    assert printed.startswith("The capital of France is Paris.\n")
    assert printed.rstrip().endswith(" tokens/s")


def check_frames(printed: str) -> None:
    """Frames are copied between textures and tensors, and nothing else is copied."""
    assert "2 frames of 64 x 36" in printed
    assert "copies a frame, on the device: 2" in printed


CHECKS: dict[str, Callable[[str], None]] = {
    "camera": check_frames,
    "chat": check_text,
    "sentence_embeddings": check_neighbours,
}
"""What must hold for what examples print."""


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    if "import wgpu" in path.read_text():
        webgpu_device.adapter()  # skips where there is none
    if "import ray" in path.read_text():
        pytest.skip("tests/scale/test_gpus_on_ray.py runs it")
    if path.stem == "chat":
        smollm2_file.path()  # skips where it is not installed
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}  # Mesa complains where it is missing
    command = [sys.executable, path, *OPTIONS.get(path.stem, [])]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert not result.stderr
    if path.stem in CHECKS:
        CHECKS[path.stem](result.stdout)


@pytest.mark.long
@pytest.mark.parametrize("stem", ["camera", "frame_loop", "sentence_embeddings"])
def test_examples_name_missing_extras(stem: str, tmp_path: Path) -> None:
    missing = "wgpu" if stem != "sentence_embeddings" else "tokenizers"
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no {missing}', name='{missing}')")
    (path,) = (path for path in EXAMPLES if path.stem == stem)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=600, env=environment)
    assert result.returncode == 1
    assert result.stderr.startswith(f"{missing} is missing: pip install ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.long
def test_frames_are_enlarged_in_the_shaders_own_buffers(tmp_path: Path) -> None:
    webgpu_device.adapter()
    example = loaded("frame_loop")
    loop = example.FrameLoop(example.gpu_device(), 48, 24)
    assert loop.source.gpu_buffer is loop.small
    assert loop.target.gpu_buffer is loop.large
    ow.memory.copies.reset()
    loop.shared(0.25)
    assert ow.memory.copies.count == 0
    pictures = [loop.pixels(loop.picture, loop.large_size, 4)]
    loop.copied(0.25)
    pictures.append(loop.pixels(loop.picture, loop.large_size, 4))
    np.testing.assert_array_equal(*pictures)
    assert ow.memory.copies.count == 2

    small, large = loop.pixels(loop.small, loop.small_size), loop.pixels(loop.large, loop.large_size)
    expected = Enlarger(ow.ml.create_context(device="cpu"), 24, 48)(small)
    np.testing.assert_allclose(large.astype(int), expected.astype(int), atol=1)
    middle = round(loop.large_size[0] * (0.5 + 0.12 * np.sin(0.9 * 0.25)))
    left, right = pictures[0][:30, : middle - 4, :3], pictures[0][:30, middle + 4 :, :3]  # above the lens
    np.testing.assert_array_equal(left, small.repeat(3, 0).repeat(3, 1)[:30, : middle - 4])
    np.testing.assert_array_equal(right, large[:30, middle + 4 :])


@pytest.mark.long
def test_sentence_vectors_are_those_of_the_definition() -> None:
    example = loaded("sentence_embeddings")
    folder = example.package()
    feed = example.tokens(folder, ["A short one.", "A sentence that has a few more words than the other one."])
    context = ow.ml.create_context()
    vectors = context.compute(example.network(context, folder, *feed["ids"].shape), feed)["vectors"]

    weights = load_file(folder / "model.safetensors")

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normalised(x: np.ndarray, name: str) -> np.ndarray:
        return witness.layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

    tables = {name: weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    ids, mask = feed["ids"], feed["mask"]
    x = tables["word"][ids] + tables["position"][: ids.shape[1]] + tables["token_type"][0]
    x = normalised(x, "embeddings.LayerNorm")
    for layer in range(6):
        name = f"encoder.layer.{layer}"
        q, k, v = (
            linear(x, f"{name}.attention.self.{part}").reshape(*ids.shape, 12, 32).swapaxes(1, 2)
            for part in ("query", "key", "value")
        )
        y = witness.attention(q, k, v, mask[:, None, None] != 0).swapaxes(1, 2).reshape(x.shape)
        x = normalised(x + linear(y, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        y = linear(witness.gelu(linear(x, f"{name}.intermediate.dense")), f"{name}.output.dense")
        x = normalised(x + y, f"{name}.output.LayerNorm")
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    np.testing.assert_allclose(vectors, mean / np.linalg.norm(mean, axis=1, keepdims=True), atol=1e-5)
