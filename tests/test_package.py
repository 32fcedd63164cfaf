"""The package as a whole: what it exports, what it imports, and when."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import opweave as ow

ROOT = Path(ow.__file__).parent


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


def test_only_the_tests_of_pytorch_import_it() -> None:
    """In a process where Mesa has loaded its LLVM, importing Triton, which PyTorch does, ends the process."""
    tests = Path(__file__).parent
    files = {path.relative_to(tests) for path in tests.rglob("*.py")}
    pattern = re.compile(r"""^\s*(import|from) torch\b|importorskip\(["']torch\b""", re.MULTILINE)
    found = {path.parts[0] for path in files if pattern.search((tests / path).read_text())}
    assert found <= {"pytorch", "libraries"}  # `make test` collects neither


def imports(file: Path) -> set[str]:
    """The modules of the package that a file imports when it runs, also inside of functions: "op", "ops", "memory", …"""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    package = file.relative_to(ROOT).parts[:-1]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            names = [*filter(None, base)]
            found |= {names[0]} if names else {alias.name for alias in node.names}
    return found


def test_arrows_point_one_way() -> None:
    """Modules import from the rows above theirs in the table of docs/how-it-works.md, never from those below."""
    page = (
        (ROOT.parent.parent / "docs" / "how-it-works.md")
        .read_text()
        .partition("## The house\n")[2]
        .partition("\n## ")[0]
    )
    rows = [re.findall(r"`(\w+)/?`", line.split("|")[1]) for line in page.splitlines() if line.startswith("| `")]
    layer = {name: number for number, row in enumerate(rows) for name in row}
    files = [file for file in ROOT.rglob("*.py") if not file.name.startswith("__") or file.parent != ROOT]
    assert {file.relative_to(ROOT).parts[0].removesuffix(".py") for file in files} == layer.keys()
    back = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in sorted(imports(file) & layer.keys())
        if layer[name] > layer[file.relative_to(ROOT).parts[0].removesuffix(".py")]
    ]
    assert back == []


@pytest.mark.parametrize(("name", "other"), [("reference", "onnxruntime"), ("onnxruntime", "reference")])
def test_back_ends_do_not_import_each_other(name: str, other: str) -> None:
    for file in (ROOT / "backends" / name).rglob("*.py"):
        lines = [line for line in file.read_text().splitlines() if re.match(r"\s*(from|import)\b", line)]
        assert [line for line in lines if re.search(rf"\b{other}\b", line)] == [], file
