"""ONNX Runtime, which must not use the network or write into the user's home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAIN = "import onnxruntime"

OPWEAVE = """
import numpy as np, opweave as ow
from onnx.parser import parse_model
{0}
"""

USES = {
    "a graph": "b = ow.MLGraphBuilder(ow.ml.create_context(device='cpu'))\n"
    "b.build({'y': b.relu(b.input('x', 'float32', [3]))})",
    "a session": 'ow.InferenceSession(parse_model(\'<ir_version: 8, opset_import: ["": 17]> '
    "g (float[n] x) => (float[n] y) { y = Relu(x) }')).run(None, {'x': np.ones(2, 'float32')})",
    "devices": "ow.devices()",
    "the user's import": "import onnxruntime",
}


def files_of(code: str, folder: Path, **variables: str) -> list[str]:
    """The files that a process leaves in an empty home."""
    home = folder / "home"
    home.mkdir()
    kept = {
        name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    }
    environment = kept | {"HOME": str(home), "OPWEAVE_CACHE": str(folder / "cache")} | variables
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    return [path.name for path in home.rglob("*") if path.is_file() and "onnxruntime" in str(path.relative_to(home))]


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_onnxruntime_runs_without_telemetry(use: str, tmp_path: Path) -> None:
    assert files_of(OPWEAVE.format(use), tmp_path) == []


def test_telemetry_setting_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    if not files_of(PLAIN, tmp_path / "plain"):
        pytest.skip("this version of ONNX Runtime has no telemetry here")
    assert files_of(OPWEAVE.format(PLAIN), tmp_path, ORT_DISABLE_TELEMETRY="0")
