"""`opweave quantize`: samples from files and folders, the table, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from support.quantisable_networks import convolutions, samples, transformer

from opweave import cli
from opweave.cli.common import CliSettings


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command in this process; what it prints."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(CliSettings, "verbose", False)

    def call(*args: object, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["opweave", "quantize", *map(str, args)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capfd.readouterr()
        assert (left.value.code or 0) == code, out + err
        return err if code else out

    return call


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    onnx.save(convolutions(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def folder_of_samples(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number, sample in enumerate(samples("convolutions", count)):
        np.savez(folder / f"{number}.npz", **sample)
    (folder / "notes.txt").write_text("not a sample")
    return folder


def test_quantize_writes_a_file_and_a_table(run: Callable[..., str], classifier: Path, tmp_path: Path) -> None:
    folder, target = folder_of_samples(tmp_path / "samples", 5), tmp_path / "new.onnx"
    numbers = tmp_path / "numbers.json"
    text = run(classifier, target, "--to", "static", "-i", folder, "--seconds", 0, "--json", numbers)
    assert target.is_file()
    assert "model.onnx as static" in text
    for words in ("layer", "own error", "end to end", "Conv pointwise", "output", "scores", "size   ", "time   "):
        assert words in text
    assert "of 5 samples" in text
    assert f"wrote {target}" in text
    data = json.loads(numbers.read_text())
    assert data["samples"] == 5
    assert data["new_bytes"] == target.stat().st_size


def test_quantize_needs_no_samples_for_weights(run: Callable[..., str], classifier: Path, tmp_path: Path) -> None:
    text = run(classifier, tmp_path / "new.onnx", "--to", "int4", "--exclude", "classify")
    assert "int4, blocks of 32" in text
    assert "without sample inputs, only weights were compared" in text
    assert "excluded: classes" in text
    assert "Gemm" not in text
    assert "time   " not in text


def test_quantize_takes_arrays_images_and_noise(run: Callable[..., str], classifier: Path, tmp_path: Path) -> None:
    arrays, pictures = tmp_path / "arrays", tmp_path / "pictures"
    arrays.mkdir()
    pictures.mkdir()
    for number, sample in enumerate(samples("convolutions", 3)):
        np.save(arrays / f"{number}.npy", sample["image"])
        Image.new("RGB", (12, 12), (80 * number, 10, 200)).save(pictures / f"{number}.png")
    for source, count in ((arrays, 3), (f"image={arrays}", 3), (pictures, 3), (arrays / "0.npy", 1), ("random", 8)):
        text = run(classifier, tmp_path / "new.onnx", "-i", source, "--seconds", 0)
        assert f", of {count} sample" in text


def test_quantize_joins_a_folder_with_other_inputs(run: Callable[..., str], tmp_path: Path) -> None:
    onnx.save(transformer(), tmp_path / "model.onnx")
    (tmp_path / "ids").mkdir()
    for number, sample in enumerate(samples("transformer", 2)):
        np.save(tmp_path / "ids" / f"{number}.npy", sample["ids"])
    text = run(tmp_path / "model.onnx", tmp_path / "new.onnx", "-i", f"ids={tmp_path / 'ids'}", "--seconds", 0)
    assert "of 2 samples" in text


def test_quantize_messages(run: Callable[..., str], classifier: Path, tmp_path: Path) -> None:
    target = tmp_path / "new.onnx"
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ((classifier, target, "--to", "static"), "'static' needs sample inputs, of real data"),
        ((classifier, target, "--to", "int3"), "`to` must be one of"),
        ((classifier, classifier), "is a file of the original"),
        ((classifier, tmp_path / "new.bin"), "must end in .onnx"),
        ((classifier, target, "-i", tmp_path / "empty"), "has no samples: no .npz or .npy files, and no images"),
        ((tmp_path / "missing.onnx", target), "No such file"),
    ):
        assert message in " ".join(run(*arguments, code=1).split())
    assert "the file to write is missing" in run(classifier, code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "model.onnx"]
