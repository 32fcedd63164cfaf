"""Short runs of the campaigns of `fuzz`, and what its frame promises."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samples import SAMPLES, type_choices

from benchmarks.page import DOCS
from fuzz import frame, page, record
from fuzz.__main__ import CAMPAIGNS, campaign
from fuzz.size_calls import Make
from opweave.core.operation import Op
from opweave.ops import indexing

TESTS = Path(__file__).parents[1]


@pytest.mark.long
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_campaign_finds_nothing(name: str, tmp_path: Path) -> None:
    chosen = campaign(name)
    if missing := chosen.missing():
        pytest.skip(missing)
    result = frame.run(chosen, range(chosen.short), seed=31, out=tmp_path)
    assert not result.findings, [path.read_text() for path in tmp_path.glob("*.txt")]
    assert sum(result.outcomes.values()) == chosen.short


@pytest.mark.parametrize("op", [indexing.scatter_elements, indexing.scatter_nd], ids=lambda op: op.name)
def test_scatters_are_drawn_for_shapes_of_no_elements(op: Op[..., Any]) -> None:
    types = next(iter(type_choices(op, op.limits)))
    for shape in ((0,), (0, 3), (2, 0), (0, 0)):
        for seed in range(20):
            call = SAMPLES[op].make(Make(random.Random(seed), types, [shape]))
            assert op(*call.args, **call.kwargs).shape == call.args[0].shape


# The frame -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_campaign_records_each_kind_of_finding(tmp_path: Path) -> None:
    chosen = campaign("misbehaving")
    result = frame.run(chosen, range(8), seed=3, out=tmp_path, jobs=3)
    assert result.outcomes == {"result": 2, "finding": 3, "died": 3}
    firsts = {number: text.splitlines()[0] for number, text in result.findings.items()}
    assert firsts[1] == "ValueError: it is not as it should be"
    assert firsts[2] == "the process ended: SIGABRT"
    assert firsts[3] == "it took more than 1 s of processor time"
    assert "misbehave" in result.findings[3], "where it was"
    assert "Unable to allocate" in firsts[4]
    assert firsts[5] == "it gave 'nonsense'"
    assert firsts[6] == "it waited for 5 s"
    assert "-m fuzz misbehaving --seed 3 --case 1\n" in (tmp_path / "misbehaving-3-1.txt").read_text()
    assert (tmp_path / "misbehaving-3-1.bin").read_bytes() == chosen.rng(3, 1).randbytes(4)


def test_campaign_stops_after_most_findings(tmp_path: Path) -> None:
    chosen = replace(campaign("misbehaving"), batch=2)
    result = frame.run(chosen, [5] * 40, seed=3, out=tmp_path, jobs=2, most=1)
    assert result.outcomes["finding"] in (1, 2)  # the other child may have been at one, too


def test_campaign_stops_after_minutes(tmp_path: Path) -> None:
    chosen = replace(campaign("misbehaving"), batch=1)
    result = frame.run(chosen, [0] * 5, seed=3, out=tmp_path, minutes=0)
    assert result.outcomes == {"result": 1}, "time is looked at after each case"
    assert record.go_on(chosen, tmp_path, seed=3, count=5, minutes=0).cases == 0


def test_campaign_missing_requirements() -> None:
    chosen = campaign("misbehaving")
    assert chosen.missing() == ""
    assert replace(chosen, needs=("no_such_package",)).missing() == "no_such_package is not installed"
    assert replace(chosen, obstacle=lambda: "there is no such device").missing() == "there is no such device"


def test_findings_are_written_with_the_description_of_their_case(tmp_path: Path) -> None:
    chosen = replace(campaign("misbehaving"), describe=lambda rng, number: f"the text of case {number}")
    frame.run(chosen, [0, 2], seed=3, out=tmp_path)
    assert "the text of case 2" in (tmp_path / "misbehaving-3-2.txt").read_text()
    assert frame.reported(chosen, 3, tmp_path) == [2]


def test_children_are_bound_to_two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {9, 2, 3, 5, 8}, raising=False)
    assert frame.processor_pairs(4) == [[2, 3], [5, 8], [9, 2], [3, 5]]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert frame.processor_pairs(2) == [[], []]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no processes to processors")
def test_campaign_child_processor_affinity(tmp_path: Path) -> None:
    for processor in sorted(os.sched_getaffinity(0))[:2]:
        with frame.Child(campaign("misbehaving"), 3, tmp_path, [processor]) as child:
            assert child.ask(8) == ("finding", f"it gave 'processors [{processor}]'", 1)


@pytest.mark.long
def test_command_line_runs_one_case() -> None:
    command = [sys.executable, "-m", "fuzz", "models", "--case", "50"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True)
    assert done.stdout == "models 50: result\n"


# Records -------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_record_resumes(tmp_path: Path) -> None:
    chosen = replace(campaign("misbehaving"), batch=1)
    first = record.go_on(chosen, tmp_path, seed=3, count=2)
    assert (first.cases, first.units, first.outcomes) == (2, 1, {"result": 1})
    assert first.open == {1: "ValueError: it is not as it should be"}
    second = record.go_on(chosen, tmp_path, seed=3, count=3)
    assert (second.cases, second.units, sorted(second.open)) == (3, 1, [1, 2])
    assert record.go_on(chosen, tmp_path, seed=3, count=3) == second, "nothing is left to run"
    assert (tmp_path / "findings/misbehaving-3-2.txt").exists()
    with pytest.raises(ValueError, match="is the record of seed 3, not of 4"):
        record.go_on(chosen, tmp_path, seed=4, count=3)


@pytest.mark.long
def test_record_counts_vanished_finding_as_mended(tmp_path: Path) -> None:
    chosen = replace(campaign("misbehaving"), batch=1)
    record.go_on(chosen, tmp_path, seed=3, count=6)
    file = record.file_of(tmp_path, chosen)
    before = record.Record.read(file, chosen.name, 3)
    before.open[7] = "a finding of a case that is well now"
    before.cases = 8
    before.write(file)
    after = record.run_again(chosen, tmp_path, seed=3)
    assert after.mended == {7: "a finding of a case that is well now"}
    assert sorted(after.open) == [1, 2, 3, 4, 5]
    assert (after.cases, after.outcomes) == (8, {"result": 2})
    assert record.Record.read(file, chosen.name, 3) == after


@pytest.mark.long
def test_record_stops_after_most_open_findings(tmp_path: Path) -> None:
    chosen = replace(campaign("misbehaving"), batch=1)
    assert sorted(record.go_on(chosen, tmp_path, seed=3, count=6, most=1).open) == [1, 2, 3, 4, 5], "within one part"
    assert record.go_on(chosen, tmp_path, seed=3, count=8, most=1).cases == 6


def test_campaign_page_is_current() -> None:
    campaigns = [campaign(name) for name in CAMPAIGNS]
    assert page.text(campaigns) in (DOCS / "campaign.md").read_text(encoding="utf-8")
