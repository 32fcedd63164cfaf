"""The future `MLContext.lost`; a separate module, since `concurrent.futures` takes long to import."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

Info = TypeVar("Info")


class Lost(Future[Info]):
    """Resolves when the context is lost: `done()`, `result()`, `add_done_callback()`, or `await` it."""

    def cancel(self) -> bool:
        """Do nothing: cancelling one wait, for example by a timeout, must not cancel other waits."""
        return False

    def __await__(self) -> Generator[Any, None, Info]:
        import asyncio

        return asyncio.shield(asyncio.wrap_future(self)).__await__()
