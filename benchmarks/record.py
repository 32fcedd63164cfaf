"""A record of measurements, kept in a file: pages are made of it, and a benchmark may measure it in several runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from .page import machine

RowT = TypeVar("RowT")


class Judged(Protocol):
    """A dataclass of values that have a limit."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def holds(self) -> bool:
        """Whether they are within it."""


@dataclass
class Record(Generic[RowT]):
    """All measurements of a benchmark on one machine.

    Attributes:
        machine: what they were measured on; of a device, the versions of what ran there.
        device: the description of the device; "" for the processor.
        settings: numbers that the benchmark was called with.
        rows: dataclasses, in the order in which they were measured.
        failures: why something was not measured, by its name.
    """

    machine: str
    device: str = ""
    settings: Mapping[str, int] = field(default_factory=dict)
    rows: list[RowT] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the record as JSON, without attributes that are empty."""
        values = {name: value for name, value in asdict(self).items() if value or name == "rows"}
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def record_of(rows: Sequence[Judged], **settings: int) -> Record[dict[str, Any]]:
    """A record of this machine, which says of each row whether it holds."""
    return Record(machine(), settings=settings, rows=[{**asdict(row), "holds": row.holds} for row in rows])


def read(path: Path, row: Callable[..., RowT]) -> Record[RowT]:
    """Read a record; `row` makes a row of its values."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Record(**{**data, "rows": [row(**values) for values in data["rows"]]})


def resumed(path: Path, row: Callable[..., RowT], device: str, machine: str) -> Record[RowT]:
    """The record in a file if it is of this device with these versions; otherwise a new one."""
    if path.exists():
        record = read(path, row)
        if (record.device, record.machine) == (device, machine):
            return record
    return Record(machine, device)
