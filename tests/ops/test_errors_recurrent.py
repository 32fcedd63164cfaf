"""What the recurrent networks say about wrong arguments."""

from __future__ import annotations

from typing import Any

import messages
import pytest

GRU = {"input": (5, 2, 3), "weight": (1, 12, 3), "recurrent_weight": (1, 12, 4), "steps": 5, "hidden_size": 4}
GRU_CELL = {"input": (2, 3), "weight": (12, 3), "recurrent_weight": (12, 4), "hidden_state": (2, 4), "hidden_size": 4}
LSTM = {**GRU, "weight": (1, 16, 3), "recurrent_weight": (1, 16, 4)}
LSTM_CELL = {
    "input": (2, 3),
    "weight": (16, 3),
    "recurrent_weight": (16, 4),
    "hidden_state": (2, 4),
    "cell_state": (2, 4),
    "hidden_size": 4,
}
VALID: dict[str, dict[str, Any]] = {"gru": GRU, "gru_cell": GRU_CELL, "lstm": LSTM, "lstm_cell": LSTM_CELL}

ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("gru", {"steps": 0}, "steps must be greater than 0, got 0"),
    ("gru", {"steps": 4}, "input must have 4 steps in its first dimension, got float32[5, 2, 3]"),
    ("gru", {"hidden_size": 0}, "hidden_size must be in [1, 357913941], got 0"),
    ("gru", {"hidden_size": 357913942}, "hidden_size must be in [1, 357913941], got 357913942"),
    ("gru", {"weight": (1, 16, 3)}, "weight must have shape [1, 12, 3], got float32[1, 16, 3]"),
    ("gru", {"direction": "both"}, "weight must have shape [2, 12, 3], got float32[1, 12, 3]"),
    ("gru", {"recurrent_weight": (1, 12, 3)}, "recurrent_weight must have shape [1, 12, 4], got float32[1, 12, 3]"),
    ("gru", {"bias": (1, 4)}, "bias must have shape [1, 12], got float32[1, 4]"),
    ("gru", {"recurrent_bias": (2, 12)}, "recurrent_bias must have shape [1, 12], got float32[2, 12]"),
    (
        "gru",
        {"initial_hidden_state": (1, 2, 3)},
        "initial_hidden_state must have shape [1, 2, 4], got float32[1, 2, 3]",
    ),
    ("gru", {"activations": ["tanh"]}, "activations must have 2 values, got ['tanh']"),
    ("gru", {"activations": ["tanh", "elu"]}, "activations[1] must be 'relu', 'sigmoid' or 'tanh', got 'elu'"),
    ("gru", {"direction": "up"}, "direction must be 'forward', 'backward' or 'both', got 'up'"),
    ("gru", {"layout": "iofg"}, "layout must be 'zrn' or 'rzn', got 'iofg'"),
    ("gru_cell", {"hidden_size": 357913942}, "hidden_size must be in [1, 357913941], got 357913942"),
    ("gru_cell", {"weight": (12, 4)}, "weight must have shape [12, 3], got float32[12, 4]"),
    ("gru_cell", {"recurrent_weight": (9, 3)}, "recurrent_weight must have shape [12, 4], got float32[9, 3]"),
    ("gru_cell", {"hidden_state": (3, 4)}, "hidden_state must have shape [2, 4], got float32[3, 4]"),
    ("gru_cell", {"bias": (16,)}, "bias must have shape [12], got float32[16]"),
    ("gru_cell", {"recurrent_bias": (4,)}, "recurrent_bias must have shape [12], got float32[4]"),
    ("gru_cell", {"activations": []}, "activations must have 2 values, got []"),
    ("lstm", {"steps": 0}, "steps must be greater than 0, got 0"),
    ("lstm", {"steps": 6}, "input must have 6 steps in its first dimension, got float32[5, 2, 3]"),
    ("lstm", {"hidden_size": 268435456}, "hidden_size must be in [1, 268435455], got 268435456"),
    ("lstm", {"weight": (1, 12, 3)}, "weight must have shape [1, 16, 3], got float32[1, 12, 3]"),
    ("lstm", {"recurrent_weight": (2, 16, 4)}, "recurrent_weight must have shape [1, 16, 4], got float32[2, 16, 4]"),
    ("lstm", {"bias": (1, 12)}, "bias must have shape [1, 16], got float32[1, 12]"),
    ("lstm", {"recurrent_bias": (1, 12)}, "recurrent_bias must have shape [1, 16], got float32[1, 12]"),
    ("lstm", {"peephole_weight": (1, 16)}, "peephole_weight must have shape [1, 12], got float32[1, 16]"),
    (
        "lstm",
        {"initial_hidden_state": (1, 1, 4)},
        "initial_hidden_state must have shape [1, 2, 4], got float32[1, 1, 4]",
    ),
    ("lstm", {"initial_cell_state": (2, 2, 4)}, "initial_cell_state must have shape [1, 2, 4], got float32[2, 2, 4]"),
    ("lstm", {"activations": ["tanh"] * 2}, "activations must have 3 values, got ['tanh', 'tanh']"),
    ("lstm", {"layout": "zrn"}, "layout must be 'iofg' or 'ifgo', got 'zrn'"),
    ("lstm_cell", {"hidden_size": 268435456}, "hidden_size must be in [1, 268435455], got 268435456"),
    ("lstm_cell", {"weight": (3, 16)}, "weight must have shape [16, 3], got float32[3, 16]"),
    ("lstm_cell", {"recurrent_weight": (16, 3)}, "recurrent_weight must have shape [16, 4], got float32[16, 3]"),
    ("lstm_cell", {"hidden_state": (1, 4)}, "hidden_state must have shape [2, 4], got float32[1, 4]"),
    ("lstm_cell", {"cell_state": (2, 3)}, "cell_state must have shape [2, 4], got float32[2, 3]"),
    ("lstm_cell", {"bias": (4,)}, "bias must have shape [16], got float32[4]"),
    ("lstm_cell", {"recurrent_bias": (12,)}, "recurrent_bias must have shape [16], got float32[12]"),
    ("lstm_cell", {"peephole_weight": (16,)}, "peephole_weight must have shape [12], got float32[16]"),
    (
        "lstm_cell",
        {"activations": ["relu"] * 4},
        "activations must have 3 values, got ['relu', 'relu', 'relu', 'relu']",
    ),
    ("lstm_cell", {"input": (5, 2, 3)}, "input must have rank 2, got float32[5, 2, 3]"),
]


@pytest.mark.whole
@pytest.mark.parametrize(("name", "changed", "message"), ROWS)
def test_message(name: str, changed: dict[str, Any], message: str) -> None:
    messages.check(name, VALID[name], changed, message)
