"""The 95 operations of the specification; one file a family."""

from __future__ import annotations

from typing import Any

from ..graph import Builder
from ..op import Op
from .elementwise import add, exp
from .recurrent import gru, gru_cell, lstm, lstm_cell


class Operations(Builder):
    """A builder with every operation as a method, in the specification's order."""

    add = add
    exp = exp
    gru = gru
    gru_cell = gru_cell
    lstm = lstm
    lstm_cell = lstm_cell

    @classmethod
    def listing(cls) -> dict[str, Op[..., Any]]:
        """All operations by name, in the specification's order."""
        return {name: value for name, value in vars(Operations).items() if isinstance(value, Op)}
