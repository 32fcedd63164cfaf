"""What tells that a context is lost; loaded when somebody asks for it, for the standard library's futures load much more."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..context import MLContextLostInfo


class Lost(Future["MLContextLostInfo"]):
    """Resolves when the context is lost: `done()`, `result()`, `add_done_callback()`, or `await` it."""

    def cancel(self) -> bool:
        """Do nothing: one who stops waiting (a timeout, say) must not end it for the others."""
        return False

    def __await__(self) -> Generator[Any, None, MLContextLostInfo]:
        import asyncio

        return asyncio.shield(asyncio.wrap_future(self)).__await__()
