"""The LLVM code of compiled expressions."""

from __future__ import annotations

from pathlib import Path

import pytest

from opweave.expr.halide import objects
from opweave.expr.halide.fusion import edit


def recorded(monkeypatch: pytest.MonkeyPatch, cache: Path) -> list[str]:
    """A list that gets the code of all that is compiled from now on; nothing comes from another cache than this folder."""
    codes: list[str] = []

    def noted(code: str) -> str:
        codes.append(edit(code))
        return codes[-1]

    monkeypatch.setenv("OPWEAVE_CACHE", str(cache))
    monkeypatch.setattr(objects, "edit", noted)
    return codes
