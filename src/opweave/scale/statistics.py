"""Statistics of a deployment, in the form of Triton's extension "statistics"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from time import time
from typing import Any, Protocol

STAGES = ("compute_input", "compute_infer", "compute_output")
"""The stages of an execution: joining the requests, running the model, splitting the results."""

_OUTCOMES = ("success", "fail", "queue", *STAGES, "cache_hit", "cache_miss")


class Observer(Protocol):
    """Counts requests and executions. Durations are in nanoseconds."""

    def add_execution(self, rows: int, durations: Sequence[int]) -> None:
        """Count an execution of the model; `durations` are those of `STAGES`."""

    def add_success(self, rows: int, total: int, queue: int, durations: Sequence[int]) -> None:
        """Count an answered request: `queue` is a part of `total`, `durations` are the times of its batch."""

    def add_failure(self, total: int, kind: str) -> None:
        """Count a request that was answered with an error of a kind, `total` after arrival."""


class ServingStatistics:
    """Counts and durations of the requests that one replica has answered. Not thread-safe: use it on the event loop alone.

    Durations are in nanoseconds. A request counts as many inferences as it has rows.
    """

    def __init__(self) -> None:
        self._inferences = self._executions = self._last = 0
        self._counts: Counter[str] = Counter()
        self._durations: Counter[str] = Counter()
        self._batches: Counter[int] = Counter()
        self._batch_durations: dict[int, Sequence[int]] = {}

    def add_execution(self, rows: int, durations: Sequence[int]) -> None:
        """Count an execution of the model; `durations` are nanoseconds of each of `STAGES`."""
        self._executions += 1
        self._batches[rows] += 1
        before = self._batch_durations.get(rows, (0,) * len(STAGES))
        self._batch_durations[rows] = tuple(a + b for a, b in zip(before, durations, strict=True))

    def add_success(self, rows: int, total: int, queue: int, durations: Sequence[int]) -> None:
        """Count an answered request, in nanoseconds: `queue` is a part of `total`, `durations` are the times of its batch."""
        self._inferences += rows
        self._last = int(time() * 1000)
        for name, duration in zip(("success", "queue", *STAGES), (total, queue, *durations), strict=True):
            self._note(name, duration)

    def add_failure(self, total: int, kind: str = "") -> None:
        """Count a request that was answered with an error of any kind, `total` nanoseconds after arrival."""
        self._last = int(time() * 1000)
        self._note("fail", total)

    def _note(self, name: str, duration: int) -> None:
        self._counts[name] += 1
        self._durations[name] += duration

    def state(self) -> dict[str, Any]:
        """The counts as plain data, for `report`."""
        batches = {rows: (count, self._batch_durations[rows]) for rows, count in self._batches.items()}
        counts = {name: (self._counts[name], self._durations[name]) for name in _OUTCOMES}
        return {
            "last_inference": self._last,
            "inference_count": self._inferences,
            "execution_count": self._executions,
            "counts": counts,
            "batches": batches,
        }


def report(name: str, version: str, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add up the statistics of a model over all replicas; `states` are the results of `ServingStatistics.state`."""
    sizes = sorted({rows for state in states for rows in state["batches"]})
    batch_stats = []
    for rows in sizes:
        entries = [state["batches"][rows] for state in states if rows in state["batches"]]
        count = sum(runs for runs, _ in entries)
        totals = [sum(durations) for durations in zip(*(durations for _, durations in entries), strict=True)]
        batch_stats.append(
            {"batch_size": rows} | {s: _duration(count, ns) for s, ns in zip(STAGES, totals, strict=True)}
        )
    outcomes = {
        outcome: _duration(*map(sum, zip(*(state["counts"][outcome] for state in states), strict=True)))
        for outcome in _OUTCOMES
    }
    return {
        "name": name,
        "version": version,
        "last_inference": max(state["last_inference"] for state in states),
        "inference_count": sum(state["inference_count"] for state in states),
        "execution_count": sum(state["execution_count"] for state in states),
        "inference_stats": outcomes,
        "response_stats": {},
        "batch_stats": batch_stats,
        "memory_usage": [],
    }


def _duration(count: int, nanoseconds: int) -> dict[str, int]:
    return {"count": count, "ns": nanoseconds}
