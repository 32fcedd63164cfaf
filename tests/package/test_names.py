"""The names that the package exports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import opweave as ow


def test_public_names_are_all_there() -> None:
    assert [name for name in ow.__all__ if not hasattr(ow, name)] == []
    assert set(ow.__all__) <= set(dir(ow))
    with pytest.raises(AttributeError, match="module 'opweave' has no attribute 'MLNonsense'"):
        ow.MLNonsense  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    """What is imported lazily and what is imported for type checkers is one list, in two forms."""
    (block,) = (node for node in ast.parse(Path(ow.__file__).read_text()).body if isinstance(node, ast.If))
    seen: dict[str, set[str]] = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        home = {None: ".", "kernels": ".kernels."}.get(statement.module, f".{statement.module}")
        seen.setdefault(home, set()).update(alias.asname or alias.name for alias in statement.names)
    assert seen == {home: set(names) for home, names in ow._HOMES.items()}
