"""The results of `MLGraph.profile`: the time of each step and of a whole run, copies, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..support.formatting import duration, intermediates, markup, shorten, size, table

if TYPE_CHECKING:
    from ..backends import KernelTime

MAX_TITLE = 70
"""Maximum characters of a title in a table; `Profile.steps` has the full title."""

_KERNEL_HEAD = ("", "of operation", "kernel", "makes", "median", "min", "share")
_TOTAL_HEAD = ("kernel", "calls", "total", "share")


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One step of a graph.

    Attributes:
        segment: the number of the segment that it belongs to.
        title: the operations that it runs, or what it copies.
        how: what runs it.
        median: the median of its time, in seconds.
        minimum: its shortest time, in seconds.
        reads: bytes that it reads, weights included.
        writes: bytes that it writes.
        share: its fraction of the sum of all steps' times.
        is_copy: whether it only copies.
    """

    segment: int
    title: str
    how: str
    median: float
    minimum: float
    reads: int
    writes: int
    share: float
    is_copy: bool = False

    @property
    def bandwidth(self) -> float:
        """Bytes read and written in a second."""
        return (self.reads + self.writes) / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class CopyProfile:
    """The copies that one run of a graph makes for one reason."""

    reason: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KernelTotal:
    """All calls of one kernel in a run.

    Attributes:
        kernel: the engine's name for the kernel.
        count: the number of calls.
        total: the sum of the median times of its calls, in seconds.
        share: its fraction of the sum of all kernels' times.
    """

    kernel: str
    count: int
    total: float
    share: float


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """The result of `MLGraph.profile` and `InferenceSession.profile`; a prompt, `print` and notebooks show it as a table.

    Attributes:
        device: the device of the graph.
        repeat: the number of measured runs.
        steps: the steps of one run, in order. A graph that one engine runs as a whole is one step.
        copies: copies during one run, by reason, from `opweave.memory.copies`; includes copies by other threads.
        median: the median time of a whole run in seconds, measured as a whole.
        minimum: the shortest time of a whole run in seconds.
        intermediates: bytes of memory for the values between segments.
        intermediates_alone: the sum of the sizes of these values, which is larger if values share memory.
        pieces: the number of these values.
        kernels: the times of the engine's kernels, measured by the engine; on a CPU only with `detail=True`. On a GPU, they
            are differences of timestamps.
        remarks: for a session, the program that was measured, and how calls with other shapes run.
    """

    device: str
    repeat: int
    steps: tuple[StepProfile, ...]
    copies: tuple[CopyProfile, ...]
    median: float
    minimum: float
    intermediates: int = 0
    intermediates_alone: int = 0
    pieces: int = 0
    kernels: tuple[KernelTime, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def parts(self) -> float:
        """The sum of the steps' median times, in seconds."""
        return sum(step.median for step in self.steps)

    @property
    def overhead(self) -> float:
        """The time of a run minus the sum of its steps, in seconds; noise can make it negative."""
        return self.median - self.parts

    @property
    def kernel_totals(self) -> tuple[KernelTotal, ...]:
        """The times of `kernels`, added up for each kernel, longest first."""
        medians: dict[str, list[float]] = {}
        for kernel in self.kernels:
            medians.setdefault(kernel.kernel, []).append(kernel.median)
        whole = self._kernel_seconds
        totals = [KernelTotal(name, len(times), sum(times), sum(times) / whole) for name, times in medians.items()]
        return tuple(sorted(totals, key=lambda total: -total.total))

    @property
    def _kernel_seconds(self) -> float:
        return sum(kernel.median for kernel in self.kernels) or 1.0

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for tools: plain lists, dictionaries, strings and numbers; times in seconds, sizes in bytes."""
        result = asdict(self)
        for step, entry in zip(self.steps, result["steps"], strict=True):
            entry["bandwidth"] = step.bandwidth
        totals = [asdict(total) for total in self.kernel_totals]
        return {**result, "kernel_totals": totals, "parts": self.parts, "overhead": self.overhead}

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        head = ("", "step", "runs as", "median", "min", "share", "read", "written", "GB/s")
        lines = table([head, *map(_step_cells, self.steps)], words=3)
        if self.kernels:
            rows = [_KERNEL_HEAD, *self._kernel_cells()]
            lines += ["", "kernels, while their engine measures them:", *table(rows, words=4)]
            lines += ["", "totals of kernels:", *table([_TOTAL_HEAD, *self._total_cells()], words=1)]
        return "\n".join([*lines, "", *self._notes()])

    def _kernel_cells(self) -> list[tuple[str, ...]]:
        total = self._kernel_seconds
        return [
            (str(k.segment), shorten(k.node, MAX_TITLE), k.kernel, k.result, *_times(k, k.median / total))
            for k in self.kernels
        ]

    def _total_cells(self) -> list[tuple[str, ...]]:
        return [(t.kernel, str(t.count), duration(t.total), f"{t.share:.1%}") for t in self.kernel_totals]

    def _notes(self) -> list[str]:
        notes = [
            f"whole run: {duration(self.median)} (min {duration(self.minimum)}), median of {self.repeat} on {self.device}"
        ]
        if len(self.steps) > 1:
            notes.append(f"steps alone: {duration(self.parts)}; between them: {duration(self.overhead)}")
        if self.pieces:
            shared = intermediates(self.pieces, self.intermediates_alone, self.intermediates)
            notes.append(f"intermediates: {shared}")
        if not self.copies:
            notes.append("copies: none")
        for copied in self.copies:
            notes.append(f"copies: {copied.count} x {copied.reason}, {size(copied.bytes)}")
        return [*notes, *self.remarks]

    def _repr_html_(self) -> str:
        rows = []
        for step in self.steps:
            *cells, share, _, _, bandwidth = map(markup, _step_cells(step))
            colour = "#d9822b" if step.is_copy else "#3d7dca"
            width = f"width:{step.share * 120:.1f}px;height:0.8em"
            bar = f'<div style="width:120px;background:#8883"><div style="{width};background:{colour}"></div></div>'
            rows.append((*cells, bar, share, bandwidth))
        steps = _html(("", "step", "runs as", "median", "min", "", "share", "GB/s"), rows, words=3)
        kernels = ""
        if self.kernels:
            calls, totals = _escape_rows(self._kernel_cells()), _escape_rows(self._total_cells())
            kernels = _html(_TOTAL_HEAD, totals, words=1)
            listing = _html(_KERNEL_HEAD, calls, words=4)
            kernels += f"<details><summary>{len(self.kernels)} kernels</summary>{listing}</details>"
        return f"{steps}{kernels}<p>{'<br>'.join(map(markup, self._notes()))}</p>"


def _html(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """A table for notebooks; the first `words` columns are aligned left, the others right."""
    sides = ["left" if number < words else "right" for number in range(len(head))]

    def line(tag: str, row: Sequence[str]) -> str:
        cells = zip(sides, row, strict=True)
        return "<tr>" + "".join(f'<{tag} style="text-align:{side}">{cell}</{tag}>' for side, cell in cells) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"


def _escape_rows(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    return [tuple(map(markup, row)) for row in rows]


def _step_cells(step: StepProfile) -> tuple[str, ...]:
    sizes = size(step.reads), size(step.writes), f"{step.bandwidth / 1e9:.2f}"
    return (str(step.segment), shorten(step.title, MAX_TITLE), step.how, *_times(step, step.share), *sizes)


def _times(measured: StepProfile | KernelTime, share: float) -> tuple[str, str, str]:
    return duration(measured.median), duration(measured.minimum), f"{share:.1%}"
