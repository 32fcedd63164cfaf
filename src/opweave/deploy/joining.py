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
    """Runs the items that have come while previous batches ran, at most `batch` together.

    Without `wait`, an item runs at once if fewer than `parallel` batches run: batches form under load alone, and cost a single
    client nothing.

    Args:
        run: computes the results of items, in their order.
        batch: maximum number of items that run together.
        wait: seconds that an item waits for others.
        parallel: number of batches that run at the same time.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[list[Result]]],
        batch: int,
        wait: float,
        parallel: int = 1,
    ) -> None:
        self._run, self._batch, self._wait = run, batch, wait
        self._free = asyncio.Semaphore(parallel)
        self._running: set[asyncio.Task[None]] = set()
        self._queue: deque[tuple[float, Item, asyncio.Future[Result]]] = deque()
        self._is_full = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        """Run an item, and return its result."""
        if not self._wait and not self._queue and self._worker is None and not self._free.locked():
            async with self._free:  # nothing to wait for
                (result,) = await self._run([item])
            self._start()  # for items that have come meanwhile
            return result
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._queue.append((loop.time(), item, future))
        if len(self._queue) >= self._batch:
            self._is_full.set()
        self._start()
        return await future

    def _start(self) -> None:
        if self._worker is None and self._queue:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        """Run batches until the queue is empty. The task starts after the items that arrive in the same step of the loop."""
        try:
            while self._queue:
                await self._free.acquire()
                await self._collect()
                count = min(self._batch, len(self._queue))
                taken = [self._queue.popleft() for _ in range(count)]
                # Callers whose futures are done have left.
                waiting = [(item, future) for _, item, future in taken if not future.done()]
                if not waiting:
                    self._free.release()
                    continue
                running = asyncio.get_running_loop().create_task(self._run_batch(waiting))
                self._running.add(running)  # the loop itself keeps no task alive
                running.add_done_callback(self._end_batch)
        finally:
            self._worker = None

    def _end_batch(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self._free.release()

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
