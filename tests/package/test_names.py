"""The names that the package exports."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import opweave as ow
from opweave import composites, core


@pytest.mark.parametrize("package", [ow, core, composites], ids=["opweave", "core", "composites"])
def test_public_names_are_all_there(package: Any) -> None:
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'MLNonsense'"):
        package.MLNonsense  # noqa: B018


@pytest.mark.parametrize("package", [ow, core, composites], ids=["opweave", "core", "composites"])
def test_type_checkers_see_the_same_names(package: Any) -> None:
    """Lazy imports and those for type checkers are one list, in two forms."""
    (block,) = (node for node in ast.parse(Path(package.__file__).read_text()).body if isinstance(node, ast.If))
    seen: dict[str, set[str]] = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        home = {None: ".", "kernels": ".kernels."}.get(statement.module, "." * statement.level + f"{statement.module}")
        seen.setdefault(home, set()).update(alias.asname or alias.name for alias in statement.names)
    assert seen == {home: set(names) for home, names in package._HOMES.items()}
