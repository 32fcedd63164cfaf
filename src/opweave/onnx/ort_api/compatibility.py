"""The effect of each name of ONNX Runtime's Python API in Opweave: the tables of `compatibility.json`.

Sessions follow the tables, and `tools/onnxruntime_tables.py` writes them into the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Literal

from ...support.records import record

State = Literal["works", "ignored", "refused", "unread", "own"]
"""A name works as in ONNX Runtime, is ignored, raises an error, cannot be read back from ONNX Runtime's object, or stays ONNX
Runtime's own while `replacing_onnxruntime` is active."""


@record(eq=True)
class Row:
    """One or more names of ONNX Runtime, separated by spaces, that are treated alike.

    Attributes:
        text: the effect here, or the reason for having none.
        warn: whether ignoring the names changes results. If so, they are logged as warnings; an option that cannot be read
            back is refused if `replacing_onnxruntime` saw it set.
        since: the first version of ONNX Runtime that has them; empty if all supported versions do.
    """

    names: str
    state: State
    text: str
    warn: bool = False
    since: str = ""


@cache
def tables() -> dict[str, tuple[Row, ...]]:
    """The tables in the order of the page, by class of ONNX Runtime, argument (`providers`), method with keys, or module."""
    import json

    with open(os.path.join(os.path.dirname(__file__), "compatibility.json"), encoding="utf-8") as file:
        return {table: tuple(Row(**row) for row in rows) for table, rows in json.load(file).items()}


CONFIG = "SessionOptions.add_session_config_entry"


def names(rows: Iterable[Row]) -> list[str]:
    """All names of some rows."""
    return [name for row in rows for name in row.names.split()]


def row(table: str, name: str) -> Row:
    """The row of a name in the table called `table`."""
    return next(row for row in tables()[table] if name in row.names.split())
