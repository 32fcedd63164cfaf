"""Tables of pages that a command makes from the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from opweave import composites
from opweave.backends import discover
from opweave.custom import CustomOp

ROOT = Path(__file__).parents[2]


def tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "page"), [("composites_table", "composites.md"), ("onnx_fallback_table", "onnx.md")])
def test_page_is_current(name: str, page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    assert text.count(tool(name).BEGIN) == 1
    assert tool(name).written_into(text) == text, "run `make docs`"


def test_table_has_each_composite_once() -> None:
    table = tool("composites_table").render()
    names = [name for name in composites.__all__ if isinstance(getattr(composites, name), CustomOp)]
    for name in {getattr(composites, name).name for name in names}:
        assert table.count(f"\n| `{name}` |") == 1


def test_conditions_are_those_of_rules() -> None:
    """A condition is written for each composite that ONNX Runtime has a kernel for in some cases, and for no other."""
    module, rules = tool("composites_table"), discover()["onnxruntime"].rules
    partial = {op.name for op in module.all_composites() if op in rules and rules[op][-1].when is not None}
    assert set(module.CONDITIONS) == partial
