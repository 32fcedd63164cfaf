"""The recipes of CONTRIBUTING.md, each followed in a copy of the tree: what they list is all that must be touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RECIPES = Path(__file__).parent / "recipes"


class Tree:
    """A copy of the package, and the files that are touched in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.touched: list[str] = []
        shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for folder in ("samples", "support"):
            shutil.copytree(ROOT / "tests" / folder, root / "tests" / folder)
        for folder in ("tools", "tests/backends/all"):
            root.joinpath(folder).mkdir(parents=True)
        for file in (
            "README.md",
            "tools/write_signatures.py",
            "tests/conftest.py",
            "tests/row_sample.py",
            "tests/backends/all/test_agreement.py",
        ):
            shutil.copy(ROOT / file, root / file)

    def insert(self, file: str, after: str, text: str) -> None:
        """Insert text after the first place where another one stands; at the end, where that is empty."""
        path = self.root / file
        whole = path.read_text()
        assert after in whole
        at = whole.index(after) + len(after) if after else len(whole)
        path.write_text(whole[:at] + text + whole[at:])
        self.touched.append(file)

    def run(self, *arguments: str) -> str:
        """Run Python with the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src")}
        made = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)
        assert made.returncode == 0, made.stderr
        return made.stdout


def listed(heading: str) -> list[str]:
    """The files that a section of the page lists, in order."""
    page = (ROOT / "CONTRIBUTING.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [match[1] for line in page.splitlines() if (match := re.match(r"\d+\. `([^`]+)`", line))]


OP = '''

@op(input=Limits(FLOATS))
def cube(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """The third power of each element."""
    return input.desc


@cube.decompose
def _(b: Operations, input: Operand) -> Operand:
    return input * input * input
'''
REFERENCE = """

@reference.lower(ops.cube)
def _(input: Array) -> Array:
    return input**3
"""
ENGINE = """

@ort.lower(ops.cube)
def _(ctx: Emitter, input: Value) -> Value:
    return ctx.emit("Pow", input, ctx.scalar(3, input))
"""
SAMPLE = """

@sample(ops.cube)
def _(make: Make) -> Call:
    return Call(one(make))
"""
USE = """
import json, sys
import numpy as np, opweave as ow
made = {}
for device in ("cpu", "reference"):
    context = ow.ml.create_context(device=device)
    builder = ow.MLGraphBuilder(context)
    graph = builder.build({"y": builder.cube(builder.input("x", "float32", [3]))})
    values = context.compute(graph, {"x": np.float32([-1, 2, 3])})["y"].tolist()
    made[device] = [values, graph.placements()[0].how, graph.placements()[0].node]
recorder = ow.MLGraphBuilder(ow.ml.create_context())
decomposed = recorder.build({"y": ow.ops.cube.decomposition(recorder, recorder.input("x", "float32", [3]))})
made["decomposed"] = decomposed.context.compute(decomposed, {"x": np.float32([-1, 2, 3])})["y"].tolist()
made["array"] = ow.ops.cube(np.float32([2])).tolist()
made["limits"] = context.op_support_limits()["cube"]["input"]["data_types"]
print(json.dumps(made))
"""


@pytest.mark.long
def test_recipe_of_operation(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.insert("src/opweave/ops/elementwise.py", "", OP)
    tree.insert("src/opweave/ops/__init__.py", "\nabs ceil cos ", "cube ")
    tree.insert("src/opweave/backends/reference/rules/elementwise.py", "", REFERENCE)
    tree.insert("src/opweave/backends/onnxruntime/rules/elementwise.py", "", ENGINE)
    tree.insert("tests/samples/elementwise.py", "", SAMPLE)
    tree.run(str(tmp_path / "tools" / "write_signatures.py"))
    tree.touched.insert(2, "src/opweave/ops/signatures.pyi")
    assert "def cube(" in (tmp_path / "src/opweave/ops/signatures.pyi").read_text()
    assert " cube " in tree.run("-c", "from opweave.serve import client_files; print(client_files.webnn_js())")
    assert json.loads(tree.run("-c", USE)) == {
        "cpu": [[-1, 8, 27], "native", "cube"],
        "reference": [[-1, 8, 27], "native", "cube"],
        "decomposed": [-1, 8, 27],
        "array": [8],
        "limits": ["float32", "float16"],
    }
    # Rules, reference and decomposition agree on what the sample makes.
    test = tmp_path / "tests" / "backends" / "all" / "test_agreement.py"
    found = tree.run("-m", "pytest", f"--rootdir={tmp_path}", str(test), "-q", "-k", "cube")
    assert re.search(r"^(?:[4-9]|1\d) passed", found, re.MULTILINE), found
    assert tree.touched == listed("Adding an operation")


@pytest.mark.long
def test_recipe_of_back_end(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    folder = tmp_path / "src" / "opweave" / "backends" / "accelerator"
    folder.mkdir()
    shutil.copy(RECIPES / "back_end.py", folder / "__init__.py")
    tree.touched.append("src/opweave/backends/accelerator/")
    line = '    "accelerator": "opweave.backends.accelerator:accelerator",\n'
    tree.insert("src/opweave/backends/discovery.py", '    "webgpu": "opweave.backends.webgpu:webgpu",\n', line)
    tree.insert("README.md", "or a software adapter |\n", "| `accelerator` | `accelerator` | products |\n")
    x = np.float32([[1, -2], [-3, 4]])
    assert json.loads(tree.run(str(RECIPES / "use_back_end.py"))) == {
        "kind": "npu",
        "dispatched": (2 * np.maximum(x + 1, 0) @ x).tolist(),
        "computed": np.maximum(3 * (x + 1) + 1, 0).tolist(),
        "whole": ["accelerator"] * 4,
        "parts": ["accelerator", "cpu", "accelerator", "accelerator"],
        "copies": ["from the device for thrice", "to the device for add, max 'relu/clamp/max'"],
        "limits": ["abs"],
        "drawn": True,
        "refused": ["NotSupportedError", "ValidationError", "ValidationError"],
        "destroyed": True,
    }
    assert tree.touched == listed("Adding a back end")
