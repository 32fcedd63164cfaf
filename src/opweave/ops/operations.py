"""`Operations`, the builder that decompositions take."""

from __future__ import annotations

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
        return {name: value for name, value in vars(Operations).items() if isinstance(value, Op)}
