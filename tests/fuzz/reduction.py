"""Make findings smaller, each in a process of its own, and count their kinds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from fuzz.frame import Campaign


def reduce_findings(
    campaign: Campaign, numbers: Iterable[int], *, seed: int, out: Path, jobs: int = 1, progress: TextIO | None = None
) -> dict[str, list[int]]:
    """Reduce the findings of cases, and write each beside the finding; the cases by the kind of what is left.

    Args:
        campaign: one that can reduce its findings.
        numbers: the numbers of the cases.
        seed: the seed of the campaign.
        out: the folder of findings; a file there lists the kinds, most frequent first.
        jobs: how many are reduced at a time.
        progress: where to tell each result.

    Raises:
        ValueError: the campaign cannot reduce findings.
    """
    reduce = campaign.reduce
    if reduce is None:
        raise ValueError(f"findings of {campaign.name} cannot be reduced")
    out.mkdir(parents=True, exist_ok=True)

    def work(number: int) -> tuple[int, str, str]:
        with TemporaryDirectory(prefix="opweave-fuzz-") as name:
            kind, text = reduce(campaign.rng(seed, number), number, Path(name))
        return number, kind, text

    kinds: dict[str, list[int]] = defaultdict(list)
    texts: dict[str, str] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for number, kind, text in pool.map(work, numbers):
            (out / f"{campaign.name}-{seed}-{number}-reduced.txt").write_text(f"{kind}\n{text}\n", encoding="utf-8")
            kinds[kind].append(number)
            if kind not in texts or len(text) < len(texts[kind]):
                texts[kind] = text
            if progress is not None:
                print(f"{campaign.name} {number}: {kind}"[:300], file=progress, flush=True)
    ranked = dict(sorted(kinds.items(), key=lambda item: -len(item[1])))
    lines = []
    for kind, cases in ranked.items():
        shown = ", ".join(map(str, cases[:8])) + (", …" if len(cases) > 8 else "")
        lines.append(f"## {kind}: {len(cases)} ({shown})\n\n{texts[kind]}\n")
    summary = out / f"{campaign.name}-kinds.md"
    summary.write_text("\n".join(lines), encoding="utf-8")
    if progress is not None:
        print("\n".join(f"{len(cases):6} {kind}" for kind, cases in ranked.items()), file=progress)
        print(f"written to {summary}", file=progress)
    return ranked
