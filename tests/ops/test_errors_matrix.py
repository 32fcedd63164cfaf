"""What matrix products say about wrong arguments."""

from __future__ import annotations

from typing import Any

import messages
import pytest

VALID: dict[str, dict[str, Any]] = {
    "matmul": {"a": (2, 3, 4), "b": (4, 5)},
    "gemm": {"a": (3, 4), "b": (4, 5)},
}

ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("matmul", {"a": (4,)}, "a must have a rank in [2, 8], got float32[4]"),
    ("matmul", {"b": (4,)}, "b must have a rank in [2, 8], got float32[4]"),
    (
        "matmul",
        {"b": (3, 5)},
        "the last dimension of a must be the last but one of b, got float32[2, 3, 4] and float32[3, 5]",
    ),
    ("matmul", {"b": (3, 4, 5)}, "the shapes of the stacks a and b do not broadcast: [2] and [3]"),
    ("gemm", {"a": (1, 3, 4)}, "a must have rank 2, got float32[1, 3, 4]"),
    ("gemm", {"b": (4,)}, "b must have rank 2, got float32[4]"),
    ("gemm", {"a_transpose": True}, "a and b must have the same inner dimension, got 3 and 4"),
    ("gemm", {"b_transpose": True}, "a and b must have the same inner dimension, got 4 and 5"),
    ("gemm", {"c": (3, 4)}, "c must broadcast to [3, 5], got float32[3, 4]"),
    ("gemm", {"c": (1, 3, 5)}, "c must have a rank in [0, 2], got float32[1, 3, 5]"),
    ("gemm", {"alpha": float("inf")}, "alpha must be a finite number, got inf"),
]


@pytest.mark.whole
@pytest.mark.parametrize(("name", "changed", "message"), ROWS)
def test_message(name: str, changed: dict[str, Any], message: str) -> None:
    messages.check(name, VALID[name], changed, message)
