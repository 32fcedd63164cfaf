"""Type checkers and editors know what calls mean: the types, the arguments, the names to complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opweave as ow

ROOT = Path(__file__).parents[2]
USES = Path(__file__).parent / "typical_uses.py"

WRONG = """
import opweave as ow

builder = ow.MLGraphBuilder(ow.ml.create_context())
x: ow.MLOperand = builder.softmax(builder.input("x", "float32", [2]), 0)
builder.softmax(x)
builder.softmax(x, axis="0")
builder.conv2d(x, x, input_layout="chwn")
builder.relu({"input": x})
x.clamp(minValue=0)
x.nothing()
"""
"""Six mistakes."""


def snippets(folder: Path) -> list[Path]:
    """The Python of each page of the documentation, as a file."""
    files = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        parts = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        if parts and page.name != "onnxruntime.md":  # of types that ONNX Runtime declares: results may be SparseTensors
            files.append(folder / f"page_{page.stem.replace('-', '_')}.py")
            # NumPy declares np.float32([1, 2]) to be a scalar.
            files[-1].write_text(re.sub(r"\bnp\.(float|int)\d+\(\[", "np.asarray([", "\n".join(parts)))
    assert len(files) > 3
    return files


def mypy(folder: Path, *files: Path) -> list[str]:
    """What mypy finds wrong in files, with the types of this checkout."""
    settings = folder / "mypy.ini"
    settings.write_text(f"[mypy]\nmypy_path = {ROOT / 'src'}\nignore_missing_imports = True\nfollow_imports = silent\n")
    options = ["--config-file", settings, "--cache-dir", ROOT / ".mypy_cache" / "typing", "--no-error-summary"]
    options += [
        "--check-untyped-defs",
        "--allow-redefinition",
        "--local-partial-types",
        "--disable-error-code=no-redef",
    ]
    command = [sys.executable, "-m", "mypy", *options, *files]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=folder)
    assert result.returncode in (0, 1), result.stderr
    return [line for line in result.stdout.splitlines() if ": error: " in line]


def pyright(folder: Path, *files: Path) -> list[str]:
    """What pyright finds wrong in files, likewise. (basedpyright is pyright with its engine in the wheel.)"""
    settings: dict[str, Any] = {"extraPaths": [str(ROOT / "src")], "typeCheckingMode": "standard"}
    settings["reportMissingImports"] = False  # of extras that are not installed; mypy is told the same
    # Snippets of a page use the same names for other things.
    settings |= dict.fromkeys(["reportRedeclaration", "reportPossiblyUnboundVariable", "reportAssignmentType"], False)
    (folder / "pyrightconfig.json").write_text(json.dumps({**settings, "include": [str(file) for file in files]}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert result.returncode in (0, 1), result.stderr + result.stdout
    found = json.loads(result.stdout)["generalDiagnostics"]
    return [
        f"{Path(entry['file']).name}:{entry['range']['start']['line'] + 1}: {entry['message']} ({entry.get('rule')})"
        for entry in found
        if entry["severity"] == "error"
    ]


@pytest.fixture(scope="module", params=[mypy, pyright])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What a type checker finds wrong, by file; one run for all of them, as starting takes the most time."""
    folder = tmp_path_factory.mktemp("typing")
    wrong = folder / "wrong.py"
    wrong.write_text(WRONG)
    errors: dict[str, list[str]] = {}
    for line in request.param(folder, USES, wrong, *snippets(folder)):
        errors.setdefault(Path(line.partition(":")[0]).name, []).append(line)
    return errors


@pytest.mark.long
def test_typical_uses_type_check(found: dict[str, list[str]]) -> None:
    """Also what the documentation shows."""
    assert {file: lines for file, lines in found.items() if file != "wrong.py"} == {}


@pytest.mark.long
def test_type_checkers_see_mistakes(found: dict[str, list[str]]) -> None:
    assert {int(line.split(":")[1]) for line in found["wrong.py"]} == set(range(6, 12))


@pytest.mark.long
def test_typical_uses_run() -> None:
    """`assert_type` is for type checkers; here the calls themselves are tried."""
    subprocess.run([sys.executable, USES], check=True)


def test_signatures_are_those_of_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import write_signatures  # type: ignore[import-not-found]

    assert write_signatures.FILE.read_text(encoding="utf-8") == write_signatures.text(), (
        "run python tools/write_signatures.py"
    )


# Completion ----------------------------------------------------------------------------------------------------------


def notebook() -> dict[str, Any]:
    """What a notebook has after a few cells."""
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2])
    tensor = context.create_tensor("float32", [2], readable=True)
    array = ow.array([1.0, 2.0])
    return {"ow": ow, "np": np, "context": context, "builder": builder, "x": x, "t": tensor, "a": array}


@pytest.mark.long(rows=3)
@pytest.mark.parametrize(
    ("code", "names"),
    {
        "ow.": ["InferenceSession", "MLGraphBuilder", "array", "jit", "ml", "ops"],
        "ow.ml.": ["create_context"],
        "ow.ops.": ["conv2d", "relu"],
        "context.": ["compute", "create_tensor", "device", "op_support_limits", "power_preference"],
        "context.create_tensor('float32', [2]).": ["data_type", "numpy", "shape"],
        "builder.": ["conv2d", "input", "relu", "build"],
        "builder.relu(x).": ["data_type", "relu", "shape", "softmax"],
        "builder.build({}).": ["draw", "explain", "profile"],
        "x.": ["data_type", "desc", "relu", "reshape", "shape"],
        "x.relu().": ["data_type", "relu", "reshape", "shape"],
        "(x + x).": ["data_type", "rank", "relu", "shape"],
        "x[0].": ["data_type", "relu", "shape"],
        "t.": ["data_type", "destroy", "numpy", "shape"],
        "a.": ["data_type", "dtype", "item", "numpy", "relu"],
        "a.relu().": ["numpy", "relu", "reshape", "shape"],
        "(a @ a - 1).": ["numpy", "relu", "tolist"],
        "a.numpy().": ["mean", "reshape"],
    }.items(),
)
def test_names_are_completed_in_notebooks(code: str, names: list[str]) -> None:
    import jedi  # what Jupyter asks

    found = {completion.name for completion in jedi.Interpreter(code, [notebook()]).complete()}
    assert set(names) - found == set()


def test_completion_offers_public_names() -> None:
    import jedi

    found = {completion.name for completion in jedi.Interpreter("ow.", [{"ow": ow}]).complete()}
    assert {name for name in found if not name.startswith("_")} == set(ow.__all__)
