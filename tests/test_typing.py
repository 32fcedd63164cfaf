"""Type checkers see exact signatures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SNIPPET = """
import opweave as ow

builder = ow.MLGraphBuilder(ow.ml.create_context())
reveal_type(builder.conv2d)
reveal_type(builder.add)
reveal_type(builder.split)
x: ow.MLOperand = builder.softmax(builder.input("x", "float32", [2]), 0)
builder.softmax(x)
builder.softmax(x, axis="0")
builder.conv2d(x, x, input_layout="chwn")
"""


def test_mypy_shows_exact_signatures(tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(file)]
    lines = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout.splitlines()
    shown = [line.replace("opweave.graph.", "").replace("typing.", "") for line in lines]
    conv2d, add, split = (line for line in shown if "Revealed type" in line)
    for part in (
        "input: MLOperand, filter: MLOperand, *, padding: Sequence[int] =, strides: Sequence[int] =,",
        "groups: int =",
        "filter_layout: Literal['oihw'] | Literal['hwio'] | Literal['ohwi'] | Literal['ihwo'] =",
        "bias: MLOperand | None =, label: str =) -> MLOperand",
    ):
        assert part.replace(" ", "") in conv2d.replace(" ", ""), conv2d
    assert "def (a: MLOperand, b: MLOperand, *, label: str =) -> MLOperand" in add
    assert split.rstrip('"').endswith("-> tuple[MLOperand, ...]")
    errors = [line for line in shown if "error:" in line]
    assert len(errors) == 3, errors
    assert "Too few arguments" in errors[0]
    assert 'Argument "axis" has incompatible type "str"; expected "int"' in errors[1]
    assert 'Argument "input_layout"' in errors[2]
