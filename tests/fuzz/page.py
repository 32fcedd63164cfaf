"""The page that says how far the campaigns are, docs/campaign.md, and its figures in docs/campaign.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.page import DOCS, Table, replace_part, versions
from fuzz.frame import Campaign
from fuzz.record import Record, file_of

PACKAGES = ("onnx", "onnxruntime", "openvino", "wasmtime", "halide", "ray")
HEADER = ["Campaign", "What a case is", "Seed", "Cases", "Of", "Counted", "Outcomes", "Found", "Open"]


def render(campaigns: Sequence[Campaign], folder: Path, seed: int) -> None:
    """Write the figures of the records in a folder, and the table of the page."""
    records = [Record.read(file_of(folder, c), c.name, seed, has_any_seed=True) for c in campaigns]
    made = {"versions": versions("opweave", *PACKAGES), "records": [asdict(record) for record in records]}
    (DOCS / "campaign.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    replace_part(DOCS / "campaign.md", text(campaigns))


def text(campaigns: Sequence[Campaign]) -> str:
    """The table of the figures in docs/campaign.json."""
    made = json.loads((DOCS / "campaign.json").read_text(encoding="utf-8"))
    records = {record["campaign"]: Record(**record) for record in made["records"]}
    rows = [_row(campaign, records[campaign.name]) for campaign in campaigns]
    return f"{Table(HEADER, rows, right=[2, 3, 4, 7, 8])}\n\nWith {made['versions']}."


def _row(campaign: Campaign, record: Record) -> list[str]:
    counted = "" if campaign.unit == "cases" else f"{record.units:,} {campaign.unit}"
    outcomes = ", ".join(f"{word} {count:,}" for word, count in record.outcomes.items())
    found = len(record.open) + len(record.mended)
    cells = [f"`{campaign.name}`", campaign.about, str(record.seed), f"{record.cases:,}", f"{campaign.count:,}"]
    return [*cells, counted, outcomes, str(found), str(len(record.open))]
