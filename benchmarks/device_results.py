"""Results of a device, kept in a file, so that a benchmark may measure them in several runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

RowT = TypeVar("RowT")


@dataclass
class Results(Generic[RowT]):
    """What was measured on a device.

    Attributes:
        device: its description.
        machine: the versions of what ran there.
        rows: dataclasses, in the order in which they were measured.
        failures: why something was not measured, by its name.
    """

    device: str
    machine: str
    rows: list[RowT] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write them as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def read(path: Path, row: Callable[..., RowT]) -> Results[RowT]:
    """Results that were written; `row` is the class of their rows."""
    data: dict[str, Any] = json.loads(path.read_text())
    return Results(**{**data, "rows": [row(**each) for each in data["rows"]]})


def resumed(path: Path, row: Callable[..., RowT], device: str, machine: str) -> Results[RowT]:
    """The results in a file if they are of this device with these versions; otherwise new ones."""
    if path.exists():
        known = read(path, row)
        if (known.device, known.machine) == (device, machine):
            return known
    return Results(device, machine)
