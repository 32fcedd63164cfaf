"""The results of `MLGraph.profile`: the time of each step and of a whole run, copies, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..support.formatting import duration, intermediates, markup, shorten, size, table
from ..support.names import count_of, visible

if TYPE_CHECKING:
    from pathlib import Path

    from ..backends import KernelTime

MAX_TITLE = 70
"""Maximum characters of a title in a table; `Profile.steps` has the full title."""

MAX_KERNELS = 10
"""Maximum number of kernels in a table without details; `Profile.kernels` has all."""

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
        kernels: the times of the engine's kernels, measured by the engine in separate runs. On a CPU, a graph of several
            steps has them only with `detail=True`. On a GPU, they are differences of timestamps.
        kernel_run: the median time of the runs that measure kernels, in seconds; 0 without kernels.
        remarks: for a session, the program that was measured, and how calls with other shapes run; reasons why kernels
            are not measured.
        has_details: whether the table lists all kernels and the totals of each, instead of the ten slowest kernels.
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
    kernel_run: float = 0.0
    has_details: bool = True

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

    def save_trace(self, path: str | Path) -> None:
        """Write a timeline for https://ui.perfetto.dev or chrome://tracing, in Chrome's trace event format.

        It has a track for the run, one for its steps, and one for steps that only copy. A second process has the kernels,
        which are measured in other runs. Events have the median times, and follow each other without gaps.

        Args:
            path: the .json file to write.

        Raises:
            ValidationError: the file's name does not end with .json.
            DataError: there is no such folder, or the file cannot be written.

        >>> import json, tempfile, opweave as ow
        >>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
        >>> graph = builder.build({"y": builder.input("x", "float32", [2]).neg()})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graph.profile(repeat=2).save_trace(f"{folder}/trace.json")
        ...     with open(f"{folder}/trace.json") as file:
        ...         events = json.load(file)["traceEvents"]
        >>> [event["name"] for event in events if event["ph"] == "X"]
        ['run', 'neg']
        """
        import json

        from ..support.files import atomic_writer
        from .timeline import check_trace, timeline

        check_trace(path)
        with atomic_writer(path) as file:
            file.write(json.dumps(timeline(self)).encode())

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        head = ("", "step", "runs as", "median", "min", "share", "read", "written", "GB/s")
        lines = table([head, *map(_step_cells, self.steps)], words=3)
        if self.kernels:
            rows = [_KERNEL_HEAD, *self._kernel_cells()]
            lines += ["", f"{self._kernel_title()}:", *table(rows, words=4)]
        if self.kernels and self.has_details:
            lines += ["", "totals of kernels:", *table([_TOTAL_HEAD, *self._total_cells()], words=1)]
        return "\n".join([*lines, "", *self._notes()])

    def _listed_kernels(self) -> Sequence[KernelTime]:
        """The kernels of the table: all in order, or the slowest ones."""
        if self.has_details:
            return self.kernels
        return sorted(self.kernels, key=lambda kernel: -kernel.median)[:MAX_KERNELS]

    def _kernel_title(self) -> str:
        count, listed = len(self.kernels), len(self._listed_kernels())
        order = "in order" if self.has_details else f"the {f'{listed} ' if listed < count else ''}slowest first"
        return count_of(count, "kernel") + (f", {order}" if count > 1 else "")

    def _kernel_cells(self) -> list[tuple[str, ...]]:
        total = self._kernel_seconds
        return [
            (
                str(k.segment),
                *(shorten(visible(t), MAX_TITLE) for t in (k.node, k.kernel)),
                k.result,
                *_times(k, k.median / total),
            )
            for k in self._listed_kernels()
        ]

    def _total_cells(self) -> list[tuple[str, ...]]:
        return [(visible(t.kernel), str(t.count), duration(t.total), f"{t.share:.1%}") for t in self.kernel_totals]

    def _notes(self) -> list[str]:
        notes = [
            f"whole run: {duration(self.median)} (min {duration(self.minimum)}), median of {self.repeat} on {self.device}"
        ]
        if len(self.steps) > 1:
            notes.append(f"steps alone: {duration(self.parts)}; between them: {duration(self.overhead)}")
        if self.kernels:
            notes.append(
                f"kernels: measured by their engine in separate runs of {duration(self.kernel_run)}, since measuring takes "
                f"time; shares are of their sum, {duration(self._kernel_seconds)}"
            )
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
            listing = _html(_KERNEL_HEAD, _escape_rows(self._kernel_cells()), words=4)
            kernels = f"<p>{self._kernel_title()}:</p>{listing}"
        if self.kernels and self.has_details:
            totals = _html(_TOTAL_HEAD, _escape_rows(self._total_cells()), words=1)
            kernels = f"{totals}<details><summary>{self._kernel_title()}</summary>{listing}</details>"
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
    if not step.reads + step.writes:
        sizes = ("", "", "")  # of a program for all shapes
    return (str(step.segment), shorten(step.title, MAX_TITLE), step.how, *_times(step, step.share), *sizes)


def _times(measured: StepProfile | KernelTime, share: float) -> tuple[str, str, str]:
    return duration(measured.median), duration(measured.minimum), f"{share:.1%}"
