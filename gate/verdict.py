"""What a model must hold to pass the gate, and what was measured of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.budgets import GATE
from benchmarks.measure import Ratio
from opweave.support.agreement import difference


@dataclass
class Verdict:
    """What was measured of a model.

    Attributes:
        name: the model.
        difference: the largest difference from ONNX Runtime's results, relative; NaN where they cannot be compared.
        load: seconds to load it, (Opweave's, ONNX Runtime's).
        memory: peak memory of the process at all shapes in MiB, likewise.
        threads: the most threads of the process, likewise.
        steady: milliseconds a call at the first shape, likewise; None where times were not measured.
        steady_ratio: of pairs of calls.
        rested: the ratio of pairs of calls that each come after a pause, by its milliseconds.
        new: the ratio of the times of the first call at each new shape.
        faults: the limits that it exceeds, or why it does not run.
        only_results: whether the results alone have a limit: memory, threads and times of other engines than ONNX Runtime are
            their own.
        limit: of the difference.
    """

    name: str
    difference: float = float("nan")
    load: tuple[float, float] | None = None
    memory: tuple[float, float] | None = None
    threads: tuple[int, int] | None = None
    steady: tuple[float, float] | None = None
    steady_ratio: Ratio | None = None
    rested: dict[str, Ratio] = field(default_factory=dict)
    new: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    only_results: bool = False
    limit: float = GATE["difference"]

    def judge_runs(self, ours: dict[str, Any], theirs: dict[str, Any], folders: tuple[Path, Path]) -> None:
        """Take in what the runs of both engines report and wrote."""
        self.load = ours["load"], theirs["load"]
        self.memory = ours["peak_mib"], theirs["peak_mib"]
        self.threads = ours["threads"], theirs["threads"]
        self.difference = compare_folders(*folders)
        if not self.difference <= self.limit:
            self.faults.append(f"results differ by {self.difference:.2g}")
        if self.only_results:
            return
        if self.memory[0] > GATE["memory"] * self.memory[1]:
            self.faults.append(f"memory {self.memory[0] / self.memory[1]:.2f}x")
        if self.threads[0] > GATE["threads"]:
            self.faults.append(f"{self.threads[0]} threads")

    def judge_times(self, found: dict[str, Any]) -> None:
        """Take in the times of pairs of calls."""
        steady = np.array(found["steady"])
        self.steady = float(np.median(steady[:, 0]) * 1e3), float(np.median(steady[:, 1]) * 1e3)
        self.steady_ratio = Ratio.of(*steady.T.tolist())
        self.rested = {pause: Ratio.of(*zip(*pairs, strict=True)) for pause, pairs in found["rested"].items()}
        new = np.array(found["new"])  # sessions, shapes, engines
        if new.size:
            self.new = [float(ratio) for ratio in np.median(new[:, :, 0], axis=0) / np.median(new[:, :, 1], axis=0)]
        if self.only_results:
            return
        if self.steady_ratio.low > GATE["steady"]:
            self.faults.append(f"steady {self.steady_ratio.median:.2f}x")
        for pause, ratio in self.rested.items():
            if ratio.low > GATE["steady"]:
                self.faults.append(f"after {pause} ms {ratio.median:.2f}x")
        if self.new and statistics.median(self.new) > GATE["new shapes"]:
            self.faults.append(f"new shapes {statistics.median(self.new):.2f}x")
        if self.new and max(self.new) > GATE["new shape"]:
            self.faults.append(f"a new shape {max(self.new):.2f}x")

    def cells(self) -> list[str]:
        """What a table says, see `HEADER`."""

        def ratio(pair: tuple[float, float] | None, form: str, unit: str) -> str:
            return "" if pair is None else f"{pair[0] / pair[1]:.2f}x ({pair[0]:{form}} {unit})"

        steady = "" if self.steady is None or self.steady_ratio is None else f"{self.steady_ratio.median:.2f}x"
        return [
            self.name,
            f"{self.difference:.1g}",
            f"{steady} ({self.steady[0]:.3g} ms)" if self.steady else "",
            ", ".join(f"{ratio.median:.2f}x" for ratio in self.rested.values()),
            f"{statistics.median(self.new):.2f}x, {max(self.new):.2f}x" if self.new else "",
            ratio(self.memory, ".0f", "MiB"),
            "" if self.threads is None else f"{self.threads[0]} ({self.threads[1]})",
            ratio(self.load, ".2f", "s"),
            "; ".join(self.faults) or "yes",
        ]


HEADER = [
    "model",
    "difference",
    "steady",
    "after 30 ms, 100 ms",
    "new shapes: median, worst",
    "memory",
    "threads",
    "loading",
    "holds",
]


def compare_folders(ours: Path, theirs: Path) -> float:
    """The largest relative difference between results of the same names."""
    names = sorted(path.name for path in theirs.iterdir())
    if names != sorted(path.name for path in ours.iterdir()) or not names:
        return float("nan")
    return max(compare(np.load(ours / name), np.load(theirs / name)) for name in names)


def compare(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The difference of two results of a model; infinite where integers differ at all, and for other data types."""
    found = difference(ours, theirs) if ours.dtype == theirs.dtype else float("inf")
    return float("inf") if found and theirs.dtype.kind != "f" else found
