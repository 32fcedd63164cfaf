"""The Python in the documentation runs, and prints what its comments say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import webgpu_device

from opweave.demo.network import Network
from opweave.onnx.session import PLANS, VALUES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text()], ids=lambda page: page.name)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All snippets of a page run in order, in one namespace; `print(…)  # text` must print that text."""
    if page.name == "webgpu.md":
        webgpu_device.adapter()  # skips where there is none
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
    printed = io.StringIO()
    monkeypatch.chdir(tmp_path)  # for the files that they write
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(page), "exec", dont_inherit=True), {})
    expected = re.findall(r"^\s*print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert [line for line in expected if line not in printed.getvalue()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_numbers_in_the_pages_are_those_of_the_code() -> None:
    weights = sum(weight.size + bias.size for weight, bias in Network.load().layers)
    assert f"network of {weights:,} weights" in (ROOT / "README.md").read_text()
    onnx = (ROOT / "docs" / "onnx.md").read_text()
    assert f"the last **{PLANS}** combinations" in onnx
    assert f"The first **{VALUES}** values" in onnx


def test_all_environment_variables_are_in_the_table() -> None:
    pattern = r"\b(?:OPWEAVE|HL)_[A-Z_]+\b"
    read = {name for path in (ROOT / "src").rglob("*.py") for name in re.findall(pattern, path.read_text())}
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    assert sorted(re.findall(rf"^\| `({pattern})`", page, re.MULTILINE)) == sorted(read)
