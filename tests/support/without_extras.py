"""A plugin for pytest, `-p support.without_extras`: the tests run as if no extra were installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

EXTRAS = {"halide", "llvmlite", "numba", "openvino", "wasmtime", "wgpu"}


class Refuse(MetaPathFinder):
    """Finds packages first, and says that they are not there."""

    def __init__(self, packages: Set[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def pytest_configure() -> None:
    """Refuse from now on: as a plugin only, not when the file is read for its doctests."""
    sys.meta_path.insert(0, Refuse(EXTRAS))
