"""The package as a whole: what it exports, what it imports, and when."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import opweave as ow


def python(code: str, *options: str) -> str:
    result = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout


def test_public_names_are_all_there() -> None:
    assert [name for name in ow.__all__ if not hasattr(ow, name)] == []
    assert set(ow.__all__) <= set(dir(ow))
    with pytest.raises(AttributeError, match="module 'opweave' has no attribute 'MLNonsense'"):
        ow.MLNonsense  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    """What is imported lazily and what is imported for type checkers is one list, in two forms."""
    (block,) = (node for node in ast.parse(Path(ow.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            name = alias.asname or alias.name
            seen[name] = statement.module or ""
    assert seen == ow._HOMES


def test_import_loads_no_engine() -> None:
    """Engines, and what only tools need, load at the point of use."""
    code = "import opweave, sys; print(*sys.modules)"
    loaded = set(python(code).split())
    assert loaded.isdisjoint(
        {"onnxruntime", "onnx", "ml_dtypes", "torch", "PIL", "safetensors", "typer", "rich", "asyncio"}
    )


def test_it_imports_with_no_extra_installed() -> None:
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"PIL", "safetensors", "halide", "wasmtime", "wgpu", "numba", "torch", "scipy"}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Refuse())
import numpy as np, opweave as ow
context = ow.ml.create_context()
builder = ow.MLGraphBuilder(context)
graph = builder.build({"y": builder.input("x", "float32", [2]).relu()})
print(context.compute(graph, {"x": np.float32([-1, 1])})["y"].tolist())
from pathlib import Path
from opweave.demo import run
try:
    run(None, Path("x.png"))
except ow.MissingExtraError as error:
    print(error)
"""
    assert python(code) == "[0.0, 1.0]\nthe demo needs PIL: pip install 'opweave[demo]'\n"


def test_arrows_point_one_way() -> None:
    """Ops import no back end and no builder; back ends do not import each other, nor what stands above them."""
    root = Path(ow.__file__).parent
    above = {
        "ops": "backends|builder|context|tensor|cli|onnx|passes|runtime|memory",
        "backends/reference": "onnxruntime|builder|context|tensor|cli|onnx",
        "backends/onnxruntime": "reference|builder|context|tensor|cli",
        "passes": "backends|builder|context|tensor|cli",
    }
    for folder, forbidden in above.items():
        pattern = re.compile(rf"^\s*(?:from \.+|import opweave\.)(?:{forbidden})\b", re.MULTILINE)
        for file in (root / folder).rglob("*.py"):
            assert not pattern.findall(file.read_text()), file
