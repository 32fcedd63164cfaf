"""The thread that compiles in the background: tasks pause for other threads."""

from __future__ import annotations

import pytest

from opweave.support.background import IDLE_SECONDS, PAUSE_SECONDS, BackgroundThread


def test_tasks_that_wait_pause_while_others_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, sleeps = BackgroundThread(), list[float]()
    answers = iter([True, False, True, True, False])

    def is_busy_for(seconds: float) -> bool:
        sleeps.append(seconds)
        return next(answers)

    def task() -> None:
        thread.give_way()
        thread.give_way()  # too soon for another pause

    monkeypatch.setattr(thread, "_is_busy_for", is_busy_for)
    thread.put(task, waits=True)
    thread.wait()
    pauses = [IDLE_SECONDS] * 2 + [PAUSE_SECONDS] * 3
    assert sleeps == pauses
    thread.give_way()  # in another thread
    thread.put(task)
    thread.wait()
    assert sleeps == pauses
    thread.end()
