"""Records of campaigns: what has run, and what came of it. One goes on where it stopped, also after it was ended."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import TextIO

from fuzz import frame
from fuzz.frame import FINDINGS, Campaign, Result
from opweave.support.files import atomic_writer

PART_BATCHES = 10
"""Batches between two writings of a record: what is lost when a campaign is ended. An estimate of what is little."""


@dataclass
class Record:
    """One campaign with one seed.

    Attributes:
        campaign: its name.
        seed: its seed.
        cases: how many have run; the next one has this number.
        units: how many units these have run.
        outcomes: how often each outcome came; findings are not among them.
        open: the first lines of findings by the numbers of their cases.
        mended: likewise, of findings that did not come again.
    """

    campaign: str
    seed: int
    cases: int = 0
    units: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    open: dict[int, str] = field(default_factory=dict)
    mended: dict[int, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path, campaign: str, seed: int, *, has_any_seed: bool = False) -> Record:
        """The record in a file, or an empty one with this seed if there is no file.

        With `has_any_seed`, the file may be about another seed.

        Raises:
            ValueError: the file is about another seed.
        """
        if not file.exists():
            return cls(campaign, seed)
        found = cls(**json.loads(file.read_text(encoding="utf-8")))
        if found.seed != seed and not has_any_seed:
            raise ValueError(f"{file} is the record of seed {found.seed}, not of {seed}")
        found.open = {int(number): text for number, text in found.open.items()}
        found.mended = {int(number): text for number, text in found.mended.items()}
        return found

    def write(self, file: Path) -> None:
        """Write the record, so that it is whole whenever the process ends."""
        with atomic_writer(file) as written:
            written.write((json.dumps(asdict(self), indent=2) + "\n").encode())

    def add(self, result: Result) -> None:
        """Add the cases that follow those that have run."""
        self.cases += result.outcomes.total()
        self.open |= self._take(result)

    def run_again(self, result: Result) -> None:
        """Replace the open findings by those of a result, for which their cases have run again."""
        self.mended |= {number: text for number, text in self.open.items() if number not in result.findings}
        self.open = self._take(result)

    def _take(self, result: Result) -> dict[int, str]:
        """Count the outcomes of a result; its findings."""
        words = {word: count for word, count in result.outcomes.items() if word not in FINDINGS}
        self.outcomes = dict((Counter(self.outcomes) + Counter(words)).most_common())
        self.units += result.units
        return {number: text.partition("\n")[0] for number, text in result.findings.items()}


def file_of(folder: Path, campaign: Campaign) -> Path:
    """Where the record of a campaign is."""
    return folder / f"{campaign.name}.json"


def go_on(
    campaign: Campaign,
    folder: Path,
    *,
    seed: int,
    count: int,
    most: int = 50,
    jobs: int = 1,
    minutes: float = inf,
    progress: TextIO | None = None,
) -> Record:
    """Run the cases of a campaign that its record lacks, and write the record after each part of them.

    Args:
        campaign: which one.
        folder: where the records are; files of findings come beside them.
        seed: the seed of the campaign.
        count: how many cases the record has in the end.
        most: the number of open findings after which it stops.
        jobs: how many children run at a time.
        minutes: after which no part is begun, since a record has all cases up to a number.
        progress: where to tell how far it is.

    Raises:
        ValueError: the record is that of another seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = file_of(folder, campaign)
    record = Record.read(file, campaign.name, seed)
    part = PART_BATCHES * campaign.batch * jobs
    end = time.monotonic() + 60 * minutes
    while record.cases < count and len(record.open) < most and time.monotonic() < end:
        numbers = range(record.cases, min(record.cases + part, count))
        result = frame.run(
            campaign, numbers, seed=seed, out=folder / "findings", most=len(numbers), jobs=jobs, progress=progress
        )
        record.add(result)
        record.write(file)
    return record


def run_again(campaign: Campaign, folder: Path, *, seed: int, progress: TextIO | None = None) -> Record:
    """Run the cases of open findings again; those that find nothing count as mended.

    Raises:
        ValueError: the record is that of another seed.
    """
    file = file_of(folder, campaign)
    record = Record.read(file, campaign.name, seed)
    if record.open:
        numbers = sorted(record.open)
        out = folder / "findings"
        record.run_again(frame.run(campaign, numbers, seed=seed, out=out, most=len(numbers), progress=progress))
        record.write(file)
    return record
