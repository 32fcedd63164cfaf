"""Join concurrent requests to batches, on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Runs the items that have come while the previous batch ran, at most `batch` at a time.

    Without `wait`, an item runs at once if nothing else runs: batches form under load alone, and cost a single client nothing.

    Args:
        run: computes the results of items, in their order.
        batch: maximum number of items that run together.
        wait: seconds that an item waits for others.
    """

    def __init__(self, run: Callable[[Sequence[Item]], Awaitable[list[Result]]], batch: int, wait: float) -> None:
        self._run, self._batch, self._wait = run, batch, wait
        self._queue: deque[tuple[float, Item, asyncio.Future[Result]]] = deque()
        self._is_full = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        """Run an item, and return its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._queue.append((loop.time(), item, future))
        if len(self._queue) >= self._batch:
            self._is_full.set()
        if self._worker is None:
            self._worker = loop.create_task(self._work())
        return await future

    async def _work(self) -> None:
        """Run batches until the queue is empty. The task starts after the items that arrive in the same step of the loop."""
        try:
            while self._queue:
                await self._collect()
                count = min(self._batch, len(self._queue))
                taken = [self._queue.popleft() for _ in range(count)]
                waiting = [(item, future) for _, item, future in taken if not future.done()]  # others have left
                if waiting:
                    await self._run_batch(waiting)
        finally:
            self._worker = None

    async def _collect(self) -> None:
        """Wait for a full batch, as long as the oldest item may wait."""
        self._is_full.clear()
        left = self._queue[0][0] + self._wait - asyncio.get_running_loop().time()
        if left > 0 and len(self._queue) < self._batch:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_full.wait(), left)

    async def _run_batch(self, waiting: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._run([item for item, _ in waiting])
        except Exception as error:  # a defect: all of them get it
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(waiting, results, strict=True):
            if not future.done():
                future.set_result(result)
