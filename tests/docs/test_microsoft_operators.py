"""The list of ONNX Runtime's own operators in the documentation."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

ROOT = Path(__file__).parents[2]


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("microsoft_operators", ROOT / "tools" / "microsoft_operators.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_operator_is_converted_or_has_a_reason() -> None:
    names = tool()
    listed = [name for others in names.refused().values() for name in others]
    assert len(listed) == len(set(listed))
    assert not set(listed) & set(names.converted())
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) > (1, 32):
        pytest.skip("the list is that of ONNX Runtime 1.32")
    assert names.known() <= {*listed, *names.converted()}


def test_page_is_current(tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    page = (ROOT / "docs" / "onnx.md").read_text("utf-8")
    copy.write_text(page, "utf-8")
    subprocess.run([sys.executable, ROOT / "tools" / "microsoft_operators.py", copy], check=True)
    assert page == copy.read_text("utf-8"), "run `make docs`"
