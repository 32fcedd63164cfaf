"""What each name of ONNX Runtime's Python API does with Opweave: the tables of `compatibility.json`.

Sessions follow the tables, and `tools/onnxruntime_tables.py` writes them into the documentation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["works", "ignored", "refused", "unread", "own"]
"""A name works as in ONNX Runtime, is ignored, raises an error, cannot be read from ONNX Runtime's object, or remains ONNX
Runtime's own while `replacing_onnxruntime` is active."""


@dataclass(frozen=True, slots=True)
class Row:
    """One name of ONNX Runtime, or several that are treated alike.

    Attributes:
        names: the names, separated by blanks.
        state: whether they do the same here, have no effect, or raise an error.
        text: what they do here, or why they have no effect.
        warn: whether ignoring them changes results: they are then logged as a warning instead of an information, and an
            option that cannot be read is refused where `replacing_onnxruntime` sees it set.
        since: the first version of ONNX Runtime that has them; empty if all supported versions do.
    """

    names: str
    state: State
    text: str
    warn: bool = False
    since: str = ""


def _read() -> dict[str, tuple[Row, ...]]:
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    return {table: tuple(Row(**row) for row in rows) for table, rows in json.loads(text).items()}


TABLES = _read()
"""The table of each class of ONNX Runtime, in the order of the page: by the name of the class, of the argument `providers`,
of a method that takes keys, or of the module."""

SESSION_OPTIONS, RUN_OPTIONS = TABLES["SessionOptions"], TABLES["RunOptions"]
CONFIG = TABLES["SessionOptions.add_session_config_entry"]
"""Keys of `SessionOptions.add_session_config_entry`; others are not read."""
SESSION = TABLES["InferenceSession"]


def names(rows: Iterable[Row]) -> list[str]:
    """All names of a table.

    >>> names(RUN_OPTIONS)[:2]
    ['terminate', 'log_severity_level']
    """
    return [name for row in rows for name in row.names.split()]


def row(rows: Iterable[Row], name: str) -> Row:
    """The row of a name."""
    return next(row for row in rows if name in row.names.split())
