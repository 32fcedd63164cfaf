"""The 95 operations of the specification; one file a family."""

from __future__ import annotations

from typing import Any

from ..graph import Builder
from ..op import Op
from .elementwise import add, exp


class Operations(Builder):
    """A builder with every operation as a method, in the specification's order."""

    add = add
    exp = exp

    @classmethod
    def listing(cls) -> dict[str, Op[..., Any]]:
        """All operations by name, in the specification's order."""
        return {name: value for name, value in vars(Operations).items() if isinstance(value, Op)}
