"""`Operations`, the builder that decompositions take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core.graph import Builder
from ..core.operation import Op

if TYPE_CHECKING:
    from .signatures import BuilderMethods
else:
    BuilderMethods = object


class Operations(Builder, BuilderMethods):
    """A builder with every operation as a method; `ops` adds the methods, which type checkers see in `BuilderMethods`."""

    @classmethod
    def listing(cls) -> dict[str, Op[..., Any]]:
        """All operations by name, in the specification's order.

        >>> list(Operations.listing())[:3]
        ['arg_min', 'arg_max', 'batch_normalization']
        """
        return {name: op for name, op in _operations() if not op.is_draft}

    @classmethod
    def drafts(cls) -> dict[str, Op[..., Any]]:
        """The operations that only drafts of the specification have, by name. They are methods of builders alone.

        >>> list(Operations.drafts())[:3]
        ['modulus_floor', 'modulus_truncate', 'shape']
        """
        return {name: op for name, op in _operations() if op.is_draft}


def _operations() -> Iterator[tuple[str, Op[..., Any]]]:
    return ((name, value) for name, value in vars(Operations).items() if isinstance(value, Op))
