"""The future `MLContext.lost`; a separate module, since `concurrent.futures` takes long to import."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import MLContextLostInfo


class Lost(Future["MLContextLostInfo"]):
    """Resolves when the context is lost: `done()`, `result()`, `add_done_callback()`, or `await` it."""

    def cancel(self) -> bool:
        """Do nothing: a cancelled wait (by a timeout, say) must not cancel other waits."""
        return False

    def __await__(self) -> Generator[Any, None, MLContextLostInfo]:
        import asyncio

        return asyncio.shield(asyncio.wrap_future(self)).__await__()
