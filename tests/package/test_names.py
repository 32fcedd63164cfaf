"""The names that the package exports."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from support.processes import run_python

import opweave as ow
from opweave import composites, core, expr

THREADS = """
import sys, threading
import opweave as ow

sys.setswitchinterval(1e-6)
names = ["attention", "convolution", "asinh", "rotary_embedding", "top_k", "swiglu", "rnn", "resize", "dft"] * 2
barrier, objects = threading.Barrier(len(names)), []

def use(name):
    barrier.wait()
    objects.append(getattr(ow.composites, name))

threads = [threading.Thread(target=use, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(objects))
"""


def test_composites_are_first_used_in_many_threads() -> None:
    assert run_python(THREADS) == "18\n"


@pytest.mark.parametrize("package", [ow, core, composites, expr], ids=["opweave", "core", "composites", "expr"])
def test_public_names_are_all_there(package: Any) -> None:
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert set(package.__all__) <= set(dir(package))
    for name in ("MLNonsense", "onnx.model", "expr.ir", "nonsense.module"):
        with pytest.raises(AttributeError, match=rf"{package.__name__}'? has no \w+ '{name}'"):
            getattr(package, name)


@pytest.mark.parametrize("package", [ow, core, composites], ids=["opweave", "core", "composites"])
def test_type_checkers_see_the_same_names(package: Any) -> None:
    """Lazy imports and those for type checkers are one list, in two forms."""
    tree = ast.parse(Path(package.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    assert sorted(package.__all__) == sorted(name for names in package._HOMES.values() for name in names)
    statements = {ast.unparse(node.targets[0]): node for node in tree.body if isinstance(node, ast.Assign)}
    assert ast.literal_eval(statements["__all__"].value) == package.__all__, "as type checkers need for import *"
    seen: dict[str, set[str]] = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        home = {None: ".", "kernels": ".kernels."}.get(statement.module, "." * statement.level + f"{statement.module}")
        seen.setdefault(home, set()).update(alias.asname or alias.name for alias in statement.names)
    assert seen == {home: set(names) for home, names in package._HOMES.items()}
