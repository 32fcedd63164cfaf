"""A profile as a timeline in Chrome's trace event format, which https://ui.perfetto.dev shows.

Times are the medians of a profile, one after the other. Kernels are measured in other runs than steps, so they are a separate
process in the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.errors import require
from ..support.files import check_writable
from ..support.formatting import shorten

if TYPE_CHECKING:
    from .profile import Profile

RUN, STEPS, COPIES = 1, 2, 3
"""Ids of the tracks of a run."""
KERNELS = 2
"""Id of the track of kernels."""
MAX_NAME = 200
"""Maximum characters of the name of an event; its arguments have the full name."""

Span = tuple[str, float, int, dict[str, Any]]
"""Name, seconds, track and arguments of an event."""


def check_trace(path: str | Path) -> None:
    """Require a file that can be written, with a name that ends as those of traces."""
    require(Path(path).suffix.lower() == ".json", f"the name of the trace must end with .json, got {str(path)!r}")
    check_writable(path)


def timeline(profile: Profile) -> dict[str, Any]:
    """The trace of a profile: a track for the run, one for its steps, one for copies, and one for kernels."""
    run = {"runs": profile.repeat, "median_us": profile.median * 1e6, "minimum_us": profile.minimum * 1e6}
    copies = [{"reason": copied.reason, "count": copied.count, "bytes": copied.bytes} for copied in profile.copies]
    steps: list[Span] = [
        (
            step.title,
            step.median,
            COPIES if step.is_copy else STEPS,
            {"runs_as": step.how, "segment": step.segment, "read_bytes": step.reads, "written_bytes": step.writes},
        )
        for step in profile.steps
    ]
    tracks = {RUN: "run", STEPS: "steps"} | ({COPIES: "copies"} if any(step.is_copy for step in profile.steps) else {})
    events = list(_process(1, f"a run on {profile.device}", tracks, profile.median, steps, run | {"copies": copies}))
    if profile.kernels:
        kernels: list[Span] = [
            (
                kernel.node or kernel.kernel,
                kernel.median,
                KERNELS,
                {"kernel": kernel.kernel, "result": kernel.result, "segment": kernel.segment},
            )
            for kernel in profile.kernels
        ]
        tracks = {RUN: "run", KERNELS: "kernels"}
        title = f"a run on {profile.device} while its kernels are measured"
        events += _process(2, title, tracks, profile.kernel_run, kernels, {})
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"remarks": list(profile.remarks)}}


def _process(
    pid: int, name: str, tracks: dict[int, str], seconds: float, spans: Sequence[Span], about: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The events of a run: its name and those of its tracks, the run as a whole, and what it consists of."""
    yield _name("process", pid, 0, name)
    for track, title in tracks.items():
        yield _name("thread", pid, track, title)
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": track, "args": {"sort_index": track}}
    parts = list(_consecutive(pid, spans))
    # Noise can make the parts longer than the run.
    whole = max(round(seconds * 1e9), sum(round(span[1] * 1e9) for span in spans))
    yield _complete("run", pid, RUN, 0, whole, about)
    yield from parts


def _consecutive(pid: int, spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    start = 0
    for name, seconds, track, arguments in spans:
        duration = round(seconds * 1e9)
        yield _complete(shorten(name, MAX_NAME), pid, track, start, duration, {"name": name} | arguments)
        start += duration


def _complete(
    name: str, pid: int, track: int, start_ns: int, duration_ns: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": start_ns / 1000, "dur": duration_ns / 1000}
    return {"ph": "X", "name": name, "cat": "opweave", "pid": pid, "tid": track, **times, "args": arguments}


def _name(kind: str, pid: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": f"{kind}_name", "pid": pid, "tid": track, "args": {"name": name}}
