"""Short runs of the campaigns of `fuzz`, and what its frame promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import frame
from fuzz.__main__ import CAMPAIGNS, campaign

TESTS = Path(__file__).parent


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_short_campaign_finds_nothing(name: str, tmp_path: Path) -> None:
    chosen = campaign(name)
    result = frame.run(chosen, range(chosen.short), seed=31, out=tmp_path)
    assert not result.findings, [path.read_text() for path in tmp_path.glob("*.txt")]
    assert sum(result.outcomes.values()) == chosen.short


# The frame -----------------------------------------------------------------------------------------------------------


def test_each_kind_of_finding_is_seen_and_written(tmp_path: Path) -> None:
    chosen = campaign("misbehaving")
    result = frame.run(chosen, range(8), seed=3, out=tmp_path)
    assert result.outcomes == {"result": 2, "finding": 3, "died": 3}
    firsts = {number: text.splitlines()[0] for number, text in result.findings.items()}
    assert firsts[1] == "ValueError: it is not as it should be"
    assert firsts[2] == "the process ended: SIGABRT"
    assert firsts[3] == "it took more than 1 s of processor time"
    assert "misbehave" in result.findings[3], "where it was"
    assert "Unable to allocate" in firsts[4]
    assert firsts[5] == "it gave 'nonsense'"
    assert firsts[6] == "it waited for 20 s"
    assert "-m fuzz misbehaving --seed 3 --case 1\n" in (tmp_path / "misbehaving-3-1.txt").read_text()
    assert (tmp_path / "misbehaving-3-1.bin").read_bytes() == chosen.rng(3, 1).randbytes(4)


def test_the_command_line_runs_one_case_again() -> None:
    command = [sys.executable, "-m", "fuzz", "models", "--case", "50"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True)
    assert done.stdout == "models 50: result\n"
